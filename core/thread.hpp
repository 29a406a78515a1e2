// Threads are started here, so that a limit on them is an error with the numbers and the remedy in it, and never the end of the process.
#pragma once

#include <functional>
#include <string>
#include <thread>

namespace strata {

/// What to do about a limit on threads, where no key of the configuration helps.
inline constexpr const char* kRaiseThreadLimit =
    "raise the limit: ulimit -u, the container's limit on processes (pids.max, docker run --pids-limit), or ulimit -v";

/// Starts a thread. `purpose` is what it does, for the message ("moves data for the NVMe store"); its first 15 characters name it in the
/// system. Throws resource_exhausted, with the threads that the process has and the limits it is under, when the system refuses.
std::thread start_thread(const std::string& purpose, std::function<void()> body, const std::string& remedy = kRaiseThreadLimit);

/// Makes `count` threads at once and ends them again: what follows may then start as many. For libraries that end the process
/// when a thread is refused, and for a refusal before anything is begun. Throws as start_thread; the message has `count` and `purpose`.
void require_threads(int count, const std::string& purpose, const std::string& remedy = kRaiseThreadLimit);

/// "this process has 9 threads; limits: 12 processes of this user (ulimit -u), 16 in its control group (pids.max)".
std::string thread_limits();

/// Loads what the C library would otherwise load when the first thread ends, when memory for it may be gone. To be called first in main().
void preload_thread_support();

}  // namespace strata
