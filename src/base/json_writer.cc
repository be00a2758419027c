#include "base/json_writer.h"

#include <array>
#include <cassert>
#include <charconv>
#include <cmath>
#include <utility>

#include "base/utf8.h"

namespace draftprobe {
namespace {

constexpr std::uint64_t kExactInteger = std::uint64_t{1} << 53;  // doubles hold every integer up to here

// std::to_chars without a precision is the shortest text that reads back to the same bits of T.
template <typename T>
void append_float(std::string& out, T number) {
    if (std::isnan(number)) {
        out += "\"NaN\"";
    } else if (std::isinf(number)) {
        out += number > 0 ? "\"Infinity\"" : "\"-Infinity\"";
    } else if (number == 0 && std::signbit(number)) {
        out += "-0.0";  // "-0" would be read as the integer zero
    } else {
        std::array<char, 64> buffer{};
        const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), number);
        assert(end.ec == std::errc());
        out.append(buffer.data(), end.ptr);
    }
}

}  // namespace

void JsonWriter::line_break() {
    out_ += '\n';
    out_.append(2 * open_.size(), ' ');
}

void JsonWriter::before_value() {
    if (after_key_) {
        after_key_ = false;
        return;
    }
    if (open_.empty()) {
        assert(out_.empty() && "a JSON text is one value");
        return;
    }
    assert(!open_.back().object && "a member needs a key first");
    if (!open_.back().empty) out_ += ',';
    open_.back().empty = false;
    if (style_ == Style::pretty) line_break();
}

JsonWriter& JsonWriter::begin_object() {
    before_value();
    out_ += '{';
    open_.push_back({true, true});
    return *this;
}

JsonWriter& JsonWriter::end_object() {
    assert(!open_.empty() && open_.back().object && !after_key_);
    const bool empty = open_.back().empty;
    open_.pop_back();
    if (!empty && style_ == Style::pretty) line_break();
    out_ += '}';
    return *this;
}

JsonWriter& JsonWriter::begin_array() {
    before_value();
    out_ += '[';
    open_.push_back({false, true});
    return *this;
}

JsonWriter& JsonWriter::end_array() {
    assert(!open_.empty() && !open_.back().object && !after_key_);
    const bool empty = open_.back().empty;
    open_.pop_back();
    if (!empty && style_ == Style::pretty) line_break();
    out_ += ']';
    return *this;
}

JsonWriter& JsonWriter::key(std::string_view name) {
    assert(!open_.empty() && open_.back().object && !after_key_);
    if (!open_.back().empty) out_ += ',';
    open_.back().empty = false;
    if (style_ == Style::pretty) line_break();
    put_string(name);
    out_ += style_ == Style::pretty ? ": " : ":";
    after_key_ = true;
    return *this;
}

JsonWriter& JsonWriter::value(std::string_view text) {
    before_value();
    put_string(text);
    return *this;
}

JsonWriter& JsonWriter::value(bool flag) { return raw(flag ? "true" : "false"); }

JsonWriter& JsonWriter::null() { return raw("null"); }

JsonWriter& JsonWriter::raw(std::string_view json) {
    before_value();
    out_ += json;
    return *this;
}

JsonWriter& JsonWriter::value(float number) {
    before_value();
    append_float(out_, number);
    return *this;
}

JsonWriter& JsonWriter::value(double number) {
    before_value();
    append_float(out_, number);
    return *this;
}

JsonWriter& JsonWriter::value_rounded(double number, int significant) {
    assert(significant >= 1 && significant <= 17);
    before_value();
    if (!std::isfinite(number) || number == 0) {
        append_float(out_, number);
        return *this;
    }
    std::array<char, 64> buffer{};
    const auto end =
        std::to_chars(buffer.data(), buffer.data() + buffer.size(), number, std::chars_format::general, significant);
    assert(end.ec == std::errc());
    out_.append(buffer.data(), end.ptr);
    return *this;
}

JsonWriter& JsonWriter::signed_value(std::int64_t number) {
    const std::uint64_t magnitude =
        number < 0 ? 0 - static_cast<std::uint64_t>(number) : static_cast<std::uint64_t>(number);
    const std::string digits = std::to_string(number);
    return magnitude > kExactInteger ? value(std::string_view(digits)) : raw(digits);
}

JsonWriter& JsonWriter::unsigned_value(std::uint64_t number) {
    const std::string digits = std::to_string(number);
    return number > kExactInteger ? value(std::string_view(digits)) : raw(digits);
}

void JsonWriter::put_string(std::string_view text) {
    static constexpr char kDigits[] = "0123456789abcdef";
    out_ += '"';
    for (std::size_t i = 0; i < text.size();) {
        const auto byte = static_cast<unsigned char>(text[i]);
        if (byte >= 0x80) {
            const std::size_t length = utf8_sequence(text, i);
            if (length == 0) {
                out_ += "\xEF\xBF\xBD";
                ++i;
            } else {
                out_.append(text, i, length);
                i += length;
            }
            continue;
        }
        ++i;
        switch (byte) {
            case '"': out_ += "\\\""; break;
            case '\\': out_ += "\\\\"; break;
            case '\b': out_ += "\\b"; break;
            case '\f': out_ += "\\f"; break;
            case '\n': out_ += "\\n"; break;
            case '\r': out_ += "\\r"; break;
            case '\t': out_ += "\\t"; break;
            default:
                if (byte < 0x20 || byte == 0x7f) {
                    out_ += "\\u00";
                    out_ += kDigits[byte >> 4];
                    out_ += kDigits[byte & 15];
                } else {
                    out_ += static_cast<char>(byte);
                }
        }
    }
    out_ += '"';
}

std::string JsonWriter::take() {
    assert(open_.empty() && !after_key_ && !out_.empty());
    return std::exchange(out_, {});
}

}  // namespace draftprobe
