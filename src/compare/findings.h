// Collects differences and keeps the earliest in dataflow order, of all and of those that only a fault explains. Inside
// compare/ only.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "compare/comparison.h"

namespace draftprobe {

// In dataflow order. Stages from `draft` to `commit` belong to a cycle.
enum class Stage { materialise, snapshot, restore, prefill, draft, select, width, verify, accept, commit, end };

std::string_view stage_name(Stage stage);

// Position of a ledger component in the dataflow; unknown names come last.
int component_rank(std::string_view component);

// Whether a recorded schedule or format difference could be behind a difference.
enum class Weight { explainable, real };

class Findings {
public:
    // `detail` is called only when this difference is the earliest so far of its weight. `rank` orders differences of
    // one stage.
    template <typename Detail>
    void offer(Stage stage, int rank, std::string_view component, std::optional<std::int64_t> cycle,
               std::optional<std::int32_t> lane, Weight weight, Detail detail) {
        const Key key = key_of(stage, rank, cycle);
        ++count_;
        Earliest* const kept[] = {&any_, &real_};
        for (Earliest* earliest : kept) {
            if (earliest == &real_ && weight != Weight::real) continue;
            if (earliest->found && !(key < earliest->key)) continue;
            earliest->key = key;
            earliest->found = FirstDifference{std::string(stage_name(stage)), std::string(component), cycle, lane,
                                              std::string(detail())};
        }
    }

    const std::optional<FirstDifference>& first() const { return any_.found; }
    // The earliest that no schedule or format difference explains.
    const std::optional<FirstDifference>& first_real() const { return real_.found; }
    std::int64_t count() const { return count_; }

private:
    struct Key {
        int phase = 0;  // before, during, after the cycles
        std::int64_t cycle = 0;
        int stage = 0;
        int rank = 0;
        auto operator<=>(const Key&) const = default;
    };
    struct Earliest {
        Key key;
        std::optional<FirstDifference> found;
    };
    static Key key_of(Stage stage, int rank, std::optional<std::int64_t> cycle);

    Earliest any_;
    Earliest real_;
    std::int64_t count_ = 0;
};

}  // namespace draftprobe
