// Softmax over the elements that the rows of a block-sparse matrix store.
//
// Every element is read twice: for the maximum and the sum of its row, which are updated together, and for the result.
// Which thread has which elements, and the order in which threads' sums are joined, depend on the structure alone.
#include <cmath>
#include <cstdint>

#include "params.h"
#include "ptx/convert.cuh"
#include "ptx/math.cuh"
#include "ptx/sync.cuh"

namespace {

// 16-bit results do not see the error of exp2.
template <typename T>
struct Arithmetic {
  using Number = float;
  static constexpr double kFactor = 1.4426950408889634;
  static __device__ __forceinline__ float exp(float x) { return bsrg::ptx::exp2(x); }
  static __device__ __forceinline__ float reciprocal(float x) { return bsrg::ptx::reciprocal(x); }
};
template <>
struct Arithmetic<float> {
  using Number = float;
  static constexpr double kFactor = 1;
  static __device__ __forceinline__ float exp(float x) { return expf(x); }
  static __device__ __forceinline__ float reciprocal(float x) { return __frcp_rn(x); }
};
template <>
struct Arithmetic<double> {
  using Number = double;
  static constexpr double kFactor = 1;
  static __device__ __forceinline__ double exp(double x) { return ::exp(x); }
  // By Newton's method: a division is a function, for whose call registers would spill. NaN for 0, as the results are.
  static __device__ __forceinline__ double reciprocal(double x) {
    double y = bsrg::ptx::reciprocal(x);
#pragma unroll
    for (int i = 0; i < 2; ++i) y = fma(y, fma(-x, y, 1.0), y);
    return y;
  }
};

template <typename T, int V>
struct alignas(sizeof(T) * V) Vector {
  T x[V];
};

// The sum of exponentials of some scores, over that of their maximum.
template <typename T>
struct Total {
  using Number = typename Arithmetic<T>::Number;
  Number maximum = -INFINITY, sum = 0;

  // What is subtracted: while all scores are -infinity a number, so that no difference is NaN.
  static __device__ __forceinline__ Number base(Number maximum) {
    return maximum == -INFINITY ? Number(0) : maximum;
  }
  static __device__ __forceinline__ Number larger(Number a, Number b) { return a > b ? a : b; }

  template <int V>
  __device__ __forceinline__ void add(const Number (&scores)[V]) {
    Number now = maximum;
#pragma unroll
    for (int i = 0; i < V; ++i) now = larger(scores[i], now);
    sum *= Arithmetic<T>::exp(maximum - base(now));
#pragma unroll
    for (int i = 0; i < V; ++i) sum += Arithmetic<T>::exp(scores[i] - base(now));
    maximum = now;
  }
  __device__ __forceinline__ void add(const Total &other) {
    const Number now = larger(other.maximum, maximum);
    sum = sum * Arithmetic<T>::exp(maximum - base(now)) +
          other.sum * Arithmetic<T>::exp(other.maximum - base(now));
    maximum = now;
  }
};

template <typename T, int V>
__device__ __forceinline__ void load(const T *from, typename Arithmetic<T>::Number scale,
                                     typename Arithmetic<T>::Number (&scores)[V]) {
  // Not through the read-only cache: the result may go where the values are.
  const Vector<T, V> loaded = *reinterpret_cast<const Vector<T, V> *>(from);
#pragma unroll
  for (int i = 0; i < V; ++i) scores[i] = static_cast<typename Arithmetic<T>::Number>(loaded.x[i]) * scale;
}

// Steps through a block row's units, `step` at a time; a block has `per_block` of them.
struct Walk {
  int64_t block;
  int unit, step_blocks, step_units, per_block;

  __device__ __forceinline__ Walk(int64_t begin, int first, int step, int units)
      : block(begin + first / units),
        unit(first % units),
        step_blocks(step / units),
        step_units(step % units),
        per_block(units) {}
  __device__ __forceinline__ void next() {
    block += step_blocks;
    unit += step_units;
    if (unit >= per_block) {
      unit -= per_block;
      ++block;
    }
  }
};

// ---- blocks as they are stored ---------------------------------------------------------------------

template <typename T, int V>
__device__ __forceinline__ void softmax_row(const bsrg_softmax_params &p, int64_t row) {
  using Number = typename Arithmetic<T>::Number;
  __shared__ Number maxima[BSRG_SOFTMAX_WARPS], sums[BSRG_SOFTMAX_WARPS];
  const int warp = threadIdx.x / 32 % p.warps_per_row, lane = threadIdx.x % 32;
  const int32_t block_row = p.row_order[row / p.block_height];
  const int64_t begin = p.indptr[block_row], end = p.indptr[block_row + 1];
  const int64_t offset = row % p.block_height * p.block_width;
  const T *values = static_cast<const T *>(p.values) + offset;
  T *out = static_cast<T *>(p.out) + offset;
  const Number scale = static_cast<Number>(p.scale * Arithmetic<T>::kFactor);
  const Walk first(begin, warp * 32 + lane, 32 * p.warps_per_row, p.block_width / V);

  Total<T> total;
  for (Walk at = first; at.block < end; at.next()) {
    Number scores[V];
    load<T, V>(values + at.block * p.block_area + at.unit * V, scale, scores);
    total.add(scores);
  }
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    Total<T> other;
    other.maximum = __shfl_xor_sync(~0u, total.maximum, distance);
    other.sum = __shfl_xor_sync(~0u, total.sum, distance);
    total.add(other);
  }
  if (p.warps_per_row > 1) {
    if (lane == 0) {
      maxima[warp] = total.maximum;
      sums[warp] = total.sum;
    }
    __syncthreads();
    total = Total<T>();
    for (int w = 0; w < BSRG_SOFTMAX_WARPS; ++w) {
      Total<T> other;
      other.maximum = maxima[w];
      other.sum = sums[w];
      total.add(other);
    }
  } else {
    // Roundings differ between lanes.
    total.sum = __shfl_sync(~0u, total.sum, 0);
  }

  const Number base = Total<T>::base(total.maximum), factor = Arithmetic<T>::reciprocal(total.sum);
  for (Walk at = first; at.block < end; at.next()) {
    const int64_t element = at.block * p.block_area + at.unit * V;
    Number scores[V];
    load<T, V>(values + element, scale, scores);
    Vector<T, V> result;
#pragma unroll
    for (int i = 0; i < V; ++i) result.x[i] = static_cast<T>(Arithmetic<T>::exp(scores[i] - base) * factor);
    *reinterpret_cast<Vector<T, V> *>(out + element) = result;
  }
}

template <typename T>
__device__ __forceinline__ void softmax_rows(const bsrg_softmax_params &p) {
  const int rows = BSRG_SOFTMAX_WARPS / p.warps_per_row;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * rows + threadIdx.x / 32 / p.warps_per_row;
  if (row >= p.rows) return;  // only where every warp has its own row
  if (p.vector)
    softmax_row<T, 16 / sizeof(T)>(p, row);
  else
    softmax_row<T, 1>(p, row);
}

// ---- blocks of a transposed view -------------------------------------------------------------------

// Lanes have neighbouring rows, which are neighbours in memory; threads of the same row share its columns.
template <typename T>
__device__ __forceinline__ void softmax_columns(const bsrg_softmax_params &p) {
  using Number = typename Arithmetic<T>::Number;
  __shared__ Number maxima[BSRG_SOFTMAX_THREADS], sums[BSRG_SOFTMAX_THREADS];
  const int row_in_tile = threadIdx.x % p.lanes, row = blockIdx.x % p.tiles * p.lanes + row_in_tile;
  const int32_t block_row = p.row_order[blockIdx.x / p.tiles];
  const int64_t begin = p.indptr[block_row];
  const int64_t end = row < p.block_height ? p.indptr[block_row + 1] : begin;
  const T *values = static_cast<const T *>(p.values) + row;
  T *out = static_cast<T *>(p.out) + row;
  const Number scale = static_cast<Number>(p.scale * Arithmetic<T>::kFactor);
  const Walk first(begin, threadIdx.x / p.lanes, BSRG_SOFTMAX_THREADS / p.lanes, p.block_width);

  Total<T> total;
  for (Walk at = first; at.block < end; at.next()) {
    Number score[1];
    load<T, 1>(values + p.order[at.block] * p.block_area + static_cast<int64_t>(at.unit) * p.block_height,
               scale, score);
    total.add(score);
  }
  maxima[threadIdx.x] = total.maximum;
  sums[threadIdx.x] = total.sum;
  __syncthreads();
  total = Total<T>();
  for (int i = row_in_tile; i < BSRG_SOFTMAX_THREADS; i += p.lanes) {
    Total<T> other;
    other.maximum = maxima[i];
    other.sum = sums[i];
    total.add(other);
  }

  const Number base = Total<T>::base(total.maximum), factor = Arithmetic<T>::reciprocal(total.sum);
  for (Walk at = first; at.block < end; at.next()) {
    const int64_t element = p.order[at.block] * p.block_area + static_cast<int64_t>(at.unit) * p.block_height;
    Number score[1];
    load<T, 1>(values + element, scale, score);
    out[element] = static_cast<T>(Arithmetic<T>::exp(score[0] - base) * factor);
  }
}

}  // namespace

// Without a number of CTAs ptxas spills a register where it need not.
#define BSRG_SOFTMAX_KERNELS(NAME, T)                                             \
  extern "C" __global__ void __launch_bounds__(BSRG_SOFTMAX_THREADS, 4)           \
      bsr_softmax_rows_##NAME(const __grid_constant__ bsrg_softmax_params p) {    \
    bsrg::ptx::follow_grid_before();                                              \
    softmax_rows<T>(p);                                                           \
  }                                                                               \
  extern "C" __global__ void __launch_bounds__(BSRG_SOFTMAX_THREADS, 4)           \
      bsr_softmax_columns_##NAME(const __grid_constant__ bsrg_softmax_params p) { \
    bsrg::ptx::follow_grid_before();                                              \
    softmax_columns<T>(p);                                                        \
  }
BSRG_SOFTMAX_KERNELS(f16, __half)
BSRG_SOFTMAX_KERNELS(bf16, __nv_bfloat16)
BSRG_SOFTMAX_KERNELS(f32, float)
BSRG_SOFTMAX_KERNELS(f64, double)
