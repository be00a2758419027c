#include "base/json.h"

#include <fmt/format.h>

#include <array>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstring>
#include <iterator>
#include <utility>

#include "base/files.h"
#include "base/utf8.h"

namespace draftprobe {
namespace {

// Characters of the document that count how many the parser has taken: the SAX interface tells no position for keys.
class CountingIterator {
public:
    using iterator_category = std::input_iterator_tag;
    using value_type = char;
    using difference_type = std::ptrdiff_t;
    using pointer = const char*;
    using reference = const char&;

    CountingIterator(const char* at, const char** furthest) : at_(at), furthest_(furthest) {}
    reference operator*() const { return *at_; }
    CountingIterator& operator++() {
        *furthest_ = ++at_;
        return *this;
    }
    CountingIterator operator++(int) {
        CountingIterator old = *this;
        ++*this;
        return old;
    }
    bool operator==(const CountingIterator& other) const { return at_ == other.at_; }
    bool operator!=(const CountingIterator& other) const { return at_ != other.at_; }

private:
    const char* at_;
    const char** furthest_;
};

// Builds the value, iteratively: nesting costs no call stack.
class Builder final : public nlohmann::json_sax<Json> {
public:
    Builder(std::string_view text, const char* const* furthest) : text_(text), furthest_(furthest) {}

    bool null() override { return put(nullptr); }
    bool boolean(bool flag) override { return put(flag); }
    bool number_integer(number_integer_t number) override { return put(number); }
    bool number_unsigned(number_unsigned_t number) override { return put(number); }
    bool number_float(number_float_t number, const string_t&) override { return put(number); }
    bool string(string_t& text) override { return put(std::move(text)); }
    bool binary(binary_t&) override { return refuse(StatusCode::corrupt, "binary value"); }

    bool start_object(std::size_t) override { return open(Json::object()); }
    bool end_object() override { return close(); }
    bool start_array(std::size_t) override { return open(Json::array()); }
    bool end_array() override { return close(); }

    bool key(string_t& name) override {
        Json& object = *open_.back();
        const auto [slot, added] = object.get_ref<Json::object_t&>().emplace(std::move(name), nullptr);
        if (!added) {
            return refuse(StatusCode::corrupt, fmt::format("duplicate key {}, expected each key once in an object",
                                                           quoted_excerpt(slot->first)));
        }
        member_ = &slot->second;
        return true;
    }

    bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception& error) override {
        // "[json.exception.parse_error.101] parse error at line 1, column 2: what is wrong; last read: 'token'"
        std::string_view what = error.what();
        if (const std::size_t end = what.find("] "); end != std::string_view::npos) what.remove_prefix(end + 2);
        if (const std::size_t colon = what.find(": "); colon != std::string_view::npos) what.remove_prefix(colon + 2);
        if (const std::size_t token = what.find("; last read: "); token != std::string_view::npos) {
            what = what.substr(0, token);
        }
        if (what.size() > 160) what = what.substr(0, 160);
        status_ = Status(StatusCode::corrupt,
                         fmt::format("byte {}: {}", position == 0 ? 0 : position - 1,
                                     utf8_first_error(what) ? std::string_view("text that is not UTF-8") : what));
        return false;
    }

    Json take() { return std::move(root_); }
    const Status& status() const { return status_; }

private:
    template <typename T>
    Json* place(T&& value) {
        if (++values_ > kMaxJsonValues) {
            refuse(StatusCode::exhausted, fmt::format("more than {} values", kMaxJsonValues));
            return nullptr;
        }
        if (open_.empty()) {
            root_ = Json(std::forward<T>(value));
            return &root_;
        }
        if (open_.back()->is_object()) {
            *member_ = Json(std::forward<T>(value));
            return member_;
        }
        auto& array = open_.back()->get_ref<Json::array_t&>();
        array.emplace_back(std::forward<T>(value));
        return &array.back();
    }

    template <typename T>
    bool put(T&& value) {
        return place(std::forward<T>(value)) != nullptr;
    }

    // A container never moves while it is open: its parent grows only after it is closed.
    bool open(Json container) {
        if (open_.size() == static_cast<std::size_t>(kMaxJsonDepth)) {
            return refuse(StatusCode::corrupt, fmt::format("nesting deeper than {} levels", kMaxJsonDepth));
        }
        Json* placed = place(std::move(container));
        if (placed == nullptr) return false;
        open_.push_back(placed);
        return true;
    }

    bool close() {
        open_.pop_back();
        return true;
    }

    bool refuse(StatusCode code, std::string_view what) {
        const std::ptrdiff_t taken = *furthest_ - text_.data();
        status_ = Status(code, fmt::format("byte {}: {}", taken > 0 ? taken - 1 : 0, what));
        return false;
    }

    std::string_view text_;
    const char* const* furthest_;
    Json root_;
    std::vector<Json*> open_;
    Json* member_ = nullptr;
    std::size_t values_ = 0;
    Status status_;
};

Status wrong_type(std::string_view subject, std::string_view key, const Json& found, std::string_view expected) {
    std::string shown = found.is_structured() ? std::string(found.type_name())
                        : found.is_string()   ? quoted_excerpt(found.get_ref<const std::string&>())
                                              : found.dump();
    return corrupt(fmt::format("{}: \"{}\" is {}, expected {}", subject, key, shown, expected));
}

Result<const Json*> member(const Json& object, std::string_view key, std::string_view subject,
                           std::string_view expected) {
    const Json* found = json_find(object, key);
    if (found == nullptr) {
        return corrupt(fmt::format("{}: \"{}\" is missing, expected {}", subject, key, expected));
    }
    return found;
}

std::string int_range(std::int64_t min, std::int64_t max) {
    if (min == std::numeric_limits<std::int64_t>::min() && max == std::numeric_limits<std::int64_t>::max()) {
        return "an integer";
    }
    if (max == std::numeric_limits<std::int64_t>::max()) return fmt::format("an integer of at least {}", min);
    return fmt::format("an integer from {} to {}", min, max);
}

std::string float_range(double min, double max) {
    if (min == std::numeric_limits<double>::lowest() && max == std::numeric_limits<double>::max()) return "a number";
    return fmt::format("a number from {} to {}", min, max);
}

std::optional<std::int64_t> exact_int(const Json& value) {
    if (value.is_number_unsigned()) {
        const auto number = value.get<std::uint64_t>();
        if (number > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) return std::nullopt;
        return static_cast<std::int64_t>(number);
    }
    if (value.is_number_integer()) return value.get<std::int64_t>();
    if (value.is_number_float()) {
        const auto number = value.get<double>();
        if (std::trunc(number) == number && std::abs(number) <= 0x1p53) return static_cast<std::int64_t>(number);
    }
    return std::nullopt;
}

Result<std::int64_t> int_in_range(const Json& value, std::string_view key, std::string_view subject, std::int64_t min,
                                  std::int64_t max) {
    const std::optional<std::int64_t> number = exact_int(value);
    if (!number || *number < min || *number > max) return wrong_type(subject, key, value, int_range(min, max));
    return *number;
}

// `text` as digits in canonical form: "0", or no leading zero.
template <typename T>
std::optional<T> canonical_integer(std::string_view text) {
    T number = 0;
    const auto end = std::from_chars(text.data(), text.data() + text.size(), number);
    if (end.ec != std::errc() || end.ptr != text.data() + text.size()) return std::nullopt;
    if (std::to_string(number) != text) return std::nullopt;
    return number;
}

template <typename T>
std::optional<T> tagged_float(const Json& value) {
    const auto& text = value.get_ref<const std::string&>();
    if (text == "NaN") return std::numeric_limits<T>::quiet_NaN();
    if (text == "Infinity") return std::numeric_limits<T>::infinity();
    if (text == "-Infinity") return -std::numeric_limits<T>::infinity();
    return std::nullopt;
}

Status not_exact(std::string_view subject, const Json& value, std::string_view expected) {
    return corrupt(fmt::format("{}: found {}, expected {}", subject,
                               value.is_string()       ? quoted_excerpt(value.get_ref<const std::string&>())
                               : value.is_structured() ? std::string(value.type_name())
                                                       : value.dump(),
                               expected));
}

constexpr std::string_view kExpectedFloat = "a number, \"NaN\", \"Infinity\" or \"-Infinity\"";

// Applies a reader of single values to a member.
template <typename T>
Result<T> exact_member(const Json& object, std::string_view key, std::string_view subject, std::string_view expected,
                       Result<T> (*read)(const Json&, std::string_view)) {
    DP_ASSIGN_OR_RETURN(const Json* found, member(object, key, subject, expected));
    return read(*found, fmt::format("{}: \"{}\"", subject, key));
}

}  // namespace

std::string quoted_excerpt(std::string_view text) {
    constexpr std::size_t kLimit = 80;
    std::string_view head = text;
    if (head.size() > kLimit) {
        head = head.substr(0, kLimit);
        while (!head.empty() && (static_cast<unsigned char>(text[head.size()]) & 0xC0) == 0x80) head.remove_suffix(1);
    }
    JsonWriter writer;
    writer.value(head);
    std::string quoted = writer.take();
    if (head.size() < text.size()) quoted.insert(quoted.size() - 1, "...");
    return quoted;
}

Result<Json> parse_json(std::string_view text, std::string_view subject) {
    constexpr std::string_view kNext =
        "expected one complete JSON document in UTF-8; the file may be cut short or damaged";
    const auto fail = [&](const Status& status) {
        return Status(status.code(), fmt::format("{}: {}; {}", subject, status.message(), kNext));
    };
    // The parser takes a NUL byte for the end of the text, and would not see what follows.
    if (const std::size_t nul = text.find('\0'); nul != std::string_view::npos) {
        return fail(corrupt(fmt::format("byte {}: NUL byte", nul)));
    }
    const char* furthest = text.data();
    Builder builder(text, &furthest);
    const CountingIterator first(text.data(), &furthest);
    const CountingIterator last(text.data() + text.size(), &furthest);
    if (!Json::sax_parse(first, last, &builder, nlohmann::detail::input_format_t::json, /*strict=*/true)) {
        return fail(builder.status());
    }
    return builder.take();
}

Result<Json> parse_json_file(const std::filesystem::path& path, std::uint64_t max_bytes) {
    DP_ASSIGN_OR_RETURN(const std::string text, read_text_file(path, max_bytes));
    return parse_json(text, path.string());
}

const Json* json_find(const Json& object, std::string_view key) {
    if (!object.is_object()) return nullptr;
    const auto& members = object.get_ref<const Json::object_t&>();
    const auto found = members.find(key);
    return found == members.end() || found->second.is_null() ? nullptr : &found->second;
}

Result<std::int64_t> json_get_int(const Json& object, std::string_view key, std::string_view subject, std::int64_t min,
                                  std::int64_t max) {
    DP_ASSIGN_OR_RETURN(const Json* found, member(object, key, subject, int_range(min, max)));
    return int_in_range(*found, key, subject, min, max);
}

Result<double> json_get_float(const Json& object, std::string_view key, std::string_view subject, double min,
                              double max) {
    DP_ASSIGN_OR_RETURN(const Json* found, member(object, key, subject, float_range(min, max)));
    if (!found->is_number()) return wrong_type(subject, key, *found, float_range(min, max));
    const auto number = found->get<double>();
    if (!(number >= min && number <= max)) return wrong_type(subject, key, *found, float_range(min, max));
    return number;
}

Result<bool> json_get_bool(const Json& object, std::string_view key, std::string_view subject) {
    DP_ASSIGN_OR_RETURN(const Json* found, member(object, key, subject, "true or false"));
    if (!found->is_boolean()) return wrong_type(subject, key, *found, "true or false");
    return found->get<bool>();
}

Result<std::string> json_get_string(const Json& object, std::string_view key, std::string_view subject) {
    DP_ASSIGN_OR_RETURN(const Json* found, member(object, key, subject, "a string"));
    if (!found->is_string()) return wrong_type(subject, key, *found, "a string");
    return found->get<std::string>();
}

Result<const Json*> json_get_array(const Json& object, std::string_view key, std::string_view subject) {
    DP_ASSIGN_OR_RETURN(const Json* found, member(object, key, subject, "an array"));
    if (!found->is_array()) return wrong_type(subject, key, *found, "an array");
    return found;
}

Result<const Json*> json_get_object(const Json& object, std::string_view key, std::string_view subject) {
    DP_ASSIGN_OR_RETURN(const Json* found, member(object, key, subject, "an object"));
    if (!found->is_object()) return wrong_type(subject, key, *found, "an object");
    return found;
}

Result<std::vector<std::int64_t>> json_get_int_array(const Json& object, std::string_view key, std::string_view subject,
                                                     std::int64_t min, std::int64_t max, std::size_t max_count) {
    DP_ASSIGN_OR_RETURN(const Json* array, json_get_array(object, key, subject));
    if (array->size() > max_count) {
        return corrupt(
            fmt::format("{}: \"{}\" has {} entries, expected at most {}", subject, key, array->size(), max_count));
    }
    std::vector<std::int64_t> numbers;
    numbers.reserve(array->size());
    for (const Json& entry : *array) {
        DP_ASSIGN_OR_RETURN(const std::int64_t number,
                            int_in_range(entry, fmt::format("{}[{}]", key, numbers.size()), subject, min, max));
        numbers.push_back(number);
    }
    return numbers;
}

Result<std::int64_t> json_int_or(const Json& object, std::string_view key, std::string_view subject,
                                 std::int64_t fallback, std::int64_t min, std::int64_t max) {
    if (json_find(object, key) == nullptr) return fallback;
    return json_get_int(object, key, subject, min, max);
}

Result<double> json_float_or(const Json& object, std::string_view key, std::string_view subject, double fallback,
                             double min, double max) {
    if (json_find(object, key) == nullptr) return fallback;
    return json_get_float(object, key, subject, min, max);
}

Result<bool> json_bool_or(const Json& object, std::string_view key, std::string_view subject, bool fallback) {
    if (json_find(object, key) == nullptr) return fallback;
    return json_get_bool(object, key, subject);
}

Result<std::string> json_string_or(const Json& object, std::string_view key, std::string_view subject,
                                   std::string_view fallback) {
    if (json_find(object, key) == nullptr) return std::string(fallback);
    return json_get_string(object, key, subject);
}

Result<const Json*> json_array_or_null(const Json& object, std::string_view key, std::string_view subject) {
    if (json_find(object, key) == nullptr) return nullptr;
    return json_get_array(object, key, subject);
}

Result<const Json*> json_object_or_null(const Json& object, std::string_view key, std::string_view subject) {
    if (json_find(object, key) == nullptr) return nullptr;
    return json_get_object(object, key, subject);
}

Result<double> json_to_f64(const Json& value, std::string_view subject) {
    if (value.is_number()) return value.get<double>();
    if (value.is_string()) {
        if (const auto number = tagged_float<double>(value)) return *number;
    }
    return not_exact(subject, value, kExpectedFloat);
}

// Decimal to double to float rounds twice. That goes wrong only when the double lies exactly between two floats, and of
// the shortest decimals of all finite floats exactly one does that: 7.038531e-26 (found by trying all 2^31 of one
// sign).
float narrow_shortest(double number) {
    constexpr double kMax = std::numeric_limits<float>::max();
    const auto nearest = static_cast<float>(std::fmax(-kMax, std::fmin(kMax, number)));  // 3.4028235e+38 is above kMax
    constexpr std::uint64_t kDropped = (std::uint64_t{1} << 29) - 1;  // bits of a double below a float's last
    if ((std::bit_cast<std::uint64_t>(number) & kDropped) != (kDropped >> 1) + 1) return nearest;
    const float toward = number > static_cast<double>(nearest) ? std::numeric_limits<float>::infinity()
                                                               : -std::numeric_limits<float>::infinity();
    const float other = std::nextafterf(nearest, toward);
    std::array<char, 64> text{};
    const auto end = std::to_chars(text.data(), text.data() + text.size(), other);
    double read = 0;
    std::from_chars(text.data(), end.ptr, read);
    return read == number ? other : nearest;
}

Result<float> json_to_f32(const Json& value, std::string_view subject) {
    constexpr double kRoundsToInfinity = 0x1.ffffffp127;  // half a step above the largest float
    if (value.is_number_integer()) {
        return value.is_number_unsigned() ? static_cast<float>(value.get<std::uint64_t>())
                                          : static_cast<float>(value.get<std::int64_t>());
    }
    if (value.is_number()) {
        const auto number = value.get<double>();
        if (std::abs(number) < kRoundsToInfinity) return narrow_shortest(number);
        return not_exact(subject, value, "a number in the range of float32");
    }
    if (value.is_string()) {
        if (const auto number = tagged_float<float>(value)) return *number;
    }
    return not_exact(subject, value, kExpectedFloat);
}

Result<std::uint64_t> json_to_u64(const Json& value, std::string_view subject) {
    if (value.is_number_unsigned()) return value.get<std::uint64_t>();
    if (value.is_string()) {
        if (const auto number = canonical_integer<std::uint64_t>(value.get_ref<const std::string&>())) return *number;
    }
    return not_exact(subject, value, "an integer from 0 to 2^64-1, or its decimal digits in a string");
}

Result<std::int64_t> json_to_i64(const Json& value, std::string_view subject) {
    if (value.is_number_integer()) {
        if (const auto number = exact_int(value)) return *number;
    }
    if (value.is_string()) {
        if (const auto number = canonical_integer<std::int64_t>(value.get_ref<const std::string&>())) return *number;
    }
    return not_exact(subject, value, "an integer from -2^63 to 2^63-1, or its decimal digits in a string");
}

Result<float> json_get_f32(const Json& object, std::string_view key, std::string_view subject) {
    return exact_member<float>(object, key, subject, kExpectedFloat, &json_to_f32);
}

Result<double> json_get_f64(const Json& object, std::string_view key, std::string_view subject) {
    return exact_member<double>(object, key, subject, kExpectedFloat, &json_to_f64);
}

Result<std::uint64_t> json_get_u64(const Json& object, std::string_view key, std::string_view subject) {
    return exact_member<std::uint64_t>(object, key, subject, "an integer", &json_to_u64);
}

Result<std::int64_t> json_get_i64(const Json& object, std::string_view key, std::string_view subject) {
    return exact_member<std::int64_t>(object, key, subject, "an integer", &json_to_i64);
}

}  // namespace draftprobe
