#include "tensor_map.h"

#include "dense.h"

static bool can_describe(const bsrg_dense *dense, int64_t size) {
  return dense->col_stride == 1 && dense->row_stride >= dense->cols &&
         dense->row_stride < ((int64_t)1 << 40) / size && dense->row_stride * size % 16 == 0 &&
         (uintptr_t)dense->data % 16 == 0;
}

bool bsrg_map_can_describe(const bsrg_dense *dense) { return can_describe(dense, 2); }

bool bsrg_map_can_store(const bsrg_dense *dense, int64_t size, bool padded) {
  return can_describe(dense, size) && (padded || dense->cols * size % 16 == 0);
}

bool bsrg_map_has_transposed_x(const bsrg_matmul_args *args) {
  bsrg_dense x = args->x, y = args->y;
  if (bsrg_map_can_describe(&x) && bsrg_map_can_store(&y, 2, args->y_padded)) return false;
  bsrg_dense_turn(&x);
  bsrg_dense_turn(&y);
  return bsrg_map_can_describe(&x) && bsrg_map_can_store(&y, 2, args->y_padded);
}

const char *bsrg_map_count_obstacle(int64_t n) {
  return n > INT32_MAX ? "needs fewer than 2^31 columns" : NULL;
}

static const char *columns_obstacle(int64_t n) {
  return n % 8 ? "needs a number of columns that is a multiple of 8" : bsrg_map_count_obstacle(n);
}

const char *bsrg_map_layout_obstacle(const bsrg_matmul_args *args, const char *of_c) {
  if ((uintptr_t)args->values % 16) return "needs a.data to start at a multiple of 16 bytes";
  if (bsrg_map_has_transposed_x(args)) return NULL;
  const char *columns = columns_obstacle(args->x.cols);
  if (columns) return columns;
  if (of_c) return of_c;
  if (!bsrg_map_can_describe(&args->x))
    return "needs b in row-major order, its rows at multiples of 16 bytes";
  if (!bsrg_map_can_describe(&args->y))
    return "needs out in row-major order, its rows at multiples of 16 bytes";
  return NULL;
}

static bsrg_status encode(const bsrg_cuda_api *api, int type, uint64_t item, const void *data,
                          const bsrg_map_shape *shape, bsrg_tensor_map *map, bsrg_error *error) {
  const uint64_t strides[3] = {item * shape->strides[0], item * shape->strides[1], item * shape->strides[2]};
  const uint32_t ones[4] = {1, 1, 1, 1};
  return bsrg_cuda_check(
      api,
      api->tensor_map_encode(map, type, shape->rank, (void *)(uintptr_t)data, shape->dims, strides,
                             shape->box, ones, CU_TENSOR_MAP_INTERLEAVE_NONE, shape->swizzle,
                             CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE),
      "cuTensorMapEncodeTiled", error);
}

static int type_of(bsrg_dtype dtype) {
  return bsrg_is_8_bit(dtype) ? CU_TENSOR_MAP_DATA_TYPE_UINT8 /* TMA computes nothing with them */
         : dtype == BSRG_F32  ? CU_TENSOR_MAP_DATA_TYPE_FLOAT32
         : dtype == BSRG_F16  ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                              : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
}

bsrg_status bsrg_encode_map(const bsrg_cuda_api *api, bsrg_dtype dtype, const void *data,
                            const bsrg_map_shape *shape, bsrg_tensor_map *map, bsrg_error *error) {
  const int type = dtype == BSRG_F32 ? CU_TENSOR_MAP_DATA_TYPE_TFLOAT32 /* which TMA rounds to */
                                     : type_of(dtype);
  return encode(api, type, bsrg_dtype_size(dtype), data, shape, map, error);
}

bsrg_status bsrg_encode_map_of_output(const bsrg_cuda_api *api, bsrg_dtype dtype, const void *data,
                                      const bsrg_map_shape *shape, bsrg_tensor_map *map, bsrg_error *error) {
  return encode(api, type_of(dtype), bsrg_dtype_size(dtype), data, shape, map, error);
}

bsrg_map_shape bsrg_map_panel(const bsrg_dense *dense, uint32_t rows) {
  return (bsrg_map_shape){2,
                          {(uint64_t)dense->cols, (uint64_t)dense->rows},
                          {(uint64_t)dense->row_stride},
                          {64, rows},
                          CU_TENSOR_MAP_SWIZZLE_128B};
}

/* Several whole panels a box. */
static bsrg_map_shape map_panels(const bsrg_dense *dense, uint32_t rows, uint32_t panels) {
  return (bsrg_map_shape){3,
                          {64, (uint64_t)dense->rows, (uint64_t)dense->cols / 64},
                          {(uint64_t)dense->row_stride, 64},
                          {64, rows, panels},
                          CU_TENSOR_MAP_SWIZZLE_128B};
}

bsrg_map_shape bsrg_map_columns(const bsrg_dense *dense, bsrg_dtype dtype, uint32_t rows, uint32_t columns) {
  return (bsrg_map_shape){2,
                          {(uint64_t)dense->rows, (uint64_t)dense->cols},
                          {(uint64_t)dense->col_stride},
                          {rows, columns},
                          bsrg_map_swizzle(rows * (int64_t)bsrg_dtype_size(dtype))};
}

bsrg_status bsrg_encode_tiles(const bsrg_cuda_api *api, bsrg_dtype dtype, const bsrg_dense *x,
                              const bsrg_map_tiles *tiles, bsrg_tensor_map *whole, bsrg_tensor_map *rest,
                              bsrg_error *error) {
  const uint32_t left = (uint32_t)(x->cols % tiles->tile);
  bsrg_status status = BSRG_OK;
  if (tiles->whole > 0) {
    const bsrg_map_shape shape = tiles->by_columns ? bsrg_map_columns(x, dtype, tiles->rows, tiles->whole)
                                                   : map_panels(x, tiles->rows, tiles->whole / 64);
    status = bsrg_encode_map(api, dtype, x->data, &shape, whole, error);
  }
  if (status != BSRG_OK || left == 0) return status;
  const bsrg_map_shape shape =
      tiles->by_columns ? bsrg_map_columns(x, dtype, tiles->rows, left) : bsrg_map_panel(x, tiles->rows);
  return bsrg_encode_map(api, dtype, x->data, &shape, rest, error);
}
