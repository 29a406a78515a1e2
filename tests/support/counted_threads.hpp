// Puts itself between a test and the system where threads are made, so that the system can be told to refuse them. To be included by one
// source file of an executable: it defines pthread_create, which every library of the process then calls.
#pragma once

#include <dlfcn.h>
#include <pthread.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <climits>
#include <cstring>
#include <memory>
#include <thread>

namespace strata::testing {

/// What the system grants. Like a limit on processes: `alive_max` threads at once; and of the calls since reset(), only `calls_max`.
struct ThreadGrant {
  std::atomic<int> alive{0}, alive_max{INT_MAX};
  std::atomic<int> calls{0}, calls_max{INT_MAX};
  std::atomic<int> refused{0};

  void set(int most_alive, int most_calls) {
    calls = refused = 0;
    alive_max = most_alive;
    calls_max = most_calls;
  }
  void lift() { set(INT_MAX, INT_MAX); }
  /// Whether all threads have ended but `count`; those that nobody joins end a moment later.
  bool falls_to(int count) const {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (alive > count && std::chrono::steady_clock::now() < deadline) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return alive <= count;
  }
};
inline ThreadGrant thread_grant;

/// An OpenMP run-time ends the process when it is refused a thread: it must never be the one that is.
inline bool called_from_openmp(const void* return_address) {
  Dl_info info{};
  return dladdr(return_address, &info) != 0 && info.dli_fname != nullptr && std::strstr(info.dli_fname, "libgomp") != nullptr;
}

}  // namespace strata::testing

extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*body)(void*), void* argument) noexcept {
  using strata::testing::thread_grant;
  static const auto real = reinterpret_cast<decltype(&pthread_create)>(dlsym(RTLD_NEXT, "pthread_create"));
  struct Start {
    void* (*body)(void*);
    void* argument;
  };
  struct Alive {
    ~Alive() { --thread_grant.alive; }
  };
  const bool refused_by_count = !strata::testing::called_from_openmp(__builtin_return_address(0)) && ++thread_grant.calls > thread_grant.calls_max;
  if (refused_by_count || ++thread_grant.alive > thread_grant.alive_max) {
    if (!refused_by_count) --thread_grant.alive;
    ++thread_grant.refused;
    return EAGAIN;
  }
  auto start = std::make_unique<Start>(Start{body, argument});
  const int result = real(
      thread, attributes,
      [](void* given) -> void* {
        const Alive alive;  // also when the thread ends by pthread_exit
        const std::unique_ptr<Start> own(static_cast<Start*>(given));
        return own->body(own->argument);
      },
      start.get());
  if (result == 0) start.release();
  else --thread_grant.alive;
  return result;
}
