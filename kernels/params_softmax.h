/* What host code and the kernels of softmax agree on, sm80/bsr_softmax.cu; included by params.h, which is what
 * everybody includes. */
#ifndef BSRG_PARAMS_SOFTMAX_H
#define BSRG_PARAMS_SOFTMAX_H

#include "params.h"

enum {
  BSRG_SOFTMAX_THREADS = 256,
  BSRG_SOFTMAX_WARPS = BSRG_SOFTMAX_THREADS / 32,
  BSRG_SOFTMAX_TILE = 32,
  BSRG_SOFTMAX_KEPT = 8 /* vectors of 16 bytes that a thread has in shared memory, of all its rows */
};

/* bsr_softmax_rows_*: blocks as they are stored, with several warps to a row or several rows to a warp.
 * bsr_softmax_columns_*: those of a transposed view, which lie as [block width][block height]; a CTA has up to
 * BSRG_SOFTMAX_TILE rows of a block row, `lanes` times those of 16 bytes, or of one element. */
typedef struct bsrg_softmax_params {
  const void *values;
  void *out;                /* values or memory apart */
  const int64_t *indptr;    /* [block_rows + 1] */
  const int32_t *row_order; /* or NULL: as they come */
  const int32_t *indices;
  const int64_t *order; /* of columns: block b of the view is block order[b] of values */
  int64_t rows;         /* of rows: how many there are, in elements, of whole blocks */
  int64_t block_area;
  int32_t block_height, block_width;
  /* A partial last block column, or -1, whose blocks are the last of rows, and row, and what they have within the matrix. */
  int32_t last_column, last_cols;
  int32_t last_row, last_rows;
  int32_t warps_per_row; /* of rows: a power of two */
  int32_t rows_at_once;  /* of a warp: 1, or 2 or 4 neighbours in a block row, which one warp has */
  int32_t vector; /* a block's rows, or the columns of the view's, begin and end at multiples of 16 bytes */
  int32_t lanes;  /* of columns: a power of two that divides 32 */
  int32_t tiles;  /* of columns: CTAs of a block row */
  double scale;
} bsrg_softmax_params;

#endif
