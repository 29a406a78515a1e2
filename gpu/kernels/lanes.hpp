// What a lane context is: the only thing that a row kernel knows of the machine it runs on.
#pragma once

namespace strata::gpu::kernels {

// A kernel is a function template over a context `lanes`, which every lane of a group calls with the same arguments:
//
//   lanes.lane(), lanes.lanes()   this lane's number, and how many there are
//   lanes.for_each(n, f)          f(i) for i in [0, n). Calls for different i do not touch the same memory. Index i always falls to
//                                 lane i % lanes(), so a lane may later read what it wrote itself; no barrier is implied
//   lanes.sum(n, f)               the fp32 sum of f(i), in an order fixed by n and the kind of context; every lane gets it
//   lanes.sum_pair(n, f, g)       the sums of f(i) and of g(i) in one pass, each as sum gives it
//   lanes.max(n, f)               the largest f(i); every lane gets it. With a NaN among them it is one of the f(i), perhaps the NaN
//   lanes.ordered_sum(n, f)       the sum in double, with the same bits in every context: accumulator k of 16 takes f(k), f(k + 16), ... in
//                                 that order from 0; then accumulator k takes number k + 8, then k + 4, k + 2, k + 1
//
// A reduction is a barrier: what any lane read before it has been read when it returns.

struct SumPair {
  float first;
  float second;
};

inline constexpr int kOrderedSumAccumulators = 16;

/// Sums over rows go block by block: the rows of a block in order, then the blocks in order.
inline constexpr int kRowsPerBlock = 32;

/// What a label of a token that does not count is.
inline constexpr int kIgnoredLabel = -100;

}  // namespace strata::gpu::kernels
