// The end of the process for the one case where going on is worse: memory would be handed back while something still uses it.
#pragma once

#include "core/error.hpp"

namespace strata {

/// The exit status of a process that ended because a device or a drive holds memory and neither finishes nor fails.
inline constexpr int kStuckExitStatus = 4;

/// Writes the error to stderr and ends the process at once: no destructor runs, so nothing is freed that is in use. What a run has
/// committed is durable by then. Thread-safe.
[[noreturn]] void end_process(const Error& error) noexcept;

}  // namespace strata
