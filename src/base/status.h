// Errors as values. Nothing below cli/ prints, exits or throws across a folder boundary: a function that can
// fail returns Status or Result<T>, and the caller decides.
//
// A code says who must act. A message says subject, found, expected, place and next step, in one paragraph.
// Context is added going up (`with_context`), never rewritten.
#pragma once

#include <cassert>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

namespace draftprobe {

enum class StatusCode {
    ok,
    invalid_argument,  // the caller asked for something that makes no sense
    not_found,         // a file, tensor, lane or key that does not exist
    unsupported,       // valid input that this program does not serve
    corrupt,           // bytes break the rules of their format
    mismatch,          // two valid things do not belong together
    exhausted,         // memory, disk, pages or a stated limit ran out
    io,                // the operating system refused a file operation
    internal,          // our bug
};

// The code's name as printed in messages and JSON, for example "invalid_argument".
std::string_view status_code_name(StatusCode code);

class [[nodiscard]] Status {
public:
    Status() = default;  // ok
    Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}

    bool ok() const { return code_ == StatusCode::ok; }
    StatusCode code() const { return code_; }
    const std::string& message() const { return message_; }

    // The same status with "context: " put before its message. No effect on ok.
    Status with_context(std::string_view context) const;

private:
    StatusCode code_ = StatusCode::ok;
    std::string message_;
};

Status invalid_argument(std::string message);
Status not_found(std::string message);
Status unsupported(std::string message);
Status corrupt(std::string message);
Status mismatch(std::string message);
Status exhausted(std::string message);
Status io_error(std::string message);
Status internal_error(std::string message);

// A value or the status that explains its absence. A Result is never built from an ok Status.
template <typename T>
class [[nodiscard]] Result {
public:
    Result(T value) : held_(std::move(value)) {}  // NOLINT: implicit by design
    Result(Status status) : held_(std::move(status)) { assert(!std::get<Status>(held_).ok()); }

    bool ok() const { return std::holds_alternative<T>(held_); }
    Status status() const { return ok() ? Status() : std::get<Status>(held_); }

    // Requires ok().
    T& value() & { return std::get<T>(held_); }
    const T& value() const& { return std::get<T>(held_); }
    T&& value() && { return std::get<T>(std::move(held_)); }
    T& operator*() & { return value(); }
    const T& operator*() const& { return value(); }
    T* operator->() { return &value(); }
    const T* operator->() const { return &value(); }

private:
    std::variant<T, Status> held_;
};

}  // namespace draftprobe

// Returns the status of `expr` from the enclosing function when it is not ok.
#define DP_RETURN_IF_ERROR(expr)                  \
    do {                                          \
        ::draftprobe::Status dp_status_ = (expr); \
        if (!dp_status_.ok()) return dp_status_;  \
    } while (0)

#define DP_CONCAT_INNER(a, b) a##b
#define DP_CONCAT(a, b) DP_CONCAT_INNER(a, b)

// `DP_ASSIGN_OR_RETURN(auto x, f());`: binds the value, or returns the status.
#define DP_ASSIGN_OR_RETURN(decl, expr) DP_ASSIGN_OR_RETURN_IMPL(DP_CONCAT(dp_result_, __LINE__), decl, expr)
#define DP_ASSIGN_OR_RETURN_IMPL(tmp, decl, expr) \
    auto tmp = (expr);                            \
    if (!tmp.ok()) return tmp.status();           \
    decl = std::move(tmp).value()
