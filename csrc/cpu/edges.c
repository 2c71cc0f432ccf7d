#include "../edges.h"

#include <string.h>

void bsrg_cpu_clear_edges(const bsrg_structure_view *v, void *values, int64_t size) {
  if (v->nnzb == 0) return;
  const int64_t area = v->block_height * v->block_width, last = v->block_cols - 1;
  const int64_t rows = bsrg_rows_of(v, v->block_rows - 1), cols = bsrg_cols_of(v, last);
  if (rows < v->block_height)
    for (int64_t p = v->indptr[v->block_rows - 1]; p < v->nnzb; p++)
      memset((char *)values + (p * area + rows * v->block_width) * size, 0,
             (size_t)((v->block_height - rows) * v->block_width * size));
  if (cols == v->block_width) return;
  const bool anywhere = v->column_order == BSRG_UNSORTED;
  for (int64_t row = 0; row < v->block_rows; row++) {
    /* At the end of a row, several where a column is stored more than once. */
    for (int64_t p = v->indptr[row + 1] - 1; p >= v->indptr[row]; p--) {
      if (v->indices[p] != last && !anywhere) break;
      for (int64_t r = 0; r < v->block_height && v->indices[p] == last; r++)
        memset((char *)values + (p * area + r * v->block_width + cols) * size, 0,
               (size_t)((v->block_width - cols) * size));
    }
  }
}
