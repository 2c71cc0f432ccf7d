/* Products of 8-bit floats on the CPU: operands become float32, blocks multiplied by their scales, and the product is
 * that of float32. */
#include <stdlib.h>

#include "../dense.h"
#include "cpu.h"
#include "e4m3.h"

/* Elements [rows][columns] of a matrix, by strides, that become contiguous rows of float32. */
typedef struct widen_job {
  const uint8_t *source;
  int64_t rows, columns, row_stride, col_stride;
  float *target;
  const float *scales; /* NULL, or one a row */
  const float *table;  /* of every value of 8 bits */
  _Atomic int64_t next;
} widen_job;

static void widen_rows(void *context, int slot) {
  (void)slot;
  widen_job *job = context;
  int64_t row;
  while ((row = atomic_fetch_add(&job->next, 1)) < job->rows) {
    const uint8_t *from = job->source + row * job->row_stride;
    float *to = job->target + row * job->columns;
    const float scale = job->scales ? job->scales[row] : 1;
    for (int64_t j = 0; j < job->columns; ++j) to[j] = scale * job->table[from[j * job->col_stride]];
  }
}

static void widen(widen_job job) {
  enum { ELEMENTS_PER_UNIT = 16 }; /* about as long as a multiply-add of vectors */
  bsrg_run_parallel(widen_rows, &job,
                    bsrg_cpu_threads((double)job.rows * (double)job.columns / ELEMENTS_PER_UNIT));
}

/* Rows of it are the dimension whose neighbours are farther apart. */
static bsrg_dense widen_dense(const bsrg_dense *x, const float *table, float *target) {
  const bool turned = bsrg_dense_is_by_columns(x);
  widen_job job = {.source = x->data,
                   .rows = turned ? x->cols : x->rows,
                   .columns = turned ? x->rows : x->cols,
                   .row_stride = turned ? x->col_stride : x->row_stride,
                   .col_stride = turned ? x->row_stride : x->col_stride,
                   .target = target,
                   .table = table};
  widen(job);
  return (bsrg_dense){target, x->rows, x->cols, turned ? 1 : x->cols, turned ? x->rows : 1};
}

/* y = alpha * sums + beta * c and what the epilogue adds, in 16 bits: by as many rows and columns as that takes at once. */
static void finish(const bsrg_matmul_args *args, const float *sums) {
  const bsrg_cpu_ops *ops = bsrg_cpu_ops_of(args->out_dtype);
  const bsrg_dense *y = &args->y, *c = &args->c;
  const int64_t width = ops->tile_vectors * ops->lanes, item = ops->element_size;
  for (int64_t row = 0; row < y->rows; row += BSRG_GROUP_ROWS) {
    for (int64_t col = 0; col < y->cols; col += width) {
      const int64_t c_offset = row * c->row_stride + col * c->col_stride;
      const bsrg_finish_run run = {.sums = sums + row * y->cols + col,
                                   .sums_stride = y->cols,
                                   .rows = bsrg_min(BSRG_GROUP_ROWS, y->rows - row),
                                   .columns = bsrg_min(width, y->cols - col),
                                   .alpha = args->alpha,
                                   .beta = args->beta,
                                   .c = args->beta != 0 ? (const char *)c->data + c_offset * item : NULL,
                                   .c_row_stride = c->row_stride,
                                   .c_col_stride = c->col_stride,
                                   .y = (char *)y->data + (row * y->row_stride + col * y->col_stride) * item,
                                   .y_row_stride = y->row_stride,
                                   .y_col_stride = y->col_stride,
                                   .epilogue = bsrg_epilogue_of(args),
                                   .first_row = row,
                                   .first_column = col};
      ops->finish(&run);
    }
  }
}

/* memory: for the blocks, X and, of 16-bit results, Y. */
static bsrg_status multiply(const bsrg_matmul_args *args, float *memory, bsrg_error *error) {
  const bsrg_structure_view a = bsrg_structure_get(args->a);
  const int64_t area = a.block_height * a.block_width;
  float table[256];
  for (int i = 0; i < 256; ++i)
    table[i] = args->dtype == BSRG_F8_E4M3 ? bsrg_from_e4m3((uint8_t)i) : bsrg_from_e5m2((uint8_t)i);
  const bool per_block = args->values_scale && args->values_scale_count == a.nnzb;
  widen_job values = {.source = args->values,
                      .rows = a.nnzb,
                      .columns = area,
                      .row_stride = area,
                      .col_stride = 1,
                      .target = memory,
                      .scales = per_block ? args->values_scale : NULL,
                      .table = table};
  widen(values);

  bsrg_matmul_args wide = *args;
  wide.dtype = BSRG_F32;
  wide.values = memory;
  wide.x = widen_dense(&args->x, table, memory + a.nnzb * area);
  if (args->values_scale && !per_block) wide.alpha *= *args->values_scale;
  if (args->x_scale) wide.alpha *= *args->x_scale;
  if (args->out_dtype == BSRG_F32) return bsrg_cpu_multiply(&wide, error);

  float *sums = memory + a.nnzb * area + args->x.rows * args->x.cols;
  bsrg_matmul_args scaled = *args;
  scaled.alpha = wide.alpha;
  wide.alpha = 1;
  wide.beta = 0;
  wide.epilogue = (bsrg_epilogue){0};
  wide.y = (bsrg_dense){sums, args->y.rows, args->y.cols, args->y.cols, 1};
  const bsrg_status status = bsrg_cpu_multiply(&wide, error);
  if (status == BSRG_OK) finish(&scaled, sums);
  return status;
}

bsrg_status bsrg_eight_bit_matmul(const bsrg_matmul_args *args, bsrg_error *error) {
  const bsrg_structure_view a = bsrg_structure_get(args->a);
  const bsrg_dense *x = &args->x, *y = &args->y;
  /* X may be one element that stands for any number of them. The blocks and Y are in memory as they are. */
  int64_t count;
  float *memory = NULL;
  if (bsrg_mul_ok(x->rows, x->cols, &count) && count < INT64_MAX / 16) {
    count += a.nnzb * a.block_height * a.block_width + 1; /* never 0 */
    if (args->out_dtype != BSRG_F32) count += y->rows * y->cols;
    memory = malloc(sizeof(float) * (size_t)count);
  }
  if (!memory)
    return bsrg_fail(error, BSRG_ERR_MEMORY,
                     "no memory for %lld blocks and a dense operand of %lld x %lld as float32",
                     (long long)a.nnzb, (long long)x->rows, (long long)x->cols);
  const bsrg_status status = multiply(args, memory, error);
  free(memory);
  return status;
}
