#include <map>
#include <memory>

#include "cli/commands.hpp"
#include "cli/inspectors.hpp"
#include "cli/path_kind.hpp"
#include "core/error.hpp"

namespace strata::cli {

namespace {

struct InspectArguments {
  std::string path;
  std::string format;
  std::string write_meta;
  std::vector<std::string> stores;
  bool json = false;
};

Facts inspect(const NamedPath& named, DataFormat format, const std::vector<scheduler::StoreMove>& moves) {
  switch (named.kind) {
    case PathKind::model_directory: return inspect_model_directory(named.path);
    case PathKind::model_config: return inspect_model_config(named.path);
    case PathKind::safetensors: return inspect_safetensors(named.path);
    case PathKind::safetensors_index: return inspect_safetensors_index(named.path);
    case PathKind::tokens: return inspect_tokens(named.path, format);
    case PathKind::token_meta: return inspect_token_meta(named.path);
    case PathKind::checkpoint: return inspect_checkpoint(named.path, moves);
    case PathKind::checkpoints_folder: return inspect_checkpoints_folder(named.path);
    case PathKind::run_directory: return inspect_run_directory(named.path, moves);
    case PathKind::store_directory: return inspect_store_directory(named.path);
    case PathKind::run_config: return inspect_run_config(named.path);
    case PathKind::metrics: return inspect_metrics(named.path);
    case PathKind::plan: return inspect_plan(named.path);
    case PathKind::trace: return inspect_trace(named.path);
    case PathKind::machine_rates: return inspect_machine_rates(named.path);
    case PathKind::leftover: return inspect_leftover(named.path);
  }
  return {};
}

void run(const InspectArguments& arguments) {
  // A format that is named says that the file is one of tokens, whatever it looks like.
  NamedPath named{PathKind::tokens, arguments.path};
  if (arguments.format.empty()) named = identify(arguments.path);
  const DataFormat format = arguments.format.empty() ? DataFormat::automatic : token_formats().at(arguments.format);
  if (!arguments.write_meta.empty()) {
    if (named.kind != PathKind::tokens)
      throw Error(ErrorCode::invalid_configuration,
                  fmt::format("--write-meta describes a token file, and this is a {}", to_string(named.kind)), named.path.string(),
                  "name a token file");
    write_token_meta(named.path, format, arguments.write_meta);
  }
  Facts facts = {{"kind", to_string(named.kind)}, {"path", named.path.string()}};
  facts.update(inspect(named, format, scheduler::parse_store_moves(arguments.stores)));
  print_facts(facts, arguments.json);
  if (named.kind == PathKind::tokens && facts.contains("problem")) throw CommandFailed{};
}

}  // namespace

void add_inspect(CLI::App& app) {
  auto arguments = std::make_shared<InspectArguments>();
  CLI::App* command = app.add_subcommand("inspect", "Tell what a model, token file, checkpoint, run or store holds");
  command->add_option("path", arguments->path,
                      "A model directory, config.json, .safetensors file, token file, checkpoint, checkpoints/ folder, run "
                      "directory or NVMe directory")->required();
  command->add_option("--format", arguments->format, "The format of a token file; needed for files without a header")
      ->check(CLI::IsMember(token_formats()));
  command->add_option("--write-meta", arguments->write_meta,
                      "A model directory: check every token of the file against it and write FILE.meta.json, which says so");
  add_store_option(*command, arguments->stores);
  command->add_flag("--json", arguments->json, "Print JSON");
  command->callback([arguments] { run(*arguments); });
}

}  // namespace strata::cli
