// BSR x few dense columns (up to 64) of float32 and float64, with fused multiply-adds, on Hopper.
//
// Items, their blocks' way through rings of cp.async copies and the turns that warps take along k are those of
// sm80/narrow.cuh, which sees two or four 16-bit elements in every one here: a chunk has four or two k. X comes through a ring of
// its own. What is said of four below holds for two of float64, which are 16 bytes as well.
//
// A warp computes its strip of 16 or 32 rows and all columns, a lane a quarter of the rows and four or eight columns, so that
// what it reads of shared memory serves several multiply-adds. Up to 16 columns leave lanes over, which share the k of a round
// and add their sums in the end.
//
//   lane   8 g + s * kColumnGroups + h: rows g, g + 4, ..., columns of group h, chunks s * kChunks, ... of a round
//   group  by rows of X four neighbours, and four more 32 columns further; by columns every kColumnGroups-th column
//
// Of a transposed view the elements of the strip's rows are neighbours, and those of k lie rows apart: a round is 16 lines of k,
// and a lane's rows are 4 g to 4 g + 3 and, of 32, those that are 16 further.
#pragma once

#include "params.h"
#include "ptx/cp_async.cuh"
#include "ptx/sync.cuh"
#include "sm80/narrow_a.cuh"
#include "sm80/narrow_begin.cuh"
#include "sm80/narrow_output.cuh"

namespace bsrg::narrow_fma {

using narrow::Copies;
using narrow::Start;

template <int kColumns, int kStrip>
struct RingShape {
  static constexpr int kRoundSteps = 1;
  static constexpr int kRing = BSRG_NARROW_FMA_ROUNDS(kColumns);
  static constexpr int kWarpBytes = BSRG_NARROW_FMA_WARP_BYTES(kColumns, kStrip);
  static constexpr bool kEvictsFirst = false;  // as for some of narrow.cuh's
};

// Neighbours that are copied and read together.
template <typename T>
struct alignas(16) Unit {
  static constexpr int kCount = 16 / sizeof(T);
  T element[kCount];

  static __device__ __forceinline__ Unit read(const unsigned char *from) {
    union {
      int4 words;
      Unit unit;
    } loaded;
    loaded.words = *reinterpret_cast<const int4 *>(from);
    return loaded.unit;
  }
};

template <typename T, int kColumns, int kStrip, Copies kCopies>
class Kernel : narrow::RingOfA<RingShape<kColumns, kStrip>, kStrip, kCopies> {
  using Base = narrow::RingOfA<RingShape<kColumns, kStrip>, kStrip, kCopies>;
  using typename Base::Position;

 public:
  __device__ __forceinline__ Kernel(const bsrg_narrow_params &p, unsigned char *shared)
      : Base(p, shared), ring_x_(ring_ + kBytesOfA), x_(static_cast<const T *>(p.x)) {}

  __device__ __forceinline__ void run(const Start &start) {
    this->begin(start.item);
    rows_ = start.item.rows;
    row_in_block_ = start.item.row_in_block;
    // A needs no block columns, so it sets out first, but for transposed views, whose blocks lie anywhere.
    if constexpr (!kTransposed) set_out();
    narrow::keep_columns(p_, start, block_columns_);
    if constexpr (kTransposed)
      for (int i = threadIdx.x; i < start.item.block_count; i += blockDim.x)
        this->block_places()[i] = __ldg(p_.places + start.item.first_block + i);
    __syncthreads();
    if constexpr (kTransposed) set_out();

    T sums[kRows][kOfLane] = {};
    const bool by_rows = p_.x_layout == BSRG_NARROW_X_ROWS;
    if (by_rows)
      accumulate<true>(sums);
    else
      accumulate<false>(sums);
    // The ring now gets the sums.
    ptx::cp_async_wait<0>();
    __syncwarp();
    share(sums, by_rows);
    __syncthreads();
    finish(start.item);
  }

 private:
  using Base::block_columns_;
  using Base::chunk_stride;
  using Base::chunks_;
  using Base::first_chunk;
  using Base::kBytesOfA;
  using Base::kRing;
  using Base::kRoundBytes;
  using Base::kTransposed;
  using Base::kWarpBytes;
  using Base::lane_;
  using Base::p_;
  using Base::position;
  using Base::q_;
  using Base::ring_;
  using Base::shared_;
  using Base::warp_;
  using Base::warps_;
  static constexpr int kRoundChunks = 4;
  static constexpr int kUnit = Unit<T>::kCount;             // k of a chunk
  static constexpr int kWords = sizeof(T) / 2;              // of an element, of 16 bits each
  static constexpr int kOfLane = kColumns == 64 ? 8 : 4;    // columns
  static constexpr int kColumnGroups = kColumns / kOfLane;  // of lanes
  static constexpr int kParts = 8 / kColumnGroups;          // of a round's k
  static constexpr int kChunks = kRoundChunks / kParts;     // of a part
  static constexpr int kRows = kStrip / 4;                  // of a lane
  static constexpr int kLineBytes = kStrip * sizeof(T);     // of one k of a transposed view
  static constexpr int kBytesOfX = 64 * kColumns;           // of a round
  static constexpr int kPitch = kColumns + 1;               // of the sums of a row

  static_assert(kBytesOfA + kRing * kBytesOfX == kWarpBytes, "rings of A and X");
  static_assert(kStrip * kPitch * sizeof(T) <= kWarpBytes, "sums fit in the ring");

  // ---- A --------------------------------------------------------------------------------------------

  __device__ __forceinline__ void set_out() const {
#pragma unroll
    for (int t = 0; t < kRing - 1; ++t) {
      copy_a(t, first_chunk() + t * chunk_stride());
      ptx::cp_async_commit();
    }
  }

  __device__ __forceinline__ void copy_a(int t, int chunk) const {
    if constexpr (kTransposed)
      copy_lines(ptx::shared_address(ring_) + t % kRing * kRoundBytes, chunk - q_);
    else
      Base::copy_a(t, chunk);
  }

  // Of a transposed view, four rows from 4 * unit on of k r of chunk q. Lines that the parts read together are neighbours, and
  // their units lie where they meet no bank twice.
  __device__ __forceinline__ static int place_in_line(int q, int r, int unit) {
    const int line = line_of(q, r);
    return line * kLineBytes + ((unit ^ (kLineBytes == 64 ? line / 2 % 4 : line % 8)) << 4);
  }

  // `chunk`: the first of the round.
  __device__ __forceinline__ void copy_lines(uint32_t round, int chunk) const {
    constexpr int kUnits = kLineBytes / 16, kLines = 32 / kUnits;  // of a line, of a copy
    const int unit = lane_ % kUnits;
    const auto *const values = static_cast<const T *>(p_.values) + row_in_block_ + kUnit * unit;
#pragma unroll
    for (int i = 0; i < kRoundChunks * kUnit / kLines; ++i) {
      const int k = i * kLines + lane_ / kUnits, of = chunk + k / kUnit;
      const bool there = of < chunks_ && kUnit * unit < rows_;
      const Position at = position(of);
      const int64_t block = there ? this->block_places()[at.block] : 0;
      const T *const source =
          values + (block * (p_.block_width / kWords) + at.k / kWords + k % kUnit) * p_.block_height;
      ptx::cp_async_stream(round + place_in_line(k / kUnit, k % kUnit, unit), there ? source : values, there);
    }
  }

  // Row i of the lane, in the strip.
  __device__ __forceinline__ int row(int i) const {
    return kTransposed ? i / kUnit * (4 * kUnit) + kUnit * group_of_rows() + i % kUnit
                       : group_of_rows() + 4 * i;
  }

  // Four rows of the lane, from row i on, and all four k of chunk q.
  __device__ __forceinline__ void read_a(T (&a)[kUnit][kUnit], const unsigned char *round, int i,
                                         int q) const {
#pragma unroll
    for (int j = 0; j < kUnit; ++j) {
      const int place = kTransposed ? place_in_line(q, j, i / kUnit * 4 + group_of_rows())
                                    : Base::place_of_chunk(0, row(i + j), q);
      const Unit<T> unit = Unit<T>::read(round + place);
#pragma unroll
      for (int e = 0; e < kUnit; ++e) (kTransposed ? a[e][j] : a[j][e]) = unit.element[e];
    }
  }

  // ---- X --------------------------------------------------------------------------------------------

  __device__ __forceinline__ unsigned char *round_of_x(int t) const {
    return ring_x_ + t % kRing * kBytesOfX;
  }

  // K r of chunk q: those that the parts read at a time are neighbours.
  __device__ __forceinline__ static int line_of(int q, int r) {
    return 4 * r + q % kChunks * kParts + q / kChunks;
  }
  __device__ __forceinline__ static int place_of_row(int q, int r) {
    return line_of(q, r) * static_cast<int>(kColumns * sizeof(T));
  }
  // By columns, chunk q of a column: eight neighbouring columns do not meet in a bank.
  __device__ __forceinline__ static int place_in_column(int column, int q) {
    return column * 64 + ((q ^ column / 2 % 4) << 4);
  }

  // Of round t, in which the lane's first chunk of A is `chunk`. By rows four columns of a row a copy, by columns four k of a
  // column.
  template <bool kByRows>
  __device__ __forceinline__ void copy_x(int t, int chunk) const {
    const uint32_t to = ptx::shared_address(round_of_x(t));
    const int q = kByRows ? lane_ / 8 : q_;
    chunk += q - q_;
    const bool there = chunk < chunks_;
    int64_t row = 0;
    if (there) {
      const Position at = position(chunk);
      row = (static_cast<int64_t>(block_columns_[at.block]) * p_.block_width + at.k) / kWords;
    }
    if constexpr (kByRows) {
      constexpr int kUnits =
          kColumns / kUnit < 8 ? kColumns / kUnit : 8;  // of a row that a copy of the warp has
      constexpr int kAcross = kUnits * kUnit, kLines = 8 / kUnits;
      const int unit = lane_ % 8 % kUnits, r = lane_ % 8 / kUnits;
      const T *from = x_ + (row + r) * p_.x_row_stride + kUnit * unit;
#pragma unroll
      for (int i = 0; i < kUnit; i += kLines, from += kLines * p_.x_row_stride)
#pragma unroll
        for (int first = 0; first < kColumns; first += kAcross) {
          const int left = p_.n - kUnit * unit - first;
          const int bytes = there ? min(16, max(0, static_cast<int>(sizeof(T)) * left)) : 0;
          ptx::cp_async_part(to + place_of_row(q, r + i) + unit * 16 + first * static_cast<int>(sizeof(T)),
                             from + first, bytes);
        }
    } else {
      const T *from = x_ + lane_ / 4 * p_.x_col_stride + row;
#pragma unroll
      for (int column = lane_ / 4, i = 0; i < kColumns / 8; ++i, column += 8, from += 8 * p_.x_col_stride)
        ptx::cp_async<16>(to + place_in_column(column, q), from, there && column < p_.n);
    }
  }

  __device__ __forceinline__ int group_of_rows() const { return lane_ / 8; }
  __device__ __forceinline__ int part() const { return lane_ % 8 / kColumnGroups; }
  __device__ __forceinline__ int column_group() const { return lane_ % kColumnGroups; }
  __device__ __forceinline__ int column(int i, bool by_rows) const {
    return by_rows ? (i / kUnit * kColumnGroups + column_group()) * kUnit + i % kUnit
                   : column_group() + i * kColumnGroups;
  }

  // Four rows of X, those of a chunk.
  template <bool kByRows>
  __device__ __forceinline__ void read_x(T (&x)[kUnit][kOfLane], int t, int q) const {
    const unsigned char *const from = round_of_x(t);
    if constexpr (kByRows) {
#pragma unroll
      for (int r = 0; r < kUnit; ++r)
#pragma unroll
        for (int i = 0; i < kOfLane; i += kUnit) {
          const int place = place_of_row(q, r) + column(i, true) * static_cast<int>(sizeof(T));
          const Unit<T> unit = Unit<T>::read(from + place);
#pragma unroll
          for (int e = 0; e < kUnit; ++e) x[r][i + e] = unit.element[e];
        }
    } else {
#pragma unroll
      for (int i = 0; i < kOfLane; ++i) {
        const Unit<T> unit = Unit<T>::read(from + place_in_column(column(i, false), q));
#pragma unroll
        for (int e = 0; e < kUnit; ++e) x[e][i] = unit.element[e];
      }
    }
  }

  // ---- the product ----------------------------------------------------------------------------------

  // Rounds as in narrow.cuh. Shared by way of a function, they cost float64 with 64 columns 136 bytes of spills.
  template <bool kByRows>
  __device__ __forceinline__ void accumulate(T (&sums)[kRows][kOfLane]) const {
    const int stride = chunk_stride();
    int chunk = first_chunk();
#pragma unroll
    for (int t = 0; t < kRing - 1; ++t) {
      copy_x<kByRows>(t, chunk + t * stride);
      ptx::cp_async_commit();
    }
#pragma unroll 1
    for (int t = 0; chunk - q_ < chunks_; ++t, chunk += stride) {
      ptx::cp_async_wait<kRing - 2>();
      __syncwarp();  // all have copied their part, and read what this round's copies replace
      copy_a(t + kRing - 1, chunk + (kRing - 1) * stride);
      copy_x<kByRows>(t + kRing - 1, chunk + (kRing - 1) * stride);
      ptx::cp_async_commit();
      const unsigned char *const round = ring_ + t % kRing * kRoundBytes;
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        const int q = part() * kChunks + c;
        T x[kUnit][kOfLane];
        read_x<kByRows>(x, t, q);
#pragma unroll
        for (int i = 0; i < kRows; i += kUnit) {
          T a[kUnit][kUnit];
          read_a(a, round, i, q);
#pragma unroll
          for (int r = 0; r < kUnit; ++r)
#pragma unroll
            for (int j = 0; j < kOfLane; ++j)
#pragma unroll
              for (int k = 0; k < kUnit; ++k) sums[i + r][j] = fma(a[r][k], x[k][j], sums[i + r][j]);
        }
      }
    }
  }

  // ---- output ---------------------------------------------------------------------------------------

  __device__ __forceinline__ T *sums_of(int warp) const {
    return reinterpret_cast<T *>(shared_ + warp * kWarpBytes);
  }

  __device__ __forceinline__ void share(T (&sums)[kRows][kOfLane], bool by_rows) const {
#pragma unroll
    for (int i = 0; i < kRows; ++i)
#pragma unroll
      for (int j = 0; j < kOfLane; ++j) {
#pragma unroll
        for (int other = kColumnGroups; other < 8; other *= 2)
          sums[i][j] += __shfl_xor_sync(0xffffffffu, sums[i][j], other);
        if (part() == 0) sums_of(warp_)[row(i) * kPitch + column(j, by_rows)] = sums[i][j];
      }
  }

  // Neighbours in Y by neighbouring threads.
  __device__ __forceinline__ void finish(const bsrg_narrow_item &item) const {
    const bool by_columns = p_.y_row_stride == 1;
#pragma unroll 1
    for (int i = threadIdx.x; i < kStrip * kColumns; i += blockDim.x) {
      const int row = by_columns ? i % kStrip : i / kColumns, column = by_columns ? i / kStrip : i % kColumns;
      if (row >= item.rows || column >= p_.n) continue;
      T total = 0;
      for (int w = 0; w < warps_; ++w) total += sums_of(w)[row * kPitch + column];
      const int64_t of_y = static_cast<int64_t>(item.y_row) + row;
      if (item.slot >= 0)
        static_cast<T *>(p_.partial)[(static_cast<int64_t>(item.slot) * kStrip + row) * kColumns + column] =
            total;
      else if (p_.output.given)
        narrow::store_element<T, true>(p_, of_y, column, total);
      else
        narrow::store_element<T, false>(p_, of_y, column, total);
    }
  }

  unsigned char *const ring_x_;
  const T *const x_;
  int rows_ = 0, row_in_block_ = 0;  // of the item
};

template <typename T, int kColumns, int kStrip, bool kTransposed>
__device__ __forceinline__ void run(const bsrg_narrow_params &p) {
  extern __shared__ __align__(128) unsigned char shared_memory[];
  narrow::ask_for_blocks(p);
  const Start start = narrow::load_start(p);
  ptx::wait_for_grid_before();
  if constexpr (kTransposed)
    Kernel<T, kColumns, kStrip, Copies::kTransposed>(p, shared_memory).run(start);
  else if (p.block_width == 16)
    Kernel<T, kColumns, kStrip, Copies::kSixteen>(p, shared_memory).run(start);
  else
    Kernel<T, kColumns, kStrip, Copies::kChunks>(p, shared_memory).run(start);
}

}  // namespace bsrg::narrow_fma

#define BSRG_NARROW_FMA_KERNEL(prefix, type, transposed, columns, strip, warps, fewer, fewest) \
  extern "C" __global__ void __launch_bounds__(32 * (warps), 1)                                \
      prefix##_n##columns##_r##strip(const __grid_constant__ bsrg_narrow_params params) {      \
    bsrg::narrow_fma::run<type, columns, strip, transposed>(params);                           \
  }
