#include "base/status.h"

namespace draftprobe {

std::string_view status_code_name(StatusCode code) {
    switch (code) {
        case StatusCode::ok: return "ok";
        case StatusCode::invalid_argument: return "invalid_argument";
        case StatusCode::not_found: return "not_found";
        case StatusCode::unsupported: return "unsupported";
        case StatusCode::corrupt: return "corrupt";
        case StatusCode::mismatch: return "mismatch";
        case StatusCode::exhausted: return "exhausted";
        case StatusCode::io: return "io";
        case StatusCode::internal: return "internal";
    }
    return "unknown";
}

Status Status::with_context(std::string_view context) const {
    if (ok()) return *this;
    std::string message(context);
    message += ": ";
    message += message_;
    return Status(code_, std::move(message));
}

Status invalid_argument(std::string message) { return {StatusCode::invalid_argument, std::move(message)}; }
Status not_found(std::string message) { return {StatusCode::not_found, std::move(message)}; }
Status unsupported(std::string message) { return {StatusCode::unsupported, std::move(message)}; }
Status corrupt(std::string message) { return {StatusCode::corrupt, std::move(message)}; }
Status mismatch(std::string message) { return {StatusCode::mismatch, std::move(message)}; }
Status exhausted(std::string message) { return {StatusCode::exhausted, std::move(message)}; }
Status io_error(std::string message) { return {StatusCode::io, std::move(message)}; }
Status internal_error(std::string message) { return {StatusCode::internal, std::move(message)}; }

}  // namespace draftprobe
