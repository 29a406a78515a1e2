// A lane context of real threads and barriers: what a GPU's thread block does, on the CPU.
#pragma once

#include <barrier>
#include <thread>
#include <vector>

#include "gpu/kernels/lanes.hpp"

namespace strata::gpu::kernels {

class ManyLanes {
 public:
  struct Group {
    explicit Group(int lanes) : barrier(lanes), partials(static_cast<size_t>(lanes)) {}
    std::barrier<> barrier;
    std::vector<SumPair> partials;
    double ordered[kOrderedSumAccumulators] = {};
  };

  ManyLanes(Group& group, int lane) : group_(&group), lane_(lane) {}
  int lane() const { return lane_; }
  int lanes() const { return static_cast<int>(group_->partials.size()); }

  template <class Function>
  void for_each(int64_t count, Function function) const {
    for (int64_t i = lane_; i < count; i += lanes()) function(i);
  }

  template <class Function>
  float sum(int64_t count, Function function) const {
    return sum_pair(count, function, [](int64_t) { return 0.0f; }).first;
  }

  template <class First, class Second>
  SumPair sum_pair(int64_t count, First first, Second second) const {
    SumPair mine{};
    for_each(count, [&](int64_t i) {
      mine.first += first(i);
      mine.second += second(i);
    });
    return reduce(mine, [](float a, float b) { return a + b; });
  }

  template <class Function>
  float max(int64_t count, Function function) const {
    SumPair mine{-__builtin_inff(), 0.0f};
    const auto larger = [](float a, float b) { return b > a ? b : a; };
    for_each(count, [&](int64_t i) { mine.first = larger(mine.first, function(i)); });
    return reduce(mine, larger).first;
  }

  template <class Function>
  double ordered_sum(int64_t count, Function function) const {
    for (int k = lane_; k < kOrderedSumAccumulators; k += lanes()) {
      group_->ordered[k] = 0.0;
      for (int64_t i = k; i < count; i += kOrderedSumAccumulators) group_->ordered[k] += function(i);
    }
    group_->barrier.arrive_and_wait();
    std::vector<double> sums(group_->ordered, group_->ordered + kOrderedSumAccumulators);
    for (size_t width = sums.size() / 2; width > 0; width /= 2) {
      for (size_t k = 0; k < width; ++k) sums[k] += sums[k + width];
    }
    group_->barrier.arrive_and_wait();
    return sums[0];
  }

 private:
  template <class Combine>
  SumPair reduce(SumPair mine, Combine combine) const {
    group_->partials[static_cast<size_t>(lane_)] = mine;
    group_->barrier.arrive_and_wait();
    SumPair total = group_->partials[0];
    for (size_t lane = 1; lane < group_->partials.size(); ++lane) {
      total.first = combine(total.first, group_->partials[lane].first);
      total.second = combine(total.second, group_->partials[lane].second);
    }
    group_->barrier.arrive_and_wait();
    return total;
  }

  Group* group_;
  int lane_;
};

/// Calls kernel(lanes) on every lane of a group at the same time.
template <class Kernel>
void run_lanes(int count, const Kernel& kernel) {
  ManyLanes::Group group(count);
  std::vector<std::jthread> threads;
  for (int lane = 0; lane < count; ++lane) threads.emplace_back([&, lane] { kernel(ManyLanes(group, lane)); });
}

}  // namespace strata::gpu::kernels
