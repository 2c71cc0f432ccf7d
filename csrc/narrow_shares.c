/* The narrow family's kernels that share out rows of unequal length: how a structure is divided among clusters of CTAs, and
 * what that costs. */
#include "narrow.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
  CTAS = BSRG_NARROW_SHARES_CTAS,
  STRIP = BSRG_NARROW_TMA_STRIP,
  CLUSTERS = BSRG_NARROW_CLUSTERS_OF_FOUR,
  MOST_STRIPS = 64 * CLUSTERS,
  HOP = 3, /* stages that a CTA multiplies while sums come from the next one, as measured */
  BEHIND = BSRG_NARROW_SHARES_TURNS /* empty shares, one for each who looks for the next one */
};

typedef struct strip {
  int64_t weight; /* stages, and one for the output, which takes about as long */
  int32_t first_block, block_count, y_row, row_in_block, rows;
} strip;

/* Blocks of which a stage is nearly full, as they are stored. */
static bool suits(const bsrg_structure_view *v) {
  return !v->order && v->block_height > 32 && 4 * v->block_width >= 3 * BSRG_NARROW_SHARES_STEP_K &&
         bsrg_narrow_suits_maps(v);
}

static int64_t list_strips(const bsrg_structure_view *v, strip *strips) {
  const int64_t stages = bsrg_ceil_div(v->block_width, BSRG_NARROW_SHARES_STEP_K);
  int64_t count = 0;
  for (int64_t row = 0; row < v->block_rows; ++row) {
    const int64_t blocks = v->indptr[row + 1] - v->indptr[row], rows = bsrg_rows_of(v, row);
    for (int64_t at = 0; at < rows; at += STRIP)
      strips[count++] = (strip){.weight = blocks * stages + 1,
                                .first_block = (int32_t)v->indptr[row],
                                .block_count = (int32_t)blocks,
                                .y_row = (int32_t)(row * v->block_height + at),
                                .row_in_block = (int32_t)at,
                                .rows = (int32_t)bsrg_min(STRIP, rows - at)};
  }
  return count;
}

static bool sort_longest_first(strip *strips, int64_t count) {
  int64_t longest = 0;
  int64_t *const weight = calloc((size_t)bsrg_max(1, count), sizeof(*weight));
  if (!weight) return false;
  for (int64_t i = 0; i < count; ++i) {
    weight[i] = strips[i].weight;
    longest = bsrg_max(longest, weight[i]);
  }
  const bool done = bsrg_sort_records(strips, sizeof(*strips), weight, count, longest);
  free(weight);
  return done;
}

/* Each strip to the cluster that has least so far. `of` gets the strips of each cluster, one behind the other, from first[c]
 * on. */
static void deal(const strip *strips, int64_t count, int32_t clusters, int32_t *cluster_of, strip *of,
                 int64_t *first) {
  int64_t load[CLUSTERS] = {0}, number[CLUSTERS] = {0};
  for (int64_t i = 0; i < count; ++i) {
    int32_t least = 0;
    for (int32_t c = 1; c < clusters; ++c)
      if (load[c] < load[least]) least = c;
    load[least] += strips[i].weight;
    ++number[least];
    cluster_of[i] = least;
  }
  first[0] = 0;
  for (int32_t c = 0; c < clusters; ++c) first[c + 1] = first[c] + number[c];
  int64_t next[CLUSTERS];
  memcpy(next, first, sizeof(*next) * (size_t)clusters);
  for (int64_t i = 0; i < count; ++i) of[next[cluster_of[i]]++] = strips[i];
}

/* The shares of a cluster's CTAs, which cut.shares[cta] get in their order. */
typedef struct cut {
  bsrg_narrow_share *shares[CTAS];
  int64_t count[CTAS];
} cut;

/* Where a cluster's first share ends, the second and so on. The sums of a strip that more than two CTAs have come from each to the
 * one before, which takes as long as `hop` units of weight, so each has that much less to do. */
static int64_t share_end(int64_t weight, int64_t hop, int32_t r) {
  return weight * (r + 1) / CTAS + hop * (r + 1) * (CTAS - 1 - r) / 2;
}

/* A strip in the order of the cluster's, from position `at` on of all `weight`. Parts of less than an eighth of a share are not
 * worth what it takes to add them. */
static void cut_strip(const strip *s, int64_t at, int64_t weight, int64_t hop, cut *to) {
  const int64_t least = bsrg_max(1, s->block_count * (weight / CTAS) / s->weight / 8);
  int64_t ends[CTAS], from = 0;
  int32_t parts = 0, rank = -1;
  for (int32_t r = 0; r < CTAS; ++r) {
    const int64_t in_strip = bsrg_min(bsrg_max(share_end(weight, hop, r) - at, 0), s->weight);
    int64_t end = (s->block_count * in_strip + s->weight / 2) / s->weight;
    if (end - from < least) end = from;
    if ((s->block_count - end < least && in_strip > 0) || r == CTAS - 1) end = s->block_count;
    const bool begins = rank < 0 && (end > from || (s->block_count == 0 && in_strip > 0));
    if (begins) rank = r;
    if (end > from || begins) ends[parts++] = end;
    from = end;
  }
  int64_t first = 0;
  for (int32_t part = 0; part < parts; ++part) {
    const int32_t r = rank + part;
    to->shares[r][to->count[r]++] = (bsrg_narrow_share){.first_block = s->first_block + (int32_t)first,
                                                        .block_count = (int32_t)(ends[part] - first),
                                                        .y_row = s->y_row,
                                                        .row_in_block = s->row_in_block,
                                                        .rows = s->rows,
                                                        .part = part,
                                                        .parts = parts};
    first = ends[part];
  }
}

/* The one that began before comes first, so that its sums are early where they are added, and the one that goes on last. */
static int64_t finish_share(bsrg_narrow_share *shares, int64_t count) {
  int64_t blocks = 0;
  for (int64_t i = 1; i < count; ++i) {
    if (shares[i].part == 0) continue;
    const bsrg_narrow_share begun = shares[i];
    memmove(shares + 1, shares, sizeof(*shares) * (size_t)i);
    shares[0] = begun;
  }
  for (int64_t i = 0; i + 1 < count; ++i) {
    if (shares[i].parts == 1 || shares[i].part > 0) continue;
    const bsrg_narrow_share goes_on = shares[i];
    shares[i] = shares[count - 1];
    shares[count - 1] = goes_on;
    break;
  }
  for (int64_t i = 0; i < count; ++i) {
    shares[i].blocks_before = (int32_t)blocks;
    blocks += shares[i].block_count;
  }
  return blocks;
}

static bool fill(const bsrg_structure_view *v, const bsrg_narrow_share *lists, const int64_t *counts,
                 int64_t in_list, bsrg_narrow_shares *shares) {
  const int64_t ctas = (int64_t)shares->clusters * CTAS;
  shares->shares = calloc((size_t)(ctas * shares->most), sizeof(*shares->shares));
  shares->columns = calloc((size_t)(ctas * (1 + shares->longest)), sizeof(*shares->columns));
  if (!shares->shares || !shares->columns) return false;
  for (int64_t cta = 0; cta < ctas; ++cta) {
    int32_t *const numbers = shares->columns + cta * (1 + shares->longest);
    for (int64_t i = 0; i < counts[cta]; ++i) {
      const bsrg_narrow_share *const share = &lists[cta * in_list + i];
      shares->shares[cta * shares->most + i] = *share;
      memcpy(numbers + 1 + share->blocks_before, v->indices + share->first_block,
             sizeof(*numbers) * (size_t)share->block_count);
      numbers[0] += share->block_count;
    }
  }
  return true;
}

/* lists: [CTAs][in_list]. A row that has so many blocks that its cluster works while others have nothing to do is better cut
 * into more parts. Nor where one CTA has most of the strips, nearly all of them empty, as the others' lists are as long. */
static bool share_out(const bsrg_structure_view *v, const strip *of, const int64_t *first, int64_t in_list,
                      bsrg_narrow_share *lists, bsrg_narrow_shares *shares) {
  int64_t counts[CLUSTERS * CTAS] = {0}, all = 0;
  for (int32_t c = 0; c < shares->clusters; ++c) {
    cut to = {0};
    int64_t weight = 0, at = 0;
    for (int32_t r = 0; r < CTAS; ++r) to.shares[r] = lists + (c * CTAS + r) * in_list;
    for (int64_t i = first[c]; i < first[c + 1]; ++i) weight += of[i].weight;
    const bool chained = 2 * of[first[c]].weight > weight;
    const int64_t hop = chained ? bsrg_min(HOP, weight / 16) : 0;
    for (int64_t i = first[c]; i < first[c + 1]; at += of[i++].weight)
      cut_strip(&of[i], at, weight, hop, &to);
    for (int32_t r = 0; r < CTAS; ++r) {
      counts[c * CTAS + r] = to.count[r];
      const int64_t blocks = finish_share(to.shares[r], to.count[r]);
      all += blocks;
      shares->longest = (int32_t)bsrg_max(shares->longest, blocks);
      shares->most = (int32_t)bsrg_max(shares->most, to.count[r] + BEHIND);
    }
  }
  const int64_t ctas = (int64_t)shares->clusters * CTAS, strips = first[shares->clusters];
  if (ctas * shares->longest <= 3 * all && ctas * shares->most <= 16 * (strips + ctas))
    return fill(v, lists, counts, in_list, shares);
  *shares = (bsrg_narrow_shares){0};
  return true;
}

bool bsrg_narrow_make_shares(const bsrg_structure_view *v, bsrg_narrow_shares *shares) {
  if (!suits(v)) return true;
  const int64_t most = v->block_rows * bsrg_ceil_div(v->block_height, STRIP);
  if (most > MOST_STRIPS) return true;
  strip *const strips = malloc(2 * sizeof(*strips) * (size_t)most); /* as they come, and by cluster */
  int32_t *const cluster_of = malloc(sizeof(*cluster_of) * (size_t)most);
  bsrg_narrow_share *lists = NULL;
  bool done = strips && cluster_of;
  if (done) {
    strip *const of = strips + most;
    const int64_t count = list_strips(v, strips);
    int64_t first[CLUSTERS + 1], in_list = 0;
    shares->clusters = (int32_t)bsrg_min(CLUSTERS, count);
    done = sort_longest_first(strips, count);
    if (done) deal(strips, count, shares->clusters, cluster_of, of, first);
    for (int32_t c = 0; c < shares->clusters && done; ++c)
      in_list = bsrg_max(in_list, first[c + 1] - first[c]);
    if (done) lists = malloc(sizeof(*lists) * (size_t)(shares->clusters * CTAS * in_list));
    done = lists && share_out(v, of, first, in_list, lists, shares);
  }
  free(lists);
  free(cluster_of);
  free(strips);
  return done;
}

void bsrg_narrow_free_shares(bsrg_narrow_shares *shares) {
  free(shares->shares);
  free(shares->columns);
  *shares = (bsrg_narrow_shares){0};
}

/* Fitted on an H200, to up to 64 columns and to more: a launch, with the chain of a share's first loads; a strip's output, as far
 * as it is not hidden; what an SM takes in beside all others, which together is L2's rate, and once most have ended; and the share
 * of the memory's rate. */
static const struct rates {
  double launch_seconds, strip_seconds, sm_bytes_per_s, last_sm_bytes_per_s, memory_share;
} few = {4.4e-6, 0.2e-6, 65e9, 80e9, 0.95}, many = {5.8e-6, 0.4e-6, 85e9, 105e9, 0.8};

double bsrg_narrow_shares_l2_bytes(const bsrg_structure_view *v, double columns) {
  const double of_column = (double)bsrg_ceil_div(v->block_height, STRIP) * columns + (double)v->block_height;
  return 2 * (double)v->nnzb * (double)v->block_width * of_column;
}

double bsrg_narrow_shares_time(const bsrg_structure_view *v, const bsrg_narrow_shares *shares, double columns,
                               double slower, double hbm_bytes, const bsrg_chip *chip) {
  const struct rates *r = columns > BSRG_NARROW_MAX_N ? &many : &few;
  const double of_block = 2 * (double)v->block_width * (STRIP + columns);
  const double mean =
      (double)(v->nnzb * bsrg_ceil_div(v->block_height, STRIP)) / (double)(shares->clusters * CTAS);
  const double work = of_block * fmax(mean / r->sm_bytes_per_s, shares->longest / r->last_sm_bytes_per_s);
  const double memory = hbm_bytes / (chip->hbm_bytes_per_s * r->memory_share);
  return r->launch_seconds + r->strip_seconds * (shares->most - BEHIND) + slower * fmax(work, memory);
}
