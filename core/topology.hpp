// What this machine offers the process: processors of its affinity mask, NUMA nodes, memory under its cgroup limits, caches and
// instruction sets.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace strata {

/// Processors (their system numbers, ascending) in the calling thread's affinity mask. No environment variable changes the answer,
/// if undo_openmp_binding was called. Where the system refuses to tell (a container's seccomp profile), what /proc says, else all that
/// are online. Never empty.
std::vector<int> usable_processors();
/// The calling thread's affinity mask itself; nothing when the system refuses to tell.
std::optional<std::vector<int>> affinity_mask();
int usable_processor_count();

/// An OpenMP run-time that is told to bind threads (OMP_PROC_BIND, GOMP_CPU_AFFINITY) binds the main thread to one processor before
/// main(), and every thread started later inherits that. This gives the calling thread back all processors that the run-time found.
/// To be called first in main(). Returns whether there was something to undo; without an OpenMP run-time it does nothing.
bool undo_openmp_binding();

struct NumaNode {
  int id = 0;                   // the system's number
  std::vector<int> processors;  // the usable ones, ascending; at least one
  uint64_t memory_bytes = 0;    // 0 where the system does not say
  bool operator==(const NumaNode&) const = default;
};

/// The NUMA nodes that have a usable processor, ascending by id. A processor that no node claims goes to the first node, so
/// together the nodes hold every usable processor exactly once. Never empty.
std::vector<NumaNode> numa_nodes();

/// A limit on what this process can take, and what is left under it.
struct MemoryWall {
  std::string name;          // "physical memory", "memory.max of /group", "address space (ulimit -v)"
  uint64_t limit_bytes = 0;
  uint64_t used_bytes = 0;   // what the system cannot take back by itself
  uint64_t free_bytes = 0;
};

struct MemoryInfo {
  uint64_t total_bytes = 0;                    // of the machine, or of the tightest cgroup when that is less
  uint64_t available_bytes = 0;                // what can still be taken without swapping, under every limit
  std::optional<uint64_t> cgroup_limit_bytes;  // the tightest limit of the process's cgroup and its ancestors
  std::vector<MemoryWall> walls;               // all of them; physical memory first
};

/// Memory now: physical memory, the cgroups (v1 and v2) from the process's own to the root, and its limits on address space and data.
/// `root` stands before /proc and /sys (for tests). Throws Error{io} when /proc/meminfo cannot be read.
MemoryInfo memory_info(const std::filesystem::path& root = "/");

/// The processors that a cgroup bandwidth quota (v1 or v2) amounts to, e.g. 2.5; absent without a quota.
std::optional<double> processor_quota(const std::filesystem::path& root = "/");

/// The most processes and threads that the process's cgroup and its ancestors allow (pids.max); absent without a limit.
std::optional<uint64_t> process_count_limit(const std::filesystem::path& root = "/");

struct ProcessorInfo {
  std::string name;         // "AMD EPYC", as the system has it
  uint64_t l2_bytes = 0;    // of one instance; 0 where the system does not say
  uint64_t l3_bytes = 0;
  std::vector<std::string> instruction_sets;  // those that matter here, as the kernel spells them: "avx2", "avx512_bf16", "sve"
};

ProcessorInfo processor_info(const std::filesystem::path& root = "/");

/// numa_nodes() from /sys alone, for `processors`: what is used when the build has no hwloc.
std::vector<NumaNode> numa_nodes_from_system(const std::filesystem::path& root, const std::vector<int>& processors);

/// "0-2,8" -> 0 1 2 8; an empty or broken list gives what could be read before the defect.
std::vector<int> parse_processor_list(const std::string& text);

}  // namespace strata
