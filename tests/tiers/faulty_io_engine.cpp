#include "tests/tiers/faulty_io_engine.hpp"

#include <algorithm>
#include <cerrno>
#include <deque>
#include <map>
#include <utility>

namespace strata::tiers::testing {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint32_t kSectorBytes = 512;  // what direct I/O moves at least: a cut between sectors moves the whole one

class FaultyIoEngine final : public IoEngine {
 public:
  FaultyIoEngine(std::unique_ptr<IoEngine> inner, std::shared_ptr<FaultPlan> plan)
      : inner_(std::move(inner)), plan_(std::move(plan)) {}

  void submit(std::span<const IoRequest> requests) override {
    std::vector<IoRequest> passed;
    for (IoRequest request : requests) {
      const auto fault = plan_->decide(request);
      if (!fault) {
        passed.push_back(request);
        continue;
      }
      switch (fault->effect) {
        case Effect::error:
          ready_.push_back({request.tag, -fault->value});
          break;
        case Effect::short_by:
          cut(request, static_cast<uint32_t>(std::min<int64_t>(fault->value, request.length_bytes)), passed);
          break;
        case Effect::delay:
          delayed_.push_back({Clock::now() + std::chrono::milliseconds(fault->value), request});
          break;
        case Effect::never:
          plan_->remember_as_hanging(request);
          break;
        case Effect::late:
          late_.push_back(request);
          break;
        case Effect::flip:
          flips_[request.tag] = {request.buffer, fault->value};
          passed.push_back(request);
          break;
        case Effect::lost:
          ready_.push_back({request.tag, request.length_bytes});
          break;
        case Effect::misdirected:
          request.offset_bytes += static_cast<uint64_t>(fault->value);
          passed.push_back(request);
          break;
      }
    }
    if (!passed.empty()) inner_->submit(passed);
  }

  size_t wait(std::span<IoCompletion> completions, std::chrono::microseconds timeout) override {
    const auto now = Clock::now();
    for (auto it = delayed_.begin(); it != delayed_.end();) {
      if (it->first <= now) {
        inner_->submit({&it->second, 1});
        it = delayed_.erase(it);
      } else {
        timeout = std::min(timeout, std::chrono::ceil<std::chrono::microseconds>(it->first - now));
        ++it;
      }
    }
    if (!ready_.empty()) timeout = std::chrono::microseconds(0);
    size_t count = inner_->wait(completions, timeout);
    for (size_t i = 0; i < count; ++i) adjust(completions[i]);
    while (count < completions.size() && !ready_.empty()) {
      completions[count++] = ready_.front();
      ready_.pop_front();
    }
    return count;
  }

  void wake() override { inner_->wake(); }

  void cancel(uint64_t tag) override {
    const auto found = std::find_if(late_.begin(), late_.end(), [&](const IoRequest& request) { return request.tag == tag; });
    if (found != late_.end()) {
      inner_->submit({&*found, 1});
      late_.erase(found);
    } else {
      inner_->cancel(tag);
    }
  }

  std::string describe() const override { return inner_->describe() + ", with faults"; }

 private:
  void cut(IoRequest request, uint32_t bytes, std::vector<IoRequest>& passed) {
    if (bytes == 0) {
      ready_.push_back({request.tag, 0});
      return;
    }
    const uint32_t moved = std::min((bytes + kSectorBytes - 1) / kSectorBytes * kSectorBytes, request.length_bytes);
    // Whoever believes that a short read filled the buffer finds garbage in it.
    if (request.operation == IoOperation::read) std::fill(request.buffer, request.buffer + request.length_bytes, std::byte{0xee});
    request.length_bytes = moved;
    cuts_[request.tag] = bytes;
    passed.push_back(request);
  }

  void adjust(IoCompletion& completion) {
    if (const auto cut = cuts_.find(completion.tag); cut != cuts_.end()) {
      completion.result = std::min<int64_t>(completion.result, cut->second);
      cuts_.erase(cut);
    }
    if (const auto flip = flips_.find(completion.tag); flip != flips_.end()) {
      const auto [buffer, bit] = flip->second;
      if (completion.result > bit / 8) buffer[bit / 8] ^= std::byte{1} << (bit % 8);
      flips_.erase(flip);
    }
  }

  std::unique_ptr<IoEngine> inner_;
  std::shared_ptr<FaultPlan> plan_;
  std::deque<IoCompletion> ready_;
  std::vector<std::pair<Clock::time_point, IoRequest>> delayed_;
  std::vector<IoRequest> late_;
  std::map<uint64_t, uint32_t> cuts_;
  std::map<uint64_t, std::pair<std::byte*, int64_t>> flips_;
};

}  // namespace

void FaultPlan::set(std::vector<Fault> faults) {
  std::lock_guard lock(mutex_);
  faults_ = std::move(faults);
  counts_.assign(faults_.size(), 0);
  requests_ = injected_ = 0;
  longest_bytes_ = 0;
}

std::optional<Fault> FaultPlan::decide(const IoRequest& request) {
  std::lock_guard lock(mutex_);
  ++requests_;
  longest_bytes_ = std::max(longest_bytes_, request.length_bytes);
  std::optional<Fault> chosen;
  for (size_t i = 0; i < faults_.size(); ++i) {
    const Fault& fault = faults_[i];
    if ((fault.operation && *fault.operation != request.operation) || (fault.file && *fault.file != request.file)) continue;
    const uint64_t count = ++counts_[i];
    if (!chosen && count >= fault.nth && count - fault.nth < fault.times) chosen = fault;
  }
  if (random_ && request.operation != IoOperation::sync) {
    const double draw = std::uniform_real_distribution<>(0, 1)(generator_);
    double limit = random_->short_transfer;
    const auto choose = [&](Effect effect, int64_t amount) {
      chosen.emplace();
      chosen->effect = effect;
      chosen->value = amount;
    };
    const auto value = [&](int64_t max) { return std::uniform_int_distribution<int64_t>(1, max)(generator_); };
    if (draw < limit) choose(Effect::short_by, value(request.length_bytes));
    else if (draw < (limit += random_->interrupted)) choose(Effect::error, value(2) == 1 ? EINTR : EAGAIN);
    else if (draw < (limit += random_->delay)) choose(Effect::delay, value(3));
    else if (draw < (limit += random_->read_error) && request.operation == IoOperation::read) choose(Effect::error, EIO);
  }
  if (chosen) ++injected_;
  return chosen;
}

void FaultPlan::remember_as_hanging(const IoRequest& request) {
  std::lock_guard lock(mutex_);
  hanging_.push_back(request);
}

size_t FaultPlan::land_late() {
  std::lock_guard lock(mutex_);
  unsigned sum = 0;
  for (const IoRequest& request : hanging_) {
    if (request.operation == IoOperation::read) std::fill(request.buffer, request.buffer + request.length_bytes, std::byte{0xdd});
    if (request.operation == IoOperation::write)
      for (uint32_t i = 0; i < request.length_bytes; ++i) sum += static_cast<unsigned>(request.buffer[i]);
  }
  [[maybe_unused]] const volatile unsigned moved = sum;  // a drive reads every byte that it writes
  return std::exchange(hanging_, {}).size();
}

uint64_t FaultPlan::requests() const {
  std::lock_guard lock(mutex_);
  return requests_;
}

uint64_t FaultPlan::injected() const {
  std::lock_guard lock(mutex_);
  return injected_;
}

uint32_t FaultPlan::longest_bytes() const {
  std::lock_guard lock(mutex_);
  return longest_bytes_;
}

IoEngineFactory faulty(std::shared_ptr<FaultPlan> plan, IoEngineFactory inner) {
  return [plan = std::move(plan), inner = std::move(inner)](const IoEngineConfig& config) -> std::unique_ptr<IoEngine> {
    return std::make_unique<FaultyIoEngine>(inner(config), plan);
  };
}

}  // namespace strata::tiers::testing
