// What a model's directory holds beside its weights and config.json: tokenizer, chat templates, processors, licence, model card.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace strata {

/// Bounds on what is taken along: far above any tokenizer, far below a data set that happens to lie there.
inline constexpr uint64_t kModelFileBytesMax = 64ull << 20;
inline constexpr uint64_t kModelFilesBytesMax = 256ull << 20;
inline constexpr size_t kModelFilesMax = 256;

struct ModelFile {
  std::filesystem::path path;  // relative to the model's directory
  uint64_t bytes = 0;
};

/// A file or folder that is not taken along, and why.
struct LeftOutFile {
  std::string path;  // relative to the model's directory; not made safe to print
  std::string reason;
};

struct ModelFiles {
  std::vector<ModelFile> files;  // those of the directory itself first, then those of its folders, each in order of their names
  std::vector<LeftOutFile> left_out;

  uint64_t bytes() const;
};

/// Lists a model's directory. Not listed at all: config.json and the safetensors weights with their index, which are written anew.
/// Left out: hidden names, weights in any other format, folders that hold another model or a run, links that lead out of the directory
/// (into the blobs of a Hugging Face cache they are followed), what is no regular file or cannot be read, and what exceeds the bounds
/// above. `except` is a folder to pass over in silence. Throws io.
ModelFiles list_model_files(const std::filesystem::path& directory, const std::filesystem::path& except = {});

/// Copies them, with their folders, into an existing directory; each is durable under its name. Returns what was left out.
/// Throws io or resource_exhausted.
std::vector<LeftOutFile> copy_model_files(const std::filesystem::path& from, const std::filesystem::path& to);

/// Copies one file whole. Throws io or resource_exhausted.
void copy_whole_file(const std::filesystem::path& from, const std::filesystem::path& to);

}  // namespace strata
