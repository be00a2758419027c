// Help, manual and completion as the program prints them; broken and full output.
#include "program.h"

namespace draftprobe {
namespace {

using ::testing::HasSubstr;

class HelpProgram : public ProgramTest {};

TEST_F(HelpProgram, is_the_text_that_the_repository_holds) {
    const ProgramRun probe = run("probe --help");
    EXPECT_EQ(probe.exit, 0);
    EXPECT_EQ(probe.err, "");
    EXPECT_EQ(probe.out, slurp(std::string(DRAFTPROBE_SOURCE_DIR) + "/tests/cli/probe_help.txt"));
    EXPECT_EQ(run("help --markdown").out, slurp(std::string(DRAFTPROBE_SOURCE_DIR) + "/docs/cli.md"));
}

TEST_F(HelpProgram, has_help_for_every_command_in_every_spelling) {
    for (const char* command :
         {"probe", "capture", "compare", "inspect", "generate", "bench probe", "budget calibrate", "version"}) {
        const std::string name = command;
        const ProgramRun result = run(name + " --help");
        EXPECT_EQ(result.exit, 0) << name;
        EXPECT_THAT(result.out, HasSubstr("Usage:\n  draftprobe " + name));
        EXPECT_EQ(run(name + " -h").out, result.out);
        EXPECT_EQ(run("help " + name).out, result.out);
    }
    EXPECT_EQ(run("--help").out, run("help").out);
    EXPECT_THAT(run("help help").out, HasSubstr("--completions bash"));
    EXPECT_EQ(run("help budget").out, run("budget calibrate --help").out);
    EXPECT_EQ(run("budget --help").out, run("budget calibrate --help").out);
    EXPECT_EQ(run("help nonsense").exit, 2);
    EXPECT_EQ(run("help --man --markdown").exit, 2);
}

TEST_F(HelpProgram, prints_a_manual_page_and_a_completion_script) {
    const ProgramRun manual = run("help --man");
    EXPECT_EQ(manual.exit, 0);
    EXPECT_EQ(manual.out.rfind(".TH DRAFTPROBE 1", 0), 0u);
    EXPECT_THAT(manual.out, HasSubstr("\\-\\-prefix\\-tokens"));
    const ProgramRun syntax = shell(std::string("'") + DRAFTPROBE_BINARY + "' help --completions bash | bash -n");
    EXPECT_EQ(syntax.exit, 0) << syntax.err;
    const ProgramRun completed =
        shell(std::string("bash -c 'eval \"$(") + DRAFTPROBE_BINARY +
              " help --completions bash)\"; COMP_WORDS=(draftprobe probe --kv b); COMP_CWORD=3; _draftprobe; "
              "echo ${COMPREPLY[@]}; COMP_WORDS=(draftprobe compare --tr); COMP_CWORD=2; _draftprobe; "
              "echo ${COMPREPLY[@]}'");
    EXPECT_EQ(completed.out, "bf16\n--treat\n") << completed.err;
}

TEST_F(HelpProgram, says_its_version) {
    Json json = parsed(run("version --json").out);
    EXPECT_EQ(json["version"], DRAFTPROBE_VERSION);
    const ProgramRun digest = shell(std::string("sha256sum '") + DRAFTPROBE_BINARY + "' | cut -c1-64");
    EXPECT_EQ(json["build_digest"].get<std::string>() + "\n", digest.out);
    EXPECT_THAT(run("--version").out, HasSubstr(std::string("draftprobe ") + DRAFTPROBE_VERSION));
}

TEST_F(HelpProgram, takes_a_closed_pipe_as_success_and_a_full_disk_as_failure) {
    const ProgramRun closed =
        shell(std::string("bash -c \"'") + DRAFTPROBE_BINARY + "' help --markdown | true; echo \\${PIPESTATUS[0]}\"");
    EXPECT_EQ(closed.out, "0\n") << closed.err;
    EXPECT_EQ(closed.err, "");
    const ProgramRun full = shell(std::string("'") + DRAFTPROBE_BINARY + "' help >/dev/full");
    EXPECT_EQ(full.exit, 2);
    EXPECT_THAT(full.err, HasSubstr("draftprobe: standard output: "));
}

}  // namespace
}  // namespace draftprobe
