// Budgets and this machine's memory, under fake /proc and /sys trees; sizes that cannot be planned.
#include "scheduler/machine_memory.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "core/error.hpp"
#include "scheduler/plan_bounds.hpp"
#include "scheduler/runtime.hpp"
#include "tests/scheduler/training_fixture.hpp"
#include "tests/support/scratch_directory.hpp"

namespace strata::scheduler {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class MachineMemory : public ::testing::Test {
 protected:
  MachineMemory() {
    write_random_model(scratch_.path(), kTinyLlama);
    write_text(scratch_ / "text.txt", 20000);
  }

  /// A machine with 64 GiB of which `available_mib` can be given, and a container limited to `limit_mib` (0: none).
  std::filesystem::path machine(uint64_t available_mib, uint64_t limit_mib = 0) {
    const auto root = scratch_ / fmt::format("machine-{}-{}", available_mib, limit_mib);
    write(root / "proc/meminfo", fmt::format("MemTotal: {} kB\nMemAvailable: {} kB\n", 64ull << 20, available_mib << 10));
    if (limit_mib > 0) {
      write(root / "proc/self/cgroup", "0::/outer/inner\n");
      write(root / "proc/self/mountinfo", "30 20 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
      write(root / "sys/fs/cgroup/outer/inner/memory.max", "max\n");
      write(root / "sys/fs/cgroup/outer/memory.max", fmt::format("{}\n", limit_mib << 20));
      write(root / "sys/fs/cgroup/outer/memory.current", fmt::format("{}\n", 16 << 20));
    }
    return root;
  }
  Config config(int64_t steps = 2) const { return tiny_config(scratch_.path(), steps); }
  Config automatic_config(int64_t steps = 2) const {
    Config config = this->config(steps);
    config.device.memory_bytes.reset();
    config.tiers.host_memory_bytes.reset();
    config.placement = {};
    return config;
  }
  TrainSummary run(const Config& config, const std::filesystem::path& root, bool resume = false) {
    TrainOptions options;
    options.config = config;
    options.run_directory = scratch_ / "run";
    options.resume = resume;
    options.hash_state = true;
    options.system_root = root;
    return train(options);
  }
  template <typename Function>
  static Error error_of(Function&& function) {
    try {
      function();
    } catch (const Error& error) {
      return error;
    }
    ADD_FAILURE() << "nothing was refused";
    return Error(ErrorCode::internal, "none");
  }
  static void write(const std::filesystem::path& file, const std::string& text) {
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  const ScratchDirectory scratch_;
};

TEST_F(MachineMemory, ARunThatTheContainerCannotHoldIsRefusedWithATableBeforeAnythingIsMade) {
  const auto root = machine(60000, 130);
  const Error error = error_of([&] { run(config(), root); });
  EXPECT_EQ(error.code(), ErrorCode::resource_exhausted);
  EXPECT_THAT(error.message(), AllOf(HasSubstr("nothing was started"), HasSubstr("host tier"), HasSubstr("physical memory"),
                                     HasSubstr("memory.max of /sys/fs/cgroup/outer"), HasSubstr("130 MiB"), HasSubstr("missing")));
  EXPECT_THAT(error.remedy(), AllOf(HasSubstr("device.memory"), HasSubstr("raise memory.max of /sys/fs/cgroup/outer")));
  EXPECT_FALSE(std::filesystem::exists(scratch_ / "nvme"));
  EXPECT_FALSE(std::filesystem::exists(scratch_ / "run/plan.json"));
}

TEST_F(MachineMemory, APlanForASmallerMachineIsShownWithANote) {
  const PlannedRun planned = plan_run(config(), {.constraints = {}, .system_root = machine(60000, 130)});
  ASSERT_FALSE(planned.plan.notes.empty());
  EXPECT_THAT(planned.plan.notes.back(), HasSubstr("a run would be refused now"));
  const PlannedRun roomy = plan_run(config(), {.constraints = {}, .system_root = machine(60000)});
  EXPECT_TRUE(roomy.plan.notes.empty()) << roomy.plan.notes.back();
}

TEST_F(MachineMemory, BudgetsLeftToStrataTogetherStayUnderWhatTheMachineCanGive) {
  const auto root = machine(4096, 1024);
  const PlannedRun planned = plan_run(automatic_config(), {.constraints = {}, .system_root = root});
  const RunPlan& plan = planned.plan;
  const uint64_t available = memory_info(root).available_bytes;
  EXPECT_EQ(available, (1024ull - 16) << 20);
  const uint64_t together = *plan.config.device.memory_bytes + *plan.config.tiers.host_memory_bytes;
  EXPECT_LE(together, automatic_memory_bytes(plan.memory, plan.memory_needs.program_bytes));
  EXPECT_LE(plan.memory_needs.total() + memory_reserve_bytes(available), available);
  EXPECT_THAT(plan.notes.front(), AllOf(HasSubstr("device.memory and tiers.host.memory are auto"), HasSubstr("1008 MiB")));
  // The numbers that were filled in give the same plan again.
  const PlannedRun again = plan_run(plan.config, {.constraints = {}, .system_root = machine(60000)});
  EXPECT_EQ(again.plan.tiers[0].needed_bytes, plan.tiers[0].needed_bytes);
  EXPECT_EQ(again.plan.tiers[1].needed_bytes, plan.tiers[1].needed_bytes);
  EXPECT_EQ(again.plan.placement.units[0].optimizer, plan.placement.units[0].optimizer);
}

TEST_F(MachineMemory, WithTooLittleForAnyPlacementTheTableSaysWhatTheMachineCanGive) {
  const auto root = machine(129);
  const Error error = error_of([&] { plan_run(automatic_config(), {.constraints = {}, .system_root = root}); });
  EXPECT_EQ(error.code(), ErrorCode::resource_exhausted);
  EXPECT_THAT(error.message(), AllOf(HasSubstr("does not fit"), HasSubstr("memory "), HasSubstr("129 MiB")));
}

TEST_F(MachineMemory, ARunInItsStoreContinuesThereOnAMachineWithMoreMemory) {
  const TrainSummary whole = [&] {
    Config all = config(4);
    TrainOptions options;
    options.config = all;
    options.run_directory = scratch_ / "whole";
    options.resume = false;
    options.hash_state = true;
    return train(options);
  }();
  Config first = automatic_config(2);
  first.placement.optimizer = Tier::nvme;
  run(first, machine(60000));
  Config rest = automatic_config(4);  // on its own it would take the device for everything
  const TrainSummary resumed = run(rest, machine(50000), /*resume=*/true);
  EXPECT_EQ(resumed.resumed_from, 2);
  EXPECT_EQ(resumed.state_hash, whole.state_hash);
}

TEST_F(MachineMemory, ARunFromFilesContinuesOnAMachineWithLessMemory) {
  const TrainSummary first = run(automatic_config(2), machine(60000));
  EXPECT_EQ(first.steps_done, 2);
  const TrainSummary resumed = run(automatic_config(3), machine(700), /*resume=*/true);
  EXPECT_EQ(resumed.resumed_from, 2);
  EXPECT_EQ(resumed.steps_done, 3);
}

class PlanBounds : public ::testing::Test {
 protected:
  /// A Llama-like model.
  static ModelDescription model(int64_t layers, int64_t width) {
    ModelDescription model;
    model.family = Family::llama;
    model.layers = layers;
    model.hidden_size = width;
    model.intermediate_size = 4 * width;
    model.heads = model.kv_heads = 64;
    model.head_dim = width / 64;
    model.vocab_size = 32000;
    model.max_positions = 4096;
    return model;
  }
  static Error refusal(const Config& config, const ModelDescription& model) {
    try {
      check_plan_bounds(config, model, make_layout(model));
    } catch (const Error& error) {
      return error;
    }
    ADD_FAILURE() << "nothing was refused";
    return Error(ErrorCode::internal, "none");
  }
};

TEST_F(PlanBounds, TilesGrowWithTheModelAndNotWithTheMachine) {
  const StateFormat format = make_state_format(Config().precision);
  EXPECT_EQ(automatic_tile_bytes(make_layout(model(32, 2048)), format), 16ull << 20);
  const uint64_t large = automatic_tile_bytes(make_layout(model(80, 8192)), format);
  EXPECT_GT(large, 64ull << 20);
  EXPECT_NO_THROW(check_plan_bounds(Config(), model(80, 8192), make_layout(model(80, 8192))));
}

TEST_F(PlanBounds, TilesTooSmallForALargeModelAreRefusedWithASizeThatWorks) {
  Config config;
  config.schedule.tile_bytes = 1 << 20;
  const Error error = refusal(config, model(80, 8192));
  EXPECT_EQ(error.where(), "/schedule/tile");
  EXPECT_THAT(error.remedy(), HasSubstr("raise schedule.tile to "));
}

TEST_F(PlanBounds, TheLargestModelThatCanBeDescribedIsRefusedAtOnce) {
  const Error error = refusal(Config(), model(4096, 1 << 20));
  EXPECT_EQ(error.where(), "/model/path");
  EXPECT_EQ(error.code(), ErrorCode::invalid_configuration);
}

TEST_F(PlanBounds, ActivationsBeyondSixtyFourBitsAreRefusedInsteadOfWrapping) {
  Config config;
  config.batch.micro_batch_size = 1'000'000'000'000;
  config.data.sequence_length = 1 << 24;  // their product alone is more than 2^63
  const Error error = refusal(config, model(2, 128));
  EXPECT_EQ(error.where(), "/batch/micro_batch_size");
  EXPECT_THAT(error.message(), HasSubstr("over 10^18 bytes"));
}

}  // namespace
}  // namespace strata::scheduler
