#include "state/identity.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/hash.h"

namespace draftprobe::state {

namespace {

// Digests are told apart by their first digits; everything else is short enough to be quoted.
std::string shown(const std::string& value) {
    if (value.empty()) return "none";
    return value.size() == 64 ? value.substr(0, 12) + ".." : "'" + value + "'";
}

void add_difference(std::vector<std::string>& differences, const std::string& name, const std::string& found,
                    const std::string& expected) {
    if (found == expected) return;
    differences.push_back(fmt::format("{} ({} found, {} expected)", name, shown(found), shown(expected)));
}

const std::string* value_of(const StateIdentity& identity, const std::string& field) {
    for (const auto& [name, value] : identity.settings) {
        if (name == field) return &value;
    }
    return nullptr;
}

}  // namespace

std::string identity_digest(const StateIdentity& identity) {
    Sha256 hash;
    const auto add = [&hash](const std::string& text) { hash.update(fmt::format("{}:{}\n", text.size(), text)); };
    hash.update(std::string_view("draftprobe state identity 1\n"));
    for (const std::string* part : {&identity.target, &identity.draft, &identity.tokenizer, &identity.chat_template,
                                    &identity.thinking, &identity.effort}) {
        add(*part);
    }
    for (const auto& [field, value] : identity.settings) {
        add(field);
        add(value);
    }
    return hex(hash.finish());
}

std::vector<std::string> identity_differences(const StateIdentity& found, const StateIdentity& expected) {
    std::vector<std::string> differences;
    add_difference(differences, "target", found.target, expected.target);
    add_difference(differences, "draft", found.draft, expected.draft);
    add_difference(differences, "tokenizer", found.tokenizer, expected.tokenizer);
    add_difference(differences, "template", found.chat_template, expected.chat_template);
    add_difference(differences, "thinking", found.thinking, expected.thinking);
    add_difference(differences, "effort", found.effort, expected.effort);
    for (const auto& [field, value] : found.settings) {
        const std::string* other = value_of(expected, field);
        add_difference(differences, "settings." + field, value, other == nullptr ? "" : *other);
    }
    for (const auto& [field, value] : expected.settings) {
        if (value_of(found, field) == nullptr) add_difference(differences, "settings." + field, "", value);
    }
    // Equal fields in another order, or an empty value against an absent field: not the same identity either.
    if (differences.empty() && found != expected) differences.push_back("settings (listed in another order)");
    return differences;
}

}  // namespace draftprobe::state
