/* Attention on the CPU: which panels of queries there are, which memory they take, and the threads that take them by turns. */
#include "../attention.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "attention_panel.h"

enum { SMALL_COPY = 4 << 20 /* bytes of scratch memory that is kept */ };

static bsrg_attention_piece batch_of(const bsrg_attention_args *args, int64_t batch) {
  return (bsrg_attention_piece){
      .batch = batch, .queries = args->q.rows, .keys = args->k.rows, .band = bsrg_attention_band(args)};
}

static bsrg_attention_piece sequence_of(const bsrg_attention_args *args, int64_t s) {
  const int64_t *queries = args->sequences->q_offsets, *keys = args->sequences->k_offsets;
  bsrg_attention_piece of = {.first_query = queries[s],
                             .queries = queries[s + 1] - queries[s],
                             .first_key = keys[s],
                             .keys = keys[s + 1] - keys[s]};
  of.band = bsrg_attention_sequence_band(args, of.queries, of.keys);
  return of;
}

/* The batch or sequence of a task, and which task of its own it is. */
static bsrg_attention_piece piece_of(const bsrg_attention_job *job, int64_t *task) {
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

/* Whether lanes lie along keys and elements of a head. Shorter heads than a vector would leave most of these empty, too. */
static bool are_few(const bsrg_attention_job *job, int64_t queries) {
  const bsrg_tensor *k = &job->args->k, *v = &job->args->v;
  const int64_t lanes = job->ops->lanes;
  return !job->eight_bits && queries <= bsrg_min(BSRG_FEW_QUERIES, bsrg_max(1, lanes / 4)) &&
         bsrg_min(k->size, v->size) >= lanes && k->element_stride == 1 && v->element_stride == 1;
}

static void attend(bsrg_attention_panel *p, int64_t head) {
  const bsrg_attention_job *job = p->job;
  const bsrg_attention_args *args = job->args;
  p->head = head;
  p->mask = bsrg_attention_mask(args, p->of.batch, head);
  if (args->k.rows > 0) {
    const int64_t key_head = head / (args->q.heads / args->k.heads);
    p->k = bsrg_element_of(&args->k, p->of.batch, key_head, p->of.first_key, job->item);
    p->v = bsrg_element_of(&args->v, p->of.batch, key_head, p->of.first_key, job->item);
  }
  if (are_few(job, p->queries)) {
    bsrg_attend_few(p);
  } else {
    bsrg_attend_tile(p);
  }
}

static void work(void *context, int slot) {
  bsrg_attention_job *job = context;
  bsrg_attention_panel p = {.job = job, .slot = job->slots + (size_t)slot * job->slot_bytes};
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
      const bsrg_structure_view *mask = &args->masks[b * args->mask_heads + h]->view;
      stored += (double)mask->nnzb;
      all += (double)(mask->block_rows * mask->block_cols);
    }
  return stored / fmax(1, all);
}

/* Of all pairs of queries and keys, the share that the masks and the band allow, roughly. */
static double allowed_share(const bsrg_attention_args *args, const bsrg_attention_piece *of) {
  const bsrg_band band = of->band;
  const double keys = (double)of->keys;
  const double share = stored_share(args);
  const double width = (double)band.last - (double)band.first + 1;
  return keys == 0 ? 0 : width < keys ? share * (width < 0 ? 0 : width) / keys : share;
}

/* Pairs of a vector of queries and a key that one head computes in a batch or sequence, roughly. Of few queries, vectors have
 * elements of keys and values: loading these takes as long as multiplying them, and each key something besides. */
static double pairs_of(const bsrg_attention_job *job, const bsrg_attention_piece *of) {
  const double queries = (double)of->queries, elements = (double)(job->args->q.size + job->args->v.size);
  const double vectors = are_few(job, of->queries)
                             ? 2 * queries / (double)job->ops->lanes + (8 + queries) / elements
                             : (double)bsrg_ceil_div(of->queries, job->ops->lanes);
  return vectors * (double)of->keys * allowed_share(job->args, of);
}

/* Counts the panels, and the pairs of all batches or sequences. false: no memory. */
static bool count_panels(bsrg_attention_job *job, double *pairs) {
  const bsrg_attention_args *args = job->args;
  if (args->sequences == NULL) {
    const bsrg_attention_piece of = batch_of(args, 0);
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
    const bsrg_attention_piece of = sequence_of(args, s);
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
static double reads_of_piece(const bsrg_attention_args *args, const bsrg_attention_piece *of,
                             int64_t panel_width) {
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
      const bsrg_attention_piece of = sequence_of(args, s);
      reads += reads_of_piece(args, &of, panel_width) * (double)of.keys / (double)bsrg_max(1, t->rows);
    }
  } else {
    const bsrg_attention_piece of = batch_of(args, 0);
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
  bsrg_attention_job job = {.args = args,
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
  } parts[] = {{&job.q_at, bsrg_whole_vectors(ops, q->size), width},
               {&job.scores_at, BSRG_CHUNK_KEYS, width},
               {&job.out_at, bsrg_whole_vectors(ops, v->size), width},
               {&job.lanes_at, 2, width},
               {&job.k_at, job.k_in_place ? 0 : BSRG_CHUNK_KEYS, k->size},
               {&job.v_at, job.v_in_place ? 0 : BSRG_CHUNK_KEYS, v->size}};
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
