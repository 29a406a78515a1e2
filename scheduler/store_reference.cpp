#include "scheduler/store_reference.hpp"

#include <algorithm>
#include <set>
#include <system_error>

#include "core/error.hpp"
#include "scheduler/trainer_record.hpp"
#include "tiers/format.hpp"

namespace strata::scheduler {

namespace {

namespace fs = std::filesystem;

constexpr size_t kNeighboursMax = 1000;  // of one directory: a search, not a scan of the disk

fs::path normal(const fs::path& path) {
  std::error_code error;
  const fs::path absolute = fs::absolute(path, error).lexically_normal();
  return absolute.has_filename() ? absolute : absolute.parent_path();
}

bool same_place(const fs::path& a, const fs::path& b) {
  std::error_code error;
  return normal(a) == normal(b) || fs::equivalent(a, b, error);
}

/// What cannot be read is no candidate.
std::optional<tiers::StateFileHeader> header_of(const fs::path& directory) {
  std::error_code error;
  if (!fs::is_directory(directory, error)) return std::nullopt;
  try {
    return tiers::read_state_header(directory);
  } catch (const Error&) {
    return std::nullopt;
  }
}

class Finder {
 public:
  Finder(const StoreReference& reference, const StoreSearch& search)
      : reference_(reference), search_(search), id_(reference.id), found_(reference.directories.size()) {}

  FoundStore find() {
    check_moves();
    const std::vector<fs::path> near = candidates();
    for (const fs::path& candidate : near) take(candidate);
    if (!whole())
      for (const fs::path& candidate : neighbours(near)) take(candidate);
    if (!whole()) refuse();
    return {found_, moved()};
  }

 private:
  bool whole() const {
    return std::none_of(found_.begin(), found_.end(), [](const fs::path& path) { return path.empty(); });
  }

  void check_moves() const {
    for (const StoreMove& move : search_.moves) {
      const auto is_from = [&](const auto& directory) { return same_place(directory, move.from); };
      if (std::none_of(reference_.directories.begin(), reference_.directories.end(), is_from) &&
          std::none_of(search_.configured.begin(), search_.configured.end(), is_from))
        throw Error(ErrorCode::invalid_configuration, "--store names a directory that no store of this run was in", move.from.string(),
                    fmt::format("before the = name where it was: {}", joined(reference_.directories)));
      if (!header_of(move.to))
        throw Error(ErrorCode::invalid_configuration, "--store names a directory that holds no store", move.to.string(),
                    "after the = name the directory that holds strata.state now");
    }
  }

  std::vector<fs::path> candidates() const {
    std::vector<fs::path> paths;
    for (const StoreMove& move : search_.moves) paths.push_back(move.to);
    for (const std::string& path : reference_.relative) paths.push_back((search_.base / path).lexically_normal());
    for (const std::string& path : reference_.directories) paths.emplace_back(path);
    paths.insert(paths.end(), search_.configured.begin(), search_.configured.end());
    return paths;
  }

  /// The directories beside the candidates, in the run's directory and beside that.
  std::vector<fs::path> neighbours(const std::vector<fs::path>& near) const {
    std::set<fs::path> parents;
    for (const fs::path& path : near) parents.insert(normal(path).parent_path());
    const fs::path base = normal(search_.base);
    const bool checkpoint = base.parent_path().filename() == "checkpoints";
    const fs::path run = checkpoint ? base.parent_path().parent_path() : base;
    parents.insert({run, run.parent_path()});
    std::vector<fs::path> paths;
    for (const fs::path& parent : parents) {
      std::error_code error;
      size_t count = 0;
      for (fs::directory_iterator at(parent, fs::directory_options::skip_permission_denied, error), end;
           !error && at != end && count < kNeighboursMax; at.increment(error), ++count)
        paths.push_back(at->path());
    }
    std::sort(paths.begin(), paths.end());
    return paths;
  }

  void take(const fs::path& candidate) {
    const auto header = header_of(candidate);
    if (!header || header->directories != found_.size() || header->directory >= found_.size()) return;
    if (!id_ && header->directory == 0 && is_of_run(candidate)) {
      id_ = header->id;
      retake();
    }
    unidentified_.push_back(candidate);
    if (id_ == header->id && found_[header->directory].empty()) found_[header->directory] = candidate;
  }

  /// Candidates that came before the store was identified.
  void retake() {
    for (const fs::path& candidate : unidentified_)
      if (const auto header = header_of(candidate); header && header->id == id_ && found_[header->directory].empty())
        found_[header->directory] = candidate;
  }

  /// A reference without an id tells its store by the run that committed to it.
  bool is_of_run(const fs::path& candidate) const {
    try {
      const auto record = tiers::NvmeStore::inspect(candidate).record;
      return TrainerRecord::from_json(record, candidate.string()).run_directory == search_.run_directory;
    } catch (const Error&) {
      return false;
    }
  }

  std::string moved() const {
    std::string text;
    for (size_t i = 0; i < found_.size(); ++i)
      if (!same_place(found_[i], reference_.directories[i]))
        text += fmt::format("{}{} is now {}", text.empty() ? "the store has moved: " : ", ", reference_.directories[i], found_[i].string());
    return text;
  }

  [[noreturn]] void refuse() const {
    std::string lacking;
    for (size_t i = 0; i < found_.size(); ++i) {
      if (!found_[i].empty()) continue;
      std::string path = reference_.directories[i];
      std::error_code error;
      const bool other = header_of(path).has_value();
      if (!other && fs::is_directory(path, error)) path = (fs::path(path) / tiers::kStateFileName).string();  // a mount point, or a lost file
      lacking += fmt::format("{}{}{}", lacking.empty() ? "" : ", ", path, other ? " (another store lies there now)" : "");
    }
    throw Error(ErrorCode::invalid_data, "the NVMe store that holds the state is not where it was", lacking,
                "mount its drive or bring the directory back; if it was moved, name its place: --store OLD=NEW");
  }

  static std::string joined(const std::vector<std::string>& paths) {
    std::string text;
    for (const std::string& path : paths) text += (text.empty() ? "" : ", ") + path;
    return text;
  }

  const StoreReference& reference_;
  const StoreSearch& search_;
  std::optional<tiers::StoreId> id_;
  std::vector<fs::path> found_;
  std::vector<fs::path> unidentified_;
};

}  // namespace

StoreReference reference_to(const tiers::NvmeStore& store, const fs::path& base) {
  StoreReference reference{.id = store.id(), .directories = {}, .relative = {}, .generation = store.generation()};
  const fs::path from = fs::weakly_canonical(fs::absolute(base));
  for (const fs::path& directory : store.directories()) {
    const fs::path absolute = fs::canonical(directory);
    reference.directories.push_back(absolute.string());
    reference.relative.push_back(absolute.lexically_relative(from).string());
  }
  return reference;
}

std::vector<StoreMove> parse_store_moves(const std::vector<std::string>& texts) {
  std::vector<StoreMove> moves;
  for (const std::string& text : texts) {
    const size_t equals = text.find('=');
    if (equals == std::string::npos || equals == 0 || equals + 1 == text.size())
      throw Error(ErrorCode::invalid_configuration, fmt::format("\"{}\" is not OLD=NEW", text), "--store",
                  "name the directory where the store was and the one where it is now");
    moves.push_back({normal(text.substr(0, equals)), normal(text.substr(equals + 1))});
  }
  return moves;
}

FoundStore find_store(const StoreReference& reference, const StoreSearch& search) { return Finder(reference, search).find(); }

}  // namespace strata::scheduler
