// BSR x a few dense columns, any block shape, dtype and strides, by fused multiply-adds.
//
// With few columns what counts is that A comes from memory, once and without a detour. A team of threads, a warp where block
// rows are short, else a CTA, computes a strip of rows of a block row. Each of its lanes has a place in the blocks: which
// rows, which k of them and which of the blocks that are at hand. So lanes load A as it lies, neighbours by neighbouring
// lanes, multiply it by what they need of X, which L1 and L2 keep, and have sums of the same rows from the first block to the
// last. In the end those of a row are added, in an order that the plan alone decides.
//
//   place of a lane                      neighbouring lanes have
//   A as it is stored, rows of k         the next k, then the next row, then the next block
//   transposed view, k of rows           the next rows, then the next k, then the next block
//
// Lanes load 16 bytes where sides and addresses allow it, 8 of 16-bit floats (blocks whose sides are multiples of 8 have
// kernels of their own, narrow.cuh), else an element.
//
// 8-bit floats come with scales and have results of another type. They have no other kernels for most blocks and GPUs, so these
// take any number of columns of them; lanes load an element.
#pragma once

#include <cuda_fp8.h>

#include "output.cuh"
#include "params.h"
#include "ptx/sync.cuh"

namespace bsrg::few {

// kCount neighbours, which begin at a multiple of their size or of 16 bytes.
template <typename T, int kCount>
struct alignas(kCount * sizeof(T) < 16 ? kCount * sizeof(T) : 16) Run {
  T element[kCount];
};

template <typename T, int kCount, bool kStream>
__device__ __forceinline__ Run<T, kCount> load_run(const T *from) {
  constexpr int kBytes = kCount * sizeof(T);
  union {
    Run<T, kCount> run;
    int4 words[(kBytes + 15) / 16];
    int2 two;
    int one;
  } loaded;
  if constexpr (kBytes == 1) {
    loaded.run.element[0].__x = __ldg(reinterpret_cast<const unsigned char *>(from));
  } else if constexpr (kCount == 1) {
    loaded.run.element[0] = kStream ? __ldcs(from) : __ldg(from);
  } else if constexpr (kBytes == 4) {
    loaded.one = __ldg(reinterpret_cast<const int *>(from));
  } else if constexpr (kBytes == 8) {
    const int2 *const two = reinterpret_cast<const int2 *>(from);
    loaded.two = kStream ? __ldcs(two) : __ldg(two);
  } else {
#pragma unroll
    for (int i = 0; i < kBytes / 16; ++i) {
      const int4 *const words = reinterpret_cast<const int4 *>(from) + i;
      loaded.words[i] = kStream ? __ldcs(words) : __ldg(words);
    }
  }
  return loaded.run;
}

// kColumns of X at a time. kVector: BSRG_FEW_VECTOR_BYTES of A a load. kTransposed: of a transposed view.
template <typename T, int kColumns, bool kVector, bool kTransposed>
class Kernel {
  using S = output::SumOf<T>;
  static constexpr bool kEight = sizeof(T) == 1;
  static_assert(!(kEight && kVector), "8-bit floats are loaded one by one");
  static constexpr int kElements = kVector ? BSRG_FEW_VECTOR_BYTES(sizeof(T)) / sizeof(T) : 1;  // of A a load
  static constexpr int kRows = kTransposed ? kElements : 1, kK = kTransposed ? 1 : kElements;
  static constexpr int kSums = kRows * kColumns;
  // Loads of A that a lane has under way, and of how many of them what they need of X: a lane must not wait for memory more
  // often than it has to, but X takes registers.
  static constexpr int kWordsOfX = kK * kColumns * (sizeof(T) == 8 ? 2 : 1);
  static constexpr bool kPacked = sizeof(T) == 2;  // needs registers to unpack
#if __CUDA_ARCH__ >= 900
  static constexpr int kMostWords = kPacked ? 16 : 32;
#else  // ptxas spills more than that
  static constexpr int kMostWords = 16;
#endif
  static constexpr bool kMany = kVector ? kSums <= (kPacked ? 3 : 4) : !kEight || kSums == 1;
  static constexpr int kAhead = kMany ? 4 : kWordsOfX <= kMostWords ? 2 : 1;
  static constexpr int kOfX = kWordsOfX <= 8 ? kAhead : kWordsOfX <= 16 && !kPacked ? 2 : 1;
  static constexpr int kThreads = BSRG_FEW_THREADS;

 public:
  __device__ __forceinline__ Kernel(const bsrg_few_params &p, unsigned char *shared)
      : p_(p),
        of_(p.portable),
        column_(static_cast<int64_t>(blockIdx.y) * kColumns),
        lane_(threadIdx.x % p.team),
        sums_(reinterpret_cast<S *>(shared) + (threadIdx.x - lane_) * kSums) {}

  __device__ __forceinline__ void run() {
    const unsigned tile = blockIdx.x * (kThreads / p_.team) + threadIdx.x / p_.team;
    if (tile >= of_.row_tiles) return;  // a whole team
    const unsigned tiles = of_.tiles_per_block_row;
    const int64_t block_row = of_.row_order[tile / tiles];
    first_row_ = static_cast<int>(tile % tiles) * (p_.lanes_rows * kRows);
    place();

    multiply_columns(block_row);
    if constexpr (kEight) {
      while ((column_ += static_cast<int64_t>(gridDim.y) * kColumns) < of_.n) {
        sync();  // all have read the last columns' sums
        multiply_columns(block_row);
      }
    }
  }

 private:
  __device__ __forceinline__ void place() {
    const int first = lane_ % (kTransposed ? p_.lanes_rows : p_.lanes_k);
    const int rest = lane_ / (kTransposed ? p_.lanes_rows : p_.lanes_k);
    const int second = rest % (kTransposed ? p_.lanes_k : p_.lanes_rows);
    block_ = rest / (kTransposed ? p_.lanes_k : p_.lanes_rows);
    row_in_strip_ = (kTransposed ? first : second) * kRows;
    row_ = first_row_ + row_in_strip_;
    k_ = kTransposed ? second : first;
  }

  __device__ __forceinline__ void multiply_columns(int64_t block_row) {
    columns_ = static_cast<int>(min(of_.n - column_, static_cast<int64_t>(kColumns)));
    S sums[kRows][kColumns] = {};
    if (block_ < p_.lanes_blocks && row_ < of_.block_height) {
      if (p_.x_layout == BSRG_FEW_X_ROWS)
        accumulate<BSRG_FEW_X_ROWS>(sums, block_row);
      else if (p_.x_layout == BSRG_FEW_X_COLUMNS)
        accumulate<BSRG_FEW_X_COLUMNS>(sums, block_row);
      else
        accumulate<BSRG_FEW_X_ELEMENTS>(sums, block_row);
    }
    add_up(sums);
    const int rows = min(p_.lanes_rows * kRows, of_.block_height - first_row_);
    for (int i = lane_; i < rows * kColumns; i += p_.team)
      if (i % kColumns < columns_)
        store(block_row * of_.block_height + first_row_ + i / kColumns, column_ + i % kColumns,
              sums_[i * contributors()]);
  }

  // Lanes with sums of the same rows.
  __device__ __forceinline__ int contributors() const { return p_.lanes_k * p_.lanes_blocks; }

  __device__ __forceinline__ void sync() const {
    if (p_.team == 32)
      __syncwarp();
    else
      __syncthreads();
  }

  // Where a load of A is to be: k of block number `stored`, in a block column.
  struct Numbers {
    int stored, column, k;
    bool there;
  };
  struct Next {
    int64_t block;
    int k;
  };

  // Of the lane's next loads, while those before are under way: an address must not wait for a number. Beyond the last block
  // they are that one's, so that loads need no condition.
  __device__ __forceinline__ void look_up(Numbers (&numbers)[kAhead], Next &next, int64_t end) const {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int64_t block = min(next.block, end - 1);
      numbers[i] = {static_cast<int>(kTransposed ? __ldg(of_.order + block) : block),
                    __ldg(of_.indices + block), next.k, next.block < end};
      next.k += p_.lanes_k * kK;
      if (next.k >= of_.block_width) next = {next.block + p_.lanes_blocks, k_ * kK};
    }
  }

  template <int kLayout>
  __device__ __forceinline__ void accumulate(S (&sums)[kRows][kColumns], int64_t block_row) const {
    const int64_t begin = of_.indptr[block_row], end = of_.indptr[block_row + 1];
    if (begin == end) return;
    const int64_t block_elements = static_cast<int64_t>(of_.block_height) * of_.block_width;
    // From this lane's row on in a block, and the step to its next k.
    const T *const values = static_cast<const T *>(of_.values) +
                            (kTransposed ? row_ : static_cast<int64_t>(row_) * of_.block_width);
    const int64_t step = kTransposed ? of_.block_height : 1;
    const T *const x = static_cast<const T *>(of_.x) + column_ * of_.x_col_stride;
    Next next = {begin + block_, k_ * kK};
    Numbers numbers[kAhead];
    look_up(numbers, next, end);
    while (numbers[0].there) {
      Run<T, kElements> a[kAhead];
      const T *at_x[kAhead];
      bool there[kAhead];
      float scale[kAhead];
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        const Numbers &of = numbers[i];
        int64_t x_row = static_cast<int64_t>(of.column) * of_.block_width + of.k;
        there[i] = of.there && (!kEight || x_row < p_.scaling.x_rows);
        if (kEight && x_row >= p_.scaling.x_rows) x_row = 0;
        at_x[i] = x + x_row * of_.x_row_stride;
        a[i] = load_run<T, kElements, true>(values + of.stored * block_elements + of.k * step);
        if constexpr (kEight)
          scale[i] = p_.scaling.block_scales == nullptr ? 1.f : __ldg(p_.scaling.block_scales + of.stored);
      }
      look_up(numbers, next, end);
#pragma unroll
      for (int first = 0; first < kAhead; first += kOfX) {
        T of_x[kOfX][kK][kColumns];
#pragma unroll
        for (int i = 0; i < kOfX; ++i) load_x<kLayout>(of_x[i], at_x[first + i]);
#pragma unroll
        for (int i = 0; i < kOfX; ++i)
          if (there[first + i]) multiply(sums, a[first + i], of_x[i], kEight ? scale[first + i] : 1.f);
      }
    }
  }

  template <int kLayout>
  __device__ __forceinline__ void load_x(T (&of_x)[kK][kColumns], const T *x) const {
    if constexpr (kLayout == BSRG_FEW_X_ROWS) {
#pragma unroll
      for (int k = 0; k < kK; ++k) {
        const Run<T, kColumns> run = load_run<T, kColumns, false>(x + k * of_.x_row_stride);
#pragma unroll
        for (int c = 0; c < kColumns; ++c) of_x[k][c] = run.element[c];
      }
    } else if constexpr (kLayout == BSRG_FEW_X_COLUMNS) {
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        Run<T, kK> run = {};
        if (c < columns_) run = load_run<T, kK, false>(x + c * of_.x_col_stride);
#pragma unroll
        for (int k = 0; k < kK; ++k) of_x[k][c] = run.element[k];
      }
    } else {
#pragma unroll
      for (int k = 0; k < kK; ++k)
#pragma unroll
        for (int c = 0; c < kColumns; ++c)
          of_x[k][c] = c < columns_
                           ? load_run<T, 1, false>(x + k * of_.x_row_stride + c * of_.x_col_stride).element[0]
                           : T(0.f);
    }
  }

  // scale: of an element of 8 bits, by its block.
  __device__ __forceinline__ void multiply(S (&sums)[kRows][kColumns], const Run<T, kElements> &a,
                                           const T (&of_x)[kK][kColumns], float scale) const {
#pragma unroll
    for (int k = 0; k < kK; ++k)
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        S of_a = static_cast<S>(a.element[kTransposed ? r : k]);
        if constexpr (kEight) of_a *= scale;
#pragma unroll
        for (int c = 0; c < kColumns; ++c) sums[r][c] = fma(of_a, static_cast<S>(of_x[k][c]), sums[r][c]);
      }
  }

  // Leaves the sum of row r and column c at sums_[(r * kColumns + c) * contributors()]. By halves, so that the order is
  // always the same.
  __device__ __forceinline__ void add_up(const S (&sums)[kRows][kColumns]) const {
    const int lanes = contributors(), outputs = p_.lanes_rows * kSums;
    if (block_ < p_.lanes_blocks) {
      const int mine = block_ * p_.lanes_k + k_;
#pragma unroll
      for (int r = 0; r < kRows; ++r)
#pragma unroll
        for (int c = 0; c < kColumns; ++c)
          sums_[((row_in_strip_ + r) * kColumns + c) * lanes + mine] = sums[r][c];
    }
    sync();
    for (int left = lanes; left > 1;) {
      const int kept = (left + 1) / 2, added = left - kept;
      for (int i = lane_; i < outputs * added; i += p_.team) {
        S *const sum = sums_ + i / added * lanes + i % added;
        *sum += sum[kept];
      }
      sync();
      left = kept;
    }
  }

  __device__ __forceinline__ void store(int64_t row, int64_t column, S sum) const {
    if constexpr (!kEight) {
      store_as<T>(row, column, sum);
    } else {
      if (p_.scaling.a_scale != nullptr) sum *= __ldg(p_.scaling.a_scale);
      if (p_.scaling.x_scale != nullptr) sum *= __ldg(p_.scaling.x_scale);
      if (p_.scaling.out == BSRG_KMAJOR_F32)
        store_as<float>(row, column, sum);
      else if (p_.scaling.out == BSRG_KMAJOR_F16)
        store_as<__half>(row, column, sum);
      else
        store_as<__nv_bfloat16>(row, column, sum);
    }
  }

  template <typename Out>
  __device__ __forceinline__ void store_as(int64_t row, int64_t column, S sum) const {
    const bsrg_output_params &output = of_.output;
    S value = static_cast<S>(of_.alpha) * sum;
    if (output.given && output.scaled) value *= output::scale<Out, S>(output, row, column);
    if (of_.beta != 0)
      value = fma(
          static_cast<S>(of_.beta),
          static_cast<S>(static_cast<const Out *>(of_.c)[row * of_.c_row_stride + column * of_.c_col_stride]),
          value);
    if (output.given)
      value = output::activate_exactly(output.activation, value + output::bias<Out, S>(output, row, column));
    static_cast<Out *>(of_.y)[row * of_.y_row_stride + column * of_.y_col_stride] = static_cast<Out>(value);
  }

  const bsrg_few_params &p_;
  const bsrg_portable_params &of_;
  int64_t column_;
  int columns_ = 0;  // that there are
  const int lane_;   // in its team
  S *const sums_;    // the team's
  int first_row_ = 0, row_in_strip_ = 0, row_ = 0, k_ = 0, block_ = 0;
};

}  // namespace bsrg::few

// <prefix>_n<columns>: an element of A a load; _v: a vector; t: of transposed views. Two CTAs an SM, three where sums are fewest.
#define BSRG_FEW_KERNEL(name, type, columns, vector, transposed)                                      \
  extern "C" __global__ void __launch_bounds__(BSRG_FEW_THREADS,                                      \
                                               (columns) == 1 && !((vector) && (transposed)) ? 3 : 2) \
      name(const __grid_constant__ bsrg_few_params params) {                                          \
    bsrg::ptx::wait_for_grid_before();                                                                \
    extern __shared__ __align__(16) unsigned char shared_memory[];                                    \
    bsrg::few::Kernel<type, columns, vector, transposed>(params, shared_memory).run();                \
  }
#define BSRG_FEW_KERNELS_OF(prefix, type, columns)                     \
  BSRG_FEW_KERNEL(prefix##_n##columns, type, columns, false, false)    \
  BSRG_FEW_KERNEL(prefix##_n##columns##_v, type, columns, true, false) \
  BSRG_FEW_KERNEL(prefix##_n##columns##_t, type, columns, false, true) \
  BSRG_FEW_KERNEL(prefix##_n##columns##_tv, type, columns, true, true)
#define BSRG_FEW_KERNELS_OF_ELEMENTS(prefix, type, columns)         \
  BSRG_FEW_KERNEL(prefix##_n##columns, type, columns, false, false) \
  BSRG_FEW_KERNEL(prefix##_n##columns##_t, type, columns, false, true)
#define BSRG_FEW_KERNELS(prefix, type) \
  BSRG_FEW_KERNELS_OF(prefix, type, 1) \
  BSRG_FEW_KERNELS_OF(prefix, type, 4) \
  BSRG_FEW_KERNELS_OF(prefix, type, 8)
#define BSRG_FEW_KERNELS_OF_8_BITS(prefix, type) \
  BSRG_FEW_KERNELS_OF_ELEMENTS(prefix, type, 1)  \
  BSRG_FEW_KERNELS_OF_ELEMENTS(prefix, type, 4)  \
  BSRG_FEW_KERNELS_OF_ELEMENTS(prefix, type, 8)
