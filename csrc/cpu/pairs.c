/* BSR x BSR on the CPU: a group of up to BSRG_GROUP_ROWS output rows and a panel of a block column of B at a time, whose
 * sums stay in L1 while the block column passes by. Each of its blocks is brought into the form that the register tiles
 * read, unless it has that already, and multiplied with the blocks of A that meet it in the group's rows.
 *
 * The order of a sum is that of the block column: neither the number of threads nor who did what changes it. */
#include <stdatomic.h>
#include <string.h>

#include "cpu.h"

/* Of a row of Y, that a thread writes one after the other. */
enum { RUN_BYTES = 512 };

typedef struct pairs_job {
  const bsrg_matmul_sparse_args *args;
  bsrg_cpu_ops ops;
  bsrg_structure_view a, bt;       /* bt: B transposed, whose rows are the block columns of B */
  int64_t item_size;               /* of all operands; elements of ops may be pairs along k */
  bool copies_a, direct;           /* blocks of A are copied; panels of B are read where they lie */
  int64_t height, depth, width;    /* of blocks: A's height and width, B's width; depth in elements of ops */
  int64_t group_blocks, pieces;    /* block rows of a group, or groups of a block row; one of them is 1 */
  int64_t groups, panels, vectors; /* panels of a block column, vectors of it */
  int64_t items, run;              /* groups times all panels; how many a thread takes at a time */
  int64_t panel_width;             /* sums in a row of the widest panel */
  int64_t segment_blocks,
      piece_depth; /* blocks, and k of a block, that are summed before being added to totals */
  char *slots;
  size_t slot_bytes, partial_at, b_at, a_at;
  _Atomic int64_t next;
} pairs_job;

typedef struct worker {
  const pairs_job *job;
  char *totals, *partial; /* [rows][width]; the same where every segment is one block or less */
  char *b, *a;            /* a block's panel, and rows, as the tiles read them */
  int64_t first_block, blocks, first_row,
      rows; /* of the group; first_row: in its block row; rows: of a block row */
  int64_t first_column, columns, width, panel_vectors; /* of the panel; first_column: in its block column */
} worker;

/* The block of values that is block p of a view. */
static int64_t stored(const bsrg_structure_view *view, int64_t p) { return view->order ? view->order[p] : p; }

/* Sets where a run finds the rows of B's block from k on. */
static void find_b(const worker *w, int64_t block, int64_t k, bsrg_tile_run *run) {
  const pairs_job *job = w->job;
  const bool turned = job->bt.order == NULL; /* B itself is a view: what is stored is its transposed */
  const int64_t element_k = job->ops.element_k, depth = job->depth * element_k;
  const int64_t row_stride = turned ? 1 : job->width, col_stride = turned ? depth : 1;
  const char *source =
      (const char *)job->args->b_values +
      (block * depth * job->width + k * element_k * row_stride + w->first_column * col_stride) *
          job->item_size;
  if (job->direct) {
    run->b = source;
    run->b_row_stride = row_stride;
    return;
  }
  job->ops.pack(w->b, w->width, source, row_stride, col_stride, run->depth, w->columns);
  run->b = w->b;
  run->b_row_stride = w->width;
}

static void find_a(const worker *w, int64_t block, int64_t k, bsrg_tile_run *run) {
  const pairs_job *job = w->job;
  const bsrg_cpu_ops *ops = &job->ops;
  const bool turned = job->a.order != NULL;
  const int64_t depth = job->depth * ops->element_k, first_k = k * ops->element_k;
  const int64_t first = turned ? first_k * job->height + w->first_row : w->first_row * depth + first_k;
  const char *source =
      (const char *)job->args->a_values + (block * job->height * depth + first) * job->item_size;
  run->a = job->copies_a ? w->a : source;
  run->a_row_stride = turned ? 1 : job->depth;
  run->a_k_stride = turned ? job->height : 1;
  if (!job->copies_a) return;
  if (turned) {
    run->a_k_stride = bsrg_transposed_stride(ops, w->rows);
    bsrg_copy_transposed(ops, w->a, source, job->height, run->depth, w->rows);
  } else {
    run->a_row_stride = run->depth;
    ops->widen(w->a, source, job->depth, w->rows, run->depth);
  }
}

/* partial += A's block, of the group's block row i, times the rows of B that the run knows. */
static void multiply_block(const worker *w, int64_t i, int64_t block, int64_t k, bsrg_tile_run run) {
  const bsrg_cpu_ops *ops = &w->job->ops;
  find_a(w, block, k, &run);
  const char *a = run.a;
  char *sums = w->partial + i * w->rows * w->width * ops->sum_size;
  int64_t tiles = bsrg_ceil_div(w->rows, ops->tile_rows);
  for (int64_t r = 0; r < w->rows; tiles--) {
    const int64_t rows = bsrg_ceil_div(w->rows - r, tiles);
    run.a = a + r * run.a_row_stride * ops->sum_size;
    run.sums = sums + r * w->width * ops->sum_size;
    ops->tile[(w->panel_vectors - 1) * ops->tile_rows + rows - 1](&run);
    r += rows;
  }
}

/* found[i]: the block of values that block row i of the group has in block column k, or -1. Cursors only advance.
 * Whether there is any. *next: the first block column from k on in which some row has one; INT32_MAX: none. */
static bool find_row_blocks(const worker *w, int32_t k, int64_t *cursors, int64_t *found, int32_t *next) {
  const bsrg_structure_view *a = &w->job->a;
  bool any = false;
  *next = INT32_MAX;
  for (int64_t i = 0; i < w->blocks; i++) {
    const int64_t end = a->indptr[w->first_block + i + 1];
    int64_t p = cursors[i];
    while (p < end && a->indices[p] < k) p++;
    cursors[i] = p;
    const bool meets = p < end && a->indices[p] == k;
    found[i] = meets ? stored(a, p) : -1;
    if (p < end && a->indices[p] < *next) *next = a->indices[p];
    any |= meets;
  }
  return any;
}

static void add_partial(const worker *w) {
  const int64_t count = w->blocks * w->rows * w->width;
  if (w->partial == w->totals) return;
  if (w->job->ops.sum_size == sizeof(float)) {
    float *totals = (float *)(void *)w->totals, *partial = (float *)(void *)w->partial;
    for (int64_t i = 0; i < count; i++) totals[i] += partial[i];
  } else {
    double *totals = (double *)(void *)w->totals, *partial = (double *)(void *)w->partial;
    for (int64_t i = 0; i < count; i++) totals[i] += partial[i];
  }
  memset(w->partial, 0, (size_t)(count * w->job->ops.sum_size));
}

/* The first of blocks begin .. end - 1, which ascend, in a block column of at least k; `end` if there is none. It is near as a
 * rule. */
static int64_t first_from(const bsrg_structure_view *v, int64_t begin, int64_t end, int32_t k) {
  int64_t step = 1;
  while (begin + step < end && v->indices[begin + step] < k) {
    begin += step;
    step *= 2;
  }
  end = bsrg_min(end, begin + step);
  while (begin < end) {
    const int64_t middle = begin + (end - begin) / 2;
    if (v->indices[middle] < k)
      begin = middle + 1;
    else
      end = middle;
  }
  return begin;
}

static void multiply_column(const worker *w, int64_t block_col) {
  const pairs_job *job = w->job;
  int64_t cursors[BSRG_GROUP_ROWS], found[BSRG_GROUP_ROWS];
  const int64_t zero = 0, one = 1;
  const int32_t only = 0;
  memcpy(cursors, job->a.indptr + w->first_block, (size_t)w->blocks * sizeof *cursors);
  const size_t bytes = (size_t)(w->blocks * w->rows * w->width * job->ops.sum_size);
  memset(w->totals, 0, bytes);
  memset(w->partial, 0, bytes);
  int64_t summed = 0;
  for (int64_t p = job->bt.indptr[block_col]; p < job->bt.indptr[block_col + 1]; p++) {
    int32_t next_k;
    if (!find_row_blocks(w, job->bt.indices[p], cursors, found, &next_k)) {
      if (next_k == INT32_MAX) break;
      p = first_from(&job->bt, p + 1, job->bt.indptr[block_col + 1], next_k) - 1;
      continue;
    }
    const int64_t depth = bsrg_cols_of(&job->a, job->bt.indices[p]) / job->ops.element_k;
    const int64_t next_block = stored(&job->bt, bsrg_min(p + 1, job->bt.indptr[block_col + 1] - 1));
    const uintptr_t next = (uintptr_t)job->args->b_values +
                           (uintptr_t)(next_block * job->depth * job->width * job->ops.element_size);
    for (int64_t k = 0; k < depth; k += job->piece_depth) {
      bsrg_tile_run run = {.count = 1,
                           .begin = &zero,
                           .end = &one,
                           .segment_blocks = 1,
                           .depth = bsrg_min(job->piece_depth, depth - k),
                           .columns = &only,
                           .sums_stride = w->width,
                           .add = true};
      find_b(w, stored(&job->bt, p), k, &run);
      run.ahead = next; /* B passes by from L3 or memory */
      run.ahead_step = job->width * job->ops.element_size;
      for (int64_t i = 0; i < w->blocks; i++)
        if (found[i] >= 0) multiply_block(w, i, found[i], k, run);
    }
    if (++summed % job->segment_blocks == 0) add_partial(w);
  }
  add_partial(w);
}

static void finish(const worker *w, int64_t block_col) {
  const bsrg_matmul_sparse_args *args = w->job->args;
  const int64_t size = w->job->item_size;
  const int64_t row = w->first_block * w->job->height + w->first_row;
  const int64_t column = block_col * w->job->width + w->first_column;
  bsrg_finish_run run = {
      .sums = w->totals,
      .sums_stride = w->width,
      .rows = bsrg_min(w->blocks * w->rows, args->y.rows - row),
      .columns = w->columns,
      .alpha = args->alpha,
      .beta = args->beta,
      .y = (char *)args->y.data + (row * args->y.row_stride + column * args->y.col_stride) * size,
      .y_row_stride = args->y.row_stride,
      .y_col_stride = args->y.col_stride};
  if (args->beta != 0) {
    run.c = (const char *)args->c.data + (row * args->c.row_stride + column * args->c.col_stride) * size;
    run.c_row_stride = args->c.row_stride;
    run.c_col_stride = args->c.col_stride;
  }
  w->job->ops.finish(&run);
}

/* A group's product with a panel. */
static void multiply_item(worker *w, int64_t item) {
  const pairs_job *job = w->job;
  const int64_t across = job->bt.block_rows * job->panels;
  const int64_t base = job->vectors / job->panels, wider = job->vectors % job->panels;
  const int64_t group = item / across, block_col = item % across / job->panels, panel = item % job->panels;
  w->first_block = group / job->pieces * job->group_blocks;
  w->blocks = bsrg_min(job->group_blocks, job->a.block_rows - w->first_block);
  w->first_row = group % job->pieces * BSRG_GROUP_ROWS;
  /* Short block rows come as wholes, with rows beyond the matrix that are not written. */
  const int64_t height = job->pieces > 1 ? bsrg_rows_of(&job->a, w->first_block) : job->height;
  w->rows = bsrg_min(BSRG_GROUP_ROWS, height - w->first_row);
  /* The first panels have one vector more when they cannot all have the same. */
  w->panel_vectors = base + (panel < wider);
  w->first_column = (panel * base + bsrg_min(panel, wider)) * job->ops.lanes;
  w->width = w->panel_vectors * job->ops.lanes;
  w->columns = bsrg_min(w->width, bsrg_rows_of(&job->bt, block_col) - w->first_column);
  if (w->rows <= 0 || w->columns <= 0) return;
  multiply_column(w, block_col);
  finish(w, block_col);
}

static void pairs_task(void *context, int slot) {
  pairs_job *job = context;
  char *memory = job->slots + (size_t)slot * job->slot_bytes;
  worker w = {.job = job,
              .totals = memory,
              .partial = memory + job->partial_at,
              .b = memory + job->b_at,
              .a = memory + job->a_at};
  int64_t item;
  while ((item = atomic_fetch_add(&job->next, job->run)) < job->items)
    for (const int64_t end = bsrg_min(item + job->run, job->items); item < end; item++)
      multiply_item(&w, item);
}

static void plan(pairs_job *job) {
  const bsrg_cpu_ops *ops = &job->ops;
  job->height = job->a.block_height;
  job->depth = job->a.block_width / ops->element_k;
  job->width = job->bt.block_height;
  const bool widens = ops->element_size != ops->sum_size, pairs = ops->element_k > 1;
  job->copies_a = widens || (pairs && job->a.order);
  job->direct = !widens && !pairs && job->bt.order && job->width % ops->lanes == 0;
  job->group_blocks = bsrg_max(1, BSRG_GROUP_ROWS / job->height);
  /* Blocks may reach far beyond the matrix. */
  job->pieces = bsrg_ceil_div(bsrg_min(job->height, job->a.rows), BSRG_GROUP_ROWS);
  job->groups = bsrg_ceil_div(job->a.block_rows, job->group_blocks) * job->pieces;
  job->vectors = bsrg_ceil_div(bsrg_min(job->width, job->bt.rows), ops->lanes);
  job->panels = bsrg_ceil_div(job->vectors, ops->tile_vectors);
  job->panel_width = bsrg_ceil_div(job->vectors, job->panels) * ops->lanes;
  job->items = job->groups * job->bt.block_rows * job->panels;
  /* Threads would take cache lines of Y from one another that they both have columns of. */
  const int64_t columns = bsrg_min(job->panel_width, job->width);
  job->run = bsrg_ceil_div(RUN_BYTES, columns * job->item_size);
  const int64_t segment = BSRG_SEGMENT_K / ops->element_k;
  job->segment_blocks = bsrg_max(1, segment / job->depth);
  job->piece_depth = bsrg_ceil_div(job->depth, bsrg_ceil_div(job->depth, segment));

  const int64_t sums = BSRG_GROUP_ROWS * job->panel_width * ops->sum_size;
  size_t end = 0;
  bsrg_reserve(&end, sums);
  job->partial_at = job->segment_blocks > 1 ? bsrg_reserve(&end, sums) : 0;
  job->b_at = bsrg_reserve(&end, job->direct ? 0 : job->piece_depth * job->panel_width * ops->sum_size);
  job->a_at = bsrg_reserve(&end, job->copies_a ? job->piece_depth * BSRG_GROUP_ROWS * ops->sum_size : 0);
  job->slot_bytes = end;
}

bsrg_status bsrg_cpu_matmul_sparse(const bsrg_matmul_sparse_args *args, bsrg_error *error) {
  if (bsrg_cpu_spread_pays(args)) {
    bool begun = false;
    const bsrg_status status = bsrg_cpu_spread(args, &begun, error);
    if (status != BSRG_ERR_MEMORY || begun) return status;
  }
  bsrg_structure *bt;
  const bsrg_status status = bsrg_structure_transposed(args->b, &bt, error);
  if (status != BSRG_OK) return status;
  const bsrg_structure_view a = bsrg_structure_get(args->a);
  pairs_job job = {.args = args,
                   .ops = bsrg_cpu_tile_ops(args->dtype, bsrg_has_whole_pairs(&a)),
                   .item_size = (int64_t)bsrg_dtype_size(args->dtype),
                   .a = a,
                   .bt = bsrg_structure_get(bt)};
  plan(&job);
  /* Multiply-adds of vectors if blocks meet as often as in random patterns, and the epilogue. */
  const double met = (double)job.a.nnzb * (double)job.bt.nnzb / (double)bsrg_max(1, job.a.block_cols);
  const double tile = (double)job.height * (double)job.vectors;
  const double cost =
      met * tile * (double)job.depth + tile * (double)job.a.block_rows * (double)job.bt.block_rows;
  const int threads = bsrg_cpu_threads(cost);
  const size_t bytes = job.slot_bytes * (size_t)threads;
  job.slots = bsrg_scratch_take(bytes);
  if (!job.slots) {
    return bsrg_fail(error, BSRG_ERR_MEMORY, "no memory for %zu bytes of scratch space of %d threads", bytes,
                     threads);
  }
  bsrg_run_parallel(pairs_task, &job, threads);
  bsrg_scratch_give(job.slots);
  return BSRG_OK;
}
