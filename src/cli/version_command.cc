#include <fmt/format.h>

#include "base/hash.h"
#include "base/json_writer.h"
#include "cli/arguments.h"
#include "cli/console.h"
#include "cli/version.h"

namespace draftprobe::cli {

std::string compiler_name() {
#if defined(__clang__)
    return fmt::format("clang {}.{}.{}", __clang_major__, __clang_minor__, __clang_patchlevel__);
#elif defined(__GNUC__)
    return fmt::format("g++ {}.{}.{}", __GNUC__, __GNUC_MINOR__, __GNUC_PATCHLEVEL__);
#else
    return "unknown";
#endif
}

Result<std::string> build_digest() {
    Result<std::string> digest = sha256_file("/proc/self/exe");
    if (!digest.ok()) return digest.status().with_context("build digest of the running executable");
    return digest;
}

namespace {

Result<int> run_version(const Arguments& arguments, Console& console) {
    DP_ASSIGN_OR_RETURN(const std::string digest, build_digest());
    if (arguments.given("json")) {
        JsonWriter json;
        json.begin_object()
            .member("version", kVersion)
            .member("compiler", compiler_name())
            .member("build_digest", digest)
            .end_object();
        console.out(json.take() + "\n");
    } else {
        console.out(fmt::format("draftprobe {}\ncompiler {}\nbuild {}\n", kVersion, compiler_name(), digest));
    }
    return kExitDone;
}

}  // namespace

const Command kVersionCommand = {
    .bit = kVersionBit,
    .name = "version",
    .brief = "version, compiler and build digest",
    .description =
        "The build digest is the SHA-256 of the running executable. Captures record it; captures of different builds "
        "compare with a warning.",
    .run = run_version,
};

}  // namespace draftprobe::cli
