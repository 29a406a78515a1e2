// What goes along with a model's weights, what stays behind, and what is remembered of the weights.
#include "core/model_files.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <map>
#include <set>

#include "core/error.hpp"
#include "core/init_weights.hpp"
#include "core/model_origin.hpp"
#include "tests/support/files.hpp"
#include "tests/support/scratch_directory.hpp"

namespace strata {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// A file with its folders.
void put(const fs::path& path, const std::string& content = "x") {
  fs::create_directories(path.parent_path());
  write_file(path, content);
}

std::vector<std::string> names(const ModelFiles& files) {
  std::vector<std::string> names;
  for (const ModelFile& file : files.files) names.push_back(file.path.string());
  return names;
}

std::map<std::string, std::string> left_out(const ModelFiles& files) {
  std::map<std::string, std::string> left;
  for (const LeftOutFile& file : files.left_out) left[file.path] = file.reason;
  return left;
}

TEST(ModelFiles, EverythingThatIsNoWeightsGoesAlongFromFoldersToo) {
  const ScratchDirectory model;
  for (const char* name : {"config.json", "model.safetensors", "model-00001-of-00002.safetensors", "model.safetensors.index.json",
                           "tokenizer.json", "tekken.json", "chat_template.jinja", "LICENSE", "README.md", "merges.txt", "vocab.bpe",
                           "preprocessor_config.json", "tokenization_own.py", "additional_chat_templates/tool_use.jinja"})
    put(model / name, name);
  const ModelFiles listed = list_model_files(model.path());
  EXPECT_THAT(names(listed), ElementsAre("LICENSE", "README.md", "chat_template.jinja", "merges.txt", "preprocessor_config.json",
                                         "tekken.json", "tokenization_own.py", "tokenizer.json", "vocab.bpe",
                                         "additional_chat_templates/tool_use.jinja"));
  EXPECT_TRUE(listed.left_out.empty());

  const ScratchDirectory copy;
  EXPECT_TRUE(copy_model_files(model.path(), copy.path()).empty());
  for (const ModelFile& file : listed.files) EXPECT_EQ(read_file(copy.path() / file.path), file.path.string());
  EXPECT_EQ(std::distance(fs::recursive_directory_iterator(copy.path()), {}), 11);  // ten files and a folder
}

TEST(ModelFiles, WhatStaysBehindIsSaidWithItsReason) {
  const ScratchDirectory scratch;
  const fs::path model = scratch / "model";
  put(scratch / "secret", "key");
  put(scratch / "outside/x");
  for (const char* name : {"tokenizer.json", ".gitattributes", ".cache/x", "pytorch_model.bin", "pytorch_model.bin.index.json", "tf_model.h5",
                           "flax_model.msgpack", "consolidated.safetensors", "model.GGUF", "optimizer.pt", "rng_state.pth",
                           "original/params.json", "onnx/model.onnx", "checkpoint-500/config.json", "checkpoint-500/trainer_state.json",
                           "strata.lock", "a/b/c/d/e.txt"})
    put(model / name);
  fs::create_symlink(scratch / "secret", model / "LICENSE");
  fs::create_symlink(scratch / "outside", model / "folder");
  fs::create_symlink("nowhere", model / "dangling");
  fs::create_symlink("tokenizer.json", model / "inside.json");
  ASSERT_EQ(mkfifo((model / "fifo").c_str(), 0600), 0);
  put(model / "large.txt");
  fs::resize_file(model / "large.txt", kModelFileBytesMax + 1);
  put(model / "bad\xff.txt");

  const ModelFiles listed = list_model_files(model);
  EXPECT_THAT(names(listed), ElementsAre("inside.json", "tokenizer.json"));
  const auto left = left_out(listed);
  for (const char* hidden : {".gitattributes", ".cache"}) EXPECT_EQ(left.at(hidden), "hidden");
  for (const char* weights : {"pytorch_model.bin", "pytorch_model.bin.index.json", "tf_model.h5", "flax_model.msgpack",
                              "consolidated.safetensors", "model.GGUF", "optimizer.pt", "rng_state.pth", "original", "onnx"})
    EXPECT_THAT(left.at(weights), HasSubstr("another format")) << weights;
  EXPECT_EQ(left.at("checkpoint-500"), "a model or a run of its own");
  EXPECT_EQ(left.at("strata.lock"), "of an NVMe store");
  EXPECT_EQ(left.at("LICENSE"), "a link that leads out of the directory");
  EXPECT_EQ(left.at("folder"), "a link that leads out of the directory");
  EXPECT_EQ(left.at("dangling"), "a link to nothing");
  EXPECT_EQ(left.at("fifo"), "not a regular file");
  EXPECT_EQ(left.at("bad\xff.txt"), "its name is not UTF-8");
  EXPECT_THAT(left.at("large.txt"), HasSubstr("more than 64"));
  EXPECT_THAT(left.at("a/b/c/d"), HasSubstr("folders deep"));
  EXPECT_EQ(left.size(), 21u);
}

TEST(ModelFiles, TheTotalIsBoundedAndTheDirectoryItselfComesFirst) {
  const ScratchDirectory model;
  for (int i = 0; i < 5; ++i) {
    put(model / fmt::format("a/{}", i));
    fs::resize_file(model / fmt::format("a/{}", i), kModelFileBytesMax);
  }
  put(model / "tokenizer.json");
  const ModelFiles listed = list_model_files(model.path());
  EXPECT_THAT(names(listed), ElementsAre("tokenizer.json", "a/0", "a/1", "a/2"));
  EXPECT_LE(listed.bytes(), kModelFilesBytesMax);
  EXPECT_EQ(left_out(listed).size(), 2u);

  for (size_t i = 0; i < kModelFilesMax + 3; ++i) put(model / fmt::format("t{}", i));
  EXPECT_EQ(list_model_files(model.path()).files.size(), kModelFilesMax);
}

TEST(ModelFiles, TheLinksOfAHuggingFaceCacheAreFollowedIntoItsBlobs) {
  const ScratchDirectory cache;
  const fs::path snapshot = cache / "models--a--b/snapshots/0123";
  put(cache / "models--a--b/blobs/abc", "tokens");
  put(cache / "models--a--b/elsewhere", "other");
  fs::create_directories(snapshot);
  fs::create_symlink("../../blobs/abc", snapshot / "tokenizer.json");
  fs::create_symlink("../../elsewhere", snapshot / "other.json");
  const ModelFiles listed = list_model_files(snapshot);
  EXPECT_THAT(names(listed), ElementsAre("tokenizer.json"));
  EXPECT_EQ(left_out(listed).at("other.json"), "a link that leads out of the directory");
  const ScratchDirectory copy;
  copy_model_files(snapshot, copy.path());
  EXPECT_TRUE(fs::is_regular_file(fs::symlink_status(copy / "tokenizer.json")));
  EXPECT_EQ(read_file(copy / "tokenizer.json"), "tokens");
}

TEST(ModelFiles, ADestinationInsideTheModelIsNotCopiedIntoItself) {
  const ScratchDirectory model;
  put(model / "tokenizer.json");
  put(model / "out/old.txt");
  EXPECT_TRUE(copy_model_files(model.path(), model / "out").empty());
  EXPECT_TRUE(fs::exists(model / "out/tokenizer.json"));
  EXPECT_FALSE(fs::exists(model / "out/out"));
}

TEST(ModelOrigin, DtypesAndOtherTensorsAreRememberedExactly) {
  const fs::path gpt2 = fs::path(STRATA_SOURCE_DIR) / "tests/reference/vectors/gpt2";  // with causal masks
  const ModelDescription description = read_model_description(gpt2);
  const ModelLayout layout = make_layout(description);
  const HfWeights source(gpt2, description, layout);
  const ScratchDirectory scratch;
  HfWriter writer(scratch / "mixed", layout,
                  {.dtype = DType::bf16,
                   .dtype_of = {{"transformer.ln_f.weight", DType::f32}, {"transformer.h.0.ln_1.bias", DType::f16}},
                   .source = gpt2,
                   .passthrough = source.passthrough_tensors()});
  for (size_t unit = 0; unit < layout.units.size(); ++unit) {
    std::vector<float> values(layout.units[unit].padded_elements);
    source.read_as_float(unit, {0, values.size()}, values.data());
    writer.write_from_float(unit, {0, values.size()}, values.data());
  }
  writer.finish();

  const HfWeights mixed(scratch / "mixed", description, layout);
  fs::create_directory(scratch / "kept");
  ModelOrigin::write(scratch / "kept", mixed, {{"a", "b"}});
  EXPECT_GT(ModelOrigin::bytes(scratch / "kept"), 0u);
  fs::create_directory(scratch / "again");
  ModelOrigin::copy(scratch / "kept", scratch / "again");
  const std::optional<ModelOrigin> origin = ModelOrigin::read(scratch / "again");
  ASSERT_TRUE(origin);
  EXPECT_EQ(origin->dtype(), DType::bf16);
  EXPECT_EQ(origin->dtypes(), (std::map<std::string, DType>{{"transformer.ln_f.weight", DType::f32}, {"transformer.h.0.ln_1.bias", DType::f16}}));
  ASSERT_EQ(origin->left_out().size(), 1u);
  EXPECT_EQ(origin->left_out()[0].reason, "b");
  ASSERT_EQ(origin->passthrough().size(), source.passthrough_tensors().size());
  ASSERT_FALSE(origin->passthrough().empty());
  for (const PassthroughTensor& before : source.passthrough_tensors()) {
    const auto after = std::find_if(origin->passthrough().begin(), origin->passthrough().end(),
                                    [&](const PassthroughTensor& one) { return one.name == before.name; });
    ASSERT_NE(after, origin->passthrough().end()) << before.name;
    EXPECT_EQ(after->entry->dtype, before.entry->dtype);
    EXPECT_EQ(after->entry->shape, before.entry->shape);
    std::vector<char> a(before.entry->bytes()), b(a.size());
    before.file->read(*before.entry, 0, a.data(), a.size());
    after->file->read(*after->entry, 0, b.data(), b.size());
    EXPECT_EQ(a, b);
  }
  EXPECT_FALSE(ModelOrigin::read(scratch / "mixed"));
  write_file(scratch / "again/strata-origin.json", "{\"format\": \"strata-model-origin\", \"version\": 1}");
  EXPECT_THROW(ModelOrigin::read(scratch / "again"), Error);
}

}  // namespace
}  // namespace strata
