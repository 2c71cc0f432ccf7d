/* What host code and the kernels of sm80/pattern.cu agree on, which make the pattern of a matrix, its transposed and the
 * tall kernels' plan of both in device memory; included by params.h, which is what everybody includes. */
#ifndef BSRG_PARAMS_PATTERN_H
#define BSRG_PARAMS_PATTERN_H

#include "params.h"
#include "params_sampled.h"

enum {
  BSRG_PATTERN_THREADS = 256,       /* a warp a row in pattern_bits, a CTA a row in pattern_lists */
  BSRG_PATTERN_ROWS_THREADS = 1024, /* one CTA */
  BSRG_STREAM_LISTS_THREADS = 512   /* some CTAs a tile of the stream kernels */
};

/* What the stream kernels read, of one reading. A part is what one of their instructions multiplies, a tile some rows in
 * row_order, one after another. */
typedef struct bsrg_stream_lists {
  bsrg_stream_stage *stages; /* NULL: none are made */
  bsrg_stream_tile *tiles;
  int32_t *row_begin;       /* [tiles][BSRG_STREAM_GROUPS][BSRG_STREAM_ROWS_OF(height)] */
  int32_t *source;          /* as in bsrg_pack_params, and BSRG_STREAM_SOURCE_SLACK more that nobody needs */
  int32_t tile_count, ctas; /* of a tile */
  int32_t height, width;    /* of a part */
  int32_t rows, columns;    /* parts of a block, down and across */
  /* Stages that the blocks of a tile need at most, but for one more that each tile may need. So the stages of tile t begin at
   * t + (blocks of the tiles before * block_stages >> BSRG_STREAM_LISTS_SHIFT). */
  int32_t block_stages;
} bsrg_stream_lists;

enum {
  BSRG_STREAM_LISTS_SHIFT = 16,
  BSRG_STREAM_LISTS_ACROSS = 2048 /* parts across a block, at most */
};

/* One reading of the pattern: of the matrix or of its transposed. Rows and columns are block rows and block columns,
 * of which there are fewer than 2^31 pairs. */
typedef struct bsrg_pattern_side {
  uint32_t *bits;   /* [rows][words]: bit c % 32 of word c / 32: whether column c has a block */
  int32_t *rank;    /* [rows][words]: blocks of the row before the word */
  int32_t *count;   /* [rows]: of the matrix also those that the capacity does not admit */
  int32_t *extent;  /* [rows][2]: first and last column with a block; INT32_MAX and -1 without */
  int64_t *indptr;  /* [rows + 1] */
  int32_t *indices; /* [capacity] */
  int64_t *order;   /* [capacity]: of the transposed, as in bsrg_structure_view; else NULL */
  /* [rows]: longest first where lengths differ much, else in their order; where odd strips go in pairs and there are no more
   * than BSRG_PATTERN_ROWS_THREADS, rows without a partner that has common columns come first */
  int32_t *row_order;
  int32_t *spare_order; /* [rows] */
  int32_t *order_begin; /* [rows]: blocks of the rows before, in row_order */
  /* NULL where the tall kernels cannot take the blocks. A row has strips / 2 tiles whose entries are its blocks; the odd
   * strip has one together with that of the next row in row_order, and entries behind those, if there are any. */
  bsrg_tall_entry *entries;
  bsrg_tall_tile *tiles;
  bsrg_stream_lists stream;
  int32_t rows, words;
  int32_t strips; /* height of a block / BSRG_TALL_STRIP */
  int32_t width;  /* of a block */
} bsrg_pattern_side;

/* pattern_bits, pattern_columns, pattern_turn, pattern_lists, stream_lists. */
typedef struct bsrg_pattern_params {
  bsrg_pattern_side matrix, transposed;
  const uint8_t *mask; /* [rows][columns], not 0: a block */
  int64_t mask_row_stride, mask_col_stride;
  const int32_t *columns; /* [rows][most], ascending: the alternative to mask */
  int32_t most;
  int32_t capacity;
  int32_t block_height;              /* as stored */
  int32_t *block_row;                /* [capacity]: row of each block */
  bsrg_sampled_lists_params sampled; /* of the matrix, without zeros to be written; tiles NULL: none */
} bsrg_pattern_params;

/* pattern_ranks, pattern_rows. */
typedef struct bsrg_pattern_rows_params {
  bsrg_pattern_side side;
  int32_t capacity;
  int64_t *counts; /* NULL, or gets {blocks, blocks that the capacity did not admit} */
} bsrg_pattern_rows_params;

/* pattern_gather_2, _4, _8, _16: block b becomes what a dense matrix has there, and zeros behind the last one. Strides,
 * sizes and width count units of so many bytes. */
typedef struct bsrg_gather_params {
  const void *dense;
  void *values; /* [capacity][block_height][width] */
  int64_t row_stride, col_stride;
  const int32_t *block_row, *indices;
  const int64_t *counts;
  int32_t block_height, width;
} bsrg_gather_params;

/* Units that a thread of pattern_gather copies in one step; grid.y: pieces of a block. */
enum { BSRG_GATHER_UNITS = 4 };

#endif
