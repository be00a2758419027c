#include "capture/json_cursor.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cmath>
#include <concepts>
#include <limits>

#include "base/utf8.h"

namespace draftprobe {
namespace {

constexpr std::uint64_t kLargestPlainInteger = std::uint64_t{1} << 53;

// Value of a lower-case hexadecimal digit, 16 or more for everything else.
constexpr std::array<std::uint8_t, 256> kHexDigits = [] {
    std::array<std::uint8_t, 256> table{};
    table.fill(16);
    for (unsigned i = 0; i < 10; ++i) table['0' + i] = static_cast<std::uint8_t>(i);
    for (unsigned i = 0; i < 6; ++i) table['a' + i] = static_cast<std::uint8_t>(10 + i);
    return table;
}();

bool is_digit(char c) { return c >= '0' && c <= '9'; }

void append_utf8(std::string& out, std::uint32_t point) {
    if (point < 0x80) {
        out += static_cast<char>(point);
    } else if (point < 0x800) {
        out += static_cast<char>(0xc0 | (point >> 6));
        out += static_cast<char>(0x80 | (point & 0x3f));
    } else if (point < 0x10000) {
        out += static_cast<char>(0xe0 | (point >> 12));
        out += static_cast<char>(0x80 | ((point >> 6) & 0x3f));
        out += static_cast<char>(0x80 | (point & 0x3f));
    } else {
        out += static_cast<char>(0xf0 | (point >> 18));
        out += static_cast<char>(0x80 | ((point >> 12) & 0x3f));
        out += static_cast<char>(0x80 | ((point >> 6) & 0x3f));
        out += static_cast<char>(0x80 | (point & 0x3f));
    }
}

}  // namespace

void JsonCursor::fail(std::string_view found, std::string_view expected) {
    if (!status_.ok()) return;
    const std::string place = last_key_.empty() ? std::string() : fmt::format(", at key '{}'", last_key_);
    status_ = corrupt(fmt::format("{}{}byte {}{}: found {}, expected {}", subject_, subject_.empty() ? "" : ": ", at_,
                                  place, found, expected));
    at_ = text_.size();
}

std::string JsonCursor::found_here() const {
    if (at_ >= text_.size()) return "the end of the text";
    const auto c = static_cast<unsigned char>(text_[at_]);
    if (c < 0x20 || c >= 0x7f) return fmt::format("byte 0x{:02x}", c);
    return fmt::format("'{}'", static_cast<char>(c));
}

void JsonCursor::skip_space() {
    if (at_ < text_.size() && static_cast<unsigned char>(text_[at_]) > ' ') return;
    while (at_ < text_.size()) {
        const char c = text_[at_];
        if (c != ' ' && c != '\n' && c != '\r' && c != '\t') return;
        ++at_;
    }
}

bool JsonCursor::open_value(char bracket, std::string_view expected) {
    if (!ok()) return false;
    skip_space();
    if (at_ >= text_.size() || text_[at_] != bracket) {
        fail(found_here(), expected);
        return false;
    }
    ++at_;
    return true;
}

void JsonCursor::begin_object() {
    if (open_value('{', "an object")) first_ = true;
}

void JsonCursor::begin_array() {
    if (open_value('[', "an array")) first_ = true;
}

bool JsonCursor::more_elements() {
    if (!ok()) return false;
    skip_space();
    if (at_ < text_.size() && text_[at_] == ']') {
        ++at_;
        first_ = false;
        return false;
    }
    if (!first_) {
        if (at_ >= text_.size() || text_[at_] != ',') {
            fail(found_here(), "',' or ']'");
            return false;
        }
        ++at_;
    }
    first_ = false;
    return true;
}

std::string_view JsonCursor::peek_key() {
    if (key_ready_) return pending_key_;
    if (!ok()) return {};
    skip_space();
    if (at_ < text_.size() && text_[at_] == '}') return {};
    if (!first_) {
        if (at_ >= text_.size() || text_[at_] != ',') {
            fail(found_here(), "',' or '}'");
            return {};
        }
        ++at_;
        skip_space();
    }
    first_ = false;
    const std::string_view key = plain_string();
    if (ok() && key.empty()) fail("an empty key", "a key of this format");
    skip_space();
    if (ok() && (at_ >= text_.size() || text_[at_] != ':')) fail(found_here(), "':'");
    if (!ok()) return {};
    ++at_;
    key_ready_ = true;
    pending_key_ = key;
    return key;
}

bool JsonCursor::take_key_if(std::string_view key) {
    if (key_ready_ || !ok()) return false;
    std::size_t at = at_;
    if (!first_) {
        if (at >= text_.size() || text_[at] != ',') return false;
        ++at;
    }
    if (text_.size() - at < key.size() + 3 || text_[at] != '"' || text_.compare(at + 1, key.size(), key) != 0 ||
        text_[at + 1 + key.size()] != '"' || text_[at + 2 + key.size()] != ':') {
        return false;
    }
    last_key_ = text_.substr(at + 1, key.size());
    at_ = at + key.size() + 3;
    first_ = false;
    return true;
}

void JsonCursor::take_key() {
    if (!ok()) return;
    last_key_ = pending_key_;
    key_ready_ = false;
}

void JsonCursor::end_object() {
    if (!ok()) return;
    const std::string_view key = peek_key();
    if (!ok()) return;
    if (!key.empty()) {
        fail(fmt::format("key '{}'", key), "the end of this object (keys come once, in the documented order)");
        return;
    }
    ++at_;
    first_ = false;
}

// A string without escapes: keys, names and digests never need one.
std::string_view JsonCursor::plain_string() {
    if (!open_value('"', "a string")) return {};
    const std::size_t begin = at_;
    while (at_ < text_.size() && text_[at_] != '"') {
        const auto c = static_cast<unsigned char>(text_[at_]);
        if (c < 0x20 || c >= 0x7f || c == '\\') {
            fail(found_here(), "a plain ASCII string here");
            return {};
        }
        ++at_;
    }
    if (at_ >= text_.size()) {
        fail("the end of the text", "a closing quote");
        return {};
    }
    const std::string_view inside = text_.substr(begin, at_ - begin);
    ++at_;
    return inside;
}

// Scans a number and keeps its digits as one integer, so that the common short numbers need no second pass.
JsonCursor::Number JsonCursor::scan_number() {
    Number number;
    const std::size_t begin = at_;
    const auto digits = [&] {
        const std::size_t from = at_;
        while (at_ < text_.size() && is_digit(text_[at_])) {
            number.digits = number.digits * 10 + static_cast<std::uint64_t>(text_[at_] - '0');
            ++at_;
        }
        return at_ - from;
    };
    if (at_ < text_.size() && text_[at_] == '-') {
        number.negative = true;
        ++at_;
    }
    const bool zero = at_ < text_.size() && text_[at_] == '0';
    const std::size_t whole = digits();
    if (whole == 0 || (zero && whole > 1)) {
        fail(found_here(), "a JSON number");
        return {};
    }
    std::size_t fraction = 0;
    if (at_ < text_.size() && text_[at_] == '.') {
        number.is_integer = false;
        ++at_;
        fraction = digits();
        if (fraction == 0) {
            fail(found_here(), "a digit after the decimal point");
            return {};
        }
    }
    number.is_short = whole + fraction <= 18;
    number.exponent = -static_cast<int>(std::min<std::size_t>(fraction, 1000));
    if (at_ < text_.size() && (text_[at_] == 'e' || text_[at_] == 'E')) {
        number.is_integer = false;
        number.is_short = false;
        ++at_;
        if (at_ < text_.size() && (text_[at_] == '+' || text_[at_] == '-')) ++at_;
        if (digits() == 0) {
            fail(found_here(), "a digit in the exponent");
            return {};
        }
    }
    number.token = text_.substr(begin, at_ - begin);
    return number;
}

std::int64_t JsonCursor::integer(std::int64_t min, std::int64_t max) {
    if (!ok()) return min;
    skip_space();
    const bool quoted = at_ < text_.size() && text_[at_] == '"';
    Number number;
    if (quoted) {
        number.token = plain_string();
    } else {
        number = scan_number();
    }
    if (!ok()) return min;
    const std::string_view token = number.token;
    std::int64_t value = 0;
    bool whole = number.is_integer && token != "-0";
    if (number.is_short && number.is_integer) {
        value = number.negative ? -static_cast<std::int64_t>(number.digits) : static_cast<std::int64_t>(number.digits);
    } else {
        const auto [end, error] = std::from_chars(token.data(), token.data() + token.size(), value);
        whole = whole && error == std::errc() && end == token.data() + token.size();
    }
    const std::uint64_t magnitude =
        value < 0 ? 0 - static_cast<std::uint64_t>(value) : static_cast<std::uint64_t>(value);
    if (!whole || quoted != (magnitude > kLargestPlainInteger) || (quoted && fmt::format("{}", value) != token)) {
        fail(token, "an integer (above 2^53 in quotes, else without)");
        return min;
    }
    if (value < min || value > max) {
        fail(fmt::format("{}", value), fmt::format("an integer in [{}, {}]", min, max));
        return min;
    }
    return value;
}

std::uint64_t JsonCursor::unsigned_integer() {
    if (!ok()) return 0;
    skip_space();
    const bool quoted = at_ < text_.size() && text_[at_] == '"';
    Number number;
    if (quoted) {
        number.token = plain_string();
    } else {
        number = scan_number();
    }
    if (!ok()) return 0;
    const std::string_view token = number.token;
    std::uint64_t value = number.digits;
    bool whole = number.is_integer && !number.negative && !token.empty();
    if (!number.is_short && whole) {
        const auto [end, error] = std::from_chars(token.data(), token.data() + token.size(), value);
        whole = error == std::errc() && end == token.data() + token.size();
    }
    if (!whole || quoted != (value > kLargestPlainInteger) || (quoted && token[0] == '0')) {
        fail(token, "an integer in [0, 2^64) (above 2^53 in quotes, else without)");
        return 0;
    }
    return value;
}

namespace {

// Exact powers of ten in float64.
constexpr double kPowers[] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,  1e8,  1e9,  1e10, 1e11,
                              1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};

// digits / 10^n is correctly rounded when both are exact in float64. Narrowing that to float32 rounds a second time,
// which goes wrong only if the float64 stands exactly between two float32: then the answer is "no", and the caller
// reads slowly.
template <typename T>
bool short_decimal(std::uint64_t digits, int exponent, bool negative, T& value) {
    if (digits > kLargestPlainInteger || exponent < -22) return false;
    const double exact = static_cast<double>(digits) / kPowers[-exponent];
    if constexpr (std::same_as<T, float>) {
        constexpr std::uint64_t kDropped = (std::uint64_t{1} << 29) - 1;
        if ((std::bit_cast<std::uint64_t>(exact) & kDropped) == std::uint64_t{1} << 28) return false;
    }
    value = static_cast<T>(negative ? -exact : exact);
    return true;
}

}  // namespace

template <typename T>
T JsonCursor::floating(std::string_view expected) {
    if (!ok()) return T(0);
    skip_space();
    if (at_ < text_.size() && text_[at_] == '"') {
        const std::string_view tag = plain_string();
        if (tag == "NaN") return std::numeric_limits<T>::quiet_NaN();
        if (tag == "Infinity") return std::numeric_limits<T>::infinity();
        if (tag == "-Infinity") return -std::numeric_limits<T>::infinity();
        fail(fmt::format("\"{}\"", tag), expected);
        return T(0);
    }
    const Number number = scan_number();
    if (!ok()) return T(0);
    T value = 0;
    if (number.is_short && short_decimal(number.digits, number.exponent, number.negative, value)) return value;
    const char* last = number.token.data() + number.token.size();
    const auto [end, error] = std::from_chars(number.token.data(), last, value);
    if (error != std::errc() || end != last || !std::isfinite(value)) {
        fail(number.token, expected);
        return T(0);
    }
    return value;
}

float JsonCursor::f32() { return floating<float>("a float32, or \"NaN\", \"Infinity\", \"-Infinity\""); }
double JsonCursor::f64() { return floating<double>("a float64, or \"NaN\", \"Infinity\", \"-Infinity\""); }

bool JsonCursor::boolean() {
    if (!ok()) return false;
    skip_space();
    if (text_.substr(at_, 4) == "true") {
        at_ += 4;
        return true;
    }
    if (text_.substr(at_, 5) == "false") {
        at_ += 5;
        return false;
    }
    fail(found_here(), "true or false");
    return false;
}

bool JsonCursor::hex4(std::uint32_t& unit) {
    if (text_.size() - at_ < 4) return false;
    const std::string_view token = text_.substr(at_, 4);
    const auto [end, error] = std::from_chars(token.data(), token.data() + 4, unit, 16);
    if (error != std::errc() || end != token.data() + 4) return false;
    at_ += 4;
    return true;
}

// At the character after a backslash.
bool JsonCursor::append_escape(std::string& out) {
    if (at_ >= text_.size()) return false;
    const char c = text_[at_++];
    switch (c) {
        case '"': out += '"'; return true;
        case '\\': out += '\\'; return true;
        case '/': out += '/'; return true;
        case 'b': out += '\b'; return true;
        case 'f': out += '\f'; return true;
        case 'n': out += '\n'; return true;
        case 'r': out += '\r'; return true;
        case 't': out += '\t'; return true;
        case 'u': break;
        default: return false;
    }
    std::uint32_t point = 0;
    if (!hex4(point)) return false;
    if (point >= 0xd800 && point < 0xdc00) {
        std::uint32_t low = 0;
        if (text_.substr(at_, 2) != "\\u") return false;
        at_ += 2;
        if (!hex4(low) || low < 0xdc00 || low > 0xdfff) return false;
        point = 0x10000 + ((point - 0xd800) << 10) + (low - 0xdc00);
    } else if (point >= 0xdc00 && point < 0xe000) {
        return false;
    }
    append_utf8(out, point);
    return true;
}

void JsonCursor::string(std::string& out) {
    out.clear();
    if (!open_value('"', "a string")) return;
    while (at_ < text_.size() && text_[at_] != '"') {
        const char c = text_[at_];
        if (static_cast<unsigned char>(c) < 0x20) {
            fail(found_here(), "no control character inside a string");
            return;
        }
        ++at_;
        if (c != '\\') {
            out += c;
        } else if (!append_escape(out)) {
            fail("a bad escape", "a JSON escape");
            return;
        }
    }
    if (at_ >= text_.size()) {
        fail("the end of the text", "a closing quote");
        return;
    }
    ++at_;
    if (utf8_first_error(out)) fail("bytes that are not UTF-8", "UTF-8");
}

std::string_view JsonCursor::hex_string(std::size_t digits, bool allow_empty) {
    if (!ok()) return {};
    skip_space();
    if (text_.size() - at_ >= digits + 2 && text_[at_] == '"' && text_[at_ + digits + 1] == '"') {
        const std::string_view token = text_.substr(at_ + 1, digits);
        unsigned bad = 0;
        for (char c : token) bad |= kHexDigits[static_cast<unsigned char>(c)];
        if (bad <= 15) {
            at_ += digits + 2;
            return token;
        }
    }
    const std::string_view token = plain_string();
    if (ok() && !(allow_empty && token.empty())) {
        fail(fmt::format("\"{}\"", token.substr(0, 80)), fmt::format("{} lower-case hexadecimal digits", digits));
    }
    return ok() ? token : std::string_view();
}

std::uint64_t JsonCursor::hash16() {
    if (!ok()) return 0;
    skip_space();
    std::uint64_t value = 0;
    unsigned bad = 0;
    if (text_.size() - at_ >= 18) {
        const char* digits = text_.data() + at_ + 1;
        for (int i = 0; i < 16; ++i) {
            const std::uint8_t digit = kHexDigits[static_cast<unsigned char>(digits[i])];
            bad |= digit;
            value = value << 4 | (digit & 15u);
        }
    }
    if (text_.size() - at_ < 18 || bad > 15 || text_[at_] != '"' || text_[at_ + 17] != '"') {
        hex_string(16, false);
        return 0;
    }
    at_ += 18;
    return value;
}

template <typename T, typename Read>
void JsonCursor::array(std::vector<T>& out, Read read) {
    out.clear();
    begin_array();
    while (more_elements()) out.push_back(read());
}

void JsonCursor::unsigned_array(std::vector<std::uint64_t>& out) {
    array(out, [this] { return unsigned_integer(); });
}
void JsonCursor::f32_array(std::vector<float>& out) {
    array(out, [this] { return f32(); });
}
void JsonCursor::f64_array(std::vector<double>& out) {
    array(out, [this] { return f64(); });
}
void JsonCursor::hash16_array(std::vector<std::uint64_t>& out) {
    array(out, [this] { return hash16(); });
}

void JsonCursor::finish() {
    if (!ok()) return;
    skip_space();
    if (at_ != text_.size()) fail(found_here(), "the end of the text");
}

}  // namespace draftprobe
