// The host device: the contract suite in its quiet and its hostile mode, and what only the host device promises.
#include <gtest/gtest.h>
#include <sched.h>

#include <cmath>
#include <cstdlib>
#include <set>

#include "core/dtype.hpp"
#include "gpu/host/host_device.hpp"
#include "gpu/host/host_stream.hpp"
#include "gpu/host/parallel.hpp"
#include "tests/gpu/device_contract.hpp"

namespace strata::gpu {
namespace {

constexpr std::chrono::milliseconds kLong{60000};

INSTANTIATE_TEST_SUITE_P(
    Host, DeviceContract,
    testing::Values(
        DeviceFactory{"quiet", [] { return HostDevice::create({.memory_bytes = kContractMemoryBytes}); }},
        DeviceFactory{"chaos",
                      [] {
                        return HostDevice::create({.memory_bytes = kContractMemoryBytes, .random_delay_us_max = 200, .poison = true, .seed = 11});
                      }}),
    [](const auto& info) { return info.param.name; });

TEST(HostDevice, AnOperationThatRunsIsWaitedForLongerThanTheDeadline) {
  const auto device = HostDevice::create({.memory_bytes = 1 << 20, .compute_threads = 1});
  const auto stream = device->create_stream(Device::StreamKind::compute, "slow");
  const auto other = device->create_stream(Device::StreamKind::copy, "waiting");
  const auto event = device->create_event();
  device->call_host(*stream, [] { std::this_thread::sleep_for(std::chrono::milliseconds(900)); });
  device->record(*stream, *event);
  device->wait(*other, *event);
  device->synchronize(*other, std::chrono::milliseconds(300));
  device->synchronize(*event, std::chrono::milliseconds(300));
  EXPECT_GE(device->activity().operations_finished, 3u);
}

TEST(HostDevice, AWaitWhileNothingRunsIsATimeoutThatNamesTheStream) {
  const auto device = HostDevice::create({.memory_bytes = 1 << 20, .compute_threads = 1});
  const auto stream = device->create_stream(Device::StreamKind::copy, "stuck h2d");
  const auto lost = std::make_shared<Completion>("lost");
  dynamic_cast<HostStream&>(*stream).enqueue_wait(lost);
  const auto event = device->create_event();
  device->record(*stream, *event);
  for (const bool by_event : {true, false}) {
    try {
      by_event ? device->synchronize(*event, std::chrono::milliseconds(10)) : device->synchronize(*stream, std::chrono::milliseconds(10));
      ADD_FAILURE() << "no timeout";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::timeout);
      EXPECT_NE(error.message().find("stuck h2d"), std::string::npos) << error.what();
    }
  }
  lost->complete(nullptr);  // or the stream would never drain
}

TEST(HostDevice, RefusesImpossibleOptions) {
  EXPECT_THROW(HostDevice::create({.memory_bytes = 0}), Error);
  EXPECT_THROW(HostDevice::create({.memory_bytes = 1, .compute_threads = -1}), Error);
  EXPECT_THROW(HostDevice::create({.memory_bytes = 1, .random_delay_us_max = -1}), Error);
}

TEST(HostDevice, SaysWhatItIs) {
  const auto device = HostDevice::create({.memory_bytes = 1 << 20, .compute_threads = 3});
  EXPECT_EQ(device->info().kind, "host");
  EXPECT_FALSE(device->info().name.empty());
  EXPECT_EQ(device->info().compute_threads, 3);
  EXPECT_GE(HostDevice::create({.memory_bytes = 1 << 20})->info().compute_threads, 1);
}

TEST(HostDevice, PoisonedMemoryIsNanInEveryFormat) {
  const auto device = HostDevice::create({.memory_bytes = 1 << 20, .poison = true});
  const std::byte* stale = nullptr;
  const auto expect_nan = [](const std::byte* data) {
    float single;
    uint16_t half;
    std::memcpy(&single, data, sizeof single);
    std::memcpy(&half, data, sizeof half);
    EXPECT_TRUE(std::isnan(single));
    EXPECT_TRUE(std::isnan(float_from_bf16(half)));
    EXPECT_TRUE(std::isnan(float_from_f16(half)));
  };
  {
    const auto stream = device->create_stream(Device::StreamKind::copy, "fill");
    const auto buffer = device->allocate(1 << 20);
    expect_nan(buffer.data());
    expect_nan(buffer.data() + buffer.bytes() - 4);
    device->fill(*stream, buffer.data(), 0, buffer.bytes());
    device->synchronize(*stream, kLong);
    stale = buffer.data();
  }
  expect_nan(stale);
}

TEST(HostDevice, CopiesOutsideAnAllocationAreRefused) {
  const auto device = HostDevice::create({.memory_bytes = 1 << 22});
  const auto stream = device->create_stream(Device::StreamKind::copy, "copies");
  const auto buffer = device->allocate(100);
  std::vector<std::byte> host(200);
  EXPECT_THROW(device->copy(*stream, buffer.data(), host.data(), 101, CopyDirection::host_to_device), Error);
  EXPECT_THROW(device->copy(*stream, buffer.data() - 1, host.data(), 10, CopyDirection::host_to_device), Error);
  EXPECT_THROW(device->copy(*stream, host.data(), host.data(), 10, CopyDirection::host_to_device), Error);
  EXPECT_THROW(device->copy(*stream, buffer.data(), buffer.data() + 50, 10, CopyDirection::host_to_device), Error);
  EXPECT_THROW(device->copy(*stream, host.data(), host.data() + 50, 10, CopyDirection::device_to_host), Error);
  EXPECT_THROW(device->fill(*stream, buffer.data() + 99, 0, 2), Error);
  device->copy(*stream, buffer.data() + 1, host.data(), 99, CopyDirection::host_to_device);
  device->synchronize(*stream, kLong);
}

TEST(HostDevice, BuffersStreamsAndEventsMayOutliveTheDevice) {
  auto device = HostDevice::create({.memory_bytes = 1 << 22});
  auto stream = device->create_stream(Device::StreamKind::compute, "late");
  auto event = device->create_event();
  auto buffer = device->allocate(1 << 20);
  device->fill(*stream, buffer.data(), 7, buffer.bytes());
  device->record(*stream, *event);
  device.reset();
  stream.reset();
  EXPECT_TRUE(event->ready());
  EXPECT_EQ(buffer.data()[buffer.bytes() - 1], std::byte{7});
}

TEST(HostDevice, ManyAllocationsInAnyOrderKeepTheCount) {
  const auto device = HostDevice::create({.memory_bytes = 1 << 22, .poison = true});
  std::vector<DeviceBuffer> buffers;
  for (int i = 0; i < 16; ++i) buffers.push_back(device->allocate(1000 + i));
  std::set<std::byte*> distinct;
  for (const auto& buffer : buffers) distinct.insert(buffer.data());
  EXPECT_EQ(distinct.size(), buffers.size());
  uint64_t expected = device->allocated_bytes();
  for (const int i : {3, 0, 15, 8}) {
    expected -= buffers[i].bytes();
    buffers[i] = DeviceBuffer();
    EXPECT_EQ(device->allocated_bytes(), expected);
  }
}

/// The affinity masks of the threads that a stream's parallel work runs on.
std::vector<int> processors_of_each_thread(HostDevice& device, Device::StreamKind kind, int threads) {
  const auto stream = device.create_stream(kind, "team");
  std::vector<int> counts(static_cast<size_t>(threads), -1);
  host_enqueue(*stream, [&] {
    parallel_for(threads, 1, [&](int64_t begin, int64_t end) {
      cpu_set_t set;
      CPU_ZERO(&set);
      if (sched_getaffinity(0, sizeof set, &set) != 0) return;
      for (int64_t i = begin; i < end; ++i) counts[static_cast<size_t>(i)] = CPU_COUNT(&set);
    });
  });
  device.synchronize(*stream, kLong);
  return counts;
}

TEST(HostDevice, PinnedThreadsHaveOneProcessorEach) {
  for (const bool pinned : {false, true}) {
    const auto device = HostDevice::create({.memory_bytes = 1, .compute_threads = 3, .pin_threads = pinned});
    cpu_set_t mine;
    CPU_ZERO(&mine);
    ASSERT_EQ(sched_getaffinity(0, sizeof mine, &mine), 0);
    const int expected = pinned ? 1 : CPU_COUNT(&mine);
    EXPECT_EQ(processors_of_each_thread(*device, Device::StreamKind::compute, 3), std::vector<int>(3, expected));
  }
}

TEST(HostDevice, ComputeStreamsHaveTheirThreadsAndCopyStreamsOne) {
  const auto device = HostDevice::create({.memory_bytes = 1, .compute_threads = 3});
  for (const auto& [kind, threads] : {std::pair{Device::StreamKind::compute, 3}, {Device::StreamKind::copy, 1}}) {
    const auto stream = device->create_stream(kind, "team");
    std::atomic<int> calls = 0;
    int threads_max = 0;
    host_enqueue(*stream, [&] {
      threads_max = team_threads_max();
      parallel_for(100, 1, [&](int64_t, int64_t) { ++calls; });
    });
    device->synchronize(*stream, kLong);
    EXPECT_EQ(threads_max, threads);
    EXPECT_EQ(calls, threads);
  }
}

TEST(HostDevice, AnErrorInAParallelRegionIsTheStreams) {
  const auto device = HostDevice::create({.memory_bytes = 1, .compute_threads = 3});
  const auto stream = device->create_stream(Device::StreamKind::compute, "team");
  host_enqueue(*stream, [] {
    parallel_for(3, 1, [](int64_t begin, int64_t) {
      if (begin > 0) throw Error(ErrorCode::internal, "part " + std::to_string(begin));
    });
  });
  try {
    device->synchronize(*stream, kLong);
    ADD_FAILURE() << "the error was lost";
  } catch (const Error& error) {
    EXPECT_EQ(error.message(), "part 1");
  }
}

TEST(HostDevice, ParallelForCoversEveryIndexOnceInWholeGrains) {
  const auto device = HostDevice::create({.memory_bytes = 1, .compute_threads = 3});
  const auto stream = device->create_stream(Device::StreamKind::compute, "team");
  for (const int64_t count : {0, 1, 7, 8, 9, 100, 1003}) {
    for (const int64_t grain : {1, 8, 5000}) {
      std::vector<int> visits(static_cast<size_t>(count));
      std::atomic<bool> whole = true;
      host_enqueue(*stream, [&] {
        parallel_for(count, grain, [&](int64_t begin, int64_t end) {
          if (begin % grain != 0 || (end % grain != 0 && end != count)) whole = false;
          for (int64_t i = begin; i < end; ++i) ++visits[static_cast<size_t>(i)];
        });
      });
      device->synchronize(*stream, kLong);
      EXPECT_TRUE(whole) << count << " by " << grain;
      EXPECT_EQ(visits, std::vector<int>(static_cast<size_t>(count), 1)) << count << " by " << grain;
    }
  }
}

}  // namespace
}  // namespace strata::gpu
