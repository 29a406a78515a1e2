// The row kernels of the host device: each call becomes one piece of work on its stream, shared among the stream's threads.
#include "gpu/row_kernels.hpp"

#include "core/layout.hpp"
#include "cpu_adam/formats.hpp"
#include "gpu/host/host_device.hpp"
#include "gpu/host/parallel.hpp"
#include "gpu/host/row_ranges.hpp"
#include "gpu/kernels/lanes.hpp"

namespace strata::gpu {
namespace {

using kernels::kRowsPerBlock;

// Less work than this is not worth another thread: some 10 us of memory traffic, or of the arithmetic of an exponential.
constexpr int64_t kGrainElements = 65536;
constexpr int64_t kGrainExponentials = 16384;
// Columns that are summed at a time: their partial sums stay in the cache.
constexpr int64_t kChunkColumns = 512;
// A multiple of a cache line of floats, so that two threads never share one.
constexpr int64_t kLineColumns = 64;

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

/// The grain for pieces of `piece_elements` elements each.
int64_t pieces_per_grain(int64_t piece_elements, int64_t grain_elements = kGrainElements) {
  return std::max<int64_t>(1, grain_elements / std::max<int64_t>(1, piece_elements));
}
int64_t columns_per_grain(int64_t rows) { return ceil_div(pieces_per_grain(rows), kLineColumns) * kLineColumns; }

/// run(arguments, range) over parts of [0, count).
template <class Arguments>
void share(int64_t count, int64_t grain, void (*run)(const Arguments&, row_ranges::Range), const Arguments& arguments) {
  parallel_for(count, grain, [&](int64_t begin, int64_t end) { run(arguments, {begin, end}); });
}

void add_partials(int64_t columns, const row_ranges::Partials& partials) {
  share(columns, columns_per_grain(partials.count), row_ranges::add_partials, partials);
}

class HostRowKernels final : public RowKernels {
 public:
  void rms_norm(Stream& stream, DType dtype, Rows rows, const void* x, const void* weight, float epsilon, void* y, int64_t y_stride,
                float* rstd) override {
    const row_ranges::Norm norm{dtype, rows, x, weight, nullptr, epsilon, y, y_stride, rstd};
    host_enqueue(stream, [=] { share(rows.count, pieces_per_grain(rows.columns), row_ranges::rms_norm, norm); });
  }

  void layer_norm(Stream& stream, DType dtype, Rows rows, const void* x, const void* weight, const void* bias, float epsilon, void* y,
                  int64_t y_stride, float* statistics) override {
    const row_ranges::Norm norm{dtype, rows, x, weight, bias, epsilon, y, y_stride, statistics};
    host_enqueue(stream, [=] { share(rows.count, pieces_per_grain(rows.columns), row_ranges::layer_norm, norm); });
  }

  void rms_norm_backward(Stream& stream, DType dtype, Rows rows, const void* x, const void* weight, const float* rstd,
                         const void* d_y, int64_t d_y_stride, void* d_x, int64_t d_x_stride, bool add_to_dx, float* d_weight,
                         bool accumulate_weight, void* scratch) override {
    auto* const partials = static_cast<float*>(scratch);
    const row_ranges::NormBackward norm{dtype, rows,       x,         weight,  rstd, d_y, d_y_stride,
                                        d_x,   d_x_stride, add_to_dx, partials};
    host_enqueue(stream, [=] {
      const int64_t blocks = ceil_div(rows.count, kRowsPerBlock);
      share(blocks, pieces_per_grain(rows.columns * kRowsPerBlock), row_ranges::rms_norm_backward, norm);
      add_partials(rows.columns, {blocks, rows.columns, partials, accumulate_weight, d_weight});
    });
  }

  void layer_norm_backward(Stream& stream, DType dtype, Rows rows, const void* x, const void* weight, const float* statistics,
                           const void* d_y, int64_t d_y_stride, void* d_x, int64_t d_x_stride, bool add_to_dx, float* d_weight,
                           float* d_bias, bool accumulate_weight, void* scratch) override {
    auto* const partials = static_cast<float*>(scratch);
    const row_ranges::NormBackward norm{dtype, rows,       x,         weight,  statistics, d_y, d_y_stride,
                                        d_x,   d_x_stride, add_to_dx, partials};
    host_enqueue(stream, [=] {
      const int64_t blocks = ceil_div(rows.count, kRowsPerBlock);
      share(blocks, pieces_per_grain(rows.columns * kRowsPerBlock), row_ranges::layer_norm_backward, norm);
      add_partials(rows.columns, {blocks, 2 * rows.columns, partials, accumulate_weight, d_weight});
      add_partials(rows.columns, {blocks, 2 * rows.columns, partials + rows.columns, accumulate_weight, d_bias});
    });
  }

  uint64_t reduction_scratch_bytes(int64_t rows, int64_t columns) const override {
    return static_cast<uint64_t>(ceil_div(rows, kRowsPerBlock) * 2 * columns) * sizeof(float);
  }

  void rope(Stream& stream, DType dtype, Rows rows, void* x, int64_t heads, int64_t head_dim, const float* cosines,
            const float* sines, int64_t sequence_length, bool inverse) override {
    const row_ranges::Rope rope{dtype, rows, x, heads, head_dim, cosines, sines, sequence_length, inverse};
    host_enqueue(stream, [=] { share(rows.count, pieces_per_grain(heads * head_dim), row_ranges::rope, rope); });
  }

  void activation(Stream& stream, DType dtype, Activation kind, int64_t elements, const void* x, void* y) override {
    const row_ranges::Activate activate{dtype, kind, x, nullptr, y, nullptr};
    host_enqueue(stream, [=] { share(elements, kGrainExponentials, row_ranges::activation, activate); });
  }

  void activation_backward(Stream& stream, DType dtype, Activation kind, int64_t elements, const void* x, const void* d_y,
                           void* y, void* d_x) override {
    const row_ranges::Activate activate{dtype, kind, x, d_y, y, d_x};
    host_enqueue(stream, [=] { share(elements, kGrainExponentials, row_ranges::activation_backward, activate); });
  }

  void gated_activation(Stream& stream, DType dtype, Activation kind, int64_t rows, int64_t columns, const void* gate_up,
                        void* y) override {
    const row_ranges::ActivateGated activate{dtype, kind, columns, gate_up, nullptr, y, nullptr};
    host_enqueue(stream, [=] { share(rows, pieces_per_grain(columns, kGrainExponentials), row_ranges::gated_activation, activate); });
  }

  void gated_activation_backward(Stream& stream, DType dtype, Activation kind, int64_t rows, int64_t columns, const void* gate_up,
                                 const void* d_y, void* y, void* d_gate_up) override {
    const row_ranges::ActivateGated activate{dtype, kind, columns, gate_up, d_y, y, d_gate_up};
    host_enqueue(stream, [=] {
      share(rows, pieces_per_grain(columns, kGrainExponentials), row_ranges::gated_activation_backward, activate);
    });
  }

  void add_bias(Stream& stream, DType dtype, Rows rows, void* x, const void* bias) override {
    const row_ranges::AddBias add{dtype, rows, x, bias};
    host_enqueue(stream, [=] { share(rows.count, pieces_per_grain(rows.columns), row_ranges::add_bias, add); });
  }

  void column_sum(Stream& stream, DType dtype, Rows rows, const void* x, float* sums, bool accumulate, void* scratch) override {
    auto* const partials = static_cast<float*>(scratch);
    const row_ranges::ColumnSum sum{dtype, rows, x, partials};
    host_enqueue(stream, [=] {
      const int64_t blocks = ceil_div(rows.count, kRowsPerBlock);
      const int64_t chunks = ceil_div(rows.columns, kChunkColumns);
      const int64_t grain = pieces_per_grain(kRowsPerBlock * std::min(rows.columns, kChunkColumns));
      parallel_for(blocks * chunks, grain, [&](int64_t begin, int64_t end) {
        for (int64_t part = begin; part < end; ++part) {
          const int64_t first = part % chunks * kChunkColumns;
          row_ranges::column_sum(sum, part / chunks, {first, std::min(rows.columns, first + kChunkColumns)});
        }
      });
      add_partials(rows.columns, {blocks, rows.columns, partials, accumulate, sums});
    });
  }

  void add(Stream& stream, DType dtype, int64_t elements, const void* a, const void* b, void* y) override {
    const row_ranges::Add add{dtype, a, b, y};
    host_enqueue(stream, [=] { share(elements, kGrainElements, row_ranges::add, add); });
  }

  void gather(Stream& stream, DType dtype, int64_t tokens_count, int64_t columns, const int32_t* tokens, const void* table,
              const void* positions, int64_t sequence_length, void* y) override {
    const row_ranges::Gather gather{dtype, columns, tokens, table, positions, sequence_length, y};
    host_enqueue(stream, [=] { share(tokens_count, pieces_per_grain(columns), row_ranges::gather, gather); });
  }

  void scatter_add(Stream& stream, DType dtype, int64_t tokens_count, int64_t columns, const int32_t* tokens, const void* d_y,
                   float* d_table, float* d_positions, int64_t sequence_length) override {
    const row_ranges::ScatterAdd scatter{dtype, tokens_count, columns, tokens, d_y, d_table, d_positions, sequence_length};
    // By columns: whatever the tokens are, each element is one thread's, which adds to it in token order.
    host_enqueue(stream, [=] { share(columns, columns_per_grain(tokens_count), row_ranges::scatter_add, scatter); });
  }

  void cross_entropy(Stream& stream, DType logits_dtype, int64_t rows, int64_t columns, void* logits, const int32_t* labels,
                     float scale, double* losses, DType gradient_dtype, void* d_logits) override {
    const row_ranges::CrossEntropy loss{logits_dtype, columns, logits, labels, scale, losses, gradient_dtype, d_logits};
    host_enqueue(stream, [=] { share(rows, pieces_per_grain(columns, kGrainExponentials), row_ranges::cross_entropy, loss); });
  }

  void sum_in_order(Stream& stream, int64_t count, const double* values, double* sum, bool accumulate) override {
    host_enqueue(stream, [=] {
      double total = accumulate ? *sum : 0.0;
      for (int64_t i = 0; i < count; ++i) total += values[i];
      *sum = total;
    });
  }

  void cast(Stream& stream, DType from, DType to, int64_t elements, const void* x, void* y) override {
    const row_ranges::Cast cast{from, to, x, y};
    host_enqueue(stream, [=] { share(elements, kGrainElements, row_ranges::cast, cast); });
  }

  void sum_squares(Stream& stream, DType dtype, int64_t elements, const void* x, double* block_sums) override {
    constexpr auto kBlock = static_cast<int64_t>(kBlockElements);
    STRATA_CHECK(elements % kBlock == 0, "{} elements are not whole blocks of {}", elements, kBlock);
    const row_ranges::SumSquares sum{dtype, x, block_sums};
    host_enqueue(stream, [=] { share(elements / kBlock, pieces_per_grain(kBlock), row_ranges::sum_squares, sum); });
  }

  void adamw(Stream& stream, const AdamTile& tile) override {
    host_enqueue(stream, [=] {
      parallel_for(static_cast<int64_t>(tile.elements), kGrainExponentials, [&](int64_t begin, int64_t end) {
        adam_update_serial(cpu_adam::slice(tile, static_cast<uint64_t>(begin), static_cast<uint64_t>(end - begin)));
      });
    });
  }
};

}  // namespace

std::unique_ptr<RowKernels> make_host_row_kernels(const DeviceInfo&) { return std::make_unique<HostRowKernels>(); }

}  // namespace strata::gpu
