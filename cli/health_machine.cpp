// Processor, memory, I/O interfaces and GPUs, each tried out where that is possible rather than looked up.
#include <dlfcn.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <optional>
#include <system_error>
#include <thread>

#include <fmt/ranges.h>

#include "cli/health.hpp"
#include "core/config.hpp"
#include "core/error.hpp"
#include "core/topology.hpp"
#include "cpu_adam/adam.hpp"
#include "scheduler/run_plan.hpp"
#include "tiers/file.hpp"
#include "tiers/memory.hpp"
#include "tiers/transfer.hpp"

namespace strata::cli {

namespace {

namespace fs = std::filesystem;

constexpr uint64_t kProbeBytes = 64ull << 20;
constexpr const char* kLockRemedy = "ulimit -l unlimited, memlock in /etc/security/limits.conf, or docker run --ulimit memlock=-1";

std::string first_line(const fs::path& file) {
  std::ifstream in(file);
  std::string line;
  std::getline(in, line);
  return line;
}

bool has_set(const std::vector<std::string>& sets, const char* name) {
  return std::find(sets.begin(), sets.end(), name) != sets.end();
}

/// "0-3,8": runs of neighbours joined.
std::string processor_list(const std::vector<int>& processors) {
  std::string text;
  for (size_t i = 0; i < processors.size();) {
    size_t end = i + 1;
    while (end < processors.size() && processors[end] == processors[end - 1] + 1) ++end;
    text += fmt::format("{}{}", text.empty() ? "" : ",", processors[i]);
    if (end - i > 1) text += fmt::format("-{}", processors[end - 1]);
    i = end;
  }
  return text;
}

void add_system(std::vector<Check>& checks) {
  utsname name{};
  uname(&name);
  checks.push_back({"system", Health::ok, fmt::format("{} {}, {}", name.sysname, name.release, name.machine)});
}

void add_processor(std::vector<Check>& checks) {
  const ProcessorInfo info = processor_info();
  const auto cache = [](uint64_t bytes) { return bytes == 0 ? std::string("unknown") : format_bytes(bytes); };
  checks.push_back({"processor", Health::ok,
                    fmt::format("{}, L2 {}, L3 {}", info.name, cache(info.l2_bytes), cache(info.l3_bytes))});

  const std::string target = AdamUpdater::instruction_set();
  const bool narrow = target == "SCALAR" || target == "EMU128" || target == "SSE2" || target == "SSSE3" || target == "SSE4";
  checks.push_back({"vector code", narrow ? Health::note : Health::ok,
                    fmt::format("the CPU update and the kernels use {}; the processor has {}", target,
                                info.instruction_sets.empty() ? "no set that matters here"
                                                              : fmt::format("{}", fmt::join(info.instruction_sets, " "))),
                    narrow ? "a processor, or a virtual machine that passes on its instruction sets, with AVX2 or better" : ""});

  const bool bf16 = has_set(info.instruction_sets, "avx512_bf16") || has_set(info.instruction_sets, "amx_bf16");
  checks.push_back({"bf16 products", bf16 ? Health::ok : Health::note,
                    bf16 ? "the host device multiplies bf16 itself"
                         : "the processor does not multiply bf16: the host device converts to fp32, same range, less speed"});
}

void add_processors(std::vector<Check>& checks) {
  const std::vector<int> usable = usable_processors();
  const auto online = static_cast<size_t>(std::max(1L, sysconf(_SC_NPROCESSORS_ONLN)));
  Check check{"processors", Health::ok, fmt::format("{} of {} in the affinity mask ({})", usable.size(), online, processor_list(usable))};
  if (usable.size() < online) {
    check.health = Health::note;
    check.remedy = "taskset, the batch system or the container's cpuset decide which";
  }
  if (const auto quota = processor_quota(); quota && *quota < static_cast<double>(usable.size())) {
    check.health = Health::note;
    check.finding += fmt::format(", but a cgroup allows the time of {:.1f}: threads will be stopped in between", *quota);
    check.remedy = "raise the quota (docker run --cpus), or set device.threads and schedule.update_threads to it";
  }
  checks.push_back(std::move(check));

  std::string text;
  const std::vector<NumaNode> nodes = numa_nodes();
  for (const NumaNode& node : nodes)
    text += fmt::format("{}node {}: processors {}{}", text.empty() ? "" : "; ", node.id, processor_list(node.processors),
                        node.memory_bytes > 0 ? ", " + format_bytes(node.memory_bytes) : "");
  checks.push_back({"NUMA", Health::ok, fmt::format("{} {}: {}", nodes.size(), nodes.size() == 1 ? "node" : "nodes", text)});

  std::string set;
  for (const char* name : {"OMP_NUM_THREADS", "OMP_THREAD_LIMIT", "MKL_NUM_THREADS"})
    if (const char* value = std::getenv(name)) set += fmt::format("{}{}={}", set.empty() ? "" : ", ", name, value);
  if (!set.empty())
    checks.push_back({"thread variables", Health::note,
                      set + ": without effect, thread counts come from the affinity mask and the configuration"});
}

void add_memory(std::vector<Check>& checks) {
  try {
    const MemoryInfo memory = memory_info();
    std::string text = fmt::format("{} in all, {} available", format_bytes(memory.total_bytes), format_bytes(memory.available_bytes));
    if (memory.cgroup_limit_bytes) text += fmt::format(", limited by a cgroup to {}", format_bytes(*memory.cgroup_limit_bytes));
    checks.push_back({"memory", Health::ok, text});
  } catch (const Error& error) {
    checks.push_back({"memory", Health::note, error.message(), error.remedy()});
  }
}

/// Whether the limit on locked memory does not bind this process (CAP_IPC_LOCK).
bool may_lock_all() {
  std::ifstream in("/proc/self/status");
  for (std::string line; std::getline(in, line);)
    if (line.starts_with("CapEff:")) return (std::strtoull(line.c_str() + 7, nullptr, 16) >> 14 & 1) != 0;
  return false;
}

void add_pages(std::vector<Check>& checks) {
  const std::string mode = first_line("/sys/kernel/mm/transparent_hugepage/enabled");
  const std::string shown = mode.empty() ? "the kernel has no transparent huge pages" : "transparent huge pages: " + mode;
  Check pages{"huge pages", Health::ok, shown}, locked{"locked memory", Health::ok, ""};
  struct rlimit limit {};
  getrlimit(RLIMIT_MEMLOCK, &limit);
  const bool unlimited = limit.rlim_cur == RLIM_INFINITY || may_lock_all();
  locked.finding = unlimited ? "no limit" : fmt::format("at most {} may be locked (pinned)", format_bytes(limit.rlim_cur));
  if (!unlimited) {
    locked.health = Health::note;
    locked.remedy = kLockRemedy;
  }
  try {
    tiers::SlabOptions options;
    options.lock = tiers::Wish::attempt;
    const tiers::MemorySlab slab(kProbeBytes, nullptr, options);
    if (slab.huge_page_bytes() < kProbeBytes) {
      pages.health = Health::note;
      pages.finding += fmt::format("; {} of {} came on huge pages", format_bytes(slab.huge_page_bytes()), format_bytes(kProbeBytes));
      pages.remedy = mode.find("[never]") != std::string::npos || mode.empty()
                         ? "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled"
                         : "free memory, or let the kernel gather it: echo 1 > /proc/sys/vm/compact_memory";
    } else {
      pages.finding += fmt::format("; all of {} came on huge pages", format_bytes(kProbeBytes));
    }
    locked.finding += fmt::format("; {} {}", format_bytes(kProbeBytes), slab.locked() ? "could be locked" : "could not be locked");
    if (!slab.locked()) {
      locked.health = Health::note;
      locked.remedy = kLockRemedy;
    }
  } catch (const Error& error) {
    pages.health = locked.health = Health::note;
    pages.finding += "; not tried: " + error.message();
    locked.finding += "; not tried: " + error.message();
  }
  checks.push_back(std::move(pages));
  checks.push_back(std::move(locked));
}

std::string uring_remedy(const std::string& reason) {
  const std::string disabled = first_line("/proc/sys/kernel/io_uring_disabled");
  if (disabled == "1" || disabled == "2") return "sysctl kernel.io_uring_disabled=0";
  if (reason.find("build") != std::string::npos) return "install liburing's development files and build again with STRATA_IO_URING=ON";
  if (reason.find("memory") != std::string::npos) return kLockRemedy;
  return "Linux 5.11 or later; in a container allow it: docker run --security-opt seccomp=PROFILE, or seccomp=unconfined";
}

/// Moves a block through io_uring, into a file in memory.
void add_io_uring(std::vector<Check>& checks) {
  const auto buffer = std::make_shared<tiers::AlignedBuffer>(tiers::kBlockBytes);
  const tiers::FileDescriptor file(memfd_create("strata doctor", MFD_CLOEXEC));
  std::string reason, description;
  try {
    if (!file || ftruncate(file.get(), tiers::kBlockBytes) != 0)
      throw Error(ErrorCode::io, "no file in memory could be made: " + system_reason(errno));
    tiers::TransferOptions options;
    options.engine = tiers::IoEngineKind::io_uring;
    options.regions = {{buffer->data(), buffer->bytes()}};
    options.queue_depth = 4;
    options.request_deadline = options.shutdown_grace = std::chrono::seconds(10);
    tiers::TransferChannel channel({{file.get(), "(memory)", 1}}, options);
    tiers::Transfer transfer;
    transfer.operation = tiers::IoOperation::write;
    transfer.length_bytes = buffer->bytes();
    transfer.buffer = buffer->data();
    transfer.label = "probe";
    channel.run(std::move(transfer), buffer);
    checks.push_back({"io_uring", Health::ok, channel.engine_description()});
  } catch (const Error& error) {
    checks.push_back({"io_uring", Health::note, error.message() + "; threads do the same work, at a higher cost per request",
                      uring_remedy(error.message())});
  }
}

/// What the kernel driver and the file system say of NVIDIA devices.
std::optional<std::string> nvidia_devices() {
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator("/proc/driver/nvidia/gpus", error)) {
    std::ifstream in(entry.path() / "information");
    for (std::string line; std::getline(in, line);)
      if (line.starts_with("Model:")) names.push_back(line.substr(std::min(line.find_first_not_of(" \t", 6), line.size())));
  }
  size_t nodes = 0;
  for (const auto& entry : fs::directory_iterator("/dev", error)) {
    const std::string name = entry.path().filename().string();
    nodes += name.starts_with("nvidia") && name.size() > 6 && name.find_first_not_of("0123456789", 6) == std::string::npos;
  }
  if (names.empty() && nodes == 0) return std::nullopt;
  std::string text = names.empty() ? fmt::format("{} NVIDIA device nodes", nodes) : fmt::format("{}", fmt::join(names, ", "));
  if (void* library = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL)) {
    dlclose(library);
    text += ", with its driver library";
  } else {
    text += ", but no libcuda.so.1";
  }
  return text;
}

void add_gpu(std::vector<Check>& checks) {
  const auto devices = nvidia_devices();
  const std::string found = devices ? *devices : "no NVIDIA GPU";
  try {
    Config config;
    config.device.kind = DeviceKind::cuda;
    scheduler::create_device(config);
    checks.push_back({"GPU", Health::ok, found + "; this build can use it"});
  } catch (const Error& error) {
    checks.push_back({"GPU", Health::note, fmt::format("{}; {}, so runs compute on the host device (CPU threads)", found, error.message()),
                      ""});
  }
}

}  // namespace

std::vector<Check> check_machine() {
  std::vector<Check> checks;
  add_system(checks);
  add_processor(checks);
  add_processors(checks);
  add_memory(checks);
  add_pages(checks);
  add_io_uring(checks);
  add_gpu(checks);
  return checks;
}

}  // namespace strata::cli
