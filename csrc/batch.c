#include "batch.h"

#include <string.h>

/* ---- folding ----------------------------------------------------------------------------------- */

bool bsrg_batch_follows(int64_t lines, int64_t line_stride, int64_t stride) {
  int64_t next;
  return bsrg_mul_ok(lines, line_stride, &next) && next == stride;
}

bool bsrg_batch_continues(const bsrg_dense *matrix, int64_t stride) {
  return matrix->cols == 1 || bsrg_batch_follows(matrix->cols, matrix->col_stride, stride);
}

/* The elements of y are distinct, so that the number of its columns fits, as that of x and c, which have as many. */
void bsrg_batch_extend(bsrg_dense *matrix, int64_t count, int64_t stride) {
  if (matrix->cols == 1) matrix->col_stride = stride;
  matrix->cols *= count;
}

static void remove_dimension(bsrg_batch *batch, int d) {
  batch->ndim--;
  for (; d < batch->ndim; ++d) {
    batch->shape[d] = batch->shape[d + 1];
    batch->x_strides[d] = batch->x_strides[d + 1];
    batch->c_strides[d] = batch->c_strides[d + 1];
    batch->y_strides[d] = batch->y_strides[d + 1];
    batch->values_strides[d] = batch->values_strides[d + 1];
  }
}

bool bsrg_batch_is_one(const int64_t *strides, int d, int64_t count) {
  return bsrg_batch_follows(count, strides[d + 1], strides[d]);
}

/* Dimensions that are steps of one become one, of which more matrices lie side by side. */
static void join_dimensions(bsrg_batch *batch, bool reads_c) {
  for (int d = batch->ndim - 2; d >= 0; --d) {
    const int64_t count = batch->shape[d + 1];
    int64_t all;
    if (!bsrg_mul_ok(batch->shape[d], count, &all) || !bsrg_batch_is_one(batch->x_strides, d, count) ||
        !bsrg_batch_is_one(batch->y_strides, d, count) ||
        !bsrg_batch_is_one(batch->values_strides, d, count) ||
        (reads_c && !bsrg_batch_is_one(batch->c_strides, d, count)))
      continue;
    batch->shape[d + 1] = all;
    remove_dimension(batch, d);
  }
}

void bsrg_batch_fold(bsrg_matmul_args *args) {
  bsrg_batch *batch = &args->batch;
  const bool reads_c = args->beta != 0;
  /* Vectors along the columns begin anew with each matrix. */
  const bool repeats = args->epilogue.col_scale.data || args->epilogue.col_bias.data;
  for (int d = batch->ndim - 1; d >= 0; --d) {
    const int64_t count = batch->shape[d];
    const bool single = count == 1;
    if (!single &&
        !(!repeats && batch->values_strides[d] == 0 && bsrg_batch_continues(&args->x, batch->x_strides[d]) &&
          bsrg_batch_continues(&args->y, batch->y_strides[d]) &&
          (!reads_c || bsrg_batch_continues(&args->c, batch->c_strides[d]))))
      continue;
    if (!single) {
      bsrg_batch_extend(&args->x, count, batch->x_strides[d]);
      bsrg_batch_extend(&args->y, count, batch->y_strides[d]);
      if (reads_c) bsrg_batch_extend(&args->c, count, batch->c_strides[d]);
    }
    remove_dimension(batch, d);
    d = batch->ndim; /* what came before may continue the new columns */
  }
  join_dimensions(batch, reads_c);
}

/* ---- one matrix after the other ------------------------------------------------------------------ */

bool bsrg_batch_is_empty(int ndim, const int64_t *shape) {
  for (int d = 0; d < ndim; ++d)
    if (shape[d] == 0) return true;
  return false;
}

bool bsrg_batch_next(int ndim, const int64_t *shape, int64_t *position) {
  for (int d = ndim - 1; d >= 0; --d) {
    if (++position[d] < shape[d]) return true;
    position[d] = 0;
  }
  return false;
}

bsrg_batch bsrg_batch_take_last(bsrg_batch *batch) {
  const int d = --batch->ndim;
  return (bsrg_batch){.ndim = 1,
                      .shape = {batch->shape[d]},
                      .x_strides = {batch->x_strides[d]},
                      .c_strides = {batch->c_strides[d]},
                      .y_strides = {batch->y_strides[d]},
                      .values_strides = {batch->values_strides[d]}};
}

uint64_t bsrg_batch_offset(int ndim, const int64_t *strides, const int64_t *position) {
  uint64_t offset = 0;
  for (int d = 0; d < ndim; ++d) offset += (uint64_t)position[d] * (uint64_t)strides[d];
  return offset;
}

bsrg_view bsrg_batch_view(const char *name, const bsrg_dense *dense, int ndim, const int64_t *shape,
                          const int64_t *strides, int64_t item) {
  bsrg_view view = {.name = name, .data = dense->data, .ndim = ndim + 2, .item = item};
  memcpy(view.shape, shape, sizeof(*view.shape) * (size_t)ndim);
  memcpy(view.strides, strides, sizeof(*view.strides) * (size_t)ndim);
  view.shape[ndim] = dense->rows;
  view.shape[ndim + 1] = dense->cols;
  view.strides[ndim] = dense->row_stride;
  view.strides[ndim + 1] = dense->col_stride;
  return view;
}

static void move(bsrg_dense *matrix, const int64_t *strides, const int64_t *position, int ndim,
                 int64_t item) {
  matrix->data =
      (void *)((uintptr_t)matrix->data + bsrg_batch_offset(ndim, strides, position) * (uint64_t)item);
}

bsrg_matmul_args bsrg_batch_at(const bsrg_matmul_args *args, const int64_t *position) {
  const bsrg_batch *batch = &args->batch;
  const int64_t item = (int64_t)bsrg_dtype_size(args->dtype);
  const int64_t out_item = (int64_t)bsrg_dtype_size(bsrg_out_dtype(args));
  bsrg_matmul_args one = *args;
  one.values =
      (const void *)((uintptr_t)args->values +
                     bsrg_batch_offset(batch->ndim, batch->values_strides, position) * (uint64_t)item);
  move(&one.x, batch->x_strides, position, batch->ndim, item);
  move(&one.y, batch->y_strides, position, batch->ndim, out_item);
  if (args->beta != 0) move(&one.c, batch->c_strides, position, batch->ndim, out_item);
  one.batch.ndim = 0;
  return one;
}

bsrg_matmul_args bsrg_batch_part(const bsrg_matmul_args *args, int64_t first, int64_t count) {
  bsrg_matmul_args part = bsrg_batch_at(args, &first);
  part.batch = args->batch;
  part.batch.shape[0] = count;
  return part;
}
