// Turns what the observed engine shows into a capture: one StepRecord per lane-cycle, forward calls, ledger events.
//
// A Recorder belongs to one arm. It reads the engine and never changes it. Errors of the writer are kept and returned
// by `status()`, since hooks cannot fail.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "capture/capture.h"
#include "capture/writer.h"
#include "instrument/observer.h"
#include "probe/expected.h"

namespace draftprobe::probe {

struct RecorderOptions {
    int level = 3;
    // State digests every K commits; 0: none. Recurrent state is also digested at the first commit, and at the 1st,
    // 4th, 16th ... cycle that accepts nothing: where a cell may be adopted that nobody wrote. Not at all of them,
    // since hashing the state of a large model takes as long as part of a cycle.
    std::size_t digest_every = 0;
    std::size_t window = 0;  // draft window W
    std::size_t block = 0;   // rows of a draft block, anchor included
    Position boundary = 0;   // B
    std::string request;     // key
    std::string tokenizer_digest;
    std::string numerics_class;
    // A computing arm must be finite throughout. A restored one may not be: rows made from state that nobody wrote are
    // a finding.
    bool require_finite = true;
    // Record what the arm has against what is made again (probe/expected.h); of restored arms, from level 2 on.
    bool witness = false;
};

class Recorder final : public instrument::CycleSink {
public:
    Recorder(RecorderOptions options, CaptureWriter& writer) : options_(std::move(options)), writer_(writer) {}

    void set_phase(ForwardPhase phase) { phase_ = phase; }
    // Records the lane's ledger under `event`; `tier` marks what came from or went to a store.
    void ledger_event(const std::string& event, const state::Lane& lane, std::string_view tier,
                      std::span<const TokenId> prompt, std::span<const TokenId> occupant);
    // Adds what the lane's request needs besides its rows to the event recorded last: what is restored has to be what
    // was saved, whatever the other arm does.
    void ledger_request(const state::RequestRecord& record, const state::Lane& lane);
    // What the state read by the first decode cycle is made of.
    void count_rows(const state::Lane& lane);

    // What the draft has to make of the lane in its next cycle (probe/expected.h).
    void expect_draft_rows(std::uint64_t hash) { expected_draft_ = hash; }

    void on_forward(decode::ForwardKind kind, const state::Lane& lane, Position start, std::size_t rows) override;
    void on_anchor(const state::Lane& lane, std::span<const float> logits) override;
    void on_propose(const state::Lane& lane, const decode::DraftChoice& choice, numerics::ConstRows hidden) override;
    void on_verify(const decode::VerifyView& view) override;
    void on_commit(const state::Lane& lane, const decode::CycleResult& result,
                   const budget::Controller* controller) override;

    const Status& status() const { return status_; }
    std::size_t cycles() const { return cycle_; }
    // Why the arm has to end behind its last recorded cycle: a sentence about a target row that is not finite. Empty
    // otherwise.
    const std::string& ended_early() const { return ended_early_; }

    std::vector<LedgerEvent> ledger;
    std::vector<ForwardCall> schedule;
    std::vector<ComponentRows> rows;

private:
    void cut_at_non_finite(const decode::VerifyView& view);
    bool digests_recurrent_state(const decode::CycleResult& result);

    RecorderOptions options_;
    CaptureWriter& writer_;
    ForwardPhase phase_ = ForwardPhase::materialise;
    StepRecord step_;
    std::vector<Bf16> draft_hidden_;
    std::vector<Bf16> target_hidden_;
    std::size_t cycle_ = 0;
    std::size_t full_rejects_ = 0;
    std::optional<float> anchor_margin_;
    std::optional<std::uint64_t> expected_draft_;
    std::optional<CommitWitness> commit_;  // of the cycle that is being committed
    std::string ended_early_;
    Status status_;
};

}  // namespace draftprobe::probe
