#include "gpu/host/matrix_kernels_pack.hpp"

#include <algorithm>
#include <cstring>

#include "gpu/host/parallel.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "gpu/host/matrix_kernels_pack.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace strata::gpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

constexpr int64_t kSegment = 32;    // words of a row that a transposition reads in one go
constexpr int64_t kRowsAhead = 8;  // of the one that is read, fetched already

/// 4 rows of 4 words, `from_stride` words apart, to 4 columns, `to_stride` words apart. 16 bytes at a time, whatever the width of the
/// vectors: that already outruns the memory.
HWY_INLINE void transpose_4x4(const uint32_t* from, int64_t from_stride, uint32_t* to, int64_t to_stride) {
#if HWY_TARGET == HWY_SCALAR
  for (int64_t i = 0; i < 4; ++i) {
    for (int64_t j = 0; j < 4; ++j) to[j * to_stride + i] = from[i * from_stride + j];
  }
#else
  const hn::Full128<uint32_t> d;
  const hn::Full128<uint64_t> d64;
  const auto r0 = hn::LoadU(d, from), r1 = hn::LoadU(d, from + from_stride);
  const auto r2 = hn::LoadU(d, from + 2 * from_stride), r3 = hn::LoadU(d, from + 3 * from_stride);
  const auto a0 = hn::BitCast(d64, hn::InterleaveLower(d, r0, r1)), a1 = hn::BitCast(d64, hn::InterleaveLower(d, r2, r3));
  const auto b0 = hn::BitCast(d64, hn::InterleaveUpper(d, r0, r1)), b1 = hn::BitCast(d64, hn::InterleaveUpper(d, r2, r3));
  hn::StoreU(hn::BitCast(d, hn::InterleaveLower(d64, a0, a1)), d, to);
  hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(d64, a0, a1)), d, to + to_stride);
  hn::StoreU(hn::BitCast(d, hn::InterleaveLower(d64, b0, b1)), d, to + 2 * to_stride);
  hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(d64, b0, b1)), d, to + 3 * to_stride);
#endif
}

/// Segments of rows lie too far apart for the processor to foresee them.
HWY_INLINE void prefetch(const void* data, int64_t bytes) {
  for (int64_t line = 0; line < bytes; line += 64) __builtin_prefetch(static_cast<const char*>(data) + line);
}

/// [rows][from_stride] to [columns][to_stride], rows and columns multiples of 4. Four rows at a time, a few cache lines of each: with a
/// power of two between rows, more rows would not stay in the cache.
void transpose_words(const uint32_t* from, int64_t from_stride, int64_t rows, int64_t columns, uint32_t* to, int64_t to_stride) {
  for (int64_t column = 0; column < columns; column += kSegment) {
    const int64_t end = std::min(columns, column + kSegment);
    for (int64_t row = 0; row < rows; row += 4) {
      const bool here = row + kRowsAhead < rows;
      const uint32_t* const next = from + (here ? row + kRowsAhead : row + kRowsAhead - rows) * from_stride + (here ? column : end);
      for (int64_t i = 0; i < 4; ++i) prefetch(next + i * from_stride, kSegment * 4);
      for (int64_t i = column; i < end; i += 4) {
        transpose_4x4(from + row * from_stride + i, from_stride, to + i * to_stride + row, to_stride);
      }
    }
  }
}

/// pairs[i] = (a[i], b[i]).
HWY_INLINE void interleave(const uint16_t* a, const uint16_t* b, int64_t count, uint16_t* pairs) {
  int64_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  const hn::Full128<uint16_t> d;
  for (; i + 8 <= count; i += 8) {
    const auto first = hn::LoadU(d, a + i), second = hn::LoadU(d, b + i);
    hn::StoreU(hn::InterleaveLower(d, first, second), d, pairs + 2 * i);
    hn::StoreU(hn::InterleaveUpper(d, first, second), d, pairs + 2 * i + 8);
  }
#endif
  for (; i < count; ++i) {
    pairs[2 * i] = a[i];
    pairs[2 * i + 1] = b[i];
  }
}

void PackFloats(const PanelLayout& layout, PlainOrder order, const void* from, void* to, int64_t panel) {
  const int64_t width = layout.panel_columns, first = panel * width, count = std::min(width, layout.columns - first);
  const auto* const source = static_cast<const uint32_t*>(from);
  uint32_t* const target = static_cast<uint32_t*>(to) + panel * width * layout.padded_depth;
  if (order == PlainOrder::rows) {
    for (int64_t k = 0; k < layout.depth; ++k) {
      prefetch(source + (k + kRowsAhead) * layout.columns + first, width * 4);
      std::memcpy(target + k * width, source + k * layout.columns + first, static_cast<size_t>(count) * sizeof(float));
      std::fill(target + k * width + count, target + (k + 1) * width, 0u);
    }
  } else {
    const uint32_t* const panel_source = source + first * layout.depth;
    const int64_t whole_columns = count / 4 * 4, whole_depth = layout.depth / 4 * 4;
    transpose_words(panel_source, layout.depth, whole_columns, whole_depth, target, width);
    for (int64_t column = 0; column < width; ++column) {
      const int64_t begin = column < whole_columns ? whole_depth : 0;
      for (int64_t k = begin; k < layout.depth; ++k) {
        target[k * width + column] = column < count ? panel_source[column * layout.depth + k] : 0u;
      }
    }
  }
  std::fill(target + layout.depth * width, target + layout.padded_depth * width, 0u);
}

void PackHalves(const PanelLayout& layout, PlainOrder order, const void* from, void* to, int64_t panel) {
  const int64_t width = layout.panel_columns, first = panel * width, count = std::min(width, layout.columns - first);
  const auto* const source = static_cast<const uint16_t*>(from);
  uint16_t* const target = static_cast<uint16_t*>(to) + panel * width * layout.padded_depth;
  const auto at = [&](int64_t k, int64_t column) -> uint16_t& { return target[(k / 2 * width + column) * 2 + k % 2]; };
  if (order == PlainOrder::rows) {
    const int64_t whole_depth = layout.depth / 2 * 2;
    for (int64_t k = 0; k < whole_depth; k += 2) {
      const uint16_t* const row = source + k * layout.columns + first;
      prefetch(row + kRowsAhead * layout.columns, width * 2);
      prefetch(row + (kRowsAhead + 1) * layout.columns, width * 2);
      interleave(row, row + layout.columns, count, target + k * width);
      std::fill(&at(k, count), target + (k + 2) * width, uint16_t{0});
    }
    for (int64_t column = 0; whole_depth < layout.depth && column < width; ++column) {
      at(whole_depth, column) = column < count ? source[whole_depth * layout.columns + first + column] : uint16_t{0};
      at(whole_depth + 1, column) = 0;
    }
  } else {
    // Two halves that follow each other in a column are one word of the panel.
    const uint16_t* const panel_source = source + first * layout.depth;
    const bool words = layout.depth % 2 == 0;
    const int64_t whole_columns = words ? count / 4 * 4 : 0, whole_depth = words ? layout.depth / 8 * 8 : 0;
    if (words) {
      transpose_words(reinterpret_cast<const uint32_t*>(panel_source), layout.depth / 2, whole_columns, whole_depth / 2,
                      reinterpret_cast<uint32_t*>(target), width);
    }
    for (int64_t column = 0; column < width; ++column) {
      const int64_t begin = column < whole_columns ? whole_depth : 0;
      for (int64_t k = begin; k < (layout.depth + 1) / 2 * 2; ++k) {
        at(k, column) = column < count && k < layout.depth ? panel_source[column * layout.depth + k] : uint16_t{0};
      }
    }
  }
  std::fill(target + (layout.depth + 1) / 2 * 2 * width, target + layout.padded_depth * width, uint16_t{0});
}

}  // namespace strata::gpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace strata::gpu {
namespace {

HWY_EXPORT(PackFloats);
HWY_EXPORT(PackHalves);

}  // namespace

void pack_panels(const PanelLayout& layout, PlainOrder order, const void* from, void* to) {
  const auto floats = HWY_DYNAMIC_DISPATCH(PackFloats), halves = HWY_DYNAMIC_DISPATCH(PackHalves);
  const auto pack = layout.dtype == DType::f32 ? floats : halves;
  parallel_for(layout.panels(), 1, [&](int64_t begin, int64_t end) {
    for (int64_t panel = begin; panel < end; ++panel) pack(layout, order, from, to, panel);
  });
}

}  // namespace strata::gpu
#endif
