#include "copy.h"
#include "dense.h"
#include "epilogue.h"
#include "kmajor.h"
#include "tensor_map.h"
#include "uploads.h"

/* ---- copies ------------------------------------------------------------------------------------ */

/* Bytes of a column of X in its copy. */
static int64_t column_bytes(const bsrg_matmul_args *args) {
  return bsrg_ceil_div(args->x.rows * (int64_t)bsrg_dtype_size(args->dtype), 128) * 128;
}

void bsrg_turn_split(bsrg_turn_params *p, int64_t item) {
  p->row_tiles = bsrg_ceil_div(p->rows, BSRG_TURN_ROW_BYTES / item);
  p->col_tiles = bsrg_ceil_div(p->cols, BSRG_TURN_COLUMNS);
  p->vector_source = p->source_col_stride == 1 && p->source_row_stride % 4 == 0 &&
                     p->source_matrix_stride % 4 == 0 && (uintptr_t)p->source % 4 == 0;
}

static bsrg_status turn(const bsrg_matmul_args *args, bsrg_turn_params p, int64_t matrices, bsrg_gpu gpu,
                        bsrg_error *error) {
  const int64_t item = (int64_t)bsrg_dtype_size(args->dtype);
  bsrg_turn_split(&p, item);
  return bsrg_launch(gpu.api, gpu.device, item == 1 ? BSRG_KERNEL_TURN_8 : BSRG_KERNEL_TURN_32,
                     matrices * p.row_tiles * p.col_tiles, 1, (CUstream)args->stream, &p, error);
}

static bsrg_status turn_values(const bsrg_matmul_args *args, CUdeviceptr target, bsrg_gpu gpu,
                               bsrg_error *error) {
  const bsrg_structure_view *v = &args->a->view;
  const bsrg_turn_params p = {.source = args->values,
                              .target = (void *)(uintptr_t)target,
                              .rows = v->block_width,
                              .cols = v->block_height,
                              .source_row_stride = v->block_height,
                              .source_col_stride = 1,
                              .source_matrix_stride = v->block_height * v->block_width,
                              .target_row_stride = v->block_width,
                              .target_matrix_stride = v->block_height * v->block_width};
  return v->nnzb ? turn(args, p, v->nnzb, gpu, error) : BSRG_OK;
}

size_t bsrg_kmajor_x_bytes(const bsrg_matmul_args *args) {
  return (size_t)(column_bytes(args) * args->x.cols);
}

int64_t bsrg_kmajor_pitch(const bsrg_matmul_args *args) {
  return args->x.cols == 1 ? column_bytes(args) / (int64_t)bsrg_dtype_size(args->dtype) : args->x.col_stride;
}

bsrg_status bsrg_kmajor_copy_x(const bsrg_matmul_args *args, CUdeviceptr target, bsrg_gpu gpu, bsrg_dense *x,
                               bsrg_error *error) {
  const int64_t item = (int64_t)bsrg_dtype_size(args->dtype), pitch = column_bytes(args) / item;
  *x = (bsrg_dense){(void *)(uintptr_t)target, args->x.rows, args->x.cols, 1, pitch};
  if (args->x.rows == 0) return BSRG_OK;
  /* Columns of adjacent elements: the kernels for transposes would read one element of each at a time. */
  if (args->x.row_stride == 1) return bsrg_copy(&args->x, x, item, gpu, (CUstream)args->stream, error);
  const bsrg_turn_params p = {.source = args->x.data,
                              .target = x->data,
                              .rows = args->x.rows,
                              .cols = args->x.cols,
                              .source_row_stride = args->x.row_stride,
                              .source_col_stride = args->x.col_stride,
                              .target_row_stride = pitch};
  return turn(args, p, 1, gpu, error);
}

/* ---- the product on K-major operands ------------------------------------------------------------ */

/* Bytes of k of a stage, in whole ones of which a block's width is rounded up by no more than a third. */
static int stage_bytes(const bsrg_matmul_args *args) {
  const int64_t width = args->a->view.block_width * (int64_t)bsrg_dtype_size(args->dtype);
  for (int bytes = BSRG_KMAJOR_STAGE_BYTES; bytes > BSRG_KMAJOR_STEP_BYTES; bytes /= 2)
    if (3 * bsrg_ceil_div(width, bytes) * bytes <= 4 * width) return bytes;
  return BSRG_KMAJOR_STEP_BYTES;
}

static bsrg_kernel_id kernel_for(bsrg_dtype dtype, int bytes, int pair) {
  const bsrg_kernel_id first = dtype == BSRG_F32       ? BSRG_KERNEL_KMAJOR_TF32_B128_C1
                               : dtype == BSRG_F8_E4M3 ? BSRG_KERNEL_KMAJOR_E4M3_B128_C1
                                                       : BSRG_KERNEL_KMAJOR_E5M2_B128_C1;
  return (bsrg_kernel_id)((int)first + 2 * (bytes == 128 ? 0 : bytes == 64 ? 1 : 2) + pair - 1);
}

/* How Y is stored, and the map for that. */
static bsrg_status describe_y(const bsrg_matmul_args *args, bsrg_kmajor_params *p, bsrg_gpu gpu,
                              bsrg_error *error) {
  const bsrg_dtype out = bsrg_out_dtype(args);
  bsrg_dense y = args->y;
  p->y_order = BSRG_KMAJOR_ELEMENTS;
  if (out == BSRG_F32) {
    if (!bsrg_map_can_store(&y, 4, args->y_padded)) return BSRG_OK;
    p->y_order = BSRG_KMAJOR_ROWS;
  } else if (bsrg_map_can_store(&y, 2, args->y_padded)) {
    p->y_order = BSRG_KMAJOR_ROWS;
  } else {
    bsrg_dense_turn(&y);
    if (!bsrg_map_can_store(&y, 2, args->y_padded)) return BSRG_OK;
    p->y_order = BSRG_KMAJOR_COLUMNS;
  }
  const bsrg_map_shape shape = {2,
                                {(uint64_t)y.cols, (uint64_t)y.rows, 0},
                                {(uint64_t)y.row_stride, 0},
                                {out == BSRG_F32 ? 32 : 64, out == BSRG_F32 ? 16 : 64, 0},
                                CU_TENSOR_MAP_SWIZZLE_128B};
  return bsrg_encode_map_of_output(gpu.api, out, y.data, &shape, &p->y_map, error);
}

/* args: with values and X as the kernels read them. */
static bsrg_status multiply(const bsrg_matmul_args *args, const void *kmajor, bsrg_gpu gpu,
                            bsrg_error *error) {
  const bsrg_structure_view *v = &args->a->view;
  const bsrg_kmajor_plan *plan = kmajor;
  const bsrg_tall_plan *tall = plan->tall;
  const int64_t n = args->x.cols;
  const bsrg_kmajor_schedule s = bsrg_kmajor_schedule_for(args, plan, gpu.device->info.sm_count);
  const int64_t tiles = (int64_t)tall->tile_count * s.n_tiles; /* of a cluster */
  if (tiles > INT32_MAX / 2)
    return bsrg_fail(error, BSRG_ERR_VALUE,
                     "b has %lld columns: with %lld rows of a that is more than 2^30 tiles", (long long)n,
                     (long long)v->rows);
  enum { ENTRIES, TILES, UPLOADS };
  const bsrg_upload_part lists[UPLOADS] = {
      [ENTRIES] = {plan->entries, sizeof(bsrg_kmajor_entry) * (size_t)tall->entry_count},
      [TILES] = {tall->tiles, sizeof(bsrg_tall_tile) * (size_t)tall->tile_count}};
  const CUdeviceptr *uploads;
  bsrg_status status = bsrg_uploads_get(args->a, BSRG_KMAJOR, lists, UPLOADS, gpu, &uploads, error);
  if (status != BSRG_OK) return status;

  const int64_t item = (int64_t)bsrg_dtype_size(args->dtype);
  const int bytes = stage_bytes(args);
  const uint32_t stage_k = (uint32_t)(bytes / item);
  const int64_t steps = bsrg_ceil_div(v->block_width, stage_k);
  const int64_t tail = (v->block_width - (steps - 1) * stage_k) * item;
  const bool per_block = args->values_scale_count == v->nnzb;
  bsrg_kmajor_params p = {.entries = (const bsrg_kmajor_entry *)(uintptr_t)uploads[ENTRIES],
                          .tiles = (const bsrg_tall_tile *)(uintptr_t)uploads[TILES],
                          .block_scales = per_block ? args->values_scale : NULL,
                          .a_scale = per_block ? NULL : args->values_scale,
                          .x_scale = args->x_scale,
                          .c = args->c.data,
                          .y = args->y.data,
                          .c_row_stride = args->c.row_stride,
                          .c_col_stride = args->c.col_stride,
                          .y_row_stride = args->y.row_stride,
                          .y_col_stride = args->y.col_stride,
                          .tile_count = tall->tile_count,
                          .n_tile_count = s.n_tiles,
                          .group = s.group,
                          .lead = s.lead,
                          .block_height = (int32_t)v->block_height,
                          .steps = (int32_t)steps,
                          .tail_steps = (int32_t)(tail / BSRG_KMAJOR_STEP_BYTES),
                          .rows = (int32_t)args->y.rows,
                          .n = (int32_t)n,
                          .keep_a = v->nnzb * v->block_height * v->block_width * item <= BSRG_TALL_KEPT_BYTES,
                          .out = bsrg_kmajor_out(args),
                          .alpha = (float)args->alpha,
                          .beta = (float)args->beta,
                          .output = bsrg_output_of(args)};

  const bsrg_map_shape a = {2,
                            {(uint64_t)v->block_width, (uint64_t)(v->nnzb * v->block_height), 0},
                            {(uint64_t)v->block_width, 0},
                            {stage_k, BSRG_TALL_STRIP, 0},
                            bsrg_map_swizzle(bytes)};
  /* Without blocks nobody reads them. */
  if (v->nnzb > 0) status = bsrg_encode_map(gpu.api, args->dtype, args->values, &a, &p.a, error);
  bsrg_dense x = args->x;
  x.col_stride = bsrg_kmajor_pitch(args);
  const bsrg_map_tiles x_tiles = {.by_columns = true,
                                  .rows = stage_k,
                                  .tile = BSRG_TALL_TILE_N,
                                  .whole = n < BSRG_TALL_TILE_N ? 0 : BSRG_TALL_TILE_N};
  if (v->nnzb > 0 && status == BSRG_OK)
    status = bsrg_encode_tiles(gpu.api, args->dtype, &x, &x_tiles, &p.x, &p.x_rest, error);
  if (status == BSRG_OK) status = describe_y(args, &p, gpu, error);
  if (status != BSRG_OK) return status;
  const int64_t most = bsrg_max(1, gpu.device->info.sm_count / s.pair);
  const int64_t clusters = s.in_step ? bsrg_workers_in_step(tiles, most) : bsrg_min(most, tiles);
  return bsrg_launch_drawing(gpu.api, gpu.device, kernel_for(args->dtype, bytes, s.pair), 0,
                             clusters * s.pair, (CUstream)args->stream, &p, &p.counter,
                             !s.in_step && tiles > clusters, error);
}

bsrg_status bsrg_kmajor_launch_on_copies(const bsrg_matmul_args *args, const void *plan,
                                         bsrg_kmajor_multiply *product, bsrg_gpu gpu, bsrg_error *error) {
  const bsrg_structure_view *v = &args->a->view;
  const bsrg_kmajor_copies copies = bsrg_kmajor_copies_for(args);
  const int64_t item = (int64_t)bsrg_dtype_size(args->dtype);
  /* X begins aligned behind the blocks. */
  const int64_t value_count = v->nnzb * v->block_height * v->block_width;
  const size_t value_bytes = copies.values ? (size_t)bsrg_ceil_div(value_count * item, 128) * 128 : 0;
  const size_t x_bytes = copies.x ? bsrg_kmajor_x_bytes(args) : 0;
  CUdeviceptr scratch = 0;
  bsrg_status status = BSRG_OK;
  if (value_bytes + x_bytes > 0)
    status = bsrg_scratch_alloc(gpu.api, gpu.device, value_bytes + x_bytes, (CUstream)args->stream, &scratch,
                                error);
  if (status != BSRG_OK) return status;
  bsrg_matmul_args turned = *args;
  if (copies.values) {
    turned.values = (const void *)(uintptr_t)scratch;
    status = turn_values(args, scratch, gpu, error);
  }
  if (copies.x && status == BSRG_OK)
    status = bsrg_kmajor_copy_x(args, scratch + value_bytes, gpu, &turned.x, error);
  if (status == BSRG_OK) status = product(&turned, plan, gpu, error);
  return scratch ? bsrg_scratch_free(gpu.api, scratch, (CUstream)args->stream, status, error) : status;
}

static bsrg_status launch(const bsrg_matmul_args *args, const void *plan, bsrg_gpu gpu, bsrg_error *error) {
  return bsrg_kmajor_launch_on_copies(args, plan, multiply, gpu, error);
}

const bsrg_family_ops bsrg_kmajor_family = {.family = BSRG_KMAJOR,
                                            .obstacle = bsrg_kmajor_obstacle,
                                            .columns_obstacle = bsrg_kmajor_columns_obstacle,
                                            .layout_obstacle = bsrg_kmajor_layout_obstacle,
                                            .make_plan = bsrg_kmajor_make_plan,
                                            .free_plan = bsrg_kmajor_free_plan,
                                            .predict = bsrg_kmajor_predict,
                                            .clips_x = true,
                                            .clips_y = true,
                                            .launch = launch};
