#include "state/request_record.h"

#include <fmt/format.h>

#include <bit>

namespace draftprobe::state {

namespace {

std::string bits_of(const std::vector<double>& values) {
    std::string out;
    for (const double value : values) out += fmt::format(" {:016x}", std::bit_cast<std::uint64_t>(value));
    return out;
}

std::string canonical_controller(const ControllerRecord& controller) {
    return fmt::format("controller {} block {} lanes {} seed {}\nsuccesses{}\nfailures{}\ncost{}\n", controller.kind,
                       controller.block, controller.lanes, controller.seed_digest, bits_of(controller.successes),
                       bits_of(controller.failures), bits_of(controller.cost));
}

}  // namespace

std::string canonical_request(const RequestRecord& record) {
    std::string out =
        fmt::format("anchor {}\nemitted {} of {}\nstops", record.anchor, record.emitted, record.max_new_tokens);
    for (const TokenId id : record.stop_ids) out += fmt::format(" {}", id);
    const auto bits = [](float value) { return std::bit_cast<std::uint32_t>(value); };
    out += fmt::format("\nsampling {:08x} {} {:08x} {:08x} seed {} request {}\n", bits(record.temperature),
                       record.top_k, bits(record.top_p), bits(record.min_p), record.seed, record.request);
    return out + (record.controller ? canonical_controller(*record.controller) : "no controller\n");
}

}  // namespace draftprobe::state
