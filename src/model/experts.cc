#include "model/experts.h"

#include <fmt/format.h>

#include <array>
#include <charconv>

#include "model/weights.h"

namespace draftprobe::model {

using numerics::Matrix;

namespace {

enum class Form { stacked, per_expert, switched };

constexpr std::array<std::string_view, 3> kProjections = {"gate_proj", "up_proj", "down_proj"};

constexpr std::string_view kExperts = "experts.";
constexpr std::string_view kSwitch = "switch_mlp.";

struct Sizes {
    std::size_t experts;
    std::size_t inner;
    std::size_t hidden;
};

Matrix& projection(DenseFfn& expert, std::size_t index) {
    return index == 0 ? expert.gate_proj : index == 1 ? expert.up_proj : expert.down_proj;
}

std::size_t out_of(const Sizes& sizes, std::size_t index) { return index == 2 ? sizes.hidden : sizes.inner; }
std::size_t in_of(const Sizes& sizes, std::size_t index) { return index == 2 ? sizes.inner : sizes.hidden; }

std::string stacked_name(const std::string& prefix, bool down) {
    return prefix + (down ? "experts.down_proj" : "experts.gate_up_proj");
}

// The form of a tensor "<prefix>experts..." or "<prefix>switch_mlp...".
Form form_of(std::string_view name, const std::string& prefix) {
    const std::string_view rest = name.substr(prefix.size());
    if (rest.substr(0, kSwitch.size()) == kSwitch) return Form::switched;
    const char first = rest.size() > kExperts.size() ? rest[kExperts.size()] : '\0';
    return first >= '0' && first <= '9' ? Form::per_expert : Form::stacked;
}

// The form of all expert tensors of the layer.
Result<Form> find_form(const Checkpoint& checkpoint, const std::string& prefix, const Sizes& sizes,
                       const std::vector<std::string_view>& names) {
    if (names.empty()) {
        return not_found(fmt::format(
            "{} is missing, expected shape {}, and there are no tensors {}experts.0.* or "
            "{}switch_mlp.* either; the checkpoint is incomplete or of another model",
            checkpoint.where(stacked_name(prefix, false)),
            shape_text(std::array<std::uint64_t, 3>{sizes.experts, 2 * sizes.inner, sizes.hidden}), prefix, prefix));
    }
    const Form form = form_of(names.front(), prefix);
    for (const std::string_view name : names) {
        if (form_of(name, prefix) == form) continue;
        return mismatch(
            fmt::format("{} and {} store experts in two forms, expected one; the files are from two exports",
                        checkpoint.where(names.front()), checkpoint.where(name)));
    }
    return form;
}

// "gate_proj.weight" and the like.
bool is_part(std::string_view text) {
    for (const std::string_view part : {".weight", ".scales", ".biases"}) {
        for (const std::string_view name : kProjections) {
            if (text.size() == name.size() + part.size() && text.substr(0, name.size()) == name &&
                text.substr(name.size()) == part) {
                return true;
            }
        }
    }
    return false;
}

// Whether `rest`, a name behind the layer's prefix, is a tensor that the form has for `experts` experts.
bool is_expected(std::string_view rest, Form form, std::size_t experts) {
    if (form == Form::stacked) return rest == "experts.gate_up_proj" || rest == "experts.down_proj";
    if (form == Form::switched) return is_part(rest.substr(kSwitch.size()));
    rest.remove_prefix(kExperts.size());
    std::size_t id = 0;
    const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), id);
    const auto digits = static_cast<std::size_t>(end - rest.data());
    const bool canonical = error == std::errc() && (digits == 1 || rest.front() != '0');
    return canonical && id < experts && digits < rest.size() && rest[digits] == '.' && is_part(rest.substr(digits + 1));
}

// Every expert tensor of the layer is one that the form and config.json name.
Status check_names(const Checkpoint& checkpoint, const std::string& prefix, Form form, std::size_t experts,
                   const std::vector<std::string_view>& names) {
    constexpr std::string_view kExpected[] = {
        "the stacks experts.gate_up_proj and experts.down_proj",
        "weight, scales and biases of experts.<id>.{gate,up,down}_proj",
        "weight, scales and biases of switch_mlp.{gate,up,down}_proj",
    };
    for (const std::string_view name : names) {
        if (is_expected(name.substr(prefix.size()), form, experts)) continue;
        return mismatch(
            fmt::format("{} belongs to none of the {} experts of config.json, expected only {}; the "
                        "checkpoint is of another model or in a form that is not served",
                        checkpoint.where(name), experts, kExpected[static_cast<std::size_t>(form)]));
    }
    return {};
}

Status load_stacked(const Checkpoint& checkpoint, const std::string& prefix, const Sizes& sizes,
                    std::vector<DenseFfn>& experts) {
    const std::uint64_t gate_up_shape[] = {sizes.experts, 2 * sizes.inner, sizes.hidden};
    const std::uint64_t down_shape[] = {sizes.experts, sizes.hidden, sizes.inner};
    DP_ASSIGN_OR_RETURN(const TensorView* gate_up, checkpoint.require(stacked_name(prefix, false), gate_up_shape));
    DP_ASSIGN_OR_RETURN(const TensorView* down, checkpoint.require(stacked_name(prefix, true), down_shape));
    for (std::size_t e = 0; e < sizes.experts; ++e) {
        const std::size_t first = 2 * sizes.inner * e;
        experts[e].gate_proj = dense_rows(*gate_up, first, sizes.inner, sizes.hidden);
        experts[e].up_proj = dense_rows(*gate_up, first + sizes.inner, sizes.inner, sizes.hidden);
        experts[e].down_proj = dense_rows(*down, sizes.hidden * e, sizes.hidden, sizes.inner);
    }
    return {};
}

Status load_switched(const Checkpoint& checkpoint, const std::string& prefix, const Sizes& sizes,
                     std::vector<DenseFfn>& experts) {
    for (std::size_t p = 0; p < kProjections.size(); ++p) {
        DP_ASSIGN_OR_RETURN(std::vector<Matrix> stack,
                            load_stack(checkpoint, fmt::format("{}switch_mlp.{}", prefix, kProjections[p]),
                                       sizes.experts, out_of(sizes, p), in_of(sizes, p)));
        for (std::size_t e = 0; e < sizes.experts; ++e) projection(experts[e], p) = std::move(stack[e]);
    }
    return {};
}

Status load_per_expert(const Checkpoint& checkpoint, const std::string& prefix, const Sizes& sizes,
                       std::vector<DenseFfn>& experts) {
    for (std::size_t e = 0; e < sizes.experts; ++e) {
        for (std::size_t p = 0; p < kProjections.size(); ++p) {
            DP_ASSIGN_OR_RETURN(projection(experts[e], p),
                                load_matrix(checkpoint, fmt::format("{}experts.{}.{}", prefix, e, kProjections[p]),
                                            out_of(sizes, p), in_of(sizes, p)));
        }
    }
    return {};
}

}  // namespace

Result<std::vector<DenseFfn>> load_experts(const Checkpoint& checkpoint, const std::string& prefix,
                                           const MoeConfig& config, std::int64_t hidden) {
    const Sizes sizes{static_cast<std::size_t>(config.experts), static_cast<std::size_t>(config.expert_intermediate),
                      static_cast<std::size_t>(hidden)};
    std::vector<std::string_view> names = checkpoint.names_under(prefix + std::string(kExperts));
    const std::vector<std::string_view> switched = checkpoint.names_under(prefix + std::string(kSwitch));
    names.insert(names.end(), switched.begin(), switched.end());
    DP_ASSIGN_OR_RETURN(const Form form, find_form(checkpoint, prefix, sizes, names));
    DP_RETURN_IF_ERROR(check_names(checkpoint, prefix, form, sizes.experts, names));
    std::vector<DenseFfn> experts(sizes.experts);
    switch (form) {
        case Form::stacked: DP_RETURN_IF_ERROR(load_stacked(checkpoint, prefix, sizes, experts)); break;
        case Form::per_expert: DP_RETURN_IF_ERROR(load_per_expert(checkpoint, prefix, sizes, experts)); break;
        case Form::switched: DP_RETURN_IF_ERROR(load_switched(checkpoint, prefix, sizes, experts)); break;
    }
    return experts;
}

}  // namespace draftprobe::model
