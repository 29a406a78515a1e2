#include "scheduler/session_record.hpp"

#include <algorithm>
#include <system_error>

#include "core/content_hash.hpp"
#include "core/file.hpp"
#include "core/json.hpp"

namespace strata::scheduler {

namespace {

namespace fs = std::filesystem;

constexpr const char* kFormatName = "strata-session";
/// Room for hundreds of thousands of data files.
constexpr JsonLimits kLimits{.bytes = 256ull << 20, .values = 16'000'000};

/// A file as an array of its four values: a run can have a hundred thousand.
OrderedJson to_json(const std::vector<DataFile>& files) {
  OrderedJson list = OrderedJson::array();
  for (const DataFile& file : files) list.push_back({file.path, file.format, file.bytes, file.hash});
  return list;
}

std::vector<DataFile> files_from(const Json& list) {
  std::vector<DataFile> files;
  for (const Json& file : list)
    files.push_back({.path = file.at(0).get<std::string>(), .format = file.at(1).get<std::string>(),
                     .bytes = file.at(2).get<uint64_t>(), .hash = file.at(3).get<std::string>()});
  return files;
}

const char* name_of(DataFormat format) {
  switch (format) {
    case DataFormat::automatic: return "auto";
    case DataFormat::llmc: return "llmc";
    case DataFormat::bintok: return "bintok";
    case DataFormat::raw16: return "raw16";
    case DataFormat::raw32: return "raw32";
    case DataFormat::text: return "text";
  }
  return "?";
}

const char* name_of(RopeConfig::Scaling scaling) {
  switch (scaling) {
    case RopeConfig::Scaling::none: return "none";
    case RopeConfig::Scaling::linear: return "linear";
    case RopeConfig::Scaling::dynamic: return "dynamic";
    case RopeConfig::Scaling::llama3: return "llama3";
    case RopeConfig::Scaling::yarn: return "yarn";
    case RopeConfig::Scaling::longrope: return "longrope";
  }
  return "?";
}

const char* name_of(Activation activation) {
  switch (activation) {
    case Activation::gelu_tanh: return "gelu_tanh";
    case Activation::gelu_erf: return "gelu_erf";
    case Activation::silu: return "silu";
    case Activation::relu: return "relu";
  }
  return "?";
}

}  // namespace

void SessionRecord::write(const fs::path& run_directory) const {
  OrderedJson json = {{"format", kFormatName}, {"version", 1}, {"run_id", run_id}, {"step", step}};
  json["config"] = OrderedJson::parse(config);
  if (!model.empty()) json["model"] = OrderedJson::parse(model);
  if (!weights.empty()) json["weights"] = weights;
  json["machine"] = OrderedJson::object();
  for (const auto& [name, value] : machine) json["machine"][name] = value;
  json["train"] = to_json(train);
  json["eval"] = to_json(eval);
  // Names that are no UTF-8 are shown, not used.
  const std::string text = json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace) + "\n";
  write_file_atomically(run_directory / kSessionName, text.data(), text.size());
}

std::optional<SessionRecord> SessionRecord::read(const fs::path& run_directory) {
  const fs::path path = run_directory / kSessionName, configuration = run_directory / "config.json";
  std::error_code error;
  SessionRecord record;
  if (!fs::exists(fs::symlink_status(path, error))) {
    if (!fs::is_regular_file(configuration, error)) return std::nullopt;
    record.config = parse_json_file<OrderedJson>(configuration, ErrorCode::data_corruption, kLimits).dump();
    return record;
  }
  const Json json = parse_json_file(path, ErrorCode::data_corruption, kLimits);
  try {
    if (json.at("format") != kFormatName || json.at("version") != 1)
      throw Error(ErrorCode::data_corruption, "a record of the last session of an unknown format or version", path.string(),
                  "use the version of Strata that wrote it, or move the file away: changes since the last session are then not found");
    json.at("run_id").get_to(record.run_id);
    json.at("step").get_to(record.step);
    record.config = json.at("config").dump();
    if (json.contains("model")) record.model = json.at("model").dump();
    record.weights = json.value("weights", "");
    for (const auto& [name, value] : json.at("machine").items()) record.machine.emplace_back(name, value.get<std::string>());
    record.train = files_from(json.at("train"));
    record.eval = files_from(json.at("eval"));
    return record;
  } catch (const Json::exception& problem) {
    throw Error(ErrorCode::data_corruption, fmt::format("the record of the last session is not whole: {}", problem.what()), path.string(),
                "put back a whole copy, or move the file away: changes since the last session are then not found");
  }
}

Config with_absolute_paths(const Config& config) {
  Config absolute = config;
  absolute.model.path = fs::absolute(absolute.model.path);
  for (auto* files : {&absolute.data.train, &absolute.data.eval})
    for (auto& file : *files) file = fs::absolute(file);
  for (auto& directory : absolute.tiers.nvme) directory.path = fs::absolute(directory.path);
  return absolute;
}

std::string model_facts(const ModelDescription& model) {
  OrderedJson json = {{"model_type", model.model_type},
                      {"vocab_size", model.vocab_size},
                      {"hidden_size", model.hidden_size},
                      {"layers", model.layers},
                      {"heads", model.heads},
                      {"kv_heads", model.kv_heads},
                      {"head_dim", model.head_dim},
                      {"intermediate_size", model.intermediate_size},
                      {"max_positions", model.max_positions},
                      {"norm_epsilon", model.norm_epsilon},
                      {"activation", name_of(model.activation)},
                      {"tied_head", model.tied_head},
                      {"qkv_bias", model.qkv_bias},
                      {"attention_output_bias", model.attention_output_bias},
                      {"mlp_bias", model.mlp_bias},
                      {"qk_norm", model.qk_norm},
                      {"attention_scale", model.attention_scale}};
  json["rope"] = {{"theta", model.rope.theta},
                  {"scaling", name_of(model.rope.scaling)},
                  {"factor", model.rope.factor},
                  {"low_frequency_factor", model.rope.low_frequency_factor},
                  {"high_frequency_factor", model.rope.high_frequency_factor},
                  {"beta_fast", model.rope.beta_fast},
                  {"beta_slow", model.rope.beta_slow},
                  {"attention_factor", model.rope.attention_factor ? OrderedJson(*model.rope.attention_factor) : OrderedJson(nullptr)},
                  {"truncate", model.rope.truncate},
                  {"original_max_positions", model.rope.original_max_positions}};
  if (!model.rope.long_factor.empty()) {
    json["rope"]["short_factor"] = model.rope.short_factor;
    json["rope"]["long_factor"] = model.rope.long_factor;
  }
  json["sliding_window"] = model.sliding_window;
  return json.dump();
}

std::string weights_identity(const fs::path& model_directory) {
  std::vector<fs::path> files;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(model_directory, error))
    if (entry.path().extension() == ".safetensors" && entry.is_regular_file(error)) files.push_back(entry.path());
  if (files.empty()) return {};
  std::sort(files.begin(), files.end());
  ContentHash hash;
  for (const fs::path& file : files) {
    const std::string line = file.filename().string() + " " + sampled_hash(file) + "\n";  // the hash covers the size
    hash.add(line.data(), line.size());
  }
  return hash.hex();
}

std::vector<DataFile> describe_data(const TokenDataset& data) {
  std::vector<DataFile> files;
  for (const TokenFile& file : data.files()) {
    const ReadOnlyFile content(file.path());
    files.push_back({fs::absolute(file.path()).string(), name_of(file.format()), content.size(), sampled_hash(content)});
  }
  return files;
}

std::string data_identity(const Config& config, const std::vector<DataFile>& files) {
  ContentHash hash;
  uint64_t bytes = 0;
  for (const DataFile& file : files) {
    const std::string line = fmt::format("{} {} {}\n", file.format, file.bytes, file.hash);
    hash.add(line.data(), line.size());
    bytes += file.bytes;
  }
  return fmt::format("content {}, {} files, {} bytes, sequence {}, seed {}", hash.hex(), files.size(), bytes, config.data.sequence_length,
                     config.data.seed);
}

std::string named_data_identity(const Config& config) {
  std::string identity = fmt::format("seed {} sequence {}", config.data.seed, config.data.sequence_length);
  for (const auto& file : config.data.train) {
    std::error_code ignored;
    identity += fmt::format(" {}:{}", file.filename().string(), fs::file_size(file, ignored));
  }
  return identity;
}

}  // namespace strata::scheduler
