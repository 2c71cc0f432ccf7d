/* Sampled products: dense x dense at the stored blocks, by the register tiles of panel.c.
 *
 * A unit of work is some rows of one block row by a panel: up to the columns of the widest tile, which are a part of one
 * block or several narrow blocks side by side. For a chunk of k at a time, the panel's columns of B are packed, and so are
 * the rows of A unless they can be read in place; the tiles then add to the unit's sums. Threads draw units from a
 * counter. Each element is summed in an order that the shapes alone fix. */
#include <stdatomic.h>
#include <string.h>

#include "../dense.h"
#include "../edges.h"
#include "cpu.h"

/* Of a unit: so many use what is packed of B. */
enum { UNIT_ROWS = 2 * BSRG_GROUP_ROWS };

typedef struct sampled_job {
  const bsrg_sampled_args *args;
  bsrg_cpu_ops ops;
  int64_t item_size; /* of A, B and what is stored; elements of ops may be pairs along k */
  int64_t inner;     /* k, in elements of ops */
  bsrg_structure_view pattern;
  int64_t width;      /* of the widest panel */
  int64_t blocks;     /* of a panel, where blocks are narrower than it; else 1 */
  int64_t parts;      /* of a block across, one a panel */
  int64_t row_groups; /* of a block down */
  int64_t units;
  char *slots; /* scratch memory, one slot a thread */
  size_t slot_bytes, b_at, raw_at, sums_at;
  _Atomic int64_t next;
} sampled_job;

typedef struct worker {
  const sampled_job *job;
  char *a, *b, *raw, *sums; /* chunks of A and B, B's elements before they are widened, sums of a unit */
} worker;

/* Blocks of one block row, or a part of one, by some of its rows. */
typedef struct unit {
  int64_t block_row, first_row, rows; /* first_row: in the block row */
  int64_t block, blocks;
  int64_t offset, across; /* the columns of each block */
  int64_t width;          /* of the sums: whole vectors */
} unit;

static const char *element_of(const sampled_job *job, const bsrg_dense *dense, int64_t row, int64_t column) {
  return (const char *)dense->data + (row * dense->row_stride + column * dense->col_stride) * job->item_size;
}

/* ---- One unit ------------------------------------------------------------------------------------------ */

/* Calls of memcpy would cost more than what narrow blocks have in a row. */
static inline void copy_run(char *target, const char *source, int64_t bytes) {
  if (bytes == 64) {
    memcpy(target, source, 64);
  } else if (bytes == 32) {
    memcpy(target, source, 32);
  } else if (bytes == 16) {
    memcpy(target, source, 16);
  } else {
    memcpy(target, source, (size_t)bytes);
  }
}

/* Narrow blocks' columns of B side by side, in rows of `pitch` bytes: whole vectors can be made of these. Rows of B lie far
 * apart, so that the processor's own prefetchers do not see them coming. */
static void gather_b(const worker *w, const unit *u, int64_t k, int64_t depth, char *to, int64_t pitch) {
  enum { AHEAD = 16 };
  const sampled_job *job = w->job;
  const bsrg_dense *b = &job->args->b;
  const int64_t size = job->item_size;
  for (int64_t i = 0; i < u->blocks; i++) {
    const char *source = element_of(job, b, k, job->pattern.indices[u->block + i] * job->pattern.block_width);
    char *target = to + i * u->across * size;
    for (int64_t row = 0; row < depth; row++, source += b->row_stride * size, target += pitch) {
      if (row + AHEAD < depth) __builtin_prefetch(source + AHEAD * b->row_stride * size);
      if (b->col_stride == 1) {
        copy_run(target, source, u->across * size);
        continue;
      }
      for (int64_t j = 0; j < u->across; j++)
        memcpy(target + j * size, source + j * b->col_stride * size, (size_t)size);
    }
  }
}

static void pack_b(const worker *w, const unit *u, int64_t k, int64_t depth) {
  const sampled_job *job = w->job;
  const bsrg_dense *b = &job->args->b;
  const int64_t element_k = job->ops.element_k;
  if (u->blocks > 1) {
    const int64_t columns = u->blocks * u->across, size = job->item_size;
    if (columns == u->width && size == job->ops.sum_size) {
      gather_b(w, u, k, depth, w->b, columns * size);
    } else {
      gather_b(w, u, k * element_k, depth * element_k, w->raw, columns * size);
      job->ops.pack(w->b, u->width, w->raw, columns, 1, depth, columns);
    }
    return;
  }
  const int64_t column = job->pattern.indices[u->block] * job->pattern.block_width + u->offset;
  job->ops.pack(w->b, u->width, element_of(job, b, k * element_k, column), b->row_stride, b->col_stride,
                depth, u->across);
}

/* Sets where the tiles find the unit's rows of A: in place, or packed with what is adjacent in memory kept adjacent. */
static void find_a(const worker *w, const unit *u, int64_t k, bsrg_tile_run *run) {
  const bsrg_cpu_ops *ops = &w->job->ops;
  const bsrg_dense *a = &w->job->args->a;
  const char *source =
      element_of(w->job, a, u->block_row * w->job->pattern.block_height + u->first_row, k * ops->element_k);
  run->a = w->a;
  run->a_row_stride = run->depth;
  run->a_k_stride = 1;
  if (a->col_stride == 1 && ops->element_size == ops->sum_size) {
    run->a = source;
    run->a_row_stride = a->row_stride / ops->element_k;
  } else if (a->col_stride == 1) {
    ops->widen(w->a, source, a->row_stride, u->rows, run->depth);
  } else if (a->row_stride == 1) {
    run->a_row_stride = 1;
    run->a_k_stride = bsrg_ceil_div(u->rows, ops->lanes) * ops->lanes;
    ops->pack(w->a, run->a_k_stride, source, a->col_stride, 1, run->depth, u->rows);
  } else {
    for (int64_t r = 0; r < u->rows; r++)
      ops->pack_column(w->a + r * run->depth * ops->sum_size, source + r * a->row_stride * ops->element_size,
                       a->col_stride, run->depth);
  }
}

static void multiply_unit(const worker *w, const unit *u) {
  const bsrg_cpu_ops *ops = &w->job->ops;
  const int64_t zero = 0, one = 1, vectors = u->width / ops->lanes, inner = w->job->inner;
  const int32_t column = 0;
  if (inner == 0) memset(w->sums, 0, (size_t)(u->rows * u->width * ops->sum_size));
  bsrg_tile_run run = {.count = 1,
                       .begin = &zero,
                       .end = &one,
                       .segment_blocks = 1,
                       .b = w->b,
                       .b_row_stride = u->width,
                       .columns = &column,
                       .sums_stride = u->width,
                       .ahead = (uintptr_t)w->a}; /* all that is read is close already */
  for (int64_t k = 0; k < inner; k += run.depth) {
    run.depth = bsrg_min(BSRG_SEGMENT_K / ops->element_k, inner - k);
    run.add = k > 0;
    pack_b(w, u, k, run.depth);
    find_a(w, u, k, &run);
    const char *a = run.a;
    int64_t tiles = bsrg_ceil_div(u->rows, ops->tile_rows);
    for (int64_t r = 0; r < u->rows; tiles--) {
      const int64_t rows = bsrg_ceil_div(u->rows - r, tiles);
      run.a = a + r * run.a_row_stride * ops->sum_size;
      run.sums = w->sums + r * u->width * ops->sum_size;
      ops->tile[(vectors - 1) * ops->tile_rows + rows - 1](&run);
      r += rows;
    }
  }
}

/* out = alpha * sums + beta * values, block by block. */
static void finish_unit(const worker *w, const unit *u) {
  const bsrg_sampled_args *args = w->job->args;
  const bsrg_cpu_ops *ops = &w->job->ops;
  const int64_t block_width = w->job->pattern.block_width, block_height = w->job->pattern.block_height;
  for (int64_t i = 0; i < u->blocks; i++) {
    for (int64_t r = 0; r < u->rows; r += BSRG_GROUP_ROWS) {
      const int64_t element = ((u->block + i) * block_height + u->first_row + r) * block_width + u->offset;
      bsrg_finish_run run = {.sums = w->sums + (r * u->width + i * u->across) * ops->sum_size,
                             .sums_stride = u->width,
                             .rows = bsrg_min(BSRG_GROUP_ROWS, u->rows - r),
                             .columns = u->across,
                             .alpha = args->alpha,
                             .beta = args->beta,
                             .y = (char *)args->out + element * w->job->item_size,
                             .y_row_stride = block_width,
                             .y_col_stride = 1};
      if (args->beta != 0) {
        run.c = (const char *)args->values + element * w->job->item_size;
        run.c_row_stride = block_width;
        run.c_col_stride = 1;
      }
      ops->finish(&run);
    }
  }
}

/* ---- Units --------------------------------------------------------------------------------------------- */

/* The block row of a stored block. */
static int64_t row_of(const bsrg_structure_view *pattern, int64_t block) {
  int64_t low = 0, high = pattern->block_rows - 1; /* the last row that begins no later */
  while (low < high) {
    const int64_t middle = high - (high - low) / 2;
    if (pattern->indptr[middle] <= block) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

/* Sets the columns of a part of a block: as many vectors as the other parts have, or one more. */
static void set_part(const sampled_job *job, int64_t part, unit *u) {
  const int64_t lanes = job->ops.lanes, block_width = job->pattern.block_width;
  const int64_t vectors = bsrg_ceil_div(block_width, lanes);
  const int64_t base = vectors / job->parts, wider = vectors % job->parts;
  u->offset = (part * base + bsrg_min(part, wider)) * lanes;
  u->across = bsrg_min((base + (part < wider)) * lanes, block_width - u->offset);
}

static void take_unit(const worker *w, int64_t index) {
  const sampled_job *job = w->job;
  const bsrg_structure_view *pattern = &job->pattern;
  const int64_t group = index % job->row_groups, panel = index / job->row_groups;
  unit u = {.first_row = group * UNIT_ROWS};
  set_part(job, panel % job->parts, &u);
  const int64_t across = u.across;
  const int64_t begin = panel / job->parts * job->blocks;
  const int64_t end = bsrg_min(begin + job->blocks, pattern->nnzb);
  u.block_row = row_of(pattern, begin);
  for (u.block = begin; u.block < end; u.block += u.blocks) {
    while (pattern->indptr[u.block_row + 1] <= u.block) u.block_row++;
    u.blocks = bsrg_whole_run(pattern, u.block, bsrg_min(end, pattern->indptr[u.block_row + 1]) - u.block);
    u.rows = bsrg_min(UNIT_ROWS, bsrg_rows_of(pattern, u.block_row) - u.first_row);
    u.across = bsrg_min(across, bsrg_cols_of(pattern, pattern->indices[u.block]) - u.offset);
    if (u.rows <= 0 || u.across <= 0) continue; /* beyond the matrix */
    u.width = bsrg_ceil_div(u.blocks * u.across, job->ops.lanes) * job->ops.lanes;
    multiply_unit(w, &u);
    finish_unit(w, &u);
  }
}

static void sampled_task(void *context, int slot) {
  sampled_job *job = context;
  char *memory = job->slots + (size_t)slot * job->slot_bytes;
  const worker w = {job, memory, memory + job->b_at, memory + job->raw_at, memory + job->sums_at};
  int64_t index;
  while ((index = atomic_fetch_add(&job->next, 1)) < job->units) take_unit(&w, index);
}

/* Decides all that depends on the operands' elements and the pattern, which the job has already. */
static void plan(sampled_job *job) {
  const bsrg_cpu_ops *ops = &job->ops;
  const int64_t block_height = job->pattern.block_height, block_width = job->pattern.block_width;
  job->width = ops->tile_vectors * ops->lanes;
  job->inner = job->args->a.cols / ops->element_k;
  job->blocks = bsrg_max(1, job->width / block_width);
  job->parts = bsrg_ceil_div(bsrg_ceil_div(block_width, ops->lanes), ops->tile_vectors);
  job->row_groups = bsrg_ceil_div(block_height, UNIT_ROWS);
  job->units = bsrg_ceil_div(job->pattern.nnzb, job->blocks) * job->parts * job->row_groups;
  bsrg_reserve(&job->slot_bytes, UNIT_ROWS * BSRG_SEGMENT_K * ops->sum_size);
  job->b_at = bsrg_reserve(&job->slot_bytes, BSRG_SEGMENT_K * job->width * ops->sum_size);
  job->raw_at = bsrg_reserve(&job->slot_bytes, BSRG_SEGMENT_K * job->width * job->item_size);
  job->sums_at = bsrg_reserve(&job->slot_bytes, UNIT_ROWS * job->width * ops->sum_size);
}

/* ---- Entry --------------------------------------------------------------------------------------------- */

/* Whether k can be dealt into pairs, and these are read in place or packed. */
static bool has_whole_pairs(const bsrg_dense *a) {
  return a->cols % 2 == 0 && (a->col_stride == 1 ? a->row_stride % 2 == 0 : a->row_stride == 1);
}

/* Operands are packed anew for each unit. Where their rows are no adjacent elements, that is slow, so that a copy pays as soon as
 * each element is packed once or more. used: rows of A or columns of B, by as many stored blocks, of `all`. Rows or columns that
 * are one in memory are not multiplied in number. */
static bool pays_to_copy(const bsrg_dense *dense, int64_t used, int64_t all) {
  return dense->col_stride != 1 && used >= all && dense->row_stride != 0 && dense->col_stride != 0;
}

static bsrg_dense dense_of(const bsrg_tensor *t) {
  return (bsrg_dense){t->data, t->rows, t->size, t->row_stride, t->element_stride};
}

static bsrg_status multiply(const bsrg_sampled_args *args, bool copy_a, bool copy_b, bsrg_error *error) {
  const int64_t item_size = (int64_t)bsrg_dtype_size(args->dtype);
  const bsrg_tensor a = bsrg_dense_tensor(&args->a), b = bsrg_dense_tensor(&args->b);
  bsrg_tensor a_on = copy_a ? bsrg_cpu_in_rows(&a) : a, b_on = copy_b ? bsrg_cpu_in_rows(&b) : b;
  const size_t b_at = copy_a ? bsrg_cpu_rows_bytes(&a_on, item_size) : 0,
               slots_at = b_at + (copy_b ? bsrg_cpu_rows_bytes(&b_on, item_size) : 0);
  bsrg_sampled_args on = *args;
  on.a = dense_of(&a_on);
  sampled_job job = {.args = &on,
                     .ops = bsrg_cpu_tile_ops(args->dtype, has_whole_pairs(&on.a)),
                     .item_size = item_size,
                     .pattern = bsrg_structure_get(args->pattern)};
  plan(&job);
  const double vectors = (double)job.pattern.nnzb * (double)job.pattern.block_width / (double)job.ops.lanes;
  int threads = bsrg_cpu_threads((double)job.pattern.block_height * vectors * ((double)args->a.cols + 1));
  threads = (int)bsrg_min(threads, job.units);
  const size_t bytes = slots_at + job.slot_bytes * (size_t)threads;
  char *scratch = bsrg_scratch_take(bytes);
  if (!scratch)
    return bsrg_fail(error, BSRG_ERR_MEMORY, "no memory for %zu bytes of scratch space of %d threads", bytes,
                     threads);
  if (copy_a) bsrg_cpu_copy_rows(&a, &a_on, scratch, item_size);
  if (copy_b) bsrg_cpu_copy_rows(&b, &b_on, scratch + b_at, item_size);
  on.a = dense_of(&a_on);
  on.b = dense_of(&b_on);
  job.slots = scratch + slots_at;
  bsrg_run_parallel(sampled_task, &job, threads);
  bsrg_scratch_give(scratch);
  bsrg_cpu_clear_edges(&job.pattern, args->out, item_size);
  return BSRG_OK;
}

bsrg_status bsrg_cpu_sampled(const bsrg_sampled_args *args, bsrg_error *error) {
  const bsrg_structure_view pattern = bsrg_structure_get(args->pattern);
  const bool copy_a = args->a.row_stride != 1 &&
                      pays_to_copy(&args->a, pattern.nnzb * pattern.block_height, pattern.rows),
             copy_b = pays_to_copy(&args->b, pattern.nnzb * pattern.block_width, pattern.cols);
  const bsrg_status status = multiply(args, copy_a, copy_b, error);
  return status == BSRG_ERR_MEMORY && (copy_a || copy_b) ? multiply(args, false, false, error) : status;
}
