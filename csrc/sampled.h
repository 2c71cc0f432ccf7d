/* Sampled products on GPUs: what a structure's plan has for them. Kernels in kernels/sm90/sampled.cuh, kernels/sm80/
 * sampled.cuh and kernels/sm80/sampled_simt.cuh. */
#ifndef BSRG_SAMPLED_H
#define BSRG_SAMPLED_H

#include "family.h"

typedef struct bsrg_sampled_plan {
  /* For Hopper's kernels: tiles of `strips` strips in the order in which they are computed. 0: the blocks, or how many
   * there are, are nothing for them. */
  int32_t strips;
  int32_t tile_count;
  int64_t panel_count;
  bsrg_sampled_tile *tiles;
  bsrg_sampled_panel *panels;
  /* For the portable kernels: items of up to so many columns. */
  int32_t item_columns;
  int64_t item_count;
  bsrg_sampled_item *items;
} bsrg_sampled_plan;

/* NULL when Hopper's kernels can compute the product (sampled_launch.c). */
const char *bsrg_sampled_obstacle(const bsrg_sampled_args *args, const bsrg_sampled_plan *plan, int sm_arch);
/* Which of the portable kernels' tiles such blocks get, of the list of their dtype, and the rows that it has. */
enum { BSRG_SAMPLED_TILES = 3 };
int bsrg_sampled_choose_tile(const bsrg_structure_view *view, bsrg_dtype dtype, const bsrg_sampled_plan *plan,
                             int64_t *tile_rows);

#endif
