/* The kernels that make the pattern of a dynamic structure, and the values of its blocks. kernels/sm80/pattern.cu */
#include "attention_topk.h"
#include "dense.h"
#include "dynamic.h"
#include "views.h"

#include <inttypes.h>

static bsrg_status need_dynamic(const bsrg_structure *structure, bsrg_error *error) {
  if (structure == NULL)
    return bsrg_fail(error, BSRG_ERR_VALUE, "structure is NULL, but must be a structure");
  if (!structure->dynamic)
    return bsrg_fail(error, BSRG_ERR_VALUE,
                     "structure has a fixed pattern, but must be one of bsrg_dynamic_create");
  return BSRG_OK;
}

static bsrg_status begin(const bsrg_structure *structure, bsrg_gpu *gpu, bool *pushed, bsrg_error *error) {
  const bsrg_status status = bsrg_open_device(structure->dynamic->device, &gpu->api, &gpu->device, error);
  return status == BSRG_OK ? bsrg_enter(gpu->api, gpu->device, pushed, error) : status;
}

/* ---- patterns ----------------------------------------------------------------------------------- */

/* One element of mask or scores for each place of a block, of the pattern as values have it. */
static bsrg_status check_places(const char *name, const bsrg_dense *places, int64_t item,
                                const bsrg_structure_view *v, bsrg_error *error) {
  if (places->rows != v->block_rows || places->cols != v->block_cols)
    return bsrg_fail(error, BSRG_ERR_VALUE,
                     "%s has shape (%" PRId64 ", %" PRId64 "), but the pattern has (%" PRId64 ", %" PRId64
                     ") block rows and block columns",
                     name, places->rows, places->cols, v->block_rows, v->block_cols);
  bsrg_view view = bsrg_dense_view(name, places, item);
  return bsrg_view_check(&view, error);
}

static bsrg_status launch(bsrg_gpu gpu, bsrg_kernel_id kernel, int64_t grid_x, int64_t grid_y, void *stream,
                          void *params, bsrg_error *error) {
  return bsrg_launch(gpu.api, gpu.device, kernel, grid_x, grid_y, (CUstream)stream, params, error);
}

static int64_t warps(int64_t count) { return bsrg_ceil_div(count, BSRG_PATTERN_THREADS / 32); }

/* From the bits of the matrix, which `first` makes, to all that products read. */
static bsrg_status build(bsrg_gpu gpu, const struct bsrg_dynamic *d, bsrg_kernel_id first,
                         bsrg_pattern_params *p, void *stream, bsrg_error *error) {
  const bsrg_pattern_side *a = &p->matrix, *t = &p->transposed;
  bsrg_pattern_rows_params rows = {.side = *a, .capacity = p->capacity, .counts = d->counts};
  bsrg_pattern_rows_params columns = {.side = *t, .capacity = p->capacity};
  bsrg_status status = launch(gpu, first, warps(a->rows), 1, stream, p, error);
  if (status == BSRG_OK) status = launch(gpu, BSRG_KERNEL_PATTERN_ROWS, 1, 1, stream, &rows, error);
  if (status == BSRG_OK)
    status = launch(gpu, BSRG_KERNEL_PATTERN_TURN, warps((int64_t)t->words * a->words), 1, stream, p, error);
  if (status == BSRG_OK)
    status = launch(gpu, BSRG_KERNEL_PATTERN_RANKS, warps(t->rows), 1, stream, &columns, error);
  if (status == BSRG_OK) status = launch(gpu, BSRG_KERNEL_PATTERN_ROWS, 1, 1, stream, &columns, error);
  const int kinds = p->sampled.tiles ? 3 : 2;
  if (status == BSRG_OK)
    status = launch(gpu, BSRG_KERNEL_PATTERN_LISTS, bsrg_max(a->rows, t->rows), kinds, stream, p, error);
  const int32_t of_matrix = a->stream.stages ? a->stream.tile_count * a->stream.ctas : 0,
                of_transposed = t->stream.stages ? t->stream.tile_count * t->stream.ctas : 0;
  if (status == BSRG_OK && (of_matrix || of_transposed))
    status = launch(gpu, BSRG_KERNEL_STREAM_LISTS, bsrg_max(of_matrix, of_transposed), of_transposed ? 2 : 1,
                    stream, p, error);
  return status;
}

/* Where operands have to be; any GPU where there is no memory. */
static bsrg_device place_of(const struct bsrg_dynamic *d) {
  return (bsrg_device){BSRG_CUDA, d->device < 0 ? 0 : d->device};
}

static bsrg_structure *as_stored(bsrg_structure *structure) {
  return structure->original ? structure->original : structure;
}

bsrg_status bsrg_dynamic_update(bsrg_structure *structure, const bsrg_dense *mask, void *stream,
                                bsrg_error *error) {
  bsrg_status status = need_dynamic(structure, error);
  if (status != BSRG_OK) return status;
  const struct bsrg_dynamic *d = structure->dynamic;
  status = check_places("mask", mask, 1, &as_stored(structure)->view, error);
  if (status != BSRG_OK || d->device < 0) return status;
  bsrg_gpu gpu;
  bool pushed;
  status = begin(structure, &gpu, &pushed, error);
  if (status != BSRG_OK) return status;
  bsrg_pattern_params p = d->build;
  p.mask = mask->data;
  p.mask_row_stride = mask->row_stride;
  p.mask_col_stride = mask->col_stride;
  status = build(gpu, d, BSRG_KERNEL_PATTERN_BITS, &p, stream, error);
  bsrg_leave(gpu.api, pushed);
  return status;
}

/* Lists of columns by the kernels of top-k masks, then the pattern from these. */
static bsrg_status build_topk(bsrg_structure *structure, const bsrg_dense *scores, bsrg_dtype dtype,
                              int64_t k, bsrg_gpu gpu, void *stream, bsrg_error *error) {
  const struct bsrg_dynamic *d = structure->dynamic;
  const bsrg_structure_view *v = &structure->view;
  bsrg_topk_mask mask = {.batch = 1,
                         .heads = 1,
                         .block_rows = v->block_rows,
                         .block_cols = v->block_cols,
                         .block_height = v->block_height,
                         .block_width = v->block_width,
                         .k = k};
  const int64_t most = bsrg_min(k, v->block_cols);
  const bsrg_tensor tensor = {.data = scores->data,
                              .batch = 1,
                              .heads = 1,
                              .rows = scores->rows,
                              .size = scores->cols,
                              .row_stride = scores->row_stride,
                              .element_stride = scores->col_stride};
  const size_t bytes = sizeof(*mask.columns) * (size_t)bsrg_max(1, v->block_rows * most);
  CUdeviceptr columns;
  bsrg_status status = bsrg_scratch_alloc(gpu.api, gpu.device, bytes, (CUstream)stream, &columns, error);
  if (status != BSRG_OK) return status;
  mask.columns = (int32_t *)(uintptr_t)columns;
  status = bsrg_topk_fill(&mask, &tensor, dtype, (bsrg_device){BSRG_CUDA, d->device}, stream, error);
  bsrg_pattern_params p = d->build;
  p.columns = mask.columns;
  p.most = (int32_t)most;
  if (status == BSRG_OK) status = build(gpu, d, BSRG_KERNEL_PATTERN_COLUMNS, &p, stream, error);
  return bsrg_scratch_free(gpu.api, columns, (CUstream)stream, status, error);
}

bsrg_status bsrg_dynamic_update_topk(bsrg_structure *structure, const bsrg_dense *scores, bsrg_dtype dtype,
                                     int64_t k, void *stream, bsrg_error *error) {
  bsrg_status status = need_dynamic(structure, error);
  if (status != BSRG_OK) return status;
  structure = as_stored(structure);
  const bsrg_device device = place_of(structure->dynamic);
  status = bsrg_check_place(dtype, BSRG_TAKES_NONE, device, error);
  if (status == BSRG_OK)
    status = check_places("scores", scores, (int64_t)bsrg_dtype_size(dtype), &structure->view, error);
  if (status == BSRG_OK && k < 0)
    status = bsrg_fail(error, BSRG_ERR_VALUE, "k is %" PRId64 ", but must be at least 0", k);
  if (status == BSRG_OK) status = bsrg_topk_check_dtype(dtype, error);
  if (status != BSRG_OK || structure->dynamic->device < 0) return status;
  bsrg_gpu gpu;
  bool pushed;
  status = begin(structure, &gpu, &pushed, error);
  if (status != BSRG_OK) return status;
  status = build_topk(structure, scores, dtype, k, gpu, stream, error);
  bsrg_leave(gpu.api, pushed);
  return status;
}

/* ---- values ------------------------------------------------------------------------------------- */

/* The most bytes that can be copied at a time: whole blocks' rows in units that are aligned on both sides. */
static int64_t unit_bytes(const bsrg_structure_view *v, const bsrg_dense *dense, const void *values,
                          int64_t item) {
  int64_t unit = 16;
  while (unit > item &&
         (dense->col_stride != 1 || v->block_width * item % unit || dense->row_stride * item % unit ||
          (uintptr_t)dense->data % (size_t)unit || (uintptr_t)values % (size_t)unit))
    unit /= 2;
  return unit;
}

static bsrg_status check_gather(const bsrg_structure_view *v, const bsrg_dense *dense, bsrg_dtype dtype,
                                void *values, bsrg_device device, bsrg_error *error) {
  bsrg_status status = bsrg_check_place(dtype, BSRG_TAKES_NONE, device, error);
  if (status != BSRG_OK) return status;
  if (dense->rows != v->rows || dense->cols != v->cols)
    return bsrg_fail(error, BSRG_ERR_VALUE,
                     "dense has shape (%" PRId64 ", %" PRId64 "), but the pattern is one of (%" PRId64
                     ", %" PRId64 ")",
                     dense->rows, dense->cols, v->rows, v->cols);
  const int64_t item = (int64_t)bsrg_dtype_size(dtype);
  const bsrg_dense all = {values, 1, v->nnzb * v->block_height * v->block_width, 0, 1};
  bsrg_view in = bsrg_dense_view("dense", dense, item), out = bsrg_dense_view("out", &all, item);
  status = bsrg_view_check(&in, error);
  if (status == BSRG_OK) status = bsrg_view_check(&out, error);
  if (status == BSRG_OK && bsrg_views_overlap(&in, &out))
    return bsrg_fail(error, BSRG_ERR_VALUE, "out overlaps dense in memory, but must not");
  return status;
}

bsrg_status bsrg_dynamic_gather(bsrg_structure *structure, const bsrg_dense *dense, bsrg_dtype dtype,
                                void *values, void *stream, bsrg_error *error) {
  bsrg_status status = need_dynamic(structure, error);
  if (status != BSRG_OK) return status;
  const struct bsrg_dynamic *d = structure->dynamic;
  const bsrg_structure_view *v = &as_stored(structure)->view;
  status = check_gather(v, dense, dtype, values, place_of(d), error);
  if (status != BSRG_OK || d->device < 0) return status;
  bsrg_dense settled = *dense;
  bsrg_dense_settle(&settled);
  dense = &settled;
  const int64_t item = (int64_t)bsrg_dtype_size(dtype), unit = unit_bytes(v, dense, values, item);
  const int64_t items = unit / item; /* of a unit; strides are multiples of it then, or it is 1 */
  bsrg_gather_params p = {.dense = dense->data,
                          .values = values,
                          .row_stride = dense->row_stride / items,
                          .col_stride = dense->col_stride,
                          .block_row = d->build.block_row,
                          .indices = d->build.matrix.indices,
                          .counts = d->counts,
                          .block_height = (int32_t)v->block_height,
                          .width = (int32_t)(v->block_width / items)};
  const bsrg_kernel_id kernel = unit == 16  ? BSRG_KERNEL_PATTERN_GATHER_16
                                : unit == 8 ? BSRG_KERNEL_PATTERN_GATHER_8
                                : unit == 4 ? BSRG_KERNEL_PATTERN_GATHER_4
                                            : BSRG_KERNEL_PATTERN_GATHER_2;
  const int64_t pieces =
      bsrg_ceil_div(v->block_height * p.width, (int64_t)BSRG_PATTERN_THREADS * BSRG_GATHER_UNITS);
  bsrg_gpu gpu;
  bool pushed;
  status = begin(structure, &gpu, &pushed, error);
  if (status != BSRG_OK) return status;
  status = launch(gpu, kernel, v->nnzb, bsrg_min(pieces, 65535), stream, &p, error);
  bsrg_leave(gpu.api, pushed);
  return status;
}
