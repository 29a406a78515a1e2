// What a training run of the built program needs: a tiny model, its text and its configuration file in a directory.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "tests/scheduler/training_fixture.hpp"
#include "tests/support/files.hpp"
#include "tests/support/scratch_directory.hpp"

namespace strata::e2e {

class RunFiles {
 public:
  explicit RunFiles(const char* model = scheduler::kTinyTiedLlama, int64_t steps = 60) {
    scheduler::write_random_model(directory_.path(), model);
    scheduler::write_text(directory_ / "text.txt", 60000);
    config = scheduler::tiny_config(directory_.path(), steps);
    config.precision.compute = DType::bf16;
    config.placement = {Tier::host, Tier::host, Tier::nvme, ActivationPolicy::recompute};
  }
  std::filesystem::path operator/(const std::string& name) const { return directory_ / name; }

  /// Arguments of a training run in RUN (also the name of its store's directory).
  std::vector<std::string> train(const std::string& run) {
    config.tiers.nvme = {{directory_ / (run + "-nvme"), 1ull << 30}};
    const std::filesystem::path file = directory_ / (run + ".json");
    write_file(file, config.to_json());
    return {"train", file.string(), "--run-dir", (directory_ / run).string(), "--state-hash"};
  }

  Config config;

 private:
  ScratchDirectory directory_{scheduler::disk_of_the_build()};
};

}  // namespace strata::e2e
