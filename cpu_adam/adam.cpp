#include "cpu_adam/adam.hpp"

#include <cmath>

#include "core/error.hpp"
#include "core/topology.hpp"
#include "cpu_adam/float_environment.hpp"
#include "cpu_adam/formats.hpp"
#include "cpu_adam/kernels.hpp"
#include "cpu_adam/thread_team.hpp"

namespace strata {
namespace {

using cpu_adam::DefaultFloatEnvironment;
using cpu_adam::ThreadTeam;

void check_tile(const AdamTile& tile) {
  if (tile.elements == 0) return;
  STRATA_CHECK(tile.parameter && tile.momentum && tile.variance && tile.gradient, "a tile of {} elements lacks an array",
               tile.elements);
  STRATA_CHECK((tile.master != nullptr) == (tile.master_format != MasterFormat::parameter),
               "master format {} {} a master array", static_cast<int>(tile.master_format),
               tile.master ? "takes no" : "needs");
}

/// Not inlined: the compiler could move inlined arithmetic out of the environment that the caller sets.
[[gnu::noinline]] AdamStep make_step(const AdamSettings& settings, int64_t step, double lr, double gradient_scale) {
  const double correction1 = 1.0 - std::pow(settings.beta1, static_cast<double>(step));
  const double correction2 = 1.0 - std::pow(settings.beta2, static_cast<double>(step));
  AdamStep result;
  result.gradient_scale = static_cast<float>(gradient_scale);
  result.decay = static_cast<float>(1.0 - lr * settings.weight_decay);
  result.beta1 = static_cast<float>(settings.beta1);
  result.one_minus_beta1 = static_cast<float>(1.0 - settings.beta1);
  result.beta2 = static_cast<float>(settings.beta2);
  result.one_minus_beta2 = static_cast<float>(1.0 - settings.beta2);
  result.step_size = static_cast<float>(lr / correction1);
  result.inverse_sqrt_correction2 = static_cast<float>(1.0 / std::sqrt(correction2));
  result.epsilon = static_cast<float>(settings.epsilon);
  return result;
}

}  // namespace

AdamStep AdamStep::make(const AdamSettings& settings, int64_t step, double lr, double gradient_scale) {
  STRATA_CHECK(step >= 1, "steps count from 1, not {}", step);
  const auto is_beta = [](double beta) { return beta >= 0.0 && beta < 1.0; };
  STRATA_CHECK(is_beta(settings.beta1) && is_beta(settings.beta2), "betas {} {}", settings.beta1, settings.beta2);
  const DefaultFloatEnvironment environment;
  return make_step(settings, step, lr, gradient_scale);
}

void adam_update_scalar(const AdamTile& tile) {
  check_tile(tile);
  const DefaultFloatEnvironment environment;
  cpu_adam::for_decay_pieces(tile, [](const AdamTile& piece) {
    cpu_adam::with_formats(piece, [&](auto formats) {
      for (uint64_t i = 0; i < piece.elements; ++i) cpu_adam::update_element<decltype(formats)>(piece, i);
    });
  });
}

void adam_update_serial(const AdamTile& tile) {
  check_tile(tile);
  const DefaultFloatEnvironment environment;
  cpu_adam::for_decay_pieces(tile, cpu_adam::update_vectorized);
}

struct AdamUpdater::Implementation {
  explicit Implementation(int threads)
      : team(numa_nodes(), threads == 0 ? usable_processor_count() : threads, cpu_adam::Pinning::node) {}
  ThreadTeam team;
};

AdamUpdater::AdamUpdater(int threads) : implementation_(std::make_unique<Implementation>(threads)) {}
AdamUpdater::~AdamUpdater() = default;

void AdamUpdater::update(const AdamTile& tile) {
  check_tile(tile);
  implementation_->team.for_chunks(tile.elements, [&](uint64_t first, uint64_t count) {
    const DefaultFloatEnvironment environment;
    cpu_adam::for_decay_pieces(cpu_adam::slice(tile, first, count), cpu_adam::update_vectorized);
  });
}

int AdamUpdater::threads() const { return implementation_->team.threads(); }
std::string AdamUpdater::instruction_set() { return cpu_adam::vector_instruction_set(); }

}  // namespace strata
