// `strata eval`: the loss of a model or checkpoint on token files, by the same evaluation as in training.
#include <stdlib.h>

#include <atomic>
#include <cmath>
#include <csignal>
#include <memory>
#include <optional>

#include "cli/commands.hpp"
#include "cli/console.hpp"
#include "cli/facts.hpp"
#include "cli/path_kind.hpp"
#include "cli/run_inputs.hpp"
#include "core/config.hpp"
#include "core/error.hpp"
#include "core/file.hpp"
#include "core/hf_weights.hpp"
#include "scheduler/checkpoint.hpp"
#include "scheduler/evaluation.hpp"
#include "scheduler/runtime.hpp"

namespace strata::cli {

namespace {

namespace fs = std::filesystem;

std::atomic<bool> stop_requested = false;

extern "C" void stop_evaluation(int signal_number) {
  stop_requested.store(true);
  std::signal(signal_number, SIG_DFL);
}

struct EvalArguments {
  std::string model, config, nvme;
  std::vector<std::string> data;
  std::string format, compute, device_memory, host_memory;
  int64_t sequence_length = 0, micro_batch_size = 0, samples = 0;
  bool json = false;
};

/// What is evaluated: a Hugging Face directory, or a checkpoint.
struct Weights {
  ModelDescription model;
  ModelLayout layout;
  std::unique_ptr<HfWeights> hf;
  std::unique_ptr<scheduler::CheckpointReader> checkpoint;
  fs::path path;
  fs::path model_files;  // where the model's tokenizer is, if anywhere
  std::optional<fs::path> run_config;  // of the checkpoint's run, where it is there
};

Weights open_weights(const fs::path& named) {
  const NamedPath what = identify(named);
  Weights weights;
  if (what.kind == PathKind::model_directory) {
    weights.path = weights.model_files = what.path;
    weights.model = read_model_description(what.path);
    weights.layout = make_layout(weights.model);
    weights.hf = std::make_unique<HfWeights>(what.path, weights.model, weights.layout);
    return weights;
  }
  if (what.kind != PathKind::checkpoint && what.kind != PathKind::checkpoints_folder && what.kind != PathKind::run_directory)
    throw Error(ErrorCode::invalid_configuration, fmt::format("cannot evaluate a {}", to_string(what.kind)), named.string(),
                "name a Hugging Face model directory, a checkpoint, a checkpoints/ folder or a run directory");
  ProgressLine progress("checking");
  weights.path = scheduler::resolve_checkpoint(what.path);
  weights.checkpoint =
      scheduler::CheckpointReader::open(weights.path, [&](uint64_t done, uint64_t total) { progress.show(done, total); });
  weights.model = weights.checkpoint->model();
  weights.layout = weights.checkpoint->layout();
  weights.model_files = weights.path / (fs::exists(weights.path / "model") ? "model" : "master");
  const fs::path config = fs::canonical(weights.path).parent_path().parent_path() / "config.json";
  std::error_code error;
  if (fs::is_regular_file(config, error) && identify(config).kind == PathKind::run_config) weights.run_config = config;
  return weights;
}

std::string quoted(const std::string& text) {
  return Facts(text).dump(-1, ' ', false, Facts::error_handler_t::replace);
}

/// The configuration of the evaluation: the options over --config, or over the run's own, or over the defaults.
Config make_config(const EvalArguments& arguments, const Weights& weights, const fs::path& scratch) {
  std::string files;
  for (const std::string& file : arguments.data) files += (files.empty() ? "" : ", ") + quoted(file);
  std::vector<std::string> set = {"model.path=" + quoted(weights.path.string()),
                                  "data.train=[" + files + "]",
                                  "data.eval=[" + files + "]",
                                  "batch.gradient_accumulation_steps=1",
                                  "placement=\"auto\"",
                                  "schedule.prefetch=\"auto\"",
                                  "tiers.nvme=[]",
                                  "evaluation={}"};
  const auto add = [&](const char* key, const std::string& value) {
    if (!value.empty()) set.push_back(fmt::format("{}={}", key, quoted(value)));
  };
  add("data.format", arguments.format);
  add("precision.compute", arguments.compute);
  add("device.memory", arguments.device_memory);
  add("tiers.host.memory", arguments.host_memory);
  if (!arguments.compute.empty()) set.push_back("precision.master=\"auto\"");
  if (!scratch.empty()) set.push_back(fmt::format("tiers.nvme=[{{\"path\": {}, \"capacity\": \"1048576GiB\"}}]", quoted(scratch.string())));
  if (arguments.micro_batch_size > 0) set.push_back(fmt::format("batch.micro_batch_size={}", arguments.micro_batch_size));
  if (arguments.samples > 0) set.push_back(fmt::format("evaluation.samples={}", arguments.samples));
  if (arguments.sequence_length > 0) set.push_back(fmt::format("data.sequence_length={}", arguments.sequence_length));
  if (!arguments.config.empty()) return read_config(arguments.config, set);
  if (weights.run_config) return read_config(*weights.run_config, set);
  if (arguments.sequence_length == 0)
    set.push_back(fmt::format("data.sequence_length={}", std::min<int64_t>(Config().data.sequence_length, weights.model.max_positions)));
  return parse_config("{}", "the options", set);
}

/// A directory of this process's own for parameters that fit no memory; gone with it.
class ScratchStore {
 public:
  explicit ScratchStore(const std::string& parent) {
    if (parent.empty()) return;
    std::string name = (fs::path(parent) / "strata-eval-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr)
      throw Error(ErrorCode::io, fmt::format("cannot make a directory there: {}", system_reason(errno)), parent,
                  "give --nvme a directory that can be written");
    path_ = name;
  }
  ~ScratchStore() {
    std::error_code ignored;
    if (!path_.empty()) fs::remove_all(path_, ignored);
  }
  ScratchStore(const ScratchStore&) = delete;
  ScratchStore& operator=(const ScratchStore&) = delete;
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

void load(const Weights& weights, DType compute, scheduler::TrainingState& state) {
  ProgressLine progress("weights");
  scheduler::StateSources sources;
  sources.master = [&](int unit, Range range, float* out) {
    if (weights.hf) weights.hf->read_finite(static_cast<size_t>(unit), range, compute, out);
    else weights.checkpoint->read(scheduler::Quantity::master, unit, range, out);
  };
  state.fill(sources, [&](uint64_t done, uint64_t total) { progress.show(done, total); });
}

void heed_stop() {
  if (stop_requested)
    throw Error(ErrorCode::cancelled, "stopped before all samples were read: there is no loss to print", {},
                "run it again, or use --samples");
}

void run(const EvalArguments& arguments) {
  std::signal(SIGINT, stop_evaluation);
  std::signal(SIGTERM, stop_evaluation);
  const Weights weights = open_weights(arguments.model);
  const ScratchStore scratch(arguments.nvme);
  const Config config = make_config(arguments, weights, scratch.path());
  require_run_inputs(config, "the command line");
  ProgressLine checking("checking the data");
  const TokenDataset data({.files = config.data.eval, .format = config.data.format, .sequence_length = config.data.sequence_length,
                           .vocab_size = weights.model.vocab_size, .short_windows = true, .model_directory = weights.model_files,
                           .on_progress = [&](uint64_t done, uint64_t total) {
                             heed_stop();
                             checking.show(done, total);
                           }});
  scheduler::Runtime runtime(scheduler::plan_evaluation(config, weights.model), scheduler::StoreMode::create);
  load(weights, config.precision.compute, runtime.state());
  ProgressLine progress("evaluation");
  const auto result = scheduler::evaluate(
      runtime, data, {.samples = static_cast<uint64_t>(config.evaluation.samples), .stop = &stop_requested,
                       .progress = [&](uint64_t done, uint64_t total) { progress.show(done, total); }});
  if (!result) heed_stop();
  const auto number = [&](double value) {
    return arguments.json ? (std::isfinite(value) ? Facts(value) : Facts(nullptr)) : Facts(fmt::format("{:.9g}", value));
  };
  Facts facts = {{"model", weights.path.string()},
                 {"compute", to_string(config.precision.compute)},
                 {"loss", number(result->loss)},
                 {"perplexity", number(std::exp(result->loss))},
                 {"tokens", result->tokens},
                 {"samples", result->samples}};
  if (weights.checkpoint) facts["step"] = weights.checkpoint->info().record.step;
  if (result->limited()) facts["of_samples"] = result->of_samples;
  print_facts(facts, arguments.json);
}

}  // namespace

void add_eval(CLI::App& app) {
  auto arguments = std::make_shared<EvalArguments>();
  CLI::App* command = app.add_subcommand("eval", "Print the loss of a model or checkpoint on token files");
  command->add_option("model", arguments->model,
                      "A Hugging Face directory, a checkpoint, a checkpoints/ folder or a run directory (then the newest checkpoint)")
      ->required();
  command->add_option("data", arguments->data, "Token files; every token is predicted once")->required();
  command->add_option("--config", arguments->config,
                      "Configuration whose other keys are used; otherwise the run's own, or the defaults");
  command->add_option("--format", arguments->format, "As data.format");
  command->add_option("--sequence-length", arguments->sequence_length, "As data.sequence_length")->check(CLI::PositiveNumber);
  command->add_option("--micro-batch-size", arguments->micro_batch_size, "As batch.micro_batch_size")->check(CLI::PositiveNumber);
  command->add_option("--samples", arguments->samples, "Only the first so many samples")->check(CLI::PositiveNumber);
  command->add_option("--compute", arguments->compute, "As precision.compute");
  command->add_option("--device-memory", arguments->device_memory, "As device.memory");
  command->add_option("--host-memory", arguments->host_memory, "As tiers.host.memory");
  command->add_option("--nvme", arguments->nvme, "A directory for parameters that fit no memory; what is made there goes at the end");
  command->add_flag("--json", arguments->json, "Print JSON");
  command->callback([arguments] { run(*arguments); });
}

}  // namespace strata::cli
