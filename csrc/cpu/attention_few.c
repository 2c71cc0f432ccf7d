/* Attention on the CPU for so few queries that a lane for each would leave most of them empty: each query has a row of scores
 * and one of sums, lanes lie along keys and along the elements of a head, and keys and values are read once for all of the
 * queries, where they lie. */
#include <string.h>

#include "attention_panel.h"

static char *score_at(const bsrg_attention_panel *p, int64_t query, int64_t key) {
  return p->slot + p->job->scores_at + (query * BSRG_CHUNK_KEYS + key) * p->job->ops->sum_size;
}

/* Queries as sums, rows of whole vectors, times the scale. */
static void take_queries(const bsrg_attention_panel *p, int64_t stride) {
  const bsrg_attention_job *job = p->job;
  const bsrg_cpu_ops *ops = job->ops;
  const bsrg_tensor *q = &job->args->q;
  char *to = p->slot + job->q_at;
  memset(to, 0, (size_t)(p->queries * stride * ops->sum_size));
  for (int64_t i = 0; i < p->queries; ++i) {
    char *row = to + i * stride * ops->sum_size;
    ops->pack_column(row,
                     bsrg_element_of(q, p->of.batch, p->head, p->of.first_query + p->first + i, job->item),
                     q->element_stride, q->size);
    bsrg_scale_sums(row, q->size, job->args->scale, ops->sum_size);
  }
}

/* Scores of keys that a query does not see, and those that fill the last vector. */
static void exclude_keys(const bsrg_attention_panel *p, int64_t keys) {
  const bsrg_cpu_ops *ops = p->job->ops;
  const bsrg_band band = p->of.band;
  const int64_t last = p->first + p->queries - 1;
  for (int64_t i = 0; i < p->run_count; ++i) {
    const bsrg_key_run *run = &p->runs[i];
    for (int64_t r = 0; run->blind >> r != 0; ++r) {
      const bsrg_mask_row *row = &p->rows[r];
      for (int64_t query = row->lane_begin; (run->blind >> r & 1) && query < row->lane_end; ++query)
        ops->exclude(score_at(p, query, run->row), run->count);
    }
    if (run->begin >= last + band.first && run->begin + run->count - 1 <= p->first + band.last) continue;
    for (int64_t query = 0; query < p->queries; ++query) {
      /* The query sees keys query + band.first .. query + band.last. */
      const int64_t at = p->first + query;
      const int64_t from = bsrg_min(run->count, bsrg_max(0, at + band.first - run->begin));
      const int64_t to = bsrg_max(from, bsrg_min(run->count, at + band.last + 1 - run->begin));
      ops->exclude(score_at(p, query, run->row), from);
      ops->exclude(score_at(p, query, run->row + to), run->count - to);
    }
  }
  for (int64_t query = 0; query < p->queries; ++query)
    ops->exclude(score_at(p, query, keys), bsrg_whole_vectors(ops, keys) - keys);
}

/* Runs the kernel on the rows of K or V of all keys of a step, those that lie one behind the other at once. */
static void for_keys(const bsrg_attention_panel *p, const char *head, bsrg_few_run few,
                     void (*kernel)(const bsrg_few_run *)) {
  for (int64_t i = 0; i < p->run_count;) {
    const bsrg_key_run *run = &p->runs[i];
    i += bsrg_adjacent_runs(p, i, &few.keys);
    few.rows = head + run->begin * few.row_stride * p->job->item;
    few.scores = score_at(p, 0, run->row);
    kernel(&few);
  }
}

void bsrg_attend_few(bsrg_attention_panel *p) {
  const bsrg_attention_job *job = p->job;
  const bsrg_attention_args *args = job->args;
  const bsrg_cpu_ops *ops = job->ops;
  const bsrg_tensor *out = &args->out;
  const int64_t size = args->k.size, first_row = p->of.first_query + p->first;
  const bsrg_few_run scores = {.queries = p->queries,
                               .size = size,
                               .row_stride = args->k.row_stride,
                               .sums = p->slot + job->q_at,
                               .sums_stride = bsrg_whole_vectors(ops, size),
                               .scores_stride = BSRG_CHUNK_KEYS};
  bsrg_few_run values = scores;
  values.size = out->size;
  values.row_stride = args->v.row_stride;
  values.sums = p->slot + job->out_at;
  values.sums_stride = bsrg_whole_vectors(ops, out->size);
  const bsrg_few_softmax_run softmax = {.queries = p->queries,
                                        .scores = p->slot + job->scores_at,
                                        .scores_stride = BSRG_CHUNK_KEYS,
                                        .out = values.sums,
                                        .out_stride = values.sums_stride,
                                        .maximum = p->slot + job->lanes_at,
                                        .total = p->slot + job->lanes_at + p->queries * ops->sum_size};
  take_queries(p, scores.sums_stride);
  ops->few_softmax_begin(&softmax);
  bsrg_begin_keys(p);
  for (int64_t keys; (keys = bsrg_next_chunk(p)) > 0;) {
    for_keys(p, p->k, scores, ops->few_scores);
    if (args->softcap > 0) { /* whole vectors, so that what fills the last one is a number */
      for (int64_t query = 0; query < p->queries; ++query) {
        ops->exclude(score_at(p, query, keys), bsrg_whole_vectors(ops, keys) - keys);
        ops->cap(score_at(p, query, 0), bsrg_whole_vectors(ops, keys), args->softcap);
      }
    }
    exclude_keys(p, keys);
    ops->few_softmax(&softmax, bsrg_whole_vectors(ops, keys));
    for_keys(p, p->v, values, ops->few_values);
  }
  ops->few_softmax_end(&softmax, bsrg_panel_lse(p));
  char *y = bsrg_element_of(out, p->of.batch, p->head, first_row, ops->element_size);
  for (int64_t d = 0; d < out->size; d += job->panel_width) {
    ops->finish(&(bsrg_finish_run){.sums = (char *)values.sums + d * ops->sum_size,
                                   .sums_stride = values.sums_stride,
                                   .rows = p->queries,
                                   .columns = bsrg_min(job->panel_width, out->size - d),
                                   .alpha = 1,
                                   .y = y + d * out->element_stride * ops->element_size,
                                   .y_row_stride = out->row_stride,
                                   .y_col_stride = out->element_stride});
  }
}
