/* Attention on the CPU, a panel at a time: as many queries of one head as the widest tile has lanes.
 *
 * With one query a lane, scores are K times the panel of Q^T and the result is V^T times the weights, so K and V are
 * only ever read an element at a time, wherever they lie, and maxima and sums need no exchange between lanes. Keys
 * come in runs that the masks and the band allow to some query of the panel, a chunk of runs being one step of the
 * online softmax.
 *
 * 8-bit operands become float32 element by element, and from there on all is as for bfloat16, which their result is. */
#include "attention_panel.h"

#include <string.h>

#include "e4m3.h"

/* ---- One step ------------------------------------------------------------------------------------------ */

/* `count` rows of K or V from `begin` on, as the accumulator's type: where they lie, or copied to `copy`. */
static const void *rows_of(const bsrg_attention_panel *p, const bsrg_tensor *t, const char *head,
                           bool in_place, int64_t begin, int64_t count, char *copy, int64_t *row_stride) {
  const bsrg_cpu_ops *ops = p->job->ops;
  const char *rows = head + begin * t->row_stride * p->job->item;
  *row_stride = in_place ? t->row_stride : t->size;
  if (in_place) return rows;
  if (p->job->eight_bits) {
    bsrg_widen_e4m3((float *)copy, t->size, rows, t->row_stride, t->element_stride, count, t->size);
  } else if (t->element_stride == 1) {
    ops->widen(copy, rows, t->row_stride, count, t->size);
  } else {
    for (int64_t r = 0; r < count; ++r)
      ops->pack_column(copy + r * t->size * ops->sum_size, rows + r * t->row_stride * ops->element_size,
                       t->element_stride, t->size);
  }
  return copy;
}

static char *scores_row(const bsrg_attention_panel *p, int64_t row) {
  return p->slot + p->job->scores_at + row * p->width * p->job->ops->sum_size;
}

/* Elements of a head that are added up one after the other: longer sums lose more than torch's do. */
enum { SCORE_ELEMENTS = 32 };

static void compute_scores(const bsrg_attention_panel *p) {
  const bsrg_attention_job *job = p->job;
  const int64_t size = job->args->k.size, sum_size = job->ops->sum_size;
  const int64_t part = bsrg_ceil_div(size, bsrg_max(1, bsrg_ceil_div(size, SCORE_ELEMENTS)));
  int64_t keys;
  for (int64_t i = 0; i < p->run_count;) {
    const bsrg_key_run *run = &p->runs[i];
    i += bsrg_adjacent_runs(p, i, &keys);
    bsrg_product_run product = {
        .rows = keys, .vectors = p->vectors, .a_depth_stride = 1, .sums = scores_row(p, run->row)};
    const char *k = rows_of(p, &job->args->k, p->k, job->k_in_place, run->begin, keys, p->slot + job->k_at,
                            &product.a_row_stride);
    for (int64_t first = 0; first < size; first += part) {
      product.depth = bsrg_min(part, size - first);
      product.a = k + first * sum_size;
      product.b = p->slot + job->q_at + first * p->width * sum_size;
      product.add = first > 0;
      job->ops->product(&product);
    }
  }
}

/* Scores of keys that only other queries of the panel see. */
static void exclude_keys(const bsrg_attention_panel *p) {
  const bsrg_attention_job *job = p->job;
  const bsrg_cpu_ops *ops = job->ops;
  const bsrg_band band = p->of.band;
  const int64_t last = p->first + p->queries - 1;
  for (int64_t i = 0; i < p->run_count; ++i) {
    const bsrg_key_run *run = &p->runs[i];
    for (int64_t r = 0; run->blind >> r != 0; ++r) {
      if (!(run->blind >> r & 1)) continue;
      const bsrg_mask_row *row = &p->rows[r];
      for (int64_t k = 0; k < run->count; ++k)
        ops->exclude(scores_row(p, run->row + k) + row->lane_begin * ops->sum_size,
                     row->lane_end - row->lane_begin);
    }
    const int64_t end = run->begin + run->count - 1;
    if (run->begin >= last + band.first && end <= p->first + band.last) continue;
    for (int64_t k = 0; k < run->count; ++k) {
      /* Key j is seen by queries j - band.last .. j - band.first. */
      const int64_t key = run->begin + k;
      const int64_t from = bsrg_min(p->queries, bsrg_max(0, key - band.last - p->first));
      const int64_t to = bsrg_max(from, bsrg_min(p->queries, key - band.first - p->first + 1));
      char *scores = scores_row(p, run->row + k);
      ops->exclude(scores, from);
      ops->exclude(scores + to * ops->sum_size, p->queries - to);
    }
  }
}

static void add_values(const bsrg_attention_panel *p) {
  const bsrg_attention_job *job = p->job;
  int64_t keys;
  for (int64_t i = 0; i < p->run_count;) {
    const bsrg_key_run *run = &p->runs[i];
    i += bsrg_adjacent_runs(p, i, &keys);
    bsrg_product_run product = {.rows = job->args->v.size,
                                .depth = keys,
                                .vectors = p->vectors,
                                .a_row_stride = 1,
                                .b = scores_row(p, run->row),
                                .sums = p->slot + job->out_at,
                                .add = true};
    product.a = rows_of(p, &job->args->v, p->v, job->v_in_place, run->begin, keys, p->slot + job->v_at,
                        &product.a_depth_stride);
    job->ops->product(&product);
  }
}

/* ---- One panel ----------------------------------------------------------------------------------------- */

/* The factor of a batch and a head of k. */
static double factor_of(const bsrg_factors *f, int64_t batch, int64_t head) {
  return f->data == NULL ? f->all : (double)f->data[batch * f->batch_stride + head * f->head_stride];
}

void bsrg_attend_tile(bsrg_attention_panel *p) {
  const int64_t batch = p->of.batch, head = p->head, first_row = p->of.first_query + p->first;
  const bsrg_attention_job *job = p->job;
  const bsrg_attention_args *args = job->args;
  const bsrg_cpu_ops *ops = job->ops;
  const bsrg_tensor *q = &args->q, *out = &args->out;
  p->vectors = bsrg_ceil_div(p->queries, ops->lanes);
  p->width = p->vectors * ops->lanes;
  double scale = args->scale, result_scale = 1;
  const char *queries = bsrg_element_of(q, batch, head, first_row, job->item);
  if (job->eight_bits) {
    const int64_t key_head = head / bsrg_max(1, q->heads / bsrg_max(1, args->k.heads));
    scale *= factor_of(&args->q_descale, batch, key_head) * factor_of(&args->k_descale, batch, key_head);
    result_scale = factor_of(&args->v_descale, batch, key_head);
    memset(p->slot + job->q_at, 0, (size_t)(q->size * p->width) * sizeof(float));
    bsrg_widen_e4m3((float *)(p->slot + job->q_at), p->width, queries, q->element_stride, q->row_stride,
                    q->size, p->queries);
  } else {
    ops->pack(p->slot + job->q_at, p->width, queries, q->element_stride, q->row_stride, q->size, p->queries);
  }
  bsrg_scale_sums(p->slot + job->q_at, q->size * p->width, scale, ops->sum_size);

  const bsrg_softmax_run softmax = {.size = out->size,
                                    .vectors = p->vectors,
                                    .scores = p->slot + job->scores_at,
                                    .maximum = p->slot + job->lanes_at,
                                    .total = p->slot + job->lanes_at + p->width * ops->sum_size,
                                    .out = p->slot + job->out_at};
  ops->softmax_begin(&softmax);
  bsrg_begin_keys(p);
  for (int64_t keys; (keys = bsrg_next_chunk(p)) > 0;) {
    compute_scores(p);
    if (args->softcap > 0) ops->cap(softmax.scores, keys * p->width, args->softcap);
    exclude_keys(p);
    ops->softmax(&softmax, keys);
    add_values(p);
  }
  ops->softmax_end(&softmax, bsrg_panel_lse(p), p->queries);
  char *y = bsrg_element_of(out, batch, head, first_row, ops->element_size);
  for (int64_t d = 0; d < out->size; d += BSRG_GROUP_ROWS) {
    ops->finish(&(bsrg_finish_run){.sums = (char *)softmax.out + d * p->width * ops->sum_size,
                                   .sums_stride = p->width,
                                   .rows = bsrg_min(BSRG_GROUP_ROWS, out->size - d),
                                   .columns = p->queries,
                                   .alpha = result_scale,
                                   .y = y + d * out->element_stride * ops->element_size,
                                   .y_row_stride = out->element_stride,
                                   .y_col_stride = out->row_stride});
  }
}
