// BSR x dense for blocks whose height is a multiple of 64, on Hopper (TMA, WGMMA, warp specialisation).
//
//   Y[128 rows, 256 columns]  =  sum over block columns  A block[64 rows each, bw] * X[bw rows, 256 columns]
//
// A CTA owns two strips of 64 output rows, one a consumer warpgroup, and walks the union of their block
// columns (bsrg_tall_entry): each stage carries the rows of X once, and the A blocks that exist. Strips of
// one tall block row share every column; strips of different block rows were paired by the planner so as to
// share many. A warpgroup whose strip lacks the block lets the stage pass.
//
// Roles in a CTA of three warpgroups: warp 0 issues TMA loads of X, warp 2 those of A, warp 1 hands out tiles and says
// which strips have which blocks, warpgroups 1 and 2 multiply and store. All meet only at mbarriers: `full` and `empty` a
// stage, `tile_full` and `tile_empty` a message slot. CTAs may work in pairs (Pairing) that load for both what both need.
//
// A transposed A comes as it is stored, k along the rows of a block, and WGMMA reads it so. A transposed X, the rows of
// which are adjacent in memory instead of its columns, likewise; Y is then stored in the same way.
//
// kPieceK: blocks of 128 x 64 or 128 x 80 are put together from pieces of smaller ones, so many columns wide each, by warps 0, 2
// and 3 (tall_piece_loader.cuh).
#pragma once

#include "ptx/convert.cuh"
#include "ptx/sync.cuh"
#include "ptx/tma.cuh"
#include "ptx/wgmma.cuh"
#include "sm90/persistent.cuh"
#include "sm90/tall_layout.cuh"
#include "sm90/tall_messages.cuh"
#include "sm90/tall_output.cuh"
#include "sm90/tall_piece_loader.cuh"

namespace bsrg::tall {

// kUnion: the strips of a tile may lie in different block rows, so a stage may be for one of them alone.
// Asking that at every stage costs 1.5% where it is never so. kParts: some tiles are cut into parts (bsrg_tall_part).
template <typename T, int kStepK, Pairing kPairing, bool kUnion, bool kParts, bool kTransposedA,
          bool kTransposedX, int kPieceK>
struct Kernel : Output<T, Layout<kStepK>, kTransposedX, hands_over(kUnion, kParts, kPieceK > 0),
                       BSRG_TALL_TWO_ROWS(kPieceK)> {
  static_assert(!kParts || kPairing != Pairing::kRows, "parts have no partners");
  static_assert(!kTransposedX || kPairing != Pairing::kRows, "a transposed X is one box, not two halves");
  static constexpr bool kPieces = kPieceK > 0;
  static constexpr int kLoaders = kPieces ? 3 : 2;  // of a CTA: lanes or, for pieces, warps
  static_assert(!kPieces || (!kUnion && !kParts && !kTransposedA && !kTransposedX), "by rows");
  static constexpr int kStageK = kStepK;
  // k that a row of A has side by side, and of a wide piece those behind them, which lie below all its rows.
  static constexpr int kRowK = kPieceK > 64 ? 64
                               : kPieces    ? kPieceK
                                            : kStepK,
                       kRestK = kPieceK > 64 ? kPieceK - 64 : 0;
  static constexpr Pairing kPairs = kPairing;
  static constexpr int kCluster = kPairing == Pairing::kNone ? 1 : 2;
  static constexpr int kRowTiles = kPairing == Pairing::kRows ? 2 : 1;  // of a cluster
  static constexpr uint16_t kBoth = 3;                                  // the CTAs that a multicast reaches
  using L = Layout<kStepK>;
  using Stage = RingPosition<L::kStages>;
  using Slot = RingPosition<kMessageSlots>;

  static constexpr bool kHandsOver = hands_over(kUnion, kParts, kPieces);
  using Base = Output<T, L, kTransposedX, kHandsOver, BSRG_TALL_TWO_ROWS(kPieceK)>;
  using typename Base::Held;
  // Whether a tile is stored while the next one is multiplied: 1 to 2% where every stage is a WGMMA. Where stages may
  // pass a warpgroup by it is slower.
  static constexpr bool kDeferred = !kUnion && !kParts;
  using Base::lane;
  using Base::p;
  using Base::shared;
  using Base::warp;
  const int rank;

  __device__ uint32_t full(int stage) const { return shared + L::kFull + 8 * stage; }
  __device__ uint32_t empty(int stage) const { return shared + L::kEmpty + 8 * stage; }
  __device__ uint32_t tile_full(int slot) const { return shared + L::kTileFull + 8 * slot; }
  __device__ uint32_t tile_empty(int slot) const { return shared + L::kTileEmpty + 8 * slot; }
  __device__ uint32_t message(int slot) const { return shared + L::kMessage + 32 * slot; }
  __device__ uint32_t wanted() const { return shared + L::kWanted; }

  __device__ void init_barriers() const {
    for (int i = 0; i < L::kStages; ++i) {
      ptx::barrier_init(full(i), kLoaders);
      ptx::barrier_init(empty(i),
                        2 * kReleases * kCluster);  // both consumers of every CTA that reads the slot
    }
    for (int i = 0; i < 4 && kHandsOver; ++i) {
      ptx::barrier_init(shared + L::kPieceFull + 8 * i, 4);
      ptx::barrier_init(shared + L::kPieceEmpty + 8 * i, 1);
    }
    for (int i = 0; i < kMessageSlots; ++i) {
      ptx::barrier_init(tile_full(i), 1);
      // And the lane that stores, and consumer warps of every CTA.
      ptx::barrier_init(tile_empty(i), (kLoaders + kHandsOver + 8) * kCluster);
    }
    ptx::barrier_init(wanted(), 1);
    ptx::barrier_init_fence();
  }

  __device__ MessageSlot<kCluster, kParts, kUnion> at(const Slot &slot) const {
    return {message(slot.slot), tile_full(slot.slot), tile_empty(slot.slot)};
  }

  __device__ Message receive(const Slot &slot) const {
    ptx::barrier_wait(tile_full(slot.slot), slot.parity);
    return at(slot).take();
  }

  // ---- scheduler: a warp of rank 0, of which one lane acts ---------------------------------------

  // Parts are rows from -part_count to -1: they go before the tiles, of which the first ones are cut.
  __device__ TilePosition position(int t, int rows) const {
    if constexpr (kParts) {
      const int parts = p.part_count * p.n_tile_count;
      if (t < parts) return {t / p.n_tile_count - p.part_count, t % p.n_tile_count};
      t += p.cut_tiles * p.n_tile_count - parts;
    }
    return tile_position(t, rows, p.n_tile_count, p.group, p.lead);
  }

  // What CTA `r` computes where its cluster is at a position of the order.
  __device__ Message tile(const TilePosition &at, int r) const {
    const int row = kPairing == Pairing::kRows ? 2 * at.row + r : at.row;
    const int column = kPairing == Pairing::kColumns ? 2 * at.column + r : at.column;
    const bsrg_tall_tile *source = p.tiles + row;
    int slot = -1;
    if constexpr (kParts) {
      if (row < 0) {
        const bsrg_tall_part *part = p.parts + (row + p.part_count);
        source = &part->tile;
        slot = __ldg(&part->slot);
      }
    }
    const int4 rows = __ldg(reinterpret_cast<const int4 *>(source));
    Message m = {rows.x, rows.y, rows.z, rows.w, column, slot, 0, 0};
    if constexpr (kUnion) say_which_are_present(m, p.entries, lane);
    return m;
  }

  __device__ void schedule() const {
    const int clusters = gridDim.x / kCluster;
    const int rows = p.tile_count / kRowTiles;
    const int tiles = (kParts ? rows - p.cut_tiles + p.part_count : rows) * p.n_tile_count;  // of a cluster
    Slot slot;
    slot.parity = 1;  // every slot starts out empty
    uint32_t tile_parity = 0;
    int t = blockIdx.x / kCluster;
    for (;; slot.advance(), tile_parity ^= 1) {
      ptx::barrier_wait_by_warp(tile_empty(slot.slot), slot.parity);
      if (t >= tiles) break;
      const TilePosition position = this->position(t, rows);
      for (int r = 0; r < kCluster; ++r) {
        const Message m = tile(position, r);
        if (lane == 0) at(slot).send(r, m);
      }
      ptx::barrier_wait(wanted(), tile_parity);
      if (lane == 0) t = next_tile(p.counter, t, clusters, tiles);
      t = __shfl_sync(~0u, t, 0);
    }
    for (int r = 0; r < kCluster && lane == 0; ++r) at(slot).send(r, {0, 0, 0, 0, -1, -1, 0, 0});
    slot.advance();
    wait_until_released(tile_empty(0), slot);
  }

  // ---- producers of every CTA: two lanes, or for pieces three warps --------------------------------

  static __device__ int loaded(int columns) { return loaded_columns<kTransposedX ? 1 : kPanel>(columns); }
  __device__ int columns_from(int column) const { return max(0, min(kTileN, p.n - column)); }

  // What this CTA loads of `rows` of X for a tile that it has `columns` for: in a pair along rows half of them, for both.
  // From the map `whole` if these are as many as that has, otherwise from `rest`.
  __device__ void load_x(const bsrg_tensor_map &whole, const bsrg_tensor_map &rest, int rows, uint32_t target,
                         int x_row, int column, int columns, uint32_t barrier) const {
    if (columns == 0) return;  // of a pair along columns
    const bool is_whole = columns == p.x_columns;
    const int panels = loaded(columns) / kPanel;
    if constexpr (kTransposedX) {
      ptx::tma_load_2d(target, is_whole ? whole : rest, x_row, column, barrier);
    } else if constexpr (kPairing == Pairing::kRows) {
      constexpr int kHalf = kTileN / kPanel / 2;
      const int first = rank * kHalf;
      if (is_whole) {
        ptx::tma_load_3d_multicast(target + first * rows * (kPanel * 2), whole, 0, x_row,
                                   column / kPanel + first, barrier, kBoth);
      } else {
        for (int i = first; i < min(first + kHalf, panels); ++i)
          ptx::tma_load_2d_multicast(target + i * rows * (kPanel * 2), rest, column + i * kPanel, x_row,
                                     barrier, kBoth);
      }
    } else if (is_whole) {
      ptx::tma_load_3d(target, whole, 0, x_row, column / kPanel, barrier);
    } else {
      for (int i = 0; i < panels; ++i)
        ptx::tma_load_2d(target + i * rows * (kPanel * 2), rest, column + i * kPanel, x_row, barrier);
    }
  }

  __device__ void load_strip(int strip, int stage, int x, int y, uint64_t policy) const {
    const uint32_t target = shared + L::kA + stage * L::kStageA + strip * L::kStripBytes;
    if constexpr (kPairing == Pairing::kColumns) {
      if (strip == rank) ptx::tma_load_2d_multicast(target, p.a, x, y, full(stage), kBoth, policy);
    } else {
      ptx::tma_load_2d(target, p.a, x, y, full(stage), policy);
    }
  }

  // By one lane for X and one for A: together they would take longer for a stage than its WGMMAs do.
  template <bool kOfX>
  __device__ void produce() const {
    const uint64_t policy_a = p.keep_a ? ptx::policy_evict_last() : ptx::policy_evict_normal();
    Stage stage;
    stage.parity = 1;
    for (Slot slot;; slot.advance()) {
      const Message m = receive(slot);
      if (m.last()) break;
      const int column = m.n_tile * kTileN, columns = columns_from(column);
      const int offset0 = m.strip0 % p.strips_per_block * kStrip;
      const int offset1 = m.strip1 % p.strips_per_block * kStrip;
      const int4 *entries = reinterpret_cast<const int4 *>(p.entries) + m.entry_begin;
      // One entry ahead: a global load in this lane's path would cost 0.3 us a block.
      int4 next = m.entry_count > 0 ? __ldg(entries) : make_int4(0, 0, 0, 0);
      const int draw_at = max(m.entry_count - 1 - (kDrawBefore / kStepK - 1) / p.steps, 0);
      const bool draws = kOfX && rank == 0;
      if (m.entry_count == 0 && draws) ptx::barrier_arrive(wanted());
      for (int e = 0; e < m.entry_count; ++e) {
        if (e == draw_at && draws) ptx::barrier_arrive(wanted());
        const int4 entry = next;
        if (e + 1 < m.entry_count) next = __ldg(entries + e + 1);
        const int present = (entry.y >= 0 ? 1 : 0) | (entry.z >= 0 ? 2 : 0);
        for (int step = 0; step < p.steps; ++step, stage.advance()) {
          const bool tail = step == p.steps - 1;
          const int k = step * kStepK;
          ptx::barrier_wait(empty(stage.slot), stage.parity);
          if constexpr (kOfX) {
            const int rows = tail && !kTransposedX ? p.tail_k16 * 16 : kStepK;
            ptx::barrier_arrive_expect(full(stage.slot), rows * loaded(columns) * 2);
            load_x(tail ? p.x_tail : p.x, tail ? p.x_rest_tail : p.x_rest, rows,
                   shared + L::kX + stage.slot * L::kStageX, entry.x + k, column, columns, full(stage.slot));
          } else {
            ptx::barrier_arrive_expect(full(stage.slot), __popc(present) * L::kStripBytes);
            if constexpr (kTransposedA) {
              if (present & 1) load_strip(0, stage.slot, offset0, entry.y + k, policy_a);
              if (present & 2) load_strip(1, stage.slot, offset1, entry.z + k, policy_a);
            } else {
              if (present & 1) load_strip(0, stage.slot, k, entry.y + offset0, policy_a);
              if (present & 2) load_strip(1, stage.slot, k, entry.z + offset1, policy_a);
            }
          }
        }
      }
    }
    wait_until_released(empty(0), stage);
  }

  // ---- stores: one lane -------------------------------------------------------------------------

  __device__ void store() const {
    const uint64_t stream_out = ptx::policy_evict_first();
    for (Slot slot;; slot.advance()) {
      const Message m = receive(slot);
      if (m.last()) break;
      this->store_handed_over(m.strip0, m.strip1, m.n_tile * kTileN, stream_out);
    }
    ptx::bulk_wait<0>();
  }

  // ---- consumers: one warpgroup a strip ---------------------------------------------------------

  // A warpgroup frees a stage by its first warp where every stage is a WGMMA, which holds its four warps
  // together. Where stages may pass it by, each warp does: the ring must not lap one that falls behind.
  static constexpr int kReleases = kUnion ? 4 : 1;
  // Between the end of one stage's WGMMAs and the issue of the next ones: every cycle of it counts.
  __device__ void release_stage(int stage) const {
    const bool releases = kUnion || warp % 4 == 0;
    // At its own barrier in the local way: racecheck does not take a cluster-wide arrival for the end of a read.
    ptx::barrier_arrive_if(empty(stage), releases && lane == rank);
    if constexpr (kCluster > 1)
      ptx::barrier_arrive_cluster_if(ptx::map_to_rank(empty(stage), rank ^ 1),
                                     releases && lane == (rank ^ 1));
  }

  // One stage of kSteps k16 instructions, committed as one group. The count is a template argument because a
  // branch between two WGMMAs of a group makes ptxas wait for each of them. which: where there may be fewer than a stage has,
  // the sixteens of k that they take.
  template <int kSteps>
  __device__ void multiply(float (&d)[kTileN / 2], int strip, int stage, bool accumulate,
                           uint32_t which = 15) const {
    constexpr ptx::Swizzle kSwizzleA = kSwizzleOf<kRowK>, kSwizzleX = kSwizzleOf<kStepK>;
    // K-major operands have rows of a stage's k, the others rows of 64 elements for each k. Descriptors count 16 bytes:
    // to the next k16 it is 32 bytes of a row, or 16 rows of 128 bytes, or where pieces end a strip's rows.
    constexpr int kNextX = kTransposedX ? 2 : 128;
    constexpr auto next_a = [](int k) {
      if constexpr (kTransposedA) return 128 * k;
      return 16 * k / kRowK * (kStrip * kRowK * 2 / 16) + 2 * (k % (kRowK / 16));
    };
    const uint64_t a = ptx::matrix_descriptor(shared + L::kA + stage * L::kStageA + strip * L::kStripBytes,
                                              16, kTransposedA ? 1024 : 8 * kRowK * 2,
                                              kTransposedA ? ptx::Swizzle::k128 : kSwizzleA);
    const uint64_t x = ptx::matrix_descriptor(
        shared + L::kX + stage * L::kStageX,
        kTransposedX ? 16 : (kPieces ? kStepK : kSteps * 16) * (kPanel * 2),
        kTransposedX ? 8 * kStepK * 2 : 1024, kTransposedX ? kSwizzleX : ptx::Swizzle::k128);
    const uint64_t rest = ptx::matrix_descriptor(
        shared + L::kA + stage * L::kStageA + strip * L::kStripBytes + kStrip * kRowK * 2, 16, 8 * kRestK * 2,
        kSwizzleOf<kRestK>);
    ptx::warpgroup_fence();
#pragma unroll
    for (int i = 0; i < kSteps; ++i, which &= which - 1) {
      const int k = kPieces && kSteps < kStepK / 16 ? __ffs(which) - 1 : i;
      ptx::Wgmma<T, kTileN, kTransposedA, !kTransposedX>::run(
          d, kRestK > 0 && i * 16 >= kRowK ? rest : a + next_a(k), x + kNextX * k, accumulate || i > 0);
    }
    ptx::warpgroup_commit();
  }

  // The last stage of a block may be shorter.
  template <int kSteps = kStepK / 16>
  __device__ void multiply_up_to(float (&d)[kTileN / 2], int strip, int stage, int steps, bool accumulate,
                                 uint32_t which = 15) const {
    if (kSteps == 1 || steps == kSteps)
      multiply<kSteps>(d, strip, stage, accumulate, which);
    else if constexpr (kRestK > 0)
      multiply<1>(d, strip, stage, accumulate, 1);
    else if constexpr (kSteps > 1)
      multiply_up_to<kSteps - 1>(d, strip, stage, steps, accumulate, which);
  }

  // Where the sums of a warp go; below 0: nowhere.
  __device__ int first_row(const Message &m, int strip) const {
    return (strip == 0 ? m.strip0 : m.strip1) * kStrip + (warp & 3) * 16;
  }
  __device__ float fetch_vectors(const Message &m, int strip) const {
    return Base::fetch_vectors(max(first_row(m, strip), 0), m.n_tile * kTileN);
  }

  // Multiplies one tile's stages into d; true when there was any. On return all stages have been released and
  // d may be read.
  __device__ bool accumulate(float (&d)[kTileN / 2], const Message &m, int strip, Stage &stage, Held &held,
                             float &rows) const {
    bool started = false;
    int in_flight = -1;  // the stage that the last committed group still reads
    Stages<kUnion, bsrg_tall_entry> stages(m, p.entries, strip, lane, p.steps);
    const int tail_k16 = __shfl_sync(~0u, p.tail_k16, 0);  // in a register, as there
    const int count = stages.count();
    const bool fused = p.output.given && (!kParts || m.slot < 0);
    bool fetches = fused;
    [[maybe_unused]] PiecedSteps<kPieces, kStepK> pieced(m, p.k16s, strip, lane);
    for (int i = 0; i < count; ++i, stage.advance()) {
      const bool takes_part = stages.takes_part();
      const bool tail = stages.next_is_last();
      const uint32_t which = kPieces ? pieced.take() : 15;
      ptx::barrier_wait(full(stage.slot), stage.parity);
      if (takes_part) {
        const int steps = kPieces ? __popc(which) : tail ? tail_k16 : kStepK / 16;
        multiply_up_to(d, strip, stage.slot, steps, started, which);
        started = true;
        stages.pass(tail);
        ptx::warpgroup_wait<1>();
        if (in_flight >= 0) release_stage(in_flight);
        in_flight = stage.slot;
        // Behind the release: loads must not wait for it.
        if (kDeferred && this->any_left(held)) this->store_next(held);
      } else {
        // Parity waits are ambiguous to a reader that is a lap behind: pass through every stage, in order, and with all
        // lanes, of which each has waited by itself.
        __syncwarp();
        release_stage(stage.slot);
        stages.pass(tail);
        if (in_flight >= 0) {
          ptx::warpgroup_wait<0>();
          release_stage(in_flight);
          in_flight = -1;
        }
      }
      // At the end of the last entry but one: what it takes from L2 costs no time then. Asked only at the ends of entries.
      if (tail && __any_sync(~0u, fetches && i == count - 1 - p.steps) &&
          !(kDeferred && this->any_left(held))) {
        rows = fetch_vectors(m, strip);
        fetches = false;
      }
    }
    // While the last WGMMAs run.
    if constexpr (kDeferred) this->store_rest(held);
    if (fetches) rows = fetch_vectors(m, strip);
    // Beside the last stage, but where that would take a register too many.
    if constexpr (!kUnion) started = this->add_bias_by_mma(d, fused, started);
    ptx::warpgroup_wait<0>();
    if (in_flight >= 0) release_stage(in_flight);
    if constexpr (kUnion) {
      started = this->add_bias_by_mma(d, fused, started);
      ptx::warpgroup_wait<0>();
    }
    if (fused) this->convert_column_vectors();
    return started;
  }

  __device__ void consume() const {
    const int strip = warp / 4 - 1;
    const uint32_t buffers = this->piece_buffers();
    const uint64_t stream_out = ptx::policy_evict_first();
    float d[kTileN / 2];
    Held held;
    Stage stage;
    // The slot from a count: a register less than its position, which fused output needs.
    for (unsigned taken = 0;; ++taken) {
      const Slot slot = {static_cast<int>(taken % kMessageSlots), taken / kMessageSlots % 2};
      const Message m = at(slot).receive_by_warp(slot.parity, lane, strip);
      if (m.last()) break;

      float rows = 0;  // see fetch_vectors
      const bool started = accumulate(d, m, strip, stage, held, rows);
      if (!started) {
#pragma unroll
        for (int i = 0; i < kTileN / 2; ++i) d[i] = 0.f;
      }

      const int row = first_row(m, strip), column = m.n_tile * kTileN;
      if (row >= 0) {
        if (kParts && m.slot >= 0) {
          this->store_part(d, m.slot, strip, column);
          continue;
        }
        if (p.output.given) this->scale(d, rows);
        if (p.alpha != 1.f || p.beta != 0.f) this->scale_and_add(d, row, column);
        if (p.output.given) this->add_bias(d, rows);
        // Pieces lie where others may still read their vectors.
        if (kHandsOver ? p.output.given : this->adds_by_mma()) ptx::named_barrier_sync(1 + strip, 128);
        if constexpr (kDeferred)
          this->hold(held, d, row, column);
        else
          this->store_tile(d, row, column, buffers, stream_out);
      }
    }
    if constexpr (kDeferred) this->store_rest(held);
    if (!kHandsOver && lane == 0) ptx::bulk_wait<0>();
  }

  __device__ void run() const {
    if (threadIdx.x == 0) init_barriers();
    if constexpr (kCluster > 1)
      ptx::cluster_sync();
    else
      __syncthreads();
    ptx::follow_grid_before();

    if (warp < 4) {
      if constexpr (kDeferred) ptx::give_back_registers<kProducerRegisters>();
      if constexpr (kPieces) {
        if (warp != 1) PieceLoader<Kernel>{*this, warp == 0 ? 0 : warp - 1}.produce();
      } else {
        if (warp == 0 && lane == 0) produce<true>();
        if (warp == 2 && lane == 0) produce<false>();
      }
      if (warp == 1 && rank == 0) schedule();
      if (kParts && warp == 3) this->clear();
      if (kHandsOver && warp == 3 && lane == 0) store();
      __syncwarp();
    } else {
      if constexpr (kDeferred) ptx::take_registers<kConsumerRegisters>();
      consume();
    }
    // No CTA may exit while its peer can still write into its shared memory or arrive at its barriers.
    if constexpr (kCluster > 1) ptx::cluster_sync();
  }
};

template <typename T, int kStepK, Pairing kPairing, bool kUnion, bool kParts = false,
          bool kTransposedA = false, bool kTransposedX = false, int kPieceK = 0>
__device__ __forceinline__ void run(const bsrg_tall_params &params) {
  extern __shared__ char raw[];
  const uint32_t shared = (ptx::shared_address(raw) + 1023) & ~1023u;
  const int rank = kPairing == Pairing::kNone ? 0 : static_cast<int>(ptx::cluster_rank());
  const Kernel<T, kStepK, kPairing, kUnion, kParts, kTransposedA, kTransposedX, kPieceK> kernel{
      {params, shared, ptx::warp_index(), static_cast<int>(threadIdx.x & 31)}, rank};
  kernel.run();
}

}  // namespace bsrg::tall

// The stage depth follows the block width (the narrowest of 64, 32, 16 that wastes nothing), the pairing (c1: none, c2:
// columns, r2: rows) the number of column tiles and whether row tiles come in pairs with equal lists of block columns;
// `union` is for block heights that are odd multiples of 64.
#define BSRG_TALL_KERNEL(NAME, T, STEP_K, SUFFIX, PAIRING, KIND, UNION)                  \
  extern "C" __global__ void __launch_bounds__(BSRG_TALL_THREADS, 1)                     \
      NAME##_##KIND##_k##STEP_K##_##SUFFIX(const __grid_constant__ bsrg_tall_params p) { \
    bsrg::tall::run<T, STEP_K, bsrg::tall::Pairing::PAIRING, UNION>(p);                  \
  }
#define BSRG_TALL_KERNELS_OF(NAME, T, KIND, UNION)         \
  BSRG_TALL_KERNEL(NAME, T, 64, c1, kNone, KIND, UNION)    \
  BSRG_TALL_KERNEL(NAME, T, 64, c2, kColumns, KIND, UNION) \
  BSRG_TALL_KERNEL(NAME, T, 32, c1, kNone, KIND, UNION)    \
  BSRG_TALL_KERNEL(NAME, T, 32, c2, kColumns, KIND, UNION) \
  BSRG_TALL_KERNEL(NAME, T, 16, c1, kNone, KIND, UNION)    \
  BSRG_TALL_KERNEL(NAME, T, 16, c2, kColumns, KIND, UNION)
#define BSRG_TALL_KERNELS(NAME, T)                       \
  BSRG_TALL_KERNELS_OF(NAME, T, whole, false)            \
  BSRG_TALL_KERNEL(NAME, T, 64, r2, kRows, whole, false) \
  BSRG_TALL_KERNEL(NAME, T, 32, r2, kRows, whole, false) \
  BSRG_TALL_KERNELS_OF(NAME, T, union, true)
