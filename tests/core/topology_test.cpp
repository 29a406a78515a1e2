// The machine's description: what the kernel says, in fake /proc and /sys trees and on this machine.
#include "core/topology.hpp"

#include <gtest/gtest.h>
#include <omp.h>
#include <sched.h>
#include <stdlib.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <numeric>
#include <thread>

#include "core/error.hpp"
#include "tests/support/scratch_directory.hpp"

namespace strata {
namespace {

/// A tree of small files that is removed at the end.
class FakeRoot {
 public:
  void write(const std::string& file, const std::string& text) const {
    const auto path = directory_ / file;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text;
  }
  const std::filesystem::path& path() const { return directory_.path(); }

 private:
  ScratchDirectory directory_;
};

constexpr const char* kMeminfo = "MemTotal:       16000 kB\nMemFree:         1000 kB\nMemAvailable:   12000 kB\n";

TEST(Topology, UsableProcessorsFollowTheAffinityMaskOfTheThread) {
  const auto all = usable_processors();
  ASSERT_FALSE(all.empty());
  std::vector<int> narrowed;
  std::thread([&] {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(all.back(), &set);
    ASSERT_EQ(sched_setaffinity(0, sizeof set, &set), 0);
    narrowed = usable_processors();
  }).join();
  EXPECT_EQ(narrowed, std::vector<int>{all.back()});
  EXPECT_EQ(usable_processors(), all);
  EXPECT_EQ(usable_processor_count(), static_cast<int>(all.size()));
}

TEST(Topology, OpenMpThreadCountsDoNotMatter) {
  const int before = usable_processor_count();
  ASSERT_EQ(setenv("OMP_NUM_THREADS", "1", 1), 0);
  EXPECT_EQ(usable_processor_count(), before);
  ASSERT_EQ(setenv("OMP_NUM_THREADS", "77", 1), 0);
  EXPECT_EQ(usable_processor_count(), before);
  unsetenv("OMP_NUM_THREADS");
}

/// What the test below starts again with threads bound: prints the processors before and after.
TEST(Topology, ProcessorsBeforeAndAfterUndoing) {
  const int before = usable_processor_count();
  const bool undone = undo_openmp_binding();
  const int after = usable_processor_count();
  EXPECT_EQ(undone, after > before);
  std::printf("processors %d %d %d\n", before, undone, after);
}

TEST(Topology, ThreadBindingByOpenMpIsUndone) {
  const int all = usable_processor_count();
  if (all < 2) GTEST_SKIP() << "needs two processors";
  ASSERT_GE(omp_get_num_procs(), 2);  // the run-time is there
  EXPECT_FALSE(undo_openmp_binding());  // nothing is bound here
  const auto child = [](const std::string& environment) {
    const std::string command = environment + " '" + std::filesystem::read_symlink("/proc/self/exe").string() +
                                "' --gtest_filter='*ProcessorsBeforeAndAfterUndoing'";
    std::string output;
    if (FILE* pipe = popen(command.c_str(), "r")) {
      char buffer[4096];
      for (size_t got; (got = std::fread(buffer, 1, sizeof buffer, pipe)) > 0;) output.append(buffer, got);
      pclose(pipe);
    }
    const auto begin = output.find("processors ");
    return begin == std::string::npos ? output : output.substr(begin, output.find('\n', begin) - begin);
  };
  const std::string undone = fmt::format("processors 1 1 {}", all), untouched = fmt::format("processors {0} 0 {0}", all);
  EXPECT_EQ(child("OMP_PROC_BIND=true"), undone);
  EXPECT_EQ(child("OMP_PROC_BIND=close OMP_PLACES=cores OMP_NUM_THREADS=1"), undone);
  EXPECT_EQ(child("env -u OMP_PROC_BIND -u GOMP_CPU_AFFINITY -u OMP_PLACES"), untouched);
}

TEST(Topology, NodesHoldEveryUsableProcessorOnce) {
  for (const auto& nodes : {numa_nodes(), numa_nodes_from_system("/", usable_processors())}) {
    std::vector<int> together;
    for (const auto& node : nodes) {
      EXPECT_FALSE(node.processors.empty()) << "node " << node.id;
      together.insert(together.end(), node.processors.begin(), node.processors.end());
    }
    std::sort(together.begin(), together.end());
    EXPECT_EQ(together, usable_processors());
  }
}

TEST(Topology, HwlocAndSysAgreeOnNodes) {
  const auto nodes = numa_nodes();
  const auto from_system = numa_nodes_from_system("/", usable_processors());
  ASSERT_EQ(nodes.size(), from_system.size());
  for (size_t i = 0; i < nodes.size(); ++i) {
    EXPECT_EQ(nodes[i].id, from_system[i].id);
    EXPECT_EQ(nodes[i].processors, from_system[i].processors);
  }
}

TEST(Topology, NodesComeFromSysCutToTheUsableProcessors) {
  const FakeRoot root;
  root.write("sys/devices/system/node/online", "0-2\n");
  root.write("sys/devices/system/node/node0/cpulist", "0-3\n");
  root.write("sys/devices/system/node/node0/meminfo", "Node 0 MemTotal:       2048 kB\nNode 0 MemFree: 1 kB\n");
  root.write("sys/devices/system/node/node1/cpulist", "4-7\n");
  root.write("sys/devices/system/node/node2/cpulist", "\n");  // memory without processors
  const std::vector<NumaNode> expected = {{0, {1, 2}, 2048 << 10}, {1, {5}, 0}};
  EXPECT_EQ(numa_nodes_from_system(root.path(), {1, 2, 5}), expected);
}

TEST(Topology, WithoutSysThereIsOneNodeWithEverything) {
  const FakeRoot root;
  const std::vector<NumaNode> expected = {{0, {3, 9}, 0}};
  EXPECT_EQ(numa_nodes_from_system(root.path(), {3, 9}), expected);
}

TEST(Topology, AProcessorThatNoNodeClaimsGoesToTheFirst) {
  const FakeRoot root;
  root.write("sys/devices/system/node/online", "0-1\n");
  root.write("sys/devices/system/node/node0/cpulist", "0\n");
  root.write("sys/devices/system/node/node1/cpulist", "1\n");
  const std::vector<NumaNode> expected = {{0, {0, 2}, 0}, {1, {1}, 0}};
  EXPECT_EQ(numa_nodes_from_system(root.path(), {0, 1, 2}), expected);
}

TEST(Topology, MemoryWithoutCgroupsIsWhatMeminfoSays) {
  const FakeRoot root;
  root.write("proc/meminfo", kMeminfo);
  const MemoryInfo info = memory_info(root.path());
  EXPECT_EQ(info.total_bytes, 16000u << 10);
  EXPECT_EQ(info.available_bytes, 12000u << 10);
  EXPECT_FALSE(info.cgroup_limit_bytes);
}

TEST(Topology, MemoryUnderCgroupVersion2TakesTheTightestAncestor) {
  const FakeRoot root;
  root.write("proc/meminfo", kMeminfo);
  root.write("proc/self/cgroup", "0::/slice/run\n");
  root.write("proc/self/mountinfo", "30 20 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw\n");
  root.write("sys/fs/cgroup/slice/run/memory.max", "max\n");
  root.write("sys/fs/cgroup/slice/run/memory.current", "500000\n");
  root.write("sys/fs/cgroup/slice/memory.max", "4096000\n");
  root.write("sys/fs/cgroup/slice/memory.current", "3000000\n");
  root.write("sys/fs/cgroup/slice/memory.stat", "anon 2000000\ninactive_file 1000000\nactive_file 5\n");
  const MemoryInfo info = memory_info(root.path());
  EXPECT_EQ(info.cgroup_limit_bytes, 4096000u);
  EXPECT_EQ(info.total_bytes, 4096000u);
  EXPECT_EQ(info.available_bytes, 4096000u - 1999995u);  // the page cache can be taken back
}

TEST(Topology, MemoryThatIsThrottledIsNotThereToBeTaken) {
  const FakeRoot root;
  root.write("proc/meminfo", kMeminfo);
  root.write("proc/self/cgroup", "0::/slice/run\n");
  root.write("proc/self/mountinfo", "30 20 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw\n");
  root.write("sys/fs/cgroup/slice/run/memory.max", "8192000\n");
  root.write("sys/fs/cgroup/slice/run/memory.high", "4096000\n");
  root.write("sys/fs/cgroup/slice/run/memory.current", "96000\n");
  const MemoryInfo info = memory_info(root.path());
  EXPECT_EQ(info.available_bytes, 4000000u);
  ASSERT_EQ(info.walls.size(), 3u);
  EXPECT_EQ(info.walls[0].name, "physical memory");
  EXPECT_EQ(info.walls[2].name, "memory.high of /sys/fs/cgroup/slice/run");
  EXPECT_EQ(info.walls[2].free_bytes, 4000000u);
}

TEST(Topology, LimitsOfTheProcessOnAddressSpaceAndDataCount) {
  const FakeRoot root;
  root.write("proc/meminfo", kMeminfo);
  root.write("proc/self/limits",
             "Limit                     Soft Limit           Hard Limit           Units     \n"
             "Max data size             6144000              unlimited            bytes     \n"
             "Max stack size            8388608              unlimited            bytes     \n"
             "Max address space         unlimited            unlimited            bytes     \n");
  root.write("proc/self/status", "Name:\tstrata\nVmSize:\t    4000 kB\nVmData:\t    1000 kB\n");
  EXPECT_EQ(memory_info(root.path()).available_bytes, 6144000u - 1024000u);
  root.write("proc/self/limits", "Max address space         8192000              unlimited            bytes     \n");
  const MemoryInfo info = memory_info(root.path());
  EXPECT_EQ(info.available_bytes, 8192000u - 4096000u);
  EXPECT_EQ(info.walls.back().name, "address space (ulimit -v)");
}

TEST(Topology, MemoryUnderCgroupVersion1IgnoresTheNumberThatMeansUnlimited) {
  const FakeRoot root;
  root.write("proc/meminfo", kMeminfo);
  root.write("proc/self/cgroup", "5:cpu,cpuacct:/x\n4:memory:/a/b\n0::/\n");
  root.write("proc/self/mountinfo",
             "31 20 0:27 / /sys/fs/cgroup/cpu rw shared:5 - cgroup cgroup rw,cpu,cpuacct\n"
             "32 20 0:28 / /sys/fs/cgroup/memory rw shared:5 - cgroup cgroup rw,memory\n");
  root.write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  root.write("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "9223372036854771712\n");
  root.write("sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", "8192000\n");
  root.write("sys/fs/cgroup/memory/a/b/memory.usage_in_bytes", "9000000\n");  // over the limit, as happens
  const MemoryInfo info = memory_info(root.path());
  EXPECT_EQ(info.cgroup_limit_bytes, 8192000u);
  EXPECT_EQ(info.available_bytes, 0u);
}

TEST(Topology, AContainerThatSeesOnlyItsSubtreeFindsItsLimit) {
  const FakeRoot root;
  root.write("proc/meminfo", kMeminfo);
  root.write("proc/self/cgroup", "4:memory:/docker/abc\n");
  root.write("proc/self/mountinfo", "32 20 0:28 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n");
  root.write("sys/fs/cgroup/memory/memory.limit_in_bytes", "1024000\n");
  root.write("sys/fs/cgroup/memory/memory.usage_in_bytes", "24000\n");
  EXPECT_EQ(memory_info(root.path()).available_bytes, 1000000u);
}

TEST(Topology, MissingMeminfoIsAnErrorThatNamesTheFile) {
  const FakeRoot root;
  try {
    memory_info(root.path());
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::io);
    EXPECT_NE(std::string(error.what()).find("proc/meminfo"), std::string::npos);
  }
}

TEST(Topology, ProcessorQuotasOfBothVersionsAreRead) {
  const FakeRoot second, first, none;
  second.write("proc/self/cgroup", "0::/job\n");
  second.write("proc/self/mountinfo", "30 20 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
  second.write("sys/fs/cgroup/cpu.max", "max 100000\n");
  second.write("sys/fs/cgroup/job/cpu.max", "250000 100000\n");
  EXPECT_EQ(processor_quota(second.path()), 2.5);
  first.write("proc/self/cgroup", "2:cpu,cpuacct:/job\n");
  first.write("proc/self/mountinfo", "31 20 0:27 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n");
  first.write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n");
  first.write("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
  EXPECT_FALSE(processor_quota(first.path()));
  first.write("sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "150000\n");
  first.write("sys/fs/cgroup/cpu/job/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(processor_quota(first.path()), 1.5);
  EXPECT_FALSE(processor_quota(none.path()));
}

TEST(Topology, ProcessorNameCachesAndInstructionSetsAreRead) {
  const FakeRoot root;
  root.write("proc/cpuinfo", "processor\t: 0\nmodel name\t: Some CPU @ 3: GHz\nflags\t\t: fpu avx2 sse2 avx512_bf16\n\n");
  root.write("sys/devices/system/cpu/cpu0/cache/index0/level", "1\n");
  root.write("sys/devices/system/cpu/cpu0/cache/index0/size", "32K\n");
  root.write("sys/devices/system/cpu/cpu0/cache/index1/level", "2\n");
  root.write("sys/devices/system/cpu/cpu0/cache/index1/size", "1024K\n");
  root.write("sys/devices/system/cpu/cpu0/cache/index2/level", "3\n");
  root.write("sys/devices/system/cpu/cpu0/cache/index2/size", "32M\n");
  const ProcessorInfo info = processor_info(root.path());
  EXPECT_EQ(info.name, "Some CPU @ 3: GHz");
  EXPECT_EQ(info.l2_bytes, 1u << 20);
  EXPECT_EQ(info.l3_bytes, 32u << 20);
  EXPECT_EQ(info.instruction_sets, (std::vector<std::string>{"sse2", "avx2", "avx512_bf16"}));
}

TEST(Topology, ProcessorListsAreParsedAndBrokenOnesDoNoHarm) {
  EXPECT_EQ(parse_processor_list("0-2,8,10-11\n"), (std::vector<int>{0, 1, 2, 8, 10, 11}));
  EXPECT_EQ(parse_processor_list("\n"), std::vector<int>{});
  EXPECT_EQ(parse_processor_list("4,x"), std::vector<int>{4});
  EXPECT_EQ(parse_processor_list("5-1"), std::vector<int>{});
  EXPECT_EQ(parse_processor_list("0-99999999999"), std::vector<int>{});
  EXPECT_EQ(parse_processor_list("-3"), std::vector<int>{});
}

TEST(Topology, ThisMachineDescribesItself) {
  const MemoryInfo memory = memory_info();
  EXPECT_GT(memory.total_bytes, 64u << 20);
  EXPECT_GT(memory.available_bytes, 0u);
  EXPECT_LE(memory.available_bytes, memory.total_bytes);
  EXPECT_FALSE(processor_info().name.empty());
}

}  // namespace
}  // namespace strata
