#include "copy.h"
#include "dense.h"

#include <stdlib.h>

static void swap(int64_t *a, int64_t *b) {
  const int64_t old = *a;
  *a = *b;
  *b = old;
}

static bsrg_copy_params describe(const bsrg_dense *source, const bsrg_dense *target, int64_t columns) {
  return (bsrg_copy_params){.source = source->data,
                            .target = target->data,
                            .rows = source->rows,
                            .cols = columns,
                            .source_row_stride = source->row_stride,
                            .source_col_stride = source->col_stride,
                            .target_row_stride = target->row_stride,
                            .target_col_stride = target->col_stride};
}

/* The first `columns` columns of the source, of 16-bit elements, onto a matrix of the same or more columns. */
static bsrg_status copy_16_bit(const bsrg_dense *source, const bsrg_dense *target, int64_t columns,
                               bsrg_gpu gpu, CUstream stream, bsrg_error *error) {
  if (source->rows == 0 || columns == 0) return BSRG_OK;
  bsrg_copy_params p = describe(source, target, columns);
  /* Seen so that neighbours in the target's rows are the closest. */
  if (llabs(p.target_row_stride) < llabs(p.target_col_stride)) {
    swap(&p.rows, &p.cols);
    swap(&p.source_row_stride, &p.source_col_stride);
    swap(&p.target_row_stride, &p.target_col_stride);
  }
  const int64_t most_y = 65535; /* of a grid; the kernels walk over the rest */
  if (llabs(p.source_row_stride) < llabs(p.source_col_stride)) {
    p.vector_source =
        p.source_row_stride == 1 && p.source_col_stride % 8 == 0 && (uintptr_t)p.source % 16 == 0;
    p.vector_target =
        p.target_col_stride == 1 && p.target_row_stride % 4 == 0 && (uintptr_t)p.target % 8 == 0;
    return bsrg_launch(gpu.api, gpu.device, BSRG_KERNEL_ALIGN_COPY_TRANSPOSED,
                       bsrg_ceil_div(p.rows, BSRG_COPY_SIDE),
                       bsrg_min(bsrg_ceil_div(p.cols, BSRG_COPY_SIDE), most_y), stream, &p, error);
  }
  const bool adjacent = p.source_col_stride == 1 && p.target_col_stride == 1;
  /* Vectors of the target begin up to 7 elements before a row. */
  return bsrg_launch(gpu.api, gpu.device,
                     adjacent ? BSRG_KERNEL_ALIGN_COPY_ROWS : BSRG_KERNEL_ALIGN_COPY_ELEMENTS,
                     bsrg_ceil_div(p.cols + 7, BSRG_COPY_COLUMNS),
                     bsrg_min(bsrg_ceil_div(p.rows, BSRG_COPY_ROWS), most_y), stream, &p, error);
}

bsrg_status bsrg_copy_to_vectors(const bsrg_dense *source, const bsrg_dense *target, bsrg_gpu gpu,
                                 CUstream stream, bsrg_error *error) {
  if (source->col_stride != 1) return copy_16_bit(source, target, source->cols, gpu, stream, error);
  if (source->rows == 0) return BSRG_OK;
  bsrg_copy_params p = describe(source, target, source->cols);
  const int64_t vectors = p.rows * (p.target_row_stride / 8);
  return bsrg_launch(gpu.api, gpu.device, BSRG_KERNEL_ALIGN_COPY_TO_VECTORS,
                     bsrg_ceil_div(vectors, BSRG_COPY_THREADS), 1, stream, &p, error);
}

/* ---- larger elements, in contiguous rows as 16-bit ones ------------------------------------------ */

/* All 16-bit parts of elements whose rows are contiguous. */
static bsrg_dense in_parts(const bsrg_dense *d, int64_t parts) {
  return (bsrg_dense){d->data, d->rows, d->cols * parts, d->row_stride * parts, 1};
}

static bsrg_status copy_tiles(const bsrg_dense *source, const bsrg_dense *target, int64_t size, bsrg_gpu gpu,
                              CUstream stream, bsrg_error *error) {
  const int64_t most_y = 65535; /* as above */
  if (source->rows == 0 || source->cols == 0) return BSRG_OK;
  bsrg_copy_params p = describe(source, target, source->cols);
  return bsrg_launch(gpu.api, gpu.device,
                     size == 4 ? BSRG_KERNEL_ALIGN_COPY_TILES_4 : BSRG_KERNEL_ALIGN_COPY_TILES_8,
                     bsrg_ceil_div(p.rows, BSRG_COPY_TILE_SIDE),
                     bsrg_min(bsrg_ceil_div(p.cols, BSRG_COPY_TILE_SIDE), most_y), stream, &p, error);
}

static bsrg_status copy_bytes(const bsrg_dense *source, const bsrg_dense *target, bsrg_gpu gpu,
                              CUstream stream, bsrg_error *error) {
  const bsrg_tensor from = bsrg_dense_tensor(source), to = bsrg_dense_tensor(target);
  return bsrg_copy_tensor(&from, &to, 1, gpu, stream, error);
}

bsrg_status bsrg_copy(const bsrg_dense *source, const bsrg_dense *target, int64_t size, bsrg_gpu gpu,
                      CUstream stream, bsrg_error *error) {
  const int64_t parts = size / 2;
  bsrg_dense from = *source, to = *target;
  from.rows = to.rows = bsrg_min(source->rows, target->rows);
  from.cols = to.cols = bsrg_min(source->cols, target->cols);
  if (from.row_stride == 1 && to.row_stride == 1) {
    bsrg_dense_turn(&from);
    bsrg_dense_turn(&to);
  }
  if (size == 1) return copy_bytes(&from, &to, gpu, stream, error);
  if (parts == 1) return copy_16_bit(&from, &to, from.cols, gpu, stream, error);
  if (from.col_stride == 1 && to.col_stride == 1) {
    from = in_parts(&from, parts);
    to = in_parts(&to, parts);
    return copy_16_bit(&from, &to, from.cols, gpu, stream, error);
  }
  return copy_tiles(&from, &to, size, gpu, stream, error);
}

/* ---- tensors -------------------------------------------------------------------------------------- */

/* Whether rows of both are whole units of so many bytes, at multiples of it. */
static bool in_units(const bsrg_tensor *t, int64_t size, int64_t unit) {
  const int64_t of_unit = unit / size;
  return t->element_stride == 1 && t->size % of_unit == 0 && t->row_stride % of_unit == 0 &&
         t->head_stride % of_unit == 0 && t->batch_stride % of_unit == 0 &&
         (uintptr_t)t->data % (size_t)unit == 0;
}

static bsrg_tensor of_units(const bsrg_tensor *t, int64_t of_unit) {
  if (of_unit == 1) return *t;
  return (bsrg_tensor){t->data,
                       t->batch,
                       t->heads,
                       t->rows,
                       t->size / of_unit,
                       t->batch_stride / of_unit,
                       t->head_stride / of_unit,
                       t->row_stride / of_unit,
                       1};
}

bsrg_status bsrg_copy_tensor(const bsrg_tensor *from, const bsrg_tensor *to, int64_t size, bsrg_gpu gpu,
                             CUstream stream, bsrg_error *error) {
  int64_t unit = 16;
  while (unit > size && !(from->size == to->size && in_units(from, size, unit) && in_units(to, size, unit)))
    unit /= 2;
  const bsrg_tensor source = of_units(from, unit / size), target = of_units(to, unit / size);
  const int64_t batches = source.batch_stride == 0 && target.batch_stride == 0 ? 1 : source.batch;
  const int64_t heads = source.head_stride == 0 && target.head_stride == 0 ? 1 : source.heads;
  const int64_t tiles = bsrg_ceil_div(source.rows, BSRG_TENSOR_COPY_ROWS);
  int64_t group = 1, groups, ctas;
  while (group < BSRG_TENSOR_COPY_COLUMNS && group < target.size) group *= group == 8 ? 4 : 2;
  if (!bsrg_mul_ok(batches, bsrg_ceil_div(heads, BSRG_TENSOR_COPY_COLUMNS / group), &groups) ||
      !bsrg_mul_ok(groups, tiles, &ctas) || ctas > INT32_MAX || heads > INT32_MAX - BSRG_TENSOR_COPY_COLUMNS)
    return bsrg_fail(error, BSRG_ERR_VALUE,
                     "an operand of %lld batches of %lld matrices of %lld rows has to be copied, but the GPU "
                     "kernels copy fewer than 2^31 tiles of %d rows",
                     (long long)batches, (long long)heads, (long long)source.rows, BSRG_TENSOR_COPY_ROWS);
  if (ctas == 0) return BSRG_OK;
  bsrg_tensor_copy_params p = {.source = bsrg_tensor_operand_of(&source),
                               .target = bsrg_tensor_operand_of(&target),
                               .rows = source.rows,
                               .size = bsrg_min(source.size, target.size),
                               .target_size = target.size,
                               .heads = (int32_t)heads,
                               .row_tiles = (int32_t)tiles,
                               .group = (int32_t)group};
  const bsrg_kernel_id kernel = unit == 1   ? BSRG_KERNEL_TENSOR_COPY_1
                                : unit == 2 ? BSRG_KERNEL_TENSOR_COPY_2
                                : unit == 4 ? BSRG_KERNEL_TENSOR_COPY_4
                                : unit == 8 ? BSRG_KERNEL_TENSOR_COPY_8
                                            : BSRG_KERNEL_TENSOR_COPY_16;
  /* Few long rows are shared. */
  const int64_t steps = bsrg_ceil_div(target.size, BSRG_TENSOR_COPY_COLUMNS);
  const int64_t sharing = bsrg_min(steps, bsrg_ceil_div(4 * gpu.device->info.sm_count, ctas));
  return bsrg_launch(gpu.api, gpu.device, kernel, ctas, bsrg_max(sharing, 1), stream, &p, error);
}
