// Placement never changes numbers: the same run with its state anywhere, in any order, on any number of update threads, leaves
// the same bits in every parameter and moment.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <optional>

#include "tests/scheduler/training_fixture.hpp"
#include "tests/support/scratch_directory.hpp"

namespace strata::scheduler {
namespace {

constexpr int64_t kSteps = 50;

struct Family {
  const char* name;
  const char* config;
  DType compute;
};
const Family kFamilies[] = {{"llama_fp32", kTinyLlama, DType::f32},
                            {"tied_llama_bf16", kTinyTiedLlama, DType::bf16},
                            {"gpt2_fp32", kTinyGpt2, DType::f32},
                            {"gpt2_fp16", kTinyGpt2, DType::f16}};

/// One directory a family, made once, with the hash of the run that keeps everything on the device.
class PlacementBits : public testing::TestWithParam<Family> {
 protected:
  struct Reference {
    ScratchDirectory directory{disk_of_the_build()};
    TrainSummary summary;
  };

  static Reference& reference() {
    static std::map<std::string, std::unique_ptr<Reference>> all;
    std::unique_ptr<Reference>& one = all[GetParam().name];
    if (!one) {
      one = std::make_unique<Reference>();
      write_random_model(one->directory.path(), GetParam().config);
      write_text(one->directory / "text.txt", 60000);
      one->summary = run_training(base(one->directory.path()), one->directory / "reference");
    }
    return *one;
  }

  static Config base(const std::filesystem::path& directory) {
    Config config = tiny_config(directory, kSteps);
    config.precision.compute = GetParam().compute;
    return config;
  }

  Config config() { return base(reference().directory.path()); }

  /// Every variant runs with random delays on every stream and freed memory poisoned.
  void expect_same_bits(Config config, const std::string& what) {
    config.debug = {.random_delay_us = 40, .poison = true, .seed = ++seed_};
    const TrainSummary summary = run_training(config, reference().directory / "run");
    EXPECT_EQ(summary.state_hash, reference().summary.state_hash) << what << ", delay seed " << config.debug.seed;
    EXPECT_EQ(summary.last_loss, reference().summary.last_loss) << what;
  }

  static inline uint64_t seed_ = 0;
};

TEST_P(PlacementBits, LossMoves) {
  EXPECT_LT(reference().summary.last_loss, reference().summary.first_loss - 0.5);
  EXPECT_TRUE(std::isfinite(reference().summary.last_loss));
}

TEST_P(PlacementBits, AllOnTheDeviceUnderRandomDelaysAndPoison) { expect_same_bits(config(), "device"); }

TEST_P(PlacementBits, AllInHostMemory) {
  Config config = this->config();
  config.placement = {Tier::host, Tier::host, Tier::host, ActivationPolicy::recompute};
  expect_same_bits(config, "host");
}

TEST_P(PlacementBits, AllOnNvme) {
  for (UpdateMode update : {UpdateMode::lazy, UpdateMode::after_backward}) {
    Config config = this->config();
    config.placement = {Tier::nvme, Tier::nvme, Tier::nvme, ActivationPolicy::recompute};
    config.schedule.update = update;
    expect_same_bits(config, update == UpdateMode::lazy ? "nvme lazy" : "nvme after_backward");
  }
}

TEST_P(PlacementBits, MixedTiers) {
  const Config::Placement mixes[] = {{Tier::host, Tier::nvme, Tier::device, ActivationPolicy::device},
                                     {Tier::nvme, Tier::device, Tier::host, ActivationPolicy::recompute},
                                     {Tier::device, Tier::host, Tier::nvme, ActivationPolicy::device},
                                     {Tier::nvme, Tier::host, Tier::device, ActivationPolicy::recompute},
                                     {Tier::device, Tier::nvme, Tier::host, ActivationPolicy::recompute},
                                     {Tier::host, Tier::device, Tier::nvme, ActivationPolicy::device}};
  for (size_t i = 0; i < std::size(mixes); ++i) {
    Config config = this->config();
    config.placement = mixes[i];
    config.schedule.update = i % 2 == 0 ? UpdateMode::lazy : UpdateMode::after_backward;
    expect_same_bits(config, "mix " + std::to_string(i));
  }
}

TEST_P(PlacementBits, EveryPrefetchDepth) {
  for (int64_t prefetch : {0, 1, 4}) {
    Config config = this->config();
    config.placement = {Tier::nvme, Tier::host, Tier::nvme, ActivationPolicy::recompute};
    config.schedule.prefetch = prefetch;
    expect_same_bits(config, "prefetch " + std::to_string(prefetch));
    // Forward and backward both fetch the last block, with nothing between them that would order the two reads.
    config.placement.gradients = Tier::device;
    config.placement.optimizer = Tier::host;
    config.schedule.update = UpdateMode::after_backward;
    expect_same_bits(config, "prefetch " + std::to_string(prefetch) + " after_backward");
  }
}

TEST_P(PlacementBits, EveryTileSizeAndUpdateThreadCount) {
  for (uint64_t tile : {uint64_t{1} << 16, uint64_t{1} << 20, uint64_t{64} << 20})
    for (int threads : {1, 2}) {
      Config config = this->config();
      config.placement = {Tier::host, Tier::host, Tier::nvme, ActivationPolicy::device};
      config.schedule.tile_bytes = tile;
      config.schedule.update_threads = threads;
      expect_same_bits(config, "tile " + std::to_string(tile) + " threads " + std::to_string(threads));
    }
}

TEST_P(PlacementBits, HorizontalAccumulationOnEveryTier) {
  for (Tier gradients : {Tier::device, Tier::host, Tier::nvme}) {
    Config config = this->config();
    config.placement = {Tier::host, gradients, Tier::host, ActivationPolicy::recompute};
    config.schedule.accumulation = AccumulationOrder::horizontal;
    expect_same_bits(config, "horizontal, gradients on tier " + std::to_string(static_cast<int>(gradients)));
  }
  Config config = this->config();
  config.placement = {Tier::nvme, Tier::nvme, Tier::nvme, ActivationPolicy::recompute};
  config.schedule.accumulation = AccumulationOrder::horizontal;
  config.schedule.prefetch = 0;
  expect_same_bits(config, "horizontal, all on nvme");
}

TEST_P(PlacementBits, TheThreadPoolIoEngine) {
  Config config = this->config();
  config.placement = {Tier::nvme, Tier::nvme, Tier::nvme, ActivationPolicy::device};
  config.tiers.io_engine = "threads";
  expect_same_bits(config, "thread engine");
}

TEST_P(PlacementBits, AutomaticPlacementUnderSmallBudgets) {
  Config config = this->config();
  config.placement = {};
  config.device.memory_bytes = 8ull << 20;
  config.tiers.host_memory_bytes = 8ull << 20;
  expect_same_bits(config, "automatic");
}

TEST_P(PlacementBits, StoppedAndResumedAtAnyStep) {
  for (const bool nvme : {true, false}) {
    Config config = this->config();
    if (nvme) config.placement = {Tier::host, Tier::host, Tier::nvme, ActivationPolicy::device};
    const std::filesystem::path run = reference().directory.path() / (nvme ? "stopped-nvme" : "stopped-device");
    TrainSummary summary;
    for (int64_t until : {int64_t{7}, int64_t{8}, int64_t{31}, kSteps}) {
      // A run of `steps` is stopped by its stop flag, so that the schedule stays that of the whole run.
      std::atomic<bool> stop = false;
      TrainOptions options;
      options.config = config;
      options.run_directory = run;
      options.resume = until != 7;
      options.hash_state = true;
      options.stop = &stop;
      options.on_step = [&](const StepReport& report) { stop = report.step >= until; };
      summary = train(options);
      EXPECT_EQ(summary.steps_done, until);
    }
    EXPECT_EQ(summary.state_hash, reference().summary.state_hash) << (nvme ? "nvme" : "device");
    EXPECT_EQ(summary.last_loss, reference().summary.last_loss);
  }
}

INSTANTIATE_TEST_SUITE_P(Families, PlacementBits, testing::ValuesIn(kFamilies),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace strata::scheduler
