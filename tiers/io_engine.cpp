#include "tiers/io_engine.hpp"

namespace strata::tiers {

std::unique_ptr<IoEngine> make_io_engine(const IoEngineConfig& config) {
  if (config.kind == IoEngineKind::threads) return make_thread_engine(config, "as configured");
  std::string reason;
  if (auto engine = make_uring_engine(config, reason)) return engine;
  if (config.kind == IoEngineKind::io_uring) {
    throw Error(ErrorCode::unsupported, "io_uring is not available: " + reason, "tiers.io_engine",
                "set it to \"auto\" or \"threads\", or allow io_uring (container profile, sysctl kernel.io_uring_disabled)");
  }
  return make_thread_engine(config, "io_uring is not available: " + reason);
}

}  // namespace strata::tiers
