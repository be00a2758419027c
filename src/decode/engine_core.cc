#include "decode/engine_core.h"

#include <fmt/format.h>

#include <algorithm>

namespace draftprobe::decode {

namespace {
std::size_t size(std::int64_t dimension) { return static_cast<std::size_t>(dimension); }
}  // namespace

state::StateShape target_state_shape(const TargetConfig& target, state::KvFormat kv_format,
                                     state::RowFormat row_format) {
    state::StateShape shape;
    for (const LayerKind kind : target.layer_kinds) {
        (kind == LayerKind::full_attention ? shape.attention_layers : shape.delta_layers) += 1;
    }
    shape.kv_heads = size(target.kv_heads);
    shape.head_dim = size(target.head_dim);
    shape.kv_format = kv_format;
    shape.key_heads = size(target.linear_key_heads);
    shape.value_heads = size(target.linear_value_heads);
    shape.key_dim = size(target.linear_key_dim);
    shape.value_dim = size(target.linear_value_dim);
    shape.conv_rows = size(target.conv_kernel - 1);
    shape.conv_channels = size(target.conv_channels());
    shape.row_format = row_format;
    return shape;
}

Result<std::unique_ptr<EngineCore>> EngineCore::create(ModelPair models, const EngineSettings& settings) {
    if (settings.lanes < 1 || settings.max_tokens == 0 || settings.chunk_tokens == 0) {
        return invalid_argument(
            fmt::format("engine: {} lanes, {} positions per lane, chunks of {}; each must be at least 1",
                        settings.lanes, settings.max_tokens, settings.chunk_tokens));
    }
    std::unique_ptr<EngineCore> core(new EngineCore());
    core->settings_ = settings;
    if (models.draft != nullptr) {
        DP_RETURN_IF_ERROR(model::check_pair(models.target->config(), models.draft->config()));
        core->settings_.block = static_cast<std::size_t>(models.draft->config().block);
        core->window_ =
            models.draft->window() == 0 ? settings.max_tokens + core->settings_.block : models.draft->window();
    }
    if (core->settings_.block < 1) return invalid_argument("engine: block of 0 rows; expected at least the anchor row");
    numerics::Compute::Options options;
    options.isa = settings.isa;
    options.cls = settings.numerics;
    options.threads = settings.threads;
    DP_ASSIGN_OR_RETURN(core->compute_, numerics::Compute::create(options));
    core->models_ = std::move(models);
    core->shape_ = target_state_shape(core->models_.target->config(), settings.kv_format, settings.row_format);
    core->shape_.max_tokens = settings.max_tokens;
    if (core->models_.draft != nullptr) {
        const DraftConfig& draft = core->models_.draft->config();
        core->shape_.draft_layers = size(draft.layers);
        core->shape_.draft_kv_heads = size(draft.kv_heads);
        core->shape_.draft_head_dim = size(draft.head_dim);
        core->shape_.hidden = size(draft.hidden);
        core->shape_.context_capacity = std::max<std::size_t>(1, std::min(core->window_ - 1, settings.max_tokens));
    }
    std::vector<std::int64_t> taps;
    if (core->models_.draft != nullptr) taps = core->models_.draft->config().taps;
    core->target_forward_ =
        std::make_unique<TargetForward>(*core->models_.target, *core->compute_, std::move(taps), settings.row_format);
    if (core->models_.draft != nullptr) {
        core->draft_forward_ =
            std::make_unique<DraftForward>(*core->models_.draft, *core->models_.target, *core->compute_);
    }
    for (int id = 0; id < settings.lanes; ++id) {
        core->lanes_.push_back(std::make_unique<state::Lane>(id, core->shape_, settings.poison));
    }
    return core;
}

void EngineCore::commit(state::Lane& lane, std::span<const TokenId> tokens, std::size_t retained, bool kept_operands,
                        const ForwardOutput& forward, std::size_t first_row) {
    const Position first = lane.length;
    target_forward_->commit(lane, tokens, retained, kept_operands);
    if (draft_forward_ == nullptr || retained == 0) return;
    const std::size_t width = forward.taps.size() / forward.rows;
    draft_forward_->append_context(lane, first, {forward.taps.data() + first_row * width, retained, width, width},
                                   state::RowSource::computed);
}

Status EngineCore::restore(const state::Snapshot& snapshot, const state::StateIdentity& identity,
                           state::DraftRestore form, int lane_id, state::TargetRestore target) {
    state::Lane& to = lane(lane_id);
    const bool recompute = form == state::DraftRestore::recompute && draft_forward_ != nullptr;
    Recomputed recomputed;
    if (recompute) {
        DP_ASSIGN_OR_RETURN(recomputed, recompute_context(snapshot, identity, nullptr));
    }
    DP_RETURN_IF_ERROR(state::restore_snapshot(snapshot, identity, form, to, target));
    if (recompute) adopt_context(recomputed, to);
    if (draft_forward_ != nullptr && state::rebuilds_rings(form)) draft_forward_->rebuild_rings(to);
    return {};
}

namespace {

// Whether `lane` holds the snapshot's target state, byte for byte.
Status check_same_target(const state::Snapshot& snapshot, const state::Lane& lane) {
    std::vector<std::byte> found;
    for (const state::Component component :
         {state::Component::target_kv, state::Component::recurrent_matrix, state::Component::recurrent_conv}) {
        const state::SnapshotComponent& part = *snapshot.find(component);
        for (const auto& page : state::canonical_pages(snapshot.shape, component, part.first, part.last)) {
            found.resize(page.bytes);
            state::read_canonical(lane, component, page, found.data());
            if (std::ranges::equal(found, part.bytes.view(page.offset, page.bytes))) continue;
            return mismatch(fmt::format(
                "recompute: page {} of component {} at positions [{}, {}) differs from what the snapshot's own tokens "
                "give; nothing was restored; the snapshot is mislabelled, or another engine made it",
                page.index, state::component_name(component), page.first, page.last));
        }
    }
    return {};
}

Status check_base(const state::Snapshot& base, const state::Snapshot& snapshot, std::size_t window) {
    const bool prefix =
        base.length <= snapshot.length && std::equal(base.tokens.begin(), base.tokens.end(), snapshot.tokens.begin());
    const Position latest = snapshot.length - static_cast<Position>(window) + 1;
    if (prefix && !base.request && base.length <= std::max<Position>(0, latest)) return {};
    return mismatch(
        fmt::format("recompute: the base snapshot stands at {}, expected a prefix of the same tokens at or before {}",
                    base.length, std::max<Position>(0, latest)));
}

}  // namespace

Result<Recomputed> EngineCore::recompute_context(const state::Snapshot& snapshot, const state::StateIdentity& identity,
                                                 const state::Snapshot* base) {
    Recomputed result;
    result.scratch = std::make_unique<state::Lane>(lane_count(), shape_, settings_.poison);
    state::Lane& scratch = *result.scratch;
    DP_RETURN_IF_ERROR(state::check_restore(snapshot, identity, scratch));
    if (base != nullptr) {
        DP_RETURN_IF_ERROR(check_base(*base, snapshot, window_));
        DP_RETURN_IF_ERROR(state::restore_snapshot(*base, identity, state::DraftRestore::exact, scratch));
        result.start = base->length;
    }
    ForwardOutput forward;
    while (scratch.length < snapshot.length) {
        const auto done = static_cast<std::size_t>(scratch.length);
        const std::size_t count =
            next_chunk(scratch.length, snapshot.tokens.size() - done, settings_.chunk_tokens, snapshot.length);
        const std::span<const TokenId> tokens = std::span(snapshot.tokens).subspan(done, count);
        const Segment segment{&scratch, tokens, LogitRows::none, false};
        DP_RETURN_IF_ERROR(target_forward_->run({&segment, 1}, forward));
        result.calls.push_back({scratch.length, count});
        commit(scratch, tokens, count, false, forward, 0);
    }
    DP_RETURN_IF_ERROR(check_same_target(snapshot, scratch));
    return result;
}

void EngineCore::adopt_context(const Recomputed& recomputed, state::Lane& to) const {
    const state::Lane& scratch = *recomputed.scratch;
    for (const state::Component component : {state::Component::draft_context, state::Component::draft_rings}) {
        const auto [first, last] = state::component_range(scratch, component);
        std::vector<std::byte> bytes;
        for (const auto& page : state::canonical_pages(shape_, component, first, last)) {
            bytes.resize(page.bytes);
            state::read_canonical(scratch, component, page, bytes.data());
            state::write_canonical(to, component, page, bytes);
        }
    }
    to.draft.claim(scratch.draft.first(), scratch.draft.end(), state::RowSource::computed);
    for (Position p = to.draft.first(); p < to.draft.end(); ++p) {
        to.draft.mark_written(p, false);
        to.draft.mark_written(p, true);
    }
}

std::size_t next_chunk(Position position, std::size_t remaining, std::size_t chunk_tokens, Position stop) {
    const auto chunk = static_cast<Position>(chunk_tokens);
    Position end = (position / chunk + 1) * chunk;
    if (stop > position) end = std::min(end, stop);
    return std::min(remaining, static_cast<std::size_t>(end - position));
}

}  // namespace draftprobe::decode
