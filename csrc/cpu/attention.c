/* Attention on the CPU, a panel at a time: as many queries of one head as the widest tile has lanes.
 *
 * With one query a lane, scores are K times the panel of Q^T and the result is V^T times the weights, so K and V are
 * only ever read an element at a time, wherever they lie, and maxima and sums need no exchange between lanes. Keys
 * come in runs that the masks and the band allow to some query of the panel, a chunk of runs being one step of the
 * online softmax.
 *
 * 8-bit operands become float32 element by element, and from there on all is as for bfloat16, which their result is. */
#include "../attention.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "cpu.h"
#include "e4m3.h"

enum {
  CHUNK_KEYS = 64,     /* whose scores wait in L1 */
  SMALL_COPY = 4 << 20 /* bytes of scratch memory that is kept */
};

typedef struct attention_job {
  const bsrg_attention_args *args;
  const bsrg_cpu_ops *ops; /* of the result's type */
  bool eight_bits;
  int64_t item; /* bytes of an element of q, k and v */
  int64_t panel_width;
  int64_t *panels_before; /* [sequences + 1]: of one head; NULL: batches, all of them with as many */
  int64_t tasks;          /* panels of all heads */
  bool k_in_place, v_in_place;
  char *slots; /* scratch memory, one slot a thread */
  size_t slot_bytes, q_at, scores_at, out_at, lanes_at, k_at, v_at;
  _Atomic int64_t next;
} attention_job;

/* One block row of the mask within a panel. */
typedef struct mask_row {
  int64_t lane_begin, lane_end; /* its queries */
  int64_t at, end;              /* its blocks from the present key on */
} mask_row;

/* Keys begin .. begin + count - 1, of one block column of the mask. */
typedef struct key_run {
  int64_t begin, count;
  int64_t row;    /* of the chunk's scores, where they begin */
  uint64_t blind; /* bit r: mask row r of the panel does not see them */
} key_run;

/* A batch, or a sequence. Queries and keys are counted within it. */
typedef struct piece {
  int64_t batch, first_query, queries, first_key, keys;
  bsrg_band band;
} piece;

typedef struct panel {
  const attention_job *job;
  piece of;
  const bsrg_structure_view *mask; /* or NULL */
  int64_t first, queries;          /* queries first .. first + queries - 1 */
  int64_t vectors, width;
  int64_t key, key_end; /* the next key, and the end of those that the band allows to some query */
  mask_row rows[BSRG_MAX_PANEL];
  int64_t row_count;
  const char *k, *v; /* the head's first key and value */
  char *slot;
  key_run runs[CHUNK_KEYS];
  int64_t run_count;
} panel;

/* ---- Which keys ---------------------------------------------------------------------------------------- */

static void begin_keys(panel *p) {
  const bsrg_band band = p->of.band;
  p->key = bsrg_max(0, p->first + band.first);
  p->key_end = bsrg_min(p->of.keys, p->first + p->queries + band.last);
  p->row_count = 0;
  if (p->mask == NULL) return;
  const int64_t height = p->mask->block_height;
  for (int64_t query = p->first; query < p->first + p->queries;) {
    const int64_t block_row = query / height;
    const int64_t end = bsrg_min((block_row + 1) * height, p->first + p->queries);
    p->rows[p->row_count++] = (mask_row){query - p->first, end - p->first, p->mask->indptr[block_row],
                                         p->mask->indptr[block_row + 1]};
    query = end;
  }
}

/* The next keys that some query of the panel may see, at most `most`; count is 0 when there are no more. */
static key_run next_keys(panel *p, int64_t most) {
  while (p->key < p->key_end) {
    key_run run = {.begin = p->key, .count = p->key_end - p->key};
    if (p->mask != NULL) {
      const int64_t width = p->mask->block_width, block = p->key / width;
      const int32_t *indices = p->mask->indices;
      int64_t next = INT64_MAX; /* the first block that a row has from here on */
      for (int64_t r = 0; r < p->row_count; ++r) {
        mask_row *row = &p->rows[r];
        while (row->at < row->end && indices[row->at] < block) row->at++;
        const int64_t has = row->at < row->end ? indices[row->at] : INT64_MAX;
        if (has != block) run.blind |= UINT64_C(1) << r;
        next = bsrg_min(next, has);
      }
      if (next == INT64_MAX) break;
      if (next > block) {
        p->key = next * width;
        continue;
      }
      run.count = bsrg_min(run.count, (block + 1) * width - p->key);
    }
    run.count = bsrg_min(run.count, most);
    p->key += run.count;
    return run;
  }
  return (key_run){0};
}

/* Collects the keys of the next step. */
static int64_t next_chunk(panel *p) {
  int64_t keys = 0;
  for (p->run_count = 0; keys < CHUNK_KEYS; ++p->run_count) {
    key_run *run = &p->runs[p->run_count];
    *run = next_keys(p, CHUNK_KEYS - keys);
    if (run->count == 0) break;
    run->row = keys;
    keys += run->count;
  }
  return keys;
}

/* ---- One step ------------------------------------------------------------------------------------------ */

/* How many runs from `first` on lie one behind the other in memory; their keys are added up in *keys. */
static int64_t adjacent_runs(const panel *p, int64_t first, int64_t *keys) {
  const key_run *run = &p->runs[first];
  int64_t count = 1;
  *keys = run->count;
  while (first + count < p->run_count && run[count].begin == run->begin + *keys) *keys += run[count++].count;
  return count;
}

/* `count` rows of K or V from `begin` on, as the accumulator's type: where they lie, or copied to `copy`. */
static const void *rows_of(const panel *p, const bsrg_tensor *t, const char *head, bool in_place,
                           int64_t begin, int64_t count, char *copy, int64_t *row_stride) {
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

static char *scores_row(const panel *p, int64_t row) {
  return p->slot + p->job->scores_at + row * p->width * p->job->ops->sum_size;
}

/* Elements of a head that are added up one after the other: longer sums lose more than torch's do. */
enum { SCORE_ELEMENTS = 32 };

static void compute_scores(const panel *p) {
  const attention_job *job = p->job;
  const int64_t size = job->args->k.size, sum_size = job->ops->sum_size;
  const int64_t part = bsrg_ceil_div(size, bsrg_max(1, bsrg_ceil_div(size, SCORE_ELEMENTS)));
  int64_t keys;
  for (int64_t i = 0; i < p->run_count;) {
    const key_run *run = &p->runs[i];
    i += adjacent_runs(p, i, &keys);
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
static void exclude_keys(const panel *p) {
  const attention_job *job = p->job;
  const bsrg_cpu_ops *ops = job->ops;
  const bsrg_band band = p->of.band;
  const int64_t last = p->first + p->queries - 1;
  for (int64_t i = 0; i < p->run_count; ++i) {
    const key_run *run = &p->runs[i];
    for (int64_t r = 0; run->blind >> r != 0; ++r) {
      if (!(run->blind >> r & 1)) continue;
      const mask_row *row = &p->rows[r];
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

static void add_values(const panel *p) {
  const attention_job *job = p->job;
  int64_t keys;
  for (int64_t i = 0; i < p->run_count;) {
    const key_run *run = &p->runs[i];
    i += adjacent_runs(p, i, &keys);
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

static void multiply(void *sums, int64_t count, double factor, int64_t sum_size) {
  if (sum_size == (int64_t)sizeof(float)) {
    for (int64_t i = 0; i < count; ++i) ((float *)sums)[i] *= (float)factor;
  } else {
    for (int64_t i = 0; i < count; ++i) ((double *)sums)[i] *= factor;
  }
}

static char *element_of(const bsrg_tensor *t, int64_t batch, int64_t head, int64_t row, int64_t size) {
  return (char *)t->data + (batch * t->batch_stride + head * t->head_stride + row * t->row_stride) * size;
}

/* The factor of a batch and a head of k. */
static double factor_of(const bsrg_factors *f, int64_t batch, int64_t head) {
  return f->data == NULL ? f->all : (double)f->data[batch * f->batch_stride + head * f->head_stride];
}

static void attend(panel *p, int64_t head) {
  const int64_t batch = p->of.batch, first_row = p->of.first_query + p->first;
  const attention_job *job = p->job;
  const bsrg_attention_args *args = job->args;
  const bsrg_cpu_ops *ops = job->ops;
  const bsrg_tensor *q = &args->q, *out = &args->out;
  p->vectors = bsrg_ceil_div(p->queries, ops->lanes);
  p->width = p->vectors * ops->lanes;
  p->mask = bsrg_attention_mask(args, batch, head);
  if (args->k.rows > 0) {
    const int64_t group = q->heads / args->k.heads;
    p->k = element_of(&args->k, batch, head / group, p->of.first_key, job->item);
    p->v = element_of(&args->v, batch, head / group, p->of.first_key, job->item);
  }
  double scale = args->scale, result_scale = 1;
  const char *queries = element_of(q, batch, head, first_row, job->item);
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
  multiply(p->slot + job->q_at, q->size * p->width, scale, ops->sum_size);

  const bsrg_softmax_run softmax = {.size = out->size,
                                    .vectors = p->vectors,
                                    .scores = p->slot + job->scores_at,
                                    .maximum = p->slot + job->lanes_at,
                                    .total = p->slot + job->lanes_at + p->width * ops->sum_size,
                                    .out = p->slot + job->out_at};
  ops->softmax_begin(&softmax);
  begin_keys(p);
  for (int64_t keys; (keys = next_chunk(p)) > 0;) {
    compute_scores(p);
    if (args->softcap > 0) ops->cap(softmax.scores, keys * p->width, args->softcap);
    exclude_keys(p);
    ops->softmax(&softmax, keys);
    add_values(p);
  }
  float *lse = args->lse == NULL ? NULL : args->lse + (batch * q->heads + head) * q->rows + first_row;
  ops->softmax_end(&softmax, lse, p->queries);
  char *y = element_of(out, batch, head, first_row, ops->element_size);
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

/* ---- All panels ---------------------------------------------------------------------------------------- */

static piece batch_of(const bsrg_attention_args *args, int64_t batch) {
  return (piece){
      .batch = batch, .queries = args->q.rows, .keys = args->k.rows, .band = bsrg_attention_band(args)};
}

static piece sequence_of(const bsrg_attention_args *args, int64_t s) {
  const int64_t *queries = args->sequences->q_offsets, *keys = args->sequences->k_offsets;
  piece of = {.first_query = queries[s],
              .queries = queries[s + 1] - queries[s],
              .first_key = keys[s],
              .keys = keys[s + 1] - keys[s]};
  of.band = bsrg_attention_sequence_band(args, of.queries, of.keys);
  return of;
}

/* The batch or sequence of a task, and which task of its own it is. */
static piece piece_of(const attention_job *job, int64_t *task) {
  const bsrg_attention_args *args = job->args;
  const int64_t heads = args->q.heads;
  if (job->panels_before == NULL) {
    const int64_t of_one = heads * bsrg_ceil_div(args->q.rows, job->panel_width), batch = *task / of_one;
    *task %= of_one;
    return batch_of(args, batch);
  }
  int64_t low = 0, high = args->sequences->count; /* the last one that begins no later */
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    if (job->panels_before[middle] * heads <= *task)
      low = middle;
    else
      high = middle;
  }
  *task -= job->panels_before[low] * heads;
  return sequence_of(args, low);
}

static void work(void *context, int slot) {
  attention_job *job = context;
  panel p = {.job = job, .slot = job->slots + (size_t)slot * job->slot_bytes};
  int64_t task;
  while ((task = atomic_fetch_add(&job->next, 1)) < job->tasks) {
    p.of = piece_of(job, &task);
    const int64_t panels = bsrg_ceil_div(p.of.queries, job->panel_width);
    /* Last queries first: in causal attention they see the most. */
    p.first = (panels - 1 - task % panels) * job->panel_width;
    p.queries = bsrg_min(job->panel_width, p.of.queries - p.first);
    attend(&p, task / panels);
  }
}

/* Of all places of a block, the share that the masks have; 1 without masks. */
static double stored_share(const bsrg_attention_args *args) {
  if (args->masks == NULL) return 1;
  double stored = 0, all = 0;
  for (int64_t b = 0; b < args->mask_batch; ++b)
    for (int64_t h = 0; h < args->mask_heads; ++h) {
      const bsrg_structure_view *mask = bsrg_attention_mask(args, b, h);
      stored += (double)mask->nnzb;
      all += (double)(mask->block_rows * mask->block_cols);
    }
  return stored / fmax(1, all);
}

/* Of all pairs of queries and keys, the share that the masks and the band allow, roughly. */
static double allowed_share(const bsrg_attention_args *args, const piece *of) {
  const bsrg_band band = of->band;
  const double keys = (double)of->keys;
  const double share = stored_share(args);
  const double width = (double)band.last - (double)band.first + 1;
  return keys == 0 ? 0 : width < keys ? share * (width < 0 ? 0 : width) / keys : share;
}

/* Pairs of a vector of queries and a key that one head computes in a batch or sequence, roughly. */
static double pairs_of(const attention_job *job, const piece *of) {
  return (double)bsrg_ceil_div(of->queries, job->ops->lanes) * (double)of->keys *
         allowed_share(job->args, of);
}

/* Counts the panels, and the pairs of all batches or sequences. false: no memory. */
static bool count_panels(attention_job *job, double *pairs) {
  const bsrg_attention_args *args = job->args;
  if (args->sequences == NULL) {
    const piece of = batch_of(args, 0);
    *pairs = (double)args->q.batch * pairs_of(job, &of);
    job->tasks = args->q.batch * args->q.heads * bsrg_ceil_div(args->q.rows, job->panel_width);
    return true;
  }
  const int64_t count = args->sequences->count;
  job->panels_before = malloc(sizeof(*job->panels_before) * (size_t)(count + 1));
  if (job->panels_before == NULL) return false;
  *pairs = 0;
  int64_t panels = 0;
  for (int64_t s = 0; s < count; ++s) {
    const piece of = sequence_of(args, s);
    job->panels_before[s] = panels;
    panels += bsrg_ceil_div(of.queries, job->panel_width);
    *pairs += pairs_of(job, &of);
  }
  job->panels_before[count] = panels;
  job->tasks = panels * args->q.heads;
  return true;
}

static bsrg_tensor heads_as_rows(const bsrg_tensor *t, int64_t group) {
  bsrg_tensor rows = *t;
  rows.heads = t->heads / group;
  rows.rows = group;
  rows.head_stride = group * t->head_stride;
  rows.row_stride = t->head_stride;
  return rows;
}

static void take_keys(bsrg_tensor *t, int64_t first, int64_t count, bsrg_dtype dtype) {
  t->data = (char *)t->data + first * t->row_stride * (int64_t)bsrg_dtype_size(dtype);
  t->rows = count;
}

/* One query each: heads that share a head of k see the same keys and become the queries of one, which fill lanes that would
 * stay empty. Not where they have masks of their own, or more block rows than there are. */
static bool group_heads(const bsrg_attention_args *args, bsrg_attention_args *grouped) {
  if (args->q.rows != 1 || args->sequences || args->q.heads == args->k.heads) return false;
  const int64_t group = args->q.heads / args->k.heads;
  const bsrg_band band = bsrg_attention_band(args);
  const int64_t first = bsrg_max(0, band.first), end = bsrg_min(args->k.rows, band.last + 1);
  if (args->masks && (args->mask_heads > args->k.heads || bsrg_attention_block_shape(args).height < group ||
                      first > 0 || end < args->k.rows))
    return false;
  *grouped = *args;
  grouped->q = heads_as_rows(&args->q, group);
  grouped->out = heads_as_rows(&args->out, group);
  take_keys(&grouped->k, first, bsrg_max(0, end - first), args->dtype);
  take_keys(&grouped->v, first, bsrg_max(0, end - first), args->dtype);
  grouped->left = grouped->right = -1;
  return true;
}

/* How often the panels of a head of q read a key on average, roughly. */
static double reads_of_piece(const bsrg_attention_args *args, const piece *of, int64_t panel_width) {
  const double keys = (double)bsrg_max(1, of->keys);
  double share = stored_share(args);
  if (args->masks != NULL) /* a panel reads what any of its block rows has */
    share = fmin(1, share * (double)bsrg_ceil_div(panel_width, bsrg_attention_block_shape(args).height));
  const double seen = (double)of->band.last - (double)of->band.first + (double)panel_width;
  if (seen < keys) share *= fmax(0, seen) / keys;
  return (double)bsrg_ceil_div(of->queries, panel_width) * share;
}

/* Keys and values are read by rows, those that it may see for each panel of queries. Where the elements of a row are no neighbours,
 * that takes longer than a copy by squares of all. So they are copied first where they are read more than once or, if that takes
 * little memory, for the most part. */
static bool pays_to_copy(const bsrg_attention_args *args, const bsrg_tensor *t) {
  if (t->element_stride == 1 || t->size == 1 || t->row_stride == 0 || t->element_stride == 0) return false;
  const bsrg_cpu_ops *ops = bsrg_cpu_ops_of(bsrg_attention_out_dtype(args));
  const int64_t panel_width = ops->tile_vectors * ops->lanes;
  double reads = 0;
  if (args->sequences) {
    for (int64_t s = 0; s < args->sequences->count; ++s) {
      const piece of = sequence_of(args, s);
      reads += reads_of_piece(args, &of, panel_width) * (double)of.keys / (double)bsrg_max(1, t->rows);
    }
  } else {
    const piece of = batch_of(args, 0);
    reads = reads_of_piece(args, &of, panel_width);
  }
  reads *= (double)(args->q.heads / args->k.heads);
  const bsrg_tensor rows = bsrg_cpu_in_rows(t);
  const bool small = bsrg_cpu_rows_bytes(&rows, (int64_t)bsrg_dtype_size(args->dtype)) <= SMALL_COPY;
  return reads > 1 || (small && reads > 0.5);
}

static bsrg_status attend_all(const bsrg_attention_args *given, bool copy_k, bool copy_v, bsrg_error *error) {
  bsrg_attention_args on = *given;
  const bsrg_attention_args *args = &on;
  const int64_t item = (int64_t)bsrg_dtype_size(args->dtype);
  if (copy_k) on.k = bsrg_cpu_in_rows(&given->k);
  if (copy_v) on.v = bsrg_cpu_in_rows(&given->v);
  const size_t v_at = copy_k ? bsrg_cpu_rows_bytes(&on.k, item) : 0,
               slots_at = v_at + (copy_v ? bsrg_cpu_rows_bytes(&on.v, item) : 0);
  const bsrg_cpu_ops *ops = bsrg_cpu_ops_of(bsrg_attention_out_dtype(args));
  const bsrg_tensor *q = &args->q, *k = &args->k, *v = &args->v;
  const bool same_type = ops->element_size == ops->sum_size;
  const int64_t width = ops->tile_vectors * ops->lanes;
  attention_job job = {.args = args,
                       .ops = ops,
                       .eight_bits = args->dtype == BSRG_F8_E4M3,
                       .item = item,
                       .panel_width = width,
                       .k_in_place = same_type && k->element_stride == 1,
                       .v_in_place = same_type && v->element_stride == 1};
  /* Parts of a slot, each on cache lines of its own. */
  const struct {
    size_t *at;
    int64_t rows, columns;
  } parts[] = {{&job.q_at, q->size, width},
               {&job.scores_at, CHUNK_KEYS, width},
               {&job.out_at, v->size, width},
               {&job.lanes_at, 2, width},
               {&job.k_at, job.k_in_place ? 0 : CHUNK_KEYS, k->size},
               {&job.v_at, job.v_in_place ? 0 : CHUNK_KEYS, v->size}};
  for (size_t i = 0; i < sizeof parts / sizeof parts[0]; ++i) {
    *parts[i].at = job.slot_bytes;
    job.slot_bytes += ((size_t)(parts[i].rows * parts[i].columns * ops->sum_size) + 127) / 64 * 64;
  }
  double pairs;
  if (!count_panels(&job, &pairs))
    return bsrg_fail(error, BSRG_ERR_MEMORY, "no memory for the offsets of %lld sequences",
                     (long long)args->sequences->count);
  const double work_of_all = pairs * (double)q->heads * (double)(q->size + v->size);
  const int threads = (int)bsrg_max(1, bsrg_min(job.tasks, bsrg_cpu_threads(work_of_all)));
  const size_t bytes = slots_at + job.slot_bytes * (size_t)threads;
  char *scratch = bsrg_scratch_take(bytes);
  if (scratch) {
    if (copy_k) bsrg_cpu_copy_rows(&given->k, &on.k, scratch, item);
    if (copy_v) bsrg_cpu_copy_rows(&given->v, &on.v, scratch + v_at, item);
    job.slots = scratch + slots_at;
    bsrg_run_parallel(work, &job, threads);
    bsrg_scratch_give(scratch);
  }
  free(job.panels_before);
  if (!scratch) return bsrg_fail(error, BSRG_ERR_MEMORY, "no memory for %zu bytes of scratch space", bytes);
  return BSRG_OK;
}

bsrg_status bsrg_cpu_attention(const bsrg_attention_args *args, bsrg_error *error) {
  bsrg_attention_args grouped;
  if (group_heads(args, &grouped)) args = &grouped;
  const bool copy_k = pays_to_copy(args, &args->k), copy_v = pays_to_copy(args, &args->v);
  const bsrg_status status = attend_all(args, copy_k, copy_v, error);
  return status == BSRG_ERR_MEMORY && (copy_k || copy_v) ? attend_all(args, false, false, error) : status;
}
