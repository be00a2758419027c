#include "numerics/compute.h"

#if defined(__SSE__)
#include <xmmintrin.h>
#else
#include <cfenv>
#endif

#include <algorithm>
#include <cassert>
#include <string>

#include "numerics/cpu/kernel_set.h"
#include "numerics/cpu/packed_layout.h"

namespace draftprobe::numerics {

namespace {

// Rows whose activations are packed at once: bounds the scratch at prefill and keeps a pass over the weights worth it.
constexpr std::size_t kPassRows = 256;
// Packed weight bytes one task keeps in its second-level cache while it visits every row block.
constexpr std::size_t kTaskBytes = 192 * 1024;
// Tasks per thread, so that threads which start late or are preempted cost little.
constexpr std::size_t kTasksPerThread = 4;
// Panels come in fours: the widest kernel works on that many at once.
constexpr std::size_t kPanelStep = 4;

struct RowBlock {
    std::size_t first;
    int rows;
};

// The largest blocks first: max, then 8, then the rest.
std::vector<RowBlock> split_rows(std::size_t rows, int max_block) {
    std::vector<RowBlock> blocks;
    for (std::size_t r = 0; r < rows;) {
        const std::size_t left = rows - r;
        const std::size_t wide = static_cast<std::size_t>(max_block);
        const std::size_t take = left >= wide ? wide : std::min<std::size_t>(left, 8);
        blocks.push_back({r, static_cast<int>(take)});
        r += take;
    }
    return blocks;
}

// Packed activations of one pass. Kept per thread: a decode cycle issues hundreds of products.
struct Scratch {
    AlignedVector<float> x;
    AlignedVector<std::uint32_t> xq;
    AlignedVector<float> scales;
    AlignedVector<float> sums;
};

template <typename T>
void grow(AlignedVector<T>& buffer, std::size_t n) {
    if (buffer.size() < n) buffer.resize(n);
}

}  // namespace

const IsaKernels& isa_kernels(Isa isa) {
    switch (isa) {
        case Isa::portable: return kPortableKernels;
        case Isa::avx2: return kAvx2Kernels;
        case Isa::avx512: return kAvx512Kernels;
    }
    return kPortableKernels;
}

std::string_view isa_name(Isa isa) {
    switch (isa) {
        case Isa::portable: return "portable";
        case Isa::avx2: return "avx2";
        case Isa::avx512: return "avx512";
    }
    return "unknown";
}

bool isa_supported(Isa isa) {
#if defined(__x86_64__)
    // The built-in also checks that the operating system saves the wide registers.
    switch (isa) {
        case Isa::portable: return true;
        case Isa::avx2: return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
        case Isa::avx512:
            return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                   __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                   __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx2") &&
                   __builtin_cpu_supports("fma");
    }
    return false;
#else
    return isa == Isa::portable;
#endif
}

Isa best_isa() {
    if (isa_supported(Isa::avx512)) return Isa::avx512;
    if (isa_supported(Isa::avx2)) return Isa::avx2;
    return Isa::portable;
}

std::string_view numerics_class_name(NumericsClass cls) { return cls == NumericsClass::f32 ? "f32" : "i8dot"; }

#if defined(__SSE__)
namespace {
constexpr unsigned kFlushToZero = 0x8000;
constexpr unsigned kDenormalsAreZero = 0x0040;
constexpr unsigned kRounding = 0x6000;  // zero is to nearest, ties to even
}  // namespace

void set_float_environment() { _mm_setcsr(_mm_getcsr() & ~(kFlushToZero | kDenormalsAreZero | kRounding)); }

bool float_environment_ok() { return (_mm_getcsr() & (kFlushToZero | kDenormalsAreZero | kRounding)) == 0; }
#else
void set_float_environment() { std::fesetenv(FE_DFL_ENV); }

bool float_environment_ok() {
    volatile float smallest_normal = 0x1p-126f;
    volatile float half = 0.5f;
    return std::fegetround() == FE_TONEAREST && smallest_normal * half != 0.0f;
}
#endif

const Kernels& kernels(Isa isa) {
    assert(isa_supported(isa));
    return isa_kernels(isa).ops;
}

Result<std::unique_ptr<Compute>> Compute::create(const Options& options) {
    if (options.threads < 1)
        return invalid_argument("threads: found " + std::to_string(options.threads) + ", expected 1 or more");
    if (!isa_supported(options.isa))
        return unsupported("instruction set: this CPU lacks " + std::string(isa_name(options.isa)) +
                           ", the best it has is " + std::string(isa_name(best_isa())));
    return std::unique_ptr<Compute>(new Compute(options));
}

Compute::Compute(const Options& options)
    : options_(options),
      kernels_(&numerics::kernels(options.isa)),
      pool_(std::make_unique<ThreadPool>(options.threads, set_float_environment)) {
    set_float_environment();
}

void Compute::matmul(const Matrix& w, ConstRows x, Rows out) const {
    assert(x.cols == w.in() && out.cols == w.out() && x.rows == out.rows);
    assert(float_environment_ok());
    if (x.rows == 0 || w.out() == 0) return;

    const IsaKernels& isa = isa_kernels(options_.isa);
    const bool i8 = options_.cls == NumericsClass::i8dot && w.quantised();
    const std::size_t in = w.in();
    const std::size_t groups = group_count(in);
    const std::size_t panels = panel_count(w.out());

    const std::size_t task_limit = std::max<std::size_t>(1, kTaskBytes / panel_bytes(w.kind(), in));
    const std::size_t wanted = static_cast<std::size_t>(options_.threads) * kTasksPerThread;
    std::size_t task_panels = std::clamp<std::size_t>(panels / wanted, 1, task_limit);
    if (task_panels >= kPanelStep) task_panels -= task_panels % kPanelStep;
    const std::size_t tasks = (panels + task_panels - 1) / task_panels;
    const bool inline_work = options_.threads == 1 || x.rows * w.out() * in < isa.inline_work;
    const auto loop = [&](std::size_t count, const auto& body) {
        if (!inline_work) return parallel_for(count, body);
        for (std::size_t i = 0; i < count; ++i) body(i);
    };

    thread_local Scratch scratch;
    Scratch& s = scratch;
    for (std::size_t pass = 0; pass < x.rows; pass += kPassRows) {
        const std::size_t rows = std::min(kPassRows, x.rows - pass);
        const std::vector<RowBlock> blocks = split_rows(rows, isa.max_row_block);
        const bool in_place = !i8 && rows == 1;  // one row is its own packed form
        if (i8) {
            grow(s.xq, rows * in / 4);
            grow(s.scales, rows * groups);
        } else if (!in_place) {
            grow(s.x, rows * in);
        }
        if (w.quantised()) grow(s.sums, rows * groups);

        loop(blocks.size(), [&](std::size_t b) {
            const RowBlock& block = blocks[b];
            const float* source = x.row(pass + block.first);
            float* sums = w.quantised() ? s.sums.data() + block.first * groups : nullptr;
            if (i8)
                isa.pack_i8(source, x.stride, block.rows, in, s.xq.data() + block.first * in / 4,
                            s.scales.data() + block.first * groups, sums);
            else
                isa.pack_f32(source, x.stride, block.rows, in, in_place ? nullptr : s.x.data() + block.first * in,
                             sums);
        });

        loop(tasks, [&](std::size_t task) {
            MatmulBlock m{};
            m.kind = w.kind();
            m.packed = w.packed();
            m.scales = w.packed_scales();
            m.biases = w.packed_biases();
            m.in = in;
            m.out = w.out();
            m.first_panel = task * task_panels;
            m.last_panel = std::min(panels, m.first_panel + task_panels);
            m.y_stride = out.stride;
            for (const RowBlock& block : blocks) {
                m.rows = block.rows;
                const std::size_t at = block.first * groups;
                if (w.quantised()) m.sums = s.sums.data() + at;
                if (i8) {
                    m.xq = s.xq.data() + block.first * in / 4;
                    m.x_scales = s.scales.data() + at;
                    m.x_sums = m.sums;
                } else {
                    m.x = in_place ? x.row(pass) : s.x.data() + block.first * in;
                }
                m.y = out.row(pass + block.first);
                if (i8)
                    isa.matmul_i8(m);
                else
                    isa.matmul_f32(m);
            }
        });
    }
}

}  // namespace draftprobe::numerics
