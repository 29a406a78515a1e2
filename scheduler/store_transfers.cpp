#include "scheduler/store_transfers.hpp"

#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <utility>

namespace strata::scheduler {

struct StoreTransfers::Shared {
  std::mutex mutex;
  std::condition_variable idle;
  int under_way = 0;
  std::exception_ptr error;

  void wait() {
    std::unique_lock lock(mutex);
    idle.wait(lock, [this] { return under_way == 0; });
  }
};

/// Counts as one transfer until it has ended, or until nobody can call it any more.
struct StoreTransfers::Ticket {
  Ticket(std::shared_ptr<Shared> of, SharedBytes moved) : shared(std::move(of)), buffer(std::move(moved)) {
    const std::lock_guard lock(shared->mutex);
    ++shared->under_way;
  }
  ~Ticket() { end(nullptr); }
  Ticket(const Ticket&) = delete;
  Ticket& operator=(const Ticket&) = delete;

  void end(std::exception_ptr error) {
    if (ended.exchange(true)) return;
    const std::lock_guard lock(shared->mutex);
    if (error && !shared->error) shared->error = std::move(error);
    --shared->under_way;
    shared->idle.notify_all();
  }

  const std::shared_ptr<Shared> shared;
  const SharedBytes buffer;
  std::atomic<bool> ended{false};
};

StoreTransfers::StoreTransfers() : shared_(std::make_shared<Shared>()) {}

StoreTransfers::~StoreTransfers() { shared_->wait(); }

tiers::IoCallback StoreTransfers::add(SharedBytes buffer) {
  return [ticket = std::make_shared<Ticket>(shared_, std::move(buffer))](std::exception_ptr error) { ticket->end(std::move(error)); };
}

void StoreTransfers::finish() {
  shared_->wait();
  if (shared_->error) std::rethrow_exception(std::exchange(shared_->error, nullptr));
}

}  // namespace strata::scheduler
