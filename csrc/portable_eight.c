/* The portable family's tiles of 8-bit floats: what they cost, and the launch. Kernels in kernels/sm80/portable_eight.cuh. */
#include "kmajor.h"
#include "portable.h"

#include <math.h>

enum {
  CHUNK = BSRG_PANELS_CHUNK, /* k that are copied and multiplied together */
  MOST_FILLED = 4            /* times what a block has of them */
};

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
/* Time for a row of a tile against the best one: on an H200, less what the copy of X takes, those of 128 and 64 rows reached
 * 220 TF/s, of 48 rows 190, of 32 rows 204, of 16 rows with blocks 16 wide 179 and 64 wide 199. The first is an estimate. */
static const double cost[TILES] = {1.5, 1.2, 1.08, 1.16, 1.0, 1.0};

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

/* ---- copies ----------------------------------------------------------------------------------- */

static int64_t chunks_of_block(const bsrg_structure_view *v) { return bsrg_ceil_div(v->block_width, CHUNK); }

/* Blocks are read as they are stored where their rows have whole chunks. */
static bool copies_values(const bsrg_matmul_args *args) {
  const bsrg_structure_view *v = &args->a->view;
  return v->order || v->block_width % CHUNK || (uintptr_t)args->values % CHUNK;
}

static int64_t value_bytes(const bsrg_structure_view *v) {
  return v->nnzb * v->block_height * chunks_of_block(v) * CHUNK;
}

int64_t bsrg_eight_x_bytes(const bsrg_matmul_args *args, int64_t columns) {
  const bsrg_structure_view *v = &args->a->view;
  return v->block_cols * chunks_of_block(v) * CHUNK * columns;
}

/* Columns that lie so, and rows of them in blocks of a width. */
static bsrg_status copy_chunks(bsrg_panels_params p, int64_t matrices, int64_t blocks, bsrg_gpu gpu,
                               CUstream stream, bsrg_error *error) {
  p.chunks_of_block = (int32_t)bsrg_ceil_div(p.width, CHUNK);
  p.chunks = blocks * p.chunks_of_block;
  p.all_cols = matrices * p.cols;
  if (p.target_cols == 0) p.target_cols = p.all_cols;
  if (p.chunks == 0 || p.all_cols == 0) return BSRG_OK;
  /* Up to 16 chunks of as many columns as are left of a tile. */
  while (p.chunk_bits < 4 && (int64_t)1 << p.chunk_bits < p.chunks) ++p.chunk_bits;
  const int64_t together = p.source_row_stride | p.source_matrix_stride | (int64_t)(uintptr_t)p.source;
  const bool along_k = p.source_row_stride == 1;
  p.fours = !along_k && p.source_col_stride == 1 && p.cols % 4 == 0 && together % 4 == 0;
  p.whole = along_k && p.width % CHUNK == 0 &&
            (p.source_col_stride | p.source_matrix_stride | (int64_t)(uintptr_t)p.source) % CHUNK == 0;
  p.col_tiles = bsrg_ceil_div(p.all_cols, BSRG_PANELS_TILE >> p.chunk_bits);
  const int64_t chunk_tiles = bsrg_ceil_div(p.chunks, (int64_t)1 << p.chunk_bits);
  return bsrg_launch(gpu.api, gpu.device, BSRG_KERNEL_PANELS_8, p.col_tiles * chunk_tiles, 1, stream, &p,
                     error);
}

static bsrg_status copy_values(const bsrg_matmul_args *args, CUdeviceptr target, bsrg_gpu gpu,
                               bsrg_error *error) {
  const bsrg_structure_view *v = &args->a->view;
  const bool turned = v->order != NULL;
  const bsrg_panels_params p = {.source = args->values,
                                .target = (void *)(uintptr_t)target,
                                .source_row_stride = turned ? v->block_height : 1,
                                .source_col_stride = turned ? 1 : v->block_width,
                                .source_matrix_stride = v->block_height * v->block_width,
                                .rows = v->block_width,
                                .width = v->block_width,
                                .cols = v->block_height};
  return copy_chunks(p, v->nnzb, 1, gpu, (CUstream)args->stream, error);
}

bsrg_status bsrg_eight_copy_x(const bsrg_matmul_args *args, int64_t columns, int32_t tile_bits,
                              CUdeviceptr target, bsrg_gpu gpu, bsrg_error *error) {
  const bsrg_structure_view *v = &args->a->view;
  const bsrg_panels_params p = {.source = args->x.data,
                                .target = (void *)(uintptr_t)target,
                                .source_row_stride = args->x.row_stride,
                                .source_col_stride = args->x.col_stride,
                                .rows = args->x.rows,
                                .width = v->block_width,
                                .cols = args->x.cols,
                                .target_cols = columns,
                                .tile_bits = tile_bits};
  return copy_chunks(p, 1, v->block_cols, gpu, (CUstream)args->stream, error);
}

/* ---- layout ----------------------------------------------------------------------------------- */

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
static const double share = 0.33, scaled_share = 0.25;
/* What a CTA does beside its products. */
static const double tile_seconds = 3e-6;
/* The share of the memory's rate that copies reach, and what each takes in any case. */
static const double copy_share = 0.6, copy_seconds = 2e-6;

void bsrg_eight_predict(const bsrg_matmul_args *args, const bsrg_chip *chip, bsrg_candidate *c) {
  const bsrg_structure_view *v = &args->a->view;
  const int tile = choose_tile(args);
  const double rows = (double)shape[tile][0], ctas = (double)shape[tile][2];
  const double row_tiles = (double)bsrg_ceil_div(v->block_height, shape[tile][0]);
  const double column_tiles = (double)bsrg_ceil_div(args->x.cols, shape[tile][1]);
  const double columns = column_tiles * (double)shape[tile][1];
  const double k = (double)v->nnzb * (double)(chunks_of_block(v) * CHUNK);
  const double blocks = (double)v->nnzb * (double)(v->block_height * v->block_width);
  const bool both = copies_values(args);
  const double x = (double)(v->block_cols * chunks_of_block(v) * CHUNK) * (double)args->x.cols;
  const double copied =
      (double)v->cols * (double)args->x.cols + x + (both ? blocks + k * (double)v->block_height : 0);
  c->mma_flops = 2 * k * row_tiles * rows * columns;
  c->l2_bytes = k * (row_tiles * columns + (double)v->block_height * column_tiles);
  c->hbm_bytes = copied + blocks + x +
                 (double)bsrg_dtype_size(bsrg_out_dtype(args)) * (double)v->rows * (double)args->x.cols;
  const bool scaled = args->values_scale && args->values_scale_count == v->nnzb;
  const double work = c->mma_flops * cost[tile] / (chip->mma_flops_per_s * (scaled ? scaled_share : share));
  const double memory = (c->hbm_bytes - copied) / chip->hbm_bytes_per_s;
  const double tiles = (double)v->block_rows * row_tiles * column_tiles, sms = (double)chip->sm_count;
  const double longest = work * fmin(ctas, ceil(tiles / sms)) * sms * (double)v->longest_row /
                         fmax(1, (double)v->nnzb * row_tiles * column_tiles);
  c->seconds = BSRG_LAUNCH_SECONDS + (both ? 2 : 1) * copy_seconds +
               copied / (copy_share * chip->hbm_bytes_per_s) +
               fmax(fmax(work + tile_seconds * tiles / (sms * ctas), memory), longest + tile_seconds);
  bsrg_set_reason(c, "limited by %s, after a copy of %s", memory > work ? "memory" : "its tiles",
                  both ? "both operands" : "the dense operand");
}

bool bsrg_eight_suits(const bsrg_structure_view *v) { return v->block_width >= CHUNK / MOST_FILLED; }

/* ---- launch ----------------------------------------------------------------------------------- */

static bsrg_status multiply(const bsrg_matmul_args *args, const bsrg_portable_params *portable,
                            CUdeviceptr values, CUdeviceptr x, bsrg_gpu gpu, bsrg_error *error) {
  const bsrg_structure_view *v = &args->a->view;
  const int tile = choose_tile(args);
  const int64_t tiles_per_block_row = bsrg_ceil_div(v->block_height, shape[tile][0]);
  bsrg_eight_params p = {.portable = *portable,
                         .scaling = bsrg_scaling_of(args),
                         .a_block_stride = v->block_height * v->block_width,
                         .a_row_stride = v->block_width,
                         .a_chunk_stride = CHUNK,
                         .chunks = (int32_t)chunks_of_block(v)};
  p.portable.vector_y = writes_runs(args);
  if (values) {
    p.portable.values = (const void *)(uintptr_t)values;
    p.a_block_stride = v->block_height * CHUNK;
    p.a_row_stride = CHUNK;
    p.a_chunk_stride = v->nnzb * v->block_height * CHUNK;
  }
  p.portable.x = (const void *)(uintptr_t)x;
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
  const size_t for_values = copies_values(args) ? (size_t)value_bytes(&args->a->view) : 0;
  const size_t bytes = for_values + (size_t)bsrg_eight_x_bytes(args, args->x.cols);
  if (bytes == 0) return multiply(args, portable, 0, 0, gpu, error); /* nothing to read */
  CUdeviceptr scratch;
  bsrg_status status =
      bsrg_scratch_alloc(gpu.api, gpu.device, bytes, (CUstream)args->stream, &scratch, error);
  if (status != BSRG_OK) return status;
  if (for_values) status = copy_values(args, scratch, gpu, error);
  if (status == BSRG_OK) status = bsrg_eight_copy_x(args, args->x.cols, 0, scratch + for_values, gpu, error);
  if (status == BSRG_OK)
    status = multiply(args, portable, for_values ? scratch : 0, scratch + for_values, gpu, error);
  return bsrg_scratch_free(gpu.api, scratch, (CUstream)args->stream, status, error);
}
