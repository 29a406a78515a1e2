// Any text as a checkpoint's manifest, its checksum made right where it is an object, is either refused with an Error or holds only values
// in their ranges.
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "core/content_hash.hpp"
#include "core/error.hpp"
#include "core/json.hpp"
#include "scheduler/checkpoint_manifest.hpp"

namespace {

std::filesystem::path make_directory() {
  std::string name = (std::filesystem::temp_directory_path() / "strata-fuzz-XXXXXX").string();
  if (mkdtemp(name.data()) == nullptr) std::abort();
  return name;
}

/// One for all inputs; it goes with the process.
struct Directory {
  ~Directory() { std::filesystem::remove_all(path); }
  std::filesystem::path path = make_directory();
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace strata;
  using namespace strata::scheduler;
  static const Directory directory;
  std::string text(reinterpret_cast<const char*>(data), size);
  try {
    OrderedJson json = parse_json<OrderedJson>(text, "fuzz", ErrorCode::data_corruption);
    if (json.is_object()) {
      json.erase("xxh3");
      json["xxh3"] = hash_text(json.dump());
      text = json.dump();
    }
  } catch (const Error&) {
    // The text itself is read below.
  }
  std::ofstream(directory.path / kManifestName, std::ios::binary) << text;
  try {
    const CheckpointManifest manifest = CheckpointManifest::read(directory.path);
    const TrainerRecord& record = manifest.record;
    if (manifest.files.empty() || record.step < 0 || record.updates < 0 || record.updates > record.step || !(record.loss_scale > 0)) std::abort();
    if (manifest.kind == CheckpointKind::store &&
        (manifest.tile_elements == 0 || manifest.tile_elements % kBlockElements != 0 || manifest.store.generation == 0))
      std::abort();
    for (const auto& file : manifest.files)
      if ((directory.path / file.path).lexically_normal().lexically_relative(directory.path).begin()->string() == "..") std::abort();
    if (manifest.kind == CheckpointKind::files || manifest.store.id) manifest.to_json();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::data_corruption && error.code() != ErrorCode::invalid_data) std::abort();
  }
  return 0;
}
