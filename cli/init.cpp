#include <atomic>
#include <charconv>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "cli/commands.hpp"
#include "cli/console.hpp"
#include "cli/facts.hpp"
#include "core/error.hpp"
#include "core/hf_weights.hpp"
#include "core/init_weights.hpp"
#include "core/json.hpp"
#include "core/thread.hpp"
#include "core/topology.hpp"

namespace strata::cli {

namespace {

namespace fs = std::filesystem;

constexpr uint64_t kPieceElements = 1 << 20;
constexpr int kThreadsMax = 8;  // more would wait for the drive

struct InitArguments {
  std::string config, out;
  uint64_t seed = 42;
  std::string dtype;
  bool json = false;
};

std::optional<DType> dtype_named(const std::string& name) {
  if (name == "fp32" || name == "float32") return DType::f32;
  if (name == "bf16" || name == "bfloat16") return DType::bf16;
  if (name == "fp16" || name == "float16") return DType::f16;
  return std::nullopt;
}

/// What the configuration says, fp32 where it says nothing.
DType dtype_of_config(const fs::path& file) {
  const Json config = parse_json_file(file, ErrorCode::invalid_configuration);
  for (const char* key : {"dtype", "torch_dtype"}) {  // the newer name first
    if (!config.contains(key) || config[key].is_null()) continue;
    if (config[key].is_string())
      if (const auto dtype = dtype_named(config[key].get<std::string>())) return *dtype;
    throw Error(ErrorCode::invalid_configuration,
                fmt::format("the model's dtype is {}, which cannot be written", printable(config[key].dump())),
                fmt::format("{} /{}", file.string(), key), "choose one with --dtype fp32, bf16 or fp16");
  }
  return DType::f32;
}

void refuse_used(const fs::path& out) {
  std::error_code error;
  if (!fs::exists(out, error)) return;
  if (!fs::is_directory(out, error))
    throw Error(ErrorCode::invalid_configuration, "the output exists and is not a directory", out.string(), "name a new directory");
  if (!fs::is_empty(out, error))
    throw Error(ErrorCode::invalid_configuration, "the output directory is not empty", out.string(), "name a new or an empty directory");
}

struct Piece {
  size_t unit;
  Range range;
};

std::vector<Piece> pieces_of(const ModelLayout& layout) {
  std::vector<Piece> pieces;
  for (size_t unit = 0; unit < layout.units.size(); ++unit)
    for (const Range& range : tile_ranges({0, layout.units[unit].padded_elements}, kPieceElements)) pieces.push_back({unit, range});
  return pieces;
}

/// Several threads draw and write the pieces; the calling thread shows how far they are.
class Filling {
 public:
  Filling(const ModelDescription& model, const ModelLayout& layout, uint64_t seed, HfWriter& writer)
      : model_(model), layout_(layout), seed_(seed), writer_(writer), pieces_(pieces_of(layout)) {}

  void run() {
    const int threads = std::min(kThreadsMax, usable_processor_count());
    ProgressLine progress("init");
    {
      Workers workers{next_, pieces_.size(), {}};
      for (int i = 0; i < threads; ++i) {
        {
          const std::lock_guard lock(mutex_);
          ++running_;
        }
        try {
          workers.threads.push_back(start_thread("init weights", [this] { work(); }));
        } catch (const Error&) {
          const std::lock_guard lock(mutex_);
          --running_;
          if (workers.threads.empty()) throw;
          break;
        }
      }
      std::unique_lock lock(mutex_);
      while (!finished_.wait_for(lock, std::chrono::milliseconds(100), [this] { return running_ == 0; }))
        progress.show(done_, pieces_.size());
    }
    if (failure_) std::rethrow_exception(failure_);
  }

 private:
  /// Ends and joins them, whatever happens.
  struct Workers {
    std::atomic<size_t>& next;
    size_t end;
    std::vector<std::thread> threads;
    ~Workers() {
      next = end;
      for (auto& thread : threads) thread.join();
    }
  };

  void work() noexcept {
    try {
      std::vector<float> values(kPieceElements);
      for (size_t i = next_++; i < pieces_.size(); i = next_++) {
        const auto& [unit, range] = pieces_[i];
        init_weights(model_, layout_.units[unit], range, seed_, values.data());
        writer_.write_from_float(unit, range, values.data());
        ++done_;
      }
    } catch (...) {
      next_ = pieces_.size();
      const std::lock_guard lock(mutex_);
      if (!failure_) failure_ = std::current_exception();
    }
    const std::lock_guard lock(mutex_);
    --running_;
    finished_.notify_all();
  }

  const ModelDescription& model_;
  const ModelLayout& layout_;
  const uint64_t seed_;
  HfWriter& writer_;
  const std::vector<Piece> pieces_;
  std::atomic<size_t> next_{0}, done_{0};
  std::mutex mutex_;
  std::condition_variable finished_;
  int running_ = 0;
  std::exception_ptr failure_;
};

void run(const InitArguments& arguments) {
  const ModelDescription model = read_model_description(arguments.config);
  const fs::path source = arguments.config;
  const DType dtype = arguments.dtype.empty()
                          ? dtype_of_config(fs::is_directory(source) ? source / "config.json" : source)
                          : *dtype_named(arguments.dtype);
  refuse_used(arguments.out);
  const ModelLayout layout = make_layout(model);
  narrate(fmt::format("{} with {} parameters in {}, seed {}", model.architecture, layout.elements(), to_string(dtype), arguments.seed));
  HfWriter writer(arguments.out, layout, {.dtype = dtype, .dtype_of = {}, .source = source});
  Filling(model, layout, arguments.seed, writer).run();
  writer.finish();
  print_facts({{"model", arguments.out},
               {"architecture", model.architecture},
               {"parameters", layout.elements()},
               {"dtype", to_string(dtype)},
               {"seed", arguments.seed},
               {"weights_bytes", layout.elements() * size_bytes(dtype)}},
              arguments.json);
}

}  // namespace

void add_init(CLI::App& app) {
  const CLI::Validator seed_range(
      [](const std::string& text) {
        uint64_t seed = 0;
        const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seed);
        const bool good = error == std::errc() && end == text.data() + text.size();
        return good ? std::string() : fmt::format("must be an integer from 0 to {}, is {}", UINT64_MAX, text);
      },
      "0 to 2^64 - 1");
  auto arguments = std::make_shared<InitArguments>();
  CLI::App* command = app.add_subcommand("init", "Write a Hugging Face model directory with random weights");
  command->add_option("config", arguments->config, "The model's config.json, or a directory that holds one")->required();
  command->add_option("out", arguments->out, "The directory to make; it must be new or empty")->required();
  command->add_option("--seed", arguments->seed, "Of the random weights; the same seed gives the same bits everywhere")
      ->check(seed_range)
      ->capture_default_str();
  command->add_option("--dtype", arguments->dtype, "Of the weights; by default what the configuration says, else fp32")
      ->check(CLI::IsMember({"fp32", "bf16", "fp16"}));
  command->add_flag("--json", arguments->json, "Print JSON");
  command->callback([arguments] { run(*arguments); });
}

}  // namespace strata::cli
