// The instruction sets that the host's row kernels are compiled for. Included where Highway's foreach_target.h would be, with
// HWY_TARGET_INCLUDE set, again for each.

// Few, to bound the compile time: AVX-512, AVX2, and what every processor has. The bits below HWY_AVX3 are its variants (AVX3_DL,
// AVX3_ZEN4, AVX3_SPR, ...), of which each version of Highway knows more; they would add nothing here.
#ifndef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | (HWY_AVX3 - 1))
#endif
#ifndef STRATA_KERNELS_PER_TARGET
#define STRATA_KERNELS_PER_TARGET
#endif

#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>
