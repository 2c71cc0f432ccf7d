/* Softmax over the stored elements of each row on the CPU: panels of rows of a block row, a row to a lane, so that the
 * steps of attention's softmax serve here as well. */
#include "../edges.h"
#include "cpu.h"

#include <stdatomic.h>

enum {
  CHUNK = 256,      /* elements of a row that are treated at a time */
  MOST_STORED = 64, /* that bsrg_cpu_ops.finish takes */
  COST = 32         /* of an element, in multiply-adds of vectors */
};

typedef struct softmax_job {
  const bsrg_softmax_args *args;
  bsrg_structure_view a;
  const bsrg_cpu_ops *ops;
  int64_t vectors, width;           /* of a panel: lanes in all */
  int64_t panels_per_block, panels; /* panels: in all */
  int64_t row_stride, col_stride;   /* within a block */
  char *scratch;
  int64_t slot_bytes;
  _Atomic int64_t next;
} softmax_job;

/* The stored elements of a row of a block row, one after the other: those of whole blocks, then those of blocks in a
 * partial last column, of which there are several only where a column is stored more than once. */
typedef struct row_elements {
  int64_t begin;          /* block */
  int64_t whole, partial; /* blocks */
  int64_t partial_width;
} row_elements;

/* A thread's memory, sums all of it. */
typedef struct panel {
  char *scores;                    /* [CHUNK][width] */
  char *maximum, *total, *inverse; /* [width] */
  int64_t rows;                    /* lanes in use */
} panel;

static bool is_single(const softmax_job *job) { return job->ops->sum_size == (int64_t)sizeof(float); }

static void multiply(const softmax_job *job, char *values, int64_t count, double factor) {
  if (is_single(job)) {
    for (int64_t i = 0; i < count; i++) ((float *)values)[i] *= (float)factor;
  } else {
    for (int64_t i = 0; i < count; i++) ((double *)values)[i] *= factor;
  }
}

/* Rows without a finite score have a total of 0, which makes NaN of them. */
static void invert(const softmax_job *job, panel *p) {
  for (int64_t i = 0; i < job->width; i++) {
    if (is_single(job)) {
      ((float *)p->inverse)[i] = 1 / ((float *)p->total)[i];
    } else {
      ((double *)p->inverse)[i] = 1 / ((double *)p->total)[i];
    }
  }
}

static void normalise(const softmax_job *job, panel *p, int64_t count) {
  const int64_t width = job->width;
  for (int64_t k = 0; k < count; k++) {
    if (is_single(job)) {
      float *row = (float *)p->scores + k * width;
      for (int64_t i = 0; i < width; i++) row[i] *= ((float *)p->inverse)[i];
    } else {
      double *row = (double *)p->scores + k * width;
      for (int64_t i = 0; i < width; i++) row[i] *= ((double *)p->inverse)[i];
    }
  }
}

/* Where a panel's element `at` of each row lies, counted from its first one, and how many of the block follow. */
static int64_t element_at(const softmax_job *job, const row_elements *of, int64_t first_row, int64_t at,
                          int64_t *left) {
  const bsrg_structure_view *a = &job->a;
  const int64_t behind = at - of->whole * a->block_width;
  const int64_t width = behind < 0 ? a->block_width : of->partial_width;
  const int64_t block = of->begin + (behind < 0 ? at / width : of->whole + behind / width);
  const int64_t column = (behind < 0 ? at : behind) % width;
  *left = width - column;
  return (a->order ? a->order[block] : block) * a->block_height * a->block_width +
         first_row * job->row_stride + column * job->col_stride;
}

static void read_chunk(const softmax_job *job, panel *p, const row_elements *of, int64_t row, int64_t begin,
                       int64_t count) {
  const bsrg_cpu_ops *ops = job->ops;
  for (int64_t at = 0, left; at < count; at += left) {
    const int64_t element = element_at(job, of, row, begin + at, &left);
    left = bsrg_min(left, count - at);
    ops->pack(p->scores + at * job->width * ops->sum_size, job->width,
              (const char *)job->args->values + element * ops->element_size, job->col_stride, job->row_stride,
              left, p->rows);
  }
  if (job->args->scale != 1) multiply(job, p->scores, count * job->width, job->args->scale);
}

static void write_chunk(const softmax_job *job, panel *p, const row_elements *of, int64_t row, int64_t begin,
                        int64_t count) {
  const bsrg_cpu_ops *ops = job->ops;
  normalise(job, p, count);
  for (int64_t at = 0, left; at < count; at += left) {
    const int64_t element = element_at(job, of, row, begin + at, &left);
    left = bsrg_min(bsrg_min(left, count - at), MOST_STORED);
    const bsrg_finish_run run = {.sums = p->scores + at * job->width * ops->sum_size,
                                 .sums_stride = job->width,
                                 .rows = left,
                                 .columns = p->rows,
                                 .alpha = 1,
                                 .y = (char *)job->args->out + element * ops->element_size,
                                 .y_row_stride = job->col_stride,
                                 .y_col_stride = job->row_stride};
    ops->finish(&run);
  }
}

static row_elements elements_of(const bsrg_structure_view *a, int64_t block_row) {
  const int64_t begin = a->indptr[block_row], last = a->block_cols - 1;
  row_elements of = {.begin = begin, .whole = a->indptr[block_row + 1] - begin};
  of.partial_width = bsrg_cols_of(a, last);
  if (of.partial_width == a->block_width) return of;
  for (; of.whole > 0 && a->indices[begin + of.whole - 1] == last; --of.whole) ++of.partial;
  return of;
}

static void compute_panel(const softmax_job *job, panel *p, int64_t block_row, int64_t row) {
  const bsrg_structure_view *a = &job->a;
  const bsrg_cpu_ops *ops = job->ops;
  const row_elements of = elements_of(a, block_row);
  const int64_t elements = of.whole * a->block_width + of.partial * of.partial_width;
  p->rows = bsrg_min(job->width, bsrg_rows_of(a, block_row) - row);
  if (elements == 0 || p->rows <= 0) return;
  const bsrg_softmax_run run = {.vectors = job->vectors,
                                .scores = p->scores,
                                .maximum = p->maximum,
                                .total = p->total,
                                .out = p->scores};
  ops->softmax_begin(&run);
  for (int64_t begin = 0; begin < elements; begin += CHUNK) {
    const int64_t count = bsrg_min(CHUNK, elements - begin);
    read_chunk(job, p, &of, row, begin, count);
    ops->softmax(&run, count);
  }
  invert(job, p);
  /* With the maximum of all known, the same step gives weights that need but the total's inverse. */
  for (int64_t begin = 0; begin < elements; begin += CHUNK) {
    const int64_t count = bsrg_min(CHUNK, elements - begin);
    if (elements > CHUNK) {
      read_chunk(job, p, &of, row, begin, count);
      ops->softmax(&run, count);
    }
    write_chunk(job, p, &of, row, begin, count);
  }
}

static void compute(void *context, int slot) {
  softmax_job *job = context;
  const int64_t row_bytes = job->width * job->ops->sum_size;
  char *memory = job->scratch + slot * job->slot_bytes;
  panel p = {.scores = memory,
             .maximum = memory + CHUNK * row_bytes,
             .total = memory + (CHUNK + 1) * row_bytes,
             .inverse = memory + (CHUNK + 2) * row_bytes};
  int64_t next;
  while ((next = atomic_fetch_add(&job->next, 1)) < job->panels)
    compute_panel(job, &p, next / job->panels_per_block, next % job->panels_per_block * job->width);
}

bsrg_status bsrg_cpu_softmax(const bsrg_softmax_args *args, bsrg_error *error) {
  const bsrg_structure_view a = bsrg_structure_get(args->a);
  const bsrg_cpu_ops *ops = bsrg_cpu_ops_of(args->dtype);
  softmax_job job = {.args = args, .a = a, .ops = ops};
  job.vectors = bsrg_min(bsrg_ceil_div(a.block_height, ops->lanes), ops->tile_vectors);
  job.width = job.vectors * ops->lanes;
  job.panels_per_block = bsrg_ceil_div(a.block_height, job.width);
  job.panels = a.block_rows * job.panels_per_block;
  job.row_stride = a.order ? 1 : a.block_width;
  job.col_stride = a.order ? a.block_height : 1;
  const double vectors =
      (double)a.nnzb * (double)a.block_width * (double)(job.panels_per_block * job.vectors);
  const int threads = bsrg_cpu_threads(COST * vectors);
  job.slot_bytes = (CHUNK + 3) * job.width * ops->sum_size;
  const size_t bytes = (size_t)threads * (size_t)job.slot_bytes;
  job.scratch = bsrg_scratch_take(bytes);
  if (!job.scratch)
    return bsrg_fail(error, BSRG_ERR_MEMORY, "no memory for %zu bytes of scratch space", bytes);
  bsrg_run_parallel(compute, &job, threads);
  bsrg_scratch_give(job.scratch);
  const bsrg_structure *stored = a.order ? args->a->original : args->a;
  bsrg_cpu_clear_edges(&stored->view, args->out, ops->element_size);
  return BSRG_OK;
}
