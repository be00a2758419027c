#include "model/tensor_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>
#include <set>

namespace draftprobe::model {

namespace {

using Shape = std::vector<std::uint64_t>;

std::uint64_t extent(std::int64_t dimension) { return static_cast<std::uint64_t>(dimension); }

class Planner {
public:
    explicit Planner(const Checkpoint& checkpoint) : checkpoint_(checkpoint) {}

    // A tensor that is never quantised.
    Status dense(const std::string& name, const Shape& shape, bool expert = false) {
        DP_ASSIGN_OR_RETURN(const TensorView* view, checkpoint_.require_header(name, shape));
        add({name, shape, view->dtype, std::nullopt, view->bytes.size(), expert});
        used_.insert(name);
        return {};
    }

    // A linear map or a table, or a stack of them: affine or dense.
    Status matrix(const std::string& module, const Shape& shape, bool expert = false) {
        if (!checkpoint_.is_affine(module)) return dense(module + ".weight", shape, expert);
        DP_ASSIGN_OR_RETURN(const AffineScheme scheme, checkpoint_.require_affine_header(module, shape));
        std::uint64_t bytes = 0;
        for (const char* part : {".weight", ".scales", ".biases"}) {
            bytes += checkpoint_.find(module + part)->bytes.size();
            used_.insert(module + part);
        }
        add({module + ".weight", shape, checkpoint_.find(module + ".scales")->dtype, scheme, bytes, expert});
        return {};
    }

    const Checkpoint& checkpoint() const { return checkpoint_; }
    TensorPlan& plan() { return plan_; }

    // `inactive`: a table of which a token reads single rows. `expert_share`: what a token uses of the experts.
    TensorPlan finish(const std::function<bool(const PlannedTensor&)>& inactive, double expert_share) {
        double active = 0;
        for (const PlannedTensor& tensor : plan_.tensors) {
            plan_.stored_tensors += tensor.stored_tensors();
            plan_.stored_bytes += tensor.stored_bytes;
            plan_.parameters += tensor.parameters();
            if (inactive(tensor)) continue;
            active += static_cast<double>(tensor.parameters()) * (tensor.expert ? expert_share : 1.0);
        }
        plan_.active_parameters = static_cast<std::uint64_t>(active + 0.5);
        for (const std::string& name : checkpoint_.names()) {
            if (!used_.contains(name)) plan_.unused.push_back(name);
        }
        return std::move(plan_);
    }

private:
    void add(PlannedTensor tensor) { plan_.tensors.push_back(std::move(tensor)); }

    const Checkpoint& checkpoint_;
    TensorPlan plan_;
    std::set<std::string, std::less<>> used_;
};

Status plan_delta(Planner& planner, const TargetConfig& config, const std::string& prefix) {
    const std::uint64_t hidden = extent(config.hidden);
    const std::uint64_t channels = extent(config.conv_channels());
    const std::uint64_t taps = extent(config.conv_kernel);
    const std::uint64_t heads = extent(config.linear_value_heads);
    const std::uint64_t values = extent(config.value_width());
    const bool mlx = planner.checkpoint().layout() == CheckpointLayout::mlx;
    DP_RETURN_IF_ERROR(planner.matrix(prefix + "in_proj_qkv", {channels, hidden}));
    DP_RETURN_IF_ERROR(planner.matrix(prefix + "in_proj_z", {values, hidden}));
    DP_RETURN_IF_ERROR(planner.matrix(prefix + "in_proj_b", {heads, hidden}));
    DP_RETURN_IF_ERROR(planner.matrix(prefix + "in_proj_a", {heads, hidden}));
    DP_RETURN_IF_ERROR(
        planner.dense(prefix + "conv1d.weight", mlx ? Shape{channels, taps, 1} : Shape{channels, 1, taps}));
    DP_RETURN_IF_ERROR(planner.dense(prefix + "A_log", {heads}));
    DP_RETURN_IF_ERROR(planner.dense(prefix + "dt_bias", {heads}));
    DP_RETURN_IF_ERROR(planner.dense(prefix + "norm.weight", {extent(config.linear_value_dim)}));
    return planner.matrix(prefix + "out_proj", {hidden, values});
}

// `queries`: rows of q_proj. Target and draft have the same modules.
Status plan_attention(Planner& planner, std::uint64_t hidden, std::uint64_t queries, std::uint64_t query_width,
                      std::uint64_t kv_width, std::uint64_t head, const std::string& prefix) {
    DP_RETURN_IF_ERROR(planner.matrix(prefix + "q_proj", {queries, hidden}));
    DP_RETURN_IF_ERROR(planner.matrix(prefix + "k_proj", {kv_width, hidden}));
    DP_RETURN_IF_ERROR(planner.matrix(prefix + "v_proj", {kv_width, hidden}));
    DP_RETURN_IF_ERROR(planner.dense(prefix + "q_norm.weight", {head}));
    DP_RETURN_IF_ERROR(planner.dense(prefix + "k_norm.weight", {head}));
    return planner.matrix(prefix + "o_proj", {hidden, query_width});
}

Status plan_dense_ffn(Planner& planner, std::uint64_t hidden, std::uint64_t width, const std::string& prefix,
                      bool expert = false) {
    DP_RETURN_IF_ERROR(planner.matrix(prefix + "gate_proj", {width, hidden}, expert));
    DP_RETURN_IF_ERROR(planner.matrix(prefix + "up_proj", {width, hidden}, expert));
    return planner.matrix(prefix + "down_proj", {hidden, width}, expert);
}

Result<ExpertForm> expert_form(const Checkpoint& checkpoint, const std::string& prefix) {
    const std::array<std::pair<ExpertForm, std::string>, 3> forms = {{
        {ExpertForm::stacked, prefix + "experts.gate_up_proj"},
        {ExpertForm::per_expert, prefix + "experts.0.gate_proj.weight"},
        {ExpertForm::switch_mlp, prefix + "switch_mlp.gate_proj.weight"},
    }};
    const std::pair<ExpertForm, std::string>* found = nullptr;
    for (const auto& form : forms) {
        if (!checkpoint.has(form.second)) continue;
        if (found != nullptr) {
            return mismatch(fmt::format("{} and {} both hold the experts of one layer, expected one of them",
                                        checkpoint.where(found->second), checkpoint.where(form.second)));
        }
        found = &form;
    }
    if (found != nullptr) return found->first;
    return not_found(
        fmt::format("{}: no experts under \"{}\": found none of experts.gate_up_proj, experts.0.gate_proj.weight and "
                    "switch_mlp.gate_proj.weight; the checkpoint is incomplete or of another model",
                    checkpoint.dir().string(), prefix));
}

Status plan_experts(Planner& planner, const TargetConfig& config, const std::string& prefix) {
    const std::uint64_t hidden = extent(config.hidden);
    const std::uint64_t experts = extent(config.moe->experts);
    const std::uint64_t width = extent(config.moe->expert_intermediate);
    DP_ASSIGN_OR_RETURN(const ExpertForm form, expert_form(planner.checkpoint(), prefix));
    ExpertForm& whole = planner.plan().experts;
    if (whole != ExpertForm::none && whole != form) {
        return mismatch(
            fmt::format("{}: experts under \"{}\" are {}, but those of earlier layers are {}; expected one "
                        "form",
                        planner.checkpoint().dir().string(), prefix, expert_form_name(form), expert_form_name(whole)));
    }
    whole = form;
    switch (form) {
        case ExpertForm::stacked:
            DP_RETURN_IF_ERROR(planner.dense(prefix + "experts.gate_up_proj", {experts, 2 * width, hidden}, true));
            return planner.dense(prefix + "experts.down_proj", {experts, hidden, width}, true);
        case ExpertForm::per_expert:
            for (std::uint64_t expert = 0; expert < experts; ++expert) {
                DP_RETURN_IF_ERROR(
                    plan_dense_ffn(planner, hidden, width, fmt::format("{}experts.{}.", prefix, expert), true));
            }
            return {};
        case ExpertForm::switch_mlp:
            DP_RETURN_IF_ERROR(planner.matrix(prefix + "switch_mlp.gate_proj", {experts, width, hidden}, true));
            DP_RETURN_IF_ERROR(planner.matrix(prefix + "switch_mlp.up_proj", {experts, width, hidden}, true));
            return planner.matrix(prefix + "switch_mlp.down_proj", {experts, hidden, width}, true);
        case ExpertForm::none: break;
    }
    return internal_error("a mixture without a form of experts");
}

Status plan_ffn(Planner& planner, const TargetConfig& config, const std::string& prefix) {
    const std::uint64_t hidden = extent(config.hidden);
    if (!config.moe) return plan_dense_ffn(planner, hidden, extent(config.intermediate), prefix);
    DP_RETURN_IF_ERROR(planner.matrix(prefix + "gate", {extent(config.moe->experts), hidden}));
    DP_RETURN_IF_ERROR(plan_experts(planner, config, prefix));
    DP_RETURN_IF_ERROR(
        plan_dense_ffn(planner, hidden, extent(config.moe->shared_expert_intermediate), prefix + "shared_expert."));
    return planner.matrix(prefix + "shared_expert_gate", {1, hidden});
}

Status plan_target_layer(Planner& planner, const TargetConfig& config, std::int64_t index) {
    const std::uint64_t hidden = extent(config.hidden);
    const std::string prefix = fmt::format("layers.{}.", index);
    DP_RETURN_IF_ERROR(planner.dense(prefix + "input_layernorm.weight", {hidden}));
    if (config.layer_kinds[static_cast<std::size_t>(index)] == LayerKind::linear_attention) {
        DP_RETURN_IF_ERROR(plan_delta(planner, config, prefix + "linear_attn."));
    } else {
        const std::uint64_t width = extent(config.q_heads * config.head_dim);
        // Each query head has its gate beside it.
        DP_RETURN_IF_ERROR(plan_attention(planner, hidden, 2 * width, width, extent(config.kv_heads * config.head_dim),
                                          extent(config.head_dim), prefix + "self_attn."));
    }
    DP_RETURN_IF_ERROR(planner.dense(prefix + "post_attention_layernorm.weight", {hidden}));
    return plan_ffn(planner, config, prefix + "mlp.");
}

// A head that nothing would use is a sign of a wrong configuration, and a silent one: both heads give fluent text.
Status check_no_head(const Checkpoint& checkpoint) {
    for (const char* name : {"lm_head.weight", "lm_head.scales", "lm_head.biases"}) {
        if (!checkpoint.has(name)) continue;
        return mismatch(
            fmt::format("{} is present, but \"tie_word_embeddings\" in config.json is true, expected no head beside "
                        "tied embeddings; the two are of different models",
                        checkpoint.where(name)));
    }
    return {};
}

Status plan_draft_conv(Planner& planner, const DraftConfig& config, const std::string& prefix) {
    const std::uint64_t hidden = extent(config.hidden);
    const std::uint64_t taps = extent(config.conv->kernel);
    DP_RETURN_IF_ERROR(planner.dense(prefix + "base_kernel", {2, taps, hidden}));
    return planner.matrix(prefix + "kernel_projection", {2 * taps * extent(config.conv_groups()), hidden});
}

Status plan_draft_layer(Planner& planner, const DraftConfig& config, std::int64_t index) {
    const std::uint64_t hidden = extent(config.hidden);
    const std::uint64_t width = extent(config.q_heads * config.head_dim);
    const std::string prefix = fmt::format("layers.{}.", index);
    DP_RETURN_IF_ERROR(planner.dense(prefix + "input_layernorm.weight", {hidden}));
    if (config.conv) DP_RETURN_IF_ERROR(plan_draft_conv(planner, config, prefix + "attention_conv."));
    DP_RETURN_IF_ERROR(plan_attention(planner, hidden, width, width, extent(config.kv_heads * config.head_dim),
                                      extent(config.head_dim), prefix + "self_attn."));
    DP_RETURN_IF_ERROR(planner.dense(prefix + "post_attention_layernorm.weight", {hidden}));
    if (config.conv) DP_RETURN_IF_ERROR(plan_draft_conv(planner, config, prefix + "mlp_conv."));
    return plan_dense_ffn(planner, hidden, extent(config.intermediate), prefix + "mlp.");
}

// Bare in the released files; an embedding, which may be quantised, in some ports.
Status plan_codebook(Planner& planner, const std::string& name, const Shape& shape) {
    return planner.checkpoint().is_affine(name) ? planner.matrix(name, shape) : planner.dense(name, shape);
}

}  // namespace

std::uint64_t PlannedTensor::parameters() const {
    std::uint64_t product = 1;
    for (const std::uint64_t dimension : shape) product *= dimension;
    return product;
}

std::string_view expert_form_name(ExpertForm form) {
    switch (form) {
        case ExpertForm::none: return "none";
        case ExpertForm::stacked: return "stacked";
        case ExpertForm::per_expert: return "per_expert";
        case ExpertForm::switch_mlp: return "switch_mlp";
    }
    return "none";
}

Result<TensorPlan> plan_target(const Checkpoint& checkpoint, const TargetConfig& config) {
    Planner planner(checkpoint);
    const std::uint64_t hidden = extent(config.hidden);
    const std::uint64_t vocab = extent(config.vocab);
    DP_RETURN_IF_ERROR(planner.matrix("embed_tokens", {vocab, hidden}));
    for (std::int64_t i = 0; i < config.layers; ++i) DP_RETURN_IF_ERROR(plan_target_layer(planner, config, i));
    DP_RETURN_IF_ERROR(planner.dense("norm.weight", {hidden}));
    if (config.tied_embeddings) {
        DP_RETURN_IF_ERROR(check_no_head(checkpoint));
    } else {
        DP_RETURN_IF_ERROR(planner.matrix("lm_head", {vocab, hidden}));
    }
    const bool tied = config.tied_embeddings;
    const double share =
        config.moe ? static_cast<double>(config.moe->experts_per_token) / static_cast<double>(config.moe->experts)
                   : 0.0;
    return planner.finish([tied](const PlannedTensor& t) { return !tied && t.name == "embed_tokens.weight"; }, share);
}

Result<TensorPlan> plan_draft(const Checkpoint& checkpoint, const DraftConfig& config) {
    Planner planner(checkpoint);
    const std::uint64_t hidden = extent(config.hidden);
    DP_RETURN_IF_ERROR(planner.matrix("fc", {hidden, config.taps.size() * hidden}));
    DP_RETURN_IF_ERROR(planner.dense("hidden_norm.weight", {hidden}));
    for (std::int64_t i = 0; i < config.layers; ++i) DP_RETURN_IF_ERROR(plan_draft_layer(planner, config, i));
    DP_RETURN_IF_ERROR(planner.dense("norm.weight", {hidden}));
    if (config.selector) {
        const std::uint64_t rank = extent(config.selector->rank);
        DP_RETURN_IF_ERROR(planner.matrix("candidate_selector.hidden_projection", {rank, hidden}));
        for (const char* name : {"predecessor_codebook", "successor_codebook"}) {
            DP_RETURN_IF_ERROR(
                plan_codebook(planner, std::string("candidate_selector.") + name, {extent(config.vocab), rank}));
        }
    }
    return planner.finish([](const PlannedTensor& t) { return t.name.find("_codebook") != std::string::npos; }, 0.0);
}

}  // namespace draftprobe::model
