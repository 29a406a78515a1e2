// A finished run of a tiny model, made by `strata train` itself.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "tests/cli/program.hpp"

namespace strata::cli::testing {

enum class Optimizer { host, nvme, two_nvme };

/// Four steps, a checkpoint each second one. Everything lies in one scratch directory; the store in nvme/ (and nvme2/).
class TrainedRun {
 public:
  explicit TrainedRun(Optimizer optimizer, const std::vector<std::string>& overrides = {}, const std::string& reference = "llama_gqa",
                      const std::function<void(const std::filesystem::path& model)>& change_model = {}) {
    copy_of_model(reference, model());
    if (change_model) change_model(model());
    std::string text;
    for (int i = 0; i < 4000; ++i) text += static_cast<char>(10 + i * 7 % 50);
    write_file(scratch_ / "tokens.txt", text);
    nlohmann::json config = {{"model", {{"path", model().string()}}},
                             {"data", {{"train", {scratch_ / "tokens.txt"}}, {"sequence_length", 16}}},
                             {"precision", {{"compute", "fp32"}}},
                             {"optimizer", {{"type", "adamw"}, {"lr", 1e-3}}},
                             {"steps", 4},
                             {"device", {{"kind", "host"}, {"memory", "64MiB"}}},
                             {"tiers", {{"host", {{"memory", "64MiB"}}}}},
                             {"schedule", {{"tile", "1MiB"}}},
                             {"checkpoint", {{"every", 2}, {"keep", 2}}}};
    if (optimizer != Optimizer::host) {
      config["placement"] = {{"parameters", "nvme"}, {"optimizer", "nvme"}};
      config["tiers"]["nvme"] = {{{"path", store().string()}, {"capacity", "64MiB"}}};
      if (optimizer == Optimizer::two_nvme)
        config["tiers"]["nvme"].push_back({{"path", scratch_ / "nvme2"}, {"capacity", "64MiB"}});
    }
    write_file(scratch_ / "train.json", config.dump());
    std::vector<std::string> arguments = {"train", scratch_ / "train.json", "--run-dir", run()};
    for (const std::string& change : overrides) arguments.insert(arguments.end(), {"--set", change});
    const Outcome outcome = strata(arguments);
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    said_ = outcome.err;
  }

  /// What `strata train` said on stderr.
  const std::string& said() const { return said_; }
  std::filesystem::path scratch() const { return scratch_.path(); }
  std::filesystem::path model() const { return scratch_ / "model"; }
  std::filesystem::path run() const { return scratch_ / "run"; }
  std::filesystem::path store() const { return scratch_ / "nvme"; }
  std::filesystem::path checkpoint(int step = 4) const { return run() / "checkpoints" / ("step-0000000" + std::to_string(step)); }

 private:
  ScratchDirectory scratch_;
  std::string said_;
};

}  // namespace strata::cli::testing
