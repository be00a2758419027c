#include "study/minimise.h"

#include <fmt/format.h>

#include <map>
#include <tuple>

namespace draftprobe::study {

namespace {

Position pages(const Case& item) { return item.request.boundary / kPageTokens; }

std::int64_t cycles(const Case& item) { return static_cast<std::int64_t>(item.request.cycles); }

std::int64_t suffix(const Case& item) {
    return static_cast<std::int64_t>(item.request.prompt.size()) - item.request.boundary;
}

Case with_cycles(const Case& item, std::int64_t left) {
    Case smaller = item;
    smaller.request.cycles = static_cast<std::size_t>(left);
    return smaller;
}

// Drops whole pages from the front until the prefix has `left` of them.
Case with_prefix_pages(const Case& item, std::int64_t left) {
    Case smaller = item;
    const Position dropped = item.request.boundary - left * kPageTokens;
    smaller.request.prompt.erase(smaller.request.prompt.begin(), smaller.request.prompt.begin() + dropped);
    smaller.request.boundary -= dropped;
    return smaller;
}

Case with_suffix(const Case& item, std::int64_t tokens) {
    Case smaller = item;
    smaller.request.prompt.resize(static_cast<std::size_t>(item.request.boundary + tokens));
    return smaller;
}

Case with_boundary_pages(const Case& item, std::int64_t left) {
    Case smaller = item;
    smaller.request.boundary = left * kPageTokens;
    return smaller;
}

struct Reduction {
    std::int64_t (*value)(const Case&);
    Case (*with)(const Case&, std::int64_t);
};
constexpr Reduction kReductions[] = {
    {cycles, with_cycles}, {pages, with_prefix_pages}, {suffix, with_suffix}, {pages, with_boundary_pages}};

class Search {
public:
    Search(const Case& item, std::size_t max_runs, const Holds& holds) : max_runs_(max_runs), holds_(holds) {
        result_.item = item;
        result_.prompt_before = item.request.prompt.size();
        result_.boundary_before = item.request.boundary;
        result_.cycles_before = item.request.cycles;
    }

    Result<Minimised> run() {
        bool shrunk = true;
        while (shrunk) {
            shrunk = false;
            for (const Reduction& reduction : kReductions) {
                DP_ASSIGN_OR_RETURN(const bool smaller, reduce(reduction.value(result_.item), reduction.with));
                shrunk = shrunk || smaller;
            }
        }
        return std::move(result_);
    }

private:
    // Halves between the smallest value, tried first, and the one that holds.
    Result<bool> reduce(std::int64_t value, Case (*with)(const Case&, std::int64_t)) {
        const std::int64_t start = value;
        std::int64_t fails = 0;  // no value is 0
        std::int64_t trial = 1;
        while (fails + 1 < value) {
            const Case smaller = with(result_.item, trial);
            DP_ASSIGN_OR_RETURN(const bool held, try_case(smaller));
            if (held) {
                result_.item = smaller;
                value = trial;
            } else {
                fails = trial;
            }
            trial = fails + (value - fails) / 2;
        }
        return value < start;
    }

    Result<bool> try_case(const Case& item) {
        const auto key = std::tuple{item.request.prompt.size(), item.request.boundary, item.request.cycles,
                                    item.request.prompt.front()};
        if (const auto known = tried_.find(key); known != tried_.end() && known->second.prompt == item.request.prompt)
            return known->second.held;
        if (result_.runs == max_runs_) {
            result_.bounded = true;
            return false;
        }
        ++result_.runs;
        DP_ASSIGN_OR_RETURN(const bool held, holds_(item));
        tried_[key] = {item.request.prompt, held};
        return held;
    }

    struct Tried {
        std::vector<TokenId> prompt;
        bool held = false;
    };
    std::size_t max_runs_;
    const Holds& holds_;
    Minimised result_;
    std::map<std::tuple<std::size_t, Position, std::size_t, TokenId>, Tried> tried_;
};

}  // namespace

bool same_finding(const CaseSummary& summary, const CaseSummary& finding) {
    return summary.verdict == finding.verdict && first_place(summary) == first_place(finding) &&
           (!finding.shift_tokens || summary.shift_tokens == finding.shift_tokens);
}

Result<Minimised> minimise_with(const Case& item, std::size_t max_runs, const Holds& holds) {
    return Search(item, max_runs, holds).run();
}

Result<Minimised> minimise(const probe::Assembly& assembly, const Case& item, const CaseSummary& finding,
                           const std::filesystem::path& scratch,
                           const std::function<void(std::size_t runs)>& progress) {
    Case plain = item;
    plain.request.chat_template = {};
    CaseSummary smallest = finding;
    std::size_t runs = 0;
    const Holds holds = [&](const Case& trial) -> Result<bool> {
        Result<CaseSummary> summary = run_case(assembly, trial, scratch, IdleFaults::refused);
        if (progress) progress(++runs);
        // A case that the probe itself would refuse is none to end with.
        if (!summary.ok() && summary.status().code() == StatusCode::invalid_argument) return false;
        if (!summary.ok()) return summary.status();
        if (!same_finding(*summary, finding)) return false;
        smallest = *std::move(summary);
        return true;
    };
    if (!item.request.chat_template.digest.empty()) {
        DP_ASSIGN_OR_RETURN(const bool held, holds(plain));
        if (!held) {
            return mismatch(
                "--minimize: the chat's tokens given as plain ids do not give the same finding, expected "
                "them to; give the prompt with --prompt-ids to see what they give");
        }
    }
    DP_ASSIGN_OR_RETURN(Minimised minimised, minimise_with(plain, kMaxMinimiseRuns, holds));
    minimised.summary = std::move(smallest);
    return minimised;
}

std::string minimised_text(const Minimised& m) {
    const probe::ProbeRequest& request = m.item.request;
    std::string out = fmt::format("\nMinimised in {} run{} of both arms{}\n", m.runs, m.runs == 1 ? "" : "s",
                                  m.bounded ? " (their bound: it may shrink further)" : "");
    out += fmt::format("  prompt  {} -> {} tokens\n  prefix  {} -> {}\n  cycles  {} -> {}\n", m.prompt_before,
                       request.prompt.size(), m.boundary_before, request.boundary, m.cycles_before, request.cycles);
    out += fmt::format("  still   {}{}{}{}\n", verdict_name(m.summary.verdict), m.summary.first ? ", first at " : "",
                       first_place(m.summary),
                       m.summary.shift_tokens ? fmt::format(", shift {:+}", *m.summary.shift_tokens) : "");
    return out;
}

std::string minimised_json(const Minimised& m) {
    const probe::ProbeRequest& request = m.item.request;
    JsonWriter json;
    json.begin_object().member("runs", m.runs).member("bounded", m.bounded);
    json.key("before").begin_object().member("prompt_tokens", m.prompt_before);
    json.member("prefix_tokens", m.boundary_before).member("cycles", m.cycles_before).end_object();
    json.key("after").begin_object().member("prompt_tokens", request.prompt.size());
    json.member("prefix_tokens", request.boundary).member("cycles", request.cycles);
    write_summary(json, m.summary);
    json.end_object().end_object();
    return json.take();
}

std::string minimised_prompt(const Minimised& m) {
    JsonWriter json;
    json.begin_object().member("prefix_tokens", m.item.request.boundary).member("cycles", m.item.request.cycles);
    json.key("ids").begin_array();
    for (const TokenId id : m.item.request.prompt) json.value(id);
    json.end_array().end_object();
    return json.take() + "\n";
}

}  // namespace draftprobe::study
