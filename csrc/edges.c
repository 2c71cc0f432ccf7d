#include "edges.h"

#include "copy.h"
#include "dense.h"
#include "portable.h"

#include <stdio.h>
#include <string.h>

/* ---- values on a GPU -------------------------------------------------------------------------- */

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

int64_t bsrg_clear_launches(const bsrg_structure_view *v) { return v->nnzb > 0 && is_partial(v); }

bsrg_status bsrg_gpu_clear_edges(bsrg_structure *structure, void *values, bsrg_dtype dtype, bsrg_gpu gpu,
                                 CUstream stream, bsrg_error *error) {
  const bsrg_structure_view *v = &structure->view;
  const bool columns = v->cols != bsrg_whole_cols(v), rows = v->rows != bsrg_whole_rows(v);
  if (v->nnzb == 0 || (!columns && !rows)) return BSRG_OK;
  const int64_t ctas = bsrg_ceil_div(v->nnzb, BSRG_EDGES_THREADS);
  int64_t area;
  if (!bsrg_mul_ok(v->block_height, v->block_width, &area) || area > INT32_MAX - 32 || ctas > INT32_MAX)
    return bsrg_fail(
        error, BSRG_ERR_VALUE,
        "there are %lld blocks of (%lld, %lld), which reach beyond the matrix: the GPU kernels take "
        "fewer than 2^31 elements of such a block, and 2^39 blocks",
        (long long)v->nnzb, (long long)v->block_height, (long long)v->block_width);
  bsrg_portable_uploads uploads;
  bsrg_status status = bsrg_portable_upload(structure, gpu, &uploads, error);
  if (status != BSRG_OK) return status;
  const int64_t last_row = v->block_rows - 1, last_column = v->block_cols - 1;
  bsrg_edges_params p = {.values = values,
                         .indices = uploads.indices,
                         .nnzb = v->nnzb,
                         .first = rows ? v->indptr[last_row] : v->nnzb,
                         .last_column = columns ? (int32_t)last_column : -1,
                         .block_height = (int32_t)v->block_height,
                         .block_width = (int32_t)v->block_width,
                         .rows = (int32_t)bsrg_rows_of(v, last_row),
                         .cols = (int32_t)bsrg_cols_of(v, last_column)};
  const size_t size = bsrg_dtype_size(dtype);
  const bsrg_kernel_id kernel = size == 2   ? BSRG_KERNEL_EDGES_2
                                : size == 4 ? BSRG_KERNEL_EDGES_4
                                            : BSRG_KERNEL_EDGES_8;
  return bsrg_launch(gpu.api, gpu.device, kernel, ctas, 1, stream, &p, error);
}

/* ---- dense operands --------------------------------------------------------------------------- */

bsrg_dense bsrg_dense_of_lines(int64_t rows, int64_t cols, bool by_columns, int64_t size) {
  const int64_t line = 128 / size, pitch = bsrg_ceil_div(by_columns ? rows : cols, line) * line;
  return (bsrg_dense){NULL, rows, cols, by_columns ? 1 : pitch, by_columns ? pitch : 1};
}

bsrg_dense bsrg_whole_dense(const bsrg_dense *d, int64_t rows, int64_t cols, int64_t size) {
  const bool by_columns = d->cols == 1 || bsrg_dense_is_by_columns(d);
  return bsrg_dense_of_lines(rows, cols, by_columns, size);
}

static bool by_columns(const bsrg_dense *whole) { return whole->col_stride != 1; }

size_t bsrg_lines_bytes(const bsrg_dense *whole, int64_t size) {
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
  const size_t bytes = bsrg_lines_bytes(whole, size);
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
  whole.args.y_padded = whole.copy_y || args->y_padded;
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
  snprintf(c->reason + length, sizeof(c->reason) - length, "; with %s", what);
}

void bsrg_whole_predict(const bsrg_whole_product *whole, const bsrg_matmul_args *args, const bsrg_chip *chip,
                        bsrg_candidate *c) {
  const int y_copies = whole->copy_c + whole->copy_y;
  const double x = whole->copy_x ? (double)args->x.rows * (double)bsrg_dtype_size(args->dtype) : 0;
  const double y = (double)y_copies * (double)args->y.rows * (double)bsrg_dtype_size(bsrg_out_dtype(args));
  const double bytes = 2 * (x + y) * (double)args->x.cols;
  bsrg_copies_predict(2 * whole->copy_x + y_copies, bytes,
                      !whole->copy_y   ? "copies of b for partial blocks"
                      : !whole->copy_x ? "copies of out for partial blocks"
                                       : "copies of b and out for partial blocks",
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
  const size_t x_bytes = whole.copy_x ? bsrg_lines_bytes(&whole.args.x, size) : 0;
  const size_t y_bytes =
      whole.copy_y ? bsrg_lines_bytes(&whole.args.y, (int64_t)bsrg_dtype_size(bsrg_out_dtype(args))) : 0;
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
