#define DP_PLAIN_LOOPS
#define DP_SIMD_HEADER "numerics/cpu/simd_portable.h"
#define DP_KERNEL_TABLE kPortableKernels
#include "numerics/cpu/kernels_impl.h"
