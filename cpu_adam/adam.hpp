// AdamW on one tile: the formats a tile's state may have, the numbers of one step, and the vectorized multithreaded update.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/dtype.hpp"
#include "core/layout.hpp"

namespace strata {

/// Where the fp32 master weight of a parameter is.
enum class MasterFormat {
  parameter,  // the parameter itself is fp32
  split,      // bf16 parameter = upper half, 16-bit remainder = lower half (core/dtype.hpp)
  fp32,       // a separate fp32 array beside a bf16 or fp16 parameter
};

/// The settings that last a whole run. PyTorch's AdamW: decoupled weight decay, on every parameter of a tile that
/// its `undecayed` ranges do not take out.
struct AdamSettings {
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0.0;
};

/// The numbers of one step, each computed in double and rounded once. Per element, in fp32 without fused multiply-add:
///   g = gradient * gradient_scale
///   p = p * decay
///   m = m * beta1 + g * one_minus_beta1
///   v = v * beta2 + (g * g) * one_minus_beta2
///   p = p - step_size * (m / (sqrt(v) * inverse_sqrt_correction2 + epsilon))
/// Source: Loshchilov & Hutter, "Decoupled Weight Decay Regularization"; torch.optim.AdamW.
struct AdamStep {
  float gradient_scale = 1.0f;
  float decay = 1.0f;                     // 1 - lr * weight_decay
  float beta1 = 0.9f, one_minus_beta1 = 0.1f;
  float beta2 = 0.999f, one_minus_beta2 = 0.001f;
  float step_size = 0.0f;                 // lr / (1 - beta1^step)
  float inverse_sqrt_correction2 = 1.0f;  // 1 / sqrt(1 - beta2^step)
  float epsilon = 1e-8f;

  /// `step` counts updates from 1. gradient_scale = clip factor / loss scale.
  static AdamStep make(const AdamSettings& settings, int64_t step, double lr, double gradient_scale);
};

/// One tile's arrays, each 64-byte aligned, of `elements` elements; they may not overlap.
struct AdamTile {
  MasterFormat master_format = MasterFormat::parameter;
  DType parameter_dtype = DType::f32;
  DType gradient_dtype = DType::f32;
  void* parameter = nullptr;       // split: the upper half, read and written. fp32 master: written only
  void* master = nullptr;          // split: uint16_t remainders; fp32: floats; parameter: null
  float* momentum = nullptr;       // exp_avg
  float* variance = nullptr;       // exp_avg_sq
  const void* gradient = nullptr;
  uint64_t elements = 0;
  AdamStep step;
  std::span<const Range> undecayed = {};  // elements that weight decay leaves alone: sorted, disjoint; read while the update runs
  uint64_t first_element = 0;             // the tile's first, as `undecayed` counts
};

/// The reference: one element after another, plain C++. Every other implementation gives the same bits.
void adam_update_scalar(const AdamTile& tile);

/// The update on the calling thread alone, with the widest vectors that this processor has.
void adam_update_serial(const AdamTile& tile);

/// The vectorized update on its own threads (shared out over the NUMA nodes; the count comes from the affinity mask unless given,
/// never from an environment variable). The bits do not depend on the thread count, the split into tiles, or the ISA.
class AdamUpdater {
 public:
  /// threads = 0: one per processor that this process may run on.
  explicit AdamUpdater(int threads = 0);
  ~AdamUpdater();
  AdamUpdater(const AdamUpdater&) = delete;
  AdamUpdater& operator=(const AdamUpdater&) = delete;

  /// Blocks until the whole tile is updated.
  void update(const AdamTile& tile);
  int threads() const;
  /// The instruction set in use, for reports ("AVX3_ZEN4").
  static std::string instruction_set();

 private:
  struct Implementation;
  std::unique_ptr<Implementation> implementation_;
};

}  // namespace strata
