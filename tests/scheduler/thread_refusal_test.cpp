// Every thread of a run is refused in turn, and so is every number of threads at once: a clear error, never an abort, a hang or a thread
// that is left behind.
#include "tests/support/counted_threads.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/thread.hpp"
#include "cpu_adam/adam.hpp"
#include "gpu/host/host_device.hpp"
#include "scheduler/resource_threads.hpp"
#include "tests/scheduler/training_fixture.hpp"
#include "tests/support/scratch_directory.hpp"
#include "tiers/transfer.hpp"

namespace strata::scheduler {
namespace {

using strata::testing::thread_grant;
using ::testing::AnyOf;
using ::testing::HasSubstr;

class ThreadRefusal : public ::testing::Test {
 protected:
  void TearDown() override { thread_grant.lift(); }

  /// Runs `action` with one more thread granted each time, in all or at once, until it succeeds. Returns how often it was refused.
  int refuse_each(bool at_once, const std::function<void()>& action) {
    for (int granted = 0; granted < 200; ++granted) {
      const int before = thread_grant.alive;
      thread_grant.set(at_once ? before + granted : INT_MAX, at_once ? INT_MAX : granted);
      bool whole = true;
      try {
        action();
      } catch (const Error& error) {
        whole = false;
        EXPECT_EQ(error.code(), ErrorCode::resource_exhausted) << error.what();
        EXPECT_THAT(error.message(), AnyOf(HasSubstr("cannot start a thread"), HasSubstr("threads are needed at once")));
        EXPECT_THAT(error.message(), HasSubstr("this process has "));
        EXPECT_THAT(error.remedy(), HasSubstr("ulimit -u"));
        EXPECT_GT(thread_grant.refused, 0);
      }
      thread_grant.lift();
      EXPECT_TRUE(thread_grant.falls_to(before)) << granted << " granted: threads are left behind";
      if (whole) return granted;
    }
    ADD_FAILURE() << "never enough";
    return 0;
  }
};

TEST_F(ThreadRefusal, OfTheUpdate) {
  for (const bool at_once : {false, true}) EXPECT_EQ(refuse_each(at_once, [] { AdamUpdater updater(4); }), 3);
}

TEST_F(ThreadRefusal, OfTheIssuingThreads) {
  for (const bool at_once : {false, true}) EXPECT_EQ(refuse_each(at_once, [] { ResourceThreads threads({"a", "b", "c"}); }), 3);
}

TEST_F(ThreadRefusal, OfAComputeStreamAndItsTeam) {
  const auto device = gpu::HostDevice::create({.memory_bytes = 1 << 20, .compute_threads = 4});
  const auto make = [&] { device->create_stream(gpu::Device::StreamKind::compute, "compute"); };
  EXPECT_EQ(refuse_each(true, make), 4);
  EXPECT_GE(refuse_each(false, make), 4);
}

TEST_F(ThreadRefusal, OfTheStoresEngines) {
  const auto open = [](tiers::IoEngineKind kind) {
    tiers::TransferOptions options;
    options.engine = kind;
    tiers::TransferChannel channel({}, options);
  };
  // One decides; of those that move the bytes one is enough.
  for (const bool at_once : {false, true}) EXPECT_EQ(refuse_each(at_once, [&] { open(tiers::IoEngineKind::threads); }), 2);
}

TEST_F(ThreadRefusal, OfAWholeRun) {
  ScratchDirectory directory(disk_of_the_build());
  write_random_model(directory.path(), kTinyLlama);
  write_text(directory / "text.txt", 20000);
  Config config = tiny_config(directory.path(), 2);
  config.precision.compute = DType::bf16;
  config.placement = {Tier::host, Tier::host, Tier::nvme, ActivationPolicy::recompute};
  config.device.threads = 3;
  config.schedule.update_threads = 3;
  const std::string whole = run_training(config, directory / "reference").state_hash;
  for (const bool at_once : {false, true}) {
    std::string hash;
    int run = 0;
    const int refusals = refuse_each(at_once, [&] {
      hash = run_training(config, directory / fmt::format("run-{}-{}", at_once, run++)).state_hash;
    });
    EXPECT_GE(refusals, 3 + 2 + 2 + 6) << "streams, two more to compute, two more to update, one for each resource";
    EXPECT_EQ(hash, whole);
  }
}

TEST_F(ThreadRefusal, NamesTheLimitsAndTheKeys) {
  thread_grant.set(thread_grant.alive + 2, INT_MAX);
  try {
    require_threads(5, "threads of the test", "lower it");
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_THAT(error.message(), HasSubstr("5 threads are needed at once, and the system gives only 2: Resource temporarily unavailable"));
    EXPECT_THAT(error.message(), HasSubstr("limits: "));
    EXPECT_EQ(error.where(), "threads of the test");
    EXPECT_EQ(error.remedy(), "lower it");
  }
}

}  // namespace
}  // namespace strata::scheduler
