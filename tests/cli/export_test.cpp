// `strata export`: a Hugging Face directory from a checkpoint of either kind.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/safetensors.hpp"
#include "tests/cli/trained_run.hpp"

namespace strata::cli::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

std::vector<char> bytes_of(const SafetensorsFile& file, const SafetensorsEntry& tensor) {
  std::vector<char> bytes(tensor.bytes());
  file.read(tensor, 0, bytes.data(), bytes.size());
  return bytes;
}

/// How many tensors of `a` have other bytes in `b`; both must have the same names, dtypes and shapes.
size_t differing_tensors(const fs::path& a, const fs::path& b) {
  const SafetensorsFile file_a(a / "model.safetensors"), file_b(b / "model.safetensors");
  EXPECT_EQ(file_a.tensors().size(), file_b.tensors().size());
  size_t differing = 0;
  for (const SafetensorsEntry& tensor : file_a.tensors()) {
    const SafetensorsEntry* other = file_b.find(tensor.name);
    if (!other || other->dtype != tensor.dtype || other->shape != tensor.shape) {
      ADD_FAILURE() << tensor.name << " is missing or of another shape";
      continue;
    }
    differing += bytes_of(file_a, tensor) != bytes_of(file_b, *other);
  }
  return differing;
}

class Export : public ::testing::TestWithParam<Optimizer> {};
INSTANTIATE_TEST_SUITE_P(Checkpoints, Export, ::testing::Values(Optimizer::host, Optimizer::nvme, Optimizer::two_nvme),
                         [](const auto& info) {
                           return info.param == Optimizer::host ? "OfFiles" : info.param == Optimizer::nvme ? "OfAStore" : "OfAStripedStore";
                         });

TEST_P(Export, GivesBackTheModelThatALearningRateOfZeroLeaves) {
  const TrainedRun trained(GetParam(), {"optimizer.lr=0"});
  const Outcome outcome = strata({"export", trained.checkpoint(), trained.scratch() / "out", "--json"});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(outcome.json().at("step"), 4);
  EXPECT_EQ(differing_tensors(trained.model(), trained.scratch() / "out"), 0u);
  EXPECT_EQ(strata({"verify", trained.scratch() / "out"}).status, 0);
}

TEST_P(Export, TakesTheNewestOfAFolderOrRun) {
  const TrainedRun trained(GetParam());
  for (const fs::path& from : {trained.run() / "checkpoints", trained.run()}) {
    const fs::path out = trained.scratch() / ("out-" + from.filename().string());
    const Outcome outcome = strata({"export", from, out});
    ASSERT_EQ(outcome.status, 0) << outcome.err;
    EXPECT_THAT(outcome.out, HasSubstr("step-00000004"));
    EXPECT_GT(differing_tensors(trained.model(), out), 0u);  // it was trained
  }
}

TEST(ExportRefusal, OfAnOutputThatIsNotEmpty) {
  const TrainedRun trained(Optimizer::host);
  const Outcome outcome = strata({"export", trained.checkpoint(), trained.model()});
  EXPECT_EQ(outcome.status, 2);
  EXPECT_THAT(outcome.err, HasSubstr("not an empty directory"));
}

TEST(ExportRefusal, OfAnOutputInsideTheRunOrTheCheckpoint) {
  const TrainedRun trained(Optimizer::host);
  const fs::path moved = trained.scratch() / "moved";
  fs::copy(trained.checkpoint(), moved, fs::copy_options::recursive);
  const std::vector<std::pair<fs::path, fs::path>> cases = {{trained.run(), trained.run() / "checkpoints/x"},
                                                            {trained.run() / "checkpoints", trained.run() / "x"},
                                                            {trained.checkpoint(), trained.model() / "../run/new/x"},
                                                            {moved, moved / "x"}};
  for (const auto& [from, out] : cases) {
    const Outcome outcome = strata({"export", from, out});
    EXPECT_EQ(outcome.status, 2) << out;
    EXPECT_THAT(outcome.err, HasSubstr("lies inside")) << out;
    EXPECT_FALSE(fs::exists(out)) << out;
  }
  EXPECT_EQ(strata({"export", moved, trained.scratch() / "out"}).status, 0);
}

TEST(ExportRefusal, OfWhatIsNoCheckpoint) {
  const ScratchDirectory scratch;
  const Outcome outcome = strata({"export", scratch.path(), scratch / "out"});
  EXPECT_EQ(outcome.status, 1);
  EXPECT_THAT(outcome.err, HasSubstr("no checkpoint"));
  EXPECT_FALSE(fs::exists(scratch / "out"));
}

TEST(ExportRefusal, OfACheckpointThatLacksAFile) {
  const TrainedRun trained(Optimizer::host);
  fs::remove(trained.checkpoint() / "master/model.safetensors");
  const Outcome outcome = strata({"export", trained.checkpoint(), trained.scratch() / "out"});
  EXPECT_EQ(outcome.status, 1);
  EXPECT_THAT(outcome.err, HasSubstr("master/model.safetensors"));
  EXPECT_FALSE(fs::exists(trained.scratch() / "out"));
}

}  // namespace
}  // namespace strata::cli::testing
