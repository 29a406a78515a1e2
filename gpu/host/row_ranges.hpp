// The row kernels of the host device over a part of their rows, columns or elements, on the calling thread, with the widest vectors that this
// processor has. HostRowKernels shares the parts among threads.
#pragma once

#include <cstdint>

#include "core/dtype.hpp"
#include "core/model.hpp"
#include "gpu/row_kernels.hpp"

namespace strata::gpu::row_ranges {

/// Rows, columns, elements or blocks [begin, end) of the whole.
struct Range {
  int64_t begin = 0;
  int64_t end = 0;
};

struct Norm {
  DType dtype;
  Rows rows;
  const void* x;
  const void* weight;
  const void* bias;  // layer_norm only
  float epsilon;
  void* y;
  int64_t y_stride;
  float* statistics;  // rstd a row; layer_norm: mean and rstd a row
};
void rms_norm(const Norm& norm, Range rows);
void layer_norm(const Norm& norm, Range rows);

struct NormBackward {
  DType dtype;
  Rows rows;
  const void* x;
  const void* weight;
  const float* statistics;
  const void* d_y;
  int64_t d_y_stride;
  void* d_x;
  int64_t d_x_stride;
  bool add_to_dx;
  float* partials;  // [blocks of kRowsPerBlock rows, columns]; layer_norm: [blocks, 2, columns], the weight's and the bias's
};
void rms_norm_backward(const NormBackward& norm, Range blocks);
void layer_norm_backward(const NormBackward& norm, Range blocks);

/// The sums over one block of rows of the given columns.
struct ColumnSum {
  DType dtype;
  Rows rows;
  const void* x;
  float* partials;  // [blocks, columns]
};
void column_sum(const ColumnSum& sum, int64_t block, Range columns);

struct Partials {
  int64_t count;
  int64_t stride;
  const float* partials;
  bool keep;
  float* sums;
};
void add_partials(const Partials& partials, Range columns);

struct Rope {
  DType dtype;
  Rows rows;
  void* x;
  int64_t heads;
  int64_t head_dim;
  const float* cosines;
  const float* sines;
  int64_t sequence_length;
  bool inverse;
};
void rope(const Rope& rope, Range rows);

struct Activate {
  DType dtype;
  Activation kind;
  const void* x;
  const void* d_y;  // backward only
  void* y;
  void* d_x;  // backward only
};
void activation(const Activate& activate, Range elements);
void activation_backward(const Activate& activate, Range elements);

struct ActivateGated {
  DType dtype;
  Activation kind;
  int64_t columns;
  const void* gate_up;
  const void* d_y;  // backward only
  void* y;
  void* d_gate_up;  // backward only
};
void gated_activation(const ActivateGated& activate, Range rows);
void gated_activation_backward(const ActivateGated& activate, Range rows);

struct AddBias {
  DType dtype;
  Rows rows;
  void* x;
  const void* bias;
};
void add_bias(const AddBias& add, Range rows);

struct Add {
  DType dtype;
  const void* a;
  const void* b;
  void* y;
};
void add(const Add& add, Range elements);

struct Gather {
  DType dtype;
  int64_t columns;
  const int32_t* tokens;
  const void* table;
  const void* positions;
  int64_t sequence_length;
  void* y;
};
void gather(const Gather& gather, Range tokens);

struct ScatterAdd {
  DType dtype;
  int64_t tokens_count;
  int64_t columns;
  const int32_t* tokens;
  const void* d_y;
  float* d_table;
  float* d_positions;
  int64_t sequence_length;
};
void scatter_add(const ScatterAdd& scatter, Range columns);

struct CrossEntropy {
  DType logits_dtype;
  int64_t columns;
  void* logits;  // overwritten where d_logits is wanted
  const int32_t* labels;
  float scale;
  double* losses;
  DType gradient_dtype;
  void* d_logits;
};
void cross_entropy(const CrossEntropy& loss, Range rows);

struct Cast {
  DType from;
  DType to;
  const void* x;
  void* y;
};
void cast(const Cast& cast, Range elements);

struct SumSquares {
  DType dtype;
  const void* x;
  double* block_sums;
};
void sum_squares(const SumSquares& sum, Range blocks);

}  // namespace strata::gpu::row_ranges
