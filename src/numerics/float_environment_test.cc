#include <gtest/gtest.h>
#include <xmmintrin.h>

#include <atomic>
#include <mutex>
#include <set>
#include <thread>

#include "numerics/compute.h"

namespace draftprobe::numerics {
namespace {

// Runs `body` exactly once on every thread of the pool: nobody leaves before all have arrived.
template <typename Body>
void on_every_thread(const Compute& compute, const Body& body) {
    const int threads = compute.options().threads;
    std::atomic<int> arrived{0};
    compute.parallel_for(static_cast<std::size_t>(threads), [&](std::size_t) {
        body();
        ++arrived;
        while (arrived.load() < threads) std::this_thread::yield();
    });
}

class RestoreMode {
public:
    RestoreMode() : saved_(_mm_getcsr()) {}
    ~RestoreMode() { _mm_setcsr(saved_); }

private:
    unsigned saved_;
};

TEST(FloatEnvironment, altered_modes_are_detected_and_repaired) {
    RestoreMode restore;
    set_float_environment();
    ASSERT_TRUE(float_environment_ok());
    const unsigned good = _mm_getcsr();
    // Flush to zero, denormals are zero, and the three rounding modes that are not to nearest.
    for (const unsigned bits : {0x8000u, 0x0040u, 0x2000u, 0x4000u, 0x6000u}) {
        _mm_setcsr(good | bits);
        EXPECT_FALSE(float_environment_ok()) << std::hex << bits;
        set_float_environment();
        EXPECT_TRUE(float_environment_ok()) << std::hex << bits;
    }
}

TEST(FloatEnvironment, right_on_every_pool_thread) {
    RestoreMode restore;
    // Threads inherit the mode of the one that starts them, so a wrong one here must not reach the pool.
    _mm_setcsr(_mm_getcsr() | 0x8040u | 0x2000u);
    auto compute = Compute::create({Isa::portable, NumericsClass::f32, 4});
    ASSERT_TRUE(compute.ok());
    std::mutex mutex;
    std::set<std::thread::id> seen;
    std::atomic<int> wrong{0};
    on_every_thread(**compute, [&] {
        if (!float_environment_ok()) ++wrong;
        std::lock_guard<std::mutex> lock(mutex);
        seen.insert(std::this_thread::get_id());
    });
    EXPECT_EQ(seen.size(), 4u);
    EXPECT_EQ(wrong.load(), 0);
}

TEST(FloatEnvironmentDeathTest, a_product_refuses_a_wrong_mode) {
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    RestoreMode restore;
    auto compute = Compute::create({Isa::portable, NumericsClass::f32, 1});
    ASSERT_TRUE(compute.ok());
    const float one = 1;
    const Matrix w = Matrix::from_f32({&one, 1}, 1, 1);
    float y = 0;
    EXPECT_DEATH(
        {
            _mm_setcsr(_mm_getcsr() | 0x8000u);
            (*compute)->matmul(w, {&one, 1, 1, 1}, {&y, 1, 1, 1});
        },
        "float_environment_ok");
}

TEST(ComputeCreate, refuses_what_it_cannot_serve) {
    EXPECT_EQ(Compute::create({Isa::portable, NumericsClass::f32, 0}).status().code(), StatusCode::invalid_argument);
    for (const Isa isa : {Isa::avx2, Isa::avx512}) {
        const auto compute = Compute::create({isa, NumericsClass::f32, 1});
        if (isa_supported(isa))
            EXPECT_TRUE(compute.ok());
        else
            EXPECT_EQ(compute.status().code(), StatusCode::unsupported);
    }
}

}  // namespace
}  // namespace draftprobe::numerics
