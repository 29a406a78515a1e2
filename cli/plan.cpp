#include <memory>
#include <optional>

#include "cli/commands.hpp"
#include "cli/run_inputs.hpp"
#include "core/config.hpp"
#include "core/file.hpp"
#include "core/printable.hpp"
#include "core/tokens.hpp"
#include "scheduler/runtime.hpp"

namespace strata::cli {

namespace {

struct PlanArguments {
  std::string config;
  std::vector<std::string> overrides;
  std::string machine;
  bool json = false;
};

void run(const PlanArguments& arguments) {
  const Config config = read_config(arguments.config, arguments.overrides);
  require_run_inputs(config, arguments.config);
  std::optional<scheduler::MachineRates> rates;
  if (!arguments.machine.empty()) rates = scheduler::read_machine_rates(arguments.machine);
  scheduler::PlannedRun planned = scheduler::plan_run(config);
  planned.plan.epoch_samples = TokenDataset({.files = config.data.train, .format = config.data.format,
                                             .sequence_length = config.data.sequence_length, .check_tokens = false})
                                   .samples();
  if (arguments.json) fmt::print("{}\n", shown_json(scheduler::plan_json(planned.plan, rates)));
  else fmt::print("{}\n", shown_lines(scheduler::plan_table(planned.plan, rates)));
}

}  // namespace

void add_plan(CLI::App& app) {
  auto arguments = std::make_shared<PlanArguments>();
  CLI::App* command = app.add_subcommand("plan",
                                           "Show what goes where, the bytes of each link, the epochs, and with --machine the step time");
  command->add_option("config", arguments->config, "Configuration (JSON)")->required();
  command->add_option("--set", arguments->overrides, "Override a key: dotted.key=value (repeatable)")
      ->allow_extra_args(false)->take_all();
  command->add_option("--machine", arguments->machine, "Machine profile (JSON rates) for the predicted step time");
  command->add_flag("--json", arguments->json, "Print JSON");
  command->callback([arguments] { run(*arguments); });
}

}  // namespace strata::cli
