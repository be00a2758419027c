#include "decode/request_record.h"

#include <fmt/format.h>

namespace draftprobe::decode {

namespace {

state::ControllerRecord controller_record(const budget::Controller& controller) {
    state::ControllerRecord record;
    record.kind = budget::budget_kind_name(controller.kind());
    record.block = controller.block();
    record.lanes = controller.lanes();
    if (controller.kind() == budget::BudgetKind::frozen) {
        record.seed_digest = controller.seed_digest();
    } else if (controller.kind() == budget::BudgetKind::adaptive) {
        record.successes = controller.state().successes;
        record.failures = controller.state().failures;
        record.cost = controller.state().cost;
    }
    return record;
}

Result<budget::Controller> controller_from(const state::ControllerRecord& record,
                                           std::shared_ptr<const budget::Seed> seed) {
    if (record.block == 0) return corrupt("request record: a controller for blocks of 0 rows, expected at least 1");
    if (record.kind == "full") return budget::Controller::full(record.block);
    if (record.kind == "frozen") {
        const std::string running = seed == nullptr ? "none" : seed->digest;
        if (seed == nullptr || running != record.seed_digest || seed->block != record.block) {
            return mismatch(fmt::format(
                "request record: its budget reads seed {}, this engine's seed is {}; resume it with the same --budget",
                record.seed_digest.substr(0, 12), running.substr(0, 12)));
        }
        return budget::Controller::frozen(std::move(seed));
    }
    if (record.kind == "adaptive") {
        return budget::Controller::resumed(record.block, record.lanes,
                                           {record.successes, record.failures, record.cost});
    }
    return corrupt(
        fmt::format("request record: a controller of kind '{}', expected full, adaptive or frozen", record.kind));
}

}  // namespace

state::RequestRecord to_record(const Request& request, std::size_t emitted) {
    state::RequestRecord record;
    record.emitted = emitted;
    record.max_new_tokens = request.limits.max_new_tokens;
    record.stop_ids = request.limits.stop_ids;
    const SamplingSettings& sampling = request.sampling.settings;
    record.temperature = sampling.temperature;
    record.top_k = sampling.top_k;
    record.top_p = sampling.top_p;
    record.min_p = sampling.min_p;
    record.seed = sampling.seed;
    record.request = request.sampling.request;
    if (request.controller) record.controller = controller_record(*request.controller);
    return record;
}

Result<Request> from_record(const state::RequestRecord& record, std::shared_ptr<const budget::Seed> seed) {
    Request request;
    request.limits = {record.max_new_tokens, record.stop_ids};
    request.sampling.settings = {record.temperature, record.top_k, record.top_p, record.min_p, record.seed};
    request.sampling.request = record.request;
    if (const Status sampling = check_sampling(request.sampling.settings); !sampling.ok()) {
        return corrupt("request record: " + sampling.message());
    }
    if (record.controller) {
        DP_ASSIGN_OR_RETURN(request.controller, controller_from(*record.controller, std::move(seed)));
    }
    return request;
}

}  // namespace draftprobe::decode
