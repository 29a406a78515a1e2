// Nanoseconds per parameter of the AdamW update beside the limit that memory sets: the same byte streams without the arithmetic.
// Rates of a machine drift by a factor of two within minutes, so update and pattern alternate, and the ratio is taken per round.
#include <sys/mman.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>

#include "bench/stream_patterns.hpp"
#include "core/error.hpp"
#include "core/topology.hpp"
#include "cpu_adam/adam.hpp"
#include "cpu_adam/formats.hpp"
#include "cpu_adam/thread_team.hpp"

namespace strata::bench {
namespace {

struct Format {
  const char* name;
  MasterFormat master;
  DType parameter, gradient;
  int bytes_per_parameter;  // read and written
};
constexpr Format kFormats[] = {
    {"fp32", MasterFormat::parameter, DType::f32, DType::f32, 28},
    {"split", MasterFormat::split, DType::bf16, DType::bf16, 26},
    {"master", MasterFormat::fp32, DType::bf16, DType::bf16, 28},
    {"fp16", MasterFormat::fp32, DType::f16, DType::f16, 28},
};

/// Huge-page memory, touched once.
class Slab {
 public:
  explicit Slab(uint64_t bytes) : bytes_(bytes + kPage) {
    memory_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory_ == MAP_FAILED) throw Error(ErrorCode::resource_exhausted, "no memory for the benchmark");
    data_ = reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(memory_) + kPage - 1) / kPage * kPage);
    madvise(data_, bytes, MADV_HUGEPAGE);
    std::fill_n(data_, bytes, 0);
  }
  ~Slab() { munmap(memory_, bytes_); }
  Slab(const Slab&) = delete;
  Slab& operator=(const Slab&) = delete;
  char* data() const { return data_; }

 private:
  static constexpr uint64_t kPage = 2 << 20;
  uint64_t bytes_;
  void* memory_;
  char* data_;
};

double seconds(const std::function<void()>& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  return values.size() % 2 ? values[half] : (values[half - 1] + values[half]) / 2;
}

AdamTile lay_out(const Format& format, char* data, uint64_t elements) {
  const auto take = [&](uint64_t each) {
    char* const array = data;
    data += (elements * each + (2 << 20) - 1) / (2 << 20) * (2 << 20);
    return array;
  };
  AdamTile tile;
  tile.master_format = format.master;
  tile.parameter_dtype = format.parameter;
  tile.gradient_dtype = format.gradient;
  tile.parameter = take(size_bytes(format.parameter));
  if (format.master != MasterFormat::parameter) tile.master = take(format.master == MasterFormat::split ? 2 : 4);
  tile.momentum = reinterpret_cast<float*>(take(4));
  tile.variance = reinterpret_cast<float*>(take(4));
  tile.gradient = take(size_bytes(format.gradient));
  tile.elements = elements;
  tile.step = AdamStep::make({.weight_decay = 0.01}, 100, 1e-4, 1.0);
  return tile;
}

/// Plausible training state: what is zero everywhere may be faster than life.
void fill(const Format& format, const AdamTile& tile) {
  uint64_t state = 88172645463325252ull;
  for (uint64_t i = 0; i < tile.elements; ++i) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    const float value = static_cast<float>(static_cast<int32_t>(state)) * 0x1p-31f;
    tile.momentum[i] = 1e-3f * value;
    tile.variance[i] = 1e-6f * value * value + 1e-9f;
    const float gradient = 1e-2f * value;
    if (format.gradient == DType::f32)
      static_cast<float*>(const_cast<void*>(tile.gradient))[i] = gradient;
    else
      static_cast<uint16_t*>(const_cast<void*>(tile.gradient))[i] = half_from_float(format.gradient, gradient);
    if (format.master == MasterFormat::parameter)
      static_cast<float*>(tile.parameter)[i] = value;
    else
      static_cast<uint16_t*>(tile.parameter)[i] = half_from_float(format.parameter, value);
    if (format.master == MasterFormat::split) static_cast<uint16_t*>(tile.master)[i] = static_cast<uint16_t>(state >> 40);
    if (format.master == MasterFormat::fp32) static_cast<float*>(tile.master)[i] = value;
  }
}

struct Options {
  std::vector<double> millions = {10, 100};
  std::vector<int> threads;
  std::vector<std::string> formats;
  uint64_t tile_elements = 0;
  int rounds = 9;
};

void run(const Format& format, uint64_t elements, int threads, const Options& options, char* memory) {
  const AdamTile whole = lay_out(format, memory, elements);
  fill(format, whole);
  const uint64_t tile_elements = options.tile_elements ? std::min(options.tile_elements, elements) : elements;
  std::vector<AdamTile> tiles;
  for (uint64_t first = 0; first < elements; first += tile_elements)
    tiles.push_back(cpu_adam::slice(whole, first, std::min(tile_elements, elements - first)));
  AdamUpdater updater(threads);
  // Pinned, unlike the updater's: the pattern is to be the limit.
  cpu_adam::ThreadTeam team(numa_nodes(), threads, cpu_adam::Pinning::processor);
  const auto touch = [&](const AdamTile& tile) {
    team.for_chunks(tile.elements, [&](uint64_t first, uint64_t count) { touch_streams(cpu_adam::slice(tile, first, count)); });
  };
  const auto ns_of = [](double seconds, const AdamTile& tile) { return seconds * 1e9 / static_cast<double>(tile.elements); };
  std::vector<double> limits, updates, ratios;
  // On a busy machine a median is of two programs. The least time of a tile over all rounds had the processors to itself.
  std::vector<double> least_limit(tiles.size(), 1e30), least_update(tiles.size(), 1e30);
  for (int round = -1; round < options.rounds; ++round) {
    std::vector<double> limit, update;  // of each tile
    for (size_t i = 0; i < tiles.size(); ++i) {
      const size_t k = (i + tiles.size() / 2) % tiles.size();
      // The update takes another tile than the pattern just had: that one is still in the cache.
      const AdamTile& other = tiles[k];
      limit.push_back(ns_of(seconds([&] { touch(tiles[i]); }), tiles[i]));
      update.push_back(ns_of(seconds([&] { updater.update(other); }), other));
      least_limit[i] = std::min(least_limit[i], limit.back());
      least_update[k] = std::min(least_update[k], update.back());
    }
    if (round < 0) continue;  // warm-up
    limits.push_back(median(limit));
    updates.push_back(median(update));
    ratios.push_back(updates.back() / limits.back());
  }
  const auto [least, most] = std::minmax_element(ratios.begin(), ratios.end());
  std::printf("%-7s %8.1f %7d %10.3f %10.3f %9.1f %8.3f  (%.3f - %.3f) %12.3f\n", format.name,
              static_cast<double>(elements) / 1e6, threads, median(limits), median(updates),
              format.bytes_per_parameter / median(updates), median(ratios), *least, *most,
              median(least_update) / median(least_limit));
  std::fflush(stdout);
}

int main_function(int count, char** arguments) {
  Options options;
  CLI::App app("AdamW update against the byte pattern of the same streams");
  app.add_option("--millions", options.millions, "parameters, in millions")->capture_default_str();
  app.add_option("--threads", options.threads, "thread counts (default: 1 and all)");
  app.add_option("--formats", options.formats, "of: fp32 split master fp16 (default: all)");
  app.add_option("--tile", options.tile_elements, "elements a call, alternating tile by tile (default: all at once)");
  app.add_option("--rounds", options.rounds)->capture_default_str()->check(CLI::Range(1, 1000));
  CLI11_PARSE(app, count, arguments);
  if (options.threads.empty()) {
    options.threads = {1};
    if (usable_processor_count() > 1) options.threads.push_back(usable_processor_count());
  }

  const double most = *std::max_element(options.millions.begin(), options.millions.end());
  const Slab slab(static_cast<uint64_t>(most * 1e6) * 16 + (16 << 20));
  std::fprintf(stderr, "%s, %s; medians of %d rounds\n", processor_info().name.c_str(),
               AdamUpdater::instruction_set().c_str(), options.rounds);
  std::printf("%-7s %8s %7s %10s %10s %9s %8s %31s\n", "format", "millions", "threads", "pattern ns", "update ns", "GB/s",
              "ratio", "ratio of least");
  for (const double millions : options.millions)
    for (const int threads : options.threads)
      for (const Format& format : kFormats)
        if (options.formats.empty() ||
            std::find(options.formats.begin(), options.formats.end(), format.name) != options.formats.end())
          run(format, static_cast<uint64_t>(millions * 1e6), threads, options, slab.data());
  return 0;
}

}  // namespace
}  // namespace strata::bench

int main(int count, char** arguments) {
  strata::undo_openmp_binding();
  return strata::bench::main_function(count, arguments);
}
