#include "gpu/host/row_ranges.hpp"

// This file is compiled once for every instruction set: foreach_target.h includes it again for each.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "gpu/host/row_ranges_activation.cpp"
#include "gpu/host/targets.hpp"
#include "gpu/host/visit-inl.hpp"
#include "gpu/kernels/activation-inl.hpp"
#include "gpu/kernels/one_lane-inl.hpp"

STRATA_KERNELS_BEFORE
namespace STRATA_KERNELS_NAMESPACE {
using row_ranges::Activate;
using row_ranges::ActivateGated;
using row_ranges::Range;

void activation_range(const Activate& a, Range elements) {
  visit_dtype(a.dtype, [&]<class T>(T) {
    visit_activation(a.kind, [&]<class Kind>(Kind) {
      activate<Kind::value>(OneLane(), elements.end - elements.begin, at<T>(a.x, elements.begin), at<T>(a.y, elements.begin));
    });
  });
}

void activation_backward_range(const Activate& a, Range elements) {
  visit_dtype(a.dtype, [&]<class T>(T) {
    visit_activation(a.kind, [&]<class Kind>(Kind) {
      activate_backward<Kind::value>(OneLane(), elements.end - elements.begin, at<T>(a.x, elements.begin),
                                     at<T>(a.d_y, elements.begin), at<T>(a.y, elements.begin), at<T>(a.d_x, elements.begin));
    });
  });
}

void gated_activation_range(const ActivateGated& a, Range rows) {
  visit_dtype(a.dtype, [&]<class T>(T) {
    visit_activation(a.kind, [&]<class Kind>(Kind) {
      for (int64_t row = rows.begin; row < rows.end; ++row) {
        const T* const gate = at<T>(a.gate_up, row * 2 * a.columns);
        activate_gated_row<Kind::value>(OneLane(), a.columns, gate, gate + a.columns, at<T>(a.y, row * a.columns));
      }
    });
  });
}

void gated_activation_backward_range(const ActivateGated& a, Range rows) {
  visit_dtype(a.dtype, [&]<class T>(T) {
    visit_activation(a.kind, [&]<class Kind>(Kind) {
      for (int64_t row = rows.begin; row < rows.end; ++row) {
        const T* const gate = at<T>(a.gate_up, row * 2 * a.columns);
        T* const d_gate = at<T>(a.d_gate_up, row * 2 * a.columns);
        activate_gated_backward_row<Kind::value>(OneLane(), a.columns, gate, gate + a.columns, at<T>(a.d_y, row * a.columns),
                                                 at<T>(a.y, row * a.columns), d_gate, d_gate + a.columns);
      }
    });
  });
}

}  // namespace STRATA_KERNELS_NAMESPACE
STRATA_KERNELS_AFTER

#if HWY_ONCE
namespace strata::gpu::kernels {
HWY_EXPORT(activation_range);
HWY_EXPORT(activation_backward_range);
HWY_EXPORT(gated_activation_range);
HWY_EXPORT(gated_activation_backward_range);
}  // namespace strata::gpu::kernels

namespace strata::gpu::row_ranges {
using namespace kernels;
void activation(const Activate& a, Range elements) { HWY_DYNAMIC_DISPATCH(activation_range)(a, elements); }
void activation_backward(const Activate& a, Range elements) { HWY_DYNAMIC_DISPATCH(activation_backward_range)(a, elements); }
void gated_activation(const ActivateGated& a, Range rows) { HWY_DYNAMIC_DISPATCH(gated_activation_range)(a, rows); }
void gated_activation_backward(const ActivateGated& a, Range rows) {
  HWY_DYNAMIC_DISPATCH(gated_activation_backward_range)(a, rows);
}
}  // namespace strata::gpu::row_ranges
#endif
