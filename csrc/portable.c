/* The portable family: any block shape and dtype on every GPU from sm_80 up. Kernels in kernels/sm80/. */
#include "portable.h"
#include "dense.h"
#include "dynamic.h"
#include "epilogue.h"
#include "uploads.h"

#include <math.h>
#include <stdlib.h>

/* ---- tiles ------------------------------------------------------------------------------------ */

/* The tile for a block height and n columns. */
typedef struct portable_tile {
  int kernel; /* bsrg_kernel_id */
  int64_t rows, columns;
  double cost;  /* time for a row of a tile, against the others of its dtype */
  int64_t ctas; /* that an SM holds */
  int64_t stage_k, stages;
} portable_tile;

/* Time for a row of a tile against the best tile of its list, in the order of the lists. 16 bit: full tiles on an
 * H200 reached 305 TF/s with 128 rows, 296 with 64, 242 with 48, 232 with 32 and 158 with 16; the two narrow ones
 * are for few columns. tf32 on an H100: 94 with 64 rows, 72 with 32 and 52 with 16; float64: 41, 39 and 27. */
static const double mma_cost[] = {2.0, 1.1, 1.9, 1.3, 1.26, 1.03, 1.0};
static const double f32_cost[] = {1.3, 1.2, 1.07, 1.0};
static const double tf32_cost[] = {2.0, 1.8, 1.3, 1.0};
static const double f64_cost[] = {1.7, 1.5, 1.05, 1.0};
#define TILE_SHAPE(rows, columns, warps_m, warps_n, k, stages, ctas) {rows, columns, ctas, k, stages},
static const int64_t mma_shape[][5] = {BSRG_MMA_TILES(TILE_SHAPE)};
static const int64_t f32_shape[][5] = {BSRG_SIMT_F32_TILES(TILE_SHAPE)};
static const int64_t tf32_shape[][5] = {BSRG_SIMT_TF32_TILES(TILE_SHAPE)};
static const int64_t f64_shape[][5] = {BSRG_SIMT_F64_TILES(TILE_SHAPE)};
#undef TILE_SHAPE
#define COUNT(array) ((int)(sizeof(array) / sizeof((array)[0])))
_Static_assert(COUNT(mma_cost) == COUNT(mma_shape), "a cost for each tile");
_Static_assert(COUNT(f32_cost) == COUNT(f32_shape), "likewise");
_Static_assert(COUNT(tf32_cost) == COUNT(tf32_shape), "likewise");
_Static_assert(COUNT(f64_cost) == COUNT(f64_shape), "likewise");

/* What the kernels of a dtype are, and what they cost: fitted on an H200, float64 and tf32 on an H100. */
typedef struct tile_list {
  const int64_t (*shape)[5];
  const double *cost;
  int count, first; /* kernels of transposed views follow the others */
  int64_t narrow;   /* tiles of no more columns are for few */
  double share;     /* of mma_flops_per_s, that the best tile reaches */
  /* The work of a tile where X goes element by element, for up to FEW columns and for more: of 16 bits 4.5 to 11. */
  double few_elements_cost, elements_cost;
} tile_list;
static const tile_list f16_tiles = {
    mma_shape, mma_cost, COUNT(mma_shape), BSRG_KERNEL_PORTABLE_F16_M16N64, 64, 0.50, 8, 8};
static const tile_list bf16_tiles = {
    mma_shape, mma_cost, COUNT(mma_shape), BSRG_KERNEL_PORTABLE_BF16_M16N64, 64, 0.50, 8, 8};
static const tile_list f32_tiles = {
    f32_shape, f32_cost, COUNT(f32_shape), BSRG_KERNEL_SIMT_F32_M32N32, 32, 0.052, 1.7, 2.1};
static const tile_list tf32_tiles = {
    tf32_shape, tf32_cost, COUNT(tf32_shape), BSRG_KERNEL_SIMT_TF32_M32N32, 32, 0.145, 1.7, 3.3};
static const tile_list f64_tiles = {
    f64_shape, f64_cost, COUNT(f64_shape), BSRG_KERNEL_SIMT_F64_M32N32, 32, 0.063, 1.4, 2};
#undef COUNT

static const tile_list *tiles_of(const bsrg_matmul_args *args) {
  if (args->dtype == BSRG_F16) return &f16_tiles;
  if (args->dtype == BSRG_BF16) return &bf16_tiles;
  if (args->dtype == BSRG_F64) return &f64_tiles;
  return args->precision == BSRG_TF32 ? &tf32_tiles : &f32_tiles;
}

static portable_tile choose_tile(const bsrg_matmul_args *args) {
  const bsrg_structure_view *v = &args->a->view;
  const tile_list *list = tiles_of(args);
  const int64_t n = args->x.cols;
  portable_tile best = {.kernel = -1, .ctas = 1, .stage_k = 1, .stages = 2};
  double least = INFINITY;
  for (int i = 0; i < list->count; ++i) {
    const int64_t *shape = list->shape[i];
    const double rows = (double)(bsrg_ceil_div(v->block_height, shape[0]) * shape[0]);
    const double columns = (double)(bsrg_ceil_div(n, shape[1]) * shape[1]);
    /* Narrow tiles read A more often: they must save most of the columns to be worth it. */
    const double narrow = shape[1] <= list->narrow && n > 64 ? 2 : 1;
    const double cost = rows * columns * list->cost[i] * narrow;
    if (cost >= least) continue;
    least = cost;
    best = (portable_tile){.kernel = list->first + (v->order ? list->count : 0) + i,
                           .rows = shape[0],
                           .columns = shape[1],
                           .cost = list->cost[i],
                           .ctas = shape[2],
                           .stage_k = shape[3],
                           .stages = shape[4]};
  }
  return best;
}

/* ---- layout ----------------------------------------------------------------------------------- */

/* Whether X, or C and Y, can be copied 16 bytes at a time. */
static bool x_has_vectors(const bsrg_matmul_args *args) {
  return bsrg_dense_has_vectors(&args->x, (int64_t)bsrg_dtype_size(args->dtype));
}
static bool y_has_vectors(const bsrg_matmul_args *args) {
  const int64_t size = (int64_t)bsrg_dtype_size(args->dtype);
  return bsrg_dense_has_vectors(&args->y, size) &&
         (args->beta == 0 || bsrg_dense_has_vectors(&args->c, size));
}

/* Whether blocks can be. */
static bool has_whole_chunks(const bsrg_structure_view *v, int64_t size) {
  return v->block_width * size % 16 == 0 && (!v->order || v->block_height * size % 16 == 0);
}

/* ---- cost ------------------------------------------------------------------------------------- */

/* What a CTA does before its tile's first product and after the last, fitted on an H200. */
static const double tile_seconds = 3e-6;
/* 16 bit: of the memory's time, what the work does not hide. Likewise. */
static const double unhidden_memory = 0.3;
/* Others: what memory takes for a stage, fitted on an H100 to up to FEW columns, where a CTA waits for one after the other: it
 * has one less under way than it has room for. */
static const double stage_seconds = 1.4e-6;
/* For more columns, but of float64, fitted on an H200; and what elements that go one by one make of either at most. */
static const double wide_stage_seconds = 1.75e-6, elements_stage_cost = 2;
/* The work of a tile for up to FEW columns, which reads A more often, of 16 bits fitted to blocks from 16x16 to 128x128 as they
 * are stored. Not of others: against them the tall kernels, which are predicted too fast for so few, would be taken. */
enum { FEW = 64, FEW_HEIGHT = 16 };
static const double few_cost = 1.35, few_wide_cost = 1.1;

/* 16 bit, where A goes element by element: up to FEW columns, fitted on an H100 to blocks of 12x12, and more, on an H200 to
 * 12x20. */
static const double few_elements_of_a_cost = 7, elements_of_a_cost = 2;
/* An element of Y that is stored for itself. */
static const double y_element_seconds = 2.3e-12;

double bsrg_portable_storing_seconds(const bsrg_dense *y, bool vectors) {
  return vectors ? 0 : y_element_seconds * (double)y->rows * (double)y->cols;
}

/* What the work of a tile takes beside that of many columns that vectors copy. */
static double layout_cost(const bsrg_matmul_args *args) {
  const bsrg_structure_view *v = &args->a->view;
  const tile_list *list = tiles_of(args);
  const double elements = x_has_vectors(args)   ? 1
                          : args->x.cols <= FEW ? list->few_elements_cost
                                                : list->elements_cost;
  if (!bsrg_is_half(args->dtype)) return (args->x.cols <= FEW ? few_wide_cost : 1) * elements;
  if (!has_whole_chunks(v, 2))
    return args->x.cols <= FEW ? few_elements_of_a_cost * (x_has_vectors(args) ? 1 : elements_of_a_cost)
                               : elements_of_a_cost * elements;
  if (!x_has_vectors(args)) return elements;
  return args->x.cols <= FEW && v->block_height >= FEW_HEIGHT && !v->order ? few_cost : 1;
}

static void predict_tiles(const bsrg_matmul_args *args, const bsrg_chip *chip, bsrg_candidate *c) {
  const bsrg_structure_view *v = &args->a->view;
  const bsrg_dtype dtype = args->dtype;
  const int64_t n = args->x.cols;
  const double size = (double)bsrg_dtype_size(dtype);
  const portable_tile tile = choose_tile(args);
  const double row_tiles = (double)bsrg_ceil_div(v->block_height, tile.rows);
  const double column_tiles = (double)bsrg_ceil_div(n, tile.columns);
  const double columns = column_tiles * (double)tile.columns;
  const double k = (double)v->nnzb * (double)v->block_width;
  c->mma_flops = 2 * k * row_tiles * (double)tile.rows * columns;
  c->l2_bytes = size * k * (row_tiles * columns + (double)v->block_height * column_tiles);
  c->hbm_bytes = bsrg_compulsory_bytes(v, dtype, n);
  const double work =
      c->mma_flops * tile.cost * layout_cost(args) / (chip->mma_flops_per_s * tiles_of(args)->share);
  const double storing = bsrg_portable_storing_seconds(&args->y, y_has_vectors(args));
  const double memory = c->hbm_bytes / chip->hbm_bytes_per_s;
  /* Nothing ends before the longest row, whose CTAs have no more than their share of an SM. Those of 16 bits are fitted as if
   * there were always as many as an SM holds. */
  const double on_sm = ceil((double)v->block_rows * row_tiles * column_tiles / (double)chip->sm_count);
  const double sharing = bsrg_is_half(dtype) ? (double)tile.ctas : fmin((double)tile.ctas, on_sm);
  const double longest = work * sharing * (double)chip->sm_count * (double)v->longest_row /
                         fmax(1, (double)v->nnzb * row_tiles * column_tiles);
  const double starts =
      tile_seconds * (double)v->block_rows * row_tiles * column_tiles / (double)(chip->sm_count * tile.ctas);
  const double in_row = ceil((double)v->longest_row * (double)v->block_width / (double)tile.stage_k);
  const double of_stage = (n > FEW && dtype == BSRG_F32 ? wide_stage_seconds : stage_seconds) *
                          (x_has_vectors(args) ? 1 : fmin(layout_cost(args), elements_stage_cost));
  const double waiting = bsrg_is_half(dtype) ? 0 : in_row * of_stage / (double)(tile.stages - 1);
  const double unhidden = bsrg_is_half(dtype) ? unhidden_memory * memory : 0;
  c->seconds =
      BSRG_LAUNCH_SECONDS + storing + fmax(fmax(work + starts + unhidden, memory), fmax(longest, waiting));
  bsrg_set_reason(c, "%s", memory > work ? "limited by memory" : "limited by its tiles");
}

/* The kernels for few columns count in 32 bits. */
static bool suits_few(const bsrg_structure_view *v) {
  return bsrg_whole_rows(v) <= INT32_MAX && v->nnzb <= INT32_MAX &&
         bsrg_max(v->block_height, v->block_width) <= BSRG_FEW_MAX_SIDE;
}

/* Whether the kernels for few columns take less time than tiles; *c is what the better ones need. Those for 8 bits take any
 * number of columns. */
static bool goes_by_few(const bsrg_matmul_args *args, const bsrg_chip *chip, bsrg_candidate *c) {
  const bsrg_structure_view *v = &args->a->view;
  if (bsrg_is_8_bit(args->dtype)) {
    bsrg_candidate tiles = *c;
    bsrg_few_predict(args, chip, c);
    if (!bsrg_eight_suits(v)) return true;
    bsrg_eight_predict(args, chip, &tiles);
    if (c->seconds < tiles.seconds) return true;
    *c = tiles;
    return false;
  }
  predict_tiles(args, chip, c);
  if (args->x.cols > BSRG_FEW_MAX_N || !suits_few(v)) return false;
  bsrg_candidate few = *c;
  bsrg_few_predict(args, chip, &few);
  if (few.seconds >= c->seconds) return false;
  *c = few;
  return true;
}

static void predict(const bsrg_matmul_args *args, const void *plan, const bsrg_chip *chip,
                    bsrg_candidate *c) {
  (void)plan;
  goes_by_few(args, chip, c);
}

/* ---- launch ----------------------------------------------------------------------------------- */

bsrg_status bsrg_portable_upload(bsrg_structure *structure, bsrg_gpu gpu, bsrg_portable_uploads *out,
                                 bsrg_error *error) {
  const void *plan;
  bsrg_status status = bsrg_plan_get(structure, &bsrg_portable_family, false, &plan, error);
  if (status != BSRG_OK) return status;
  const bsrg_structure_view *v = &structure->view;
  const bsrg_upload_part parts[BSRG_PORTABLE_UPLOADS] = {
      [BSRG_PORTABLE_INDPTR] = {v->indptr, sizeof(*v->indptr) * (size_t)(v->block_rows + 1)},
      [BSRG_PORTABLE_INDICES] = {v->indices, sizeof(*v->indices) * (size_t)v->nnzb},
      [BSRG_PORTABLE_ROW_ORDER] = {plan, sizeof(int32_t) * (size_t)v->block_rows},
      [BSRG_PORTABLE_ORDER] = {v->order, sizeof(*v->order) * (size_t)v->nnzb}};
  const CUdeviceptr *uploads;
  status = bsrg_uploads_get(structure, BSRG_PORTABLE, parts,
                            v->order ? BSRG_PORTABLE_UPLOADS : BSRG_PORTABLE_ORDER, gpu, &uploads, error);
  if (status != BSRG_OK) return status;
  *out = (bsrg_portable_uploads){
      .indptr = (const int64_t *)(uintptr_t)uploads[BSRG_PORTABLE_INDPTR],
      .indices = (const int32_t *)(uintptr_t)uploads[BSRG_PORTABLE_INDICES],
      .row_order = (const int32_t *)(uintptr_t)uploads[BSRG_PORTABLE_ROW_ORDER],
      .order = v->order ? (const int64_t *)(uintptr_t)uploads[BSRG_PORTABLE_ORDER] : NULL};
  return BSRG_OK;
}

static bsrg_status launch(const bsrg_matmul_args *args, const void *plan, bsrg_gpu gpu, bsrg_error *error) {
  (void)plan; /* which the upload finds */
  const bsrg_structure_view *v = &args->a->view;
  const int64_t size = (int64_t)bsrg_dtype_size(args->dtype), n = args->x.cols;
  const portable_tile tile = choose_tile(args);
  const int64_t tiles_per_block_row = bsrg_ceil_div(v->block_height, tile.rows);
  const int64_t row_tiles = v->block_rows * tiles_per_block_row;
  /* The kernels count row tiles and k of a block in 32 bits; the margins keep rounding up to a tile in range. */
  if (row_tiles > INT32_MAX || v->block_height > INT32_MAX - 256 || v->block_width > INT32_MAX - 256)
    return bsrg_fail(
        error, BSRG_ERR_VALUE,
        "a has %lld block rows in blocks of (%lld, %lld): the GPU kernels take fewer than 2^31 row "
        "tiles and block sides below 2^31 - 256",
        (long long)v->block_rows, (long long)v->block_height, (long long)v->block_width);
  bsrg_portable_uploads uploads;
  const bsrg_status status = bsrg_portable_upload(args->a, gpu, &uploads, error);
  if (status != BSRG_OK) return status;

  bsrg_portable_params p = {
      .values = args->values,
      .indptr = uploads.indptr,
      .indices = uploads.indices,
      .row_order = uploads.row_order,
      .x = args->x.data,
      .c = args->c.data,
      .y = args->y.data,
      .x_row_stride = args->x.row_stride,
      .x_col_stride = args->x.col_stride,
      .c_row_stride = args->c.row_stride,
      .c_col_stride = args->c.col_stride,
      .y_row_stride = args->y.row_stride,
      .y_col_stride = args->y.col_stride,
      .n = n,
      .row_tiles = row_tiles,
      .block_height = (int32_t)v->block_height,
      .block_width = (int32_t)v->block_width,
      .tiles_per_block_row = (int32_t)tiles_per_block_row,
      .vector_x = x_has_vectors(args),
      .vector_y = y_has_vectors(args),
      .vector_a = has_whole_chunks(v, size) && (uintptr_t)args->values % 16 == 0,
      .alpha = args->alpha,
      .beta = args->beta,
      .order = uploads.order,
      .output = bsrg_output_of(args),
  };
  const bsrg_chip chip = bsrg_chip_of(gpu);
  bsrg_candidate needed = {0};
  if (goes_by_few(args, &chip, &needed)) return bsrg_few_launch(args, &p, gpu, error);
  if (bsrg_is_8_bit(args->dtype)) {
    const bsrg_status launched = bsrg_eight_launch(args, &p, gpu, error);
    if (launched != BSRG_ERR_MEMORY) return launched;
    return bsrg_few_launch(args, &p, gpu, error); /* which needs none */
  }
  /* Row tiles vary fastest, so that those of one column tile share its part of X in L2; the kernel walks over the
   * column tiles that grid.y, which ends at 65535, leaves out. */
  const int64_t column_tiles = bsrg_min(bsrg_ceil_div(n, tile.columns), 65535);
  return bsrg_launch(gpu.api, gpu.device, (bsrg_kernel_id)tile.kernel, row_tiles, column_tiles,
                     (CUstream)args->stream, &p, error);
}

/* ---- the family ------------------------------------------------------------------------------- */

static const char *obstacle(const bsrg_structure_view *v, bsrg_dtype dtype, int sm_arch) {
  if (bsrg_is_8_bit(dtype) && !suits_few(v))
    return "needs fewer than 2^31 rows and blocks, and block sides of at most 2^30, for 8-bit floats";
  return sm_arch < 80 ? "needs a GPU of compute capability 8.0 or later" : NULL;
}

/* The plan is the order of the block rows. */
static void *make_plan(bsrg_structure *structure) {
  const bsrg_structure_view *v = &structure->view;
  int32_t *row_order = malloc(sizeof(*row_order) * (size_t)(v->block_rows + 1));
  if (row_order && bsrg_row_order(v, row_order)) return row_order;
  free(row_order);
  return NULL;
}

const bsrg_family_ops bsrg_portable_family = {.family = BSRG_PORTABLE,
                                              .obstacle = obstacle,
                                              .make_plan = make_plan,
                                              .free_plan = free,
                                              .predict = predict,
                                              .launch = launch};
