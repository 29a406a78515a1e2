// Attention of the host device: one task per (sequence, head, block of queries) forward and per (sequence, key head) backward, so
// that no two tasks write one element and the thread count cannot change a bit. Scores are kept transposed, [keys][queries]: a
// query is a lane, so that softmax needs no sums across lanes, and keys and values are used in the order in which they lie.
#include "gpu/attention_kernels.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>

#include "core/error.hpp"
#include "gpu/host/host_device.hpp"
#include "gpu/host/parallel.hpp"

// A tile's accumulators are an array of vectors, which the scalable vectors of these targets do not allow.
#if defined(__aarch64__) || defined(__riscv)
#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
#else
#define HWY_DISABLED_TARGETS (HWY_AVX3 - 1)  // variants of AVX-512, which would add nothing here
#endif
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "gpu/host/attention_kernels.cpp"
#include <hwy/foreach_target.h>

#include "gpu/host/attention_kernels_block-inl.hpp"
#include "gpu/host/convert-inl.hpp"

#ifndef STRATA_GPU_HOST_ATTENTION_TASKS
#define STRATA_GPU_HOST_ATTENTION_TASKS
namespace strata::gpu {

constexpr int64_t kBlock = 64;                // queries, and keys, of a block
constexpr int64_t kPadding = 16;              // scratch rows are multiples of this many floats
constexpr float kNoScoreYet = -1e30f;         // finite, so that a query without a key so far makes no NaN

constexpr int64_t padded(int64_t columns) { return (columns + kPadding - 1) / kPadding * kPadding; }

/// Which keys the queries [first, first + count) see: [begin, end), begin a multiple of kBlock.
struct KeyRange {
  int64_t begin, end;
};
inline KeyRange keys_of(const AttentionShape& shape, int64_t first, int64_t count) {
  const int64_t oldest = shape.window == 0 ? 0 : std::max<int64_t>(0, first - shape.window + 1);
  return {oldest / kBlock * kBlock, first + count};
}

/// Hands out a thread's scratch; without memory it only counts.
class Scratch {
 public:
  explicit Scratch(float* data) : data_(data) {}
  float* take(int64_t floats) {
    float* const part = data_ ? data_ + taken_ : nullptr;
    taken_ += padded(floats);
    return part;
  }
  int64_t taken() const { return taken_; }

 private:
  float* data_;
  int64_t taken_ = 0;
};

struct ForwardScratch {
  float *queries, *keys, *values, *scores, *sums, *maxima, *denominators, *factors;
  ForwardScratch(Scratch& scratch, const AttentionShape& shape) {
    const int64_t width = padded(shape.head_dim);
    queries = scratch.take(shape.head_dim * kBlock);  // transposed
    keys = scratch.take(kBlock * width);
    values = scratch.take(kBlock * width);
    scores = scratch.take(kBlock * kBlock);
    sums = scratch.take(kBlock * width);
    maxima = scratch.take(kBlock);
    denominators = scratch.take(kBlock);
    factors = scratch.take(kBlock);
  }
};

struct BackwardScratch {
  float *d_keys, *d_values;  // of the whole sequence
  float *queries, *queries_transposed, *d_outputs, *d_outputs_transposed, *outputs, *d_queries;
  float *keys, *values, *scores, *d_scores, *log_sums, *deltas;
  BackwardScratch(Scratch& scratch, const AttentionShape& shape) {
    const int64_t width = padded(shape.head_dim);
    d_keys = scratch.take(shape.sequence_length * width);
    d_values = scratch.take(shape.sequence_length * width);
    queries = scratch.take(kBlock * width);
    queries_transposed = scratch.take(shape.head_dim * kBlock);
    d_outputs = scratch.take(kBlock * width);
    d_outputs_transposed = scratch.take(shape.head_dim * kBlock);
    outputs = scratch.take(kBlock * width);
    d_queries = scratch.take(kBlock * width);
    keys = scratch.take(kBlock * width);
    values = scratch.take(kBlock * width);
    scores = scratch.take(kBlock * kBlock);
    d_scores = scratch.take(kBlock * kBlock);
    log_sums = scratch.take(kBlock);
    deltas = scratch.take(kBlock);
  }
};

struct ForwardTask {
  const void* qkv;
  void* output;
  float* log_sum_exp;
  int64_t sequence, head, first_query;
};

struct BackwardTask {
  const void* qkv;
  const void* output;
  const float* log_sum_exp;
  const void* d_output;
  void* d_qkv;
  int64_t sequence, kv_head;
};

}  // namespace strata::gpu
#endif

HWY_BEFORE_NAMESPACE();
namespace strata::gpu::HWY_NAMESPACE {

/// Rows of fp32, in place or widened into scratch.
struct RowsView {
  const float* data;
  int64_t stride;
};

template <DType dtype>
void load_rows(const void* from, int64_t first_element, int64_t stride, int64_t rows, int64_t columns, float scale, float* to) {
  const FloatTag d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d)), width = padded(columns);
  const auto factor = hn::Set(d, scale);
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t source = first_element + row * stride;
    float* const target = to + row * width;
    int64_t i = 0;
    for (; i + lanes <= columns; i += lanes) hn::StoreU(hn::Mul(factor, load_widened<dtype>(d, from, source + i)), d, target + i);
    for (; i < columns; ++i) target[i] = scale * load_one<dtype>(from, source + i);
    for (; i < width; ++i) target[i] = 0.0f;
  }
}

/// Without a copy where the rows are fp32 and whole vectors.
template <DType dtype>
RowsView view_rows(const void* from, int64_t first_element, int64_t stride, int64_t rows, int64_t columns, float* scratch) {
  if (dtype == DType::f32 && columns % kPadding == 0) return {static_cast<const float*>(from) + first_element, stride};
  load_rows<dtype>(from, first_element, stride, rows, columns, 1.0f, scratch);
  return {scratch, padded(columns)};
}

template <DType dtype>
void store_rows(const float* from, int64_t rows, int64_t columns, float scale, void* to, int64_t first_element, int64_t stride) {
  const FloatTag d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d)), width = padded(columns);
  const auto factor = hn::Set(d, scale);
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t target = first_element + row * stride;
    const float* const source = from + row * width;
    int64_t i = 0;
    for (; i + lanes <= columns; i += lanes) store_narrowed<dtype>(d, hn::Mul(factor, hn::LoadU(d, source + i)), to, target + i);
    for (; i < columns; ++i) store_one<dtype>(scale * source[i], to, target + i);
  }
}

/// [rows][padded columns] to [columns][kBlock]; the lanes past `rows` get zeros.
void transpose_block(const float* from, int64_t rows, int64_t columns, float* to) {
  const int64_t width = padded(columns);
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t column = 0; column < columns; ++column) to[column * kBlock + row] = from[row * width + column];
  }
  if (rows == kBlock) return;
  for (int64_t column = 0; column < columns; ++column) std::fill(to + column * kBlock + rows, to + (column + 1) * kBlock, 0.0f);
}

/// The part of a block of scores, [keys][queries], that is computed: all of it or, where the block lies on the diagonal, the groups of
/// kPadding queries from the key's own on.
struct ScoreBlock {
  int64_t queries, keys;
  bool diagonal;

  /// Keys that any query of the group sees.
  int64_t keys_of_group(int64_t first_query) const { return diagonal ? std::min(keys, first_query + kPadding) : keys; }
};

/// scores = keys queries^T.
void multiply_scores(const ScoreBlock& block, int64_t head_dim, RowsView keys, const float* queries_transposed, float* scores) {
  const int64_t columns = padded(block.queries), step = block.diagonal ? kPadding : block.keys;
  for (int64_t key = 0; key < block.keys; key += step) {
    const int64_t first = block.diagonal ? key : 0;
    block_product(std::min(step, block.keys - key), columns - first, head_dim, {keys.data + key * keys.stride, keys.stride, 1},
                  queries_transposed + first, kBlock, scores + key * kBlock + first, kBlock, false);
  }
}

/// sums, [queries][width], = or += scores^T values.
void multiply_by_keys(const ScoreBlock& block, int64_t width, const float* scores, RowsView values, float* sums, bool accumulate) {
  const int64_t step = block.diagonal ? kPadding : block.queries;
  for (int64_t query = 0; query < block.queries; query += step) {
    block_product(std::min(step, block.queries - query), width, block.keys_of_group(query), {scores + query, 1, kBlock}, values.data,
                  values.stride, sums + query * width, width, accumulate);
  }
}

/// sums, [keys][width], += scores rows.
void multiply_by_queries(const ScoreBlock& block, int64_t width, const float* scores, const float* rows, float* sums) {
  const int64_t step = block.diagonal ? kPadding : block.keys;
  for (int64_t key = 0; key < block.keys; key += step) {
    const int64_t first = block.diagonal ? key : 0;
    if (first >= block.queries) break;
    block_product(std::min(step, block.keys - key), width, block.queries - first, {scores + key * kBlock + first, kBlock, 1},
                  rows + first * width, width, sums + key * width, width, true);
  }
}

/// Sets the scores that the mask forbids to -infinity; columns are the queries from `first_query`, rows the keys from `first_key`.
void mask_scores(const AttentionShape& shape, int64_t first_query, int64_t queries, int64_t first_key, int64_t keys, float* scores) {
  const int64_t window = shape.window == 0 ? shape.sequence_length : shape.window;
  const bool all_past = first_key + keys - 1 <= first_query;
  const bool all_in_window = first_query + queries - 1 - first_key < window;
  if (all_past && all_in_window) return;
  constexpr float kForbidden = -std::numeric_limits<float>::infinity();
  for (int64_t key = 0; key < keys; ++key) {
    float* const row = scores + key * kBlock;
    const int64_t first_allowed = std::clamp<int64_t>(first_key + key - first_query, 0, queries);
    const int64_t last_allowed = std::clamp<int64_t>(first_key + key + window - first_query, 0, queries);
    std::fill(row, row + first_allowed, kForbidden);
    std::fill(row + last_allowed, row + queries, kForbidden);
  }
}

/// Online softmax: scores become exp(score - new maximum); maxima and denominators move on, factors rescale older sums.
void advance_softmax(const ScoreBlock& block, const ForwardScratch& s) {
  const FloatTag d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t q = 0; q < block.queries; q += lanes) {
    const int64_t keys = block.keys_of_group(q / kPadding * kPadding);
    const auto before = hn::LoadU(d, s.maxima + q);
    auto maximum = before;
    for (int64_t k = 0; k < keys; ++k) maximum = hn::Max(maximum, hn::LoadU(d, s.scores + k * kBlock + q));
    const auto factor = exponential(d, hn::Sub(before, maximum));
    auto sum = hn::Zero(d);
    for (int64_t k = 0; k < keys; ++k) {
      const auto p = exponential(d, hn::Sub(hn::LoadU(d, s.scores + k * kBlock + q), maximum));
      hn::StoreU(p, d, s.scores + k * kBlock + q);
      sum = hn::Add(sum, p);
    }
    hn::StoreU(maximum, d, s.maxima + q);
    hn::StoreU(factor, d, s.factors + q);
    hn::StoreU(hn::MulAdd(hn::LoadU(d, s.denominators + q), factor, sum), d, s.denominators + q);
  }
}

void scale_rows(float* rows, int64_t count, int64_t width, const float* factors) {
  const FloatTag d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t row = 0; row < count; ++row) {
    const auto factor = hn::Set(d, factors[row]);
    for (int64_t i = 0; i < width; i += lanes) {
      hn::StoreU(hn::Mul(factor, hn::LoadU(d, rows + row * width + i)), d, rows + row * width + i);
    }
  }
}

template <DType dtype>
void forward_task(const AttentionShape& shape, const ForwardTask& task, const ForwardScratch& s) {
  const int64_t head_dim = shape.head_dim, width = padded(head_dim);
  const int64_t stride = (shape.heads + 2 * shape.kv_heads) * head_dim;
  const int64_t kv_head = task.head / (shape.heads / shape.kv_heads);
  const int64_t sequence_start = task.sequence * shape.sequence_length;
  const int64_t queries = std::min(kBlock, shape.sequence_length - task.first_query);
  const auto element = [&](int64_t position, int64_t head) { return (sequence_start + position) * stride + head * head_dim; };

  load_rows<dtype>(task.qkv, element(task.first_query, task.head), stride, queries, head_dim, shape.scale, s.sums);
  transpose_block(s.sums, queries, head_dim, s.queries);
  std::fill(s.maxima, s.maxima + kBlock, kNoScoreYet);
  std::fill(s.denominators, s.denominators + kBlock, 0.0f);

  const KeyRange range = keys_of(shape, task.first_query, queries);
  for (int64_t first_key = range.begin; first_key < range.end; first_key += kBlock) {
    const int64_t keys = std::min(kBlock, range.end - first_key);
    const RowsView k = view_rows<dtype>(task.qkv, element(first_key, shape.heads + kv_head), stride, keys, head_dim, s.keys);
    const RowsView v =
        view_rows<dtype>(task.qkv, element(first_key, shape.heads + shape.kv_heads + kv_head), stride, keys, head_dim, s.values);
    const ScoreBlock block{queries, keys, first_key == task.first_query};
    multiply_scores(block, head_dim, k, s.queries, s.scores);
    mask_scores(shape, task.first_query, queries, first_key, keys, s.scores);
    advance_softmax(block, s);
    const bool first = first_key == range.begin;
    if (!first) scale_rows(s.sums, queries, width, s.factors);
    multiply_by_keys(block, width, s.scores, v, s.sums, !first);
  }

  float* const log_sums = task.log_sum_exp + (task.sequence * shape.heads + task.head) * shape.sequence_length + task.first_query;
  for (int64_t q = 0; q < queries; ++q) {
    s.factors[q] = 1.0f / s.denominators[q];
    log_sums[q] = s.maxima[q] + std::log(s.denominators[q]);
  }
  scale_rows(s.sums, queries, width, s.factors);
  store_rows<dtype>(s.sums, queries, head_dim, 1.0f, task.output,
                    (sequence_start + task.first_query) * shape.heads * head_dim + task.head * head_dim, shape.heads * head_dim);
}

/// scores become probabilities, d_scores their gradient: p = exp(score - log sum), p (d_p - delta).
void differentiate_softmax(const ScoreBlock& block, const BackwardScratch& s) {
  const FloatTag d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t q = 0; q < block.queries; q += lanes) {
    const int64_t keys = block.keys_of_group(q / kPadding * kPadding);
    const auto log_sum = hn::LoadU(d, s.log_sums + q), delta = hn::LoadU(d, s.deltas + q);
    for (int64_t k = 0; k < keys; ++k) {
      float* const score = s.scores + k * kBlock + q;
      float* const d_score = s.d_scores + k * kBlock + q;
      const auto p = exponential(d, hn::Sub(hn::LoadU(d, score), log_sum));
      hn::StoreU(p, d, score);
      hn::StoreU(hn::Mul(p, hn::Sub(hn::LoadU(d, d_score), delta)), d, d_score);
    }
  }
}

float dot(const float* a, const float* b, int64_t width) {
  const FloatTag d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  auto sum = hn::Zero(d);
  for (int64_t i = 0; i < width; i += lanes) sum = hn::MulAdd(hn::LoadU(d, a + i), hn::LoadU(d, b + i), sum);
  return hn::GetLane(hn::SumOfLanes(d, sum));
}

/// One query block of one head against the keys that it sees: adds to d_keys and d_values, writes d_queries.
template <DType dtype>
void backward_queries(const AttentionShape& shape, const BackwardTask& task, int64_t head, int64_t first_query,
                      const BackwardScratch& s) {
  const int64_t head_dim = shape.head_dim, width = padded(head_dim);
  const int64_t stride = (shape.heads + 2 * shape.kv_heads) * head_dim, output_stride = shape.heads * head_dim;
  const int64_t sequence_start = task.sequence * shape.sequence_length;
  const int64_t queries = std::min(kBlock, shape.sequence_length - first_query);
  const auto element = [&](int64_t position, int64_t any_head) { return (sequence_start + position) * stride + any_head * head_dim; };
  const int64_t output_element = (sequence_start + first_query) * output_stride + head * head_dim;

  load_rows<dtype>(task.qkv, element(first_query, head), stride, queries, head_dim, shape.scale, s.queries);
  load_rows<dtype>(task.d_output, output_element, output_stride, queries, head_dim, 1.0f, s.d_outputs);
  load_rows<dtype>(task.output, output_element, output_stride, queries, head_dim, 1.0f, s.outputs);
  transpose_block(s.queries, queries, head_dim, s.queries_transposed);
  transpose_block(s.d_outputs, queries, head_dim, s.d_outputs_transposed);
  const float* const log_sums = task.log_sum_exp + (task.sequence * shape.heads + head) * shape.sequence_length + first_query;
  std::fill(s.log_sums, s.log_sums + kBlock, 0.0f);
  std::fill(s.deltas, s.deltas + kBlock, 0.0f);
  std::copy(log_sums, log_sums + queries, s.log_sums);
  for (int64_t q = 0; q < queries; ++q) s.deltas[q] = dot(s.d_outputs + q * width, s.outputs + q * width, width);

  const KeyRange range = keys_of(shape, first_query, queries);
  for (int64_t first_key = range.begin; first_key < range.end; first_key += kBlock) {
    const int64_t keys = std::min(kBlock, range.end - first_key);
    const RowsView k = view_rows<dtype>(task.qkv, element(first_key, shape.heads + task.kv_head), stride, keys, head_dim, s.keys);
    const RowsView v = view_rows<dtype>(task.qkv, element(first_key, shape.heads + shape.kv_heads + task.kv_head), stride, keys,
                                        head_dim, s.values);
    const ScoreBlock block{queries, keys, first_key == first_query};
    multiply_scores(block, head_dim, k, s.queries_transposed, s.scores);
    mask_scores(shape, first_query, queries, first_key, keys, s.scores);
    multiply_scores(block, head_dim, v, s.d_outputs_transposed, s.d_scores);
    differentiate_softmax(block, s);
    multiply_by_queries(block, width, s.scores, s.d_outputs, s.d_values + first_key * width);
    multiply_by_queries(block, width, s.d_scores, s.queries, s.d_keys + first_key * width);
    multiply_by_keys(block, width, s.d_scores, k, s.d_queries, first_key != range.begin);
  }
  store_rows<dtype>(s.d_queries, queries, head_dim, shape.scale, task.d_qkv, element(first_query, head), stride);
}

template <DType dtype>
void backward_task(const AttentionShape& shape, const BackwardTask& task, const BackwardScratch& s) {
  const int64_t head_dim = shape.head_dim, width = padded(head_dim), length = shape.sequence_length;
  const int64_t stride = (shape.heads + 2 * shape.kv_heads) * head_dim;
  const int64_t group = shape.heads / shape.kv_heads;
  std::fill(s.d_keys, s.d_keys + length * width, 0.0f);
  std::fill(s.d_values, s.d_values + length * width, 0.0f);
  for (int64_t head = task.kv_head * group; head < (task.kv_head + 1) * group; ++head) {
    for (int64_t first = 0; first < length; first += kBlock) backward_queries<dtype>(shape, task, head, first, s);
  }
  const int64_t row = task.sequence * length * stride;
  store_rows<dtype>(s.d_keys, length, head_dim, 1.0f, task.d_qkv, row + (shape.heads + task.kv_head) * head_dim, stride);
  store_rows<dtype>(s.d_values, length, head_dim, 1.0f, task.d_qkv, row + (shape.heads + shape.kv_heads + task.kv_head) * head_dim,
                    stride);
}

void ForwardOne(const AttentionShape& shape, const ForwardTask& task, const ForwardScratch& scratch) {
  switch (shape.dtype) {
    case DType::f32: return forward_task<DType::f32>(shape, task, scratch);
    case DType::bf16: return forward_task<DType::bf16>(shape, task, scratch);
    case DType::f16: return forward_task<DType::f16>(shape, task, scratch);
  }
}

void BackwardOne(const AttentionShape& shape, const BackwardTask& task, const BackwardScratch& scratch) {
  switch (shape.dtype) {
    case DType::f32: return backward_task<DType::f32>(shape, task, scratch);
    case DType::bf16: return backward_task<DType::bf16>(shape, task, scratch);
    case DType::f16: return backward_task<DType::f16>(shape, task, scratch);
  }
}

}  // namespace strata::gpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace strata::gpu {
namespace {

HWY_EXPORT(ForwardOne);
HWY_EXPORT(BackwardOne);

/// Floats of one thread's scratch.
int64_t scratch_floats(const AttentionShape& shape) {
  Scratch forward(nullptr), backward(nullptr);
  const ForwardScratch planned_forward(forward, shape);
  const BackwardScratch planned_backward(backward, shape);
  return std::max(forward.taken(), backward.taken());
}

void check_shape(const AttentionShape& shape) {
  STRATA_CHECK(shape.sequences > 0 && shape.sequence_length > 0 && shape.head_dim > 0 && shape.kv_heads > 0 &&
                   shape.heads % shape.kv_heads == 0 && shape.window >= 0,
               "attention of {} sequences of {}, {} heads of {}, {} key heads, window {}", shape.sequences, shape.sequence_length,
               shape.heads, shape.head_dim, shape.kv_heads, shape.window);
}

/// Runs `task` for 0 ... tasks - 1, each on whichever thread is free, with that thread's scratch.
template <typename Task>
void for_each_task(int64_t tasks, int threads, int64_t scratch_floats, void* workspace, const Task& task) {
  struct Context {
    const Task& task;
    const int64_t tasks, scratch_floats;
    float* const workspace;
    std::atomic<int64_t> next = 0;
  } context{task, tasks, scratch_floats, static_cast<float*>(workspace)};
  run_team(
      static_cast<int>(std::min<int64_t>(tasks, std::min(threads, team_threads_max()))),
      [](void* opaque, int thread) {
        Context& shared = *static_cast<Context*>(opaque);
        Scratch scratch(shared.workspace + thread * shared.scratch_floats);
        for (int64_t i = shared.next++; i < shared.tasks; i = shared.next++) {
          Scratch mine = scratch;
          shared.task(i, mine);
        }
      },
      &context);
}

class HostAttentionKernels final : public AttentionKernels {
 public:
  explicit HostAttentionKernels(int threads) : threads_(threads) {}

  uint64_t workspace_bytes(const AttentionShape& shape) const override {
    check_shape(shape);
    return static_cast<uint64_t>(threads_) * static_cast<uint64_t>(scratch_floats(shape)) * sizeof(float);
  }

  void forward(Stream& stream, const AttentionShape& shape, const void* qkv, void* output, float* log_sum_exp,
               void* workspace) override {
    check_shape(shape);
    host_enqueue(stream, [=, threads = threads_] {
      const auto one = HWY_DYNAMIC_DISPATCH(ForwardOne);
      const int64_t blocks = (shape.sequence_length + kBlock - 1) / kBlock, rows = shape.sequences * shape.heads;
      for_each_task(rows * blocks, threads, scratch_floats(shape), workspace, [&](int64_t i, Scratch& scratch) {
        // The longest tasks, those of the last queries, go first.
        const int64_t block = blocks - 1 - i / rows, sequence = i % rows / shape.heads, head = i % shape.heads;
        one(shape, {qkv, output, log_sum_exp, sequence, head, block * kBlock}, ForwardScratch(scratch, shape));
      });
    });
  }

  void backward(Stream& stream, const AttentionShape& shape, const void* qkv, const void* output, const float* log_sum_exp,
                const void* d_output, void* d_qkv, void* workspace) override {
    check_shape(shape);
    host_enqueue(stream, [=, threads = threads_] {
      const auto one = HWY_DYNAMIC_DISPATCH(BackwardOne);
      for_each_task(shape.sequences * shape.kv_heads, threads, scratch_floats(shape), workspace, [&](int64_t i, Scratch& scratch) {
        one(shape, {qkv, output, log_sum_exp, d_output, d_qkv, i / shape.kv_heads, i % shape.kv_heads},
            BackwardScratch(scratch, shape));
      });
    });
  }

 private:
  const int threads_;
};

}  // namespace

std::unique_ptr<AttentionKernels> make_host_attention_kernels(const DeviceInfo& info) {
  return std::make_unique<HostAttentionKernels>(info.compute_threads);
}

}  // namespace strata::gpu
#endif
