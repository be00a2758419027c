// Capture files: what is written is read, byte for byte; what is damaged is refused.
#include "capture/capture.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <zstd.h>

#include <cstdlib>
#include <fstream>
#include <set>

#include "base/files.h"
#include "base/test_directory.h"
#include "capture/layout.h"
#include "capture/reader.h"
#include "capture/test_capture.h"
#include "capture/text_form.h"

namespace draftprobe {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

std::string read_file(const fs::path& path) {
    Result<std::string> text = read_text_file(path, 1 << 26);
    EXPECT_TRUE(text.ok()) << text.status().message();
    return text.ok() ? *text : "";
}

// A new file each time: truncating one in place makes some file systems flush at every close.
void overwrite(const fs::path& path, std::string_view text) {
    fs::remove(path);
    std::ofstream file(path, std::ios::binary | std::ios::trunc);
    file << text;
}

// Makes SHA256SUMS agree with the files again, so that only their content can be wrong.
void resign(const fs::path& capture) {
    std::string sums;
    for (std::string_view name : {kCaptureFileName, kStepsFileName, kPackedStepsFileName, kTensorsFileName}) {
        if (fs::exists(capture / name)) sums += *sha256_file(capture / name) + "  " + std::string(name) + "\n";
    }
    overwrite(capture / kSumsFileName, sums);
}

Status read_all(const fs::path& path, std::vector<StepRecord>* steps = nullptr) {
    Result<CaptureReader> reader = CaptureReader::open(path);
    if (!reader.ok()) return reader.status();
    StepRecord step;
    while (true) {
        Result<bool> more = reader->next(step);
        if (!more.ok()) return more.status();
        if (!*more) return {};
        if (steps != nullptr) steps->push_back(step);
    }
}

void replace(std::string& text, std::string_view from, std::string_view to) {
    const std::size_t at = text.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    text.replace(at, from.size(), to);
}

class CaptureFiles : public testing::Test {
protected:
    fs::path write(const fixture::ArmData& data, std::string_view name = "capture") {
        const fs::path path = directory_ / name;
        Result<std::string> digest = fixture::write_arm(path, data);
        EXPECT_TRUE(digest.ok()) << digest.status().message();
        return path;
    }
    TestDirectory directory_;
};

TEST_F(CaptureFiles, ReadsBackWhatWasWritten) {
    const fixture::ArmData data = fixture::make_arm(Arm::restored);
    const fs::path path = write(data);
    Result<CaptureReader> reader = CaptureReader::open(path);
    ASSERT_TRUE(reader.ok()) << reader.status().message();
    EXPECT_EQ(reader->header().level, 3);
    EXPECT_EQ(reader->header().totals.lane_cycles, 6);
    EXPECT_EQ(reader->header().totals.accepted, 3 + 7 + 0 + 5 + 2 + 6);
    EXPECT_EQ(reader->header().ledger.size(), 5u);
    StepRecord step;
    for (std::size_t i = 0; i < data.steps.size(); ++i) {
        Result<bool> more = reader->next(step);
        ASSERT_TRUE(more.ok()) << more.status().message();
        ASSERT_TRUE(*more);
        EXPECT_EQ(format_step(step, 3), format_step(data.steps[i], 3));
        EXPECT_EQ(reader->step_index(), static_cast<std::int64_t>(i));
        const auto draft = std::as_bytes(std::span(data.draft_hidden[i]));
        const auto target = std::as_bytes(std::span(data.target_hidden[i]));
        EXPECT_TRUE(std::ranges::equal(reader->draft_hidden(), draft));
        EXPECT_TRUE(std::ranges::equal(reader->target_hidden(), target));
    }
    Result<bool> more = reader->next(step);
    ASSERT_TRUE(more.ok()) << more.status().message();
    EXPECT_FALSE(*more);
}

TEST_F(CaptureFiles, HeaderFormatsToTheBytesItWasParsedFrom) {
    const std::string text = read_file(write(fixture::make_arm(Arm::restored)) / kCaptureFileName);
    Result<CaptureHeader> header = parse_capture_header(text, "capture.json");
    ASSERT_TRUE(header.ok()) << header.status().message();
    EXPECT_EQ(format_capture_header(*header), text);
}

TEST_F(CaptureFiles, WhatIsExpectedSurvives) {
    fixture::ArmData arm = fixture::make_arm(Arm::restored);
    arm.header.level = 2;
    LedgerEvent& snapshot = *fixture::find_event(arm, "snapshot");
    fixture::find_part(arm, "snapshot", kRecurrent)->expected = fixture::digest_of("due");
    snapshot.expected_row_first = 65;
    snapshot.expected_row_digests = {0, 7};
    fixture::find_event(arm, "prefill")->anchor_margin = 0.1f;
    arm.header.near_tie = NearTie{0.1, 0.2, 0, 1000, 0.3};
    const std::string text = format_capture_header(arm.header);
    Result<CaptureHeader> read = parse_capture_header(text, "capture.json");
    ASSERT_TRUE(read.ok()) << read.status().message();
    ASSERT_EQ(format_capture_header(*read), text);
    fixture::ArmData again;
    again.header = std::move(read).value();
    EXPECT_EQ(fixture::find_part(again, "snapshot", kRecurrent)->expected, fixture::digest_of("due"));
    EXPECT_EQ(fixture::find_event(again, "snapshot")->expected_row_first, 65);
    EXPECT_EQ(fixture::find_event(again, "snapshot")->expected_row_digests, snapshot.expected_row_digests);
    EXPECT_EQ(fixture::find_event(again, "prefill")->anchor_margin, 0.1f);
    EXPECT_FALSE(fixture::find_event(again, "restore")->anchor_margin.has_value());
    EXPECT_EQ(again.header.near_tie->candidate, 0.3);
}

TEST_F(CaptureFiles, ReadAndWrittenStepsOfARestoreSurvive) {
    fixture::ArmData arm = fixture::make_arm(Arm::restored);
    arm.header.ledger[1].read_step = 5;
    arm.header.ledger[2].read_step = 6;
    arm.header.ledger[2].written_step = 7;
    const std::string text = read_file(write(arm) / kCaptureFileName);
    Result<CaptureHeader> header = parse_capture_header(text, "capture.json");
    ASSERT_TRUE(header.ok()) << header.status().message();
    EXPECT_EQ(header->ledger[0].read_step, 0);
    EXPECT_EQ(header->ledger[1].read_step, 5);
    EXPECT_EQ(header->ledger[1].written_step, 0);
    EXPECT_EQ(header->ledger[2].written_step, 7);
    EXPECT_EQ(format_capture_header(*header), text);
}

TEST_F(CaptureFiles, EveryStepFieldSurvives) {
    StepRecord step = fixture::make_arm(Arm::fresh).steps[0];
    step.draft_context.pairing = {{171, "", 180}, {200, "r0", 200}};
    step.forced = true;
    step.width_margin = 0.1;
    step.controller_in = ControllerState{{1.5, 2}, {3, 0.1}, {1, 1.25}};
    step.controller_out = ControllerState{{2.5, 2}, {3, 1.1}, {1, 1.2500000001}};
    step.anchor = ~std::uint64_t{0};
    step.committed[0] = step.anchor;
    step.q[0] = std::numeric_limits<float>::quiet_NaN();
    step.q[1] = -std::numeric_limits<float>::infinity();
    step.target_margins[0] = 1.0e-45f;
    step.witness = {{"draft_hidden", ~std::uint64_t{0}, 1}};
    CaptureHeader header = fixture::make_arm(Arm::fresh).header;
    header.level = 2;
    header.candidates = fixture::kCandidates;
    const std::string line = format_step(step, 2);
    StepRecord read;
    const Status status = parse_step(line, "line", header, read);
    ASSERT_TRUE(status.ok()) << status.message();
    EXPECT_EQ(format_step(read, 2), line);
    EXPECT_TRUE(read.forced);
    EXPECT_EQ(read.draft_context.pairing, step.draft_context.pairing);
    EXPECT_TRUE(std::isnan(read.q[0]));
    EXPECT_EQ(read.target_margins[0], 1.0e-45f);
    ASSERT_EQ(read.witness.size(), 1u);
    EXPECT_EQ(read.witness[0].component, "draft_hidden");
    EXPECT_EQ(read.witness[0].found, ~std::uint64_t{0});
    EXPECT_EQ(read.witness[0].expected, 1u);
    EXPECT_EQ(read.anchor, ~std::uint64_t{0});
    EXPECT_EQ(read.controller_out->cost[1], 1.2500000001);
}

TEST_F(CaptureFiles, LevelsDropWhatTheyDoNotHold) {
    for (int level = 0; level <= 2; ++level) {
        fixture::Options options;
        options.level = level;
        const fs::path path = write(fixture::make_arm(Arm::fresh, options), std::to_string(level));
        EXPECT_EQ(fs::exists(path / kStepsFileName), level >= 1);
        EXPECT_FALSE(fs::exists(path / kTensorsFileName));
        Result<CaptureReader> reader = CaptureReader::open(path);
        ASSERT_TRUE(reader.ok()) << reader.status().message();
        EXPECT_EQ(reader->header().ledger.empty(), level < 2);
        EXPECT_EQ(reader->header().totals.lane_cycles, 6);
        std::vector<StepRecord> steps;
        const Status status = read_all(path, &steps);
        ASSERT_TRUE(status.ok()) << status.message();
        EXPECT_EQ(steps.size(), level == 0 ? 0u : 6u);
        EXPECT_TRUE(level != 1 || steps[0].draft_hidden_digests.empty());
    }
}

TEST_F(CaptureFiles, StockToolsCheckTheSums) {
    const fs::path path = write(fixture::make_arm(Arm::fresh));
    const std::string command =
        "cd '" + path.string() + "' && sha256sum -c --quiet --strict SHA256SUMS >/dev/null 2>&1";
    EXPECT_EQ(std::system(command.c_str()), 0);
    Result<CaptureReader> reader = CaptureReader::open(path);
    ASSERT_TRUE(reader.ok());
    EXPECT_EQ(reader->digest(), *sha256_file(path / kSumsFileName));
    EXPECT_EQ(std::distance(fs::directory_iterator(path), fs::directory_iterator()), 4);
}

TEST_F(CaptureFiles, ReadsCompressedSteps) {
    const fs::path path = write(fixture::make_arm(Arm::fresh));
    const std::string text = read_file(path / kStepsFileName);
    std::string packed(ZSTD_compressBound(text.size()), '\0');
    packed.resize(ZSTD_compress(packed.data(), packed.size(), text.data(), text.size(), 3));
    fs::remove(path / kStepsFileName);
    overwrite(path / kPackedStepsFileName, packed);
    resign(path);
    std::vector<StepRecord> steps;
    const Status status = read_all(path, &steps);
    ASSERT_TRUE(status.ok()) << status.message();
    EXPECT_EQ(steps.size(), 6u);

    overwrite(path / kPackedStepsFileName, std::string_view(packed).substr(0, packed.size() - 5));
    resign(path);
    EXPECT_EQ(read_all(path).code(), StatusCode::corrupt);
}

TEST_F(CaptureFiles, TimingStaysOutsideTheDigest) {
    const fixture::ArmData data = fixture::make_arm(Arm::fresh);
    const std::string plain = *fixture::write_arm(directory_ / "plain", data);
    Result<CaptureWriter> writer = CaptureWriter::create(directory_ / "timed", false, data.shape);
    ASSERT_TRUE(writer.ok());
    for (std::size_t i = 0; i < data.steps.size(); ++i) {
        ASSERT_TRUE(writer->add_step(data.steps[i], {data.draft_hidden[i].data(), data.target_hidden[i].data()}).ok());
        ASSERT_TRUE(writer->add_timing({static_cast<std::int64_t>(i), 0, 1.5, 2.5, 0.5}).ok());
    }
    Result<std::string> timed = writer->finish(data.header);
    ASSERT_TRUE(timed.ok()) << timed.status().message();
    EXPECT_EQ(*timed, plain);
    EXPECT_TRUE(check_timing(directory_ / "timed").ok());
    overwrite(directory_ / "timed" / kTimingFileName, "{}\n");
    EXPECT_EQ(check_timing(directory_ / "timed").code(), StatusCode::corrupt);
    EXPECT_TRUE(read_all(directory_ / "timed").ok());
}

TEST_F(CaptureFiles, WriterRefusesBrokenStepsAndLeavesNothing) {
    fixture::ArmData data = fixture::make_arm(Arm::fresh);
    data.steps[2].proposals.pop_back();
    Result<std::string> digest = fixture::write_arm(directory_ / "broken", data);
    ASSERT_FALSE(digest.ok());
    EXPECT_EQ(digest.status().code(), StatusCode::invalid_argument);
    EXPECT_THAT(digest.status().message(), HasSubstr("proposals: found 6 elements, expected 7"));
    EXPECT_TRUE(fs::is_empty(directory_.path()));
}

TEST_F(CaptureFiles, WriterStopsAtTheFirstFailedStep) {
    fixture::Options options;
    options.level = 1;
    fixture::ArmData data = fixture::make_arm(Arm::fresh, options);
    Result<CaptureWriter> writer = CaptureWriter::create(directory_ / "stopped", false, data.shape);
    ASSERT_TRUE(writer.ok());
    StepRecord bad = data.steps[0];
    bad.accepted = 7;
    EXPECT_FALSE(writer->add_step(bad).ok());
    EXPECT_EQ(writer->add_step(data.steps[0]).code(), StatusCode::internal);
    EXPECT_EQ(writer->finish(data.header).status().code(), StatusCode::internal);
}

TEST_F(CaptureFiles, WriterKeepsAnExistingCaptureUnlessForced) {
    const fixture::ArmData data = fixture::make_arm(Arm::fresh);
    write(data);
    EXPECT_EQ(fixture::write_arm(directory_ / "capture", data).status().code(), StatusCode::invalid_argument);
    EXPECT_TRUE(fixture::write_arm(directory_ / "capture", data, true).ok());
}

TEST_F(CaptureFiles, WriterRefusesLengthsThatFall) {
    fixture::ArmData data = fixture::make_arm(Arm::fresh);
    std::swap(data.steps[1], data.steps[3]);
    std::swap(data.steps[1].cycle, data.steps[3].cycle);
    Result<std::string> digest = fixture::write_arm(directory_ / "x", data);
    ASSERT_FALSE(digest.ok());
    EXPECT_THAT(digest.status().message(), HasSubstr("lengths that never fall"));
}

// ---------------------------------------------------------------------------------------------------------------
// Damage

TEST_F(CaptureFiles, EveryTruncationIsRefused) {
    fixture::Options options;
    options.prompt = 40;
    options.boundary = 32;
    options.accepted = {2, 7};
    const fs::path path = write(fixture::make_arm(Arm::fresh, options));
    for (std::string_view name : {kCaptureFileName, kStepsFileName, kTensorsFileName, kSumsFileName}) {
        const std::string whole = read_file(path / name);
        const std::size_t stride = std::max<std::size_t>(1, whole.size() / 400);
        for (std::size_t length = 0; length < whole.size(); length += stride) {
            overwrite(path / name, std::string_view(whole).substr(0, length));
            EXPECT_EQ(read_all(path).code(), StatusCode::corrupt) << name << " cut to " << length;
            // A short file that is signed again must fail by its content.
            if (name == kSumsFileName) continue;
            const std::string sums = read_file(path / kSumsFileName);
            resign(path);
            EXPECT_EQ(read_all(path).code(), StatusCode::corrupt) << name << " cut to " << length << ", signed";
            overwrite(path / kSumsFileName, sums);
        }
        overwrite(path / name, whole);
    }
    EXPECT_TRUE(read_all(path).ok());
}

TEST_F(CaptureFiles, EveryFlippedByteIsRefused) {
    fixture::Options options;
    options.prompt = 40;
    options.boundary = 32;
    options.accepted = {2};
    const fs::path path = write(fixture::make_arm(Arm::fresh, options));
    for (std::string_view name : {kCaptureFileName, kStepsFileName, kTensorsFileName, kSumsFileName}) {
        const std::string whole = read_file(path / name);
        const std::size_t stride = std::max<std::size_t>(1, whole.size() / 700);
        for (std::size_t at = 0; at < whole.size(); at += stride) {
            std::string damaged = whole;
            damaged[at] = static_cast<char>(damaged[at] ^ (1 << (at % 8)));
            overwrite(path / name, damaged);
            const StatusCode code = read_all(path).code();
            // A damaged version number is said to be another version.
            const bool refused = code == StatusCode::corrupt ||
                                 (name == kCaptureFileName && code == StatusCode::mismatch) ||
                                 (name == kCaptureFileName && code == StatusCode::unsupported);
            EXPECT_TRUE(refused) << name << " byte " << at;
        }
        overwrite(path / name, whole);
    }
}

TEST_F(CaptureFiles, SignedButWrongTotalsAreRefused) {
    const fs::path path = write(fixture::make_arm(Arm::fresh));
    std::string text = read_file(path / kCaptureFileName);
    replace(text, "\"accepted\": 23", "\"accepted\": 24");
    overwrite(path / kCaptureFileName, text);
    resign(path);
    const Status status = read_all(path);
    EXPECT_EQ(status.code(), StatusCode::corrupt);
    EXPECT_THAT(status.message(), HasSubstr("totals.accepted is 24, expected 23"));
}

TEST_F(CaptureFiles, MissingFilesAreNamed) {
    const fs::path path = write(fixture::make_arm(Arm::fresh));
    fs::remove(path / kStepsFileName);
    EXPECT_THAT(read_all(path).message(), HasSubstr("steps.jsonl"));
    EXPECT_EQ(read_all(path).code(), StatusCode::corrupt);
    fs::remove(path / kSumsFileName);
    EXPECT_THAT(read_all(path).message(), HasSubstr("may have been interrupted"));
    EXPECT_EQ(read_all(directory_ / "nowhere").code(), StatusCode::not_found);
}

// Nothing waits for the other end of a FIFO, and a directory in the place of a file is damage, not bad luck.
TEST_F(CaptureFiles, FilesThatAreNotFilesAreCorrupt) {
    for (std::string_view name : {kSumsFileName, kCaptureFileName, kStepsFileName, kTensorsFileName}) {
        for (const bool fifo : {true, false}) {
            const fs::path path = write(fixture::make_arm(Arm::fresh), std::string(name) + (fifo ? "f" : "d"));
            fs::remove(path / name);
            if (fifo) {
                ASSERT_EQ(::mkfifo((path / name).c_str(), 0600), 0);
            } else {
                fs::create_directory(path / name);
            }
            const Status status = read_all(path);
            EXPECT_EQ(status.code(), StatusCode::corrupt) << name << ": " << status.message();
            EXPECT_THAT(status.message(), HasSubstr(fifo ? "found a FIFO" : "found a directory"));
            EXPECT_THAT(status.message(), HasSubstr(std::string(name)));
        }
    }
}

TEST_F(CaptureFiles, SumsMustNameExactlyTheFiles) {
    const fs::path path = write(fixture::make_arm(Arm::fresh));
    const std::string sums = read_file(path / kSumsFileName);
    overwrite(path / kSumsFileName, sums + std::string(64, 'a') + "  ../outside\n");
    EXPECT_THAT(read_all(path).message(), HasSubstr("lists '../outside'"));
    overwrite(path / kSumsFileName, sums + sums);
    EXPECT_THAT(read_all(path).message(), HasSubstr("twice"));
    overwrite(path / kSumsFileName, sums.substr(0, sums.find('\n') + 1));
    EXPECT_THAT(read_all(path).message(), HasSubstr("expected 1 at level 3"));
}

TEST(CaptureHeaderText, NamesBothVersions) {
    std::string text = format_capture_header(fixture::make_arm(Arm::fresh).header);
    replace(text, "\"version\": 1", "\"version\": 2");
    const Status status = parse_capture_header(text, "capture.json").status();
    EXPECT_EQ(status.code(), StatusCode::mismatch);
    EXPECT_THAT(status.message(), HasSubstr("version 2, this program reads version 1"));
    replace(text, "draftprobe-capture", "other");
    EXPECT_EQ(parse_capture_header(text, "capture.json").status().code(), StatusCode::unsupported);
}

TEST(CaptureHeaderText, RefusesDuplicateAndUnknownKeys) {
    CaptureHeader header = fixture::make_arm(Arm::fresh).header;
    header.level = 2;
    const std::string good = format_capture_header(header);
    ASSERT_TRUE(parse_capture_header(good, "c").ok()) << parse_capture_header(good, "c").status().message();
    for (std::string_view extra : {"\"level\": 2,\n  ", "\"sanitised\": false,\n  ", "\"unknown\": 1,\n  "}) {
        std::string text = good;
        text.insert(text.find("\"sanitised\""), extra);
        EXPECT_EQ(parse_capture_header(text, "c").status().code(), StatusCode::corrupt) << extra;
    }
}

TEST(CaptureHeaderText, RefusesInconsistentContent) {
    CaptureHeader good = fixture::make_arm(Arm::fresh).header;
    good.level = 2;
    const auto refused = [](CaptureHeader header, std::string_view words) {
        const Status status = parse_capture_header(format_capture_header(header), "c").status();
        EXPECT_EQ(status.code(), StatusCode::corrupt) << words;
        EXPECT_THAT(status.message(), HasSubstr(std::string(words)));
    };
    CaptureHeader h = good;
    h.settings.push_back(h.settings[0]);
    finish_identity(h);
    refused(h, "field 'kv_format' twice");
    h = good;
    h.settings[0].value = "int8";
    refused(h, "identity.settings");
    h = good;
    h.requests[0].prompt_ids[3] += 1;
    refused(h, "prompt_digest");
    h = good;
    h.identity.target.files[0][0] = h.identity.target.files[0][0] == 'a' ? 'b' : 'a';
    refused(h, "identity.target.digest");
    h = good;
    h.ledger[0].components[0].sources = {{0, 10, RowSource::computed}, {5, 20, RowSource::restored}};
    refused(h, "do not overlap");
    h = good;
    h.ledger[0].request = "other";
    refused(h, "a key of requests");
    h = good;
    h.near_tie->target = std::numeric_limits<double>::infinity();
    refused(h, "near_tie");
    h = good;
    h.requests[0].boundary = h.requests[0].prompt_length + 1;
    refused(h, "boundary");
    const std::string digest = fixture::digest_of("template");
    const std::pair<TemplateIdentity, std::string_view> templates[] = {
        {{"", "on", "", ""}, "without a digest"},
        {{"", "", "low", ""}, "without a digest"},
        {{"", "", "", digest}, "without a digest"},
        {{digest, "", "", digest}, "identity.template.thinking: found ''"},
        {{digest, "ON", "", digest}, "identity.template.thinking: found 'ON'"},
        {{digest, "on", "a b", digest}, "identity.template.effort: found 'a b'"},
        {{digest, "on", std::string(33, 'a'), digest}, "identity.template.effort"},
    };
    for (const auto& [chat, words] : templates) {
        h = good;
        h.identity.chat_template = chat;
        finish_identity(h);
        refused(h, words);
    }
}

TEST(CaptureHeaderText, ChatTemplatesAreInTheNonDraftInput) {
    CaptureHeader header = fixture::make_arm(Arm::fresh).header;
    header.level = 2;
    const std::string digest = fixture::digest_of("template");
    const TemplateIdentity all[] = {
        {},
        {digest, "on", "", digest},
        {digest, "off", "", digest},
        {digest, "on", "low", digest},
        {digest, "on", "low", ""},
        {digest, "on", "low", fixture::digest_of("text")},
        {fixture::digest_of("other"), "on", "low", digest},
    };
    std::set<std::string> inputs;
    for (const TemplateIdentity& chat : all) {
        header.identity.chat_template = chat;
        finish_identity(header);
        inputs.insert(header.identity.non_draft_input_digest);
        const std::string text = format_capture_header(header);
        const Result<CaptureHeader> back = parse_capture_header(text, "c");
        ASSERT_TRUE(back.ok()) << back.status().message();
        EXPECT_EQ(format_capture_header(*back), text);
        EXPECT_EQ(back->identity.chat_template.rendered_digest, chat.rendered_digest);
        EXPECT_EQ(text.find("\"rendered\"") != std::string::npos, !chat.rendered_digest.empty());
    }
    EXPECT_EQ(inputs.size(), std::size(all));
}

TEST(StepText, RefusesWhatBreaksTheRules) {
    CaptureHeader header = fixture::make_arm(Arm::fresh).header;
    header.level = 2;
    header.candidates = fixture::kCandidates;
    const StepRecord good = fixture::make_arm(Arm::fresh).steps[0];
    const auto refused = [&](auto change, std::string_view words) {
        StepRecord step = good;
        change(step);
        StepRecord out;
        const Status status = parse_step(format_step(step, 2), "steps.jsonl: line 1", header, out);
        EXPECT_EQ(status.code(), StatusCode::corrupt) << words;
        EXPECT_THAT(status.message(), HasSubstr(std::string(words)));
    };
    refused([](StepRecord& s) { s.verified = 8; }, "verified: found 8, expected at most 7");
    refused([](StepRecord& s) { s.accepted = 7; }, "cuts.accepted");
    refused([](StepRecord& s) { s.censored = true; }, "censored");
    refused([](StepRecord& s) { s.target_choices.pop_back(); }, "target_choices");
    refused(
        [](StepRecord& s) {
            s.exposure.total += 1;
            s.exposure.computed += 1;
        },
        "from boundary");
    refused([](StepRecord& s) { s.exposure.total += 1; }, "exposure.total");
    refused([](StepRecord& s) { s.committed[0] += 1; }, "committed[0]");
    refused([](StepRecord& s) { s.context_hash = "ab"; }, "64 lower-case hexadecimal digits");
    refused([](StepRecord& s) { s.draft_context.rows_valid += 1; }, "rows_valid");
    refused([](StepRecord& s) { s.cycle = -1; }, "integer in [0");
    refused([](StepRecord& s) { s.retained = 2; }, "cuts.retained");
    refused([](StepRecord& s) { s.candidate_ids.pop_back(); }, "candidate_ids");
}

TEST(StepText, PairingsAreAscendingAndNameKnownRequests) {
    const fixture::ArmData arm = fixture::make_arm(Arm::fresh);
    CaptureHeader header = arm.header;
    header.level = 2;
    header.candidates = fixture::kCandidates;
    const auto parsed = [&](std::vector<RowPairing> pairing, StepRecord& read) {
        StepRecord step = arm.steps[0];
        step.draft_context.pairing = std::move(pairing);
        return parse_step(format_step(step, 2), "line", header, read);
    };
    StepRecord read;
    EXPECT_TRUE(parsed({{3, "", 9}, {4, "r0", 4}}, read).ok());
    EXPECT_EQ(read.draft_context.pairing.size(), 2u);
    // A reader reuses its step: what one line said is not the next one's.
    EXPECT_TRUE(parsed({}, read).ok());
    EXPECT_TRUE(read.draft_context.pairing.empty());
    EXPECT_EQ(parsed({{3, "r9", 9}}, read).code(), StatusCode::corrupt);
    EXPECT_EQ(parsed({{4, "r0", 4}, {4, "r0", 4}}, read).code(), StatusCode::corrupt);
}

TEST(StepText, RefusesNumbersThatAreNotCanonical) {
    CaptureHeader header = fixture::make_arm(Arm::fresh).header;
    header.level = 2;
    header.candidates = fixture::kCandidates;
    const std::string good = format_step(fixture::make_arm(Arm::fresh).steps[0], 2);
    StepRecord out;
    ASSERT_TRUE(parse_step(good, "l", header, out).ok());
    for (std::string_view bad : {"\"cycle\":0.5", "\"cycle\":00", "\"cycle\":-0", "\"cycle\":\"0\"", "\"cycle\":1e3",
                                 "\"cycle\":NaN", "\"cycle\":99999999999999999999", "\"cycle\":true", "\"cycle\":"}) {
        std::string text = good;
        replace(text, "\"cycle\":0", bad);
        EXPECT_EQ(parse_step(text, "l", header, out).code(), StatusCode::corrupt) << bad;
    }
}

// The worked example of the specification is a step that the reader takes.
TEST(StepText, TheDocumentedExampleIsRead) {
    const std::string text = read_file(fs::path(DRAFTPROBE_SOURCE_DIR) / "docs" / "capture-format.md");
    std::string line;
    std::size_t at = text.find("    {\"cycle\":0");
    ASSERT_NE(at, std::string::npos);
    while (text.compare(at, 4, "    ") == 0) {
        const std::size_t end = text.find('\n', at);
        line += text.substr(at + 4, end - at - 4);
        at = end + 1;
    }
    replace(line, "8f0c..", std::string(64, '0'));
    CaptureHeader header;
    header.block = 4;
    header.candidates = 2;
    StepRecord step;
    const Status status = parse_step(line, "example", header, step);
    ASSERT_TRUE(status.ok()) << status.message();
    EXPECT_EQ(format_step(step, 1), line);
}

TEST(StepText, GoldenBytes) {
    fixture::Options options;
    options.prompt = 40;
    options.boundary = 32;
    options.accepted = {1};
    const fixture::ArmData data = fixture::make_arm(Arm::restored, options);
    EXPECT_EQ(sha256_hex(format_step(data.steps[0], 2)),
              "283dc9c1d5b80c5c44592abf502e0648eda3e0acc0da76e7f72e13b39c41d7b7");
    CaptureHeader header = data.header;
    header.level = 2;
    EXPECT_EQ(sha256_hex(format_capture_header(header)),
              "5bde40b4be078babda86f944112915ddb308496fe9403e2723a2b53cfe22f9d4");
    const std::string line = format_step(data.steps[0], 1);
    EXPECT_THAT(line, testing::StartsWith("{\"cycle\":0,\"lane\":1,\"request\":\"r0\",\"length\":40,\"anchor\":"));
}

TEST_F(CaptureFiles, GoldenDigestOfASmallCapture) {
    fixture::Options options;
    options.prompt = 40;
    options.boundary = 32;
    options.accepted = {1, 7};
    EXPECT_EQ(*fixture::write_arm(directory_ / "golden", fixture::make_arm(Arm::restored, options)),
              "201817bf494e264fd00e76693a22b1ba2507a54aa2a5b7a7ed6a99ce3bf38891");
}

TEST(NonDraftInput, LeavesOutWhatIsReadFromTheDraft) {
    const auto digests = [](std::vector<Setting> more, std::string_view draft) {
        CaptureHeader header = fixture::make_arm(Arm::fresh).header;
        header.level = 2;
        header.identity.draft = fixture::group(draft);
        header.settings.insert(header.settings.end(), more.begin(), more.end());
        finish_identity(header);
        EXPECT_EQ(validate_header(header).message(), "");
        return header.identity;
    };
    const Identity a = digests({{"draft.window", "2048"}, {"draft.block", "8"}}, "a");
    const Identity b = digests({{"draft.window", "512"}, {"draft.block", "16"}}, "b");
    EXPECT_NE(a.settings_digest, b.settings_digest);
    EXPECT_EQ(a.non_draft_input_digest, b.non_draft_input_digest);
    EXPECT_EQ(a.non_draft_input_digest, digests({}, "c").non_draft_input_digest);
    EXPECT_NE(a.non_draft_input_digest, digests({{"draft", "1"}}, "a").non_draft_input_digest);
    EXPECT_NE(a.non_draft_input_digest, digests({{"draft_window", "512"}}, "a").non_draft_input_digest);
}

TEST(ContextHash, CoversLengthIdsAndAnchor) {
    const std::vector<TokenId> ids = {1, 2, 3};
    const std::string tokenizer(64, '0');
    const std::string hash = context_hash(tokenizer, ids, 4);
    EXPECT_EQ(hash, "5143549da0ae61b81ccb2ec80d2959d742e381c629f1d00ea3e1d1874e8f4197");
    EXPECT_NE(hash, context_hash(tokenizer, std::vector<TokenId>{1, 2}, 4));
    EXPECT_NE(hash, context_hash(tokenizer, std::vector<TokenId>{1, 2, 3, 4}, 4));
    EXPECT_NE(hash, context_hash(tokenizer, ids, 5));
    EXPECT_NE(hash, context_hash(std::string(64, '1'), ids, 4));
    // 256 and 0x100 must not meet: ids are fixed-width.
    EXPECT_NE(context_hash(tokenizer, std::vector<TokenId>{1, 256}, 4),
              context_hash(tokenizer, std::vector<TokenId>{257, 0}, 4));
}

// Both arms may carry the same wrong count, so a comparison alone would not see it.
TEST(StepText, AcceptedFollowsFromProposalsAndChoices) {
    CaptureHeader header = fixture::make_arm(Arm::fresh).header;
    header.candidates = fixture::kCandidates;
    const StepRecord healthy = fixture::make_arm(Arm::fresh).steps[3];
    ASSERT_EQ(healthy.accepted, 5);
    for (const char* source : {"selector", "scripted", "sampled"}) {
        StepRecord step = healthy;
        step.proposal_source = source;
        EXPECT_TRUE(validate_step(step, header).ok());
        for (const std::int64_t wrong : {0, 4, 6}) {
            fixture::set_accepted(step, wrong);
            const Status status = validate_step(step, header);
            EXPECT_EQ(status.code(), StatusCode::corrupt) << wrong;
            EXPECT_THAT(status.message(), HasSubstr("expected 5, the leading proposals"));
        }
    }
    // Cut by something else than a choice, it may be less and never more.
    StepRecord step = healthy;
    fixture::set_accepted(step, 4);
    step.accepted_cut = CutReason::limit;
    step.censored = true;
    EXPECT_TRUE(validate_step(step, header).ok()) << validate_step(step, header).message();
    fixture::set_accepted(step, 6);
    step.accepted_cut = CutReason::error;
    step.censored = true;
    EXPECT_THAT(validate_step(step, header).message(), HasSubstr("at most 5"));
}

TEST(ObservedAcceptance, OnlyTheTargetsChoiceEndsASequence) {
    StepRecord step = fixture::make_arm(Arm::fresh).steps[3];
    EXPECT_TRUE(observed_acceptance(step).rejected);
    step.accepted_cut = CutReason::error;
    EXPECT_FALSE(observed_acceptance(step).rejected);
    EXPECT_EQ(observed_acceptance(step).length, 5);
}

TEST(ObservedAcceptance, CensorsWhatWasCutOrFullyMatched) {
    const auto seen = [](std::int64_t verified, std::int64_t accepted, std::int64_t retained) {
        StepRecord s;
        s.verified = verified;
        s.accepted = accepted;
        s.retained = retained;
        return observed_acceptance(s);
    };
    EXPECT_FALSE(seen(7, 7, 8).rejected);
    EXPECT_EQ(seen(7, 7, 8).length, 7);
    EXPECT_TRUE(seen(7, 2, 3).rejected);
    EXPECT_EQ(seen(7, 2, 3).length, 2);
    EXPECT_FALSE(seen(7, 5, 3).rejected);
    EXPECT_EQ(seen(7, 5, 3).length, 3);
    EXPECT_FALSE(seen(0, 0, 1).at_risk);
    EXPECT_FALSE(seen(4, 4, 5).rejected);
    EXPECT_FALSE(seen(7, 3, 2).rejected);
    EXPECT_EQ(seen(7, 3, 2).length, 2);
}

}  // namespace
}  // namespace draftprobe
