/* The portable kernels for two block-sparse matrices, kernels/sm80/pairs.cuh: any block shapes, strides and dtype. */
#include "dense.h"
#include "pairs.h"
#include "portable.h"

#include <math.h>
#include <stdio.h>

#define SHAPE(rows, columns, warps_m, warps_n, k, stages, ctas) {rows, columns, ctas},
static const int64_t mma_shape[][3] = {BSRG_PAIRS_MMA_TILES(SHAPE)};
static const int64_t f32_shape[][3] = {BSRG_PAIRS_F32_TILES(SHAPE)};
static const int64_t f64_shape[][3] = {BSRG_PAIRS_F64_TILES(SHAPE)};
#undef SHAPE
/* Time for an element of a tile against the best tile of its list, by what the kernels for dense operands need. */
static const double mma_cost[] = {2.0, 1.5, 1.2, 1.0}, simt_cost[] = {1.3, 1.0};
#define COUNT(array) ((int)(sizeof(array) / sizeof((array)[0])))
_Static_assert(COUNT(mma_cost) == COUNT(mma_shape), "a cost for each tile");
_Static_assert(COUNT(simt_cost) == COUNT(f32_shape) && COUNT(simt_cost) == COUNT(f64_shape), "likewise");

typedef struct tile_choice {
  bsrg_kernel_id kernel;
  double cost;
} tile_choice;

/* The tile that fills blocks of so many rows and columns best, and its kernel. */
static tile_choice choose_tile(bsrg_dtype dtype, bool transposed, int64_t height, int64_t width,
                               const int64_t **shape) {
  const bool half = bsrg_is_half(dtype);
  const int64_t (*shapes)[3] = half ? mma_shape : dtype == BSRG_F32 ? f32_shape : f64_shape;
  const double *cost = half ? mma_cost : simt_cost;
  const int count = half ? COUNT(mma_shape) : COUNT(f32_shape);
  const int first = dtype == BSRG_F16    ? BSRG_KERNEL_PAIRS_F16_M16N64
                    : dtype == BSRG_BF16 ? BSRG_KERNEL_PAIRS_BF16_M16N64
                    : dtype == BSRG_F32  ? BSRG_KERNEL_PAIRS_F32_M32N32
                                         : BSRG_KERNEL_PAIRS_F64_M32N32;
  int best = 0;
  double least = INFINITY;
  for (int i = 0; i < count; ++i) {
    const double rows = (double)(bsrg_ceil_div(height, shapes[i][0]) * shapes[i][0]);
    const double columns = (double)(bsrg_ceil_div(width, shapes[i][1]) * shapes[i][1]);
    if (rows * columns * cost[i] >= least) continue;
    least = rows * columns * cost[i];
    best = i;
  }
  *shape = shapes[best];
  return (tile_choice){(bsrg_kernel_id)(first + (transposed ? count : 0) + best), cost[best]};
}

/* ---- layout ----------------------------------------------------------------------------------- */

/* Whether rows of these elements can be read 16 bytes at a time from any multiple of 16 bytes on. */
static bool in_chunks(const void *data, int64_t row_stride, int64_t size) {
  return row_stride * size % 16 == 0 && (uintptr_t)data % 16 == 0;
}

/* Whether blocks of B go 16 bytes at a time: not those of a transposed view. */
static bool b_has_vectors(const bsrg_matmul_sparse_args *args) {
  const bsrg_structure_view *b = &args->b->view;
  return !b->order && in_chunks(args->b_values, b->block_width, (int64_t)bsrg_dtype_size(args->dtype));
}
/* Whether Y and C do, from a multiple of the blocks' width on. */
static bool y_has_vectors(const bsrg_matmul_sparse_args *args) {
  const int64_t size = (int64_t)bsrg_dtype_size(args->dtype);
  return args->b->view.block_width * size % 16 == 0 && bsrg_dense_has_vectors(&args->y, size) &&
         (args->beta == 0 || bsrg_dense_has_vectors(&args->c, size));
}

/* ---- cost ------------------------------------------------------------------------------------- */

/* Fitted on an H200 to 32x32 blocks of float16 at three densities: what the list of blocks that meet takes beside the
 * products of dense operands, whose shares of the chip's rate these are, and the time of a tile without any. */
static const double meeting_cost = 1.39, tile_seconds = 2e-6, f32_tile_seconds = 2.35e-6;
static const double half_share = 0.50, f32_share = 0.057, f64_share = 0.042;
/* The work where elements of B go one by one, fitted on an H200 to blocks from 12x12 to 128x128 at densities from .02 to .9. */
static const double half_elements_cost = 6.5, elements_cost = 1.4;

void bsrg_pairs_portable_predict(const bsrg_matmul_sparse_args *args, double pairs, const bsrg_chip *chip,
                                 bsrg_candidate *c) {
  const bsrg_structure_view *a = &args->a->view, *b = &args->b->view;
  const bool half = bsrg_is_half(args->dtype);
  const int64_t *shape;
  const int64_t height = a->block_height, width = b->block_width;
  const double cost = choose_tile(args->dtype, false, height, width, &shape).cost;
  const double row_tiles = (double)bsrg_ceil_div(height, shape[0]);
  const double column_tiles = (double)bsrg_ceil_div(width, shape[1]);
  const double of_pair =
      row_tiles * (double)shape[0] * column_tiles * (double)shape[1] * (double)a->block_width;
  const double size = (double)bsrg_dtype_size(args->dtype);
  c->mma_flops = 2 * pairs * of_pair;
  c->l2_bytes =
      size * pairs * (double)a->block_width * (row_tiles * (double)width + column_tiles * (double)height);
  c->hbm_bytes = bsrg_pairs_bytes(args);
  const double share = half ? half_share : args->dtype == BSRG_F32 ? f32_share : f64_share;
  const double layout = b_has_vectors(args) ? 1 : half ? half_elements_cost : elements_cost;
  const double work = c->mma_flops * cost * meeting_cost * layout / (chip->mma_flops_per_s * share);
  const double tiles = (double)a->block_rows * row_tiles * (double)b->block_cols * column_tiles;
  const double of_tile = args->dtype == BSRG_F32 ? f32_tile_seconds : tile_seconds;
  const double starts = of_tile * tiles / (double)(chip->sm_count * shape[2]);
  const double storing = bsrg_portable_storing_seconds(&args->y, y_has_vectors(args));
  const double memory = c->hbm_bytes / chip->hbm_bytes_per_s;
  c->seconds = BSRG_LAUNCH_SECONDS + storing + fmax(work + starts, memory);
  snprintf(c->reason, sizeof(c->reason), "limited by %s",
           memory > work + starts ? "memory"
           : starts > work        ? "finding the blocks that meet"
                                  : "its tiles");
}

static int64_t most_side(const bsrg_structure_view *v) { return bsrg_max(v->block_height, v->block_width); }

/* The kernels count rows and k of a few blocks, and row tiles, in 32 bits. */
const char *bsrg_pairs_portable_obstacle(const bsrg_matmul_sparse_args *args, const bsrg_gpu_info *gpu) {
  const bsrg_structure_view *a = &args->a->view, *b = &args->b->view;
  if (gpu->sm_arch < 80) return "needs a GPU of compute capability 8.0 or later";
  if (most_side(a) > 1 << 24 || most_side(b) > 1 << 24) return "needs block sides of at most 2^24";
  return bsrg_whole_rows(a) > INT32_MAX ? "needs fewer than 2^31 rows of a" : NULL;
}

bsrg_status bsrg_pairs_portable_launch(const bsrg_matmul_sparse_args *args, bsrg_gpu gpu, bsrg_error *error) {
  bsrg_structure *transposed;
  bsrg_portable_uploads of_a, of_b;
  bsrg_status status = bsrg_structure_transposed(args->b, &transposed, error);
  if (status == BSRG_OK) status = bsrg_portable_upload(args->a, gpu, &of_a, error);
  if (status == BSRG_OK) status = bsrg_portable_upload(transposed, gpu, &of_b, error);
  if (status != BSRG_OK) return status;

  const bsrg_structure_view *a = &args->a->view, *bt = &transposed->view;
  const int64_t size = (int64_t)bsrg_dtype_size(args->dtype);
  const int64_t height = a->block_height, depth = a->block_width, width = bt->block_height;
  const bool b_turned = bt->order == NULL; /* blocks of B lie as [width][depth] */
  const int64_t *tile;
  const bsrg_kernel_id kernel = choose_tile(args->dtype, a->order != NULL, height, width, &tile).kernel;
  const int64_t tiles_per_block_row = bsrg_ceil_div(height, tile[0]);
  bsrg_pairs_portable_params p = {.product = {.values = args->a_values,
                                              .indptr = of_a.indptr,
                                              .indices = of_a.indices,
                                              .row_order = of_a.row_order,
                                              .x = args->b_values,
                                              .c = args->c.data,
                                              .y = args->y.data,
                                              .x_row_stride = b_turned ? 1 : width,
                                              .x_col_stride = b_turned ? depth : 1,
                                              .c_row_stride = args->c.row_stride,
                                              .c_col_stride = args->c.col_stride,
                                              .y_row_stride = args->y.row_stride,
                                              .y_col_stride = args->y.col_stride,
                                              .n = width,
                                              .row_tiles = a->block_rows * tiles_per_block_row,
                                              .block_height = (int32_t)height,
                                              .block_width = (int32_t)depth,
                                              .tiles_per_block_row = (int32_t)tiles_per_block_row,
                                              .vector_x = b_has_vectors(args),
                                              .vector_y = y_has_vectors(args),
                                              .vector_a = in_chunks(args->a_values, depth, size) &&
                                                          (!a->order || height * size % 16 == 0),
                                              .alpha = args->alpha,
                                              .beta = args->beta,
                                              .order = of_a.order},
                                  .b_indptr = of_b.indptr,
                                  .b_indices = of_b.indices,
                                  .b_order = of_b.order,
                                  .b_block_cols = bt->block_rows,
                                  .tiles_per_block_column = (int32_t)bsrg_ceil_div(width, tile[1])};
  /* Row tiles vary fastest, so that those of one block column share it in L2; the kernel walks over the column tiles that
   * grid.y, which ends at 65535, leaves out. */
  const int64_t across = bsrg_min(bt->block_rows * p.tiles_per_block_column, 65535);
  return bsrg_launch(gpu.api, gpu.device, kernel, p.product.row_tiles, across, (CUstream)args->stream, &p,
                     error);
}
