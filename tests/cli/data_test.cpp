// Token files as the commands see them: their width, their description, and what a run refuses to read; long scans and Ctrl-C.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <thread>

#include "core/content_hash.hpp"
#include "tests/cli/program.hpp"

namespace strata::cli::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using Json = nlohmann::json;

template <class T>
std::string tokens(int count, int vocab) {
  std::string bytes;
  uint64_t state = 7;
  for (int i = 0; i < count; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    const T token = static_cast<T>((state >> 33) % static_cast<uint64_t>(vocab));
    bytes.append(reinterpret_cast<const char*>(&token), sizeof token);
  }
  return bytes;
}

class DataFiles : public ::testing::Test {
 protected:
  DataFiles() { copy_of_model("llama_gqa", model()); }  // a vocabulary of 71
  fs::path model() const { return scratch_ / "model"; }
  fs::path file(const std::string& name, const std::string& content) const {
    write_file(scratch_ / name, content);
    return scratch_ / name;
  }
  std::vector<std::string> train(const fs::path& data, const std::string& format) const {
    const Json config = {{"model", {{"path", model().string()}}},
                         {"data", {{"train", {data}}, {"format", format}, {"sequence_length", 16}}},
                         {"precision", {{"compute", "fp32"}}},
                         {"steps", 2},
                         {"device", {{"kind", "host"}, {"memory", "64MiB"}}},
                         {"tiers", {{"host", {{"memory", "64MiB"}}}}}};
    write_file(scratch_ / "train.json", config.dump());
    return {"train", scratch_ / "train.json", "--run-dir", scratch_ / "run"};
  }
  /// A file of zeros that takes no space, as large as people's.
  fs::path huge() const {
    const fs::path path = file("huge.bin", "");
    fs::resize_file(path, uint64_t{64} << 30);
    return path;
  }

  const ScratchDirectory scratch_;
};

TEST_F(DataFiles, TokensOfAnotherWidthAreRefusedByEveryCommand) {
  const fs::path path = file("wide.bin", tokens<int64_t>(3000, 71));
  for (const char* format : {"raw16", "raw32"}) {
    const Outcome inspected = strata({"inspect", path, "--format", format});
    EXPECT_EQ(inspected.status, 1);
    EXPECT_THAT(inspected.out, AllOf(HasSubstr("64-bit tokens"), HasSubstr("problem"), HasSubstr("largest token")));
    const Outcome verified = strata({"verify", path, "--format", format});
    EXPECT_EQ(verified.status, 1);
    EXPECT_THAT(verified.out, AllOf(HasSubstr("broken: "), HasSubstr("64-bit tokens")));
    const Outcome trained = strata(train(path, format));
    EXPECT_EQ(trained.status, 1);
    EXPECT_THAT(trained.err, AllOf(HasSubstr("64-bit tokens"), HasSubstr("wide.bin"), HasSubstr("<i8")));
    EXPECT_FALSE(fs::exists(scratch_ / "run")) << "refused before anything was made";
  }
  EXPECT_EQ(strata({"inspect", file("right.bin", tokens<uint32_t>(3000, 71)), "--format", "raw32"}).status, 0);
}

TEST_F(DataFiles, ADescriptionIsWrittenCheckedAndHeldAgainstTheModel) {
  write_file(model() / "tokenizer.json", "{\"model\": 1}");
  const fs::path path = file("t.bin", tokens<uint16_t>(3000, 71)), meta = scratch_ / "t.bin.meta.json";
  const Outcome written = strata({"inspect", path, "--format", "raw16", "--write-meta", model(), "--json"});
  ASSERT_EQ(written.status, 0) << written.err;
  EXPECT_EQ(written.json().at("description"), Json::parse(R"({"dtype": "uint16", "tokens": 3000, "vocab_size": 71, "tokenizer_xxh3": ")" +
                                                          hash_text("{\"model\": 1}") + "\"}"));
  EXPECT_EQ(strata({"inspect", meta, "--json"}).json().at("kind"), "description of a token file");
  EXPECT_EQ(strata({"verify", meta}).status, 0);
  EXPECT_EQ(strata({"verify", path, "--format", "raw16"}).status, 0);
  EXPECT_EQ(strata(train(path, "raw16")).status, 0);
  // Twice is no harm; a file that is none of ours is not replaced.
  EXPECT_EQ(strata({"inspect", path, "--format", "raw16", "--write-meta", model()}).status, 0);
  const std::string right = read_file(meta);
  write_file(meta, "{\"mine\": 1}");
  EXPECT_EQ(strata({"inspect", path, "--format", "raw16", "--write-meta", model()}).status, 1);
  EXPECT_EQ(read_file(meta), "{\"mine\": 1}");
  write_file(meta, right);
  // Another tokenizer, another file.
  write_file(model() / "tokenizer.json", "{\"model\": 2}");
  fs::remove_all(scratch_ / "run");
  const Outcome other = strata(train(path, "raw16"));
  EXPECT_EQ(other.status, 1);
  EXPECT_THAT(other.err, AllOf(HasSubstr("t.bin.meta.json"), HasSubstr(hash_text("{\"model\": 1}")),
                               HasSubstr(hash_text("{\"model\": 2}"))));
  write_file(path, tokens<uint16_t>(2999, 71));
  EXPECT_THAT(strata({"verify", path, "--format", "raw16"}).out, HasSubstr("describes 3000 uint16 tokens"));
  EXPECT_THAT(strata({"inspect", path, "--format", "raw16"}).out, HasSubstr("describes 3000 uint16 tokens"));
  // Nothing is written for tokens that the model does not have.
  fs::remove(meta);
  write_file(path, tokens<uint16_t>(3000, 72));
  EXPECT_EQ(strata({"inspect", path, "--format", "raw16", "--write-meta", model()}).status, 1);
  EXPECT_FALSE(fs::exists(meta));
  EXPECT_EQ(strata({"inspect", model(), "--write-meta", model()}).status, 2);
}

TEST_F(DataFiles, TextIsNotReadAsBytesForAModelWithATokenizer) {
  const fs::path text = file("text.txt", std::string(2000, '!'));
  EXPECT_EQ(strata(train(text, "auto")).status, 0);
  write_file(model() / "tokenizer.json", "{}");
  fs::remove_all(scratch_ / "run");
  const Outcome outcome = strata(train(text, "auto"));
  EXPECT_EQ(outcome.status, 2);
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("text.txt"), HasSubstr("tokenizer.json"), HasSubstr("vocabulary of 71"),
                                 HasSubstr("docs/data.md")));
}

TEST_F(DataFiles, CtrlCEndsTheCheckOfALargeFileAtOnce) {
  ProgramRun run(train(huge(), "raw16"), scratch_ / "log");
  while (run.running() && !fs::exists(scratch_ / "run/strata.lock")) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  ASSERT_TRUE(run.running()) << run.text();
  run.kill(SIGINT);
  EXPECT_EQ(run.wait(), 3);
  EXPECT_THAT(run.text(), HasSubstr("stopped before the first step"));
  for (const char* command : {"inspect", "verify"}) {
    ProgramRun scan({command, scratch_ / "huge.bin", "--format", "raw16"}, scratch_ / "log");
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    ASSERT_TRUE(scan.running()) << scan.text();
    scan.kill(SIGINT);
    EXPECT_EQ(scan.wait(), 128 + SIGINT) << command;
  }
}

TEST_F(DataFiles, NothingFromAFileSteersTheTerminal) {
  const std::string escape = "\x1b]0;owned\x07", turned = "\u202egnp.exe", name = "données-" + escape + turned;
  const fs::path path = file(name + ".bin", tokens<uint16_t>(10, 71));
  const fs::path config = file(name + ".json", "{\"model\": {\"path\": \"\\u001b[31m\\u202e\"}, \"" + turned + "\": 1, \"é\": 2}");
  for (const std::vector<std::string>& arguments : {std::vector<std::string>{"inspect", path, "--format", "raw16"},
                                                    {"inspect", path, "--format", "raw16", "--json"},
                                                    {"inspect", path},
                                                    {"inspect", path.string() + ".absent"},
                                                    {"verify", path, "--format", "raw16"},
                                                    {"train", config},
                                                    {"plan", config},
                                                    {"plan", "x", name},
                                                    {"train", config, "--resume", name},
                                                    {name}}) {
    const Outcome outcome = strata(arguments);
    for (const std::string& shown : {outcome.out, outcome.err}) {
      EXPECT_THAT(shown, AllOf(Not(HasSubstr("\x1b")), Not(HasSubstr("\x07")), Not(HasSubstr("\u202e")))) << arguments.front();
    }
    const std::string all = outcome.out + outcome.err;
    EXPECT_THAT(all, AnyOf(HasSubstr("données"), HasSubstr("verified"))) << "names of other scripts stay as they are";
  }
  EXPECT_EQ(strata({"inspect", path, "--format", "raw16", "--json"}).json().at("path"), path.string());
}

TEST_F(DataFiles, NothingFromTheInsideOfAFileSteersTheTerminal) {
  const std::string json = R"({"__metadata__": {"k\u001b[31m\u202e": "v\u009b\u2066"}, "poids-é\u001b[31m\u202e": {"dtype": "F32",)"
                           R"( "shape": [1], "data_offsets": [0, 4]}})";
  const uint64_t length = json.size();
  const fs::path path =
      file("w.safetensors", std::string(reinterpret_cast<const char*>(&length), sizeof length) + json + std::string(4, '\0'));
  const fs::path broken = file("broken.json", "{\"architectures\": [\"\\u001b[31m\\u202eé\"], \"model_type\": \"\\u202e\"}");
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{"inspect", path}, {"inspect", path, "--json"}, {"verify", path}, {"inspect", broken}}) {
    const Outcome outcome = strata(arguments);
    for (const std::string& shown : {outcome.out, outcome.err})
      EXPECT_THAT(shown, AllOf(Not(HasSubstr("\x1b")), Not(HasSubstr("\u202e")), Not(HasSubstr("\u2066")), Not(HasSubstr("\u009b"))));
  }
  EXPECT_THAT(strata({"inspect", path}).out, HasSubstr("poids-é\\x1b[31m\\xe2\\x80\\xae"));
  EXPECT_EQ(strata({"inspect", path, "--json"}).json().at("contents")[0].at("name"), "poids-é\x1b[31m\u202e");
}

TEST_F(DataFiles, WhatIsWrongWithAPathIsNotCalledSomethingElse) {
  fs::create_symlink("nowhere", scratch_ / "link");
  EXPECT_THAT(strata({"inspect", scratch_ / "link"}).err, HasSubstr("is a symbolic link to nowhere, which is not there"));
  fs::remove(model() / "model.safetensors");
  fs::create_symlink("../blobs/x", model() / "model.safetensors");
  const Outcome outcome = strata(train(file("t.bin", tokens<uint16_t>(3000, 71)), "raw16"));
  EXPECT_EQ(outcome.status, 1);
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("model.safetensors"), HasSubstr("symbolic link to ../blobs/x")));
  fs::create_symlink("loop", scratch_ / "loop");
  EXPECT_THAT(strata({"inspect", scratch_ / "loop"}).err, Not(HasSubstr("filesystem error")));
}

TEST_F(DataFiles, AnIndexOfManyFilesIsToldWithoutOpeningWhatIsNotThere) {
  Json index = {{"weight_map", Json::object()}};
  for (int i = 0; i < 200'000; ++i) index["weight_map"][fmt::format("t{}", i)] = fmt::format("part-{}.safetensors", i);
  index["weight_map"]["w"] = "link.safetensors";
  fs::create_symlink("nowhere", scratch_ / "link.safetensors");
  fs::copy_file(model() / "model.safetensors", scratch_ / "part-7.safetensors");
  const Json facts = strata({"inspect", file("model.safetensors.index.json", index.dump()), "--json"}).json();
  EXPECT_EQ(facts.at("tensors"), 200'001);
  EXPECT_EQ(facts.at("files"), 200'001);
  EXPECT_EQ(facts.at("missing_files"), 199'999);
  std::map<std::string, std::string> states;
  for (const Json& row : facts.at("weight_files")) states[row.at("file").get<std::string>()] = row.at("state").get<std::string>();
  EXPECT_EQ(states.at("part-7.safetensors"), "readable");
  EXPECT_EQ(states.at("part-0.safetensors"), "is not there");
  EXPECT_THAT(states.at("link.safetensors"), HasSubstr("symbolic link to nowhere"));
  EXPECT_LT(states.size(), 2000u);
}

}  // namespace
}  // namespace strata::cli::testing
