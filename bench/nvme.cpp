// GB/s of the NVMe store beside what the drive gives: fio, and a bare io_uring loop without checksums, slots or errors. Rates of a
// machine drift by a factor of two within minutes, so all of them alternate and the ratios are taken per round.
#include <fcntl.h>
#include <liburing.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <fstream>
#include <functional>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>

#include "core/error.hpp"
#include "tiers/memory.hpp"
#include "tiers/nvme_store.hpp"

namespace strata::bench {
namespace {

using tiers::MemorySlab;
using tiers::NvmeStore;

struct Settings {
  std::filesystem::path directory = std::filesystem::temp_directory_path();
  uint64_t bytes = 1ull << 30;
  uint64_t extent_bytes = 8ull << 20;   // a section of a tile
  uint32_t extents_in_flight = 4;       // buffers, as the executor's ring of tiles
  uint32_t chunk_bytes = 1u << 20;
  uint32_t queue_depth = 16;
  int rounds = 9;
  bool threads = false;
  bool no_registration = false;
  std::string json;
};

double now_seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  return values.size() % 2 ? values[half] : (values[half - 1] + values[half]) / 2;
}

/// Counts transfers down and keeps the first error.
class Latch {
 public:
  explicit Latch(uint32_t free) : free_(free) {}
  void take() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return free_ > 0; });
    --free_;
  }
  void give(std::exception_ptr error) {
    std::lock_guard lock(mutex_);
    if (error && !error_) error_ = error;
    ++free_;
    changed_.notify_all();
  }
  void wait_for_all(uint32_t all) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return free_ == all; });
    if (error_) std::rethrow_exception(error_);
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  uint32_t free_;
  std::exception_ptr error_;
};

/// Moves every extent once, `extents_in_flight` at a time. Returns seconds.
double pass(NvmeStore& store, const Settings& settings, MemorySlab& memory, bool write) {
  const auto extents = static_cast<uint32_t>(settings.bytes / settings.extent_bytes);
  Latch latch(settings.extents_in_flight);
  const double start = now_seconds();
  for (uint32_t i = 0; i < extents; ++i) {
    latch.take();
    std::byte* buffer = memory.data() + i % settings.extents_in_flight * settings.extent_bytes;
    const auto done = [&latch](std::exception_ptr error) { latch.give(error); };
    write ? store.write_state(i, buffer, done) : store.read_state(i, buffer, done);
  }
  latch.wait_for_all(settings.extents_in_flight);
  return now_seconds() - start;
}

/// The least that moves the same bytes: a ring, `queue_depth` requests of a chunk each, no look at what they hold.
class BareLoop {
 public:
  BareLoop(const Settings& settings, MemorySlab& memory) : settings_(settings), memory_(memory) {
    path_ = settings.directory / "bare";
    file_ = open(path_.c_str(), O_RDWR | O_CREAT | O_DIRECT | O_CLOEXEC, 0600);
    if (file_ < 0 || fallocate(file_, 0, 0, static_cast<off_t>(settings.bytes)) != 0) {
      throw Error(ErrorCode::io, "cannot make the file of the bare loop", path_.string());
    }
    if (io_uring_queue_init(settings.queue_depth, &ring_, 0) != 0) throw Error(ErrorCode::unsupported, "no io_uring");
    io_uring_register_files(&ring_, &file_, 1);
  }
  ~BareLoop() {
    io_uring_queue_exit(&ring_);
    close(file_);
    unlink(path_.c_str());
  }
  BareLoop(const BareLoop&) = delete;
  BareLoop& operator=(const BareLoop&) = delete;

  double pass(bool write) {
    const uint64_t chunks = settings_.bytes / settings_.chunk_bytes;
    const uint64_t slots = memory_.bytes() / settings_.chunk_bytes;
    const double start = now_seconds();
    uint64_t begun = 0, ended = 0;
    while (ended < chunks) {
      for (; begun < chunks && begun - ended < settings_.queue_depth; ++begun) {
        io_uring_sqe* sqe = io_uring_get_sqe(&ring_);
        std::byte* buffer = memory_.data() + begun % slots * settings_.chunk_bytes;
        const uint64_t offset = begun * settings_.chunk_bytes;
        if (write) io_uring_prep_write(sqe, 0, buffer, settings_.chunk_bytes, offset);
        else io_uring_prep_read(sqe, 0, buffer, settings_.chunk_bytes, offset);
        io_uring_sqe_set_flags(sqe, IOSQE_FIXED_FILE);
      }
      io_uring_submit_and_wait(&ring_, 1);
      io_uring_cqe* cqe = nullptr;
      while (io_uring_peek_cqe(&ring_, &cqe) == 0) {
        if (cqe->res != static_cast<int>(settings_.chunk_bytes)) throw Error(ErrorCode::io, "the bare loop's transfer failed");
        io_uring_cqe_seen(&ring_, cqe);
        ++ended;
      }
    }
    return now_seconds() - start;
  }

 private:
  const Settings& settings_;
  MemorySlab& memory_;
  std::filesystem::path path_;
  int file_ = -1;
  io_uring ring_{};
};

/// fio with the same block size, depth and bytes. Its buffers are on huge pages where they can be had (reserved ones, which root may
/// ask the kernel for).
class Fio {
 public:
  explicit Fio(const Settings& settings) : settings_(settings), path_(settings.directory / "fio") {
    available_ = std::system("fio --version >/dev/null 2>&1") == 0;
    if (!available_) return;
    const uint64_t pages = (uint64_t{settings.queue_depth} * settings.chunk_bytes >> 21) + 4;
    std::ifstream(kReserve) >> reserved_before_;
    if (reserved_before_ < pages) std::ofstream(kReserve) << pages;
    uint64_t reserved = 0;
    std::ifstream(kReserve) >> reserved;
    huge_ = reserved >= pages;
  }
  ~Fio() {
    if (!available_) return;
    std::ofstream(kReserve) << reserved_before_;
    unlink(path_.c_str());
  }
  Fio(const Fio&) = delete;
  Fio& operator=(const Fio&) = delete;

  bool available() const { return available_; }
  const char* memory() const { return huge_ ? "reserved huge pages" : "small pages"; }

  double pass(bool write) const {
    const std::string command = fmt::format(
        "fio --name=strata --filename={} --rw={} --bs={} --iodepth={} --size={} --direct=1 --ioengine=io_uring --registerfiles=1 "
        "--mem={} --overwrite=1 --fallocate=posix --output-format=json 2>/dev/null",
        path_.string(), write ? "write" : "read", settings_.chunk_bytes, settings_.queue_depth, settings_.bytes,
        huge_ ? "shmhuge" : "malloc");
    std::string text;
    if (FILE* output = popen(command.c_str(), "r")) {
      char buffer[4096];
      for (size_t count; (count = fread(buffer, 1, sizeof buffer, output)) > 0;) text.append(buffer, count);
      pclose(output);
    }
    const auto begin = text.find('{');
    const auto report = nlohmann::json::parse(begin == std::string::npos ? "" : text.substr(begin), nullptr, false);
    if (report.is_discarded()) throw Error(ErrorCode::io, "fio gave no report", command);
    const auto& job = report.at("jobs").at(0).at(write ? "write" : "read");
    return static_cast<double>(settings_.bytes) / job.at("bw_bytes").get<double>();
  }

 private:
  static constexpr const char* kReserve = "/proc/sys/vm/nr_hugepages";
  const Settings& settings_;
  std::filesystem::path path_;
  bool available_ = false, huge_ = false;
  uint64_t reserved_before_ = 0;
};

int run(Settings settings) {
  std::string name = (settings.directory / "strata-bench-XXXXXX").string();
  if (!mkdtemp(name.data())) throw Error(ErrorCode::io, "cannot make a directory for the benchmark", settings.directory.string());
  settings.directory = name;
  struct Remove {
    std::filesystem::path path;
    ~Remove() {
      std::error_code ignored;
      std::filesystem::remove_all(path, ignored);
    }
  } remove{settings.directory};
  settings.bytes = settings.bytes / settings.extent_bytes * settings.extent_bytes;

  MemorySlab memory(settings.extents_in_flight * settings.extent_bytes);
  for (uint64_t i = 0; i < memory.bytes(); ++i) memory.data()[i] = static_cast<std::byte>(i * 2654435761u >> 13);
  tiers::StoreOptions options;
  options.directories = {{settings.directory / "store", 0}};
  options.engine = settings.threads ? tiers::IoEngineKind::threads : tiers::IoEngineKind::automatic;
  for (uint64_t i = 0; i < settings.bytes / settings.extent_bytes; ++i) {
    options.state.push_back({fmt::format("extent {}", i), settings.extent_bytes});
  }
  if (!settings.no_registration) options.regions = [&] { return std::vector{memory.span()}; };
  tiers::StoreHooks hooks;
  hooks.transfers.chunk_bytes = settings.chunk_bytes;
  hooks.transfers.queue_depth = settings.queue_depth;
  const auto store = create_store(options, hooks);
  BareLoop bare(settings, memory);
  const Fio fio(settings);
  std::printf("store   %s\nmemory  %s\nfio     %s\n", store->engine_description().c_str(), memory.description().c_str(),
              fio.available() ? fio.memory() : "not installed");

  std::map<std::string, std::vector<double>> rates, ratios;
  const double gigabytes = static_cast<double>(settings.bytes) / 1e9;
  for (int round = -2; round < settings.rounds; ++round) {  // two passes warm up: both slots are written once
    for (const bool write : {true, false}) {
      const std::string direction = write ? "write" : "read";
      std::map<std::string, double> rate;
      const std::vector<std::pair<std::string, std::function<double()>>> contestants = {
          {"store", [&] { return pass(*store, settings, memory, write); }},
          {"bare", [&] { return bare.pass(write); }},
          {"fio", [&] { return fio.available() ? fio.pass(write) : 0.0; }}};
      // Each goes first in turn: who comes after whom matters on a drive with a cache.
      for (size_t i = 0; i < contestants.size(); ++i) {
        const auto& [who, measure] = contestants[(i + static_cast<size_t>(round + 2)) % contestants.size()];
        const double seconds = measure();
        rate[who] = seconds > 0 ? gigabytes / seconds : 0;
      }
      double commit = 0;
      if (write) {
        const double start = now_seconds();
        store->commit("benchmark");
        commit = now_seconds() - start;
      }
      if (round < 0) continue;
      for (const auto& [who, value] : rate) rates[direction + " " + who].push_back(value);
      ratios[direction + " store/bare"].push_back(rate["store"] / rate["bare"]);
      if (fio.available()) ratios[direction + " store/fio"].push_back(rate["store"] / rate["fio"]);
      if (write) rates["commit ms"].push_back(commit * 1e3);
    }
  }

  std::printf("\n%-18s %8s %8s %8s   (GB/s; commit in ms; %d rounds)\n", "", "median", "min", "max", settings.rounds);
  nlohmann::json report{{"schema", 1}, {"rounds", settings.rounds}, {"bytes", settings.bytes}, {"chunk_bytes", settings.chunk_bytes},
                        {"queue_depth", settings.queue_depth}, {"store", store->engine_description()}};
  for (const auto* table : {&rates, &ratios}) {
    for (const auto& [what, values] : *table) {
      const auto [low, high] = std::minmax_element(values.begin(), values.end());
      std::printf("%-18s %8.3f %8.3f %8.3f\n", what.c_str(), median(values), *low, *high);
      report[what] = {{"median", median(values)}, {"min", *low}, {"max", *high}};
    }
  }
  if (!settings.json.empty()) std::ofstream(settings.json) << report.dump(2) << "\n";
  return 0;
}

}  // namespace
}  // namespace strata::bench

int main(int argc, char** argv) {
  strata::bench::Settings settings;
  CLI::App app("The NVMe store's read and write rates beside fio and a bare io_uring loop");
  app.add_option("--dir", settings.directory, "a directory on the drive");
  app.add_option("--bytes", settings.bytes, "moved in each pass")->transform(CLI::AsSizeValue(false));
  app.add_option("--extent", settings.extent_bytes, "bytes of an extent, a multiple of the chunk")->transform(CLI::AsSizeValue(false));
  app.add_option("--in-flight", settings.extents_in_flight, "extents in flight");
  app.add_option("--chunk", settings.chunk_bytes, "bytes of a request")->transform(CLI::AsSizeValue(false));
  app.add_option("--depth", settings.queue_depth, "requests in flight");
  app.add_option("--rounds", settings.rounds, "rounds that count")->check(CLI::Range(1, 1000));
  app.add_flag("--threads", settings.threads, "the store uses the thread engine");
  app.add_flag("--no-registration", settings.no_registration, "the store does not register its buffers");
  app.add_option("--json", settings.json, "writes the report there");
  CLI11_PARSE(app, argc, argv);
  try {
    return strata::bench::run(settings);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_nvme: %s\n", error.what());
    return 1;
  }
}
