#include "study/plan_run.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <map>
#include <memory>

#include "compare/compare.h"
#include "decode/drafter.h"
#include "instrument/observer.h"
#include "probe/arm_parts.h"
#include "state/ledger.h"
#include "state/snapshot_file.h"
#include "study/sweep.h"

namespace draftprobe::study {

namespace fs = std::filesystem;

namespace {

// Hands every lane's events to the recorder of the request that is on it.
class LaneSinks final : public instrument::CycleSink {
public:
    explicit LaneSinks(std::size_t lanes) : recorders_(lanes) {}
    void set(int lane, probe::Recorder* recorder) { recorders_[static_cast<std::size_t>(lane)] = recorder; }

    void on_forward(decode::ForwardKind kind, const state::Lane& lane, Position start, std::size_t rows) override {
        if (auto* recorder = of(lane)) recorder->on_forward(kind, lane, start, rows);
    }
    void on_anchor(const state::Lane& lane, std::span<const float> logits) override {
        if (auto* recorder = of(lane)) recorder->on_anchor(lane, logits);
    }
    void on_propose(const state::Lane& lane, const decode::DraftChoice& choice, numerics::ConstRows hidden) override {
        if (auto* recorder = of(lane)) recorder->on_propose(lane, choice, hidden);
    }
    void on_verify(const decode::VerifyView& view) override {
        if (auto* recorder = of(view.lane)) recorder->on_verify(view);
    }
    void on_commit(const state::Lane& lane, const decode::CycleResult& result,
                   const budget::Controller* controller) override {
        if (auto* recorder = of(lane)) recorder->on_commit(lane, result, controller);
    }

private:
    probe::Recorder* of(const state::Lane& lane) const { return recorders_[static_cast<std::size_t>(lane.id())]; }
    std::vector<probe::Recorder*> recorders_;
};

// A request on a lane. The recorder refers to the writer: both stay where they are.
struct Run {
    std::string name;
    std::size_t request = 0;
    Arm arm = Arm::repeat;
    int lane = 0;
    std::unique_ptr<CaptureWriter> writer;
    std::unique_ptr<probe::Recorder> recorder;
    Treatment treatment;
    std::vector<std::string> faults_dropped;
    std::vector<TokenId> occupant;  // who was on the lane before
    std::size_t cycles = 0;
    bool prefilled = false;
    bool ended = false;
    // The engine step in which the last position below the boundary was written, 0 before; shared with borrowers, and
    // the lender's where this run borrowed them itself.
    std::shared_ptr<std::size_t> written_step = std::make_shared<std::size_t>(0);
    std::shared_ptr<std::size_t> lent_step;  // of the lane that it was borrowed from
};

// A snapshot of tier memory is in the plan's store, under its tokens and name.
struct Saved {
    std::vector<TokenId> tokens;
    std::shared_ptr<const state::Snapshot> spoiled;  // instead of the one in the store, which takes no damaged ones
    bool evicted = false;                            // by a step of the plan
    fs::path file;                                   // empty: not on disk
    std::vector<LedgerEvent> event;                  // "snapshot" of the run that was saved; none below level 2
    int lane = 0;
};

// All that a refused restore must leave alone.
struct LaneContent {
    Position length = 0;
    std::vector<TokenId> tokens;
    bool has_anchor = false;
    TokenId anchor = 0;
    std::vector<std::string> digests;
    bool operator==(const LaneContent&) const = default;
};

LaneContent content_of(const state::Lane& lane) {
    LaneContent content{lane.length, lane.tokens, lane.has_anchor, lane.anchor, {}};
    for (const state::LedgerEntry& entry : state::lane_ledger(lane, true)) content.digests.push_back(entry.digest);
    return content;
}

Position shared_prefix(std::span<const TokenId> a, std::span<const TokenId> b) {
    const auto ends = std::mismatch(a.begin(), a.end(), b.begin(), b.end());
    return ends.first - a.begin();
}

class PlanRunner {
public:
    PlanRunner(const probe::Assembly& assembly, const Plan& plan, const probe::ProbeSettings& settings,
               std::vector<probe::ProbeRequest> requests, const fs::path& directory, instrument::ObservedEngine& engine)
        : assembly_(assembly),
          plan_(plan),
          settings_(settings),
          requests_(std::move(requests)),
          directory_(directory),
          engine_(engine),
          drafter_(*engine.core().draft_forward()),
          sinks_(static_cast<std::size_t>(plan.lanes)),
          lanes_(static_cast<std::size_t>(plan.lanes)),
          identity_(probe::state_identity(assembly, {}, settings)),
          store_(plan.store_bytes.value_or(std::numeric_limits<std::size_t>::max())) {}

    Result<PlanResult> run(const std::function<void(std::string_view, std::size_t, std::size_t)>& progress) {
        engine_.observer().set_sink(&sinks_);
        for (std::size_t i = 0; i < plan_.steps.size(); ++i) {
            const PlanStep& step = plan_.steps[i];
            if (Status status = follow(step, i); !status.ok()) {
                return status.with_context(
                    fmt::format("{}.steps[{}] ({})", plan_.subject, i, plan_verb_name(step.verb)));
            }
            if (progress) progress("plan", i + 1, plan_.steps.size());
        }
        engine_.observer().set_sink(nullptr);
        for (int lane = 0; lane < plan_.lanes; ++lane) leave(lane);
        result_.store = store_.usage();
        result_.store_bounded = plan_.store_bytes.has_value();
        std::error_code error;
        for (const auto& [name, saved] : saved_) {
            if (!saved.file.empty()) fs::remove(saved.file, error);
        }
        return std::move(result_);
    }

private:
    std::unique_ptr<Run>& on(int lane) { return lanes_[static_cast<std::size_t>(lane)]; }
    const probe::ProbeRequest& request_of(const Run& run) const { return requests_[run.request]; }

    Status follow(const PlanStep& step, std::size_t index) {
        switch (step.verb) {
            case PlanVerb::start: return start(step);
            case PlanVerb::materialise: return materialise(step.lane);
            case PlanVerb::save: return save(step);
            case PlanVerb::restore: return step.refused ? expect_refusal(step, index) : restore(step);
            case PlanVerb::borrow: return borrow(step);
            case PlanVerb::evict: forget(step.snapshot); return {};
            case PlanVerb::spoil: return spoil(step.snapshot);
            case PlanVerb::run: return run_lanes(step);
        }
        return {};
    }

    // Puts a new run on the lane; whoever was there and had not ended is left.
    Status take_lane(const PlanStep& step, Arm arm) {
        leave(step.lane);
        auto run = std::make_unique<Run>();
        run->name = fmt::format("{:02}-{}", ++runs_, requests_[step.request].key);
        run->request = step.request;
        run->arm = arm;
        run->lane = step.lane;
        // A request that was started and computed nothing left the bytes of the one before it.
        std::vector<TokenId>& occupant = occupants_[step.lane];
        if (!engine_.lane(step.lane).tokens.empty()) occupant = engine_.lane(step.lane).tokens;
        run->occupant = occupant;
        const probe::ProbeRequest& request = requests_[step.request];
        DP_ASSIGN_OR_RETURN(CaptureWriter writer, CaptureWriter::create(directory_ / "runs" / run->name, false,
                                                                        probe::capture_shape(assembly_, settings_)));
        run->writer = std::make_unique<CaptureWriter>(std::move(writer));
        run->recorder = std::make_unique<probe::Recorder>(
            probe::recorder_options(assembly_, request, settings_, arm, engine_.core()), *run->writer);
        sinks_.set(step.lane, run->recorder.get());
        on(step.lane) = std::move(run);
        return {};
    }

    void leave(int lane) {
        std::unique_ptr<Run>& run = on(lane);
        if (run != nullptr && !run->ended) result_.left.push_back({request_of(*run).key, run->arm, lane, run->cycles});
        sinks_.set(lane, nullptr);
        run = nullptr;
    }

    Status start(const PlanStep& step) {
        DP_RETURN_IF_ERROR(take_lane(step, Arm::repeat));
        engine_.begin_request(step.lane, probe::engine_request(assembly_, requests_[step.request], settings_));
        return {};
    }

    Status materialise(int lane) {
        Run& run = *on(lane);
        const std::span<const TokenId> prefix =
            std::span(request_of(run).prompt).first(static_cast<std::size_t>(request_of(run).boundary));
        while (engine_.lane(lane).length < request_of(run).boundary) {
            const decode::PrefillWork work{lane, prefix.subspan(static_cast<std::size_t>(engine_.lane(lane).length)),
                                           request_of(run).boundary, false};
            DP_RETURN_IF_ERROR(advance({&work, 1}, {}));
        }
        return {};
    }

    Status save(const PlanStep& step) {
        Run& run = *on(step.lane);
        const state::Lane& lane = engine_.lane(step.lane);
        forget(step.snapshot);
        Saved saved;
        DP_ASSIGN_OR_RETURN(state::Snapshot taken, state::take_snapshot(lane, identity_));
        saved.tokens = taken.tokens;
        saved.lane = step.lane;
        if (step.to_disk) {
            saved.file = directory_ / fmt::format("{}.snapshot", step.snapshot);
            DP_RETURN_IF_ERROR(state::write_snapshot(taken, saved.file, true));
        }
        const Status kept = store_.put(std::make_shared<const state::Snapshot>(std::move(taken)), step.snapshot);
        if (!kept.ok() && !(step.to_disk && kept.code() == StatusCode::exhausted)) return kept;
        // Recorded with the run that will use it.
        run.recorder->ledger_event("snapshot", lane, step.to_disk ? "disk" : "memory", request_of(run).prompt, {});
        if (!run.recorder->ledger.empty() && run.recorder->ledger.back().event == "snapshot") {
            saved.event.push_back(std::move(run.recorder->ledger.back()));
            run.recorder->ledger.pop_back();
        }
        saved_[step.snapshot] = std::move(saved);
        return {};
    }

    // The snapshot leaves memory.
    void forget(const std::string& name) {
        Saved& saved = saved_[name];
        static_cast<void>(store_.evict_named(identity_, saved.tokens, name));
        saved.spoiled.reset();
        saved.evicted = true;
    }

    Status spoil(const std::string& name) {
        DP_ASSIGN_OR_RETURN(const Loaded loaded, load(name));
        state::Snapshot damaged = *loaded.snapshot;
        for (state::SnapshotComponent& part : damaged.components) {
            if (part.bytes.empty()) continue;
            part.bytes.writable()[part.bytes.size() / 2] ^= std::byte{1};
            forget(name);
            saved_[name].spoiled = std::make_shared<const state::Snapshot>(std::move(damaged));
            return {};
        }
        return internal_error("the snapshot has no payload");
    }

    struct Loaded {
        std::shared_ptr<const state::Snapshot> snapshot;
        std::string_view tier;  // where it came from
    };

    // The snapshot, read back if it left memory. Errors: not_found when it is nowhere.
    Result<Loaded> load(const std::string& name) {
        Saved& saved = saved_[name];
        if (saved.spoiled != nullptr) return Loaded{saved.spoiled, "memory"};
        if (auto kept = store_.find_named(identity_, saved.tokens, name)) return Loaded{std::move(kept), "memory"};
        if (saved.file.empty()) {
            const state::PrefixStore::Usage usage = store_.usage();
            return not_found(
                saved.evicted
                    ? fmt::format("snapshot '{}': evicted and not on disk, expected it somewhere", name)
                    : fmt::format(
                          "snapshot '{}': not in memory (evicted for lack of room: the store's budget is {} "
                          "bytes, {} snapshots had to go) and not on disk, expected it in one of the two; raise "
                          "store_bytes, or save it with tier disk",
                          name, usage.budget, usage.evictions));
        }
        DP_ASSIGN_OR_RETURN(state::Snapshot read, state::read_snapshot(saved.file));
        auto snapshot = std::make_shared<const state::Snapshot>(std::move(read));
        const Status kept = store_.put(snapshot, name);
        if (!kept.ok() && kept.code() != StatusCode::exhausted) return kept;
        saved.evicted = false;
        return Loaded{std::move(snapshot), "disk"};
    }

    Status restore(const PlanStep& step) {
        DP_RETURN_IF_ERROR(probe::check_treatment_faults(step.treatment, engine_.core().shape(),
                                                         requests_[step.request].boundary,
                                                         requests_[step.request].prompt.size()));
        DP_ASSIGN_OR_RETURN(const Loaded loaded, load(step.snapshot));
        const Saved& saved = saved_[step.snapshot];
        DP_RETURN_IF_ERROR(take_lane(step, Arm::restored));
        Run& run = *on(step.lane);
        const std::string& key = request_of(run).key;
        for (LedgerEvent event : saved.event) {
            event.request = key;
            probe::add_expected_restore(*loaded.snapshot, step.treatment, engine_.core(), event);
            run.recorder->ledger.push_back(std::move(event));
        }
        probe::RestoreTreatment treatment = step.treatment;
        if (!step.inject_tier.empty() && step.inject_tier != loaded.tier) {
            for (const instrument::Fault& fault : treatment.faults) run.faults_dropped.push_back(fault.spelling);
            treatment.faults.clear();
        }
        DP_ASSIGN_OR_RETURN(const auto cost,
                            probe::restore_request(engine_, *loaded.snapshot, identity_, treatment, step.lane));
        if (cost) record_scratch(*cost, run);
        *run.written_step = engine_steps_;
        // What a broken restore leads to ends its run with a record, not the plan with an error.
        engine_.core().target_forward().set_keep_non_finite(settings_.sampling.greedy());
        engine_.set_request(step.lane, probe::engine_request(assembly_, requests_[step.request], settings_));
        describe_restore(run, treatment, loaded.tier, saved.lane);
        return {};
    }

    void describe_restore(Run& run, const probe::RestoreTreatment& treatment, std::string_view tier, int from) {
        run.treatment.restore_target = state::target_restore_name(treatment.target);
        run.treatment.restore_draft = state::draft_restore_name(treatment.draft);
        run.treatment.tier = tier;
        run.treatment.lane_from = from;
        run.treatment.lane_to = run.lane;
        for (const instrument::Fault& fault : treatment.faults) run.treatment.faults.push_back(fault.spelling);
        run.recorder->ledger_event("restore", engine_.lane(run.lane), tier, request_of(run).prompt, run.occupant);
    }

    // What a prefix cache lends that published the lane's pages under their hash when the request was admitted: the
    // bytes that stand there now, whether the lane has come to write them or not.
    Result<state::Snapshot> published(int from, const probe::ProbeRequest& request) {
        state::Lane& lane = engine_.lane(from);
        if (lane.length == request.boundary) return state::take_snapshot(lane, identity_);
        DP_RETURN_IF_ERROR(lane.kv.reserve(request.boundary - 1));
        state::Snapshot snapshot;
        snapshot.identity = identity_;
        snapshot.shape = lane.shape();
        snapshot.length = request.boundary;
        snapshot.tokens.assign(request.prompt.begin(), request.prompt.begin() + request.boundary);
        for (const state::Component component : state::kComponents) {
            if (!state::has_component(lane.shape(), component)) continue;
            state::SnapshotComponent& part = snapshot.components.emplace_back();
            part.component = component;
            part.last = snapshot.length;
            const auto kept = static_cast<Position>(
                component == state::Component::recurrent_conv ? lane.shape().conv_rows : lane.shape().context_capacity);
            const bool whole =
                component == state::Component::target_kv || component == state::Component::recurrent_matrix;
            part.first = part.base = whole ? 0 : std::max<Position>(0, part.last - kept);
            part.consumed = lane.recurrent.current().consumed;
        }
        state::make_room(snapshot);
        for (state::SnapshotComponent& part : snapshot.components) {
            for (const auto& page : state::canonical_pages(lane.shape(), part.component, part.first, part.last))
                state::read_canonical(lane, part.component, page, part.bytes.fill(page.offset, page.bytes).data());
        }
        state::reseal(snapshot);
        return snapshot;
    }

    Status borrow(const PlanStep& step) {
        DP_ASSIGN_OR_RETURN(const state::Snapshot snapshot, published(step.from, requests_[step.request]));
        const std::shared_ptr<std::size_t> lent = on(step.from)->written_step;
        DP_RETURN_IF_ERROR(take_lane(step, Arm::restored));
        Run& run = *on(step.lane);
        run.lent_step = run.written_step = lent;
        probe::RestoreTreatment treatment = step.treatment;
        treatment.trusts_label = true;  // what is lent may be in the middle of being made
        DP_RETURN_IF_ERROR(probe::restore_request(engine_, snapshot, identity_, treatment, step.lane).status());
        engine_.core().target_forward().set_keep_non_finite(settings_.sampling.greedy());
        engine_.set_request(step.lane, probe::engine_request(assembly_, requests_[step.request], settings_));
        describe_restore(run, step.treatment, "memory", step.from);
        // It is read when it is admitted, which is before the next step of the engine has run.
        if (LedgerEvent* event = restore_event(run)) event->read_step = static_cast<std::int64_t>(engine_steps_ + 1);
        return {};
    }

    static LedgerEvent* restore_event(Run& run) {
        for (LedgerEvent& event : run.recorder->ledger) {
            if (event.event == "restore") return &event;
        }
        return nullptr;
    }

    void record_scratch(const probe::RecomputeCost& cost, Run& run) const {
        run.treatment.recompute_start = cost.start;
        for (const auto& call : cost.calls) {
            ForwardCall forward;
            forward.phase = ForwardPhase::scratch;
            forward.request = request_of(run).key;
            forward.lane = run.lane;
            forward.start = call.start;
            forward.rows = static_cast<std::int64_t>(call.rows);
            forward.numerics_class = numerics::numerics_class_name(settings_.engine.numerics);
            run.recorder->schedule.push_back(std::move(forward));
        }
    }

    Status expect_refusal(const PlanStep& step, std::size_t index) {
        const LaneContent before = content_of(engine_.lane(step.lane));
        const Result<Loaded> loaded = load(step.snapshot);
        // That it is nowhere is no refusal.
        if (loaded.status().code() == StatusCode::not_found) return loaded.status();
        Status refusal = loaded.status();
        if (refusal.ok()) {
            refusal = probe::restore_request(engine_, *loaded->snapshot, identity_, step.treatment, step.lane).status();
        }
        if (refusal.ok()) {
            return mismatch(fmt::format("found that snapshot '{}' was restored, expected a refusal", step.snapshot));
        }
        if (content_of(engine_.lane(step.lane)) != before) {
            return mismatch(fmt::format("found lane {} changed by a refused restore, expected it bit-identical: {}",
                                        step.lane, refusal.message()));
        }
        result_.refused.push_back({index, refusal.message()});
        return {};
    }

    // One engine step at a time, all listed lanes in one forward.
    Status run_lanes(const PlanStep& step) {
        std::map<int, std::size_t> done;  // cycles in this step of the plan
        while (true) {
            std::vector<decode::PrefillWork> prefills;
            std::vector<int> decoding;
            for (const int lane : step.lanes) {
                const Run& run = *on(lane);
                if (run.ended) continue;
                if (!run.prefilled) {
                    const std::span<const TokenId> prompt(request_of(run).prompt);
                    prefills.push_back({lane, prompt.subspan(static_cast<std::size_t>(engine_.lane(lane).length)),
                                        request_of(run).boundary, true});
                } else if (!step.cycles || done[lane] < *step.cycles) {
                    decoding.push_back(lane);
                    ++done[lane];
                }
            }
            if (prefills.empty() && decoding.empty()) return {};
            DP_RETURN_IF_ERROR(advance(prefills, decoding));
        }
    }

    Status advance(std::span<const decode::PrefillWork> prefills, std::span<const int> decoding) {
        for (const decode::PrefillWork& work : prefills) {
            Run& run = *on(work.lane);
            const bool below = engine_.lane(work.lane).length < request_of(run).boundary;
            run.recorder->set_phase(below ? ForwardPhase::materialise : ForwardPhase::resume);
        }
        for (const int lane : decoding) on(lane)->recorder->set_phase(ForwardPhase::resume);
        DP_ASSIGN_OR_RETURN(const decode::StepResult stepped,
                            engine_.step(prefills, decoding, &drafter_, verify_rows()));
        ++engine_steps_;
        for (const decode::PrefillWork& work : prefills) DP_RETURN_IF_ERROR(after_chunk(work.lane));
        for (std::size_t i = 0; i < decoding.size(); ++i) {
            Run& run = *on(decoding[i]);
            DP_RETURN_IF_ERROR(run.recorder->status());
            ++run.cycles;
            const bool over = stepped.cycles[i].finished || !run.recorder->ended_early().empty();
            if (over || run.cycles == request_of(run).cycles) DP_RETURN_IF_ERROR(end(run));
        }
        return {};
    }

    Status after_chunk(int id) {
        Run& run = *on(id);
        const state::Lane& lane = engine_.lane(id);
        const probe::ProbeRequest& request = request_of(run);
        if (*run.written_step == 0 && lane.length >= request.boundary) *run.written_step = engine_steps_;
        if (run.arm == Arm::repeat && lane.length == request.boundary)
            run.recorder->ledger_event("materialise", lane, "", request.prompt, run.occupant);
        if (lane.length < static_cast<Position>(request.prompt.size())) return {};
        run.prefilled = true;
        run.recorder->ledger_event("prefill", lane, "", request.prompt, run.occupant);
        if (run.arm == Arm::restored && settings_.level >= 2) {
            probe::add_expected_rings(lane, engine_.core(), run.recorder->ledger.back());
            run.recorder->expect_draft_rows(probe::expected_draft_rows(engine_.lane(id), engine_.core()));
        }
        run.recorder->count_rows(lane);
        // The prompt's own continuation may be a stop token: then there is nothing to decode.
        const std::vector<TokenId>& stops = assembly_.models.target->config().eos_ids;
        const bool stopped = std::find(stops.begin(), stops.end(), lane.anchor) != stops.end();
        return stopped ? end(run) : Status();
    }

    Status end(Run& run) {
        run.ended = true;
        sinks_.set(run.lane, nullptr);
        const probe::ProbeRequest& request = request_of(run);
        run.recorder->ledger_event("end", engine_.lane(run.lane), "", request.prompt, run.occupant);
        if (LedgerEvent* event = run.lent_step ? restore_event(run) : nullptr)
            event->written_step = static_cast<std::int64_t>(*run.lent_step);
        CaptureHeader header = probe::arm_header(assembly_, request, settings_, run.arm, engine_.core());
        if (!run.recorder->ended_early().empty()) header.notes.push_back(run.recorder->ended_early());
        header.treatment = run.treatment;
        header.treatment.lane_to = run.lane;
        if (run.arm == Arm::repeat) header.treatment.lane_from = run.lane;
        header.ledger = std::move(run.recorder->ledger);
        header.schedule = std::move(run.recorder->schedule);
        header.totals.rows = std::move(run.recorder->rows);
        DP_RETURN_IF_ERROR(run.writer->finish(std::move(header)).status());

        JudgedRun judged;
        judged.name = run.name;
        judged.request = request.key;
        judged.arm = run.arm;
        judged.lane = run.lane;
        DP_ASSIGN_OR_RETURN(judged.comparison, compare_captures(directory_ / "controls" / request.key,
                                                                directory_ / "runs" / run.name, {}));
        judged.treatment = run.treatment;
        judged.faults_dropped = run.faults_dropped;
        judged.warnings = judged.comparison.warnings;
        if (!run.faults_dropped.empty()) {
            judged.warnings.push_back(
                fmt::format("not injected: {}: inject_tier names another tier than {}, from which "
                            "the snapshot came",
                            fmt::join(run.faults_dropped, ", "), run.treatment.tier));
        }
        const Position shared = shared_prefix(run.occupant, request.prompt);
        if (run.arm == Arm::repeat && shared >= kPageTokens) {
            judged.warnings.push_back(fmt::format(
                "blind spot: lane {} held the same first {} tokens before this run; stale rows would be the "
                "right rows, so one that was not written would look the same. Put another request between",
                run.lane, shared));
        }
        result_.judged.push_back(std::move(judged));
        return {};
    }

    std::size_t verify_rows() const {
        return settings_.verify_rows == 0 ? engine_.core().settings().block : settings_.verify_rows;
    }

    const probe::Assembly& assembly_;
    const Plan& plan_;
    const probe::ProbeSettings& settings_;
    std::vector<probe::ProbeRequest> requests_;
    fs::path directory_;
    instrument::ObservedEngine& engine_;
    decode::ModelDrafter drafter_;
    LaneSinks sinks_;
    std::vector<std::unique_ptr<Run>> lanes_;
    std::map<int, std::vector<TokenId>> occupants_;  // per lane, whose bytes lie there
    state::StateIdentity identity_;
    std::map<std::string, Saved> saved_;
    state::PrefixStore store_;
    std::size_t runs_ = 0;
    std::size_t engine_steps_ = 0;
    PlanResult result_;
};

// A snapshot serves every request that starts with its tokens, and no other.
Status check_prefixes(const Plan& plan, const std::vector<probe::ProbeRequest>& requests) {
    std::map<int, std::size_t> lanes;
    std::map<std::string, std::size_t> saved;
    for (std::size_t i = 0; i < plan.steps.size(); ++i) {
        const PlanStep& step = plan.steps[i];
        if (step.verb == PlanVerb::start || (step.verb == PlanVerb::restore && !step.refused))
            lanes[step.lane] = step.request;
        if (step.verb == PlanVerb::save) saved[step.snapshot] = lanes[step.lane];
        const bool borrows = step.verb == PlanVerb::borrow;
        if (!borrows && step.verb != PlanVerb::restore) continue;
        const probe::ProbeRequest& from = requests[borrows ? lanes[step.from] : saved[step.snapshot]];
        const probe::ProbeRequest& to = requests[step.request];
        if (borrows) lanes[step.lane] = step.request;
        const Position shared = shared_prefix(from.prompt, to.prompt);
        if (shared >= to.boundary) continue;
        const std::string holder =
            borrows ? fmt::format("lane {}", step.from) : fmt::format("snapshot '{}'", step.snapshot);
        return invalid_argument(
            fmt::format("{}.steps[{}] ({}): {} holds request {}, which shares {} tokens with request {}, expected at "
                        "least its boundary of {}",
                        plan.subject, i, plan_verb_name(step.verb), holder, from.key, shared, to.key, to.boundary));
    }
    return {};
}

}  // namespace

Result<PlanResult> run_plan(const probe::Assembly& assembly, const Plan& plan,
                            const std::vector<std::vector<TokenId>>& prompts, const probe::ProbeSettings& settings,
                            const fs::path& directory,
                            const std::function<void(std::string_view, std::size_t, std::size_t)>& progress) {
    if (settings.budget == budget::BudgetKind::adaptive) {
        return invalid_argument(
            "--plan with --budget adaptive: measured times would decide the widths of each run, expected full or a "
            "seed; make one with 'draftprobe budget calibrate'");
    }
    std::vector<probe::ProbeRequest> requests;
    decode::EngineSettings engine_settings = settings.engine;
    engine_settings.lanes = plan.lanes;
    engine_settings.poison = true;
    engine_settings.max_tokens = 0;
    for (std::size_t i = 0; i < plan.requests.size(); ++i) {
        probe::ProbeRequest request;
        request.key = plan.requests[i].name;
        request.prompt = prompts[i];
        request.boundary = plan.requests[i].boundary;
        request.cycles = plan.requests[i].cycles;
        if (Status status = probe::check_request(assembly, request); !status.ok())
            return status.with_context(fmt::format("{}: request {}", plan.subject, request.key));
        engine_settings.max_tokens = std::max(engine_settings.max_tokens, probe::lane_positions(assembly, request));
        requests.push_back(std::move(request));
    }
    DP_RETURN_IF_ERROR(check_prefixes(plan, requests));

    std::error_code error;
    for (const char* name : {"controls", "runs"}) {
        fs::create_directory(directory / name, error);
        if (error) return io_error(fmt::format("{}: {}", (directory / name).string(), error.message()));
    }
    for (std::size_t i = 0; i < requests.size(); ++i) {
        DP_RETURN_IF_ERROR(
            run_control(assembly, {requests[i], settings, false}, directory / "controls" / requests[i].key));
        if (progress) progress("fresh controls", i + 1, requests.size());
    }
    DP_ASSIGN_OR_RETURN(auto core, decode::EngineCore::create(assembly.models, engine_settings));
    instrument::ObservedEngine engine(std::move(core));
    DP_ASSIGN_OR_RETURN(PlanResult result,
                        PlanRunner(assembly, plan, settings, std::move(requests), directory, engine).run(progress));
    if (result.judged.empty()) return internal_error("the plan ended and nothing had run to its end");
    conclude_plan(result);
    return result;
}

std::size_t representative_run(const std::vector<JudgedRun>& judged) {
    std::size_t best = 0;
    for (std::size_t i = 1; i < judged.size(); ++i) {
        const int grave = gravity(judged[i].comparison.verdict);
        const int gravest = gravity(judged[best].comparison.verdict);
        const bool restores = judged[i].arm == Arm::restored && judged[best].arm != Arm::restored;
        if (grave > gravest || (grave == gravest && restores)) best = i;
    }
    return best;
}

void conclude_plan(PlanResult& result) {
    result.representative = representative_run(result.judged);
    const JudgedRun& shown = result.judged[result.representative];
    result.verdict = shown.comparison.verdict;
    result.why = fmt::format("run {}: {}", shown.name, shown.comparison.why);
    if (result.verdict != Verdict::same) return;
    std::size_t left = 0;
    for (const LeftRun& run : result.left) left += run.arm == Arm::restored ? 1 : 0;
    std::size_t blind = 0;
    std::size_t seen = 0;
    for (const JudgedRun& run : result.judged) {
        if (run.arm != Arm::restored) continue;
        (run.comparison.blind_spots > 0 ? blind : seen) += 1;
    }
    if (seen > 0 || blind + left == 0) return;
    result.verdict = Verdict::insufficient;
    result.why = blind > 0
                     ? "every restored run that was judged sits in a blind spot, see the warnings: a restore that "
                       "wrote nothing would look the same"
                     : "no restored run was judged: every one of them was left before its end";
}

std::string restored_how(const JudgedRun& run) {
    if (run.arm != Arm::restored) return "";
    const Treatment& t = run.treatment;
    std::string out = fmt::format("{}, draft {}, target {}", t.tier, t.restore_draft, t.restore_target);
    for (const std::string& fault : t.faults) out += ", " + fault;
    return out;
}

std::string plan_text(const PlanResult& result) {
    std::string out = fmt::format(
        "\nPlan: {}: {}\n{} run{} judged, each against a fresh control of its request; the report above is of "
        "run {}\n",
        verdict_name(result.verdict), result.why, result.judged.size(), result.judged.size() == 1 ? "" : "s",
        result.judged[result.representative].name);
    out += fmt::format("  {:<16}{:<6}{:<10}{:<16}{:<28}{:<32}{}\n", "run", "lane", "arm", "verdict", "first", "changed",
                       "restored from and how");
    for (const JudgedRun& run : result.judged) {
        const CaseSummary summary = summarise(run.comparison);
        std::string line =
            fmt::format("  {:<16}{:<6}{:<10}{:<16}{:<28}{:<32}{}", run.name, run.lane, arm_name(run.arm),
                        verdict_name(summary.verdict), first_place(summary), changed_list(summary), restored_how(run));
        line.erase(line.find_last_not_of(' ') + 1);
        out += line + "\n";
    }
    for (const JudgedRun& run : result.judged) {
        for (const std::string& warning : run.warnings) out += fmt::format("  warning: {}: {}\n", run.name, warning);
    }
    for (const LeftRun& run : result.left) {
        out += fmt::format("  not judged: request {} on lane {}{} was left after {} cycle{}\n", run.request, run.lane,
                           run.arm == Arm::restored ? ", restored," : "", run.cycles, run.cycles == 1 ? "" : "s");
    }
    for (const RefusedRestore& refused : result.refused) {
        out += fmt::format("  refused as expected: steps[{}], lane bit-identical: {}\n", refused.step, refused.reason);
    }
    return out;
}

namespace {

void write_texts(JsonWriter& json, std::string_view key, const std::vector<std::string>& texts) {
    json.key(key).begin_array();
    for (const std::string& text : texts) json.value(text);
    json.end_array();
}

}  // namespace

std::string plan_json(const PlanResult& result) {
    JsonWriter json;
    json.begin_object().member("representative", result.judged[result.representative].name);
    json.member("verdict", verdict_name(result.verdict)).member("why", result.why);
    json.key("judged").begin_array();
    for (const JudgedRun& run : result.judged) {
        json.begin_object().member("run", run.name).member("request", run.request).member("lane", run.lane);
        json.member("arm", arm_name(run.arm));
        json.member("control", "controls/" + run.request).member("capture", "runs/" + run.name);
        write_summary(json, summarise(run.comparison));
        if (run.arm == Arm::restored) {
            json.member("tier", run.treatment.tier).member("draft", run.treatment.restore_draft);
            json.member("target", run.treatment.restore_target);
            write_texts(json, "faults", run.treatment.faults);
            write_texts(json, "faults_dropped", run.faults_dropped);
        }
        write_texts(json, "warnings", run.warnings);
        json.end_object();
    }
    json.end_array().key("left").begin_array();
    for (const LeftRun& run : result.left) {
        json.begin_object().member("request", run.request).member("lane", run.lane).member("cycles", run.cycles);
        json.member("arm", arm_name(run.arm)).end_object();
    }
    json.end_array().key("refused").begin_array();
    for (const RefusedRestore& refused : result.refused) {
        json.begin_object().member("step", refused.step).member("reason", refused.reason).end_object();
    }
    json.end_array().key("store").begin_object().key("budget");
    if (result.store_bounded) {
        json.value(result.store.budget);
    } else {
        json.null();
    }
    json.member("bytes", result.store.bytes).member("entries", result.store.entries);
    json.member("hits", result.store.hits).member("misses", result.store.misses);
    json.member("evictions", result.store.evictions).end_object().end_object();
    return json.take();
}

}  // namespace draftprobe::study
