// The constants of exp_f32, shared by scalar_math.cc and the vector kernels so that both run one sequence.
//
// e^x = 2^n * e^r with n = rne(x / ln 2) and |r| <= ln(2)/2. The polynomial is 1 + r (1 + r (c2 + r (c3 + ...))) with
// c2..c6 the minimax fit (relative, error 3.1e-9 before rounding the coefficients).
#pragma once

namespace draftprobe::numerics::exp_constants {

inline constexpr float kLog2E = 0x1.715476p+0f;
// Adding and subtracting 1.5 * 2^23 rounds to an integer and leaves that integer in the low mantissa bits.
inline constexpr float kRoundMagic = 12582912.0f;
inline constexpr float kLn2High = 0x1.62e430p-1f;
inline constexpr float kLn2Low = -0x1.05c610p-29f;
inline constexpr float kC2 = 0x1.fffffcp-2f;
inline constexpr float kC3 = 0x1.555492p-3f;
inline constexpr float kC4 = 0x1.5558f2p-5f;
inline constexpr float kC5 = 0x1.1239d4p-7f;
inline constexpr float kC6 = 0x1.6a244cp-10f;
// Largest float with a finite exponential; above it the result is +inf.
inline constexpr float kOverflow = 0x1.62e42ep+6f;
// Smallest float whose exponential is a normal float; below it the result is 0.
inline constexpr float kUnderflow = -0x1.5d589ep+6f;

}  // namespace draftprobe::numerics::exp_constants
