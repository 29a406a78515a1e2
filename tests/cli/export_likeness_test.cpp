// An export is in the likeness of the model that training started from, and needs nothing of that model any more.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <map>

#include "core/dtype.hpp"
#include "core/hf_weights.hpp"
#include "tests/cli/trained_run.hpp"

namespace strata::cli::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

std::vector<char> bytes_of(const SafetensorsFile& file, const SafetensorsEntry& tensor) {
  std::vector<char> bytes(tensor.bytes());
  file.read(tensor, 0, bytes.data(), bytes.size());
  return bytes;
}

struct Stored {
  std::string dtype;
  std::vector<char> bytes;
  bool operator==(const Stored&) const = default;
};
std::map<std::string, Stored> tensors_of(const fs::path& model) {
  const SafetensorsFile file(model / "model.safetensors");
  std::map<std::string, Stored> tensors;
  for (const SafetensorsEntry& tensor : file.tensors()) tensors[tensor.name] = {tensor.dtype, bytes_of(file, tensor)};
  return tensors;
}

/// Every file of a directory with its content.
std::map<std::string, std::string> files_of(const fs::path& directory) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::recursive_directory_iterator(directory))
    if (entry.is_regular_file()) files[entry.path().lexically_relative(directory).string()] = read_file(entry.path());
  return files;
}

/// Rewrites a model's weights: all in bf16 but the norms, whose dtypes are others.
void mix_dtypes(const fs::path& model) {
  const ModelDescription description = read_model_description(model);
  const ModelLayout layout = make_layout(description);
  const fs::path mixed = model.parent_path() / "mixed";
  {
    const HfWeights weights(model, description, layout);
    HfWriterOptions options{.dtype = DType::bf16, .source = model, .passthrough = weights.passthrough_tensors()};
    for (const UnitLayout& unit : layout.units)
      for (const TensorLayout& tensor : unit.tensors) {
        if (tensor.name.find("norm") != std::string::npos || tensor.name.find("ln_") != std::string::npos)
          options.dtype_of[tensor.name] = tensor.name.ends_with("bias") ? DType::f16 : DType::f32;
      }
    EXPECT_FALSE(options.dtype_of.empty());
    HfWriter writer(mixed, layout, options);
    for (size_t unit = 0; unit < layout.units.size(); ++unit) {
      std::vector<float> values(layout.units[unit].padded_elements);
      weights.read_as_float(unit, {0, values.size()}, values.data());
      writer.write_from_float(unit, {0, values.size()}, values.data());
    }
    writer.finish();
  }
  fs::remove_all(model);
  fs::rename(mixed, model);
}

/// Puts one fp32 value into a tensor of a model.
void set_weight(const fs::path& model, const std::string& name, float value) {
  uint64_t offset = 0;
  {
    const SafetensorsFile file(model / "model.safetensors");
    const SafetensorsEntry& tensor = *file.find(name);
    ASSERT_EQ(tensor.dtype, "F32");
    offset = fs::file_size(model / "model.safetensors") - file.data_bytes() + tensor.begin;
  }
  std::fstream stream(model / "model.safetensors", std::ios::in | std::ios::out | std::ios::binary);
  stream.seekp(static_cast<std::streamoff>(offset));
  stream.write(reinterpret_cast<const char*>(&value), sizeof value);
}

class ExportLikeness : public ::testing::TestWithParam<Optimizer> {};
INSTANTIATE_TEST_SUITE_P(Checkpoints, ExportLikeness, ::testing::Values(Optimizer::host, Optimizer::nvme),
                         [](const auto& info) { return info.param == Optimizer::host ? "OfFiles" : "OfAStore"; });

TEST_P(ExportLikeness, EachTensorKeepsTheDtypeItHadAndWhatIsNoParameterItsBytes) {
  const TrainedRun trained(GetParam(), {"optimizer.lr=0"}, "gpt2", mix_dtypes);
  const fs::path out = trained.scratch() / "out";
  const Outcome outcome = strata({"export", trained.run(), out});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(tensors_of(out), tensors_of(trained.model()));
  EXPECT_EQ(nlohmann::json::parse(read_file(out / "config.json")).at("torch_dtype"), "bfloat16");
  size_t of_f16 = 0, of_f32 = 0, of_others = 0;
  for (const auto& [name, tensor] : tensors_of(out)) {
    of_f16 += tensor.dtype == "F16";
    of_f32 += tensor.dtype == "F32";
    of_others += name.ends_with(".attn.bias");  // a causal mask
  }
  EXPECT_TRUE(of_f16 > 0 && of_f32 > 0 && of_others > 0) << of_f16 << " " << of_f32 << " " << of_others;
}

TEST_P(ExportLikeness, ItNeedsNothingOfTheInputModel) {
  const TrainedRun trained(GetParam(), {}, "gpt2", mix_dtypes);
  const fs::path before = trained.scratch() / "before";
  ASSERT_EQ(strata({"export", trained.run(), before}).status, 0);
  // Its weights gone, then another model in its place, then nothing.
  fs::remove(trained.model() / "model.safetensors");
  for (const char* state : {"without weights", "another", "gone"}) {
    if (state == std::string("another")) copy_of_model("gpt2_untied", (fs::remove_all(trained.model()), trained.model()));
    if (state == std::string("gone")) fs::remove_all(trained.model());
    const fs::path out = trained.scratch() / state;
    const Outcome outcome = strata({"export", trained.run(), out});
    ASSERT_EQ(outcome.status, 0) << state << outcome.err;
    EXPECT_EQ(files_of(out), files_of(before)) << state;
  }
  EXPECT_EQ(strata({"verify", trained.run()}).status, 0);
  flip_bit(trained.run() / "model/config.json", 3);
  const Outcome damaged = strata({"verify", trained.run()});
  EXPECT_EQ(damaged.status, 1);
  EXPECT_THAT(damaged.out, HasSubstr("model/config.json"));
  if (GetParam() != Optimizer::host) return;
  fs::copy(trained.checkpoint(), trained.scratch() / "alone", fs::copy_options::recursive);
  fs::remove_all(trained.run());
  ASSERT_EQ(strata({"export", trained.scratch() / "alone", trained.scratch() / "of-alone"}).status, 0);
  EXPECT_EQ(files_of(trained.scratch() / "of-alone"), files_of(before));
}

TEST_P(ExportLikeness, WhatIsNoWeightsGoesAlongAndWhatStaysBehindIsSaid) {
  const TrainedRun trained(GetParam(), {}, "llama_gqa", [](const fs::path& model) {
    fs::create_directories(model / "additional_chat_templates");
    for (const char* name : {"preprocessor_config.json", "LICENSE", "additional_chat_templates/tool_use.jinja", "pytorch_model.bin"})
      write_file(model / name, name);
  });
  EXPECT_THAT(trained.said(), HasSubstr("pytorch_model.bin (weights"));
  const fs::path out = trained.scratch() / "out";
  const Outcome outcome = strata({"export", trained.run(), out});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("left out: pytorch_model.bin (weights"));
  const auto files = files_of(out);
  for (const char* name : {"preprocessor_config.json", "LICENSE", "additional_chat_templates/tool_use.jinja"}) EXPECT_EQ(files.at(name), name);
  EXPECT_EQ(files.size(), 5u);  // these, config.json, model.safetensors
}

TEST(ModelNotes, AnIgnoredKeyOfTheModelIsSaidOnceByTrain) {
  const TrainedRun trained(Optimizer::host, {}, "llama_gqa", [](const fs::path& model) {
    nlohmann::json config = nlohmann::json::parse(read_file(model / "config.json"));
    config["attention_dropout"] = 0.25;
    write_file(model / "config.json", config.dump());
  });
  const std::string line = "note: training runs without dropout; ignored: attention_dropout 0.25";
  EXPECT_THAT(trained.said(), HasSubstr(line));
  EXPECT_EQ(trained.said().find(line), trained.said().rfind(line));
}

TEST(ExportDtype, TheMasterWeightsOfABf16RunAreHandedOutInFp32) {
  const TrainedRun trained(Optimizer::nvme, {"precision.compute=bf16"}, "llama_gqa", mix_dtypes);
  const std::map<std::string, std::pair<std::string, std::string>> dtypes = {
      {"fp32", {"F32", "float32"}}, {"bf16", {"BF16", "bfloat16"}}, {"fp16", {"F16", "float16"}}};
  std::map<std::string, std::map<std::string, Stored>> exported;
  for (const auto& [name, stored] : dtypes) {
    const fs::path out = trained.scratch() / name;
    const Outcome outcome = strata({"export", trained.run(), out, "--dtype", name});
    ASSERT_EQ(outcome.status, 0) << outcome.err;
    exported[name] = tensors_of(out);
    for (const auto& [tensor, content] : exported[name]) EXPECT_EQ(content.dtype, stored.first) << tensor;
    EXPECT_EQ(nlohmann::json::parse(read_file(out / "config.json")).at("torch_dtype"), stored.second);
  }
  ASSERT_EQ(strata({"export", trained.run(), trained.scratch() / "like", "--dtype", "original"}).status, 0);
  const auto like = tensors_of(trained.scratch() / "like");
  size_t beyond_bf16 = 0, in_bf16 = 0;
  for (const auto& [name, master] : exported["fp32"]) {
    std::vector<float> values(master.bytes.size() / sizeof(float));
    std::memcpy(values.data(), master.bytes.data(), master.bytes.size());
    std::vector<uint16_t> rounded;
    for (const float value : values) {
      rounded.push_back(bf16_from_float(value));
      beyond_bf16 += float_from_bf16(rounded.back()) != value;
    }
    const std::vector<char>& bf16 = exported["bf16"].at(name).bytes;
    ASSERT_EQ(bf16.size(), 2 * rounded.size());
    EXPECT_EQ(std::memcmp(bf16.data(), rounded.data(), bf16.size()), 0) << name;
    EXPECT_EQ(like.at(name).bytes, (like.at(name).dtype == "BF16" ? bf16 : master.bytes)) << name;
    in_bf16 += like.at(name).dtype == "BF16";
  }
  EXPECT_GT(beyond_bf16, 1000u);  // there is more in them than a bf16 export holds
  EXPECT_TRUE(in_bf16 > 0 && in_bf16 < like.size());
}

TEST(ExportDtype, AWeightThatTheDtypeCannotHoldIsNamedAndNothingIsLeft) {
  const TrainedRun trained(Optimizer::host, {"optimizer.lr=0"}, "llama_gqa",
                           [](const fs::path& model) { set_weight(model, "model.norm.weight", 1e5f); });
  const fs::path out = trained.scratch() / "out";
  for (const bool made : {false, true}) {
    if (made) fs::create_directory(out);
    const Outcome outcome = strata({"export", trained.run(), out, "--dtype", "fp16"});
    EXPECT_EQ(outcome.status, 1);
    EXPECT_THAT(outcome.err, AllOf(HasSubstr("model.norm.weight"), HasSubstr("element 0 is 100000"), HasSubstr("fp32 or bf16")));
    EXPECT_EQ(fs::exists(out), made);
    EXPECT_TRUE(!made || fs::is_empty(out));
  }
  EXPECT_EQ(strata({"export", trained.run(), out, "--dtype", "bf16"}).status, 0);
  const Outcome unknown = strata({"export", trained.run(), trained.scratch() / "other", "--dtype", "fp8"});
  EXPECT_EQ(unknown.status, 2);
}

}  // namespace
}  // namespace strata::cli::testing
