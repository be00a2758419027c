#include <immintrin.h>

#define DP_SIMD_HEADER "numerics/cpu/simd_avx2.h"
#define DP_KERNEL_TABLE kAvx2Kernels
#include "numerics/cpu/kernels_impl.h"
