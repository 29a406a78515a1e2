// A run keeps what it needs of its input model: it is resumed without the model, and refuses to go on as another one.
#include "scheduler/model_copy.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/error.hpp"
#include "scheduler/checkpoint.hpp"
#include "scheduler/checkpoint_manifest.hpp"
#include "tests/scheduler/training_fixture.hpp"
#include "tests/support/files.hpp"
#include "tests/support/scratch_directory.hpp"

namespace strata::scheduler {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class ModelCopy : public testing::TestWithParam<bool> {  // whether the state is in a store
 protected:
  ModelCopy() {
    write_random_model(directory_.path(), kTinyTiedLlama);
    write_file(model() / "tokenizer.json", "{}");
    write_text(directory_ / "text.txt", 60000);
    config_ = tiny_config(directory_.path(), 4);
    if (GetParam()) config_.placement = {Tier::nvme, Tier::nvme, Tier::nvme, ActivationPolicy::recompute};
  }

  fs::path model() const { return directory_ / "model"; }
  fs::path run() const { return directory_ / "run"; }
  TrainSummary train_to(int64_t steps, bool resume = true) {
    config_.steps = steps;
    TrainOptions options;
    options.config = config_;
    options.run_directory = run();
    options.resume = resume;
    if (!resume) options.discard = {fs::weakly_canonical(run()).string(), (directory_ / "nvme").string()};
    options.hash_state = true;
    options.narrate = [this](const std::string& line) { log_ += line + "\n"; };
    log_.clear();
    return train(options);
  }
  std::string refusal(int64_t steps) {
    try {
      train_to(steps);
    } catch (const Error& error) {
      return error.what();
    }
    return "accepted";
  }
  void change_config(const std::string& from, const std::string& to) {
    std::string text = read_file(model() / "config.json");
    ASSERT_NE(text.find(from), std::string::npos);
    write_file(model() / "config.json", text.replace(text.find(from), from.size(), to));
  }

  ScratchDirectory directory_{disk_of_the_build()};
  Config config_;
  std::string log_;
};
INSTANTIATE_TEST_SUITE_P(State, ModelCopy, testing::Bool(), [](const auto& info) { return info.param ? "InAStore" : "InFiles"; });

TEST_P(ModelCopy, ARunGoesOnInTheSameBitsWithoutItsInputModel) {
  const std::string whole = train_to(4).state_hash;
  fs::remove_all(run());
  fs::remove_all(directory_ / "nvme");
  train_to(2);
  EXPECT_EQ(read_file(run() / "model/config.json"), read_file(model() / "config.json"));
  EXPECT_EQ(read_file(run() / "model/tokenizer.json"), "{}");
  fs::remove(model() / "model.safetensors");
  train_to(3);
  EXPECT_THAT(log_, Not(HasSubstr("is gone")));
  fs::remove_all(model());
  const TrainSummary last = train_to(4);
  EXPECT_EQ(last.resumed_from, 3);
  EXPECT_EQ(last.state_hash, whole);
  EXPECT_THAT(log_, HasSubstr("the model at " + model().string() + " is gone"));
  export_checkpoint(run(), directory_ / "out");
  EXPECT_EQ(read_file(directory_ / "out/tokenizer.json"), "{}");
}

TEST_P(ModelCopy, AnotherDescriptionIsRefusedWithWhatDiffers) {
  train_to(2);
  change_config("\"rms_norm_eps\": 1e-05", "\"rms_norm_eps\": 1e-06, \"rope_theta\": 500000.0");
  EXPECT_THAT(refusal(4), AllOf(HasSubstr("it would be another model"), HasSubstr("norm_epsilon 1e-05 -> 1e-06"),
                                HasSubstr("theta 10000.0 -> 500000.0")));
  change_config("\"rms_norm_eps\": 1e-06, \"rope_theta\": 500000.0", "\"rms_norm_eps\": 1e-05, \"initializer_range\": 0.5");
  EXPECT_EQ(train_to(4).resumed_from, 2);  // what takes no part in the numbers may change
}

TEST_P(ModelCopy, ADamagedCopyIsNamedBeforeAnythingIsUsed) {
  train_to(2);
  for (const char* name : {"config.json", "tokenizer.json", "strata-origin.json"}) {
    flip_bit(run() / "model" / name, 1);
    EXPECT_THAT(refusal(4), AllOf(HasSubstr((run() / "model" / name).string()), HasSubstr("checksum"), HasSubstr("made again"))) << name;
    flip_bit(run() / "model" / name, 1);
  }
  fs::remove_all(run() / "model");  // as a run of a version that kept none
  EXPECT_EQ(train_to(4).resumed_from, 2);
  EXPECT_TRUE(find_model_copy(run()));
}

TEST_P(ModelCopy, ARunThatSavedNothingTakesTheModelAsItIsNow) {
  train_to(2);
  write_file(model() / "tokenizer.json", "{\"new\": 1}");
  train_to(2, /*resume=*/false);
  EXPECT_EQ(read_file(run() / "model/tokenizer.json"), "{\"new\": 1}");
}

TEST_P(ModelCopy, ACheckpointOfAVersionThatKeptNothingOfTheModelIsExportedAsBefore) {
  train_to(2);
  // What such a version would have left: no copy, no origin, and a manifest that lists none.
  const fs::path checkpoint = resolve_checkpoint(run());
  CheckpointManifest manifest = CheckpointManifest::read(checkpoint);
  EXPECT_EQ(std::erase_if(manifest.files, [](const auto& file) { return file.path == "master/strata-origin.json"; }), 1u);
  fs::remove(checkpoint / "master/strata-origin.json");
  write_file(checkpoint / kManifestName, manifest.to_json());
  const auto dtype_of_export = [&](const char* out) {
    export_checkpoint(checkpoint, directory_ / out);
    return SafetensorsFile(directory_ / out / "model.safetensors").tensors().front().dtype;
  };
  EXPECT_EQ(dtype_of_export("like-the-model"), "F32");
  fs::rename(directory_ / "like-the-model", directory_ / "source");
  fs::remove_all(model());
  EXPECT_EQ(dtype_of_export("without-the-model"), "F32");
  const ModelDescription description = read_model_description(directory_ / "source");
  const ModelLayout layout = make_layout(description);
  const HfWeights weights(directory_ / "source", description, layout);
  HfWriter writer(model(), layout, {.dtype = DType::f16, .source = directory_ / "source"});
  for (size_t unit = 0; unit < layout.units.size(); ++unit) {
    std::vector<float> values(layout.units[unit].padded_elements);
    weights.read_as_float(unit, {0, values.size()}, values.data());
    writer.write_from_float(unit, {0, values.size()}, values.data());
  }
  writer.finish();
  EXPECT_EQ(dtype_of_export("like-another-model"), "F16");
}

}  // namespace
}  // namespace strata::scheduler
