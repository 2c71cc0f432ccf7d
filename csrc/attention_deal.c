/* Query tiles that are dealt in turn, worker w getting every workers-th of them, where there is no counter to draw them
 * from: in graphs and on some streams, see bsrg_stream_counter. Longest first in sections, the same workers would get the
 * longest ones of every round: by counting, causal calls would take up to 1.5 times as long as with a counter, those with
 * random masks 1.2 times. Tiles of masks are put into another order, which their plan keeps; the others have sections of
 * another size, which each call chooses in up to 60 us of the host. */
#include "attention_hopper.h"

#include <stdlib.h>
#include <string.h>

enum {
  TILES = 4096,    /* looked at, of the first heads */
  SECTIONS = 12,   /* tried, from one group of heads on */
  START = 5,       /* of a tile, in quarters of a key tile; as in attention_cut.c */
  BETTER_BY = 100, /* a larger section, which needs more of L2, has to be better by one in so many */
};

/* ---- without masks ----------------------------------------------------------------------------- */

/* Keys and values of a section together, at most: more would not stay in L2. */
static const int64_t section_bytes = 32 << 20;

/* The most that a worker gets. */
static int64_t longest_share(const int32_t *length, int32_t query_tiles, int32_t heads, int32_t section,
                             int64_t *share, int32_t workers) {
  memset(share, 0, sizeof(*share) * (size_t)workers);
  int64_t longest = 0;
  int32_t worker = 0;
  for (int32_t first = 0; first < heads; first += section)
    for (int32_t tile = query_tiles - 1; tile >= 0; --tile)
      for (int32_t head = first; head < bsrg_min(first + section, heads); ++head) {
        share[worker] += length[tile];
        longest = bsrg_max(longest, share[worker]);
        if (++worker == workers) worker = 0;
      }
  return longest;
}

void bsrg_attention_deal(bsrg_attention_order *order, const bsrg_attention_args *args,
                         const bsrg_attention_bounds *bounds, int32_t rows, int32_t tile_keys,
                         int32_t workers) {
  const int32_t group = (int32_t)(args->q.heads / args->k.heads), tiles = order->query_tiles;
  const int64_t bytes =
      (int64_t)bsrg_dtype_size(args->dtype) * args->k.rows * (args->q.size + args->v.size); /* of a group */
  const int32_t groups = order->heads / group;
  const int32_t looked_at = (int32_t)bsrg_min(groups, bsrg_max(TILES / tiles / group, SECTIONS));
  const int64_t most = bsrg_min(bsrg_min(section_bytes / bsrg_max(bytes, 1), SECTIONS), looked_at);
  int32_t *length = malloc(sizeof(*length) * (size_t)tiles);
  int64_t *share = malloc(sizeof(*share) * (size_t)workers), best = INT64_MAX;
  for (int32_t tile = 0; length && share && tile < tiles; ++tile) {
    const bsrg_attention_range range = bsrg_attention_key_range(bounds, tile * rows, rows, tile_keys);
    length[tile] = 4 * (range.end - range.begin) + START;
  }
  for (int32_t n = 1; length && share && n <= bsrg_max(most, 1); ++n) {
    const int64_t longest = longest_share(length, tiles, looked_at * group, n * group, share, workers);
    if (longest >= best - best / BETTER_BY) continue;
    best = longest;
    order->section = n * group;
    order->tail_begin = order->heads;
  }
  free(length);
  free(share);
}

/* ---- masks ------------------------------------------------------------------------------------ */

typedef struct worker {
  int64_t load;
  int32_t index;
} worker;

static int compare_workers(const void *a, const void *b) {
  const worker *x = a, *y = b;
  if (x->load != y->load) return x->load < y->load ? -1 : 1;
  return x->index < y->index ? -1 : 1;
}

/* Gives each tile of a round, of which the lengths are there, to a worker: the longest to who has got least so far. The
 * first `count` of `workers` are those who get one. */
static bool deal_round(const int64_t *length, int32_t count, worker *workers, int32_t worker_count,
                       int32_t *order, int32_t *taken_by) {
  int64_t longest = 0;
  for (int32_t i = 0; i < count; ++i) longest = bsrg_max(longest, length[i]);
  if (!bsrg_sort_longest_first(length, count, longest, order)) return false;
  qsort(workers, (size_t)worker_count, sizeof(*workers), compare_workers);
  for (int32_t i = 0; i < count; ++i) {
    taken_by[order[i]] = workers[i].index;
    workers[i].load += 4 * length[order[i]] + START;
  }
  return true;
}

bool bsrg_attention_deal_tiles(bsrg_attention_plan *plan, int32_t worker_count) {
  const int64_t tiles = plan->tile_count;
  if (tiles <= worker_count) return true;
  const size_t each = (size_t)worker_count;
  worker *workers = malloc(sizeof(*workers) * each);
  int32_t *order = malloc(sizeof(*order) * each), *place = malloc(sizeof(*place) * each);
  int64_t *length = malloc(sizeof(*length) * (size_t)tiles);
  int32_t *taken_by = malloc(sizeof(*taken_by) * (size_t)tiles);
  bsrg_attention_item *dealt = malloc(sizeof(*dealt) * (size_t)tiles);
  bool done = workers && order && place && length && taken_by && dealt;
  for (int64_t t = 0; done && t < tiles; ++t) length[t] = plan->tiles[t].steps;
  for (int32_t w = 0; done && w < worker_count; ++w) workers[w] = (worker){.index = w};
  for (int64_t first = 0; done && first < tiles; first += worker_count)
    done = deal_round(length + first, (int32_t)bsrg_min(tiles - first, worker_count), workers, worker_count,
                      order, taken_by + first);
  if (done) {
    /* Who has one of the last round, which may be short, is among the first. */
    for (int32_t w = 0; w < worker_count; ++w) place[workers[w].index] = w;
    for (int64_t t = 0; t < tiles; ++t)
      dealt[t / worker_count * worker_count + place[taken_by[t]]] = plan->tiles[t];
    memcpy(plan->tiles, dealt, sizeof(*dealt) * (size_t)tiles);
  }
  free(workers);
  free(order);
  free(place);
  free(length);
  free(taken_by);
  free(dealt);
  return done;
}
