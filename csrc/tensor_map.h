/* TMA tensor maps of matrices of 16-bit and 8-bit floats, and of float32, which is read as tf32 or stored. */
#ifndef BSRG_TENSOR_MAP_H
#define BSRG_TENSOR_MAP_H

#include "driver.h"

typedef struct bsrg_map_shape {
  uint32_t rank;
  uint64_t dims[4], strides[3]; /* strides in elements, of dims 1 to 3 */
  uint32_t box[4];
  int swizzle;
} bsrg_map_shape;

/* Whether a map can describe the matrix of 16-bit elements: row-major, rows at multiples of 16 bytes that follow one another, a
 * row stride below 2^40 bytes. */
bool bsrg_map_can_describe(const bsrg_dense *dense);
/* Whether TMA can also store a matrix of elements of `size` bytes so: it writes whole 16 bytes, whatever the map says of the end
 * of a row. padded: what follows there belongs to nobody. */
bool bsrg_map_can_store(const bsrg_dense *dense, int64_t size, bool padded);
/* Whether TMA can load X and store Y, but only with the rows of a column adjacent, as products with A on the right have
 * them. */
bool bsrg_map_has_transposed_x(const bsrg_matmul_args *args);
/* What families that reach A, X and Y through maps or bulk copies, and take a transposed X, too, need of n: fewer than 2^31
 * columns. NULL if it suits. */
const char *bsrg_map_count_obstacle(int64_t n);
/* Likewise of the operands, for families that take a transposed X. Then neither n nor the layout of C matters.
 * of_c: what by rows is wrong with C, or NULL. */
const char *bsrg_map_layout_obstacle(const bsrg_matmul_args *args, const char *of_c);

/* The swizzle of boxes with rows of so many bytes, where there is one. */
static inline int bsrg_map_swizzle(int64_t bytes) {
  return bytes == 128  ? CU_TENSOR_MAP_SWIZZLE_128B
         : bytes == 64 ? CU_TENSOR_MAP_SWIZZLE_64B
         : bytes == 32 ? CU_TENSOR_MAP_SWIZZLE_32B
                       : CU_TENSOR_MAP_SWIZZLE_NONE;
}

/* Rows of a dense operand in panels of 64 columns, a box of one of them, which ends with the last column; or columns that are
 * adjacent in memory. rows, columns: of a box. */
bsrg_map_shape bsrg_map_panel(const bsrg_dense *dense, uint32_t rows);
bsrg_map_shape bsrg_map_columns(const bsrg_dense *dense, bsrg_dtype dtype, uint32_t rows, uint32_t columns);

/* float32 is read as tf32. */
bsrg_status bsrg_encode_map(const bsrg_cuda_api *api, bsrg_dtype dtype, const void *data,
                            const bsrg_map_shape *shape, bsrg_tensor_map *map, bsrg_error *error);

/* Likewise, of what is stored: float32 as it is. */
bsrg_status bsrg_encode_map_of_output(const bsrg_cuda_api *api, bsrg_dtype dtype, const void *data,
                                      const bsrg_map_shape *shape, bsrg_tensor_map *map, bsrg_error *error);

/* Of an X that is loaded in tiles of `tile` columns, by boxes of `rows`. TMA takes its time for what a box has beyond the last
 * column, so there are two maps. */
typedef struct bsrg_map_tiles {
  bool by_columns; /* these are adjacent in memory */
  uint32_t rows, tile;
  uint32_t whole; /* columns of a box for a whole tile, in panels unless by columns; 0: no tile is whole */
} bsrg_map_tiles;
/* rest: for a last tile of fewer columns, a panel, or by columns what is left. */
bsrg_status bsrg_encode_tiles(const bsrg_cuda_api *api, bsrg_dtype dtype, const bsrg_dense *x,
                              const bsrg_map_tiles *tiles, bsrg_tensor_map *whole, bsrg_tensor_map *rest,
                              bsrg_error *error);

#endif
