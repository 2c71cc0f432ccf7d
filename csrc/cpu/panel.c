/* Products by panels: a few vectors of columns of X at a time, kept in cache while all of A passes by.
 *
 * A panel's rows of X are read from one of three places. PACKED: copied, in the accumulator's type, into a buffer
 * that stays in L2 while many block rows use it; a deep X takes several such chunks of k, and the sums of a range
 * of rows wait in between. GATHERED: copied for each block row just before use, when X is so deep and A so sparse
 * that packing whole chunks would cost more. DIRECT: read where it lies.
 *
 * Threads take whole panels first. When none is left they help with those still in work, range of rows by range
 * of rows, so that one wide matrix, one narrow one and a few skewed rows all keep every thread busy. */
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "cpu.h"

enum {
  /* Of a packed chunk: 4096 rows of 3 vectors of 64 bytes, which stay in an L2 of 1 MiB (Zen 4). */
  CHUNK_BYTES = 768 << 10,
  /* Rows whose sums wait between chunks: 1.5 MiB a thread at the widest panel. */
  CHUNK_ROWS = 8192,
  /* A narrow X is read where it lies if its rows are no farther apart than this many panels' widths. */
  DIRECT_SPACING = 2
};

typedef enum b_source { PACKED, GATHERED, DIRECT } b_source;

typedef struct panel_job {
  const bsrg_matmul_args *args;
  const bsrg_cpu_ops *ops;
  bsrg_structure_view a;
  b_source source;
  bool widen_a;
  int64_t vectors, panels;         /* vectors of columns, and the panels they are dealt to */
  int64_t max_width;               /* sums in a row of the widest panel */
  int64_t chunks, chunk_cols;      /* block columns of a packed chunk */
  int64_t ranges;                  /* of row units, in each panel */
  int64_t pass_units;              /* units whose sums wait between chunks */
  int64_t segment_blocks, segment_depth; /* a segment: so many blocks, and k of each */
  char *slots;                     /* scratch memory, one slot a thread */
  size_t slot_bytes, sums_at, a_at, cursors_at;
  int32_t identity[BSRG_SEGMENT_K]; /* 0, 1, 2, ...: the block columns of gathered blocks */
  _Atomic int64_t next_panel;
  _Atomic int64_t *next_range; /* [panels] */
} panel_job;

typedef struct worker {
  panel_job *job;
  void *b;         /* the packed chunk, or gathered rows */
  char *sums;      /* of a group, or of a pass */
  void *a;         /* widened blocks */
  int64_t *cursors; /* of each block row of a pass: where its next chunk begins */
  int64_t packed;  /* the panel that b holds, -1: none */
  int64_t panel, first_vector, panel_vectors, columns, width;
} worker;

/* Up to BSRG_GROUP_ROWS rows of one block row, and the blocks of it that are multiplied. */
typedef struct group {
  int64_t unit_end;
  int64_t block_row, first, rows; /* first: in the block row */
  int64_t begin, end;
  int64_t next; /* the element of values at which the next group begins */
} group;

static group group_at(const bsrg_structure_view *a, int64_t unit, int64_t unit_end) {
  const int64_t per_block = bsrg_units_per_block(a);
  group g = {.block_row = unit / per_block, .first = unit % per_block * BSRG_UNIT_ROWS};
  g.unit_end = bsrg_min(unit + BSRG_GROUP_ROWS / BSRG_UNIT_ROWS, (g.block_row + 1) * per_block);
  g.unit_end = bsrg_min(g.unit_end, unit_end);
  g.rows = bsrg_min((g.unit_end - unit) * BSRG_UNIT_ROWS, a->block_height - g.first);
  return g;
}

/* The element of values at which the group at `unit` begins, when its first block is `block`. */
static int64_t element_at(const bsrg_structure_view *a, int64_t unit, int64_t block) {
  return (block * a->block_height + unit % bsrg_units_per_block(a) * BSRG_UNIT_ROWS) * a->block_width;
}

static const char *x_at(const panel_job *job, int64_t row, int64_t column) {
  const bsrg_dense *x = &job->args->x;
  return (const char *)x->data + (row * x->row_stride + column * x->col_stride) * job->ops->element_size;
}

static void pack_rows(const worker *w, void *destination, int64_t first, int64_t rows) {
  const bsrg_dense *x = &w->job->args->x;
  w->job->ops->pack(destination, w->width, x_at(w->job, first, w->first_vector * w->job->ops->lanes),
                    x->row_stride, x->col_stride, rows, w->columns);
}

/* ---- One group of rows ------------------------------------------------------------------------------------- */

/* Sets where a segment finds A: blocks [p, p + count) from k on, in place or widened. */
static void find_a(const worker *w, const group *g, int64_t p, int64_t k, bsrg_tile_run *run) {
  const panel_job *job = w->job;
  const int64_t width = job->a.block_width, area = job->a.block_height * width;
  const int64_t element_size = job->ops->element_size;
  const int64_t element = p * area + g->first * width;
  const char *values = (const char *)job->args->values + (element + k) * element_size;
  /* Of a block cut into pieces, the next one's rows are fetched one after the other instead of piece by piece: all
   * of them in time. */
  const int64_t next = p + run->count < g->end ? element + run->count * area : g->next;
  run->ahead = (uintptr_t)job->args->values + (uintptr_t)((next + k * g->rows) * element_size);
  run->ahead_block_stride = area * element_size;
  if (!job->widen_a) {
    run->a = values;
    run->a_row_stride = width;
    run->a_block_stride = area;
    return;
  }
  run->a = w->a;
  run->a_row_stride = run->depth;
  run->a_block_stride = g->rows * run->depth;
  for (int64_t i = 0; i < run->count; i++) {
    job->ops->widen((char *)w->a + i * run->a_block_stride * job->ops->sum_size, values + i * area * element_size,
                    width, g->rows, run->depth);
  }
}

/* Sets where it finds X. chunk_begin is the first block column of the packed chunk. */
static void find_b(const worker *w, int64_t chunk_begin, int64_t p, int64_t k, bsrg_tile_run *run) {
  const panel_job *job = w->job;
  const int64_t width = job->a.block_width, sum_size = job->ops->sum_size;
  run->columns = job->a.indices + p;
  run->first_column = 0;
  if (job->source == DIRECT) {
    run->b_row_stride = job->args->x.row_stride;
    run->b = x_at(job, k, w->first_vector * job->ops->lanes);
    run->b_block_stride = width * run->b_row_stride;
    return;
  }
  run->b_row_stride = w->width;
  if (job->source == PACKED) {
    run->b = (const char *)w->b + k * w->width * sum_size;
    run->b_block_stride = width * w->width;
    run->first_column = (int32_t)chunk_begin;
    return;
  }
  run->b = w->b;
  run->b_block_stride = run->depth * w->width;
  for (int64_t i = 0; i < run->count; i++) {
    pack_rows(w, (char *)w->b + i * run->b_block_stride * sum_size, run->columns[i] * width + k, run->depth);
  }
  run->columns = job->identity;
}

/* sums (=, or += when add) the group's product. */
static void multiply_group(const worker *w, const group *g, int64_t chunk_begin, char *sums, bool add) {
  const panel_job *job = w->job;
  const bsrg_cpu_ops *ops = job->ops;
  if (g->begin == g->end) {
    if (!add) memset(sums, 0, (size_t)(g->rows * w->width * ops->sum_size));
    return;
  }
  const bsrg_tile_kernel *kernels = ops->tile + (w->panel_vectors - 1) * ops->tile_rows - 1;
  bsrg_tile_run run = {.sums_stride = w->width, .add = add};
  for (int64_t p = g->begin; p < g->end; p += run.count) {
    run.count = bsrg_min(job->segment_blocks, g->end - p);
    for (int64_t k = 0; k < job->a.block_width; k += run.depth) {
      run.depth = bsrg_min(job->segment_depth, job->a.block_width - k);
      find_a(w, g, p, k, &run);
      find_b(w, chunk_begin, p, k, &run);
      const char *a = run.a;
      const uintptr_t ahead = run.ahead;
      int64_t tiles = bsrg_ceil_div(g->rows, ops->tile_rows);
      for (int64_t r = 0; r < g->rows; tiles--) {
        const int64_t rows = bsrg_ceil_div(g->rows - r, tiles);
        run.a = a + r * run.a_row_stride * ops->sum_size;
        run.ahead = ahead + (uintptr_t)(r * run.depth * ops->element_size);
        run.ahead_step = rows * ops->element_size;
        run.sums = sums + r * w->width * ops->sum_size;
        kernels[rows](&run);
        r += rows;
      }
      run.add = true;
    }
  }
}

static void finish_group(const worker *w, const group *g, const char *sums) {
  const bsrg_matmul_args *args = w->job->args;
  const int64_t size = w->job->ops->element_size;
  const int64_t row = g->block_row * w->job->a.block_height + g->first;
  const int64_t column = w->first_vector * w->job->ops->lanes;
  bsrg_finish_run run = {.sums = sums,
                         .sums_stride = w->width,
                         .rows = g->rows,
                         .columns = w->columns,
                         .alpha = args->alpha,
                         .beta = args->beta,
                         .y = (char *)args->y.data +
                              (row * args->y.row_stride + column * args->y.col_stride) * size,
                         .y_row_stride = args->y.row_stride,
                         .y_col_stride = args->y.col_stride};
  if (args->beta != 0) {
    run.c = (const char *)args->c.data + (row * args->c.row_stride + column * args->c.col_stride) * size;
    run.c_row_stride = args->c.row_stride;
    run.c_col_stride = args->c.col_stride;
  }
  w->job->ops->finish(&run);
}

/* ---- Ranges of row units ----------------------------------------------------------------------------------- */

static void multiply_units(const worker *w, int64_t begin, int64_t end) {
  const bsrg_structure_view *a = &w->job->a;
  const int64_t per_block = bsrg_units_per_block(a);
  for (int64_t unit = begin; unit < end;) {
    group g = group_at(a, unit, end);
    g.begin = a->indptr[g.block_row];
    g.end = a->indptr[g.block_row + 1];
    g.next = element_at(a, g.unit_end, g.unit_end % per_block == 0 ? g.end : g.begin);
    multiply_group(w, &g, 0, w->sums, false);
    finish_group(w, &g, w->sums);
    unit = g.unit_end;
  }
}

/* The same, when the panel is packed chunk by chunk. */
static void multiply_pass(const worker *w, int64_t begin, int64_t end) {
  const panel_job *job = w->job;
  const bsrg_structure_view *a = &job->a;
  const int64_t per_block = bsrg_units_per_block(a), first_block_row = begin / per_block;
  const int64_t end_block_row = bsrg_ceil_div(end, per_block);
  memcpy(w->cursors, a->indptr + first_block_row, (size_t)(end_block_row - first_block_row) * sizeof *w->cursors);
  for (int64_t chunk = 0; chunk < job->chunks; chunk++) {
    const int64_t col_begin = chunk * job->chunk_cols;
    const int64_t col_end = bsrg_min(col_begin + job->chunk_cols, a->block_cols);
    pack_rows(w, w->b, col_begin * a->block_width, (col_end - col_begin) * a->block_width);
    char *sums = w->sums;
    for (int64_t unit = begin; unit < end;) {
      group g = group_at(a, unit, end);
      int64_t *cursor = &w->cursors[g.block_row - first_block_row];
      g.begin = g.end = *cursor;
      while (g.end < a->indptr[g.block_row + 1] && a->indices[g.end] < col_end) g.end++;
      unit = g.unit_end;
      if (unit % per_block == 0 || unit == end) *cursor = g.end; /* not while groups of the block row follow */
      const int64_t next = unit < end ? unit : begin; /* of this chunk, or of the next one */
      g.next = element_at(a, next, w->cursors[next / per_block - first_block_row]);
      multiply_group(w, &g, col_begin, sums, chunk > 0);
      if (chunk == job->chunks - 1) finish_group(w, &g, sums);
      sums += g.rows * w->width * job->ops->sum_size;
    }
  }
}

static void enter_panel(worker *w, int64_t panel) {
  const panel_job *job = w->job;
  /* The first panels have one vector more when they cannot all have the same. */
  const int64_t base = job->vectors / job->panels, wider = job->vectors % job->panels;
  w->panel = panel;
  w->panel_vectors = base + (panel < wider);
  w->first_vector = panel * base + bsrg_min(panel, wider);
  w->width = w->panel_vectors * job->ops->lanes;
  w->columns = bsrg_min(w->width, job->args->x.cols - w->first_vector * job->ops->lanes);
}

static void sweep_panel(worker *w, int64_t panel) {
  panel_job *job = w->job;
  enter_panel(w, panel);
  for (;;) {
    const int64_t range = atomic_fetch_add(&job->next_range[panel], 1);
    if (range >= job->ranges) return;
    const int64_t begin = bsrg_range_begin(&job->a, range, job->ranges);
    const int64_t end = bsrg_range_begin(&job->a, range + 1, job->ranges);
    if (job->chunks > 1) {
      for (int64_t unit = begin; unit < end; unit += job->pass_units) {
        multiply_pass(w, unit, bsrg_min(unit + job->pass_units, end));
      }
      continue;
    }
    if (job->source == PACKED && w->packed != panel) {
      pack_rows(w, w->b, 0, job->a.cols);
      w->packed = panel;
    }
    multiply_units(w, begin, end);
  }
}

static void panel_task(void *context, int slot) {
  panel_job *job = context;
  char *memory = job->slots + (size_t)slot * job->slot_bytes;
  worker w = {.job = job,
              .b = memory,
              .sums = memory + job->sums_at,
              .a = memory + job->a_at,
              .cursors = (int64_t *)(void *)(memory + job->cursors_at),
              .packed = -1};
  int64_t panel;
  while ((panel = atomic_fetch_add(&job->next_panel, 1)) < job->panels) sweep_panel(&w, panel);
  /* The last ones taken are the likeliest to be unfinished. For one last range, packing would not pay. */
  for (int64_t i = 0; i < job->panels; i++) {
    panel = job->panels - 1 - (i + slot) % job->panels;
    if (atomic_load(&job->next_range[panel]) < job->ranges - (job->source == PACKED)) sweep_panel(&w, panel);
  }
}

/* ---- The plan ---------------------------------------------------------------------------------------------- */

/* None of these choices looks at the number of threads where it could change the order of a sum. */
static void plan_source(panel_job *job) {
  const bsrg_structure_view *a = &job->a;
  const bsrg_dense *x = &job->args->x;
  const int64_t chunk_k = CHUNK_BYTES / (job->max_width * job->ops->sum_size);
  const int64_t passes = a->cols > chunk_k ? bsrg_ceil_div(a->rows, CHUNK_ROWS) : 1;
  /* Rows copied by packing, for all of A, and by gathering. */
  const bool pack = a->nnzb > 0 && a->block_width <= chunk_k && a->cols * passes <= a->nnzb * a->block_width;
  const bool loadable = !job->widen_a && x->col_stride == 1 && x->cols % job->ops->lanes == 0;
  const bool narrow = job->panels == 1 && x->row_stride <= DIRECT_SPACING * x->cols;
  const bool used_once = !pack && a->block_height <= job->ops->tile_rows;
  job->source = loadable && (narrow || used_once) ? DIRECT : pack ? PACKED : GATHERED;

  job->chunks = job->source == PACKED ? bsrg_max(1, bsrg_ceil_div(a->cols, chunk_k)) : 1;
  job->chunk_cols = bsrg_max(1, bsrg_ceil_div(a->block_cols, job->chunks));
  job->chunks = bsrg_max(1, bsrg_ceil_div(a->block_cols, job->chunk_cols));
}

static void plan_segments(panel_job *job) {
  const int64_t width = job->a.block_width;
  job->segment_blocks = bsrg_max(1, BSRG_SEGMENT_K / width);
  job->segment_depth = bsrg_ceil_div(width, bsrg_ceil_div(width, BSRG_SEGMENT_K));
  for (int32_t i = 0; i < BSRG_SEGMENT_K; i++) job->identity[i] = i;
}

static void plan_ranges(panel_job *job, int threads) {
  const int64_t units = bsrg_unit_count(&job->a);
  const int64_t unit_rows = bsrg_min(job->a.block_height, BSRG_UNIT_ROWS);
  job->pass_units = CHUNK_ROWS / unit_rows;
  job->ranges = 1;
  if (threads == 1) return;
  if (job->chunks == 1) {
    job->ranges = bsrg_max(16, bsrg_ceil_div(8 * threads, job->panels));
  } else {
    /* Each range packs all of the panel again. */
    job->ranges = bsrg_ceil_div(units, job->pass_units);
    if (job->panels < 4 * threads) job->ranges = bsrg_max(job->ranges, bsrg_ceil_div(4 * threads, job->panels));
  }
  job->ranges = bsrg_min(job->ranges, units);
}

/* Reserves `bytes` in a slot, a whole number of cache lines, and returns where they begin. */
static size_t reserve(size_t *end, int64_t bytes) {
  const size_t begin = *end;
  *end += ((size_t)bytes + 63) / 64 * 64;
  return begin;
}

static void plan_memory(panel_job *job) {
  const bsrg_structure_view *a = &job->a;
  const int64_t row_bytes = job->max_width * job->ops->sum_size;
  int64_t b_rows = 0, sums_rows = bsrg_min(a->block_height, BSRG_GROUP_ROWS), cursors = 0, a_items = 0;
  if (job->source == PACKED) b_rows = bsrg_min(job->chunk_cols * a->block_width, a->cols);
  const int64_t segment_k = job->segment_blocks * job->segment_depth;
  if (job->source == GATHERED) b_rows = segment_k;
  if (job->widen_a) a_items = segment_k * bsrg_min(a->block_height, BSRG_GROUP_ROWS);
  if (job->chunks > 1) {
    sums_rows = bsrg_min(a->rows, CHUNK_ROWS);
    cursors = bsrg_min(a->block_rows, job->pass_units + 1);
  }
  size_t end = 0;
  reserve(&end, b_rows * row_bytes);
  job->sums_at = reserve(&end, sums_rows * row_bytes);
  job->a_at = reserve(&end, a_items * job->ops->sum_size);
  job->cursors_at = reserve(&end, cursors * (int64_t)sizeof(int64_t));
  job->slot_bytes = end;
}

bsrg_status bsrg_panel_matmul(const bsrg_matmul_args *args, const bsrg_cpu_ops *ops, int threads,
                              bsrg_error *error) {
  panel_job job = {.args = args, .ops = ops, .a = bsrg_structure_get(args->a)};
  job.widen_a = ops->element_size != ops->sum_size;
  job.vectors = bsrg_ceil_div(args->x.cols, ops->lanes);
  job.panels = bsrg_ceil_div(job.vectors, ops->tile_vectors);
  job.max_width = bsrg_ceil_div(job.vectors, job.panels) * ops->lanes;
  plan_source(&job);
  plan_segments(&job);
  plan_ranges(&job, threads);
  plan_memory(&job);

  size_t bytes = job.slot_bytes * (size_t)threads;
  const size_t ranges_at = reserve(&bytes, job.panels * (int64_t)sizeof *job.next_range);
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
