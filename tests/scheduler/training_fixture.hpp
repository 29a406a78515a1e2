// A tiny model, a text to train it on, and runs of it.
#pragma once

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "core/config.hpp"
#include "core/hf_weights.hpp"
#include "core/init_weights.hpp"
#include "core/layout.hpp"
#include "core/model.hpp"
#include "scheduler/trainer.hpp"

namespace strata::scheduler {

/// The parent of scratch directories with a store: not on tmpfs, so that direct I/O is real.
inline std::filesystem::path disk_of_the_build() { return std::filesystem::current_path(); }

/// Writes an HF directory with random fp32 weights for a config.json text.
inline void write_random_model(const std::filesystem::path& directory, const std::string& config_json, uint64_t seed = 1) {
  std::filesystem::create_directories(directory);
  const std::filesystem::path description = directory / "source-config.json";
  std::ofstream(description) << config_json;
  const ModelDescription model = read_model_description(description);
  const ModelLayout layout = make_layout(model);
  HfWriterOptions options;
  options.dtype = DType::f32;
  options.source = description;
  HfWriter writer(directory / "model", layout, options);
  for (size_t unit = 0; unit < layout.units.size(); ++unit) {
    const Range whole{0, layout.units[unit].padded_elements};
    std::vector<float> values(whole.count);
    init_weights(model, layout.units[unit], whole, seed, values.data());
    writer.write_from_float(unit, whole, values.data());
  }
  writer.finish();
}

inline const char* kTinyLlama = R"({
  "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 256, "hidden_size": 64,
  "intermediate_size": 160, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
  "max_position_embeddings": 128, "rms_norm_eps": 1e-5, "tie_word_embeddings": false, "hidden_act": "silu"})";

inline const char* kTinyTiedLlama = R"({
  "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 256, "hidden_size": 64,
  "intermediate_size": 160, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
  "max_position_embeddings": 128, "rms_norm_eps": 1e-5, "tie_word_embeddings": true, "hidden_act": "silu"})";

inline const char* kTinyGpt2 = R"({
  "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "vocab_size": 256, "n_embd": 64, "n_layer": 3,
  "n_head": 4, "n_positions": 128, "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5})";

/// A text with structure, so that the loss moves.
inline void write_text(const std::filesystem::path& file, size_t bytes) {
  std::ofstream out(file);
  uint64_t state = 12345;
  const char* words[] = {"tier ", "unit ", "shard ", "tile ", "the ", "moves ", "while ", "compute ", "runs.\n"};
  for (size_t written = 0; written < bytes;) {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    const std::string word = words[(state >> 33) % 9];
    out << word;
    written += word.size();
  }
}

/// A configuration that trains the tiny model for `steps` steps with everything on the device.
inline Config tiny_config(const std::filesystem::path& directory, int64_t steps) {
  Config config;
  config.model.path = directory / "model";
  config.data.train = {directory / "text.txt"};
  config.data.format = DataFormat::text;
  config.data.sequence_length = 32;
  config.batch = {.micro_batch_size = 2, .gradient_accumulation_steps = 2};
  config.precision.compute = DType::f32;
  config.optimizer.lr = 2e-3;
  config.optimizer.weight_decay = 0.01;
  config.steps = steps;
  config.device.memory_bytes = 256ull << 20;
  config.device.threads = 1;
  config.tiers.host_memory_bytes = 256ull << 20;
  config.tiers.nvme = {{directory / "nvme", 1ull << 30}};
  config.placement = {Tier::device, Tier::device, Tier::device, ActivationPolicy::device};
  config.schedule.tile_bytes = 1 << 20;
  config.schedule.update_threads = 1;
  return config;
}

inline TrainSummary run_training(const Config& config, const std::filesystem::path& run_directory, bool resume = false) {
  TrainOptions options;
  options.config = config;
  options.run_directory = run_directory;
  options.resume = resume;
  if (!resume) {  // whatever an earlier run of the test left there
    options.discard = {std::filesystem::weakly_canonical(run_directory).string()};
    for (const auto& store : config.tiers.nvme) options.discard.push_back(store.path.string());
  }
  options.hash_state = true;
  return train(options);
}

}  // namespace strata::scheduler
