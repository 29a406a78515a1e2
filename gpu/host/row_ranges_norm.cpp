#include "gpu/host/row_ranges.hpp"

// This file is compiled once for every instruction set: foreach_target.h includes it again for each.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "gpu/host/row_ranges_norm.cpp"
#include "gpu/host/targets.hpp"
#include "gpu/host/visit-inl.hpp"
#include "gpu/kernels/elementwise-inl.hpp"
#include "gpu/kernels/norm-inl.hpp"
#include "gpu/kernels/one_lane-inl.hpp"

STRATA_KERNELS_BEFORE
namespace STRATA_KERNELS_NAMESPACE {
using row_ranges::Range;

void rms_norm_range(const row_ranges::Norm& norm, Range rows) {
  visit_dtype(norm.dtype, [&]<class T>(T) {
    for (int64_t row = rows.begin; row < rows.end; ++row) {
      rms_norm_row(OneLane(), norm.rows.columns, at<T>(norm.x, row * norm.rows.stride), at<T>(norm.weight, 0), norm.epsilon,
                   at<T>(norm.y, row * norm.y_stride), norm.statistics + row);
    }
  });
}

void layer_norm_range(const row_ranges::Norm& norm, Range rows) {
  visit_dtype(norm.dtype, [&]<class T>(T) {
    for (int64_t row = rows.begin; row < rows.end; ++row) {
      layer_norm_row(OneLane(), norm.rows.columns, at<T>(norm.x, row * norm.rows.stride), at<T>(norm.weight, 0),
                     at<T>(norm.bias, 0), norm.epsilon, at<T>(norm.y, row * norm.y_stride), norm.statistics + 2 * row);
    }
  });
}

/// Calls function(T(), constant add_to_dx, row, its block) for every row of the blocks, in order.
template <class Function>
void for_rows_of_blocks(const row_ranges::NormBackward& norm, Range blocks, const Function& function) {
  visit_dtype(norm.dtype, [&]<class T>(T) {
    const auto for_rows = [&](auto add_to_dx) {
      const int64_t end = blocks.end * kRowsPerBlock < norm.rows.count ? blocks.end * kRowsPerBlock : norm.rows.count;
      for (int64_t row = blocks.begin * kRowsPerBlock; row < end; ++row) function(T(), add_to_dx, row, row / kRowsPerBlock);
    };
    norm.add_to_dx ? for_rows(std::true_type()) : for_rows(std::false_type());
  });
}

void rms_norm_backward_range(const row_ranges::NormBackward& norm, Range blocks) {
  const int64_t columns = norm.rows.columns;
  clear(OneLane(), (blocks.end - blocks.begin) * columns, norm.partials + blocks.begin * columns);
  for_rows_of_blocks(norm, blocks, [&]<class T, class Add>(T, Add, int64_t row, int64_t block) {
    rms_norm_backward_row<Add::value>(OneLane(), columns, at<T>(norm.x, row * norm.rows.stride), at<T>(norm.weight, 0),
                                      norm.statistics[row], at<T>(norm.d_y, row * norm.d_y_stride),
                                      at<T>(norm.d_x, row * norm.d_x_stride), norm.partials + block * columns);
  });
}

void layer_norm_backward_range(const row_ranges::NormBackward& norm, Range blocks) {
  const int64_t columns = norm.rows.columns;
  clear(OneLane(), (blocks.end - blocks.begin) * 2 * columns, norm.partials + blocks.begin * 2 * columns);
  for_rows_of_blocks(norm, blocks, [&]<class T, class Add>(T, Add, int64_t row, int64_t block) {
    float* const weight_sums = norm.partials + block * 2 * columns;
    layer_norm_backward_row<Add::value>(OneLane(), columns, at<T>(norm.x, row * norm.rows.stride), at<T>(norm.weight, 0),
                                        norm.statistics + 2 * row, at<T>(norm.d_y, row * norm.d_y_stride),
                                        at<T>(norm.d_x, row * norm.d_x_stride), weight_sums, weight_sums + columns);
  });
}

void column_sum_range(const row_ranges::ColumnSum& sum, int64_t block, Range columns) {
  const int64_t begin = block * kRowsPerBlock;
  const int64_t end = begin + kRowsPerBlock < sum.rows.count ? begin + kRowsPerBlock : sum.rows.count;
  float* const partials = sum.partials + block * sum.rows.columns + columns.begin;
  clear(OneLane(), columns.end - columns.begin, partials);
  visit_dtype(sum.dtype, [&]<class T>(T) {
    for (int64_t row = begin; row < end; ++row) {
      accumulate(OneLane(), columns.end - columns.begin, at<T>(sum.x, row * sum.rows.stride + columns.begin), partials);
    }
  });
}

void add_partials_range(const row_ranges::Partials& partials, Range columns) {
  add_partials(OneLane(), columns.end - columns.begin, partials.count, partials.stride, partials.partials + columns.begin,
               partials.keep, partials.sums + columns.begin);
}

}  // namespace STRATA_KERNELS_NAMESPACE
STRATA_KERNELS_AFTER

#if HWY_ONCE
namespace strata::gpu::kernels {
HWY_EXPORT(rms_norm_range);
HWY_EXPORT(layer_norm_range);
HWY_EXPORT(rms_norm_backward_range);
HWY_EXPORT(layer_norm_backward_range);
HWY_EXPORT(column_sum_range);
HWY_EXPORT(add_partials_range);
}  // namespace strata::gpu::kernels

namespace strata::gpu::row_ranges {
using namespace kernels;
void rms_norm(const Norm& norm, Range rows) { HWY_DYNAMIC_DISPATCH(rms_norm_range)(norm, rows); }
void layer_norm(const Norm& norm, Range rows) { HWY_DYNAMIC_DISPATCH(layer_norm_range)(norm, rows); }
void rms_norm_backward(const NormBackward& norm, Range blocks) { HWY_DYNAMIC_DISPATCH(rms_norm_backward_range)(norm, blocks); }
void layer_norm_backward(const NormBackward& norm, Range blocks) { HWY_DYNAMIC_DISPATCH(layer_norm_backward_range)(norm, blocks); }
void column_sum(const ColumnSum& sum, int64_t block, Range columns) {
  HWY_DYNAMIC_DISPATCH(column_sum_range)(sum, block, columns);
}
void add_partials(const Partials& partials, Range columns) { HWY_DYNAMIC_DISPATCH(add_partials_range)(partials, columns); }
}  // namespace strata::gpu::row_ranges
#endif
