#include "scheduler/run_store.hpp"

#include <algorithm>
#include <system_error>

#include "core/error.hpp"
#include "core/file.hpp"
#include "core/json.hpp"
#include "scheduler/checkpoint_manifest.hpp"
#include "tiers/format.hpp"

namespace strata::scheduler {

namespace {

namespace fs = std::filesystem;

constexpr const char* kFormatName = "strata-run-store";

std::optional<tiers::StateFileHeader> header_of(const fs::path& directory) {
  std::error_code error;
  try {
    if (fs::is_directory(directory, error)) return tiers::read_state_header(directory);
  } catch (const Error&) {
    // What cannot be read holds nothing that can be followed.
  }
  return std::nullopt;
}

bool same_place(const fs::path& a, const fs::path& b) {
  std::error_code error;
  return fs::weakly_canonical(fs::absolute(a), error) == fs::weakly_canonical(fs::absolute(b), error);
}

/// A reference and where its relative paths start.
struct Known {
  RunStore run_store;
  StoreSearch search;
};

std::optional<RunStore> read_file(const fs::path& path) {
  std::error_code error;
  if (!fs::exists(path, error)) return std::nullopt;
  const Json json = parse_json_file(path, ErrorCode::data_corruption);
  const auto refuse = [&](const std::string& what) -> void {
    throw Error(ErrorCode::data_corruption, "what the run knows of its store is not whole: " + what, path.string(),
                "put back a whole copy of the file; without it the run still finds its store by its checkpoints");
  };
  try {
    RunStore known;
    if (json.at("format") != kFormatName || json.at("version") != 1) refuse("it is of an unknown format or version");
    known.store.id = tiers::store_id_from_hex(json.at("id").get<std::string>());
    json.at("directories").get_to(known.store.directories);
    json.at("relative").get_to(known.store.relative);
    const auto whole = [&](const char* key) {
      if (!json.at(key).is_number_unsigned()) refuse(fmt::format("\"{}\" is no whole number", key));
      return json.at(key).get<uint64_t>();
    };
    known.store.generation = whole("generation");
    known.step = static_cast<int64_t>(whole("step"));
    if (!known.store.id || known.store.directories.empty() || known.store.relative.size() != known.store.directories.size() || known.step < 0)
      refuse("its values are impossible");
    return known;
  } catch (const Json::exception& problem) {
    refuse(problem.what());
  }
  return std::nullopt;
}

std::optional<Known> find_known(const fs::path& run_directory) {
  if (auto known = read_file(run_directory / kRunStoreName)) return Known{*known, {.base = run_directory}};
  for (const CheckpointInfo& info : list_checkpoints(run_directory / "checkpoints", nullptr)) {
    if (info.kind != CheckpointKind::store || info.copy) continue;
    const auto manifest = CheckpointManifest::read(info.path);
    return Known{{manifest.store, info.record.step}, {.base = info.path, .run_directory = info.record.run_directory}};
  }
  return std::nullopt;
}

}  // namespace

void write_run_store(const fs::path& run_directory, const tiers::NvmeStore& store, int64_t step) {
  const StoreReference reference = reference_to(store, run_directory);
  const OrderedJson json = {{"format", kFormatName},
                            {"version", 1},
                            {"id", tiers::to_hex(reference.id.value())},
                            {"directories", reference.directories},
                            {"relative", reference.relative},
                            {"generation", reference.generation},
                            {"step", step}};
  const std::string text = json.dump(2) + "\n";
  write_file_atomically(run_directory / kRunStoreName, text.data(), text.size());
}

std::optional<RunStore> read_run_store(const fs::path& run_directory) {
  const std::optional<Known> known = find_known(run_directory);
  return known ? std::optional(known->run_store) : std::nullopt;
}

std::optional<FoundStore> find_run_store(const fs::path& run_directory, const std::vector<fs::path>& configured,
                                         const std::vector<StoreMove>& moves) {
  std::optional<Known> known = find_known(run_directory);
  if (!known) return std::nullopt;
  known->search.moves = moves;
  known->search.configured = configured;
  try {
    return find_store(known->run_store.store, known->search);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::invalid_data || !moves.empty()) throw;
    return std::nullopt;
  }
}

std::string older_than_known(const fs::path& run_directory, const tiers::StoreId& id, uint64_t generation) {
  const std::optional<RunStore> known = read_run_store(run_directory);
  if (!known || known->store.id != id || generation >= known->store.generation) return {};
  return fmt::format("the store is at generation {}, but the run knew its generation {}, of step {}: its files are older copies, or its last "
                     "commits were lost",
                     generation, known->store.generation, known->step);
}

void follow_store(Config& config, const fs::path& run_directory, const std::vector<StoreMove>& moves,
                  const std::function<void(const std::string&)>& narrate) {
  std::vector<fs::path> configured;
  for (const auto& directory : config.tiers.nvme) configured.push_back(directory.path);
  std::optional<Known> known = find_known(run_directory);
  if (!known) {
    // Nothing tells which store it is: what is named is taken at its word, and the start of the run checks whose it is.
    for (const StoreMove& move : moves) {
      const auto at = std::find_if(config.tiers.nvme.begin(), config.tiers.nvme.end(), [&](const auto& one) { return same_place(one.path, move.from); });
      if (at == config.tiers.nvme.end())
        throw Error(ErrorCode::invalid_configuration, "--store names a directory that is not in tiers.nvme", move.from.string(),
                    "before the = name a directory of tiers.nvme");
      at->path = move.to;
    }
    return;
  }
  const StoreReference& store = known->run_store.store;
  if (configured.size() != store.directories.size()) return;
  const auto is_own = [&](const fs::path& path) {
    const auto header = header_of(path);
    return header && store.id && header->id == *store.id;
  };
  if (moves.empty() && std::all_of(configured.begin(), configured.end(), is_own)) return;
  const bool as_recorded = std::equal(configured.begin(), configured.end(), store.directories.begin(), same_place);
  const bool holds_others = std::any_of(configured.begin(), configured.end(), [&](const fs::path& path) { return header_of(path) && !is_own(path); });
  if (moves.empty() && holds_others && !as_recorded && store.id) return;
  const std::optional<FoundStore> found = find_run_store(run_directory, configured, moves);
  if (!found || found->moved.empty()) return;  // the start of the run says what is not there
  for (size_t i = 0; i < found->directories.size(); ++i) config.tiers.nvme[i].path = found->directories[i];
  narrate(found->moved);
}

}  // namespace strata::scheduler
