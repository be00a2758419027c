#include "bench/snapshot_bench.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <random>

#include "base/files.h"
#include "base/hash.h"
#include "decode/engine.h"
#include "state/snapshot_file.h"

namespace draftprobe::bench {

namespace {

namespace fs = std::filesystem;
using state::Component;
using state::DraftRestore;
using state::Lane;
using state::PageMemory;
using state::Snapshot;

const state::StateIdentity kIdentity{.target = "synthetic"};

template <class Work>
double seconds_of(const Work& work) {
    const auto start = std::chrono::steady_clock::now();
    work();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// The proportions of a small hybrid target: 12 KiB of KV a token and layers of recurrent state; KV takes what is left.
state::StateShape synthetic_shape(std::size_t bytes) {
    state::StateShape shape;
    shape.attention_layers = 6;
    shape.kv_heads = 2;
    shape.head_dim = 256;
    shape.delta_layers = 18;
    shape.key_heads = shape.value_heads = 8;
    shape.key_dim = shape.value_dim = 128;
    shape.conv_rows = 3;
    shape.conv_channels = 3072;
    shape.draft_layers = 2;
    shape.draft_kv_heads = 2;
    shape.draft_head_dim = 128;
    shape.hidden = 1024;
    shape.context_capacity = 2047;
    const std::size_t pages = bytes / shape.kv_page_bytes() + 1;
    shape.max_tokens = pages * static_cast<std::size_t>(kPageTokens);
    return shape;
}

void fill(std::mt19937_64& random, std::span<std::byte> bytes) {
    for (std::size_t at = 0; at < bytes.size(); at += sizeof(std::uint64_t)) {
        const std::uint64_t value = random();
        std::memcpy(bytes.data() + at, &value, std::min(sizeof value, bytes.size() - at));
    }
}

Status fill_lane(Lane& lane) {
    const auto length = static_cast<Position>(lane.shape().max_tokens);
    DP_RETURN_IF_ERROR(lane.kv.reserve(length - 1));
    std::mt19937_64 random(1);
    lane.length = length;
    lane.tokens.assign(static_cast<std::size_t>(length), 7);
    lane.target_rows_written = static_cast<std::size_t>(length);
    lane.recurrent.current().consumed = length;
    append_source(lane.target_sources, 0, length, state::RowSource::computed);
    const Position first = std::max<Position>(0, length - static_cast<Position>(lane.draft.capacity()));
    lane.draft.claim(first, length, state::RowSource::computed);
    std::vector<std::byte> bytes;
    for (const Component component : state::kComponents) {
        const state::ComponentRange range = component_range(lane, component);
        for (const auto& page : canonical_pages(lane.shape(), component, range.first, range.last)) {
            bytes.resize(page.bytes);
            fill(random, bytes);
            write_canonical(lane, component, page, bytes);
        }
    }
    for (Position p = first; p < length; ++p) {
        lane.draft.mark_written(p, false);
        lane.draft.mark_written(p, true);
    }
    return {};
}

Status check_equal(const Lane& a, const Lane& b, std::string_view what) {
    for (const Component component : state::kComponents) {
        if (component_digest(a, component) == component_digest(b, component)) continue;
        return internal_error(
            fmt::format("{}: component {} did not come back as it was", what, component_name(component)));
    }
    return {};
}

// Every page counts as written, so that its digest is made again.
void forget_digests(Lane& lane) {
    for (Position page = 0; page < lane.length / kPageTokens; ++page) {
        static_cast<void>(lane.kv.page_bytes(static_cast<std::size_t>(page)));
    }
    for (std::size_t row = 0; row < lane.draft.capacity(); ++row) static_cast<void>(lane.draft.rows().bytes(row));
}

class SnapshotBench {
public:
    SnapshotBench(std::size_t bytes, fs::path file)
        : shape_(synthetic_shape(bytes)),
          source_(0, shape_, false),
          target_(1, shape_, false),
          file_(std::move(file)) {}

    Status prepare() {
        DP_RETURN_IF_ERROR(fill_lane(source_));
        DP_ASSIGN_OR_RETURN(snapshot_, take_snapshot(source_, kIdentity));
        plain_ = snapshot_;
        for (auto& part : plain_.components) part.checksums.clear();
        DP_RETURN_IF_ERROR(restore_snapshot(snapshot_, kIdentity, DraftRestore::exact, target_));
        DP_RETURN_IF_ERROR(check_equal(source_, target_, "restore from memory"));
        target_.reset();
        DP_RETURN_IF_ERROR(write_snapshot(snapshot_, file_, true));
        DP_ASSIGN_OR_RETURN(const Snapshot read, state::read_snapshot(file_));
        DP_RETURN_IF_ERROR(restore_snapshot(read, kIdentity, DraftRestore::exact, target_));
        DP_RETURN_IF_ERROR(check_equal(source_, target_, "restore from a file"));
        bytes_ = snapshot_.bytes();
        flat_ = PageMemory(bytes_);
        warm_ = PageMemory(bytes_);
        std::mt19937_64 random(2);
        fill(random, flat());
        fill(random, {warm_.data(), bytes_});
        return {};
    }

    Result<SnapshotTimes> run(std::size_t repeats) {
        SnapshotTimes times;
        times.bytes = bytes_;
        times.positions = source_.length;
        times.memory_repeats = repeats * kMemoryRounds;
        DP_RETURN_IF_ERROR(run_memory(times));
        DP_RETURN_IF_ERROR(run_hashes_and_files(repeats, times));
        return times;
    }

private:
    // Milliseconds each: often, so that what else the machine does falls out of the medians.
    static constexpr std::size_t kMemoryRounds = 7;

    Status run_memory(SnapshotTimes& times) {
        const std::string_view to_new = "memcpy to new memory";
        const std::string_view to_used = "memcpy to memory in use";
        BoundedTimes take{"snapshot, digests off", std::string(to_new), {}, {}};
        BoundedTimes restore{"restore, digests off", std::string(to_used), {}, {}};
        BoundedTimes take_checked{"snapshot, page checksums", std::string(to_new), {}, {}};
        BoundedTimes restore_checked{"restore, page checksums", std::string(to_used), {}, {}};
        std::vector<double> untouched;
        std::vector<double> touched;
        Status status;
        const auto note = [&](const Status& done) {
            if (status.ok()) status = done;
        };
        for (std::size_t repeat = 0; repeat < times.memory_repeats && status.ok(); ++repeat) {
            // Each operation next to its bound.
            untouched.push_back(copy_to_untouched());
            take.seconds.push_back(time_take(false, note));
            touched.push_back(copy_to_touched());
            take_checked.seconds.push_back(time_take(true, note));
            restore.seconds.push_back(seconds_of([&] { note(restore_to_target(plain_)); }));
            restore.bound.push_back(seconds_of([&] { std::memcpy(warm_.data(), flat_.data(), bytes_); }));
            restore_checked.seconds.push_back(seconds_of([&] { note(restore_to_target(snapshot_)); }));
        }
        restore_checked.bound = restore.bound;
        DP_RETURN_IF_ERROR(status);
        const bool faster = summarise(touched).median < summarise(untouched).median;
        take.bound = take_checked.bound = faster ? touched : untouched;
        times.operations = {std::move(take), std::move(restore), std::move(take_checked), std::move(restore_checked)};
        return {};
    }

    Status run_hashes_and_files(std::size_t repeats, SnapshotTimes& times) {
        BoundedTimes digest{"ledger digests", "one SHA-256 of the bytes", {}, {}};
        BoundedTimes write{"write file", "SHA-256, write and sync of the bytes", {}, {}};
        BoundedTimes read{"read file", "read and SHA-256 of the bytes", {}, {}};
        Status status;
        const auto note = [&](const Status& done) {
            if (status.ok()) status = done;
        };
        for (std::size_t repeat = 0; repeat < repeats && status.ok(); ++repeat) {
            forget_digests(source_);
            digest.seconds.push_back(seconds_of([&] { static_cast<void>(lane_ledger(source_, true)); }));
            digest.bound.push_back(seconds_of([&] { static_cast<void>(sha256_hex(flat())); }));
            write.seconds.push_back(seconds_of([&] { note(write_snapshot(snapshot_, file_, true)); }));
            write.bound.push_back(seconds_of([&] { note(hash_and_write()); }));
            read.bound.push_back(seconds_of([&] { note(read_and_hash()); }));
            note(write_snapshot(snapshot_, file_, true));
            read.seconds.push_back(seconds_of([&] { note(state::read_snapshot(file_).status()); }));
        }
        for (BoundedTimes* operation : {&digest, &write, &read}) times.operations.push_back(std::move(*operation));
        return status;
    }

    template <class Note>
    double time_take(bool checksums, const Note& note) {
        std::optional<Snapshot> made;
        const double seconds = seconds_of([&] {
            Result<Snapshot> taken = take_snapshot(source_, kIdentity, {.checksums = checksums});
            note(taken.status());
            if (taken.ok()) made = std::move(taken).value();
        });
        return seconds;
    }
    Status restore_to_target(const Snapshot& snapshot) {
        return restore_snapshot(snapshot, kIdentity, DraftRestore::exact, target_);
    }

    // New memory as snapshots get it, mapped, aligned to and advised for huge pages; both ways of touching it first:
    // by the copy itself, and as state/page_memory.h does.
    double copy_to_untouched() {
        const std::size_t size = bytes_ + 2 * state::kHugePage;
        void* mapped = MAP_FAILED;
        const double seconds = seconds_of([&] {
            mapped = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            if (mapped == MAP_FAILED) return;
            const auto address = reinterpret_cast<std::uintptr_t>(mapped);
            std::byte* start =
                static_cast<std::byte*>(mapped) + (state::kHugePage - address % state::kHugePage) % state::kHugePage;
            static_cast<void>(::madvise(start, bytes_ + state::kHugePage, MADV_HUGEPAGE));
            std::memcpy(start, flat_.data(), bytes_);
        });
        if (mapped != MAP_FAILED) ::munmap(mapped, size);
        return seconds;
    }
    double copy_to_touched() {
        std::optional<PageMemory> fresh;
        return seconds_of([&] {
            fresh.emplace(bytes_);
            std::memcpy(fresh->data(), flat_.data(), bytes_);
        });
    }

    Status hash_and_write() {
        static_cast<void>(sha256_hex(flat()));
        const std::span<const std::byte> whole = flat();
        return write_file_atomically(file_, {&whole, 1}, true);
    }
    // Of the file that hash_and_write left.
    Status read_and_hash() {
        DP_ASSIGN_OR_RETURN(FileReader file, FileReader::open(file_));
        const PageMemory memory(file.size());
        const std::span<std::byte> bytes(memory.data(), file.size());
        DP_RETURN_IF_ERROR(file.read(bytes));
        static_cast<void>(sha256_hex(bytes));
        return {};
    }

    std::span<std::byte> flat() const { return {flat_.data(), bytes_}; }

    state::StateShape shape_;
    Lane source_;
    Lane target_;
    fs::path file_;
    Snapshot snapshot_;
    Snapshot plain_;  // without checksums
    std::size_t bytes_ = 0;
    PageMemory flat_;
    PageMemory warm_;
};

}  // namespace

std::vector<double> BoundedTimes::ratios() const {
    std::vector<double> ratios;
    for (std::size_t i = 0; i < seconds.size(); ++i) ratios.push_back(bound[i] / seconds[i]);
    std::sort(ratios.begin(), ratios.end());
    return ratios;
}

std::pair<double, double> BoundedTimes::middle_half() const {
    const std::vector<double> sorted = ratios();
    return {sorted[sorted.size() / 4], sorted[sorted.size() - 1 - sorted.size() / 4]};
}

bool BoundedTimes::inconclusive() const {
    const auto [low, high] = middle_half();
    return high - low > kMaxSpread * ratio();
}

Result<SnapshotTimes> measure_snapshots(std::size_t bytes, std::size_t repeats, const fs::path& scratch) {
    DP_ASSIGN_OR_RETURN(const AtomicDirectory directory,
                        AtomicDirectory::create(scratch / fmt::format("draftprobe-bench-{}", ::getpid()), false));
    SnapshotBench bench(bytes, directory.file("state.snapshot"));
    DP_RETURN_IF_ERROR(bench.prepare());
    return bench.run(repeats);
}

Result<PrefixTimes> measure_prefix(const decode::ModelPair& models, decode::EngineSettings settings, Position tokens,
                                   std::size_t repeats) {
    settings.lanes = 2;
    settings.max_tokens = static_cast<std::size_t>(tokens + kPageTokens);
    settings.block = settings.block == 0 ? 1 : settings.block;
    DP_ASSIGN_OR_RETURN(auto core, decode::EngineCore::create(models, settings));
    decode::ProductionEngine engine(std::move(core));
    std::mt19937 random(3);
    std::vector<TokenId> prompt(static_cast<std::size_t>(tokens));
    const auto vocab = static_cast<TokenId>(models.target->config().vocab);
    for (TokenId& token : prompt) token = static_cast<TokenId>(random()) % vocab;

    PrefixTimes times;
    times.tokens = tokens;
    times.restore = {"restore of the prefix", "computing it", {}, {}};
    const state::StateIdentity identity{.target = "bench"};
    for (std::size_t repeat = 0; repeat < repeats; ++repeat) {
        engine.begin_request(0, {});
        Status status;
        times.restore.bound.push_back(seconds_of([&] { status = engine.prefill(0, prompt, tokens, false); }));
        DP_RETURN_IF_ERROR(status);
        DP_ASSIGN_OR_RETURN(const Snapshot snapshot, take_snapshot(engine.lane(0), identity));
        times.bytes = snapshot.bytes();
        times.restore.seconds.push_back(
            seconds_of([&] { status = engine.core().restore(snapshot, identity, DraftRestore::exact, 1); }));
        DP_RETURN_IF_ERROR(status);
        DP_RETURN_IF_ERROR(check_equal(engine.lane(0), engine.lane(1), "restore of the prefix"));
    }
    return times;
}

}  // namespace draftprobe::bench
