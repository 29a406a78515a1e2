// Writes the engine's fp32 logits of a Hugging Face model directory on random tokens, for tests/reference/check_export.py:
//   dump_logits MODEL_DIR OUT.safetensors [SEQUENCES LENGTH SEED]
#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <random>

#include "core/hf_weights.hpp"
#include "core/safetensors.hpp"
#include "tests/parity/engine_harness.hpp"

namespace strata::parity {
namespace {

UnitBuffers read_parameters(const std::string& directory, const ModelDescription& model, const ModelLayout& layout) {
  const HfWeights weights(directory, model, layout);
  UnitBuffers parameters;
  for (size_t unit = 0; unit < layout.units.size(); ++unit) {
    const uint64_t elements = layout.units[unit].padded_elements;
    parameters.emplace_back(elements);
    weights.read_as_float(unit, {0, elements}, parameters.back().data());
  }
  return parameters;
}

int run(int count, char** arguments) {
  if (count < 3) {
    fmt::print(stderr, "usage: {} MODEL_DIR OUT.safetensors [SEQUENCES LENGTH SEED]\n", arguments[0]);
    return 2;
  }
  const auto number = [&](int index, int64_t otherwise) { return index < count ? std::atoll(arguments[index]) : otherwise; };
  const int64_t sequences = number(3, 2), length = number(4, 64), rows = sequences * length;
  const ModelDescription model = read_model_description(arguments[1]);
  const ModelLayout layout = make_layout(model);
  EngineHarness engine(model, layout, {.compute = DType::f32, .micro_batch_size = sequences, .sequence_length = length});
  engine.set_parameters(read_parameters(arguments[1], model, layout));
  std::mt19937_64 random(static_cast<uint64_t>(number(5, 1)));
  std::vector<int32_t> tokens(static_cast<size_t>(rows));
  for (int32_t& token : tokens) token = static_cast<int32_t>(random() % static_cast<uint64_t>(model.vocab_size));
  const std::vector<float> logits = engine.logits(tokens);

  SafetensorsWriter writer(arguments[2], {{"tokens", "I32", {sequences, length}}, {"logits", "F32", {rows, model.vocab_size}}}, {});
  writer.write("tokens", 0, tokens.data(), tokens.size() * sizeof(int32_t));
  writer.write("logits", 0, logits.data(), logits.size() * sizeof(float));
  writer.finish();
  return 0;
}

}  // namespace
}  // namespace strata::parity

int main(int count, char** arguments) {
  try {
    return strata::parity::run(count, arguments);
  } catch (const std::exception& error) {
    fmt::print(stderr, "dump_logits: {}\n", error.what());
    return 1;
  }
}
