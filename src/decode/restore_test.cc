// Restores of real requests: recomputed context, and requests that are suspended in their middle and go on elsewhere.
#include <gmock/gmock.h>

#include "base/test_directory.h"
#include "decode/golden_fixture.h"
#include "state/ledger.h"
#include "state/snapshot_file.h"

namespace draftprobe::decode {
namespace {

using state::DraftRestore;
using ::testing::HasSubstr;

const state::StateIdentity kIdentity{.target = "this engine"};

std::vector<std::string> digests(const state::Lane& lane) {
    std::vector<std::string> all;
    for (const auto& entry : state::lane_ledger(lane, true)) all.push_back(entry.digest);
    all.push_back(std::to_string(lane.length) + " " + std::to_string(lane.has_anchor ? lane.anchor : 0));
    return all;
}

class Restore : public ::testing::Test {
protected:
    std::unique_ptr<ProductionEngine> engine() const {
        return std::make_unique<ProductionEngine>(
            make_core(models_, golden_settings(state::RowFormat::bf16, state::KvFormat::bf16)));
    }
    state::Snapshot prefix(ProductionEngine& e, std::size_t length) const {
        e.begin_request(0, {{1000, {}}});
        EXPECT_TRUE(e.prefill(0, std::span(prompt_).first(length), 0, false).ok());
        auto snapshot = state::take_snapshot(e.lane(0), kIdentity);
        EXPECT_TRUE(snapshot.ok()) << snapshot.status().message();
        return std::move(snapshot).value();
    }

    ModelPair models_{load_golden_target("target-r2"), load_golden_draft("draft-w64")};
    std::vector<TokenId> prompt_ = Stages("target-r2").ids("input_ids");
};

TEST_F(Restore, RecomputesTheWindowFromTheLatestBaseOrFromTheStart) {
    auto e = engine();
    const state::Snapshot base = prefix(*e, 64);
    const state::Snapshot early = prefix(*e, 96);
    const state::Snapshot snapshot = prefix(*e, 128);
    const auto expected = digests(e->lane(0));
    for (const state::Snapshot* from : {static_cast<const state::Snapshot*>(nullptr), &base}) {
        auto recomputed = e->core().recompute_context(snapshot, kIdentity, from);
        ASSERT_TRUE(recomputed.ok()) << recomputed.status().message();
        EXPECT_EQ(recomputed->start, from == nullptr ? 0 : 64);
        std::size_t rows = 0;
        for (const auto& call : recomputed->calls) rows += call.rows;
        EXPECT_EQ(rows, from == nullptr ? 128u : 64u);
        ASSERT_TRUE(state::restore_snapshot(snapshot, kIdentity, DraftRestore::recompute, e->lane(2)).ok());
        EXPECT_EQ(e->lane(2).draft.rows_claimed(), 0u);
        e->core().adopt_context(*recomputed, e->lane(2));
        EXPECT_EQ(digests(e->lane(2)), expected);
        EXPECT_EQ(e->lane(2).draft.sources(), (std::vector<state::SourceRange>{{65, 128, state::RowSource::computed}}));
        EXPECT_EQ(e->lane(2).draft.rows_written(), 63u);
        EXPECT_EQ(e->lane(2).draft.rings_written(), 63u);
    }
    // B - W + 1 = 65: a base at 96 would leave rows of the window out.
    EXPECT_EQ(e->core().recompute_context(snapshot, kIdentity, &early).status().code(), StatusCode::mismatch);
    state::Snapshot foreign = base;
    foreign.tokens[5] ^= 1;
    EXPECT_EQ(e->core().recompute_context(snapshot, kIdentity, &foreign).status().code(), StatusCode::mismatch);
}

// A snapshot whose tokens are not those that made it: exact restores cannot see it, recomputation does.
TEST_F(Restore, RecomputationRefusesASnapshotThatItsTokensDoNotExplain) {
    auto e = engine();
    state::Snapshot snapshot = prefix(*e, 128);
    e->begin_request(2, {{1000, {}}});
    ASSERT_TRUE(e->prefill(2, std::span(prompt_).subspan(9, 40), 0, true).ok());
    const auto before = digests(e->lane(2));
    snapshot.tokens[100] ^= 1;
    const Status status = e->core().restore(snapshot, kIdentity, DraftRestore::recompute, 2);
    EXPECT_EQ(status.code(), StatusCode::mismatch);
    EXPECT_THAT(status.message(), HasSubstr("page 3 of component target_kv"));
    EXPECT_EQ(digests(e->lane(2)), before);
    EXPECT_TRUE(e->core().restore(snapshot, kIdentity, DraftRestore::exact, 2).ok());
}

TEST_F(Restore, MaskedContextGrowsFromTheBoundaryAndAnUnwrittenOneIsPoison) {
    auto e = engine();
    const state::Snapshot snapshot = prefix(*e, 128);
    ASSERT_TRUE(e->core().restore(snapshot, kIdentity, DraftRestore::masked, 2).ok());
    ASSERT_TRUE(e->core().restore(snapshot, kIdentity, DraftRestore::none, 3).ok());
    ASSERT_TRUE(e->core().restore(snapshot, kIdentity, DraftRestore::rows_q4, 1).ok());
    for (const int lane : {1, 2, 3}) {
        e->set_request(lane, {{1000, {}}});
        ASSERT_TRUE(e->prefill(lane, std::span(prompt_).subspan(128, 10), 0, true).ok());
    }
    EXPECT_EQ(e->lane(2).draft.first(), 128);
    EXPECT_EQ(e->lane(2).draft.rows_written(), 10u);
    EXPECT_EQ(e->lane(3).draft.first(), 138 - 63);
    EXPECT_EQ(e->lane(3).draft.rows_claimed(), 63u);
    EXPECT_EQ(e->lane(3).draft.rows_written(), 10u);
    EXPECT_EQ(e->lane(1).draft.rings_written(), 63u);
    const auto first_hidden = [&](int lane) {
        DraftOutput out;
        state::Lane* const lanes[] = {&e->lane(lane)};
        e->core().draft_forward()->run(lanes, {}, out);
        return out.hidden[0];
    };
    EXPECT_TRUE(std::isfinite(first_hidden(1)));
    EXPECT_TRUE(std::isfinite(first_hidden(2)));
    EXPECT_TRUE(std::isnan(first_hidden(3))) << "lane 3 was never used: its rings are poison";
}

TEST_F(Restore, ASuspendedRequestGoesOnBitEquallyFromAFile) {
    TestDirectory directory;
    Request greedy{{40, {}}, {}, std::nullopt};
    Request sampled{{40, {}}, {{0.9f, 20, 0.95f, 0.0f, 1234567890123456789ull}, 42}, std::nullopt};
    Request adaptive{{40, {}}, {}, budget::Controller::adaptive(8, 1, {1, 1, 1, 1, 1, 1, 1, 9})};
    for (const Request& request : {greedy, sampled, adaptive}) {
        auto e = engine();
        ModelDrafter drafter(*e->core().draft_forward());
        const int lane = 0;
        e->begin_request(lane, request);
        ASSERT_TRUE(e->prefill(lane, std::span(prompt_).first(100), 0, true).ok());
        for (int cycle = 0; cycle < 3; ++cycle) ASSERT_TRUE(e->cycle({&lane, 1}, drafter, 8).ok());
        auto snapshot = state::take_snapshot(e->lane(lane), kIdentity, {.request = e->request_record(lane)});
        ASSERT_TRUE(snapshot.ok()) << snapshot.status().message();
        ASSERT_TRUE(state::write_snapshot(*snapshot, directory / "file", true).ok());

        auto other = engine();
        ModelDrafter other_drafter(*other->core().draft_forward());
        const int other_lane = 3;
        auto read = state::read_snapshot(directory / "file");
        ASSERT_TRUE(read.ok()) << read.status().message();
        ASSERT_TRUE(other->core().restore(*read, kIdentity, DraftRestore::exact, other_lane).ok());
        ASSERT_TRUE(other->resume_request(other_lane, *read->request, nullptr).ok());
        EXPECT_EQ(other->request_record(other_lane), e->request_record(lane));
        EXPECT_EQ(digests(other->lane(other_lane)), digests(e->lane(lane)));
        std::size_t emitted = 0;
        // The adaptive one learns from times: its next decision is equal, later ones need not be.
        const int cycles = request.controller ? 1 : 100;
        for (int cycle = 0; cycle < cycles; ++cycle) {
            auto a = e->cycle({&lane, 1}, drafter, 8);
            auto b = other->cycle({&other_lane, 1}, other_drafter, 8);
            ASSERT_TRUE(a.ok() && b.ok());
            EXPECT_EQ(a.value()[0].emitted, b.value()[0].emitted);
            EXPECT_EQ(a.value()[0].verified, b.value()[0].verified);
            EXPECT_EQ(a.value()[0].finished, b.value()[0].finished);
            EXPECT_EQ(digests(other->lane(other_lane)), digests(e->lane(lane)));
            emitted += a.value()[0].emitted.size();
            if (a.value()[0].finished) break;
        }
        EXPECT_GT(emitted, 0u);
    }
}

TEST_F(Restore, RequestRecordsThatNoRequestCanHaveAreRefused) {
    state::RequestRecord good;
    good.max_new_tokens = 4;
    EXPECT_TRUE(from_record(good, nullptr).ok());
    const auto refused = [&](auto change, StatusCode code) {
        state::RequestRecord bad = good;
        change(bad);
        EXPECT_EQ(from_record(bad, nullptr).status().code(), code);
    };
    using R = state::RequestRecord&;
    using C = state::ControllerRecord;
    refused([](R r) { r.temperature = std::nanf(""); }, StatusCode::corrupt);
    refused([](R r) { r.temperature = 1, r.top_p = 0; }, StatusCode::corrupt);
    refused([](R r) { r.controller = C{"odd", 8, 1, {}, {}, {}, ""}; }, StatusCode::corrupt);
    refused([](R r) { r.controller = C{"full", 0, 1, {}, {}, {}, ""}; }, StatusCode::corrupt);
    refused([](R r) { r.controller = C{"adaptive", 2, 1, {1}, {1}, {1, 1}, ""}; }, StatusCode::corrupt);
    refused(
        [](R r) {
            r.controller = C{"adaptive", 2, 1, std::vector<double>(12, 1), std::vector<double>(12, -1), {1, 1}, ""};
        },
        StatusCode::corrupt);
    refused([](R r) { r.controller = C{"frozen", 8, 1, {}, {}, {}, std::string(64, 'a')}; }, StatusCode::mismatch);
}

}  // namespace
}  // namespace draftprobe::decode
