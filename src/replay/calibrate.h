// Makes the seed of a frozen budget from captures: how often proposals matched, by prefix confidence.
//
// What teaches is what the online rule would have learned from the same cycles (budget/rule.h, teach): positions that
// were reached and verified, as capture's observed_acceptance says, so a sequence cut by a stop token or a limit is
// censored there. Calibration reads only `full` captures: under another budget the rows that were verified depend on
// the confidence itself. Every context counts once, however many captures hold it; seen further in one of them, the
// further positions count too. The seed is the same for every order of the captures.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "budget/seed.h"

namespace draftprobe::replay {

struct CalibrateOptions {
    budget::CostTable costs;  // [block]; measured by the caller
    std::size_t lanes = 1;    // lanes in the batch that the costs were measured with
    // True: only restored arms, all under one treatment. False: only arms that restored nothing. Never both in a seed:
    // whether a restore changes acceptance is the question.
    bool after_restore = false;
    std::string note;
};

struct Calibration {
    budget::Seed seed;
    std::size_t captures = 0;  // distinct ones
    // Lane-cycles that taught are seed.provenance.lane_cycles. Those that did not:
    std::int64_t forced = 0;         // lockstep committed another arm's tokens
    std::int64_t duplicates = 0;     // nothing of the context was new
    std::int64_t not_drafted = 0;    // proposals that the draft did not choose greedily (scripted, sampled, none)
    std::int64_t not_at_risk = 0;    // nothing was verified
    std::int64_t not_finite = 0;     // no position with a finite confidence
    std::vector<std::string> notes;  // of the captures, each once, and warnings: to be repeated by every report
};

// Streams the captures one after the other. Memory: one small entry per distinct context.
// Errors: those of CaptureReader; invalid_argument (no capture, level 0, another budget than full, timing-confounded,
// injected faults, sampled, an arm that after_restore excludes, no confidences, nothing that teaches, costs that
// check_costs refuses), naming capture and field; mismatch (captures of another identity, setting, block or treatment,
// all named; a context that two captures show with different outcomes).
Result<Calibration> calibrate(std::span<const std::filesystem::path> captures, const CalibrateOptions& options);

}  // namespace draftprobe::replay
