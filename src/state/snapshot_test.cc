#include "state/snapshot.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <csignal>
#include <cstring>
#include <fstream>
#include <sstream>

#include "base/files.h"
#include "base/test_directory.h"
#include "state/lossy.h"
#include "state/snapshot_file.h"
#include "state/test_lane.h"

namespace draftprobe::state {
namespace {

using ::testing::HasSubstr;

std::vector<std::string> digests(const Lane& lane) {
    std::vector<std::string> all;
    for (const LedgerEntry& entry : lane_ledger(lane, true)) all.push_back(entry.digest);
    return all;
}

Snapshot snapshot_of(Position length, KvFormat kv = KvFormat::int8, std::optional<RequestRecord> request = {}) {
    Lane lane(0, small_shape(kv), true);
    fill(lane, length, 11);
    lane.has_anchor = request.has_value();
    lane.anchor = 77;
    auto snapshot = take_snapshot(lane, kIdentity, {.request = std::move(request)});
    EXPECT_TRUE(snapshot.ok()) << snapshot.status().message();
    return std::move(snapshot).value();
}

std::string slurp(const std::filesystem::path& path) {
    std::ifstream file(path, std::ios::binary);
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
}

Status parsed(const std::string& bytes) { return parse_snapshot(std::as_bytes(std::span(bytes)), "file").status(); }

// Changes the JSON header and mends everything that depends on its bytes, as a foreign writer would have them.
std::string with_header(const std::string& file, const std::string& from, const std::string& to) {
    std::uint64_t size = 0;
    std::memcpy(&size, file.data() + 16, sizeof size);
    std::string header = file.substr(64, size);
    const std::size_t at = header.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    header.replace(at, from.size(), to);
    std::string result = file.substr(0, 64) + header + file.substr(64 + size);
    size = header.size();
    std::memcpy(result.data() + 16, &size, sizeof size);
    Sha256 hash;
    hash.update(header);
    const Sha256Digest digest = hash.finish();
    std::memcpy(result.data() + 32, digest.data(), digest.size());
    return result;
}

RequestRecord a_request() {
    RequestRecord request;
    request.emitted = 5;
    request.max_new_tokens = 64;
    request.stop_ids = {3, 9};
    request.temperature = 0.7f;
    request.top_k = 20;
    request.top_p = 0.9f;
    request.min_p = 0.01f;
    request.seed = 0xfedcba9876543210ull;
    request.request = ~0ull;
    request.controller = ControllerRecord{"adaptive", 8, 1, {1.75, 2.5}, {0.25, 1.0 / 3}, {1e-3, 0.1}, ""};
    return request;
}

TEST(RequestRecord, EveryFieldReachesItsCanonicalContent) {
    const RequestRecord whole = a_request();
    EXPECT_EQ(canonical_request(whole), canonical_request(a_request()));
    const auto changes = [&](auto change) {
        RequestRecord record = whole;
        change(record);
        EXPECT_NE(record, whole);
        EXPECT_NE(canonical_request(record), canonical_request(whole)) << canonical_request(record);
    };
    using Record = RequestRecord&;
    changes([](Record r) { r.anchor = 1; });
    changes([](Record r) { ++r.emitted; });
    changes([](Record r) { ++r.max_new_tokens; });
    changes([](Record r) { r.stop_ids.pop_back(); });
    changes([](Record r) { r.temperature = std::nextafter(r.temperature, 1.0f); });
    changes([](Record r) { ++r.top_k; });
    changes([](Record r) { r.top_p = std::nextafter(r.top_p, 1.0f); });
    changes([](Record r) { r.min_p = 0; });
    changes([](Record r) { ++r.seed; });
    changes([](Record r) { ++r.request; });
    changes([](Record r) { r.controller.reset(); });
    changes([](Record r) { r.controller->kind = "full"; });
    changes([](Record r) { ++r.controller->block; });
    changes([](Record r) { ++r.controller->lanes; });
    changes([](Record r) { r.controller->successes[1] = std::nextafter(2.5, 3.0); });
    changes([](Record r) { r.controller->failures.push_back(0); });
    changes([](Record r) { r.controller->cost[0] = 0; });
    changes([](Record r) { r.controller->seed_digest = "x"; });
}

TEST(Snapshot, RefusalsNameEveryGroupAndLeaveTheLaneBitIdentical) {
    Snapshot snapshot = snapshot_of(96);
    Lane lane(1, small_shape(KvFormat::int8), true);
    fill(lane, 130, 12);
    const auto before = digests(lane);
    const auto refused = [&](const Snapshot& bad, const StateIdentity& identity, StatusCode code,
                             const std::string& part) {
        const Status status = restore_snapshot(bad, identity, DraftRestore::exact, lane);
        EXPECT_EQ(status.code(), code) << status.message();
        EXPECT_THAT(status.message(), HasSubstr(part));
        EXPECT_THAT(status.message(), HasSubstr("nothing was restored"));
        EXPECT_EQ(digests(lane), before);
        EXPECT_EQ(lane.length, 130);
    };
    const auto other = [](auto change) {
        StateIdentity identity = kIdentity;
        change(identity);
        return identity;
    };
    using Id = StateIdentity&;
    refused(snapshot, other([](Id i) { i.target = "x"; }), StatusCode::mismatch,
            "target ('target' found, 'x' expected)");
    refused(snapshot, other([](Id i) { i.draft = std::string(64, 'a'); }), StatusCode::mismatch, "draft (");
    refused(snapshot, other([](Id i) { i.tokenizer = "x"; }), StatusCode::mismatch, "tokenizer (none found");
    refused(snapshot, other([](Id i) { i.chat_template = "x"; }), StatusCode::mismatch, "template (");
    refused(snapshot, other([](Id i) { i.thinking = "on"; }), StatusCode::mismatch, "thinking (none found, 'on'");
    refused(snapshot, other([](Id i) { i.effort = "low"; }), StatusCode::mismatch, "effort (");
    refused(snapshot, other([](Id i) { i.settings[0].second = "int4"; }), StatusCode::mismatch,
            "settings.kv_format ('any' found, 'int4' expected)");
    refused(snapshot, other([](Id i) { i.settings.push_back({"new", "1"}); }), StatusCode::mismatch, "settings.new (");
    refused(snapshot, other([](Id i) { i.target = "x", i.effort = "y"; }), StatusCode::mismatch, "effort (");

    Snapshot bad = snapshot;
    bad.shape.key_dim = 5;
    refused(bad, kIdentity, StatusCode::mismatch, "shape differs");
    // Labelled 64, holds 96: more than the label says.
    bad = snapshot;
    bad.length = 64;
    refused(bad, kIdentity, StatusCode::corrupt, "labelled 64 positions and holds 96 tokens");
    bad.tokens.resize(64);
    refused(bad, kIdentity, StatusCode::corrupt, "covers [0, 96), expected [0, 64)");
    for (auto& part : bad.components) part.last = 64;
    refused(bad, kIdentity, StatusCode::corrupt, "bytes, expected");
    bad = snapshot;
    bad.components.erase(bad.components.begin() + 3);
    refused(bad, kIdentity, StatusCode::corrupt, "component draft_context is missing");
    bad = snapshot;
    bad.components.push_back(bad.components[0]);
    refused(bad, kIdentity, StatusCode::corrupt, "holds 6 components");
    for (std::size_t part = 0; part < snapshot.components.size(); ++part) {
        bad = snapshot;
        bad.components[part].bytes.writable()[bad.components[part].bytes.size() / 2] ^= std::byte{0x10};
        refused(bad, kIdentity, StatusCode::corrupt, "bytes were changed after it was made");
    }
    Lane small(
        2,
        [] {
            auto shape = small_shape(KvFormat::int8);
            shape.max_tokens = 64;
            return shape;
        }(),
        true);
    EXPECT_EQ(restore_snapshot(snapshot, kIdentity, DraftRestore::exact, small).code(), StatusCode::exhausted);
    ASSERT_TRUE(restore_snapshot(snapshot, kIdentity, DraftRestore::exact, lane).ok());
}

TEST(Snapshot, RowsThatNobodyWroteCannotBeTaken) {
    Lane lane(0, small_shape(KvFormat::bf16), true);
    fill(lane, 64, 1);
    lane.draft.claim(24, 64, RowSource::restored);
    ASSERT_TRUE(take_snapshot(lane, kIdentity).ok());
    lane.draft.reset();
    lane.draft.claim(24, 64, RowSource::restored);
    const Status status = take_snapshot(lane, kIdentity).status();
    EXPECT_EQ(status.code(), StatusCode::invalid_argument);
    EXPECT_THAT(status.message(), HasSubstr("draft_context claims 40 rows and 0 of them were written"));
}

TEST(Snapshot, FormsFillWhatTheySayAndClaimIt) {
    const Snapshot snapshot = snapshot_of(96, KvFormat::bf16);
    const auto restored = [&](DraftRestore draft, TargetRestore target = TargetRestore::exact) {
        Lane lane(1, small_shape(KvFormat::bf16), true);
        fill(lane, 130, 12);
        EXPECT_TRUE(restore_snapshot(snapshot, kIdentity, draft, lane, target).ok());
        return lane;
    };
    const Lane exact = restored(DraftRestore::exact);
    EXPECT_EQ(component_digest(exact, Component::draft_rings), snapshot_digest(snapshot, Component::draft_rings));

    const Lane masked = restored(DraftRestore::masked);
    EXPECT_EQ(masked.draft.first(), 96);
    EXPECT_EQ(masked.draft.end(), 96);
    EXPECT_TRUE(masked.draft.sources().empty());

    const Lane none = restored(DraftRestore::none);
    EXPECT_EQ(none.draft.rows_claimed(), 40u);
    EXPECT_EQ(none.draft.rows_written(), 0u);
    EXPECT_EQ(none.draft.rings_written(), 0u);
    EXPECT_EQ(none.draft.sources(), (std::vector<SourceRange>{{56, 96, RowSource::none}}));
    // The occupant's rows are still there: 130 - 40 = 90 .. 129, of which position 96's slot holds row 96 + 0.
    Lane occupant(1, small_shape(KvFormat::bf16), true);
    fill(occupant, 130, 12);
    EXPECT_TRUE(
        std::ranges::equal(std::as_const(none).draft.rows().bytes(0), std::as_const(occupant).draft.rows().bytes(0)));

    const Lane q4 = restored(DraftRestore::rows_q4);
    EXPECT_EQ(q4.draft.rows_written(), 40u);
    EXPECT_EQ(q4.draft.rings_written(), 0u);
    EXPECT_NE(component_digest(q4, Component::draft_context), component_digest(exact, Component::draft_context));
    std::vector<float> kept(8);
    std::vector<float> lossy(8);
    for (Position p = 56; p < 96; ++p) {
        exact.draft.rows().read(exact.draft.slot(p), kept.data());
        q4.draft.rows().read(q4.draft.slot(p), lossy.data());
        const auto [low, high] = std::minmax_element(kept.begin(), kept.end());
        for (std::size_t i = 0; i < kept.size(); ++i) EXPECT_NEAR(lossy[i], kept[i], (*high - *low) / 30 * 1.1 + 0.02);
    }

    const Lane int8 = restored(DraftRestore::exact, TargetRestore::int8_state);
    EXPECT_EQ(component_digest(int8, Component::target_kv), component_digest(exact, Component::target_kv));
    EXPECT_EQ(component_digest(int8, Component::recurrent_conv), component_digest(exact, Component::recurrent_conv));
    const auto& a = exact.recurrent.current().matrix[1];
    const auto& b = int8.recurrent.current().matrix[1];
    EXPECT_NE(a, b);
    const std::size_t row = small_shape(KvFormat::bf16).value_dim;
    for (std::size_t at = 0; at < a.size(); at += row) {
        float largest = 0;
        for (std::size_t i = 0; i < row; ++i) largest = std::max(largest, std::fabs(a[at + i]));
        for (std::size_t i = 0; i < row; ++i) EXPECT_NEAR(b[at + i], a[at + i], largest / 127 * 0.501f);
    }
}

TEST(Lossy, FourBitGroupsKeepTheirEndsAndNeverLookRightWhenTheyAreNot) {
    Random random(5);
    const std::vector<float> row = random.row(100);
    std::vector<float> out = row;
    through_q4(out);
    for (std::size_t first : {0u, 64u}) {
        const std::size_t last = std::min<std::size_t>(first + 64, 100);
        const auto [low, high] = std::minmax_element(row.begin() + first, row.begin() + last);
        EXPECT_LE(out[static_cast<std::size_t>(low - row.begin())], *low) << "the minimum is rounded down";
        // Half a step; the step is rounded up to float16, and the minimum down.
        const float step = (*high - *low) / 15;
        for (std::size_t i = first; i < last; ++i) EXPECT_NEAR(out[i], row[i], step / 2 * 1.01f + 0.005f) << i;
    }
    std::vector<float> constant(64, 0.25f);
    through_q4(constant);
    for (const float x : constant) EXPECT_EQ(x, 0.25f);
    for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(), 7e4f}) {
        std::vector<float> broken(70, 1.0f);
        broken[3] = bad;
        through_q4(broken);
        for (std::size_t i = 0; i < 64; ++i) EXPECT_TRUE(std::isnan(broken[i])) << bad;
        EXPECT_EQ(broken[65], 1.0f);
    }
    // 15 codes over [0, 15]: integers are exact.
    std::vector<float> integers;
    for (int i = 0; i < 64; ++i) integers.push_back(static_cast<float>(i % 16));
    std::vector<float> same = integers;
    through_q4(same);
    EXPECT_EQ(same, integers);
}

TEST(SnapshotFile, ComesBackAsItWas) {
    TestDirectory directory;
    for (const KvFormat format : {KvFormat::f32, KvFormat::bf16, KvFormat::int8}) {
        for (const bool mid_request : {false, true}) {
            const Snapshot made = mid_request ? snapshot_of(77, format, a_request()) : snapshot_of(96, format);
            const auto path = directory / "file";
            ASSERT_TRUE(write_snapshot(made, path, true).ok());
            const auto read = read_snapshot(path);
            ASSERT_TRUE(read.ok()) << read.status().message();
            EXPECT_EQ(read->identity, made.identity);
            EXPECT_EQ(read->shape, made.shape);
            EXPECT_EQ(read->length, made.length);
            EXPECT_EQ(read->tokens, made.tokens);
            EXPECT_EQ(read->request, made.request);
            ASSERT_EQ(read->components.size(), made.components.size());
            for (std::size_t i = 0; i < made.components.size(); ++i) {
                EXPECT_EQ(read->components[i].bytes, made.components[i].bytes);
                EXPECT_EQ(read->components[i].checksums, made.components[i].checksums);
                EXPECT_EQ(read->components[i].sources, made.components[i].sources);
                EXPECT_EQ(read->components[i].base, made.components[i].base);
            }
            // One snapshot, one file.
            ASSERT_TRUE(write_snapshot(*read, directory / "again", true).ok());
            EXPECT_EQ(slurp(directory / "again"), slurp(path));
        }
    }
}

TEST(SnapshotFile, EveryFlippedByteAndEveryTruncationIsRefused) {
    TestDirectory directory;
    ASSERT_TRUE(write_snapshot(snapshot_of(32), directory / "file", false).ok());
    const std::string good = slurp(directory / "file");
    ASSERT_TRUE(parsed(good).ok());
    for (std::size_t at = 0; at < good.size(); ++at) {
        std::string bad = good;
        bad[at] = static_cast<char>(bad[at] ^ (1 << (at % 8)));
        ASSERT_FALSE(parsed(bad).ok()) << "byte " << at;
    }
    for (std::size_t size = 0; size < good.size(); size += size < 200 ? 1 : 97) {
        ASSERT_FALSE(parsed(good.substr(0, size)).ok()) << size;
    }
    ASSERT_FALSE(parsed(good + "x").ok());
    {
        std::ofstream(directory / "cut", std::ios::binary) << good.substr(0, good.size() - 1);
        const Status status = read_snapshot(directory / "cut").status();
        EXPECT_EQ(status.code(), StatusCode::corrupt);
        EXPECT_THAT(status.message(), HasSubstr("cut off"));
    }
}

TEST(SnapshotFile, ForeignVersionsLabelsAndShapesAreNamed) {
    TestDirectory directory;
    ASSERT_TRUE(write_snapshot(snapshot_of(96), directory / "file", false).ok());
    const std::string good = slurp(directory / "file");
    const auto expect = [](const Status& status, StatusCode code, const std::string& part) {
        EXPECT_EQ(status.code(), code) << status.message();
        EXPECT_THAT(status.message(), HasSubstr(part));
    };
    std::string bad = good;
    bad[8] = 7;
    expect(parsed(bad), StatusCode::unsupported, "snapshot version 7, supported: 1");
    expect(parsed("PK\3\4" + std::string(100, 'x')), StatusCode::corrupt, "not a snapshot file");
    expect(parsed(""), StatusCode::corrupt, "0 bytes, expected at least 64");
    bad = good;
    bad[23] = 0x7f;
    expect(parsed(bad), StatusCode::exhausted, "a header of");

    // Labels that say less or more than the payload holds; every digest is right.
    expect(parsed(with_header(good, "\"length\":96", "\"length\":64")), StatusCode::corrupt, "last");
    std::string relabelled = good;
    for (int i = 0; i < 5; ++i) relabelled = with_header(relabelled, "\"last\":96,\"base\"", "\"last\":64,\"base\"");
    expect(parsed(with_header(relabelled, "\"length\":96", "\"length\":64")), StatusCode::corrupt, "rows_claimed");
    expect(parsed(with_header(good, "\"length\":96", "\"length\":128")), StatusCode::corrupt, "labelled 128 positions");
    expect(parsed(with_header(good, "\"length\":96", "\"length\":1099511627776")), StatusCode::corrupt, "labelled");
    // Dimensions that would need the memory of a city.
    expect(parsed(with_header(good, "\"value_dim\":8", "\"value_dim\":65536")), StatusCode::corrupt, "recurrent says");
    expect(parsed(with_header(good, "\"hidden\":8", "\"hidden\":16777217")), StatusCode::corrupt, "hidden");
    expect(parsed(with_header(good, "\"kv_format\":\"int8\"", "\"kv_format\":\"int9\"")), StatusCode::corrupt, "int9");
    expect(parsed(with_header(good, "\"component\":\"conv\"", "\"component\":\"cone\"")), StatusCode::corrupt, "cone");
    expect(parsed(with_header(good, "\"rows_written\":96", "\"rows_written\":95")), StatusCode::corrupt,
           "rows_written");
    expect(parsed(with_header(good, "\"request\":null", "\"request\":3")), StatusCode::corrupt, "request");
    EXPECT_TRUE(parsed(with_header(good, "\"request\":null", "\"request\":null ")).ok());
}

// Sizes that add up, for a range whose pages lie elsewhere: refused before a page is read.
TEST(SnapshotFile, RangesThatTheLabelDoesNotAllowAreRefusedFirst) {
    TestDirectory directory;
    const Snapshot made = snapshot_of(96);
    ASSERT_TRUE(write_snapshot(made, directory / "file", false).ok());
    std::string file = slurp(directory / "file");
    const std::size_t cut = 5 * made.shape.kv_token_bytes();
    const std::size_t whole = made.components[0].bytes.size();
    file = with_header(file, R"("component":"target_kv","first":0)", R"("component":"target_kv","first":5)");
    file = with_header(file, "\"rows_claimed\":96", "\"rows_claimed\":91");
    file = with_header(file, "\"rows_written\":96", "\"rows_written\":91");
    file = with_header(file, fmt::format("\"bytes\":{}", whole), fmt::format("\"bytes\":{}", whole - cut));
    file.resize(file.size() - cut);
    const std::uint64_t payload = made.bytes() - cut;
    std::memcpy(file.data() + 24, &payload, sizeof payload);
    const Status status = parsed(file);
    EXPECT_EQ(status.code(), StatusCode::corrupt);
    EXPECT_THAT(status.message(), HasSubstr("component target_kv covers [5, 96), expected [0, 96)"));
}

TEST(Snapshot, PagesThatDoNotLieInOneBlockAreRefused) {
    Snapshot bad = snapshot_of(96);
    const std::size_t bytes = bad.components[0].bytes.size();
    const Payload::Size size{bytes, bytes / 2 + 1};
    Payload other = std::move(Payload::unwritten({&size, 1}).front());
    std::ranges::copy(bad.components[0].bytes.writable(), other.writable().begin());
    bad.components[0].bytes = other;
    EXPECT_THAT(check_snapshot(bad, true).message(), HasSubstr("expected whole pages"));
}

TEST(SnapshotFile, NothingIsReplacedOrLeftHalf) {
    TestDirectory directory;
    const Snapshot snapshot = snapshot_of(96);
    const auto path = directory / "file";
    std::ofstream(path) << "mine";
    EXPECT_EQ(write_snapshot(snapshot, path, false).code(), StatusCode::invalid_argument);
    EXPECT_EQ(slurp(path), "mine");
    Snapshot bad = snapshot;
    bad.components[0].bytes.writable()[5] ^= std::byte{1};
    EXPECT_EQ(write_snapshot(bad, path, true).code(), StatusCode::corrupt);
    EXPECT_EQ(slurp(path), "mine");
    EXPECT_EQ(write_snapshot(snapshot, directory / "no" / "file", false).code(), StatusCode::not_found);
    EXPECT_EQ(read_snapshot(directory / "nowhere").status().code(), StatusCode::not_found);
    EXPECT_EQ(read_snapshot(directory.path()).status().code(), StatusCode::io);

    // A limit on file size acts as a full disk does: the write fails in its middle.
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
        ::signal(SIGXFSZ, SIG_IGN);
        const rlimit limit{8192, 8192};
        ::setrlimit(RLIMIT_FSIZE, &limit);
        const Status status = write_snapshot(snapshot, path, true);
        ::_exit(status.code() == StatusCode::io && status.message().find("file") != std::string::npos ? 0 : 1);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    EXPECT_EQ(slurp(path), "mine");
    std::size_t entries = 0;
    for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(directory.path())) ++entries;
    EXPECT_EQ(entries, 1u) << "a temporary was left";
}

// A writer that is killed at any moment leaves a complete file or none.
TEST(SnapshotFile, AKilledWriterLeavesACompleteFileOrNone) {
    TestDirectory directory;
    StateShape shape = small_shape(KvFormat::bf16);
    shape.delta_layers = 64;
    shape.key_dim = 64;
    shape.value_dim = 64;  // about 2 MB
    Lane lane(0, shape, true);
    fill(lane, 96, 3);
    const Snapshot snapshot = std::move(take_snapshot(lane, kIdentity).value());
    int killed = 0;
    int complete = 0;
    for (int round = 0; round < 60; ++round) {
        const auto path = directory / "file";
        const pid_t child = ::fork();
        ASSERT_GE(child, 0);
        if (child == 0) {
            static_cast<void>(write_snapshot(snapshot, path, true));
            ::_exit(0);
        }
        ::usleep(static_cast<useconds_t>(round * 400));
        ::kill(child, SIGKILL);
        int status = 0;
        ::waitpid(child, &status, 0);
        killed += WIFSIGNALED(status) ? 1 : 0;
        if (!std::filesystem::exists(path)) continue;
        ++complete;
        ASSERT_TRUE(read_snapshot(path).ok()) << "round " << round;
        std::filesystem::remove(path);
    }
    EXPECT_GT(killed, 5) << complete;
}

}  // namespace
}  // namespace draftprobe::state
