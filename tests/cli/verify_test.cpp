// `strata verify`: whole things pass, and damage of every kind is found and named.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "core/safetensors.hpp"
#include "tests/cli/trained_run.hpp"
#include "tiers/file.hpp"
#include "tiers/format.hpp"
#include "tiers/lock.hpp"

namespace strata::cli::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

Outcome verify(const fs::path& path, std::vector<std::string> options = {}) {
  options.insert(options.begin(), {"verify", path.string()});
  return strata(options);
}

/// The broken things that are named; the exit status must agree with them.
std::vector<std::string> broken(const fs::path& path, std::vector<std::string> options = {}) {
  options.push_back("--json");
  const Outcome outcome = verify(path, options);
  EXPECT_THAT(outcome.err, IsEmpty());
  const auto facts = outcome.json();
  const auto lines = facts.at("broken").get<std::vector<std::string>>();
  EXPECT_EQ(facts.at("ok").get<bool>(), lines.empty());
  EXPECT_EQ(outcome.status, lines.empty() ? 0 : 1);
  return lines;
}

std::vector<fs::path> files_of(const fs::path& directory) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::recursive_directory_iterator(directory))
    if (entry.is_regular_file()) files.push_back(entry.path());
  return files;
}

TEST(Verify, PassesWhatIsWholeAndCountsItsBytes) {
  const TrainedRun files(Optimizer::host), store(Optimizer::nvme), striped(Optimizer::two_nvme);
  for (const fs::path& path : {files.run(), files.run() / "checkpoints", files.checkpoint(), store.run(), store.checkpoint(),
                               store.store(), striped.store(), striped.run(), files.model(), files.model() / "model.safetensors",
                               files.model() / "config.json", files.scratch() / "tokens.txt"}) {
    const Outcome outcome = verify(path);
    EXPECT_EQ(outcome.status, 0) << path << outcome.out << outcome.err;
    EXPECT_THAT(outcome.out, HasSubstr("ok: "));
  }
  uint64_t bytes = 0;
  for (const fs::path& file : files_of(files.checkpoint()))
    if (file.filename() != "checkpoint.json") bytes += fs::file_size(file);
  EXPECT_EQ(verify(files.checkpoint(), {"--json"}).json().at("bytes_verified"), bytes);
  EXPECT_GE(verify(store.store(), {"--json"}).json().at("bytes_verified"), 18528 * 12);
}

TEST(Verify, FindsOneFlippedBitInAnyFileOfACheckpoint) {
  const TrainedRun trained(Optimizer::host);
  for (const fs::path& file : files_of(trained.checkpoint())) {
    if (file.filename() == "checkpoint.json") continue;
    flip_bit(file, fs::file_size(file) / 2);
    EXPECT_THAT(broken(trained.checkpoint()), ElementsAre(AllOf(HasSubstr(file.string()), HasSubstr("checksum"))));
    flip_bit(file, fs::file_size(file) / 2);
  }
  EXPECT_THAT(broken(trained.checkpoint()), IsEmpty());
}

TEST(Verify, NamesEveryBrokenFileOfACheckpoint) {
  const TrainedRun trained(Optimizer::host);
  fs::remove(trained.checkpoint() / "master/model.safetensors");
  fs::resize_file(trained.checkpoint() / "momentum/model.safetensors", 100);
  flip_bit(trained.checkpoint() / "variance/model.safetensors", 2000);
  write_file(trained.checkpoint() / "master/model-00001-of-00001.safetensors", "x");
  const auto lines = broken(trained.checkpoint());
  EXPECT_THAT(lines, SizeIs(4));
  for (const char* expected : {"missing", "has 100 bytes", "checksum", "not of this checkpoint"})
    EXPECT_THAT(lines, ::testing::Contains(HasSubstr(expected)));
  const Outcome text = verify(trained.checkpoint());
  EXPECT_EQ(text.status, 1);
  EXPECT_THAT(text.out, AllOf(HasSubstr("broken: "), HasSubstr("4 broken")));
}

TEST(Verify, FindsAManifestThatIsNotWhole) {
  const TrainedRun trained(Optimizer::host);
  fs::resize_file(trained.checkpoint() / "checkpoint.json", 100);
  EXPECT_THAT(broken(trained.checkpoint()), ElementsAre(HasSubstr("checkpoint.json")));
  EXPECT_THAT(broken(trained.run()), ElementsAre(HasSubstr("step-00000004")));
}

TEST(Verify, FindsAChangedDigitInTheManifest) {
  const TrainedRun trained(Optimizer::host);
  const fs::path manifest = trained.checkpoint() / "checkpoint.json";
  std::string text = read_file(manifest);
  const size_t digit = text.find("\"updates\": 4");
  ASSERT_NE(digit, std::string::npos) << text;
  text[digit + 11] = '5';
  write_file(manifest, text);
  EXPECT_THAT(broken(trained.checkpoint()), ElementsAre(AllOf(HasSubstr("checkpoint.json"), HasSubstr("checksum"))));
}

TEST(Verify, ChecksEveryCheckpointOfAFolderUnlessOnlyTheNewestIsAskedFor) {
  const TrainedRun trained(Optimizer::host);
  flip_bit(trained.checkpoint(2) / "master/model.safetensors", 3000);
  EXPECT_THAT(broken(trained.run()), ElementsAre(HasSubstr("step-00000002")));
  EXPECT_THAT(broken(trained.run() / "checkpoints"), ElementsAre(HasSubstr("step-00000002")));
  EXPECT_THAT(broken(trained.run(), {"--newest"}), IsEmpty());
  fs::remove(trained.checkpoint(4) / "master/model.safetensors");
  EXPECT_THAT(broken(trained.run(), {"--newest"}), Not(IsEmpty()));
}

TEST(Verify, OnlyNotesACheckpointThatWasNeverFinished) {
  const TrainedRun trained(Optimizer::host);
  fs::create_directory(trained.run() / "checkpoints/step-00000009.partial");
  const Outcome outcome = verify(trained.run());
  EXPECT_EQ(outcome.status, 0);
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("note: "), HasSubstr("step-00000009.partial")));
}

TEST(Verify, ChecksAFileOfACheckpointByTheManifest) {
  const TrainedRun trained(Optimizer::host);
  const fs::path file = trained.checkpoint() / "momentum/model.safetensors";
  const Outcome whole = verify(file);
  EXPECT_EQ(whole.status, 0);
  EXPECT_THAT(whole.out, HasSubstr("this file alone"));
  flip_bit(file, fs::file_size(file) - 1);
  EXPECT_THAT(broken(file), ElementsAre(HasSubstr("checksum")));
}

TEST(Verify, FailsARunWithoutAnyState) {
  const TrainedRun trained(Optimizer::host);
  fs::remove_all(trained.run() / "checkpoints");
  EXPECT_THAT(broken(trained.run()), ElementsAre(HasSubstr("neither a checkpoint nor")));
}

class VerifyStore : public ::testing::TestWithParam<Optimizer> {
 protected:
  fs::path state_file(uint32_t directory) const {
    return (directory == 0 ? trained_.store() : trained_.scratch() / "nvme2") / "strata.state";
  }
  tiers::StoreTable table() const {
    const fs::path path = trained_.store() / "strata.commit";
    const tiers::FileDescriptor directory = tiers::open_directory(trained_.store());
    const tiers::FileDescriptor file =
        tiers::open_file(directory.get(), "strata.commit", tiers::Access::read_only, trained_.store());
    return tiers::read_table(file.get(), path);
  }
  tiers::CommitRecord record() const {
    const fs::path path = trained_.store() / "strata.commit";
    const tiers::FileDescriptor directory = tiers::open_directory(trained_.store());
    const tiers::FileDescriptor file =
        tiers::open_file(directory.get(), "strata.commit", tiers::Access::read_only, trained_.store());
    return tiers::read_newest_record(file.get(), table(), path);
  }
  const TrainedRun trained_{GetParam()};
};
INSTANTIATE_TEST_SUITE_P(Directories, VerifyStore, ::testing::Values(Optimizer::nvme, Optimizer::two_nvme),
                         [](const auto& info) { return info.param == Optimizer::nvme ? "One" : "Two"; });

TEST_P(VerifyStore, FindsAFlippedBitInAnyExtent) {
  const tiers::StoreTable table = this->table();
  const tiers::CommitRecord record = this->record();
  for (size_t i = 0; i < table.extents.size(); i += 5) {
    const auto& place = table.places[i];
    const uint64_t offset = place.offset_bytes[record.extents[i].slot] + place.bytes - 1;
    flip_bit(state_file(place.directory), offset);
    for (const fs::path& path : {trained_.store(), trained_.checkpoint(), trained_.run()})
      EXPECT_THAT(broken(path), ElementsAre(AllOf(HasSubstr(table.extents[i].name), HasSubstr("checksum")))) << path;
    flip_bit(state_file(place.directory), offset);
  }
  EXPECT_THAT(broken(trained_.store()), IsEmpty());
}

TEST_P(VerifyStore, DoesNotMindTheSlotThatIsNotCurrent) {
  const tiers::StoreTable table = this->table();
  const auto& place = table.places[0];
  flip_bit(state_file(place.directory), place.offset_bytes[1 - record().extents[0].slot]);
  EXPECT_THAT(broken(trained_.store()), IsEmpty());
}

TEST_P(VerifyStore, FindsATruncatedFileAndAMissingOne) {
  const fs::path file = state_file(GetParam() == Optimizer::nvme ? 0 : 1);
  const auto bytes = fs::file_size(file);
  fs::resize_file(file, bytes - 4096);
  EXPECT_THAT(broken(trained_.store()), ElementsAre(HasSubstr(file.string())));
  fs::remove(file);
  EXPECT_THAT(broken(trained_.store()), ElementsAre(HasSubstr(file.string())));
  EXPECT_THAT(broken(trained_.run()), AllOf(Not(IsEmpty()), ::testing::Each(HasSubstr(file.string()))));
}

TEST_P(VerifyStore, FindsALostCommit) {
  // With its newest record gone the store stands one generation before what the checkpoint says.
  flip_bit(trained_.store() / "strata.commit", table().area_offset(record().generation) + 100);
  EXPECT_THAT(broken(trained_.store()), ::testing::Contains(AllOf(HasSubstr("commit record of generation"), HasSubstr("damaged"))));
  EXPECT_THAT(broken(trained_.checkpoint()), ElementsAre(HasSubstr("generation")));
  EXPECT_THAT(broken(trained_.run()), Not(IsEmpty()));
}

TEST_P(VerifyStore, FindsADamagedOlderRecordToo) {
  flip_bit(trained_.store() / "strata.commit", table().area_offset(record().generation + 1) + 100);
  for (const fs::path& path : {trained_.store(), trained_.run()})
    EXPECT_THAT(broken(path), ElementsAre(AllOf(HasSubstr("older commit record"), HasSubstr("damaged")))) << path;
}

TEST_P(VerifyStore, FindsFilesThatAreOlderCopies) {
  const fs::path second = trained_.scratch() / "nvme2", kept = trained_.scratch() / "kept";
  fs::create_directory(kept);
  for (const fs::path& path : {trained_.store(), second})
    if (fs::exists(path)) fs::copy(path, kept / path.filename(), fs::copy_options::recursive);
  ASSERT_EQ(strata({"train", trained_.scratch() / "train.json", "--run-dir", trained_.run(), "--set", "steps=6"}).status, 0);
  for (const fs::path& path : {trained_.store(), second}) {
    fs::remove_all(path);
    if (fs::exists(kept / path.filename())) fs::rename(kept / path.filename(), path);
  }
  for (const fs::path& path : {trained_.store(), trained_.run()})
    EXPECT_THAT(broken(path), ::testing::Contains(HasSubstr("older copies"))) << path;
}

TEST_P(VerifyStore, AsksForALostCommitFileAndAdvisesNoRemoval) {
  fs::rename(trained_.store() / "strata.commit", trained_.scratch() / "lost");
  const Outcome outcome = verify(trained_.store());
  EXPECT_EQ(outcome.status, 1);
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("put strata.commit back"), Not(HasSubstr("remove"))));
}

TEST_P(VerifyStore, SaysWhatItChecked) {
  for (const fs::path& path : {trained_.store(), trained_.checkpoint(), trained_.store() / "strata.state"})
    EXPECT_THAT(verify(path).out, HasSubstr("both commit records, and all committed state")) << path;
}

TEST_P(VerifyStore, FollowsARunAndAStoreThatWereMoved) {
  const fs::path run = trained_.scratch() / "renamed", away = trained_.scratch() / "deep/er";
  fs::rename(trained_.run(), run);
  for (const char* command : {"verify", "inspect"}) {
    const Outcome outcome = strata({command, run});
    EXPECT_EQ(outcome.status, 0) << command << outcome.out << outcome.err;
  }
  fs::create_directories(away.parent_path());
  fs::rename(trained_.store(), away);
  const Outcome lost = verify(run);
  EXPECT_EQ(lost.status, 1);
  EXPECT_THAT(lost.out, HasSubstr(trained_.store().string()));
  const std::string moved = trained_.store().string() + "=" + away.string();
  EXPECT_EQ(strata({"verify", run, "--store", moved}).status, 0);
  EXPECT_EQ(strata({"inspect", run, "--store", moved}).status, 0);
  EXPECT_EQ(strata({"export", run, trained_.scratch() / "out", "--store", moved}).status, 0);
  const Outcome train = strata({"train", trained_.scratch() / "train.json", "--run-dir", run, "--set", "steps=6", "--store", moved});
  EXPECT_EQ(train.status, 0) << train.err;
  EXPECT_THAT(train.err, AllOf(HasSubstr("the store has moved"), HasSubstr("resumed from the store at step 4")));
  EXPECT_THAT(broken(run, {"--store", "x=" + away.string()}), ::testing::Contains(HasSubstr("--store names a directory")));
  EXPECT_EQ(strata({"verify", run, "--store", "nothing"}).status, 2);
}

TEST_P(VerifyStore, FindsADamagedTable) {
  flip_bit(trained_.store() / "strata.commit", 4096 + 20);
  EXPECT_THAT(broken(trained_.store()), ElementsAre(HasSubstr("strata.commit")));
}

TEST_P(VerifyStore, JudgesNothingThatARunHolds) {
  const tiers::FileDescriptor directory = tiers::open_directory(trained_.store());
  const tiers::DirectoryLock lock(directory.get(), trained_.store(), tiers::DirectoryLock::Kind::run);
  const Outcome outcome = verify(trained_.store());
  EXPECT_EQ(outcome.status, 1);
  EXPECT_EQ(outcome.out, "");
  EXPECT_THAT(outcome.err, HasSubstr(std::to_string(getpid())));
}

TEST_P(VerifyStore, TellsACheckpointThatTheStoreHasLeftBehind) {
  fs::copy(trained_.checkpoint(), trained_.scratch() / "kept", fs::copy_options::recursive);
  ASSERT_EQ(strata({"train", trained_.scratch() / "train.json", "--run-dir", trained_.run(), "--set", "steps=6"}).status, 0);
  EXPECT_THAT(broken(trained_.scratch() / "kept"), ElementsAre(HasSubstr("generation")));
  EXPECT_THAT(broken(trained_.run()), IsEmpty());
  // A run that was killed after a step has such a checkpoint as its newest: the store itself is its state.
  fs::remove_all(trained_.checkpoint(6));
  fs::remove_all(trained_.checkpoint(4));
  fs::copy(trained_.scratch() / "kept", trained_.checkpoint(4), fs::copy_options::recursive);
  const Outcome outcome = verify(trained_.run());
  EXPECT_EQ(outcome.status, 0);
  EXPECT_THAT(outcome.out, HasSubstr("note: "));
  EXPECT_GE(verify(trained_.run(), {"--json"}).json().at("bytes_verified"), 18528 * 12);
}

TEST(VerifyStripedStore, TakesItsDirectoriesInAnyOrder) {
  const TrainedRun trained(Optimizer::two_nvme);
  const std::string first = trained.store(), second = trained.scratch() / "nvme2";
  EXPECT_EQ(strata({"verify", first, second}).status, 0);
  EXPECT_EQ(strata({"verify", second, first}).status, 0);
  EXPECT_EQ(strata({"verify", second}).status, 1);
  fs::remove_all(trained.run());  // which knew the second directory
  EXPECT_EQ(strata({"verify", first}).status, 0);  // but it lies beside the first
  const fs::path away = trained.scratch() / "far/away";
  fs::create_directories(away.parent_path());
  fs::rename(second, away);
  const Outcome alone = strata({"verify", first});
  EXPECT_EQ(alone.status, 1);
  EXPECT_THAT(alone.out, HasSubstr("2 directories"));
  EXPECT_EQ(strata({"verify", first, away}).status, 0);
}

TEST(VerifyModel, NamesEveryProblem) {
  const ScratchDirectory scratch;
  copy_of_model("llama_gqa", scratch / "model");
  fs::copy_file(reference_model("llama_mha") / "model.safetensors", scratch / "model/model.safetensors",
                fs::copy_options::overwrite_existing);
  const auto lines = broken(scratch / "model");
  EXPECT_GT(lines.size(), 1u);
  for (const std::string& line : lines) EXPECT_EQ(line.find('\n'), std::string::npos) << line;
}

TEST(VerifyModel, FindsANumberThatIsNotFinite) {
  const ScratchDirectory scratch;
  copy_of_model("llama_gqa", scratch / "model");
  const std::string name = "model.layers.1.mlp.up_proj.weight";
  uint64_t offset = 0;
  {
    const SafetensorsFile file(scratch / "model/model.safetensors");
    offset = fs::file_size(file.path()) - file.data_bytes() + file.find(name)->begin + 5 * sizeof(float);
  }
  std::fstream stream(scratch / "model/model.safetensors", std::ios::in | std::ios::out | std::ios::binary);
  stream.seekp(static_cast<std::streamoff>(offset));
  const float infinity = INFINITY;
  stream.write(reinterpret_cast<const char*>(&infinity), sizeof infinity);
  stream.close();
  EXPECT_THAT(broken(scratch / "model"), ElementsAre(AllOf(HasSubstr(name), HasSubstr("element 5"))));
}

TEST(VerifyModel, FindsTruncatedWeightsAndABadConfiguration) {
  const ScratchDirectory scratch;
  copy_of_model("llama_gqa", scratch / "model");
  fs::resize_file(scratch / "model/model.safetensors", 5000);
  EXPECT_THAT(broken(scratch / "model"), ElementsAre(HasSubstr("model.safetensors")));
  EXPECT_THAT(broken(scratch / "model/model.safetensors"), ElementsAre(HasSubstr("model.safetensors")));
  write_file(scratch / "model/config.json", "{");
  EXPECT_THAT(broken(scratch / "model"), ElementsAre(HasSubstr("config.json")));
}

TEST(VerifyTokens, FindsAHeaderThatDoesNotFit) {
  const ScratchDirectory scratch;
  std::vector<int32_t> header(256);
  header[0] = 20240520;
  header[1] = 1;
  header[2] = 1000;
  write_file(scratch / "a.bin", std::string(reinterpret_cast<const char*>(header.data()), 1024) + "abcd");
  EXPECT_THAT(broken(scratch / "a.bin"), ElementsAre(HasSubstr("1000 tokens")));
}

TEST(VerifyTokens, TakesTheFormatOfTokensWithoutAHeader) {
  const ScratchDirectory scratch;
  write_file(scratch / "a.bin", std::string("\1\0\2\0", 4));
  const Outcome unknown = verify(scratch / "a.bin");
  EXPECT_EQ(unknown.status, 1);
  EXPECT_THAT(unknown.err, HasSubstr("--format"));
  EXPECT_EQ(strata({"verify", scratch / "a.bin", "--format", "raw16"}).status, 0);
  write_file(scratch / "odd.bin", "abc");
  EXPECT_EQ(strata({"verify", scratch / "odd.bin", "--format", "raw16"}).status, 1);
  EXPECT_EQ(strata({"verify", scratch / "a.bin", "--format", "raw64"}).status, 2);
}

TEST(VerifyUsage, RefusesWhatHasNothingToVerify) {
  const TrainedRun trained(Optimizer::host);
  for (const fs::path& path : {trained.scratch() / "absent", trained.run() / "metrics.jsonl", trained.scratch() / "train.json"}) {
    const Outcome outcome = verify(path);
    EXPECT_EQ(outcome.status, 1);
    EXPECT_THAT(outcome.err, Not(IsEmpty()));
  }
  EXPECT_EQ(strata({"verify", trained.run(), trained.model()}).status, 2);
}

}  // namespace
}  // namespace strata::cli::testing
