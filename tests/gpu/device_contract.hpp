// What every implementation of gpu/device.hpp must keep. A device's own test file instantiates the suite with its factory.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <thread>
#include <vector>

#include "gpu/device.hpp"

namespace strata::gpu {

struct DeviceFactory {
  std::string name;
  std::function<std::unique_ptr<Device>()> create;  // with kContractMemoryBytes
  friend void PrintTo(const DeviceFactory& factory, std::ostream* out) { *out << factory.name; }
};
inline constexpr uint64_t kContractMemoryBytes = 64ull << 20;

class DeviceContract : public testing::TestWithParam<DeviceFactory> {
 protected:
  static constexpr std::chrono::milliseconds kLong{60000};

  std::unique_ptr<Stream> copy_stream(const char* name) { return device_->create_stream(Device::StreamKind::copy, name); }
  void upload(Stream& stream, const DeviceBuffer& to, const std::vector<uint32_t>& from) {
    device_->copy(stream, to.data(), from.data(), from.size() * sizeof(from[0]), CopyDirection::host_to_device);
  }
  void download(Stream& stream, std::vector<uint32_t>& to, const DeviceBuffer& from) {
    device_->copy(stream, to.data(), from.data(), to.size() * sizeof(to[0]), CopyDirection::device_to_host);
  }
  static std::vector<uint32_t> pattern(size_t count, uint32_t first) {
    std::vector<uint32_t> values(count);
    std::iota(values.begin(), values.end(), first);
    return values;
  }
  /// Blocks a stream until it is opened. Declared after the streams, because they drain when they are destroyed.
  struct Gate {
    std::shared_ptr<std::atomic<bool>> open = std::make_shared<std::atomic<bool>>(false);
    ~Gate() { *open = true; }
    std::function<void()> blocker() const {
      return [open = open] {
        while (!*open) std::this_thread::sleep_for(std::chrono::microseconds(100));
      };
    }
  };

  std::unique_ptr<Device> device_ = GetParam().create();
};

TEST_P(DeviceContract, CopiesBringBackTheSameBytes) {
  const auto stream = copy_stream("copies");
  const auto sent = pattern(100001, 7);
  std::vector<uint32_t> received(sent.size());
  const auto first = device_->allocate(sent.size() * 4);
  const auto second = device_->allocate(sent.size() * 4);
  upload(*stream, first, sent);
  device_->copy(*stream, second.data(), first.data(), first.bytes(), CopyDirection::device_to_device);
  download(*stream, received, second);
  device_->synchronize(*stream, kLong);
  EXPECT_EQ(received, sent);
}

TEST_P(DeviceContract, FillSetsExactlyTheGivenBytes) {
  const auto stream = copy_stream("fills");
  const auto buffer = device_->allocate(16);
  device_->fill(*stream, buffer.data(), 0x11, 16);
  device_->fill(*stream, buffer.data() + 4, 0xab, 8);
  std::vector<uint32_t> received(4);
  download(*stream, received, buffer);
  device_->synchronize(*stream, kLong);
  EXPECT_EQ(received, (std::vector<uint32_t>{0x11111111u, 0xababababu, 0xababababu, 0x11111111u}));
}

TEST_P(DeviceContract, WorkOfOneStreamRunsInOrder) {
  const auto stream = copy_stream("ordered");
  std::vector<int> order;
  for (int i = 0; i < 500; ++i) device_->call_host(*stream, [&order, i] { order.push_back(i); });
  device_->synchronize(*stream, kLong);
  std::vector<int> expected(500);
  std::iota(expected.begin(), expected.end(), 0);
  EXPECT_EQ(order, expected);
}

TEST_P(DeviceContract, EnqueueingDoesNotWaitForTheWork) {
  const auto stream = copy_stream("blocked");
  Gate gate;
  const auto event = device_->create_event();
  device_->call_host(*stream, gate.blocker());
  device_->record(*stream, *event);
  EXPECT_FALSE(event->ready());
  *gate.open = true;
  device_->synchronize(*event, kLong);
  EXPECT_TRUE(event->ready());
}

TEST_P(DeviceContract, StreamsRunAtTheSameTime) {
  const auto blocked = copy_stream("blocked");
  const auto free = copy_stream("free");
  Gate gate;
  device_->call_host(*blocked, gate.blocker());
  device_->synchronize(*free, kLong);
  device_->call_host(*free, [open = gate.open] { *open = true; });
  device_->synchronize(*blocked, kLong);  // would never end if the second stream waited for the first
}

TEST_P(DeviceContract, AnEventThatWasNeverRecordedIsComplete) {
  const auto stream = copy_stream("waiting");
  const auto event = device_->create_event();
  EXPECT_TRUE(event->ready());
  device_->wait(*stream, *event);
  device_->synchronize(*event, kLong);
  device_->synchronize(*stream, kLong);
}

TEST_P(DeviceContract, WaitOrdersWorkOfTwoStreams) {
  const auto producer = copy_stream("producer");
  const auto consumer = copy_stream("consumer");
  Gate gate;
  const auto produced = device_->create_event();
  std::atomic<int> value = 0;
  int seen = -1;
  device_->call_host(*producer, gate.blocker());
  device_->call_host(*producer, [&] { value = 42; });
  device_->record(*producer, *produced);
  device_->wait(*consumer, *produced);
  device_->call_host(*consumer, [&] { seen = value; });
  *gate.open = true;
  device_->synchronize(*consumer, kLong);
  EXPECT_EQ(seen, 42);
}

TEST_P(DeviceContract, AWaitCoversTheLatestRecordBeforeItAndNoLaterOne) {
  const auto producer = copy_stream("producer");
  const auto consumer = copy_stream("consumer");
  Gate gate;
  const auto event = device_->create_event();
  device_->record(*producer, *event);
  device_->wait(*consumer, *event);
  device_->call_host(*producer, gate.blocker());
  device_->record(*producer, *event);  // moves the event, not the wait
  device_->synchronize(*consumer, kLong);
  EXPECT_FALSE(event->ready());
  *gate.open = true;
  device_->synchronize(*event, kLong);
}

TEST_P(DeviceContract, RecordingAgainMakesAnEventIncomplete) {
  const auto stream = copy_stream("recorder");
  Gate gate;
  const auto event = device_->create_event();
  device_->record(*stream, *event);
  device_->synchronize(*event, kLong);
  const double first = event->completed_at_seconds();
  device_->call_host(*stream, gate.blocker());
  device_->record(*stream, *event);
  EXPECT_FALSE(event->ready());
  *gate.open = true;
  device_->synchronize(*event, kLong);
  EXPECT_GE(event->completed_at_seconds(), first);
}

TEST_P(DeviceContract, EventTimesFollowTheOrderOfTheWork) {
  const auto stream = copy_stream("timed");
  const auto other = copy_stream("other");
  const auto before = device_->create_event();
  const auto after = device_->create_event();
  device_->record(*stream, *before);
  device_->call_host(*stream, [] { std::this_thread::sleep_for(std::chrono::milliseconds(5)); });
  device_->record(*stream, *after);
  device_->wait(*other, *after);
  const auto last = device_->create_event();
  device_->record(*other, *last);
  device_->synchronize(*last, kLong);
  EXPECT_GE(after->completed_at_seconds() - before->completed_at_seconds(), 0.0045);
  EXPECT_GE(last->completed_at_seconds(), after->completed_at_seconds());
}

TEST_P(DeviceContract, AnEventMayBeDestroyedWhileAStreamWaitsForIt) {
  const auto producer = copy_stream("producer");
  const auto consumer = copy_stream("consumer");
  Gate gate;
  auto event = device_->create_event();
  device_->call_host(*producer, gate.blocker());
  device_->record(*producer, *event);
  device_->wait(*consumer, *event);
  event.reset();
  *gate.open = true;
  device_->synchronize(*consumer, kLong);
}

TEST_P(DeviceContract, AStreamsDestructorWaitsForItsWork) {
  std::atomic<bool> done = false;
  auto stream = copy_stream("draining");
  device_->call_host(*stream, [&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    done = true;
  });
  stream.reset();
  EXPECT_TRUE(done);
}

TEST_P(DeviceContract, MemoryIsAlignedAndCountedAndReturned) {
  EXPECT_EQ(device_->info().memory_bytes, kContractMemoryBytes);
  EXPECT_EQ(device_->allocated_bytes(), 0u);
  {
    const auto small = device_->allocate(1);
    const auto large = device_->allocate(kContractMemoryBytes - 1);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(small.data()) % (2u << 20), 0u);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(large.data()) % (2u << 20), 0u);
    EXPECT_EQ(device_->allocated_bytes(), kContractMemoryBytes);
  }
  EXPECT_EQ(device_->allocated_bytes(), 0u);
  EXPECT_EQ(device_->allocate(0).data(), nullptr);
}

TEST_P(DeviceContract, AnAllocationOverTheBudgetIsRefusedWithTheNumbers) {
  const auto taken = device_->allocate(1000);
  try {
    device_->allocate(kContractMemoryBytes - 999);
    ADD_FAILURE() << "the budget was not kept";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::resource_exhausted);
    EXPECT_NE(error.message().find(std::to_string(kContractMemoryBytes)), std::string::npos) << error.what();
    EXPECT_NE(error.message().find("1000 are taken"), std::string::npos) << error.what();
    EXPECT_NE(error.message().find(std::to_string(kContractMemoryBytes - 999)), std::string::npos) << error.what();
  }
  EXPECT_EQ(device_->allocated_bytes(), 1000u);
}

TEST_P(DeviceContract, AFailureIsThrownByWhateverCoversItAndStopsTheStream) {
  const auto stream = copy_stream("failing");
  const auto before = device_->create_event();
  const auto after = device_->create_event();
  bool ran = false;
  device_->record(*stream, *before);
  device_->call_host(*stream, [] { throw Error(ErrorCode::io, "the disk has gone"); });
  device_->call_host(*stream, [&] { ran = true; });
  device_->record(*stream, *after);
  device_->synchronize(*before, kLong);
  EXPECT_THROW(device_->synchronize(*stream, kLong), Error);
  EXPECT_THROW(device_->synchronize(*after, kLong), Error);
  EXPECT_TRUE(before->ready());
  try {
    after->ready();
    ADD_FAILURE() << "the error was lost";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::io);
    EXPECT_EQ(error.message(), "the disk has gone");
  }
  EXPECT_FALSE(ran);
}

TEST_P(DeviceContract, AFailureReachesTheStreamsThatWaitForIt) {
  const auto producer = copy_stream("producer");
  const auto consumer = copy_stream("consumer");
  const auto unrelated = copy_stream("unrelated");
  const auto produced = device_->create_event();
  bool ran = false;
  device_->call_host(*producer, [] { throw std::runtime_error("broken"); });
  device_->record(*producer, *produced);
  device_->wait(*consumer, *produced);
  device_->call_host(*consumer, [&] { ran = true; });
  EXPECT_THROW(device_->synchronize(*consumer, kLong), std::runtime_error);
  device_->synchronize(*unrelated, kLong);
  EXPECT_FALSE(ran);
}

/// Two streams hand one device buffer back and forth; each adds one to what it finds. One missing wait, and the count is short.
TEST_P(DeviceContract, TwoStreamsPassABufferBackAndForth) {
  constexpr int kRounds = 200;
  constexpr size_t kCount = 4096;
  const auto buffer = device_->allocate(kCount * 4);
  struct Side {
    std::unique_ptr<Stream> stream;
    std::unique_ptr<Event> done;
    std::vector<uint32_t> staging = std::vector<uint32_t>(kCount);
  };
  Side sides[2] = {{copy_stream("ping"), device_->create_event()}, {copy_stream("pong"), device_->create_event()}};
  const auto first = pattern(kCount, 0);
  upload(*sides[0].stream, buffer, first);
  device_->synchronize(*sides[0].stream, kLong);
  for (int round = 0; round < kRounds; ++round) {
    Side& mine = sides[round % 2];
    Side& theirs = sides[(round + 1) % 2];
    device_->wait(*mine.stream, *theirs.done);
    download(*mine.stream, mine.staging, buffer);
    device_->call_host(*mine.stream, [&mine] {
      for (auto& value : mine.staging) ++value;
    });
    upload(*mine.stream, buffer, mine.staging);
    device_->record(*mine.stream, *mine.done);
  }
  std::vector<uint32_t> received(kCount);
  device_->wait(*sides[0].stream, *sides[1].done);
  download(*sides[0].stream, received, buffer);
  device_->synchronize(*sides[0].stream, kLong);
  EXPECT_EQ(received, pattern(kCount, kRounds));
}

}  // namespace strata::gpu
