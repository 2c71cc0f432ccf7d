/* What host code and the portable kernels agree on, in tiles and of few columns; included by params.h, which is what
 * everybody includes. */
#ifndef BSRG_PARAMS_PORTABLE_H
#define BSRG_PARAMS_PORTABLE_H

#include "params.h"

/* ---- sm80/portable.cuh, sm80/simt.cuh -------------------------------------------------------- */

/* A block row is seen as a dense [bh, blocks * bw] matrix times the rows of X that its block columns select:
 * element (r, kk) of block row i is values[((indptr[i] + kk / bw) * bh + r) * bw + kk % bw], and it meets row
 * indices[indptr[i] + kk / bw] * bw + kk % bw of X. The kernels for transposed views find the element, of a block that
 * is stored as [bw, bh], at values[(order[indptr[i] + kk / bw] * bw + kk % bw) * bh + r]. */
typedef struct bsrg_portable_params {
  const void *values;
  const int64_t *indptr;
  const int32_t *indices;
  const int32_t *row_order; /* block rows, longest first */
  const void *x, *c;
  void *y;
  int64_t x_row_stride, x_col_stride, c_row_stride, c_col_stride, y_row_stride, y_col_stride;
  int64_t n;
  int64_t row_tiles; /* block_rows * tiles_per_block_row: blockIdx.x */
  int32_t block_height, block_width;
  int32_t tiles_per_block_row; /* ceil(bh / tile rows) */
  int32_t vector_x;            /* X: unit column stride, 16-byte aligned rows */
  /* C and Y likewise. Of the kernels for 8 bits: runs of four neighbours, of a row or else of a column, lie at multiples of
   * their size. */
  int32_t vector_y;
  int32_t vector_a;   /* bw (of transposed views bh too) counts whole 16 bytes, values are aligned to 16 */
  double alpha, beta; /* beta == 0: c is not read */
  const int64_t *order;
  bsrg_output_params output;
} bsrg_portable_params;

/* The tiles that are compiled, one row a kernel, for kernels and host alike. Each takes any N.
 *   X(rows, columns, warps along rows, warps along columns, k of a stage, stages, CTAs of an SM)
 * A kernel has 32 threads a warp. BSRG_MMA_TILES: portable_f16_m<rows>n<columns> and portable_bf16_... */
#define BSRG_MMA_TILES(X)    \
  X(16, 64, 1, 2, 32, 4, 6)  \
  X(64, 64, 4, 1, 32, 4, 3)  \
  X(16, 256, 1, 4, 32, 3, 4) \
  X(32, 256, 1, 4, 32, 4, 3) \
  X(48, 256, 1, 4, 32, 4, 2) \
  X(64, 256, 1, 4, 64, 2, 2) \
  X(128, 128, 2, 2, 64, 3, 2)
/* simt_f32_m<rows>n<columns>, simt_tf32_... and simt_f64_...; a stage has 64 bytes of k or more. A thread keeps a sum and a
 * total of each of its elements. Of those with matrix instructions it has few, since these want warps beside one another. */
#define BSRG_SIMT_F32_TILES(X) \
  X(32, 32, 2, 1, 16, 4, 8)    \
  X(16, 256, 1, 4, 16, 3, 3)   \
  X(32, 128, 2, 2, 16, 3, 3)   \
  X(64, 128, 2, 2, 16, 3, 2)
#define BSRG_SIMT_TF32_TILES(X) \
  X(32, 32, 2, 1, 16, 4, 8)     \
  X(16, 256, 1, 8, 32, 2, 2)    \
  X(32, 128, 1, 4, 16, 3, 4)    \
  X(64, 128, 2, 4, 32, 3, 2)
#define BSRG_SIMT_F64_TILES(X) \
  X(32, 32, 2, 1, 8, 4, 8)     \
  X(16, 256, 1, 8, 16, 2, 2)   \
  X(32, 128, 2, 4, 16, 3, 2)   \
  X(64, 64, 4, 2, 16, 3, 2)

/* portable_e4m3_m<rows>n<columns> and portable_e5m2_... */
#define BSRG_EIGHT_TILES(X)  \
  X(16, 64, 1, 2, 64, 4, 8)  \
  X(16, 256, 1, 4, 64, 3, 4) \
  X(32, 256, 1, 4, 64, 3, 2) \
  X(48, 128, 1, 4, 64, 4, 2) \
  X(64, 128, 2, 2, 64, 4, 2) \
  X(128, 128, 2, 4, 64, 4, 1)

/* Dynamic shared memory: the stages, and two tables of k entries of 16 bytes. */
#define BSRG_MMA_SHARED_BYTES(rows, columns, k, stages) \
  ((stages) * 2 * (k) * ((rows) + (columns)) + 2 * 16 * (k))
#define BSRG_SIMT_SHARED_BYTES(size, rows, columns, k, stages) \
  ((stages) * BSRG_SIMT_STAGE_BYTES(size, rows, columns, k) + 2 * 16 * (k))
/* Of float64 and tf32 with a transposed A. */
#define BSRG_SIMT_TURNED_BYTES(size, rows, columns, k, stages) \
  ((stages) * ((size) * (k) * ((rows) + (columns)) + 64 * (k)) + 2 * 16 * (k))
/* A and X, and what pads their rows. */
#define BSRG_SIMT_STAGE_BYTES(size, rows, columns, k) \
  ((size) * (k) * ((rows) + (columns)) + ((size) == 8 ? 32 : 16) * (rows) + 32 * (k))

/* Of 8 bits: the stages, the scales of their chunks of 16 k and two tables of entries of 32 bytes, or in the end the sums of a
 * tile, whose rows are padded, and two factors and summands for each row and column. */
#define BSRG_EIGHT_STAGES_BYTES(rows, columns, k, stages) \
  ((stages) * (((rows) + (columns)) * (k) + (k) / 4) + 4 * (k))
#define BSRG_EIGHT_SUMS_BYTES(rows, columns) (4 * (rows) * ((columns) + 4) + 8 * ((rows) + (columns)))
#define BSRG_EIGHT_SHARED_BYTES(rows, columns, k, stages)                                   \
  (BSRG_EIGHT_STAGES_BYTES(rows, columns, k, stages) > BSRG_EIGHT_SUMS_BYTES(rows, columns) \
       ? BSRG_EIGHT_STAGES_BYTES(rows, columns, k, stages)                                  \
       : BSRG_EIGHT_SUMS_BYTES(rows, columns))

/* What products of 8-bit floats have beside others. */
typedef struct bsrg_scaling {
  const float *block_scales;      /* of each stored block; NULL: all 1 */
  const float *a_scale, *x_scale; /* one factor each; NULL: 1 */
  int64_t x_rows;                 /* the last block column may reach beyond them */
  int32_t out;                    /* BSRG_KMAJOR_F16, ... */
} bsrg_scaling;

/* ---- sm80/portable_eight.cuh ----------------------------------------------------------------- */

typedef struct bsrg_eight_params {
  bsrg_portable_params portable; /* values and x in chunks: of x no strides, nor vector_a and vector_x */
  bsrg_scaling scaling;
  int64_t a_block_stride, a_row_stride, a_chunk_stride; /* in bytes */
  int32_t chunks;                                       /* of 16 k of a block's row */
} bsrg_eight_params;

/* ---- sm80/panels.cu -------------------------------------------------------------------------- */

enum {
  BSRG_PANELS_THREADS = 256,
  BSRG_PANELS_TILE = 1024, /* chunks that a CTA copies: of some columns, of 2^chunk_bits chunks each */
  BSRG_PANELS_CHUNK = 16
};

/* Copies matrices of 8-bit elements with `cols` columns each to [chunks][target_cols][16]. The rows of a matrix go in blocks of
 * `width`, each filled up with zeros to whole chunks, as is what lies beyond `rows`. Of t = 1 << tile_bits columns in a row the
 * target has eight times as many places, column c at c % t * 8 + c / t: as they come if that is one. */
typedef struct bsrg_panels_params {
  const void *source;
  void *target;
  int64_t source_row_stride, source_col_stride, source_matrix_stride;
  int64_t rows, width, cols, all_cols; /* all_cols: of all matrices */
  int64_t target_cols;
  int64_t chunks; /* of all blocks */
  int64_t col_tiles;
  int32_t chunks_of_block, chunk_bits, tile_bits;
  int32_t fours; /* four neighbours of a row start at multiples of 4 bytes */
  int32_t whole; /* chunks along a column start at multiples of 16, and blocks have whole ones */
} bsrg_panels_params;

/* ---- sm80/widen.cu --------------------------------------------------------------------------- */

enum {
  BSRG_WIDEN_THREAD_BITS = 8,
  BSRG_WIDEN_ELEMENTS = 8, /* of a row, that a thread copies together */
  BSRG_WIDEN_ROWS = 8      /* of a thread, at once */
};

typedef struct bsrg_widen_params {
  const void *source;
  void *target; /* rows are contiguous, begin at multiples of 16 bytes and have room for a multiple of them */
  int64_t rows, cols, last_cols; /* last_cols: of the last row */
  int64_t source_row_stride, source_col_stride, target_row_stride;
  int32_t thread_bits; /* of the threads that lie side by side */
  int32_t vectors;     /* rows of the source are contiguous and begin at multiples of 8 bytes */
} bsrg_widen_params;

/* ---- sm80/few.cuh ---------------------------------------------------------------------------- */

enum {
  BSRG_FEW_THREADS = 256,
  BSRG_FEW_MAX_N = 64,
  BSRG_FEW_COLUMNS = 8 /* of a CTA, at most: 1, 4 or 8 */
};
/* Of A that a lane loads at a time, of elements of `size` bytes, at most; and dynamic shared memory: each lane's sums, of
 * transposed views for so many rows. */
#define BSRG_FEW_VECTOR_BYTES(size) ((size) == 1 ? 1 : (size) == 2 ? 8 : 16)
#define BSRG_FEW_SHARED_BYTES(size, columns) \
  (BSRG_FEW_THREADS * ((size) == 8 ? 8 : 4) * (columns) * (BSRG_FEW_VECTOR_BYTES(size) / (size)))

/* How a lane reads X. ROWS: all columns of a row, COLUMNS: the k of a load of A of a column, both aligned to their size or to
 * 16 bytes; ELEMENTS: anything. */
enum { BSRG_FEW_X_ROWS, BSRG_FEW_X_COLUMNS, BSRG_FEW_X_ELEMENTS };

/* A team of lanes, 32 or BSRG_FEW_THREADS, takes lanes_blocks blocks at a time, lanes_rows of rows and lanes_k of k; a lane
 * has one row and a load's k, or of a transposed view the other way round. */
typedef struct bsrg_few_params {
  bsrg_portable_params portable; /* a row tile: lanes_rows of rows; vector_a and vector_x are not looked at */
  int32_t team, lanes_k, lanes_rows, lanes_blocks;
  int32_t x_layout;
  bsrg_scaling scaling; /* others have their type as output */
} bsrg_few_params;

#endif
