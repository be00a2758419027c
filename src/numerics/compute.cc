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

Scratch& thread_scratch() {
    thread_local Scratch scratch;
    return scratch;
}

// Up to kPassRows rows of one product. Packed activations lie in the scratch of the thread that makes the pass; other
// threads may run its blocks and panels.
class Pass {
public:
    Pass(const IsaKernels& isa, NumericsClass cls, const Matrix& w, ConstRows x, Rows out)
        : isa_(isa),
          w_(w),
          x_(x),
          out_(out),
          i8_(cls == NumericsClass::i8dot && w.quantised()),
          in_place_(!i8_ && x.rows == 1),
          groups_(group_count(w.in())),
          blocks_(split_rows(x.rows, isa.max_row_block)),
          scratch_(thread_scratch()) {
        if (i8_) {
            grow(scratch_.xq, x.rows * w.in() / 4);
            grow(scratch_.scales, x.rows * groups_);
        } else if (!in_place_) {
            grow(scratch_.x, x.rows * w.in());
        }
        if (w.quantised()) grow(scratch_.sums, x.rows * groups_);
    }

    std::size_t blocks() const { return blocks_.size(); }

    void pack(std::size_t index) const {
        const RowBlock& block = blocks_[index];
        const std::size_t in = w_.in();
        const float* source = x_.row(block.first);
        float* sums = w_.quantised() ? scratch_.sums.data() + block.first * groups_ : nullptr;
        if (i8_)
            isa_.pack_i8(source, x_.stride, block.rows, in, scratch_.xq.data() + block.first * in / 4,
                         scratch_.scales.data() + block.first * groups_, sums);
        else
            isa_.pack_f32(source, x_.stride, block.rows, in, in_place_ ? nullptr : scratch_.x.data() + block.first * in,
                          sums);
    }

    // Outputs of the panels first..last-1, for all rows. Requires every block packed.
    void multiply(std::size_t first_panel, std::size_t last_panel) const {
        const std::size_t in = w_.in();
        MatmulBlock m{};
        m.kind = w_.kind();
        m.packed = w_.packed();
        m.scales = w_.packed_scales();
        m.biases = w_.packed_biases();
        m.in = in;
        m.out = w_.out();
        m.first_panel = first_panel;
        m.last_panel = last_panel;
        m.y_stride = out_.stride;
        for (const RowBlock& block : blocks_) {
            m.rows = block.rows;
            const std::size_t at = block.first * groups_;
            if (w_.quantised()) m.sums = scratch_.sums.data() + at;
            if (i8_) {
                m.xq = scratch_.xq.data() + block.first * in / 4;
                m.x_scales = scratch_.scales.data() + at;
                m.x_sums = m.sums;
            } else {
                m.x = in_place_ ? x_.row(0) : scratch_.x.data() + block.first * in;
            }
            m.y = out_.row(block.first);
            if (i8_)
                isa_.matmul_i8(m);
            else
                isa_.matmul_f32(m);
        }
    }

private:
    const IsaKernels& isa_;
    const Matrix& w_;
    ConstRows x_;
    Rows out_;
    bool i8_;
    bool in_place_;  // one row is its own packed form
    std::size_t groups_;
    std::vector<RowBlock> blocks_;
    Scratch& scratch_;
};

// Panels that one task may hold in its second-level cache while it visits every row block.
std::size_t cached_panels(const Matrix& w) {
    return std::max<std::size_t>(1, kTaskBytes / panel_bytes(w.kind(), w.in()));
}

ConstRows pass_rows(ConstRows x, std::size_t first) {
    return {x.row(first), std::min(kPassRows, x.rows - first), x.cols, x.stride};
}
Rows pass_rows(Rows out, std::size_t first) {
    return {out.row(first), std::min(kPassRows, out.rows - first), out.cols, out.stride};
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

std::string_view numerics_class_name(NumericsClass cls) {
    switch (cls) {
        case NumericsClass::f32: return "f32";
        case NumericsClass::i8dot: return "i8dot";
        case NumericsClass::schedule_sensitive: return "schedule-sensitive";
    }
    return "f32";
}

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

void Compute::matmul(const Matrix& w, ConstRows x, Rows out, NumericsClass cls) const {
    assert(x.cols == w.in() && out.cols == w.out() && x.rows == out.rows);
    assert(float_environment_ok());
    if (x.rows == 0 || w.out() == 0) return;

    const IsaKernels& isa = isa_kernels(options_.isa);
    const std::size_t panels = panel_count(w.out());
    const std::size_t wanted = static_cast<std::size_t>(options_.threads) * kTasksPerThread;
    std::size_t task_panels = std::clamp<std::size_t>(panels / wanted, 1, cached_panels(w));
    if (task_panels >= kPanelStep) task_panels -= task_panels % kPanelStep;
    const std::size_t tasks = (panels + task_panels - 1) / task_panels;
    const bool inline_work = options_.threads == 1 || x.rows * w.out() * w.in() < isa.inline_work;
    const auto loop = [&](std::size_t count, const auto& body) {
        if (!inline_work) return parallel_for(count, body);
        for (std::size_t i = 0; i < count; ++i) body(i);
    };

    for (std::size_t first = 0; first < x.rows; first += kPassRows) {
        const Pass pass(isa, cls, w, pass_rows(x, first), pass_rows(out, first));
        loop(pass.blocks(), [&](std::size_t block) { pass.pack(block); });
        loop(tasks,
             [&](std::size_t task) { pass.multiply(task * task_panels, std::min(panels, (task + 1) * task_panels)); });
    }
}

void Compute::matmul_outputs(const Matrix& w, ConstRows x, std::size_t first, std::size_t count, Rows out) const {
    assert(x.cols == w.in() && out.cols == w.out() && x.rows == out.rows);
    assert(first % kPanelOutputs == 0 && first + count <= w.out());
    assert(count % kPanelOutputs == 0 || first + count == w.out());
    assert(float_environment_ok());
    const std::size_t last_panel = panel_count(first + count);
    const std::size_t step = cached_panels(w);
    for (std::size_t row = 0; row < x.rows; row += kPassRows) {
        const Pass pass(isa_kernels(options_.isa), options_.cls, w, pass_rows(x, row), pass_rows(out, row));
        for (std::size_t block = 0; block < pass.blocks(); ++block) pass.pack(block);
        for (std::size_t panel = first / kPanelOutputs; panel < last_panel; panel += step) {
            pass.multiply(panel, std::min(last_panel, panel + step));
        }
    }
}

}  // namespace draftprobe::numerics
