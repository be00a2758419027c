// What made a piece of composite state: the namespace of snapshots. State of one identity is never taken for another's,
// and a refusal says which group differs.
//
// The prompt is not in it, since a prefix may serve many prompts (the store compares its tokens). Whoever fills it puts
// every setting in that reaches a byte of state.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace draftprobe::state {

struct StateIdentity {
    std::string target;  // digests of the complete file sets, 64 hex digits; empty where there is no such thing
    std::string draft;
    std::string tokenizer;
    std::string chat_template;  // digest; empty without a chat
    std::string thinking;       // "on" | "off" | ""
    std::string effort;
    std::vector<std::pair<std::string, std::string>> settings;  // field, value; in a fixed order, fields unique

    bool operator==(const StateIdentity&) const = default;
};

// SHA-256 over all of it with lengths, so that no two identities have one text: 64 hex digits.
std::string identity_digest(const StateIdentity& identity);

// Every group that differs, as "target (1a2b.. found, 3c4d.. expected)", in the order of the struct; empty when equal.
std::vector<std::string> identity_differences(const StateIdentity& found, const StateIdentity& expected);

}  // namespace draftprobe::state
