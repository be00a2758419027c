// What target and draft configurations have in common: bounds of their numbers and checks of their shared keys.
// Internal to formats.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/status.h"

namespace draftprobe::config_fields {

// Far above any released model, and low enough that products of a few of them stay exact (see model_config.h).
inline constexpr std::int64_t kMaxHidden = std::int64_t{1} << 17;
inline constexpr std::int64_t kMaxIntermediate = std::int64_t{1} << 20;
inline constexpr std::int64_t kMaxVocab = std::int64_t{1} << 22;
inline constexpr std::int64_t kMaxLayers = 1024;
inline constexpr std::int64_t kMaxHeads = 1024;
inline constexpr std::int64_t kMaxHeadDim = 1024;
inline constexpr std::int64_t kMaxPositions = std::int64_t{1} << 31;
inline constexpr std::uint64_t kMaxConfigBytes = 16u << 20;  // per-module overrides make a megabyte at most

// "architectures", which may be absent.
Result<std::vector<std::string>> architectures(const Json& config, std::string_view subject);

// `dividend` must be a multiple of `divisor` (both positive). Error: corrupt.
Status check_multiple(std::string_view subject, std::string_view dividend_name, std::int64_t dividend,
                      std::string_view divisor_name, std::int64_t divisor);

// hidden_act must be silu and attention_bias false where they are stated. Error: unsupported.
Status check_plain_block(const Json& config, std::string_view subject);

// rope_theta (required) and the rope type (absent or "default") from rope_parameters, rope_scaling and the object
// itself. Errors: corrupt, unsupported, mismatch.
Result<double> rope_theta(const Json& config, std::string_view subject);

Result<double> rms_norm_eps(const Json& config, std::string_view subject);

}  // namespace draftprobe::config_fields
