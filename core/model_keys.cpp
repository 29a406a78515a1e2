#include "core/model_keys.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <set>
#include <string_view>

#include "core/model_rope.hpp"

namespace strata {
namespace {

/// Names, formats, tokens, generation, classification heads, and switches of how transformers computes what it computes.
bool is_harmless(std::string_view key) {
  static const std::set<std::string_view> kKeys = {
      "_attn_implementation", "_attn_implementation_autoset", "_attn_implementation_internal", "_commit_hash", "_experts_implementation",
      "_flash_attn_2_enabled", "_name_or_path", "architectures", "attn_implementation", "bad_words_ids", "begin_suppress_tokens", "bf16",
      "bos_token", "bos_token_id", "chunk_size_feed_forward", "classifier_dropout", "decoder_start_token_id", "diversity_penalty",
      "do_sample", "dtype", "early_stopping", "encoder_no_repeat_ngram_size", "eos_token", "eos_token_id", "experts_implementation",
      "exponential_decay_length_penalty", "finetuning_task", "forced_bos_token_id", "forced_eos_token_id", "fp16",
      "gradient_checkpointing", "id2label", "is_decoder", "is_llama_config", "label2id", "length_penalty", "mask_token_id", "max_length",
      "max_new_tokens", "max_sequence_length", "min_length", "model_type", "n_ctx", "name_or_path", "no_repeat_ngram_size",
      "num_beam_groups", "num_beams", "num_labels", "num_return_sequences", "output_attentions", "output_hidden_states",
      "output_router_logits", "output_scores", "pad_token", "pad_token_id", "prefix", "pretraining_tp", "problem_type",
      "remove_invalid_values", "repetition_penalty", "return_dict", "return_dict_in_generate", "sep_token_id", "suppress_tokens",
      "task_specific_params", "temperature", "tf_legacy_loss", "tie_encoder_decoder", "tokenizer_class", "top_k", "top_p", "torch_dtype",
      "torchscript", "transformers.js_config", "transformers_version", "typical_p", "unk_token_id", "unsloth_fixed", "unsloth_version",
      "use_bfloat16", "use_cache", "use_flash_attention", "use_flash_attention_2", "use_flash_attn"};
  return kKeys.contains(key) || key.starts_with("summary_");
}

/// Keys of one of the architectures that transformers reads for no other of them.
bool is_of_a_sibling(std::string_view key) {
  constexpr std::array<std::string_view, 8> kKeys = {"attention_bias",     "mlp_bias",          "sliding_window",
                                                     "use_sliding_window", "max_window_layers", "scale_attn_weights",
                                                     "layer_norm_epsilon", "original_max_position_embeddings"};
  return std::find(kKeys.begin(), kKeys.end(), key) != kKeys.end();
}

bool is_dropout(std::string_view key) { return key.find("dropout") != key.npos || key.find("pdrop") != key.npos; }

/// What names of parts and of arithmetic have in them.
bool may_change_the_model(std::string key) {
  std::transform(key.begin(), key.end(), key.begin(), [](unsigned char letter) { return std::tolower(letter); });
  constexpr std::array<std::string_view, 39> kWords = {
      "rope",  "rotary", "alibi",  "position",   "attn",    "attention", "window", "mask",  "head",  "layer",  "block", "expert", "moe",
      "router", "gate",  "mlp",    "ffn",        "norm",    "bias",      "scal",   "multiplier", "cap", "logit", "residual", "embed",
      "hidden", "inner", "act_fn", "activation", "kv",      "qk",        "conv",   "ssm",   "sparse", "quant", "config", "lora",
      "adapter", "mup"};
  return std::any_of(kWords.begin(), kWords.end(), [&](std::string_view word) { return key.find(word) != key.npos; });
}

}  // namespace

void judge_unread_keys(const Json& document, const std::vector<std::string>& unread, ModelDescription& model, Problems& unsupported) {
  std::vector<std::string> dropouts, siblings, others;
  for (const std::string& key : unread) {
    const Json& value = document.at(key);
    if (is_harmless(key) || !is_set(value)) continue;
    const std::string text = fmt::format("{} {}", printable(key), shown(value));
    if (is_dropout(key))
      dropouts.push_back(text);
    else if (is_of_a_sibling(key))
      siblings.push_back(text);
    else if (may_change_the_model(key))
      unsupported.add(json_pointer("", key),
                      fmt::format("is not a known key of {} models, and its name says that it may change the model (it is {}); supported: "
                                  "without it. If another program wrote it and it changes nothing, remove it",
                                  model.model_type, shown(value)));
    else
      others.push_back(text);
  }
  if (!dropouts.empty()) model.notes.push_back(fmt::format("training runs without dropout; ignored: {}", fmt::join(dropouts, ", ")));
  if (!siblings.empty())
    model.notes.push_back(fmt::format("of no effect in {} models, as in transformers: {}", model.model_type, fmt::join(siblings, ", ")));
  if (!others.empty()) model.notes.push_back(fmt::format("unknown keys of the model's config.json, ignored: {}", fmt::join(others, ", ")));
}

}  // namespace strata
