/* Sampled products on GPUs: what a structure's plan has for them. Kernels in kernels/sm90/sampled.cuh, kernels/sm80/
 * sampled.cuh and kernels/sm80/sampled_simt.cuh. */
#ifndef BSRG_SAMPLED_H
#define BSRG_SAMPLED_H

#include "regroup.h"

typedef struct bsrg_sampled_plan {
  /* For Hopper's kernels: tiles of `strips` strips and of parts of `part` rows and columns, in the order in which they are
   * computed. 0: the blocks, or how many there are, are nothing for them. */
  int32_t strips, part;
  int32_t tile_count;
  int64_t panel_count;
  bsrg_sampled_tile *tiles;
  bsrg_sampled_panel *panels;
  int32_t tile_panels; /* of a tile, at most: of dynamic structures, whose lists the device makes */
  /* For the portable kernels: items of up to so many columns. */
  int32_t item_columns;
  int64_t item_count;
  bsrg_sampled_item *items;
} bsrg_sampled_plan;

/* Strips of a tile where blocks have sides that are multiples of 64. */
int bsrg_sampled_strips(const bsrg_structure_view *view);

/* Columns of B whose panels are to stay in L2 while the rows of A pass by: tiles are in the order of these sweeps. */
int64_t bsrg_sampled_sweep_columns(const bsrg_structure_view *view);
/* How many panels a tile has at most, where tiles(of, most) is how many there are then, `most` a multiple of unit. */
int64_t bsrg_sampled_choose_width(int64_t (*tiles)(const void *of, int64_t most), const void *of,
                                  int64_t widest, int64_t unit, int64_t overhead);
/* Tiles of parts of 32 rows and columns; none where they do not suit. false: no memory (sampled_parts.c). */
bool bsrg_sampled_plan_parts(const bsrg_structure_view *view, bsrg_sampled_plan *plan);

/* NULL when Hopper's kernels can compute the product, and that (sampled_launch.c). */
const char *bsrg_sampled_obstacle(const bsrg_sampled_args *args, const bsrg_sampled_plan *plan, int sm_arch);
bsrg_status bsrg_sampled_launch_hopper(const bsrg_sampled_args *args, const bsrg_sampled_plan *plan,
                                       bsrg_gpu gpu, bsrg_error *error);

/* ---- at the blocks of a dynamic structure (sampled_dynamic.c) --------------------------------------- */

/* Sizes of lists without the lists: for as many blocks as the capacity, evenly spread. */
void bsrg_sampled_plan_dynamic(const bsrg_structure_view *view, bsrg_sampled_plan *plan);

/* What kernels read of a pattern, on the device. scratch: 0, or memory that is to be freed behind the product. */
typedef struct bsrg_sampled_arrays {
  const bsrg_sampled_tile *tiles;
  const bsrg_sampled_panel *panels;
  const bsrg_sampled_item *items;
  const int32_t *indices;
  CUdeviceptr scratch;
} bsrg_sampled_arrays;

/* What a pattern has of them in its memory, of so many bytes, but for that; false: nothing. */
bool bsrg_sampled_place_lists(const bsrg_structure_view *view, const bsrg_pattern_side *matrix,
                              int64_t sm_count, bsrg_sampled_lists_params *out, size_t *panel_bytes,
                              size_t *tile_bytes);

/* Finds what the kernels of `family` read, or has the device make it and, for the portable ones, write zeros to out behind
 * the last block. */
bsrg_status bsrg_sampled_make_lists(const bsrg_sampled_args *args, const bsrg_sampled_plan *plan,
                                    bsrg_family family, bsrg_gpu gpu, bsrg_sampled_arrays *arrays,
                                    bsrg_error *error);

/* ---- at larger blocks that cover those stored (sampled_cover.c) --------------------------------- */

/* NULL where there can be a plan of these. */
const char *bsrg_sampled_cover_obstacle(const bsrg_sampled_args *args, int sm_arch);
/* The product at the larger blocks; values and out are missing. */
bsrg_sampled_args bsrg_sampled_of_cover(const bsrg_sampled_args *args, const bsrg_regrouped *cover);
/* What copies between the two read and write. */
double bsrg_sampled_cover_bytes(const bsrg_sampled_args *args, const bsrg_regrouped *cover);
bsrg_status bsrg_sampled_launch_cover(const bsrg_sampled_args *args, const bsrg_regrouped *cover,
                                      bsrg_gpu gpu, bsrg_error *error);

/* ---- on copies of a and b (sampled_copies.c) ------------------------------------------------------ */

typedef struct bsrg_sampled_copies {
  bsrg_sampled_args args; /* the data of copies is NULL until there is memory */
  bool a, b;              /* which are copied: neither where that does not pay */
} bsrg_sampled_copies;
bsrg_sampled_copies bsrg_sampled_describe_copies(const bsrg_sampled_args *args);
typedef bsrg_status (*bsrg_sampled_launcher)(const bsrg_sampled_args *args, bsrg_gpu gpu, bsrg_error *error);
/* Copies, and lets `launch` compute. */
bsrg_status bsrg_sampled_launch_copies(const bsrg_sampled_args *args, bsrg_sampled_copies *copies,
                                       bsrg_sampled_launcher launch, bsrg_gpu gpu, bsrg_error *error);

/* A copy of so many rows and columns, in the order in which the operand lies if kernels take that. */
bsrg_dense bsrg_sampled_copy_of(const bsrg_dense *dense, int64_t rows, int64_t cols, bsrg_dtype dtype);
/* What the copies take. */
double bsrg_sampled_copies_seconds(const bsrg_sampled_copies *copies);

/* ---- batches (sampled_batch.c) -------------------------------------------------------------------- */

/* Dimensions that are steps of one become one. */
void bsrg_sampled_fold(bsrg_sampled_args *args);
/* The product of one entry. */
bsrg_sampled_args bsrg_sampled_at(const bsrg_sampled_args *args, const int64_t *position);
/* Of a batch of one dimension, by one or more of `launch`. */
bsrg_status bsrg_sampled_launch_batch(const bsrg_sampled_args *args, bsrg_sampled_launcher launch,
                                      bsrg_gpu gpu, bsrg_error *error);

/* ---- which of them (sampled_predict.c) ------------------------------------------------------------ */

/* How a sampled product is computed: the plan is a bsrg_regrouped for BSRG_COVER, else a bsrg_sampled_plan. */
typedef struct bsrg_sampled_way {
  bsrg_family family;
  const void *plan;
} bsrg_sampled_way;

/* The way that args name or, where they name none, Hopper's kernels, else the fastest by prediction. There is at least one
 * block. */
bsrg_status bsrg_sampled_choose(const bsrg_sampled_args *args, const bsrg_chip *chip, bsrg_sampled_way *way,
                                bsrg_error *error);

/* What a product is predicted to take; infinite where no kernel can compute it. */
double bsrg_sampled_seconds(const bsrg_sampled_args *args, const bsrg_chip *chip);

/* What tiles of so many strips cost the tensor cores, relative to two. */
double bsrg_sampled_strip_overhead(int32_t strips);

/* Which of the portable kernels' tiles such blocks get, of the list of their dtype, the rows that it has and how many of its
 * CTAs an SM takes. */
enum { BSRG_SAMPLED_TILES = 3 };
typedef struct bsrg_sampled_shape {
  int index;
  int64_t rows, ctas;
} bsrg_sampled_shape;
bsrg_sampled_shape bsrg_sampled_choose_tile(const bsrg_structure_view *view, bsrg_dtype dtype,
                                            const bsrg_sampled_plan *plan);

/* How the portable kernels read A and B: of 16 bits along m or n where these have neighbours, else along k, the others always
 * in one order; 16 bytes at a time, or element by element. */
typedef struct bsrg_sampled_loads {
  bool along_m, along_k;
  bool vector_a, vector_b;
} bsrg_sampled_loads;
bsrg_sampled_loads bsrg_sampled_choose_loads(const bsrg_sampled_args *args);

#endif
