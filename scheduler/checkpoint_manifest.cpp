#include "scheduler/checkpoint_manifest.hpp"

#include <algorithm>
#include <initializer_list>
#include <limits>
#include <optional>
#include <set>

#include "core/content_hash.hpp"
#include "core/error.hpp"
#include "core/json.hpp"

namespace strata::scheduler {

namespace {
constexpr const char* kFormatName = "strata-checkpoint";
constexpr uint64_t kVersion = 2;                        // 1: a store without its id and relative paths
constexpr uint64_t kFileBytesMax = uint64_t{1} << 50;
constexpr uint64_t kStoreDirectoriesMax = 4096;
constexpr uint64_t kTileElementsMax = uint64_t{1} << 40;

const char* name_of(MasterFormat format) {
  return format == MasterFormat::parameter ? "parameter" : format == MasterFormat::split ? "split" : "fp32";
}

/// The manifest's last key is the hash of everything before it, so that no digit of it can change unseen.
void check_own_hash(OrderedJson json, const std::string& stated, const std::filesystem::path& path) {
  json.erase("xxh3");
  if (const std::string found = hash_text(json.dump()); found != stated)
    throw Error(ErrorCode::data_corruption, fmt::format("the manifest's checksum is {}, {} was written", found, stated),
                path.string(), "use an older checkpoint");
}

/// The fields of a manifest, each of which has its type and its range: what is wrong throws data_corruption and names the key.
class Fields {
 public:
  Fields(const OrderedJson& object, std::string name) : object_(object), name_(std::move(name)) {
    if (!object.is_object()) refuse("it holds no object where one belongs");
  }

  uint64_t number(const char* key, uint64_t min, uint64_t max) const {
    const OrderedJson& value = at(key);
    if (!value.is_number_unsigned() || value.get<uint64_t>() < min || value.get<uint64_t>() > max)
      refuse(fmt::format("\"{}\" is {}, not a whole number from {} to {}", key, shortened(value), min, max));
    return value.get<uint64_t>();
  }
  std::string text(const char* key) const {
    const OrderedJson& value = at(key);
    if (!value.is_string()) refuse(fmt::format("\"{}\" is {}, not a text", key, shortened(value)));
    return value.get<std::string>();
  }
  const OrderedJson& list(const char* key, size_t least) const {
    const OrderedJson& value = at(key);
    if (!value.is_array() || value.size() < least) refuse(fmt::format("\"{}\" is {}, not a list of at least {}", key, shortened(value), least));
    return value;
  }
  std::vector<std::string> texts(const char* key, size_t least) const {
    std::vector<std::string> found;
    for (const OrderedJson& value : list(key, least)) {
      if (!value.is_string() || value.get_ref<const std::string&>().empty()) refuse(fmt::format("\"{}\" holds {}", key, shortened(value)));
      found.push_back(value.get<std::string>());
    }
    return found;
  }
  template <class Enum>
  Enum choice(const char* key, std::initializer_list<std::pair<const char*, Enum>> words) const {
    const std::string word = text(key);
    for (const auto& [known, meaning] : words)
      if (word == known) return meaning;
    refuse(fmt::format("\"{}\" is \"{}\", which this program does not know", key, printable(word)));
  }
  const OrderedJson& at(const char* key) const {
    const auto found = object_.find(key);
    if (found == object_.end()) refuse(fmt::format("\"{}\" is missing", key));
    return *found;
  }
  bool has(const char* key) const { return object_.contains(key); }
  [[noreturn]] void refuse(const std::string& what) const {
    throw Error(ErrorCode::data_corruption, "the manifest is not whole: " + what, name_, "use another checkpoint of the run");
  }

 private:
  static std::string shortened(const OrderedJson& value) { return printable(value.dump(-1, ' ', true), 60); }

  const OrderedJson& object_;
  const std::string name_;
};

StateFormat format_from(const Fields& fields) {
  StateFormat format;
  format.compute = fields.choice<DType>("compute", {{"fp32", DType::f32}, {"bf16", DType::bf16}, {"fp16", DType::f16}});
  format.gradient = format.compute;
  format.master = fields.choice<MasterFormat>(
      "master", {{"parameter", MasterFormat::parameter}, {"split", MasterFormat::split}, {"fp32", MasterFormat::fp32}});
  const bool possible = format.master == MasterFormat::parameter ? format.compute == DType::f32
                        : format.master == MasterFormat::split   ? format.compute == DType::bf16
                                                                 : format.compute != DType::f32;
  if (!possible) fields.refuse("its \"compute\" has no such \"master\"");
  return format;
}

CheckpointManifest::File file_from(const OrderedJson& json, const std::string& name) {
  const Fields fields(json, name);
  CheckpointManifest::File file{fields.text("path"), fields.number("bytes", 0, kFileBytesMax), fields.text("xxh3")};
  const std::filesystem::path relative(file.path);
  for (const auto& piece : relative)
    if (relative.is_absolute() || piece == ".." || piece == ".") fields.refuse("it names a file outside the checkpoint");
  if (file.path.empty() || file.path.find('\0') != std::string::npos) fields.refuse("it names a file without a name");
  if (file.xxh3.size() != 32 || file.xxh3.find_first_not_of("0123456789abcdef") != std::string::npos)
    fields.refuse(fmt::format("the checksum of \"{}\" is none", printable(file.path)));
  return file;
}

StoreReference reference_from(const Fields& fields, bool copy, bool first_version) {
  StoreReference store;
  if (!first_version || fields.has("id")) {
    store.id = tiers::store_id_from_hex(fields.text("id"));
    if (!store.id) fields.refuse("the store's \"id\" is not 32 hexadecimal digits");
  }
  store.directories = fields.texts("directories", copy ? 0 : 1);
  if (!first_version || fields.has("relative")) store.relative = fields.texts("relative", 1);
  const size_t count = std::max(store.directories.size(), store.relative.size());
  if (count == 0 || count > kStoreDirectoriesMax || (!store.relative.empty() && !copy && store.relative.size() != store.directories.size()))
    fields.refuse(fmt::format("it names {} directories of a store, and {} relative ones", store.directories.size(), store.relative.size()));
  if (copy)
    for (size_t i = 0; i < count; ++i)
      if (!store.directories.empty() || store.relative[i] != fmt::format("{}/{}", kStoreFolder, i))
        fields.refuse("its copy of a store is not in the checkpoint");
  store.generation = fields.number("generation", 1, std::numeric_limits<uint64_t>::max() - 1);
  return store;
}
}  // namespace

const char* folder_of(Quantity quantity) {
  return quantity == Quantity::master ? kModelFolder : quantity == Quantity::momentum ? "momentum" : "variance";
}

FoundStore CheckpointManifest::locate_store(const std::filesystem::path& checkpoint, const std::vector<StoreMove>& moves,
                                            const std::vector<std::filesystem::path>& configured) const {
  if (!copy)
    return find_store(store, {.base = checkpoint, .moves = moves, .configured = configured, .run_directory = record.run_directory});
  FoundStore found;
  for (const std::string& path : store.relative) found.directories.push_back(checkpoint / path);
  return found;
}

std::string CheckpointManifest::to_json() const {
  OrderedJson json;
  json["format"] = kFormatName;
  json["version"] = kVersion;
  json["kind"] = kind == CheckpointKind::files ? "files" : "store";
  json["trainer"] = OrderedJson::parse(record.to_json());
  json["compute"] = to_string(format.compute);
  json["master"] = name_of(format.master);
  json["files"] = OrderedJson::array();
  for (const File& file : files) json["files"].push_back({{"path", file.path}, {"bytes", file.bytes}, {"xxh3", file.xxh3}});
  if (kind == CheckpointKind::store)
    json["store"] = {{"id", tiers::to_hex(store.id.value())}, {"copy", copy},
                     {"directories", store.directories},      {"relative", store.relative},
                     {"generation", store.generation},        {"tile_elements", tile_elements}};
  json["xxh3"] = hash_text(json.dump());
  return json.dump(2) + "\n";
}

CheckpointManifest CheckpointManifest::read(const std::filesystem::path& checkpoint) {
  const std::filesystem::path path = checkpoint / kManifestName;
  if (!std::filesystem::is_regular_file(path))
    throw Error(ErrorCode::invalid_data, "not a checkpoint: it has no checkpoint.json", checkpoint.string(),
                "name a directory made by `strata train`, or its checkpoints/ folder");
  const OrderedJson json = parse_json_file<OrderedJson>(path, ErrorCode::data_corruption);
  const Fields fields(json, path.string());
  check_own_hash(json, fields.text("xxh3"), path);
  if (fields.text("format") != kFormatName || !fields.at("version").is_number_unsigned() || fields.at("version") == 0 ||
      fields.at("version") > kVersion)
    throw Error(ErrorCode::invalid_data,
                fmt::format("a checkpoint of an unknown format or version; this program reads {} up to {}", kFormatName, kVersion), path.string(),
                "use the program that made it");
  CheckpointManifest manifest;
  manifest.kind = fields.choice<CheckpointKind>("kind", {{"files", CheckpointKind::files}, {"store", CheckpointKind::store}});
  manifest.record = TrainerRecord::from_json(fields.at("trainer").dump(), path.string());
  manifest.format = format_from(fields);
  std::set<std::string> names;
  for (const OrderedJson& file : fields.list("files", 1)) {
    manifest.files.push_back(file_from(file, path.string()));
    if (!names.insert(manifest.files.back().path).second) fields.refuse("it names a file twice");
  }
  if (manifest.kind == CheckpointKind::store) {
    const Fields store(fields.at("store"), path.string());
    if (store.has("copy") && !store.at("copy").is_boolean()) store.refuse("\"copy\" is neither true nor false");
    manifest.copy = store.has("copy") && store.at("copy").get<bool>();
    manifest.store = reference_from(store, manifest.copy, fields.at("version") == 1);
    manifest.tile_elements = store.number("tile_elements", kBlockElements, kTileElementsMax);
    if (manifest.tile_elements % kBlockElements != 0)
      store.refuse(fmt::format("its \"tile_elements\", {}, is no multiple of {}", manifest.tile_elements, kBlockElements));
  }
  return manifest;
}

}  // namespace strata::scheduler
