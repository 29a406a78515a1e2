#include "core/config.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <sstream>

#include "core/error.hpp"

namespace strata {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

const char* const kMinimal = R"({"model": {"path": "m"}, "data": {"train": ["t.bin"]}})";

const char* const kEverything = R"({
  "model": {"path": "models/gpt2"},
  "data": {"train": ["a.bin", "b.bin"], "eval": ["e.bin"], "format": "llmc", "sequence_length": 512, "seed": 18446744073709551615},
  "batch": {"micro_batch_size": 4, "gradient_accumulation_steps": 8},
  "precision": {"compute": "bf16", "master": "split", "reduce": "fp32"},
  "optimizer": {"type": "adamw", "lr": 3e-4, "betas": [0.8, 0.95], "eps": 1e-6, "weight_decay": 0.1, "decay": "matrices",
    "state": "fp32"},
  "lr_schedule": {"type": "cosine", "warmup_steps": 10, "warmup": "huggingface", "min_lr": 1e-5},
  "gradient_clipping": 0.5, "steps": 7,
  "device": {"kind": "host", "memory": "1.5GiB", "threads": 3},
  "tiers": {"host": {"memory": 12345}, "nvme": [{"path": "d1", "capacity": "2TiB"}, {"path": "d2"}], "io_engine": "threads"},
  "placement": {"parameters": "host", "gradients": "host", "optimizer": "nvme", "activations": "recompute"},
  "schedule": {"accumulation": "horizontal", "update": "lazy", "prefetch": 3, "tile": "8MiB", "update_threads": 2},
  "sharding": {"strategy": "shard_grad_op"},
  "checkpoint": {"every": 50, "keep": 3},
  "evaluation": {"every": 5, "samples": 6, "keep_best": false},
  "debug": {"random_delay_us": 100, "poison": true, "seed": 9}
})";

std::string refusal(const std::string& text, const std::vector<std::string>& overrides = {}) {
  try {
    parse_config(text, "c.json", overrides);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_configuration);
    return error.message();
  }
  return "accepted";
}

std::string refusal_of_set(const std::vector<std::string>& overrides) { return refusal(kMinimal, overrides); }

TEST(Config, SizesThatAreLeftToStrataSayAutoAndComeBackAsAuto) {
  const Config none = parse_config(R"({"model": {"path": "m"}, "data": {"train": ["t"]}})", "x");
  EXPECT_FALSE(none.device.memory_bytes || none.tiers.host_memory_bytes || none.schedule.tile_bytes);
  const Config given = parse_config(none.to_json(), "x", {"device.memory=1GiB", "schedule.tile=1MiB"});
  EXPECT_EQ(given.device.memory_bytes, 1ull << 30);
  EXPECT_EQ(given.schedule.tile_bytes, 1ull << 20);
  const Config back = parse_config(given.to_json(), "x", {"device.memory=auto", "schedule.tile=auto"});
  EXPECT_FALSE(back.device.memory_bytes || back.tiers.host_memory_bytes || back.schedule.tile_bytes);
}

TEST(Config, AMinimalFileHasTheDefaults) {
  const Config config = parse_config(kMinimal, "c.json");
  EXPECT_EQ(config.model.path, "m");
  EXPECT_EQ(config.data.sequence_length, 1024);
  EXPECT_EQ(config.optimizer.lr, 3e-5);
  EXPECT_FALSE(config.device.memory_bytes);  // auto
  EXPECT_FALSE(config.placement.optimizer.has_value());
  EXPECT_FALSE(config.schedule.prefetch.has_value());
  EXPECT_EQ(config.optimizer.decay, DecayTargets::all);
  EXPECT_EQ(config.lr_schedule.warmup, WarmupRule::strata);
  EXPECT_EQ(config.evaluation.every, 0);
  EXPECT_FALSE(config.evaluation.keep_best);
}

TEST(Config, EveryKeyIsReadIntoItsPlace) {
  const Config config = parse_config(kEverything, "c.json");
  EXPECT_EQ(config.data.train.size(), 2u);
  EXPECT_EQ(config.data.seed, UINT64_MAX);
  EXPECT_EQ(config.data.format, DataFormat::llmc);
  EXPECT_EQ(config.batch.gradient_accumulation_steps, 8);
  EXPECT_EQ(config.precision.master, MasterChoice::split);
  EXPECT_EQ(config.optimizer.beta2, 0.95);
  EXPECT_EQ(config.optimizer.decay, DecayTargets::matrices);
  EXPECT_EQ(config.lr_schedule.warmup, WarmupRule::huggingface);
  EXPECT_EQ(config.lr_schedule.type, ScheduleKind::cosine);
  EXPECT_EQ(config.device.memory_bytes, 3ull << 29);
  EXPECT_EQ(config.tiers.host_memory_bytes, 12345u);
  EXPECT_EQ(config.tiers.nvme.at(0).capacity_bytes, 2ull << 40);
  EXPECT_EQ(config.tiers.nvme.at(1).capacity_bytes, 100ull << 30);
  EXPECT_EQ(config.tiers.io_engine, "threads");
  EXPECT_EQ(config.placement.optimizer, Tier::nvme);
  EXPECT_EQ(config.placement.activations, ActivationPolicy::recompute);
  EXPECT_EQ(config.schedule.prefetch, 3);
  EXPECT_EQ(config.schedule.tile_bytes, 8ull << 20);
  EXPECT_EQ(config.sharding, ShardingStrategy::shard_grad_op);
  EXPECT_EQ(config.checkpoint.keep, 3);
  EXPECT_EQ(config.evaluation.every, 5);
  EXPECT_EQ(config.evaluation.samples, 6);
  EXPECT_TRUE(config.debug.poison);
}

TEST(Config, WritingAndReadingBackChangesNothing) {
  for (const char* text : {kMinimal, kEverything}) {
    const std::string once = parse_config(text, "c.json").to_json();
    EXPECT_EQ(parse_config(once, "again").to_json(), once);
  }
  const std::string partial =
      parse_config(kMinimal, "c", {"placement.parameters=host", "device.memory=1000001"}).to_json();
  const Config back = parse_config(partial, "again");
  EXPECT_EQ(back.placement.parameters, Tier::host);
  EXPECT_FALSE(back.placement.optimizer.has_value());
  EXPECT_EQ(back.device.memory_bytes, 1000001u);
  EXPECT_EQ(back.to_json(), partial);
}

TEST(Config, AllProblemsAreListedAtOnce) {
  const std::string message = refusal(R"({
    "model": {"pth": "m"}, "data": {"train": "t.bin", "sequence_length": "long", "sequence_length": 3},
    "optimizer": {"lr": -1, "betas": [0.9, 1.0], "wieght_decay": 0.1}, "lr": 1e-3, "stepps": 4,
    "device": {"memory": "8GB!"}, "schedule": {"update": "eager"}, "precision": {"compute": "fp8"}})");
  EXPECT_THAT(message,
              AllOf(HasSubstr("/model/pth: unknown key; did you mean \"path\"?"), HasSubstr("/model/path: is required"),
                    HasSubstr("/data/train: must be a list"), HasSubstr("/data/sequence_length: must be an integer")));
  EXPECT_THAT(message, AllOf(HasSubstr("/data/sequence_length: duplicate key"),
                             HasSubstr("/optimizer/lr: must be a number at least 0"), HasSubstr("/optimizer/betas"),
                             HasSubstr("did you mean \"weight_decay\"?"),
                             HasSubstr("/lr: unknown key; did you mean /optimizer/lr?")));
  EXPECT_THAT(message, AllOf(HasSubstr("did you mean \"steps\"?"), HasSubstr("/device/memory"),
                             HasSubstr("/schedule/update: \"eager\" is unsupported"),
                             HasSubstr("/precision/compute: must be one of \"bf16\", \"fp16\", \"fp32\", is \"fp8\"")));
  EXPECT_THAT(message, HasSubstr("13 problems")) << message;
}

TEST(Config, EachKindOfWrongValueIsRefused) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"data.sequence_length=0", "/data/sequence_length: must be an integer from 1"},
      {"data.sequence_length=1.5", "/data/sequence_length"},
      {"data.sequence_length=99999999999999999999", "/data/sequence_length"},
      {"data.seed=-1", "/data/seed"},
      {"data.train=[]", "/data/train: must name at least one file"},
      {"data.train=[1]", "/data/train/0: must be a file name"},
      {"data.format=csv", "/data/format: must be one of"},
      {"optimizer.eps=0", "/optimizer/eps: must be a number greater than 0"},
      {"optimizer.lr=null", "/optimizer/lr"},
      {"optimizer.betas=[0.9]", "/optimizer/betas"},
      {"optimizer.type=sgd", "/optimizer/type: must be one of \"adamw\""},
      {"optimizer.state=int8", "/optimizer/state: \"int8\" is unsupported"},
      {"precision.reduce=bf16", "/precision/reduce: \"bf16\" is unsupported"},
      {"gradient_clipping=-1", "/gradient_clipping"},
      {"batch.gradient_accumulation_steps=4097", "must be an integer from 1 to 4096"},
      {"steps=0", "/steps"},
      {"device.memory=0", "/device/memory"},
      {"device.memory=true", "/device/memory: must be a size"},
      {"device.threads=-1", "/device/threads"},
      {"tiers.nvme={}", "/tiers/nvme: must be a list"},
      {"tiers.nvme=[{}]", "/tiers/nvme/0/path: is required"},
      {"tiers.nvme=[3]", "/tiers/nvme/0: must be an object"},
      {"tiers.host=3", "/tiers/host: must be an object"},
      {"tiers.io_engine=aio", "/tiers/io_engine"},
      {"placement=fast", "/placement: must be \"auto\" or an object"},
      {"placement.optimizer=nvem", "did you mean \"nvme\"?"},
      {"schedule.prefetch=-1", "/schedule/prefetch"},
      {"schedule.tile=4KiB", "/schedule/tile: must be from 64 KiB"},
      {"checkpoint.keep=-1", "/checkpoint/keep"},
      {"evaluation.every=-1", "/evaluation/every: must be an integer from 0"},
      {"evaluation.samples=1.5", "/evaluation/samples: must be an integer from 0"},
      {"evaluation.keep_best=yes", "/evaluation/keep_best: must be true or false"},
      {"evaluation.keep_best=true", "/evaluation/keep_best: true is unsupported"},
      {"optimizer.decay=norms", "/optimizer/decay: must be one of \"all\", \"matrices\""},
      {"lr_schedule.warmup=hf", "/lr_schedule/warmup: must be one of"},
      {"debug.poison=1", "/debug/poison: must be true or false"},
      {"model=3", "/model: must be an object"},
  };
  for (const auto& [set, expected] : cases) EXPECT_THAT(refusal_of_set({set}), HasSubstr(expected)) << set;
}

TEST(Config, ContradictionsAreRefused) {
  EXPECT_THAT(refusal_of_set({"precision.compute=fp16", "precision.master=split"}), HasSubstr("/precision/master"));
  EXPECT_THAT(refusal_of_set({"precision.compute=fp32", "precision.master=split"}), HasSubstr("/precision/master"));
  EXPECT_EQ(refusal_of_set({"precision.compute=fp16", "precision.master=fp32"}), "accepted");
  EXPECT_THAT(refusal_of_set({"lr_schedule.min_lr=1"}), HasSubstr("greater than /optimizer/lr"));
  EXPECT_THAT(refusal_of_set({"placement.optimizer=nvme"}), HasSubstr("/placement/optimizer: \"nvme\" needs"));
  EXPECT_THAT(refusal_of_set({"placement.activations=nvme"}), HasSubstr("/placement/activations"));
  EXPECT_EQ(refusal_of_set({"placement.optimizer=nvme", "tiers.nvme=[{\"path\":\"d\"}]"}), "accepted");
  EXPECT_THAT(refusal_of_set({"tiers.nvme=[{\"path\":\"d\"},{\"path\":\"./d\"}]"}), HasSubstr("the same directory"));
  for (const char* set : {"evaluation.every=1", "evaluation.samples=1"}) {
    EXPECT_THAT(refusal_of_set({set}), HasSubstr("needs evaluation files in /data/eval")) << set;
    EXPECT_EQ(refusal_of_set({set, "data.eval=[\"e.bin\"]"}), "accepted") << set;
  }
#ifndef STRATA_WITH_CUDA
  EXPECT_THAT(refusal_of_set({"device.kind=cuda"}), HasSubstr("no CUDA device"));
#endif
}

TEST(Config, OverridesReachSectionsListsAndStrings) {
  const Config config =
      parse_config(kEverything, "c.json",
                   {"optimizer.lr=0.25", "device.memory=2GiB", "data.train=[\"x\"]", "tiers.nvme.1.path=other",
                    "tiers.nvme.2.path=third", "data.eval.0=z", "placement=\"auto\"", "placement.gradients=device"});
  EXPECT_EQ(config.optimizer.lr, 0.25);
  EXPECT_EQ(config.device.memory_bytes, 2ull << 30);
  EXPECT_EQ(config.data.train.at(0), "x");
  EXPECT_EQ(config.tiers.nvme.at(1).path, "other");
  EXPECT_EQ(config.tiers.nvme.at(2).path, "third");
  EXPECT_EQ(config.data.eval.at(0), "z");
  EXPECT_EQ(config.placement.gradients, Tier::device);
  EXPECT_FALSE(config.placement.optimizer.has_value());
}

TEST(Config, OverridesThatCannotBeAppliedAreProblems) {
  EXPECT_THAT(refusal_of_set({"steps"}), HasSubstr("must be KEY=VALUE"));
  EXPECT_THAT(refusal_of_set({"=3"}), HasSubstr("must be KEY=VALUE"));
  EXPECT_THAT(refusal_of_set({"steps=3", "steps.x=3"}), HasSubstr("cannot be set in /steps"));
  EXPECT_THAT(refusal_of_set({"data.train.7=x"}), HasSubstr("does not index"));
  EXPECT_THAT(refusal_of_set({"data..x=1"}), Not(HasSubstr("accepted")));
  EXPECT_THAT(refusal_of_set({"optimiser.lr=1"}), HasSubstr("did you mean \"optimizer\"?"));
}

TEST(Config, AProblemOfAnOptionNamesTheOption) {
  const auto error_of = [](const std::vector<std::string>& overrides) {
    try {
      parse_config(kMinimal, "c.json", overrides);
    } catch (const Error& error) {
      return error;
    }
    return Error(ErrorCode::internal, "accepted");
  };
  const Error of_option = error_of({"steps=3", "optimizer.lr=fast"});
  EXPECT_THAT(of_option.message(), HasSubstr("--set optimizer.lr=fast: /optimizer/lr: must be a number"));
  EXPECT_EQ(of_option.where(), "--set optimizer.lr=fast");
  EXPECT_THAT(of_option.remedy(), HasSubstr("correct the option"));
  EXPECT_EQ(error_of({"optimiser.lr=1"}).where(), "--set optimiser.lr=1") << "a section that the option made";
  EXPECT_EQ(error_of({"steps"}).where(), "--set steps");
  try {
    parse_config(R"({"model": {"path": "m"}, "data": {"train": ["t"]}, "stepz": 1})", "c.json", {"checkpoint.keep=-1"});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.where(), "c.json");
    EXPECT_THAT(error.remedy(), HasSubstr("--set"));
    EXPECT_THAT(error.message(), AllOf(HasSubstr("\n  - /stepz: unknown"), HasSubstr("\n  - --set checkpoint.keep=-1: /checkpoint/keep")));
  }
}

TEST(Config, OneWrongValueIsOneProblem) {
  EXPECT_THAT(refusal_of_set({"optimizer.lr=nan", "lr_schedule.min_lr=0.5"}),
              AllOf(HasSubstr("1 problem:"), Not(HasSubstr("greater than /optimizer/lr"))));
}

TEST(Config, AnOffloadThatIsNotBuiltIsListedWithTheOtherProblems) {
  for (const char* place : {"host", "nvme"}) {
    EXPECT_THAT(refusal_of_set({"steps=0", std::string("placement.activations=") + place}),
                AllOf(HasSubstr("2 problems"), HasSubstr("/placement/activations: \"" + std::string(place) + "\" is unsupported")));
  }
}

TEST(Config, AnUnknownKeyIsToldEachKnownNameOnce) {
  const std::string message = refusal_of_set({"data.zzzzzzzzzzzz=1"});
  EXPECT_THAT(message, HasSubstr("known here: train, eval, format, sequence_length, seed")) << message;
  EXPECT_THAT(refusal_of_set({"zzzzzzzzzzzz=1"}), HasSubstr("tiers, placement, schedule, sharding, checkpoint, evaluation, debug"));
  EXPECT_THAT(refusal_of_set({"every=1"}), HasSubstr("did you mean /checkpoint/every or /evaluation/every?"));
}

TEST(Config, CommentsAreAllowedInConfigurationsAlone) {
  const Config config = parse_config("// first\n{\"model\": /* inside */ {\"path\": \"m//n\"}, // to the end\n"
                                     "\"data\": {\"train\": [\"/*t*/\"]}}\n// last", "c.json");
  EXPECT_EQ(config.model.path, "m//n");
  EXPECT_EQ(config.data.train.at(0), "/*t*/");
  EXPECT_THAT(refusal("{\n/* open"), HasSubstr("line 2"));
  EXPECT_THAT(refusal("{\"steps\": 1 / 2}"), HasSubstr("line 1"));
}

TEST(Config, TheExampleIsTheDefaultsAndIsReadAsItIs) {
  const std::string example = example_configuration();
  Config expected;
  expected.model.path = "path/to/model";
  expected.data.train = {"path/to/tokens.bin"};
  EXPECT_EQ(parse_config(example, "example").to_json(), expected.to_json());
  std::istringstream lines(example);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 130u) << line;
}

TEST(Config, EveryKeyThatIsWrittenIsOnThePage) {
  const std::string page = configuration_page();
  for (const char* key : {"model.path", "data.train", "tiers.nvme.0.capacity", "placement.activations", "gradient_clipping", "steps",
                          "evaluation.keep_best", "debug.poison"})
    EXPECT_THAT(page, HasSubstr(std::string("| `") + key + "` | ")) << key;
}

TEST(Config, TheCommittedPageIsTheParsersOwnTable) {
  std::ifstream in(STRATA_SOURCE_DIR "/docs/configuration.md");
  const std::string committed{std::istreambuf_iterator<char>(in), {}};
  EXPECT_EQ(committed, configuration_page()) << "write it again: build/strata train --keys > docs/configuration.md";
}

TEST(Config, ProblemsBeyondTheHundredthAreCounted) {
  std::string text = R"({"model": {"path": "m"}, "data": {"train": ["t"]})";
  for (int i = 0; i < 2000; ++i) text += fmt::format(", \"stepz{}\": 1", i);
  const std::string message = refusal(text + "}");
  EXPECT_THAT(message, AllOf(HasSubstr("2000 problems"), HasSubstr("... and 1900 more")));
  EXPECT_EQ(std::count(message.begin(), message.end(), '\n'), 101);
}

TEST(Config, TextThatIsNotAConfigurationIsRefused) {
  EXPECT_THAT(refusal("[]"), HasSubstr("must be an object"));
  EXPECT_THAT(refusal("{\"model\": }"), HasSubstr("line 1, column 11"));
  EXPECT_THROW(read_config("/nonexistent/config.json"), Error);
}

TEST(Bytes, SizesAreReadWithAndWithoutUnits) {
  const std::vector<std::pair<std::string, uint64_t>> good = {{"4096", 4096},
                                                              {"8GiB", 8ull << 30},
                                                              {"16 MiB", 16ull << 20},
                                                              {"1.5GB", 1'500'000'000},
                                                              {"0", 0},
                                                              {"7b", 7},
                                                              {"2kB", 2000},
                                                              {"0.5KiB", 512},
                                                              {"18446744073709551615", UINT64_MAX},
                                                              {"3tib", 3ull << 40}};
  for (const auto& [text, bytes] : good) EXPECT_EQ(parse_bytes(text), bytes) << text;
  for (const char* text : {"", "GiB", "-1", "1e9", "8G", "1.GiB", "8 GiB ", "99999999999TiB", "184467440737095516160",
                           ".5GiB", "1.0000000000000000001GiB", "0x10"}) {
    EXPECT_THROW(parse_bytes(text), Error) << text;
  }
}

TEST(Bytes, SizesAreWrittenForPeople) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(8589934592), "8 GiB");
  EXPECT_EQ(format_bytes(1536), "1.50 KiB");
  EXPECT_EQ(format_bytes(UINT64_MAX), "16384.00 PiB");
}

}  // namespace
}  // namespace strata
