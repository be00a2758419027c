#include "compare/findings.h"

#include <array>

namespace draftprobe {
namespace {

constexpr std::array<std::string_view, 11> kStageNames = {
    "materialise", "snapshot", "restore", "prefill", "draft", "select", "width", "verify", "accept", "commit", "end"};
constexpr std::array<std::string_view, 7> kComponentOrder = {kTargetKv,  kRecurrent, kConv,      kDraftContext,
                                                             kDraftRing, kAnchor,    kController};

}  // namespace

std::string_view stage_name(Stage stage) { return kStageNames[static_cast<std::size_t>(stage)]; }

int component_rank(std::string_view component) {
    int rank = 0;
    for (std::string_view name : kComponentOrder) {
        if (name == component) return rank;
        ++rank;
    }
    return rank;
}

Findings::Key Findings::key_of(Stage stage, int rank, std::optional<std::int64_t> cycle) {
    Key key;
    key.phase = stage < Stage::draft ? 0 : stage == Stage::end ? 2 : 1;
    key.cycle = cycle.value_or(0);
    key.stage = static_cast<int>(stage);
    key.rank = rank;
    return key;
}

}  // namespace draftprobe
