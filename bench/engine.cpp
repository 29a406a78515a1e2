// Measures the engine's forward and backward on the host device beside the packed peak of oneDNN, interleaved in one process:
// rates of this kind of machine drift, so only the ratio of neighbouring rounds says anything.
#include <time.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "bench/profiled_device.hpp"
#include "core/layout.hpp"
#include "core/model.hpp"
#include "gpu/engine.hpp"
#include "gpu/host/host_device.hpp"
#include "gpu/host/onednn.hpp"

namespace strata::gpu {
namespace {

constexpr auto kDeadline = std::chrono::minutes(10);

/// Wall time, or the CPU time of the process: on a busy machine, one thread's rates are steadier by the latter.
double seconds_of(clockid_t clock) {
  timespec time{};
  clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

ModelDescription described(const std::string& name) {
  ModelDescription model;
  if (name == "gpt2") {  // GPT-2 124M
    model.family = Family::gpt2;
    model.vocab_size = 50257;
    model.hidden_size = 768;
    model.intermediate_size = 3072;
    model.heads = model.kv_heads = 12;
    model.activation = Activation::gelu_tanh;
    model.tied_head = model.qkv_bias = model.attention_output_bias = model.mlp_bias = true;
  } else {  // a Llama of 201M
    model.family = Family::llama;
    model.vocab_size = 32000;
    model.hidden_size = 1024;
    model.intermediate_size = 2816;
    model.heads = 16;
    model.kv_heads = 4;
  }
  model.layers = 12;
  model.head_dim = 64;
  model.max_positions = 1024;
  model.attention_scale = 0.125;
  return model;
}

/// Fills with values of the given spread, in the dtype.
void randomize(std::byte* data, uint64_t elements, DType dtype, double deviation, double mean, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal(static_cast<float>(mean), static_cast<float>(deviation));
  for (uint64_t i = 0; i < elements; ++i) {
    const float value = normal(random);
    if (dtype == DType::f32) {
      reinterpret_cast<float*>(data)[i] = value;
    } else {
      reinterpret_cast<uint16_t*>(data)[i] = half_from_float(dtype, value);
    }
  }
}

/// A model in device memory, and one training step's forward and backward on it. Weights are packed once a step, as when they
/// have just arrived on the device.
class Training {
 public:
  Training(Device& device, const std::string& model, DType dtype, int64_t sequences, int64_t length)
      : device_(device), model_(described(model)), layout_(make_layout(model_)), tokens_count_(sequences * length),
        engine_(Engine::create(device, model_, layout_, {.compute = dtype, .micro_batch_size = sequences, .sequence_length = length})),
        stream_(device.create_stream(Device::StreamKind::compute, "compute")) {
    for (size_t unit = 0; unit < layout_.units.size(); ++unit) {
      const UnitLayout& layout = layout_.units[unit];
      params_.push_back(device.allocate(layout.padded_elements * size_bytes(dtype)));
      for (const TensorLayout& tensor : layout.tensors) {
        const bool is_norm = tensor.name.find("norm") != std::string::npos || tensor.name.find("ln_") != std::string::npos;
        randomize(params_.back().data() + tensor.offset * size_bytes(dtype), tensor.elements, dtype, 0.02,
                  is_norm && tensor.name.ends_with("weight") ? 1.0 : 0.0, unit * 100 + tensor.offset);
      }
      gradients_.push_back(device.allocate(layout.padded_elements * sizeof(float)));
      prepared_.push_back(device.allocate(std::max<uint64_t>(256, engine_->prepared_bytes(static_cast<int>(unit), Pass::backward))));
      hidden_.push_back(device.allocate(engine_->hidden_bytes()));
      saved_.push_back(device.allocate(engine_->saved_bytes()));
    }
    d_hidden_ = device.allocate(engine_->hidden_bytes());
    workspace_ = device.allocate(engine_->workspace_bytes());
    tokens_ = device.allocate(static_cast<uint64_t>(tokens_count_) * sizeof(int32_t));
    loss_ = device.allocate(sizeof(double));
    std::mt19937 random(1);
    for (int64_t i = 0; i < tokens_count_; ++i) {
      reinterpret_cast<int32_t*>(tokens_.data())[i] = static_cast<int32_t>(random() % static_cast<uint64_t>(model_.vocab_size));
    }
  }

  void step() {
    const int head = static_cast<int>(layout_.units.size()) - 1;
    const auto* const tokens = reinterpret_cast<const int32_t*>(tokens_.data());
    const auto memory = [](const std::vector<DeviceBuffer>& buffers, int unit) { return buffers[static_cast<size_t>(unit)].data(); };
    const auto gradients = [&](int unit) { return reinterpret_cast<float*>(memory(gradients_, unit)); };
    engine_->embedding_forward(*stream_, memory(params_, 0), tokens, memory(hidden_, 1));
    for (int unit = 1; unit <= head; ++unit) {
      engine_->prepare(*stream_, unit, Pass::backward, memory(params_, unit), memory(params_, 0), memory(prepared_, unit));
      if (unit == head) break;
      engine_->block_forward(*stream_, unit, memory(params_, unit), memory(prepared_, unit), memory(hidden_, unit),
                             memory(hidden_, unit + 1), memory(saved_, unit), workspace_.data());
    }
    Engine::HeadBuffers buffers;
    buffers.params = memory(params_, head);
    buffers.embedding_params = memory(params_, 0);
    buffers.prepared = memory(prepared_, head);
    buffers.hidden = memory(hidden_, head);
    buffers.labels = tokens;
    buffers.workspace = workspace_.data();
    engine_->head_loss_backward(*stream_, buffers, 1.0f / static_cast<float>(tokens_count_), reinterpret_cast<double*>(loss_.data()),
                                d_hidden_.data(), gradients(head), gradients(0), Accumulate::first);
    for (int unit = head - 1; unit >= 1; --unit) {
      engine_->block_backward(*stream_, unit, memory(params_, unit), memory(prepared_, unit), memory(hidden_, unit), memory(saved_, unit),
                              d_hidden_.data(), gradients(unit), Accumulate::first, workspace_.data());
    }
    engine_->embedding_backward(*stream_, tokens, d_hidden_.data(), gradients(0), model_.tied_head ? Accumulate::add : Accumulate::first,
                                workspace_.data());
  }

  void wait() { device_.synchronize(*stream_, kDeadline); }
  double timed_step(clockid_t clock) {
    const double start = seconds_of(clock);
    step();
    wait();
    return seconds_of(clock) - start;
  }
  Stream& stream() { return *stream_; }
  int64_t tokens() const { return tokens_count_; }
  double mean_loss() const { return *reinterpret_cast<const double*>(loss_.data()) / static_cast<double>(tokens_count_); }
  double flops() const {  // head_loss_backward includes the head's forward
    double sum = engine_->backward_flops(static_cast<int>(layout_.units.size()) - 1);
    for (int unit = 1; unit + 1 < static_cast<int>(layout_.units.size()); ++unit) {
      sum += engine_->forward_flops(unit) + engine_->backward_flops(unit);
    }
    return sum;
  }
  double dense_flops() const { return 6.0 * static_cast<double>(layout_.elements()) * static_cast<double>(tokens_count_); }

 private:
  Device& device_;
  ModelDescription model_;
  ModelLayout layout_;
  int64_t tokens_count_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<Stream> stream_;
  std::vector<DeviceBuffer> params_, gradients_, prepared_, hidden_, saved_;
  DeviceBuffer d_hidden_, workspace_, tokens_, loss_;
};

/// A product with packed weights, 512 x 1024 x 4096, on the stream's own threads: the rate that the engine is held against.
class PackedPeak {
 public:
  PackedPeak(Device& device, Stream& stream, DType dtype) : device_(device), stream_(stream) {
    host_enqueue(stream, [this, dtype] {
      using dnnl::memory;
      const auto type = dtype == DType::f32 ? memory::data_type::f32 : memory::data_type::bf16;
      const memory::desc a({kRows, kDepth}, type, memory::format_tag::ab), b({kDepth, kColumns}, type, memory::format_tag::any),
          c({kRows, kColumns}, type, memory::format_tag::ab);
      const auto plan = plan_matmul(engine_, a, b, {}, c, {});
      product_ = dnnl::matmul(plan);
      for (const auto& [argument, desc] : {std::pair{DNNL_ARG_SRC, plan.src_desc()}, std::pair{DNNL_ARG_WEIGHTS, plan.weights_desc()},
                                           std::pair{DNNL_ARG_DST, plan.dst_desc()}}) {
        memory operand(desc, engine_);
        randomize(static_cast<std::byte*>(operand.get_data_handle()), desc.get_size() / size_bytes(dtype), dtype, 1.0, 0.0, 3);
        arguments_.emplace(argument, operand);
      }
    });
    device_.synchronize(stream_, kDeadline);
  }
  /// FLOP/s.
  double measure(clockid_t clock, double seconds) {
    double rate = 0;
    host_enqueue(stream_, [&] {
      dnnl::stream stream(engine_);
      int count = 0;
      const double start = seconds_of(clock);
      do {
        product_.execute(stream, arguments_);
        stream.wait();
        ++count;
      } while (seconds_of(clock) - start < seconds);
      rate = 2.0 * kRows * kDepth * kColumns * count / (seconds_of(clock) - start);
    });
    device_.synchronize(stream_, kDeadline);
    return rate;
  }

 private:
  static constexpr int64_t kRows = 512, kDepth = 1024, kColumns = 4096;
  Device& device_;
  Stream& stream_;
  dnnl::engine engine_{dnnl::engine::kind::cpu, 0};
  dnnl::matmul product_;
  std::unordered_map<int, dnnl::memory> arguments_;
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0.0 : values[values.size() / 2];
}

struct Arguments {
  std::vector<std::string> models{"gpt2", "llama"}, precisions{"fp32", "bf16"};
  int threads = 0, rounds = 7;
  int64_t sequences = 2, length = 256;
  bool serve = false, profile = true;
  clockid_t clock = CLOCK_MONOTONIC;
};

std::unique_ptr<HostDevice> make_device(const Arguments& arguments) {
  return HostDevice::create({.memory_bytes = 64ull << 30, .compute_threads = arguments.threads, .pin_threads = true});
}

DType dtype_of(const std::string& name) { return name == "fp32" ? DType::f32 : name == "bf16" ? DType::bf16 : DType::f16; }

nlohmann::json measure(const Arguments& arguments, const std::string& model, const std::string& precision) {
  const auto host = make_device(arguments);
  ProfiledDevice device(*host);
  Training training(device, model, dtype_of(precision), arguments.sequences, arguments.length);
  PackedPeak peak(device, training.stream(), dtype_of(precision));
  training.timed_step(arguments.clock);
  peak.measure(arguments.clock, 0.1);
  std::vector<double> tokens, gflops, peaks, ratios;
  for (int round = 0; round < arguments.rounds; ++round) {
    const double before = peak.measure(arguments.clock, 0.3), seconds = training.timed_step(arguments.clock), after = peak.measure(arguments.clock, 0.3);
    const double rate = training.flops() / seconds;
    tokens.push_back(static_cast<double>(training.tokens()) / seconds);
    gflops.push_back(rate / 1e9);
    peaks.push_back((before + after) / 2e9);
    ratios.push_back(rate / ((before + after) / 2));
  }
  nlohmann::json result{{"model", model},
                        {"precision", precision},
                        {"threads", host->info().compute_threads},
                        {"tokens_per_step", training.tokens()},
                        {"mean_loss", training.mean_loss()},
                        {"tokens_per_second", median(tokens)},
                        {"gflops", median(gflops)},
                        {"gflops_6n", training.dense_flops() / static_cast<double>(training.tokens()) * median(tokens) / 1e9},
                        {"packed_peak_gflops", median(peaks)},
                        {"ratio_to_packed_peak", median(ratios)},
                        {"ratios", ratios},
                        {"device_bytes", host->allocated_bytes()}};
  if (arguments.profile) {
    device.start_profile();
    training.timed_step(arguments.clock);
    const auto kinds = device.finish_profile();
    double seconds = 0;
    for (const auto& [kind, spent] : kinds) seconds += spent.seconds;
    result["kinds"] = nlohmann::json::object();
    for (const auto& [kind, spent] : kinds) {
      result["kinds"][kind] = {{"seconds", spent.seconds}, {"share", spent.seconds / seconds}, {"calls", spent.calls}};
    }
  }
  return result;
}

/// Reads "step" lines and answers each with the seconds of one step, so that another program can interleave a peer.
void serve(const Arguments& arguments) {
  const auto device = make_device(arguments);
  Training training(*device, arguments.models.front(), dtype_of(arguments.precisions.front()), arguments.sequences, arguments.length);
  training.timed_step(arguments.clock);
  std::cout << "ready" << std::endl;
  for (std::string line; std::getline(std::cin, line) && line == "step";) std::cout << training.timed_step(arguments.clock) << std::endl;
}

int run(int argc, char** argv) {
  Arguments arguments;
  CLI::App app("Forward and backward of the engine on the host device, beside oneDNN's packed peak");
  app.add_option("--models", arguments.models, "gpt2 (124M), llama (201M)")->check(CLI::IsMember({"gpt2", "llama"}));
  app.add_option("--precisions", arguments.precisions)->check(CLI::IsMember({"fp32", "bf16", "fp16"}));
  app.add_option("--threads", arguments.threads, "0: one per processor");
  app.add_option("--rounds", arguments.rounds);
  app.add_option("--sequences", arguments.sequences);
  app.add_option("--length", arguments.length, "tokens of a sequence");
  app.add_flag("--serve", arguments.serve, "answer each line 'step' with the seconds of one step");
  app.add_flag("!--no-profile", arguments.profile, "leave out the time per kind of kernel");
  app.add_flag_callback("--cpu-time", [&] { arguments.clock = CLOCK_PROCESS_CPUTIME_ID; },
                        "CPU time instead of wall time; with one thread, on a busy machine");
  CLI11_PARSE(app, argc, argv);
  if (arguments.serve) {
    serve(arguments);
    return 0;
  }
  nlohmann::json results = nlohmann::json::array();
  for (const std::string& model : arguments.models) {
    for (const std::string& precision : arguments.precisions) results.push_back(measure(arguments, model, precision));
  }
  std::cout << nlohmann::json{{"schema", 1}, {"results", results}}.dump(2) << std::endl;
  return 0;
}

}  // namespace
}  // namespace strata::gpu

int main(int argc, char** argv) {
  try {
    return strata::gpu::run(argc, argv);
  } catch (const std::exception& error) {
    std::cerr << "bench_engine: " << error.what() << "\n";
    return 1;
  }
}
