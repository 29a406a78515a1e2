#include "core/model_files.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <string_view>
#include <system_error>

#include "core/config.hpp"
#include "core/error.hpp"
#include "core/file.hpp"
#include "core/json.hpp"
#include "core/model_origin.hpp"

namespace strata {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kCopyBytes = 1 << 20;
constexpr int kDepthMax = 4;

// Weights and checkpoints of other programs: large, out of date beside the trained ones, and many of them are programs when loaded.
constexpr std::array<std::string_view, 20> kForeignWeights = {
    ".safetensors", ".bin",  ".pt",     ".pth", ".ckpt",   ".h5",   ".hdf5",    ".msgpack", ".gguf",  ".ggml",
    ".onnx",        ".onnx_data", ".ot", ".pkl", ".pickle", ".npz",  ".tflite", ".mlmodel", ".pte", ".safetensors.index.json"};
constexpr std::array<std::string_view, 5> kForeignFolders = {"original", "onnx", "openvino", "coreml", "metal"};

bool is_text(const std::string& name) {
  try {
    static_cast<void>(Json(name).dump());
    return true;
  } catch (const Json::exception&) {
    return false;
  }
}

/// model.safetensors, a shard of it, or the index: what the layout's tensors come from and go to.
bool is_own_weights(std::string_view name) {
  if (name == "model.safetensors" || name == "model.safetensors.index.json") return true;
  return name.starts_with("model-") && name.find("-of-") != name.npos && name.ends_with(".safetensors");
}

bool is_foreign_weights(std::string name) {
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char letter) { return std::tolower(letter); });
  return name.ends_with(".bin.index.json") || name.ends_with(".h5.index.json") || name.ends_with(".msgpack.index.json") ||
         std::any_of(kForeignWeights.begin(), kForeignWeights.end(), [&](std::string_view end) { return name.ends_with(end); });
}

bool is_inside(const fs::path& path, const fs::path& folder) {
  const fs::path inside = path.lexically_relative(folder);
  return !inside.empty() && *inside.begin() != "..";
}

class Lister {
 public:
  Lister(const fs::path& directory, const fs::path& except) : root_(fs::canonical(directory)), except_(except) {
    // A Hugging Face cache: snapshots/REVISION/NAME is a link to blobs/HASH beside snapshots/.
    if (root_.parent_path().filename() == "snapshots") blobs_ = root_.parent_path().parent_path() / "blobs";
  }

  ModelFiles list() {
    visit({}, 0);
    return std::move(found_);
  }

 private:
  void leave_out(const fs::path& path, std::string reason) { found_.left_out.push_back({path.string(), std::move(reason)}); }

  void visit(const fs::path& folder, int depth) {
    std::vector<fs::path> names, folders;
    for (const auto& entry : fs::directory_iterator(root_ / folder)) names.push_back(entry.path().filename());
    std::sort(names.begin(), names.end());
    for (const fs::path& name : names)
      if (is_wanted_folder(folder / name, depth)) folders.push_back(folder / name);
    for (const fs::path& inner : folders) visit(inner, depth + 1);
  }

  /// Takes or leaves out what is no folder to go into.
  bool is_wanted_folder(const fs::path& path, int depth) {
    const std::string name = path.filename().string();
    if (depth == 0 && (name == "config.json" || is_own_weights(name) || is_origin_file(name))) return false;
    if (!is_text(name)) return leave_out(path, "its name is not UTF-8"), false;
    if (name.starts_with('.')) return leave_out(path, "hidden"), false;
    std::error_code error;
    const fs::file_status here = fs::symlink_status(root_ / path, error);
    if (fs::is_directory(here)) return is_wanted_directory(path, name, depth);
    if (fs::is_symlink(here)) {
      const fs::path target = fs::canonical(root_ / path, error);
      if (error) return leave_out(path, "a link to nothing"), false;
      if (!is_inside(target, root_) && (blobs_.empty() || !is_inside(target, blobs_)))
        return leave_out(path, "a link that leads out of the directory"), false;
      if (fs::is_directory(target, error)) return leave_out(path, "a link to a folder"), false;
    }
    take_file(path, name);
    return false;
  }

  bool is_wanted_directory(const fs::path& path, const std::string& name, int depth) {
    std::error_code error;
    if (!except_.empty() && fs::equivalent(root_ / path, except_, error)) return false;
    if (std::find(kForeignFolders.begin(), kForeignFolders.end(), name) != kForeignFolders.end())
      return leave_out(path, "weights in another format"), false;
    if (fs::exists(root_ / path / "config.json", error)) return leave_out(path, "a model or a run of its own"), false;
    if (depth + 1 >= kDepthMax) return leave_out(path, fmt::format("more than {} folders deep", kDepthMax - 1)), false;
    if (access((root_ / path).c_str(), R_OK | X_OK) != 0) return leave_out(path, "cannot be read"), false;
    return true;
  }

  void take_file(const fs::path& path, const std::string& name) {
    std::error_code error;
    if (!fs::is_regular_file(root_ / path, error)) return leave_out(path, "not a regular file");
    if (is_foreign_weights(name)) return leave_out(path, "weights or state in another format");
    if (name == "strata.state" || name == "strata.commit" || name == "strata.lock") return leave_out(path, "of an NVMe store");
    if (access((root_ / path).c_str(), R_OK) != 0) return leave_out(path, "cannot be read");
    const uint64_t bytes = fs::file_size(root_ / path, error);
    if (error) return leave_out(path, "cannot be read");
    if (bytes > kModelFileBytesMax)
      return leave_out(path, fmt::format("{}, more than {}", format_bytes(bytes), format_bytes(kModelFileBytesMax)));
    if (found_.files.size() == kModelFilesMax) return leave_out(path, fmt::format("beyond the first {} files", kModelFilesMax));
    if (bytes > kModelFilesBytesMax - bytes_)
      return leave_out(path, fmt::format("the files before it and it are more than {}", format_bytes(kModelFilesBytesMax)));
    bytes_ += bytes;
    found_.files.push_back({path, bytes});
  }

  const fs::path root_, except_;
  fs::path blobs_;
  ModelFiles found_;
  uint64_t bytes_ = 0;
};

}  // namespace

uint64_t ModelFiles::bytes() const {
  uint64_t sum = 0;
  for (const ModelFile& file : files) sum += file.bytes;
  return sum;
}

ModelFiles list_model_files(const fs::path& directory, const fs::path& except) {
  try {
    return Lister(directory, except).list();
  } catch (const fs::filesystem_error& error) {
    throw Error(ErrorCode::io, fmt::format("cannot list the directory: {}", error.code().message()), error.path1().string());
  }
}

void copy_whole_file(const fs::path& from, const fs::path& to) {
  const ReadOnlyFile input(from);
  AtomicFile output(to);
  std::vector<char> piece(std::min(kCopyBytes, input.size()));
  for (uint64_t done = 0; done < input.size();) {
    const uint64_t bytes = std::min(kCopyBytes, input.size() - done);
    input.read(done, piece.data(), bytes);
    output.write(done, piece.data(), bytes);
    done += bytes;
  }
  output.finish();
}

std::vector<LeftOutFile> copy_model_files(const fs::path& from, const fs::path& to) {
  ModelFiles listed = list_model_files(from, to);
  for (const ModelFile& file : listed.files) {
    std::error_code error;
    fs::create_directories((to / file.path).parent_path(), error);
    if (error)
      throw Error(ErrorCode::io, fmt::format("cannot create the directory: {}", error.message()), (to / file.path).parent_path().string());
    copy_whole_file(from / file.path, to / file.path);
  }
  return std::move(listed.left_out);
}

}  // namespace strata
