#include <map>
#include <memory>
#include <optional>

#include "cli/commands.hpp"
#include "cli/console.hpp"
#include "cli/facts.hpp"
#include "cli/interrupt.hpp"
#include "core/error.hpp"
#include "core/json.hpp"
#include "core/safetensors.hpp"
#include "scheduler/checkpoint.hpp"

namespace strata::cli {

namespace {

namespace fs = std::filesystem;

const std::map<std::string, std::optional<DType>> kDTypes = {
    {"original", std::nullopt}, {"fp32", DType::f32}, {"bf16", DType::bf16}, {"fp16", DType::f16}};

struct ExportArguments {
  std::string checkpoint, out;
  std::string dtype = "original";
  std::vector<std::string> stores;
  bool json = false;
};

/// What a run or a checkpoint holds is its own: a model among its files would be taken for one of them.
void refuse_inside(const fs::path& checkpoint, const fs::path& out) {
  const fs::path folder = fs::canonical(checkpoint).parent_path();
  const fs::path owner = folder.filename() == "checkpoints" ? folder.parent_path() : fs::canonical(checkpoint);
  const fs::path inside = fs::weakly_canonical(fs::absolute(out)).lexically_relative(owner);
  if (inside.empty() || *inside.begin() == "..") return;
  throw Error(ErrorCode::invalid_configuration,
              fmt::format("the output lies inside the {}", owner == folder.parent_path() ? "run directory" : "checkpoint"), out.string(),
              fmt::format("name a directory outside of {}", owner.string()));
}

void run(const ExportArguments& arguments) {
  const fs::path checkpoint = scheduler::resolve_checkpoint(arguments.checkpoint);
  refuse_inside(checkpoint, arguments.out);
  const scheduler::CheckpointInfo info = scheduler::read_checkpoint_info(checkpoint);
  narrate(fmt::format("exporting {} (step {})", checkpoint.string(), info.record.step));
  const InterruptGuard interrupts;
  ProgressLine progress("export");
  const std::vector<LeftOutFile> left_out = scheduler::export_checkpoint(
      checkpoint, arguments.out, kDTypes.at(arguments.dtype),
      [&](uint64_t done, uint64_t total) {
        interrupts.check();
        progress.show(done, total);
      },
      scheduler::parse_store_moves(arguments.stores));
  for (const LeftOutFile& file : left_out) narrate(fmt::format("left out: {} ({})", printable(file.path, 200), file.reason));
  uint64_t bytes = 0;
  for (const auto& entry : std::filesystem::directory_iterator(arguments.out))
    if (entry.path().extension() == ".safetensors") bytes += entry.file_size();
  print_facts({{"model", arguments.out}, {"checkpoint", checkpoint.string()}, {"step", info.record.step}, {"weights_bytes", bytes}},
              arguments.json);
}

}  // namespace

void add_store_option(CLI::App& command, std::vector<std::string>& texts) {
  command.add_option("--store", texts, "OLD=NEW: the NVMe directory that was OLD is NEW now (repeatable); stores are found by their identity besides")
      ->allow_extra_args(false)->take_all();
}

void add_export(CLI::App& app) {
  auto arguments = std::make_shared<ExportArguments>();
  CLI::App* command = app.add_subcommand("export", "Write a Hugging Face model directory from a checkpoint");
  command->add_option("checkpoint", arguments->checkpoint,
                      "A checkpoint, a checkpoints/ folder or a run directory (then the newest checkpoint)")->required();
  command->add_option("out", arguments->out, "The directory to make; it must be new or empty")->required();
  command->add_option("--dtype", arguments->dtype,
                      "Of the weights: fp32 is what training keeps; original is what each tensor had in the model it started from")
      ->check(CLI::IsMember(kDTypes))
      ->capture_default_str();
  add_store_option(*command, arguments->stores);
  command->add_flag("--json", arguments->json, "Print JSON");
  command->callback([arguments] { run(*arguments); });
}

}  // namespace strata::cli
