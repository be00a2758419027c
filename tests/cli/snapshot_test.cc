// Restore forms, tiers and snapshot files on the command line: real processes, real files, real signals.
#include <unistd.h>

#include <csignal>

#include "program.h"

namespace draftprobe {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class SnapshotProgram : public ProgramTest {
protected:
    void SetUp() override { write_ids(150); }
    static std::string request() { return pair() + "--prompt-ids ids.json --prefix-tokens 96 "; }
    Json treatment(const std::string& capture) const {
        return parsed(slurp(path(capture + "/capture.json")))["treatment"];
    }
};

TEST_F(SnapshotProgram, exact_forms_are_the_same_from_every_tier) {
    for (const std::string tier : {"memory", "disk", "process"}) {
        for (const std::string form : {"exact", "rows", "recompute"}) {
            const std::string words = "--tier " + tier + " --restore-draft " + form;
            const ProgramRun result = run("probe " + request() + words + " --cycles 4 --digest-every 1 --force");
            ASSERT_EQ(result.exit, 0) << words << "\n" << result.err << result.out;
            EXPECT_THAT(result.out, HasSubstr("4 matched lane-cycles and the ledger are bit-equal at level 3"));
            const Json found = treatment("draftprobe-out/treated");
            EXPECT_EQ(found["tier"], tier);
            EXPECT_EQ(found["restore_draft"], form);
            EXPECT_EQ(found.contains("recompute_start"), form == "recompute");
            EXPECT_THAT(names(), ElementsAre("draftprobe-out", "ids.json")) << words;
        }
    }
}

// The restored arm's forward calls and ledger are those of one process.
TEST_F(SnapshotProgram, two_processes_leave_the_capture_of_one) {
    for (const std::string level : {"1", "2", "3"}) {
        const std::string words = "capture " + request() + "--cycles 3 --arm restored --level " + level + " --force ";
        ASSERT_EQ(run(words + "--tier disk --out disk").exit, 0);
        const ProgramRun result = run(words + "--tier process --out process --json");
        ASSERT_EQ(result.exit, 0) << result.err;
        EXPECT_EQ(parsed(result.out)["cycles"], 3);
        Json disk = parsed(slurp(path("disk/capture.json")));
        Json process = parsed(slurp(path("process/capture.json")));
        EXPECT_EQ(disk["schedule"], process["schedule"]);
        EXPECT_EQ(disk["totals"], process["totals"]);
        EXPECT_EQ(slurp(path("disk/steps.jsonl")), slurp(path("process/steps.jsonl")));
        EXPECT_EQ(disk.contains("ledger") ? disk["ledger"].size() : 0,
                  process.contains("ledger") ? process["ledger"].size() : 0);
    }
}

TEST_F(SnapshotProgram, lossy_and_absent_forms_are_named) {
    const std::pair<const char*, const char*> cases[] = {{"--restore-draft rows-q4", "draft_context"},
                                                         {"--restore-draft masked", "draft_context"},
                                                         {"--restore-draft none", "draft_context"},
                                                         {"--restore-target int8-state", "recurrent"}};
    for (const auto& [words, component] : cases) {
        const ProgramRun result = run("probe " + request() + words + " --cycles 3 --force --json");
        Json json = parsed(result.out);
        EXPECT_NE(json["verdict"], "SAME") << words;
        EXPECT_EQ(json["first"]["stage"], "restore") << words;
        EXPECT_EQ(json["first"]["component"], component) << words;
    }
}

TEST_F(SnapshotProgram, kept_snapshots_are_inspected_and_damaged_ones_refused) {
    const std::string words = "capture " + request() + "--cycles 2 --arm restored --save-snapshot s --out c --force";
    ASSERT_EQ(run(words).exit, 0);
    Json json = parsed(run("inspect s --json").out);
    EXPECT_EQ(json["kind"], "snapshot");
    EXPECT_EQ(json["length"], 96);
    EXPECT_EQ(json["checksums"], "hold");
    EXPECT_EQ(json["components"].size(), 5u);
    EXPECT_EQ(json["identity"]["settings"]["kv_format"], "bf16");
    const Json ledger = parsed(slurp(path("c/capture.json")))["ledger"];
    for (const Json& event : ledger) {
        if (event["event"] != "snapshot") continue;
        for (std::size_t i = 0; i < 5; ++i) {
            EXPECT_EQ(event["components"][i]["digest"], json["components"][i]["digest"]);
        }
    }
    const ProgramRun text = run("inspect s");
    EXPECT_THAT(text.out, HasSubstr("length          96 tokens"));
    EXPECT_THAT(text.out, HasSubstr("draft_context"));

    const ProgramRun again = run("capture " + request() + "--cycles 2 --arm restored --save-snapshot s --out other");
    EXPECT_EQ(again.exit, 2) << "an existing file is not replaced";
    expect_message(again, {"s: ", "--force to replace a snapshot file"});
    const std::string before = slurp(path("s"));
    spill(path("s"), before.substr(0, 100));
    ASSERT_EQ(run(words).exit, 0) << "--force replaces a snapshot";
    EXPECT_EQ(slurp(path("s")), before);
    spill(path("notes"), "not a snapshot");
    const ProgramRun foreign =
        run("capture " + request() + "--cycles 2 --arm restored --save-snapshot notes --out c --force");
    EXPECT_EQ(foreign.exit, 2);
    expect_message(foreign, {"notes", "not a snapshot file", "--force does not replace"});
    EXPECT_EQ(slurp(path("notes")), "not a snapshot");
    const std::string good = slurp(path("s"));
    std::string flipped = good;
    flipped[good.size() / 2] ^= 1;
    std::string newer = good;
    newer[8] = 9;
    const std::pair<std::string, const char*> bad[] = {
        {flipped, "SHA-256"}, {good.substr(0, good.size() - 7), "cut off"}, {good + "x", "grew"}};
    for (const auto& [bytes, message] : bad) {
        spill(path("bad"), bytes);
        const ProgramRun refused = run("inspect bad");
        EXPECT_EQ(refused.exit, 5) << message;
        expect_message(refused, {"bad", message});
    }
    spill(path("bad"), newer);
    const ProgramRun refused = run("inspect bad");
    EXPECT_EQ(refused.exit, 2);
    expect_message(refused, {"snapshot version 9, supported: 1"});
    const ProgramRun misplaced = run("capture " + request() + "--arm fresh --save-snapshot t --out d");
    EXPECT_EQ(misplaced.exit, 2);
    expect_message(misplaced, {"--save-snapshot with --arm fresh"});
}

// A limit on file size acts as a full disk; an unwritable folder needs no root.
TEST_F(SnapshotProgram, a_mislabelled_snapshot_is_inspected_as_one) {
    const std::string words = "capture " + request() + "--cycles 2 --arm restored --save-snapshot ";
    ASSERT_EQ(run(words + "sound --out a").exit, 0);
    ASSERT_EQ(run(words + "wrong --out b --inject mislabelled-checkpoint=2").exit, 0);
    EXPECT_THAT(run("inspect sound").out, ::testing::Not(HasSubstr("labelled")));
    EXPECT_THAT(run("inspect wrong").out, HasSubstr("covers 98, labelled 96: a restore refuses it"));
    const Json described = parsed(run("inspect wrong --json").out);
    for (const Json& component : described["components"]) {
        const bool recurrent = component["component"] == "recurrent" || component["component"] == "conv";
        EXPECT_EQ(component.value("consumed", 0), recurrent ? 98 : 0) << component["component"];
    }
}

TEST_F(SnapshotProgram, full_disks_and_unwritable_folders_are_said_and_lose_nothing) {
    ASSERT_EQ(run("probe " + request() + "--cycles 2 --out o").exit, 0);
    const std::string before = slurp(path("o/report.json"));
    const std::string words =
        "'" + std::string(DRAFTPROBE_BINARY) + "' probe " + request() + "--cycles 2 --out o --force ";
    for (const std::string tier : {"disk", "process"}) {
        const ProgramRun full = shell("trap '' XFSZ; ulimit -f 40; " + words + "--tier " + tier);
        EXPECT_EQ(full.exit, 2) << full.err;
        EXPECT_THAT(full.err, HasSubstr("File too large"));
        EXPECT_EQ(slurp(path("o/report.json")), before);
        EXPECT_THAT(names(), ElementsAre("ids.json", "o"));
    }
    EXPECT_EQ(run("capture " + request() + "--arm restored --save-snapshot no/where --out c").exit, 2);
    EXPECT_THAT(names(), ElementsAre("ids.json", "o"));
}

TEST_F(SnapshotProgram, a_signal_leaves_nothing_of_either_process) {
    for (const std::string pause : {"0.05", "0.15", "0.3", "0.6"}) {
        const ProgramRun result = shell("'" + std::string(DRAFTPROBE_BINARY) + "' probe " + request() +
                                        "--tier process --cycles 400 --threads 1 --out o & pid=$!; sleep " + pause +
                                        "; kill -TERM $pid; wait $pid; status=$?; sleep 0.2; exit $status");
        if (result.exit == 0) {
            std::filesystem::remove_all(path("o"));
            continue;
        }
        EXPECT_THAT(names(), ElementsAre("ids.json")) << pause << " " << result.exit << result.err;
    }
}

// SIGKILL gives the first process no chance to stop the second one, which has seconds of work before it.
TEST_F(SnapshotProgram, a_killed_process_takes_the_second_one_with_it) {
    const std::string script = R"(
        "$BIN" capture --arm restored --target "$M/mini-dense-mlx4" --draft "$M/mini-dense-draft" \
            --prompt "$M/prompts/draft_forward.cc.txt" --prefix-tokens 32 --cycles 200 --digest-every 1 \
            --tier process --threads 1 --out o >/dev/null 2>&1 & pid=$!
        child=
        while [ -d /proc/$pid ]; do
            child=$(cat /proc/$pid/task/$pid/children 2>/dev/null); [ -n "$child" ] && break
            sleep 0.005
        done
        sleep $PAUSE
        kill -KILL $pid 2>/dev/null; wait $pid 2>/dev/null
        [ -n "$child" ] || { echo none; exit; }
        for i in $(seq 100); do
            state=$(sed 's/.*) //' /proc/${child% }/stat 2>/dev/null | cut -c1)
            case "$state" in ''|Z|X) echo gone; exit;; esac
            sleep 0.01
        done
        kill -KILL $child; echo survived)";
    for (const std::string pause : {"0", "0.1", "0.5"}) {
        const ProgramRun result = shell("BIN='" + std::string(DRAFTPROBE_BINARY) +
                                        "'; M='" DRAFTPROBE_SOURCE_DIR "/models'; PAUSE=" + pause + "; " + script);
        EXPECT_EQ(result.out, "gone\n") << pause;
        EXPECT_FALSE(present("o")) << pause;
        for (const std::string& name : names()) {
            EXPECT_TRUE(name == "ids.json" || name.rfind(".o.", 0) == 0) << name;
            if (name != "ids.json") std::filesystem::remove_all(path(name));
        }
    }
}

TEST_F(SnapshotProgram, measures_snapshots_and_prefixes) {
    const ProgramRun result = run("bench snapshot --size-mib 1 --repeats 2 --tokens 64 --json " + pair());
    ASSERT_EQ(result.exit, 0) << result.err;
    Json json = parsed(result.out);
    EXPECT_EQ(json["operations"].size(), 7u);
    for (const Json& operation : json["operations"]) {
        EXPECT_GT(operation["seconds"]["median"].get<double>(), 0);
        EXPECT_GT(operation["bound_over_time"].get<double>(), 0);
    }
    EXPECT_EQ(json["prefix"]["tokens"], 64);
    EXPECT_EQ(json["store"]["budget_bytes"], 4 << 20);
    EXPECT_LE(json["store"]["counted_bytes"], json["store"]["budget_bytes"]);
    EXPECT_GT(json["store"]["evictions"], 0);
    EXPECT_THAT(names(), ElementsAre("ids.json"));
    EXPECT_EQ(run("bench snapshot --draft x").exit, 2);
}

}  // namespace
}  // namespace draftprobe
