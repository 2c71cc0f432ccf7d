/* Launch parameters of the products of tf32 and 8-bit floats; included by params.h. */
#ifndef BSRG_PARAMS_KMAJOR_H
#define BSRG_PARAMS_KMAJOR_H

/* ---- sm90/kmajor.cuh ------------------------------------------------------------------------- */

enum {
  BSRG_KMAJOR_THREADS = 384,     /* one producer and two consumer warpgroups, as in the tall kernels */
  BSRG_KMAJOR_STAGE_BYTES = 128, /* of a row of operands in a full stage; narrow variants have 64 or 32 */
  BSRG_KMAJOR_STAGES = 4,        /* full stages in flight, of 8 bits one less */
  BSRG_KMAJOR_STEP_BYTES = 32,   /* of a row, that one instruction takes: k8 of tf32, k32 of 8 bits */
  BSRG_KMAJOR_FLOAT_BYTES = 32 << 10, /* of output on its way: pieces of float32 */
  /* full stages (A and X), output, barriers, messages, and slack to align the start to 1024; of 8 bits, which have a stage less,
   * that stage's 48 KB and these 32 hold a tile of 16-bit output */
  BSRG_KMAJOR_SHARED_BYTES = BSRG_KMAJOR_STAGES * (BSRG_TALL_STRIP * 2 + BSRG_TALL_TILE_N) *
          BSRG_KMAJOR_STAGE_BYTES +
      BSRG_KMAJOR_FLOAT_BYTES + 2048
};

/* As bsrg_tall_entry, but for blocks by their place in values, which is that of their scales, too. */
typedef struct bsrg_kmajor_entry {
  int32_t x_row;
  int32_t block[2]; /* -1: none */
  int32_t pad;
} bsrg_kmajor_entry;

/* Elements of Y and C. */
enum { BSRG_KMAJOR_F16, BSRG_KMAJOR_BF16, BSRG_KMAJOR_F32 };

/* How Y is stored: by element, or through the map along its rows or, of 16 bits, its columns. */
enum { BSRG_KMAJOR_ELEMENTS, BSRG_KMAJOR_ROWS, BSRG_KMAJOR_COLUMNS };

typedef struct bsrg_kmajor_params {
  bsrg_tensor_map a; /* [nnzb * bh, bw], box 64 rows x the k of a stage */
  /* {K, N}, box the k of a stage x 256 columns, or those of a last tile that has fewer */
  bsrg_tensor_map x, x_rest;
  bsrg_tensor_map
      y_map; /* {N, M} by rows, {M, N} by columns, box 128 bytes x 64 of these or, of float32, 16 rows */
  const bsrg_kmajor_entry *entries;
  const bsrg_tall_tile *tiles;
  uint32_t *counter;              /* as in bsrg_tall_params */
  const float *block_scales;      /* of each stored block; NULL: all 1. 8-bit kernels alone read scales */
  const float *a_scale, *x_scale; /* one factor each; NULL: 1 */
  const void *c;
  void *y;
  int64_t c_row_stride, c_col_stride, y_row_stride, y_col_stride;
  int32_t tile_count;   /* row tiles */
  int32_t n_tile_count; /* column tiles of a cluster: 512 columns for a pair, else 256 */
  int32_t group, lead;  /* as in bsrg_tall_params */
  int32_t block_height;
  int32_t steps;      /* stages per block */
  int32_t tail_steps; /* instructions along k in a block's last stage */
  int32_t rows, n;
  int32_t keep_a;  /* as in bsrg_tall_params */
  int32_t out;     /* BSRG_KMAJOR_F16, ... */
  int32_t y_order; /* BSRG_KMAJOR_ELEMENTS, ... */
  float alpha, beta;
  bsrg_output_params output;
} bsrg_kmajor_params;

/* ---- sm80/turn.cu ---------------------------------------------------------------------------- */

enum {
  BSRG_TURN_THREADS = 256,
  BSRG_TURN_COLUMNS = 64,   /* of the source in a CTA's tile */
  BSRG_TURN_ROW_BYTES = 128 /* of a row of the target in a tile */
};

/* Copies `count` matrices of rows x cols, each transposed: the target has cols rows, which start at multiples of 16
 * bytes and are padded with zeros up to a multiple of 4. */
typedef struct bsrg_turn_params {
  const void *source;
  void *target;
  int64_t rows, cols;
  int64_t source_row_stride, source_col_stride, source_matrix_stride; /* in elements, as all strides */
  int64_t target_row_stride, target_matrix_stride;
  int64_t row_tiles,
      col_tiles;         /* of a matrix; blockIdx.x counts column tiles, then row tiles, then matrices */
  int32_t vector_source; /* of 8 bits: four neighbours of a row start at multiples of 4 bytes */
} bsrg_turn_params;

#endif
