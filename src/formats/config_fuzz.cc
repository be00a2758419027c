// libFuzzer target: any bytes give a configuration whose numbers keep their invariants, or an error.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "base/json.h"
#include "formats/model_config.h"

namespace {

void check(bool holds) {
    if (!holds) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    using namespace draftprobe;
    const auto json = parse_json(std::string_view(reinterpret_cast<const char*>(data), size), "fuzz");
    if (!json.ok()) return 0;
    const auto target = parse_target_config(*json, &*json, "fuzz");
    if (target.ok()) {
        check(target->layer_kinds.size() == static_cast<std::size_t>(target->layers));
        check(target->q_heads % target->kv_heads == 0 && target->linear_value_heads % target->linear_key_heads == 0);
        check(target->rotary_dim >= 2 && target->rotary_dim <= target->head_dim && target->rotary_dim % 2 == 0);
        check(target->conv_channels() > 0 && target->conv_channels() < (1 << 24));
        for (const TokenId id : target->eos_ids) check(id < target->vocab);
    }
    const auto draft = parse_draft_config(*json, "fuzz");
    if (draft.ok()) {
        check(draft->layer_attention.size() == static_cast<std::size_t>(draft->layers));
        check(!draft->taps.empty() && draft->mask_token < draft->vocab && draft->block >= 2);
        check(draft->conv.has_value() == (draft->version == DraftVersion::dflash2));
        check(!draft->conv || draft->conv_groups() * draft->conv->group_size == draft->hidden);
    }
    return 0;
}
