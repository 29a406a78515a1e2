#include "gpu/host/matrix_kernels_pack.hpp"

#include <algorithm>
#include <cstring>

#include "core/error.hpp"
#include "gpu/host/parallel.hpp"

#define HWY_DISABLED_TARGETS (HWY_AVX3 - 1)  // variants of AVX-512, which would add nothing here
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "gpu/host/matrix_kernels_pack.cpp"
#include <hwy/foreach_target.h>

#include <hwy/cache_control.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace strata::gpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

constexpr int64_t kBlockWords = 32;     // depth of a block, in words of 4 bytes: one fp32 row, two bf16 rows
constexpr int64_t kRowsAhead = 32;      // of the one that is read, fetched already
constexpr int64_t kPanelsAbreast = 8;  // packed side by side, so that long pieces of the plain rows are read at a time

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

/// Into the second cache, which waits for more lines at once than the first. Pieces of rows lie too far apart for the processor to foresee.
HWY_INLINE void prefetch(const void* data, int64_t bytes) {
  for (int64_t line = 0; line < bytes; line += 64) __builtin_prefetch(static_cast<const char*>(data) + line, 0, 2);
}

/// [rows][from_stride] to [columns][to_stride], rows and columns multiples of 4. Four rows at a time: with a power of two between rows, more
/// would not stay in the cache.
void transpose_words(const uint32_t* from, int64_t from_stride, int64_t rows, int64_t columns, uint32_t* to, int64_t to_stride) {
  for (int64_t row = 0; row < rows; row += 4) {
    const bool here = row + kRowsAhead < rows;  // else the first rows of the next block
    const uint32_t* const next = from + (here ? row + kRowsAhead : row + kRowsAhead - rows) * from_stride + (here ? 0 : columns);
    for (int64_t i = 0; i < 4; ++i) prefetch(next + i * from_stride, columns * 4);
    for (int64_t i = 0; i < columns; i += 4) transpose_4x4(from + row * from_stride + i, from_stride, to + i * to_stride + row, to_stride);
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

/// Rows [first, first + rows) of a panel of fp32 to block[rows][width], which is zero.
void gather_floats(const PanelLayout& layout, PlainOrder order, const uint32_t* from, int64_t column, int64_t count, int64_t first,
                   int64_t rows, uint32_t* block) {
  const int64_t width = layout.panel_columns;
  if (order == PlainOrder::rows) {
    const uint32_t* row = from + first * layout.columns + column;
    for (int64_t k = 0; k < rows; ++k, row += layout.columns) {
      prefetch(row + kRowsAhead * layout.columns, width * 4);
      std::memcpy(block + k * width, row, static_cast<size_t>(count) * sizeof(float));
    }
    return;
  }
  const uint32_t* const source = from + column * layout.depth + first;
  const int64_t whole_columns = count / 4 * 4, whole_rows = rows / 4 * 4;
  transpose_words(source, layout.depth, whole_columns, whole_rows, block, width);
  for (int64_t c = 0; c < count; ++c) {
    for (int64_t k = c < whole_columns ? whole_rows : 0; k < rows; ++k) block[k * width + c] = source[c * layout.depth + k];
  }
}

/// Of bf16, to block[rows / 2][width][2]. `first` is even.
void gather_halves(const PanelLayout& layout, PlainOrder order, const uint16_t* from, int64_t column, int64_t count, int64_t first,
                   int64_t rows, uint16_t* block) {
  const int64_t width = layout.panel_columns;
  if (order == PlainOrder::rows) {
    const uint16_t* row = from + first * layout.columns + column;
    int64_t k = 0;
    for (; k + 2 <= rows; k += 2, row += 2 * layout.columns) {
      prefetch(row + kRowsAhead * layout.columns, width * 2);
      prefetch(row + (kRowsAhead + 1) * layout.columns, width * 2);
      interleave(row, row + layout.columns, count, block + k * width);
    }
    for (int64_t c = 0; k < rows && c < count; ++c) block[k * width + 2 * c] = row[c];
    return;
  }
  // Two halves that follow each other in a column are one word of the panel.
  const uint16_t* const source = from + column * layout.depth + first;
  const bool words = layout.depth % 2 == 0;
  const int64_t whole_columns = words ? count / 4 * 4 : 0, whole_rows = words ? rows / 8 * 8 : 0;
  if (words) {
    transpose_words(reinterpret_cast<const uint32_t*>(source), layout.depth / 2, whole_columns, whole_rows / 2,
                    reinterpret_cast<uint32_t*>(block), width);
  }
  for (int64_t c = 0; c < count; ++c) {
    for (int64_t k = c < whole_columns ? whole_rows : 0; k < rows; ++k) {
      block[(k / 2 * width + c) * 2 + k % 2] = source[c * layout.depth + k];
    }
  }
}

/// Writes past the caches where the target is aligned for it: a line that is written whole need not be read first.
void write_block(const uint32_t* block, uint32_t* to, int64_t words) {
  const hn::ScalableTag<uint32_t> d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  if (reinterpret_cast<uintptr_t>(to) % (hn::Lanes(d) * sizeof(uint32_t)) != 0 || words % lanes != 0) {
    std::memcpy(to, block, static_cast<size_t>(words) * sizeof(uint32_t));
    return;
  }
  for (int64_t i = 0; i < words; i += lanes) hn::Stream(hn::Load(d, block + i), d, to + i);
}

/// Panels [begin, end). Each block of a panel, which lies in one piece there, is put together in the cache and then written.
void PackPanels(const PanelLayout& layout, PlainOrder order, const void* from, void* to, int64_t begin, int64_t end) {
  alignas(128) uint32_t block[kBlockWords * PanelLayout::kMostColumns];
  const int64_t rows_per_word = layout.dtype == DType::f32 ? 1 : 2, block_rows = kBlockWords * rows_per_word;
  const int64_t width = layout.panel_columns;
  for (int64_t group = begin; group < end; group += kPanelsAbreast) {
    for (int64_t first = 0; first < layout.padded_depth; first += block_rows) {
      const int64_t rows = std::max<int64_t>(0, std::min(block_rows, layout.depth - first));
      const int64_t words = std::min(block_rows, layout.padded_depth - first) / rows_per_word * width;
      for (int64_t panel = group; panel < std::min(end, group + kPanelsAbreast); ++panel) {
        const int64_t column = panel * width, count = std::min(width, layout.columns - column);
        if (rows < block_rows || count < width) std::memset(block, 0, static_cast<size_t>(words) * sizeof(uint32_t));
        if (layout.dtype == DType::f32) {
          gather_floats(layout, order, static_cast<const uint32_t*>(from), column, count, first, rows, block);
        } else {
          gather_halves(layout, order, static_cast<const uint16_t*>(from), column, count, first, rows,
                        reinterpret_cast<uint16_t*>(block));
        }
        write_block(block, static_cast<uint32_t*>(to) + (panel * layout.padded_depth + first) / rows_per_word * width, words);
      }
    }
  }
  hwy::FlushStream();
}

/// Columns [begin, end): pairs of rows are put side by side, and the words that they make are transposed.
void TransposeHalves(int64_t rows, int64_t columns, const uint16_t* from, uint16_t* to, int64_t begin, int64_t end) {
  constexpr int64_t kWidth = PanelLayout::kMostColumns;
  alignas(128) uint32_t pairs[kBlockWords * kWidth] = {}, turned[kWidth * kBlockWords];
  for (int64_t column = begin; column < end; column += kWidth) {
    const int64_t count = std::min(kWidth, end - column);
    for (int64_t first = 0; first < rows; first += 2 * kBlockWords) {
      const int64_t words = std::min(kBlockWords, (rows - first) / 2);
      for (int64_t k = 0; k < words; ++k) {
        const uint16_t* const row = from + (first + 2 * k) * columns + column;
        prefetch(row + kRowsAhead * columns, count * 2);
        prefetch(row + (kRowsAhead + 1) * columns, count * 2);
        interleave(row, row + columns, count, reinterpret_cast<uint16_t*>(pairs + k * kWidth));
      }
      for (int64_t k = 0; k < words; k += 4) {
        for (int64_t c = 0; c < count; c += 4) transpose_4x4(pairs + k * kWidth + c, kWidth, turned + c * kBlockWords + k, kBlockWords);
      }
      for (int64_t c = 0; c < count; ++c) {
        std::memcpy(to + (column + c) * rows + first, turned + c * kBlockWords, static_cast<size_t>(words) * sizeof(uint32_t));
      }
    }
  }
}

}  // namespace strata::gpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace strata::gpu {
namespace {

HWY_EXPORT(PackPanels);
HWY_EXPORT(TransposeHalves);

}  // namespace

void pack_panels(const PanelLayout& layout, PlainOrder order, const void* from, void* to) {
  STRATA_CHECK(layout.panel_columns <= PanelLayout::kMostColumns, "panels of {} columns", layout.panel_columns);
  const auto pack = HWY_DYNAMIC_DISPATCH(PackPanels);
  parallel_for(layout.panels(), 1, [&](int64_t begin, int64_t end) { pack(layout, order, from, to, begin, end); });
}

void transpose_halves(int64_t rows, int64_t columns, const uint16_t* from, uint16_t* to) {
  STRATA_CHECK(rows % 2 == 0, "{} rows", rows);
  const auto transpose = HWY_DYNAMIC_DISPATCH(TransposeHalves);
  parallel_for(columns, PanelLayout::kMostColumns,
               [&](int64_t begin, int64_t end) { transpose(rows, columns, from, to, begin, end); });
}

}  // namespace strata::gpu
#endif
