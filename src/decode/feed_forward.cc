#include "decode/feed_forward.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "decode/scratch.h"
#include "numerics/scalar_math.h"

namespace draftprobe::decode {

using model::DenseFfn;
using model::MoeFfn;
using numerics::Compute;
using numerics::ConstRows;
using numerics::Rows;

namespace {

// Tasks per thread, so that uneven experts and late threads cost little.
constexpr std::size_t kTasksPerThread = 4;

// Every pair of a row and one of its experts has a slot; slots are grouped by expert.
struct Assignment {
    struct Group {
        std::size_t expert;
        std::size_t first;  // slot
        std::size_t rows;
    };
    std::vector<float> weights;      // [rows, K]
    std::vector<std::size_t> slots;  // [rows, K]
    std::vector<Group> groups;       // experts with at least one row
};

Assignment assign(const Compute& compute, const MoeFfn& ffn, ConstRows x) {
    const std::size_t experts = ffn.experts.size();
    const std::size_t k = ffn.experts_per_token;
    Scratch logits(x.rows, experts);
    compute.matmul(ffn.router, x, logits.rows(), numerics::NumericsClass::f32);
    Assignment assignment;
    assignment.weights.resize(x.rows * k);
    assignment.slots.resize(x.rows * k);
    std::vector<std::uint32_t> ids(x.rows * k);
    compute.parallel_for(x.rows, [&](std::size_t r) {
        route({logits.row(r), experts}, std::span(ids).subspan(r * k, k),
              std::span(assignment.weights).subspan(r * k, k));
    });
    std::vector<std::size_t> next(experts, 0);
    for (const std::uint32_t id : ids) ++next[id];
    std::size_t first = 0;
    for (std::size_t e = 0; e < experts; ++e) {
        if (next[e] != 0) assignment.groups.push_back({e, first, next[e]});
        first += std::exchange(next[e], first);
    }
    for (std::size_t i = 0; i < ids.size(); ++i) assignment.slots[i] = next[ids[i]]++;
    return assignment;
}

// Some outputs of one expert's matrix, for all of its rows.
struct Task {
    Assignment::Group group;
    std::size_t first;
    std::size_t count;
};

// Cuts the outputs of every group so that no task is much more than its share.
std::vector<Task> make_tasks(const Assignment& assignment, std::size_t outputs, std::size_t threads) {
    constexpr std::size_t kPanel = numerics::kPanelOutputs;
    const std::size_t panels = (outputs + kPanel - 1) / kPanel;
    const std::size_t wanted = threads == 1 ? 1 : threads * kTasksPerThread;
    std::vector<Task> tasks;
    for (const Assignment::Group& group : assignment.groups) {
        const std::size_t cuts = std::clamp<std::size_t>(group.rows * wanted / assignment.slots.size(), 1, panels);
        const std::size_t step = (panels + cuts - 1) / cuts * kPanel;
        for (std::size_t first = 0; first < outputs; first += step) {
            tasks.push_back({group, first, std::min(step, outputs - first)});
        }
    }
    return tasks;
}

}  // namespace

void route(std::span<const float> logits, std::span<std::uint32_t> experts, std::span<float> weights) {
    assert(!experts.empty() && experts.size() <= logits.size() && weights.size() == experts.size());
    bool finite = true;
    std::size_t kept = 0;  // the first ones of `experts`, best first
    for (std::size_t e = 0; e < logits.size(); ++e) {
        finite = finite && std::isfinite(logits[e]);
        if (kept == experts.size() && !(logits[e] > logits[experts[kept - 1]])) continue;
        std::size_t place = kept < experts.size() ? kept++ : kept - 1;
        for (; place > 0 && logits[e] > logits[experts[place - 1]]; --place) experts[place] = experts[place - 1];
        experts[place] = static_cast<std::uint32_t>(e);
    }
    const float largest = logits[experts[0]];
    std::sort(experts.begin(), experts.end());
    float sum = 0.0f;
    for (std::size_t i = 0; i < experts.size(); ++i) {
        weights[i] = finite ? numerics::exp_f32(logits[experts[i]] - largest) : std::numeric_limits<float>::quiet_NaN();
        sum += weights[i];
    }
    for (float& weight : weights) weight /= sum;
}

void feed_forward(const Compute& compute, const DenseFfn& ffn, ConstRows x, Rows out) {
    const std::size_t width = ffn.gate_proj.out();
    Scratch gate(x.rows, width);
    Scratch up(x.rows, width);
    compute.matmul(ffn.gate_proj, x, gate.rows());
    compute.matmul(ffn.up_proj, x, up.rows());
    compute.parallel_for(
        x.rows, [&](std::size_t r) { compute.kernels().silu_mul(gate.row(r), up.row(r), width, gate.row(r)); });
    compute.matmul(ffn.down_proj, gate.rows(), out);
}

void feed_forward(const Compute& compute, const MoeFfn& ffn, ConstRows x, Rows out) {
    const std::size_t k = ffn.experts_per_token;
    const std::size_t width = ffn.experts.front().gate_proj.out();
    const auto threads = static_cast<std::size_t>(compute.options().threads);
    const auto& kernels = compute.kernels();
    const Assignment assignment = assign(compute, ffn, x);

    Scratch rows(assignment.slots.size(), x.cols);  // by slot: inputs, then outputs of the experts
    Scratch gate(assignment.slots.size(), width);
    Scratch up(assignment.slots.size(), width);
    compute.parallel_for(x.rows, [&](std::size_t r) {
        for (std::size_t i = 0; i < k; ++i) {
            std::memcpy(rows.row(assignment.slots[r * k + i]), x.row(r), x.cols * sizeof(float));
        }
    });
    const std::vector<Task> inner = make_tasks(assignment, width, threads);
    compute.parallel_for(inner.size(), [&](std::size_t index) {
        const auto& [group, first, count] = inner[index];
        const DenseFfn& expert = ffn.experts[group.expert];
        const ConstRows source = slice(ConstRows(rows.rows()), group.first, group.rows);
        compute.matmul_outputs(expert.gate_proj, source, first, count, slice(gate.rows(), group.first, group.rows));
        compute.matmul_outputs(expert.up_proj, source, first, count, slice(up.rows(), group.first, group.rows));
        for (std::size_t slot = group.first; slot < group.first + group.rows; ++slot) {
            kernels.silu_mul(gate.row(slot) + first, up.row(slot) + first, count, gate.row(slot) + first);
        }
    });
    const std::vector<Task> outer = make_tasks(assignment, x.cols, threads);
    compute.parallel_for(outer.size(), [&](std::size_t index) {
        const auto& [group, first, count] = outer[index];
        compute.matmul_outputs(ffn.experts[group.expert].down_proj,
                               slice(ConstRows(gate.rows()), group.first, group.rows), first, count,
                               slice(rows.rows(), group.first, group.rows));
    });

    Scratch shared(x.rows, x.cols);
    Scratch shared_gate(x.rows, 1);
    feed_forward(compute, ffn.shared, x, shared.rows());
    compute.matmul(ffn.shared_gate, x, shared_gate.rows(), numerics::NumericsClass::f32);
    compute.parallel_for(x.rows, [&](std::size_t r) {
        std::vector<const float*> terms;
        std::vector<float> factors;
        for (std::size_t i = 0; i < k; ++i) {
            terms.push_back(rows.row(assignment.slots[r * k + i]));
            factors.push_back(assignment.weights[r * k + i]);
        }
        terms.push_back(shared.row(r));
        factors.push_back(numerics::sigmoid_f32(*shared_gate.row(r)));
        kernels.weighted_sum(terms.data(), factors.data(), terms.size(), x.cols, out.row(r));
    });
}

}  // namespace draftprobe::decode
