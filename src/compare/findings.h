// Collects differences and keeps the earliest in dataflow order, of all and of those of a weight. Inside
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

// What could be behind a difference. explainable: a recorded schedule or format difference. real: nothing of the kind;
// a flip that is no near-tie, say, or a defect that the treatment declares. broken: a fault, whatever the treatment
// does, since the arm contradicts itself or its snapshot.
enum class Weight { explainable, real, broken };

class Findings {
public:
    // `detail` is called only when this difference is the earliest so far of its weight. `rank` orders differences of
    // one stage.
    template <typename Detail>
    void offer(Stage stage, int rank, std::string_view component, std::optional<std::int64_t> cycle,
               std::optional<std::int32_t> lane, Weight weight, Detail detail) {
        const Key key = key_of(stage, rank, cycle);
        ++count_;
        for (std::size_t least = 0; least <= static_cast<std::size_t>(weight); ++least) {
            Earliest* const earliest = &earliest_[least];
            if (earliest->found && !(key < earliest->key)) continue;
            earliest->key = key;
            earliest->found = FirstDifference{std::string(stage_name(stage)), std::string(component), cycle, lane,
                                              std::string(detail())};
        }
    }

    // The earliest of at least this weight.
    const std::optional<FirstDifference>& first(Weight least = Weight::explainable) const {
        return earliest_[static_cast<std::size_t>(least)].found;
    }
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

    Earliest earliest_[3];  // by least weight
    std::int64_t count_ = 0;
};

}  // namespace draftprobe
