#include "numerics/attention.h"

#include <algorithm>
#include <cassert>
#include <limits>

#include "numerics/cpu/kernel_set.h"

namespace draftprobe::numerics {

namespace {

// Query rows that share one load of a page. More rows spread its conversion further; fewer give more tasks.
constexpr std::size_t kBlockRows = 32;
constexpr std::size_t kMinBlockRows = 4;

struct Scratch {
    AlignedVector<float> keys_t;
    AlignedVector<float> values;
    std::vector<float> maxima;
    std::vector<float> sums;
};

// Collects queries that see the same keys of one page and hands them on four at a time.
class PageBatch {
public:
    PageBatch(const Compute& compute, const Scratch& page, float scale, std::size_t d)
        : kernels_(isa_kernels(compute.options().isa)), page_(page), scale_(scale), d_(d) {}

    void add(int begin, int end, const float* q, float* running_max, float* running_sum, float* out) {
        if (count_ > 0 && (begin != begin_ || end != end_)) flush();
        begin_ = begin;
        end_ = end;
        queries_.q[count_] = q;
        queries_.running_max[count_] = running_max;
        queries_.running_sum[count_] = running_sum;
        queries_.out[count_] = out;
        if (++count_ < 4) return;
        kernels_.attention_page4(queries_, page_.keys_t.data(), page_.values.data(), begin_, end_, scale_, d_);
        count_ = 0;
    }
    void flush() {
        for (int i = 0; i < count_; ++i)
            kernels_.ops.attention_page(queries_.q[i], page_.keys_t.data(), page_.values.data(), begin_, end_, scale_,
                                        d_, queries_.running_max[i], queries_.running_sum[i], queries_.out[i]);
        count_ = 0;
    }

private:
    const IsaKernels& kernels_;
    const Scratch& page_;
    float scale_;
    std::size_t d_;
    int begin_ = 0;
    int end_ = 0;
    int count_ = 0;
    AttentionQueries queries_{};
};

void attend_block(const Compute& compute, const KeySource& source, const AttendArgs& args, int kv_head,
                  std::size_t first_row, std::size_t last_row) {
    const std::size_t d = static_cast<std::size_t>(args.head_dim);
    const std::size_t group = static_cast<std::size_t>(args.q_heads / args.kv_heads);
    const std::size_t first_head = static_cast<std::size_t>(kv_head) * group;
    const std::size_t rows = last_row - first_row;

    thread_local Scratch scratch;
    scratch.keys_t.resize(d * kPageTokens);
    scratch.values.resize(d * kPageTokens);
    scratch.maxima.assign(rows * group, -std::numeric_limits<float>::infinity());
    scratch.sums.assign(rows * group, 0.0f);

    Position first = args.first_visible[first_row];
    Position last = args.last_visible[first_row];
    for (std::size_t r = first_row; r < last_row; ++r) {
        assert(0 <= args.first_visible[r] && args.first_visible[r] <= args.last_visible[r]);
        first = std::min(first, args.first_visible[r]);
        last = std::max(last, args.last_visible[r]);
        float* out = args.out.row(r) + first_head * d;
        std::fill(out, out + group * d, 0.0f);
    }

    for (Position page = first / kPageTokens; page <= last / kPageTokens; ++page) {
        const Position page_start = page * kPageTokens;
        PageBatch batch(compute, scratch, args.scale, d);
        bool loaded = false;
        for (std::size_t r = first_row; r < last_row; ++r) {
            const Position begin = std::max(args.first_visible[r] - page_start, Position{0});
            const Position end = std::min(args.last_visible[r] - page_start + 1, kPageTokens);
            if (begin >= end) continue;
            if (!loaded) source.load_page(page, kv_head, scratch.keys_t.data(), scratch.values.data());
            loaded = true;
            for (std::size_t h = 0; h < group; ++h) {
                const std::size_t at = (r - first_row) * group + h;
                const std::size_t offset = (first_head + h) * d;
                batch.add(static_cast<int>(begin), static_cast<int>(end), args.queries.row(r) + offset,
                          &scratch.maxima[at], &scratch.sums[at], args.out.row(r) + offset);
            }
        }
        batch.flush();
    }

    for (std::size_t r = first_row; r < last_row; ++r)
        for (std::size_t h = 0; h < group; ++h) {
            const float sum = scratch.sums[(r - first_row) * group + h];
            float* out = args.out.row(r) + (first_head + h) * d;
            for (std::size_t i = 0; i < d; ++i) out[i] = out[i] / sum;
        }
}

}  // namespace

void attend(const Compute& compute, const KeySource& source, const AttendArgs& args) {
    assert(args.kv_heads > 0 && args.q_heads % args.kv_heads == 0 && args.head_dim > 0);
    const std::size_t rows = args.queries.rows;
    const std::size_t width = static_cast<std::size_t>(args.q_heads) * static_cast<std::size_t>(args.head_dim);
    assert(args.queries.cols == width && args.out.cols == width && args.out.rows == rows);
    assert(args.first_visible.size() == rows && args.last_visible.size() == rows);
    assert(float_environment_ok());
    if (rows == 0) return;

    const std::size_t kv_heads = static_cast<std::size_t>(args.kv_heads);
    const std::size_t wanted = 2 * static_cast<std::size_t>(compute.options().threads);
    std::size_t block = kBlockRows;
    while (block > kMinBlockRows && (rows + block - 1) / block * kv_heads < wanted) block /= 2;
    const std::size_t blocks = (rows + block - 1) / block;
    compute.parallel_for(blocks * kv_heads, [&](std::size_t task) {
        const std::size_t first_row = task / kv_heads * block;
        attend_block(compute, source, args, static_cast<int>(task % kv_heads), first_row,
                     std::min(rows, first_row + block));
    });
}

}  // namespace draftprobe::numerics
