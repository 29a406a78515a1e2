// The transformer in double on scalars, with gradients by reverse-mode differentiation of every single operation: slow, and
// independent of how the engine computes its own.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/layout.hpp"
#include "core/model.hpp"

namespace strata::gpu {

/// Records each operation's parents and partial derivatives.
class Tape {
 public:
  struct Var {
    int index;
  };
  Var leaf(double value) { return push(value, -1, 0, -1, 0, -1, 0); }
  Var add(Var a, Var b) { return push(value(a) + value(b), a.index, 1, b.index, 1, -1, 0); }
  Var mul(Var a, Var b) { return push(value(a) * value(b), a.index, value(b), b.index, value(a), -1, 0); }
  Var multiply_add(Var a, Var b, Var sum) {
    return push(value(a) * value(b) + value(sum), a.index, value(b), b.index, value(a), sum.index, 1);
  }
  Var scale(Var a, double factor) { return push(value(a) * factor, a.index, factor, -1, 0, -1, 0); }
  Var unary(Var a, double result, double derivative) { return push(result, a.index, derivative, -1, 0, -1, 0); }
  double value(Var v) const { return nodes_[static_cast<size_t>(v.index)].value; }

  /// d(result)/d(every variable).
  std::vector<double> gradients(Var result, double seed) const {
    std::vector<double> g(nodes_.size(), 0.0);
    g[static_cast<size_t>(result.index)] = seed;
    for (size_t i = nodes_.size(); i-- > 0;) {
      for (int p = 0; p < 3; ++p) {
        if (nodes_[i].parents[p] >= 0) g[static_cast<size_t>(nodes_[i].parents[p])] += g[i] * nodes_[i].partials[p];
      }
    }
    return g;
  }

 private:
  struct Node {
    double value, partials[3];
    int parents[3];
  };
  Var push(double value, int a, double da, int b, double db, int c, double dc) {
    nodes_.push_back({value, {da, db, dc}, {a, b, c}});
    return {static_cast<int>(nodes_.size()) - 1};
  }
  std::vector<Node> nodes_;
};

struct ReferenceResult {
  double loss_sum = 0;
  std::vector<double> logits;
  std::vector<std::vector<double>> gradients;  // a flat buffer a unit, of scale * loss_sum
};

class ReferenceModel {
 public:
  ReferenceModel(const ModelDescription& model, const ModelLayout& layout, int64_t sequence_length)
      : model_(model), layout_(layout), length_(sequence_length), rope_(model.family == Family::llama ? rope_frequencies(model, sequence_length) : RopeFrequencies{}) {}

  ReferenceResult run(const std::vector<std::vector<double>>& params, const std::vector<int32_t>& tokens,
                      const std::vector<int32_t>& labels, double scale) {
    tape_ = Tape();
    leaves_.clear();
    for (const auto& unit : params) {
      leaves_.emplace_back();
      for (const double value : unit) leaves_.back().push_back(tape_.leaf(value));
    }
    ReferenceResult result;
    Var total = tape_.leaf(0.0);
    for (size_t first = 0; first < tokens.size(); first += static_cast<size_t>(length_)) {
      total = tape_.add(total, sequence(&tokens[first], &labels[first], result.logits));
    }
    result.loss_sum = tape_.value(total);
    const auto g = tape_.gradients(total, scale);
    size_t next = 0;
    for (const auto& unit : params) {
      result.gradients.emplace_back(g.begin() + static_cast<long>(next), g.begin() + static_cast<long>(next + unit.size()));
      next += unit.size();
    }
    return result;
  }

 private:
  using Var = Tape::Var;
  using Vector = std::vector<Var>;

  Var param(size_t unit, TensorRole role, int64_t index) const {
    return leaves_[unit][layout_.units[unit].find(role)->offset + static_cast<size_t>(index)];
  }
  bool has(size_t unit, TensorRole role) const { return layout_.units[unit].find(role) != nullptr; }

  Var power(Var a, double exponent) {
    return tape_.unary(a, std::pow(tape_.value(a), exponent), exponent * std::pow(tape_.value(a), exponent - 1));
  }
  Var sum(const Vector& x) {
    Var total = tape_.leaf(0.0);
    for (const Var v : x) total = tape_.add(total, v);
    return total;
  }
  /// The bias is absent where the unit has no such tensor.
  Vector linear(size_t unit, TensorRole weight, TensorRole bias, const Vector& x, int64_t outputs, bool input_major) {
    Vector y;
    const auto inputs = static_cast<int64_t>(x.size());
    for (int64_t out = 0; out < outputs; ++out) {
      Var value = has(unit, bias) ? param(unit, bias, out) : tape_.leaf(0.0);
      for (int64_t in = 0; in < inputs; ++in) {
        value = tape_.multiply_add(x[static_cast<size_t>(in)], param(unit, weight, input_major ? in * outputs + out : out * inputs + in), value);
      }
      y.push_back(value);
    }
    return y;
  }
  Vector norm(size_t unit, TensorRole weight, TensorRole bias, const Vector& x, bool layer_norm) {
    const double n = static_cast<double>(x.size());
    Vector centered = x;
    if (layer_norm) {
      const Var mean = tape_.scale(sum(x), -1.0 / n);
      for (Var& v : centered) v = tape_.add(v, mean);
    }
    Var squares = tape_.leaf(0.0);
    for (const Var v : centered) squares = tape_.multiply_add(v, v, squares);
    const Var rstd = power(tape_.add(tape_.scale(squares, 1.0 / n), tape_.leaf(model_.norm_epsilon)), -0.5);
    Vector y;
    for (size_t i = 0; i < x.size(); ++i) {
      Var v = tape_.mul(tape_.mul(centered[i], rstd), param(unit, weight, static_cast<int64_t>(i)));
      if (layer_norm) v = tape_.add(v, param(unit, bias, static_cast<int64_t>(i)));
      y.push_back(v);
    }
    return y;
  }
  Var activate(Var x) {
    const double v = tape_.value(x);
    switch (model_.activation) {
      case Activation::silu: {
        const double s = 1 / (1 + std::exp(-v));
        return tape_.unary(x, v * s, s + v * s * (1 - s));
      }
      case Activation::relu: return tape_.unary(x, std::max(v, 0.0), v > 0 ? 1.0 : 0.0);
      case Activation::gelu_erf: {
        const double phi = 0.5 * (1 + std::erf(v / std::sqrt(2.0)));
        return tape_.unary(x, v * phi, phi + v * std::exp(-v * v / 2) / std::sqrt(2 * M_PI));
      }
      case Activation::gelu_tanh: {
        const double c = std::sqrt(2 / M_PI), u = std::tanh(c * (v + 0.044715 * v * v * v));
        return tape_.unary(x, 0.5 * v * (1 + u), 0.5 * (1 + u) + 0.5 * v * (1 - u * u) * c * (1 + 3 * 0.044715 * v * v));
      }
    }
    return x;
  }
  void rotate(Vector& x, size_t first, int64_t position) {
    const auto half = static_cast<size_t>(model_.head_dim / 2);
    for (size_t i = 0; i < half; ++i) {
      const double angle = static_cast<double>(position) * rope_.inverse_frequency[i];
      const double c = std::cos(angle) * rope_.attention_factor, s = std::sin(angle) * rope_.attention_factor;
      const Var a = x[first + i], b = x[first + half + i];
      x[first + i] = tape_.add(tape_.scale(a, c), tape_.scale(b, -s));
      x[first + half + i] = tape_.add(tape_.scale(b, c), tape_.scale(a, s));
    }
  }
  Vector attention(const std::vector<Vector>& qkv, size_t t, int64_t window) {
    const auto dim = static_cast<size_t>(model_.head_dim), heads = static_cast<size_t>(model_.heads);
    const auto kv_heads = static_cast<size_t>(model_.kv_heads);
    Vector output;
    for (size_t head = 0; head < heads; ++head) {
      const size_t kv = head / (heads / kv_heads);
      const size_t oldest = window == 0 ? 0 : static_cast<size_t>(std::max<int64_t>(0, static_cast<int64_t>(t) - window + 1));
      Vector exponentials;
      double maximum = -1e300;
      Vector scores;
      for (size_t j = oldest; j <= t; ++j) {
        Var score = tape_.leaf(0.0);
        for (size_t i = 0; i < dim; ++i) score = tape_.multiply_add(qkv[t][head * dim + i], qkv[j][(heads + kv) * dim + i], score);
        scores.push_back(tape_.scale(score, model_.attention_scale));
        maximum = std::max(maximum, tape_.value(scores.back()));
      }
      for (const Var score : scores) {
        const double e = std::exp(tape_.value(score) - maximum);
        exponentials.push_back(tape_.unary(score, e, e));
      }
      const Var inverse = power(sum(exponentials), -1.0);
      for (size_t i = 0; i < dim; ++i) {
        Var value = tape_.leaf(0.0);
        for (size_t j = oldest; j <= t; ++j) {
          value = tape_.multiply_add(exponentials[j - oldest], qkv[j][(heads + kv_heads + kv) * dim + i], value);
        }
        output.push_back(tape_.mul(value, inverse));
      }
    }
    return output;
  }

  void block(size_t unit, std::vector<Vector>& hidden) {
    const bool gpt2 = model_.family == Family::gpt2;
    const int64_t qkv_columns = model_.query_size() + 2 * model_.kv_size(), inner = model_.intermediate_size;
    const auto dim = static_cast<size_t>(model_.head_dim);
    std::vector<Vector> qkv;
    for (size_t t = 0; t < hidden.size(); ++t) {
      const Vector normed = norm(unit, TensorRole::attention_norm_weight, TensorRole::attention_norm_bias, hidden[t], gpt2);
      // q, k and v (and gate and up) lie back to back, so that one product serves the group here, too.
      qkv.push_back(linear(unit, gpt2 ? TensorRole::qkv_weight : TensorRole::q_weight, gpt2 ? TensorRole::qkv_bias : TensorRole::q_bias,
                           normed, qkv_columns, gpt2));
      for (size_t head = 0; !gpt2 && head < static_cast<size_t>(model_.heads + model_.kv_heads); ++head) {
        if (model_.qk_norm) {
          const auto role = head < static_cast<size_t>(model_.heads) ? TensorRole::q_norm_weight : TensorRole::k_norm_weight;
          const auto start = qkv[t].begin() + static_cast<long>(head * dim);
          const Vector normed_head = norm(unit, role, role, Vector(start, start + static_cast<long>(dim)), false);
          std::copy(normed_head.begin(), normed_head.end(), start);
        }
        rotate(qkv[t], head * dim, static_cast<int64_t>(t));
      }
    }
    const size_t layer = unit - 1;
    const int64_t window = layer < model_.sliding_window.size() ? model_.sliding_window[layer] : 0;
    for (size_t t = 0; t < hidden.size(); ++t) {
      const Vector out = linear(unit, TensorRole::attention_output_weight, TensorRole::attention_output_bias, attention(qkv, t, window),
                                model_.hidden_size, gpt2);
      for (size_t i = 0; i < out.size(); ++i) hidden[t][i] = tape_.add(hidden[t][i], out[i]);
      const Vector normed = norm(unit, TensorRole::mlp_norm_weight, TensorRole::mlp_norm_bias, hidden[t], gpt2);
      Vector active;
      if (gpt2) {
        active = linear(unit, TensorRole::up_weight, TensorRole::up_bias, normed, inner, true);
        for (Var& v : active) v = activate(v);
      } else {
        const Vector both = linear(unit, TensorRole::gate_weight, TensorRole::gate_bias, normed, 2 * inner, false);
        for (int64_t i = 0; i < inner; ++i) {
          active.push_back(tape_.mul(activate(both[static_cast<size_t>(i)]), both[static_cast<size_t>(inner + i)]));
        }
      }
      const Vector down = linear(unit, TensorRole::down_weight, TensorRole::down_bias, active, model_.hidden_size, gpt2);
      for (size_t i = 0; i < down.size(); ++i) hidden[t][i] = tape_.add(hidden[t][i], down[i]);
    }
  }

  Var sequence(const int32_t* tokens, const int32_t* labels, std::vector<double>& all_logits) {
    const size_t head = layout_.units.size() - 1;
    std::vector<Vector> hidden(static_cast<size_t>(length_));
    for (int64_t t = 0; t < length_; ++t) {
      for (int64_t i = 0; i < model_.hidden_size; ++i) {
        Var v = param(0, TensorRole::token_embedding, tokens[t] * model_.hidden_size + i);
        if (has(0, TensorRole::position_embedding)) v = tape_.add(v, param(0, TensorRole::position_embedding, t * model_.hidden_size + i));
        hidden[static_cast<size_t>(t)].push_back(v);
      }
    }
    for (size_t unit = 1; unit < head; ++unit) block(unit, hidden);
    Var total = tape_.leaf(0.0);
    for (int64_t t = 0; t < length_; ++t) {
      const Vector normed = norm(head, TensorRole::final_norm_weight, TensorRole::final_norm_bias, hidden[static_cast<size_t>(t)],
                                 model_.family == Family::gpt2);
      constexpr auto kNoBias = TensorRole::qkv_bias;  // neither unit has one
      const Vector logits = model_.tied_head
                                ? linear(0, TensorRole::token_embedding, kNoBias, normed, model_.vocab_size, false)
                                : linear(head, TensorRole::head_weight, kNoBias, normed, model_.vocab_size, false);
      for (const Var v : logits) all_logits.push_back(tape_.value(v));
      if (labels[t] == -100) continue;
      double maximum = -1e300;
      for (const Var v : logits) maximum = std::max(maximum, tape_.value(v));
      Vector exponentials;
      for (const Var v : logits) {
        const double e = std::exp(tape_.value(v) - maximum);
        exponentials.push_back(tape_.unary(v, e, e));
      }
      const Var denominator = sum(exponentials);
      const Var log = tape_.unary(denominator, std::log(tape_.value(denominator)) + maximum, 1 / tape_.value(denominator));
      total = tape_.add(total, tape_.add(log, tape_.scale(logits[static_cast<size_t>(labels[t])], -1.0)));
    }
    return total;
  }

  const ModelDescription& model_;
  const ModelLayout& layout_;
  const int64_t length_;
  const RopeFrequencies rope_;
  Tape tape_;
  std::vector<Vector> leaves_;
};

}  // namespace strata::gpu
