#include "gpu/host/row_ranges.hpp"

// This file is compiled once for every instruction set: foreach_target.h includes it again for each.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "gpu/host/row_ranges_elementwise.cpp"
#include "gpu/host/targets.hpp"
#include "gpu/host/visit-inl.hpp"
#include "core/layout.hpp"
#include "gpu/kernels/elementwise-inl.hpp"
#include "gpu/kernels/one_lane-inl.hpp"

STRATA_KERNELS_BEFORE
namespace STRATA_KERNELS_NAMESPACE {
using row_ranges::Range;

void rope_range(const row_ranges::Rope& rope, Range rows) {
  const int64_t half = rope.head_dim / 2;
  visit_dtype(rope.dtype, [&]<class T>(T) {
    for (int64_t row = rows.begin; row < rows.end; ++row) {
      const int64_t position = row % rope.sequence_length;
      rope_row(OneLane(), rope.heads, rope.head_dim, at<T>(rope.x, row * rope.rows.stride), rope.cosines + position * half,
               rope.sines + position * half, rope.inverse);
    }
  });
}

void add_bias_range(const row_ranges::AddBias& bias, Range rows) {
  visit_dtype(bias.dtype, [&]<class T>(T) {
    for (int64_t row = rows.begin; row < rows.end; ++row) {
      T* const x = at<T>(bias.x, row * bias.rows.stride);
      add(OneLane(), bias.rows.columns, x, at<T>(bias.bias, 0), x);
    }
  });
}

void add_range(const row_ranges::Add& a, Range elements) {
  visit_dtype(a.dtype, [&]<class T>(T) {
    add(OneLane(), elements.end - elements.begin, at<T>(a.a, elements.begin), at<T>(a.b, elements.begin), at<T>(a.y, elements.begin));
  });
}

void gather_range(const row_ranges::Gather& gather, Range tokens) {
  visit_dtype(gather.dtype, [&]<class T>(T) {
    for (int64_t t = tokens.begin; t < tokens.end; ++t) {
      const T* const row = at<T>(gather.table, gather.tokens[t] * gather.columns);
      T* const y = at<T>(gather.y, t * gather.columns);
      if (gather.positions == nullptr) {
        cast(OneLane(), gather.columns, row, y);
      } else {
        add(OneLane(), gather.columns, row, at<T>(gather.positions, t % gather.sequence_length * gather.columns), y);
      }
    }
  });
}

void scatter_add_range(const row_ranges::ScatterAdd& scatter, Range columns) {
  visit_dtype(scatter.dtype, [&]<class T>(T) {
    scatter_add_columns(OneLane(), scatter.tokens_count, columns.end - columns.begin, scatter.columns, scatter.tokens,
                        at<T>(scatter.d_y, columns.begin), scatter.d_table + columns.begin,
                        scatter.d_positions == nullptr ? nullptr : scatter.d_positions + columns.begin, scatter.sequence_length);
  });
}

void cast_range(const row_ranges::Cast& c, Range elements) {
  visit_dtype(c.from, [&]<class From>(From) {
    visit_dtype(c.to, [&]<class To>(To) {
      cast(OneLane(), elements.end - elements.begin, at<From>(c.x, elements.begin), at<To>(c.y, elements.begin));
    });
  });
}

void sum_squares_range(const row_ranges::SumSquares& sum, Range blocks) {
  constexpr auto kBlock = static_cast<int64_t>(kBlockElements);
  visit_dtype(sum.dtype, [&]<class T>(T) {
    for (int64_t block = blocks.begin; block < blocks.end; ++block) {
      sum.block_sums[block] = sum_squares(OneLane(), kBlock, at<T>(sum.x, block * kBlock));
    }
  });
}

}  // namespace STRATA_KERNELS_NAMESPACE
STRATA_KERNELS_AFTER

#if HWY_ONCE
namespace strata::gpu::kernels {
HWY_EXPORT(rope_range);
HWY_EXPORT(add_bias_range);
HWY_EXPORT(add_range);
HWY_EXPORT(gather_range);
HWY_EXPORT(scatter_add_range);
HWY_EXPORT(cast_range);
HWY_EXPORT(sum_squares_range);
}  // namespace strata::gpu::kernels

namespace strata::gpu::row_ranges {
using namespace kernels;
void rope(const Rope& rope, Range rows) { HWY_DYNAMIC_DISPATCH(rope_range)(rope, rows); }
void add_bias(const AddBias& add, Range rows) { HWY_DYNAMIC_DISPATCH(add_bias_range)(add, rows); }
void add(const Add& add, Range elements) { HWY_DYNAMIC_DISPATCH(add_range)(add, elements); }
void gather(const Gather& gather, Range tokens) { HWY_DYNAMIC_DISPATCH(gather_range)(gather, tokens); }
void scatter_add(const ScatterAdd& scatter, Range columns) { HWY_DYNAMIC_DISPATCH(scatter_add_range)(scatter, columns); }
void cast(const Cast& cast, Range elements) { HWY_DYNAMIC_DISPATCH(cast_range)(cast, elements); }
void sum_squares(const SumSquares& sum, Range blocks) { HWY_DYNAMIC_DISPATCH(sum_squares_range)(sum, blocks); }
}  // namespace strata::gpu::row_ranges
#endif
