#include "core/topology.hpp"

#include <dlfcn.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <fstream>
#include <numeric>
#include <set>
#include <sstream>
#include <variant>

#include "core/error.hpp"

#if STRATA_HAVE_HWLOC
#include <hwloc.h>
#endif

namespace strata {
namespace {

std::optional<std::string> first_line(const std::filesystem::path& file) {
  std::ifstream in(file);
  std::string line;
  if (!std::getline(in, line)) return std::nullopt;
  return line;
}

std::optional<uint64_t> parse_number(std::string_view text) {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end == text.data()) return std::nullopt;
  return value;
}

std::optional<uint64_t> number_in(const std::filesystem::path& file) {
  const auto line = first_line(file);
  return line ? parse_number(*line) : std::nullopt;
}

/// "32768K" or "1024" (sysfs cache sizes) in bytes.
uint64_t parse_cache_size(const std::string& text) {
  const uint64_t value = parse_number(text).value_or(0);
  if (text.find('K') != std::string::npos) return value << 10;
  if (text.find('M') != std::string::npos) return value << 20;
  return value;
}

/// The number after `key` in a file of "key: value" or "key value" lines.
std::optional<uint64_t> number_after(const std::filesystem::path& file, const std::string& key) {
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    std::istringstream words(line);
    std::string word;
    uint64_t value = 0;
    if (words >> word >> value && (word == key || word == key + ":")) return value;
  }
  return std::nullopt;
}

std::vector<NumaNode> complete_nodes(std::vector<NumaNode> nodes, const std::vector<int>& processors) {
  std::set<int> unclaimed(processors.begin(), processors.end());
  for (auto& node : nodes)
    std::erase_if(node.processors, [&](int processor) { return unclaimed.erase(processor) == 0; });
  std::erase_if(nodes, [](const NumaNode& node) { return node.processors.empty(); });
  std::sort(nodes.begin(), nodes.end(), [](const NumaNode& a, const NumaNode& b) { return a.id < b.id; });
  if (nodes.empty()) nodes.push_back({});
  nodes.front().processors.insert(nodes.front().processors.end(), unclaimed.begin(), unclaimed.end());
  for (auto& node : nodes) std::sort(node.processors.begin(), node.processors.end());
  return nodes;
}

/// The directories of the process's cgroup for `controller`, from its own to the top of the mount; empty where there is none.
std::vector<std::filesystem::path> cgroup_directories(const std::filesystem::path& root, const std::string& controller,
                                                      bool version2) {
  const auto lists = [&](const std::string& names) {
    std::istringstream in(names);
    for (std::string name; std::getline(in, name, ',');)
      if (name == controller) return true;
    return false;
  };
  std::string group;  // of this process, as the cgroup namespace shows it
  {
    std::ifstream in(root / "proc/self/cgroup");
    for (std::string line; std::getline(in, line);) {  // "4:memory:/a/b", "0::/a/b"
      const auto first = line.find(':');
      const auto second = line.find(':', first + 1);
      if (first == std::string::npos || second == std::string::npos) continue;
      const std::string controllers = line.substr(first + 1, second - first - 1);
      if (version2 ? line.compare(0, 3, "0::") == 0 : lists(controllers)) group = line.substr(second + 1);
    }
  }
  if (group.empty()) return {};

  std::ifstream in(root / "proc/self/mountinfo");
  for (std::string line; std::getline(in, line);) {
    // "36 35 98:0 /group /mount/point rw,noatime shared:1 - cgroup cgroup rw,memory"
    const auto separator = line.find(" - ");
    if (separator == std::string::npos) continue;
    std::istringstream left(line), right(line.substr(separator + 3));
    std::string id, parent, device, mount_root, mount_point, type, source, options;
    left >> id >> parent >> device >> mount_root >> mount_point;
    right >> type >> source >> options;
    if (version2 ? type != "cgroup2" : type != "cgroup" || !lists(options)) continue;
    std::string inside = group;  // relative to the mount, which may show only a subtree
    if (mount_root != "/" && inside.compare(0, mount_root.size(), mount_root) == 0) inside.erase(0, mount_root.size());
    const std::filesystem::path top = root / std::filesystem::path(mount_point).relative_path();
    std::filesystem::path directory = (top / std::filesystem::path(inside).relative_path()).lexically_normal();
    std::error_code ignored;
    if (inside.find("..") != std::string::npos || !std::filesystem::is_directory(directory, ignored)) directory = top;
    if (!directory.has_filename()) directory = directory.parent_path();
    const std::filesystem::path stop = top.lexically_normal();
    std::vector<std::filesystem::path> directories{directory};
    while (directory != stop && directories.size() < 64) directories.push_back(directory = directory.parent_path());
    return directories;
  }
  return {};
}

/// The walls of the process's cgroup and its ancestors, of both versions.
std::vector<MemoryWall> cgroup_walls(const std::filesystem::path& root) {
  std::vector<MemoryWall> walls;
  const auto add = [&](const std::filesystem::path& directory, const char* limit_file, const char* used_file,
                       std::initializer_list<const char*> reclaimable_keys) {
    const auto limit = number_in(directory / limit_file);
    // Version 1 writes "no limit" as the largest multiple of a page below 2^63.
    if (!limit || *limit >= (uint64_t{1} << 62)) return;
    uint64_t reclaimable = 0;  // the page cache counts as used, but gives way
    for (const char* key : reclaimable_keys) reclaimable += number_after(directory / "memory.stat", key).value_or(0);
    const uint64_t used = number_in(directory / used_file).value_or(0);
    const uint64_t taken = used - std::min(used, reclaimable);
    const std::string group = "/" + directory.lexically_relative(root).string();
    walls.push_back({fmt::format("{} of {}", limit_file, group), *limit, taken, *limit - std::min(*limit, taken)});
  };
  for (const auto& directory : cgroup_directories(root, "memory", true))
    // memory.high throttles to a crawl before memory.max kills: both are walls.
    for (const char* limit : {"memory.max", "memory.high"}) add(directory, limit, "memory.current", {"inactive_file", "active_file"});
  for (const auto& directory : cgroup_directories(root, "memory", false))
    add(directory, "memory.limit_in_bytes", "memory.usage_in_bytes", {"total_inactive_file", "total_active_file"});
  return walls;
}

/// The soft limits of the process that bound its memory (`ulimit -v`, `ulimit -d`).
std::vector<MemoryWall> process_walls(const std::filesystem::path& root) {
  std::vector<MemoryWall> walls;
  std::ifstream in(root / "proc/self/limits");
  for (std::string line; std::getline(in, line);) {  // "Max address space  unlimited  unlimited  bytes"
    const auto add = [&](const char* key, const char* name, const char* used_key) {
      if (line.compare(0, std::char_traits<char>::length(key), key) != 0) return;
      std::istringstream words(line.substr(std::char_traits<char>::length(key)));
      std::string soft;
      words >> soft;
      const auto limit = parse_number(soft);
      if (!limit) return;  // "unlimited"
      const uint64_t used = number_after(root / "proc/self/status", used_key).value_or(0) << 10;
      walls.push_back({name, *limit, used, *limit - std::min(*limit, used)});
    };
    add("Max address space", "address space (ulimit -v)", "VmSize");
    add("Max data size", "data (ulimit -d)", "VmData");
  }
  return walls;
}

#if STRATA_HAVE_HWLOC
std::vector<int> to_processors(hwloc_const_bitmap_t set) {
  std::vector<int> processors;
  if (!set) return processors;
  for (int i = hwloc_bitmap_first(set); i >= 0; i = hwloc_bitmap_next(set, i)) processors.push_back(i);
  return processors;
}

/// hwloc's nodes; empty when hwloc could not look at the machine.
std::vector<NumaNode> numa_nodes_from_hwloc() {
  hwloc_topology_t topology = nullptr;
  if (hwloc_topology_init(&topology) != 0) return {};
  std::vector<NumaNode> nodes;
  if (hwloc_topology_load(topology) == 0) {
    hwloc_obj_t node = nullptr;
    while ((node = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_NUMANODE, node)) != nullptr)
      nodes.push_back({static_cast<int>(node->os_index), to_processors(node->cpuset), node->attr->numanode.local_memory});
  }
  hwloc_topology_destroy(topology);
  return nodes;
}
#endif

}  // namespace

namespace {

/// The mask, or the error number of the refusal.
std::variant<std::vector<int>, int> read_affinity_mask() {
  // The kernel refuses a mask smaller than its own; machines beyond CPU_SETSIZE exist.
  for (int size = CPU_SETSIZE; size <= (1 << 20); size *= 2) {
    cpu_set_t* set = CPU_ALLOC(size);
    const size_t bytes = CPU_ALLOC_SIZE(size);
    std::vector<int> processors;
    CPU_ZERO_S(bytes, set);
    const bool ok = sched_getaffinity(0, bytes, set) == 0;
    const int error_number = errno;
    for (int i = 0; ok && i < size; ++i)
      if (CPU_ISSET_S(i, bytes, set)) processors.push_back(i);
    CPU_FREE(set);
    if (ok) return processors;
    if (error_number != EINVAL) return error_number;
  }
  return EINVAL;
}

}  // namespace

std::optional<std::vector<int>> affinity_mask() {
  auto mask = read_affinity_mask();
  if (auto* const processors = std::get_if<std::vector<int>>(&mask); processors && !processors->empty()) return std::move(*processors);
  return std::nullopt;
}

std::vector<int> usable_processors() {
  if (auto mask = affinity_mask()) return std::move(*mask);
  // A container profile refuses the call: the kernel shows the same mask in a file, and the count of processors is better than nothing.
  std::ifstream status("/proc/self/status");
  const std::string key = "Cpus_allowed_list:";
  for (std::string line; std::getline(status, line);) {
    if (!line.starts_with(key)) continue;
    const size_t begin = line.find_first_not_of(" \t", key.size());
    auto processors = parse_processor_list(begin == std::string::npos ? "" : line.substr(begin));
    if (!processors.empty()) return processors;
  }
  std::vector<int> processors(static_cast<size_t>(std::max(1l, sysconf(_SC_NPROCESSORS_ONLN))));
  std::iota(processors.begin(), processors.end(), 0);
  return processors;
}

bool undo_openmp_binding() {
  // Looked up rather than linked: this library has no use for OpenMP of its own.
  const auto places = reinterpret_cast<int (*)()>(dlsym(RTLD_DEFAULT, "omp_get_num_places"));
  const auto size_of = reinterpret_cast<int (*)(int)>(dlsym(RTLD_DEFAULT, "omp_get_place_num_procs"));
  const auto list_of = reinterpret_cast<void (*)(int, int*)>(dlsym(RTLD_DEFAULT, "omp_get_place_proc_ids"));
  if (!places || !size_of || !list_of) return false;
  const auto now = usable_processors();
  std::set<int> all(now.begin(), now.end());
  for (int place = 0; place < places(); ++place) {
    std::vector<int> processors(static_cast<size_t>(std::max(0, size_of(place))));
    if (!processors.empty()) list_of(place, processors.data());
    all.insert(processors.begin(), processors.end());
  }
  if (all.size() == now.size() || all.empty()) return false;
  const int size = *all.rbegin() + 1;
  cpu_set_t* const set = CPU_ALLOC(size);
  const size_t bytes = CPU_ALLOC_SIZE(size);
  CPU_ZERO_S(bytes, set);
  for (const int processor : all) CPU_SET_S(processor, bytes, set);
  const bool done = sched_setaffinity(0, bytes, set) == 0;
  CPU_FREE(set);
  return done;
}

int usable_processor_count() { return static_cast<int>(usable_processors().size()); }

std::vector<NumaNode> numa_nodes() {
  const auto processors = usable_processors();
#if STRATA_HAVE_HWLOC
  // Where the system refuses to tell the mask, hwloc 2.9 asks for ever.
  const bool may_ask = affinity_mask().has_value();
  if (auto nodes = may_ask ? numa_nodes_from_hwloc() : std::vector<NumaNode>{}; !nodes.empty()) return complete_nodes(std::move(nodes), processors);
#endif
  return numa_nodes_from_system("/", processors);
}

std::vector<NumaNode> numa_nodes_from_system(const std::filesystem::path& root, const std::vector<int>& processors) {
  std::vector<NumaNode> nodes;
  const auto directory = root / "sys/devices/system/node";
  for (const int id : parse_processor_list(first_line(directory / "online").value_or(""))) {
    const auto node = directory / ("node" + std::to_string(id));
    NumaNode found{id, parse_processor_list(first_line(node / "cpulist").value_or("")), 0};
    std::ifstream in(node / "meminfo");
    for (std::string line; std::getline(in, line);) {  // "Node 0 MemTotal:  24607232 kB"
      if (const auto at = line.find("MemTotal:"); at != std::string::npos) {
        std::istringstream value(line.substr(at + 9));
        uint64_t kib = 0;
        if (value >> kib) found.memory_bytes = kib << 10;
      }
    }
    nodes.push_back(std::move(found));
  }
  return complete_nodes(std::move(nodes), processors);
}

MemoryInfo memory_info(const std::filesystem::path& root) {
  const auto file = root / "proc/meminfo";
  const auto total = number_after(file, "MemTotal");
  const auto available = number_after(file, "MemAvailable");
  if (!total)
    throw Error(ErrorCode::io, "cannot learn how much memory there is", file.string(),
                "make /proc visible to this process");
  const uint64_t total_bytes = *total << 10, available_bytes = std::min(available.value_or(*total) << 10, total_bytes);
  MemoryInfo info;
  info.total_bytes = total_bytes;
  info.walls.push_back({"physical memory", total_bytes, total_bytes - available_bytes, available_bytes});
  for (MemoryWall& wall : cgroup_walls(root)) {
    info.cgroup_limit_bytes = std::min(info.cgroup_limit_bytes.value_or(UINT64_MAX), wall.limit_bytes);
    info.walls.push_back(std::move(wall));
  }
  info.total_bytes = std::min(total_bytes, info.cgroup_limit_bytes.value_or(UINT64_MAX));
  for (MemoryWall& wall : process_walls(root)) info.walls.push_back(std::move(wall));
  info.available_bytes = info.total_bytes;
  for (const MemoryWall& wall : info.walls) info.available_bytes = std::min(info.available_bytes, wall.free_bytes);
  return info;
}

std::optional<double> processor_quota(const std::filesystem::path& root) {
  std::optional<double> quota;
  const auto account = [&](double time, double period) {
    if (time > 0 && period > 0) quota = std::min(quota.value_or(time / period), time / period);
  };
  for (const auto& directory : cgroup_directories(root, "cpu", true)) {
    std::istringstream words(first_line(directory / "cpu.max").value_or(""));  // "max 100000" or "250000 100000"
    double time = 0, period = 0;
    if (words >> time >> period) account(time, period);
  }
  for (const auto& directory : cgroup_directories(root, "cpu", false))  // -1 (no quota) is not a number here
    account(static_cast<double>(number_in(directory / "cpu.cfs_quota_us").value_or(0)),
            static_cast<double>(number_in(directory / "cpu.cfs_period_us").value_or(0)));
  return quota;
}

std::optional<uint64_t> process_count_limit(const std::filesystem::path& root) {
  std::optional<uint64_t> limit;
  for (const bool version2 : {true, false})
    for (const auto& directory : cgroup_directories(root, "pids", version2))
      if (const auto here = number_in(directory / "pids.max")) limit = std::min(limit.value_or(*here), *here);  // "max" is no number
  return limit;
}

ProcessorInfo processor_info(const std::filesystem::path& root) {
  ProcessorInfo info;
  std::set<std::string> flags;
  std::ifstream in(root / "proc/cpuinfo");
  for (std::string line; std::getline(in, line) && (info.name.empty() || flags.empty());) {
    const auto colon = line.find(':');
    if (colon == std::string::npos) continue;
    const std::string key = line.substr(0, line.find_last_not_of(" \t:", colon) + 1);
    std::istringstream words(line.substr(colon + 1));
    if (key == "model name" && info.name.empty()) std::getline(words >> std::ws, info.name);
    if (key == "flags" || key == "Features")  // x86 / ARM
      for (std::string word; words >> word;) flags.insert(word);
  }
  if (info.name.empty()) info.name = "unknown processor";
  for (const char* name : {"sse2", "ssse3", "sse4_1", "avx", "f16c", "fma", "avx2", "avx512f", "avx512bw", "avx512dq",
                           "avx512vl", "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_tile", "amx_bf16", "asimd",
                           "asimdhp", "bf16", "sve", "sve2", "svebf16"})
    if (flags.count(name)) info.instruction_sets.push_back(name);
  for (int index = 0; index < 16; ++index) {
    const auto cache = root / "sys/devices/system/cpu/cpu0/cache" / ("index" + std::to_string(index));
    const auto level = number_in(cache / "level");
    if (!level) break;
    const uint64_t bytes = parse_cache_size(first_line(cache / "size").value_or(""));
    if (*level == 2) info.l2_bytes = bytes;
    if (*level == 3) info.l3_bytes = bytes;
  }
  return info;
}

std::vector<int> parse_processor_list(const std::string& text) {
  std::vector<int> list;
  const char* at = text.data();
  const char* const end = at + text.size();
  while (at < end) {
    int first = 0;
    auto parsed = std::from_chars(at, end, first);
    if (parsed.ec != std::errc() || first < 0) break;
    int last = first;
    if (parsed.ptr < end && *parsed.ptr == '-') {
      parsed = std::from_chars(parsed.ptr + 1, end, last);
      if (parsed.ec != std::errc() || last < first || last - first > (1 << 20)) break;
    }
    for (int i = first; i <= last; ++i) list.push_back(i);
    if (parsed.ptr == end || *parsed.ptr != ',') break;
    at = parsed.ptr + 1;
  }
  return list;
}

}  // namespace strata
