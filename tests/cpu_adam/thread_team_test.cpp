// The team's threads: every element once, whatever the threads, nodes and callers; pinning; exceptions.
#include "cpu_adam/thread_team.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <numeric>
#include <set>
#include <stdexcept>
#include <thread>

namespace strata::cpu_adam {
namespace {

std::vector<NumaNode> one_node() { return {{0, usable_processors(), 0}}; }
/// Two nodes in name: both have this machine's processors.
std::vector<NumaNode> two_nodes() { return {{0, usable_processors(), 0}, {1, usable_processors(), 0}}; }

void expect_every_element_once(ThreadTeam& team, uint64_t elements) {
  std::vector<std::atomic<uint8_t>> touched(elements);
  std::atomic<uint64_t> chunks{0};
  team.for_chunks(elements, [&](uint64_t first, uint64_t count) {
    EXPECT_EQ(first % 64, 0u);
    EXPECT_TRUE(count % 64 == 0 || first + count == elements);
    EXPECT_GT(count, 0u);
    ++chunks;
    for (uint64_t i = first; i < first + count; ++i) ++touched[i];
  });
  for (uint64_t i = 0; i < elements; ++i) ASSERT_EQ(touched[i], 1) << "element " << i << " of " << elements;
  EXPECT_EQ(chunks == 0, elements == 0);
}

TEST(ThreadTeam, EveryElementIsVisitedOnceInChunksOf64) {
  for (const auto& nodes : {one_node(), two_nodes()})
    for (const int threads : {1, 2, 3, 5}) {
      ThreadTeam team(nodes, threads, Pinning::node);
      EXPECT_EQ(team.threads(), threads);
      for (const uint64_t elements : {0, 1, 63, 64, 65, 4095, 4096, 4097, 20000, 100001, 1000000})
        expect_every_element_once(team, elements);
    }
}

TEST(ThreadTeam, PlainWritesOfTheChunksAreVisibleToTheCallerAndTheOtherWayRound) {
  ThreadTeam team(one_node(), 3, Pinning::node);
  std::vector<uint64_t> values(200000);
  for (uint64_t round = 1; round <= 20; ++round) {
    for (uint64_t i = 0; i < values.size(); i += 1000) values[i] += 1;
    team.for_chunks(values.size(), [&](uint64_t first, uint64_t count) {
      for (uint64_t i = first; i < first + count; ++i) values[i] += i;
    });
  }
  for (uint64_t i = 0; i < values.size(); ++i) ASSERT_EQ(values[i], 20 * i + (i % 1000 == 0 ? 20 : 0));
}

TEST(ThreadTeam, ChunksThatWaitForEachOtherShowThatTheThreadsAreReal) {
  // More threads than processors were asked for, and all of them must be there.
  const int threads = usable_processor_count() + 1;
  ThreadTeam team(one_node(), threads, Pinning::node);
  std::mutex mutex;
  std::set<std::thread::id> ids;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  team.for_chunks(uint64_t{4096} * 16 * threads, [&](uint64_t, uint64_t) {
    const auto count = [&] {
      const std::lock_guard lock(mutex);
      ids.insert(std::this_thread::get_id());
      return static_cast<int>(ids.size());
    };
    while (count() < threads && std::chrono::steady_clock::now() < deadline)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
  });
  EXPECT_EQ(static_cast<int>(ids.size()), threads);
}

TEST(ThreadTeam, AnExceptionOfAChunkReachesTheCallerAndTheTeamStaysUsable) {
  for (const auto& nodes : {one_node(), two_nodes()}) {
    ThreadTeam team(nodes, 2, Pinning::node);
    for (int round = 0; round < 20; ++round) {
      EXPECT_THROW(team.for_chunks(1000000,
                                     [](uint64_t first, uint64_t) {
                                       if (first > 300000) throw std::runtime_error("chunk");
                                     }),
                   std::runtime_error);
      expect_every_element_once(team, 10000);
    }
  }
}

TEST(ThreadTeam, TwoCallersAtATimeDoNotMixTheirElements) {
  ThreadTeam team(one_node(), 2, Pinning::node);
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 2; ++caller)
    callers.emplace_back([&] {
      for (int round = 0; round < 5; ++round) expect_every_element_once(team, 300001);
    });
  for (auto& caller : callers) caller.join();
}

TEST(ThreadTeam, PinnedThreadsKeepToTheirProcessorsAndTheCallerGetsItsMaskBack) {
  const auto before = usable_processors();
  ThreadTeam team(one_node(), static_cast<int>(before.size()), Pinning::processor);
  std::mutex mutex;
  std::set<std::vector<int>> masks;
  team.for_chunks(1000000, [&](uint64_t, uint64_t) {
    const std::lock_guard lock(mutex);
    masks.insert(usable_processors());
  });
  EXPECT_EQ(usable_processors(), before);
  ASSERT_FALSE(masks.empty());
  for (const auto& mask : masks) {
    ASSERT_EQ(mask.size(), 1u);
    EXPECT_NE(std::find(before.begin(), before.end(), mask[0]), before.end());
  }
}

TEST(ThreadTeam, ANodesThreadsStayOnItsProcessors) {
  const auto all = usable_processors();
  if (all.size() < 2) GTEST_SKIP() << "needs two processors";
  const NumaNode first{0, {all[0]}, 0}, second{1, {all[1]}, 0};
  ThreadTeam team({first, second}, 2, Pinning::node);
  EXPECT_EQ(team.threads_per_node(), (std::vector<int>{1, 1}));
  std::mutex mutex;
  std::set<std::vector<int>> masks;
  for (int round = 0; round < 20; ++round) {
    team.for_chunks(1 << 20, [&](uint64_t, uint64_t) {
      const auto mask = usable_processors();
      const std::lock_guard lock(mutex);
      masks.insert(mask);
    });
  }
  EXPECT_TRUE(masks.count({all[0]}));  // the caller's
  masks.erase({all[0]});
  masks.erase({all[1]});
  EXPECT_TRUE(masks.empty()) << "a thread that was bound to neither node";
  EXPECT_EQ(usable_processors(), all);
}

TEST(ThreadTeam, ThreadsAreSharedOutInProportion) {
  EXPECT_EQ(share_out(8, {4, 4}), (std::vector<int>{4, 4}));
  EXPECT_EQ(share_out(3, {4, 4}), (std::vector<int>{2, 1}));
  EXPECT_EQ(share_out(1, {1, 8}), (std::vector<int>{0, 1}));
  EXPECT_EQ(share_out(10, {1, 2, 4}), (std::vector<int>{1, 3, 6}));
  EXPECT_EQ(share_out(0, {5}), (std::vector<int>{0}));
  for (int threads = 0; threads < 50; ++threads) {
    const auto shares = share_out(threads, {3, 5, 7, 11});
    EXPECT_EQ(std::accumulate(shares.begin(), shares.end(), 0), threads);
  }
}

}  // namespace
}  // namespace strata::cpu_adam
