// Small run shapes for tests of the planner and the program.
#pragma once

#include "core/layout.hpp"
#include "scheduler/compiler.hpp"

namespace strata::scheduler {

inline ModelDescription tiny_llama(bool tied, int64_t layers = 3) {
  ModelDescription model;
  model.family = Family::llama;
  model.architecture = "LlamaForCausalLM";
  model.model_type = "llama";
  model.vocab_size = 512;
  model.hidden_size = 64;
  model.layers = layers;
  model.heads = 4;
  model.kv_heads = 2;
  model.head_dim = 16;
  model.intermediate_size = 96;
  model.max_positions = 128;
  model.tied_head = tied;
  model.attention_scale = 0.25;
  model.sliding_window.assign(static_cast<size_t>(layers), 0);
  return model;
}

inline RunShape tiny_shape(bool tied, StateFormat format, int64_t micro_batches, uint64_t tile_elements = kBlockElements) {
  RunShape shape;
  shape.layout = make_layout(tiny_llama(tied));
  shape.tied_head = tied;
  shape.format = format;
  shape.engine = {.hidden = 4096, .saved = 16384, .workspace = 8192, .tables = 0, .units = {}};
  for (size_t unit = 0; unit < shape.layout.units.size(); ++unit)
    shape.engine.units.push_back({.prepared_forward = 1024, .prepared_backward = 2048, .forward_flops = 1e6,
                                  .backward_flops = 2e6});
  shape.micro_batches = micro_batches;
  shape.tokens_per_micro_batch = 32;
  shape.tile_elements = tile_elements;
  return shape;
}

}  // namespace strata::scheduler
