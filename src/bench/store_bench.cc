#include "bench/store_bench.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <random>
#include <string>

#include "state/store.h"

namespace draftprobe::bench {

namespace {

using state::Component;
using state::Lane;
using state::Snapshot;

// Every 32 positions take 384 KiB of KV; the rest is about 1 MiB.
state::StateShape store_shape(std::size_t positions) {
    state::StateShape shape;
    shape.attention_layers = 6;
    shape.kv_heads = 2;
    shape.head_dim = 256;
    shape.delta_layers = 2;
    shape.key_heads = shape.value_heads = 4;
    shape.key_dim = shape.value_dim = 128;
    shape.conv_rows = 3;
    shape.conv_channels = 1536;
    shape.draft_layers = 2;
    shape.draft_kv_heads = 2;
    shape.draft_head_dim = 64;
    shape.hidden = 512;
    shape.context_capacity = 127;
    shape.max_tokens = positions;
    return shape;
}

// Anonymous memory that the process has resident; 0 when unknown.
std::size_t anonymous_bytes() {
    std::ifstream file("/proc/self/smaps_rollup");
    std::string word;
    std::size_t kib = 0;
    while (file >> word) {
        if (word == "Anonymous:" && file >> kib) return kib << 10;
    }
    return 0;
}

// A conversation goes on: positions [lane.length, length) get random state.
Status go_on(Lane& lane, Position length, std::mt19937_64& random) {
    const Position from = lane.length;
    DP_RETURN_IF_ERROR(lane.kv.reserve(length - 1));
    for (Position page = from / kPageTokens; page < length / kPageTokens; ++page) {
        const std::span<std::byte> bytes = lane.kv.page_bytes(static_cast<std::size_t>(page));
        for (std::size_t at = 0; at + sizeof(std::uint64_t) <= bytes.size(); at += sizeof(std::uint64_t)) {
            const std::uint64_t value = random();
            std::memcpy(bytes.data() + at, &value, sizeof value);
        }
    }
    for (Position p = from; p < length; ++p) {
        lane.tokens.push_back(static_cast<TokenId>(random() % 1000));
        lane.draft.mark_written(p, false);
        lane.draft.mark_written(p, true);
    }
    for (std::vector<float>& matrix : lane.recurrent.current().matrix)
        for (float& value : matrix) value = static_cast<float>(random() % 1000);
    lane.draft.advance(length, state::RowSource::computed);
    append_source(lane.target_sources, from, length, state::RowSource::computed);
    lane.length = length;
    lane.recurrent.current().consumed = length;
    lane.target_rows_written = static_cast<std::size_t>(length);
    return {};
}

class StoreBench {
public:
    explicit StoreBench(std::size_t budget)
        : store_(budget),
          shape_(
              store_shape(std::max<std::size_t>(4, budget / 10 / (384 << 10)) * static_cast<std::size_t>(kPageTokens))),
          lane_(0, shape_, false) {
        memory_.budget = budget;
    }

    Result<StoreMemory> run() {
        // The lane's own memory and what a put needs in passing come before the first figure.
        DP_RETURN_IF_ERROR(converse(static_cast<Position>(shape_.max_tokens), false));
        before_ = anonymous_bytes();
        std::size_t given = 0;
        while (given < 3 * memory_.budget) {
            // Four lengths of one conversation, the last one cut anywhere.
            const auto pages = static_cast<Position>(shape_.max_tokens) / kPageTokens;
            const Position last = 4 + static_cast<Position>(random_() % static_cast<std::uint64_t>(pages - 3));
            lane_.reset();
            for (const Position quarter : {1, 2, 3, 4}) {
                DP_RETURN_IF_ERROR(converse(last * quarter / 4 * kPageTokens, true));
                given += latest_;
            }
        }
        const state::PrefixStore::Usage usage = store_.usage();
        memory_.counted = usage.bytes;
        memory_.entries = usage.entries;
        memory_.evictions = usage.evictions;
        memory_.apart = usage.apart;
        return memory_;
    }

private:
    Status converse(Position length, bool keep) {
        DP_RETURN_IF_ERROR(go_on(lane_, length, random_));
        DP_ASSIGN_OR_RETURN(Snapshot taken, take_snapshot(lane_, identity_));
        latest_ = taken.bytes();
        const std::string digest = snapshot_digest(taken, Component::target_kv);
        if (!keep) return {};
        DP_RETURN_IF_ERROR(store_.put(std::make_shared<const Snapshot>(std::move(taken))));
        ++memory_.put;
        note();
        const auto kept = store_.find_longest(identity_, lane_.tokens, length);
        if (kept == nullptr || kept->length != length || snapshot_digest(*kept, Component::target_kv) != digest)
            return internal_error("prefix store: what was put did not come back as it was");
        return {};
    }

    void note() {
        const std::size_t now = anonymous_bytes();
        if (now == 0) return;
        memory_.resident = now > before_ ? now - before_ : 0;
        const double ratio =
            static_cast<double>(memory_.resident) / static_cast<double>(std::max<std::size_t>(1, store_.usage().bytes));
        if (std::abs(ratio - 1) > std::abs(memory_.worst_ratio - 1) || memory_.put == 1) memory_.worst_ratio = ratio;
        memory_.worst_budget =
            std::max(memory_.worst_budget, static_cast<double>(memory_.resident) / static_cast<double>(memory_.budget));
    }

    state::PrefixStore store_;
    state::StateShape shape_;
    Lane lane_;
    state::StateIdentity identity_{.target = "synthetic"};
    std::mt19937_64 random_{4};
    std::size_t before_ = 0;
    std::size_t latest_ = 0;
    StoreMemory memory_;
};

}  // namespace

Result<StoreMemory> measure_store(std::size_t budget) { return StoreBench(budget).run(); }

}  // namespace draftprobe::bench
