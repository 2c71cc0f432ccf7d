/* What host code and the kernels of sampled products agree on, sm90/sampled.cuh, sm80/sampled.cuh, sm80/sampled_simt.cuh,
 * sm80/sampled_lists.cu and sm80/sampled_unions.cu; included by params.h, which is what everybody includes. */
#ifndef BSRG_PARAMS_SAMPLED_H
#define BSRG_PARAMS_SAMPLED_H

#include "params.h"
#include "params_portable.h"

/* ---- sm90/sampled.cuh ------------------------------------------------------------------------ */

enum {
  BSRG_SAMPLED_STRIP = 64, /* rows of A that a consumer warpgroup multiplies */
  BSRG_SAMPLED_STAGE_K = 64,
  BSRG_SAMPLED_GROUP_COLUMNS = 256, /* of B that it multiplies them by, at most */
  BSRG_SAMPLED_THREADS = 384        /* one producer and two consumer warpgroups */
};
/* A tile: its parts, squares of `part` rows of A and columns of B, are what one box brings of either. With parts of 64 and
 * two strips each warpgroup computes one of them in the same panels, with one strip the warpgroups share it and divide the
 * panels. With parts of 32 a strip is two parts, of any two block rows. X(strips, part, suffix). */
#define BSRG_SAMPLED_TILES(X) X(2, 64, 128) X(1, 64, 64) X(1, 32, 32)
#define BSRG_SAMPLED_PANELS(strips, part) ((3 - (strips)) * BSRG_SAMPLED_GROUP_COLUMNS / (part)) /* at most */
#define BSRG_SAMPLED_STAGES(strips) ((strips) == 2 ? 4 : 3)
#define BSRG_SAMPLED_STAGE_BYTES(strips) \
  (2 * BSRG_SAMPLED_STAGE_K * ((strips) * BSRG_SAMPLED_STRIP + (3 - (strips)) * BSRG_SAMPLED_GROUP_COLUMNS))
/* Stages, barriers and messages, and slack to align the start to 1024. */
#define BSRG_SAMPLED_SHARED_BYTES(strips) \
  (BSRG_SAMPLED_STAGES(strips) * BSRG_SAMPLED_STAGE_BYTES(strips) + 512 + 1024)

/* A part's columns of stored blocks. */
typedef struct bsrg_sampled_panel {
  int32_t column;   /* of B, the first one */
  int32_t offset;   /* of that column in its block */
  int32_t block[2]; /* in values; of parts of 32, the upper part's and the lower one's, or -1 */
} bsrg_sampled_panel;

/* What one CTA computes at a time: some panels of one block row or, of parts of 32, those that two parts have. */
typedef struct bsrg_sampled_tile {
  int32_t row
      [2]; /* of A, the first ones of its strips or of its two parts; without a second part, the first one's again */
  int32_t panel_begin;
  int32_t
      panel_count; /* parts of 32: an even number; 0: nothing to compute, negative: nor in all tiles behind it */
} bsrg_sampled_tile;

typedef struct bsrg_sampled_params {
  bsrg_tensor_map
      a; /* {K, M}, box 64 k x a part's rows; of a column-major A {M, K}, box a part's rows x 64 k */
  bsrg_tensor_map
      b; /* {N, K}, box a part's columns x 64 k; of a column-major B {K, N}, box 64 k x a part's columns */
  const bsrg_sampled_tile *tiles;
  const bsrg_sampled_panel *panels;
  uint32_t *counter; /* as in bsrg_tall_params; NULL where tiles may end before tile_count */
  const void *values;
  void *out; /* may be values */
  int32_t tile_count;
  int32_t steps; /* stages of a tile, ceil(K / 64) */
  int32_t block_height, block_width;
  const int64_t *stored; /* NULL, or how many blocks there are; what out has behind them becomes zeros */
  int64_t capacity;      /* blocks in out */
  float alpha, beta;     /* beta == 0: values are not read */
} bsrg_sampled_params;

/* ---- sm80/sampled.cuh, sm80/sampled_simt.cuh ------------------------------------------------- */

/* Stored columns of a block row, one after another across its blocks. */
typedef struct bsrg_sampled_item {
  int64_t block; /* in values: that of the first column */
  int32_t block_row;
  int32_t offset; /* of the first column in its block */
  int32_t count;  /* 0: nothing to compute */
  int32_t pad;
} bsrg_sampled_item;

typedef struct bsrg_sampled_portable_params {
  const bsrg_sampled_item *items;
  const int32_t *indices;
  const void *a, *b, *values;
  void *out; /* may be values */
  int64_t a_row_stride, a_col_stride, b_row_stride, b_col_stride;
  int64_t k;
  int32_t block_height, block_width;
  int32_t row_tiles; /* of a block row: CTA i has row tile i % row_tiles of item i / row_tiles */
  /* 16 bytes at a time will do: of A and B in the kernel's order, and of out and values */
  int32_t vector_a, vector_b, vector_out;
  double alpha, beta; /* beta == 0: values are not read */
} bsrg_sampled_portable_params;

/* Columns of an item: few where block rows store few. */
enum { BSRG_SAMPLED_FEW = 32, BSRG_SAMPLED_MANY = 128 };

/* The tiles that are compiled: X(rows, columns, warps along rows, warps along columns, k of a stage, stages, CTAs of an
 * SM). 16 bit: sampled_f16_m<rows>n<columns>_<order> and sampled_bf16_..., where <order> says along what A and B are
 * contiguous: k or m, then k or n. float32 and float64: sampled_f32_m<rows>n<columns>, for any order. */
#define BSRG_SAMPLED_MMA_TILES(X) \
  X(16, 32, 1, 1, 32, 4, 8)       \
  X(16, 128, 1, 4, 32, 4, 4)      \
  X(64, 128, 2, 2, 32, 4, 3)
#define BSRG_SAMPLED_F32_TILES(X) \
  X(16, 32, 1, 1, 16, 4, 8)       \
  X(16, 128, 1, 4, 16, 3, 4)      \
  X(64, 128, 2, 2, 16, 3, 2)
#define BSRG_SAMPLED_F64_TILES(X) \
  X(16, 32, 1, 1, 8, 4, 8)        \
  X(16, 128, 1, 4, 8, 3, 4)       \
  X(32, 128, 2, 2, 8, 3, 2)

/* Dynamic shared memory: the stages, and two offsets of 8 bytes for each column. */
#define BSRG_SAMPLED_MMA_BYTES(rows, columns, k, stages) \
  ((stages) * 2 * (k) * ((rows) + (columns)) + 16 * (columns))
#define BSRG_SAMPLED_SIMT_BYTES(size, rows, columns, k, stages) \
  ((stages) * BSRG_SIMT_STAGE_BYTES(size, rows, columns, k) + 16 * (columns))

/* ---- sm80/sampled_unions.cu ------------------------------------------------------------------ */

enum { BSRG_SAMPLED_UNION_PART = 32 };

/* A strip of two parts of 32 rows, and the panels that either stores, in pairs. */
typedef struct bsrg_sampled_union {
  int32_t row[2]; /* as in bsrg_sampled_tile */
  int32_t panel_begin;
  int32_t panel_pairs;
} bsrg_sampled_union;

/* Two block rows have 2 * parts parts, strips of two each, the second row's parts backwards; a last row alone has half as
 * many, rounded up. Strip s belongs to pair s / parts. Each has room for the panels of all blocks of its pair and one more,
 * for an odd number. */
typedef struct bsrg_sampled_unions_params {
  const uint32_t *bits; /* as in bsrg_pattern_side */
  const int32_t *rank;
  const int64_t *indptr;
  bsrg_sampled_panel *panels;
  bsrg_sampled_union *unions; /* [strips] */
  int32_t rows, words;
  int32_t block_height, block_width;
  int32_t parts; /* of a block row */
  int32_t strips;
} bsrg_sampled_unions_params;

/* ---- sm80/sampled_lists.cu ------------------------------------------------------------------- */

enum {
  BSRG_SAMPLED_LISTS_THREADS = 256,
  BSRG_SAMPLED_COUNTED_ROWS = 4096, /* up to so many each row counts the slots of the groups before its own */
  /* Up to so many the width of tiles is chosen on the device, too. */
  BSRG_SAMPLED_WIDTH_ROWS = 1024,
  BSRG_SAMPLED_TURN = 32
};

/* Tiles or items for a pattern that the device alone knows, and zeros in out behind its last block. A slot is an item, or `lists`
 * tiles, one below the other. A block row, or a strip of sampled_unions, whose panels are there, with n panels (pairs of those
 * of a strip) or columns takes ceil(n / most) slots. `group` block rows take turns:
 * the first slots of each, then the next ones, in reverse, and so on, while the group's rows of A stay in L2. Where most of
 * them begin with the same column, as those of an expert do, a turn is one slot, and tiles that read the same columns of B
 * are neighbours; elsewhere it is BSRG_SAMPLED_TURN panels, since only tiles of a row read the same. Groups follow one another;
 * where there are too many rows to count, one that begins with row r, behind s panels or columns, has slots from
 * floor(s / most) + r on, of which some stay empty. */
typedef struct bsrg_sampled_lists_params {
  const int64_t *indptr;
  const int32_t *indices;
  const int64_t *counts;            /* the first one: of blocks that are stored */
  const bsrg_sampled_union *unions; /* NULL, or strips, which stand for block rows */
  bsrg_sampled_tile *tiles;         /* NULL: items */
  bsrg_sampled_panel *panels;
  bsrg_sampled_item *items;
  void *out;           /* [capacity] blocks of block_bytes each */
  int64_t block_bytes; /* these and out: multiples of `unit` */
  int64_t slots;
  int32_t capacity; /* 0: no zeros are written */
  int32_t unit;     /* 16, 8, 4 or 2 */
  int32_t rows;     /* block rows, or strips */
  int32_t block_height, block_width;
  int32_t most; /* panels of a tile, columns of an item */
  int32_t
      workers; /* 0, or tiles at a time, for which the device chooses how many panels a tile has, up to most */
  int32_t ends;          /* so many slots behind the last one say that it was that */
  int32_t strips, lists; /* of a tile, of a block row */
  int32_t group;         /* at most 32 */
  int32_t list_ctas;     /* with a warp for each block row; the others write zeros */
} bsrg_sampled_lists_params;

#endif
