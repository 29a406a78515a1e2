// The macros that let one text of a kernel serve every build: plain C++ (tests), CUDA, and once for every instruction set of a CPU.
#pragma once

#include <cstdint>

// A source that is compiled for every instruction set (Highway's foreach_target.h) defines STRATA_KERNELS_PER_TARGET before it includes a
// kernel header. Highway's region then lets the compiler use that instruction set in the plain loops inside it:
//   STRATA_KERNELS_BEFORE
//   namespace STRATA_KERNELS_NAMESPACE {
//   ...
//   }  // namespace STRATA_KERNELS_NAMESPACE
//   STRATA_KERNELS_AFTER
// The namespace stays outside of the macros: GCC 14 drops what follows a pragma in a macro that a system header includes.
#ifdef STRATA_KERNELS_PER_TARGET
#define STRATA_KERNELS_NAMESPACE strata::gpu::kernels::HWY_NAMESPACE
#define STRATA_KERNELS_BEFORE HWY_BEFORE_NAMESPACE();
#define STRATA_KERNELS_AFTER HWY_AFTER_NAMESPACE();
#else
#define STRATA_KERNELS_NAMESPACE strata::gpu::kernels
#define STRATA_KERNELS_BEFORE
#define STRATA_KERNELS_AFTER
#endif

// STRATA_KERNEL: a kernel. STRATA_KERNEL_INLINE: arithmetic inside its loops; a loop with a call is not vectorized.
#ifdef __CUDACC__
#define STRATA_KERNEL __host__ __device__ inline
#define STRATA_KERNEL_INLINE __host__ __device__ __forceinline__
#else
#define STRATA_KERNEL inline
#define STRATA_KERNEL_INLINE [[gnu::always_inline]] inline
#endif
