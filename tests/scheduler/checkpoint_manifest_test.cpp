// A manifest is believed in nothing: every word is one of a list, every number has a range, and what it says of a store is compared with it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "core/content_hash.hpp"
#include "core/error.hpp"
#include "scheduler/checkpoint_manifest.hpp"
#include "tests/scheduler/training_fixture.hpp"
#include "tests/support/files.hpp"
#include "tests/support/scratch_directory.hpp"

namespace strata::scheduler {
namespace {

namespace fs = std::filesystem;
using OrderedJson = nlohmann::ordered_json;
using ::testing::AllOf;
using ::testing::HasSubstr;

/// Changes a manifest and gives it the checksum that belongs to its new content, as a careless or hostile hand would.
void reseal(const fs::path& checkpoint, const std::function<void(OrderedJson&)>& change) {
  const fs::path path = checkpoint / kManifestName;
  OrderedJson json = OrderedJson::parse(read_file(path));
  json.erase("xxh3");
  change(json);
  const fs::path text = checkpoint.parent_path() / "text";
  write_file(text, json.dump());
  json["xxh3"] = hash_file(text);
  fs::remove(text);
  write_file(path, json.dump(2));
}

class Manifest : public ::testing::Test {
 protected:
  /// Trains three steps with all state in a store, or in memory.
  fs::path trained(bool store) {
    write_random_model(scratch_.path(), kTinyTiedLlama);
    write_text(scratch_ / "text.txt", 20000);
    Config config = tiny_config(scratch_.path(), 3);
    config.precision.compute = DType::bf16;
    config.schedule.tile_bytes = 256 << 10;  // several tiles a unit
    if (store) config.placement = {Tier::nvme, Tier::nvme, Tier::nvme, ActivationPolicy::recompute};
    return run_training(config, scratch_ / "run").checkpoint;
  }
  /// What exporting says after a change of the manifest; the manifest is put back.
  std::string refusal(const fs::path& checkpoint, const std::function<void(OrderedJson&)>& change) {
    const std::string whole = read_file(checkpoint / kManifestName);
    reseal(checkpoint, change);
    std::string text = "accepted";
    try {
      export_checkpoint(checkpoint, scratch_ / "out", {});
    } catch (const Error& error) {
      EXPECT_THAT(error.code(), ::testing::AnyOf(ErrorCode::data_corruption, ErrorCode::invalid_data)) << error.what();
      text = error.what();
    }
    EXPECT_FALSE(text == "accepted" ? false : fs::exists(scratch_ / "out"));
    write_file(checkpoint / kManifestName, whole);
    return text;
  }

  const ScratchDirectory scratch_{disk_of_the_build()};
};

TEST_F(Manifest, OfAnotherTileSizeThanTheStoreIsRefusedBeforeABufferIsFilled) {
  const fs::path checkpoint = trained(true);
  const uint64_t whole = CheckpointManifest::read(checkpoint).tile_elements;
  for (const uint64_t elements : {uint64_t{4096}, whole / 2 / 4096 * 4096, whole + 4096, whole * 2, uint64_t{1} << 40})
    if (elements != whole) {
      EXPECT_THAT(refusal(checkpoint, [&](OrderedJson& json) { json["store"]["tile_elements"] = elements; }),
                  HasSubstr("the checkpoint and its store do not agree"))
          << elements;
    }
  EXPECT_THAT(refusal(checkpoint, [](OrderedJson& json) { json["master"] = "fp32"; }), HasSubstr("do not agree"));
  EXPECT_THAT(refusal(checkpoint, [](OrderedJson& json) { json["trainer"]["step"] = 4; }), HasSubstr("it is of step 4"));
  EXPECT_THAT(refusal(checkpoint, [](OrderedJson& json) { json["trainer"]["samples"] = 1; }), HasSubstr("do not agree"));
  EXPECT_EQ(refusal(checkpoint, [](OrderedJson&) {}), "accepted");
}

TEST_F(Manifest, HasARangeForEveryNumberAndAListForEveryWord) {
  const fs::path checkpoint = trained(true);
  const auto pointer = [](const char* text) { return OrderedJson::json_pointer(text); };
  const std::vector<std::pair<const char*, std::vector<OrderedJson>>> cases = {
      {"/format", {"strata", 1}},
      {"/version", {0, 3, -1, 1.5, "1", nullptr}},
      {"/kind", {"file", "", 0, nullptr}},
      {"/compute", {"fp8", "float32", "", 16, nullptr}},
      {"/master", {"bf16", "", 1, "parameter"}},
      {"/trainer", {nullptr, 1, "x", OrderedJson::array()}},
      {"/trainer/step", {-1, 1.5, "3", nullptr, 1ull << 60}},
      {"/trainer/updates", {-1, 4, 0.5, nullptr}},
      {"/trainer/samples", {-1, 1e30, ~0ull}},
      {"/trainer/loss_scale", {0, -1, 1e300, "x"}},
      {"/trainer/good_steps", {-1, 1.5}},
      {"/trainer/skipped_in_a_row", {-1, 4}},
      {"/files", {nullptr, OrderedJson::object(), OrderedJson::array(), OrderedJson::array({1}), OrderedJson::array({nullptr})}},
      {"/files/0/path", {"", "/etc/passwd", "../x", "a/../../x", "absent", 1, nullptr}},
      {"/files/0/bytes", {-1, 0, 1.5, ~0ull, "1", nullptr}},
      {"/files/0/xxh3", {"", "x", 1, nullptr, "0123456789ABCDEF0123456789ABCDEF", "00000000000000000000000000000000"}},
      {"/store", {nullptr, 1, OrderedJson::array()}},
      {"/store/id", {"", "x", 1, nullptr, "zz345678901234567890123456789012"}},
      {"/store/directories", {nullptr, OrderedJson::array(), "x", OrderedJson::array({1}), OrderedJson::array({""})}},
      {"/store/relative", {nullptr, OrderedJson::array(), OrderedJson::array({"a", "b"}), OrderedJson::array({7})}},
      {"/store/generation", {-1, 0, 1.5, 1, ~0ull, "4", nullptr}},
      {"/store/tile_elements", {-4096, 0, 1, 4095, 4097, ~0ull, "4096", 4096.5, nullptr}},
  };
  for (const auto& [key, values] : cases)
    for (const OrderedJson& value : values)
      EXPECT_NE(refusal(checkpoint, [&](OrderedJson& json) { json[pointer(key)] = value; }), "accepted") << key << " " << value;
  EXPECT_NE(refusal(checkpoint, [](OrderedJson& json) { json["files"].push_back(json["files"][0]); }), "accepted");
}

TEST_F(Manifest, ThatDoesNotListAFileThatIsReadIsRefused) {
  const fs::path checkpoint = trained(false);
  const size_t files = CheckpointManifest::read(checkpoint).files.size();
  for (size_t i = 0; i < files; ++i) {
    const std::string name = CheckpointManifest::read(checkpoint).files[i].path;
    if (!name.ends_with("safetensors") && name != "master/config.json") continue;
    EXPECT_THAT(refusal(checkpoint, [&](OrderedJson& json) { json["files"].erase(i); }), AllOf(HasSubstr("does not list"), HasSubstr(name)));
  }
}

}  // namespace
}  // namespace strata::scheduler
