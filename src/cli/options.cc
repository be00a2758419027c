#include "cli/options.h"

#include <fmt/format.h>

#include <algorithm>

namespace draftprobe::cli {

namespace {

constexpr unsigned kArms = kProbe | kCapture | kBenchProbe;
constexpr unsigned kModels = kArms | kGenerate;
constexpr unsigned kFull = kProbe | kCapture;

constexpr Option kOptions[] = {
    // Models.
    {.name = "target",
     .kind = OptionKind::text,
     .value = "DIR",
     .brief = "target checkpoint directory",
     .details =
         "Hugging Face or MLX layout of a Qwen3.5-family text model: config.json, weights, and tokenizer.json when the "
         "prompt is text.",
     .commands = kModels,
     .required_in = kModels},
    {.name = "draft",
     .kind = OptionKind::text,
     .value = "DIR",
     .brief = "DFlash2 draft checkpoint directory",
     .details =
         "It must have been trained for this target: hidden size, vocabulary and taps are checked. 'generate' decodes "
         "plainly without it.",
     .commands = kModels,
     .required_in = kArms},
    // Request.
    {.name = "prompt",
     .kind = OptionKind::text,
     .value = "FILE",
     .brief = "prompt as UTF-8 text, tokenised with the target's tokenizer.json",
     .details =
         "At most 8 MiB. Nothing is added around the text; spellings of special tokens in it become the tokens. Give "
         "exactly one of --prompt, --prompt-ids and --chat.",
     .commands = kModels},
    {.name = "prompt-ids",
     .kind = OptionKind::text,
     .value = "FILE.json",
     .brief = "prompt as token ids: a JSON array of integers, or {\"ids\": [...]}",
     .details = "At most 64 MiB. Needs no tokenizer.",
     .commands = kModels},
    {.name = "chat",
     .kind = OptionKind::text,
     .value = "FILE.json",
     .brief = "prompt as chat messages: a JSON array of {\"role\", \"content\"}, or {\"messages\": [...]}",
     .details =
         "At most 8 MiB. Text messages of system (first only), user and assistant, the last by the user; no tools, no "
         "images. The built-in template renders Qwen's ChatML; a template that the target ships is not executed. "
         "Special tokens spelled in messages stay text. For another rendering give the rendered text with --prompt.",
     .commands = kModels},
    {.name = "thinking",
     .kind = OptionKind::choice,
     .value = "on|off",
     .brief = "thinking mode of a chat prompt; must be given with --chat, and only then",
     .details = "on opens the answer with <think>, off with an empty <think></think>.",
     .commands = kModels},
    {.name = "effort",
     .kind = OptionKind::text,
     .value = "NAME",
     .brief = "reasoning effort of a chat prompt",
     .details =
         "1 to 32 of a-z, 0-9, '_' and '-'. With thinking on, \"Reasoning effort is set to NAME.\" starts the system "
         "message; with thinking off it reaches no text.",
     .commands = kModels},
    {.name = "prefix-tokens",
     .kind = OptionKind::number,
     .value = "N",
     .min = 1,
     .max = 1'000'000'000,
     .brief = "length of the prefix that is materialised, snapshotted and restored",
     .details =
         "Rounded down to a multiple of 32, the page size, with a warning. It must end before the prompt does. To test "
         "the draft's restore, leave fewer than W - 1 prompt tokens after it, W being the draft's window.",
     .commands = kArms,
     .required_in = kArms},
    {.name = "cycles",
     .kind = OptionKind::number,
     .value = "N",
     .min = 1,
     .max = 1'000'000,
     .fallback = "16",
     .brief = "decode cycles after the prompt",
     .details = "Fewer are run when a stop token ends the request: eos_token_id of generation_config.json, else of "
                "config.json. tokenizer_config.json has no say.",
     .commands = kArms},
    {.name = "max-tokens",
     .kind = OptionKind::number,
     .value = "N",
     .min = 1,
     .max = 1'000'000,
     .fallback = "64",
     .brief = "tokens to generate at most; a stop token ends earlier",
     .commands = kGenerate},
    // Engine.
    {.name = "kv",
     .kind = OptionKind::choice,
     .value = "bf16|int8",
     .fallback = "bf16",
     .brief = "stored format of the target's keys and values",
     .details = "int8 is symmetric, with one float32 scale per token, head and K/V.",
     .commands = kModels},
    {.name = "numerics",
     .kind = OptionKind::choice,
     .value = "f32|i8dot",
     .not_served = "schedule-sensitive",
     .fallback_text = "i8dot when the target is quantised, else f32",
     .brief = "numerics class of the arithmetic",
     .details =
         "Each class gives equal bits for every chunking, verify width, thread count, lane and instruction set. i8dot "
         "changes only products with quantised weights.",
     .commands = kModels},
    {.name = "budget",
     .kind = OptionKind::choice,
     .value = "full",
     .not_served = "adaptive|*",
     .fallback = "full",
     .brief = "rule that sets the rows of a verification",
     .details = "full verifies every drafted row.",
     .commands = kFull},
    {.name = "threads",
     .kind = OptionKind::number,
     .value = "N",
     .min = 1,
     .max = 1024,
     .fallback_text = "the number of hardware threads",
     .brief = "threads that compute; results do not depend on it",
     .commands = kModels},
    {.name = "isa",
     .kind = OptionKind::choice,
     .value = "auto|portable|avx2|avx512",
     .fallback = "auto",
     .brief = "instruction set; results do not depend on it",
     .details = "auto takes the best that this CPU has.",
     .commands = kModels},
    {.name = "device",
     .kind = OptionKind::choice,
     .value = "cpu",
     .not_served = "cuda|cuda:*",
     .fallback = "cpu",
     .brief = "where the engine computes",
     .commands = kArms},
    {.name = "lanes",
     .kind = OptionKind::number,
     .value = "N",
     .min = 2,
     .max = 64,
     .fallback = "2",
     .brief = "lanes of the engine; the restored arm moves from the first to the second",
     .commands = kArms},
    {.name = "chunk-tokens",
     .kind = OptionKind::number,
     .value = "N",
     .min = 1,
     .max = 65536,
     .fallback = "256",
     .brief = "prefill chunks end at multiples of this position",
     .commands = kModels},
    // Arms and treatment.
    {.name = "arm",
     .kind = OptionKind::choice,
     .value = "fresh|restored|natural|uninterrupted",
     .brief = "the arm to run",
     .details = "fresh materialises the prefix and goes on in place. restored snapshots it, restores it into a dirtied "
                "lane and "
                "goes on there. uninterrupted does not stop at the prefix. natural does not even cut its chunks there.",
     .commands = kCapture,
     .required_in = kCapture},
    {.name = "restore-draft",
     .kind = OptionKind::choice,
     .value = "exact|rows",
     .not_served = "rows-q4|recompute|masked|none",
     .fallback = "exact",
     .brief = "how the restored arm gets the draft's context back",
     .details = "exact copies context rows and rings. rows copies the rows and rebuilds the rings from them.",
     .commands = kArms},
    {.name = "restore-target",
     .kind = OptionKind::choice,
     .value = "exact",
     .not_served = "int8-state",
     .fallback = "exact",
     .brief = "how the restored arm gets the target's state back",
     .commands = kArms},
    {.name = "tier",
     .kind = OptionKind::choice,
     .value = "memory",
     .not_served = "disk|process",
     .fallback = "memory",
     .brief = "where the snapshot is kept between the arms' lanes",
     .commands = kArms},
    {.name = "controls",
     .kind = OptionKind::list,
     .value = "repeat,natural,uninterrupted",
     .brief = "further controls to run and to judge against the fresh arm",
     .details = "Each must be SAME. When one is not, nothing can be attributed to the restore, and the probe ends as "
                "NOT_COMPARABLE.",
     .commands = kProbe},
    {.name = "inject",
     .kind = OptionKind::text,
     .value = "NAME=ARG",
     .brief = "put a known fault into the restored arm's memory",
     .details = "--list-faults names them.",
     .commands = kFull,
     .repeatable = true},
    {.name = "list-faults",
     .kind = OptionKind::flag,
     .brief = "print the faults that --inject knows, and exit",
     .commands = kFull},
    {.name = "factors",
     .kind = OptionKind::flag,
     .brief = "run the factorial and attribute the difference",
     .commands = kFull,
     .instead = "one treatment a run, chosen with --restore-draft and --inject"},
    {.name = "lockstep",
     .kind = OptionKind::flag,
     .brief = "commit the control's tokens in both arms",
     .commands = kFull,
     .instead = "free-running arms; lane-cycles pair by context"},
    {.name = "minimize",
     .kind = OptionKind::flag,
     .brief = "shrink prompt, boundary and cycles while the verdict holds",
     .commands = kFull,
     .instead = "one run at a time, with smaller --prefix-tokens and --cycles"},
    {.name = "sweep",
     .kind = OptionKind::text,
     .value = "NAME=FROM..TO[:STEP]",
     .brief = "vary one number over a range",
     .commands = kFull,
     .instead = "one run per value"},
    {.name = "plan",
     .kind = OptionKind::text,
     .value = "FILE.json",
     .brief = "sequence over several requests and lanes",
     .commands = kFull,
     .instead = "one request a run"},
    // Evidence and output.
    {.name = "level",
     .kind = OptionKind::choice,
     .value = "1|2|3",
     .not_served = "0",
     .fallback = "3",
     .brief = "what a capture holds: 1 steps, 2 also digests and ledger, 3 also hidden rows",
     .commands = kArms},
    {.name = "digest-every",
     .kind = OptionKind::number,
     .value = "K",
     .min = 0,
     .max = 1'000'000,
     .fallback = "0",
     .brief = "digest the whole state every K commits; 0: at ledger events only",
     .commands = kArms},
    {.name = "treat",
     .kind = OptionKind::text,
     .value = "FIELD",
     .brief = "a declared treatment: this identity group or setting may differ",
     .details = "For example kv_format, settings.kv_format or identity.draft.",
     .commands = kCompare,
     .repeatable = true},
    {.name = "bisect",
     .kind = OptionKind::optional_choice,
     .value = "drift-ok|drift-bad",
     .brief = "exit for 'git bisect run': 0 good, 1 bad, 125 whatever decides nothing",
     .details =
         "DRIFT decides nothing unless drift-ok or drift-bad says so. What could not run decides nothing either.",
     .commands = kProbe | kCompare},
    {.name = "out",
     .kind = OptionKind::text,
     .value = "DIR",
     .fallback_text = "draftprobe-out; required for capture",
     .brief = "directory to create, complete or not at all",
     .details =
         "probe puts control/, treated/, further controls and report.json there. For capture it is the capture itself.",
     .commands = kFull,
     .required_in = kCapture},
    {.name = "force",
     .kind = OptionKind::flag,
     .brief = "replace an --out directory that an earlier run made",
     .commands = kFull},
    {.name = "report",
     .kind = OptionKind::text,
     .value = "FILE.html",
     .brief = "also write the report as one self-contained page",
     .details = "The name must end in .html; an existing file of that name is replaced.",
     .commands = kProbe | kCompare},
    {.name = "repeats",
     .kind = OptionKind::number,
     .value = "N",
     .min = 1,
     .max = 1000,
     .fallback = "3",
     .brief = "measured runs",
     .commands = kBenchProbe},
    {.name = "json",
     .kind = OptionKind::flag,
     .brief = "print exactly one JSON object on stdout instead of text",
     .commands = kAnyCommand & ~kHelp},
    // Help.
    {.name = "man", .kind = OptionKind::flag, .brief = "print the manual page in man(7) format", .commands = kHelp},
    {.name = "markdown", .kind = OptionKind::flag, .brief = "print docs/cli.md", .commands = kHelp},
    {.name = "completions",
     .kind = OptionKind::choice,
     .value = "bash",
     .brief = "print a shell completion script",
     .commands = kHelp},
    {.name = "help",
     .kind = OptionKind::flag,
     .brief = "print the complete help of the command, and exit",
     .commands = kAnyCommand},
};

}  // namespace

std::span<const Option> option_table() { return kOptions; }

const Option* find_option(std::string_view name) {
    const auto* found =
        std::find_if(std::begin(kOptions), std::end(kOptions), [&](const Option& o) { return o.name == name; });
    return found == std::end(kOptions) ? nullptr : found;
}

std::vector<std::string_view> split_choices(std::string_view choices) {
    std::vector<std::string_view> parts;
    while (!choices.empty()) {
        const std::size_t bar = choices.find_first_of("|,");
        parts.push_back(choices.substr(0, bar));
        choices = bar == std::string_view::npos ? std::string_view() : choices.substr(bar + 1);
    }
    return parts;
}

std::string option_usage(const Option& option) {
    switch (option.kind) {
        case OptionKind::flag: return fmt::format("--{}", option.name);
        case OptionKind::optional_choice: return fmt::format("--{}[={}]", option.name, option.value);
        default: return fmt::format("--{} {}", option.name, option.value);
    }
}

}  // namespace draftprobe::cli
