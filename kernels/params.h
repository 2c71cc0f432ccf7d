/* The one place where host code and kernels agree: launch parameters and the limits both rely on. Those of attention
 * and of top-k masks have files of their own, included here.
 *
 * Read by C11 (csrc/) and by CUDA C++17 (kernels/). Every struct is passed to its kernel by value as one
 * __grid_constant__ parameter. Strides count elements.
 */
#ifndef BSRG_PARAMS_H
#define BSRG_PARAMS_H

#include <stdint.h>

#ifdef __cplusplus
#define BSRG_ALIGN64 alignas(64)
#else
#define BSRG_ALIGN64 _Alignas(64)
#endif

/* For the few functions that host code and kernels must compute alike. */
#ifdef __CUDACC__
#define BSRG_BOTH_SIDES static __host__ __device__ inline
#else
#define BSRG_BOTH_SIDES static inline
#endif

/* CUtensorMap by layout, so that neither side needs cuda.h. */
typedef struct bsrg_tensor_map {
  BSRG_ALIGN64 uint64_t opaque[16];
} bsrg_tensor_map;

/* What a load by TMA asks of L2 for all of its lines, as createpolicy encodes it: to leave after the others, before them, or in
 * turn. From the host, since to choose between two costs registers. */
#define BSRG_L2_EVICT_LAST UINT64_C(0x14F0000000000000)
#define BSRG_L2_EVICT_FIRST UINT64_C(0x12F0000000000000)
#define BSRG_L2_EVICT_NORMAL UINT64_C(0x1000000000000000)

/* ---- output.cuh: what becomes of a product's sums on their way to Y ---------------------------- */

/* In the order of bsrg_activation. */
enum {
  BSRG_OUTPUT_IDENTITY,
  BSRG_OUTPUT_RELU,
  BSRG_OUTPUT_GELU,
  BSRG_OUTPUT_GELU_TANH,
  BSRG_OUTPUT_SILU,
  BSRG_OUTPUT_GELU_TERMS = 6,
  BSRG_OUTPUT_CURVE_TERMS = 7
};

/* Element i, below `count`, is data[i * stride]. Beyond, which tiles may reach, and without data there is nothing to
 * multiply by or to add. */
typedef struct bsrg_output_vector {
  const void *data;
  int64_t stride, count;
  int32_t is_float; /* float32; otherwise of the type of Y */
  int32_t pad;
} bsrg_output_vector;

/* y = activation(row_scale[i] * col_scale[j] * alpha * sum + row_bias[i] + col_bias[j] + beta * c), rows and columns as
 * the kernels count them. */
typedef struct bsrg_output_params {
  bsrg_output_vector row_scale, col_scale, row_bias, col_bias;
  int32_t given;  /* any of this: where 0, the rest is not looked at */
  int32_t scaled; /* row_scale or col_scale is there */
  int32_t activation;
  /* For results of 16 bits. GELU: log2 of the normal distribution at -|x|, a polynomial of |x|, of rising powers. Its
   * tanh form and SiLU: q = curve[0] + curve[1] x^2, then 1 / (1 + e) for e from 0 to 1, of falling powers. */
  float curve[BSRG_OUTPUT_CURVE_TERMS];
} bsrg_output_params;

/* How many rows of a block one row of a box has, where the rows follow one another in memory and blocks have whole sixteens of them.
 * TMA seems to take one or two cycles for each row of a box, however short it is. The swizzle is that of rows twice as long: each
 * 16 bytes come to where WGMMA looks for them, but that it finds row r of a block where row r ^ (r / 8 % 2) should be. */
enum { BSRG_TWO_ROWS = 2 };

/* ---- sm90/tall.cuh --------------------------------------------------------------------------- */

enum {
  BSRG_TALL_STRIP = 64,    /* rows that one consumer warpgroup computes */
  BSRG_TALL_TILE_N = 256,  /* columns of a CTA's tile */
  BSRG_TALL_THREADS = 384, /* one producer and two consumer warpgroups */
  BSRG_TALL_STAGE_K = 64,  /* k of a full stage; narrow variants split it into 32 or 16 */
  BSRG_TALL_STAGES = 4,    /* full stages in flight */
  /* stages (A and X), output pieces, barriers, and slack to align the start to 1024 */
  BSRG_TALL_SHARED_BYTES = 4 * (16384 + 32768) + 32768 + 2048
};

/* One step of a tile: the rows of X that a block column selects, and the A blocks that multiply them. */
typedef struct bsrg_tall_entry {
  int32_t x_row; /* first row of X */
  /* first row, in values viewed as [nnzb * bh, bw], of transposed views as [nnzb * bw, bh], of each strip's block; -1:
   * none */
  int32_t a_block[2];
  int32_t pad;
} bsrg_tall_entry;

/* Two strips of 64 output rows that one CTA computes together, and the union of their block columns. */
typedef struct bsrg_tall_tile {
  int32_t strip[2]; /* output rows strip * 64 ...; -1: no second strip */
  int32_t entry_begin, entry_count;
} bsrg_tall_tile;

/* A part of a tile that is cut along K: a run of its entries. */
typedef struct bsrg_tall_part {
  bsrg_tall_tile tile; /* with the part's entries */
  int32_t slot;        /* of partial that gets the sums; -1: the tile is whole and they go to Y */
  int32_t x_row;       /* of its first entry; for the host */
  int32_t pad[2];
} bsrg_tall_part;

/* A tile in parts: the slots that make its rows. */
typedef struct bsrg_tall_cut {
  int32_t strip[2]; /* as in bsrg_tall_tile */
  int32_t first_slot, slot_count;
} bsrg_tall_cut;

/* For the kernels of tall_pieces.cuh, which put the blocks together from pieces of smaller ones: first element and row of a piece
 * in the stored values as their map sees them. x = -1: no block has the piece; y: of a run of such pieces one below the other
 * the first one has its length, the others 0. */
typedef struct bsrg_tall_piece {
  int32_t x, y;
} bsrg_tall_piece;
/* Whether boxes of pieces have BSRG_TWO_ROWS: those of this width are all columns of a block. */
#define BSRG_TALL_TWO_ROWS(piece_width) ((piece_width) == 16)
/* Columns of a piece that is a stage's k: boxes of 64 columns and of those behind them. */
#define BSRG_TALL_WIDE_PIECE 80
/* So many that all SMs do not ask the same slices of L2 for them. */
#define BSRG_TALL_ZERO_BYTES 65536

/* Of bias_by_mma: that of columns or of rows, alone, of the operands' dtype, with adjacent elements, where alpha is 1. */
enum { BSRG_TALL_BIAS_NONE, BSRG_TALL_BIAS_COLUMNS, BSRG_TALL_BIAS_ROWS };

typedef struct bsrg_tall_params {
  /* As described here for rows of X that are contiguous. With a transposed A, `a` is [nnzb * bw, bh], box STAGE k x 64
   * rows of A; with a transposed X, those of X are {K, N}, box STAGE k x as many columns as a tile has, and `y` {M, N}, box
   * 64 rows x 64 columns. */
  bsrg_tensor_map a; /* [nnzb * bh, bw], box 64 rows x STAGE k, or a piece, or with two of its rows in one */
  /* {64, K, N / 64}, box of a CTA's panels, for tiles of x_columns; and {N, K}, box of one panel, for others */
  bsrg_tensor_map x, x_rest;
  bsrg_tensor_map x_tail, x_rest_tail; /* the same with the k of a block's last, shorter step */
  bsrg_tensor_map y;                   /* {N, M}, box 16 rows x 64 columns, for `whole` kernels 64 x 64 */
  const bsrg_tall_entry *entries;
  const bsrg_tall_tile *tiles;
  const bsrg_tall_part
      *parts;        /* for the kernels of tall_parts.cuh: they go first, instead of the first cut_tiles */
  float *partial;    /* likewise: [slots][128][n] */
  uint32_t *counter; /* tiles handed out; 0 at launch and again at the end. NULL: static order */
  const void *c;
  int64_t c_row_stride;
  void *y_data; /* for the kernels of tall_parts.cuh, as is empty_tiles */
  int64_t y_row_stride;
  int32_t tile_count;   /* tiles to compute; even for a pair along rows, which takes 2i and 2i + 1 */
  int32_t n_tile_count; /* column tiles of a cluster: 512 columns for a pair along columns, else 256 */
  int32_t group;        /* of these column tiles, as many are swept together down all row tiles */
  int32_t lead; /* row tiles (or pairs of them) at the start of the list that go first, over all columns */
  int32_t strips_per_block; /* bh / 64 */
  int32_t steps;            /* stages per block, ceil(bw / stage k) */
  int32_t tail_k16;         /* k16 instructions in a block's last stage */
  int32_t x_columns;        /* of a tile that x is for: 256, or of a single one fewer; 0: there is none */
  int32_t keep_a;           /* ask L2 to keep A rather than X: A is small and read once a column group */
  int32_t rows, n;          /* of Y and C; the last strips may reach beyond */
  int32_t empty_tiles;      /* of the list, behind these: their rows of Y become zeros */
  int32_t part_count, cut_tiles; /* cut_tiles <= lead */
  /* Which vector the tensor cores add, as one more instruction along k: BSRG_TALL_BIAS_... */
  int32_t bias_by_mma;
  float alpha, beta;
  int64_t c_col_stride, y_col_stride; /* for a transposed X; without one they are 1 */
  bsrg_output_params output;
  /* For the kernels of tall_pieces.cuh: so many of each strip of each entry, those of the first columns first. */
  const bsrg_tall_piece *pieces;
  int32_t strip_pieces;
  /* Of each entry, 4 bits a strip: the sixteens of k of which it has a piece, of wide pieces all four for any. */
  const uint8_t *k16s;
  const void *zeros;      /* BSRG_TALL_ZERO_BYTES of them, for pieces that no block has */
  bsrg_tensor_map a_rest; /* of wide pieces the columns behind the first 64 */
} bsrg_tall_params;

/* sm80/tall_add.cu, tall_add_transposed.cu: Y = alpha * sum of the parts + beta * C for the tiles that were cut. With a
 * transposed X, slots of partial are [n][128]. */
typedef struct bsrg_tall_add_params {
  const bsrg_tall_cut *cuts;
  const float *partial;
  const void *c;
  void *y; /* rows at multiples of 16 bytes; those of c at multiples of 4 */
  int64_t c_row_stride, y_row_stride;
  int32_t rows, n; /* n is a multiple of 8 */
  float alpha, beta;
  int64_t c_col_stride,
      y_col_stride; /* with a transposed X; columns of y begin at multiples of 16 bytes then, n is any */
  bsrg_output_params output;
} bsrg_tall_add_params;

enum { BSRG_TALL_ADD_THREADS = 128 };

/* ---- sm90/stream.cuh ------------------------------------------------------------------------- */

enum {
  BSRG_STREAM_GROUPS = 3,        /* consumer warpgroups, each with its own rows of a tile */
  BSRG_STREAM_GROUP_ROWS = 128,  /* output rows of a warpgroup, at most */
  BSRG_STREAM_MOST_ROWS = 16,    /* block rows of a warpgroup, at most */
  BSRG_STREAM_TILE_N = 128,      /* columns of a tile, two panels of 64 */
  BSRG_STREAM_THREADS = 128 * 4, /* a warpgroup of producers */
  BSRG_STREAM_LOADERS = 3,       /* warps of these that ask for X and blocks */
  BSRG_STREAM_SOURCE_SLACK = 32 * BSRG_STREAM_LOADERS,
  BSRG_STREAM_SLOTS = 32, /* block columns of X in a stage, at most */
  BSRG_STREAM_STAGES = 3,
  BSRG_STREAM_STAGE_BYTES = 64 << 10, /* X from its start, blocks up to its end */
  BSRG_STREAM_OUTPUT_BYTES = 8 << 10, /* of a warpgroup: 64 rows of a panel, or twice 32 */
  BSRG_STREAM_ZERO_BYTES = 2 << 10,   /* a slot of zeros, 8 rows of X */
  /* stages, output, zeros, records and barriers, and slack to align the start to 1024 */
  BSRG_STREAM_SHARED_BYTES = BSRG_STREAM_STAGES * BSRG_STREAM_STAGE_BYTES +
      BSRG_STREAM_GROUPS * BSRG_STREAM_OUTPUT_BYTES + BSRG_STREAM_ZERO_BYTES + 2048 + 1024
};
#define BSRG_STREAM_ROWS_OF(height) (BSRG_STREAM_GROUP_ROWS / (height)) /* block rows of a warpgroup */
/* Whether an instruction, which takes 16 k, multiplies two blocks of this width. */
#define BSRG_STREAM_PAIRS(width) ((width) == 8)
/* Slots of a stage, for which each block row has a bit. Narrow blocks leave room for more. */
#define BSRG_STREAM_SLOTS_OF(width) (BSRG_STREAM_PAIRS(width) ? BSRG_STREAM_SLOTS : BSRG_STREAM_SLOTS / 2)

/* Rows of Y that are stored at a time: of higher parts than there is room for, half of them. */
#define BSRG_STREAM_STORED_ROWS(height) ((height) > 64 ? (height) / 2 : (height))

/* Whether boxes of stored blocks have BSRG_TWO_ROWS. */
#define BSRG_STREAM_TWO_ROWS(height) ((height) % 16 == 0)

/* A warpgroup's share of a stage. Its warps read 16 bytes at a time. */
typedef struct bsrg_stream_share {
  /* Bit s of a block row: it has a block in slot s. 32 bits a row for blocks in pairs, else 16, those of odd rows above those
   * of the row before. Packed row by row, highest slot first or, in pairs, lowest. */
  uint32_t slots[BSRG_STREAM_MOST_ROWS / 2];
  int32_t blocks; /* from its first one to the stage's last */
  int32_t pad[3];
} bsrg_stream_share;

/* One stage: which rows of X and which blocks it brings, and which of them meet. A block here is the part of a
 * stored block that one instruction multiplies: at most 112 rows and 32 columns. */
typedef struct bsrg_stream_stage {
  int32_t a_begin, a_count; /* blocks, in packed order: by warpgroup, then by row, then by slot */
  int32_t x_count, pad;
  int32_t x_row[BSRG_STREAM_SLOTS]; /* first row of X of each slot */
  bsrg_stream_share share[BSRG_STREAM_GROUPS];
} bsrg_stream_stage;

/* Output rows that one CTA computes together. */
typedef struct bsrg_stream_tile {
  int32_t stage_begin, stage_count;
  int32_t row_begin; /* in params.row_begin */
  int32_t parts;     /* of its stages; for the host */
} bsrg_stream_tile;

typedef struct bsrg_stream_params {
  /* As described here for rows of X that are contiguous. With a transposed X, `x` and `x_rest` are {K, N}, box width rows x 128
   * columns or those of the last tile, and `y` {M, N}, box BSRG_STREAM_STORED_ROWS x 64 columns. */
  bsrg_tensor_map x;      /* {64, K, N / 64}, box 64 x width rows x 2, for tiles of 128 columns */
  bsrg_tensor_map x_rest; /* {N, K}, box 64 columns x width rows, for one that has fewer */
  bsrg_tensor_map y;      /* {N, M}, box 64 columns x BSRG_STREAM_STORED_ROWS */
  const void *packed;     /* sm80/stream_pack.cu or sm80/regroup.cu */
  const bsrg_stream_stage *stages;
  const bsrg_stream_tile *tiles;
  const int32_t *row_begin; /* first output row of each block row of the tiles; -1: none */
  uint32_t *counter;        /* as in bsrg_tall_params */
  const void *c;
  int64_t c_row_stride;
  int32_t cluster; /* CTAs, of as many neighbouring column tiles: 1 or 2 */
  int32_t tile_count;
  int32_t n_tile_count; /* of a cluster's column tiles, of which none is left over */
  int32_t group;        /* of these, how many are swept together down all row tiles */
  int32_t lead;         /* row tiles at the start of the list that go first, over all columns */
  int32_t rows, n;      /* of Y and C; the last block rows may reach beyond */
  float alpha, beta;
  bsrg_output_params output;
  int64_t c_col_stride;             /* for a transposed X; without one it is 1 */
  uint64_t blocks_policy, x_policy; /* BSRG_L2_* */
  /* Of float32, in place of the map. */
  void *y_data;
  int64_t y_row_stride, y_col_stride;
  /* Of kernels that read blocks as they are stored, in place of `packed`: {width, all parts one below the other}, box a part, or
   * both with two rows in one; and which parts follow one another in packed order, with BSRG_STREAM_SOURCE_SLACK
   * more behind them. */
  bsrg_tensor_map blocks;
  const int32_t *source;
} bsrg_stream_params;

/* The heights and widths that are compiled: X(height, width), kernel stream_f16_<height>x<width>. */
#define BSRG_STREAM_WIDTHS(X, height) X(height, 8) X(height, 16) X(height, 32)
#define BSRG_STREAM_SHAPES(X) \
  X(8, 16)                    \
  X(8, 32)                    \
  BSRG_STREAM_WIDTHS(X, 16)   \
  BSRG_STREAM_WIDTHS(X, 24)   \
  BSRG_STREAM_WIDTHS(X, 32)   \
  BSRG_STREAM_WIDTHS(X, 40)   \
  BSRG_STREAM_WIDTHS(X, 48)   \
  BSRG_STREAM_WIDTHS(X, 56)   \
  BSRG_STREAM_WIDTHS(X, 64)   \
  BSRG_STREAM_WIDTHS(X, 96)   \
  BSRG_STREAM_WIDTHS(X, 112)

/* Without those of width 8: of tf32, two elements of which are one of width, and of blocks that are read as they are stored. */
#define BSRG_STREAM_WIDE_WIDTHS(X, height) X(height, 16) X(height, 32)
#define BSRG_STREAM_WIDE_SHAPES(X) \
  BSRG_STREAM_WIDE_WIDTHS(X, 8)    \
  BSRG_STREAM_WIDE_WIDTHS(X, 16)   \
  BSRG_STREAM_WIDE_WIDTHS(X, 24)   \
  BSRG_STREAM_WIDE_WIDTHS(X, 32)   \
  BSRG_STREAM_WIDE_WIDTHS(X, 40)   \
  BSRG_STREAM_WIDE_WIDTHS(X, 48)   \
  BSRG_STREAM_WIDE_WIDTHS(X, 56)   \
  BSRG_STREAM_WIDE_WIDTHS(X, 64)   \
  BSRG_STREAM_WIDE_WIDTHS(X, 96)   \
  BSRG_STREAM_WIDE_WIDTHS(X, 112)

/* ---- sm80/stream_pack.cu, sm80/stream_pack_transposed.cu ------------------------------------- */

/* Writes parts of stored blocks, [height][width] each, in the order and layout in which the stream kernels read
 * them: as 8 x 8 core matrices of 128 bytes, all those of 8 rows before those of the next 8. Parts that follow one
 * another are also one part of all their rows. */
typedef struct bsrg_pack_params {
  const void *values; /* [nnzb][rows * height][columns * width] */
  void *packed;
  const int32_t *source; /* of part i: (block * rows + row) * columns + column */
  int64_t count;         /* parts */
  const int64_t *blocks; /* NULL, or how many blocks there are: count is of the most that there may be then */
  int32_t height, width; /* of a part */
  int32_t rows, columns; /* parts of a stored block, down and across; in a transposed view across and down */
  int32_t tf32;          /* pairs of 16 bits are float32, to be rounded to tf32 */
} bsrg_pack_params;

enum { BSRG_PACK_THREADS = 256 };

/* A unit is 8 elements of a row, of which a row has 1 << across_log2. Unit i in this layout, counted through all
 * parts, is this one where rows lie one after the other. */
#define BSRG_UNIT_BY_ROWS(i, across_log2)                               \
  (((i) & ~((8 << (across_log2)) - 1)) | (((i) & 7) << (across_log2)) | \
   (((i) >> 3) & ((1 << (across_log2)) - 1)))
#define BSRG_PART_ACROSS_LOG2(width) ((width) == 32 ? 2 : (width) == 16 ? 1 : 0)

/* ---- sm80/regroup.cu ------------------------------------------------------------------------- */

enum {
  BSRG_REGROUP_THREADS = 256,
  BSRG_REGROUP_TILE = 8192, /* elements of the regrouped values that one CTA writes, at most */
  BSRG_REGROUP_SHARED_BYTES = 2 * BSRG_REGROUP_TILE,
  BSRG_REGROUP_SHIFT = 22
};

/* A rectangle of a stored block and where it goes. Every number but rows is a multiple of the block width's
 * largest power of two up to 8, so that the kernels may copy that many elements at once. */
typedef struct bsrg_regroup_piece {
  int32_t block;       /* stored block */
  int32_t source;      /* first element, counted in the stored block */
  int32_t target;      /* first element, counted in the tile */
  uint16_t rows, cols; /* read as one word: cols in its upper half */
} bsrg_regroup_piece;

typedef struct bsrg_regroup_params {
  const void *values;
  void *stored;              /* ungroup: what is written, in place of values */
  void *regrouped;           /* blocks one after another, seen as tiles */
  const int64_t *tile_begin; /* pieces of tile t: tile_begin[t] to tile_begin[t + 1] - 1 */
  const bsrg_regroup_piece *pieces;
  int64_t elements;       /* of regrouped; the last tile may end early */
  int64_t block_elements; /* of a stored block */
  int32_t tile_elements;  /* a multiple of 8 */
  int32_t block_width, child_width;
  int32_t for_stream; /* 0: blocks lie row by row; 1: as the stream kernels read them */
  int32_t lanes_log2; /* threads that copy a piece together */
} bsrg_regroup_params;

/* Chunk c of a piece that is `across` chunks wide lies in row c / across, here without a division: exact for
 * pieces of at most 512 rows and BSRG_REGROUP_TILE chunks that are at most 128 across. */
#define BSRG_REGROUP_RECIPROCAL(across) ((1u << BSRG_REGROUP_SHIFT) / (uint32_t)(across) + 1)
#define BSRG_REGROUP_ROW(chunk, reciprocal) (((uint32_t)(chunk) * (reciprocal)) >> BSRG_REGROUP_SHIFT)

/* ---- sm80/align_copy.cu ---------------------------------------------------------------------- */

enum {
  BSRG_COPY_THREADS = 256,
  BSRG_COPY_ROWS = 32, /* of a CTA's tile in align_copy_rows and align_copy_elements */
  BSRG_COPY_COLUMNS = 256,
  BSRG_COPY_SIDE = 64,     /* of a tile in align_copy_transposed */
  BSRG_COPY_TILE_SIDE = 32 /* of a tile in align_copy_tiles_4 and _8 */
};

/* target = source, elements at any strides, of 16 bits but in align_copy_tiles_4 and _8. Of 16 bits, neighbours of the target's
 * rows should lie close together, and align_copy_transposed is for sources whose columns do. */
typedef struct bsrg_copy_params {
  const void *source;
  void *target;
  int64_t rows, cols;
  int64_t source_row_stride, source_col_stride, target_row_stride, target_col_stride;
  /* For align_copy_transposed: columns of adjacent elements that start at multiples of 16 bytes, rows of them that
   * start at multiples of 8. */
  int32_t vector_source, vector_target;
} bsrg_copy_params;

/* ---- sm80/tensor_copy.cu --------------------------------------------------------------------- */

enum {
  BSRG_TENSOR_COPY_THREADS = 256,
  BSRG_TENSOR_COPY_ROWS = 32,   /* of a CTA */
  BSRG_TENSOR_COPY_COLUMNS = 64 /* of a step: elements of a head, or of several side by side */
};

/* Element (b, h, i, d) is data[b * batch_stride + h * head_stride + i * row_stride + d * element_stride]. */
typedef struct bsrg_tensor_operand {
  void *data;
  int64_t batch_stride, head_stride, row_stride, element_stride;
} bsrg_tensor_operand;

/* target = source, elements of 1, 2, 4, 8 or 16 bytes, and zeros in target's elements from `size` up to target_size. */
typedef struct bsrg_tensor_copy_params {
  bsrg_tensor_operand source, target;
  int64_t rows, size, target_size;
  int32_t heads, row_tiles; /* of a batch, of a head */
  int32_t group;            /* columns for a head: 1, 2, 4, 8, 32 or, of more, all of a step */
} bsrg_tensor_copy_params;

/* ---- sm80/edges.cu --------------------------------------------------------------------------- */

enum { BSRG_EDGES_THREADS = 256 }; /* a CTA looks at as many blocks */

/* Elements of stored blocks beyond the matrix become zeros. */
typedef struct bsrg_edges_params {
  void *values;
  const int32_t *indices;
  int64_t nnzb;
  int64_t first;       /* block of a partial last block row; nnzb: there is none */
  int32_t last_column; /* a partial one; -1: there is none */
  int32_t block_height, block_width;
  int32_t rows, cols; /* that the last ones have within the matrix */
} bsrg_edges_params;

/* ---- sm90/probe.cu --------------------------------------------------------------------------- */

enum { BSRG_PROBE_IMAGE_BYTES = 16384 };

typedef struct bsrg_probe_params {
  uint64_t descriptor_a, descriptor_b; /* without the address field */
  const void *image_a, *image_b;       /* BSRG_PROBE_IMAGE_BYTES each */
  float *d;                            /* [64][64] */
} bsrg_probe_params;

#include "params_attention.h"
#include "params_kmajor.h"
#include "params_narrow.h"
#include "params_pairs.h"
#include "params_pattern.h"
#include "params_portable.h"
#include "params_sampled.h"
#include "params_softmax.h"
#include "params_topk.h"

#endif
