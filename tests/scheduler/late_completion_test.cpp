// Runs whose device or drive is slow, hangs, or answers after everybody has given up. The buffers of requests that hang are touched when
// the run has gone: under AddressSanitizer, or where they were unmapped, that finds each one that was given back too soon.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>

#include "core/last_resort.hpp"
#include "gpu/host/host_stream.hpp"
#include "scheduler/executor.hpp"
#include "scheduler/runtime.hpp"
#include "scheduler/store_transfers.hpp"
#include "scheduler/training_state.hpp"
#include "tests/scheduler/training_fixture.hpp"
#include "tests/support/scratch_directory.hpp"
#include "tests/tiers/faulty_io_engine.hpp"
#include "tiers/memory.hpp"
#include "tiers/nvme_store.hpp"

namespace strata::scheduler {
namespace {

using namespace std::chrono_literals;
using tiers::IoOperation;
using tiers::testing::Effect;
using tiers::testing::Fault;

/// Passes everything on, and loses the completion of the n-th event: a stream that waits for it hangs.
class LosingDevice final : public gpu::Device {
 public:
  LosingDevice(gpu::Device& inner, int nth) : inner_(inner), left_(nth) {}
  const gpu::DeviceInfo& info() const override { return inner_.info(); }
  gpu::DeviceBuffer allocate(uint64_t bytes) override { return inner_.allocate(bytes); }
  uint64_t allocated_bytes() const override { return inner_.allocated_bytes(); }
  std::unique_ptr<gpu::Stream> create_stream(StreamKind kind, std::string name) override { return inner_.create_stream(kind, std::move(name)); }
  std::unique_ptr<gpu::Event> create_event() override { return inner_.create_event(); }
  void record(gpu::Stream& stream, gpu::Event& event) override {
    if (--left_ == 0) dynamic_cast<gpu::HostStream&>(stream).enqueue_wait(std::make_shared<gpu::Completion>("lost"));
    inner_.record(stream, event);
  }
  void wait(gpu::Stream& stream, const gpu::Event& event) override { inner_.wait(stream, event); }
  void synchronize(const gpu::Event& event, std::chrono::milliseconds deadline) override { inner_.synchronize(event, deadline); }
  void synchronize(gpu::Stream& stream, std::chrono::milliseconds deadline) override { inner_.synchronize(stream, deadline); }
  gpu::DeviceActivity activity() const override { return inner_.activity(); }
  void copy(gpu::Stream& stream, void* destination, const void* source, uint64_t bytes, gpu::CopyDirection direction) override {
    inner_.copy(stream, destination, source, bytes, direction);
  }
  void fill(gpu::Stream& stream, void* destination, uint8_t value, uint64_t bytes) override { inner_.fill(stream, destination, value, bytes); }
  void call_host(gpu::Stream& stream, std::function<void()> function) override { inner_.call_host(stream, std::move(function)); }
  void register_host_memory(void* data, uint64_t bytes) override { inner_.register_host_memory(data, bytes); }
  void unregister_host_memory(void* data) override { inner_.unregister_host_memory(data); }
  gpu::RowKernels& rows() override { return inner_.rows(); }
  gpu::MatrixKernels& matrices() override { return inner_.matrices(); }
  gpu::AttentionKernels& attention() override { return inner_.attention(); }

 private:
  gpu::Device& inner_;
  std::atomic<int> left_;
};

/// The parts of a run, put together as Runtime does, with a store whose drive obeys a plan of faults.
struct Parts {
  Parts(const Config& config, const std::shared_ptr<tiers::testing::FaultPlan>& faults, ExecutorOptions options, int lost_event = 0,
        std::chrono::milliseconds drive_deadline = 200ms)
      : planned(plan_run(config)), adam(1) {
    if (lost_event > 0) losing = std::make_unique<LosingDevice>(*planned.device, lost_event);
    const MemoryMap& memory = planned.plan.steps.memory;
    device_memory = planned.device->allocate(memory.slab_bytes(Memory::device));
    host = std::make_shared<tiers::MemorySlab>(memory.slab_bytes(Memory::host), planned.device.get());
    tiers::StoreHooks hooks;
    hooks.engine_factory = tiers::testing::faulty(faults);
    hooks.transfers.request_deadline = hooks.transfers.sync_deadline = drive_deadline;
    hooks.transfers.shutdown_grace = 100ms;
    tiers::StoreOptions store_options = planned.plan.store_options();
    store_options.regions = [this] { return std::vector{host->span()}; };
    store = tiers::create_store(store_options, hooks);
    executor = std::make_unique<Executor>(
        losing ? *losing : *planned.device, *planned.engine, adam, planned.plan.shape, memory,
        TierMemory{.device = device_memory.data(), .host = host->data(), .store = store.get(), .host_owner = host}, std::move(options));
    state = std::make_unique<TrainingState>(planned.plan.shape, planned.plan.steps, *executor, store.get());
  }

  void fill() {
    StateSources sources;
    sources.master = [](int, Range range, float* out) { std::fill_n(out, range.count, 0.01f); };
    state->fill(sources, {});
  }
  ProgramRun step() {
    StepValues values;
    values.adam = AdamStep::make({}, 1, 1e-3, 1.0);
    values.commit_record = "{}";
    for (const Region* tokens : {&planned.plan.steps.host_tokens, &planned.plan.steps.host_labels})
      for (uint32_t part = 0; part < 2; ++part) std::memset(executor->address(tokens->part(part)), 0, 2 * 32 * sizeof(int32_t));
    executor->run(planned.plan.steps.forward_backward, values);
    return executor->run(planned.plan.steps.update, values);
  }

  PlannedRun planned;
  std::unique_ptr<LosingDevice> losing;
  AdamUpdater adam;
  gpu::DeviceBuffer device_memory;
  std::shared_ptr<tiers::MemorySlab> host;
  std::unique_ptr<tiers::NvmeStore> store;
  std::unique_ptr<Executor> executor;
  std::unique_ptr<TrainingState> state;
};

class LateCompletion : public ::testing::Test {
 protected:
  LateCompletion() {
    write_random_model(directory_.path(), kTinyLlama);
    config_ = tiny_config(directory_.path(), 1);
    config_.precision.compute = DType::bf16;
    config_.placement = {Tier::nvme, Tier::nvme, Tier::nvme, ActivationPolicy::nvme};
  }
  Fault hang(IoOperation operation, uint64_t nth) const { return {.effect = Effect::never, .nth = nth, .operation = operation, .file = {}}; }

  ScratchDirectory directory_{disk_of_the_build()};
  Config config_;
  std::shared_ptr<tiers::testing::FaultPlan> faults_ = std::make_shared<tiers::testing::FaultPlan>();
};

ErrorCode code_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.code();
  }
  return ErrorCode::internal;
}

TEST_F(LateCompletion, AStepThatTakesLongerThanTheDeadlineIsNotGivenUp) {
  config_.debug.random_delay_us = 40'000;
  Parts parts(config_, faults_, {.deadline = 300ms, .on_slow = {}});
  parts.fill();
  const auto begin = std::chrono::steady_clock::now();
  parts.step();
  EXPECT_GT(std::chrono::steady_clock::now() - begin, 900ms) << "a step this quick shows nothing";
}

TEST_F(LateCompletion, AWaitBesideAComputationLongerThanTheDeadlineIsSaidAndNotGivenUp) {
  std::vector<std::string> lines;
  Parts parts(config_, faults_, {.deadline = 300ms, .on_slow = [&](const std::string& line) { lines.push_back(line); }}, 0, 60s);
  parts.fill();
  gpu::Device& device = *parts.planned.device;
  const auto busy = device.create_stream(gpu::Device::StreamKind::copy, "busy");
  std::atomic<bool> enough = false;
  device.call_host(*busy, [&] {
    while (!enough) std::this_thread::sleep_for(1ms);
  });
  faults_->set({{.effect = Effect::delay, .value = 1500, .nth = 1, .operation = {}, .file = {}}});
  Program program;
  program.name = "commit alone";
  program.ops = {Op{.kind = OpKind::commit, .resource = Resource::cpu}};
  StepValues values;
  values.commit_record = "{}";
  std::thread stop([&] {
    while (parts.store->generation() == 0) std::this_thread::sleep_for(1ms);
    enough = true;
  });
  parts.executor->run(program, values);
  stop.join();
  ASSERT_FALSE(lines.empty());
  EXPECT_THAT(lines.front(), ::testing::HasSubstr("cpu is at commit alone #0 (commit)"));
  EXPECT_EQ(parts.store->generation(), 1u);
}

TEST_F(LateCompletion, TheMemoryOfARunOutlivesATransferThatHangs) {
  for (const auto operation : {IoOperation::read, IoOperation::write})
    for (const uint64_t nth : {1, 5}) {
      {
        Parts parts(config_, faults_, {});
        parts.fill();
        faults_->set({hang(operation, nth)});
        EXPECT_EQ(code_of([&] { parts.step(); }), ErrorCode::timeout);
      }
      EXPECT_EQ(faults_->land_late(), 1u);
      faults_->set({});
    }
}

TEST_F(LateCompletion, TheBuffersOfSetUpAndComparisonOutliveATransferThatHangs) {
  {
    Parts parts(config_, faults_, {});
    faults_->set({hang(IoOperation::write, 3)});
    EXPECT_EQ(code_of([&] { parts.fill(); }), ErrorCode::timeout);
  }
  EXPECT_EQ(faults_->land_late(), 1u);
  faults_->set({});
  {
    Parts parts(config_, faults_, {});
    parts.fill();
    faults_->set({hang(IoOperation::read, 2)});
    EXPECT_EQ(code_of([&] { parts.state->hash(); }), ErrorCode::timeout);
    // The store has failed for good, and says so at once.
    std::vector<float> out(parts.planned.plan.shape.tile_elements);
    EXPECT_EQ(code_of([&] { parts.state->read(Quantity::momentum, 1, 0, out.data()); }), ErrorCode::timeout);
  }
  EXPECT_EQ(faults_->land_late(), 1u);
}

TEST_F(LateCompletion, ATransferThatTheStoreDoesNotTakeIsNotWaitedFor) {
  StoreTransfers transfers;
  const SharedBytes buffer = shared_bytes(4096);
  static_cast<void>(transfers.add(buffer));  // as when the store throws: the callback is dropped
  transfers.finish();
  EXPECT_EQ(buffer.use_count(), 1);
}

TEST_F(LateCompletion, TransfersAreWaitedForAndThrowTheFirstError) {
  StoreTransfers transfers;
  const tiers::IoCallback first = transfers.add(shared_bytes(1)), second = transfers.add(shared_bytes(1));
  first(std::make_exception_ptr(Error(ErrorCode::io, "first")));
  second(std::make_exception_ptr(Error(ErrorCode::timeout, "second")));
  EXPECT_EQ(code_of([&] { transfers.finish(); }), ErrorCode::io);
  transfers.finish();
}

using LateCompletionDeathTest = LateCompletion;

TEST_F(LateCompletionDeathTest, ADeviceThatNeitherWorksNorEndsEndsTheProcessWithTheirNames) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        Parts parts(config_, faults_, {.deadline = 500ms, .on_slow = {}}, 200);
        parts.fill();
        for (int i = 0; i < 100; ++i) parts.step();
      },
      ::testing::ExitedWithCode(kStuckExitStatus), "nothing has moved(.|\n)*is at(.|\n)*what was committed is safe");
}

}  // namespace
}  // namespace strata::scheduler
