/* Launch parameters of the products with few columns; included by params.h. */
#ifndef BSRG_PARAMS_NARROW_H
#define BSRG_PARAMS_NARROW_H

/* ---- sm80/narrow.cuh ------------------------------------------------------------------------- */

enum {
  BSRG_NARROW_MAX_N = 64,
  BSRG_NARROW_CHUNK = 8,          /* k of a 16-byte load of A; block widths are multiples of it */
  BSRG_NARROW_MAX_WIDTH = 65536,  /* of a block */
  BSRG_NARROW_MAX_CHUNKS = 65536, /* of an item of more than one block */
  BSRG_NARROW_MAX_BLOCKS = 1024,  /* of an item: its block columns lie in shared memory */
  BSRG_NARROW_WARP_BYTES = 8192,  /* of shared memory: a warp's ring of A, and then its sums */
  BSRG_PIECES_THREADS = 256       /* of the second pass */
};

/* The tiles that are compiled, narrow_f16_n<columns>_r<strip> and narrow_bf16_..., narrow_ta_... for transposed views: X(columns, rows of a strip, warps of a
 * CTA where there are few, more and most items), for n up to columns. */
#define BSRG_NARROW_TILES(X)  \
  BSRG_NARROW_FEWEST_TILES(X) \
  X(32, 16, 8, 4, 2)          \
  X(32, 32, 8, 4, 2)          \
  X(64, 16, 8, 4, 2)          \
  X(64, 32, 6, 3, 2)
/* Those for the fewest columns. */
#define BSRG_NARROW_FEWEST_TILES(X) \
  X(8, 16, 8, 4, 2)                 \
  X(8, 32, 8, 4, 2)                 \
  X(16, 16, 8, 4, 2)                \
  X(16, 32, 8, 4, 2)
/* Likewise for Hopper and many columns, where X waits in shared memory, too: narrow_sm90_f16_n<columns>_r<strip>,
 * narrow_sm90_ta_.... Of 8-bit floats narrow_e4m3_n<columns>_r<strip> and narrow_e5m2_... are these and those for the fewest. */
#define BSRG_NARROW_SM90_TILES(X) \
  X(32, 16, 16, 8, 4)             \
  X(32, 32, 12, 6, 3)             \
  X(64, 16, 8, 4, 2)              \
  X(64, 32, 8, 4, 2)
#define BSRG_NARROW_SM90_ROUNDS 4 /* of 32 k, in a ring */
/* Of shared memory: a warp's rows of A and X, of all rounds; then its sums. */
#define BSRG_NARROW_SM90_WARP_BYTES(columns, strip) (BSRG_NARROW_SM90_ROUNDS * 64 * ((strip) + (columns)))
/* Of float32 and float64, whose X waits in shared memory with any number of columns: narrow_f32_n<columns>_r<strip>,
 * narrow_f64_..., narrow_ta_f32_... and narrow_ta_f64_.... */
#define BSRG_NARROW_FMA_TILES(X) \
  X(8, 16, 16, 8, 4)             \
  X(8, 32, 8, 4, 2)              \
  X(16, 16, 12, 6, 3)            \
  X(16, 32, 8, 4, 2)             \
  BSRG_NARROW_SM90_TILES(X)
#define BSRG_NARROW_FMA_ROUNDS(columns) ((columns) <= 16 ? 8 : 4) /* of 64 bytes a row */
#define BSRG_NARROW_FMA_WARP_BYTES(columns, strip) \
  (BSRG_NARROW_FMA_ROUNDS(columns) * 64 * ((strip) + (columns)))

/* What one CTA computes: some rows of a block row, times all its blocks or a piece of them. */
typedef struct bsrg_narrow_item {
  int32_t first_block, block_count;
  int32_t y_row, row_in_block; /* the first row, in Y and in its blocks */
  int32_t rows;                /* at most a strip */
  int32_t slot;                /* of partial that gets a piece's sums; -1: they go to Y */
} bsrg_narrow_item;

/* A strip in pieces: the slots that make its rows. */
typedef struct bsrg_narrow_split {
  int32_t y_row, rows, first_slot, slot_count;
} bsrg_narrow_split;

/* How a lane reads X. ROWS: columns / 8 neighbours of a row in one load, COLUMNS: four of a column, both aligned to
 * their size; ELEMENTS: anything. */
enum { BSRG_NARROW_X_ROWS, BSRG_NARROW_X_COLUMNS, BSRG_NARROW_X_ELEMENTS };

typedef struct bsrg_narrow_params {
  const void *values;
  /* Each CTA has memory send so many bytes before it may read them, one's share_bytes behind the other's. */
  int64_t share_bytes;
  int32_t ahead_bytes;
  /* The block columns of item i begin at columns + i * columns_stride, or if that is 0 at columns + its first block. */
  const int32_t *columns;
  int32_t columns_stride;
  int32_t x_columns;     /* of X, some of which may be nobody's: n or padded_n */
  const int32_t *places; /* of a transposed view: where each block lies in values */
  const bsrg_narrow_item *items;
  const bsrg_narrow_split *splits;
  const void *x, *c;
  void *y;
  void *partial; /* [slots][strip][padded_n], float32 or, of float64, that */
  int64_t x_row_stride, x_col_stride, c_row_stride, c_col_stride, y_row_stride, y_col_stride;
  /* Of 8-bit floats, in twos: to the next 16 of a column, and to the column that is columns / 8 further. */
  int64_t x_chunk_stride, x_group_stride;
  int32_t n, padded_n, strip;        /* n: of Y */
  int32_t block_height, block_width; /* the product is below 2^31 */
  uint32_t chunks_reciprocal;        /* floor(2^32 / (2 * chunks of a block)) + 1 */
  int32_t x_layout;
  /* C and Y: unit column stride, runs of padded_n / 8 columns aligned to their size. By TMA and by cluster: rows or
   * columns of adjacent elements in runs of eight. */
  int32_t vector_y;
  float alpha, beta; /* beta == 0: c is not read */
  double alpha_f64, beta_f64;
  /* Of 8-bit floats, as in bsrg_kmajor_params; others have their type as output. The kernels of narrow.cuh see two neighbours
   * of them as one of 16 bits, those of narrow_fma.cuh an element as two or four: block_width and, of 8 bits, x_col_stride. */
  int32_t out;
  const float *a_scale, *x_scale;
  bsrg_output_params output;
} bsrg_narrow_params;

/* ---- sm90/narrow_tma.cuh --------------------------------------------------------------------- */

enum {
  BSRG_NARROW_TMA_STRIP = 64, /* rows of a CTA; 32 where blocks are no higher */
  BSRG_NARROW_TMA_MAX_N = 256,
  BSRG_NARROW_TMA_GAPLESS_MAX_N = 32, /* columns of an X without gaps between its rows that becomes columns */
  BSRG_NARROW_TMA_MOST_STAGES = 64
};
/* For 64, 128 or 256 columns, panels of 64: warpgroups that multiply, threads, CTAs that may share an SM. bytes: of an element. */
#define BSRG_NARROW_TMA_GROUPS(panels) ((panels) == 1 ? 1 : 2)
#define BSRG_NARROW_TMA_THREADS(panels) (64 + 128 * BSRG_NARROW_TMA_GROUPS(panels))
#define BSRG_NARROW_TMA_MOST_CTAS(panels, bytes) ((panels) == 1 ? 4 : (panels) == 4 && (bytes) == 1 ? 1 : 2)
#define BSRG_NARROW_TMA_LEAST_CTAS(panels, bytes) \
  ((panels) == 1 ? 1 : BSRG_NARROW_TMA_MOST_CTAS(panels, bytes))
/* Stages in shared memory, of blocks and of X, where so many CTAs share an SM. Multiples of 1 KB. step_bytes: of a row of k. */
#define BSRG_NARROW_TMA_RING_BYTES(panels, ctas) (((panels) == 1 ? 196608 : 225280) / (ctas))
#define BSRG_NARROW_TMA_SHARED_BYTES(panels, ctas) (2048 + BSRG_NARROW_TMA_RING_BYTES(panels, ctas))
#define BSRG_NARROW_TMA_STAGE_BYTES(panels, strip, step_bytes) \
  (((step_bytes) * ((strip) + 64 * (panels)) + 1023) / 1024 * 1024)

typedef struct bsrg_narrow_tma_params {
  bsrg_tensor_map a,
      a_tail; /* whole strips, and the last ones of block rows; of a transposed view as x and x_tail */
  bsrg_tensor_map x, x_tail; /* whole stages, and the last ones of blocks */
  bsrg_narrow_params narrow;
  int32_t stages;            /* of the ring: BSRG_NARROW_TMA_MOST_STAGES at most */
  int32_t steps, tail_steps; /* stages of a block; of the last one, instructions along k, of 32 bytes each */
  int32_t blocks_at_once, steps_at_once; /* that a producer asks for; a power of two, and 1 or `steps` */
  int32_t tail_rows;                     /* of the last strips */
  int32_t x_columns; /* that are loaded: whole panels, or of X by columns only those that there are */
  int32_t x_boxes;   /* in which they come: one, or a panel each */
  int32_t cluster; /* CTAs: 1, or 2 where items 2 i and 2 i + 1 have the same blocks and X comes by panels */
  const float *block_scales; /* of 8-bit floats, instead of a_scale */
} bsrg_narrow_tma_params;

/* ---- sm90/narrow_shares.cuh ------------------------------------------------------------------ */

enum {
  BSRG_NARROW_SHARES_CTAS = 4,
  BSRG_NARROW_SHARES_STEP_K = 64,
  BSRG_NARROW_SHARES_TURNS = 2, /* warpgroups, each with a strip of its own */
  BSRG_NARROW_SHARES_THREADS = 64 + 128 * BSRG_NARROW_SHARES_TURNS,
  BSRG_NARROW_SHARES_ROWS_AT_ONCE = 16
};
/* Of shared memory, for 64 or 128 columns, panels of 64: stages, behind them the sums that come from another CTA, then those that
 * are written, so many rows of each strip at a time. */
#define BSRG_NARROW_SHARES_STAGES(panels) ((panels) == 1 ? 12 : 7)
#define BSRG_NARROW_SHARES_RING_BYTES(panels) \
  (BSRG_NARROW_SHARES_STAGES(panels) *        \
   BSRG_NARROW_TMA_STAGE_BYTES(panels, BSRG_NARROW_TMA_STRIP, 2 * BSRG_NARROW_SHARES_STEP_K))
#define BSRG_NARROW_SHARES_RECEIVED_BYTES(panels) (4 * 64 * (panels) * BSRG_NARROW_TMA_STRIP)
#define BSRG_NARROW_SHARES_STAGING_BYTES(panels) (4 * 64 * (panels) * (BSRG_NARROW_SHARES_ROWS_AT_ONCE + 4))
#define BSRG_NARROW_SHARES_SHARED_BYTES(panels)                                               \
  (2048 + BSRG_NARROW_SHARES_RING_BYTES(panels) + BSRG_NARROW_SHARES_RECEIVED_BYTES(panels) + \
   BSRG_NARROW_SHARES_TURNS * BSRG_NARROW_SHARES_STAGING_BYTES(panels))

/* A strip of a CTA's share, or the part of it that the CTA has. */
typedef struct bsrg_narrow_share {
  int32_t first_block, block_count;
  int32_t y_row, row_in_block, rows; /* as of an item */
  int32_t part,
      parts; /* of the strip, each in a CTA; parts is 1 for a whole one and 0 behind the share's last */
  int32_t blocks_before; /* of the same share */
} bsrg_narrow_share;

typedef struct bsrg_narrow_shares_params {
  /* narrow.columns: of each CTA how many blocks its share has, and then their columns in the order of its strips. */
  bsrg_narrow_tma_params tma;
  const bsrg_narrow_share
      *shares;         /* [CTAs][most_shares]: one that began before, whole strips, one that goes on */
  int32_t most_shares; /* with those behind the last, of which those that take turns find one each */
} bsrg_narrow_shares_params;

/* ---- sm90/narrow_cluster.cuh ----------------------------------------------------------------- */

enum {
  BSRG_NARROW_CLUSTER_STRIP = 16,  /* rows of a warp: of a block row */
  BSRG_NARROW_CLUSTER_STRIPS = 18, /* of a cluster, at most */
  BSRG_NARROW_CLUSTER_THREADS = 32 * (BSRG_NARROW_CLUSTER_STRIPS + 1),
  BSRG_NARROW_CLUSTER_STAGE_K = 256,
  BSRG_NARROW_CLUSTER_BOX = 64,         /* k of X that TMA is asked for at a time: lines of 128 bytes */
  BSRG_NARROW_CLUSTER_MOST_STAGES = 32, /* of a part */
  BSRG_NARROW_CLUSTER_RING = 4,         /* stages in shared memory, at most */
  BSRG_NARROW_CLUSTER_STAGE_BYTES = 128 * BSRG_NARROW_CLUSTER_STAGE_K,
  BSRG_NARROW_CLUSTER_WARP_BYTES = 4096, /* a warp's ring of A; then the sums of its strip */
  BSRG_NARROW_CLUSTER_SHARED_BYTES = 232448
};
/* What lies beside the ring of X in shared memory, with barriers and alignment. */
#define BSRG_NARROW_CLUSTER_REST_BYTES(parts, strips) \
  (2048 + (strips) * BSRG_NARROW_CLUSTER_WARP_BYTES * (2 * (parts) - 1) / (parts))

typedef struct bsrg_narrow_cluster_params {
  bsrg_tensor_map x;
  bsrg_narrow_params narrow;
  /* The first block of part p of block row r: first[r * parts + p]; the next one's is where it ends. */
  const int32_t *first;
  /* Which block columns of a stage there are: masks[(r * parts + p) * stages + stage], a bit each. */
  const uint16_t *masks;
  int32_t stages; /* of a part */
  int32_t ring;   /* of them in shared memory */
  int32_t strips; /* of a cluster; rows of each of its CTAs, 16 strips / parts, are a multiple of 8 */
  int32_t all_strips;
  int32_t x_columns; /* that are loaded: 64, or of X by columns only those that there are */
  int32_t y_rows;
} bsrg_narrow_cluster_params;

#endif
