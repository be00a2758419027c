#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/json.h"
#include "formats/model_config.h"

namespace draftprobe {
namespace {

constexpr std::array<std::int64_t, 3> kGroupSizes = {32, 64, 128};
constexpr std::array<std::int64_t, 6> kBits = {2, 3, 4, 5, 6, 8};

// group_size, bits and mode of one object, with the format's defaults (not those of the enclosing object).
Result<AffineScheme> parse_scheme(const Json& object, std::string_view subject) {
    DP_ASSIGN_OR_RETURN(const std::string mode, json_string_or(object, "mode", subject, "affine"));
    if (mode != "affine") {
        return unsupported(
            fmt::format("{}: quantisation mode {}, served is \"affine\"; convert the model with mode affine", subject,
                        quoted_excerpt(mode)));
    }
    AffineScheme scheme;
    DP_ASSIGN_OR_RETURN(const std::int64_t group, json_int_or(object, "group_size", subject, scheme.group_size));
    DP_ASSIGN_OR_RETURN(const std::int64_t bits, json_int_or(object, "bits", subject, scheme.bits));
    if (std::find(kGroupSizes.begin(), kGroupSizes.end(), group) == kGroupSizes.end()) {
        return unsupported(fmt::format("{}: group_size {}, the format has 32, 64 and 128", subject, group));
    }
    if (std::find(kBits.begin(), kBits.end(), bits) == kBits.end()) {
        return unsupported(fmt::format("{}: bits {}, the format has 2, 3, 4, 5, 6 and 8", subject, bits));
    }
    scheme.group_size = static_cast<int>(group);
    scheme.bits = static_cast<int>(bits);
    return scheme;
}

}  // namespace

Result<std::optional<QuantisationConfig>> parse_quantisation(const Json& config, std::string_view subject) {
    DP_ASSIGN_OR_RETURN(const Json* own, json_object_or_null(config, "quantization", subject));
    DP_ASSIGN_OR_RETURN(const Json* duplicate, json_object_or_null(config, "quantization_config", subject));
    if (const Json* method = duplicate == nullptr ? nullptr : json_find(*duplicate, "quant_method")) {
        return unsupported(
            fmt::format("{}: \"quantization_config\" has quant_method {}, served are unquantised weights and "
                        "the MLX affine format; use such a checkpoint",
                        subject, method->is_string() ? quoted_excerpt(method->get<std::string>()) : "?"));
    }
    if (own != nullptr && duplicate != nullptr && *own != *duplicate) {
        return mismatch(
            fmt::format("{}: \"quantization\" and \"quantization_config\" differ, expected two copies of one "
                        "object; the file was edited in one place only",
                        subject));
    }
    const Json* found = own != nullptr ? own : duplicate;
    if (found == nullptr) return std::optional<QuantisationConfig>();

    const std::string place = fmt::format("{}: quantization", subject);
    QuantisationConfig quantisation;
    DP_ASSIGN_OR_RETURN(quantisation.global, parse_scheme(*found, place));
    for (const auto& [key, value] : found->items()) {
        if (value.is_object()) {
            DP_ASSIGN_OR_RETURN(const AffineScheme scheme,
                                parse_scheme(value, fmt::format("{}: {}", place, quoted_excerpt(key))));
            quantisation.overrides.emplace(key, scheme);
        } else if (value.is_boolean()) {
            if (value.get<bool>()) {
                quantisation.overrides.emplace(key, quantisation.global);
            } else {
                quantisation.overrides.emplace(key, std::nullopt);
            }
        }
    }
    return std::optional<QuantisationConfig>(std::move(quantisation));
}

}  // namespace draftprobe
