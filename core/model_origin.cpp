#include "core/model_origin.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <system_error>
#include <utility>

#include "core/error.hpp"
#include "core/file.hpp"
#include "core/json.hpp"

namespace strata {
namespace {

namespace fs = std::filesystem;

constexpr const char* kFormatName = "strata-model-origin";
constexpr uint64_t kPieceBytes = 1 << 20;

DType dtype_from(const std::string& name) {
  if (name == "fp32") return DType::f32;
  if (name == "bf16") return DType::bf16;
  if (name == "fp16") return DType::f16;
  throw Error(ErrorCode::data_corruption, fmt::format("a dtype is \"{}\"", printable(name)));
}

void write_tensors(const fs::path& path, const std::vector<PassthroughTensor>& tensors) {
  std::vector<SafetensorsTensor> list;
  for (const PassthroughTensor& tensor : tensors) list.push_back({tensor.name, tensor.entry->dtype, tensor.entry->shape});
  SafetensorsWriter writer(path, list, {{"format", "pt"}});
  std::vector<char> piece(kPieceBytes);
  for (const PassthroughTensor& tensor : tensors)
    for (uint64_t done = 0; done < tensor.entry->bytes();) {
      const uint64_t bytes = std::min(kPieceBytes, tensor.entry->bytes() - done);
      tensor.file->read(*tensor.entry, done, piece.data(), bytes);
      writer.write(tensor.name, done, piece.data(), bytes);
      done += bytes;
    }
  writer.finish();
}

}  // namespace

bool is_origin_file(std::string_view name) { return name == kOriginName || name == kOriginTensorsName || name == kCopyListName; }

void ModelOrigin::write(const fs::path& directory, const HfWeights& weights, const std::vector<LeftOutFile>& left_out) {
  if (!weights.passthrough_tensors().empty()) write_tensors(directory / kOriginTensorsName, weights.passthrough_tensors());
  OrderedJson json = {{"format", kFormatName},
                      {"version", 1},
                      {"dtype", to_string(weights.source_dtype())},
                      {"dtypes", OrderedJson::object()},
                      {"other_tensors", weights.passthrough_tensors().size()},
                      {"left_out", OrderedJson::array()}};
  for (const auto& [name, dtype] : weights.dtypes())
    if (dtype != weights.source_dtype()) json["dtypes"][name] = to_string(dtype);
  for (const LeftOutFile& file : left_out) json["left_out"].push_back({{"path", printable(file.path, 200)}, {"reason", file.reason}});
  const std::string text = json.dump(1) + "\n";
  write_file_atomically(directory / kOriginName, text.data(), text.size());
}

std::optional<ModelOrigin> ModelOrigin::read(const fs::path& directory) {
  const fs::path path = directory / kOriginName;
  std::error_code error;
  if (!fs::exists(path, error)) return std::nullopt;
  const Json json = parse_json_file(path, ErrorCode::data_corruption);
  ModelOrigin origin;
  try {
    if (json.at("format") != kFormatName || json.at("version") != 1)
      throw Error(ErrorCode::invalid_data, "what was kept of the input model is of an unknown format or version", path.string(),
                  "use the version of strata that wrote it");
    origin.dtype_ = dtype_from(json.at("dtype").get<std::string>());
    for (const auto& [name, dtype] : json.at("dtypes").items()) origin.dtypes_[name] = dtype_from(dtype.get<std::string>());
    for (const Json& file : json.at("left_out"))
      origin.left_out_.push_back({file.at("path").get<std::string>(), file.at("reason").get<std::string>()});
    if (json.at("other_tensors").get<uint64_t>() == 0) return origin;
  } catch (const Json::exception& problem) {
    throw Error(ErrorCode::data_corruption, fmt::format("what was kept of the input model is not whole: {}", problem.what()),
                path.string());
  }
  origin.file_ = std::make_unique<SafetensorsFile>(directory / kOriginTensorsName);
  for (const SafetensorsEntry& entry : origin.file_->tensors())
    origin.passthrough_.push_back({entry.name, origin.file_.get(), &entry});
  return origin;
}

void ModelOrigin::copy(const fs::path& from, const fs::path& to) {
  for (const char* name : {kOriginTensorsName, kOriginName})
    if (std::error_code error; fs::exists(from / name, error)) copy_whole_file(from / name, to / name);
}

uint64_t ModelOrigin::bytes(const fs::path& directory) {
  uint64_t sum = 0;
  for (const char* name : {kOriginTensorsName, kOriginName}) {
    std::error_code error;
    const uint64_t bytes = fs::file_size(directory / name, error);
    if (!error) sum += bytes;
  }
  return sum;
}

}  // namespace strata
