// Compares two captures of the same requests and says whether the treatment changed what the draft proposes, how many
// rows are verified, what is accepted, or what comes out, and where the difference began. The rules in prose:
// docs/capture-format.md, section "What a comparison does with it".
//
// Verdicts, in the order they are decided:
//
// - CORRUPT: a capture breaks its rules, or repeats a context with other fields, or the control stopped with an error
//   (a control that did not run judges nothing).
// - NOT_COMPARABLE: an identity group or effective setting differs and is not a declared treatment; all are listed.
// - CONTAMINATED: an arm that should have computed its state holds rows from elsewhere, or never computed some.
// - NOT_RESTORED: the restored arm computed positions that its restore claims, or restored nothing.
// - INSUFFICIENT: the draft's restore was not visible to the draft (what was found is still listed), or nothing paired.
// - SAME: everything compared at this level is bit-equal: decisions, scores, digests, hidden rows, ledger.
// - DRIFT: something differs, a schedule or format difference that can explain it is recorded, every flip is a near-tie
//   of the control (margin <= recorded tau), and no ledger fact contradicts it.
// - CHANGED: everything else. `changed` may be empty: when only inputs or hidden rows differ and no decision flipped
//   yet, the arms are still not the same. Equal settings on canonical numerics promise equal bits, so an unexplained
//   difference is a fault that has not flipped a decision yet; SAME would hide it, and DRIFT needs a recorded cause.
//
// Ledger facts that no rounding explains are never DRIFT: rows claimed and not written, a missing component, another
// base or covered range than labelled, a constant shift of rows, a lane that differs from the snapshot it was restored
// from.
//
// Memory does not depend on the number of steps, as long as both arms run their requests in about the same order.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "base/status.h"
#include "capture/reader.h"
#include "compare/comparison.h"

namespace draftprobe {

// What a comparison may look at. `sanitisable`: only what a sanitised capture still has (level 2 at most, no candidate
// scores), so that its report is byte-equal before and after sanitising. Implied when either capture is sanitised.
enum class Evidence { all, sanitisable };

struct CompareOptions {
    // Declared treatments: a settings field ("kv_format"), an identity group ("draft"), or a full name
    // ("settings.kv_format", "identity.draft").
    std::vector<std::string> treat;
    Evidence evidence = Evidence::all;
};

// Opens and compares. A capture that breaks its format gives verdict CORRUPT, not an error. Errors: not_found, io,
// unsupported, mismatch (format version), exhausted.
Result<Comparison> compare_captures(const std::filesystem::path& control, const std::filesystem::path& treated,
                                    const CompareOptions& options);

// The same over open readers, which are read to their end. Errors also: corrupt, when a step breaks the format.
Result<Comparison> compare(CaptureReader& control, CaptureReader& treated, const CompareOptions& options);

}  // namespace draftprobe
