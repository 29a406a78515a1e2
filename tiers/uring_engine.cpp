#include "tiers/io_engine.hpp"
namespace strata::tiers {
std::unique_ptr<IoEngine> make_uring_engine(const IoEngineConfig&, std::string& reason) {
  reason = "this build has no io_uring";
  return nullptr;
}
}  // namespace strata::tiers
