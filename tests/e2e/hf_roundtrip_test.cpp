// Hugging Face directories written from the layout's flat buffers and read back: every bit, name, dtype and file.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "core/hf_weights.hpp"
#include "tests/support/scratch_directory.hpp"

namespace strata {
namespace {

namespace fs = std::filesystem;

fs::path vectors(const std::string& name) { return fs::path(STRATA_SOURCE_DIR) / "tests/reference/vectors" / name; }

using UnitBuffers = std::vector<std::vector<float>>;

struct Model {
  explicit Model(const fs::path& path)
      : directory(path),
        description(read_model_description(path)),
        layout(make_layout(description)),
        weights(path, description, layout) {}

  UnitBuffers read() const {
    UnitBuffers result;
    for (size_t unit = 0; unit < layout.units.size(); ++unit) {
      const uint64_t elements = layout.units[unit].padded_elements;
      weights.read_as_float(unit, {0, elements}, result.emplace_back(elements, -1.0f).data());
    }
    return result;
  }

  fs::path directory;
  ModelDescription description;
  ModelLayout layout;
  HfWeights weights;
};

/// Full fp32 values, which every narrower dtype has to round; gaps stay zero.
UnitBuffers random_values(const ModelLayout& layout, uint64_t seed) {
  std::mt19937_64 generator(seed);
  std::normal_distribution<float> normal(0.0f, 0.1f);
  UnitBuffers result;
  for (const auto& unit : layout.units) {
    auto& buffer = result.emplace_back(unit.padded_elements);
    for (const auto& tensor : unit.tensors) {
      for (uint64_t i = 0; i < tensor.elements; ++i) buffer[tensor.offset + i] = normal(generator);
    }
  }
  return result;
}

/// [0, count) cut at random places, in random order.
std::vector<Range> random_pieces(uint64_t count, std::mt19937_64& generator) {
  std::set<uint64_t> cuts = {0, count};
  for (int i = 0; i < 7; ++i) cuts.insert(generator() % (count + 1));
  std::vector<Range> pieces;
  for (auto cut = cuts.begin(); std::next(cut) != cuts.end(); ++cut) pieces.push_back({*cut, *std::next(cut) - *cut});
  std::shuffle(pieces.begin(), pieces.end(), generator);
  return pieces;
}

void write_all(HfWriter& writer, const UnitBuffers& values, uint64_t seed) {
  std::mt19937_64 generator(seed);
  for (size_t unit = 0; unit < values.size(); ++unit) {
    for (const Range piece : random_pieces(values[unit].size(), generator)) {
      writer.write_from_float(unit, piece, values[unit].data() + piece.first);
    }
  }
}

float rounded(float value, DType dtype) {
  return dtype == DType::f32 ? value : float_from_half(dtype, half_from_float(dtype, value));
}

void expect_same_bits(const UnitBuffers& expected, const UnitBuffers& actual, DType dtype) {
  ASSERT_EQ(expected.size(), actual.size());
  for (size_t unit = 0; unit < expected.size(); ++unit) {
    ASSERT_EQ(expected[unit].size(), actual[unit].size());
    for (size_t i = 0; i < expected[unit].size(); ++i) {
      const float value = rounded(expected[unit][i], dtype);
      ASSERT_EQ(std::memcmp(&value, &actual[unit][i], sizeof(float)), 0)
          << "unit " << unit << " element " << i << ": " << value << " became " << actual[unit][i];
    }
  }
}

nlohmann::json read_json(const fs::path& path) {
  nlohmann::json result;
  std::ifstream(path) >> result;
  return result;
}

std::string dtype_name(DType dtype) { return dtype == DType::f32 ? "F32" : dtype == DType::bf16 ? "BF16" : "F16"; }

class HfRoundTrip : public testing::TestWithParam<std::tuple<std::string, DType>> {};

TEST_P(HfRoundTrip, KeepsBitsNamesShapesDtypesAndConfiguration) {
  const auto& [name, dtype] = GetParam();
  constexpr uint64_t kSeed = 77;
  const ScratchDirectory temporary;
  const Model source(vectors(name));
  const UnitBuffers values = random_values(source.layout, kSeed);
  HfWriter writer(temporary / "out", source.layout, {.dtype = dtype, .dtype_of = {}, .source = source.directory});
  write_all(writer, values, kSeed);
  writer.finish();

  const Model copy(temporary / "out");
  EXPECT_EQ(copy.weights.source_dtype(), dtype);
  expect_same_bits(values, copy.read(), dtype);

  const SafetensorsFile file(temporary / "out/model.safetensors");
  EXPECT_EQ(file.metadata().at("format"), "pt") << "transformers refuses a file without it";
  std::set<std::string> expected_names, names;
  for (const auto& unit : source.layout.units) {
    for (const auto& tensor : unit.tensors) {
      expected_names.insert(tensor.name);
      const SafetensorsEntry* entry = file.find(tensor.name);
      ASSERT_NE(entry, nullptr) << tensor.name;
      EXPECT_EQ(entry->shape, tensor.shape) << tensor.name;
      EXPECT_EQ(entry->dtype, dtype_name(dtype)) << tensor.name;
    }
  }
  for (const auto& entry : file.tensors()) names.insert(entry.name);
  EXPECT_EQ(names, expected_names);
  EXPECT_EQ(names.contains("lm_head.weight"), !source.description.tied_head);

  auto before = read_json(source.directory / "config.json"), after = read_json(temporary / "out/config.json");
  const std::string torch = dtype == DType::f32 ? "float32" : dtype == DType::bf16 ? "bfloat16" : "float16";
  EXPECT_EQ(after.at("torch_dtype"), torch);
  for (const char* key : {"torch_dtype", "dtype"}) {
    before.erase(key);
    after.erase(key);
  }
  EXPECT_EQ(before, after);
}

INSTANTIATE_TEST_SUITE_P(Models, HfRoundTrip,
                         testing::Combine(testing::Values("gpt2_untied", "llama_gqa", "llama_tied", "llama_mlp_bias",
                                                          "llama_attention_bias", "qwen2", "qwen3"),
                                          testing::Values(DType::f32, DType::bf16, DType::f16)),
                         [](const auto& info) {
                           return std::get<0>(info.param) + "_" + std::string(to_string(std::get<1>(info.param)));
                         });

TEST(HfRoundTripFiles, ReadingInPiecesGivesWhatReadingAtOnceGives) {
  constexpr uint64_t kSeed = 5;
  std::mt19937_64 generator(kSeed);
  for (const std::string name : {"gpt2", "qwen3_tied"}) {
    const Model model(vectors(name));
    const UnitBuffers whole = model.read();
    for (size_t unit = 0; unit < whole.size(); ++unit) {
      std::vector<float> pieced(whole[unit].size(), -1.0f);
      for (const Range piece : random_pieces(pieced.size(), generator)) {
        model.weights.read_as_float(unit, piece, pieced.data() + piece.first);
      }
      EXPECT_EQ(pieced, whole[unit]) << name << " unit " << unit << " seed " << kSeed;
    }
  }
}

TEST(HfRoundTripFiles, ShardsHoldEveryTensorOnceAndTheIndexNamesItsFile) {
  constexpr uint64_t kLimit = 9000;
  const ScratchDirectory temporary;
  const Model source(vectors("llama_gqa"));
  const UnitBuffers values = random_values(source.layout, 3);
  HfWriter writer(temporary / "out", source.layout,
                  {.dtype = DType::f32, .dtype_of = {}, .max_shard_bytes = kLimit, .source = source.directory});
  write_all(writer, values, 3);
  writer.finish();
  expect_same_bits(values, Model(temporary / "out").read(), DType::f32);

  EXPECT_FALSE(fs::exists(temporary / "out/model.safetensors"));
  const auto index = read_json(temporary / "out/model.safetensors.index.json");
  std::map<std::string, std::set<std::string>> named;  // by file
  for (const auto& [tensor, file] : index.at("weight_map").items()) named[file].insert(tensor);
  uint64_t total = 0, tensors = 0;
  for (const auto& item : fs::directory_iterator(temporary / "out")) {
    if (item.path().extension() != ".safetensors") continue;
    const SafetensorsFile file(item.path());
    std::set<std::string> held;
    for (const auto& entry : file.tensors()) held.insert(entry.name);
    EXPECT_EQ(held, named[item.path().filename().string()]) << item.path();
    EXPECT_TRUE(file.data_bytes() <= kLimit || held.size() == 1) << item.path() << " has " << file.data_bytes();
    total += file.data_bytes();
    tensors += held.size();
  }
  EXPECT_GT(named.size(), 3u);
  EXPECT_TRUE(named.contains(fmt::format("model-00001-of-{:05}.safetensors", named.size())));
  EXPECT_EQ(tensors, index.at("weight_map").size());
  EXPECT_EQ(index.at("metadata").at("total_size").get<uint64_t>(), total);
  EXPECT_EQ(total, source.layout.elements() * sizeof(float));
}

TEST(HfRoundTripFiles, OneTensorMayHaveAnotherDtype) {
  const ScratchDirectory temporary;
  const Model source(vectors("llama_gqa"));
  const UnitBuffers values = random_values(source.layout, 4);
  HfWriter writer(temporary / "out", source.layout,
                  {.dtype = DType::bf16, .dtype_of = {{"model.norm.weight", DType::f32}}, .source = source.directory});
  write_all(writer, values, 4);
  writer.finish();
  const Model copy(temporary / "out");
  EXPECT_EQ(copy.weights.source_dtype(), DType::bf16);
  const TensorLayout& norm = *source.layout.units.back().find(TensorRole::final_norm_weight);
  std::vector<float> read(norm.elements);
  copy.weights.read_as_float(source.layout.units.size() - 1, {norm.offset, norm.elements}, read.data());
  EXPECT_EQ(std::memcmp(read.data(), values.back().data() + norm.offset, norm.elements * sizeof(float)), 0);
  EXPECT_EQ(SafetensorsFile(temporary / "out/model.safetensors").find("lm_head.weight")->dtype, "BF16");
}

TEST(HfRoundTripFiles, BuffersThatAreNoParametersSurvive) {
  const ScratchDirectory temporary;
  const Model source(vectors("gpt2"));  // named as on the hub, without "transformer.", and with causal masks
  ASSERT_EQ(source.weights.passthrough_tensors().size(), 2u);
  HfWriter writer(temporary / "out", source.layout,
                  {.dtype = DType::f32, .dtype_of = {}, .source = source.directory, .passthrough = source.weights.passthrough_tensors()});
  const UnitBuffers values = source.read();
  write_all(writer, values, 6);
  writer.finish();
  const Model copy(temporary / "out");
  expect_same_bits(values, copy.read(), DType::f32);
  ASSERT_EQ(copy.weights.passthrough_tensors().size(), 2u);
  for (size_t i = 0; i < 2; ++i) {
    const auto& before = source.weights.passthrough_tensors()[i];
    const auto& after = copy.weights.passthrough_tensors()[i];
    EXPECT_EQ(before.name, after.name);
    EXPECT_EQ(before.entry->shape, after.entry->shape);
    std::vector<char> a(before.entry->bytes()), b(after.entry->bytes());
    before.file->read(*before.entry, 0, a.data(), a.size());
    after.file->read(*after.entry, 0, b.data(), b.size());
    EXPECT_EQ(a, b);
  }
}

TEST(HfRoundTripFiles, AnUnfinishedExportIsNotTakenForAModel) {
  const ScratchDirectory temporary;
  const Model source(vectors("llama_tied"));
  {
    HfWriter writer(temporary / "out", source.layout,
                    {.dtype = DType::f32, .dtype_of = {}, .source = source.directory});
    const auto values = random_values(source.layout, 8);
    writer.write_from_float(0, {0, values[0].size()}, values[0].data());
    EXPECT_THROW(writer.finish(), Error);  // the other units were never written
  }
  EXPECT_FALSE(fs::exists(temporary / "out/model.safetensors"));
  EXPECT_FALSE(fs::exists(temporary / "out/config.json"));
  EXPECT_TRUE(fs::is_empty(temporary / "out"));
}

TEST(HfRoundTripFiles, ADirectoryThatHoldsWeightsIsNotOverwritten) {
  const ScratchDirectory temporary;
  const Model source(vectors("llama_tied"));
  const HfWriterOptions options{.dtype = DType::f32, .dtype_of = {}, .source = source.directory};
  {
    HfWriter writer(temporary / "out", source.layout, options);
    write_all(writer, source.read(), 9);
    writer.finish();
  }
  EXPECT_THROW(HfWriter(temporary / "out", source.layout, options), Error);
  expect_same_bits(source.read(), Model(temporary / "out").read(), DType::f32);
}

}  // namespace
}  // namespace strata
