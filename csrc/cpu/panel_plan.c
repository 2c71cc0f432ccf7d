/* How a product by panels is done: where X is read, how long segments are, who gets which rows, and how much memory that takes. */
#include "panel.h"

enum {
  /* Of a packed chunk. More than an L2 of 1 MiB holds (Zen 4), but a chunk less costs more than coming
   * from L3. */
  CHUNK_BYTES = 1536 << 10,
  /* Rows whose sums wait between chunks: 1.5 MiB a thread at the widest panel. */
  CHUNK_ROWS = 8192,
  /* Rows of fewer k on average are summed in shorter segments. */
  SHORT_ROW = 256,
  /* Of A, that stay in L2 from one panel to the next when X is not packed. */
  RANGE_BYTES = 256 << 10,
  /* The least k of a block row in a chunk, on average, for each of its rows. */
  CHUNK_SHARE = 4,
  /* Blocks of a transposed view, from this width on, are read in place, each a segment of its own. */
  ALONE_WIDTH = 32,
  /* A narrow X is read where it lies if its rows are no farther apart than this many panels' widths, */
  DIRECT_SPACING = 2,
  /* and, of blocks that are multiplied many block rows at once, if fewer than one of so many block rows has a block that
   * vectors would reach beyond X from: those go one by one. */
  ROWS_BEYOND = 32
};

/* How many blocks of all would be read in place, but that vectors reach beyond X from there, if blocks lie anywhere. */
static double blocks_beyond(const bsrg_panel_job *job) {
  const bsrg_structure_view *a = &job->a;
  const bsrg_dense *x = &job->args->x;
  const int64_t elements = job->vectors * job->ops->lanes - x->cols;
  const int64_t rows = bsrg_ceil_div(elements, bsrg_max(1, x->row_stride));
  return (double)a->nnzb * (double)bsrg_ceil_div(rows, a->block_width) / (double)a->block_cols;
}

/* None of these choices looks at the number of threads where it could change the order of a sum. */
static void plan_source(bsrg_panel_job *job) {
  const bsrg_structure_view *a = &job->a;
  const bsrg_dense *x = &job->args->x;
  const int64_t chunk_k = CHUNK_BYTES / (job->max_width * job->ops->sum_size);
  const int64_t chunks = bsrg_max(1, bsrg_ceil_div(a->cols, chunk_k));
  const int64_t passes = chunks > 1 ? bsrg_ceil_div(a->rows, CHUNK_ROWS) : 1;
  const int64_t used = a->nnzb * a->block_width;
  /* Packing copies cols * passes rows, gathering `used`, and the taller the blocks the less that matters;
   * a block row's share of a chunk must be worth a visit. */
  const int64_t share = CHUNK_SHARE * bsrg_max(4, bsrg_min(a->block_height, BSRG_GROUP_ROWS));
  const bool pack = a->nnzb > 0 && a->block_width <= chunk_k && bsrg_mul_saturated(a->cols, passes) <= used &&
                    (chunks == 1 || a->block_rows * chunks <= used / share);
  const bool vectors_fit = x->cols % job->ops->lanes == 0 || x->row_stride == x->cols;
  const bool loadable = job->in_place && x->col_stride == 1 && x->row_stride >= x->cols && vectors_fit;
  const bool narrow = job->panels == 1 && x->row_stride <= DIRECT_SPACING * x->cols;
  const bool low = a->block_height <= job->ops->tile_rows, used_once = !pack && low;
  const bool often_beyond = pack && low && blocks_beyond(job) * ROWS_BEYOND > (double)a->block_rows;
  job->source = loadable && (narrow || used_once) && !often_beyond ? BSRG_PANEL_DIRECT
                : pack                                             ? BSRG_PANEL_PACKED
                                                                   : BSRG_PANEL_GATHERED;
  /* The others take the last column of a row for its greatest, or meet the columns chunk by chunk. */
  if (a->column_order != BSRG_ASCENDING) job->source = BSRG_PANEL_GATHERED;

  job->chunks = job->source == BSRG_PANEL_PACKED ? chunks : 1;
  job->chunk_cols = bsrg_max(1, bsrg_ceil_div(a->block_cols, job->chunks));
  job->chunks = bsrg_max(1, bsrg_ceil_div(a->block_cols, job->chunk_cols));
}

static void plan_segments(bsrg_panel_job *job) {
  const int64_t width = job->a.block_width;
  /* A dense product adds the zeros too, so that its sums are shorter than ours where rows are. */
  const int64_t element_k = job->ops->element_k;
  const bool short_rows = job->a.nnzb * width * element_k <= SHORT_ROW * job->a.block_rows;
  const int64_t segment = (short_rows ? BSRG_SEGMENT_K / 2 : BSRG_SEGMENT_K) / element_k;
  job->segment_blocks = bsrg_max(1, segment / width);
  if (job->a.order && job->in_place && width >= ALONE_WIDTH) job->segment_blocks = 1;
  job->segment_depth = bsrg_ceil_div(width, bsrg_ceil_div(width, segment));
  for (int32_t i = 0; i < BSRG_SEGMENT_K; i++) job->identity[i] = i;
  job->small = job->a.nnzb > 0 && !job->widen_a && !job->a.order && job->source != BSRG_PANEL_GATHERED &&
               job->chunks == 1 && width <= segment && job->a.block_height <= job->ops->tile_rows;
}

static void plan_ranges(bsrg_panel_job *job, int threads) {
  const bsrg_structure_view *a = &job->a;
  const int64_t units = bsrg_unit_count(a);
  job->pass_units = CHUNK_ROWS / bsrg_min(a->block_height, BSRG_UNIT_ROWS);
  const int64_t balanced = threads == 1 ? 1 : bsrg_ceil_div(8 * threads, job->panels);
  if (job->source != BSRG_PANEL_PACKED) {
    const double a_bytes =
        (double)a->nnzb * (double)(a->block_height * a->block_width * job->ops->element_size);
    /* Without need, no group is cut: what is gathered for one serves all of its rows. */
    const int64_t groups = a->block_rows * bsrg_ceil_div(a->block_height, BSRG_GROUP_ROWS);
    const int64_t cached = job->panels == 1 ? 1 : bsrg_min(groups, 1 + (int64_t)(a_bytes / RANGE_BYTES));
    job->ranges = bsrg_max(cached, balanced);
  } else if (job->chunks == 1) {
    job->ranges = threads == 1 ? 1 : bsrg_max(16, balanced);
  } else {
    /* Each range packs all of the panel again. */
    job->ranges = bsrg_ceil_div(units, job->pass_units);
    if (balanced > 2) job->ranges = bsrg_max(job->ranges, balanced / 2);
  }
  job->ranges = bsrg_min(job->ranges, units);
}

static void plan_memory(bsrg_panel_job *job) {
  const bsrg_structure_view *a = &job->a;
  const int64_t row_bytes = job->max_width * job->ops->sum_size;
  int64_t b_rows = 0, sums_rows = BSRG_GROUP_ROWS, cursors = 0, a_items = 0;
  if (job->source == BSRG_PANEL_PACKED) b_rows = bsrg_min(job->chunk_cols * a->block_width, a->cols);
  const int64_t segment_k = job->segment_blocks * job->segment_depth;
  if (job->source != BSRG_PANEL_PACKED) b_rows = segment_k;
  if (job->widen_a || job->a.order)
    a_items = segment_k * bsrg_transposed_stride(job->ops, bsrg_min(a->block_height, BSRG_GROUP_ROWS));
  if (job->chunks > 1) {
    sums_rows = bsrg_min(a->rows, CHUNK_ROWS);
    cursors = bsrg_min(a->block_rows, job->pass_units + 1);
  }
  size_t end = 0;
  bsrg_reserve(&end, b_rows * row_bytes);
  job->sums_at = bsrg_reserve(&end, sums_rows * row_bytes);
  job->a_at = bsrg_reserve(&end, a_items * job->ops->sum_size);
  job->cursors_at = bsrg_reserve(&end, cursors * (int64_t)sizeof(int64_t));
  job->slot_bytes = end;
}

void bsrg_panel_plan(bsrg_panel_job *job, int threads) {
  const bsrg_cpu_ops *ops = job->ops;
  job->a = bsrg_structure_get(job->args->a);
  job->a.block_width /= ops->element_k;
  job->a.cols /= ops->element_k;
  job->item_size = (int64_t)bsrg_dtype_size(job->args->dtype);
  job->widen_a = ops->element_size != ops->sum_size;
  job->in_place = !job->widen_a && ops->element_k == 1;
  job->vectors = bsrg_ceil_div(job->args->x.cols, ops->lanes);
  job->panels = bsrg_ceil_div(job->vectors, ops->tile_vectors);
  job->max_width = bsrg_ceil_div(job->vectors, job->panels) * ops->lanes;
  job->whole_cols = job->a.cols / job->a.block_width;
  plan_source(job);
  plan_segments(job);
  plan_ranges(job, threads);
  plan_memory(job);
}
