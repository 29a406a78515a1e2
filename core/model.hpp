// A decoder-only transformer as Hugging Face's config.json describes it, reduced to what Strata computes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace strata {

enum class Family { gpt2, llama };

enum class Activation { gelu_tanh, gelu_erf, silu, relu };

/// Rotary position embedding: base frequencies and how they are scaled for long contexts.
struct RopeConfig {
  enum class Scaling { none, linear, dynamic, llama3, yarn, longrope };
  double theta = 10000.0;
  Scaling scaling = Scaling::none;
  double factor = 1.0;
  double low_frequency_factor = 1.0;   // llama3
  double high_frequency_factor = 4.0;  // llama3
  double beta_fast = 32.0;             // yarn
  double beta_slow = 1.0;              // yarn
  std::optional<double> attention_factor;    // yarn, longrope; their formulas' by default
  bool truncate = true;                      // yarn: whole dimensions bound the ramp
  int64_t original_max_positions = 0;  // dynamic, llama3, yarn, longrope
  std::vector<double> short_factor, long_factor;  // longrope: a divisor of each frequency, up to the original length and beyond it
};

/// All sizes are in elements. head_dim is independent of hidden_size / heads (Qwen 3).
struct ModelDescription {
  Family family = Family::llama;
  std::string architecture;  // the name in config.json's "architectures", as given
  std::string model_type;    // "gpt2", "llama", "mistral", "qwen2", "qwen3"
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t layers = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  int64_t intermediate_size = 0;
  int64_t max_positions = 0;
  double norm_epsilon = 1e-5;
  Activation activation = Activation::silu;
  bool tied_head = false;
  bool qkv_bias = false;
  bool attention_output_bias = false;
  bool mlp_bias = false;
  bool qk_norm = false;             // Qwen 3: RMSNorm over head_dim of each query and key head, before RoPE
  RopeConfig rope;                  // llama family only
  double attention_scale = 0.0;     // what q.k is multiplied by; 1/sqrt(head_dim) unless the model says otherwise
  /// Per layer: the number of latest positions a token attends to, itself included; 0 = all (causal).
  std::vector<int64_t> sliding_window;
  double initializer_range = 0.02;
  /// Lines for the log: keys of the file that are not followed (dropout), and where two of its keys disagree which one is.
  std::vector<std::string> notes;

  int64_t query_size() const { return heads * head_dim; }
  int64_t kv_size() const { return kv_heads * head_dim; }
};

/// Reads DIR/config.json or, when given a file, that file. Every problem of the file is listed in one Error:
/// invalid_configuration for wrong or missing values, unsupported for an architecture or feature that is not built
/// (the text names those that are).
ModelDescription read_model_description(const std::filesystem::path& directory_or_file);

/// The inverse frequencies (head_dim / 2 of them) and the factor on cos and sin for a run at `sequence_length`, computed in double
/// as transformers does (modeling_rope_utils). Only `dynamic` and `longrope` depend on the sequence length.
struct RopeFrequencies {
  std::vector<double> inverse_frequency;
  double attention_factor = 1.0;
};
RopeFrequencies rope_frequencies(const ModelDescription& model, int64_t sequence_length);

}  // namespace strata
