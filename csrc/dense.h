/* Dense operands of products: their views, and views of the same memory. */
#ifndef BSRG_DENSE_H
#define BSRG_DENSE_H

#include "views.h"

#include <stdlib.h>

static inline bool bsrg_dense_is_empty(const bsrg_dense *dense) {
  return dense->rows == 0 || dense->cols == 0;
}

static inline bsrg_view bsrg_dense_view(const char *name, const bsrg_dense *dense, int64_t item) {
  return (bsrg_view){.name = name,
                     .data = dense->data,
                     .ndim = 2,
                     .item = item,
                     .shape = {dense->rows, dense->cols},
                     .strides = {dense->row_stride, dense->col_stride}};
}

/* Whether each row can be read and written by vectors of 16 bytes, of elements of `size` bytes. */
static inline bool bsrg_dense_has_vectors(const bsrg_dense *dense, int64_t size) {
  return dense->col_stride == 1 && dense->row_stride * size % 16 == 0 && (uintptr_t)dense->data % 16 == 0;
}

/* Libraries put anything into the stride of a dimension of one element, and of an empty array. Backends choose fast paths by
 * strides, so such a stride becomes what it would be in a contiguous view. */
static inline void bsrg_dense_settle(bsrg_dense *view) {
  if (bsrg_dense_is_empty(view) || (view->cols <= 1 && view->rows <= 1)) {
    view->row_stride = view->col_stride = 1;
  } else if (view->cols <= 1) {
    view->col_stride = 1;
  } else if (view->rows <= 1) {
    view->row_stride = view->col_stride == 1 ? view->cols : 1;
  }
}

/* Becomes `count` of its columns from `first` on. A view may have no memory. */
static inline void bsrg_dense_take_columns(bsrg_dense *view, bsrg_dtype dtype, int64_t first, int64_t count) {
  if (view->data)
    view->data = (char *)view->data + first * view->col_stride * (int64_t)bsrg_dtype_size(dtype);
  view->cols = count;
}

static inline bsrg_dense bsrg_dense_turned(bsrg_dense view) {
  return (bsrg_dense){view.data, view.cols, view.rows, view.col_stride, view.row_stride};
}
static inline void bsrg_dense_turn(bsrg_dense *view) { *view = bsrg_dense_turned(*view); }

/* A column of adjacent elements becomes one of a column-major view whose columns begin at multiples of 8 elements. */
static inline void bsrg_dense_pitch_column(bsrg_dense *view) {
  if (view->cols == 1 && view->row_stride == 1) view->col_stride = (view->rows + 7) / 8 * 8;
}

/* Whether neighbours in a column are closer than those in a row. */
static inline bool bsrg_dense_is_by_columns(const bsrg_dense *view) {
  return llabs(view->row_stride) < llabs(view->col_stride);
}

/* As a batch of one. */
static inline bsrg_tensor bsrg_dense_tensor(const bsrg_dense *view) {
  return (bsrg_tensor){view->data, 1, 1, view->rows, view->cols, 0, 0, view->row_stride, view->col_stride};
}

#endif
