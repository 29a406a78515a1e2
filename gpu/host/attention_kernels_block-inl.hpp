// What attention computes inside one block: small fp32 products from registers, and the exponential.
#if defined(STRATA_GPU_HOST_ATTENTION_BLOCK_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef STRATA_GPU_HOST_ATTENTION_BLOCK_INL
#undef STRATA_GPU_HOST_ATTENTION_BLOCK_INL
#else
#define STRATA_GPU_HOST_ATTENTION_BLOCK_INL
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>

HWY_BEFORE_NAMESPACE();
namespace strata::gpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using FloatTag = hn::CappedTag<float, 16>;
using FloatVector = hn::Vec<FloatTag>;

// The accumulators of a tile, one row of the right factor and a broadcast element fit in the registers.
constexpr int kTileRows = 6;
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_SSE4 || HWY_TARGET == HWY_SSSE3
constexpr int kTileVectors = 2;
#else
constexpr int kTileVectors = 4;
#endif

/// A left factor with any order of its elements: element (row, k) is at data[row * row_stride + k * k_stride].
struct LeftFactor {
  const float* data;
  int64_t row_stride, k_stride;
};

template <int kRows, int kVectors>
HWY_INLINE void product_tile(int64_t depth, LeftFactor a, const float* b, int64_t b_stride, float* c, int64_t c_stride,
                             bool accumulate) {
  const FloatTag d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  FloatVector sums[kRows][kVectors];
#pragma GCC unroll 8
  for (int row = 0; row < kRows; ++row) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) sums[row][v] = accumulate ? hn::LoadU(d, c + row * c_stride + v * lanes) : hn::Zero(d);
  }
  for (int64_t k = 0; k < depth; ++k) {
    FloatVector right[kVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) right[v] = hn::LoadU(d, b + k * b_stride + v * lanes);
#pragma GCC unroll 8
    for (int row = 0; row < kRows; ++row) {
      const auto left = hn::Set(d, a.data[row * a.row_stride + k * a.k_stride]);
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) sums[row][v] = hn::MulAdd(left, right[v], sums[row][v]);
    }
  }
#pragma GCC unroll 8
  for (int row = 0; row < kRows; ++row) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) hn::StoreU(sums[row][v], d, c + row * c_stride + v * lanes);
  }
}

template <int kVectors>
HWY_NOINLINE void product_columns(int64_t rows, int64_t depth, LeftFactor a, const float* b, int64_t b_stride, float* c,
                                  int64_t c_stride, bool accumulate) {
  for (; rows >= kTileRows; rows -= kTileRows) {
    product_tile<kTileRows, kVectors>(depth, a, b, b_stride, c, c_stride, accumulate);
    a.data += kTileRows * a.row_stride;
    c += kTileRows * c_stride;
  }
  switch (rows) {
    case 5: return product_tile<5, kVectors>(depth, a, b, b_stride, c, c_stride, accumulate);
    case 4: return product_tile<4, kVectors>(depth, a, b, b_stride, c, c_stride, accumulate);
    case 3: return product_tile<3, kVectors>(depth, a, b, b_stride, c, c_stride, accumulate);
    case 2: return product_tile<2, kVectors>(depth, a, b, b_stride, c, c_stride, accumulate);
    case 1: return product_tile<1, kVectors>(depth, a, b, b_stride, c, c_stride, accumulate);
    default: return;
  }
}

/// c = or += a b, with `columns` (of b and c) a multiple of 16.
HWY_INLINE void block_product(int64_t rows, int64_t columns, int64_t depth, LeftFactor a, const float* b, int64_t b_stride, float* c,
                              int64_t c_stride, bool accumulate) {
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(FloatTag()));
  int64_t column = 0;
  for (; column + kTileVectors * lanes <= columns; column += kTileVectors * lanes) {
    product_columns<kTileVectors>(rows, depth, a, b + column, b_stride, c + column, c_stride, accumulate);
  }
  if constexpr (kTileVectors > 2) {
    for (; column + 2 * lanes <= columns; column += 2 * lanes) {
      product_columns<2>(rows, depth, a, b + column, b_stride, c + column, c_stride, accumulate);
    }
  }
  for (; column < columns; column += lanes) product_columns<1>(rows, depth, a, b + column, b_stride, c + column, c_stride, accumulate);
}

/// e^x for x up to 88, below -87 zero, to about 1 unit in the last place; NaN stays NaN. A polynomial after the reduction x = n ln 2 + r.
template <class D>
HWY_INLINE hn::Vec<D> exponential(D d, hn::Vec<D> x) {
  const hn::RebindToSigned<D> integers;
  const auto underflows = hn::Lt(x, hn::Set(d, -87.0f));
  x = hn::IfThenElse(underflows, hn::Zero(d), x);
  const auto n = hn::Round(hn::Mul(x, hn::Set(d, 1.44269504088896341f)));
  // ln 2 in two parts; n times the first is exact.
  auto r = hn::NegMulAdd(n, hn::Set(d, 0.693359375f), x);
  r = hn::NegMulAdd(n, hn::Set(d, -2.12194440e-4f), r);
  // Taylor up to r^7: below 2^-26 for |r| <= ln(2) / 2.
  auto sum = hn::Set(d, 1.0f / 5040);
  sum = hn::MulAdd(sum, r, hn::Set(d, 1.0f / 720));
  sum = hn::MulAdd(sum, r, hn::Set(d, 1.0f / 120));
  sum = hn::MulAdd(sum, r, hn::Set(d, 1.0f / 24));
  sum = hn::MulAdd(sum, r, hn::Set(d, 1.0f / 6));
  sum = hn::MulAdd(sum, r, hn::Set(d, 0.5f));
  sum = hn::MulAdd(sum, r, hn::Set(d, 1.0f));
  sum = hn::MulAdd(sum, r, hn::Set(d, 1.0f));
  const auto power = hn::BitCast(d, hn::ShiftLeft<23>(hn::Add(hn::ConvertTo(integers, n), hn::Set(integers, 127))));
  return hn::IfThenZeroElse(underflows, hn::Mul(sum, power));
}

}  // namespace strata::gpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
