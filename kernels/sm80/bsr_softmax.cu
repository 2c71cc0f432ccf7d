// Softmax over the elements that the rows of a block-sparse matrix store.
//
// Every element is needed twice: for the maximum and the sum of its row, and for the result. Rows that are short enough stay
// in shared memory between, others are read again. Which thread has which elements, and the order in which threads' sums are
// joined, depend on the structure alone.
#include <cmath>
#include <cstdint>

#include "params.h"
#include "ptx/convert.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/math.cuh"
#include "ptx/sync.cuh"

namespace {

// 16-bit results do not see the error of exp2. log2(e) is a factor of differences alone: scores of bfloat16 may be as large as
// float32 takes.
template <typename T>
struct Arithmetic {
  using Number = float;
  static __device__ __forceinline__ float exp(float x) { return bsrg::ptx::exp2(x * 1.4426950408889634f); }
  static __device__ __forceinline__ float reciprocal(float x) { return bsrg::ptx::reciprocal(x); }
};
template <>
struct Arithmetic<float> {
  using Number = float;
  static __device__ __forceinline__ float exp(float x) { return expf(x); }
  static __device__ __forceinline__ float reciprocal(float x) { return __frcp_rn(x); }
};
template <>
struct Arithmetic<double> {
  using Number = double;
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

// The blocks of a block row, of which those from `cut` on reach beyond the matrix.
struct Blocks {
  int64_t begin, cut, end;
  int cols;  // the matrix's, of one that does
  int rows;  // the matrix's

  // exists: otherwise as one without blocks.
  __device__ __forceinline__ Blocks(const bsrg_softmax_params &p, int64_t number, bool exists = true) {
    const int64_t block_row = p.row_order ? p.row_order[number] : number;
    begin = p.indptr[block_row];
    cut = end = exists ? p.indptr[block_row + 1] : begin;
    cols = p.last_cols;
    rows = block_row == p.last_row ? p.last_rows : p.block_height;
    if (p.last_column < 0) return;
    while (cut > begin && p.indices[cut - 1] == p.last_column) --cut;  // it may be stored more than once
  }
};

// The next scores of a walk, in kAhead vectors of V, -infinity behind its end, which has not come yet. place(at): where a vector is;
// valid(at): how many of its elements are the matrix's.
template <int kAhead, int V, typename T, typename Place, typename Valid>
__device__ __forceinline__ void load(const T *values, Walk &at, int64_t end,
                                     typename Arithmetic<T>::Number scale, const Place &place,
                                     const Valid &valid,
                                     typename Arithmetic<T>::Number (&scores)[kAhead][V]) {
  using Number = typename Arithmetic<T>::Number;
  // Behind the end the first one again: loads with branches between them would wait for one another.
  const Walk begin = at;
  Vector<T, V> loaded[kAhead];
  int count[kAhead];
#pragma unroll
  for (int i = 0; i < kAhead; ++i, at.next()) {
    const bool exists = at.block < end;
    count[i] = exists ? valid(at) : 0;
    // Not through the read-only cache: the result may go where the values are.
    loaded[i] = *reinterpret_cast<const Vector<T, V> *>(values + place(exists ? at : begin));
  }
#pragma unroll
  for (int i = 0; i < kAhead; ++i)
#pragma unroll
    for (int e = 0; e < V; ++e)
      scores[i][e] = e < count[i] ? static_cast<Number>(loaded[i].x[e]) * scale : -INFINITY;
}

// result(score, e): of element e of a vector; zeros beyond the matrix.
template <int kAhead, int V, typename T, typename Place, typename Valid, typename Result>
__device__ __forceinline__ void write(const T *values, T *out, const Walk &first, int64_t end,
                                      typename Arithmetic<T>::Number scale, const Place &place,
                                      const Valid &valid, const Result &result) {
  for (Walk at = first; at.block < end;) {
    Walk to = at;
    typename Arithmetic<T>::Number scores[kAhead][V];
    load<kAhead, V>(values, at, end, scale, place, valid, scores);
#pragma unroll
    for (int i = 0; i < kAhead; ++i, to.next()) {
      const int count = valid(to);
      Vector<T, V> made;
#pragma unroll
      for (int e = 0; e < V; ++e) made.x[e] = static_cast<T>(e < count ? result(scores[i][e], e) : 0);
      if (to.block < end) *reinterpret_cast<Vector<T, V> *>(out + place(to)) = made;
    }
  }
}

// ---- blocks as they are stored ---------------------------------------------------------------------

// Where a thread is among those that have a row: its warp of these, of which first_warp is the first in the CTA.
struct Thread {
  int first_warp, warp, lane;
};

// A row of a block row, or the first of some, and a thread's part of it.
template <typename T, int V>
struct Row {
  const Blocks &blocks;
  const T *values;
  T *out;
  int rows;  // up to the matrix's last one
  Walk first;

  // row: in the block row.
  __device__ __forceinline__ Row(const bsrg_softmax_params &p, const Blocks &blocks, int row, Thread at)
      : blocks(blocks),
        values(static_cast<const T *>(p.values) + static_cast<int64_t>(row) * p.block_width),
        out(static_cast<T *>(p.out) + static_cast<int64_t>(row) * p.block_width),
        rows(blocks.rows - row),
        first(blocks.begin, at.warp * 32 + at.lane, 32 * p.warps_per_row, p.block_width / V) {}

  // How many elements of a vector are the matrix's.
  __device__ __forceinline__ int valid(const Walk &at) const {
    return at.block < blocks.cut ? V : min(max(blocks.cols - at.unit * V, 0), V);
  }
};

// Of the lane whose number differs in these bits.
__device__ __forceinline__ float from_lane(float x, int distance) {
  return __shfl_xor_sync(~0u, x, distance);
}
__device__ __forceinline__ double from_lane(double x, int distance) {
  return __shfl_xor_sync(~0u, x, distance);
}
template <typename T>
__device__ __forceinline__ Total<T> from_lane(const Total<T> &x, int distance) {
  Total<T> found;
  found.maximum = from_lane(x.maximum, distance);
  found.sum = from_lane(x.sum, distance);
  return found;
}

// What all threads of a row have together, which each of them gets: of lane 0 in every warp, since roundings differ.
// Several rows are a warp's. Where rows have several warps, to be called once for each kind of value.
template <int kRows, typename Value, typename Combine>
__device__ __forceinline__ void join(const bsrg_softmax_params &p, Value (&values)[kRows], Thread at,
                                     const Combine &combine) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2)
#pragma unroll
    for (int j = 0; j < kRows; ++j) values[j] = combine(values[j], from_lane(values[j], distance));
#pragma unroll
  for (int j = 0; j < kRows; ++j) values[j] = from_lane(values[j], at.lane);
  if constexpr (kRows == 1) {
    if (p.warps_per_row == 1) return;
    __shared__ Value of_warps[BSRG_SOFTMAX_WARPS];
    if (at.lane == 0) of_warps[at.first_warp + at.warp] = values[0];
    __syncthreads();
    values[0] = of_warps[at.first_warp];
    for (int w = 1; w < p.warps_per_row; ++w) values[0] = combine(values[0], of_warps[at.first_warp + w]);
  }
}

// A row of any length, which is read twice.
template <typename T, int V>
__device__ __forceinline__ void softmax_row(const bsrg_softmax_params &p, const Row<T, V> &r, Thread at) {
  using Number = typename Arithmetic<T>::Number;
  const Number scale = static_cast<Number>(p.scale);
  const auto place = [&p](const Walk &at) { return at.block * p.block_area + at.unit * V; };
  const auto valid = [&r](const Walk &at) { return r.valid(at); };
  const int64_t end = r.blocks.end;
  constexpr int kAhead = V == 1 && sizeof(T) < 8 ? 4 : 1;
  Total<T> total[1];
  for (Walk at = r.first; at.block < end;) {
    Number scores[kAhead][V];
    load<kAhead, V>(r.values, at, end, scale, place, valid, scores);
    total[0].add(reinterpret_cast<const Number(&)[kAhead * V]>(scores));
  }
  join<1>(p, total, at, [](Total<T> a, const Total<T> &b) {
    a.add(b);
    return a;
  });
  const Number base = Total<T>::base(total[0].maximum), factor = Arithmetic<T>::reciprocal(total[0].sum);
  const auto kept = [&r](const Walk &at) { return r.rows > 0 ? r.valid(at) : 0; };
  write<kAhead, V>(r.values, r.out, r.first, end, scale, place, kept,
                   [&](Number score, int) { return Arithmetic<T>::exp(score - base) * factor; });
}

// Scores beyond the matrix become those of infinite numbers: `value` times the scale is -infinity.
template <typename T, int V, int kRows, typename Slot>
__device__ __forceinline__ void hide_beyond(const Row<T, V> &r, const Slot &slot, float value) {
  Walk walk = r.first;
  for (int i = 0; walk.block < r.blocks.end; ++i, walk.next()) {
    const int elements = r.valid(walk);
    for (int j = 0; j < kRows && elements < V; ++j) {
      Vector<T, V> v = slot(i, j);
#pragma unroll
      for (int e = 0; e < V; ++e)
        if (e >= elements) v.x[e] = static_cast<T>(value);
      slot(i, j) = v;
    }
  }
}

// What the thread has written there, of NaN in some rows, becomes zeros.
template <typename T, int V, int kRows>
__device__ __forceinline__ void clear_beyond(const bsrg_softmax_params &p, const Row<T, V> &r) {
  for (Walk walk = r.first; walk.block < r.blocks.end; walk.next()) {
    T *to = r.out + walk.block * p.block_area + walk.unit * V;
    for (int j = 0; j < kRows; ++j, to += p.block_width)
      for (int e = j < r.rows ? r.valid(walk) : 0; e < V; ++e) to[e] = static_cast<T>(0);
  }
}

// kRows rows by way of shared memory, where each thread has up to BSRG_SOFTMAX_KEPT vectors of its own: all loads are under
// way at once, and take no registers.
template <typename T, int V, int kRows>
__device__ __forceinline__ void softmax_kept(const bsrg_softmax_params &p, const Row<T, V> &r, Thread at,
                                             Vector<T, V> *kept) {
  using Number = typename Arithmetic<T>::Number;
  constexpr bool kKeepsExponentials = sizeof(Number) == sizeof(T);
  const Number scale = static_cast<Number>(p.scale);
  const auto slot = [&](int i, int j) -> Vector<T, V> & {
    return kept[(i * kRows + j) * BSRG_SOFTMAX_THREADS + threadIdx.x];
  };
  const auto score = [&](const Vector<T, V> &v, int e) { return static_cast<Number>(v.x[e]) * scale; };
  int count = 0;
  for (Walk walk = r.first; walk.block < r.blocks.end; walk.next(), ++count) {
    const T *from = r.values + walk.block * p.block_area + walk.unit * V;
#pragma unroll
    for (int j = 0; j < kRows; ++j)
      bsrg::ptx::cp_async<16>(bsrg::ptx::shared_address(&slot(count, j)), from + j * p.block_width, true);
  }
  bsrg::ptx::cp_async_commit();
  bsrg::ptx::cp_async_wait<0>();  // of this thread's, which nobody else reads
  if (r.blocks.cut < r.blocks.end) hide_beyond<T, V, kRows>(r, slot, scale < 0 ? INFINITY : -INFINITY);
  Number base[kRows], sum[kRows];
#pragma unroll
  for (int j = 0; j < kRows; ++j) base[j] = -INFINITY;
#pragma unroll 1
  for (int i = 0; i < count; ++i)
#pragma unroll
    for (int j = 0; j < kRows; ++j) {
      const Vector<T, V> v = slot(i, j);
#pragma unroll
      for (int e = 0; e < V; ++e) base[j] = Total<T>::larger(score(v, e), base[j]);
    }
  join<kRows>(p, base, at, [](Number a, Number b) { return Total<T>::larger(b, a); });
#pragma unroll
  for (int j = 0; j < kRows; ++j) {
    base[j] = Total<T>::base(base[j]);
    sum[j] = 0;
  }
#pragma unroll 1
  for (int i = 0; i < count; ++i)
#pragma unroll
    for (int j = 0; j < kRows; ++j) {
      Vector<T, V> v = slot(i, j);
#pragma unroll
      for (int e = 0; e < V; ++e) {
        const Number exponential = Arithmetic<T>::exp(score(v, e) - base[j]);
        sum[j] += exponential;
        if constexpr (kKeepsExponentials) v.x[e] = exponential;
      }
      if constexpr (kKeepsExponentials) slot(i, j) = v;
    }
  join<kRows>(p, sum, at, [](Number a, Number b) { return a + b; });
#pragma unroll
  for (int j = 0; j < kRows; ++j) sum[j] = Arithmetic<T>::reciprocal(sum[j]);
  Walk walk = r.first;
#pragma unroll 1
  for (int i = 0; i < count; ++i, walk.next()) {
    T *to = r.out + walk.block * p.block_area + walk.unit * V;
#pragma unroll
    for (int j = 0; j < kRows; ++j) {
      Vector<T, V> v = slot(i, j);
#pragma unroll
      for (int e = 0; e < V; ++e) {
        const Number exponential =
            kKeepsExponentials ? static_cast<Number>(v.x[e]) : Arithmetic<T>::exp(score(v, e) - base[j]);
        v.x[e] = static_cast<T>(exponential * sum[j]);
      }
      *reinterpret_cast<Vector<T, V> *>(to + j * p.block_width) = v;
    }
  }
  if (r.blocks.cut < r.blocks.end || r.rows < kRows) clear_beyond<T, V, kRows>(p, r);
}

template <typename T>
__device__ __forceinline__ void softmax_rows(const bsrg_softmax_params &p) {
  constexpr int V = 16 / sizeof(T);
  __shared__ Vector<T, V> kept[BSRG_SOFTMAX_KEPT * BSRG_SOFTMAX_THREADS];
  const int group = static_cast<int>(threadIdx.x) / 32 / p.warps_per_row;
  const int first_warp = group * p.warps_per_row;
  const Thread at = {first_warp, static_cast<int>(threadIdx.x) / 32 - first_warp,
                     static_cast<int>(threadIdx.x) % 32};
  const int64_t row =
      (static_cast<int64_t>(blockIdx.x) * (BSRG_SOFTMAX_WARPS / p.warps_per_row) + group) * p.rows_at_once;
  // Who has no row waits where others do, as for one without elements.
  const bool exists = row < p.rows;
  if (!exists && p.warps_per_row == 1) return;
  const Blocks blocks(p, exists ? row / p.block_height : 0, exists);
  const int in_block = static_cast<int>(row % p.block_height);
  if (!p.vector) return softmax_row<T, 1>(p, {p, blocks, in_block, at}, at);
  const int64_t vectors = (blocks.end - blocks.begin) * (p.block_width / V), share = 32 * p.warps_per_row;
  const bool fits = vectors <= BSRG_SOFTMAX_KEPT * share;
  if (p.rows_at_once == 4 && 4 * vectors <= BSRG_SOFTMAX_KEPT * share)
    return softmax_kept<T, V, 4>(p, {p, blocks, in_block, at}, at, kept);
  if (p.rows_at_once == 2 && 2 * vectors <= BSRG_SOFTMAX_KEPT * share)
    return softmax_kept<T, V, 2>(p, {p, blocks, in_block, at}, at, kept);
  for (int i = 0; i < p.rows_at_once; ++i) {
    const Row<T, V> r(p, blocks, in_block + i, at);
    if (fits)
      softmax_kept<T, V, 1>(p, r, at, kept);
    else
      softmax_row<T, V>(p, r, at);
  }
}

// ---- blocks of a transposed view -------------------------------------------------------------------

// A thread has V neighbouring rows, which are neighbours in memory, and some of their columns; `lanes` threads have those of a tile.
template <typename T, int V>
__device__ __forceinline__ void softmax_columns_of(const bsrg_softmax_params &p) {
  using Number = typename Arithmetic<T>::Number;
  constexpr int kAhead = V == 1 ? 8 : 4;
  __shared__ Total<T> parts[BSRG_SOFTMAX_WARPS][BSRG_SOFTMAX_TILE];
  const int row_in_tile = threadIdx.x % p.lanes * V, row = blockIdx.x % p.tiles * (p.lanes * V) + row_in_tile;
  const Blocks blocks(p, blockIdx.x / p.tiles, row < p.block_height);
  const int64_t end = blocks.end;
  const T *values = static_cast<const T *>(p.values) + row;
  T *out = static_cast<T *>(p.out) + row;
  const Number scale = static_cast<Number>(p.scale);
  const Walk first(blocks.begin, threadIdx.x / p.lanes, BSRG_SOFTMAX_THREADS / p.lanes, p.block_width);
  const auto place = [&p](const Walk &at) {
    return p.order[at.block] * p.block_area + static_cast<int64_t>(at.unit) * p.block_height;
  };
  const auto valid = [&blocks](const Walk &at) {
    return at.block < blocks.cut || at.unit < blocks.cols ? V : 0;
  };

  Total<T> totals[V];
  for (Walk at = first; at.block < end;) {
    Number scores[kAhead][V];
    load<kAhead, V>(values, at, end, scale, place, valid, scores);
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
  const auto result = [&](Number score, int e) { return Arithmetic<T>::exp(score - bases[e]) * factors[e]; };
  const int rows = blocks.rows - row;
  if (rows >= V)
    write<kAhead, V>(values, out, first, end, scale, place, valid, result);
  else
    write<kAhead, V>(values, out, first, end, scale, place, valid,
                     [&](Number score, int e) { return e < rows ? result(score, e) : 0; });
}

template <typename T>
__device__ __forceinline__ void softmax_columns(const bsrg_softmax_params &p) {
  if (p.vector)
    softmax_columns_of<T, 16 / sizeof(T)>(p);
  else
    softmax_columns_of<T, 1>(p);
}

}  // namespace

// Of how many CTAs an SM's registers are to have room, of rows and of columns. Without a number ptxas spills one where it need
// not. Of rows Hopper's shared memory holds seven, that of others four.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
constexpr int kOfRows = 4;
#else
constexpr int kOfRows = 5;
#endif
#define BSRG_SOFTMAX_KERNELS(NAME, T, ROWS, COLUMNS)                              \
  extern "C" __global__ void __launch_bounds__(BSRG_SOFTMAX_THREADS, ROWS)        \
      bsr_softmax_rows_##NAME(const __grid_constant__ bsrg_softmax_params p) {    \
    bsrg::ptx::follow_grid_before();                                              \
    softmax_rows<T>(p);                                                           \
  }                                                                               \
  extern "C" __global__ void __launch_bounds__(BSRG_SOFTMAX_THREADS, COLUMNS)     \
      bsr_softmax_columns_##NAME(const __grid_constant__ bsrg_softmax_params p) { \
    bsrg::ptx::follow_grid_before();                                              \
    softmax_columns<T>(p);                                                        \
  }
BSRG_SOFTMAX_KERNELS(f16, __half, kOfRows, 2)
BSRG_SOFTMAX_KERNELS(bf16, __nv_bfloat16, kOfRows, 2)
BSRG_SOFTMAX_KERNELS(f32, float, kOfRows, 3)
BSRG_SOFTMAX_KERNELS(f64, double, 3, 2)  // its exponential takes registers
