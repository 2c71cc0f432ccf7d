// BSR x dense for blocks of few rows, on Hopper: compacted streaming.
//
// A CTA owns an output tile, 4 warpgroups of up to 64 rows by 128 columns, and streams through shared memory only
// those rows of X that some block of the tile meets, together with the blocks that meet them, packed in the order
// of use. X is read once a tile however many blocks there are.
//
// The product is computed transposed: 64 columns of X are the M side of a WGMMA and its left operand, a block is
// the N side, so any height that is a multiple of 8 fits. A stage brings slots, each the rows of X of one block column,
// and a warpgroup multiplies them by its blocks in two ways. Block row by block row, X read from shared memory by every
// WGMMA: no instruction waits and little is decided, but of the 20 shared-memory cycles of a 16 x 16 block X takes 16.
// And slot by slot, X in registers, for slots that several of the warpgroup's block rows share.
//
// Which block is multiplied which way is decided by the plan and travels with each stage: bsrg_stream_stage.
#pragma once

#include "output.cuh"
#include "params.h"
#include "ptx/convert.cuh"
#include "ptx/sync.cuh"
#include "ptx/tma.cuh"
#include "ptx/wgmma.cuh"
#include "ptx/wgmma_small.cuh"
#include "sm90/persistent.cuh"
#include "sm90/stream_layout.cuh"

namespace bsrg::stream {

// kFused: with bsrg_stream_params.output. A kernel of its own, because the others have no registers left for it.
template <typename T, int kHeight, int kWidth, bool kFused>
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
  static_assert(kRows <= BSRG_STREAM_MOST_ROWS, "a stage's record has no more");
  // So that a fragment of X pays. Of one or two, each multiplies all of its blocks from shared memory.
  static constexpr bool kManyRows = kRows > 2;
  // Not where registers are worth more than the time that it saves.
  static constexpr bool kRowsEarly = !kFused && kRows <= 4;
  using Sums = float[kRows][2][kSums];
  using Fragment = uint32_t[2][4];  // of X: 16 rows, 16 columns of each panel

  const bsrg_stream_params &p;
  const uint32_t shared;
  const int warp, lane;

  __device__ uint32_t full(int stage) const { return shared + L::kFull + 8 * stage; }
  __device__ uint32_t empty(int stage) const { return shared + L::kEmpty + 8 * stage; }
  __device__ uint32_t tile_full(int slot) const { return shared + L::kTileFull + 8 * slot; }
  __device__ uint32_t tile_empty(int slot) const { return shared + L::kTileEmpty + 8 * slot; }
  __device__ uint32_t message(int slot) const { return shared + L::kMessage + 16 * slot; }
  __device__ uint32_t wanted() const { return shared + L::kWanted; }
  __device__ uint32_t stage_data(int stage) const { return shared + stage * kStageBytes; }
  __device__ uint32_t record(int stage) const { return shared + L::kRecord + stage * L::kRecordBytes; }

  __device__ void init_barriers() const {
    for (int i = 0; i < kStages; ++i) {
      ptx::barrier_init(full(i), 1 + kLoaders);
      ptx::barrier_init(empty(i), 128 * kGroups);
    }
    for (int i = 0; i < kMessageSlots; ++i) {
      ptx::barrier_init(tile_full(i), 1);
      ptx::barrier_init(tile_empty(i), 4 * kGroups + kLoaders + 1);
    }
    ptx::barrier_init(wanted(), 1);
    ptx::barrier_init_fence();
  }

  // By one lane, when the slot is full.
  __device__ Message take(const Slot &slot) const {
    const int4 m = ptx::load_shared_int4(message(slot.slot));
    ptx::barrier_arrive(tile_empty(slot.slot));
    return {m.x, m.y, m.z, m.w};
  }

  __device__ Message receive(const Slot &slot) const {
    ptx::barrier_wait(tile_full(slot.slot), slot.parity);
    return take(slot);
  }

  // By a warp. The lane that reads is the one that arrives: racecheck would not see that others have read before. All
  // wait: after a loop of one lane's, ptxas takes nothing for uniform any more and the main loop grows by a third.
  __device__ Message receive_by_warp(const Slot &slot) const {
    Message m = {};
    ptx::barrier_wait(tile_full(slot.slot), slot.parity);
    __syncwarp();
    if (lane == 0) m = take(slot);
    return {__shfl_sync(~0u, m.stage_begin, 0), __shfl_sync(~0u, m.stage_count, 0),
            __shfl_sync(~0u, m.row_begin, 0), __shfl_sync(~0u, m.n_tile, 0)};
  }

  // ---- scheduler: one lane ----------------------------------------------------------------------

  __device__ void schedule() const {
    const int tiles = p.tile_count * p.n_tile_count;
    Slot slot;
    slot.parity = 1;  // every slot starts out empty
    uint32_t tile_parity = 0;
    for (int t = blockIdx.x;; slot.advance(), tile_parity ^= 1) {
      ptx::barrier_wait(tile_empty(slot.slot), slot.parity);
      int4 m = make_int4(0, 0, 0, -1);
      if (t < tiles) {
        const TilePosition at = tile_position(t, p.tile_count, p.n_tile_count, p.group, p.lead);
        m = __ldg(reinterpret_cast<const int4 *>(p.tiles) + at.row);
        m.w = at.column;
      }
      ptx::store_shared(message(slot.slot), m);
      ptx::barrier_arrive(tile_full(slot.slot));
      if (t >= tiles) return;
      ptx::barrier_wait(wanted(), tile_parity);
      t = next_tile(p.counter, t, gridDim.x, tiles);
    }
  }

  // ---- producers --------------------------------------------------------------------------------

  // One lane: the blocks of a stage and its record, one bulk copy each.
  __device__ void load_blocks() const {
    Stage stage;
    stage.parity = 1;
    for (Slot slot;; slot.advance()) {
      const Message m = receive(slot);
      if (m.last()) return;
      const bsrg_stream_stage *next = p.stages + m.stage_begin;
      // One record ahead: a global load in this lane's path would cost 0.3 us a stage.
      int2 a = m.stage_count > 0 ? __ldg(reinterpret_cast<const int2 *>(next)) : make_int2(0, 0);
      if (m.stage_count == 0) ptx::barrier_arrive(wanted());
      for (int i = 0; i < m.stage_count; ++i, stage.advance()) {
        if (i == max(m.stage_count - kDrawBefore, 0)) ptx::barrier_arrive(wanted());
        const bsrg_stream_stage *current = next++;
        const int bytes = a.y * kBlockBytes;
        const char *source = static_cast<const char *>(p.packed) + static_cast<int64_t>(a.x) * kBlockBytes;
        if (i + 1 < m.stage_count) a = __ldg(reinterpret_cast<const int2 *>(next));
        ptx::barrier_wait(empty(stage.slot), stage.parity);
        ptx::barrier_arrive_expect(full(stage.slot), bytes + L::kRecordBytes);
        ptx::bulk_load(record(stage.slot), current, L::kRecordBytes, full(stage.slot));
        ptx::bulk_load(stage_data(stage.slot) + kStageBytes - bytes, source, bytes, full(stage.slot));
      }
    }
  }

  // A warp: one panel of each slot of X, one lane a slot.
  __device__ void load_x(int panel) const {
    Stage stage;
    stage.parity = 1;
    const int mine = min(lane, BSRG_STREAM_SLOTS - 1);
    for (Slot slot;; slot.advance()) {
      const Message m = receive_by_warp(slot);
      if (m.last()) return;
      const int column = m.n_tile * kTileN + panel * kPanel;
      const bsrg_stream_stage *next = p.stages + m.stage_begin;
      int next_count = 0, next_row = 0;
      if (m.stage_count > 0) {
        next_count = __ldg(&next->x_count);
        next_row = __ldg(&next->x_row[mine]);
      }
      for (int i = 0; i < m.stage_count; ++i, stage.advance()) {
        const int count = next_count, row = next_row;
        ++next;
        if (i + 1 < m.stage_count) {
          next_count = __ldg(&next->x_count);
          next_row = __ldg(&next->x_row[mine]);
        }
        ptx::barrier_wait(empty(stage.slot), stage.parity);
        if (lane == 0) ptx::barrier_arrive_expect(full(stage.slot), count * kPanelBytes);
        __syncwarp();
        if (lane < count)
          ptx::tma_load_2d(stage_data(stage.slot) + lane * kSlotBytes + panel * kPanelBytes, p.x, column, row,
                           full(stage.slot));
      }
    }
  }

  // ---- consumers --------------------------------------------------------------------------------

  // This warp's columns of 16 rows of a slot of X. Rows are 128 bytes, swizzled: 16-byte chunk c of row k lies at
  // chunk c ^ (k % 8). Matrices of ldmatrix: both halves of the columns, then the next 8 rows.
  __device__ void load_fragment(Fragment &x, uint32_t data, uint32_t step, int k) const {
    const int chunk = 2 * (warp & 3) + (lane >> 3 & 1);
    const uint32_t mine = ((lane >> 4) * 8 + (lane & 7)) * 128 + ((chunk ^ (lane & 7)) << 4);
    const uint32_t rows = data + (step >> 16) * kSlotBytes + k * (16 * 128);
#pragma unroll
    for (int panel = 0; panel < 2; ++panel)
      ptx::load_matrix_x4_transposed(x[panel], rows + mine + panel * kPanelBytes);
  }

  // 16 columns of a block times both panels of X. x(panel): the left operand. `block`: the low word of its descriptor.
  template <typename Operand>
  static __device__ void multiply16(float (&d)[2][kSums], Operand x, uint32_t block) {
    // 8 x 8 core matrices of 128 bytes, those of 8 rows before those of the next 8. Only the descriptor's low word
    // moves: 32-bit sums stay in uniform registers.
    constexpr uint64_t kHigh = static_cast<uint64_t>(kWidth * 16 >> 4) << 32;
#pragma unroll
    for (int panel = 0; panel < 2; ++panel)
      ptx::WgmmaSmall<T, kHeight>::run(d[panel], x(panel), kHigh | block);
  }

  // Uniform, as the shuffle tells the compiler.
  static __device__ uint32_t load_uniform(uint32_t address) {
    return __shfl_sync(~0u, ptx::load_shared_int(address), 0);
  }

  // Row by row, so that each loop adds to the sums of one row and nothing in it is decided block by block.
  __device__ void multiply_from_shared(Sums &d, uint32_t data, uint32_t by_row_at, uint32_t &block) const {
    constexpr uint64_t kHigh = static_cast<uint64_t>(1024 >> 4 | 1u << 30) << 32;  // as in matrix_descriptor
    const uint32_t first = static_cast<uint32_t>(ptx::matrix_descriptor(data, 16, 1024, ptx::Swizzle::k128));
    uint32_t two_rows = 0;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (r % 2 == 0) two_rows = load_uniform(by_row_at + 2 * r);
      uint32_t slots = r % 2 ? two_rows >> 16 : two_rows & 0xffff;
      while (slots != 0) {
        const int highest = 31 - __clz(slots);
        slots ^= 1u << highest;
        const uint32_t slot = first + highest * (kSlotBytes >> 4);
        ptx::warpgroup_fence();
#pragma unroll
        for (int k = 0; k < kSteps16; ++k)
          multiply16(
              d[r],
              [slot, k](int panel) {
                return kHigh | (slot + panel * (kPanelBytes >> 4) + k * (16 * 128 >> 4));
              },
              block + k * (256 >> 4));
        ptx::warpgroup_commit();
        block += kBlockBytes >> 4;
      }
    }
  }

  // 16 columns of all blocks of a step; returns the descriptor of the next step's first.
  __device__ uint32_t multiply_step(Sums &d, const Fragment &x, uint32_t step, uint32_t block) const {
    const auto operand = [&x](int panel) -> const uint32_t (&)[4] { return x[panel]; };
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (step >> r & 1) {
        ptx::warpgroup_fence();
        multiply16(d[r], operand, block);
        // In here: a group that may be empty would cost an instruction that does nothing, 15 cycles long.
        ptx::warpgroup_commit();
        block += kBlockBytes >> 4;
      }
    }
    return block;
  }

  // Step by step, each with one fragment of X for all of its blocks. Of two fragments one is loaded while the other is
  // multiplied.
  __device__ void multiply_from_registers(Sums &d, uint32_t data, uint32_t steps_at, int steps,
                                          uint32_t block) const {
    constexpr int kTogether = 2 / kSteps16;  // steps whose fragments are the two
    Fragment x[2];
    uint32_t step[kTogether];
#pragma unroll
    for (int s = 0; s < kTogether; ++s) step[s] = load_uniform(steps_at + 4 * s);
    if (steps > 0) load_fragment(x[0], data, step[0], 0);
    for (int i = 0; i < steps; i += kTogether) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int s = j / kSteps16, k = j % kSteps16, next = (j + 1) / kSteps16;
        const uint32_t after = multiply_step(d, x[j], step[s], block + k * (256 >> 4));
        if (k + 1 == kSteps16) {
          block = after - k * (256 >> 4);
          step[s] = load_uniform(steps_at + 4 * (i + kTogether + s));
        }
        if (k + 1 < kSteps16 || i + s + 1 < steps) {
          // A step commits two groups or more: the fragment before is free again.
          ptx::warpgroup_wait<2>();
          load_fragment(x[1 - j], data, step[next % kTogether], (j + 1) % kSteps16);
        }
      }
    }
  }

  __device__ void multiply_stage(Sums &d, int group, int stage) const {
    const uint32_t rec = record(stage), data = stage_data(stage);
    const int before = load_uniform(rec + offsetof(bsrg_stream_stage, group_begin) + 4 * group);
    const int count = load_uniform(rec + offsetof(bsrg_stream_stage, a_count));
    uint32_t block = static_cast<uint32_t>(ptx::matrix_descriptor(
        data + kStageBytes - (count - before) * kBlockBytes, 128, kWidth * 16, ptx::Swizzle::kNone));
    multiply_from_shared(
        d, data, rec + offsetof(bsrg_stream_stage, by_row) + group * 2 * BSRG_STREAM_MOST_ROWS, block);
    if constexpr (kManyRows) {
      const int steps = load_uniform(rec + offsetof(bsrg_stream_stage, group_steps) + 4 * group);
      multiply_from_registers(d, data,
                              rec + offsetof(bsrg_stream_stage, step) + group * 4 * (BSRG_STREAM_SLOTS + 2),
                              steps, block);
    }
    ptx::warpgroup_wait<0>();
  }

  // Of C 16 rows (or the last 8 of a block) x this warp's 16 columns of a panel: comes as it lies in memory, and is
  // transposed in `buffer`, 512 bytes of this warp's own. row: the block row's first; first: in the block row.
  __device__ void load_c(uint32_t (&old)[4], int row, int first, int column, uint32_t buffer) const {
    const uint32_t in_rows = buffer + lane * 16;  // two lanes a row
    const uint32_t in_matrices = buffer + ((lane & 7) + (lane >> 4) * 8) * 32 + (lane >> 3 & 1) * 16;
    const int my_row = first + (lane >> 1), my_column = column + (lane & 1) * 8;
    int4 c = make_int4(0, 0, 0, 0);
    if (row >= 0 && my_row < kHeight && row + my_row < p.rows && my_column < p.n)
      c = *reinterpret_cast<const int4 *>(static_cast<const T *>(p.c) + (row + my_row) * p.c_row_stride +
                                          my_column);
    __syncwarp();
    ptx::store_shared(in_rows, c);
    __syncwarp();
    ptx::load_matrix_x4_transposed(old, in_matrices);
  }

  // d = alpha * d + beta * C.
  template <typename RowOf>
  __device__ void scale_and_add(Sums &d, RowOf row_of, int column, uint32_t buffer) const {
    constexpr int kPieces = (kHeight + 15) / 16;
#pragma unroll
    for (int r = 0; r < kRows; ++r)
#pragma unroll
      for (int piece = 0; piece < 2 * kPieces; ++piece) {
        const int panel = piece / kPieces, first = piece % kPieces * 16;
        const int row = row_of(r);
        // A branch that keeps ptxas from loading all pieces at once, for which registers would not do.
        if (kFused && row < 0) continue;
        uint32_t old[4] = {};
        if (kFused || p.beta != 0.f) load_c(old, row, first, column + panel * kPanel, buffer);
#pragma unroll
        for (int i = 0; i < 8 && first / 2 + i < kSums; ++i) {
          const float2 pair = ptx::unpack<T>(old[i / 2]);
          float &sum = d[r][panel][first / 2 + i];
          sum = fmaf(p.beta, i % 2 ? pair.y : pair.x, p.alpha * sum);
        }
      }
  }

  template <typename Apply>
  static __device__ void for_all(Sums &d, Apply apply) {
#pragma unroll
    for (int r = 0; r < kRows; ++r)
#pragma unroll
      for (int i = 0; i < 2 * kSums; ++i) apply(d[r][i / kSums][i % kSums]);
  }

  // Fused output, in passes over d that only cost where they are asked for. Each lane loads elements of the vectors once,
  // and gets those that it needs from others: its sums are of columns lane / 4 and 8 further on of the warp's 16 in each
  // panel, and of two rows of every 8.
  template <typename Apply>
  __device__ void for_columns(Sums &d, const bsrg_output_vector &v, int column, float otherwise,
                              Apply apply) const {
    if (v.data == nullptr) return;
    const float mine = output::load<T>(v, column + (lane >> 4) * kPanel + (lane & 15), otherwise);
#pragma unroll
    for (int panel = 0; panel < 2; ++panel)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float element = __shfl_sync(~0u, mine, panel * 16 + half * 8 + (lane >> 2));
#pragma unroll
        for (int r = 0; r < kRows; ++r)
#pragma unroll
          for (int i = 0; i < kHeight / 4; ++i) apply(d[r][panel][i / 2 * 4 + half * 2 + i % 2], element);
      }
  }

  template <typename Apply>
  __device__ void for_rows(Sums &d, const bsrg_output_vector &v, int row_begin, float otherwise,
                           Apply apply) const {
    if (v.data == nullptr) return;
    float mine[2];  // of rows lane and lane + 32 of the warpgroup
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int at = lane + 32 * i;
      // From memory: registers have no index.
      const int row = at < kRows * kHeight ? __ldg(p.row_begin + row_begin + at / kHeight) : -1;
      mine[i] = row < 0 ? otherwise : output::load<T>(v, row + at % kHeight, otherwise);
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r)
#pragma unroll
      for (int i = 0; i < kHeight / 4; ++i) {
        const int eight = r * kHeight + i / 2 * 8;
        const float element = __shfl_sync(~0u, mine[eight / 32], eight % 32 + 2 * (lane & 3) + i % 2);
#pragma unroll
        for (int j = 0; j < 4; ++j) apply(d[r][j / 2][i / 2 * 4 + j % 2 * 2 + i % 2], element);
      }
  }

  __device__ void apply_output(Sums &d, int row_begin, int column, uint32_t buffer) const {
    const auto multiply = [](float &sum, float factor) { sum *= factor; };
    const auto add = [](float &sum, float bias) { sum += bias; };
    for_columns(d, p.output.col_scale, column, 1.f, multiply);
    for_rows(d, p.output.row_scale, row_begin, 1.f, multiply);
    const auto row_of = [this, row_begin](int r) {  // read where it is needed, for want of registers
      return *static_cast<const volatile int32_t *>(p.row_begin + row_begin + r);
    };
    if (p.beta != 0.f)
      scale_and_add(d, row_of, column, buffer);
    else if (p.alpha != 1.f)
      for_all(d, [this](float &sum) { sum *= p.alpha; });
    for_columns(d, p.output.col_bias, column, 0.f, add);
    for_rows(d, p.output.row_bias, row_begin, 0.f, add);
    if (p.output.activation == BSRG_OUTPUT_IDENTITY) return;
    for_all(d, [this](float &sum) { sum = output::activate(p.output, sum); });
  }

  // One panel of the warpgroup's rows into `buffer`, transposed: rows of 128 bytes, swizzled like X.
  __device__ void write_panel(const Sums &d, int panel, uint32_t buffer) const {
    // Matrices of stmatrix: both halves of this warp's columns, then the next 8 rows.
    const int chunk = 2 * (warp & 3) + (lane >> 3 & 1);
    const uint32_t mine = buffer + ((lane >> 4) * 8 + (lane & 7)) * 128 + ((chunk ^ (lane & 7)) << 4);
#pragma unroll
    for (int r = 0; r < kRows; ++r)
#pragma unroll
      for (int first = 0; first < kHeight; first += 16) {
        const float *v = d[r][panel] + first / 2;
        const uint32_t to = mine + (r * kHeight + first) * 128;
        if (first + 8 < kHeight)
          ptx::store_matrix_x4_transposed(to, ptx::pack<T>(v[0], v[1]), ptx::pack<T>(v[2], v[3]),
                                          ptx::pack<T>(v[4], v[5]), ptx::pack<T>(v[6], v[7]));
        else
          ptx::store_matrix_x2_transposed(to, ptx::pack<T>(v[0], v[1]), ptx::pack<T>(v[2], v[3]));
      }
  }

  // Writes the sums of a tile. TMA reads the buffer while the next tile is under way, and clips what lies beyond
  // the last row and column n.
  __device__ void store(Sums &d, int (&row)[kRows], int row_begin, int n_tile, int group,
                        uint64_t policy) const {
    const uint32_t buffer = shared + L::kOutput + group * L::kOutputBytes;
    const bool leader = (threadIdx.x & 127) == 0;
    for (int panel = 0; panel < 2; ++panel) {
      if (leader) ptx::bulk_wait_read<0>();
      ptx::named_barrier_sync(1 + group, 128);
      if (!kFused && !kRowsEarly && panel == 0) load_rows(row, row_begin);
      if (kFused && panel == 0) {
        apply_output(d, row_begin, n_tile * kTileN + (warp & 3) * 16, buffer + (warp & 3) * 512);
        load_rows(row, row_begin);
        ptx::named_barrier_sync(1 + group, 128);
      } else if (panel == 0 && (p.alpha != 1.f || p.beta != 0.f)) {
        const auto row_of = [&row](int r) { return row[r]; };
        scale_and_add(d, row_of, n_tile * kTileN + (warp & 3) * 16, buffer + (warp & 3) * 512);
        ptx::named_barrier_sync(1 + group, 128);
      }
      if (panel == 0)
        write_panel(d, 0, buffer);
      else
        write_panel(d, 1, buffer);
      ptx::fence_async_proxy();
      ptx::named_barrier_sync(1 + group, 128);
      if (leader) {
#pragma unroll
        for (int r = 0; r < kRows; ++r)
          if (row[r] >= 0)
            ptx::tma_store_2d(p.y, buffer + r * kHeight * 128, n_tile * kTileN + panel * kPanel, row[r],
                              policy);
        ptx::bulk_commit();
      }
    }
  }

  __device__ void load_rows(int (&row)[kRows], int row_begin) const {
#pragma unroll
    for (int r = 0; r < kRows; ++r) row[r] = __ldg(p.row_begin + row_begin + r);
  }

  __device__ void consume() const {
    const int group = warp / 4;
    const bool leader = (threadIdx.x & 127) == 0;
    const uint64_t stream_out = ptx::policy_evict_first();
    Stage stage;
    Sums d;
    for (Slot slot;; slot.advance()) {
      const Message m = receive_by_warp(slot);
      if (m.last()) break;
      const int row_begin = m.row_begin + group * kRows;
      int row[kRows];
      // Asked for now, since an answer takes longer than storing a tile.
      if constexpr (kRowsEarly) load_rows(row, row_begin);
#pragma unroll
      for (int r = 0; r < kRows; ++r)
#pragma unroll
        for (int i = 0; i < 2 * kSums; ++i) d[r][i / kSums][i % kSums] = 0.f;
      for (int i = 0; i < m.stage_count; ++i, stage.advance()) {
        ptx::barrier_wait(full(stage.slot), stage.parity);
        multiply_stage(d, group, stage.slot);
        // Warp by warp: in a stage without blocks for its warpgroup no WGMMA holds the four warps together, and
        // one that falls behind must still find the stage's record. Lane by lane: each has read, which racecheck would
        // not see in an arrival of one for all.
        ptx::barrier_arrive(empty(stage.slot));
      }
      store(d, row, row_begin, m.n_tile, group, stream_out);
    }
    if (leader) ptx::bulk_wait<0>();
  }

  __device__ void run() const {
    if (threadIdx.x == 0) init_barriers();
    __syncthreads();
    ptx::follow_grid_before();
    if (warp < 4 * kGroups) {
      ptx::take_registers<kConsumerRegisters>();
      consume();
    } else {
      ptx::give_back_registers<kProducerRegisters>();
      const int role = warp - 4 * kGroups;
      if (role < kLoaders) load_x(role);
      if (role == kLoaders && lane == 0) load_blocks();
      if (role == kLoaders + 1 && lane == 0) schedule();
    }
  }
};

template <typename T, int kHeight, int kWidth, bool kFused>
__device__ __forceinline__ void run(const bsrg_stream_params &params) {
  extern __shared__ char raw[];
  const uint32_t shared = (ptx::shared_address(raw) + 1023) & ~1023u;
  Kernel<T, kHeight, kWidth, kFused>{params, shared, ptx::warp_index(), static_cast<int>(threadIdx.x & 31)}
      .run();
}

}  // namespace bsrg::stream

#define BSRG_STREAM_KERNEL(NAME, T, FUSED, HEIGHT, WIDTH)                       \
  extern "C" __global__ void __launch_bounds__(BSRG_STREAM_THREADS, 1)          \
      NAME##_##HEIGHT##x##WIDTH(const __grid_constant__ bsrg_stream_params p) { \
    bsrg::stream::run<T, HEIGHT, WIDTH, FUSED>(p);                              \
  }
