#include "gpu/host/onednn.hpp"

namespace strata::gpu {

using dnnl::memory;

bool multiplies(DType dtype) {
  if (dtype == DType::f32) return true;
  if (dtype == DType::f16) return false;
  // An instruction set's value has the bits of all that it includes, so that newer ones than this header knows count too.
  constexpr auto kNeeded = static_cast<unsigned>(dnnl::cpu_isa::avx512_core_bf16);
  return (static_cast<unsigned>(dnnl::get_effective_cpu_isa()) & kNeeded) == kNeeded;
}

memory::desc matrix_desc(int64_t rows, int64_t columns, DType dtype, memory::format_tag layout) {
  return memory::desc({rows, columns}, dtype == DType::f32 ? memory::data_type::f32 : memory::data_type::bf16, layout);
}

dnnl::matmul::primitive_desc plan_matmul(const dnnl::engine& engine, const memory::desc& a, const memory::desc& b,
                                         const memory::desc& bias, const memory::desc& c, const dnnl::primitive_attr& attributes) {
  using dnnl::matmul;
#if DNNL_VERSION_MAJOR >= 3
  if (bias.is_zero()) return matmul::primitive_desc(engine, a, b, c, attributes);
  return matmul::primitive_desc(engine, a, b, bias, c, attributes);
#else
  return matmul::primitive_desc(bias.is_zero() ? matmul::desc(a, b, c) : matmul::desc(a, b, bias, c), attributes, engine);
#endif
}

namespace {

/// [columns / panel_columns][depth / depth_step][depth_step][panel_columns], of bf16 with pairs of rows side by side, by its public name.
struct NamedPanels {
  memory::format_tag tag;
  DType dtype;
  int64_t depth_step, panel_columns;
};
constexpr NamedPanels kNamedPanels[] = {
    {memory::format_tag::BA16a64b, DType::f32, 16, 64},    {memory::format_tag::BA16a48b, DType::f32, 16, 48},
    {memory::format_tag::BA16a32b, DType::f32, 16, 32},    {memory::format_tag::BA16a16b, DType::f32, 16, 16},
    {memory::format_tag::BA16a64b2a, DType::bf16, 32, 64}, {memory::format_tag::BA16a48b2a, DType::bf16, 32, 48},
    {memory::format_tag::BA16a32b2a, DType::bf16, 32, 32}, {memory::format_tag::BA16a16b2a, DType::bf16, 32, 16},
#if DNNL_VERSION_MAJOR == 3 && DNNL_VERSION_MINOR >= 5
    {memory::format_tag::BA8a24b, DType::f32, 8, 24},      {memory::format_tag::BA8a16b, DType::f32, 8, 16},
    {memory::format_tag::BA8a8b, DType::f32, 8, 8},
#endif
};

}  // namespace

std::optional<PanelLayout> panels_of(const memory::desc& layout, int64_t depth, int64_t columns, DType dtype) {
  for (const NamedPanels& named : kNamedPanels) {
    if (named.dtype != dtype || layout != matrix_desc(depth, columns, dtype, named.tag)) continue;
    const int64_t padded_depth = (depth + named.depth_step - 1) / named.depth_step * named.depth_step;
    return PanelLayout{.depth = depth, .padded_depth = padded_depth, .columns = columns, .panel_columns = named.panel_columns, .dtype = dtype};
  }
  return {};
}

Repacking::Repacking(const dnnl::engine& engine, int64_t depth, int64_t columns, DType dtype, PlainOrder order, const memory::desc& to)
    : from_(matrix_desc(depth, columns, dtype, order == PlainOrder::rows ? memory::format_tag::ab : memory::format_tag::ba)), to_(to),
      order_(order), panels_(panels_of(to, depth, columns, dtype)) {
  if (!panels_) reorder_ = dnnl::reorder(dnnl::reorder::primitive_desc(engine, from_, engine, to_));
}

void Repacking::operator()(const dnnl::engine& engine, dnnl::stream& stream, const void* from, void* to) const {
  if (panels_) return pack_panels(*panels_, order_, from, to);
  memory source(from_, engine, const_cast<void*>(from)), target(to_, engine, to);
  reorder_.execute(stream, source, target);
  stream.wait();
}

}  // namespace strata::gpu
