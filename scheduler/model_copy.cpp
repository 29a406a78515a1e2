#include "scheduler/model_copy.hpp"

#include <system_error>

#include "core/content_hash.hpp"
#include "core/error.hpp"
#include "core/file.hpp"
#include "core/json.hpp"
#include "core/model_files.hpp"
#include "core/model_origin.hpp"

namespace strata::scheduler {

namespace {

namespace fs = std::filesystem;

constexpr const char* kFormatName = "strata-model-copy";
constexpr const char* kUnfinished = "model.partial";
constexpr size_t kSaidMax = 10;

void write_list(const fs::path& folder) {
  OrderedJson json = {{"format", kFormatName}, {"version", 1}, {"files", OrderedJson::array()}};
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (!entry.is_regular_file()) continue;
    json["files"].push_back({{"path", fs::relative(entry.path(), folder).string()},
                             {"bytes", entry.file_size()},
                             {"xxh3", hash_file(entry.path())}});
  }
  const std::string text = json.dump(1) + "\n";
  write_file_atomically(folder / kCopyListName, text.data(), text.size());
}

[[noreturn]] void damaged(const fs::path& path, const std::string& what) {
  throw Error(ErrorCode::data_corruption, "the run's copy of its input model is damaged: " + what, path.string(),
              "put back a whole copy of the file (a checkpoint's master/ folder has the same ones but for config.json's dtype), or remove "
              "the run's model/ folder: it is then made again from model.path");
}

void check_file(const fs::path& path, uint64_t bytes, const std::string& xxh3) {
  std::error_code error;
  if (const uint64_t found = fs::file_size(path, error); error || found != bytes)
    damaged(path, error ? "the file is missing" : fmt::format("it has {} bytes, {} were written", found, bytes));
  if (const std::string found = hash_file(path); found != xxh3)
    damaged(path, fmt::format("its checksum is {}, {} was written", found, xxh3));
}

void say_left_out(const std::vector<LeftOutFile>& left_out, const Narrate& narrate) {
  for (size_t i = 0; i < left_out.size() && i < kSaidMax; ++i)
    narrate(fmt::format("model file left out: {} ({})", printable(left_out[i].path, 200), left_out[i].reason));
  if (left_out.size() > kSaidMax) narrate(fmt::format("model files left out: {} more", left_out.size() - kSaidMax));
}

void fill(const fs::path& folder, const fs::path& model, const HfWeights* weights, const Narrate& narrate) {
  fs::remove_all(folder);
  fs::create_directory(folder);
  const std::vector<LeftOutFile> left_out = copy_model_files(model, folder);
  say_left_out(left_out, narrate);
  copy_whole_file(model / "config.json", folder / "config.json");
  if (weights != nullptr) ModelOrigin::write(folder, *weights, left_out);
  write_list(folder);
}

}  // namespace

void make_model_copy(const fs::path& run_directory, const fs::path& model, const HfWeights* weights, const Narrate& narrate) {
  const fs::path unfinished = run_directory / kUnfinished, final_path = run_directory / kModelCopyFolder;
  try {
    fill(unfinished, model, weights, narrate);
    fs::remove_all(final_path);  // of a run that saved no state: one that did keeps its copy
    fs::rename(unfinished, final_path);
  } catch (const fs::filesystem_error& error) {
    throw Error(error.code() == std::errc::no_space_on_device ? ErrorCode::resource_exhausted : ErrorCode::io,
                fmt::format("cannot keep a copy of the model's files: {}", error.code().message()), error.path1().string(),
                "check that the run directory can be written and has free space");
  }
  sync_directory(run_directory);
}

std::optional<fs::path> find_model_copy(const fs::path& run_directory) {
  const fs::path folder = run_directory / kModelCopyFolder, list = folder / kCopyListName;
  std::error_code error;
  if (!fs::exists(folder, error)) return std::nullopt;
  if (!fs::exists(list, error)) damaged(list, "the file is missing");
  const Json json = parse_json_file(list, ErrorCode::data_corruption);
  try {
    if (json.at("format") != kFormatName || json.at("version") != 1)
      throw Error(ErrorCode::invalid_data, "the run's copy of its input model is of an unknown format or version", list.string());
    for (const Json& file : json.at("files")) {
      const fs::path path = file.at("path").get<std::string>();
      for (const auto& piece : path)
        if (path.is_absolute() || piece == "..") damaged(list, "it names a file outside the folder");
      check_file(folder / path, file.at("bytes").get<uint64_t>(), file.at("xxh3").get<std::string>());
    }
  } catch (const Json::exception& problem) {
    damaged(list, problem.what());
  }
  if (!fs::exists(folder / "config.json", error)) damaged(folder / "config.json", "the file is missing");
  return folder;
}

fs::path describing_directory(const fs::path& model, const std::optional<fs::path>& copy, const Narrate& narrate) {
  std::error_code error;
  if (!copy || fs::exists(model / "config.json", error)) return model;
  narrate(fmt::format("the model at {} is gone: continuing with the run's copy of its description in {}", printable(model.string(), 200),
                      copy->string()));
  return *copy;
}

}  // namespace strata::scheduler
