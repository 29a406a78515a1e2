#include "core/model.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "core/error.hpp"
#include "tests/support/scratch_directory.hpp"

namespace strata {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

ModelDescription read(const std::string& text) {
  const ScratchDirectory directory;
  std::ofstream(directory / "config.json") << text;
  return read_model_description(directory.path());
}

std::pair<ErrorCode, std::string> refusal(const std::string& text) {
  try {
    read(text);
  } catch (const Error& error) {
    return {error.code(), error.message()};
  }
  return {ErrorCode::internal, "accepted"};
}

std::string llama_with(const std::string& more) {
  return R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "num_attention_heads": 4,
             "intermediate_size": 100, "num_hidden_layers": 3, "vocab_size": 99, "max_position_embeddings": 2048)" +
         more + "}";
}

TEST(Model, Gpt2OfTheHubIsReadWithItsOwnNames) {
  const ModelDescription model = read(R"({"activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"],
    "attn_pdrop": 0.1, "bos_token_id": 50256, "embd_pdrop": 0.1, "eos_token_id": 50256, "initializer_range": 0.02,
    "layer_norm_epsilon": 1e-05, "model_type": "gpt2", "n_ctx": 1024, "n_embd": 768, "n_head": 12, "n_inner": null, "n_layer": 12,
    "n_positions": 1024, "resid_pdrop": 0.1, "summary_activation": null, "summary_first_dropout": 0.1,
    "summary_proj_to_labels": true, "summary_type": "cls_index", "summary_use_proj": true,
    "task_specific_params": {"text-generation": {"do_sample": true, "max_length": 50}}, "vocab_size": 50257})");
  EXPECT_EQ(model.family, Family::gpt2);
  EXPECT_EQ(model.architecture, "GPT2LMHeadModel");
  EXPECT_EQ(model.intermediate_size, 3072);
  EXPECT_EQ(model.head_dim, 64);
  EXPECT_EQ(model.kv_heads, 12);
  EXPECT_TRUE(model.tied_head);
  EXPECT_TRUE(model.qkv_bias && model.attention_output_bias && model.mlp_bias);
  EXPECT_EQ(model.activation, Activation::gelu_tanh);
  EXPECT_EQ(model.attention_scale, 0.125);
  EXPECT_EQ(model.sliding_window, std::vector<int64_t>(12, 0));
}

TEST(Model, AbsentKeysHaveTheDefaultsOfTransformers) {
  const ModelDescription gpt2 = read(R"({"model_type": "gpt2"})");
  EXPECT_EQ(gpt2.vocab_size, 50257);
  EXPECT_EQ(gpt2.norm_epsilon, 1e-5);
  const ModelDescription llama = read(R"({"architectures": ["LlamaForCausalLM"]})");
  EXPECT_EQ(llama.vocab_size, 32000);
  EXPECT_EQ(llama.intermediate_size, 11008);
  EXPECT_EQ(llama.max_positions, 2048);
  EXPECT_EQ(llama.kv_heads, 32);
  EXPECT_EQ(llama.norm_epsilon, 1e-6);
  EXPECT_EQ(llama.rope.theta, 10000.0);
  EXPECT_FALSE(llama.tied_head || llama.qkv_bias || llama.mlp_bias || llama.qk_norm);
  const ModelDescription mistral = read(R"({"architectures": ["MistralForCausalLM"]})");
  EXPECT_EQ(mistral.kv_heads, 8);
  EXPECT_EQ(mistral.max_positions, 131072);
  EXPECT_EQ(mistral.sliding_window, std::vector<int64_t>(32, 4096));
  const ModelDescription qwen2 = read(R"({"architectures": ["Qwen2ForCausalLM"]})");
  EXPECT_EQ(qwen2.vocab_size, 151936);
  EXPECT_TRUE(qwen2.qkv_bias);
  EXPECT_FALSE(qwen2.attention_output_bias || qwen2.qk_norm);
  EXPECT_EQ(qwen2.sliding_window, std::vector<int64_t>(32, 0));
  const ModelDescription qwen3 = read(
      R"({"architectures": ["Qwen3ForCausalLM"], "hidden_size": 1000, "num_attention_heads": 16, "num_key_value_heads": null})");
  EXPECT_EQ(qwen3.head_dim, 128);
  EXPECT_EQ(qwen3.kv_heads, 16);
  EXPECT_TRUE(qwen3.qk_norm);
  EXPECT_FALSE(qwen3.qkv_bias);
  EXPECT_EQ(qwen3.attention_scale, 1.0 / std::sqrt(128.0));
}

TEST(Model, BiasesWindowsAndScalesFollowTheFile) {
  const ModelDescription llama = read(llama_with(
      R"(, "attention_bias": true, "mlp_bias": true, "head_dim": 32, "num_key_value_heads": 2, "tie_word_embeddings": true)"));
  EXPECT_TRUE(llama.qkv_bias && llama.attention_output_bias && llama.mlp_bias && llama.tied_head);
  EXPECT_EQ(llama.query_size(), 128);
  EXPECT_EQ(llama.kv_size(), 64);
  const ModelDescription mistral =
      read(R"({"architectures": ["MistralForCausalLM"], "num_hidden_layers": 2, "sliding_window": null})");
  EXPECT_THAT(mistral.sliding_window, ElementsAre(0, 0));
  const ModelDescription qwen =
      read(R"({"architectures": ["Qwen2ForCausalLM"], "num_hidden_layers": 4, "use_sliding_window": true,
                                         "sliding_window": 128, "max_window_layers": 2})");
  EXPECT_THAT(qwen.sliding_window, ElementsAre(0, 0, 128, 128));
  const ModelDescription typed =
      read(R"({"architectures": ["Qwen3ForCausalLM"], "num_hidden_layers": 3, "use_sliding_window": true,
    "sliding_window": 64, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]})");
  EXPECT_THAT(typed.sliding_window, ElementsAre(64, 0, 64));
  const ModelDescription unscaled =
      read(R"({"architectures": ["GPT2LMHeadModel"], "scale_attn_weights": false, "tie_word_embeddings": false})");
  EXPECT_EQ(unscaled.attention_scale, 1.0);
  EXPECT_FALSE(unscaled.tied_head);
}

TEST(Model, AFileAloneCanBeRead) {
  const ScratchDirectory directory;
  std::ofstream(directory / "other.json") << R"({"architectures": ["GPT2LMHeadModel"]})";
  EXPECT_EQ(read_model_description(directory / "other.json").layers, 12);
  EXPECT_THROW(read_model_description(directory.path()), Error);
}

TEST(Model, UnsupportedFeaturesAreNamedTogether) {
  const auto [code, message] =
      refusal(llama_with(R"(, "quantization_config": {"bits": 4}, "hidden_act": "gelu", "num_local_experts": 8,
    "partial_rotary_factor": 0.5, "rope_scaling": {"rope_type": "mrope"}, "pruned_heads": {"1": [0]})"));
  EXPECT_EQ(code, ErrorCode::unsupported);
  EXPECT_THAT(message,
              AllOf(HasSubstr("quantized"), HasSubstr("\"gelu\" is not supported; supported: silu"),
                    HasSubstr("mixture of experts"), HasSubstr("/partial_rotary_factor"),
                    HasSubstr("\"mrope\" is not supported; supported: default, linear"), HasSubstr("pruned")));
  EXPECT_THAT(message, HasSubstr("6 problems"));
}

TEST(Model, EachUnsupportedFeatureIsRefused) {
  for (const char* more :
       {R"("scale_attn_by_inverse_layer_idx": true)", R"("reorder_and_upcast_attn": true)",
        R"("activation_function": "silu")", R"("add_cross_attention": true)", R"("attn_logit_softcapping": 50.0)"}) {
    EXPECT_EQ(refusal(std::string(R"({"architectures": ["GPT2LMHeadModel"], )") + more + "}").first,
              ErrorCode::unsupported)
        << more;
  }
  const auto [code, message] = refusal(R"({"architectures": ["GemmaForCausalLM"]})");
  EXPECT_EQ(code, ErrorCode::unsupported);
  EXPECT_THAT(message, AllOf(HasSubstr("GemmaForCausalLM"), HasSubstr("Qwen3ForCausalLM")));
}

TEST(Model, FeaturesThatAreSwitchedOffAreAccepted) {
  EXPECT_EQ(
      refusal(
          llama_with(
              R"(, "pruned_heads": {}, "quantization_config": null, "is_encoder_decoder": false, "attention_dropout": 0.1,
    "partial_rotary_factor": 1.0, "rope_scaling": null, "pretraining_tp": 1, "num_experts": 0)"))
          .second,
      "accepted");
}

TEST(Model, WrongValuesAreListedTogether) {
  const auto [code, message] =
      refusal(R"({"architectures": ["LlamaForCausalLM"], "hidden_size": "64", "num_hidden_layers": 0,
    "vocab_size": 1e99, "rms_norm_eps": -1, "tie_word_embeddings": 1, "quantization_config": {"bits": 4}})");
  EXPECT_EQ(code, ErrorCode::invalid_configuration);
  EXPECT_THAT(message, AllOf(HasSubstr("/hidden_size"), HasSubstr("/num_hidden_layers"), HasSubstr("/vocab_size"),
                             HasSubstr("/rms_norm_eps"), HasSubstr("/tie_word_embeddings"),
                             HasSubstr("/quantization_config"), HasSubstr("6 problems")));
}

TEST(Model, SizesThatDoNotFitTogetherAreRefused) {
  EXPECT_THAT(refusal(R"({"architectures": ["GPT2LMHeadModel"], "n_head": 7})").second,
              HasSubstr("do not divide n_embd"));
  EXPECT_THAT(refusal(llama_with(R"(, "num_key_value_heads": 3)")).second,
              HasSubstr("does not divide num_attention_heads"));
  EXPECT_THAT(refusal(llama_with(R"(, "head_dim": 15)")).second, HasSubstr("must be even"));
  EXPECT_THAT(refusal(R"({"architectures": ["LlamaForCausalLM"], "model_type": "qwen2"})").second,
              HasSubstr("/model_type"));
  EXPECT_THAT(refusal(R"({"architectures": ["A", "B"]})").second, HasSubstr("a list of one name"));
  EXPECT_THAT(refusal("{}").second, HasSubstr("/architectures: is required"));
  EXPECT_THAT(refusal(R"({"architectures": ["GPT2LMHeadModel"], "n_layer": 1, "n_layer": 2})").second,
              HasSubstr("duplicate key /n_layer"));
}

struct RopeCase {
  const char* name;
  std::string more;
  int64_t sequence_length;
  double attention_factor;
  std::vector<double> inverse_frequency;
};

// Computed in fp32 by transformers 4.57.6 (modeling_rope_utils), head_dim 16 or 32.
TEST(Rope, FrequenciesAgreeWithTransformers) {
  const std::vector<RopeCase> cases = {
      {"default", "", 512, 1.0, {1.0, 0.316227766, 0.1, 0.0316227766, 0.01, 0.00316227766, 0.001, 0.000316227766}},
      {"linear",
       R"(, "rope_scaling": {"type": "linear", "factor": 4.0})",
       512,
       1.0,
       {0.25, 0.079056941, 0.0250000004, 0.00790569466, 0.00249999994, 0.000790569466, 0.000250000012, 7.90569466e-05}},
      {"dynamic",
       R"(, "rope_scaling": {"type": "dynamic", "factor": 2.0})",
       8192,
       1.0,
       {1.0, 0.239481375, 0.057351321, 0.0137345716, 0.00328917382, 0.00078769587, 0.000188638471, 4.51753949e-05}},
      {"dynamic within the original length",
       R"(, "rope_scaling": {"type": "dynamic", "factor": 2.0})",
       2048,
       1.0,
       {1.0, 0.316227766, 0.1, 0.0316227766, 0.01, 0.00316227766, 0.001, 0.000316227766}},
      {"llama3",
       R"(, "head_dim": 32, "rope_theta": 500000.0, "rope_scaling": {"rope_type": "llama3", "factor": 8.0,
        "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192})",
       512,
       1.0,
       {1.0, 0.440366626, 0.193922758, 0.0853971019, 0.0376060307, 0.0165604409, 0.00729266508, 0.00321144611,
        0.000524846022, 7.78465546e-05, 3.42810235e-05, 1.50962178e-05, 6.64786967e-06, 2.92749974e-06, 1.28917316e-06,
        5.6770881e-07}},
      {"yarn",
       R"(, "head_dim": 32, "rope_parameters": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e6,
        "original_max_position_embeddings": 32768})",
       512,
       1.138629436111989,
       {1.0, 0.421696514, 0.177827939, 0.0749894157, 0.0316227786, 0.0133352149, 0.00477990136, 0.00165996165,
        0.000549999997, 0.000168678584, 4.44569851e-05, 1.87473561e-05, 7.90569356e-06, 3.33380353e-06, 1.40585337e-06,
        5.92843435e-07}},
      {"yarn with every key",
       R"(, "rope_scaling": {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 2048,
        "beta_fast": 16.0, "beta_slow": 2.0, "mscale": 1.0, "mscale_all_dim": 0.5, "truncate": false})",
       512,
       1.094179988101349,
       {1.0, 0.316227764, 0.100000001, 0.0257716179, 0.00330522214, 0.000395284733, 0.000125000006, 3.95284733e-05}},
  };
  for (const RopeCase& expected : cases) {
    const RopeFrequencies actual = rope_frequencies(read(llama_with(expected.more)), expected.sequence_length);
    EXPECT_NEAR(actual.attention_factor, expected.attention_factor, 1e-12) << expected.name;
    ASSERT_EQ(actual.inverse_frequency.size(), expected.inverse_frequency.size()) << expected.name;
    for (size_t i = 0; i < expected.inverse_frequency.size(); ++i) {
      EXPECT_NEAR(actual.inverse_frequency[i] / expected.inverse_frequency[i], 1.0, 2e-6) << expected.name << " " << i;
    }
  }
}

TEST(Rope, IncompleteScalingsAreRefused) {
  EXPECT_THAT(refusal(llama_with(R"(, "rope_scaling": {"type": "linear"})")).second,
              HasSubstr("/rope_scaling/factor: is required"));
  EXPECT_THAT(
      refusal(llama_with(R"(, "rope_scaling": {"rope_type": "llama3", "factor": 8})")).second,
      AllOf(HasSubstr("low_freq_factor: is required"), HasSubstr("high_freq_factor: is required"), HasSubstr("2 problems")));
  EXPECT_THAT(refusal(llama_with(R"(, "rope_scaling": [])")).second, HasSubstr("/rope_scaling: must be an object"));
  EXPECT_THAT(refusal(llama_with(R"(, "rope_scaling": {"type": "linear", "factor": 0.5})")).second,
              HasSubstr("at least 1"));
  const ModelDescription ratio =
      read(llama_with(R"(, "rope_scaling": {"type": "yarn", "original_max_position_embeddings": 512})"));
  EXPECT_EQ(ratio.rope.factor, 4.0);
}

TEST(Rope, WhereTwoKeysDisagreeTheFollowedOneIsSaid) {
  const std::string llama3 =
      R"({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64})";
  const ModelDescription outer = read(llama_with(R"(, "original_max_position_embeddings": 512, "rope_scaling": )" + llama3));
  EXPECT_EQ(outer.rope.original_max_positions, 512);
  EXPECT_THAT(outer.notes, ElementsAre("RoPE: original_max_position_embeddings 512 is followed, not the 64 of rope_scaling"));
  const ModelDescription two = read(llama_with(
      R"(, "rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2.0, "rope_theta": 1e6}, "rope_parameters": )" + llama3));
  EXPECT_EQ(two.rope.scaling, RopeConfig::Scaling::linear);
  EXPECT_THAT(two.notes, ElementsAre("RoPE: rope_scaling is followed, rope_parameters beside it is not",
                                     "RoPE: rope_theta 1000000 of rope_scaling is followed, not the 500000 beside it"));
  const ModelDescription unused = read(llama_with(R"(, "rope_scaling": {"factor": 2.0, "beta_fast": 3.0, "finetuned": true})"));
  EXPECT_EQ(unused.rope.scaling, RopeConfig::Scaling::none);
  EXPECT_THAT(unused.notes, ElementsAre("RoPE: of no effect on \"default\": beta_fast, factor"));
  EXPECT_THAT(refusal(llama_with(R"(, "rope_scaling": {"type": "linear", "rope_type": "dynamic", "factor": 2.0})")).second,
              AllOf(HasSubstr("/rope_scaling/rope_type"), HasSubstr("\"dynamic\"")));
  EXPECT_THAT(refusal(llama_with(R"(, "rope_scaling": {"type": "linear", "factor": 2.0, "mrope_section": [8, 8]})")).second,
              HasSubstr("/rope_scaling/mrope_section: is a RoPE parameter that is not known"));
  EXPECT_THAT(refusal(llama_with(R"(, "rope_parameters": {"full_attention": {"rope_type": "default"}})")).second,
              HasSubstr("by type of layer (full_attention)"));
}

TEST(Model, AKeyThatMayChangeTheModelAndIsNotKnownIsRefused) {
  for (const char* more : {R"("no_rope_layers": [1, 0, 1])", R"("attention_multiplier": 0.5)", R"("use_qk_norm": true)",
                           R"("embedding_scale": 12)", R"("logit_softcap": 30.0)", R"("moe_intermediate_size": 128)",
                           R"("per_layer_config": {"0": {}})", R"("text_config": {"a": 1})", R"("residual_multiplier": 0.22)"}) {
    const auto [code, message] = refusal(llama_with(std::string(", ") + more));
    EXPECT_EQ(code, ErrorCode::unsupported) << more;
    EXPECT_THAT(message, AllOf(HasSubstr("may change the model"), HasSubstr("llama models"))) << more;
  }
  // Switched off, of another program, or of how transformers runs.
  const ModelDescription model = read(llama_with(
      R"(, "rope_interleaved": false, "no_rope_layers": [], "use_mrope": false, "num_experts": 0, "attention_multiplier": null,
          "is_llama_config": true, "transformers.js_config": {"dtype": "q4"}, "_attn_implementation_autoset": true, "pretraining_tp": 2,
          "max_sequence_length": 2048, "gradient_checkpointing": false, "id2label": {"0": "x"})"));
  EXPECT_THAT(model.notes, ElementsAre());
}

TEST(Model, IgnoredKeysAreSaidOnceALineAKind) {
  const ModelDescription gpt2 = read(R"({"model_type": "gpt2", "attn_pdrop": 0.1, "embd_pdrop": 0.1, "resid_pdrop": 0.0,
    "summary_first_dropout": 0.1, "color": "blue", "flavour": 3})");
  EXPECT_THAT(gpt2.notes, ElementsAre("training runs without dropout; ignored: attn_pdrop 0.1, embd_pdrop 0.1",
                                      "unknown keys of the model's config.json, ignored: color \"blue\", flavour 3"));
  const ModelDescription qwen2 =
      read(R"({"architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.1, "attention_bias": true, "mlp_bias": true})");
  EXPECT_FALSE(qwen2.attention_output_bias || qwen2.mlp_bias);
  EXPECT_THAT(qwen2.notes, ElementsAre("training runs without dropout; ignored: attention_dropout 0.1",
                                       "of no effect in qwen2 models, as in transformers: attention_bias true, mlp_bias true"));
  EXPECT_THAT(read(llama_with(R"(, "sliding_window": 128)")).notes,
              ElementsAre("of no effect in llama models, as in transformers: sliding_window 128"));
}

TEST(Model, TwoNamesOfASizeMustAgree) {
  EXPECT_EQ(read(R"({"model_type": "gpt2", "n_embd": 96, "hidden_size": 96})").hidden_size, 96);
  EXPECT_THAT(refusal(R"({"model_type": "gpt2", "n_embd": 96, "hidden_size": 192})").second,
              HasSubstr("/hidden_size: differs from n_embd, which is 96"));
}

TEST(Model, ASlidingLayerWithoutAWindowIsRefusedAsTransformersDoes) {
  const std::string qwen3 = R"({"architectures": ["Qwen3ForCausalLM"], "num_hidden_layers": 2, "sliding_window": 64,
    "layer_types": ["full_attention", "sliding_attention"])";
  EXPECT_THAT(refusal(qwen3 + "}").second, HasSubstr("/layer_types/1: sliding_attention without a window"));
  EXPECT_THAT(refusal(qwen3 + R"(, "use_sliding_window": false})").second, HasSubstr("sliding_attention without a window"));
  EXPECT_THAT(read(qwen3 + R"(, "use_sliding_window": true})").sliding_window, ElementsAre(0, 64));
  EXPECT_THAT(refusal(llama_with(R"(, "layer_types": ["full_attention", "full_attention", "sliding_attention"])")).second,
              HasSubstr("/layer_types/2: \"sliding_attention\" is not supported; supported: full_attention"));
  EXPECT_EQ(refusal(llama_with(R"(, "layer_types": ["full_attention", "attention", "full_attention"])")).second, "accepted");
}

TEST(Model, SizesBeyondAnyModelAreRefused) {
  const std::string head = R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama", )";
  for (const char* size : {"hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size",
                           "num_hidden_layers"}) {
    const auto [code, message] = refusal(head + '"' + size + "\": 2147483648}");
    EXPECT_EQ(code, ErrorCode::invalid_configuration) << size;
    EXPECT_THAT(message, AllOf(HasSubstr(std::string("/") + size + ": must be an integer from 1 to"), HasSubstr("1 problem:"))) << size;
  }
  EXPECT_THAT(refusal(head + R"("hidden_size": 1048576, "num_attention_heads": 1})").second, HasSubstr("/head_dim: must be at most"));
}

TEST(Model, AWrongListOfArchitecturesHidesNoOtherProblem) {
  const auto [code, message] = refusal(R"({"architectures": "LlamaForCausalLM", "model_type": "llama", "hidden_size": -1,
      "num_hidden_layers": "x", "hidden_act": "zzz", "rope_scaling": {"type": "q"}})");
  EXPECT_EQ(code, ErrorCode::invalid_configuration);
  EXPECT_THAT(message, AllOf(HasSubstr("5 problems"), HasSubstr("/architectures"), HasSubstr("/hidden_size"),
                             HasSubstr("/num_hidden_layers"), HasSubstr("/hidden_act"), HasSubstr("/rope_scaling/rope_type")));
}

}  // namespace
}  // namespace strata
