// Linear layers on oneDNN. Every primitive is made when a layer is planned, for the thread count of the compute stream.
#include <omp.h>

#include <algorithm>
#include <unordered_map>

#include "gpu/host/host_device.hpp"
#include "gpu/host/matrix_kernels_convert.hpp"
#include "gpu/host/matrix_kernels_pack.hpp"
#include "gpu/host/onednn.hpp"
#include "gpu/matrix_kernels.hpp"

namespace strata::gpu {
namespace {

using dnnl::matmul;
using dnnl::memory;

/// oneDNN plans for the OpenMP thread count of the thread that asks; layers are planned on threads other than the stream's.
class PlanningThreads {
 public:
  explicit PlanningThreads(int threads) : before_(omp_get_max_threads()) { omp_set_num_threads(threads); }
  ~PlanningThreads() { omp_set_num_threads(before_); }
  PlanningThreads(const PlanningThreads&) = delete;
  PlanningThreads& operator=(const PlanningThreads&) = delete;

 private:
  int before_;
};

constexpr auto kRowMajor = memory::format_tag::ab;
constexpr auto kColumnMajor = memory::format_tag::ba;  // a view of a matrix stored as its transpose
constexpr auto kAnyLayout = memory::format_tag::any;

uint64_t aligned(uint64_t bytes) { return (bytes + 255) / 256 * 256; }

void* at(void* base, uint64_t offset) { return static_cast<std::byte*>(base) + offset; }

/// What a product adds to a b: nothing, a third matrix, or what the destination holds.
enum class Addend { none, residual, destination };

struct Operands {
  const void* a = nullptr;
  const void* b = nullptr;
  const void* bias = nullptr;
  const void* residual = nullptr;
  void* c = nullptr;
  void* scratch = nullptr;
};

/// One matrix product c = a b (+ bias) (+ addend), planned.
class Product {
 public:
  Product() = default;
  Product(const dnnl::engine& engine, const memory::desc& a, const memory::desc& b, const memory::desc& c, Addend addend,
          const memory::desc& bias = {}) {
    dnnl::primitive_attr attributes;
    attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    attributes.set_fpmath_mode(dnnl::fpmath_mode::strict);
    dnnl::post_ops epilogue;
    if (addend == Addend::residual) epilogue.append_binary(dnnl::algorithm::binary_add, c);
    if (addend == Addend::destination) epilogue.append_sum(1.0f);
    if (addend != Addend::none) attributes.set_post_ops(epilogue);
    plan_ = plan_matmul(engine, a, b, bias, c, attributes);
    product_ = matmul(plan_);
  }

  memory::desc right() const { return plan_.weights_desc(); }
  uint64_t scratch_bytes() const { return plan_.scratchpad_desc().get_size(); }

  void operator()(const dnnl::engine& engine, dnnl::stream& stream, const Operands& operands) const {
    const auto argument = [&](const memory::desc& desc, const void* data) { return memory(desc, engine, const_cast<void*>(data)); };
    std::unordered_map<int, memory> arguments{{DNNL_ARG_SRC, argument(plan_.src_desc(), operands.a)},
                                              {DNNL_ARG_WEIGHTS, argument(plan_.weights_desc(), operands.b)},
                                              {DNNL_ARG_DST, argument(plan_.dst_desc(), operands.c)},
                                              {DNNL_ARG_SCRATCHPAD, argument(plan_.scratchpad_desc(), operands.scratch)}};
    if (operands.bias) arguments.emplace(DNNL_ARG_BIAS, argument(plan_.query_md(dnnl::query::weights_md, 1), operands.bias));
    if (operands.residual) {
      arguments.emplace(DNNL_ARG_ATTR_MULTIPLE_POST_OP(0) | DNNL_ARG_SRC_1, argument(plan_.dst_desc(), operands.residual));
    }
    product_.execute(stream, arguments);
    stream.wait();
  }

 private:
  matmul::primitive_desc plan_;
  matmul product_;
};

/// Of a transposed left factor: more is left to oneDNN, which transposes it piece by piece in the cache, some percent slower.
constexpr uint64_t kTransposedBytes = 16 << 20;

/// The products of one row count. The weight gradient is left^T right, where `right` (x, or d_y for input-major weights) is packed
/// first and a bf16 `left` transposed: that costs little beside what oneDNN takes for it inside the product.
struct Products {
  int64_t tokens = 0;
  Product forward, backward;
  Repacking pack_right;
  bool packs_right = false, transposes_left = false;
  Product weight_first, weight_add;
};

/// A linear layer in the dtype itself or, where the processor cannot multiply that, through fp32 (`widened_`).
class HostLinear final : public Linear {
 public:
  HostLinear(const LinearSpec& spec, int threads)
      : spec_(spec), widened_(!multiplies(spec.dtype)), inner_(widened_ ? DType::f32 : spec.dtype), engine_(dnnl::engine::kind::cpu, 0),
        stream_(engine_) {
    STRATA_CHECK(spec.tokens > 0 && spec.tail_tokens >= 0 && spec.inputs > 0 && spec.outputs > 0, "linear layer of {} x {} x {}",
                 spec.tokens, spec.inputs, spec.outputs);
    STRATA_CHECK(spec.output_dtype == spec.dtype || spec.output_dtype == DType::f32, "output dtype {}", to_string(spec.output_dtype));
    const PlanningThreads planning(threads);
    const auto forward_layout = widened_ ? forward_plain() : matrix_desc(spec.inputs, spec.outputs, inner_, kAnyLayout);
    const auto backward_layout = widened_ ? backward_plain() : matrix_desc(spec.outputs, spec.inputs, inner_, kAnyLayout);
    main_ = plan(spec.tokens, forward_layout, backward_layout);
    forward_weights_ = main_.forward.right();
    if (!spec.forward_only) backward_weights_ = main_.backward.right();
    if (spec.tail_tokens > 0) tail_ = plan(spec.tail_tokens, forward_weights_, backward_weights_);
    forward_packs_ = !widened_ && forward_weights_ != forward_plain();
    backward_packs_ = !widened_ && !spec.forward_only && backward_weights_ != backward_plain();
    const bool output_major = spec.order == WeightOrder::output_major;
    if (forward_packs_) {
      pack_forward_ = Repacking(engine_, spec.inputs, spec.outputs, inner_, output_major ? PlainOrder::transposed : PlainOrder::rows,
                                forward_weights_);
    }
    if (backward_packs_) {
      pack_backward_ = Repacking(engine_, spec.outputs, spec.inputs, inner_, output_major ? PlainOrder::rows : PlainOrder::transposed,
                                 backward_weights_);
    }
    plan_workspace();
  }

  const LinearSpec& spec() const override { return spec_; }
  uint64_t forward_prepared_bytes() const override {
    if (widened_) return aligned(static_cast<uint64_t>(spec_.inputs * spec_.outputs) * sizeof(float));
    return forward_packs_ ? aligned(forward_weights_.get_size()) : 0;
  }
  uint64_t backward_prepared_bytes() const override { return backward_packs_ ? aligned(backward_weights_.get_size()) : 0; }
  uint64_t workspace_bytes() const override { return workspace_bytes_; }

  void prepare_forward(Stream& stream, const void* weights, void* prepared) override {
    host_enqueue(stream, [=, this] {
      if (widened_) widen(spec_.dtype, weights, static_cast<float*>(prepared), spec_.inputs * spec_.outputs);
      if (forward_packs_) pack_forward_(engine_, stream_, weights, prepared);
    });
  }
  void prepare_backward(Stream& stream, const void* weights, void* prepared) override {
    host_enqueue(stream, [=, this] {
      if (backward_packs_) pack_backward_(engine_, stream_, weights, prepared);
    });
  }

  void forward(Stream& stream, int64_t tokens, const void* x, const void* weights, const void* forward_prepared, const void* bias,
               const void* residual, void* y, void* workspace) override {
    const Products& products = products_of(tokens);
    STRATA_CHECK((bias != nullptr) == spec_.bias && (residual != nullptr) == spec_.residual, "bias or residual against the plan");
    host_enqueue(stream, [=, this, &products] {
      const Operands operands{.a = x, .b = forward_packs_ ? forward_prepared : weights, .bias = bias, .residual = residual, .c = y,
                              .scratch = scratch(workspace)};
      if (!widened_) return products.forward(engine_, stream_, operands);
      const bool widen_y = spec_.output_dtype != DType::f32;
      float* const y_wide = widen_y ? outputs_wide(workspace) : static_cast<float*>(y);
      widen(spec_.dtype, x, inputs_wide(workspace), tokens * spec_.inputs);
      if (bias) widen(spec_.dtype, bias, bias_wide(workspace), spec_.outputs);
      if (residual) widen(spec_.dtype, residual, y_wide, tokens * spec_.outputs);
      products.forward(engine_, stream_,
                       {.a = inputs_wide(workspace), .b = forward_prepared, .bias = bias ? bias_wide(workspace) : nullptr, .c = y_wide,
                        .scratch = scratch(workspace)});
      if (widen_y) narrow(spec_.dtype, y_wide, y, tokens * spec_.outputs);
    });
  }

  void backward_input(Stream& stream, int64_t tokens, const void* d_y, const void* weights, const void* forward_prepared,
                      const void* backward_prepared, void* d_x, void* workspace) override {
    const Products& products = products_of(tokens);
    host_enqueue(stream, [=, this, &products] {
      const Operands operands{.a = d_y, .b = backward_packs_ ? backward_prepared : weights, .c = d_x, .scratch = scratch(workspace)};
      if (!widened_) return products.backward(engine_, stream_, operands);
      widen(spec_.dtype, d_y, outputs_wide(workspace), tokens * spec_.outputs);
      products.backward(engine_, stream_,
                        {.a = outputs_wide(workspace), .b = forward_prepared, .c = inputs_wide(workspace), .scratch = scratch(workspace)});
      narrow(spec_.dtype, inputs_wide(workspace), d_x, tokens * spec_.inputs);
    });
  }

  void backward_weight(Stream& stream, int64_t tokens, const void* x, const void* d_y, float* d_weights, bool accumulate,
                       void* workspace) override {
    const Products& products = products_of(tokens);
    host_enqueue(stream, [=, this, &products] {
      const void* inputs = x;
      const void* outputs = d_y;
      if (widened_) {
        widen(spec_.dtype, x, inputs_wide(workspace), tokens * spec_.inputs);
        widen(spec_.dtype, d_y, outputs_wide(workspace), tokens * spec_.outputs);
        inputs = inputs_wide(workspace);
        outputs = outputs_wide(workspace);
      }
      const bool output_major = spec_.order == WeightOrder::output_major;
      const void* left = output_major ? outputs : inputs;
      const void* right = output_major ? inputs : outputs;
      if (products.transposes_left) {
        transpose_halves(tokens, output_major ? spec_.outputs : spec_.inputs, static_cast<const uint16_t*>(left),
                         static_cast<uint16_t*>(at(workspace, left_transposed_)));
        left = at(workspace, left_transposed_);
      }
      if (products.packs_right) {
        products.pack_right(engine_, stream_, right, at(workspace, right_packed_));
        right = at(workspace, right_packed_);
      }
      const Product& product = accumulate ? products.weight_add : products.weight_first;
      product(engine_, stream_, {.a = left, .b = right, .c = d_weights, .scratch = scratch(workspace)});
    });
  }

 private:
  memory::desc forward_plain() const {
    return matrix_desc(spec_.inputs, spec_.outputs, inner_, spec_.order == WeightOrder::output_major ? kColumnMajor : kRowMajor);
  }
  memory::desc backward_plain() const {
    return matrix_desc(spec_.outputs, spec_.inputs, inner_, spec_.order == WeightOrder::output_major ? kRowMajor : kColumnMajor);
  }

  /// Of the transposed left factor of a weight gradient; 0 where it is left as it is.
  uint64_t left_bytes(int64_t tokens) const {
    const int64_t rows = spec_.order == WeightOrder::output_major ? spec_.outputs : spec_.inputs;
    const uint64_t bytes = static_cast<uint64_t>(rows * tokens) * sizeof(uint16_t);
    return inner_ == DType::bf16 && tokens % 2 == 0 && bytes <= kTransposedBytes ? bytes : 0;
  }

  Products plan(int64_t tokens, const memory::desc& forward_layout, const memory::desc& backward_layout) const {
    const int64_t inputs = spec_.inputs, outputs = spec_.outputs;
    const DType result = widened_ ? DType::f32 : spec_.output_dtype;
    // Widened, the residual is converted into the destination first.
    const Addend addend = !spec_.residual ? Addend::none : widened_ ? Addend::destination : Addend::residual;
    const auto bias = spec_.bias ? matrix_desc(1, outputs, inner_, kRowMajor) : memory::desc();
    Products products;
    products.tokens = tokens;
    products.forward = Product(engine_, matrix_desc(tokens, inputs, inner_, kRowMajor), forward_layout,
                               matrix_desc(tokens, outputs, result, kRowMajor), addend, bias);
    if (spec_.forward_only) return products;
    products.backward = Product(engine_, matrix_desc(tokens, outputs, inner_, kRowMajor), backward_layout,
                                matrix_desc(tokens, inputs, inner_, kRowMajor), Addend::none);
    const bool output_major = spec_.order == WeightOrder::output_major;
    const int64_t rows = output_major ? outputs : inputs, columns = output_major ? inputs : outputs;
    products.transposes_left = left_bytes(tokens) > 0;
    const auto left = matrix_desc(rows, tokens, inner_, products.transposes_left ? kRowMajor : kColumnMajor), right = matrix_desc(tokens, columns, inner_, kRowMajor);
    const auto gradient = matrix_desc(rows, columns, DType::f32, kRowMajor);
    products.weight_add = Product(engine_, left, matrix_desc(tokens, columns, inner_, kAnyLayout), gradient, Addend::destination);
    const memory::desc packed = products.weight_add.right();
    products.weight_first = Product(engine_, left, packed, gradient, Addend::none);
    products.packs_right = packed != right;
    if (products.packs_right) products.pack_right = Repacking(engine_, tokens, columns, inner_, PlainOrder::rows, packed);
    return products;
  }

  void plan_workspace() {
    for (const Products* products : {&main_, &tail_}) {
      if (products->tokens == 0) continue;
      scratch_bytes_ = std::max(scratch_bytes_, products->forward.scratch_bytes());
      if (spec_.forward_only) continue;
      for (const Product* product : {&products->backward, &products->weight_first, &products->weight_add}) {
        scratch_bytes_ = std::max(scratch_bytes_, product->scratch_bytes());
      }
    }
    scratch_bytes_ = aligned(scratch_bytes_);
    workspace_bytes_ = scratch_bytes_;
    const auto reserve = [&](uint64_t bytes) {
      const uint64_t offset = workspace_bytes_;
      workspace_bytes_ += aligned(bytes);
      return offset;
    };
    if (main_.packs_right || tail_.packs_right) {
      right_packed_ = reserve(std::max(main_.packs_right ? main_.pack_right.bytes() : 0, tail_.packs_right ? tail_.pack_right.bytes() : 0));
    }
    if (const uint64_t left = std::max(left_bytes(main_.tokens), left_bytes(tail_.tokens)); left > 0 && !spec_.forward_only) {
      left_transposed_ = reserve(left);
    }
    if (!widened_) return;
    const auto tokens = static_cast<uint64_t>(std::max(spec_.tokens, spec_.tail_tokens));
    inputs_wide_ = reserve(tokens * static_cast<uint64_t>(spec_.inputs) * sizeof(float));
    outputs_wide_ = reserve(tokens * static_cast<uint64_t>(spec_.outputs) * sizeof(float));
    bias_wide_ = reserve(static_cast<uint64_t>(spec_.outputs) * sizeof(float));
  }

  const Products& products_of(int64_t tokens) const {
    STRATA_CHECK(tokens == main_.tokens || (tokens == tail_.tokens && tokens > 0), "{} rows; planned {} and {}", tokens, main_.tokens,
                 tail_.tokens);
    return tokens == main_.tokens ? main_ : tail_;
  }
  void* scratch(void* workspace) const { return workspace; }
  float* inputs_wide(void* workspace) const { return static_cast<float*>(at(workspace, inputs_wide_)); }
  float* outputs_wide(void* workspace) const { return static_cast<float*>(at(workspace, outputs_wide_)); }
  float* bias_wide(void* workspace) const { return static_cast<float*>(at(workspace, bias_wide_)); }

  const LinearSpec spec_;
  const bool widened_;
  const DType inner_;  // of the products
  dnnl::engine engine_;
  dnnl::stream stream_;
  Products main_, tail_;
  memory::desc forward_weights_, backward_weights_;
  bool forward_packs_ = false, backward_packs_ = false;
  Repacking pack_forward_, pack_backward_;
  uint64_t scratch_bytes_ = 0, workspace_bytes_ = 0;
  uint64_t right_packed_ = 0, left_transposed_ = 0, inputs_wide_ = 0, outputs_wide_ = 0, bias_wide_ = 0;  // offsets in the workspace
};

class HostMatrixKernels final : public MatrixKernels {
 public:
  explicit HostMatrixKernels(int threads) : threads_(threads) {}

  std::unique_ptr<Linear> create_linear(const LinearSpec& spec) override {
    try {
      return std::make_unique<HostLinear>(spec, threads_);
    } catch (const dnnl::error& error) {
      throw Error(ErrorCode::unsupported,
                  fmt::format("oneDNN cannot plan a {} linear layer of {} tokens, {} inputs and {} outputs: {}", to_string(spec.dtype),
                              spec.tokens, spec.inputs, spec.outputs, error.what()),
                  "host device", "use precision.compute fp32, or report the shape");
    }
  }

 private:
  const int threads_;
};

}  // namespace

std::unique_ptr<MatrixKernels> make_host_matrix_kernels(const DeviceInfo& info) {
  return std::make_unique<HostMatrixKernels>(info.compute_threads);
}

}  // namespace strata::gpu
