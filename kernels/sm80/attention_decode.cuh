// Attention of a few queries against many keys, float16 and bfloat16, sm_80 and up: as fast as K and V come from memory.
//
// The queries of all heads that share a head of K and V are the rows of one tile, so that head is read once. Its keys
// are split over CTAs. A CTA copies its part through a ring of stages of K and V; a warp has 16 of the rows and some
// keys of every stage to itself, with their softmax kept online, and the warps are merged at the end. With several
// splits their sums go to memory and a second kernel merges them. Both merges are in the order of the keys. Under masks
// the keys are those of a list, decode_list.cuh.
//
// Shared memory: the ring, rows of K and V in 16-byte chunks permuted so that eight rows of one chunk lie in different
// banks; afterwards the sums of the warps, rows padded for the same reason.
#pragma once

#include <cfloat>
#include <type_traits>

#include "params.h"
#include "params_decode.h"
#include "ptx/convert.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/math.cuh"
#include "ptx/mma_sync.cuh"
#include "ptx/sync.cuh"
#include "sm80/decode_list.cuh"

namespace bsrg::decode {

constexpr float kLog2E = 1.44269504f, kLn2 = 0.693147181f;

// A head of K and V with its rows of q and out. Neighbouring rows are heads of one query. Where masks tell the heads of
// q apart, a head of q.
template <typename T>
struct Unit {
  __device__ __forceinline__ Unit(const bsrg_decode_params &params, int index)
      : p(params), batch(index / params.heads), head(index % params.heads) {}

  __device__ __forceinline__ int query(int row) const { return row / p.group; }
  __device__ __forceinline__ T *row_of(const bsrg_tensor_operand &operand, int row) const {
    return static_cast<T *>(operand.data) + batch * operand.batch_stride +
           static_cast<int64_t>(head * p.group + row % p.group) * operand.head_stride +
           query(row) * operand.row_stride;
  }
  __device__ __forceinline__ const T *keys_of(const bsrg_tensor_operand &operand, int key_head) const {
    return static_cast<const T *>(operand.data) + batch * operand.batch_stride +
           key_head * operand.head_stride;
  }

  // The result of eight elements of a row. The maximum is in units of log(2), as everywhere in these kernels.
  __device__ __forceinline__ void store(int row, int chunk, const float (&sums)[8], float maximum,
                                        float total) const {
    const float factor = total == 0 ? 0 : 1 / total;  // 0: of a query that sees no key
    uint32_t y[4];
#pragma unroll
    for (int i = 0; i < 4; ++i)
      y[i] = ptx::pack<T>(ptx::times_unless_zero(factor, sums[2 * i]),
                          ptx::times_unless_zero(factor, sums[2 * i + 1]));
    *reinterpret_cast<uint4 *>(row_of(p.out, row) + chunk * 8) = make_uint4(y[0], y[1], y[2], y[3]);
    if (p.lse == nullptr || chunk != 0) return;
    const int64_t q_head = (static_cast<int64_t>(batch) * p.heads + head) * p.group + row % p.group;
    p.lse[q_head * p.queries + query(row)] = total == 0 ? -INFINITY : maximum * kLn2 + logf(total);
  }

  const bsrg_decode_params &p;
  const int batch, head;
};

// sums += factor * eight floats at `from`.
__device__ __forceinline__ void add_chunk(float (&sums)[8], float factor, const float *from) {
  const float4 low = *reinterpret_cast<const float4 *>(from),
               high = *reinterpret_cast<const float4 *>(from + 4);
  sums[0] += factor * low.x, sums[1] += factor * low.y, sums[2] += factor * low.z, sums[3] += factor * low.w;
  sums[4] += factor * high.x, sums[5] += factor * high.y, sums[6] += factor * high.z,
      sums[7] += factor * high.w;
}

__device__ __forceinline__ void store_chunk(float *to, const float (&sums)[8]) {
  *reinterpret_cast<float4 *>(to) = make_float4(sums[0], sums[1], sums[2], sums[3]);
  *reinterpret_cast<float4 *>(to + 4) = make_float4(sums[4], sums[5], sums[6], sums[7]);
}

// kMasked: the keys are those of a list.
template <typename T, int kSize, int kRows, bool kMasked>
class Kernel {
 public:
  __device__ __forceinline__ Kernel(const bsrg_decode_params &p, unsigned char *shared)
      : p_(p),
        shared_(shared),
        unit_(p, static_cast<int>(blockIdx.x) / p.splits),
        split_(static_cast<int>(blockIdx.x) % p.splits),
        lane_(threadIdx.x % 32),
        row_warp_(ptx::warp_index() % kRowWarps),
        key_warp_(ptx::warp_index() / kRowWarps) {
    // The first tiles % splits of the splits have one tile more.
    const int each = p.tiles / p.splits, longer = p.tiles % p.splits;
    first_key_ = p.first_key + (split_ * each + min(split_, longer)) * kKeys;
    steps_ = each + (split_ < longer);
  }

  __device__ __forceinline__ Kernel(const bsrg_masked_decode_params &p, unsigned char *shared,
                                    ListMemory &list)
      : p_(p.decode),
        shared_(shared),
        unit_(p.decode, static_cast<int>(blockIdx.x) / p.decode.splits),
        split_(static_cast<int>(blockIdx.x) % p.decode.splits),
        lane_(threadIdx.x % 32),
        row_warp_(ptx::warp_index() % kRowWarps),
        key_warp_(ptx::warp_index() / kRowWarps),
        first_key_(0),
        key_head_(unit_.head / p.key_group),
        list_(p, list) {
    steps_ = list_.find(unit_.batch, unit_.head, split_);
  }

  __device__ __forceinline__ void run() {
    float out[kSize / 8][4] = {}, maximum[2] = {-FLT_MAX, -FLT_MAX}, total[2] = {};
    if (steps_ > 0) walk_keys(out, maximum, total);
    share(out, maximum, total);
    __syncthreads();
    merge();
  }

 private:
  static constexpr int kKeys = BSRG_DECODE_KEYS(kSize), kStages = BSRG_DECODE_STAGES(kSize);
  static constexpr int kRowWarps = kRows / 16, kKeyWarps = BSRG_DECODE_KEY_WARPS(kSize, kRows);
  static constexpr int kThreads = 32 * kRowWarps * kKeyWarps;
  static constexpr int kWarpKeys = kKeys / kKeyWarps;
  static constexpr int kStepKeys = kSize > 128 ? 16 : kWarpKeys;  // at a time, as registers allow
  static constexpr int kChunks = kSize / 8;                       // of 16 bytes, in a row
  static constexpr int kRowBytes = 2 * kSize, kStageBytes = 2 * kKeys * kRowBytes;
  static constexpr int kRowStep = kThreads / kChunks;                  // rows between a thread's copies
  static constexpr int kSharedRow = kSize + 8;                         // floats of a row that warps share
  static constexpr int kSharedStats = kKeyWarps * kRows * kSharedRow;  // floats before maxima and totals

  static_assert(kThreads == BSRG_DECODE_THREADS(kSize, kRows) && kWarpKeys % kStepKeys == 0,
                "whole fragments");
  static_assert(kThreads % kChunks == 0 && kKeys % kRowStep == 0, "a thread copies one chunk of some rows");
  static_assert(kRowStep % 8 == 0 || 8 % kRowStep == 0, "permutations of a thread's rows by flipping bits");
  static_assert(kChunks % 8 == 0, "permutations of eight chunks");
  static_assert(kStages * kStageBytes == BSRG_DECODE_SHARED_BYTES(kSize), "what the host reserves");
  static_assert(4 * (kSharedStats + 2 * kKeyWarps * kRows) <= BSRG_DECODE_SHARED_BYTES(kSize), "sums fit");

  // ---- the walk ---------------------------------------------------------------------------------

  __device__ __forceinline__ void walk_keys(float (&out)[kSize / 8][4], float (&maximum)[2],
                                            float (&total)[2]) {
    if constexpr (!kMasked) {
      k_ = copied_from(p_.k, unit_.head, first_key_);
      v_ = copied_from(p_.v, unit_.head, first_key_);
    }
#pragma unroll(kMasked ? 1 : kStages - 1)
    for (int i = 0; i < kStages - 1; ++i) load_stage(i, i * kStageBytes);
    uint32_t q[kSize / 16][4];
    load_queries(q);
    int stage = 0, free_stage = (kStages - 1) * kStageBytes;
#pragma unroll 1
    for (int i = 0; i < steps_; ++i) {
      ptx::cp_async_wait<kStages - 2>();
      __syncthreads();  // the stage is there for all, and nobody reads the one before it any more
      load_stage(i + kStages - 1, free_stage);
      const StageKeys keys = keys_of_step(i);
      const int first = keys.first;
      const bool partial = is_partial(first);
#pragma unroll 1
      for (int key = key_warp_ * kWarpKeys; key < (key_warp_ + 1) * kWarpKeys; key += kStepKeys) {
        if (kMasked && !(keys.seen >> key & low_bits(kStepKeys))) continue;
        float scores[kStepKeys / 8][4] = {};
        multiply_keys(q, stage + key * kRowBytes, scores);
        scale(scores);
        if (partial) exclude(scores, first + key);
        if constexpr (kMasked)
          if (keys.words >= 0) hide(scores, keys.words, first + key);
        absorb(scores, out, maximum, total);
        multiply_values(scores, stage + (kKeys + key) * kRowBytes, out);
      }
      free_stage = stage;
      stage = stage == (kStages - 1) * kStageBytes ? 0 : stage + kStageBytes;
    }
    __syncthreads();  // the ring is free for what warps share
  }

  __device__ __forceinline__ StageKeys keys_of_step(int step) const {
    if constexpr (kMasked) return list_.stage(step);
    return {first_key_ + step * kKeys, -1, 0};
  }

  // The thread's chunk of the first row that it copies of a stage.
  __device__ __forceinline__ const T *copied_from(const bsrg_tensor_operand &operand, int key_head,
                                                  int first_key) const {
    const int row = threadIdx.x / kChunks, chunk = threadIdx.x % kChunks;
    return unit_.keys_of(operand, key_head) + (first_key + row) * operand.row_stride + chunk * 8;
  }

  // Also where there is no such step: waiting counts groups.
  __device__ __forceinline__ void load_stage(int step, int stage) {
    if (step < steps_) {
      const int to_v = stage + kKeys * kRowBytes;
      if constexpr (kMasked) {
        const StageKeys keys = list_.stage(step);
        const uint64_t seen = keys.seen & low_bits(p_.end_key - keys.first);
        copy_rows(stage, copied_from(p_.k, key_head_, keys.first), p_.k.row_stride, Some{seen}, p_.size);
        copy_rows(to_v, copied_from(p_.v, key_head_, keys.first), p_.v.row_stride, Some{seen}, p_.value_size);
        list_.go_on(step);
      } else {
        const int count = p_.end_key - first_key_ - step * kKeys;
        copy_rows(stage, k_, p_.k.row_stride, First{count}, p_.size);
        copy_rows(to_v, v_, p_.v.row_stride, First{count}, p_.value_size);
        k_ += kKeys * p_.k.row_stride;
        v_ += kKeys * p_.v.row_stride;
      }
    }
    ptx::cp_async_commit();
  }

  // Which rows of a stage are copied: those before one, or those whose bits are set.
  struct First {
    int count;
    __device__ __forceinline__ First from(int row) const { return {count - row}; }
    __device__ __forceinline__ bool has(int row) const { return row < count; }
  };
  struct Some {
    uint64_t rows;
    __device__ __forceinline__ Some from(int row) const { return {rows >> row}; }
    __device__ __forceinline__ bool has(int row) const { return rows >> row & 1; }
  };

  // kKeys rows, zeros in those that `present` has not and in elements beyond the size. `source` is the thread's own chunk.
  template <typename Rows>
  __device__ __forceinline__ void copy_rows(int to, const T *source, int64_t stride, Rows present,
                                            int size) const {
    const int row = threadIdx.x / kChunks, chunk = threadIdx.x % kChunks;
    const Rows rows = chunk * 8 < size ? present.from(row) : Rows{};
    const uint32_t base = ptx::shared_address(shared_) + to + row * kRowBytes;
    const uint32_t swizzled = (chunk ^ row % 8) << 4;
#pragma unroll
    for (int i = 0; i < kKeys / kRowStep; ++i) {
      ptx::cp_async_stream(base + i * kRowStep * kRowBytes + (swizzled ^ (i * kRowStep % 8) << 4), source,
                           rows.has(i * kRowStep));
      source += kRowStep * stride;
    }
  }

  // Fragments of the warp's rows, straight from memory: once a CTA. Zeros beyond rows and size.
  __device__ __forceinline__ void load_queries(uint32_t (&q)[kSize / 16][4]) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = tile_row(half);
      const T *const source = unit_.row_of(p_.q, min(row, p_.rows - 1)) + lane_ % 4 * 2;
      const int size = row < p_.rows ? p_.size : 0;
#pragma unroll
      for (int c = 0; c < kChunks; ++c)
        q[c / 2][c % 2 * 2 + half] =
            c * 8 < size ? __ldg(reinterpret_cast<const uint32_t *>(source + c * 8)) : 0;
    }
  }

  // The row of the tile that the lane's half (0 or 1) of a fragment is.
  __device__ __forceinline__ int tile_row(int half) const { return row_warp_ * 16 + half * 8 + lane_ / 4; }

  // Chunks further along a row are reached by flipping address bits: permuted addresses do not add.
  __device__ __forceinline__ void multiply_keys(const uint32_t (&q)[kSize / 16][4], int from,
                                                float (&scores)[kStepKeys / 8][4]) const {
    const int row = lane_ / 16 * 8 + lane_ % 8;
    const uint32_t base = ptx::shared_address(shared_) + from + row * kRowBytes;
    const uint32_t flip = (lane_ / 8 % 2 ^ lane_ % 8) << 4;
#pragma unroll
    for (int d = 0; d < kSize / 16; ++d)
#pragma unroll
      for (int j = 0; j < kStepKeys / 8; j += 2) {
        uint32_t k[4];
        ptx::load_matrix_x4(k, base + j * 8 * kRowBytes + (d << 5 ^ flip));
        ptx::mma_m16n8k16<T>(scores[j], q[d], k[0], k[1]);
        ptx::mma_m16n8k16<T>(scores[j + 1], q[d], k[2], k[3]);
      }
  }

  __device__ __forceinline__ void multiply_values(const float (&weights)[kStepKeys / 8][4], int from,
                                                  float (&out)[kSize / 8][4]) const {
    const uint32_t base = ptx::shared_address(shared_) + from + lane_ % 16 * kRowBytes;
    const uint32_t flip = (lane_ / 16 ^ lane_ % 8) << 4;
#pragma unroll
    for (int t = 0; t < kStepKeys / 16; ++t) {
      uint32_t a[4];
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        const float *const pair = &weights[2 * t + r / 2][r % 2 * 2];
        a[r] = ptx::pack<T>(pair[0], pair[1]);
      }
#pragma unroll
      for (int j = 0; j < kSize / 8; j += 2) {
        uint32_t v[4];
        ptx::load_matrix_x4_trans(v, base + t * 16 * kRowBytes + (j << 4 ^ flip));
        ptx::mma_m16n8k16<T>(out[j], a, v[0], v[1]);
        ptx::mma_m16n8k16<T>(out[j + 1], a, v[2], v[3]);
      }
    }
  }

  // ---- softmax ----------------------------------------------------------------------------------

  // Scores in units of log(2), so that weights are powers of two.
  __device__ __forceinline__ void scale(float (&scores)[kStepKeys / 8][4]) const {
    if (p_.softcap > 0) {
#pragma unroll
      for (int i = 0; i < kStepKeys / 2; ++i)
        scores[i / 4][i % 4] = p_.softcap * kLog2E * tanhf(scores[i / 4][i % 4] * p_.scale);
    } else {
#pragma unroll
      for (int i = 0; i < kStepKeys / 2; ++i) scores[i / 4][i % 4] *= p_.scale * kLog2E;
    }
  }

  // Whether some query does not see some key of the tile that begins at key `first`, or some key does not exist.
  __device__ __forceinline__ bool is_partial(int first) const {
    return first + kKeys > p_.end_key || first < p_.queries - 1 + p_.band_first ||
           first + kKeys - 1 > p_.band_last;
  }

  // `first` is the first key of the scores.
  __device__ __forceinline__ void exclude(float (&scores)[kStepKeys / 8][4], int first) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int query = unit_.query(tile_row(half)), lane_key = first + lane_ % 4 * 2;
      const int low = query + p_.band_first - lane_key;
      const int high = min(query + p_.band_last, p_.end_key - 1) - lane_key;
#pragma unroll
      for (int i = 0; i < kStepKeys / 4; ++i) {
        const int key = i / 2 * 8 + i % 2;
        if (key < low || key > high) scores[i / 2][half * 2 + i % 2] = -INFINITY;
      }
    }
  }

  // What the mask hides of scores from key `first` on, in an entry with words.
  __device__ __forceinline__ void hide(float (&scores)[kStepKeys / 8][4], int words, int first) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int query = unit_.query(min(tile_row(half), p_.rows - 1));
      const uint64_t seen = list_.seen_by(query, words, first) >> lane_ % 4 * 2;
#pragma unroll
      for (int i = 0; i < kStepKeys / 4; ++i)
        if (!(seen >> (i / 2 * 8 + i % 2) & 1)) scores[i / 2][half * 2 + i % 2] = -INFINITY;
    }
  }

  // Turns scores into weights and brings out and total to the new maximum. The maximum is never infinite, so that
  // differences of scores that are all -infinity are not NaN.
  __device__ __forceinline__ void absorb(float (&scores)[kStepKeys / 8][4], float (&out)[kSize / 8][4],
                                         float (&maximum)[2], float (&total)[2]) const {
    float factor[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float now = maximum[half];
#pragma unroll
      for (int i = 0; i < kStepKeys / 4; ++i) now = fmaxf(now, scores[i / 2][half * 2 + i % 2]);
      now = fmaxf(now, __shfl_xor_sync(~0u, now, 1));
      now = fmaxf(now, __shfl_xor_sync(~0u, now, 2));
      factor[half] = ptx::exp2(maximum[half] - now);
      float sum = 0;
#pragma unroll
      for (int i = 0; i < kStepKeys / 4; ++i) {
        float &score = scores[i / 2][half * 2 + i % 2];
        score = ptx::exp2(score - now);
        sum += score;
      }
      maximum[half] = now;
      total[half] = total[half] * factor[half] + sum;
    }
    // Maxima settle soon, and this is as much work as the rest of the softmax.
    if (!__any_sync(~0u, factor[0] != 1 || factor[1] != 1)) return;
#pragma unroll
    for (int j = 0; j < kSize / 8; ++j)
      out[j][0] *= factor[0], out[j][1] *= factor[0], out[j][2] *= factor[1], out[j][3] *= factor[1];
  }

  // ---- output -----------------------------------------------------------------------------------

  __device__ __forceinline__ void share(const float (&out)[kSize / 8][4], const float (&maximum)[2],
                                        const float (&total)[2]) const {
    float *const sums = reinterpret_cast<float *>(shared_);
    float2 *const stats = reinterpret_cast<float2 *>(sums + kSharedStats);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float sum = total[half];  // of the lane's own keys until here
      sum += __shfl_xor_sync(~0u, sum, 1);
      sum += __shfl_xor_sync(~0u, sum, 2);
      const int at = key_warp_ * kRows + tile_row(half);
      if (lane_ % 4 == 0) stats[at] = make_float2(maximum[half], sum);
#pragma unroll
      for (int j = 0; j < kSize / 8; ++j)
        *reinterpret_cast<float2 *>(sums + at * kSharedRow + j * 8 + lane_ % 4 * 2) =
            make_float2(out[j][half * 2], out[j][half * 2 + 1]);
    }
  }

  __device__ __forceinline__ void merge() const {
    const float *const shared_sums = reinterpret_cast<const float *>(shared_);
    const float2 *const stats = reinterpret_cast<const float2 *>(shared_sums + kSharedStats);
    const int chunk = threadIdx.x % kChunks;
    if (chunk * 8 >= p_.value_size) return;
#pragma unroll 1
    for (int row = threadIdx.x / kChunks; row < p_.rows; row += kRowStep) {
      float maximum = -FLT_MAX, total = 0, sums[8] = {};
#pragma unroll
      for (int w = 0; w < kKeyWarps; ++w) maximum = fmaxf(maximum, stats[w * kRows + row].x);
#pragma unroll
      for (int w = 0; w < kKeyWarps; ++w) {
        const float2 part = stats[w * kRows + row];
        const float factor = ptx::exp2(part.x - maximum);
        total += factor * part.y;
        add_chunk(sums, factor, shared_sums + (w * kRows + row) * kSharedRow + chunk * 8);
      }
      if (p_.splits == 1) {
        unit_.store(row, chunk, sums, maximum, total);
      } else {
        const int64_t at = static_cast<int64_t>(blockIdx.x) * p_.rows + row;
        store_chunk(p_.sums + at * p_.value_size + chunk * 8, sums);
        if (chunk == 0) reinterpret_cast<float2 *>(p_.stats)[at] = make_float2(maximum, total);
      }
    }
  }

  const bsrg_decode_params &p_;
  unsigned char *const shared_;
  const Unit<T> unit_;
  const int split_, lane_, row_warp_, key_warp_;
  int first_key_, steps_;
  const T *k_, *v_;  // not kMasked: the thread's chunk of the next tile's first row
  int key_head_;     // kMasked
  std::conditional_t<kMasked, KeyList<kKeys>, NoList> list_;
};

// One row of the results: warps deal the splits among themselves, lanes the chunks.
template <typename T>
__device__ __forceinline__ void combine(const bsrg_decode_params &p, float *shared) {
  const int unit_index = static_cast<int>(blockIdx.x) / p.rows, row = static_cast<int>(blockIdx.x) % p.rows;
  const int lane = threadIdx.x % 32, warp = ptx::warp_index();
  const int64_t first = static_cast<int64_t>(unit_index) * p.splits * p.rows + row;
  const float2 *const stats = reinterpret_cast<const float2 *>(p.stats) + first;
  float maximum = -FLT_MAX, total = 0, sums[8] = {};
  for (int s = lane; s < p.splits; s += 32) maximum = fmaxf(maximum, stats[s * p.rows].x);
#pragma unroll
  for (int bit = 16; bit > 0; bit /= 2) maximum = fmaxf(maximum, __shfl_xor_sync(~0u, maximum, bit));
  for (int s = lane; s < p.splits; s += 32) {
    const float2 part = stats[s * p.rows];
    total += ptx::exp2(part.x - maximum) * part.y;
  }
#pragma unroll
  for (int bit = 16; bit > 0; bit /= 2) total += __shfl_xor_sync(~0u, total, bit);

  const bool exists = lane * 8 < p.value_size;
  if (exists) {
#pragma unroll 4
    for (int s = warp; s < p.splits; s += BSRG_COMBINE_WARPS)
      add_chunk(sums, ptx::exp2(stats[s * p.rows].x - maximum),
                p.sums + (first + static_cast<int64_t>(s) * p.rows) * p.value_size + lane * 8);
  }
  store_chunk(shared + (warp * 32 + lane) * 8, sums);
  __syncthreads();
  if (warp != 0 || !exists) return;
#pragma unroll
  for (int w = 1; w < BSRG_COMBINE_WARPS; ++w) add_chunk(sums, 1, shared + (w * 32 + lane) * 8);
  Unit<T>(p, unit_index).store(row, lane, sums, maximum, total);
}

}  // namespace bsrg::decode

// One kernel, <prefix>_d<size>_r<rows>, a row of BSRG_DECODE_TILES.
#define BSRG_DECODE_KERNEL(prefix, type, size, rows, ctas)                            \
  extern "C" __global__ void __launch_bounds__(BSRG_DECODE_THREADS(size, rows), ctas) \
      prefix##_d##size##_r##rows(const __grid_constant__ bsrg_decode_params params) { \
    bsrg::ptx::follow_grid_before();                                                  \
    extern __shared__ __align__(128) unsigned char shared_memory[];                   \
    bsrg::decode::Kernel<type, size, rows, false>(params, shared_memory).run();       \
  }

// The same over the lists of masks.
#define BSRG_MASKED_DECODE_KERNEL(prefix, type, size, rows, ctas)                            \
  extern "C" __global__ void __launch_bounds__(BSRG_DECODE_THREADS(size, rows), ctas)        \
      prefix##_d##size##_r##rows(const __grid_constant__ bsrg_masked_decode_params params) { \
    bsrg::ptx::follow_grid_before();                                                         \
    extern __shared__ __align__(128) unsigned char shared_memory[];                          \
    __shared__ bsrg::decode::ListMemory list;                                                \
    bsrg::decode::Kernel<type, size, rows, true>(params, shared_memory, list).run();         \
  }

// The second pass, for keys in several splits: a CTA a row of the results.
#define BSRG_COMBINE_KERNEL(name, type)                                            \
  extern "C" __global__ void __launch_bounds__(32 * BSRG_COMBINE_WARPS)            \
      name(const __grid_constant__ bsrg_decode_params params) {                    \
    bsrg::ptx::follow_grid_before();                                               \
    extern __shared__ __align__(128) unsigned char shared_memory[];                \
    bsrg::decode::combine<type>(params, reinterpret_cast<float *>(shared_memory)); \
  }
