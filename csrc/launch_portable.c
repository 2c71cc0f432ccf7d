#include "launch.h"

static bool aligned_rows(const bsrg_dense *dense, int64_t size) {
  return dense->col_stride == 1 && dense->row_stride * size % 16 == 0 && (uintptr_t)dense->data % 16 == 0;
}

bsrg_status bsrg_launch_portable(const bsrg_matmul_args *args, const bsrg_uploads *uploads,
                                 const bsrg_cuda_api *api, bsrg_device_state *device, bsrg_error *error) {
  const bsrg_structure_view *v = &args->a->view;
  const int64_t size = (int64_t)bsrg_dtype_size(args->dtype), n = args->x.cols;
  const bsrg_portable_tile tile = bsrg_portable_choose(args->dtype, v->block_height, n);
  const int64_t tiles_per_block_row = bsrg_ceil_div(v->block_height, tile.rows);
  const int64_t row_tiles = v->block_rows * tiles_per_block_row;
  /* The kernels count rows and k of a block row in 32 bits; the margins keep rounding up to a tile in range. */
  if (row_tiles > INT32_MAX || v->block_height > INT32_MAX - 256 || v->block_width > INT32_MAX - 256)
    return bsrg_fail(
        error, BSRG_ERR_VALUE,
        "a has %lld block rows in blocks of (%lld, %lld): the GPU kernels take fewer than 2^31 row "
        "tiles and block sides below 2^31 - 256",
        (long long)v->block_rows, (long long)v->block_height, (long long)v->block_width);

  const bool c_rows = args->beta == 0 || aligned_rows(&args->c, size);
  bsrg_portable_params p = {
      .values = args->values,
      .indptr = (const int64_t *)(uintptr_t)uploads->indptr,
      .indices = (const int32_t *)(uintptr_t)uploads->indices,
      .row_order = (const int32_t *)(uintptr_t)uploads->row_order,
      .x = args->x.data,
      .c = args->c.data,
      .y = args->y.data,
      .x_row_stride = args->x.row_stride,
      .x_col_stride = args->x.col_stride,
      .c_row_stride = args->c.row_stride,
      .c_col_stride = args->c.col_stride,
      .y_row_stride = args->y.row_stride,
      .y_col_stride = args->y.col_stride,
      .n = n,
      .row_tiles = row_tiles,
      .block_height = (int32_t)v->block_height,
      .block_width = (int32_t)v->block_width,
      .tiles_per_block_row = (int32_t)tiles_per_block_row,
      .vector_x = aligned_rows(&args->x, size) && aligned_rows(&args->y, size) && c_rows,
      .vector_a = v->block_width * size % 16 == 0 && (uintptr_t)args->values % 16 == 0,
      .alpha = args->alpha,
      .beta = args->beta,
  };
  /* Row tiles vary fastest, so that those of one column tile share its part of X in L2; the kernel walks over the
   * column tiles that grid.y, which ends at 65535, leaves out. */
  const int64_t column_tiles = bsrg_min(bsrg_ceil_div(n, tile.columns), 65535);
  return bsrg_launch(api, device, (bsrg_kernel_id)tile.kernel, row_tiles, column_tiles,
                     (CUstream)args->stream, &p, error);
}
