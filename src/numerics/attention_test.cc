// Attention: bits against the scalar model, independence of batch, chunking and threads, poison in invisible entries,
// values against softmax in double.
#include "numerics/attention.h"

#include <gtest/gtest.h>

#include <mutex>

#include "numerics/test_support.h"

namespace draftprobe::numerics {
namespace {

using namespace testing_support;

// Keys and values of `positions` positions; entries outside [first_written, positions) read as NaN.
class TestSource : public KeySource {
public:
    TestSource(Position positions, int kv_heads, std::size_t d, Random& random, float limit = 1)
        : positions_(positions), d_(d) {
        for (int h = 0; h < kv_heads; ++h) {
            keys_.push_back(random.floats(static_cast<std::size_t>(positions) * d, limit));
            values_.push_back(random.floats(static_cast<std::size_t>(positions) * d));
        }
    }
    void load_page(Position page, int kv_head, float* keys_t, float* values) const override {
        {
            std::lock_guard<std::mutex> lock(mutex_);
            loads_.push_back(page);
        }
        for (Position j = 0; j < kPageTokens; ++j) {
            const Position position = page * kPageTokens + j;
            const bool exists = position < positions_;
            const bool written = exists && position >= first_written && position < end_written;
            for (std::size_t i = 0; i < d_; ++i) {
                keys_t[i * kPageTokens + static_cast<std::size_t>(j)] =
                    written || (exists && !nan_keys) ? key(kv_head, position)[i] : kNan;
                values[static_cast<std::size_t>(j) * d_ + i] =
                    written || (exists && !nan_values) ? value(kv_head, position)[i] : kNan;
            }
        }
    }
    const float* key(int head, Position p) const {
        return keys_[static_cast<std::size_t>(head)].data() + static_cast<std::size_t>(p) * d_;
    }
    const float* value(int head, Position p) const {
        return values_[static_cast<std::size_t>(head)].data() + static_cast<std::size_t>(p) * d_;
    }
    std::vector<Position> loads() const { return loads_; }

    Position first_written = 0;
    Position end_written = std::numeric_limits<Position>::max();
    bool nan_keys = true;  // what unwritten entries poison
    bool nan_values = true;

private:
    Position positions_;
    std::size_t d_;
    std::vector<std::vector<float>> keys_, values_;
    mutable std::mutex mutex_;
    mutable std::vector<Position> loads_;
};

struct Case {
    int q_heads, kv_heads, d;
    std::vector<Position> first, last;
    std::vector<float> queries;
    float scale = 0.125f;

    std::size_t rows() const { return first.size(); }
    std::size_t width() const { return static_cast<std::size_t>(q_heads * d); }
    Case part(std::size_t begin, std::size_t end) const {
        const auto cut = [&](const auto& v, std::size_t unit) {
            return std::decay_t<decltype(v)>(v.begin() + static_cast<std::ptrdiff_t>(begin * unit),
                                             v.begin() + static_cast<std::ptrdiff_t>(end * unit));
        };
        return {q_heads, kv_heads, d, cut(first, 1), cut(last, 1), cut(queries, width()), scale};
    }
};

std::vector<float> run(const Compute& compute, const KeySource& source, const Case& c) {
    const std::size_t q_stride = c.width() + 3;
    const std::size_t o_stride = c.width() + 1;
    Guarded<float> queries(c.rows() * q_stride);
    Guarded<float> out(c.rows() * o_stride);
    for (std::size_t r = 0; r < c.rows(); ++r)
        std::copy_n(c.queries.data() + r * c.width(), c.width(), queries.data() + r * q_stride);
    attend(compute, source,
           {{queries.data(), c.rows(), c.width(), q_stride},
            {out.data(), c.rows(), c.width(), o_stride},
            c.q_heads,
            c.kv_heads,
            c.d,
            c.scale,
            c.first,
            c.last});
    std::vector<float> y;
    for (std::size_t r = 0; r < c.rows(); ++r)
        y.insert(y.end(), out.data() + r * o_stride, out.data() + r * o_stride + c.width());
    return y;
}

// Kernels::attention_page and the final division, as the header comments state them.
std::vector<float> model(const TestSource& source, const Case& c) {
    std::vector<float> y;
    const std::size_t d = static_cast<std::size_t>(c.d);
    for (std::size_t r = 0; r < c.rows(); ++r)
        for (int h = 0; h < c.q_heads; ++h) {
            const int kv = h / (c.q_heads / c.kv_heads);
            const float* q = c.queries.data() + r * c.width() + static_cast<std::size_t>(h) * d;
            float running_max = -std::numeric_limits<float>::infinity();
            float running_sum = 0;
            std::vector<float> out(d, 0.0f);
            for (Position page = c.first[r] / 32; page <= c.last[r] / 32; ++page) {
                float s[32];
                float p[32] = {};
                float new_max = running_max;
                for (int j = 0; j < 32; ++j) {
                    const Position at = page * 32 + j;
                    if (at < c.first[r] || at > c.last[r]) continue;
                    float chain = 0;
                    for (std::size_t i = 0; i < d; ++i) chain = std::fma(q[i], source.key(kv, at)[i], chain);
                    s[j] = c.scale * chain;
                    new_max = std::max(new_max, s[j]);
                }
                const float shrink = exp_f32(running_max - new_max);
                for (int j = 0; j < 32; ++j) {
                    const Position at = page * 32 + j;
                    if (at >= c.first[r] && at <= c.last[r]) p[j] = exp_f32(s[j] - new_max);
                }
                float lanes[16];
                for (int l = 0; l < 16; ++l) lanes[l] = p[l] + p[l + 16];
                running_sum = std::fma(running_sum, shrink, model_tree(lanes));
                running_max = new_max;
                for (std::size_t i = 0; i < d; ++i) {
                    out[i] = out[i] * shrink;
                    for (int j = 0; j < 32; ++j) {
                        const Position at = page * 32 + j;
                        if (at >= c.first[r] && at <= c.last[r])
                            out[i] = std::fma(p[j], source.value(kv, at)[i], out[i]);
                    }
                }
            }
            for (std::size_t i = 0; i < d; ++i) y.push_back(out[i] / running_sum);
        }
    return y;
}

Case causal(int q_heads, int kv_heads, int d, Position start, std::size_t rows, Position window, Random& random) {
    Case c{q_heads, kv_heads, d, {}, {}, {}};
    for (std::size_t r = 0; r < rows; ++r) {
        const Position p = start + static_cast<Position>(r);
        c.first.push_back(std::max(Position{0}, p - window + 1));
        c.last.push_back(p);
    }
    c.queries = random.floats(rows * c.width(), 4);
    return c;
}

class AttentionTest : public IsaTest {
protected:
    std::unique_ptr<Compute> compute(int threads) {
        return std::move(Compute::create({GetParam(), NumericsClass::f32, threads})).value();
    }
};

constexpr Position kNoWindow = 1 << 20;

TEST_P(AttentionTest, equals_the_model) {
    struct Shape {
        int q_heads, kv_heads, d;
        Position start, window;
        std::size_t rows;
    };
    for (const Shape s :
         {Shape{4, 2, 64, 0, kNoWindow, 40}, Shape{1, 1, 16, 31, kNoWindow, 3}, Shape{6, 2, 128, 95, 50, 9},
          Shape{2, 1, 40, 200, kNoWindow, 1}, Shape{3, 3, 256, 63, 33, 5}, Shape{2, 2, 7, 10, 4, 60}}) {
        Random random(41);
        const TestSource source(s.start + static_cast<Position>(s.rows), s.kv_heads, static_cast<std::size_t>(s.d),
                                random);
        const Case c = causal(s.q_heads, s.kv_heads, s.d, s.start, s.rows, s.window, random);
        ASSERT_TRUE(bits_equal(run(*compute(2), source, c), model(source, c))) << "d " << s.d << " start " << s.start;
    }
}

TEST_P(AttentionTest, any_split_of_rows_and_any_thread_count) {
    Random random(42);
    const TestSource source(150, 2, 32, random);
    const Case c = causal(4, 2, 32, 10, 140, 100, random);
    const std::vector<float> whole = run(*compute(1), source, c);
    for (const int threads : {1, 2, 3})
        for (const std::size_t step : {1, 7, 8, 33, 64}) {
            std::vector<float> pieces;
            const auto engine = compute(threads);
            for (std::size_t r = 0; r < c.rows(); r += step) {
                const std::vector<float> piece = run(*engine, source, c.part(r, std::min(c.rows(), r + step)));
                pieces.insert(pieces.end(), piece.begin(), piece.end());
            }
            ASSERT_TRUE(bits_equal(pieces, whole)) << "step " << step << " threads " << threads;
        }
}

TEST_P(AttentionTest, entries_nobody_sees_cannot_poison) {
    Random random(43);
    TestSource source(200, 1, 48, random);
    // Block rows that all see [37, 107], as a draft block does, and one causal row.
    Case c{2, 1, 48, std::vector<Position>(8, 37), std::vector<Position>(8, 107), random.floats(8 * 96, 4)};
    const std::vector<float> clean = run(*compute(1), source, c);
    source.first_written = 37;
    source.end_written = 108;
    const std::vector<float> poisoned = run(*compute(1), source, c);
    ASSERT_TRUE(bits_equal(clean, poisoned));
    for (const float v : poisoned) ASSERT_TRUE(std::isfinite(v));
}

TEST_P(AttentionTest, a_row_ignores_what_only_its_neighbours_see) {
    Random random(44);
    TestSource source(100, 2, 32, random);
    const Case c = causal(2, 2, 32, 60, 30, 40, random);
    const std::vector<float> whole = run(*compute(1), source, c);
    for (std::size_t r = 0; r < c.rows(); ++r) {
        source.first_written = c.first[r];
        source.end_written = c.last[r] + 1;
        const std::vector<float> alone = run(*compute(1), source, c.part(r, r + 1));
        ASSERT_TRUE(bits_equal(alone.data(), whole.data() + r * c.width(), c.width())) << r;
    }
}

TEST_P(AttentionTest, a_visible_nan_is_seen) {
    Random random(45);
    TestSource source(100, 1, 16, random);
    const Case c = causal(1, 1, 16, 90, 1, kNoWindow, random);
    source.end_written = 90;  // position 90 itself reads NaN
    for (const bool keys : {true, false}) {
        source.nan_keys = keys;
        source.nan_values = !keys;
        for (const float v : run(*compute(1), source, c)) ASSERT_TRUE(std::isnan(v)) << (keys ? "key" : "value");
    }
}

TEST_P(AttentionTest, loads_only_pages_that_a_row_sees) {
    Random random(46);
    const TestSource source(400, 1, 16, random);
    Case c{1, 1, 16, {70, 330}, {100, 335}, random.floats(32)};
    run(*compute(1), source, c);
    std::vector<Position> loads = source.loads();
    std::sort(loads.begin(), loads.end());
    EXPECT_EQ(loads, (std::vector<Position>{2, 3, 10}));
}

TEST_P(AttentionTest, within_its_bound_of_double) {
    Random random(47);
    const Position kLength = 300;
    const TestSource source(kLength, 1, 64, random, 2);
    const Case c = causal(2, 1, 64, kLength - 4, 4, kNoWindow, random);
    const std::vector<float> y = run(*compute(1), source, c);
    for (std::size_t r = 0; r < c.rows(); ++r)
        for (std::size_t h = 0; h < 2; ++h) {
            const float* q = c.queries.data() + r * c.width() + h * 64;
            std::vector<double> s;
            double score_terms = 0;
            for (Position p = 0; p <= c.last[r]; ++p) {
                double score = 0;
                double terms = 0;
                for (std::size_t i = 0; i < 64; ++i) {
                    score += double{q[i]} * source.key(0, p)[i];
                    terms += std::fabs(double{q[i]} * source.key(0, p)[i]);
                }
                s.push_back(c.scale * score);
                score_terms = std::max(score_terms, c.scale * terms);
            }
            const double top = *std::max_element(s.begin(), s.end());
            double sum = 0;
            for (double& v : s) sum += v = std::exp(v - top);
            for (std::size_t i = 0; i < 64; ++i) {
                double exact = 0;
                double magnitude = 0;
                for (std::size_t p = 0; p < s.size(); ++p) {
                    exact += s[p] / sum * source.value(0, static_cast<Position>(p))[i];
                    magnitude += s[p] / sum * std::fabs(source.value(0, static_cast<Position>(p))[i]);
                }
                // Scores err by 66 steps of their terms, weights by that plus exp and one rescale per page, twice for
                // the sum.
                const double bound = 2 * (66 * score_terms + 4 + 4 * 10) * kEps * magnitude + 300 * kEps * magnitude;
                ASSERT_TRUE(within(y[r * c.width() + h * 64 + i], exact, bound)) << r << " " << i;
            }
        }
}

TEST_P(AttentionTest, one_visible_key_returns_its_value) {
    Random random(48);
    const TestSource source(64, 1, 24, random);
    Case c{1, 1, 24, {45}, {45}, random.floats(24, 32)};
    const std::vector<float> y = run(*compute(1), source, c);
    ASSERT_TRUE(bits_equal(y.data(), source.value(0, 45), 24));
}

DP_EVERY_ISA(AttentionTest);

}  // namespace
}  // namespace draftprobe::numerics
