// What the host device needs of oneDNN beside its primitives: the calls that differ between versions 2 and 3, and copies of plain matrices
// into the layouts that its products choose. Public calls only.
#pragma once

#include <cstdint>
#include <oneapi/dnnl/dnnl.hpp>
#include <optional>

#include "core/dtype.hpp"
#include "gpu/host/matrix_kernels_pack.hpp"

#if DNNL_VERSION_MAJOR < 2 || (DNNL_VERSION_MAJOR == 2 && DNNL_VERSION_MINOR < 5) || DNNL_VERSION_MAJOR > 3
#error "oneDNN 2.5 to 3.x is needed"
#endif

namespace strata::gpu {

/// Whether this processor multiplies the dtype itself; otherwise products go through fp32.
bool multiplies(DType dtype);

/// f32 or, for any other dtype, bf16.
dnnl::memory::desc matrix_desc(int64_t rows, int64_t columns, DType dtype, dnnl::memory::format_tag layout);

/// c = a b (+ bias, unless `bias` is the empty descriptor). Throws dnnl::error.
dnnl::matmul::primitive_desc plan_matmul(const dnnl::engine& engine, const dnnl::memory::desc& a, const dnnl::memory::desc& b,
                                         const dnnl::memory::desc& bias, const dnnl::memory::desc& c, const dnnl::primitive_attr& attributes);

/// The panels that `layout`, of a right factor of depth x columns, stands for; nothing when it is another layout.
std::optional<PanelLayout> panels_of(const dnnl::memory::desc& layout, int64_t depth, int64_t columns, DType dtype);

/// A copy of a plain right factor into the layout that a product wants, planned: by our packing where the layout is one of panels, else
/// by oneDNN's reorder.
class Repacking {
 public:
  Repacking() = default;
  /// `from` lies in `order`. Throws dnnl::error.
  Repacking(const dnnl::engine& engine, int64_t depth, int64_t columns, DType dtype, PlainOrder order, const dnnl::memory::desc& to);

  uint64_t bytes() const { return to_.get_size(); }
  bool by_panels() const { return panels_.has_value(); }

  /// Runs on the calling thread's team and returns when done.
  void operator()(const dnnl::engine& engine, dnnl::stream& stream, const void* from, void* to) const;

 private:
  dnnl::memory::desc from_, to_;
  PlainOrder order_ = PlainOrder::rows;
  std::optional<PanelLayout> panels_;
  dnnl::reorder reorder_;
};

}  // namespace strata::gpu
