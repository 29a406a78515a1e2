// The transformer engine on the host device against a reference in double: every family feature, every compute dtype.
#include "gpu/engine.hpp"

#include "tests/gpu/engine_reference.hpp"
#include "tests/gpu/engine_test_support.hpp"

namespace strata::gpu {
namespace {

ModelDescription tiny_llama() {
  ModelDescription model;
  model.family = Family::llama;
  model.vocab_size = 29;
  model.hidden_size = 24;
  model.layers = 2;
  model.heads = 4;
  model.kv_heads = 2;
  model.head_dim = 8;
  model.intermediate_size = 40;
  model.max_positions = 64;
  model.attention_scale = 1 / std::sqrt(8.0);
  return model;
}

ModelDescription tiny_gpt2() {
  ModelDescription model = tiny_llama();
  model.family = Family::gpt2;
  model.hidden_size = 32;
  model.kv_heads = 4;
  model.activation = Activation::gelu_tanh;
  model.tied_head = model.qkv_bias = model.attention_output_bias = model.mlp_bias = true;
  return model;
}

struct Variant {
  std::string name;
  ModelDescription model;
};

void PrintTo(const Variant& variant, std::ostream* out) { *out << variant.name; }

std::vector<Variant> variants() {
  std::vector<Variant> all{{"gpt2", tiny_gpt2()}, {"llama", tiny_llama()}};
  const auto add = [&](std::string name, ModelDescription base, auto change) {
    change(base);
    all.push_back({std::move(name), std::move(base)});
  };
  add("gpt2_gelu_erf", tiny_gpt2(), [](auto& m) { m.activation = Activation::gelu_erf; });
  add("gpt2_untied", tiny_gpt2(), [](auto& m) { m.tied_head = false; });
  add("llama_tied", tiny_llama(), [](auto& m) { m.tied_head = true; });
  add("llama3_rope", tiny_llama(), [](auto& m) {
    m.rope.scaling = RopeConfig::Scaling::llama3;
    m.rope.factor = 8;
    m.rope.original_max_positions = 16;
  });
  add("qwen2_bias", tiny_llama(), [](auto& m) { m.qkv_bias = true; });
  add("qwen3_norm", tiny_llama(), [](auto& m) {
    m.qk_norm = true;
    m.head_dim = 12;
    m.attention_scale = 1 / std::sqrt(12.0);
  });
  add("mistral_window", tiny_llama(), [](auto& m) { m.sliding_window = {5, 0}; });
  add("all_biases", tiny_llama(), [](auto& m) { m.qkv_bias = m.attention_output_bias = m.mlp_bias = true; });
  add("one_key_head", tiny_llama(), [](auto& m) { m.kv_heads = 1; });
  return all;
}

struct StepResult {
  double loss_sum = 0;
  Values logits;
  std::vector<Values> gradients;
};

struct StepChoices {
  bool recompute = false;
  int repeats = 1;  // micro-batches, all the same
  double scale = 0.125;
};

class EngineTest : public KernelTest {
 protected:
  static constexpr int64_t kSequences = 2, kLength = 13;

  // Tiny products gain nothing from a second thread, and on a busy machine every join costs a time slice.
  explicit EngineTest(int threads = 1) : KernelTest(threads) {}

  void choose(const ModelDescription& model, DType dtype) {
    model_ = model;
    layout_ = make_layout(model_);
    options_ = {.compute = dtype, .micro_batch_size = kSequences, .sequence_length = kLength};
    params_.clear();
    std::mt19937_64 random(4711);
    for (const UnitLayout& unit : layout_.units) {
      params_.emplace_back(unit.padded_elements, 0.0);
      for (const TensorLayout& tensor : unit.tensors) {
        const bool norm = tensor.shape.size() == 1 && tensor.name.find("bias") == std::string::npos;
        const Values values = random_values(random, static_cast<int64_t>(tensor.elements), DType::f32, norm ? 0.1 : 0.2);
        for (size_t i = 0; i < values.size(); ++i) params_.back()[tensor.offset + i] = rounded(dtype, values[i] + (norm ? 1.0 : 0.0));
      }
    }
    tokens_.clear();
    labels_.clear();
    std::uniform_int_distribution<int32_t> token(0, static_cast<int32_t>(model.vocab_size) - 1);
    for (int64_t i = 0; i < kSequences * kLength; ++i) {
      tokens_.push_back(token(random));
      labels_.push_back(i % 5 == 3 ? -100 : token(random));
    }
    engine_ = Engine::create(*device_, model_, layout_, options_);
  }

  ReferenceResult reference(double scale) { return ReferenceModel(model_, layout_, kLength).run(params_, tokens_, labels_, scale); }

  StepResult step(const StepChoices& choices = {});

  DeviceBuffer buffer(uint64_t bytes) { return device_->allocate(std::max<uint64_t>(1, bytes)); }
  static float* floats(const DeviceBuffer& buffer) { return reinterpret_cast<float*>(buffer.data()); }

  ModelDescription model_;
  ModelLayout layout_;
  EngineOptions options_;
  std::vector<Values> params_;
  std::vector<int32_t> tokens_, labels_;
  std::unique_ptr<Engine> engine_;
};

StepResult EngineTest::step(const StepChoices& choices) {
  const int head = static_cast<int>(layout_.units.size()) - 1;
  std::vector<DeviceBuffer> params, gradients, prepared, hidden, saved;
  for (int unit = 0; unit <= head; ++unit) {
    const auto index = static_cast<size_t>(unit);
    params.push_back(upload(options_.compute, params_[index]));
    gradients.push_back(buffer(params_[index].size() * 4));
    prepared.push_back(buffer(engine_->prepared_bytes(unit, Pass::backward)));
    hidden.push_back(buffer(engine_->hidden_bytes()));
    saved.push_back(buffer(engine_->saved_bytes()));
  }
  const auto workspace = buffer(engine_->workspace_bytes()), d_hidden = buffer(engine_->hidden_bytes()), loss = buffer(8);
  const auto tokens = upload_bytes(tokens_.data(), tokens_.size() * 4), labels = upload_bytes(labels_.data(), labels_.size() * 4);
  const auto token_ids = reinterpret_cast<const int32_t*>(tokens.data());
  const auto logits = buffer(tokens_.size() * static_cast<uint64_t>(model_.vocab_size) * 4);
  for (int unit = 0; unit <= head; ++unit) {
    engine_->prepare(*stream_, unit, Pass::backward, params[unit].data(), params[0].data(), prepared[unit].data());
  }
  Engine::HeadBuffers buffers;
  buffers.params = params[head].data();
  buffers.embedding_params = params[0].data();
  buffers.prepared = prepared[head].data();
  buffers.hidden = hidden[head].data();
  buffers.labels = reinterpret_cast<const int32_t*>(labels.data());
  buffers.workspace = workspace.data();
  auto* const loss_sum = reinterpret_cast<double*>(loss.data());

  StepResult result;
  for (int repeat = 0; repeat < choices.repeats; ++repeat) {
    const Accumulate accumulate = repeat == 0 ? Accumulate::first : Accumulate::add;
    engine_->embedding_forward(*stream_, params[0].data(), token_ids, hidden[1].data());
    for (int unit = 1; unit < head; ++unit) {
      engine_->block_forward(*stream_, unit, params[unit].data(), prepared[unit].data(), hidden[unit].data(), hidden[unit + 1].data(),
                             saved[unit].data(), workspace.data());
    }
    engine_->head_logits(*stream_, buffers, floats(logits));
    result.logits = download(DType::f32, logits.data(), static_cast<int64_t>(logits.bytes() / 4));
    engine_->head_loss(*stream_, buffers, loss_sum);
    const auto loss_alone = download_bytes(loss_sum, 8);
    engine_->head_loss_backward(*stream_, buffers, static_cast<float>(choices.scale), loss_sum, d_hidden.data(),
                                floats(gradients[head]), floats(gradients[0]), accumulate);
    const auto loss_bytes = download_bytes(loss_sum, 8);
    EXPECT_EQ(loss_bytes, loss_alone);
    std::memcpy(&result.loss_sum, loss_bytes.data(), 8);
    for (int unit = head - 1; unit >= 1; --unit) {
      if (choices.recompute) {
        device_->fill(*stream_, saved[unit].data(), 0xff, saved[unit].bytes());
        engine_->block_forward(*stream_, unit, params[unit].data(), prepared[unit].data(), hidden[unit].data(), nullptr,
                               saved[unit].data(), workspace.data());
      }
      engine_->block_backward(*stream_, unit, params[unit].data(), prepared[unit].data(), hidden[unit].data(), saved[unit].data(),
                              d_hidden.data(), floats(gradients[unit]), accumulate, workspace.data());
      device_->fill(*stream_, workspace.data(), 0xff, workspace.bytes());
    }
    engine_->embedding_backward(*stream_, token_ids, d_hidden.data(), floats(gradients[0]),
                                model_.tied_head ? Accumulate::add : accumulate, workspace.data());
  }
  for (int unit = 0; unit <= head; ++unit) {
    result.gradients.push_back(download(DType::f32, gradients[unit].data(), static_cast<int64_t>(gradients[unit].bytes() / 4)));
  }
  return result;
}

class EngineVariants : public EngineTest, public testing::WithParamInterface<std::tuple<Variant, DType>> {};

/// fp32 is held to its rounding, the 2-byte dtypes to that of activations: bf16 keeps 8 bits, fp16 11.
TEST_P(EngineVariants, AgreesWithDouble) {
  const auto& [variant, dtype] = GetParam();
  choose(variant.model, dtype);
  const ReferenceResult want = reference(0.125);
  const StepResult got = step();
  const double tolerance = dtype == DType::f32 ? 1e-5 : dtype == DType::bf16 ? 6e-2 : 8e-3;
  EXPECT_NEAR(got.loss_sum / want.loss_sum, 1.0, tolerance / (dtype == DType::f32 ? 10 : 4));
  EXPECT_LT(relative_norm_error(got.logits, want.logits), tolerance);
  for (size_t unit = 0; unit < layout_.units.size(); ++unit) {
    for (const TensorLayout& tensor : layout_.units[unit].tensors) {
      const auto part = [&](const Values& all) {
        const auto first = all.begin() + static_cast<long>(tensor.offset);
        return Values(first, first + static_cast<long>(tensor.elements));
      };
      // The gradient of a key bias is zero but for rounding: softmax does not see a shift.
      const bool zero = tensor.role == TensorRole::k_bias || tensor.role == TensorRole::qkv_bias;
      if (!zero) EXPECT_LT(relative_norm_error(part(got.gradients[unit]), part(want.gradients[unit])), tolerance) << tensor.name;
      else EXPECT_LT(relative_error(part(got.gradients[unit]), part(want.gradients[unit])), std::max(tolerance, 1e-5)) << tensor.name;
    }
    double outside = 0;
    Values covered(got.gradients[unit].size(), 0.0);
    for (const TensorLayout& tensor : layout_.units[unit].tensors) {
      std::fill_n(covered.begin() + static_cast<long>(tensor.offset), tensor.elements, 1.0);
    }
    for (size_t i = 0; i < covered.size(); ++i) {
      if (covered[i] == 0.0) outside += std::isnan(got.gradients[unit][i]) ? 1.0 : std::abs(got.gradients[unit][i]);
    }
    EXPECT_EQ(outside, 0.0) << "gaps of " << layout_.units[unit].name;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, EngineVariants,
                         testing::Combine(testing::ValuesIn(variants()), testing::Values(DType::f32, DType::bf16, DType::f16)),
                         [](const auto& info) {
                           return std::get<0>(info.param).name + "_" + std::string(to_string(std::get<1>(info.param)));
                         });

TEST_F(EngineTest, RecomputingABlockGivesTheSameBits) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    choose(tiny_llama(), dtype);
    EXPECT_EQ(step().gradients, step({.recompute = true}).gradients) << to_string(dtype);
  }
}

TEST_F(EngineTest, MicroBatchesAddUp) {
  for (const ModelDescription& model : {tiny_llama(), tiny_gpt2()}) {
    choose(model, DType::f32);
    const auto once = step(), thrice = step({.repeats = 3});
    for (size_t unit = 0; unit < once.gradients.size(); ++unit) {
      Values tripled = once.gradients[unit];
      for (double& value : tripled) value *= 3;
      EXPECT_LT(relative_norm_error(thrice.gradients[unit], tripled), 1e-6) << layout_.units[unit].name;
    }
  }
}

TEST_F(EngineTest, TheGradientScaleMultipliesEveryGradientExactly) {
  choose(tiny_gpt2(), DType::f32);
  const auto one = step({.scale = 1.0}), eight = step({.scale = 8.0});
  for (size_t unit = 0; unit < one.gradients.size(); ++unit) {
    Values scaled = one.gradients[unit];
    for (double& value : scaled) value *= 8;
    EXPECT_EQ(eight.gradients[unit], scaled) << layout_.units[unit].name;
  }
}

class EngineOnTwoThreads : public EngineTest {
 protected:
  EngineOnTwoThreads() : EngineTest(2) {}
};

TEST_F(EngineOnTwoThreads, SameCallsGiveTheSameBits) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    choose(tiny_llama(), dtype);
    const auto first = step();
    const auto elsewhere = device_->allocate(12345);
    const auto second = step();
    EXPECT_EQ(first.gradients, second.gradients);
    EXPECT_EQ(first.logits, second.logits);
    EXPECT_EQ(first.loss_sum, second.loss_sum);
  }
}

TEST_F(EngineTest, RefusesSequencesLongerThanTheModelsPositions) {
  const ModelDescription model = tiny_gpt2();
  const ModelLayout layout = make_layout(model);
  try {
    Engine::create(*device_, model, layout, {.compute = DType::f32, .micro_batch_size = 1, .sequence_length = 65});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_configuration);
    EXPECT_NE(std::string(error.what()).find("64"), std::string::npos);
  }
}

TEST_F(EngineTest, TablesCountAgainstTheBudget) {
  const uint64_t before = device_->allocated_bytes();
  choose(tiny_llama(), DType::bf16);
  EXPECT_EQ(engine_->table_bytes(), static_cast<uint64_t>(2 * kLength * 4) * sizeof(float));
  EXPECT_EQ(device_->allocated_bytes() - before, engine_->table_bytes());
  engine_.reset();
  EXPECT_EQ(device_->allocated_bytes(), before);
}

TEST_F(EngineTest, CountsTheFlopsOfItsProducts) {
  choose(tiny_llama(), DType::f32);
  const double tokens = kSequences * kLength;
  const double linear = 2 * tokens * (24 * 64 + 32 * 24 + 3 * 24 * 40), pairs = kSequences * 4 * kLength * (kLength + 1) / 2.0;
  EXPECT_DOUBLE_EQ(engine_->forward_flops(1), linear + 4 * pairs * 8);
  EXPECT_DOUBLE_EQ(engine_->backward_flops(1), 2 * linear + 10 * pairs * 8);
  EXPECT_DOUBLE_EQ(engine_->forward_flops(3), 2 * tokens * 24 * 29);
  EXPECT_EQ(engine_->forward_flops(0), 0.0);
}

}  // namespace
}  // namespace strata::gpu
