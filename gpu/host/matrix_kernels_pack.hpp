// Packing of a product's right factor into the panels that oneDNN's kernels read, and transposition of a left one: its own reorders are
// several times slower than memory.
#pragma once

#include <cstdint>

#include "core/dtype.hpp"

namespace strata::gpu {

/// A matrix of `depth` x `columns` cut into panels of `panel_columns` columns. In a panel, fp32 lies as [padded_depth][panel_columns],
/// bf16 as [padded_depth / 2][panel_columns][2]: two rows side by side, as the dot product instructions take them. What lies outside
/// of the matrix is zero.
struct PanelLayout {
  static constexpr int64_t kMostColumns = 64;  // of a panel

  int64_t depth = 0, padded_depth = 0;
  int64_t columns = 0, panel_columns = 0;
  DType dtype = DType::f32;

  int64_t panels() const { return (columns + panel_columns - 1) / panel_columns; }
};

/// The order in which the plain matrix lies: row-major [depth][columns], or its transpose [columns][depth].
enum class PlainOrder { rows, transposed };

/// Runs on the calling thread's team. `from` and `to` are aligned to their elements.
void pack_panels(const PanelLayout& layout, PlainOrder order, const void* from, void* to);

/// [rows][columns] to [columns][rows], of 16-bit elements; `rows` is even. Runs on the calling thread's team.
void transpose_halves(int64_t rows, int64_t columns, const uint16_t* from, uint16_t* to);

}  // namespace strata::gpu
