#include "compare/verdict.h"

#include <cassert>

namespace draftprobe {

std::string_view verdict_name(Verdict verdict) {
    switch (verdict) {
        case Verdict::same: return "SAME";
        case Verdict::drift: return "DRIFT";
        case Verdict::changed: return "CHANGED";
        case Verdict::not_restored: return "NOT_RESTORED";
        case Verdict::not_comparable: return "NOT_COMPARABLE";
        case Verdict::contaminated: return "CONTAMINATED";
        case Verdict::insufficient: return "INSUFFICIENT";
        case Verdict::corrupt: return "CORRUPT";
    }
    assert(false);
    return "CORRUPT";
}

int verdict_exit(Verdict verdict) {
    switch (verdict) {
        case Verdict::same: return 0;
        case Verdict::changed: return 1;
        case Verdict::drift: return 3;
        case Verdict::not_restored:
        case Verdict::not_comparable:
        case Verdict::contaminated: return 4;
        case Verdict::corrupt: return 5;
        case Verdict::insufficient: return 6;
    }
    assert(false);
    return 5;
}

int verdict_bisect_exit(Verdict verdict, BisectDrift drift) {
    constexpr int kUndecided = 125;
    if (verdict == Verdict::same) return 0;
    if (verdict == Verdict::changed) return 1;
    if (verdict == Verdict::drift && drift != BisectDrift::undecided) return drift == BisectDrift::good ? 0 : 1;
    return kUndecided;
}

}  // namespace draftprobe
