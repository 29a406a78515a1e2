#include "scheduler/checkpoint_manifest.hpp"

#include "core/content_hash.hpp"
#include "core/error.hpp"
#include "core/json.hpp"

namespace strata::scheduler {

namespace {
constexpr const char* kFormatName = "strata-checkpoint";

const char* name_of(MasterFormat format) {
  return format == MasterFormat::parameter ? "parameter" : format == MasterFormat::split ? "split" : "fp32";
}

/// The manifest's last key is the hash of everything before it, so that no digit of it can change unseen.
void check_own_hash(OrderedJson json, const std::filesystem::path& path) {
  const std::string stated = json.at("xxh3").get<std::string>();
  json.erase("xxh3");
  if (const std::string found = hash_text(json.dump()); found != stated)
    throw Error(ErrorCode::data_corruption, fmt::format("the manifest's checksum is {}, {} was written", found, stated),
                path.string(), "use an older checkpoint");
}

StateFormat format_from(const std::string& compute, const std::string& master) {
  StateFormat format;
  format.compute = compute == "fp32" ? DType::f32 : compute == "bf16" ? DType::bf16 : DType::f16;
  format.gradient = format.compute;
  format.master = master == "parameter" ? MasterFormat::parameter
                  : master == "split"   ? MasterFormat::split
                                        : MasterFormat::fp32;
  return format;
}
}  // namespace

const char* folder_of(Quantity quantity) {
  return quantity == Quantity::master ? kModelFolder : quantity == Quantity::momentum ? "momentum" : "variance";
}

std::string CheckpointManifest::to_json() const {
  OrderedJson json;
  json["format"] = kFormatName;
  json["version"] = 1;
  json["kind"] = kind == CheckpointKind::files ? "files" : "store";
  json["trainer"] = OrderedJson::parse(record.to_json());
  json["compute"] = to_string(format.compute);
  json["master"] = name_of(format.master);
  json["files"] = OrderedJson::array();
  for (const File& file : files) json["files"].push_back({{"path", file.path}, {"bytes", file.bytes}, {"xxh3", file.xxh3}});
  if (kind == CheckpointKind::store)
    json["store"] = {{"directories", store_directories}, {"generation", store_generation}, {"tile_elements", tile_elements}};
  json["xxh3"] = hash_text(json.dump());
  return json.dump(2) + "\n";
}

CheckpointManifest CheckpointManifest::read(const std::filesystem::path& checkpoint) {
  const std::filesystem::path path = checkpoint / kManifestName;
  if (!std::filesystem::is_regular_file(path))
    throw Error(ErrorCode::invalid_data, "not a checkpoint: it has no checkpoint.json", checkpoint.string(),
                "name a directory made by `strata train`, or its checkpoints/ folder");
  const OrderedJson json = parse_json_file<OrderedJson>(path, ErrorCode::data_corruption);
  try {
    check_own_hash(json, path);
    if (json.at("format") != kFormatName || json.at("version") != 1)
      throw Error(ErrorCode::invalid_data, "a checkpoint of an unknown format or version", path.string());
    CheckpointManifest manifest;
    manifest.kind = json.at("kind") == "files" ? CheckpointKind::files : CheckpointKind::store;
    manifest.record = TrainerRecord::from_json(json.at("trainer").dump(), path.string());
    manifest.format = format_from(json.at("compute").get<std::string>(), json.at("master").get<std::string>());
    for (const OrderedJson& file : json.at("files")) {
      File entry{file.at("path").get<std::string>(), file.at("bytes").get<uint64_t>(), file.at("xxh3").get<std::string>()};
      const std::filesystem::path relative(entry.path);
      for (const auto& piece : relative)
        if (relative.is_absolute() || piece == "..")
          throw Error(ErrorCode::data_corruption, "the manifest names a file outside the checkpoint", path.string());
      manifest.files.push_back(std::move(entry));
    }
    if (manifest.kind == CheckpointKind::store) {
      const OrderedJson& store = json.at("store");
      store.at("directories").get_to(manifest.store_directories);
      store.at("generation").get_to(manifest.store_generation);
      store.at("tile_elements").get_to(manifest.tile_elements);
      if (manifest.store_directories.empty() || manifest.tile_elements == 0 ||
          manifest.tile_elements % kBlockElements != 0)
        throw Error(ErrorCode::data_corruption, "the manifest's store is not whole", path.string());
    }
    return manifest;
  } catch (const Json::exception& error) {
    throw Error(ErrorCode::data_corruption, fmt::format("the manifest is not whole: {}", error.what()), path.string());
  }
}

}  // namespace strata::scheduler
