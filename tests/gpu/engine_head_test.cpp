// The head in token chunks, the last one shorter, against the same tokens given in pieces that need no chunks.
#include "gpu/engine.hpp"
#include "tests/gpu/engine_test_support.hpp"

namespace strata::gpu {
namespace {

struct HeadResult {
  double loss_sum = 0;
  Values d_hidden, logits, d_norm, d_weight;
};

class EngineHead : public KernelTest {
 protected:
  static constexpr int64_t kTokens = 559, kVocabulary = 70001, kHidden = 16;  // 559 = 13 * 43 rows of 280 kB: chunks of 288 and 271

  EngineHead() : KernelTest(1) {
    model_.family = Family::llama;
    model_.vocab_size = kVocabulary;
    model_.max_positions = kTokens;
    model_.hidden_size = kHidden;
    model_.layers = 1;
    model_.heads = model_.kv_heads = 2;
    model_.head_dim = 8;
    model_.intermediate_size = 16;
    model_.attention_scale = 0.3;
  }

  HeadResult run(DType dtype, int64_t piece);

  ModelDescription model_;
};

/// Head forward and backward over all tokens, `piece` tokens a call.
HeadResult EngineHead::run(DType dtype, int64_t piece) {
  const ModelLayout layout = make_layout(model_);
  const auto engine = Engine::create(*device_, model_, layout, {.compute = dtype, .micro_batch_size = 1, .sequence_length = piece});
  const int head = static_cast<int>(layout.units.size()) - 1;
  std::mt19937_64 random(5);
  const auto elements = [&](int unit) { return static_cast<int64_t>(layout.units[static_cast<size_t>(unit)].padded_elements); };
  const auto embedding = upload(dtype, random_values(random, elements(0), dtype)), params = upload(dtype, random_values(random, elements(head), dtype));
  const auto hidden = upload(dtype, random_values(random, kTokens * kHidden, dtype));
  std::vector<int32_t> label_values(kTokens);
  for (size_t i = 0; i < label_values.size(); ++i) label_values[i] = i % 7 == 3 ? -100 : static_cast<int32_t>(random() % kVocabulary);
  const auto labels = upload_bytes(label_values.data(), label_values.size() * 4);
  const auto prepared = device_->allocate(std::max<uint64_t>(1, engine->prepared_bytes(head, Pass::backward)));
  const auto workspace = device_->allocate(engine->workspace_bytes()), loss = device_->allocate(8), d_hidden = device_->allocate(hidden.bytes());
  const auto gradients = device_->allocate(static_cast<uint64_t>(elements(head)) * 4);
  const auto embedding_gradients = device_->allocate(static_cast<uint64_t>(elements(0)) * 4);
  const auto logits = device_->allocate(static_cast<uint64_t>(piece * kVocabulary) * 4);
  engine->prepare(*stream_, head, Pass::backward, params.data(), embedding.data(), prepared.data());

  HeadResult result;
  for (int64_t first = 0; first < kTokens; first += piece) {
    const uint64_t offset = static_cast<uint64_t>(first * kHidden) * size_bytes(dtype);
    Engine::HeadBuffers buffers;
    buffers.params = params.data();
    buffers.embedding_params = embedding.data();
    buffers.prepared = prepared.data();
    buffers.hidden = hidden.data() + offset;
    buffers.labels = reinterpret_cast<const int32_t*>(labels.data()) + first;
    buffers.workspace = workspace.data();
    engine->head_logits(*stream_, buffers, reinterpret_cast<float*>(logits.data()));
    // The last row of every 43 stands for all: it is in each piece.
    for (int64_t row = 42; row < piece; row += 43) {
      const Values part = download(DType::f32, logits.data() + static_cast<uint64_t>(row * kVocabulary) * 4, 1000);
      result.logits.insert(result.logits.end(), part.begin(), part.end());
    }
    engine->head_loss_backward(*stream_, buffers, 0.5f, reinterpret_cast<double*>(loss.data()), d_hidden.data() + offset,
                               reinterpret_cast<float*>(gradients.data()), reinterpret_cast<float*>(embedding_gradients.data()),
                               first == 0 ? Accumulate::first : Accumulate::add);
    double sum = 0;
    const auto bytes = download_bytes(loss.data(), 8);
    std::memcpy(&sum, bytes.data(), 8);
    result.loss_sum += sum;
  }
  result.d_hidden = download(dtype, d_hidden.data(), kTokens * kHidden);
  const auto& head_unit = layout.units.back();
  const TensorLayout& weight = model_.tied_head ? *layout.units.front().find(TensorRole::token_embedding) : *head_unit.find(TensorRole::head_weight);
  const auto& weight_gradients = model_.tied_head ? embedding_gradients : gradients;
  result.d_weight = download(DType::f32, weight_gradients.data() + weight.offset * 4, static_cast<int64_t>(weight.elements));
  result.d_norm = download(DType::f32, gradients.data() + head_unit.find(TensorRole::final_norm_weight)->offset * 4, kHidden);
  return result;
}

TEST_F(EngineHead, ChunksDoNotShow) {
  for (const bool tied : {false, true}) {
    model_.tied_head = tied;
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
      SCOPED_TRACE(fmt::format("{} tied {}", to_string(dtype), tied));
      const HeadResult whole = run(dtype, kTokens), pieces = run(dtype, 43);
      EXPECT_NEAR(whole.loss_sum / pieces.loss_sum, 1.0, 1e-6);
      EXPECT_LT(relative_error(whole.logits, pieces.logits), 1e-6);
      EXPECT_LT(relative_norm_error(whole.d_hidden, pieces.d_hidden), dtype == DType::f32 ? 1e-6 : 1e-3);
      EXPECT_LT(relative_norm_error(whole.d_norm, pieces.d_norm), 1e-3);
      EXPECT_LT(relative_norm_error(whole.d_weight, pieces.d_weight), 1e-5);
    }
  }
}

TEST_F(EngineHead, LogitsOfAllTokensNeverExist) {
  const ModelLayout layout = make_layout(model_);
  const auto engine = Engine::create(*device_, model_, layout, {.compute = DType::f32, .micro_batch_size = 1, .sequence_length = kTokens});
  EXPECT_LT(engine->workspace_bytes(), static_cast<uint64_t>(kTokens * kVocabulary) * 4);
}

}  // namespace
}  // namespace strata::gpu
