/* The tall family: blocks whose height is a multiple of 64, on Hopper. Kernels in kernels/sm90/tall.cuh. */
#ifndef BSRG_TALL_H
#define BSRG_TALL_H

#include "family.h"

/* Tiles of two 64-row strips and the block columns that each pair meets. */
typedef struct bsrg_tall_plan {
  bsrg_tall_entry *entries;
  bsrg_tall_tile *tiles;
  int64_t entry_count;
  int32_t tile_count;
  int64_t tile_entries; /* sum of entry_count over the tiles (tiles of one tall block row share entries) */
  int32_t longest_tile;
  bool skewed; /* tiles are sorted, longest first, and all columns of a tile come before the next tile */
  /* For every i, tiles 2i and 2i + 1 have equal lists of columns, and each has both strips in one block row. */
  bool row_pairs;
} bsrg_tall_plan;

void *bsrg_tall_make_plan(bsrg_structure *structure);
void bsrg_tall_free_plan(void *plan);
void bsrg_tall_predict(const bsrg_matmul_args *args, const void *plan, const bsrg_chip *chip,
                       bsrg_candidate *candidate);

/* How many tiles a cluster takes at once, one a CTA: one, or two along columns or rows. */
typedef struct bsrg_tall_cluster {
  int32_t columns, rows;
} bsrg_tall_cluster;
bsrg_tall_cluster bsrg_tall_cluster_for(const bsrg_structure_view *view, const bsrg_tall_plan *plan,
                                        int64_t n);
/* Column tiles (of a cluster) swept together down all row tiles. */
int32_t bsrg_tall_group(const bsrg_structure_view *view, const bsrg_tall_plan *plan,
                        bsrg_tall_cluster cluster, int32_t n_tiles);

#endif
