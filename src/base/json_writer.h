// JSON with fixed bytes: the same calls give the same text on every machine and locale.
//
// Numbers: integers up to 2^53 in magnitude are JSON numbers, larger ones decimal strings; float and double are the
// shortest decimal that reads back to the same bits (a float is never widened first), negative zero is -0.0; NaN and
// the infinities are the strings "NaN", "Infinity", "-Infinity" (NaN payloads and signs are not kept). Strings: UTF-8;
// bytes that are not UTF-8 become U+FFFD one by one, so the text is always valid JSON. json.h has the readers.
#pragma once

#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace draftprobe {

// Writes into its own string. Calls must form one value (or, after take(), one value each time); a wrong order of calls
// is a bug and asserts. compact: no white space at all. pretty: 2 spaces of indent, one member a line, empty containers
// as {}.
class JsonWriter {
public:
    enum class Style { compact, pretty };
    explicit JsonWriter(Style style = Style::compact) : style_(style) {}

    JsonWriter& begin_object();
    JsonWriter& end_object();
    JsonWriter& begin_array();
    JsonWriter& end_array();
    JsonWriter& key(std::string_view name);  // the caller never repeats a key within one object

    JsonWriter& value(std::string_view text);
    JsonWriter& value(const std::string& text) { return value(std::string_view(text)); }
    JsonWriter& value(const char* text) { return value(std::string_view(text)); }
    JsonWriter& value(bool flag);
    JsonWriter& value(float number);
    JsonWriter& value(double number);
    template <std::integral T>
    JsonWriter& value(T number) {
        if constexpr (std::signed_integral<T>) {
            return signed_value(static_cast<std::int64_t>(number));
        } else {
            return unsigned_value(static_cast<std::uint64_t>(number));
        }
    }
    JsonWriter& null();

    // At most `significant` digits (1..17), as printf's %g: for reports, where the last bits are noise.
    JsonWriter& value_rounded(double number, int significant = 6);

    // One already serialised JSON value, taken as it is.
    JsonWriter& raw(std::string_view json);

    template <typename T>
    JsonWriter& member(std::string_view name, const T& v) {
        key(name);
        return value(v);
    }

    // The text so far. Complete when depth() is 0.
    const std::string& text() const { return out_; }
    std::size_t depth() const { return open_.size(); }
    // Gives up the text of one complete value and makes the writer empty again.
    std::string take();

private:
    struct Level {
        bool object = false;
        bool empty = true;
    };

    JsonWriter& signed_value(std::int64_t number);
    JsonWriter& unsigned_value(std::uint64_t number);
    void before_value();
    void line_break();
    void put_string(std::string_view text);

    Style style_;
    std::string out_;
    std::vector<Level> open_;
    bool after_key_ = false;
};

}  // namespace draftprobe
