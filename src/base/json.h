// Reading JSON that may be hostile, and writing JSON whose bytes are fixed.
//
// Reader: RFC 8259 in UTF-8, stricter in that a key may stand once per object, and with bounds on nesting and on the
// number of values. Writer (base/json_writer.h): compact, keys in call order, float32 as the shortest decimal that
// reads back to the same bits.
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/json_fwd.h"
#include "base/json_writer.h"
#include "base/status.h"

namespace draftprobe {

inline constexpr int kMaxJsonDepth = 64;
inline constexpr std::size_t kMaxJsonValues = 8'000'000;  // about 248 k tokens and their merges, ten times over

// Parses one document that fills `text`. `subject` names the input in messages, normally its path.
// Errors: corrupt, with the byte offset, for any syntax error, duplicate key, trailing byte, invalid UTF-8, number
// outside the finite doubles, or nesting deeper than kMaxJsonDepth; exhausted beyond kMaxJsonValues.
Result<Json> parse_json(std::string_view text, std::string_view subject);

// The same for a regular file of at most max_bytes. Errors also: not_found, io, exhausted (too large).
Result<Json> parse_json_file(const std::filesystem::path& path, std::uint64_t max_bytes);

// Untrusted text for a message: a JSON string literal on one line, cut after about 80 bytes.
std::string quoted_excerpt(std::string_view text);

// The member `key`, or null when it is absent or JSON null. `object` may be any value; a non-object has no members.
const Json* json_find(const Json& object, std::string_view key);

// Typed members. Absent, null, of another type, or outside [min, max] (both ends allowed) is `corrupt`, with subject,
// key, found and expected. An integer may be written as 8 or 8.0, never as a string; a float may be written as an
// integer.
Result<std::int64_t> json_get_int(const Json& object, std::string_view key, std::string_view subject,
                                  std::int64_t min = std::numeric_limits<std::int64_t>::min(),
                                  std::int64_t max = std::numeric_limits<std::int64_t>::max());
Result<double> json_get_float(const Json& object, std::string_view key, std::string_view subject,
                              double min = std::numeric_limits<double>::lowest(),
                              double max = std::numeric_limits<double>::max());
Result<bool> json_get_bool(const Json& object, std::string_view key, std::string_view subject);
Result<std::string> json_get_string(const Json& object, std::string_view key, std::string_view subject);
// Pointers into `object`, never null; valid while it lives unchanged.
Result<const Json*> json_get_array(const Json& object, std::string_view key, std::string_view subject);
Result<const Json*> json_get_object(const Json& object, std::string_view key, std::string_view subject);
// An array of integers, each in [min, max], at most max_count of them.
Result<std::vector<std::int64_t>> json_get_int_array(const Json& object, std::string_view key, std::string_view subject,
                                                     std::int64_t min, std::int64_t max, std::size_t max_count);

// Optional members: absent or null gives `fallback`; present but wrong is still an error.
Result<std::int64_t> json_int_or(const Json& object, std::string_view key, std::string_view subject,
                                 std::int64_t fallback, std::int64_t min = std::numeric_limits<std::int64_t>::min(),
                                 std::int64_t max = std::numeric_limits<std::int64_t>::max());
Result<double> json_float_or(const Json& object, std::string_view key, std::string_view subject, double fallback,
                             double min = std::numeric_limits<double>::lowest(),
                             double max = std::numeric_limits<double>::max());
Result<bool> json_bool_or(const Json& object, std::string_view key, std::string_view subject, bool fallback);
Result<std::string> json_string_or(const Json& object, std::string_view key, std::string_view subject,
                                   std::string_view fallback);
// Null pointer when absent or null.
Result<const Json*> json_array_or_null(const Json& object, std::string_view key, std::string_view subject);
Result<const Json*> json_object_or_null(const Json& object, std::string_view key, std::string_view subject);

// Values as JsonWriter writes them, read back exactly. `subject` names the value in messages. Errors: corrupt.
// Floats: a number, or "NaN" (the quiet NaN with positive sign), "Infinity", "-Infinity".
Result<float> json_to_f32(const Json& value, std::string_view subject);
Result<double> json_to_f64(const Json& value, std::string_view subject);
// Integers: a JSON integer, or a canonical decimal string (no sign +, no leading zero).
Result<std::uint64_t> json_to_u64(const Json& value, std::string_view subject);
Result<std::int64_t> json_to_i64(const Json& value, std::string_view subject);

// The float whose shortest decimal, read as a double, is `number`: what a reader of JsonWriter's floats does when its
// parser has already made a double. The nearest float for any other number in range. Requires |number| < 2^128 - 2^103.
float narrow_shortest(double number);

// Member forms of the same. Absent or null is corrupt.
Result<float> json_get_f32(const Json& object, std::string_view key, std::string_view subject);
Result<double> json_get_f64(const Json& object, std::string_view key, std::string_view subject);
Result<std::uint64_t> json_get_u64(const Json& object, std::string_view key, std::string_view subject);
Result<std::int64_t> json_get_i64(const Json& object, std::string_view key, std::string_view subject);

}  // namespace draftprobe
