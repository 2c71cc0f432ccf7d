/* The portable family's tiles of 8-bit floats: what they cost, and the launch. Kernels in kernels/sm80/portable_eight.cuh. */
#include "epilogue.h"
#include "kmajor.h"
#include "portable.h"

#include <math.h>

enum { CHUNK = 16 }; /* k that are copied and multiplied together */

bsrg_scaling bsrg_scaling_of(const bsrg_matmul_args *args) {
  const bool per_block = args->values_scale_count == args->a->view.nnzb;
  return (bsrg_scaling){.block_scales = per_block ? args->values_scale : NULL,
                        .a_scale = per_block ? NULL : args->values_scale,
                        .x_scale = args->x_scale,
                        .x_rows = args->x.rows,
                        .out = bsrg_kmajor_out(args)};
}

/* ---- tiles ------------------------------------------------------------------------------------ */

#define TILE_SHAPE(rows, columns, warps_m, warps_n, k, stages, ctas) {rows, columns, ctas},
static const int64_t shape[][3] = {BSRG_EIGHT_TILES(TILE_SHAPE)};
#undef TILE_SHAPE
enum { TILES = sizeof(shape) / sizeof(shape[0]), NARROW = 64 };
/* Time for a row of a tile against the best one: on an H200 those of 64 rows reached 198 TF/s, of 128 rows 185, of 48 rows
 * 153, of 32 rows 170, and of 16 rows with blocks 64 wide 166. */
static const double cost[TILES] = {1.5, 1.2, 1.15, 1.25, 1.0, 1.05};

static int choose_tile(const bsrg_matmul_args *args) {
  const int64_t height = args->a->view.block_height, n = args->x.cols;
  int best = 0;
  double least = INFINITY;
  for (int i = 0; i < TILES; ++i) {
    const double rows = (double)(bsrg_ceil_div(height, shape[i][0]) * shape[i][0]);
    const double columns = (double)(bsrg_ceil_div(n, shape[i][1]) * shape[i][1]);
    /* Narrow tiles read A more often. */
    const double seconds = rows * columns * cost[i] * (shape[i][1] <= NARROW && n > NARROW ? 2 : 1);
    if (seconds >= least) continue;
    least = seconds;
    best = i;
  }
  return best;
}

/* ---- layout ----------------------------------------------------------------------------------- */

/* How many bytes are aligned to as many: 16, 4 or 1. */
static int32_t aligned_bytes(int64_t bytes) { return bytes % 16 == 0 ? 16 : bytes % 4 == 0 ? 4 : 1; }

static int32_t bytes_of_a(const bsrg_matmul_args *args) {
  if (args->a->view.order) return CHUNK; /* they are copied */
  return (int32_t)bsrg_min(aligned_bytes(args->a->view.block_width),
                           aligned_bytes((int64_t)((uintptr_t)args->values % 16)));
}

/* Y's contiguous side has neighbours that may be stored four at a time. */
static bool writes_runs(const bsrg_matmul_args *args) {
  const bsrg_dense *y = &args->y;
  const int64_t bytes = 4 * (int64_t)bsrg_dtype_size(bsrg_out_dtype(args));
  if ((int64_t)((uintptr_t)y->data % (uintptr_t)bytes)) return false;
  if (y->row_stride == 1)
    return args->a->view.block_height % 4 == 0 && (y->cols == 1 || y->col_stride % 4 == 0);
  return y->col_stride == 1 && y->row_stride % 4 == 0;
}

/* ---- cost ------------------------------------------------------------------------------------- */

/* Of mma_flops_per_s, that the best tile reaches; less where each chunk's sums are multiplied by a scale. */
static const double share = 0.30, scaled_share = 0.24;
/* What a CTA does beside its products. */
static const double tile_seconds = 3e-6;
/* The work of a tile where a chunk's neighbours lie elsewhere, and where chunks go by 4 bytes or, not fitted, by one. */
static const double single_cost = 2.3, parts_cost = 3, bytes_cost = 10;

void bsrg_eight_predict(const bsrg_matmul_args *args, const bsrg_chip *chip, bsrg_candidate *c) {
  const bsrg_structure_view *v = &args->a->view;
  const int tile = choose_tile(args);
  const bsrg_kmajor_copies copies = bsrg_kmajor_copies_for(args);
  const double rows = (double)shape[tile][0], ctas = (double)shape[tile][2];
  const double row_tiles = (double)bsrg_ceil_div(v->block_height, shape[tile][0]);
  const double column_tiles = (double)bsrg_ceil_div(args->x.cols, shape[tile][1]);
  const double columns = column_tiles * (double)shape[tile][1];
  const double k = (double)v->nnzb * (double)(bsrg_ceil_div(v->block_width, CHUNK) * CHUNK);
  const double blocks = (double)v->nnzb * (double)(v->block_height * v->block_width);
  const double x_bytes = (double)v->cols * (double)args->x.cols;
  const double copied = (copies.x ? 2 * x_bytes : 0) + (copies.values ? 2 * blocks : 0);
  c->mma_flops = 2 * k * row_tiles * rows * columns;
  c->l2_bytes = k * (row_tiles * columns + (double)v->block_height * column_tiles);
  c->hbm_bytes = copied + blocks + x_bytes +
                 (double)bsrg_dtype_size(bsrg_out_dtype(args)) * (double)v->rows * (double)args->x.cols;
  const int32_t least = (int32_t)bsrg_min(bytes_of_a(args), aligned_bytes(v->block_width));
  const double parts = least == 1                   ? bytes_cost
                       : least == 4                 ? parts_cost
                       : v->block_width < 2 * CHUNK ? single_cost
                                                    : 1;
  const bool scaled = args->values_scale && args->values_scale_count == v->nnzb;
  const double work =
      c->mma_flops * cost[tile] * parts / (chip->mma_flops_per_s * (scaled ? scaled_share : share));
  const double memory = (c->hbm_bytes - copied) / chip->hbm_bytes_per_s;
  const double tiles = (double)v->block_rows * row_tiles * column_tiles, sms = (double)chip->sm_count;
  const double longest = work * fmin(ctas, ceil(tiles / sms)) * sms * (double)v->longest_row /
                         fmax(1, (double)v->nnzb * row_tiles * column_tiles);
  c->seconds = BSRG_LAUNCH_SECONDS + bsrg_kmajor_copy_seconds(copies, copied, chip) +
               fmax(fmax(work + tile_seconds * tiles / (sms * ctas), memory), longest + tile_seconds);
  bsrg_set_reason(c, "%s%s", memory > work ? "limited by memory" : "limited by its tiles",
                  copied > 0 ? ", after a transposed copy" : "");
}

/* ---- launch ----------------------------------------------------------------------------------- */

/* context: the bsrg_portable_params of the product before operands were copied. */
static bsrg_status multiply(const bsrg_matmul_args *args, const void *context, bsrg_gpu gpu,
                            bsrg_error *error) {
  const bsrg_structure_view *v = &args->a->view;
  const int tile = choose_tile(args);
  const int64_t tiles_per_block_row = bsrg_ceil_div(v->block_height, shape[tile][0]);
  bsrg_eight_params p = {.portable = *(const bsrg_portable_params *)context,
                         .scaling = bsrg_scaling_of(args),
                         .a_row_stride = v->order ? bsrg_kmajor_value_pitch(args) : v->block_width,
                         .chunks = (int32_t)bsrg_ceil_div(v->block_width, CHUNK),
                         .a_bytes = bytes_of_a(args),
                         .x_bytes = aligned_bytes(v->block_width),
                         .vector_y = writes_runs(args)};
  p.portable.values = args->values;
  p.portable.x = args->x.data;
  p.portable.x_row_stride = args->x.row_stride;
  p.portable.x_col_stride = args->x.col_stride;
  p.portable.tiles_per_block_row = (int32_t)tiles_per_block_row;
  p.portable.row_tiles = v->block_rows * tiles_per_block_row;
  const bsrg_kernel_id first =
      args->dtype == BSRG_F8_E4M3 ? BSRG_KERNEL_PORTABLE_E4M3_M16N64 : BSRG_KERNEL_PORTABLE_E5M2_M16N64;
  const int64_t column_tiles = bsrg_min(bsrg_ceil_div(args->x.cols, shape[tile][1]), 65535);
  return bsrg_launch(gpu.api, gpu.device, (bsrg_kernel_id)((int)first + tile), p.portable.row_tiles,
                     column_tiles, (CUstream)args->stream, &p, error);
}

bsrg_status bsrg_eight_launch(const bsrg_matmul_args *args, const bsrg_portable_params *portable,
                              bsrg_gpu gpu, bsrg_error *error) {
  return bsrg_kmajor_copied(args, multiply, portable, gpu, error);
}
