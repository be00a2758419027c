#include "state/restore_form.h"

#include <fmt/format.h>

#include <span>
#include <string>
#include <utility>

namespace draftprobe::state {

namespace {

template <class Value>
using Spelling = std::pair<Value, std::string_view>;

constexpr Spelling<TargetRestore> kTargetForms[] = {{TargetRestore::exact, "exact"},
                                                    {TargetRestore::int8_state, "int8-state"}};
constexpr Spelling<DraftRestore> kDraftForms[] = {
    {DraftRestore::exact, "exact"},         {DraftRestore::rows, "rows"},     {DraftRestore::rows_q4, "rows-q4"},
    {DraftRestore::recompute, "recompute"}, {DraftRestore::masked, "masked"}, {DraftRestore::none, "none"}};
constexpr Spelling<Tier> kTiers[] = {{Tier::memory, "memory"}, {Tier::disk, "disk"}, {Tier::process, "process"}};

template <class Value>
std::string_view name_of(std::span<const Spelling<Value>> spellings, Value value) {
    for (const auto& [candidate, name] : spellings) {
        if (candidate == value) return name;
    }
    return "";
}

template <class Value>
Result<Value> parse(std::span<const Spelling<Value>> spellings, std::string_view what, std::string_view text) {
    std::string known;
    for (const auto& [value, name] : spellings) {
        if (name == text) return value;
        known += fmt::format("{}{}", known.empty() ? "" : ", ", name);
    }
    return invalid_argument(fmt::format("{}: found '{}', expected one of {}", what, text, known));
}

}  // namespace

std::string_view target_restore_name(TargetRestore form) { return name_of<TargetRestore>(kTargetForms, form); }
std::string_view draft_restore_name(DraftRestore form) { return name_of<DraftRestore>(kDraftForms, form); }
std::string_view tier_name(Tier tier) { return name_of<Tier>(kTiers, tier); }

Result<TargetRestore> parse_target_restore(std::string_view name) {
    return parse<TargetRestore>(kTargetForms, "target restore form", name);
}
Result<DraftRestore> parse_draft_restore(std::string_view name) {
    return parse<DraftRestore>(kDraftForms, "draft restore form", name);
}
Result<Tier> parse_tier(std::string_view name) { return parse<Tier>(kTiers, "tier", name); }

}  // namespace draftprobe::state
