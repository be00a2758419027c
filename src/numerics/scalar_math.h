// Transcendental functions with one bit pattern per input on every compiler and instruction set.
//
// libm is not used: glibc picks other code by CPU and its last bits move with it (docs/numerics.md). Everything here is
// plain IEEE arithmetic with explicit fma, evaluated in double where speed does not matter, and rounded once to float.
// sqrt and division are correctly rounded by IEEE 754, so the built-in ones are canonical already.
#pragma once

namespace draftprobe::numerics {

// e^x in float32 arithmetic: Cody-Waite reduction by ln 2, polynomial with fma, exponent by integer add.
// exp_f32(-inf) = 0, overflow gives +inf, results below the normal range flush to 0 exactly. Relative error at most 2
// ulp. Kernels vectorise exactly this sequence, lane by lane.
float exp_f32(float x);

// 1 / (1 + exp_f32(-x)).
float sigmoid_f32(float x);
// x / (1 + exp_f32(-x)).
float silu_f32(float x);
// log(1 + e^x), evaluated in double and rounded once; x itself for x > 20 (as the reference does).
float softplus_f32(float x);

// Double precision, error below 1e-14 relative; for tables and per-head gates, not for inner loops.
double exp_f64(double x);
double log_f64(double x);    // requires x > 0, normal
double log1p_f64(double x);  // requires x > -1

// sin and cos of a float32 angle (|angle| < 2^22), each evaluated in double and rounded once to float32.
void sincos_f32(float angle, float* sin_out, float* cos_out);

// theta^(-2i/dims) rounded once to float32: the rotary inverse frequency of pair i. No pow.
float rope_inverse_frequency(double theta, int i, int dims);

}  // namespace draftprobe::numerics
