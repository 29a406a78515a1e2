#include "core/model.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/file.hpp"
#include "core/json_fields.hpp"
#include "core/model_keys.hpp"
#include "core/model_rope.hpp"

namespace strata {
namespace {

// Far beyond any model, and small enough that no size made of them overflows 64 bits or takes long to lay out.
constexpr int64_t kMaxPositions = int64_t{1} << 31;
constexpr int64_t kMaxVocabulary = 1 << 26;
constexpr int64_t kMaxWidth = 1 << 20;
constexpr int64_t kMaxHeads = 1 << 14;
constexpr int64_t kMaxHeadDim = 1 << 14;
constexpr int64_t kMaxLayers = 4096;

/// What sets the architectures apart: the names they go by and transformers' defaults for absent keys.
struct Architecture {
  std::string name, model_type;
  Family family;
  int64_t vocab_size, hidden_size, intermediate_size, layers, heads, max_positions;
  int64_t kv_heads;  // 0: as many as heads
  int64_t head_dim;  // 0: hidden_size / heads
  bool qkv_bias;
};

const std::vector<Architecture>& architectures() {
  static const std::vector<Architecture> known = {
      {"GPT2LMHeadModel", "gpt2", Family::gpt2, 50257, 768, 0, 12, 12, 1024, 0, 0, true},
      {"LlamaForCausalLM", "llama", Family::llama, 32000, 4096, 11008, 32, 32, 2048, 0, 0, false},
      {"MistralForCausalLM", "mistral", Family::llama, 32000, 4096, 14336, 32, 32, 131072, 8, 0, false},
      {"Qwen2ForCausalLM", "qwen2", Family::llama, 151936, 4096, 22016, 32, 32, 32768, 32, 0, true},
      {"Qwen3ForCausalLM", "qwen3", Family::llama, 151936, 4096, 22016, 32, 32, 32768, 32, 128, false},
  };
  return known;
}

std::string supported_architectures() {
  std::vector<std::string> names;
  for (const Architecture& known : architectures()) names.push_back(known.name);
  return fmt::format("{}", fmt::join(names, ", "));
}

class ModelReader {
 public:
  ModelReader(const Json& document, std::string file) : document_(document), file_(std::move(file)), root_(&document, "", problems_) {
    root_.null_is_absent = true;  // in a Hugging Face configuration, null means "by default"
  }

  ModelDescription read() {
    if (!problems_.empty()) problems_.raise(ErrorCode::invalid_configuration, file_);
    const Architecture& known = find_architecture();
    model_.family = known.family;
    model_.architecture = known.name;
    model_.model_type = known.model_type;
    refuse_features_of_all();
    if (known.family == Family::gpt2)
      read_gpt2(known);
    else
      read_llama(known);
    root_.number("initializer_range", model_.initializer_range, {.min = 0, .max = 100});
    judge_unread_keys(document_, root_.unasked(), model_, unsupported_);
    if (problems_.empty()) check_sizes();
    if (!problems_.empty()) {
      problems_.append(unsupported_);
      problems_.raise(ErrorCode::invalid_configuration, file_,
                      "compare with the config.json that the model was published with");
    }
    if (!unsupported_.empty()) {
      unsupported_.raise(ErrorCode::unsupported, file_,
                         "choose a model without it, or one of: " + supported_architectures());
    }
    return std::move(model_);
  }

 private:
  /// By "architectures", else by "model_type". Files of `strata init` and of the hub have either or both.
  const Architecture& find_architecture() {
    std::string name, type;
    root_.text("model_type", type);
    if (const Json* list = root_.find("architectures"); list != nullptr) {
      if (list->is_array() && list->size() == 1 && (*list)[0].is_string())
        name = (*list)[0].get<std::string>();
      else
        problems_.add("/architectures", fmt::format("must be a list of one name, is {}", shown(*list)));
    }
    if (name.empty() && type.empty() && problems_.empty()) problems_.add("/architectures", "is required");
    for (const Architecture& known : architectures()) {
      if (name.empty() ? known.model_type == type : known.name == name) {
        if (!type.empty() && type != known.model_type) {
          problems_.add("/model_type", fmt::format("is \"{}\", but {} is of type \"{}\"", printable(type), known.name,
                                                   known.model_type));
        }
        return known;
      }
    }
    if (!problems_.empty()) problems_.raise(ErrorCode::invalid_configuration, file_);
    throw Error(ErrorCode::unsupported,
                fmt::format("the architecture \"{}\" is not built; supported are {}",
                            printable(name.empty() ? type : name), supported_architectures()),
                file_ + " /architectures", "choose a model of a supported architecture");
  }

  void refuse(const std::string& key, const std::string& what) { unsupported_.add("/" + key, what); }

  /// A feature that is on if the key is set.
  void refuse_if_set(const std::string& key, const std::string& what) {
    const Json* value = root_.find(key);
    if (value == nullptr || !is_set(*value)) return;
    refuse(key, fmt::format("{} (it is {}) is not supported; supported: without it", what, shown(*value)));
  }

  void refuse_features_of_all() {
    refuse_if_set("quantization_config", "a quantized model");
    refuse_if_set("pruned_heads", "pruned attention heads");
    refuse_if_set("is_encoder_decoder", "an encoder-decoder model");
    refuse_if_set("add_cross_attention", "cross-attention");
    refuse_if_set("num_experts", "a mixture of experts");
    refuse_if_set("num_local_experts", "a mixture of experts");
    refuse_if_set("n_routed_experts", "a mixture of experts");
    refuse_if_set("attn_logit_softcapping", "soft-capping of attention logits");
    refuse_if_set("final_logit_softcapping", "soft-capping of logits");
    refuse_if_set("auto_map", "code of the model's own (auto_map)");
  }

  void read_activation(const char* key, const Architecture& known) {
    std::string name = known.family == Family::gpt2 ? "gelu_new" : "silu";
    root_.text(key, name);
    if (known.family == Family::gpt2) {
      if (name == "gelu_new" || name == "gelu_pytorch_tanh" || name == "gelu_fast")
        model_.activation = Activation::gelu_tanh;
      else if (name == "gelu")
        model_.activation = Activation::gelu_erf;
      else if (name == "relu")
        model_.activation = Activation::relu;
      else
        refuse(
            key,
            fmt::format(
                "the activation \"{}\" is not supported; supported: gelu_new, gelu_pytorch_tanh, gelu_fast, gelu, relu",
                printable(name)));
    } else {
      if (name == "silu" || name == "swish")
        model_.activation = Activation::silu;
      else
        refuse(key, fmt::format("the activation \"{}\" is not supported; supported: silu", printable(name)));
    }
  }

  void read_gpt2(const Architecture& known) {
    model_.vocab_size = size("vocab_size", known.vocab_size, kMaxVocabulary);
    model_.hidden_size = size("n_embd", "hidden_size", known.hidden_size, kMaxWidth);
    model_.layers = size("n_layer", "num_hidden_layers", known.layers, kMaxLayers);
    model_.heads = model_.kv_heads = size("n_head", "num_attention_heads", known.heads, kMaxHeads);
    model_.max_positions = size("n_positions", "max_position_embeddings", known.max_positions, kMaxPositions);
    model_.intermediate_size = size("n_inner", 4 * model_.hidden_size, 4 * kMaxWidth);
    model_.head_dim = model_.heads > 0 ? model_.hidden_size / model_.heads : 0;
    model_.norm_epsilon = 1e-5;
    root_.number("layer_norm_epsilon", model_.norm_epsilon, {.min = 0, .max = 1});
    model_.tied_head = true;
    root_.boolean("tie_word_embeddings", model_.tied_head);
    model_.qkv_bias = model_.attention_output_bias = model_.mlp_bias = true;
    read_activation("activation_function", known);
    bool scaled = true;
    root_.boolean("scale_attn_weights", scaled);
    model_.attention_scale =
        scaled && model_.head_dim > 0 ? 1.0 / std::sqrt(static_cast<double>(model_.head_dim)) : 1.0;
    refuse_if_set("scale_attn_by_inverse_layer_idx", "attention scaled by the inverse of the layer's index");
    refuse_if_set("reorder_and_upcast_attn", "reordered and upcast attention");
    model_.sliding_window.assign(static_cast<size_t>(model_.layers), 0);
  }

  void read_llama(const Architecture& known) {
    model_.vocab_size = size("vocab_size", known.vocab_size, kMaxVocabulary);
    model_.hidden_size = size("hidden_size", known.hidden_size, kMaxWidth);
    model_.intermediate_size = size("intermediate_size", known.intermediate_size, 4 * kMaxWidth);
    model_.layers = size("num_hidden_layers", known.layers, kMaxLayers);
    model_.heads = size("num_attention_heads", known.heads, kMaxHeads);
    // Absent and null differ here: Mistral and Qwen default to a number of heads, but null means as many as query
    // heads.
    root_.null_is_absent = false;
    const bool given = root_.has("num_key_value_heads");
    root_.null_is_absent = true;
    model_.kv_heads = size("num_key_value_heads", given || known.kv_heads == 0 ? model_.heads : known.kv_heads, kMaxHeads);
    const int64_t quotient = model_.heads > 0 ? model_.hidden_size / model_.heads : 0;
    model_.head_dim = size("head_dim", known.head_dim != 0 ? known.head_dim : quotient, kMaxHeadDim);
    model_.max_positions = size("max_position_embeddings", known.max_positions, kMaxPositions);
    model_.norm_epsilon = 1e-6;
    root_.number("rms_norm_eps", model_.norm_epsilon, {.min = 0, .max = 1});
    root_.boolean("tie_word_embeddings", model_.tied_head);
    read_activation("hidden_act", known);
    read_biases(known);
    model_.qk_norm = known.model_type == "qwen3";
    model_.attention_scale = model_.head_dim > 0 ? 1.0 / std::sqrt(static_cast<double>(model_.head_dim)) : 1.0;
    read_windows(known);
    read_rope(root_, model_, unsupported_);
  }

  void read_biases(const Architecture& known) {
    model_.qkv_bias = known.qkv_bias;
    if (known.model_type == "llama" || known.model_type == "qwen3") {
      bool attention_bias = false;
      root_.boolean("attention_bias", attention_bias);
      model_.qkv_bias = model_.attention_output_bias = attention_bias;
    }
    if (known.model_type == "llama") root_.boolean("mlp_bias", model_.mlp_bias);
  }

  /// Mistral's window is every layer's; Qwen's is that of the layers from max_window_layers on, or as layer_types says.
  void read_windows(const Architecture& known) {
    model_.sliding_window.assign(static_cast<size_t>(std::max<int64_t>(model_.layers, 0)), 0);
    if (known.model_type == "llama") return read_layer_types(known, 0);
    root_.null_is_absent = false;  // null switches the window off; absence means the default of 4096
    const bool off = root_.has("sliding_window") && root_.find("sliding_window")->is_null();
    root_.null_is_absent = true;
    int64_t window = 4096;
    root_.integer("sliding_window", window, 1, kMaxPositions);
    bool use = known.model_type == "mistral";
    if (known.model_type != "mistral") root_.boolean("use_sliding_window", use);
    if (off || !use) window = 0;

    int64_t first = 0;
    if (known.model_type != "mistral") {
      first = 28;
      root_.integer("max_window_layers", first, 0, kMaxPositions);
    }
    for (int64_t layer = first; layer < model_.layers; ++layer)
      model_.sliding_window[static_cast<size_t>(layer)] = window;
    read_layer_types(known, window);
  }

  void read_layer_types(const Architecture& known, int64_t window) {
    const Json* types = root_.find("layer_types");
    if (types == nullptr) return;
    if (known.model_type == "mistral") {
      refuse("layer_types", "layer types in a Mistral model are not supported; supported: one window for all layers");
      return;
    }
    if (!types->is_array() || types->size() != static_cast<size_t>(model_.layers)) {
      problems_.add("/layer_types", fmt::format("must be a list of num_hidden_layers ({}) words", model_.layers));
      return;
    }
    for (size_t layer = 0; layer < types->size(); ++layer) {
      const Json& type = (*types)[layer];
      const std::string place = fmt::format("layer_types/{}", layer);
      if (type == "full_attention" || type == "attention") {  // the older name
        model_.sliding_window[layer] = 0;
      } else if (type != "sliding_attention" || known.model_type == "llama") {
        refuse(place, fmt::format("{} is not supported; supported: full_attention{}", shown(type),
                                  known.model_type == "llama" ? "" : ", sliding_attention"));
      } else if (window == 0) {
        // transformers fails at such a layer's mask.
        refuse(place, "sliding_attention without a window is not supported; supported: use_sliding_window true and a sliding_window");
      } else {
        model_.sliding_window[layer] = window;
      }
    }
  }

  void check_sizes() {
    if (model_.family == Family::gpt2 && model_.hidden_size % model_.heads != 0) {
      problems_.add("/n_head",
                    fmt::format("{} heads do not divide n_embd, which is {}", model_.heads, model_.hidden_size));
    }
    if (model_.heads % model_.kv_heads != 0) {
      problems_.add("/num_key_value_heads",
                    fmt::format("{} does not divide num_attention_heads, which is {}", model_.kv_heads, model_.heads));
    }
    if (model_.family == Family::llama && model_.head_dim % 2 != 0) {
      problems_.add("/head_dim", fmt::format("must be even for rotary embeddings, is {}", model_.head_dim));
    }
    if (model_.family == Family::llama && !root_.has("head_dim") && model_.model_type != "qwen3" &&
        model_.hidden_size % model_.heads != 0) {
      problems_.add("/num_attention_heads",
                    fmt::format("{} does not divide hidden_size, which is {}", model_.heads, model_.hidden_size));
    }
    if (model_.head_dim < 1) problems_.add("/head_dim", "there are more heads than hidden_size");
    if (model_.head_dim > kMaxHeadDim)
      problems_.add("/head_dim", fmt::format("must be at most {}, is {}", kMaxHeadDim, model_.head_dim));
    if (model_.rope.scaling == RopeConfig::Scaling::dynamic && model_.head_dim == 2) {
      problems_.add("/head_dim", "must be greater than 2 for dynamic RoPE scaling");
    }
  }

  int64_t size(const char* key, int64_t by_default, int64_t max) {
    int64_t value = by_default;
    root_.integer(key, value, 1, max);
    return value;
  }

  /// Either of two names, as GPT-2's attribute_map allows.
  int64_t size(const char* key, const char* other, int64_t by_default, int64_t max) {
    if (!root_.has(key)) return size(other, by_default, max);
    const int64_t value = size(key, by_default, max);
    if (size(other, value, max) != value) problems_.add(fmt::format("/{}", other), fmt::format("differs from {}, which is {}", key, value));
    return value;
  }

  const Json& document_;
  std::string file_;
  Problems problems_, unsupported_;
  ObjectReader root_;
  ModelDescription model_;
};

}  // namespace

ModelDescription read_model_description(const std::filesystem::path& directory_or_file) {
  std::error_code error;
  const bool directory = std::filesystem::is_directory(directory_or_file, error);
  const std::filesystem::path file = directory ? directory_or_file / "config.json" : directory_or_file;
  if (directory && !is_named(file)) {
    throw Error(ErrorCode::invalid_configuration, "the directory has no config.json", directory_or_file.string(),
                "give the directory of a Hugging Face model");
  }
  const Json document = parse_json_file(file, ErrorCode::invalid_configuration);
  return ModelReader(document, file.string()).read();
}

}  // namespace strata
