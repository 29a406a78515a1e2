// The floating-point environment that the update's bits are defined in: round to nearest even, subnormals kept.
#pragma once

#include <cfenv>

namespace strata::cpu_adam {

/// While it lives, the calling thread computes in the default environment, whatever some library set before (flush-to-zero,
/// another rounding); then the thread's own comes back. Exceptions raised meanwhile are forgotten.
class DefaultFloatEnvironment {
 public:
  DefaultFloatEnvironment() noexcept {
    std::fegetenv(&previous_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~DefaultFloatEnvironment() { std::fesetenv(&previous_); }
  DefaultFloatEnvironment(const DefaultFloatEnvironment&) = delete;
  DefaultFloatEnvironment& operator=(const DefaultFloatEnvironment&) = delete;

 private:
  std::fenv_t previous_;
};

}  // namespace strata::cpu_adam
