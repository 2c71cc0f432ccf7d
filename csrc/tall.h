/* The tall family: blocks whose height is a multiple of 64, on Hopper. Kernels in kernels/sm90/tall.cuh. */
#ifndef BSRG_TALL_H
#define BSRG_TALL_H

#include "family.h"

/* One way to cut long tiles into parts, each a run of the tile's entries, about as long as one another. It covers the
 * first `tiles` of the plan's list; those of them that are short enough have one part, which needs no slot. */
typedef struct bsrg_tall_level {
  int32_t most; /* entries of a part */
  int32_t tiles;
  int32_t part_begin, part_count; /* in plan.parts, by the first row of X */
  int32_t cut_begin, cut_count;   /* in plan.cuts: tiles of several parts */
  int32_t slot_count;             /* parts of those */
} bsrg_tall_level;

enum {
  BSRG_TALL_LEVELS = 9,
  BSRG_TALL_MOST_PARTS = 1024 /* of a level: a few for every SM */
};

/* Tiles of two 64-row strips and the block columns that each pair meets. */
typedef struct bsrg_tall_plan {
  bsrg_tall_entry *entries;
  bsrg_tall_tile *tiles;
  int64_t entry_count;
  int32_t tile_count;
  int64_t tile_entries; /* sum of entry_count over the tiles (tiles of one tall block row share entries) */
  int32_t longest_tile;
  bool skewed;         /* tiles are sorted, longest first */
  int32_t empty_tiles; /* of sorted tiles: those at the end of the list, without entries */
  /* For every i, tiles 2i and 2i + 1 have equal lists of columns, and each has both strips in one block row. */
  bool row_pairs;
  /* For products that a single tile would keep waiting: which level pays depends on their columns. */
  bsrg_tall_part *parts;
  bsrg_tall_cut *cuts;
  bsrg_tall_level levels[BSRG_TALL_LEVELS]; /* the parts become shorter */
  int32_t level_count, part_count, cut_count;
} bsrg_tall_plan;

/* Whether strips that lie alone in their block row, or are left over there, are paired with another row's: such a tile
 * has the columns of both. */
static inline bool bsrg_tall_has_unions(const bsrg_structure_view *view) {
  return view->block_height / BSRG_TALL_STRIP % 2 == 1;
}

void *bsrg_tall_make_plan(bsrg_structure *structure);
void bsrg_tall_free_plan(void *plan);
/* Where that pays, puts entries into the order in which most tiles that are computed at the same time share what they read
 * (tall_order.c). false: no memory. */
bool bsrg_tall_order_entries(const bsrg_structure_view *view, bsrg_tall_plan *plan);
/* Whether CTAs stay in step from tile to tile: short ones gain less from that than from all SMs. */
bool bsrg_tall_stays_in_step(const bsrg_structure_view *view, const bsrg_tall_plan *plan);
/* The parts of a plan that has its tiles (tall_cut.c). false: no memory. */
bool bsrg_tall_make_cuts(bsrg_tall_plan *plan, int64_t block_width);

/* How many tiles a cluster takes at once, one a CTA: one, or two along columns or rows. */
typedef struct bsrg_tall_cluster {
  int32_t columns, rows;
} bsrg_tall_cluster;

/* Up to this size A is worth keeping in L2 at the cost of X: at 8192^3, 128 x 128 blocks, it gained at density .25 (32 MB)
 * and lost 1.5% at .5. */
enum { BSRG_TALL_KEPT_BYTES = 40 << 20 };

/* How the tiles of a plan are computed for n columns. */
typedef struct bsrg_tall_schedule {
  bsrg_tall_cluster cluster;
  int32_t n_tiles;              /* column tiles of a cluster */
  int32_t group;                /* of these, as many are swept together down all row tiles */
  int32_t lead;                 /* row tiles (of a cluster) that go before these sweeps */
  bool in_step;                 /* for as few clusters as need no more rounds */
  const bsrg_tall_level *level; /* NULL: no tile is cut */
  double seconds;
  const char *limit; /* what takes them */
} bsrg_tall_schedule;
/* Blocks of 128 x 64, or as wide as a wide piece, that are nowhere but in the kernels, which put them together from pieces of the
 * stored blocks. */
enum { BSRG_TALL_PIECED_HEIGHT = 128, BSRG_TALL_PIECED_WIDTH = 64 };
typedef struct bsrg_tall_pieces {
  const bsrg_structure_view *stored;
  int32_t height, width; /* of a piece */
  double work; /* what the tensor cores' time comes to where zeros are passed over and draw less power */
  /* On the device, as bsrg_tall_params has them, in the order of the plan's entries. For launches only. */
  const bsrg_tall_piece *pieces;
  const uint8_t *k16s;
  const void *zeros;
} bsrg_tall_pieces;
/* Whether they are as many as there can be, so that TMA may take longer for a stage than the tensor cores do. */
static inline bool bsrg_tall_has_most_pieces(const bsrg_tall_pieces *pieces) {
  return pieces->height * pieces->width <= 16 * 16;
}

/* The fastest by prediction (tall_schedule.c). pieces: NULL where the values are those of the structure. transposed_rows: those of Y
 * with a transposed X, else 0. */
bsrg_tall_schedule bsrg_tall_schedule_for(const bsrg_structure_view *view, const bsrg_tall_plan *plan,
                                          const bsrg_tall_pieces *pieces, int64_t n, int64_t transposed_rows,
                                          const bsrg_chip *chip);
/* For that. The structure may have more rows than Y, see tall_launch.c. */
int64_t bsrg_tall_transposed_rows(const bsrg_matmul_args *args);
void bsrg_tall_predict(const bsrg_matmul_args *args, const void *plan, const bsrg_tall_pieces *pieces,
                       const bsrg_chip *chip, bsrg_candidate *candidate);

/* Whether there are kernels for it. args and plan: of the structure of these blocks, with the stored values. */
bool bsrg_tall_takes_pieces(const bsrg_matmul_args *args, const void *plan, const bsrg_tall_pieces *pieces,
                            const bsrg_chip *chip);
bsrg_status bsrg_tall_launch_pieces(const bsrg_matmul_args *args, const void *plan,
                                    const bsrg_tall_pieces *pieces, bsrg_gpu gpu, bsrg_error *error);

#endif
