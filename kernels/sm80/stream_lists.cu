// What the stream kernels read of a pattern that a GPU has made (DynamicPattern): tiles, their stages and the parts of these, as
// stream_plan.c makes them of other patterns. A tile of the matrix or, with blockIdx.y 1, of its transposed has l.ctas CTAs, all of
// which find its stages, since that takes little, and each of which writes some.
//
// Columns come in rounds, one for each thread. Those with blocks go to a list in shared memory, each with the rows of the tile
// that have one. A warp cuts the list into stages, and each warp writes some of them. What is left at the end of a round begins
// the next one's list.
#include <cstdint>

#include "params.h"
#include "ptx/sync.cuh"
#include "sm80/pattern_bits.cuh"

namespace bsrg::stream_lists {

constexpr int kThreads = BSRG_STREAM_LISTS_THREADS, kWarps = kThreads / 32;
constexpr int kGroups = BSRG_STREAM_GROUPS;
constexpr int kMostRows = kGroups * BSRG_STREAM_MOST_ROWS;  // of a tile
static_assert(kMostRows <= 64, "bits of a column");
// Columns that an unfinished stage leaves for the next round: fewer than it has slots, of parts.
constexpr int kLeft = BSRG_STREAM_SLOTS;
static_assert(int64_t{kLeft + kThreads + 1} * BSRG_STREAM_LISTS_ACROSS * BSRG_STREAM_LISTS_ACROSS <=
              0xffffffff);
constexpr int kCuts = 64;  // stages that are written together, at most

// Of numbers up to 2^32 / by, as parts of the list's columns are.
class Divisor {
 public:
  __device__ __forceinline__ explicit Divisor(int by) : by_(by), reciprocal_(~0u / by + 1) {}
  __device__ __forceinline__ int quotient(int x) const {
    return by_ == 1 ? x : static_cast<int>(__umulhi(x, reciprocal_));
  }
  __device__ __forceinline__ int rest(int x) const { return x - quotient(x) * by_; }

 private:
  const int by_;
  const uint32_t reciprocal_;
};

// A column with the rows of the tile that have blocks there, and the blocks in all columns of the tile before it.
struct Column {
  uint32_t rows[2];
  int32_t column, before;
};

struct Shared {
  Column columns[kLeft + kThreads + 1];  // one more, which says how many blocks there are in all
  int32_t row[kMostRows];
  int64_t first_block[kMostRows];
  int of_warp[kWarps], blocks_of_warp[kWarps];
  int cuts[kCuts + 1];  // where stages begin, in parts of the list's columns
  int cut_count;
};

template <bool kTransposed>
class Tile {
 public:
  __device__ __forceinline__ Tile(const bsrg_pattern_side &side, Shared &shared)
      : side_(side),
        l(side.stream),
        shared_(shared),
        by_rows_(l.rows),
        by_columns_(l.columns),
        tile_(blockIdx.x / l.ctas),
        cta_(blockIdx.x % l.ctas),
        first_row_(static_cast<int>(static_cast<int64_t>(tile_) * side.rows / l.tile_count)),
        rows_(static_cast<int>(static_cast<int64_t>(tile_ + 1) * side.rows / l.tile_count) - first_row_),
        parts_before_(static_cast<int64_t>(side.order_begin[first_row_]) * l.rows * l.columns),
        stage_begin_(tile_ +
                     static_cast<int>(static_cast<int64_t>(side.order_begin[first_row_]) * l.block_stages >>
                                      BSRG_STREAM_LISTS_SHIFT)),
        group_rows_((rows_ * l.rows + kGroups - 1) / kGroups),
        room_(BSRG_STREAM_ROWS_OF(l.height)),
        warp_(threadIdx.x / 32),
        lane_(threadIdx.x % 32) {}

  __device__ __forceinline__ void make() const {
    for (int i = threadIdx.x; i < rows_; i += kThreads) {
      shared_.row[i] = side_.row_order[first_row_ + i];
      shared_.first_block[i] = side_.indptr[shared_.row[i]];
    }
    if (threadIdx.x == 0) shared_.columns[0].before = 0;
    __syncthreads();
    if (cta_ == 0) write_rows();
    int columns = 0, from = 0, stages = 0;  // in the list, of which `from` parts are in stages already
    for (int word = 0; word < side_.words; word += kWarps) {
      columns = append(word, columns);
      for (bool again = true; again;) {
        if (warp_ == 0) cut(from, columns * l.columns, word + kWarps >= side_.words);
        __syncthreads();
        const int count = shared_.cut_count;
        for (int i = cta_ * kWarps + warp_; i < count; i += l.ctas * kWarps)
          write_stage(stages + i, shared_.cuts[i], shared_.cuts[i + 1] - shared_.cuts[i]);
        from = shared_.cuts[count];
        stages += count;
        again = count == kCuts;
        __syncthreads();
      }
      columns = keep(by_columns_.quotient(from), columns);
      from = by_columns_.rest(from);
    }
    if (cta_ == 0 && threadIdx.x == 0)
      reinterpret_cast<int4 *>(l.tiles)[tile_] = make_int4(stage_begin_, stages, tile_ * kGroups * room_,
                                                           shared_.columns[0].before * l.rows * l.columns);
  }

 private:
  const bsrg_pattern_side &side_;
  const bsrg_stream_lists &l;
  Shared &shared_;
  const Divisor by_rows_, by_columns_;
  const int tile_, cta_, first_row_, rows_;
  const int64_t parts_before_;  // of the tiles before
  const int stage_begin_, group_rows_, room_;
  const int warp_, lane_;

  // The first row of Y of each row of parts.
  __device__ __forceinline__ void write_rows() const {
    for (int i = threadIdx.x; i < kGroups * room_; i += kThreads) {
      const int in_group = i % room_, part = i / room_ * group_rows_ + in_group,
                row = by_rows_.quotient(part);
      const bool exists = in_group < group_rows_ && row < rows_;
      l.row_begin[tile_ * kGroups * room_ + i] =
          exists ? (shared_.row[row] * l.rows + by_rows_.rest(part)) * l.height : -1;
    }
  }

  __device__ __forceinline__ uint32_t word_of(int row, int word) const {
    if (row >= rows_ || word >= side_.words) return 0;
    return side_.bits[static_cast<size_t>(shared_.row[row]) * side_.words + word];
  }

  // A warp's 32 columns: each lane's rows among 32 of the tile.
  __device__ __forceinline__ uint32_t turn(uint32_t word) const {
    uint32_t turned = 0;
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      const uint32_t of_column = __ballot_sync(~0u, word >> i & 1);
      if (lane_ == i) turned = of_column;
    }
    return turned;
  }

  // Lists the columns of as many words as there are warps behind those that are there; returns how many there are then.
  __device__ __forceinline__ int append(int first_word, int columns) const {
    const int word = first_word + warp_;
    const uint32_t lower = turn(word_of(lane_, word));
    const uint32_t upper = rows_ > 32 ? turn(word_of(lane_ + 32, word)) : 0;
    const int blocks = __popc(lower) + __popc(upper), through = pattern::sum_through(blocks);
    const uint32_t used = __ballot_sync(~0u, blocks > 0);
    if (lane_ == 31) {
      shared_.of_warp[warp_] = __popc(used);
      shared_.blocks_of_warp[warp_] = through;
    }
    __syncthreads();
    const bool counts = lane_ < kWarps;
    const int all = pattern::sum_through(counts ? shared_.of_warp[lane_] : 0);
    const int all_blocks = pattern::sum_through(counts ? shared_.blocks_of_warp[lane_] : 0);
    const int before = shared_.columns[columns].before;
    const int place = columns + __shfl_sync(~0u, all, warp_) - __popc(used);
    const int blocks_before = before + __shfl_sync(~0u, all_blocks, warp_) - shared_.blocks_of_warp[warp_];
    const int end = columns + __shfl_sync(~0u, all, 31),
              end_blocks = before + __shfl_sync(~0u, all_blocks, 31);
    __syncthreads();
    if (blocks > 0)
      shared_.columns[place + __popc(used & pattern::below(lane_))] = {
          {lower, upper}, word * 32 + lane_, blocks_before + through - blocks};
    if (threadIdx.x == 0) shared_.columns[end].before = end_blocks;
    __syncthreads();
    return end;
  }

  // Moves the columns from `first` on, which are fewer than there are threads, to the front of the list.
  __device__ __forceinline__ int keep(int first, int columns) const {
    const int left = columns - first;
    Column column;
    if (threadIdx.x <= left) column = shared_.columns[first + threadIdx.x];
    __syncthreads();
    if (threadIdx.x <= left) shared_.columns[threadIdx.x] = column;
    __syncthreads();
    return left;
  }

  // Parts in the list's columns before this one, which is counted in parts, too.
  __device__ __forceinline__ int parts_before(int at) const {
    const Column &column = shared_.columns[by_columns_.quotient(at)];
    const int across = by_columns_.rest(at);
    const int blocks = across ? __popc(column.rows[0]) + __popc(column.rows[1]) : 0;
    return (column.before * l.columns + across * blocks) * l.rows;
  }

  // By a warp: where the next stages begin and end, each of as many columns as fit, the last one only if it is full or `all`
  // columns are there.
  __device__ __forceinline__ void cut(int at, int end, bool all) const {
    const int slots = BSRG_STREAM_SLOTS_OF(l.width);
    const int slot_bytes = 2 * l.width * BSRG_STREAM_TILE_N, part_bytes = 2 * l.width * l.height;
    int count = 0;
    while (at < end && count < kCuts) {
      const int own = at + lane_ + 1;
      bool fits = own <= end && lane_ < slots;
      if (fits)
        fits = (lane_ + 1) * slot_bytes + (parts_before(own) - parts_before(at)) * part_bytes <=
               BSRG_STREAM_STAGE_BYTES;
      const int taken = __popc(__ballot_sync(~0u, fits));
      if (at + taken == end && taken < slots && !all) break;
      if (lane_ == 0) shared_.cuts[count] = at;
      at += taken;
      ++count;
    }
    if (lane_ == 0) {
      shared_.cuts[count] = at;
      shared_.cut_count = count;
    }
  }

  // A block among those of the matrix, which values have the order of.
  __device__ __forceinline__ int block_at(int row, int column) const {
    const size_t word = static_cast<size_t>(shared_.row[row]) * side_.words + column / 32;
    const uint32_t before = __ldg(side_.bits + word) & pattern::below(column % 32);
    const int64_t block = shared_.first_block[row] + __ldg(side_.rank + word) + __popc(before);
    return static_cast<int>(kTransposed ? __ldg(side_.order + block) : block);
  }

  // By a warp: a lane has a slot.
  __device__ __forceinline__ void write_stage(int number, int at, int slots) const {
    const bool pairs = BSRG_STREAM_PAIRS(l.width);
    const Column column = lane_ < slots ? shared_.columns[by_columns_.quotient(at + lane_)] : Column{};
    const int across = by_columns_.rest(at + lane_);
    const int begin = static_cast<int>(parts_before_) + parts_before(at);
    const int parts = parts_before(at + slots) - parts_before(at);
    int32_t *const stage = reinterpret_cast<int32_t *>(l.stages + stage_begin_ + number);
    static_assert(offsetof(bsrg_stream_stage, x_row) == 16 && BSRG_STREAM_SLOTS == 32);
    if (lane_ == 0) *reinterpret_cast<int4 *>(stage) = make_int4(begin, parts, slots, 0);
    stage[4 + lane_] = lane_ < slots ? (column.column * l.columns + across) * l.width : 0;
    int done = 0;
    for (int group = 0; group < kGroups; ++group) {
      // Lane i: word i of the group's share.
      constexpr int kWords = sizeof(bsrg_stream_share) / 4, kBlocks = offsetof(bsrg_stream_share, blocks) / 4;
      int own = lane_ == kBlocks ? parts - done : 0;
#pragma unroll 8
      for (int i = 0; i < room_; ++i) {
        const int part = group * group_rows_ + i, row = by_rows_.quotient(part);
        const bool exists = i < group_rows_ && row < rows_;
        const bool stored = exists && (row < 32 ? column.rows[0] : column.rows[1]) >> row % 32 & 1;
        const uint32_t bits = __ballot_sync(~0u, stored);
        if (stored) {
          const int place = __popc(pairs ? bits & pattern::below(lane_) : bits >> lane_ >> 1);
          l.source[begin + done + place] =
              (block_at(row, column.column) * l.rows + by_rows_.rest(part)) * l.columns + across;
        }
        done += __popc(bits);
        if (lane_ == (pairs ? i : i / 2)) own |= static_cast<int>(pairs ? bits : bits << i % 2 * 16);
      }
      if (lane_ < kWords) stage[(offsetof(bsrg_stream_stage, share) / 4) + group * kWords + lane_] = own;
    }
  }
};

template <bool kTransposed>
__device__ __forceinline__ void make(const bsrg_pattern_side &side, Shared &shared) {
  if (side.stream.stages == nullptr || blockIdx.x >= side.stream.tile_count * side.stream.ctas) return;
  Tile<kTransposed>(side, shared).make();
}

}  // namespace bsrg::stream_lists

extern "C" __global__ void __launch_bounds__(BSRG_STREAM_LISTS_THREADS)
    stream_lists(const __grid_constant__ bsrg_pattern_params p) {
  bsrg::ptx::follow_grid_before();
  __shared__ bsrg::stream_lists::Shared shared;
  if (blockIdx.y == 0)
    bsrg::stream_lists::make<false>(p.matrix, shared);
  else
    bsrg::stream_lists::make<true>(p.transposed, shared);
}
