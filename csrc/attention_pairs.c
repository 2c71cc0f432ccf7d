/* Lists of pairs for the Hopper kernels of attention: which two query blocks of 64 rows a CTA computes together, and in
 * which steps.
 *
 * A step of a warpgroup is two of the key tiles that its query block needs. Tiles that both query blocks need are loaded
 * once for both. The rest comes in turn for the first and for the second, so that neither waits for more than one entry
 * that is not its own; where one has more than the other, the other takes part and sees nothing. */
#include "attention_hopper.h"

#include <stdlib.h>

enum {
  ROWS = BSRG_ATTENTION_PAIR_ROWS,
  PAIRING_BUDGET = 1 << 20, /* word operations that the search for partners may spend; about a millisecond */
  PAIRING_WINDOW = 256,
  TAKES = BSRG_ATTENTION_TAKES,
  HIDES_FIRST = BSRG_ATTENTION_HIDES_FIRST,
  HIDES_SECOND = BSRG_ATTENTION_HIDES_SECOND
};

bool bsrg_attention_suits_pairs(bsrg_block_shape block) {
  return block.height % ROWS == 0 && block.width % ROWS == 0 &&
         (block.height % BSRG_ATTENTION_LIST_ROWS != 0 || block.width % (2 * ROWS) != 0);
}

/* The key tiles of 64 that some query block or some two need. */
typedef struct tile_list {
  int32_t *tile;
  int32_t count;
} tile_list;

typedef struct builder {
  const bsrg_attention_bounds *bounds;
  const bsrg_structure_view *mask;
  bsrg_attention_plan *plan;
  int64_t *room;
  int32_t blocks, key_tiles;
  tile_list need[2];        /* of the two query blocks in hand */
  tile_list own[2], shared; /* what one of them needs alone, and both */
} builder;

/* ---- what a query block needs ----------------------------------------------------------------- */

static bsrg_attention_range range_of(const builder *b, int32_t block) {
  return bsrg_attention_key_range(b->bounds, block * ROWS, ROWS, ROWS);
}

/* Ascending; none for a block behind the last. NULL for tile: only counts. */
static int32_t list_tiles(const builder *b, int32_t block, int32_t *tile) {
  if (block >= b->blocks) return 0;
  const bsrg_attention_range range = range_of(b, block);
  const int64_t row = (int64_t)block * ROWS / b->mask->block_height, width = b->mask->block_width / ROWS;
  int32_t count = 0;
  for (int64_t i = b->mask->indptr[row]; i < b->mask->indptr[row + 1]; ++i) {
    const int64_t first = b->mask->indices[i] * width;
    for (int64_t t = bsrg_max(first, range.begin); t < bsrg_min(first + width, range.end); ++t) {
      if (tile) tile[count] = (int32_t)t;
      ++count;
    }
  }
  return count;
}

/* ---- which two query blocks -------------------------------------------------------------------- */

/* Puts blocks next to one another of which each wants the other most: many tiles in common save loads, and tiles that
 * one has more than the other are steps in which the other does nothing. `taken` is all false. */
static void pair_blocks(const builder *b, const uint64_t *bits, int64_t words, int64_t candidates,
                        const int64_t *length, const int32_t *order, bool *taken, int32_t *paired) {
  int64_t count = 0;
  for (int64_t k = 0; k < b->blocks; ++k) {
    const int32_t block = order[k];
    if (taken[block]) continue;
    int64_t best_score = INT64_MIN;
    int32_t best = b->blocks;
    for (int64_t l = k + 1, tried = 0; l < b->blocks && tried < candidates; ++l) {
      const int32_t other = order[l];
      if (taken[other]) continue;
      ++tried;
      int64_t score = length[other] - length[block]; /* longest first: not positive */
      for (int64_t w = 0; w < words; ++w)
        score += __builtin_popcountll(bits[block * words + w] & bits[other * words + w]);
      if (score > best_score) {
        best_score = score;
        best = other;
      }
    }
    taken[block] = true;
    if (best < b->blocks) taken[best] = true;
    paired[count++] = block;
    paired[count++] = best;
  }
}

/* Partners lie next to one another in `paired`, of 2 * ceil(blocks / 2); an odd one's is b->blocks. */
static bool find_partners(const builder *b, int32_t *paired) {
  const int64_t blocks = b->blocks, words = bsrg_ceil_div(b->key_tiles, 64);
  int64_t candidates = bsrg_min(PAIRING_BUDGET / blocks / words, PAIRING_WINDOW), longest = 0;
  const bool search = candidates >= 2;
  int64_t *length = malloc(sizeof(*length) * (size_t)blocks);
  int32_t *order = malloc(sizeof(*order) * (size_t)blocks);
  bool *taken = calloc((size_t)blocks, sizeof(*taken));
  uint64_t *bits = search ? calloc((size_t)(blocks * words), sizeof(*bits)) : NULL;
  bool done = length && order && taken && (bits || !search);
  for (int32_t i = 0; done && i < blocks; ++i) {
    length[i] = list_tiles(b, i, b->need[0].tile);
    longest = bsrg_max(longest, length[i]);
    for (int64_t t = 0; search && t < length[i]; ++t) {
      const int32_t tile = b->need[0].tile[t];
      bits[i * words + tile / 64] |= (uint64_t)1 << tile % 64;
    }
  }
  done = done && bsrg_sort_longest_first(length, blocks, longest, order);
  /* Too large to search: neighbours in the order of lengths. */
  if (done) pair_blocks(b, bits, search ? words : 0, search ? candidates : 1, length, order, taken, paired);
  free(length);
  free(order);
  free(taken);
  free(bits);
  return done;
}

/* ---- steps ------------------------------------------------------------------------------------- */

static void split(builder *b) {
  const tile_list *x = &b->need[0], *y = &b->need[1];
  b->own[0].count = b->own[1].count = b->shared.count = 0;
  int32_t i = 0, j = 0;
  while (i < x->count || j < y->count) {
    const int32_t tile_x = i < x->count ? x->tile[i] : INT32_MAX;
    const int32_t tile_y = j < y->count ? y->tile[j] : INT32_MAX;
    tile_list *to = tile_x == tile_y ? &b->shared : &b->own[tile_y < tile_x];
    to->tile[to->count++] = bsrg_min(tile_x, tile_y);
    i += tile_x <= tile_y;
    j += tile_y <= tile_x;
  }
  if (b->shared.count % 2) { /* half a pair fits better where each may have another half */
    const int32_t tile = b->shared.tile[--b->shared.count];
    for (int w = 0; w < 2; ++w) b->own[w].tile[b->own[w].count++] = tile;
  }
}

/* Key tiles 2 * i and the next of a list; behind its end there are zeros. */
static bsrg_attention_key_pair pair_of(const builder *b, const tile_list *list, int32_t i) {
  const int32_t at = 2 * i;
  return (bsrg_attention_key_pair){.key_tile = {at < list->count ? list->tile[at] : b->key_tiles,
                                                at + 1 < list->count ? list->tile[at + 1] : b->key_tiles}};
}

/* How query block w sees a pair. */
static int32_t flags_of(const builder *b, const bsrg_attention_key_pair *pair, int32_t block) {
  if (block >= b->blocks) return TAKES | HIDES_FIRST | HIDES_SECOND;
  const bsrg_attention_range range = range_of(b, block);
  int32_t flags = TAKES;
  for (int half = 0; half < 2; ++half) {
    const int32_t tile = pair->key_tile[half];
    if (tile == b->key_tiles)
      flags |= half ? HIDES_SECOND : HIDES_FIRST;
    else
      flags |= (tile >= range.above_begin ? BSRG_ATTENTION_ABOVE : 0) |
               (tile < range.below_end ? BSRG_ATTENTION_BELOW : 0);
  }
  return flags;
}

static bool append(const builder *b, bsrg_attention_key_pair pair) {
  bsrg_attention_plan *plan = b->plan;
  if (plan->entry_count == *b->room) {
    const int64_t room = 2 * *b->room + 1024;
    bsrg_attention_key_pair *pairs = realloc(plan->pairs, sizeof(*pairs) * (size_t)room);
    if (!pairs) return false;
    plan->pairs = pairs;
    *b->room = room;
  }
  plan->pairs[plan->entry_count++] = pair;
  return true;
}

/* One step of each warpgroup that is not the same for both. */
static bool append_own(const builder *b, const int32_t *block, int32_t i) {
  const bool has[2] = {2 * i < b->own[0].count, 2 * i < b->own[1].count};
  for (int w = 0; w < 2; ++w) {
    if (!has[w]) continue;
    bsrg_attention_key_pair pair = pair_of(b, &b->own[w], i);
    pair.flags[w] = flags_of(b, &pair, block[w]);
    if (!has[!w]) pair.flags[!w] = TAKES | HIDES_FIRST | HIDES_SECOND;
    if (!append(b, pair)) return false;
  }
  return true;
}

static bool append_shared(const builder *b, const int32_t *block, int32_t i) {
  bsrg_attention_key_pair pair = pair_of(b, &b->shared, i);
  for (int w = 0; w < 2; ++w) pair.flags[w] = flags_of(b, &pair, block[w]);
  return append(b, pair);
}

/* Notes in what warpgroup w takes of the entries from `begin` on how many follow one another with nothing to mask. */
static void note_runs(bsrg_attention_plan *plan, int64_t begin, int w) {
  const int32_t masks =
      BSRG_ATTENTION_ABOVE | BSRG_ATTENTION_BELOW | BSRG_ATTENTION_HIDES_FIRST | BSRG_ATTENTION_HIDES_SECOND;
  int32_t run = 0;
  for (int64_t e = plan->entry_count - 1; e >= begin; --e) {
    int32_t *flags = &plan->pairs[e].flags[w];
    if (!(*flags & TAKES)) continue;
    run = *flags & masks ? 0 : (int32_t)bsrg_min(run + 1, BSRG_ATTENTION_RUN);
    *flags += run * BSRG_ATTENTION_RUN_UNIT;
  }
}

static bool list_query_tile(builder *b, const int32_t *block, bsrg_attention_item *list) {
  bsrg_attention_plan *plan = b->plan;
  const int64_t begin = plan->entry_count;
  for (int w = 0; w < 2; ++w) b->need[w].count = list_tiles(b, block[w], b->need[w].tile);
  split(b);
  const int32_t own = (bsrg_max(b->own[0].count, b->own[1].count) + 1) / 2, shared = b->shared.count / 2;
  const int32_t steps = own + shared;
  /* Spread evenly: a shared pair needs half the loads for the same products. */
  for (int32_t i = 0, done = 0; i < steps; ++i) {
    const bool is_shared = (int64_t)(i + 1) * shared / steps > done;
    if (!(is_shared ? append_shared(b, block, done) : append_own(b, block, i - done))) return false;
    done += is_shared;
  }
  /* The kernel's pipeline has no place for a query tile without key tiles: one of which nothing is seen. */
  if (steps == 0 && !append_shared(b, block, 0)) return false;
  for (int64_t e = begin; e + 1 < plan->entry_count; ++e)
    for (int w = 0; w < 2; ++w)
      if (!(plan->pairs[e + 1].flags[w] & TAKES)) plan->pairs[e].flags[w] |= BSRG_ATTENTION_PASSES_NEXT;
  for (int w = 0; w < 2; ++w) note_runs(plan, begin, w);
  *list = (bsrg_attention_item){.first_row = {block[0] * ROWS, block[1] * ROWS},
                                .steps = bsrg_max(steps, 1),
                                .entry_begin = (int32_t)begin,
                                .entry_count = (int32_t)(plan->entry_count - begin),
                                .passes_first = !(plan->pairs[begin].flags[1] & TAKES),
                                .slot = -1};
  return true;
}

bool bsrg_attention_list_pairs(const bsrg_attention_bounds *bounds, const bsrg_structure_view *mask,
                               bsrg_attention_plan *plan, int64_t *room, bsrg_attention_item *lists) {
  builder b = {.bounds = bounds,
               .mask = mask,
               .plan = plan,
               .room = room,
               .blocks = (int32_t)bsrg_ceil_div(bounds->queries, ROWS),
               .key_tiles = (int32_t)bsrg_ceil_div(bounds->keys, ROWS)};
  const int32_t query_tiles = (int32_t)bsrg_ceil_div(b.blocks, 2);
  const size_t each = (size_t)b.key_tiles + 1; /* a list can get one more where a shared one is left over */
  int32_t *paired = malloc(sizeof(*paired) * 2 * (size_t)query_tiles);
  int32_t *memory = malloc(sizeof(*memory) * 5 * each);
  bool done = paired && memory;
  if (done) {
    b.need[0].tile = memory;
    b.need[1].tile = memory + each;
    b.own[0].tile = memory + 2 * each;
    b.own[1].tile = memory + 3 * each;
    b.shared.tile = memory + 4 * each;
    done = find_partners(&b, paired);
  }
  for (int32_t t = 0; done && t < query_tiles; ++t) done = list_query_tile(&b, paired + 2 * t, lists + t);
  free(paired);
  free(memory);
  return done;
}
