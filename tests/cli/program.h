// Runs the real executable in a directory of its own and keeps what it said. For tests only.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/test_directory.h"

namespace draftprobe {

inline std::string slurp(const std::filesystem::path& path) {
    std::ifstream file(path, std::ios::binary);
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
}

inline void spill(const std::filesystem::path& path, const std::string& text) {
    std::ofstream(path, std::ios::binary) << text;
}

inline std::string golden(const std::string& name) {
    return std::string(DRAFTPROBE_SOURCE_DIR) + "/tests/golden/" + name;
}

struct ProgramRun {
    int exit = -1;
    std::string out;
    std::string err;
};

class ProgramTest : public ::testing::Test {
protected:
    // `words` go through the shell, after the program's name; the working directory is the test's own.
    ProgramRun run(const std::string& words) const {
        return shell(std::string("'") + DRAFTPROBE_BINARY + "' " + words);
    }

    ProgramRun shell(const std::string& command) const {
        TestDirectory streams;
        const std::string line = "cd '" + directory_.path().string() + "' && { " + command + "; } >'" +
                                 (streams / "out").string() + "' 2>'" + (streams / "err").string() + "'";
        const int status = std::system(line.c_str());
        ProgramRun result;
        result.exit = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
        result.out = slurp(streams / "out");
        result.err = slurp(streams / "err");
        return result;
    }

    std::filesystem::path path(const std::string& name) const { return directory_ / name; }
    bool present(const std::string& name) const { return std::filesystem::exists(path(name)); }

    // Names in the working directory, hidden ones included, sorted.
    std::vector<std::string> names() const {
        std::vector<std::string> found;
        for (const auto& entry : std::filesystem::directory_iterator(directory_.path())) {
            found.push_back(entry.path().filename().string());
        }
        std::sort(found.begin(), found.end());
        return found;
    }

    // ids.json: `count` ids below 240 without a visible period.
    void write_ids(std::size_t count) const {
        std::string text = "[";
        std::uint32_t state = 7;
        for (std::size_t i = 0; i < count; ++i) {
            state = state * 1664525u + 1013904223u;
            text += (i == 0 ? "" : ",") + std::to_string((state >> 16) % 240);
        }
        spill(path("ids.json"), text + "]\n");
    }

    // A copy of a golden checkpoint that a test may damage.
    std::filesystem::path copy_golden(const std::string& name, const std::string& as) const {
        std::filesystem::create_directory(path(as));
        for (const char* file : {"config.json", "model.safetensors"}) {
            std::filesystem::copy_file(golden(name) + "/" + file, path(as) / file);
        }
        return path(as);
    }

    static std::string pair(const std::string& target = golden("target-r2")) {
        return "--target '" + target + "' --draft '" + golden("draft-w64") + "' --threads 2 ";
    }

private:
    TestDirectory directory_;
};

// Exactly one JSON object with one line feed at its end.
inline Json parsed(const std::string& text) {
    auto json = parse_json(text, "standard output");
    EXPECT_TRUE(json.ok()) << json.status().message() << "\n" << text;
    return json.ok() ? json.value() : Json();
}

// One paragraph from this program.
inline void expect_message(const ProgramRun& run, const std::vector<std::string>& parts) {
    EXPECT_EQ(run.out, "");
    EXPECT_TRUE(run.err.rfind("draftprobe: ", 0) == 0) << run.err;
    for (const std::string& part : parts) EXPECT_THAT(run.err, ::testing::HasSubstr(part));
    const std::size_t last = run.err.rfind("draftprobe: ");
    EXPECT_EQ(run.err.find('\n', last), run.err.size() - 1) << run.err;
}

}  // namespace draftprobe
