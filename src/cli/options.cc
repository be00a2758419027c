#include "cli/options.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

namespace draftprobe::cli {

namespace {

constexpr unsigned kArms = kProbe | kCapture | kBenchProbe;
constexpr unsigned kModels = kArms | kGenerate;
constexpr unsigned kEngines = kModels | kBudgetCalibrate | kBenchSnapshot;
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
     .commands = kEngines,
     .required_in = kModels},
    {.name = "draft",
     .kind = OptionKind::text,
     .value = "DIR",
     .brief = "DFlash2 draft checkpoint directory",
     .details =
         "It must have been trained for this target: hidden size, vocabulary and taps are checked. 'generate' decodes "
         "plainly without it.",
     .commands = kEngines,
     .required_in = kArms},
    {.name = "require-manifest",
     .kind = OptionKind::flag,
     .brief = "refuse a draft without selection.json",
     .details = "A selection.json is checked against the draft's complete files whenever there is one.",
     .commands = kEngines},
    {.name = "no-digest-cache",
     .kind = OptionKind::flag,
     .brief = "hash every file now, and remember nothing",
     .details = "Without it, digests of files of 64 MiB and more are kept in $DRAFTPROBE_CACHE, "
                "$XDG_CACHE_HOME/draftprobe or ~/.cache/draftprobe, by device, inode, size and times of change; a "
                "capture says when one was used.",
     .commands = kEngines},
    // Request.
    {.name = "prompt",
     .kind = OptionKind::text,
     .value = "FILE",
     .brief = "prompt as UTF-8 text, tokenised with the target's tokenizer.json",
     .details =
         "At most 8 MiB. Nothing is added around the text; spellings of special tokens in it become the tokens. Give "
         "exactly one of --prompt, --prompt-ids and --chat.",
     .commands = kModels,
     .repeatable_in = kGenerate},
    {.name = "prompt-ids",
     .kind = OptionKind::text,
     .value = "FILE.json",
     .brief = "prompt as token ids: a JSON array of integers, or {\"ids\": [...]}",
     .details = "At most 64 MiB. Needs no tokenizer.",
     .commands = kModels,
     .repeatable_in = kGenerate},
    {.name = "chat",
     .kind = OptionKind::text,
     .value = "FILE.json",
     .brief = "prompt as chat messages: a JSON array of {\"role\", \"content\"}, or {\"messages\": [...]}",
     .details =
         "At most 8 MiB. Text messages of system (first only), user and assistant, the last by the user; no tools, no "
         "images. The built-in template renders Qwen's ChatML; a template that the target ships is not executed. "
         "Special tokens spelled in messages stay text. For another rendering give the rendered text with --prompt.",
     .commands = kModels,
     .repeatable_in = kGenerate},
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
     .required_in = kArms,
     .unless = "plan"},
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
     .commands = kEngines},
    {.name = "numerics",
     .kind = OptionKind::choice,
     .value = "f32|i8dot|schedule-sensitive",
     .fallback_text = "i8dot when the target is quantised, else f32",
     .brief = "numerics class of the arithmetic",
     .details =
         "f32 and i8dot give equal bits for every chunking, verify width, thread count, lane and instruction set. "
         "i8dot "
         "changes only products with quantised weights. schedule-sensitive, for probe and capture alone, is f32 with "
         "recurrent layers computed in chunks, as common engines do: its results move a little with the schedule, so "
         "DRIFT can be studied, and controls record what counts as a near-tie. Measuring that takes at least 8 and at "
         "most 32 other prompts of the same length, prefilled and decoded twice each: many times the probe itself.",
     .commands = kEngines},
    {.name = "budget",
     .kind = OptionKind::text,
     .value = "full|adaptive|SEED.json",
     .fallback = "full",
     .brief = "rule that sets the rows of a verification",
     .details =
         "full verifies every drafted row. A seed file ('draftprobe budget calibrate' makes one) sets them by the "
         "draft's confidence, always in the same way. adaptive learns while it runs, from measured times: such "
         "captures "
         "are NOT_COMPARABLE unless --treat timing_confounded of probe or compare declares it. Sampled requests verify "
         "every row.",
     .commands = kEngines},
    {.name = "temperature",
     .kind = OptionKind::decimal,
     .value = "T",
     .min = 0,
     .max = 100,
     .fallback = "0",
     .brief = "sampling temperature; 0 decodes greedily",
     .details = "Sampling is lossless: the draft changes no probability of the output.",
     .commands = kModels},
    {.name = "top-k",
     .kind = OptionKind::number,
     .value = "K",
     .min = 0,
     .max = 1'000'000'000,
     .fallback = "0",
     .brief = "sample from the K most likely tokens; 0: from all",
     .commands = kModels},
    {.name = "top-p",
     .kind = OptionKind::decimal,
     .value = "P",
     .min = 0,
     .max = 1,
     .fallback = "1",
     .brief = "sample from the most likely tokens that together reach P, above 0",
     .commands = kModels},
    {.name = "min-p",
     .kind = OptionKind::decimal,
     .value = "P",
     .min = 0,
     .max = 1,
     .fallback = "0",
     .brief = "drop tokens less than P times as likely as the most likely one",
     .commands = kModels},
    {.name = "seed",
     .kind = OptionKind::number,
     .value = "N",
     .min = 0,
     .max = std::numeric_limits<std::int64_t>::max(),
     .fallback = "0",
     .brief = "seed of the random numbers; each is a function of seed, request, position and purpose alone",
     .commands = kModels},
    {.name = "draft-bits",
     .kind = OptionKind::choice,
     .value = "16|4",
     .fallback = "16",
     .brief = "weights of the draft: as stored, or quantised to affine 4 bits (groups of 64) when loaded",
     .details = "Codebooks, norms and convolution bases keep their stored precision.",
     .commands = kEngines},
    {.name = "threads",
     .kind = OptionKind::number,
     .value = "N",
     .min = 1,
     .max = 1024,
     .fallback_text = "the number of hardware threads",
     .brief = "threads that compute; results do not depend on it",
     .commands = kEngines},
    {.name = "isa",
     .kind = OptionKind::choice,
     .value = "auto|portable|avx2|avx512",
     .fallback = "auto",
     .brief = "instruction set; results do not depend on it",
     .details = "auto takes the best that this CPU has.",
     .commands = kEngines},
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
     .min = 1,
     .max = 64,
     .fallback = "4",
     .brief = "lanes of the engine, batched in one forward; results do not depend on it",
     .details = "An arm uses at least two: the restored one moves from the first lane to the second.",
     .commands = kModels | kBenchSnapshot},
    {.name = "chunk-tokens",
     .kind = OptionKind::number,
     .value = "N",
     .min = 1,
     .max = 65536,
     .fallback = "256",
     .brief = "prefill chunks end at multiples of this position",
     .commands = kEngines},
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
     .value = "exact|rows|rows-q4|recompute|masked|none",
     .fallback = "exact",
     .brief = "how the restored arm gets the draft's context back",
     .details =
         "exact copies context rows and rings. rows copies the rows and rebuilds the rings from them. rows-q4 does so "
         "from rows that went through 4 bits. recompute computes the rows again from the prefix's tokens, on a scratch "
         "lane whose target state must equal the restored one. masked starts the context at the prefix's end. none "
         "claims rows that nobody wrote. exact, rows and recompute are bit-exact (docs/restores.md). recompute costs a "
         "prefill of the prefix's last W - 1 tokens and of what precedes them in their chunk, W being the draft's "
         "window; without one, of the whole prefix.",
     .commands = kArms},
    {.name = "restore-target",
     .kind = OptionKind::choice,
     .value = "exact|int8-state",
     .fallback = "exact",
     .brief = "how the restored arm gets the target's state back",
     .details = "int8-state takes the recurrent matrices through int8, one scale per row of a head.",
     .commands = kArms},
    {.name = "tier",
     .kind = OptionKind::choice,
     .value = "memory|disk|process",
     .fallback = "memory",
     .brief = "where the snapshot is kept between the arms' lanes",
     .details =
         "disk writes it to a file beside --out and reads it back. process goes on in a new process, which loads the "
         "models again and reads it from a file.",
     .commands = kArms},
    {.name = "save-snapshot",
     .kind = OptionKind::text,
     .value = "FILE",
     .brief = "also keep the restored arm's snapshot in a file, for 'draftprobe inspect'",
     .details = "With --arm restored only. An existing file is replaced with --force, and only if it is a snapshot.",
     .commands = kCapture},
    {.name = "controls",
     .kind = OptionKind::list,
     .value = "repeat,natural,uninterrupted",
     .brief = "further controls to run and to judge against the fresh arm",
     .details =
         "Each must be SAME. When one is not, nothing can be attributed to the restore, and the probe ends as "
         "NOT_COMPARABLE. In the numerics class schedule-sensitive a control with another schedule may be DRIFT.",
     .commands = kProbe},
    {.name = "inject",
     .kind = OptionKind::text,
     .value = "NAME=ARG",
     .brief = "put a known fault into the restored arm's memory",
     .details = "--list-faults names them.",
     .commands = kFull,
     .repeatable_in = kFull},
    {.name = "list-faults",
     .kind = OptionKind::flag,
     .brief = "print the faults that --inject knows, and exit",
     .commands = kFull},
    {.name = "lockstep",
     .kind = OptionKind::flag,
     .brief = "judge every arm by its own target, then commit the control's tokens in it",
     .details =
         "Contexts stay equal after a difference, so every cycle is compared. Cycles are marked as forced and stay "
         "out of output lengths. Needs --level 2 or 3.",
     .commands = kProbe},
    {.name = "factors",
     .kind = OptionKind::flag,
     .brief = "switch the parts of the treatment one by one and together, and attribute the difference",
     .details =
         "Every combination of snapshot, lane move, tier, target form, ring rebuild, draft form, KV format and "
         "faults in which the treatment differs from a plain restore is run, an arm each: twice as many with every "
         "factor, at most 64. The table says how many were.",
     .commands = kProbe},
    {.name = "minimize",
     .kind = OptionKind::flag,
     .brief = "shrink prompt, prefix and cycles while verdict, stage, component and shift hold",
     .details =
         "At most 200 further runs of both arms. minimized.json in --out is a prompt for --prompt-ids. Where the "
         "verdict is SAME or INSUFFICIENT there is nothing to minimise: stderr says so, and nothing more is run.",
     .commands = kProbe},
    {.name = "sweep",
     .kind = OptionKind::text,
     .value = "NAME=FROM..TO[:STEP]",
     .brief = "vary one number over a range, and say the rule that tells where the arms differ",
     .details =
         "boundary: the prefix length, in whole pages. suffix: prompt tokens behind the prefix. window-fill: tokens "
         "in all, the last ones of the prompt, with the prefix up to the last page: 33 to W - 1, W being the draft's "
         "window, so that the draft sees all of the restore. verify-width: most rows of a verification. At most 1024 "
         "values; STEP is 1, for boundary 32. Every value costs both arms again. A rule claims no more than its "
         "points: "
         "with gaps between them a threshold lies between two, and values that could not be judged are listed.",
     .commands = kProbe},
    {.name = "plan",
     .kind = OptionKind::text,
     .value = "FILE.json",
     .brief = "run a sequence over several requests and lanes, and judge each against a fresh control",
     .details = "In place of one request and its treatment; docs/plan-format.md says what a plan holds. Every request "
                "costs a fresh control besides its runs.",
     .commands = kProbe},
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
     .brief = "digest the whole state every K commits; 0: at ledger events, and recurrent state at telling commits",
     .commands = kArms},
    {.name = "tokens",
     .kind = OptionKind::number,
     .value = "N",
     .min = 1,
     .max = 1'000'000'000,
     .fallback = "32768",
     .brief = "context length for which the memory of a lane is stated",
     .details = "For a target or draft checkpoint.",
     .commands = kInspect},
    {.name = "treat",
     .kind = OptionKind::text,
     .value = "FIELD",
     .brief = "a declared treatment: this identity group or setting may differ",
     .details = "For example kv_format, settings.kv_format or identity.draft. draft also covers what is read from the "
                "draft: draft.* settings, window, block and candidates.",
     .commands = kCompare,
     .repeatable_in = kCompare},
    {.name = "treat",
     .kind = OptionKind::choice,
     .value = "timing_confounded",
     .brief = "compare although the widths follow measured times, as with --budget adaptive",
     .details = "Everything else that compare can declare is the same in both arms of a probe.",
     .commands = kProbe},
    {.name = "bisect",
     .kind = OptionKind::optional_choice,
     .value = "drift-ok|drift-bad",
     .brief = "exit for 'git bisect run': 0 good, 1 bad, 125 whatever decides nothing",
     .details =
         "DRIFT decides nothing unless drift-ok or drift-bad says so. What could not run decides nothing either. Where "
         "every commit is built first: git bisect run sh -c 'make || exit 125; draftprobe probe ... --bisect'.",
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
     .details = "With capture also the file of --save-snapshot, if it is a snapshot.",
     .commands = kFull},
    {.name = "report",
     .kind = OptionKind::text,
     .value = "FILE.html",
     .brief = "also write the report as one self-contained page",
     .details = "The name must end in .html; an existing file of that name is replaced. Tables of --factors, --sweep, "
                "--plan and --minimize are on the page.",
     .commands = kProbe | kCompare},
    {.name = "repeats",
     .kind = OptionKind::number,
     .value = "N",
     .min = 1,
     .max = 1000,
     .fallback = "3",
     .brief = "measured runs",
     .commands = kBenchProbe},
    {.name = "repeats",
     .kind = OptionKind::number,
     .value = "N",
     .min = 1,
     .max = 1000,
     .fallback = "7",
     .brief = "measured runs; a prefix is computed at most 3 times",
     .commands = kBenchSnapshot},
    {.name = "size-mib",
     .kind = OptionKind::number,
     .value = "N",
     .min = 1,
     .max = 65536,
     .fallback = "64",
     .brief = "least size of the keys and values of the synthetic state",
     .commands = kBenchSnapshot},
    {.name = "tokens",
     .kind = OptionKind::number,
     .value = "N",
     .min = 32,
     .max = 1'000'000,
     .fallback = "8192",
     .brief = "length of the prefix that is computed and restored, with --target",
     .commands = kBenchSnapshot},
    {.name = "json",
     .kind = OptionKind::flag,
     .brief = "print exactly one JSON object on stdout instead of text",
     .details = "When the command could not run, the object has exit and error {code, message}.",
     .commands = kAnyCommand & ~kHelp},
    // Calibration.
    {.name = "costs",
     .kind = OptionKind::text,
     .value = "FILE.json",
     .brief = "what a cycle costs by rows verified: a JSON array of one positive number per row count, 1 to the block",
     .details = "Any unit, as only ratios decide; measured tables are in seconds. At most 64 KiB. Without it they are "
                "measured with --target and --draft.",
     .commands = kBudgetCalibrate},
    {.name = "context",
     .kind = OptionKind::number,
     .value = "N",
     .min = 1,
     .max = 1'000'000,
     .fallback = "1024",
     .brief = "tokens in every lane while costs are measured",
     .commands = kBudgetCalibrate},
    {.name = "lanes",
     .kind = OptionKind::number,
     .value = "N",
     .min = 1,
     .max = 64,
     .fallback = "1",
     .brief = "lanes in the batch that the costs were measured with",
     .commands = kBudgetCalibrate},
    {.name = "after-restore",
     .kind = OptionKind::flag,
     .brief = "calibrate from restored arms alone",
     .details = "Without it restored arms are refused: whether a restore changes acceptance is the question.",
     .commands = kBudgetCalibrate},
    {.name = "out",
     .kind = OptionKind::text,
     .value = "SEED.json",
     .brief = "seed file to create, complete or not at all",
     .commands = kBudgetCalibrate,
     .required_in = kBudgetCalibrate},
    {.name = "force",
     .kind = OptionKind::flag,
     .brief = "replace a seed file of that name",
     .commands = kBudgetCalibrate},
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

const Option* find_option(std::string_view name, unsigned commands) {
    const auto* found = std::find_if(std::begin(kOptions), std::end(kOptions),
                                     [&](const Option& o) { return o.name == name && (o.commands & commands) != 0; });
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
