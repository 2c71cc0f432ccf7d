// Attention for any strides, float16 and bfloat16, on tensor cores of sm_80 and up.
//
// A CTA computes a tile of queries of one head. It walks over the tiles of keys that some of them may see, and keeps
// the softmax online: scores against a tile become weights relative to the largest score so far, and what was summed
// before is scaled down when that grows. Each of its warps has 16 or 32 of the queries to itself, with their scores,
// maxima and results in registers.
//
// Shared memory: Q [queries][size], K [keys][size], V [keys][size] of the present tile, 16-byte chunks of a row
// permuted so that eight rows of one chunk lie in different banks, for ldmatrix as well as for the copies. While
// scores are computed V is on its way, and while V is used the next K.
#pragma once

#include <cfloat>

#include "params.h"
#include "ptx/convert.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/math.cuh"
#include "ptx/mma_sync.cuh"
#include "ptx/sync.cuh"
#include "sm80/quad.cuh"

namespace bsrg::attention {

// Bits begin .. end of a word, both inclusive and cut to 0 .. 63.
__device__ __forceinline__ uint64_t bit_range(int begin, int end) {
  const int low = max(begin, 0), high = min(end, 63);
  return low > high ? 0 : ~uint64_t{0} << low & ~uint64_t{0} >> (63 - high);
}

// kSequences: a batch of sequences of different lengths, one behind the other; query tiles are slots, some of which are
// empty, and queries and keys are counted within a sequence.
template <typename T, int kSize, int kWarpRows, bool kSequences>
class Kernel {
 public:
  __device__ __forceinline__ Kernel(const bsrg_attention_portable_params &p, unsigned char *shared,
                                    bsrg_attention_sequence *sequence = nullptr)
      : p_(p),
        shared_(shared),
        lane_(threadIdx.x % 32),
        warp_(ptx::warp_index()),
        query_tile_(p.query_tiles - 1 - static_cast<int>(blockIdx.x % p.query_tiles)),
        head_(static_cast<int>(blockIdx.x / p.query_tiles) % p.heads),
        batch_(static_cast<int>(blockIdx.x / p.query_tiles) / p.heads),
        sequence_(find_sequence(p, sequence, query_tile_)),
        first_query_((query_tile_ - (kSequences ? sequence_->first_slot : 0)) * kRows),
        last_query_(min(first_query_ + kRows, queries()) - 1) {}

  __device__ __forceinline__ void run() {
    if (kSequences && (first_query_ < 0 || first_query_ > last_query_)) return;
    find_keys();
    float out[kStrips][kSize / 8][4] = {};
    float maximum[kStrips][2], total[kStrips][2] = {};
#pragma unroll
    for (int i = 0; i < 2 * kStrips; ++i) maximum[i / 2][i % 2] = -FLT_MAX;
    if (steps_ > 0) walk_keys(out, maximum, total);
    finish(out, maximum, total);
  }

 private:
  static constexpr int kThreads = 32 * BSRG_ATTENTION_WARPS;
  static constexpr int kRows = BSRG_ATTENTION_WARPS * kWarpRows, kKeys = BSRG_ATTENTION_KEYS;
  static constexpr int kStrips = kWarpRows / 16;  // fragments of a warp along the queries
  static constexpr int kChunks = kSize / 8;       // of 16 bytes, in a row
  static constexpr int kRowBytes = 2 * kSize;
  static constexpr int kOffsetK = kRows * kRowBytes, kOffsetV = kOffsetK + kKeys * kRowBytes;
  static constexpr float kLog2E = 1.44269504f, kLn2 = 0.693147181f;

  static_assert(kWarpRows == 16 || kWarpRows == 32, "one or two fragments");
  static_assert(kKeys == 64, "a bit of a word for each key");
  static_assert(kSize % 32 == 0, "whole permutations of chunks, outputs stored in fours");
  static_assert(kOffsetV + kKeys * kRowBytes == BSRG_ATTENTION_SHARED_BYTES(kSize, kWarpRows),
                "what the host reserves");

  // What a row's chunk numbers are xored with; rows that differ by a multiple of 8 have the same.
  __device__ static constexpr int permutation(int row) { return kChunks % 8 == 0 ? row % 8 : row / 2 % 4; }
  __device__ static constexpr int offset(int row, int chunk) {
    return row * kRowBytes + ((chunk ^ permutation(row)) << 4);
  }

  // One thread looks for all.
  __device__ static __forceinline__ const bsrg_attention_sequence *find_sequence(
      const bsrg_attention_portable_params &p, bsrg_attention_sequence *found, int slot) {
    if (kSequences) {
      if (threadIdx.x == 0) *found = bsrg_attention_sequence_at(&p.sequences, slot, kRows);
      __syncthreads();
    }
    return found;
  }

  __device__ __forceinline__ int queries() const {
    return kSequences ? sequence_->bounds.queries : p_.queries;
  }
  __device__ __forceinline__ int keys() const { return kSequences ? sequence_->bounds.keys : p_.keys; }
  __device__ __forceinline__ int band_first() const {
    return kSequences ? sequence_->bounds.low_offset : p_.band_first;
  }
  __device__ __forceinline__ int band_last() const {
    return kSequences ? sequence_->bounds.high_offset : p_.band_last;
  }
  // Where the sequence begins among all rows.
  __device__ __forceinline__ int query_begin() const { return kSequences ? sequence_->first_query : 0; }
  __device__ __forceinline__ int key_begin() const { return kSequences ? sequence_->first_key : 0; }

  // ---- which keys -------------------------------------------------------------------------------

  // The first of the tiles begin .. end - 1 of a list that is not below `tile`.
  __device__ __forceinline__ int64_t lower_bound(int64_t begin, int64_t end, int tile) const {
    while (begin < end) {
      const int64_t middle = begin + (end - begin) / 2;
      if (__ldg(&p_.tiles[middle].tile) < tile)
        begin = middle + 1;
      else
        end = middle;
    }
    return begin;
  }

  // Without masks, keys are the tiles from first_step_ on; with masks, those of the list's entries from there on.
  __device__ __forceinline__ void find_keys() {
    const int first_key = max(first_query_ + band_first(), 0);
    const int last_key = min(last_query_ + band_last(), keys() - 1);
    if (first_key > last_key) return;
    const int first_tile = first_key / kKeys, end_tile = last_key / kKeys + 1;
    if (p_.tile_begin == nullptr) {
      first_step_ = first_tile;
      steps_ = end_tile - first_tile;
      return;
    }
    const int64_t mask = static_cast<int64_t>(batch_) * p_.mask_batch_stride + head_ / p_.mask_group;
    const int64_t list = mask * p_.query_tiles + query_tile_;
    const int64_t begin = __ldg(p_.tile_begin + list), end = __ldg(p_.tile_end + list);
    first_step_ = lower_bound(begin, end, first_tile);
    steps_ = static_cast<int>(lower_bound(first_step_, end, end_tile) - first_step_);
  }

  __device__ __forceinline__ bsrg_attention_tile step(int i) const {
    if (p_.tile_begin == nullptr) return {static_cast<int>(first_step_) + i, -1};
    const int2 entry = __ldg(reinterpret_cast<const int2 *>(p_.tiles + first_step_ + i));
    return {entry.x, entry.y};
  }

  // The query of the lane's half (0 or 1) of a strip.
  __device__ __forceinline__ int query(int strip, int half) const {
    return first_query_ + warp_ * kWarpRows + strip * 16 + half * 8 + lane_ / 4;
  }

  // ---- loads ------------------------------------------------------------------------------------

  // The first row of the sequence, which is row `begin` of all.
  __device__ __forceinline__ const T *head_of(const bsrg_tensor_operand &operand, int head, int begin) const {
    const T *const data = static_cast<const T *>(operand.data);
    if constexpr (kSequences) return data + begin * operand.row_stride + head * operand.head_stride;
    return data + batch_ * operand.batch_stride + head * operand.head_stride;
  }

  // kCount rows from `first` on into shared memory at `to`; zeros where row >= rows or element >= size.
  template <int kCount>
  __device__ __forceinline__ void load(int to, const bsrg_tensor_operand &operand, int head, int begin,
                                       int first, int rows, int size, bool copy) const {
    const T *const source = head_of(operand, head, begin) + first * operand.row_stride;
    const int count = rows - first;
    if (copy)
      copy_rows<kCount>(ptx::shared_address(shared_) + to, source, operand.row_stride, count, size);
    else
      gather_rows<kCount>(shared_ + to, reinterpret_cast<const uint16_t *>(source), operand, count, size);
  }

  template <int kCount>
  __device__ __forceinline__ void copy_rows(uint32_t to, const T *source, int64_t stride, int count,
                                            int size) const {
    static_assert(kCount * kChunks % kThreads == 0, "as many copies for each thread");
#pragma unroll 4
    for (int i = 0; i < kCount * kChunks / kThreads; ++i) {
      const int at = i * kThreads + threadIdx.x, row = at / kChunks, chunk = at % kChunks;
      const int bytes = row < count ? min(max(size - chunk * 8, 0), 8) * 2 : 0;
      ptx::cp_async_part(to + offset(row, chunk), bytes > 0 ? source + row * stride + chunk * 8 : source,
                         bytes);
    }
  }

  // Element by element through registers, a pair a store.
  template <int kCount>
  __device__ __forceinline__ void gather_rows(unsigned char *to, const uint16_t *source,
                                              const bsrg_tensor_operand &operand, int count, int size) const {
    const bool along_rows = operand.element_stride == 1;  // which neighbours lanes read together
#pragma unroll 2
    for (int pair = threadIdx.x; pair < kCount * kSize / 2; pair += kThreads) {
      const int row = along_rows ? pair / (kSize / 2) : pair % kCount;
      const int element = (along_rows ? pair % (kSize / 2) : pair / kCount) * 2;
      const uint16_t *const at = source + row * operand.row_stride + element * operand.element_stride;
      uint32_t packed = 0;
      if (row < count && element < size) packed = __ldg(at);
      if (row < count && element + 1 < size)
        packed |= static_cast<uint32_t>(__ldg(at + operand.element_stride)) << 16;
      *reinterpret_cast<uint32_t *>(to + offset(row, element / 8) + element % 8 * 2) = packed;
    }
  }

  __device__ __forceinline__ void load_keys(int tile) const {
    load<kKeys>(kOffsetK, p_.k, head_ / p_.group, key_begin(), tile * kKeys, keys(), p_.size, p_.copy_k);
  }
  __device__ __forceinline__ void load_values(int tile) const {
    load<kKeys>(kOffsetV, p_.v, head_ / p_.group, key_begin(), tile * kKeys, keys(), p_.value_size,
                p_.copy_v);
  }

  // ---- the walk ---------------------------------------------------------------------------------

  __device__ __forceinline__ void walk_keys(float (&out)[kStrips][kSize / 8][4], float (&maximum)[kStrips][2],
                                            float (&total)[kStrips][2]) const {
    bsrg_attention_tile now = step(0);
    load<kRows>(0, p_.q, head_, query_begin(), first_query_, queries(), p_.size, p_.copy_q);
    load_keys(now.tile);
    ptx::cp_async_commit();
#pragma unroll 1
    for (int i = 0; i < steps_; ++i) {
      const bsrg_attention_tile next = i + 1 < steps_ ? step(i + 1) : now;
      ptx::cp_async_wait<0>();
      __syncthreads();  // K is there, and nobody reads the last V any more
      load_values(now.tile);
      ptx::cp_async_commit();
      float scores[kStrips][kKeys / 8][4] = {};
      multiply_keys(scores);
      scale(scores);
      if (is_partial(now)) exclude(scores, now);
      absorb(scores, out, maximum, total);
      ptx::cp_async_wait<0>();
      __syncthreads();  // V is there, and nobody reads K any more
      if (i + 1 < steps_) load_keys(next.tile);
      ptx::cp_async_commit();
      multiply_values(scores, out);
      now = next;
    }
  }

  // Chunks further along a row are reached by flipping address bits: permuted addresses do not add.
  __device__ __forceinline__ void multiply_keys(float (&scores)[kStrips][kKeys / 8][4]) const {
    const int q_row = lane_ % 16, k_row = lane_ / 16 * 8 + lane_ % 8;
    const uint32_t base = ptx::shared_address(shared_);
    const uint32_t q0 = base + (warp_ * kWarpRows + q_row) * kRowBytes;
    const uint32_t k0 = base + kOffsetK + k_row * kRowBytes;
    const uint32_t q_flip = (lane_ / 16 ^ permutation(q_row)) << 4;
    const uint32_t k_flip = (lane_ / 8 % 2 ^ permutation(k_row)) << 4;
#pragma unroll
    for (int d = 0; d < kSize / 16; ++d) {
      uint32_t q[kStrips][4];
#pragma unroll
      for (int s = 0; s < kStrips; ++s)
        ptx::load_matrix_x4(q[s], q0 + s * 16 * kRowBytes + (d << 5 ^ q_flip));
#pragma unroll
      for (int j = 0; j < kKeys / 8; j += 2) {
        uint32_t k[4];
        ptx::load_matrix_x4(k, k0 + j * 8 * kRowBytes + (d << 5 ^ k_flip));
#pragma unroll
        for (int s = 0; s < kStrips; ++s) {
          ptx::mma_m16n8k16<T>(scores[s][j], q[s], k[0], k[1]);
          ptx::mma_m16n8k16<T>(scores[s][j + 1], q[s], k[2], k[3]);
        }
      }
    }
  }

  __device__ __forceinline__ void multiply_values(const float (&weights)[kStrips][kKeys / 8][4],
                                                  float (&out)[kStrips][kSize / 8][4]) const {
    const int row = lane_ % 16;
    const uint32_t v0 = ptx::shared_address(shared_) + kOffsetV + row * kRowBytes;
    const uint32_t flip = (lane_ / 16 ^ permutation(row)) << 4;
#pragma unroll
    for (int t = 0; t < kKeys / 16; ++t) {
      uint32_t a[kStrips][4];
#pragma unroll
      for (int s = 0; s < kStrips; ++s)
#pragma unroll
        for (int r = 0; r < 4; ++r) {
          const float *const pair = &weights[s][2 * t + r / 2][r % 2 * 2];
          a[s][r] = ptx::pack<T>(pair[0], pair[1]);
        }
#pragma unroll
      for (int j = 0; j < kSize / 8; j += 2) {
        uint32_t v[4];
        ptx::load_matrix_x4_trans(v, v0 + t * 16 * kRowBytes + (j << 4 ^ flip));
#pragma unroll
        for (int s = 0; s < kStrips; ++s) {
          ptx::mma_m16n8k16<T>(out[s][j], a[s], v[0], v[1]);
          ptx::mma_m16n8k16<T>(out[s][j + 1], a[s], v[2], v[3]);
        }
      }
    }
  }

  // ---- softmax ----------------------------------------------------------------------------------

  // Scores in units of log(2), so that weights are powers of two.
  __device__ __forceinline__ void scale(float (&scores)[kStrips][kKeys / 8][4]) const {
#pragma unroll
    for (int i = 0; i < kStrips * kKeys / 2; ++i) {
      float &score = scores[i / (kKeys / 2)][i / 4 % (kKeys / 8)][i % 4];
      score = p_.softcap > 0 ? p_.softcap * kLog2E * tanhf(score * p_.scale) : score * (p_.scale * kLog2E);
    }
  }

  // Whether some query of the CTA does not see some key of the tile, or some key does not exist.
  __device__ __forceinline__ bool is_partial(bsrg_attention_tile now) const {
    const int first = now.tile * kKeys, last = first + kKeys - 1;
    return now.bits >= 0 || last >= keys() || first < last_query_ + band_first() ||
           last > first_query_ + band_last();
  }

  __device__ __forceinline__ void exclude(float (&scores)[kStrips][kKeys / 8][4],
                                          bsrg_attention_tile now) const {
    const int first = now.tile * kKeys;
#pragma unroll
    for (int i = 0; i < 2 * kStrips; ++i) {
      const int at = query(i / 2, i % 2);
      uint64_t seen = bit_range(at + band_first() - first, min(at + band_last(), keys() - 1) - first);
      if (now.bits >= 0) {
        const int block_row = min(at, last_query_) / p_.mask_height - first_query_ / p_.mask_height;
        seen &= __ldg(p_.words + now.bits + block_row);
      }
      seen >>= lane_ % 4 * 2;
#pragma unroll
      for (int j = 0; j < kKeys / 8; ++j)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const uint32_t half = static_cast<uint32_t>(j < 4 ? seen : seen >> 32);
          if (!(half >> (j % 4 * 8 + e) & 1)) scores[i / 2][j][i % 2 * 2 + e] = -INFINITY;
        }
    }
  }

  // Turns scores into weights and brings out and total to the new maximum. The maximum is never infinite, so that
  // differences of scores that are all -infinity are not NaN.
  __device__ __forceinline__ void absorb(float (&scores)[kStrips][kKeys / 8][4],
                                         float (&out)[kStrips][kSize / 8][4], float (&maximum)[kStrips][2],
                                         float (&total)[kStrips][2]) const {
#pragma unroll
    for (int i = 0; i < 2 * kStrips; ++i) {
      const int s = i / 2, half = i % 2 * 2;
      float now = maximum[s][i % 2];
#pragma unroll
      for (int j = 0; j < kKeys / 8; ++j) now = fmaxf(now, fmaxf(scores[s][j][half], scores[s][j][half + 1]));
      now = fmaxf(now, __shfl_xor_sync(~0u, now, 1));
      now = fmaxf(now, __shfl_xor_sync(~0u, now, 2));
      const float factor = exp2f(maximum[s][i % 2] - now);
      float sum = 0;
#pragma unroll
      for (int j = 0; j < kKeys / 8; ++j)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float &score = scores[s][j][half + e];
          score = exp2f(score - now);
          sum += score;
        }
      maximum[s][i % 2] = now;
      total[s][i % 2] = total[s][i % 2] * factor + sum;
#pragma unroll
      for (int j = 0; j < kSize / 8; ++j) out[s][j][half] *= factor, out[s][j][half + 1] *= factor;
    }
  }

  // ---- output -----------------------------------------------------------------------------------

  __device__ __forceinline__ void finish(const float (&out)[kStrips][kSize / 8][4],
                                         const float (&maximum)[kStrips][2],
                                         const float (&total)[kStrips][2]) const {
#pragma unroll
    for (int i = 0; i < 2 * kStrips; ++i) {
      const int at = query(i / 2, i % 2);
      float sum = total[i / 2][i % 2];  // of the lane's own keys until here
      sum += __shfl_xor_sync(~0u, sum, 1);
      sum += __shfl_xor_sync(~0u, sum, 2);
      const bool exists = at < queries();
      if (p_.lse != nullptr && exists && lane_ % 4 == 0) {
        const int64_t row =
            (static_cast<int64_t>(batch_) * p_.heads + head_) * p_.queries + query_begin() + at;
        p_.lse[row] = sum == 0 ? -INFINITY : maximum[i / 2][i % 2] * kLn2 + logf(sum);
      }
      const float factor = sum == 0 ? 0 : 1 / sum;  // 0: of a query that sees no key
      T *const row = const_cast<T *>(head_of(p_.out, head_, query_begin())) + at * p_.out.row_stride;
      if (p_.copy_out)
        store_chunks(row, out[i / 2], i % 2 * 2, factor, exists);
      else if (exists)
        store_elements(row, out[i / 2], i % 2 * 2, factor);
    }
  }

  __device__ __forceinline__ void store_chunks(T *row, const float (&out)[kSize / 8][4], int half,
                                               float factor, bool exists) const {
#pragma unroll
    for (int j = 0; j < kSize / 8; j += 4) {
      uint32_t y[4];
#pragma unroll
      for (int f = 0; f < 4; ++f)
        y[f] = ptx::pack<T>(ptx::times_unless_zero(factor, out[j + f][half]),
                            ptx::times_unless_zero(factor, out[j + f][half + 1]));
      quad::transpose(y, lane_);
      const int element = (j + lane_ % 4) * 8;
      quad::store_chunk(row + element, y, exists ? p_.value_size - element : 0);
    }
  }

  __device__ __forceinline__ void store_elements(T *row, const float (&out)[kSize / 8][4], int half,
                                                 float factor) const {
#pragma unroll
    for (int j = 0; j < kSize / 8; ++j)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int element = j * 8 + lane_ % 4 * 2 + e;
        if (element < p_.value_size)
          row[element * p_.out.element_stride] =
              static_cast<T>(ptx::times_unless_zero(factor, out[j][half + e]));
      }
  }

  const bsrg_attention_portable_params &p_;
  unsigned char *const shared_;
  const int lane_, warp_;
  const int query_tile_, head_, batch_;
  const bsrg_attention_sequence *const sequence_;  // in shared memory: registers are short
  const int first_query_, last_query_;
  int64_t first_step_ = 0;
  int steps_ = 0;
};

}  // namespace bsrg::attention

// One kernel, <prefix>_d<size>, a row of BSRG_ATTENTION_SIZES.
#define BSRG_ATTENTION_KERNEL(prefix, type, size, warp_rows, ctas)                      \
  extern "C" __global__ void __launch_bounds__(32 * BSRG_ATTENTION_WARPS, ctas)         \
      prefix##_d##size(const __grid_constant__ bsrg_attention_portable_params params) { \
    bsrg::ptx::follow_grid_before();                                                    \
    extern __shared__ __align__(128) unsigned char shared_memory[];                     \
    bsrg::attention::Kernel<type, size, warp_rows, false>(params, shared_memory).run(); \
  }

// One of those for sequences, <prefix>_d<size>_varlen, a row of BSRG_ATTENTION_SEQUENCE_SIZES.
#define BSRG_ATTENTION_SEQUENCE_KERNEL(prefix, type, size, warp_rows, ctas)                       \
  extern "C" __global__ void __launch_bounds__(32 * BSRG_ATTENTION_WARPS, ctas)                   \
      prefix##_d##size##_varlen(const __grid_constant__ bsrg_attention_portable_params params) {  \
    bsrg::ptx::follow_grid_before();                                                              \
    extern __shared__ __align__(128) unsigned char shared_memory[];                               \
    __shared__ bsrg_attention_sequence sequence;                                                  \
    bsrg::attention::Kernel<type, size, warp_rows, true>(params, shared_memory, &sequence).run(); \
  }
