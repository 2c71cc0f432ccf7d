/* Parameters of the kernels that multiply two block-sparse matrices; included by params.h. */
#ifndef BSRG_PARAMS_PAIRS_H
#define BSRG_PARAMS_PAIRS_H

#include "params_portable.h"

/* ---- sm90/pairs.cuh -------------------------------------------------------------------------- */

enum {
  BSRG_PAIRS_STRIP = 64,    /* rows or columns of blocks, and k of a stage: all block sides are multiples */
  BSRG_PAIRS_TILE_M = 128,  /* rows of a CTA's tile, a strip for each of two consumer warpgroups */
  BSRG_PAIRS_TILE_N = 256,  /* its columns */
  BSRG_PAIRS_THREADS = 384, /* one producer and two consumer warpgroups */
  BSRG_PAIRS_STAGES = 4,    /* of 64 k in flight */
  BSRG_PAIRS_BATCH = 16,    /* meetings that the finder hands over at a time */
  BSRG_PAIRS_BATCH_SLOTS = 2,
  /* stages (A and B), output pieces, batches and barriers, and slack to align the start to 1024 */
  BSRG_PAIRS_SHARED_BYTES = 4 * (16384 + 32768) + 32768 + 3072
};

/* Which blocks one operand stores, as bits. Seen from the output: `lines` are the block rows of A, and of B transposed,
 * the block columns of B; `k` their blocks across. */
typedef struct bsrg_pairs_operand {
  const uint32_t *bits; /* [lines][words]: bit k % 32 of word k / 32 */
  const int32_t *first; /* [lines][words]: how many blocks there are before the word's first */
  const int32_t *order; /* of these blocks, counted by lines: where they lie in values. NULL: there */
  const int32_t *tiles; /* NULL, or the order in which tiles are computed */
  int32_t strips;       /* lines * strips_per_block */
  int32_t strips_per_block;
  int32_t rows_per_block; /* of the map, below */
  int32_t joined;         /* A: a map's box has both strips of a tile, which lie in one block */
} bsrg_pairs_operand;

typedef struct bsrg_pairs_params {
  /* values as {64, rows, columns / 64}: of blocks whose k is contiguous in memory (A, B transposed), a row is a row or
   * column of the product, boxes are 64 k x strips; of the others it is a k, boxes are 64 x 64 k x strips. */
  bsrg_tensor_map a, b;
  bsrg_tensor_map y; /* {N, M}, box 16 rows x 64 columns */
  bsrg_pairs_operand of_a, of_b;
  uint32_t *counter; /* as in bsrg_tall_params */
  const void *c;
  int64_t c_row_stride, c_col_stride;
  int32_t words; /* 32-bit words of a line */
  int32_t steps; /* stages of a block */
  int32_t row_tiles, column_tiles;
  int32_t group;         /* column tiles that are swept together down all row tiles */
  int32_t rows, columns; /* of Y */
  int32_t c_in_pairs;    /* C can be read two elements of a row at a time */
  float alpha, beta;
} bsrg_pairs_params;

/* ---- sm80/pairs.cuh ----------------------------------------------------------------- */

/* A block column of B, as the operand X of bsrg_portable_params: n is the width of a block, Y and C are those of the
 * whole product. indptr and indices of the transposed B, order NULL where that is how values lie. */
typedef struct bsrg_pairs_portable_params {
  bsrg_portable_params product;
  const int64_t *b_indptr;
  const int32_t *b_indices;
  const int64_t *b_order;
  int64_t b_block_cols;
  int32_t tiles_per_block_column;
} bsrg_pairs_portable_params;

/* As BSRG_MMA_TILES and BSRG_SIMT_F32_TILES, pairs_f16_m<rows>n<columns> and so on. */
#define BSRG_PAIRS_MMA_TILES(X) \
  X(16, 64, 1, 2, 32, 4, 6)     \
  X(32, 64, 2, 1, 32, 4, 5)     \
  X(64, 64, 4, 1, 32, 4, 3)     \
  X(128, 128, 2, 2, 64, 3, 2)
#define BSRG_PAIRS_F32_TILES(X) \
  X(32, 32, 2, 1, 16, 4, 8)     \
  X(64, 128, 2, 2, 16, 3, 2)
#define BSRG_PAIRS_F64_TILES(X) \
  X(32, 32, 2, 1, 8, 4, 6)      \
  X(64, 64, 2, 2, 8, 3, 2)

/* ---- sm80/spread.cu --------------------------------------------------------------------------- */

/* Writes stored blocks to where they are in a dense matrix. Everything counts chunks of an element or, where rows of blocks and
 * of the matrix are whole ones at aligned addresses, of 16 bytes. */
typedef struct bsrg_spread_params {
  const void *values;
  const int64_t *indptr, *order; /* order: as in bsrg_portable_params, or NULL */
  const int32_t *indices;
  void *target;
  int64_t rows, cols, target_row_stride; /* of the matrix, in which the last blocks may be partial */
  int64_t row_stride, col_stride;        /* in a stored block */
  int32_t block_height, block_width;
  int32_t parts, part_rows; /* of a block, of a part: what a warp copies at a time */
} bsrg_spread_params;

enum {
  BSRG_SPREAD_THREADS = 256,
  BSRG_SPREAD_MOST_CTAS = 16, /* of a block row */
  BSRG_SPREAD_PART = 512      /* chunks of a part of several rows, at most */
};

#endif
