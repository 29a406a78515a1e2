#include "bench/profiled_device.hpp"

#include <time.h>

namespace strata::gpu {
namespace {

/// With one thread, the CPU time of the calling (the stream's) thread: other processes then do not disturb the shares.
double now_seconds(bool one_thread) {
  timespec time{};
  clock_gettime(one_thread ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

class ProfiledLinear final : public Linear {
 public:
  ProfiledLinear(Profile& profile, std::unique_ptr<Linear> inner) : profile_(profile), inner_(std::move(inner)) {}
  const LinearSpec& spec() const override { return inner_->spec(); }
  uint64_t forward_prepared_bytes() const override { return inner_->forward_prepared_bytes(); }
  uint64_t backward_prepared_bytes() const override { return inner_->backward_prepared_bytes(); }
  uint64_t workspace_bytes() const override { return inner_->workspace_bytes(); }
  void prepare_forward(Stream& stream, const void* weights, void* prepared) override {
    profile_.note(stream, "prepare", [&] { inner_->prepare_forward(stream, weights, prepared); });
  }
  void prepare_backward(Stream& stream, const void* weights, void* prepared) override {
    profile_.note(stream, "prepare", [&] { inner_->prepare_backward(stream, weights, prepared); });
  }
  void forward(Stream& stream, int64_t tokens, const void* x, const void* weights, const void* prepared, const void* bias,
               const void* residual, void* y, void* workspace) override {
    profile_.note(stream, "linear forward",
                  [&] { inner_->forward(stream, tokens, x, weights, prepared, bias, residual, y, workspace); });
  }
  void backward_input(Stream& stream, int64_t tokens, const void* d_y, const void* weights, const void* forward_prepared,
                      const void* backward_prepared, void* d_x, void* workspace) override {
    profile_.note(stream, "linear backward input", [&] {
      inner_->backward_input(stream, tokens, d_y, weights, forward_prepared, backward_prepared, d_x, workspace);
    });
  }
  void backward_weight(Stream& stream, int64_t tokens, const void* x, const void* d_y, float* d_weights, bool accumulate,
                       void* workspace) override {
    profile_.note(stream, "linear backward weight",
                  [&] { inner_->backward_weight(stream, tokens, x, d_y, d_weights, accumulate, workspace); });
  }

 private:
  Profile& profile_;
  std::unique_ptr<Linear> inner_;
};

class ProfiledMatrices final : public MatrixKernels {
 public:
  ProfiledMatrices(Profile& profile, MatrixKernels& inner) : profile_(profile), inner_(inner) {}
  std::unique_ptr<Linear> create_linear(const LinearSpec& spec) override {
    return std::make_unique<ProfiledLinear>(profile_, inner_.create_linear(spec));
  }

 private:
  Profile& profile_;
  MatrixKernels& inner_;
};

class ProfiledAttention final : public AttentionKernels {
 public:
  ProfiledAttention(Profile& profile, AttentionKernels& inner) : profile_(profile), inner_(inner) {}
  uint64_t workspace_bytes(const AttentionShape& shape) const override { return inner_.workspace_bytes(shape); }
  void forward(Stream& stream, const AttentionShape& shape, const void* qkv, void* output, float* log_sum_exp,
               void* workspace) override {
    profile_.note(stream, "attention forward", [&] { inner_.forward(stream, shape, qkv, output, log_sum_exp, workspace); });
  }
  void backward(Stream& stream, const AttentionShape& shape, const void* qkv, const void* output, const float* log_sum_exp,
                const void* d_output, void* d_qkv, void* workspace) override {
    profile_.note(stream, "attention backward",
                  [&] { inner_.backward(stream, shape, qkv, output, log_sum_exp, d_output, d_qkv, workspace); });
  }

 private:
  Profile& profile_;
  AttentionKernels& inner_;
};

class ProfiledRows final : public RowKernels {
 public:
  ProfiledRows(Profile& profile, RowKernels& inner) : profile_(profile), inner_(inner) {}

  void rms_norm(Stream& s, DType t, Rows r, const void* x, const void* w, float e, void* y, int64_t stride, float* rstd) override {
    profile_.note(s, "norm", [&] { inner_.rms_norm(s, t, r, x, w, e, y, stride, rstd); });
  }
  void rms_norm_backward(Stream& s, DType t, Rows r, const void* x, const void* w, const float* rstd, const void* dy, int64_t dys,
                         void* dx, int64_t dxs, bool add_dx, float* dw, bool add_dw, void* scratch) override {
    profile_.note(s, "norm backward",
                  [&] { inner_.rms_norm_backward(s, t, r, x, w, rstd, dy, dys, dx, dxs, add_dx, dw, add_dw, scratch); });
  }
  void layer_norm(Stream& s, DType t, Rows r, const void* x, const void* w, const void* b, float e, void* y, int64_t stride,
                  float* statistics) override {
    profile_.note(s, "norm", [&] { inner_.layer_norm(s, t, r, x, w, b, e, y, stride, statistics); });
  }
  void layer_norm_backward(Stream& s, DType t, Rows r, const void* x, const void* w, const float* statistics, const void* dy,
                           int64_t dys, void* dx, int64_t dxs, bool add_dx, float* dw, float* db, bool add_dw, void* scratch) override {
    profile_.note(s, "norm backward", [&] {
      inner_.layer_norm_backward(s, t, r, x, w, statistics, dy, dys, dx, dxs, add_dx, dw, db, add_dw, scratch);
    });
  }
  uint64_t reduction_scratch_bytes(int64_t rows, int64_t columns) const override { return inner_.reduction_scratch_bytes(rows, columns); }
  void rope(Stream& s, DType t, Rows r, void* x, int64_t heads, int64_t dim, const float* c, const float* sines, int64_t length,
            bool inverse) override {
    profile_.note(s, "rope", [&] { inner_.rope(s, t, r, x, heads, dim, c, sines, length, inverse); });
  }
  void activation(Stream& s, DType t, Activation kind, int64_t n, const void* x, void* y) override {
    profile_.note(s, "activation", [&] { inner_.activation(s, t, kind, n, x, y); });
  }
  void activation_backward(Stream& s, DType t, Activation kind, int64_t n, const void* x, const void* dy, void* y,
                           void* dx) override {
    profile_.note(s, "activation backward", [&] { inner_.activation_backward(s, t, kind, n, x, dy, y, dx); });
  }
  void gated_activation(Stream& s, DType t, Activation kind, int64_t rows, int64_t columns, const void* x, void* y) override {
    profile_.note(s, "activation", [&] { inner_.gated_activation(s, t, kind, rows, columns, x, y); });
  }
  void gated_activation_backward(Stream& s, DType t, Activation kind, int64_t rows, int64_t columns, const void* x, const void* dy, void* y,
                                 void* dx) override {
    profile_.note(s, "activation backward", [&] { inner_.gated_activation_backward(s, t, kind, rows, columns, x, dy, y, dx); });
  }
  void add_bias(Stream& s, DType t, Rows r, void* x, const void* b) override {
    profile_.note(s, "add", [&] { inner_.add_bias(s, t, r, x, b); });
  }
  void column_sum(Stream& s, DType t, Rows r, const void* x, float* sums, bool add, void* scratch) override {
    profile_.note(s, "column sum", [&] { inner_.column_sum(s, t, r, x, sums, add, scratch); });
  }
  void add(Stream& s, DType t, int64_t n, const void* a, const void* b, void* y) override {
    profile_.note(s, "add", [&] { inner_.add(s, t, n, a, b, y); });
  }
  void gather(Stream& s, DType t, int64_t n, int64_t columns, const int32_t* tokens, const void* table, const void* positions,
              int64_t length, void* y) override {
    profile_.note(s, "embedding", [&] { inner_.gather(s, t, n, columns, tokens, table, positions, length, y); });
  }
  void scatter_add(Stream& s, DType t, int64_t n, int64_t columns, const int32_t* tokens, const void* dy, float* table,
                   float* positions, int64_t length) override {
    profile_.note(s, "embedding backward", [&] { inner_.scatter_add(s, t, n, columns, tokens, dy, table, positions, length); });
  }
  void cross_entropy(Stream& s, DType t, int64_t rows, int64_t columns, void* logits, const int32_t* labels, float scale,
                     double* losses, DType gradient_type, void* d_logits) override {
    profile_.note(s, "cross entropy",
                  [&] { inner_.cross_entropy(s, t, rows, columns, logits, labels, scale, losses, gradient_type, d_logits); });
  }
  void sum_in_order(Stream& s, int64_t n, const double* values, double* sum, bool add) override {
    profile_.note(s, "sum", [&] { inner_.sum_in_order(s, n, values, sum, add); });
  }
  void cast(Stream& s, DType from, DType to, int64_t n, const void* x, void* y) override {
    profile_.note(s, "cast", [&] { inner_.cast(s, from, to, n, x, y); });
  }
  void sum_squares(Stream& s, DType t, int64_t n, const void* x, double* sums) override {
    profile_.note(s, "sum squares", [&] { inner_.sum_squares(s, t, n, x, sums); });
  }
  void adamw(Stream& s, const AdamTile& tile) override {
    profile_.note(s, "adamw", [&] { inner_.adamw(s, tile); });
  }

 private:
  Profile& profile_;
  RowKernels& inner_;
};

}  // namespace

void Profile::start() {
  const std::lock_guard lock(mutex_);
  on_ = true;
  spent_.clear();
  last_ = -1;
}

std::map<std::string, Spent> Profile::finish() {
  const std::lock_guard lock(mutex_);
  on_ = false;
  spent_.erase("other");
  return spent_;
}

void Profile::mark(Stream& stream, const char* kind) {
  if (!on_) return;
  device_.call_host(stream, [this, kind] {
    const std::lock_guard lock(mutex_);
    const double now = now_seconds(device_.info().compute_threads == 1);
    if (last_ >= 0) {
      Spent& spent = spent_[kind];
      spent.seconds += now - last_;
      ++spent.calls;
    }
    last_ = now;
  });
}

ProfiledDevice::ProfiledDevice(Device& inner)
    : inner_(inner), profile_(inner), rows_(std::make_unique<ProfiledRows>(profile_, inner.rows())),
      matrices_(std::make_unique<ProfiledMatrices>(profile_, inner.matrices())),
      attention_(std::make_unique<ProfiledAttention>(profile_, inner.attention())) {}

ProfiledDevice::~ProfiledDevice() = default;

}  // namespace strata::gpu
