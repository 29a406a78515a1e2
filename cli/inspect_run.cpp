// What `strata inspect` tells of the things that training leaves: checkpoints, runs, stores and their metrics.
#include <algorithm>
#include <cerrno>
#include <cmath>
#include <fstream>
#include <map>
#include <optional>
#include <system_error>

#include "cli/inspectors.hpp"
#include "cli/run_files.hpp"
#include "core/error.hpp"
#include "core/file.hpp"
#include "core/json.hpp"
#include "core/model.hpp"
#include "scheduler/checkpoint_manifest.hpp"
#include "scheduler/run_store.hpp"
#include "scheduler/simulator.hpp"

namespace strata::cli {

namespace {

namespace fs = std::filesystem;

constexpr JsonLimits kLargeLimits{.bytes = 100'000'000, .values = 4'000'000};  // a trace has a few objects for each operation
constexpr JsonLimits kMetricsLineLimits{.bytes = 1 << 20, .values = 10'000, .depth = 8};

const char* name_of(scheduler::CheckpointKind kind) { return kind == scheduler::CheckpointKind::files ? "files" : "store"; }

const char* name_of(MasterFormat format) {
  return format == MasterFormat::parameter ? "the parameter itself" : format == MasterFormat::split ? "split" : "fp32";
}

Facts trainer_facts(const scheduler::TrainerRecord& record) {
  return {{"step", record.step},
          {"updates", record.updates},
          {"samples", record.samples},
          {"loss_scale", record.loss_scale},
          {"run_directory", record.run_directory},
          {"model_path", record.model_path},
          {"data_identity", record.data_identity}};
}

uint64_t bytes_of(const scheduler::CheckpointManifest& manifest) {
  uint64_t bytes = 0;
  for (const auto& file : manifest.files) bytes += file.bytes;
  return bytes;
}

/// How the store that a checkpoint refers to stands to it.
std::string store_state(const scheduler::CheckpointManifest& manifest, const fs::path& checkpoint,
                        const std::vector<scheduler::StoreMove>& moves) {
  try {
    const scheduler::FoundStore found = manifest.locate_store(checkpoint, moves);
    const auto view = view_store(found.directories.front());
    if (!view) return "there is no store any more";
    if (manifest.copy) return "a copy in the checkpoint itself";
    if (view->record.generation == manifest.store.generation)
      return "at this generation: the checkpoint is complete" + (found.moved.empty() ? "" : "; " + found.moved);
    if (view->record.generation < manifest.store.generation)
      return fmt::format("behind, at generation {}: its files are older copies, or its last commits were lost", view->record.generation);
    return fmt::format("has moved on to generation {}: resume the run, which leaves a new checkpoint", view->record.generation);
  } catch (const Error& error) {
    return error.message();
  }
}

/// Strays, and the holder of the lock when there is one.
void add_leftovers(const fs::path& directory, Facts& facts) {
  if (const auto holder = lock_holder(directory)) facts["held_by"] = *holder;
  const std::vector<std::string> strays = stray_names(directory);
  if (!strays.empty()) facts["left_by_a_killed_process"] = strays;
}

Facts checkpoint_rows(const std::vector<scheduler::CheckpointInfo>& found) {
  Facts rows = Facts::array();
  for (const auto& info : found) {
    const auto manifest = scheduler::CheckpointManifest::read(info.path);
    rows.push_back({{"checkpoint", info.path.filename().string()},
                    {"step", info.record.step},
                    {"kind", name_of(info.kind)},
                    {"bytes", bytes_of(manifest)},
                    {"holds", info.kind == scheduler::CheckpointKind::files ? "files" : info.copy ? "a copy of the store" : "a reference to the store"},
                    {"pinned", info.pinned}});
  }
  return rows;
}

void add_checkpoints(const fs::path& folder, Facts& facts) {
  std::vector<scheduler::IgnoredCheckpoint> ignored;
  const auto found = scheduler::list_checkpoints(folder, &ignored);
  facts["checkpoints"] = checkpoint_rows(found);
  // What was being written when a process was killed is told as that, elsewhere.
  for (const auto& one : ignored)
    if (!one.unfinished) facts["not_whole"].push_back(one.text());
}

/// Sizes of sections, from the last word of the extents' names.
Facts section_rows(const std::vector<tiers::ExtentSpec>& extents) {
  struct Sum {
    uint64_t extents = 0, bytes = 0;
  };
  std::map<std::string, Sum> sums;
  for (const auto& extent : extents) {
    Sum& sum = sums[extent.name.substr(extent.name.rfind(' ') + 1)];
    ++sum.extents;
    sum.bytes += extent.bytes;
  }
  Facts rows = Facts::array();
  for (const auto& [section, sum] : sums) rows.push_back({{"section", section}, {"extents", sum.extents}, {"bytes", sum.bytes}});
  return rows;
}

Facts store_facts(const StoreView& view) {
  Facts facts = {{"generation", view.record.generation},
                 {"fingerprint", view.table.fingerprint},
                 {"directories", view.table.state_file_bytes.size()},
                 {"disk_bytes", view.bytes_on_disk()},
                 {"state", section_rows(view.table.extents)}};
  if (view.damaged) facts["damaged_record"] = view.damaged->text();
  if (view.table.extents.empty()) facts["holds"] = "scratch alone, which went with its run: no state to resume from";
  else if (view.record.generation == 0) facts["problem"] = "nothing has been committed: the run ended before its first state was whole";
  if (const auto trainer = view.trainer()) facts["trainer"] = trainer_facts(*trainer);
  else if (!view.record.payload.empty()) facts["record"] = printable(view.record.payload, 400);
  return facts;
}

std::optional<double> number_of(const Json& line, const char* key) {
  if (!line.contains(key) || !line[key].is_number()) return std::nullopt;
  return line[key].get<double>();
}

Facts or_null(const std::optional<double>& value) { return value ? Facts(*value) : Facts(nullptr); }

}  // namespace

Facts inspect_checkpoint(const fs::path& checkpoint, const std::vector<scheduler::StoreMove>& moves) {
  const auto manifest = scheduler::CheckpointManifest::read(checkpoint);
  Facts facts = {{"checkpoint_kind", name_of(manifest.kind)},
                 {"compute", to_string(manifest.format.compute)},
                 {"master", name_of(manifest.format.master)},
                 {"files", manifest.files.size()},
                 {"bytes", bytes_of(manifest)}};
  try {
    const ModelDescription model = read_model_description(checkpoint / scheduler::kModelFolder);
    facts["architecture"] = model.architecture;
    facts["parameters"] = make_layout(model).elements();
    scheduler::read_checkpoint_info(checkpoint);
  } catch (const Error& error) {
    facts["problem"] = error.what();
  }
  facts["trainer"] = trainer_facts(manifest.record);
  if (manifest.kind == scheduler::CheckpointKind::store)
    facts["store"] = {{"directories", manifest.copy ? manifest.store.relative : manifest.store.directories},
                      {"generation", manifest.store.generation},
                      {"tile_elements", manifest.tile_elements},
                      {"state", store_state(manifest, checkpoint, moves)}};
  return facts;
}

Facts inspect_checkpoints_folder(const fs::path& folder) {
  Facts facts;
  add_checkpoints(folder, facts);
  add_leftovers(folder, facts);
  return facts;
}

Facts inspect_metrics(const fs::path& file) {
  std::ifstream in(file);
  if (!in)
    throw Error(ErrorCode::io, "cannot open the metrics: " + (errno == ENOENT ? reason_of_absence(file) : system_reason(errno)),
                file.string(), remedy_for(errno));
  uint64_t steps = 0, skipped = 0, malformed = 0;
  double tokens = 0, seconds = 0;
  std::optional<double> lowest, eval;
  Json first, last;
  for (std::string text; std::getline(in, text);) {
    Json line;
    try {
      line = parse_json(text, file.string(), ErrorCode::invalid_data, kMetricsLineLimits);
    } catch (const Error&) {
      ++malformed;
      continue;
    }
    if (!line.is_object() || !number_of(line, "step")) {
      ++malformed;
      continue;
    }
    if (const auto loss = number_of(line, "eval_loss")) eval = loss;
    if (!line.contains("loss")) continue;  // an evaluation
    ++steps;
    if (line.contains("skipped") && line["skipped"] == true) ++skipped;
    tokens += number_of(line, "tokens").value_or(0);
    seconds += number_of(line, "seconds").value_or(0);
    if (const auto loss = number_of(line, "loss")) lowest = std::min(lowest.value_or(*loss), *loss);
    if (first.is_null()) first = line;
    last = std::move(line);
  }
  Facts facts = {{"steps", steps}};
  if (steps > 0) {
    facts["first_step"] = static_cast<int64_t>(*number_of(first, "step"));
    facts["last_step"] = static_cast<int64_t>(*number_of(last, "step"));
    facts["first_loss"] = or_null(number_of(first, "loss"));
    facts["last_loss"] = or_null(number_of(last, "loss"));
    facts["lowest_loss"] = or_null(lowest);
    if (eval) facts["last_eval_loss"] = *eval;
    facts["last_grad_norm"] = or_null(number_of(last, "grad_norm"));
    facts["skipped_steps"] = skipped;
    facts["tokens"] = static_cast<uint64_t>(tokens);
    facts["seconds"] = seconds;
    facts["tokens_per_second"] = seconds > 0 ? Facts(tokens / seconds) : Facts(nullptr);
  }
  if (malformed > 0) facts["malformed_lines"] = malformed;
  return facts;
}

Facts inspect_run_directory(const fs::path& directory, const std::vector<scheduler::StoreMove>& moves) {
  Facts facts;
  add_leftovers(directory, facts);
  if (fs::exists(directory / "metrics.jsonl")) facts["metrics"] = inspect_metrics(directory / "metrics.jsonl");
  add_checkpoints(directory / "checkpoints", facts);
  const std::vector<std::string> partial = stray_names(directory / "checkpoints");
  if (!partial.empty()) facts["checkpoints_left_by_a_killed_process"] = partial;
  try {
    const scheduler::FoundStore found = store_of_run(directory, moves);
    const std::vector<fs::path>& store = found.directories;
    if (const auto view = store.empty() ? std::nullopt : view_store(store.front())) {
      const auto trainer = view->trainer();
      facts["store"] = {{"directory", store.front().string()},
                        {"generation", view->record.generation},
                        {"step", trainer ? Facts(trainer->step) : Facts(nullptr)},
                        {"disk_bytes", view->bytes_on_disk()}};
      if (!found.moved.empty()) facts["store"]["moved"] = found.moved;
      if (view->damaged) facts["store"]["damaged_record"] = view->damaged->text();
      if (trainer && !is_store_of(directory, *view)) facts["store"]["of_another_run"] = trainer->run_directory;
      else if (const std::string older = scheduler::older_than_known(directory, view->table.id, view->record.generation); !older.empty())
        facts["store"]["problem"] = older;
    }
  } catch (const Error& error) {
    facts["problem"] = error.what();
  }
  Facts files = Facts::array();
  for (const char* name : {"run.json", "session.json", "config.json", "plan.json", "metrics.jsonl", "trace.json"})
    if (fs::exists(directory / name)) files.push_back(name);
  facts["files"] = files;
  return facts;
}

Facts inspect_store_directory(const fs::path& directory) {
  Facts facts;
  if (const auto view = view_store(directory)) {
    facts = store_facts(*view);
  } else if (const auto header = tiers::read_state_header(directory)) {
    facts = {{"directory", header->directory + 1}, {"of_directories", header->directories}, {"file_bytes", header->file_bytes}};
    try {
      tiers::NvmeStore::inspect(directory);
    } catch (const Error& error) {
      facts["problem"] = error.message() + ": " + error.remedy();
    }
  } else {
    facts["problem"] = "only a lock file: a run or a store used this directory, and holds nothing here now";
  }
  add_leftovers(directory, facts);
  return facts;
}

Facts inspect_run_config(const fs::path& file) {
  const Config config = read_config(file);
  return {{"model_path", config.model.path.string()},
          {"steps", config.steps},
          {"sequence_length", config.data.sequence_length},
          {"tokens_per_step", config.batch.micro_batch_size * config.batch.gradient_accumulation_steps * config.data.sequence_length},
          {"compute", to_string(config.precision.compute)},
          {"device_memory_bytes", config.device.memory_bytes ? Facts(*config.device.memory_bytes) : Facts("auto")},
          {"host_memory_bytes", config.tiers.host_memory_bytes ? Facts(*config.tiers.host_memory_bytes) : Facts("auto")},
          {"nvme_directories", config.tiers.nvme.size()}};
}

Facts inspect_plan(const fs::path& file) {
  const Json plan = parse_json_file(file, ErrorCode::invalid_data);
  Facts facts;
  for (const char* key : {"model", "training_state_bytes", "placement", "schedule", "predicted"})
    if (plan.contains(key)) facts[key] = plan[key];
  if (plan.contains("tiers") && plan["tiers"].is_object()) {
    Facts rows = Facts::array();
    for (const auto& [tier, use] : plan["tiers"].items())
      rows.push_back({{"tier", tier}, {"planned_bytes", use.value("planned_bytes", Json())}, {"budget_bytes", use.value("budget_bytes", Json())}});
    facts["tiers"] = rows;
  }
  return facts;
}

Facts inspect_trace(const fs::path& file) {
  const Json trace = parse_json_file(file, ErrorCode::invalid_data, kLargeLimits);
  uint64_t operations = 0;
  double end_us = 0;
  for (const Json& event : trace["traceEvents"]) {
    if (!event.is_object() || !number_of(event, "ts") || !number_of(event, "dur")) continue;
    ++operations;
    end_us = std::max(end_us, *number_of(event, "ts") + *number_of(event, "dur"));
  }
  return {{"operations", operations}, {"seconds", end_us / 1e6}};
}

Facts inspect_machine_rates(const fs::path& file) {
  const scheduler::MachineRates rates = scheduler::read_machine_rates(file);
  return {{"compute_flops_per_second", rates.compute_flops}, {"h2d_GB_per_second", rates.h2d_bytes / 1e9},
          {"d2h_GB_per_second", rates.d2h_bytes / 1e9},      {"update_GB_per_second", rates.update_bytes / 1e9},
          {"nvme_read_GB_per_second", rates.nvme_read_bytes / 1e9}, {"nvme_write_GB_per_second", rates.nvme_write_bytes / 1e9}};
}

Facts inspect_leftover(const fs::path& path) {
  uint64_t bytes = 0;
  std::error_code error;
  if (fs::is_directory(path, error)) {
    for (const auto& entry : fs::recursive_directory_iterator(path, error))
      if (entry.is_regular_file(error)) bytes += entry.file_size(error);
  } else {
    bytes = fs::file_size(path, error);
  }
  const bool checkpoint = path.string().find(scheduler::kPartialSuffix) != std::string::npos;
  if (path.string().find(scheduler::kRemovedSuffix) != std::string::npos)
    return {{"bytes", bytes}, {"what", "a checkpoint that was being removed: never read, and the next session of its run removes the rest"}};
  return {{"bytes", bytes},
          {"what", checkpoint ? "a checkpoint that was not finished: never read, and the next session of its run removes it"
                              : "a file that was not finished: nothing reads it, it can be removed when no run is under way"}};
}

}  // namespace strata::cli
