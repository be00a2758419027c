// A strict pull parser over one JSON text, for documents whose keys come in a fixed order. It builds no tree: the
// caller asks for what must come next, and everything else is an error with its byte offset. Values are read as
// JsonWriter writes them (base/json_writer.h): integers above 2^53 as decimal strings, non-finite floats as tagged
// strings.
//
// Errors stick: after the first one every call returns a harmless value and changes nothing, so a caller may check once
// at the end of a line. Allocation is bounded by the length of the text. One thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace draftprobe {

class JsonCursor {
public:
    // `text` and `subject` are borrowed. `subject` names the document in messages ("steps.jsonl: line 3").
    JsonCursor(std::string_view text, std::string_view subject) : text_(text), subject_(subject) {}

    bool ok() const { return status_.ok(); }
    const Status& status() const { return status_; }

    // Containers. In an array: begin_array(), then while (more_elements()) read one value. In an object:
    // begin_object(), then next_key() as often as wanted (empty when the object is over), each followed by reading its
    // value.
    void begin_object();
    void begin_array();
    bool more_elements();

    // The next key of the open object without consuming it, "" when the object ends here. Stays valid like `text`.
    std::string_view peek_key();
    void take_key();  // consumes the key that peek_key() gave
    // Consumes `key` when it is next and written without white space around it; changes nothing otherwise.
    bool take_key_if(std::string_view key);
    void end_object();  // error when another key follows

    std::int64_t integer(std::int64_t min, std::int64_t max);
    std::uint64_t unsigned_integer();
    float f32();
    double f64();
    bool boolean();
    void string(std::string& out);
    // `digits` lower-case hexadecimal digits in quotes, as a view of the text; with `allow_empty` also "".
    std::string_view hex_string(std::size_t digits, bool allow_empty);
    // The same for the 16 digits of a 64-bit hash, as its value.
    std::uint64_t hash16();

    // Whole arrays: what most of a step line is.
    void unsigned_array(std::vector<std::uint64_t>& out);
    void f32_array(std::vector<float>& out);
    void f64_array(std::vector<double>& out);
    void hash16_array(std::vector<std::uint64_t>& out);

    // Everything was consumed; trailing white space is allowed.
    void finish();

    // Records `corrupt` with subject, the last key, byte offset, and the given words.
    void fail(std::string_view found, std::string_view expected);

private:
    struct Number {
        std::string_view token;
        std::uint64_t digits = 0;  // of the whole and the fraction, when is_short
        int exponent = 0;          // value = digits * 10^exponent, when is_short
        bool negative = false;
        bool is_integer = true;
        bool is_short = false;  // at most 18 digits, no exponent
    };

    void skip_space();
    bool open_value(char bracket, std::string_view expected);
    Number scan_number();
    std::string_view plain_string();
    template <typename T, typename Read>
    void array(std::vector<T>& out, Read read);
    template <typename T>
    T floating(std::string_view expected);
    bool append_escape(std::string& out);
    bool hex4(std::uint32_t& unit);
    std::string found_here() const;

    std::string_view text_;
    std::string_view subject_;
    std::string_view last_key_;
    std::string_view pending_key_;
    std::size_t at_ = 0;
    bool first_ = false;  // just after an opening bracket
    bool key_ready_ = false;
    Status status_;
};

}  // namespace draftprobe
