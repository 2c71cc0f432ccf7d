/* Products by panels: a few vectors of columns of X at a time, kept in cache while all of A passes by.
 *
 * A panel's rows of X are read from one of three places. PACKED: copied, in the accumulator's type, into a
 * buffer that stays in L2 while many block rows use it; a deep X takes several such chunks of k, and the
 * sums of a range of rows wait in between. GATHERED: copied for each block row just before use, when X is
 * so deep and A so sparse that packing whole chunks would cost more. DIRECT: read where it lies.
 *
 * Threads take whole panels first. When none is left they help with those still in work, range of rows by
 * range of rows, so that one wide matrix, one narrow one and a few skewed rows all keep every thread busy. */
#include <stdatomic.h>
#include <string.h>

#include "panel.h"

typedef struct worker {
  bsrg_panel_job *job;
  void *b;          /* the packed chunk, or gathered rows */
  char *sums;       /* of a group, or of a pass */
  void *a;          /* copied blocks */
  int64_t *cursors; /* of each block row of a pass: where its next chunk begins */
  int64_t first_vector, panel_vectors, columns, width; /* of the present panel */
  int64_t direct_end; /* block columns before this one are read in place, all vectors being X's own memory */
} worker;

/* Up to BSRG_GROUP_ROWS rows of one block row, and the blocks of it that are multiplied. */
typedef struct group {
  int64_t unit_end;
  int64_t block_row, first, rows; /* first: in the block row; rows: none beyond the matrix */
  int64_t begin, end;
  int64_t next; /* the element of values at which the next group begins */
} group;

static group group_at(const bsrg_structure_view *a, int64_t unit, int64_t unit_end) {
  const int64_t per_block = bsrg_units_per_block(a);
  group g = {.block_row = unit / per_block, .first = unit % per_block * BSRG_UNIT_ROWS};
  g.unit_end = bsrg_min(unit + BSRG_GROUP_ROWS / BSRG_UNIT_ROWS, (g.block_row + 1) * per_block);
  g.unit_end = bsrg_min(g.unit_end, unit_end);
  g.rows = bsrg_min((g.unit_end - unit) * BSRG_UNIT_ROWS, bsrg_rows_of(a, g.block_row) - g.first);
  g.rows = bsrg_max(g.rows, 0);
  return g;
}

/* The element of values at which the group at `unit` begins, when its first block is `block`. */
static int64_t element_at(const bsrg_structure_view *a, int64_t unit, int64_t block) {
  return (block * a->block_height + unit % bsrg_units_per_block(a) * BSRG_UNIT_ROWS) * a->block_width;
}

static const char *x_at(const bsrg_panel_job *job, int64_t row, int64_t column) {
  const bsrg_dense *x = &job->args->x;
  row *= job->ops->element_k;
  return (const char *)x->data + (row * x->row_stride + column * x->col_stride) * job->item_size;
}

static void pack_rows(const worker *w, void *destination, int64_t first, int64_t rows) {
  const bsrg_dense *x = &w->job->args->x;
  w->job->ops->pack(destination, w->width, x_at(w->job, first, w->first_vector * w->job->ops->lanes),
                    x->row_stride, x->col_stride, rows, w->columns);
}

/* ---- One group of rows --------------------------------------------------------------------------------- */

/* As find_a, where A is the transposed of what is stored: its blocks lie anywhere, the rows of each beside one another.
 * A single block is read in place, several are copied as they lie. The processor's own prefetchers see all that coming. */
static void find_transposed_a(const worker *w, const group *g, int64_t p, int64_t count, int64_t k,
                              bsrg_tile_run *run) {
  const bsrg_panel_job *job = w->job;
  const int64_t height = job->a.block_height, area = height * job->a.block_width;
  const int64_t element_size = job->ops->element_size;
  const char *values =
      (const char *)job->args->values + k * height * element_size + g->first * job->item_size;
  run->a_row_stride = 1;
  run->ahead = (uintptr_t)w->a;
  run->ahead_step = run->ahead_block_stride = 0;
  if (count == 1 && job->in_place) {
    run->a = values + job->a.order[p] * area * element_size;
    run->a_k_stride = height;
    return;
  }
  run->a = w->a;
  run->a_k_stride = bsrg_transposed_stride(job->ops, g->rows);
  run->a_block_stride = run->depth * run->a_k_stride;
  for (int64_t i = 0; i < count; i++) {
    bsrg_copy_transposed(job->ops, (char *)w->a + i * run->a_block_stride * job->ops->sum_size,
                         values + job->a.order[p + i] * area * element_size, height, run->depth, g->rows);
  }
}

/* Sets where a segment finds A: blocks [p, p + count) from k on, in place or copied. ahead_step is for one row. */
static void find_a(const worker *w, const group *g, int64_t p, int64_t count, int64_t k, bsrg_tile_run *run) {
  const bsrg_panel_job *job = w->job;
  if (job->a.order) {
    find_transposed_a(w, g, p, count, k, run);
    return;
  }
  const int64_t width = job->a.block_width, area = job->a.block_height * width;
  const int64_t element_size = job->ops->element_size;
  const int64_t element = p * area + g->first * width;
  const char *values = (const char *)job->args->values + (element + k) * element_size;
  /* Of a block cut into pieces, the next one's rows are fetched one after the other instead of piece by
   * piece: all of them in time. */
  const int64_t next = p + count < g->end ? element + count * area : g->next;
  run->ahead = (uintptr_t)job->args->values + (uintptr_t)((next + k * g->rows) * element_size);
  run->ahead_step = element_size;
  run->ahead_block_stride = area * element_size;
  run->a_k_stride = 1;
  if (!job->widen_a) {
    run->a = values;
    run->a_row_stride = width;
    run->a_block_stride = area;
    return;
  }
  run->a = w->a;
  run->a_row_stride = run->depth;
  run->a_block_stride = g->rows * run->depth;
  if (run->depth == width && g->rows == job->a.block_height) { /* whole blocks, one behind the other */
    job->ops->widen(w->a, values, count * area, 1, count * area);
    return;
  }
  for (int64_t i = 0; i < count; i++) {
    job->ops->widen((char *)w->a + i * run->a_block_stride * job->ops->sum_size,
                    values + i * area * element_size, width, g->rows, run->depth);
  }
}

/* The three places where a kernel finds its rows of X, from k on in each block. */
static void read_in_place(const worker *w, int64_t k, bsrg_tile_run *run) {
  run->b_row_stride = w->job->args->x.row_stride;
  run->b_block_stride = w->job->a.block_width * run->b_row_stride;
  run->b = x_at(w->job, k, w->first_vector * w->job->ops->lanes);
}

static void read_packed(const worker *w, int64_t first_column, int64_t k, bsrg_tile_run *run) {
  run->b_row_stride = w->width;
  run->b_block_stride = w->job->a.block_width * w->width;
  run->b = (const char *)w->b + k * w->width * w->job->ops->sum_size;
  run->first_column = (int32_t)first_column;
}

static void read_gathered(const worker *w, int64_t count, int64_t k, bsrg_tile_run *run) {
  run->b_row_stride = w->width;
  run->b_block_stride = run->depth * w->width;
  run->b = w->b;
  for (int64_t i = 0; i < count; i++) {
    pack_rows(w, (char *)w->b + i * run->b_block_stride * w->job->ops->sum_size,
              run->columns[i] * w->job->a.block_width + k, run->depth);
  }
  run->columns = w->job->identity;
}

/* The tile kernel of so many rows in the present panel. */
static bsrg_tile_kernel kernel_of(const worker *w, int64_t rows) {
  const bsrg_cpu_ops *ops = w->job->ops;
  return ops->tile[(w->panel_vectors - 1) * ops->tile_rows + rows - 1];
}

/* sums (=, or += when add) the group's product. first_column: where the packed chunk begins, in blocks. */
static void multiply_group(const worker *w, const group *g, int64_t first_column, char *sums, bool add) {
  const bsrg_panel_job *job = w->job;
  const bsrg_cpu_ops *ops = job->ops;
  if (g->begin == g->end) {
    if (!add) memset(sums, 0, (size_t)(g->rows * w->width * ops->sum_size));
    return;
  }
  const int64_t zero = 0;
  int64_t count;
  bsrg_tile_run run = {.count = 1,
                       .begin = &zero,
                       .end = &count,
                       .segment_blocks = job->segment_blocks,
                       .sums_stride = w->width,
                       .add = add};
  for (int64_t p = g->begin; p < g->end; p += count) {
    count = bsrg_whole_run(&job->a, p, bsrg_min(job->segment_blocks, g->end - p));
    const int64_t width = bsrg_cols_of(&job->a, job->a.indices[p]);
    for (int64_t k = 0; k < width; k += run.depth) {
      run.depth = bsrg_min(job->segment_depth, width - k);
      find_a(w, g, p, count, k, &run);
      run.columns = job->a.indices + p;
      if (job->source == BSRG_PANEL_PACKED) {
        read_packed(w, first_column, k, &run);
      } else if (run.columns[count - 1] < w->direct_end) {
        read_in_place(w, k, &run);
      } else {
        read_gathered(w, count, k, &run);
      }
      const char *a = run.a;
      const uintptr_t ahead = run.ahead;
      const int64_t ahead_item = run.ahead_step;
      int64_t tiles = bsrg_ceil_div(g->rows, ops->tile_rows);
      for (int64_t r = 0; r < g->rows; tiles--) {
        const int64_t rows = bsrg_ceil_div(g->rows - r, tiles);
        run.a = a + r * run.a_row_stride * ops->sum_size;
        run.ahead = ahead + (uintptr_t)(r * run.depth * ahead_item);
        run.ahead_step = rows * ahead_item;
        run.sums = sums + r * w->width * ops->sum_size;
        kernel_of(w, rows)(&run);
        r += rows;
      }
      run.add = true;
    }
  }
}

/* How many block rows from `block_row` on, of at most `count`, can be multiplied by one call of a kernel:
 * those whose rows of X are read where they lie, whole blocks of them. */
static int64_t together(const worker *w, int64_t block_row, int64_t count) {
  const bsrg_panel_job *job = w->job;
  if (!job->small) return 0;
  count = bsrg_min(count, BSRG_GROUP_ROWS / job->a.block_height);
  if (job->source == BSRG_PANEL_PACKED && job->whole_cols == job->a.block_cols) return count;
  const int64_t *end = job->a.indptr + block_row + 1;
  const int64_t last = job->source == BSRG_PANEL_PACKED ? job->whole_cols : w->direct_end;
  for (int64_t i = 0; i < count; i++) {
    if (end[i] > end[i - 1] && job->a.indices[end[i] - 1] >= last) return i;
  }
  return count;
}

static void multiply_together(const worker *w, int64_t block_row, int64_t count) {
  const bsrg_panel_job *job = w->job;
  const int64_t height = job->a.block_height, width = job->a.block_width, size = job->ops->element_size;
  bsrg_tile_run run = {
      .count = count,
      .begin = job->a.indptr + block_row,
      .end = job->a.indptr + block_row + 1,
      .segment_blocks = job->segment_blocks,
      .depth = width,
      .a = job->args->values,
      .a_row_stride = width,
      .a_k_stride = 1,
      .a_block_stride = height * width,
      .columns = job->a.indices,
      .sums = w->sums,
      .sums_stride = w->width,
      .ahead = (uintptr_t)job->args->values + (uintptr_t)(job->segment_blocks * height * width * size),
      .ahead_step = height * size,
      .ahead_block_stride = height * width * size};
  if (job->source == BSRG_PANEL_PACKED) {
    read_packed(w, 0, 0, &run);
  } else {
    read_in_place(w, 0, &run);
  }
  kernel_of(w, height)(&run);
}

static void finish_group(const worker *w, const group *g, const char *sums) {
  const bsrg_matmul_args *args = w->job->args;
  const int64_t size = w->job->item_size;
  const int64_t row = g->block_row * w->job->a.block_height + g->first;
  const int64_t column = w->first_vector * w->job->ops->lanes;
  bsrg_finish_run run = {
      .sums = sums,
      .sums_stride = w->width,
      .rows = g->rows,
      .columns = w->columns,
      .alpha = args->alpha,
      .beta = args->beta,
      .y = (char *)args->y.data + (row * args->y.row_stride + column * args->y.col_stride) * size,
      .y_row_stride = args->y.row_stride,
      .y_col_stride = args->y.col_stride,
      .epilogue = bsrg_epilogue_of(args),
      .first_row = row,
      .first_column = column};
  if (args->beta != 0) {
    run.c = (const char *)args->c.data + (row * args->c.row_stride + column * args->c.col_stride) * size;
    run.c_row_stride = args->c.row_stride;
    run.c_col_stride = args->c.col_stride;
  }
  w->job->ops->finish(&run);
}

/* ---- Ranges of row units ------------------------------------------------------------------------------- */

static void multiply_units(const worker *w, int64_t begin, int64_t end) {
  const bsrg_structure_view *a = &w->job->a;
  const int64_t per_block = bsrg_units_per_block(a);
  for (int64_t unit = begin; unit < end;) {
    group g = group_at(a, unit, end);
    const int64_t count = together(w, g.block_row, end - unit);
    if (count > 0) {
      /* The last block row, where it is partial, has sums beyond the matrix. */
      g.rows = bsrg_min(count * a->block_height, a->rows - g.block_row * a->block_height);
      multiply_together(w, g.block_row, count);
      finish_group(w, &g, w->sums);
      unit += count;
      continue;
    }
    g.begin = a->indptr[g.block_row];
    g.end = a->indptr[g.block_row + 1];
    g.next = element_at(a, g.unit_end, g.unit_end % per_block == 0 ? g.end : g.begin);
    unit = g.unit_end;
    if (g.rows == 0) continue;
    multiply_group(w, &g, 0, w->sums, false);
    finish_group(w, &g, w->sums);
  }
}

/* The same, when the panel is packed chunk by chunk. */
static void multiply_pass(const worker *w, int64_t begin, int64_t end) {
  const bsrg_panel_job *job = w->job;
  const bsrg_structure_view *a = &job->a;
  const int64_t per_block = bsrg_units_per_block(a), first_block_row = begin / per_block;
  const int64_t end_block_row = bsrg_ceil_div(end, per_block);
  memcpy(w->cursors, a->indptr + first_block_row,
         (size_t)(end_block_row - first_block_row) * sizeof *w->cursors);
  for (int64_t chunk = 0; chunk < job->chunks; chunk++) {
    const int64_t col_begin = chunk * job->chunk_cols;
    const int64_t col_end = bsrg_min(col_begin + job->chunk_cols, a->block_cols);
    const int64_t row_begin = col_begin * a->block_width;
    pack_rows(w, w->b, row_begin, bsrg_min(col_end * a->block_width, a->cols) - row_begin);
    char *sums = w->sums;
    for (int64_t unit = begin; unit < end;) {
      group g = group_at(a, unit, end);
      int64_t *cursor = &w->cursors[g.block_row - first_block_row];
      g.begin = g.end = *cursor;
      while (g.end < a->indptr[g.block_row + 1] && a->indices[g.end] < col_end) g.end++;
      unit = g.unit_end;
      /* Not while groups of the same block row follow. */
      if (unit % per_block == 0 || unit == end) *cursor = g.end;
      /* The next group is of this chunk, or of the next one. */
      const int64_t next = unit < end ? unit : begin;
      g.next = element_at(a, next, w->cursors[next / per_block - first_block_row]);
      if (g.rows == 0) continue;
      multiply_group(w, &g, col_begin, sums, chunk > 0);
      if (chunk == job->chunks - 1) finish_group(w, &g, sums);
      sums += g.rows * w->width * job->ops->sum_size;
    }
  }
}

static void enter_panel(worker *w, int64_t panel) {
  const bsrg_panel_job *job = w->job;
  const bsrg_dense *x = &job->args->x;
  /* The first panels have one vector more when they cannot all have the same. */
  const int64_t base = job->vectors / job->panels, wider = job->vectors % job->panels;
  w->panel_vectors = base + (panel < wider);
  w->first_vector = panel * base + bsrg_min(panel, wider);
  w->width = w->panel_vectors * job->ops->lanes;
  w->columns = bsrg_min(w->width, x->cols - w->first_vector * job->ops->lanes);
  w->direct_end = job->source == BSRG_PANEL_DIRECT ? job->whole_cols : 0;
  if (w->columns < w->width && w->direct_end > 0) {
    /* Vectors reach into the rows that follow, which lie next to one another (see plan_source). */
    const int64_t rows_past = bsrg_ceil_div(w->width - w->columns, x->cols);
    w->direct_end = bsrg_max(0, x->rows - rows_past) / job->a.block_width;
  }
}

/* Takes what is left of a packed panel, range by range. */
static void sweep_panel(worker *w, int64_t panel) {
  bsrg_panel_job *job = w->job;
  enter_panel(w, panel);
  bool packed = false;
  int64_t range;
  while ((range = atomic_fetch_add(&job->next_range[panel], 1)) < job->ranges) {
    const int64_t begin = bsrg_range_begin(&job->a, range, job->ranges);
    const int64_t end = bsrg_range_begin(&job->a, range + 1, job->ranges);
    if (job->chunks > 1) {
      for (int64_t unit = begin; unit < end; unit += job->pass_units) {
        multiply_pass(w, unit, bsrg_min(unit + job->pass_units, end));
      }
      continue;
    }
    if (!packed) pack_rows(w, w->b, 0, job->a.cols);
    packed = true;
    multiply_units(w, begin, end);
  }
}

static void take_panels(worker *w, int slot) {
  bsrg_panel_job *job = w->job;
  int64_t panel;
  while ((panel = atomic_fetch_add(&job->next, 1)) < job->panels) sweep_panel(w, panel);
  /* The last ones taken are the likeliest to be unfinished. For one last range, packing would not pay. */
  for (int64_t i = 0; i < job->panels; i++) {
    panel = job->panels - 1 - (i + slot) % job->panels;
    if (atomic_load(&job->next_range[panel]) < job->ranges - 1) sweep_panel(w, panel);
  }
}

/* Nothing is kept from one range of a panel to the next, so the panels of a range follow one another: its
 * part of A is then still in cache. */
static void take_ranges(worker *w) {
  bsrg_panel_job *job = w->job;
  int64_t item;
  while ((item = atomic_fetch_add(&job->next, 1)) < job->ranges * job->panels) {
    const int64_t range = item / job->panels;
    enter_panel(w, item % job->panels);
    multiply_units(w, bsrg_range_begin(&job->a, range, job->ranges),
                   bsrg_range_begin(&job->a, range + 1, job->ranges));
  }
}

static void panel_task(void *context, int slot) {
  bsrg_panel_job *job = context;
  char *memory = job->slots + (size_t)slot * job->slot_bytes;
  worker w = {.job = job,
              .b = memory,
              .sums = memory + job->sums_at,
              .a = memory + job->a_at,
              .cursors = (int64_t *)(void *)(memory + job->cursors_at)};
  if (job->source == BSRG_PANEL_PACKED) {
    take_panels(&w, slot);
  } else {
    take_ranges(&w);
  }
}

/* ---- Entry --------------------------------------------------------------------------------------------- */

bsrg_status bsrg_panel_matmul(const bsrg_matmul_args *args, const bsrg_cpu_ops *ops, int threads,
                              bsrg_error *error) {
  bsrg_panel_job job = {.args = args, .ops = ops};
  bsrg_panel_plan(&job, threads);

  size_t bytes = job.slot_bytes * (size_t)threads;
  const size_t ranges_at = bsrg_reserve(&bytes, job.panels * (int64_t)sizeof *job.next_range);
  char *scratch = bsrg_scratch_take(bytes);
  if (!scratch) {
    return bsrg_fail(error, BSRG_ERR_MEMORY, "no memory for %zu bytes of scratch space of %d threads", bytes,
                     threads);
  }
  job.slots = scratch;
  job.next_range = (_Atomic int64_t *)(void *)(scratch + ranges_at);
  for (int64_t i = 0; i < job.panels; i++) atomic_init(&job.next_range[i], 0);
  bsrg_run_parallel(panel_task, &job, threads);
  bsrg_scratch_give(scratch);
  return BSRG_OK;
}
