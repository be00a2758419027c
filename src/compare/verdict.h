// What a comparison concludes, and the exit statuses that say it to scripts and to git bisect.
#pragma once

#include <optional>
#include <string_view>

namespace draftprobe {

enum class Verdict {
    same,          // everything compared is bit-equal
    drift,         // differences, a recorded schedule or format difference explains them, and every flip is a near-tie
    changed,       // the treatment changed something, decisions or only their inputs
    not_restored,  // the restored arm computed what it claims to have restored
    not_comparable,  // an undeclared difference of identity or settings
    contaminated,    // an arm that should have computed its state was served from somewhere
    insufficient,    // nothing contradicts the treatment, and nothing tested it
    corrupt,         // a capture breaks its own rules
};

// "SAME", "DRIFT", "CHANGED", "NOT_RESTORED", "NOT_COMPARABLE", "CONTAMINATED", "INSUFFICIENT", "CORRUPT".
std::string_view verdict_name(Verdict verdict);

// 0 same, 1 changed, 3 drift, 4 not comparable / not restored / contaminated, 5 corrupt, 6 insufficient. 2 is for what
// could not run and is never a verdict.
int verdict_exit(Verdict verdict);

// How `--bisect` treats DRIFT. `undecided` is plain `--bisect`.
enum class BisectDrift { undecided, good, bad };

// 0 good (same), 1 bad (changed), 125 for whatever decides nothing.
int verdict_bisect_exit(Verdict verdict, BisectDrift drift);

}  // namespace draftprobe
