/* BSR x BSR on the CPU for small blocks: B is written out, some columns at a time, and multiplied as a dense matrix. By pairs
 * (pairs.c) a block that meets another takes longer to find than to multiply then.
 *
 * Zeros are multiplied, which an infinity or NaN in A would turn into NaN: products with one go by pairs. */
#define _POSIX_C_SOURCE 200112L /* posix_memalign */

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "../dense.h"
#include "../pairs.h"
#include "cpu.h"

enum {
  CHUNK_BYTES = 4 << 20, /* of B at a time, */
  CHUNK_PANELS = 8,      /* or so many of the widest tiles, but one at least */
  ROWS_AT_ONCE = 64,     /* that a thread writes */
  ALIGNMENT = 64
};

typedef struct spread_job {
  bsrg_structure_view b;
  const char *values;
  int64_t item, first, columns, stride; /* columns of B from `first` on, as rows of so many elements */
  char *dense;
  int64_t *next; /* of each block row, its first block that is not written */
  _Atomic int64_t next_row;
} spread_job;

/* ---- Whether it pays ----------------------------------------------------------------------------------- */

/* Fitted on a Zen 5, seconds of one thread: by pairs what a block of B takes in a group, and for each block row of that;
 * what two that meet take; multiply-adds of tiles. Dense, those of panels and an element of B. */
static const double visit_seconds = 40e-9, look_seconds = 6e-9, meet_seconds = 20e-9;
static const double pair_products_per_s = 45e9, dense_products_per_s = 60e9, element_seconds = 0.6e-9;
static const double least_gain = 1.2;

static bool pays(const bsrg_structure_view *a, const bsrg_structure_view *b, int64_t item) {
  const double rows_of_group = (double)bsrg_max(1, BSRG_GROUP_ROWS / a->block_height);
  const double groups = (double)a->block_rows / rows_of_group;
  const double met = (double)a->nnzb * (double)b->nnzb / (double)bsrg_max(1, a->block_cols);
  const double of_block = (double)(a->block_height * a->block_width);
  const double wide = item > 4 ? 2 : 1; /* elements of half as many lanes */
  const double by_pairs =
      groups * (double)b->nnzb * (visit_seconds + look_seconds * rows_of_group) +
      met * (meet_seconds + wide * of_block * (double)b->block_width / pair_products_per_s);
  const double dense = wide * (double)a->nnzb * of_block * (double)b->cols / dense_products_per_s +
                       (double)b->rows * (double)b->cols * element_seconds;
  return dense * least_gain < by_pairs;
}

/* Columns of the widest tile. */
static int64_t panel_of(bsrg_dtype dtype) {
  const bsrg_cpu_ops *ops = bsrg_cpu_ops_of(dtype);
  return ops->tile_vectors * ops->lanes;
}

/* Exponents of an infinity or NaN are all ones. */
#define ONLY_FINITE(NAME, BITS, EXPONENT)                                       \
  static bool only_finite_##NAME(const void *values, int64_t count) {           \
    const BITS *v = values, exponent = (BITS)EXPONENT;                          \
    int found = 0;                                                              \
    for (int64_t i = 0; i < count; ++i) found |= (v[i] & exponent) == exponent; \
    return !found;                                                              \
  }
ONLY_FINITE(f16, uint16_t, 0x7c00)
ONLY_FINITE(bf16, uint16_t, 0x7f80)
ONLY_FINITE(f32, uint32_t, 0x7f800000)
ONLY_FINITE(f64, uint64_t, 0x7ff0000000000000)

static bool only_finite(const void *values, int64_t count, bsrg_dtype dtype) {
  return dtype == BSRG_F16    ? only_finite_f16(values, count)
         : dtype == BSRG_BF16 ? only_finite_bf16(values, count)
         : dtype == BSRG_F64  ? only_finite_f64(values, count)
                              : only_finite_f32(values, count);
}

/* Of what lies within the matrix: the rest is nobody's. */
static bool is_finite(const bsrg_structure_view *a, const char *values, bsrg_dtype dtype) {
  const int64_t item = (int64_t)bsrg_dtype_size(dtype), area = a->block_height * a->block_width;
  if (a->rows == a->block_rows * a->block_height && a->cols == a->block_cols * a->block_width)
    return only_finite(values, a->nnzb * area, dtype);
  const int64_t stride = a->order ? a->block_height : a->block_width;
  for (int64_t row = 0; row < a->block_rows; ++row)
    for (int64_t p = a->indptr[row]; p < a->indptr[row + 1]; ++p) {
      const int64_t rows = bsrg_rows_of(a, row), cols = bsrg_cols_of(a, a->indices[p]);
      const int64_t lines = a->order ? cols : rows, length = a->order ? rows : cols;
      const char *block = values + (a->order ? a->order[p] : p) * area * item;
      for (int64_t i = 0; i < lines; ++i)
        if (!only_finite(block + i * stride * item, length, dtype)) return false;
    }
  return true;
}

/* A chunk is of all rows of B, however few blocks these have. */
static bool has_room(const bsrg_matmul_sparse_args *args, const bsrg_structure_view *b) {
  const double bytes = (double)b->rows * (double)panel_of(args->dtype) * (double)bsrg_dtype_size(args->dtype);
  return bytes <= CHUNK_BYTES || bytes <= bsrg_pairs_bytes(args);
}

bool bsrg_cpu_spread_pays(const bsrg_matmul_sparse_args *args) {
  const bsrg_structure_view a = bsrg_structure_get(args->a), b = bsrg_structure_get(args->b);
  return b.column_order == BSRG_ASCENDING && has_room(args, &b) &&
         pays(&a, &b, (int64_t)bsrg_dtype_size(args->dtype)) && is_finite(&a, args->a_values, args->dtype);
}

/* ---- B, written out ------------------------------------------------------------------------------------ */

/* A block, from one of its columns on. */
static void write_block(const spread_job *job, int64_t p, int64_t rows, int64_t from, int64_t columns,
                        char *to) {
  const bsrg_structure_view *b = &job->b;
  const int64_t item = job->item, height = b->block_height, width = b->block_width;
  if (!b->order) {
    const char *source = job->values + (p * height * width + from) * item;
    for (int64_t r = 0; r < rows; ++r)
      memcpy(to + r * job->stride * item, source + r * width * item, (size_t)(columns * item));
    return;
  }
  const char *source = job->values + (b->order[p] * height * width + from * height) * item;
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < columns; ++c)
      memcpy(to + (r * job->stride + c) * item, source + (c * height + r) * item, (size_t)item);
}

static void write_row(const spread_job *job, int64_t row) {
  const bsrg_structure_view *b = &job->b;
  const int64_t rows = bsrg_rows_of(b, row), end = job->first + job->columns;
  char *const to = job->dense + row * b->block_height * job->stride * job->item;
  memset(to, 0, (size_t)(bsrg_max(0, rows) * job->stride * job->item));
  int64_t p = job->next[row];
  for (; p < b->indptr[row + 1]; ++p) {
    const int64_t column = b->indices[p] * b->block_width, width = bsrg_cols_of(b, b->indices[p]);
    if (column >= end) break;
    const int64_t from = bsrg_max(0, job->first - column), to_column = bsrg_max(column, job->first);
    write_block(job, p, rows, from, bsrg_min(column + width, end) - to_column,
                to + (to_column - job->first) * job->item);
    if (column + width > end) break; /* the rest is the next chunk's */
  }
  job->next[row] = p;
}

static void write_rows(void *context, int slot) {
  (void)slot;
  spread_job *job = context;
  int64_t row;
  while ((row = atomic_fetch_add(&job->next_row, ROWS_AT_ONCE)) < job->b.block_rows)
    for (const int64_t end = bsrg_min(row + ROWS_AT_ONCE, job->b.block_rows); row < end; ++row)
      write_row(job, row);
}

/* ---- The product --------------------------------------------------------------------------------------- */

static bsrg_status multiply_chunks(const bsrg_matmul_sparse_args *args, spread_job *job, bool *begun,
                                   bsrg_error *error) {
  const int64_t at_once = job->columns;
  bsrg_status status = BSRG_OK;
  for (; job->first < job->b.cols && status == BSRG_OK; job->first += at_once) {
    job->columns = bsrg_min(at_once, job->b.cols - job->first);
    job->next_row = 0;
    bsrg_run_parallel(write_rows, job, bsrg_cpu_threads((double)job->b.rows * (double)job->columns / 16));
    const bsrg_dense dense = {job->dense, job->b.rows, job->columns, job->stride, 1};
    bsrg_matmul_args product = bsrg_pairs_spread_product(args, &dense);
    bsrg_dense_take_columns(&product.c, args->dtype, job->first, job->columns);
    bsrg_dense_take_columns(&product.y, args->dtype, job->first, job->columns);
    status = bsrg_cpu_multiply(&product, error);
    *begun |= status == BSRG_OK;
  }
  return status;
}

bsrg_status bsrg_cpu_spread(const bsrg_matmul_sparse_args *args, bool *begun, bsrg_error *error) {
  spread_job job = {.b = bsrg_structure_get(args->b),
                    .values = args->b_values,
                    .item = (int64_t)bsrg_dtype_size(args->dtype)};
  const int64_t panel = panel_of(args->dtype);
  const int64_t fit = CHUNK_BYTES / (job.item * bsrg_max(1, job.b.rows)) / panel * panel;
  job.columns = bsrg_min(job.b.cols, bsrg_max(panel, bsrg_min(fit, CHUNK_PANELS * panel)));
  job.stride = bsrg_ceil_div(job.columns * job.item, ALIGNMENT) * ALIGNMENT / job.item;
  const size_t bytes = (size_t)(bsrg_max(1, job.b.rows) * job.stride * job.item);
  void *dense = NULL;
  job.dense = posix_memalign(&dense, ALIGNMENT, bytes) == 0 ? dense : NULL;
  job.next = malloc(sizeof(*job.next) * (size_t)bsrg_max(1, job.b.block_rows));
  bsrg_status status;
  if (job.dense && job.next) {
    for (int64_t row = 0; row < job.b.block_rows; ++row) job.next[row] = job.b.indptr[row];
    status = multiply_chunks(args, &job, begun, error);
  } else {
    status = bsrg_fail(error, BSRG_ERR_MEMORY, "no memory for %zu bytes of b as a dense matrix", bytes);
  }
  free(job.dense);
  free(job.next);
  return status;
}
