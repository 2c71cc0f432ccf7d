// BSR x BSR for blocks whose sides are multiples of 64, on Hopper (TMA, WGMMA, warp specialisation).
//
//   Y[128 rows, 256 columns]  =  sum over k  A block[64 rows each, 64 k] * B block[64 k, 64 or 128 columns each]
//
// A CTA walks the block columns of A in which its block rows and its block columns of B both have something. A stage
// brings 64 k of the blocks that are there, each once for all that they meet: A's strips of 64 rows, one a consumer
// warpgroup, and B's slots of 64 or 128 columns. A note with each stage says which came, and warpgroups multiply just
// these.
//
// Roles in a CTA of three warpgroups: warp 1 finds where operands meet, from masks of which blocks they store, and draws
// the tiles; warp 0 issues TMA loads for what it found; warpgroups 1 and 2 multiply and store. All meet only at
// mbarriers: `full` and `empty` a stage, `batch_full` and `batch_empty` a batch of meetings.
#pragma once

#include "ptx/convert.cuh"
#include "ptx/sync.cuh"
#include "ptx/tma.cuh"
#include "ptx/wgmma.cuh"
#include "sm90/pairs_layout.cuh"
#include "sm90/persistent.cuh"

namespace bsrg::pairs {

// kSlots: 2, of 128 columns each, for widths of B's blocks that are multiples of 128, else 4 of 64.
// kTransposedA, kTransposedB: the operand is a transposed view, blocks lie as they were stored before.
template <typename T, int kSlots, bool kTransposedA, bool kTransposedB>
struct Kernel {
  using L = Layout;
  using Stage = RingPosition<kStages>;
  using Slot = RingPosition<kBatchSlots>;
  static constexpr int kSlotPanels = kPanels / kSlots;
  static constexpr int kSlotN = kSlotPanels * kStrip;
  static constexpr int kSums = kSlotN / 2;  // of a thread
  static constexpr int kLines = kStrips + kSlots;

  const bsrg_pairs_params &p;
  const uint32_t shared;
  const int warp, lane;

  __device__ uint32_t full(int stage) const { return shared + L::kFull + 8 * stage; }
  __device__ uint32_t empty(int stage) const { return shared + L::kEmpty + 8 * stage; }
  __device__ uint32_t note(int stage) const { return shared + L::kNotes + 16 * stage; }
  __device__ uint32_t batch_full(int slot) const { return shared + L::kBatchFull + 8 * slot; }
  __device__ uint32_t batch_empty(int slot) const { return shared + L::kBatchEmpty + 8 * slot; }
  __device__ uint32_t header(int slot) const { return shared + L::kHeaders + 16 * slot; }
  __device__ uint32_t meeting(int slot, int i) const {
    return shared + L::kBatches + 32 * (slot * kBatch + i);
  }

  __device__ void init_barriers() const {
    for (int i = 0; i < kStages; ++i) {
      ptx::barrier_init(full(i), 1);
      ptx::barrier_init(empty(i), 8);  // each consumer warp: one that falls behind must still find the note
    }
    for (int i = 0; i < kBatchSlots; ++i) {
      ptx::barrier_init(batch_full(i), kBatch);  // each lane that writes
      ptx::barrier_init(batch_empty(i), 1);
    }
    ptx::barrier_init_fence();
  }

  // ---- finder: a warp ---------------------------------------------------------------------------

  // The block row, or block column, of part i of a tile; -1: it is beyond the last.
  __device__ int line(const bsrg_pairs_operand &of, int strip) const {
    return strip < of.strips ? strip / of.strips_per_block : -1;
  }

  __device__ void publish(Slot &slot, const Header &head, const int (&blocks)[kLines]) const {
    if (lane < kBatch) {
      ptx::barrier_wait(batch_empty(slot.slot), slot.parity);
      if (lane < head.count) {
        ptx::store_shared(meeting(slot.slot, lane), make_int4(blocks[0], blocks[1], blocks[2], blocks[3]));
        if constexpr (kSlots > 2)
          ptx::store_shared(meeting(slot.slot, lane) + 16, make_int4(blocks[4], blocks[5], 0, 0));
      }
      if (lane == 0)
        ptx::store_shared(header(slot.slot),
                          make_int4(head.count, head.ends, head.row_tile, head.column_tile));
      ptx::barrier_arrive(batch_full(slot.slot));
    }
    __syncwarp();
    slot.advance();
  }

  // The stored block of a line in word `word` of its mask and at bit `bit` there, or -1.
  __device__ int block_at(const bsrg_pairs_operand &of, int line, int word, uint32_t bits, int bit) const {
    if (!(bits >> bit & 1)) return -1;
    const int at =
        __ldg(of.first + static_cast<int64_t>(line) * p.words + word) + __popc(bits & ((1u << bit) - 1));
    return of.order ? __ldg(of.order + at) : at;
  }

  // All meetings of a tile. A lane has the masks of 32 block columns of A, then makes one meeting of a batch.
  __device__ void find_tile(int row_tile, int column_tile, Slot &slot) const {
    int lines[kLines];
#pragma unroll
    for (int i = 0; i < kLines; ++i)
      lines[i] = i < kStrips ? line(p.of_a, row_tile * kStrips + i)
                             : line(p.of_b, column_tile * kPanels + (i - kStrips) * kSlotPanels);
    int first_word = 0;
    do {
      const int word = first_word + lane;
      uint32_t bits[kLines], some_a = 0, some_b = 0;
#pragma unroll
      for (int i = 0; i < kLines; ++i) {
        const bsrg_pairs_operand &of = i < kStrips ? p.of_a : p.of_b;
        const bool exists = lines[i] >= 0 && word < p.words;
        bits[i] = exists ? __ldg(of.bits + static_cast<int64_t>(lines[i]) * p.words + word) : 0;
        (i < kStrips ? some_a : some_b) |= bits[i];
      }
      const uint32_t meet = some_a & some_b;
      const int count = __popc(meet);
      int through = count;  // of this lane and all before it
#pragma unroll
      for (int step = 1; step < 32; step *= 2) {
        const int before = __shfl_up_sync(~0u, through, step);
        if (lane >= step) through += before;
      }
      const int total = __shfl_sync(~0u, through, 31);
      const bool last_words = first_word + 32 >= p.words;
      const int batches = max((total + kBatch - 1) / kBatch, last_words ? 1 : 0);
      for (int batch = 0; batch < batches; ++batch) {
        const int number = min(batch * kBatch + lane, max(total - 1, 0));
        int from = 0;  // the lane that has this number's word
#pragma unroll
        for (int step = 16; step > 0; step /= 2)
          if (__shfl_sync(~0u, through, from + step - 1) <= number) from += step;
        const int rank = number - __shfl_sync(~0u, through - count, from & 31);
        const int bit = nth_bit(__shfl_sync(~0u, meet, from & 31), rank) & 31;
        int blocks[kLines];
#pragma unroll
        for (int i = 0; i < kLines; ++i) {
          const uint32_t mask = __shfl_sync(~0u, bits[i], from & 31);
          blocks[i] = block_at(i < kStrips ? p.of_a : p.of_b, lines[i], first_word + from, mask, bit);
        }
        const bool ends = last_words && batch == batches - 1;
        publish(slot, {min(kBatch, total - batch * kBatch), ends ? 1 : 0, row_tile, column_tile}, blocks);
      }
      first_word += 32;
    } while (first_word < p.words);
  }

  __device__ void find() const {
    const int tiles = p.row_tiles * p.column_tiles;
    Slot slot;
    slot.parity = 1;  // every slot starts out empty
    for (int t = blockIdx.x; t < tiles;) {
      const TilePosition at = tile_position(t, p.row_tiles, p.column_tiles, p.group, 0);
      find_tile(p.of_a.tiles ? __ldg(p.of_a.tiles + at.row) : at.row,
                p.of_b.tiles ? __ldg(p.of_b.tiles + at.column) : at.column, slot);
      // Not before: what is drawn early is missed where others run out of tiles.
      int next = 0;
      if (lane == 0) next = next_tile(p.counter, t, gridDim.x, tiles);
      t = __shfl_sync(~0u, next, 0);
    }
    const int none[kLines] = {};
    publish(slot, {0, -1, 0, 0}, none);
  }

  // ---- loader: one lane -------------------------------------------------------------------------

  // A tile as the loads see it: which strip of its block each part is.
  struct Strips {
    int of[kLines];
  };

  __device__ Strips strips_of(const Header &head) const {
    Strips strips;
#pragma unroll
    for (int i = 0; i < kLines; ++i)
      strips.of[i] =
          i < kStrips ? (head.row_tile * kStrips + i) % p.of_a.strips_per_block
                      : (head.column_tile * kPanels + (i - kStrips) * kSlotPanels) % p.of_b.strips_per_block;
    return strips;
  }

  // The part of a stored block that begins at a strip, at the 64 k numbered k.
  template <bool kContiguousK>
  __device__ void load(const bsrg_tensor_map &map, const bsrg_pairs_operand &of, uint32_t target, int block,
                       int strip, int k, uint32_t barrier) const {
    const int row = block * of.rows_per_block;
    if constexpr (kContiguousK)
      ptx::tma_load_3d(target, map, 0, row + strip * kStrip, k, barrier);
    else
      ptx::tma_load_3d(target, map, 0, row + k * kStrip, strip, barrier);
  }

  __device__ void fill(const Stage &stage, const Header &head, const Strips &strips,
                       const int (&blocks)[kLines], int k, int flags) const {
    int there = flags, bytes = 0;
#pragma unroll
    for (int i = 0; i < kLines; ++i) {
      if (blocks[i] < 0) continue;
      there |= 1 << i;
      bytes += i < kStrips ? L::kStripBytes : kSlotPanels * L::kStripBytes;
    }
    const uint32_t barrier = full(stage.slot);
    const uint32_t a = shared + L::kA + stage.slot * L::kStageA, b = shared + L::kB + stage.slot * L::kStageB;
    ptx::barrier_wait(empty(stage.slot), stage.parity);
    ptx::store_shared(note(stage.slot), make_int4(there, head.row_tile, head.column_tile, 0));
    ptx::barrier_arrive_expect(barrier, bytes);
#pragma unroll
    for (int i = 0; i < kLines; ++i) {
      if (blocks[i] < 0 || (i == 1 && p.of_a.joined)) continue;
      if (i < kStrips)
        load<!kTransposedA>(p.a, p.of_a, a + i * L::kStripBytes, blocks[i], strips.of[i], k, barrier);
      else
        load<kTransposedB>(p.b, p.of_b, b + (i - kStrips) * kSlotPanels * L::kStripBytes, blocks[i],
                           strips.of[i], k, barrier);
    }
  }

  __device__ void produce() const {
    Stage stage;
    stage.parity = 1;
    Slot slot;
    for (bool more = true; more; slot.advance()) {
      ptx::barrier_wait(batch_full(slot.slot), slot.parity);
      const int4 h = ptx::load_shared_int4(header(slot.slot));
      const Header head = {h.x, h.y, h.z, h.w};
      const Strips strips = strips_of(head);
      more = head.ends >= 0;
      for (int i = 0; i < head.count; ++i) {
        int blocks[kLines];
        const int4 low = ptx::load_shared_int4(meeting(slot.slot, i));
        blocks[0] = low.x, blocks[1] = low.y, blocks[2] = low.z, blocks[3] = low.w;
        if constexpr (kSlots > 2) {
          const int4 high = ptx::load_shared_int4(meeting(slot.slot, i) + 16);
          blocks[4] = high.x, blocks[5] = high.y;
        }
        const bool final = head.ends && i == head.count - 1;
        for (int k = 0; k < p.steps; ++k, stage.advance())
          fill(stage, head, strips, blocks, k, final && k == p.steps - 1 ? kLast : 0);
      }
      ptx::barrier_arrive(batch_empty(slot.slot));
      if (head.ends && head.count == 0) {  // a tile ends without another stage, or all do
        int none[kLines];
#pragma unroll
        for (int i = 0; i < kLines; ++i) none[i] = -1;
        fill(stage, head, strips, none, 0, more ? kLast : kStop);
        stage.advance();
      }
    }
    wait_until_released(empty(0), stage);
  }

  // ---- consumers: one warpgroup a strip ---------------------------------------------------------

  // The lane that reads a note is the one that arrives, so that racecheck sees that the next note comes after.
  __device__ void release_stage(int stage) const {
    __syncwarp();
    if (lane == 0) ptx::barrier_arrive(empty(stage));
  }

  __device__ void multiply(float (&d)[kSums], int strip, int slot, int stage, bool accumulate) const {
    // Rows of 128 bytes in groups of 8, along k or across it. Descriptors count 16 bytes: the next k16 is 32 bytes of a
    // row further, or 16 rows.
    constexpr int kNextA = kTransposedA ? 128 : 2, kNextB = kTransposedB ? 2 : 128;
    const uint64_t a = ptx::matrix_descriptor(shared + L::kA + stage * L::kStageA + strip * L::kStripBytes,
                                              L::kStripBytes, 1024, ptx::Swizzle::k128);
    const uint64_t b =
        ptx::matrix_descriptor(shared + L::kB + stage * L::kStageB + slot * kSlotPanels * L::kStripBytes,
                               L::kStripBytes, 1024, ptx::Swizzle::k128);
    ptx::warpgroup_fence();
#pragma unroll
    for (int k = 0; k < kStrip / 16; ++k)
      ptx::Wgmma<T, kSlotN, kTransposedA, !kTransposedB>::run(d, a + kNextA * k, b + kNextB * k,
                                                              accumulate || k > 0);
    ptx::warpgroup_commit();
  }

  // One tile into d, parts that nothing meets as zeros; false behind the last tile. On return all stages have been
  // released, d may be read, and lane 0 has the last note.
  __device__ bool accumulate(float (&d)[kSlots][kSums], int strip, Stage &stage, int4 &last) const {
    int started = 0;
    for (bool more = true; more;) {
      ptx::barrier_wait(full(stage.slot), stage.parity);
      int4 n = make_int4(0, 0, 0, 0);
      if (lane == 0) n = ptx::load_shared_int4(note(stage.slot));
      // The votes tell ptxas that the branches are uniform: without them it serialises every WGMMA (C7520).
      if (__any_sync(~0u, n.x & kStop)) {
        release_stage(stage.slot);
        return false;
      }
      more = !__any_sync(~0u, n.x & kLast);
      last = n;
      if (__any_sync(~0u, n.x >> strip & 1)) {
#pragma unroll
        for (int s = 0; s < kSlots; ++s) {
          if (__any_sync(~0u, n.x >> (kStrips + s) & 1)) {
            multiply(d[s], strip, s, stage.slot, started >> s & 1);
            started |= 1 << s;
          }
        }
        ptx::warpgroup_wait<0>();
      }
      release_stage(stage.slot);
      stage.advance();
    }
    ptx::warpgroup_wait<
        0>();  // once more: without it ptxas serialises WGMMAs, as zeros are written below (C7515)
#pragma unroll
    for (int s = 0; s < kSlots; ++s) {
      if (started >> s & 1) continue;
#pragma unroll
      for (int i = 0; i < kSums; ++i) d[s][i] = 0.f;
    }
    return true;
  }

  // d = alpha * d + beta * C for the first row and column of a thread's sums.
  __device__ void scale_and_add(float (&d)[kSums], int row, int column) const {
    const T *c = static_cast<const T *>(p.c) + row * p.c_row_stride + column * p.c_col_stride;
#pragma unroll
    for (int i = 0; i < kSums; i += 2) {
      d[i] *= p.alpha;
      d[i + 1] *= p.alpha;
      const int right = i / 4 * 8;
      // Sides are multiples of 64: a warp's 16 rows exist or do not, as do neighbouring columns.
      if (p.beta == 0.f || column + right >= p.columns) continue;
      const T *at = c + i / 2 % 2 * 8 * p.c_row_stride + right * p.c_col_stride;
      float2 old;
      if (p.c_in_pairs)
        old = ptx::unpack<T>(*reinterpret_cast<const uint32_t *>(at));
      else
        old = make_float2(static_cast<float>(at[0]), static_cast<float>(at[p.c_col_stride]));
      d[i] = fmaf(p.beta, old.x, d[i]);
      d[i + 1] = fmaf(p.beta, old.y, d[i + 1]);
    }
  }

  // Panel `panel` of a slot: 16 rows x 64 columns of a warp's sums, rounded and stored.
  __device__ void store_piece(const float (&d)[kSums], int panel, int row, int column, uint32_t buffer,
                              uint64_t policy) const {
    const int matrix = lane >> 3;
    const int piece_row = (matrix & 1) * 8 + (lane & 7);
    if (lane == 0) ptx::bulk_wait_read<1>();  // the store before the previous one has left this buffer
    __syncwarp();
#pragma unroll
    for (int j = 0; j < 8; j += 2) {
      const float *v = d + (panel * 8 + j) * 4;  // column group j, then j + 1: rows 0-7, rows 8-15
      // 128-byte swizzle: 16-byte chunk c of row r lies at chunk c ^ (r % 8).
      const int chunk = (j + (matrix >> 1)) ^ (piece_row & 7);
      ptx::store_matrix_x4(buffer + piece_row * 128 + chunk * 16, ptx::pack<T>(v[0], v[1]),
                           ptx::pack<T>(v[2], v[3]), ptx::pack<T>(v[4], v[5]), ptx::pack<T>(v[6], v[7]));
    }
    ptx::fence_async_proxy();
    __syncwarp();
    if (lane == 0) {
      ptx::tma_store_2d(p.y, buffer, column, row, policy);
      ptx::bulk_commit();
    }
  }

  __device__ void consume() const {
    const int strip = warp / 4 - 1;
    const uint32_t buffers = shared + L::kOutput + (warp - 4) * 2 * L::kPieceBytes;
    const uint64_t stream_out = ptx::policy_evict_first();
    float d[kSlots][kSums];
    Stage stage;
    int4 last;
    while (accumulate(d, strip, stage, last)) {
      const int row = (__shfl_sync(~0u, last.y, 0) * kStrips + strip) * kStrip + (warp & 3) * 16;
      const int column = __shfl_sync(~0u, last.z, 0) * (kPanels * kStrip);
      if (row >= p.rows) continue;
      if (p.alpha != 1.f || p.beta != 0.f) {
#pragma unroll
        for (int s = 0; s < kSlots; ++s)
          scale_and_add(d[s], row + (lane >> 2), column + s * kSlotN + 2 * (lane & 3));
      }
#pragma unroll
      for (int i = 0; i < kPanels; ++i)  // all of them, so that buffers alternate; TMA clips
        store_piece(d[i / kSlotPanels], i % kSlotPanels, row, column + i * kStrip,
                    buffers + (i & 1) * L::kPieceBytes, stream_out);
    }
    if (lane == 0) ptx::bulk_wait<0>();
  }

  __device__ void run() const {
    if (threadIdx.x == 0) init_barriers();
    __syncthreads();
    ptx::follow_grid_before();
    if (warp < 4) {
      if (warp == 0 && lane == 0) produce();
      if (warp == 1) find();
      __syncwarp();
    } else {
      consume();
    }
  }
};

template <typename T, int kSlots, bool kTransposedA, bool kTransposedB>
__device__ __forceinline__ void run(const bsrg_pairs_params &params) {
  extern __shared__ char raw[];
  const uint32_t shared = (ptx::shared_address(raw) + 1023) & ~1023u;
  const Kernel<T, kSlots, kTransposedA, kTransposedB> kernel{params, shared, ptx::warp_index(),
                                                             static_cast<int>(threadIdx.x & 31)};
  kernel.run();
}

}  // namespace bsrg::pairs

// In the names: s2 or s4, the slots; nn, tn, nt, tt: t where an operand is a transposed view.
#define BSRG_PAIRS_KERNEL(NAME, T, SLOTS, SUFFIX, A, B)                         \
  extern "C" __global__ void __launch_bounds__(BSRG_PAIRS_THREADS, 1)           \
      NAME##_s##SLOTS##_##SUFFIX(const __grid_constant__ bsrg_pairs_params p) { \
    bsrg::pairs::run<T, SLOTS, A, B>(p);                                        \
  }
#define BSRG_PAIRS_KERNELS(NAME, T, SLOTS)            \
  BSRG_PAIRS_KERNEL(NAME, T, SLOTS, nn, false, false) \
  BSRG_PAIRS_KERNEL(NAME, T, SLOTS, tn, true, false)  \
  BSRG_PAIRS_KERNEL(NAME, T, SLOTS, nt, false, true)  \
  BSRG_PAIRS_KERNEL(NAME, T, SLOTS, tt, true, true)
