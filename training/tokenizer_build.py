"""Train the byte-level BPE tokenizer, write its two files, and pack the corpus as 16-bit ids."""

import argparse
import json
import pathlib
import random
from collections import Counter, defaultdict

import numpy as np
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

VOCABULARY_ROWS = 8192
BPE_ENTRIES = 8160
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# (text, special). The thinking marks are ordinary added tokens, so that decoding keeps them.
ADDED = (
    ("<|endoftext|>", True),
    ("<|im_start|>", True),
    ("<|im_end|>", True),
    ("<think>", False),
    ("</think>", False),
    ("<|mask|>", True),
)
CHAT_TEMPLATE = """\
{%- for message in messages %}
{%- if message.role == 'assistant' and loop.last and message.reasoning_content is defined %}
{{- '<|im_start|>assistant\\n<think>\\n' + message.reasoning_content \
+ '\\n</think>\\n\\n' + message.content + '<|im_end|>\\n' }}
{%- else %}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{%- if enable_thinking is defined and enable_thinking is false %}
{{- '<think>\\n\\n</think>\\n\\n' }}
{%- else %}
{{- '<think>\\n' }}
{%- endif %}
{%- endif %}
"""


def read(path):
    with open(path) as lines:
        return [json.loads(line) for line in lines]


def build_tokenizer(documents):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), behavior="isolated", invert=False),
            pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)
    trainer = trainers.BpeTrainer(
        vocab_size=BPE_ENTRIES,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        special_tokens=[],
        show_progress=False,
    )
    plain = [d["text"] for d in documents if d["domain"] != "chat"]
    random.Random(7).shuffle(plain)
    sample, chars = [], 0
    for text in plain:
        sample.append(text[:30_000])
        chars += len(sample[-1])
        if chars > 50_000_000:
            break
    tokenizer.train_from_iterator(sample, trainer)
    assert tokenizer.get_vocab_size() == BPE_ENTRIES
    tokenizer.add_tokens([AddedToken(text, special=special, normalized=False) for text, special in ADDED])
    return tokenizer


def tokenizer_config(tokenizer):
    added = {
        str(tokenizer.token_to_id(text)): {
            "content": text,
            "lstrip": False,
            "normalized": False,
            "rstrip": False,
            "single_word": False,
            "special": special,
        }
        for text, special in ADDED
    }
    return {
        "add_bos_token": False,
        "add_prefix_space": False,
        "added_tokens_decoder": added,
        "bos_token": None,
        "chat_template": CHAT_TEMPLATE,
        "clean_up_tokenization_spaces": False,
        "eos_token": "<|im_end|>",
        "errors": "replace",
        "model_max_length": 262144,
        "pad_token": "<|endoftext|>",
        "split_special_tokens": False,
        "tokenizer_class": "Qwen2Tokenizer",
        "unk_token": None,
    }


def encode(tokenizer, documents):
    """Ids of every document, each ended by the end-of-text token."""
    end = tokenizer.token_to_id("<|endoftext|>")
    result = []
    for start in range(0, len(documents), 512):
        batch = tokenizer.encode_batch_fast([d["text"] for d in documents[start : start + 512]])
        result.extend(np.array([*item.ids, end], dtype=np.uint16) for item in batch)
    return result


def pack_valid(tokenizer, documents):
    """Per domain: the concatenated ids and the start of every document."""
    groups = defaultdict(list)
    for document, ids in zip(documents, encode(tokenizer, documents), strict=True):
        groups[document["domain"]].append(ids)
    arrays = {}
    for domain, items in groups.items():
        arrays[f"{domain}_ids"] = np.concatenate(items)
        arrays[f"{domain}_starts"] = np.cumsum([0] + [len(item) for item in items])
    return arrays


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("work", type=pathlib.Path)
    parser.add_argument("tokenizer", type=pathlib.Path, help="folder for tokenizer.json")
    arguments = parser.parse_args()
    train = read(arguments.work / "train.jsonl")
    tokenizer = build_tokenizer(train)
    arguments.tokenizer.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(arguments.tokenizer / "tokenizer.json"), pretty=False)
    config = json.dumps(tokenizer_config(tokenizer), indent=2)
    (arguments.tokenizer / "tokenizer_config.json").write_text(config + "\n")

    random.Random(20261130).shuffle(train)
    ids = encode(tokenizer, train)
    counts = Counter()
    for document, item in zip(train, ids, strict=True):
        counts[document["domain"]] += len(item)
    np.concatenate(ids).tofile(arguments.work / "train.u16")
    np.savez(arguments.work / "valid.npz", **pack_valid(tokenizer, read(arguments.work / "valid.jsonl")))
    report = {"train_tokens": dict(counts), "vocabulary": tokenizer.get_vocab_size()}
    report["added"] = {text: tokenizer.token_to_id(text) for text, _ in ADDED}
    (arguments.work / "tokenizer-report.json").write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
