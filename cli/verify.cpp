#include <algorithm>
#include <cmath>
#include <memory>
#include <set>

#include "cli/commands.hpp"
#include "cli/console.hpp"
#include "cli/inspectors.hpp"
#include "cli/path_kind.hpp"
#include "cli/run_files.hpp"
#include "core/content_hash.hpp"
#include "core/error.hpp"
#include "core/hf_weights.hpp"
#include "core/token_meta.hpp"
#include "core/tokens.hpp"
#include "scheduler/checkpoint_manifest.hpp"
#include "scheduler/model_copy.hpp"
#include "scheduler/run_store.hpp"
#include "tiers/store.hpp"

namespace strata::cli {

namespace {

namespace fs = std::filesystem;

constexpr uint64_t kPieceElements = 1 << 20;
constexpr uint64_t kPieceBytes = 4 << 20;

struct VerifyArguments {
  std::vector<std::string> paths;
  std::string format;
  std::vector<std::string> stores;
  bool newest = false;
  bool json = false;
};

struct Findings {
  std::vector<std::string> broken;
  std::vector<std::string> notes;
  uint64_t files = 0;
  uint64_t bytes = 0;
  std::vector<scheduler::StoreMove> moves;  // where stores are that were moved

  /// A line, or a line for each problem of an error that lists several.
  void add(const Error& error) {
    constexpr std::string_view kItem = "\n  - ";
    const std::string where = error.where().empty() ? "" : error.where() + ": ";
    const std::string& text = error.message();
    size_t begin = text.find(kItem);
    if (begin == std::string::npos) broken.push_back(where + text);
    while (begin != std::string::npos) {
      begin += kItem.size();
      const size_t end = text.find(kItem, begin);
      broken.push_back(where + text.substr(begin, end == std::string::npos ? end : end - begin));
      begin = end;
    }
  }
  /// An error of the check is what the check found. A store that a run holds is not judged at all.
  template <class Check>
  void attempt(Check&& check) {
    try {
      check();
    } catch (const Error& error) {
      if (error.code() == ErrorCode::busy || error.code() == ErrorCode::internal) throw;
      add(error);
    } catch (const fs::filesystem_error& error) {
      add(to_error(error));
    }
  }
};

// Models -----------------------------------------------------------------------------------------------------------

/// Reads every weight; names tensors that hold something that is no finite number.
void verify_weights(const HfWeights& weights, const ModelLayout& layout, Findings& findings) {
  ProgressLine progress("verify");
  std::vector<float> values(kPieceElements);
  uint64_t done = 0;
  for (size_t unit = 0; unit < layout.units.size(); ++unit)
    for (const TensorLayout& tensor : layout.units[unit].tensors) {
      uint64_t bad = 0, first_bad = 0;
      for (uint64_t at = 0; at < tensor.elements; at += kPieceElements) {
        const uint64_t count = std::min(kPieceElements, tensor.elements - at);
        weights.read_as_float(unit, {tensor.offset + at, count}, values.data());
        for (uint64_t i = 0; i < count; ++i)
          if (!std::isfinite(values[i]) && bad++ == 0) first_bad = at + i;
        progress.show(done += count, layout.elements());
      }
      if (bad > 0)
        findings.broken.push_back(fmt::format("{}: {} of {} values are not finite, the first at element {}", tensor.name, bad,
                                              tensor.elements, first_bad));
    }
}

void verify_model_directory(const fs::path& directory, Findings& findings) {
  findings.attempt([&] {
    const ModelDescription model = read_model_description(directory);
    const ModelLayout layout = make_layout(model);
    const HfWeights weights(directory, model, layout);
    verify_weights(weights, layout, findings);
    for (const fs::path& file : weight_files(directory)) {
      ++findings.files;
      findings.bytes += fs::file_size(file);
    }
  });
  findings.notes.push_back("a model directory has no checksums: checked are its structure, and that every weight is a finite number");
}

void verify_safetensors(const fs::path& path, Findings& findings) {
  findings.attempt([&] {
    const SafetensorsFile file(path);
    std::vector<std::byte> piece(kPieceBytes);
    ProgressLine progress("verify");
    uint64_t done = 0;
    for (const SafetensorsEntry& tensor : file.tensors())
      for (uint64_t at = 0; at < tensor.bytes(); at += kPieceBytes) {
        const uint64_t bytes = std::min(kPieceBytes, tensor.bytes() - at);
        file.read(tensor, at, piece.data(), bytes);
        file.drop_cached(tensor, at, bytes);
        progress.show(done += bytes, file.data_bytes());
      }
    ++findings.files;
    findings.bytes += fs::file_size(path);
  });
  findings.notes.push_back("a safetensors file has no checksums: checked are its structure, and that every byte can be read");
}

void verify_tokens(const fs::path& path, DataFormat format, Findings& findings) {
  require_known_format(path, format);
  findings.attempt([&] {
    const TokenFile file(path, format);
    ++findings.files;
    findings.bytes += fs::file_size(path);
    int64_t vocab_size = std::max<int64_t>(file.stated_vocab_size().value_or(0), 0);
    findings.attempt([&] {
      const auto meta = read_token_meta(path);
      if (!meta) return;
      ++findings.files;
      vocab_size = meta->vocab_size;
      check_meta_of_file(*meta, file);
    });
    ProgressLine progress("verify");
    uint64_t done = 0;
    file.check_tokens(vocab_size, [&](uint64_t bytes) { progress.show(done += bytes, file.tokens() * file.token_bytes()); });
  });
  findings.notes.push_back(
      "a token file has no checksums: checked are its header, its size, the width of its tokens, and where it or its description states a "
      "vocabulary, each token");
}

/// The description alone: the token file's format may not be known.
void verify_token_meta(const fs::path& path, Findings& findings) {
  TokenMeta::read(path);
  ++findings.files;
  findings.bytes += fs::file_size(path);
  findings.notes.push_back("checked is the description alone: verify the token file that it is of");
}

// Stores -----------------------------------------------------------------------------------------------------------

void verify_store(const std::vector<fs::path>& directories, Findings& findings) {
  findings.attempt([&] {
    const auto store = tiers::NvmeStore::open_read_only(directories);
    ProgressLine progress("verify store");
    uint64_t bytes = 0;
    for (std::string& line : store->verify([&](uint64_t done, uint64_t total) {
           progress.show(done, total);
           bytes = done;
         }))
      findings.broken.push_back(std::move(line));
    findings.files += directories.size() + 1;
    findings.bytes += bytes;
    findings.notes.push_back(fmt::format(
        "of the store in {} were checked: headers, table, both commit records, and all committed state; the slots that are not committed hold "
        "nothing that is read",
        directories.front().string()));
  });
}

/// The files of a store can be whole and yet older than what the run committed.
void check_age(const fs::path& run_directory, const StoreView& view, Findings& findings) {
  const std::string older = scheduler::older_than_known(run_directory, view.table.id, view.record.generation);
  if (!older.empty()) findings.broken.push_back(older);
}

/// `named`: the first directory, or all of them in any order.
void verify_store_directory(std::vector<fs::path> named, Findings& findings) {
  for (const fs::path& path : named)
    if (fs::exists(path / tiers::kCommitFileName)) std::swap(named.front(), *std::find(named.begin(), named.end(), path));
  if (!fs::exists(named.front() / tiers::kCommitFileName)) {
    try {
      tiers::NvmeStore::inspect(named.front());
    } catch (const Error& error) {
      if (error.code() != ErrorCode::data_corruption) throw;  // says what it is
      findings.add(error);
      findings.notes.push_back(error.remedy());
      return;
    }
  }
  findings.attempt([&] {
    const auto view = view_store(named.front());
    STRATA_CHECK(view, "{} had a commit file", named.front().string());
    if (view->record.generation == 0) {
      findings.notes.push_back("the store has no commit yet: there is nothing to verify");
      return;
    }
    verify_store(named.size() > 1 ? named : directories_of_store(named.front(), *view, findings.moves), findings);
    if (const auto trainer = view->trainer()) check_age(trainer->run_directory, *view, findings);
  });
  for (const std::string& name : stray_names(named.front()))
    findings.notes.push_back(fmt::format("left by a killed process: {}", (named.front() / name).string()));
}

// Checkpoints ------------------------------------------------------------------------------------------------------

void verify_file(const fs::path& checkpoint, const scheduler::CheckpointManifest::File& file, const OnRead& on_read, Findings& findings) {
  const fs::path path = checkpoint / file.path;
  std::error_code error;
  const uint64_t bytes = fs::file_size(path, error);
  if (error) {
    findings.broken.push_back(fmt::format("{}: is missing", path.string()));
  } else if (bytes != file.bytes) {
    findings.broken.push_back(fmt::format("{}: has {} bytes, {} were written", path.string(), bytes, file.bytes));
  } else {
    findings.attempt([&] {
      if (const std::string found = hash_file(path, on_read); found != file.xxh3)
        findings.broken.push_back(fmt::format("{}: its checksum is {}, {} was written", path.string(), found, file.xxh3));
    });
    ++findings.files;
    findings.bytes += bytes;
  }
}

/// A file of a checkpoint has a checksum in the manifest. Returns whether it is one.
bool verify_file_of_checkpoint(const fs::path& file, Findings& findings) {
  const fs::path checkpoint = fs::absolute(file).lexically_normal().parent_path().parent_path();
  if (!fs::exists(checkpoint / scheduler::kManifestName)) return false;
  bool listed = false;
  findings.attempt([&] {
    const auto manifest = scheduler::CheckpointManifest::read(checkpoint);
    for (const auto& one : manifest.files) {
      if (checkpoint / one.path != fs::absolute(file).lexically_normal()) continue;
      listed = true;
      verify_file(checkpoint, one, {}, findings);
      findings.notes.push_back(fmt::format("checked is this file alone, by the manifest of {}, which has {} more", checkpoint.string(),
                                           manifest.files.size() - 1));
    }
  });
  return listed;
}

/// A file of weights that the manifest does not list could be read in place of one that it does.
void find_foreign_files(const fs::path& checkpoint, const scheduler::CheckpointManifest& manifest, Findings& findings) {
  std::set<std::string> listed;
  for (const auto& file : manifest.files) listed.insert(file.path);
  std::error_code error;
  for (const auto& entry : fs::recursive_directory_iterator(checkpoint, error)) {
    const fs::path path = entry.path().lexically_relative(checkpoint);
    if (manifest.copy && *path.begin() == scheduler::kStoreFolder) continue;  // the store's own checks tell
    if (!entry.is_regular_file() || path == scheduler::kManifestName || path == scheduler::kPinnedName || listed.contains(path.string())) continue;
    const bool read = path.extension() == ".safetensors" || path.extension() == ".json";
    (read ? findings.broken : findings.notes).push_back(fmt::format("{}: is not of this checkpoint", entry.path().string()));
  }
}

/// `must_be_current`: whether a store that has moved past the checkpoint is a fault. It is not for a run, which resumes from the store.
void verify_checkpoint(const fs::path& checkpoint, bool must_be_current, Findings& findings, std::set<std::string>& stores_done) {
  findings.attempt([&] {
    const auto manifest = scheduler::CheckpointManifest::read(checkpoint);
    ProgressLine progress("verify " + checkpoint.filename().string());
    uint64_t done = 0, total = 0;
    for (const auto& file : manifest.files) total += file.bytes;
    const auto on_read = [&](uint64_t bytes) { progress.show(done += bytes, total); };
    for (const auto& file : manifest.files) verify_file(checkpoint, file, on_read, findings);
    find_foreign_files(checkpoint, manifest, findings);
    if (checkpoint.extension() == scheduler::kPartialSuffix)
      findings.notes.push_back(fmt::format("{}: whole but for its name, which the next session of its run gives it", checkpoint.string()));
    if (manifest.kind != scheduler::CheckpointKind::store) return;
    const scheduler::FoundStore found = manifest.locate_store(checkpoint, findings.moves);
    if (!found.moved.empty()) findings.notes.push_back(found.moved);
    const std::vector<fs::path>& directories = found.directories;
    const uint64_t generation = tiers::NvmeStore::inspect(directories.front()).generation;
    if (generation != manifest.store.generation) {
      // A store that is behind its checkpoint has lost a commit.
      const bool fault = must_be_current || generation < manifest.store.generation;
      (fault ? findings.broken : findings.notes)
          .push_back(fmt::format("{}: is generation {} of the store in {}, which is at {}{}", checkpoint.string(), manifest.store.generation,
                                 directories.front().string(), generation,
                                 generation < manifest.store.generation ? ": the store lost a commit, or its files are older copies" : ""));
      if (fault) return;
    }
    if (stores_done.insert(fs::weakly_canonical(directories.front()).string()).second) verify_store(directories, findings);
  });
}

/// Returns how many checkpoints there are.
size_t verify_checkpoints(const fs::path& folder, bool newest, Findings& findings, std::set<std::string>& stores_done) {
  std::vector<scheduler::IgnoredCheckpoint> ignored;
  const auto found = scheduler::list_checkpoints(folder, &ignored);
  for (const auto& info : found) {
    verify_checkpoint(info.path, /*must_be_current=*/false, findings, stores_done);
    if (newest) break;
  }
  for (const auto& one : ignored)
    (one.unfinished ? findings.notes : findings.broken).push_back(one.text());  // an unfinished one is never read
  return found.size() + ignored.size();
}

void verify_run_directory(const fs::path& directory, bool newest, Findings& findings) {
  std::set<std::string> stores_done;
  const size_t checkpoints = verify_checkpoints(directory / "checkpoints", newest, findings, stores_done);
  findings.attempt([&] { findings.files += scheduler::find_model_copy(directory).has_value(); });
  findings.attempt([&] {
    const scheduler::FoundStore found = store_of_run(directory, findings.moves);
    const std::vector<fs::path>& store = found.directories;
    const auto view = store.empty() ? std::nullopt : view_store(store.front());
    // Another run may have taken the directory since, or the store may hold no state of this run (generation 0).
    if (view && view->record.generation > 0 && is_store_of(directory, *view)) {
      check_age(directory, *view, findings);
      if (stores_done.insert(fs::weakly_canonical(store.front()).string()).second) verify_store(store, findings);
    } else if (checkpoints == 0) {
      findings.broken.push_back(fmt::format("{}: the run has neither a checkpoint nor a committed store", directory.string()));
    }
  });
}

// ------------------------------------------------------------------------------------------------------------------

DataFormat format_of(const VerifyArguments& arguments) {
  return arguments.format.empty() ? DataFormat::automatic : token_formats().at(arguments.format);
}

void verify(const NamedPath& named, const VerifyArguments& arguments, Findings& findings) {
  std::set<std::string> stores_done;
  switch (named.kind) {
    case PathKind::model_directory: return verify_model_directory(named.path, findings);
    case PathKind::safetensors:
      if (verify_file_of_checkpoint(named.path, findings)) return;
      return verify_safetensors(named.path, findings);
    case PathKind::tokens: return verify_tokens(named.path, format_of(arguments), findings);
    case PathKind::checkpoint: return verify_checkpoint(named.path, /*must_be_current=*/true, findings, stores_done);
    case PathKind::checkpoints_folder:
      if (verify_checkpoints(named.path, arguments.newest, findings, stores_done) == 0)
        findings.broken.push_back(fmt::format("{}: there is no checkpoint", named.path.string()));
      return;
    case PathKind::run_directory: return verify_run_directory(named.path, arguments.newest, findings);
    case PathKind::store_directory: {
      std::vector<fs::path> directories(arguments.paths.begin(), arguments.paths.end());
      directories.front() = named.path;
      return verify_store_directory(std::move(directories), findings);
    }
    case PathKind::safetensors_index: return verify_model_directory(named.path.parent_path(), findings);
    case PathKind::model_config: return findings.attempt([&] { read_model_description(named.path); });
    case PathKind::token_meta: return findings.attempt([&] { verify_token_meta(named.path, findings); });
    case PathKind::run_config:
    case PathKind::metrics:
    case PathKind::plan:
    case PathKind::trace:
    case PathKind::machine_rates:
    case PathKind::leftover: break;
  }
  throw Error(ErrorCode::invalid_data, fmt::format("there is nothing to verify: this is a {}", to_string(named.kind)), named.path.string(),
              "name a model directory, a checkpoint, a run directory or an NVMe directory");
}

void print(const NamedPath& named, const Findings& findings, bool json) {
  if (json) {
    print_facts({{"kind", to_string(named.kind)},
                 {"path", named.path.string()},
                 {"ok", findings.broken.empty()},
                 {"files", findings.files},
                 {"bytes_verified", findings.bytes},
                 {"broken", findings.broken},
                 {"notes", findings.notes}},
                true);
    return;
  }
  for (const std::string& line : findings.broken) fmt::print("broken: {}\n", shown_text(line));
  for (const std::string& line : findings.notes) fmt::print("note: {}\n", shown_text(line));
  fmt::print("{}: {} {}, {} verified ({} bytes)\n", findings.broken.empty() ? "ok" : fmt::format("{} broken", findings.broken.size()),
             findings.files, findings.files == 1 ? "file" : "files", format_bytes(findings.bytes), findings.bytes);
}

void run(const VerifyArguments& arguments) {
  // A format that is named says that the file is one of tokens, whatever it looks like.
  NamedPath named{PathKind::tokens, arguments.paths.front()};
  if (arguments.format.empty()) named = identify(arguments.paths.front());
  if (arguments.paths.size() > 1 && named.kind != PathKind::store_directory)
    throw Error(ErrorCode::invalid_configuration, "several paths are given, but the first is not a directory of a store",
                named.path.string(), "verify one thing at a time");
  Findings findings;
  findings.moves = scheduler::parse_store_moves(arguments.stores);
  verify(named, arguments, findings);
  print(named, findings, arguments.json);
  if (!findings.broken.empty()) throw CommandFailed{};
}

}  // namespace

void add_verify(CLI::App& app) {
  auto arguments = std::make_shared<VerifyArguments>();
  CLI::App* command = app.add_subcommand("verify", "Check every checksum; exit status 1 names what is broken");
  command->add_option("path", arguments->paths,
                      "A checkpoint, checkpoints/ folder, run directory, NVMe directory (or all directories of one store, in "
                      "any order), model directory, .safetensors file or token file")->required();
  command->add_option("--format", arguments->format, "The format of a token file; needed for files without a header")
      ->check(CLI::IsMember(token_formats()));
  add_store_option(*command, arguments->stores);
  command->add_flag("--newest", arguments->newest, "Of a folder or run, check the newest checkpoint alone");
  command->add_flag("--json", arguments->json, "Print JSON");
  command->callback([arguments] { run(*arguments); });
}

}  // namespace strata::cli
