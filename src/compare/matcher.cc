#include "compare/matcher.h"

#include <fmt/format.h>

#include <algorithm>

#include "capture/text_form.h"

namespace draftprobe {
namespace {

constexpr std::size_t kSpareSteps = 16;

bool equal_bytes(std::span<const std::byte> a, std::span<const std::byte> b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end());
}

}  // namespace

Matcher::Matcher(CaptureReader& control, CaptureReader& treated, StepSink& sink, Pairs& pairs)
    : readers_{&control, &treated}, sink_(sink), pairs_(pairs) {}

Status Matcher::run() {
    while (!ended_[0] || !ended_[1]) {
        for (int side = 0; side < 2; ++side) {
            if (ended_[side]) continue;
            Result<bool> more = pull(side);
            if (!more.ok()) {
                failed_in_treated_ = side == 1;
                return more.status();
            }
            ended_[side] = !*more;
        }
    }
    for (auto& [key, request] : requests_) {
        for (int side = 0; side < 2; ++side) {
            ArmOfRequest& own = request.arms[side];
            while (!own.waiting.empty()) {
                HeldStep held = std::move(own.waiting.front());
                own.waiting.pop_front();
                forget(side, own, request.arms[1 - side], std::move(held));
            }
        }
    }
    return {};
}

Result<bool> Matcher::pull(int side) {
    HeldStep held;
    if (!spare_.empty()) {
        held.step = std::move(spare_.back());
        spare_.pop_back();
    }
    DP_ASSIGN_OR_RETURN(const bool more, readers_[side]->next(held.step));
    if (!more) return false;
    held.draft_hidden = readers_[side]->draft_hidden();
    held.target_hidden = readers_[side]->target_hidden();
    DP_RETURN_IF_ERROR(arrive(side, std::move(held)));
    return true;
}

Result<bool> Matcher::is_duplicate(int side, const ArmOfRequest& arm, const HeldStep& held) const {
    const HeldStep* before = !arm.waiting.empty() ? &arm.waiting.back() : arm.last ? &*arm.last : nullptr;
    if (before == nullptr || before->step.context_hash != held.step.context_hash) return false;
    const int level = readers_[side]->header().level;
    StepRecord repeated = held.step;
    repeated.cycle = before->step.cycle;
    repeated.lane = before->step.lane;
    if (format_step(repeated, level) == format_step(before->step, level) &&
        equal_bytes(held.draft_hidden, before->draft_hidden) &&
        equal_bytes(held.target_hidden, before->target_hidden)) {
        return true;
    }
    return corrupt(
        fmt::format("cycles {} and {} of request '{}' have the same context and different content, expected equal "
                    "fields; one arm must be a function of its context",
                    before->step.cycle, held.step.cycle, held.step.request));
}

Status Matcher::arrive(int side, HeldStep held) {
    Request& request = requests_[held.step.request];
    ArmOfRequest& own = request.arms[side];
    ArmOfRequest& other = request.arms[1 - side];
    DP_ASSIGN_OR_RETURN(const bool duplicate, is_duplicate(side, own, held));
    if (duplicate) {
        ++(side == 0 ? pairs_.duplicates_control : pairs_.duplicates_treated);
        return {};
    }
    DP_RETURN_IF_ERROR(sink_.on_step(side == 1, held.step));
    ++own.steps;
    own.length = held.step.length;

    while (!other.waiting.empty() && other.waiting.front().step.length < held.step.length) {
        HeldStep passed = std::move(other.waiting.front());
        other.waiting.pop_front();
        forget(1 - side, other, own, std::move(passed));
    }
    if (other.waiting.empty()) {
        if (other.length >= held.step.length) {
            forget(side, own, other, std::move(held));
        } else {
            own.waiting.push_back(std::move(held));
        }
        return {};
    }
    if (other.waiting.front().step.length > held.step.length) {
        forget(side, own, other, std::move(held));
        return {};
    }
    HeldStep partner = std::move(other.waiting.front());
    other.waiting.pop_front();
    const HeldStep& control = side == 0 ? held : partner;
    const HeldStep& treated = side == 0 ? partner : held;
    Status status;
    if (control.step.context_hash == treated.step.context_hash) {
        ++pairs_.matched;
        status = sink_.on_pair(control, treated);
    } else {
        count_unmatched(0, &UnmatchedReasons::context_differs);
        count_unmatched(1, &UnmatchedReasons::context_differs);
        sink_.on_context_differs(control.step, treated.step, request.arms[0].steps == 1 && request.arms[1].steps == 1);
    }
    if (other.last && spare_.size() < kSpareSteps) spare_.push_back(std::move(other.last->step));
    if (own.last && spare_.size() < kSpareSteps) spare_.push_back(std::move(own.last->step));
    other.last = std::move(partner);
    own.last = std::move(held);
    return status;
}

void Matcher::forget(int side, ArmOfRequest& own, const ArmOfRequest& other, HeldStep held) {
    if (other.steps == 0) {
        count_unmatched(side, &UnmatchedReasons::request_missing);
    } else if (other.length < held.step.length) {
        count_unmatched(side, &UnmatchedReasons::arm_ended);
    } else {
        count_unmatched(side, &UnmatchedReasons::cycle_boundaries);
    }
    own.last = std::move(held);
}

void Matcher::count_unmatched(int side, std::int64_t UnmatchedReasons::*reason) {
    ++(side == 0 ? pairs_.unmatched_control : pairs_.unmatched_treated);
    // Through a reference of its own: g++ 12 applies .* to a copy when its left side is a conditional expression.
    UnmatchedReasons& reasons = side == 0 ? pairs_.control : pairs_.treated;
    ++(reasons.*reason);
}

}  // namespace draftprobe
