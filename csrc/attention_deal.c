/* Query tiles that are dealt in turn, worker w getting every workers-th of them, where a captured graph may have no
 * counter to draw them from. Longest first in sections about as large as a round, the same workers would get the long
 * ones of every section: a causal call took 1.5 times as long as with a counter. */
#include "attention_hopper.h"

#include <stdlib.h>
#include <string.h>

enum {
  TILES = 4096,    /* looked at, of the first heads */
  SECTIONS = 12,   /* tried, from one group of heads on */
  START = 5,       /* of a tile, in quarters of a key tile; as in attention_cut.c */
  BETTER_BY = 100, /* a larger section, which needs more of L2, has to be better by one in so many */
};

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
