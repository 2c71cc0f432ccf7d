/* The regroup family: a product with the stored blocks copied into others, mostly larger ones, and the gaps filled
 * with zeros, so that the tall or the stream kernels can take it. regroup.c works out these blocks, regroup_family.c
 * chooses their shape, predicts and launches, kernels/sm80/regroup.cu copies. Where the kernels of
 * kernels/sm90/tall_pieces.cuh can put the others together as they load them, nothing is copied. */
#ifndef BSRG_REGROUP_H
#define BSRG_REGROUP_H

#include "tall.h"

typedef struct bsrg_block_shape {
  int32_t height, width;
} bsrg_block_shape;

typedef struct bsrg_regrouped {
  /* The larger blocks that meet a stored one. Rows and columns are rounded up to whole blocks: the last ones may
   * reach beyond the matrix, where they hold zeros, X is read as zeros and Y is not written. */
  bsrg_structure *child;
  const bsrg_family_ops *family; /* that multiplies it: tall or stream */
  const void *child_plan;        /* owned by the child */
  bsrg_block_shape shape;
  bool low; /* for few columns: see bsrg_stream_wants_low */
  /* What the kernel copies. A tile is some blocks of the child that are neighbours in memory, or a part of one. For
   * the stream family blocks lie in the order of its plan. */
  bsrg_regroup_piece *pieces;
  int64_t *tile_begin; /* tile_count + 1 */
  int64_t tile_count;
  int32_t tile_elements;
  /* Of blocks of 128 x 64 or 128 x 80: where their parts are stored, for tall_pieces.cuh. NULL: no such kernel, or no such
   * blocks. */
  bsrg_tall_piece *sources;
  int64_t source_count;
  bsrg_block_shape source_shape;
  uint8_t *k16s;  /* of the child's blocks, in the order of its plan's entries: see bsrg_tall_params */
  double skipped; /* the share of their strips' sixteens of k that no part meets */
} bsrg_regrouped;

/* Shapes for tall have heights that are multiples of 64 and widths from 16 to 128 that are multiples of 16; shapes
 * for stream are those of BSRG_STREAM_SHAPES. */

/* Blocks of this shape that are needed at most, whatever the pattern. */
int64_t bsrg_regroup_most_blocks(const bsrg_structure_view *view, bsrg_block_shape shape);
/* About how many are needed for this pattern, which has at least one block, from a sample of about look_at of its
 * blocks. marks: view->cols / 8 + 1 numbers, zero before the first call; stamp: 1 then, and advanced here. */
double bsrg_regroup_estimate_blocks(const bsrg_structure_view *view, bsrg_block_shape shape, int64_t look_at,
                                    int32_t *marks, int32_t *stamp);
/* Whether blocks are as many columns wide as several wide pieces, and not as several of 64. */
static inline bool bsrg_regroup_is_wide(const bsrg_structure_view *view) {
  return view->block_width % BSRG_TALL_WIDE_PIECE == 0 && view->block_width % BSRG_TALL_PIECED_WIDTH != 0;
}
/* The parts into which lines at multiples of 64 rows and columns cut stored blocks, where the kernels of tall_pieces.cuh put
 * larger blocks of this shape together from them: 128 x 64, of at most eight parts to 64 x 64, 32 columns wide or 64, or
 * of blocks 16 columns wide with parts of 16 rows or more; and at multiples of 80 columns 128 x 80, of parts as wide.
 * Otherwise of no rows. */
bsrg_block_shape bsrg_regroup_source_shape(const bsrg_structure_view *view, bsrg_block_shape shape,
                                           const bsrg_family_ops *family);
/* NULL when memory ran out. bsrg_regroup_most_blocks must be below 2^31. */
bsrg_regrouped *bsrg_regroup(const bsrg_structure_view *view, bsrg_block_shape shape,
                             const bsrg_family_ops *family, bool low);
void bsrg_regrouped_free(void *regrouped);

/* Copies the values of the stored blocks, 16 bits each, to those of the others, and back. key: of the uploads, which belong to
 * the stored structure (regroup_family.c). */
bsrg_status bsrg_regroup_pack(bsrg_structure *stored, int key, const bsrg_regrouped *regrouped,
                              const void *values, CUdeviceptr packed, bsrg_gpu gpu, CUstream stream,
                              bsrg_error *error);
bsrg_status bsrg_regroup_unpack(bsrg_structure *stored, int key, const bsrg_regrouped *regrouped,
                                CUdeviceptr packed, void *values, bsrg_gpu gpu, CUstream stream,
                                bsrg_error *error);

#endif
