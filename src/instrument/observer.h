// The observed engine: the same decode cycle as production, with its hooks wired to a sink.
//
// Nothing in production links this folder. The sink is borrowed and may be changed between calls; null means: run
// unobserved.
#pragma once

#include "decode/engine.h"

namespace draftprobe::instrument {

// What an observer of the cycle receives; see decode/engine.h for when. Views live during the call only.
class CycleSink {
public:
    virtual ~CycleSink() = default;
    virtual void on_forward(decode::ForwardKind kind, const state::Lane& lane, Position start, std::size_t rows) = 0;
    virtual void on_anchor(const state::Lane&, std::span<const float>) {}
    virtual void on_propose(const state::Lane& lane, const decode::DraftChoice& choice, numerics::ConstRows hidden) = 0;
    virtual void on_verify(const decode::VerifyView& view) = 0;
    // `controller` is null when every row is verified.
    virtual void on_commit(const state::Lane& lane, const decode::CycleResult& result,
                           const budget::Controller* controller) = 0;
};

class SinkObserver {
public:
    static constexpr bool kActive = true;

    CycleSink* sink() const { return sink_; }
    void set_sink(CycleSink* sink) { sink_ = sink; }

    void on_forward(decode::ForwardKind kind, const state::Lane& lane, Position start, std::size_t rows) {
        if (sink_ != nullptr) sink_->on_forward(kind, lane, start, rows);
    }
    void on_anchor(const state::Lane& lane, std::span<const float> logits) {
        if (sink_ != nullptr) sink_->on_anchor(lane, logits);
    }
    void on_propose(const state::Lane& lane, const decode::DraftChoice& choice, numerics::ConstRows hidden) {
        if (sink_ != nullptr) sink_->on_propose(lane, choice, hidden);
    }
    void on_verify(const decode::VerifyView& view) {
        if (sink_ != nullptr) sink_->on_verify(view);
    }
    void on_commit(const state::Lane& lane, const decode::CycleResult& result, const budget::Controller* controller) {
        if (sink_ != nullptr) sink_->on_commit(lane, result, controller);
    }

private:
    CycleSink* sink_ = nullptr;
};

using ObservedEngine = decode::Engine<SinkObserver>;

}  // namespace draftprobe::instrument

extern template class draftprobe::decode::Engine<draftprobe::instrument::SinkObserver>;
