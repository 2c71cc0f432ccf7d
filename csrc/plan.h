/* What is worked out once from a structure, on any machine, and reused by every product with it. */
#ifndef BSRG_PLAN_H
#define BSRG_PLAN_H

#include "internal.h"

#include "../kernels/params.h"

/* Tiles of two 64-row strips and the block columns that each pair meets: sm90/tall.cuh. */
typedef struct bsrg_tall_plan {
  bsrg_tall_entry *entries;
  bsrg_tall_tile *tiles;
  int64_t entry_count;
  int32_t tile_count;   /* 0: no tiles, the block shape is not one that the tall family takes */
  int64_t tile_entries; /* sum of entry_count over the tiles (tiles of one tall block row share entries) */
  int32_t longest_tile;
  bool skewed; /* tiles are sorted, longest first, and all columns of a tile come before the next tile */
} bsrg_tall_plan;

struct bsrg_plan {
  bsrg_tall_plan tall;
  int32_t *row_order; /* block rows, longest first where lengths differ much */
};

/* The structure's plan, made at the first call. */
bsrg_status bsrg_plan_get(bsrg_structure *structure, const bsrg_plan **out, bsrg_error *error);

/* How many column tiles a CTA cluster of the tall family takes at once for n columns: 1 or 2. */
int bsrg_tall_cluster(int64_t n);
/* Column tiles (of a cluster) swept together down all row tiles. */
int32_t bsrg_tall_group(const bsrg_structure *structure, const bsrg_tall_plan *plan, int cluster,
                        int32_t n_tiles);

/* The tile of the portable family for a block height and n columns. */
typedef struct bsrg_portable_tile {
  int kernel; /* bsrg_kernel_id */
  int64_t rows, columns;
  double cost; /* time for a row of a tile, against the others of its dtype */
} bsrg_portable_tile;
bsrg_portable_tile bsrg_portable_choose(bsrg_dtype dtype, int64_t block_height, int64_t n);

/* NULL when the family can compute a product of this structure and dtype, else what it needs. */
const char *bsrg_family_obstacle(bsrg_family family, const bsrg_structure *structure, bsrg_dtype dtype,
                                 int sm_arch);

/* The GPU family that the cost model prefers for n columns among those that the structure admits; tall_ok
 * says whether the operands' addresses and strides suit TMA. */
bsrg_family bsrg_choose_family(const bsrg_structure *structure, const bsrg_plan *plan, bsrg_dtype dtype,
                               int64_t n, const bsrg_chip *chip, bool tall_ok);

#endif
