#include "compare/refuse.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

namespace draftprobe {
namespace {

std::string shown(const std::string& digest) { return digest.empty() ? "absent" : digest.substr(0, 16); }

std::string template_text(const TemplateIdentity& t) {
    return fmt::format("{} thinking={} effort={}", shown(t.digest), t.thinking.empty() ? "none" : t.thinking,
                       t.effort.empty() ? "none" : t.effort);
}

bool names_draft(std::string_view treatment) { return treatment == "draft" || treatment == "identity.draft"; }

// Fields whose values are the draft's own: another draft may change them, and is declared once for all of them.
bool follows_draft(std::string_view full_field) {
    constexpr std::string_view kSettings = "settings.";
    if (full_field.starts_with(kSettings)) return is_draft_setting(full_field.substr(kSettings.size()));
    return full_field == "request.window" || full_field == "capture.block" || full_field == "capture.candidates";
}

class Collector {
public:
    Collector(Comparability& out, const std::vector<std::string>& treat) : out_(out), treat_(treat) {}

    // `scope` is "identity", "settings", "request" or "capture"; a treatment may name the field with or without it.
    void compare(std::string_view scope, std::string_view field, std::string control, std::string treated) {
        const bool equal = control == treated;
        add(scope, field, equal, std::move(control), std::move(treated));
    }

    // Digests are compared whole and shown short.
    void compare_digests(std::string_view field, const std::string& control, const std::string& treated) {
        add("identity", field, control == treated, shown(control), shown(treated));
    }

    void compare_templates(const TemplateIdentity& c, const TemplateIdentity& t) {
        const bool equal = c.digest == t.digest && c.thinking == t.thinking && c.effort == t.effort;
        add("identity", "template", equal, template_text(c), template_text(t));
    }

    // Treatments that no compared field is named like. `others`: names that are declared without being compared here.
    void find_unknown(std::initializer_list<std::string_view> others) {
        for (const std::string& name : treat_) {
            if (known_.contains(name) || std::find(others.begin(), others.end(), name) != others.end()) continue;
            out_.unknown.push_back(name);
        }
    }

private:
    void add(std::string_view scope, std::string_view field, bool equal, std::string control, std::string treated) {
        const std::string full = fmt::format("{}.{}", scope, field);
        known_.emplace(field);
        known_.insert(full);
        if (equal) return;
        const bool covered = std::any_of(treat_.begin(), treat_.end(), [&](const std::string& name) {
            return name == field || name == full || (names_draft(name) && follows_draft(full));
        });
        if (covered) {
            out_.declared.push_back(full);
        } else {
            out_.refusals.push_back({full, std::move(control), std::move(treated)});
        }
    }

    Comparability& out_;
    const std::vector<std::string>& treat_;
    std::set<std::string> known_;
};

// Prompt digests would tie a report to its prompt: lengths stand for them. A chat's rendered text is the prompt in
// another form, and so belongs to it: two texts may give the same ids.
void compare_prompts(Collector& collect, const CaptureHeader& control, const CaptureHeader& treated) {
    if (control.identity.prompt_digest == treated.identity.prompt_digest &&
        control.identity.chat_template.rendered_digest == treated.identity.chat_template.rendered_digest) {
        return;
    }
    const auto text = [](const CaptureHeader& h, std::string_view which) {
        Position tokens = 0;
        for (const CapturedRequest& r : h.requests) tokens += r.prompt_length;
        return fmt::format("{} of {} tokens in {} request{}", which, tokens, h.requests.size(),
                           h.requests.size() == 1 ? "" : "s");
    };
    collect.compare("identity", "prompt", text(control, "a prompt"), text(treated, "another"));
}

void compare_requests(Collector& collect, const CaptureHeader& control, const CaptureHeader& treated) {
    const auto free_schedule = [](Arm arm) { return arm == Arm::natural || arm == Arm::uninterrupted; };
    const bool skip_boundary = free_schedule(control.arm) || free_schedule(treated.arm);
    const std::size_t count = std::min(control.requests.size(), treated.requests.size());
    for (std::size_t i = 0; i < count; ++i) {
        const CapturedRequest& c = control.requests[i];
        const CapturedRequest& t = treated.requests[i];
        if (!skip_boundary) {
            collect.compare("request", "boundary", fmt::format("{}", c.boundary), fmt::format("{}", t.boundary));
        }
        collect.compare("request", "window", fmt::format("{}", c.window), fmt::format("{}", t.window));
    }
}

// Fields in the control's order, then those that only the treated arm has.
void compare_settings(Collector& collect, const CaptureHeader& control, const CaptureHeader& treated) {
    const auto value_of = [](const CaptureHeader& h, const std::string& field) -> std::string {
        for (const Setting& s : h.settings) {
            if (s.field == field) return s.value;
        }
        return "not recorded";
    };
    for (const Setting& s : control.settings) collect.compare("settings", s.field, s.value, value_of(treated, s.field));
    for (const Setting& s : treated.settings) {
        const bool in_control = std::any_of(control.settings.begin(), control.settings.end(),
                                            [&](const Setting& other) { return other.field == s.field; });
        if (!in_control) collect.compare("settings", s.field, "not recorded", s.value);
    }
}

}  // namespace

Comparability check_comparable(const CaptureHeader& control, const CaptureHeader& treated,
                               const std::vector<std::string>& treat) {
    Comparability result;
    Collector collect(result, treat);
    const Identity& c = control.identity;
    const Identity& t = treated.identity;
    collect.compare_digests("target", c.target.digest, t.target.digest);
    collect.compare_digests("draft", c.draft.digest, t.draft.digest);
    collect.compare_digests("tokenizer", c.tokenizer.digest, t.tokenizer.digest);
    collect.compare_templates(c.chat_template, t.chat_template);
    compare_prompts(collect, control, treated);
    collect.compare_digests("budget_seed", c.budget_seed.digest, t.budget_seed.digest);
    compare_settings(collect, control, treated);
    compare_requests(collect, control, treated);
    collect.compare("capture", "block", fmt::format("{}", control.block), fmt::format("{}", treated.block));
    collect.compare("capture", "candidates", fmt::format("{}", control.candidates),
                    fmt::format("{}", treated.candidates));
    if (control.hidden != 0 && treated.hidden != 0) {
        collect.compare("capture", "hidden", fmt::format("{}", control.hidden), fmt::format("{}", treated.hidden));
    }
    collect.compare("capture", "sanitised", control.sanitised ? "yes" : "no", treated.sanitised ? "yes" : "no");
    // One arm's measured times decide its widths: such captures compare only when the budget itself is the treatment.
    const bool budget_declared = std::any_of(treat.begin(), treat.end(), [](const std::string& name) {
        return name == "budget" || name == "settings.budget" || name == "timing_confounded" || name == kTimingField;
    });
    if (control.timing_confounded || treated.timing_confounded) {
        const auto text = [](const CaptureHeader& h) {
            return h.timing_confounded ? "widths from measured times (a budget that learns online)"
                                       : "widths that no time decides";
        };
        if (budget_declared) {
            result.declared.emplace_back(kTimingField);
        } else {
            // Captures that both follow measured times agree in this field, and still not in what it stands for.
            const bool both = control.timing_confounded && treated.timing_confounded;
            result.refusals.push_back(
                {std::string(kTimingField), text(control),
                 both ? "widths from other measured times: no two runs have the same" : text(treated)});
        }
    }
    if (c.build.digest != t.build.digest) {
        result.warnings.push_back(
            fmt::format("build: the arms come from different builds ({} and {}); a difference may be the "
                        "build's",
                        shown(c.build.digest), shown(t.build.digest)));
    }
    collect.find_unknown({"prompt", "identity.prompt", "hidden", "capture.hidden", "timing_confounded", kTimingField});
    std::sort(result.declared.begin(), result.declared.end());
    result.declared.erase(std::unique(result.declared.begin(), result.declared.end()), result.declared.end());
    return result;
}

std::string_view setting_value(const CaptureHeader& header, std::string_view field) {
    for (const Setting& setting : header.settings) {
        if (setting.field == field) return setting.value;
    }
    return {};
}

}  // namespace draftprobe
