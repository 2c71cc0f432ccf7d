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

// The next scores of a walk, in kAhead vectors of V, -infinity behind its end, which has not come yet. place(at): where a vector is.
template <int kAhead, int V, typename T, typename Place>
__device__ __forceinline__ void load(const T *values, Walk &at, int64_t end,
                                     typename Arithmetic<T>::Number scale, const Place &place,
                                     typename Arithmetic<T>::Number (&scores)[kAhead][V]) {
  using Number = typename Arithmetic<T>::Number;
  // Behind the end the first one again: loads with branches between them would wait for one another.
  const Walk begin = at;
  Vector<T, V> loaded[kAhead];
  bool exists[kAhead];
#pragma unroll
  for (int i = 0; i < kAhead; ++i, at.next()) {
    exists[i] = at.block < end;
    // Not through the read-only cache: the result may go where the values are.
    loaded[i] = *reinterpret_cast<const Vector<T, V> *>(values + place(exists[i] ? at : begin));
  }
#pragma unroll
  for (int i = 0; i < kAhead; ++i)
#pragma unroll
    for (int e = 0; e < V; ++e)
      scores[i][e] = exists[i] ? static_cast<Number>(loaded[i].x[e]) * scale : -INFINITY;
}

// result(score, e): of element e of a vector.
template <int kAhead, int V, typename T, typename Place, typename Result>
__device__ __forceinline__ void write(const T *values, T *out, const Walk &first, int64_t end,
                                      typename Arithmetic<T>::Number scale, const Place &place,
                                      const Result &result) {
  for (Walk at = first; at.block < end;) {
    Walk to = at;
    typename Arithmetic<T>::Number scores[kAhead][V];
    load<kAhead, V>(values, at, end, scale, place, scores);
#pragma unroll
    for (int i = 0; i < kAhead; ++i, to.next()) {
      Vector<T, V> made;
#pragma unroll
      for (int e = 0; e < V; ++e) made.x[e] = static_cast<T>(result(scores[i][e], e));
      if (to.block < end) *reinterpret_cast<Vector<T, V> *>(out + place(to)) = made;
    }
  }
}

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

  const auto place = [&p](const Walk &at) { return at.block * p.block_area + at.unit * V; };
  constexpr int kAhead = V == 1 && sizeof(T) < 8 ? 4 : 1;
  Total<T> total;
  for (Walk at = first; at.block < end;) {
    Number scores[kAhead][V];
    load<kAhead, V>(values, at, end, scale, place, scores);
    total.add(reinterpret_cast<const Number(&)[kAhead * V]>(scores));
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
  write<kAhead, V>(values, out, first, end, scale, place,
                   [&](Number score, int) { return Arithmetic<T>::exp(score - base) * factor; });
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

// A thread has V neighbouring rows, which are neighbours in memory, and some of their columns; `lanes` threads have those of a tile.
template <typename T, int V>
__device__ __forceinline__ void softmax_columns_of(const bsrg_softmax_params &p) {
  using Number = typename Arithmetic<T>::Number;
  constexpr int kAhead = V == 1 ? 8 : 4;
  __shared__ Total<T> parts[BSRG_SOFTMAX_WARPS][BSRG_SOFTMAX_TILE];
  const int row_in_tile = threadIdx.x % p.lanes * V, row = blockIdx.x % p.tiles * (p.lanes * V) + row_in_tile;
  const int32_t block_row = p.row_order[blockIdx.x / p.tiles];
  const int64_t begin = p.indptr[block_row];
  const int64_t end = row < p.block_height ? p.indptr[block_row + 1] : begin;
  const T *values = static_cast<const T *>(p.values) + row;
  T *out = static_cast<T *>(p.out) + row;
  const Number scale = static_cast<Number>(p.scale * Arithmetic<T>::kFactor);
  const Walk first(begin, threadIdx.x / p.lanes, BSRG_SOFTMAX_THREADS / p.lanes, p.block_width);
  const auto place = [&p](const Walk &at) {
    return p.order[at.block] * p.block_area + static_cast<int64_t>(at.unit) * p.block_height;
  };

  Total<T> totals[V];
  for (Walk at = first; at.block < end;) {
    Number scores[kAhead][V];
    load<kAhead, V>(values, at, end, scale, place, scores);
#pragma unroll
    for (int e = 0; e < V; ++e) {
      Number of_row[kAhead];
#pragma unroll
      for (int i = 0; i < kAhead; ++i) of_row[i] = scores[i][e];
      totals[e].add(of_row);
    }
  }
  // Of a warp, then of all.
  for (int distance = 16; distance >= p.lanes; distance /= 2) {
#pragma unroll
    for (int e = 0; e < V; ++e) {
      Total<T> other;
      other.maximum = __shfl_xor_sync(~0u, totals[e].maximum, distance);
      other.sum = __shfl_xor_sync(~0u, totals[e].sum, distance);
      totals[e].add(other);
    }
  }
  if (static_cast<int>(threadIdx.x % 32) < p.lanes)
#pragma unroll
    for (int e = 0; e < V; ++e) parts[threadIdx.x / 32][row_in_tile + e] = totals[e];
  __syncthreads();
  Number bases[V], factors[V];
#pragma unroll
  for (int e = 0; e < V; ++e) {
    Total<T> total;
    for (int w = 0; w < BSRG_SOFTMAX_WARPS; ++w) total.add(parts[w][row_in_tile + e]);
    bases[e] = Total<T>::base(total.maximum);
    factors[e] = Arithmetic<T>::reciprocal(total.sum);
  }
  write<kAhead, V>(values, out, first, end, scale, place,
                   [&](Number score, int e) { return Arithmetic<T>::exp(score - bases[e]) * factors[e]; });
}

template <typename T>
__device__ __forceinline__ void softmax_columns(const bsrg_softmax_params &p) {
  if (p.vector)
    softmax_columns_of<T, 16 / sizeof(T)>(p);
  else
    softmax_columns_of<T, 1>(p);
}

}  // namespace

// Without a number of CTAs ptxas spills a register where it need not.
#define BSRG_SOFTMAX_KERNELS(NAME, T)                                             \
  extern "C" __global__ void __launch_bounds__(BSRG_SOFTMAX_THREADS, 4)           \
      bsr_softmax_rows_##NAME(const __grid_constant__ bsrg_softmax_params p) {    \
    bsrg::ptx::follow_grid_before();                                              \
    softmax_rows<T>(p);                                                           \
  }                                                                               \
  extern "C" __global__ void __launch_bounds__(BSRG_SOFTMAX_THREADS, 2)           \
      bsr_softmax_columns_##NAME(const __grid_constant__ bsrg_softmax_params p) { \
    bsrg::ptx::follow_grid_before();                                              \
    softmax_columns<T>(p);                                                        \
  }
BSRG_SOFTMAX_KERNELS(f16, __half)
BSRG_SOFTMAX_KERNELS(bf16, __nv_bfloat16)
BSRG_SOFTMAX_KERNELS(f32, float)
BSRG_SOFTMAX_KERNELS(f64, double)
