#include "gpu/host/row_ranges.hpp"

// This file is compiled once for every instruction set: foreach_target.h includes it again for each.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "gpu/host/row_ranges_loss.cpp"
#include "gpu/host/targets.hpp"
#include "gpu/host/visit-inl.hpp"
#include "gpu/kernels/loss-inl.hpp"
#include "gpu/kernels/one_lane-inl.hpp"

STRATA_KERNELS_BEFORE
namespace STRATA_KERNELS_NAMESPACE {

void cross_entropy_range(const row_ranges::CrossEntropy& loss, row_ranges::Range rows) {
  visit_dtype(loss.logits_dtype, [&]<class T>(T) {
    visit_dtype(loss.gradient_dtype, [&]<class G>(G) {
      for (int64_t row = rows.begin; row < rows.end; ++row) {
        G* const d_logits = loss.d_logits == nullptr ? nullptr : at<G>(loss.d_logits, row * loss.columns);
        cross_entropy_row(OneLane(), loss.columns, at<T>(loss.logits, row * loss.columns), loss.labels[row], loss.scale,
                          loss.losses + row, d_logits);
      }
    });
  });
}

}  // namespace STRATA_KERNELS_NAMESPACE
STRATA_KERNELS_AFTER

#if HWY_ONCE
namespace strata::gpu::kernels {
HWY_EXPORT(cross_entropy_range);
}

namespace strata::gpu::row_ranges {
using namespace kernels;
void cross_entropy(const CrossEntropy& loss, Range rows) { HWY_DYNAMIC_DISPATCH(cross_entropy_range)(loss, rows); }
}  // namespace strata::gpu::row_ranges
#endif
