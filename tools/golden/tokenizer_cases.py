"""Golden tokenizer: a small byte-level BPE tokenizer.json in the Qwen3.5 form, and what ``tokenizers`` says to it.

The training text is generated here (no foreign text). NFC normaliser, Qwen3.5 pre-tokenizer expression (letters and
marks together, single digits), byte-level alphabet, six added tokens behind the trained entries as in released files;
``<think>`` and ``</think>`` are added but not special, again as released. ``cases.json`` holds
``encode``: text -> ids (add_special_tokens=False) and the text these ids decode to (special tokens kept), and
``decode``: ids -> text for id lists that no text gives, for example cut UTF-8 sequences.

Rerun: ``python tools/golden/make.py tokenizer --out tests/golden``.
"""

from __future__ import annotations

from pathlib import Path

from common import generator, save_json, versions

PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}|"
    r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TRAINED_ENTRIES = 1530
ADDED = (
    ("<|endoftext|>", True),
    ("<|im_start|>", True),
    ("<|im_end|>", True),
    ("<think>", False),
    ("</think>", False),
    ("<|mask|>", True),
)
WORDS = (
    "the draft proposes seven tokens and the target verifies them in one pass while a restored prefix keeps its rows "
    "window context anchor state cache page layer hidden value query key gate norm score path block lane cycle budget "
    "accept reject bonus greedy sample temperature probability residual recurrent convolution history matrix vector "
    "because nothing here should ever depend on chance it's we're they've I'm you'll he'd don't can't reading writing "
    "measure compare report archive capture replay snapshot ledger digest memory disk process thread kernel number"
).split()
NAMES = "count index total rows width offset buffer result status tensor config window limit scale bias table".split()
TYPES = "int float double bool auto char size_t uint32_t".split()
OTHER = (
    "La caf\u00e9 est ferm\u00e9e; na\u00efve fa\u00e7ade \u00fcber Stra\u00dfe stra\u00dfe.",
    "\u041f\u0440\u0438\u0432\u0435\u0442 \u043c\u0438\u0440, \u043f\u0440\u043e\u0432\u0435\u0440\u043a\u0430.",
    "\u4f60\u597d\u4e16\u754c\uff0c"
    "\u8fd9\u662f\u4e00\u4e2a\u6d4b\u8bd5\u3002\u6a21\u578b\u9a8c\u8bc1\u7f13\u5b58\u3002",
    "\u3053\u3093\u306b\u3061\u306f\u4e16\u754c\u3001\u30c6\u30b9\u30c8\u3067\u3059\u3002",
    "\ud55c\uad6d\uc5b4 \uc2dc\ud5d8\uc785\ub2c8\ub2e4.",
    "\u0645\u0631\u062d\u0628\u0627 \u0628\u0627\u0644\u0639\u0627\u0644\u0645",
    "\u0928\u092e\u0938\u094d\u0924\u0947 \u0926\u0941\u0928\u093f\u092f\u093e",
)


def training_lines() -> list[str]:
    draw = generator(5, "text")

    def pick(items):
        return items[int(draw.integers(len(items)))]

    lines = []
    for _ in range(2500):
        words = [pick(WORDS) for _ in range(int(draw.integers(4, 14)))]
        words[0] = words[0].capitalize()
        lines.append(" ".join(words) + pick([".", "?", "!", ";", ":", ", etc."]) + pick(["", "", "\n", "\n\n"]))
    for _ in range(1200):
        a, b, kind = pick(NAMES), pick(NAMES), pick(TYPES)
        number = int(draw.integers(0, 5000))
        lines.append(
            pick(
                [
                    f"    {kind} {a}_{b} = {number};\n",
                    f"for ({kind} {a} = 0; {a} < {b}; ++{a}) {{\n\t{b}[{a}] += {number}.5f;\n}}\n",
                    f"def {a}_{b}(self, {b}: {kind}) -> None:\n        return self.{a} + {number}\n",
                    f"if ({a} != nullptr && {b} >= {number}) {{ return std::move({a}); }}  // {pick(WORDS)}\r\n",
                    f'{{"{a}": {number}, "{b}": [true, false, null]}}\n',
                    f"#include <{a}/{b}.h>\n\n",
                ]
            )
        )
    lines.extend(OTHER * 8)
    return lines


def build():
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
    from tokenizers.trainers import BpeTrainer

    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PATTERN), behavior="isolated", invert=False),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False, use_regex=False)
    trainer = BpeTrainer(
        vocab_size=TRAINED_ENTRIES,
        min_frequency=2,
        show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )
    tokenizer.train_from_iterator(training_lines(), trainer)
    for text, special in ADDED:
        token = AddedToken(text, single_word=False, lstrip=False, rstrip=False, normalized=False, special=special)
        if special:
            tokenizer.add_special_tokens([token])
        else:
            tokenizer.add_tokens([token])
    return tokenizer


HAND_WRITTEN = (
    "",
    " ",
    "  ",
    "\n",
    "\r\n",
    "\r",
    "\t",
    "\n\n\n",
    " \n",
    "\n ",
    "  \n  \n  x",
    "a\r\n\r\nb",
    "a \r\n b",
    "a\n\r\n\rb",
    "trailing   ",
    "   leading",
    "two  spaces   three",
    "tab\t\tand space \t mix",
    "\x0b\x0c",
    "a\x0bb\x0cc",
    "\x00",
    "a\x00b",
    "\x01\x02\x7f",
    "\x1c\x1d\x1e\x1f",
    "a\x1cb\x1fc",
    "\x85",
    "a\x85b",
    "a\xa0b",
    " \xa0 x",
    "a\u1680b",
    "\u180e",
    "a\u180eb",
    " \u180e x",
    "x \u180e\u180e\n",
    "1\u180e2",
    "\u2000\u2001\u2002\u2003\u2009\u200ax",
    "a\u200bb",
    "a\u200cb\u200dc",
    "a\u2028b\u2029c",
    "\u202fx\u205fy\u3000z",
    "\u3000\u3000\u4f60\u597d",
    "\ufeff",
    "\ufeffint main() {}",
    "a\ufeffb",
    "\ufffd",
    "a\ufffd\ufffdb",
    "\ufffe\uffff",
    "\ue000\uf8ff",
    "\U000f0000\U0010ffff",
    "\u0378\u0379",
    "\ufdd0\ufdef",
    "Hello, world!",
    "hello world",
    "HELLO WORLD",
    "it's we're they've I'm you'll he'd don't",
    "IT'S WE'RE THEY'VE I'M YOU'LL HE'D DON'T",
    "'s",
    "''s",
    "'S'T'RE'VE'M'LL'D",
    "'sa 'tb 'rec",
    "x'\u017f",
    "x'S 'LLama",
    "'\u017ft",
    "rock'n'roll",
    "0",
    "10",
    "1234567890",
    "3.14159",
    "1,000,000",
    "x1y2z3",
    " 12 34",
    "2^10=1024",
    "\u0661\u0662\u0663",
    "\u00bd\u00be\u2153",
    "\u2160\u2161\u216b",
    "\u00b2\u00b3\u2070",
    "\u2460\u24ff",
    "\U0001d7ce\U0001d7d8",
    "\uff11\uff12\uff13",
    "int main(int argc, char** argv) {\n\treturn 0;\n}\n",
    "for (auto& [k, v] : map) { total += v; }\r\n",
    "def f(x):\n    return x ** 2  # square\n",
    "#include <vector>\n\n\n#define X(a) (a##b)\n",
    "a->b::c.d[e](f)<g>{h}",
    "!!!???...",
    "!= == <= >= && || << >> ++ --",
    "...\n\n...",
    "; \n;",
    "//\r\n//\r\n",
    '{"key": "va\\"lue", "n": [1, 2.5e-3]}',
    "https://example.org/a?b=c&d=%20#e",
    "user@example.org",
    "C:\\dir\\file.txt",
    "snake_case camelCase PascalCase kebab-case",
    "__init__ _x_ $y @z",
    " -> x",
    "\u2192\u2190\u21d2",
    "caf\u00e9",
    "cafe\u0301",
    "\u00c5 \u212b A\u030a",
    "\u1e9b\u0323",
    "q\u0307\u0323",
    "q\u0323\u0307",
    "\u0958",
    "\u0915\u093c",
    "\u2126 \u03a9",
    "\uac00 \u1100\u1161",
    "\u1100\u1161\u11a8",
    "\uac01\u11a8",
    "\u0344",
    "\u0301",
    "\u0301\u0302\u0303",
    " \u0301x",
    "x\u0301\u0301y",
    "1\u0301",
    "!\u0301",
    "\n\u0301",
    "a\u0301!\u0301 \u0301",
    "\u0e01\u0e33\u0e49",
    "\u0928\u092e\u0938\u094d\u0924\u0947",
    "\u0ba8\u0bbf",
    "\u0644\u0651\u064e",
    "\u05e9\u05c1\u05c2",
    "\u2adc \u2add\u0338",
    "\ufb01 \ufb03",
    "\uf900 \u8c48",
    "\U0002f800 \u4e3d",
    "\U0001d15e",
    "\u0f43 \u0f73",
    "\u4f60\u597d",
    "\u4f60\u597d\uff0c\u4e16\u754c\uff01",
    "\u4e2d\u6587 mixed with English \u548c123",
    "\u3053\u3093\u306b\u3061\u306f\u3001\u4e16\u754c\u3002",
    "\u304b\u3099\u30ab\u3099",
    "\uff76\uff9e",
    "\ud55c\uad6d\uc5b4",
    "\u041f\u0440\u0438\u0432\u0435\u0442",
    "\u0418\u0306 \u0419",
    "\u03a3\u03af\u03c3\u03c5\u03c6\u03bf\u03c2",
    "\u0645\u0631\u062d\u0628\u0627",
    "\u05e9\u05dc\u05d5\u05dd",
    "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35",
    "\u01c5\u02b0\u00aa\u00ba",
    "\U00020000\U0002a6d6",
    "\U00010400\U00010428",
    "\U0001f600",
    "\U0001f44d\U0001f3fd",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467",
    "\u2764\ufe0f",
    "\U0001f1e9\U0001f1ea",
    "1\ufe0f\u20e3",
    "ok\U0001f680!\n",
    "\U000e0067\U000e007f",
    "\u20ac100 \u00a35 \u00a51",
    "\u00ab\u00a0quoted\u00a0\u00bb",
    "\u201csmart\u201d \u2018quotes\u2019 it\u2019s",
    "em\u2014dash en\u2013dash soft\u00adhyphen",
    "\u200e\u200f\u202a\u202c",
    "<|endoftext|>",
    "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
    "a<|im_end|>b",
    "a <|im_end|> b",
    "<|im_start|><|im_start|>",
    "<think>x</think>",
    "<think",
    "< think>",
    "<THINK>",
    "<|mask|><|mask|>",
    "<|im_start|",
    "<|im_start |>",
    "<<|im_end|>>",
    "<|im_<|im_end|>start|>",
    "|endoftext|>",
    "</think></think>",
    "e<|im_end|>\u0301",
    "cafe<think>\u0301",
    "<|endoftext|>\n\n<|endoftext|>",
    "\u0120\u010a\u0100",
    "\u0120the",
    "a" * 300,
    " " * 100,
    "\n" * 50,
    "ab " * 60,
    "=" * 80,
    "\u4f60" * 40,
)

POOL = (
    list("abcdefghijklmnopqrstuvwxyzABCXYZ")
    + list("0123456789")
    + list(" \t\n\r") * 4
    + list(".,;:!?'\"()[]{}<>+-*/=_#@$%^&|\\~`")
    + ["'s", "'LL", "\r\n", "  ", "\n\n", " the", "int ", "->", "\u00e9", "e\u0301", "\u0301", "\u0323", "\u0327"]
    + ["\u4f60", "\u597d", "\u3002", "\ud55c", "\u1112\u1161\u11ab", "\u0628", "\u0651", "\u0928", "\u094d", "\u0e33"]
    + ["\U0001f600", "\u200d", "\ufe0f", "\u00a0", "\u3000", "\u2028", "\x85", "\u0661", "\u00bd", "\u2167", "\ufeff"]
    + ["<|im_end|>", "<think>", "</think>", "<|mask|>", "<|", "|>", "\u212b", "\u0344", "\u1e9b", "\U0001d15e"]
)


def random_texts(count: int) -> list[str]:
    draw = generator(6, "cases")
    return ["".join(POOL[i] for i in draw.integers(0, len(POOL), int(draw.integers(1, 40)))) for _ in range(count)]


def make_tokenizer(out: Path) -> dict[str, float]:
    directory = out / "tokenizer"
    tokenizer = build()
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "tokenizer.json").write_text(tokenizer.to_str(pretty=False) + "\n", encoding="utf-8")

    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    encode, seen = [], set()
    for text in [*HAND_WRITTEN, *training_lines()[::150], *random_texts(160)]:
        if text in seen:
            continue
        seen.add(text)
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        encode.append({"text": text, "ids": ids, "decoded": tokenizer.decode(ids, skip_special_tokens=False)})
    size = tokenizer.get_vocab_size()
    draw = generator(7, "decode")
    emoji = tokenizer.encode("\U0001f600", add_special_tokens=False).ids
    han = tokenizer.encode("\u9f98", add_special_tokens=False).ids
    lists = [[], emoji[:1], emoji[:2], emoji[:-1], emoji[1:], han[:1], han[:-1], han[1:], emoji[:-1] + han, han[::-1]]
    lists += [[byte] for byte in range(0, 256, 5)]
    lists += [[emoji[0], size - 1, *emoji[1:]], [size - 1, size - 2, size - 3]]
    lists += [draw.integers(0, size, int(draw.integers(1, 12))).tolist() for _ in range(60)]
    lists += [draw.integers(0, 256, int(draw.integers(1, 12))).tolist() for _ in range(60)]
    decode = [{"ids": ids, "text": tokenizer.decode(ids, skip_special_tokens=False)} for ids in lists]
    cases = {"versions": versions("tokenizers"), "pattern": PATTERN, "encode": encode, "decode": decode}
    save_json(directory / "cases.json", cases, indent=None)
    return {
        "entries": size,
        "encode cases": len(encode),
        "decode cases": len(decode),
        "text changed by NFC": sum(case["decoded"] != case["text"] for case in encode),
    }
