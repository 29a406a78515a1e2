// Conversion of whole arrays between fp32 and a 2-byte dtype on the calling thread's OpenMP team.
#pragma once

#include <cstdint>

#include "core/dtype.hpp"

namespace strata::gpu {

void widen(DType dtype, const void* from, float* to, int64_t elements);
void narrow(DType dtype, const float* from, void* to, int64_t elements);

}  // namespace strata::gpu
