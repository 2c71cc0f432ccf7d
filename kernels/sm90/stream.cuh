// BSR x dense for blocks of few rows, on Hopper: compacted streaming.
//
// A CTA owns an output tile, 4 warpgroups of up to 64 rows by 128 columns, and streams through shared memory only
// those rows of X that some block of the tile meets, together with the blocks that meet them, packed in the order
// of use. X is read once a tile however many blocks there are.
//
// The product is computed transposed: 64 columns of X are the M side of a WGMMA and its left operand, a block is
// the N side, so any height that is a multiple of 8 fits. A warpgroup goes through the slots of a stage (a slot:
// the rows of X of one block column), loads a slot's X into registers once, and multiplies all of its blocks in
// that column. With X read from shared memory by every WGMMA instead, that read would take most of the
// shared-memory cycles: 16 of 20 for a 16 x 16 block, 32 of 48 for 32 x 32.
//
// With kCluster == 2 a pair of CTAs computes tiles one above the other: each loads every second slot of X for both,
// which a third to a half of all reads from L2 are saved by. What one of them alone needs of X, the other lets pass.
//
// Which slot meets which block row is decided by the plan and travels with each stage: bsrg_stream_stage.
#pragma once

#include "params.h"
#include "ptx/convert.cuh"
#include "ptx/sync.cuh"
#include "ptx/tma.cuh"
#include "ptx/wgmma.cuh"
#include "ptx/wgmma_small.cuh"
#include "sm90/persistent.cuh"

namespace bsrg::stream {

constexpr int kGroups = BSRG_STREAM_GROUPS;
constexpr int kTileN = BSRG_STREAM_TILE_N;
constexpr int kStages = BSRG_STREAM_STAGES;
constexpr int kStageBytes = BSRG_STREAM_STAGE_BYTES;
constexpr int kMessageSlots = 2;
constexpr int kPanel = 64;               // columns of X in one 128-byte swizzle atom
constexpr int kLoaders = 2;              // warps that load X, a panel each
constexpr int kConsumerRegisters = 112;  // of 96 that each of 640 threads starts with
constexpr int kProducerRegisters = 32;

// Shared memory, in bytes from a 1024-byte boundary. Stages come first: swizzled tiles need the alignment.
struct Layout {
  static constexpr int kRecordBytes = sizeof(bsrg_stream_work);
  static constexpr int kPieceBytes = 512;  // 16 x 16 outputs of one warp
  static constexpr int kRecord = kStages * kStageBytes;
  static constexpr int kOutput = kRecord + kStages * kRecordBytes;
  static constexpr int kFull = kOutput + 4 * kGroups * kPieceBytes;
  static constexpr int kEmpty = kFull + 8 * kStages;
  static constexpr int kTileFull = kEmpty + 8 * kStages;
  static constexpr int kTileEmpty = kTileFull + 8 * kMessageSlots;
  static constexpr int kMessage = kTileEmpty + 8 * kMessageSlots;
  static constexpr int kEnd = kMessage + 16 * kMessageSlots;
  static_assert(kRecordBytes % 16 == 0 && kMessage % 16 == 0, "16-byte copies");
  static_assert(kEnd + 1024 <= BSRG_STREAM_SHARED_BYTES, "the host reserves too little");
};

// What the scheduler tells the other roles about a tile.
struct Message {
  int stage_begin, stage_count, row_begin, n_tile;
  __device__ bool last() const { return n_tile < 0; }
};

template <typename T, int kHeight, int kWidth, int kCluster>
struct Kernel {
  using L = Layout;
  using Stage = RingPosition<kStages>;
  using Slot = RingPosition<kMessageSlots>;
  static constexpr int kRows = BSRG_STREAM_GROUP_ROWS / kHeight;  // block rows of a warpgroup
  static constexpr int kBlockBytes = kHeight * kWidth * 2;
  static constexpr int kPanelBytes = kWidth * kPanel * 2;  // half a slot: 64 columns
  static constexpr int kSlotBytes = 2 * kPanelBytes;
  static constexpr int kSteps16 = kWidth / 16;
  static constexpr int kSums = kHeight / 2;
  // A warpgroup with one block row uses a slot once: X need not pass through registers.
  static constexpr bool kDirect = kRows == 1;
  static constexpr int kChunk = 2 / kSteps16;  // slots whose X is in registers together: 16 of them
  using Sums = float[kRows][2][kSums];
  using Fragment = uint32_t[2][kSteps16][4];  // of X: kWidth rows, 16 columns of each panel

  const bsrg_stream_params &p;
  const uint32_t shared;
  const int warp, lane, rank;

  __device__ uint32_t full(int stage) const { return shared + L::kFull + 8 * stage; }
  __device__ uint32_t empty(int stage) const { return shared + L::kEmpty + 8 * stage; }
  __device__ uint32_t tile_full(int slot) const { return shared + L::kTileFull + 8 * slot; }
  __device__ uint32_t tile_empty(int slot) const { return shared + L::kTileEmpty + 8 * slot; }
  __device__ uint32_t message(int slot) const { return shared + L::kMessage + 16 * slot; }
  __device__ uint32_t stage_data(int stage) const { return shared + stage * kStageBytes; }
  __device__ uint32_t record(int stage) const { return shared + L::kRecord + stage * L::kRecordBytes; }

  __device__ void init_barriers() const {
    for (int i = 0; i < kStages; ++i) {
      ptx::barrier_init(full(i), 1 + kLoaders);
      ptx::barrier_init(empty(i), 4 * kGroups * kCluster);  // every warp of every CTA that reads the slot
    }
    for (int i = 0; i < kMessageSlots; ++i) {
      ptx::barrier_init(tile_full(i), 1);
      ptx::barrier_init(tile_empty(i), (kGroups + 1 + kLoaders) * kCluster);
    }
    ptx::barrier_init_fence();
  }

  __device__ Message receive(const Slot &slot) const {
    ptx::barrier_wait(tile_full(slot.slot), slot.parity);
    const int4 m = ptx::load_shared_int4(message(slot.slot));
    return {m.x, m.y, m.z, m.w};
  }

  // The scheduler sits in rank 0 and waits there for all readers.
  __device__ void release_message(const Slot &slot) const {
    if constexpr (kCluster > 1)
      ptx::barrier_arrive_cluster(ptx::map_to_rank(tile_empty(slot.slot), 0));
    else
      ptx::barrier_arrive(tile_empty(slot.slot));
  }

  // By every lane of a warp.
  __device__ void release_stage(int stage) const {
    if constexpr (kCluster > 1) {
      if (lane < kCluster) ptx::barrier_arrive_cluster(ptx::map_to_rank(empty(stage), lane));
    } else {
      if (lane == 0) ptx::barrier_arrive(empty(stage));
    }
  }

  // ---- scheduler: one lane of rank 0 ------------------------------------------------------------

  __device__ void send(const Slot &slot, const int4 &m) const {
    if constexpr (kCluster > 1) {
      for (int r = 0; r < kCluster; ++r) {
        const uint32_t barrier = ptx::map_to_rank(tile_full(slot.slot), r);
        ptx::barrier_arrive_expect_cluster(barrier, 16);
        ptx::store_async(ptx::map_to_rank(message(slot.slot), r), m, barrier);
      }
    } else {
      ptx::store_shared(message(slot.slot), m);
      ptx::barrier_arrive(tile_full(slot.slot));
    }
  }

  __device__ void schedule() const {
    const int clusters = gridDim.x / kCluster;
    const int tiles = p.tile_count * p.n_tile_count;
    Slot slot;
    slot.parity = 1;  // every slot starts out empty
    int t = blockIdx.x / kCluster;
    for (;; slot.advance()) {
      ptx::barrier_wait(tile_empty(slot.slot), slot.parity);
      if (t >= tiles) break;
      const TilePosition at = tile_position(t, p.tile_count, p.n_tile_count, p.group);
      int4 m = __ldg(reinterpret_cast<const int4 *>(p.tiles) + at.row);
      m.w = at.column;
      send(slot, m);
      t = next_tile(p.counter, t, clusters, tiles);
    }
    send(slot, make_int4(0, 0, 0, -1));
    slot.advance();
    wait_until_released(tile_empty(0), slot);
  }

  // ---- producers --------------------------------------------------------------------------------

  // One lane: the blocks of a stage and its record, one bulk copy each.
  __device__ void load_blocks() const {
    Stage stage;
    stage.parity = 1;
    for (Slot slot;; slot.advance()) {
      const Message m = receive(slot);
      release_message(slot);
      if (m.last()) break;
      const bsrg_stream_stage *stages = p.stages + m.stage_begin;
      // One record ahead: a global load in this lane's path would cost 0.3 us a stage.
      int2 next =
          m.stage_count > 0 ? __ldg(reinterpret_cast<const int2 *>(&stages->work[rank])) : make_int2(0, 0);
      for (int i = 0; i < m.stage_count; ++i, stage.advance()) {
        const int bytes = next.y * kBlockBytes;
        const char *source = static_cast<const char *>(p.packed) + static_cast<int64_t>(next.x) * kBlockBytes;
        if (i + 1 < m.stage_count) next = __ldg(reinterpret_cast<const int2 *>(&stages[i + 1].work[rank]));
        ptx::barrier_wait(empty(stage.slot), stage.parity);
        ptx::barrier_arrive_expect(full(stage.slot), bytes + L::kRecordBytes);
        ptx::bulk_load(record(stage.slot), &stages[i].work[rank], L::kRecordBytes, full(stage.slot));
        if (bytes > 0)
          ptx::bulk_load(stage_data(stage.slot) + kStageBytes - bytes, source, bytes, full(stage.slot));
      }
    }
    if constexpr (kCluster > 1) wait_until_released(empty(0), stage);
  }

  __device__ void load_panel(int slot, int panel, int stage, int column, int row) const {
    const uint32_t target = stage_data(stage) + slot * kSlotBytes + panel * kPanelBytes;
    if constexpr (kCluster > 1) {
      if (slot % kCluster == rank) ptx::tma_load_2d_multicast(target, p.x, column, row, full(stage), 3);
    } else {
      ptx::tma_load_2d(target, p.x, column, row, full(stage));
    }
  }

  // A warp: one panel of each slot of X, one lane a slot.
  __device__ void load_x(int panel) const {
    Stage stage;
    stage.parity = 1;
    const int mine = min(lane, BSRG_STREAM_SLOTS - 1);
    for (Slot slot;; slot.advance()) {
      const Message m = receive(slot);
      __syncwarp();
      if (lane == 0) release_message(slot);
      if (m.last()) return;
      const int column = m.n_tile * kTileN + panel * kPanel;
      const bsrg_stream_stage *stages = p.stages + m.stage_begin;
      int next_count = 0, next_row = 0;
      if (m.stage_count > 0) {
        next_count = __ldg(&stages->x_count);
        next_row = __ldg(&stages->x_row[mine]);
      }
      for (int i = 0; i < m.stage_count; ++i, stage.advance()) {
        const int count = next_count, row = next_row;
        if (i + 1 < m.stage_count) {
          next_count = __ldg(&stages[i + 1].x_count);
          next_row = __ldg(&stages[i + 1].x_row[mine]);
        }
        ptx::barrier_wait(empty(stage.slot), stage.parity);
        // Of both CTAs' loads: all of the slots arrive here.
        if (lane == 0) ptx::barrier_arrive_expect(full(stage.slot), count * kPanelBytes);
        __syncwarp();
        if (lane < count) load_panel(lane, panel, stage.slot, column, row);
      }
    }
  }

  // ---- consumers --------------------------------------------------------------------------------

  // This warp's columns of a slot of X. Rows are 128 bytes, swizzled: 16-byte chunk c of row k lies at chunk
  // c ^ (k % 8). Matrices of ldmatrix: both halves of the columns, then the next 8 rows.
  __device__ void load_fragment(Fragment &x, uint32_t data, uint32_t step) const {
    const int chunk = 2 * (warp & 3) + (lane >> 3 & 1);
    const uint32_t mine = ((lane >> 4) * 8 + (lane & 7)) * 128 + ((chunk ^ (lane & 7)) << 4);
    const uint32_t slot = data + (step >> 16) * kSlotBytes;
#pragma unroll
    for (int panel = 0; panel < 2; ++panel)
#pragma unroll
      for (int k = 0; k < kSteps16; ++k)
        ptx::load_matrix_x4_transposed(x[panel][k], slot + mine + panel * kPanelBytes + k * (16 * 128));
  }

  // All blocks of this warpgroup that meet a slot. `block`: the low word of the first one's descriptor, left at
  // the next slot's.
  __device__ void multiply_step(Sums &d, const Fragment &x, uint32_t step, uint32_t &block) const {
    // 8 x 8 core matrices of 128 bytes, all rows of one 8 k, then the next 8 k. Only the descriptor's low word
    // moves: 32-bit sums stay in uniform registers.
    constexpr uint64_t kHigh = static_cast<uint64_t>(128 >> 4) << 32;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (step >> r & 1) {
        ptx::warpgroup_fence();
#pragma unroll
        for (int k = 0; k < kSteps16; ++k)
#pragma unroll
          for (int panel = 0; panel < 2; ++panel)
            ptx::WgmmaSmall<T, kHeight>::run(d[r][panel], x[panel][k],
                                             kHigh | (block + k * (kHeight * 32 >> 4)));
        block += kBlockBytes >> 4;
      }
    }
  }

  // The same with X read from shared memory.
  __device__ void multiply_step(Sums &d, uint32_t x, uint32_t step, uint32_t &block) const {
    constexpr uint64_t kHigh = static_cast<uint64_t>(128 >> 4) << 32;
    constexpr uint64_t kHighX = static_cast<uint64_t>(1024 >> 4 | 1u << 30) << 32;
    x += (step >> 16) * (kSlotBytes >> 4);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (step >> r & 1) {
        ptx::warpgroup_fence();
#pragma unroll
        for (int k = 0; k < kSteps16; ++k)
#pragma unroll
          for (int panel = 0; panel < 2; ++panel)
            ptx::WgmmaSmall<T, kHeight>::run(d[r][panel],
                                             kHighX | (x + panel * (kPanelBytes >> 4) + k * (16 * 128 >> 4)),
                                             kHigh | (block + k * (kHeight * 32 >> 4)));
        block += kBlockBytes >> 4;
      }
    }
  }

  __device__ void multiply_stage(Sums &d, int group, int stage) const {
    const uint32_t rec = record(stage), data = stage_data(stage);
    const uint32_t steps_at = rec + offsetof(bsrg_stream_work, step) + group * 4 * (BSRG_STREAM_SLOTS + 2);
    // The shuffles tell the compiler that these are uniform.
    auto load = [](uint32_t address) { return __shfl_sync(~0u, ptx::load_shared_int(address), 0); };
    const int steps = load(rec + offsetof(bsrg_stream_work, group_steps) + 4 * group);
    const int before = load(rec + offsetof(bsrg_stream_work, group_begin) + 4 * group);
    const int count = load(rec + offsetof(bsrg_stream_work, a_count));
    uint32_t block = static_cast<uint32_t>(ptx::matrix_descriptor(
        data + kStageBytes - (count - before) * kBlockBytes, kHeight * 16, 128, ptx::Swizzle::kNone));
    if constexpr (kDirect) {
      const uint32_t x = static_cast<uint32_t>(ptx::matrix_descriptor(data, 16, 1024, ptx::Swizzle::k128));
      uint32_t step = load(steps_at);
      for (int i = 0; i < steps; ++i) {
        const uint32_t next = load(steps_at + 4 * i + 4);
        multiply_step(d, x, step, block);
        step = next;
      }
      ptx::warpgroup_fence();
      ptx::warpgroup_commit();
      ptx::warpgroup_wait<0>();
    } else {
      uint32_t step[kChunk];
#pragma unroll
      for (int j = 0; j < kChunk; ++j) step[j] = load(steps_at + 4 * j);
      for (int i = 0; i < steps; i += kChunk) {
        Fragment x[kChunk];
#pragma unroll
        for (int j = 0; j < kChunk; ++j) load_fragment(x[j], data, step[j]);
#pragma unroll
        for (int j = 0; j < kChunk; ++j) multiply_step(d, x[j], step[j], block);
        ptx::warpgroup_fence();
        ptx::warpgroup_commit();
#pragma unroll
        for (int j = 0; j < kChunk; ++j) step[j] = load(steps_at + 4 * (i + kChunk + j));
        ptx::warpgroup_wait<0>();
      }
    }
  }

  // 16 rows (or the last 8 of a block) x this warp's 16 columns of a panel at a time, transposed in shared memory. kScale:
  // alpha or beta matter.
  template <bool kScale>
  __device__ void store(const Sums &d, int row_begin, int column, uint32_t buffer) const {
    // Of the piece in memory: two lanes a row. In the buffer: the matrices of ldmatrix and stmatrix are both halves
    // of the columns, then the next 8 rows.
    constexpr int kPieces = (kHeight + 15) / 16;
    const int my_row = lane >> 1;
    const uint32_t in_rows = buffer + my_row * 32 + (lane & 1) * 16;
    const uint32_t in_matrices = buffer + ((lane & 7) + (lane >> 4) * 8) * 32 + (lane >> 3 & 1) * 16;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int block_row = __ldg(p.rows + row_begin + r);
      if (block_row < 0) continue;
#pragma unroll
      for (int piece = 0; piece < 2 * kPieces; ++piece) {
        constexpr int kLast = kHeight / 8 - 1;
        const int panel = piece / kPieces, j = piece % kPieces * 2;
        const int my_column = column + panel * kPanel + (lane & 1) * 8;
        const int64_t row = block_row + j * 8 + my_row;
        const bool mine = my_column < p.n && (j < kLast || lane < 16);
        float v[8];
#pragma unroll
        for (int i = 0; i < 8; ++i) v[i] = i < 4 || j < kLast ? d[r][panel][4 * j + i] : 0.f;
        if constexpr (kScale) {
#pragma unroll
          for (int i = 0; i < 8; ++i) v[i] *= p.alpha;
          if (p.beta != 0.f) {
            const T *c = static_cast<const T *>(p.c) + row * p.c_row_stride + my_column;
            __syncwarp();
            ptx::store_shared(in_rows, mine ? *reinterpret_cast<const int4 *>(c) : make_int4(0, 0, 0, 0));
            __syncwarp();
            uint32_t old[4];
            ptx::load_matrix_x4_transposed(old, in_matrices);
#pragma unroll
            for (int i = 0; i < 4; ++i) {
              const float2 pair = ptx::unpack<T>(old[i]);
              v[2 * i] = fmaf(p.beta, pair.x, v[2 * i]);
              v[2 * i + 1] = fmaf(p.beta, pair.y, v[2 * i + 1]);
            }
          }
        }
        __syncwarp();
        ptx::store_matrix_x4_transposed(in_matrices, ptx::pack<T>(v[0], v[1]), ptx::pack<T>(v[2], v[3]),
                                        ptx::pack<T>(v[4], v[5]), ptx::pack<T>(v[6], v[7]));
        __syncwarp();
        const int4 out = ptx::load_shared_int4(in_rows);
        if (mine) *reinterpret_cast<int4 *>(static_cast<T *>(p.y) + row * p.y_row_stride + my_column) = out;
      }
    }
  }

  __device__ void consume() const {
    const int group = warp / 4;
    const uint32_t buffer = shared + L::kOutput + warp * L::kPieceBytes;
    Stage stage;
    Sums d;
    for (Slot slot;; slot.advance()) {
      const Message m = receive(slot);
      ptx::named_barrier_sync(1 + group, 128);  // all four warps have read the message
      if ((threadIdx.x & 127) == 0) release_message(slot);
      if (m.last()) return;
#pragma unroll
      for (int r = 0; r < kRows; ++r)
#pragma unroll
        for (int i = 0; i < 2 * kSums; ++i) d[r][i / kSums][i % kSums] = 0.f;
      for (int i = 0; i < m.stage_count; ++i, stage.advance()) {
        ptx::barrier_wait(full(stage.slot), stage.parity);
        multiply_stage(d, group, stage.slot);
        // Warp by warp: in a stage without blocks for its warpgroup no WGMMA holds the four warps together, and
        // one that falls behind must still find the stage's record.
        __syncwarp();
        release_stage(stage.slot);
      }
      const int column = m.n_tile * kTileN + (warp & 3) * 16;
      const int rows = m.row_begin + (rank * kGroups + group) * kRows;
      if (p.alpha != 1.f || p.beta != 0.f)
        store<true>(d, rows, column, buffer);
      else
        store<false>(d, rows, column, buffer);
    }
  }

  __device__ void run() const {
    if (threadIdx.x == 0) init_barriers();
    if constexpr (kCluster > 1)
      ptx::cluster_sync();
    else
      __syncthreads();

    if (warp < 4 * kGroups) {
      ptx::take_registers<kConsumerRegisters>();
      consume();
    } else {
      ptx::give_back_registers<kProducerRegisters>();
      const int role = warp - 4 * kGroups;
      if (role < kLoaders) load_x(role);
      if (role == kLoaders && lane == 0) load_blocks();
      if (role == kLoaders + 1 && lane == 0 && rank == 0) schedule();
      __syncwarp();
    }
    // No CTA may exit while its peer can still write into its shared memory or arrive at its barriers.
    if constexpr (kCluster > 1) ptx::cluster_sync();
  }
};

template <typename T, int kHeight, int kWidth, int kCluster>
__device__ __forceinline__ void run(const bsrg_stream_params &params) {
  extern __shared__ char raw[];
  const uint32_t shared = (ptx::shared_address(raw) + 1023) & ~1023u;
  Kernel<T, kHeight, kWidth, kCluster>{params, shared, ptx::warp_index(), static_cast<int>(threadIdx.x & 31),
                                       kCluster > 1 ? static_cast<int>(ptx::cluster_rank()) : 0}
      .run();
}

}  // namespace bsrg::stream

#define BSRG_STREAM_KERNEL(NAME, T, HEIGHT, WIDTH, CLUSTER)                                  \
  extern "C" __global__ void __launch_bounds__(BSRG_STREAM_THREADS, 1)                       \
      NAME##_##HEIGHT##x##WIDTH##_c##CLUSTER(const __grid_constant__ bsrg_stream_params p) { \
    bsrg::stream::run<T, HEIGHT, WIDTH, CLUSTER>(p);                                         \
  }
