// Facts about the machine and this process that a measurement states beside its numbers.
#pragma once

#include <cstdint>
#include <string>

namespace draftprobe::bench {

std::string cpu_name();          // "unknown" when the system does not say
std::uint64_t peak_rss_bytes();  // of this process so far
unsigned hardware_threads();     // at least 1

}  // namespace draftprobe::bench
