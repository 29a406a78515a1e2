// RoPE, embedding rows, biases, sums over rows, casts and sums of squares, over a lane context (gpu/kernels/lanes.hpp).
#if defined(STRATA_GPU_KERNELS_ELEMENTWISE_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef STRATA_GPU_KERNELS_ELEMENTWISE_INL
#undef STRATA_GPU_KERNELS_ELEMENTWISE_INL
#else
#define STRATA_GPU_KERNELS_ELEMENTWISE_INL
#endif

#include "gpu/kernels/lanes.hpp"
#include "gpu/kernels/numbers-inl.hpp"

STRATA_KERNELS_BEFORE
namespace STRATA_KERNELS_NAMESPACE {

/// Rotates the pairs (i, i + head_dim / 2) of every head of one row; cosines and sines are those of the row's position, head_dim / 2 each.
template <class T, class Lanes>
STRATA_KERNEL void rope_row(const Lanes& lanes, int64_t heads, int64_t head_dim, T* x, const float* cosines, const float* sines,
                            bool inverse) {
  const int64_t half = head_dim / 2;
  const float direction = inverse ? -1.0f : 1.0f;
  for (int64_t head = 0; head < heads; ++head) {
    T* const first = x + head * head_dim;
    T* const second = first + half;
    lanes.for_each(half, [=](int64_t i) {
      const float a = to_float(first[i]), b = to_float(second[i]);
      const float cosine = cosines[i], sine = direction * sines[i];
      first[i] = from_float<T>(a * cosine - b * sine);
      second[i] = from_float<T>(b * cosine + a * sine);
    });
  }
}

template <class T, class Lanes>
STRATA_KERNEL void add(const Lanes& lanes, int64_t count, const T* a, const T* b, T* y) {
  lanes.for_each(count, [=](int64_t i) { y[i] = from_float<T>(to_float(a[i]) + to_float(b[i])); });
}

template <class To, class From, class Lanes>
STRATA_KERNEL void cast(const Lanes& lanes, int64_t count, const From* x, To* y) {
  lanes.for_each(count, [=](int64_t i) { y[i] = from_float<To>(to_float(x[i])); });
}

/// sums[i] += x[i].
template <class T, class Lanes>
STRATA_KERNEL void accumulate(const Lanes& lanes, int64_t count, const T* x, float* sums) {
  lanes.for_each(count, [=](int64_t i) { sums[i] += to_float(x[i]); });
}

/// d_table[tokens[t], i] += d_y[t, i] for i in [0, columns), and the same for row t % sequence_length of d_positions (unless null), one
/// token after another: repeated tokens add up in token order. All rows are `stride` elements apart.
template <class T, class Lanes>
STRATA_KERNEL void scatter_add_columns(const Lanes& lanes, int64_t tokens_count, int64_t columns, int64_t stride,
                                       const int32_t* tokens, const T* d_y, float* d_table, float* d_positions,
                                       int64_t sequence_length) {
  for (int64_t t = 0; t < tokens_count; ++t) {
    accumulate(lanes, columns, d_y + t * stride, d_table + tokens[t] * stride);
    if (d_positions != nullptr) accumulate(lanes, columns, d_y + t * stride, d_positions + t % sequence_length * stride);
  }
}

template <class Lanes>
STRATA_KERNEL void clear(const Lanes& lanes, int64_t count, float* sums) {
  lanes.for_each(count, [=](int64_t i) { sums[i] = 0.0f; });
}

/// sums[i] = (keep: sums[i] +) partials[i] + partials[stride + i] + ... over `count` partials, in that order.
template <class Lanes>
STRATA_KERNEL void add_partials(const Lanes& lanes, int64_t columns, int64_t count, int64_t stride, const float* partials, bool keep,
                                float* sums) {
  if (!keep) clear(lanes, columns, sums);
  for (int64_t block = 0; block < count; ++block) accumulate(lanes, columns, partials + block * stride, sums);
}

/// The sum of squares of one block, in double; a square is exact there. The same bits in every context.
template <class T, class Lanes>
STRATA_KERNEL double sum_squares(const Lanes& lanes, int64_t count, const T* x) {
  return lanes.ordered_sum(count, [=](int64_t i) {
    const double value = to_float(x[i]);
    return value * value;
  });
}

}  // namespace STRATA_KERNELS_NAMESPACE
STRATA_KERNELS_AFTER
#endif
