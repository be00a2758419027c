#include "formats/config_fields.h"

#include <fmt/format.h>

namespace draftprobe::config_fields {
namespace {

Status check_rope_type(const Json& rope, std::string_view subject) {
    for (const char* key : {"rope_type", "type"}) {
        DP_ASSIGN_OR_RETURN(const std::string type, json_string_or(rope, key, subject, "default"));
        // "mrope" is the multimodal position scheme of older files: for text it is plain RoPE.
        if (type != "default" && type != "mrope") {
            return unsupported(
                fmt::format("{}: {} {}, served is \"default\"; use a configuration without position scaling", subject,
                            key, quoted_excerpt(type)));
        }
    }
    return {};
}

}  // namespace

Result<std::vector<std::string>> architectures(const Json& config, std::string_view subject) {
    std::vector<std::string> names;
    DP_ASSIGN_OR_RETURN(const Json* list, json_array_or_null(config, "architectures", subject));
    if (list == nullptr) return names;
    for (const Json& entry : *list) {
        if (!entry.is_string()) {
            return corrupt(fmt::format("{}: \"architectures\" holds {}, expected strings", subject, entry.type_name()));
        }
        names.push_back(entry.get<std::string>());
    }
    return names;
}

Status check_multiple(std::string_view subject, std::string_view dividend_name, std::int64_t dividend,
                      std::string_view divisor_name, std::int64_t divisor) {
    if (dividend % divisor == 0) return {};
    return corrupt(fmt::format("{}: \"{}\" is {}, expected a multiple of \"{}\", which is {}", subject, dividend_name,
                               dividend, divisor_name, divisor));
}

Status check_plain_block(const Json& config, std::string_view subject) {
    DP_ASSIGN_OR_RETURN(const std::string activation, json_string_or(config, "hidden_act", subject, "silu"));
    if (activation != "silu" && activation != "swish") {
        return unsupported(
            fmt::format("{}: \"hidden_act\" is {}, served is \"silu\"", subject, quoted_excerpt(activation)));
    }
    DP_ASSIGN_OR_RETURN(const bool bias, json_bool_or(config, "attention_bias", subject, false));
    if (bias) return unsupported(fmt::format("{}: \"attention_bias\" is true, served is false", subject));
    return {};
}

Result<double> rope_theta(const Json& config, std::string_view subject) {
    constexpr double kMin = 1.0;
    constexpr double kMax = 1e12;
    DP_ASSIGN_OR_RETURN(const Json* parameters, json_object_or_null(config, "rope_parameters", subject));
    DP_ASSIGN_OR_RETURN(const Json* scaling, json_object_or_null(config, "rope_scaling", subject));
    const std::string nested = fmt::format("{}: rope_parameters", subject);
    if (parameters != nullptr) DP_RETURN_IF_ERROR(check_rope_type(*parameters, nested));
    if (scaling != nullptr) DP_RETURN_IF_ERROR(check_rope_type(*scaling, fmt::format("{}: rope_scaling", subject)));
    const bool inner = parameters != nullptr && json_find(*parameters, "rope_theta") != nullptr;
    const bool outer = json_find(config, "rope_theta") != nullptr;
    if (!inner) return json_get_float(config, "rope_theta", subject, kMin, kMax);
    DP_ASSIGN_OR_RETURN(const double theta, json_get_float(*parameters, "rope_theta", nested, kMin, kMax));
    if (outer) {
        DP_ASSIGN_OR_RETURN(const double other, json_get_float(config, "rope_theta", subject, kMin, kMax));
        if (other != theta) {
            return mismatch(
                fmt::format("{}: \"rope_theta\" is {} in rope_parameters and {} outside, expected one value", subject,
                            theta, other));
        }
    }
    return theta;
}

Result<double> rms_norm_eps(const Json& config, std::string_view subject) {
    return json_float_or(config, "rms_norm_eps", subject, 1e-6, 1e-12, 1e-1);
}

}  // namespace draftprobe::config_fields
