#include "edges.h"

#include "copy.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- values on a GPU -------------------------------------------------------------------------- */

/* The row's last block before `before` that lies in the last block column, or -1. There are several where a column is stored
 * more than once, and anywhere where columns are unsorted. */
static int64_t last_column_before(const bsrg_structure_view *v, int64_t row, int64_t before) {
  const int64_t last = v->block_cols - 1;
  for (int64_t p = before - 1; p >= v->indptr[row]; --p) {
    if (v->indices[p] == last) return p;
    if (v->column_order != BSRG_UNSORTED) return -1;
  }
  return -1;
}

/* Columns from `begin` on of the blocks in the last block column, or rows of those in the last block row. */
static bsrg_status fill_columns(const bsrg_structure_view *v, char *values, CUdeviceptr value, bool uniform,
                                int64_t size, bsrg_gpu gpu, CUstream stream, bsrg_error *error) {
  const int64_t last = v->block_cols - 1, begin = bsrg_cols_of(v, last);
  const int64_t area = v->block_height * v->block_width;
  if (begin == v->block_width) return BSRG_OK;
  bsrg_status status = BSRG_OK;
  for (int64_t row = 0; row < v->block_rows; ++row) {
    for (int64_t p = last_column_before(v, row, v->indptr[row + 1]); p >= 0;
         p = last_column_before(v, row, p)) {
      const bsrg_dense rest = {values + (p * area + begin) * size, v->block_height, v->block_width - begin,
                               v->block_width, 1};
      status = bsrg_fill(value, uniform, &rest, size, gpu, stream, error);
      if (status != BSRG_OK) return status;
    }
  }
  return status;
}

static bsrg_status fill_rows(const bsrg_structure_view *v, char *values, CUdeviceptr value, bool uniform,
                             int64_t size, bsrg_gpu gpu, CUstream stream, bsrg_error *error) {
  const int64_t last = v->block_rows - 1, blocks = v->nnzb - v->indptr[last];
  const int64_t begin = bsrg_rows_of(v, last), area = v->block_height * v->block_width;
  if (begin == v->block_height || blocks == 0) return BSRG_OK;
  const bsrg_dense rest = {values + (v->indptr[last] * area + begin * v->block_width) * size, blocks,
                           (v->block_height - begin) * v->block_width, area, 1};
  return bsrg_fill(value, uniform, &rest, size, gpu, stream, error);
}

/* One element in device memory, as the 32-bit words low and high. */
static bsrg_status put_value(uint32_t low, uint32_t high, bsrg_gpu gpu, CUstream stream, CUdeviceptr *value,
                             bsrg_error *error) {
  const bsrg_status status = bsrg_scratch_alloc(gpu.api, gpu.device, 2 * sizeof(low), stream, value, error);
  if (status != BSRG_OK) return status;
  CUresult result = gpu.api->set_32(*value, low, 1, stream);
  if (result == CUDA_SUCCESS) result = gpu.api->set_32(*value + sizeof(low), high, 1, stream);
  if (result == CUDA_SUCCESS) return BSRG_OK;
  const bsrg_status failed = bsrg_cuda_check(gpu.api, result, "cuMemsetD32Async", error);
  return bsrg_scratch_free(gpu.api, *value, stream, failed, error);
}

static bool is_partial(const bsrg_structure_view *v) {
  return v->rows != bsrg_whole_rows(v) || v->cols != bsrg_whole_cols(v);
}

double bsrg_stored_elements(const bsrg_structure_view *v) {
  if (!is_partial(v)) return (double)v->nnzb * (double)(v->block_height * v->block_width);
  double elements = 0;
  for (int64_t row = 0; row < v->block_rows; ++row)
    for (int64_t p = v->indptr[row]; p < v->indptr[row + 1]; ++p)
      elements += (double)(bsrg_rows_of(v, row) * bsrg_cols_of(v, v->indices[p]));
  return elements;
}

int64_t bsrg_clear_launches(const bsrg_structure_view *v) {
  if (v->nnzb == 0 || !is_partial(v)) return 0;
  int64_t launches = 2; /* of the element that is copied there */
  if (v->rows != bsrg_whole_rows(v)) launches += v->indptr[v->block_rows - 1] < v->nnzb;
  if (v->cols == bsrg_whole_cols(v)) return launches;
  for (int64_t row = 0; row < v->block_rows; ++row)
    for (int64_t p = last_column_before(v, row, v->indptr[row + 1]); p >= 0;
         p = last_column_before(v, row, p))
      ++launches;
  return launches;
}

bsrg_status bsrg_gpu_clear_edges(const bsrg_structure_view *v, void *values, bsrg_dtype dtype, bsrg_gpu gpu,
                                 CUstream stream, bsrg_error *error) {
  if (v->nnzb == 0 || !is_partial(v)) return BSRG_OK;
  const int64_t size = (int64_t)bsrg_dtype_size(dtype);
  CUdeviceptr zero;
  bsrg_status status = put_value(0, 0, gpu, stream, &zero, error);
  if (status != BSRG_OK) return status;
  status = fill_rows(v, values, zero, true, size, gpu, stream, error);
  if (status == BSRG_OK) status = fill_columns(v, values, zero, true, size, gpu, stream, error);
  return bsrg_scratch_free(gpu.api, zero, stream, status, error);
}

bsrg_status bsrg_gpu_extend_rows(const bsrg_structure_view *v, bool of_transpose, bool negative, void *values,
                                 bsrg_dtype dtype, bsrg_gpu gpu, CUstream stream, bsrg_error *error) {
  static const uint32_t infinity[][2] = {[BSRG_F16] = {0x7c007c00, 0x7c007c00},
                                         [BSRG_BF16] = {0x7f807f80, 0x7f807f80},
                                         [BSRG_F32] = {0x7f800000, 0x7f800000},
                                         [BSRG_F64] = {0, 0x7ff00000}};
  static const uint32_t sign[][2] = {[BSRG_F16] = {0x80008000, 0x80008000},
                                     [BSRG_BF16] = {0x80008000, 0x80008000},
                                     [BSRG_F32] = {0x80000000, 0x80000000},
                                     [BSRG_F64] = {0, 0x80000000}};
  const int64_t size = (int64_t)bsrg_dtype_size(dtype);
  const uint32_t low = infinity[dtype][0] | (negative ? sign[dtype][0] : 0);
  const uint32_t high = infinity[dtype][1] | (negative ? sign[dtype][1] : 0);
  CUdeviceptr value;
  bsrg_status status = put_value(low, high, gpu, stream, &value, error);
  if (status != BSRG_OK) return status;
  status = of_transpose ? fill_rows(v, values, value, size == 2, size, gpu, stream, error)
                        : fill_columns(v, values, value, size == 2, size, gpu, stream, error);
  return bsrg_scratch_free(gpu.api, value, stream, status, error);
}

/* ---- dense operands --------------------------------------------------------------------------- */

enum { PITCH_BYTES = 128 }; /* rows, or columns, of copies begin at multiples of this */

bsrg_dense bsrg_whole_dense(const bsrg_dense *d, int64_t rows, int64_t cols, int64_t size) {
  const int64_t unit = PITCH_BYTES / size;
  if (d->cols == 1 || llabs(d->row_stride) < llabs(d->col_stride))
    return (bsrg_dense){NULL, rows, cols, 1, bsrg_ceil_div(rows, unit) * unit};
  return (bsrg_dense){NULL, rows, cols, bsrg_ceil_div(cols, unit) * unit, 1};
}

static bool by_columns(const bsrg_dense *whole) { return whole->col_stride != 1; }

size_t bsrg_whole_bytes(const bsrg_dense *whole, int64_t size) {
  const int64_t lines = by_columns(whole) ? whole->cols : whole->rows;
  const int64_t pitch = by_columns(whole) ? whole->col_stride : whole->row_stride;
  int64_t elements, bytes;
  /* A matrix that repeats an element can be larger than any memory, of which there is not so much then. */
  if (!bsrg_mul_ok(lines, pitch, &elements) || !bsrg_mul_ok(elements, size, &bytes)) return INT64_MAX;
  return (size_t)bytes;
}

/* What is beyond, where it is whole lines that follow all others, or else everything. */
static bsrg_status clear_beyond(const bsrg_dense *d, const bsrg_dense *whole, int64_t size, bsrg_gpu gpu,
                                CUstream stream, bsrg_error *error) {
  const size_t bytes = bsrg_whole_bytes(whole, size);
  size_t begin = 0;
  if (!by_columns(whole) && whole->cols == d->cols) begin = (size_t)(d->rows * whole->row_stride * size);
  if (by_columns(whole) && whole->rows == d->rows) begin = (size_t)(d->cols * whole->col_stride * size);
  const CUdeviceptr from = (CUdeviceptr)(uintptr_t)whole->data + begin;
  return bsrg_cuda_check(gpu.api, gpu.api->set_32(from, 0, (bytes - begin) / 4, stream), "cuMemsetD32Async",
                         error);
}

bsrg_status bsrg_copy_to_whole(const bsrg_dense *d, const bsrg_dense *whole, int64_t size, bsrg_gpu gpu,
                               CUstream stream, bsrg_error *error) {
  const bsrg_status status = clear_beyond(d, whole, size, gpu, stream, error);
  return status == BSRG_OK ? bsrg_copy(d, whole, size, gpu, stream, error) : status;
}

/* ---- products of BSR and dense matrices ------------------------------------------------------- */

/* All kernels of 8 bits clip X: copies are of elements of two bytes and more. */
static bool clips_x(const bsrg_family_ops *ops, const bsrg_matmul_args *args) {
  return ops->clips_x || bsrg_is_8_bit(args->dtype);
}

bool bsrg_needs_whole(const bsrg_family_ops *ops, const bsrg_matmul_args *args) {
  const bsrg_structure_view *v = &args->a->view;
  return (!clips_x(ops, args) && v->cols != bsrg_whole_cols(v)) ||
         (!ops->clips_y && v->rows != bsrg_whole_rows(v));
}

bsrg_whole_product bsrg_whole_product_of(const bsrg_family_ops *ops, const bsrg_matmul_args *args) {
  const bsrg_structure_view *v = &args->a->view;
  bsrg_whole_product whole = {.args = *args};
  const int64_t rows = bsrg_whole_rows(v), cols = bsrg_whole_cols(v);
  whole.copy_x = !clips_x(ops, args) && cols != v->cols;
  whole.copy_y = !ops->clips_y && rows != v->rows;
  whole.copy_c = whole.copy_y && args->beta != 0;
  if (whole.copy_x)
    whole.args.x = bsrg_whole_dense(&args->x, cols, args->x.cols, (int64_t)bsrg_dtype_size(args->dtype));
  if (whole.copy_y)
    whole.args.y =
        bsrg_whole_dense(&args->y, rows, args->y.cols, (int64_t)bsrg_dtype_size(bsrg_out_dtype(args)));
  if (whole.copy_c) whole.args.c = whole.args.y;
  return whole;
}

/* The share of the memory's rate that copies are taken to reach, as in the align family. */
static const double copy_share = 0.7;

void bsrg_copies_predict(int64_t launches, double bytes, const char *what, const bsrg_chip *chip,
                         bsrg_candidate *c) {
  c->seconds += (double)launches * BSRG_LAUNCH_SECONDS + bytes / (chip->hbm_bytes_per_s * copy_share);
  c->hbm_bytes += bytes;
  if (!bsrg_says_why(c)) return;
  const size_t length = strlen(c->reason);
  snprintf(c->reason + length, sizeof(c->reason) - length, "; with %s for partial blocks", what);
}

void bsrg_whole_predict(const bsrg_whole_product *whole, const bsrg_matmul_args *args, const bsrg_chip *chip,
                        bsrg_candidate *c) {
  const int y_copies = whole->copy_c + whole->copy_y;
  const double x = whole->copy_x ? (double)args->x.rows * (double)bsrg_dtype_size(args->dtype) : 0;
  const double y = (double)y_copies * (double)args->y.rows * (double)bsrg_dtype_size(bsrg_out_dtype(args));
  const double bytes = 2 * (x + y) * (double)args->x.cols;
  bsrg_copies_predict(2 * whole->copy_x + y_copies, bytes,
                      !whole->copy_y   ? "copies of b"
                      : !whole->copy_x ? "copies of out"
                                       : "copies of b and out",
                      chip, c);
}

static bsrg_status multiply(const bsrg_family_ops *ops, const bsrg_matmul_args *args, const void *plan,
                            const bsrg_whole_product *whole, bsrg_gpu gpu, bsrg_error *error) {
  const CUstream stream = (CUstream)args->stream;
  const int64_t size = (int64_t)bsrg_dtype_size(args->dtype);
  const int64_t out_size = (int64_t)bsrg_dtype_size(bsrg_out_dtype(args));
  bsrg_status status = BSRG_OK;
  if (whole->copy_x) status = bsrg_copy_to_whole(&args->x, &whole->args.x, size, gpu, stream, error);
  if (status == BSRG_OK && whole->copy_c)
    status = bsrg_copy(&args->c, &whole->args.c, out_size, gpu, stream, error);
  if (status == BSRG_OK) status = ops->launch(&whole->args, plan, gpu, error);
  if (status == BSRG_OK && whole->copy_y)
    status = bsrg_copy(&whole->args.y, &args->y, out_size, gpu, stream, error);
  return status;
}

bsrg_status bsrg_whole_launch(const bsrg_family_ops *ops, const bsrg_matmul_args *args, const void *plan,
                              bsrg_gpu gpu, bsrg_error *error) {
  if (!bsrg_needs_whole(ops, args)) return ops->launch(args, plan, gpu, error);
  bsrg_whole_product whole = bsrg_whole_product_of(ops, args);
  const int64_t size = (int64_t)bsrg_dtype_size(args->dtype);
  const size_t x_bytes = whole.copy_x ? bsrg_whole_bytes(&whole.args.x, size) : 0;
  const size_t y_bytes =
      whole.copy_y ? bsrg_whole_bytes(&whole.args.y, (int64_t)bsrg_dtype_size(bsrg_out_dtype(args))) : 0;
  const CUstream stream = (CUstream)args->stream;
  CUdeviceptr scratch;
  bsrg_status status = bsrg_scratch_alloc(gpu.api, gpu.device, x_bytes + y_bytes, stream, &scratch, error);
  if (status != BSRG_OK) return status;
  if (whole.copy_x) whole.args.x.data = (void *)(uintptr_t)scratch;
  if (whole.copy_y) whole.args.y.data = (void *)(uintptr_t)(scratch + x_bytes);
  if (whole.copy_c) whole.args.c.data = whole.args.y.data;
  status = multiply(ops, args, plan, &whole, gpu, error);
  return bsrg_scratch_free(gpu.api, scratch, stream, status, error);
}
