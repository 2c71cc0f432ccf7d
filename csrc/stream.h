/* The streaming family: blocks whose height is a multiple of 8, on Hopper. Kernels in kernels/sm90/stream.cuh. */
#ifndef BSRG_STREAM_H
#define BSRG_STREAM_H

#include "family.h"

/* How stored blocks are cut into the parts that a kernel multiplies. */
typedef struct bsrg_stream_shape {
  int32_t height, width; /* of a part: one that is compiled */
  int32_t rows, columns; /* parts of a stored block, down and across */
  /* Of float16. bfloat16's lie BSRG_STREAM_SHAPE_COUNT further, then those for fused output, then those for a transposed
   * X. */
  int kernel;
} bsrg_stream_shape;

#define BSRG_STREAM_ONE(height, width) +1
enum { BSRG_STREAM_SHAPE_COUNT = 0 BSRG_STREAM_SHAPES(BSRG_STREAM_ONE) };
#undef BSRG_STREAM_ONE
/* The largest part of which such blocks consist: sides are multiples of 8. Of no rows where there is none. */
bsrg_stream_shape bsrg_stream_choose(const bsrg_structure_view *view);

/* Block rows of a tile, all parts of which lie in one: of all rows that it has room for or, where tiles are to be low, of two
 * thirds. */
int64_t bsrg_stream_tile_rows(const bsrg_stream_shape *shape, bool low);

typedef struct bsrg_stream_plan {
  bsrg_stream_shape shape;
  bsrg_stream_stage *stages;
  bsrg_stream_tile *tiles;
  int32_t *rows; /* first output row of each block row of the tiles, -1 where a tile has none */
  int32_t *
      source; /* the parts in packed order: see bsrg_pack_params; zeros behind them, BSRG_STREAM_SOURCE_SLACK */
  int64_t stage_count, part_count, row_count;
  int32_t tile_count;
  int64_t slots;        /* block columns of all stages */
  int64_t steps;        /* 16 columns of a part, or two parts of 8 columns, or one and zeros */
  int64_t longest_tile; /* parts */
  int64_t columns;      /* of parts, of the matrix */
  bool skewed;          /* the longest rows come first */
  bool low;             /* tiles have two thirds of the rows that they have room for */
} bsrg_stream_plan;

void *bsrg_stream_make_plan(bsrg_structure *structure);
/* What the host knows of the plan of a dynamic structure, without lists: see bsrg_stream_describe_lists. */
void *bsrg_stream_make_dynamic_plan(const bsrg_structure_view *view);
/* How many entries the lists have that a GPU makes of a dynamic structure (kernels/sm80/stream_lists.cu). `out` gets all but where
 * they begin. */
typedef struct bsrg_stream_list_sizes {
  size_t stages, tiles, rows, sources;
} bsrg_stream_list_sizes;
bsrg_stream_list_sizes bsrg_stream_describe_lists(const bsrg_structure_view *view, int64_t sm_count,
                                                  bsrg_stream_lists *out);
/* The same in lower tiles, and whether these let more SMs work on n columns than they cost. */
void *bsrg_stream_make_low_plan(bsrg_structure *structure);
bool bsrg_stream_wants_low(const bsrg_structure_view *view, int64_t n, int64_t sm_count);
/* Puts the block rows of an order into another one, where those of each tile share block columns. start: where each
 * tile begins in the order, and where the last one ends. They stay
 * among the rows of some tiles around them. For rows whose columns ascend. false: no memory. */
bool bsrg_stream_order(const bsrg_structure_view *view, const int64_t *start, int64_t tiles, int32_t *order);
void bsrg_stream_free_plan(void *plan);
void bsrg_stream_predict(const bsrg_matmul_args *args, const void *plan, const bsrg_chip *chip,
                         bsrg_candidate *candidate);

/* The figures of a plan that decide what a product costs: the planned ones, or what a sample says of a plan that
 * nobody has made. */
typedef struct bsrg_stream_work {
  int32_t height, width; /* of a part */
  double parts, slots, steps, tiles;
  double longest_tile; /* parts */
  bool skewed;
} bsrg_stream_work;
bsrg_stream_work bsrg_stream_work_of(const bsrg_stream_plan *plan);
/* About how many steps parts take that are spread evenly. */
double bsrg_stream_steps(const bsrg_stream_work *work);
/* Rows of a warpgroup, of which a tile has BSRG_STREAM_GROUPS, for parts of this height. */
static inline int32_t bsrg_stream_group_height(int32_t height) {
  return BSRG_STREAM_ROWS_OF(height) * height;
}
/* Whether so many parts of this height, one below the other, fit into a tile. */
static inline bool bsrg_stream_fits(int64_t parts, int32_t height) {
  return parts <= BSRG_STREAM_GROUPS * BSRG_STREAM_ROWS_OF(height);
}
/* All of the candidate but family and supported, for parts that are packed already. compulsory_bytes: see
 * bsrg_compulsory_bytes. */
void bsrg_stream_predict_packed(const bsrg_stream_work *work, double compulsory_bytes, int64_t n,
                                bool transposed_x, const bsrg_chip *chip, bsrg_candidate *candidate);
/* Whether blocks are read as they are stored: where packing them would take longer. */
bool bsrg_stream_reads_stored(const bsrg_matmul_args *args, const bsrg_stream_plan *plan,
                              const bsrg_chip *chip);
/* Values that are packed where need be, and the product. Of float32 the structure's blocks are counted twice as wide as they are (kstream.c),
 * X is transposed, and Y is anything. */
bsrg_status bsrg_stream_launch(const bsrg_matmul_args *args, const void *plan, bsrg_gpu gpu,
                               bsrg_error *error);
/* The product alone: `packed` holds the parts in the plan's order and layout. */
bsrg_status bsrg_stream_launch_packed(const bsrg_matmul_args *args, const bsrg_stream_plan *plan,
                                      CUdeviceptr packed, bsrg_gpu gpu, bsrg_error *error);
/* Whether L2 keeps the packed parts while X and Y pass it. */
bool bsrg_stream_keeps(const bsrg_stream_plan *plan);
/* CTAs of a cluster, at neighbouring column tiles: 2, or 1 where one would be left over, or where each SM has a tile at most,
 * which were no faster by it (34 to 75 us, -2 to +3). `tiles`: of rows. */
int32_t bsrg_stream_cluster(int64_t n, double tiles, int64_t sm_count);
/* Of the column tiles of clusters, how many are swept together down all row tiles. */
int32_t bsrg_stream_group(const bsrg_stream_plan *plan, int32_t cluster, int32_t n_tiles);
/* Row tiles that go before these sweeps. */
int32_t bsrg_stream_lead(const bsrg_stream_plan *plan, int32_t cluster, int32_t n_tiles, int64_t sm_count);

#endif
