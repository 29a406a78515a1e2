#include "core/hf_weights.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>

#include "core/error.hpp"
#include "core/init_weights.hpp"
#include "core/json.hpp"
#include "tests/support/scratch_directory.hpp"

namespace strata {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

const char* const kLlama =
    R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 24, "num_attention_heads": 4,
  "num_key_value_heads": 2, "intermediate_size": 40, "num_hidden_layers": 2, "vocab_size": 77, "max_position_embeddings": 64,
  "torch_dtype": "float16", "dtype": "float16"})";
const char* const kGpt2 =
    R"({"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_embd": 16, "n_head": 2, "n_layer": 2,
  "vocab_size": 33, "n_positions": 8})";

struct Tensor {
  std::string name, dtype;
  std::vector<int64_t> shape;
  std::vector<char> bytes;
};

std::vector<char> bytes_of(const std::vector<float>& values, const std::string& dtype) {
  std::vector<char> out;
  const auto put = [&](auto value) {
    out.insert(out.end(), reinterpret_cast<char*>(&value), reinterpret_cast<char*>(&value) + sizeof value);
  };
  for (const float value : values) {
    if (dtype == "F32")
      put(value);
    else if (dtype == "F64")
      put(static_cast<double>(value));
    else
      put(half_from_float(dtype == "BF16" ? DType::bf16 : DType::f16, value));
  }
  return out;
}

void save(const std::filesystem::path& path, const std::vector<Tensor>& tensors) {
  std::vector<SafetensorsTensor> list;
  for (const Tensor& tensor : tensors) list.push_back({tensor.name, tensor.dtype, tensor.shape});
  SafetensorsWriter writer(path, list, {{"format", "pt"}});
  for (const Tensor& tensor : tensors) writer.write(tensor.name, 0, tensor.bytes.data(), tensor.bytes.size());
  writer.finish();
}

/// A model in a directory of its own, with the values that its file should hold.
struct Fixture {
  ScratchDirectory directory;
  ModelDescription model;
  ModelLayout layout;
  std::vector<std::vector<float>> units;
  std::vector<Tensor> tensors;

  explicit Fixture(const char* config, const std::string& dtype = "F32") {
    std::ofstream(directory / "config.json") << config;
    model = read_model_description(directory.path());
    layout = make_layout(model);
    for (const UnitLayout& unit : layout.units) {
      std::vector<float>& values = units.emplace_back(unit.padded_elements);
      init_weights(model, unit, {0, values.size()}, 5, values.data());
      for (const TensorLayout& tensor : unit.tensors) {
        const std::vector<float> part(values.begin() + static_cast<std::ptrdiff_t>(tensor.offset),
                                      values.begin() + static_cast<std::ptrdiff_t>(tensor.offset + tensor.elements));
        tensors.push_back({tensor.name, dtype, tensor.shape, bytes_of(part, dtype)});
      }
    }
  }

  Tensor& find(const std::string& name) {
    return *std::find_if(tensors.begin(), tensors.end(), [&](const Tensor& tensor) { return tensor.name == name; });
  }
  void remove(const std::string& name) {
    std::erase_if(tensors, [&](const Tensor& tensor) { return tensor.name == name; });
  }
  void save_single() { save(directory / "model.safetensors", tensors); }
  HfWeights open() const { return HfWeights(directory.path(), model, layout); }

  std::pair<ErrorCode, std::string> refusal() const {
    try {
      open();
    } catch (const Error& error) {
      return {error.code(), error.what()};
    }
    return {ErrorCode::internal, "accepted"};
  }
};

std::vector<float> read_unit(const HfWeights& weights, const ModelLayout& layout, size_t unit, uint64_t piece) {
  std::vector<float> out(layout.units[unit].padded_elements, -7.0f);
  for (uint64_t first = 0; first < out.size(); first += piece) {
    weights.read_as_float(unit, {first, std::min<uint64_t>(piece, out.size() - first)}, out.data() + first);
  }
  return out;
}

TEST(HfWeights, AnyRangeOfAnyUnitIsReadExactly) {
  for (const char* config : {kLlama, kGpt2}) {
    Fixture fixture(config);
    fixture.save_single();
    const HfWeights weights = fixture.open();
    EXPECT_EQ(weights.source_dtype(), DType::f32);
    for (size_t unit = 0; unit < fixture.units.size(); ++unit) {
      for (const uint64_t piece : {4096ull, 100ull, 13ull})
        EXPECT_EQ(read_unit(weights, fixture.layout, unit, piece), fixture.units[unit]);
    }
    EXPECT_THROW(weights.read_as_float(0, {1, fixture.units[0].size()}, nullptr), Error);
  }
}

TEST(HfWeights, HalfAndDoubleFilesAreWidened) {
  for (const auto& [dtype, expected] :
       std::vector<std::pair<std::string, DType>>{{"BF16", DType::bf16}, {"F16", DType::f16}, {"F64", DType::f32}}) {
    Fixture fixture(kLlama, dtype);
    fixture.save_single();
    const HfWeights weights = fixture.open();
    EXPECT_EQ(weights.source_dtype(), expected);
    std::vector<float> want = fixture.units[1];
    if (dtype != "F64") {
      for (float& value : want) value = float_from_half(expected, half_from_float(expected, value));
    }
    EXPECT_EQ(read_unit(weights, fixture.layout, 1, 1000), want) << dtype;
  }
}

TEST(HfWeights, AValueThatIsNotFiniteIsNamedWithItsTensorAndIndex) {
  const float infinity = std::numeric_limits<float>::infinity();
  struct Case {
    const char* dtype;
    double value;
    DType narrowest;
    const char* text;  // of the refusal; null: accepted
  };
  for (const Case& bad : {Case{"F32", std::nanf(""), DType::f32, "is nan"}, Case{"F32", -infinity, DType::bf16, "is -inf"},
                          Case{"BF16", infinity, DType::f32, "is inf"}, Case{"F16", std::nanf(""), DType::f16, "is nan"},
                          Case{"F64", 1e300, DType::f32, "1e+300, which fp32 cannot hold"},
                          Case{"F32", 65520, DType::f16, "65520, which fp16 cannot hold"}, Case{"F32", 65519, DType::f16, nullptr},
                          Case{"F32", -65520, DType::bf16, nullptr}, Case{"F32", 3.4e38, DType::bf16, "which bf16 cannot hold"},
                          Case{"F32", 3.4e38, DType::f32, nullptr}}) {
    SCOPED_TRACE(fmt::format("{} {} {}", bad.dtype, bad.value, to_string(bad.narrowest)));
    Fixture fixture(kLlama, bad.dtype);
    Tensor& tensor = fixture.find("model.layers.1.mlp.up_proj.weight");
    std::vector<char> bytes = bytes_of({static_cast<float>(bad.value)}, bad.dtype);
    if (bytes.size() == sizeof bad.value) std::memcpy(bytes.data(), &bad.value, sizeof bad.value);
    for (const size_t index : {700, 123}) std::copy(bytes.begin(), bytes.end(), &tensor.bytes[index * bytes.size()]);
    fixture.save_single();
    const HfWeights weights = fixture.open();
    std::string text;
    for (size_t unit = 0; unit < fixture.units.size(); ++unit) {
      std::vector<float> values(fixture.units[unit].size()), expected(values.size());
      weights.read_as_float(unit, {0, expected.size()}, expected.data());
      try {
        weights.read_finite(unit, {0, values.size()}, bad.narrowest, values.data());
        EXPECT_EQ(values, expected);
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::invalid_data);
        text += error.what();
      }
    }
    if (bad.text == nullptr) EXPECT_EQ(text, "");
    else EXPECT_THAT(text, AllOf(HasSubstr("element 123 is"), HasSubstr(bad.text), HasSubstr("model.layers.1.mlp.up_proj.weight in")));
  }
}

TEST(HfWeights, NamesWithoutTheFamilyPrefixAreAccepted) {
  Fixture fixture(kGpt2);
  for (Tensor& tensor : fixture.tensors) tensor.name = tensor.name.substr(std::string("transformer.").size());
  fixture.tensors.push_back({"h.1.attn.bias", "U8", {1, 1, 2, 2}, {1, 0, 1, 1}});
  fixture.tensors.push_back({"h.1.attn.masked_bias", "F32", {}, bytes_of({-1e4f}, "F32")});
  fixture.save_single();
  const HfWeights weights = fixture.open();
  EXPECT_EQ(read_unit(weights, fixture.layout, 2, 777), fixture.units[2]);
  ASSERT_EQ(weights.passthrough_tensors().size(), 2u);
  EXPECT_EQ(weights.passthrough_tensors()[0].name, "transformer.h.1.attn.bias");
}

TEST(HfWeights, AllMismatchesAreListedAtOnce) {
  Fixture fixture(kLlama);
  fixture.remove("model.norm.weight");
  fixture.find("model.layers.0.mlp.up_proj.weight").shape = {24, 40};
  fixture.find("model.layers.1.self_attn.q_proj.weight") = {
      "model.layers.1.self_attn.q_proj.weight", "F8_E4M3", {24, 24}, std::vector<char>(576)};
  fixture.tensors.push_back({"model.layers.2.self_attn.q_proj.weight", "F32", {1}, std::vector<char>(4)});
  fixture.save_single();
  const auto [code, message] = fixture.refusal();
  EXPECT_EQ(code, ErrorCode::invalid_data);
  EXPECT_THAT(message, AllOf(HasSubstr("4 problems"), HasSubstr("model.norm.weight: is missing"),
                             HasSubstr("has shape [24, 40], the configuration says [40, 24]"),
                             HasSubstr("q_proj.weight: has dtype F8_E4M3"),
                             HasSubstr("model.layers.2.self_attn.q_proj.weight: is not a tensor")));
}

TEST(HfWeights, ATiedHeadMayRepeatOrReplaceTheEmbeddingButNotDiffer) {
  Fixture fixture(kGpt2);
  Tensor head = fixture.find("transformer.wte.weight");
  head.name = "lm_head.weight";
  fixture.tensors.push_back(head);
  fixture.save_single();
  EXPECT_TRUE(fixture.open().passthrough_tensors().empty());

  fixture.remove("transformer.wte.weight");
  fixture.save_single();
  EXPECT_EQ(read_unit(fixture.open(), fixture.layout, 0, 4096), fixture.units[0]);

  Fixture other(kGpt2);
  head.bytes.back() = static_cast<char>(head.bytes.back() ^ 1);
  other.tensors.push_back(head);
  other.save_single();
  EXPECT_THAT(other.refusal().second, HasSubstr("lm_head.weight: differs from the embedding"));
}

TEST(HfWeights, DirectoriesWithoutSafetensorsAreExplained) {
  Fixture fixture(kGpt2);
  EXPECT_THAT(fixture.refusal().second, HasSubstr("neither a model.safetensors"));
  std::ofstream(fixture.directory / "pytorch_model.bin") << "x";
  EXPECT_EQ(fixture.refusal().first, ErrorCode::unsupported);
  EXPECT_THAT(fixture.refusal().second, HasSubstr("safe_serialization=True"));
}

TEST(HfWeights, ShardedModelsAreReadThroughTheirIndex) {
  Fixture fixture(kLlama);
  const size_t half = fixture.tensors.size() / 2;
  save(fixture.directory / "a.safetensors",
       {fixture.tensors.begin(), fixture.tensors.begin() + static_cast<std::ptrdiff_t>(half)});
  save(fixture.directory / "b.safetensors",
       {fixture.tensors.begin() + static_cast<std::ptrdiff_t>(half), fixture.tensors.end()});
  Json index;
  for (size_t i = 0; i < fixture.tensors.size(); ++i)
    index["weight_map"][fixture.tensors[i].name] = i < half ? "a.safetensors" : "b.safetensors";
  const auto write_index = [&] { std::ofstream(fixture.directory / "model.safetensors.index.json") << index.dump(); };
  write_index();
  const HfWeights weights = fixture.open();
  for (size_t unit = 0; unit < fixture.units.size(); ++unit)
    EXPECT_EQ(read_unit(weights, fixture.layout, unit, 500), fixture.units[unit]);

  index["weight_map"]["lm_head.weight"] = "a.safetensors";
  write_index();
  EXPECT_THAT(fixture.refusal().second, HasSubstr("lm_head.weight: is not in a.safetensors"));
  index["weight_map"]["lm_head.weight"] = "../b.safetensors";
  write_index();
  EXPECT_THAT(fixture.refusal().second, HasSubstr("plain file names"));
  index["weight_map"]["lm_head.weight"] = "absent.safetensors";
  write_index();
  EXPECT_EQ(fixture.refusal().first, ErrorCode::io);
}

TEST(HfWriter, WhatIsWrittenIsReadBackWhateverThePieces) {
  Fixture fixture(kLlama);
  std::ofstream(fixture.directory / "tokenizer.json") << "{\"a\": 1}";
  std::ofstream(fixture.directory / "adapter.bin") << "not copied";
  const std::filesystem::path out = fixture.directory / "out";
  HfWriter writer(
      out, fixture.layout,
      {.dtype = DType::f32, .dtype_of = {{"model.norm.weight", DType::bf16}}, .source = fixture.directory.path()});
  for (size_t unit = 0; unit < fixture.units.size(); ++unit) {
    const uint64_t size = fixture.units[unit].size(), piece = 1000;
    for (uint64_t first = size / piece * piece;; first -= piece) {
      writer.write_from_float(unit, {first, std::min(piece, size - first)}, fixture.units[unit].data() + first);
      if (first == 0) break;
    }
  }
  EXPECT_FALSE(std::filesystem::exists(out / "config.json"));
  writer.finish();

  const ModelDescription model = read_model_description(out);
  const HfWeights weights(out, model, make_layout(model));
  for (size_t unit = 0; unit < fixture.units.size(); ++unit)
    EXPECT_EQ(read_unit(weights, fixture.layout, unit, 4096), fixture.units[unit]);
  EXPECT_EQ(SafetensorsFile(out / "model.safetensors").find("model.norm.weight")->dtype, "BF16");
  EXPECT_EQ(SafetensorsFile(out / "model.safetensors").metadata().at("format"), "pt");
  const Json config = parse_json_file(out / "config.json", ErrorCode::io);
  EXPECT_EQ(config["torch_dtype"], "float32");
  EXPECT_EQ(config["dtype"], "float32");
  EXPECT_TRUE(std::filesystem::exists(out / "tokenizer.json"));
  EXPECT_FALSE(std::filesystem::exists(out / "adapter.bin"));
  ASSERT_EQ(writer.left_out().size(), 1u);
  EXPECT_EQ(writer.left_out()[0].path, "adapter.bin");
  EXPECT_THROW(HfWriter(out, fixture.layout, {.source = fixture.directory.path()}), Error) << "the directory is in use";
}

TEST(HfWriter, AValueThatTheDtypeCannotHoldIsRefusedNotWrittenAsAnInfinity) {
  Fixture fixture(kLlama);
  for (const auto& [dtype, value, good] : std::vector<std::tuple<DType, float, bool>>{
           {DType::f16, 65519, true}, {DType::f16, -65520, false}, {DType::bf16, 3e38f, true}, {DType::bf16, 3.4e38f, false},
           {DType::f32, 3.4e38f, true}, {DType::f16, std::numeric_limits<float>::infinity(), true}}) {
    SCOPED_TRACE(fmt::format("{} {}", to_string(dtype), value));
    const ScratchDirectory directory;
    HfWriter writer(directory / "out", fixture.layout, {.dtype = dtype, .source = fixture.directory.path()});
    std::vector<float> values = fixture.units[1];
    const TensorLayout& up = *fixture.layout.units[1].find(TensorRole::up_weight);
    values[up.offset + 77] = value;
    try {
      writer.write_from_float(1, {0, values.size()}, values.data());
      EXPECT_TRUE(good);
    } catch (const Error& error) {
      EXPECT_FALSE(good);
      EXPECT_THAT(error.what(), AllOf(HasSubstr(up.name), HasSubstr("element 77 is"), HasSubstr("--dtype")));
    }
  }
}

TEST(HfWriter, LargeModelsAreShardedWithAnIndex) {
  Fixture fixture(kGpt2);
  fixture.tensors.push_back({"transformer.h.0.attn.bias", "BOOL", {1, 1, 2, 2}, {1, 0, 1, 1}});
  fixture.save_single();
  const HfWeights source = fixture.open();
  const std::filesystem::path out = fixture.directory / "out";
  HfWriter writer(out, fixture.layout,
                  {.dtype = DType::bf16,
                   .max_shard_bytes = 3000,
                   .source = fixture.directory / "config.json",
                   .passthrough = source.passthrough_tensors()});
  for (size_t unit = 0; unit < fixture.units.size(); ++unit)
    writer.write_from_float(unit, {0, fixture.units[unit].size()}, fixture.units[unit].data());
  writer.finish();
  EXPECT_FALSE(std::filesystem::exists(out / "model.safetensors"));
  const auto map = read_safetensors_index(out / "model.safetensors.index.json");
  EXPECT_EQ(map.size(), fixture.tensors.size());
  std::set<std::string> names;
  for (const auto& [tensor, file] : map) names.insert(file);
  EXPECT_GT(names.size(), 3u);
  for (const std::string& name : names) {
    const SafetensorsFile file(out / name);
    EXPECT_TRUE(file.data_bytes() <= 3000 || file.tensors().size() == 1) << name;
  }
  const HfWeights weights(out, fixture.model, fixture.layout);
  std::vector<float> want = fixture.units[1];
  for (float& value : want) value = float_from_bf16(bf16_from_float(value));
  EXPECT_EQ(read_unit(weights, fixture.layout, 1, 4096), want);
  ASSERT_EQ(weights.passthrough_tensors().size(), 1u);
  EXPECT_EQ(weights.source_dtype(), DType::bf16);
}

TEST(HfWriter, AnIncompleteModelIsNotFinished) {
  Fixture fixture(kGpt2);
  const std::filesystem::path out = fixture.directory / "out";
  {
    HfWriter writer(out, fixture.layout, {.source = fixture.directory.path()});
    writer.write_from_float(0, {0, fixture.units[0].size()}, fixture.units[0].data());
    EXPECT_THROW(writer.finish(), Error);
  }
  EXPECT_TRUE(std::filesystem::is_empty(out));
}

}  // namespace
}  // namespace strata
