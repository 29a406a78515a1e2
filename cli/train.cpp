#include <csignal>

#include <atomic>
#include <cmath>
#include <memory>
#include <optional>

#include "cli/commands.hpp"
#include "cli/console.hpp"
#include "cli/run_inputs.hpp"
#include "core/config.hpp"
#include "core/error.hpp"
#include "core/printable.hpp"
#include "scheduler/trainer.hpp"

namespace strata::cli {

namespace {

std::atomic<bool> stop_requested = false;

/// Of a run that was asked to end before its last step.
constexpr int kInterruptedStatus = 3;

/// The first signal ends the run after the step under way; the next one ends the process.
extern "C" void request_stop(int signal_number) {
  stop_requested.store(true);
  std::signal(signal_number, SIG_DFL);
}

struct TrainArguments {
  std::string config;
  std::vector<std::string> overrides, stores;
  std::string run_directory = "run";
  std::string resume = "auto";
  std::vector<std::string> discard, allow;
  std::string from;
  bool reseed = false;
  bool hash_state = false;
  bool example = false, keys = false;
};

std::string step_line(const scheduler::StepReport& report) {
  const scheduler::Resource limit = report.limit();
  std::string line = fmt::format(
      "step {}/{}  loss {:.9g}  norm {:.4g}  lr {:.3g}  {:.0f} tok/s  {:.2f} s, bound by {} ({:.0f} %)  {} left",
      report.step, report.steps, report.loss, report.grad_norm, report.lr, report.tokens_per_second, report.seconds,
      scheduler::to_string(limit), 100 * report.busy_seconds[static_cast<int>(limit)] / report.seconds,
      format_duration(report.seconds_left));
  if (report.skipped) line += "  SKIPPED: the gradient is not finite";
  return line;
}

std::string evaluation_line(const scheduler::EvaluationReport& report) {
  return fmt::format("step {}  eval {:.9g} ({} tokens of {} samples{}), {:.2f} s", report.step, report.loss, report.tokens, report.samples,
                     report.samples < report.of_samples ? ", limited by evaluation.samples" : "", report.seconds);
}

void run(const TrainArguments& arguments) {
  if (arguments.example) return fmt::print("{}", example_configuration());
  if (arguments.keys) return fmt::print("{}", configuration_page());
  if (arguments.config.empty()) throw CLI::RequiredError("config");
  scheduler::TrainOptions options;
  options.config = read_config(arguments.config, arguments.overrides);
  require_run_inputs(options.config, arguments.config, arguments.run_directory);
  options.run_directory = arguments.run_directory;
  options.resume = arguments.resume == "auto";
  options.discard = arguments.discard;
  options.allow = arguments.allow;
  options.from = arguments.from;
  options.reseed = arguments.reseed;
  options.store_moves = scheduler::parse_store_moves(arguments.stores);
  options.hash_state = arguments.hash_state;
  options.stop = &stop_requested;
  ProgressLine steps(""), state("state"), data("checking the data");
  std::optional<ProgressLine> evaluation;
  options.narrate = narrate;
  options.on_step = [&steps](const scheduler::StepReport& report) {
    const bool last = report.step == report.steps;
    steps.show(step_line(report), last || report.step == 1 || report.skipped);
  };
  options.on_evaluation = [&steps](const scheduler::EvaluationReport& report) { steps.show(evaluation_line(report), true); };
  options.on_evaluation_progress = [&evaluation](uint64_t done, uint64_t total) {
    if (done == 0) evaluation.emplace("evaluation");
    evaluation->show(done, total);
  };
  options.on_data_progress = [&data](uint64_t done, uint64_t total) { data.show(done, total); };
  options.on_state_progress = [&state](uint64_t done, uint64_t total) { state.show(done, total); };
  std::signal(SIGINT, request_stop);
  std::signal(SIGTERM, request_stop);
  if (std::signal(SIGHUP, request_stop) == SIG_IGN) std::signal(SIGHUP, SIG_IGN);  // as nohup asks for
  const scheduler::TrainSummary summary = scheduler::train(options);
  if (summary.interrupted)
    narrate(fmt::format("stopped after step {}; the same command continues there", summary.steps_done));
  fmt::print("steps {}\n", summary.steps_done);
  if (summary.steps_done > summary.resumed_from)
    fmt::print("first_loss {:.9g}\nlast_loss {:.9g}\n", summary.first_loss, summary.last_loss);
  if (!summary.state_hash.empty()) fmt::print("state_hash {}\n", summary.state_hash);
  fmt::print("checkpoint {}\n", shown_text(summary.checkpoint.string()));
  if (summary.interrupted) throw CommandEnded{kInterruptedStatus};
}

}  // namespace

void add_train(CLI::App& app) {
  auto arguments = std::make_shared<TrainArguments>();
  CLI::App* command = app.add_subcommand("train", "Train a model");
  command->footer("Exit status: 0 the run has done its last step, 1 failed, 2 bad usage or configuration, 3 ended after a step by SIGINT,\n"
                  "SIGTERM or SIGHUP before its last one, with its state saved: the same command continues, 4 a device or a\n"
                  "drive hangs and nothing could be given back: what was committed is safe.");
  command->add_option("config", arguments->config, "Configuration (JSON, comments allowed)");
  command->add_option("--set", arguments->overrides, "Override a key: dotted.key=value (repeatable)")
      ->allow_extra_args(false)->take_all();
  command->add_flag("--example", arguments->example, "Print a commented configuration: edit its two paths and it runs");
  command->add_flag("--keys", arguments->keys, "Print every key with its values, default and effect");
  command->add_option("--run-dir", arguments->run_directory, "Where metrics, trace and checkpoints go")
      ->capture_default_str();
  command->add_option("--resume", arguments->resume,
                      "auto continues the directory's newest state; never starts over, and loses only what --discard names")
      ->check(CLI::IsMember({"auto", "never"}))->capture_default_str();
  command->add_option("--discard", arguments->discard,
                      "With --resume never: lose the saved state of this run or store for good (a run directory's name, path or run id; "
                      "repeatable)")
      ->allow_extra_args(false)->take_all();
  command->add_option("--allow", arguments->allow,
                      "Go on in spite of a change that is otherwise refused: data, data.seed, precision, ... (repeatable)")
      ->allow_extra_args(false)->take_all();
  CLI::Option* from = command->add_option("--from", arguments->from,
                                          "Begin a new run with the weights, moments and progress of this checkpoint (or the newest of a run)");
  command->add_flag("--reseed", arguments->reseed, "With --from: take other data, or another data.seed, from there on")->needs(from);
  add_store_option(*command, arguments->stores);
  command->add_flag("--state-hash", arguments->hash_state,
                    "Print a hash of all parameters and moments at the end (reads all state once)");
  command->callback([arguments] { run(*arguments); });
}

}  // namespace strata::cli
