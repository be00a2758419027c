#if defined(__GNUC__) && !defined(__clang__)
// g++ 12 warns about the deliberately undefined operands inside its own AVX-512 header.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include <immintrin.h>

#define DP_SIMD_HEADER "numerics/cpu/simd_avx512.h"
#define DP_KERNEL_TABLE kAvx512Kernels
#include "numerics/cpu/kernels_impl.h"
