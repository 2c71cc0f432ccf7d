/* The Hopper plan of attention: read as the kernel reads it, every query tile of every head comes once and sees what
 * the bounds and the mask let it see. */
#include <string.h>

#include "attention_hopper.h"
#include "structures.h"

/* Whether a kernel's masks of a key tile leave (query, key) visible. */
static bool passes(const bsrg_attention_bounds *bounds, int64_t query, int64_t key, int32_t flags) {
  if (flags & BSRG_ATTENTION_ABOVE && key > bsrg_min(query + bounds->high_offset, bounds->keys - 1))
    return false;
  return !(flags & BSRG_ATTENTION_BELOW && key < query + bounds->low_offset);
}

static bool in_bounds(const bsrg_attention_bounds *bounds, int64_t query, int64_t key) {
  return key < bounds->keys && key >= query + bounds->low_offset && key <= query + bounds->high_offset;
}

static void test_key_range(void) {
  static const int32_t tiles[][2] = {{192, 128}, {128, 128}, {128, 96}, {128, 64}};
  for (int i = 0; i < 4000; ++i) {
    const int32_t rows = tiles[i % 4][0], tile_keys = tiles[i % 4][1];
    const int32_t queries = 1 + (int32_t)random_below(500), keys = 1 + (int32_t)random_below(500);
    const int32_t span = 1 + queries + keys;
    bsrg_attention_bounds bounds = {queries, keys, (int32_t)random_below((uint32_t)span) - queries,
                                    (int32_t)random_below((uint32_t)span) - queries};
    if (i % 3 == 0) bounds.low_offset = -queries;
    if (i % 5 == 0) bounds.high_offset = keys;
    if (bounds.high_offset < bounds.low_offset) continue;
    for (int32_t first = 0; first < queries; first += rows) {
      const bsrg_attention_range range = bsrg_attention_key_range(&bounds, first, rows, tile_keys);
      CHECK(range.begin >= 0 && range.begin < range.end && range.end <= bsrg_ceil_div(keys, tile_keys));
      for (int64_t q = first; q < bsrg_min(first + rows, queries); ++q)
        for (int64_t k = 0; k < bsrg_ceil_div(keys, tile_keys) * tile_keys; ++k) {
          const int64_t t = k / tile_keys;
          const int32_t flags = (t >= range.above_begin ? BSRG_ATTENTION_ABOVE : 0) |
                                (t < range.below_end ? BSRG_ATTENTION_BELOW : 0);
          const bool listed = t >= range.begin && t < range.end;
          CHECK((listed && passes(&bounds, q, k, flags)) == in_bounds(&bounds, q, k));
        }
    }
  }
}

static void test_limits(void) {
  const int32_t most = BSRG_ATTENTION_MAX_ROWS;
  const bsrg_attention_bounds all = {most, most, -most, most}, none = {most, most, most, most};
  const bsrg_attention_bounds causal = {most, most, -most, 0};
  const int32_t tiles = most / 128;
  for (int32_t t = 0; t < tiles; t += tiles - 1) {
    const bsrg_attention_range a = bsrg_attention_key_range(&all, t * 128, 128, 128);
    CHECK(a.begin == 0 && a.end == tiles && a.above_begin == tiles && a.below_end == 0);
    const bsrg_attention_range n = bsrg_attention_key_range(&none, t * 128, 128, 128);
    CHECK(n.begin == tiles - 1 && n.end == tiles && n.below_end == tiles);
    const bsrg_attention_range c = bsrg_attention_key_range(&causal, t * 128, 128, 128);
    CHECK(c.begin == 0 && c.end == t + 1 && c.above_begin == t && c.below_end == 0);
  }
}

static void test_order(void) {
  for (int i = 0; i < 300; ++i) {
    const int64_t kv_heads = 1 + random_below(5), share = 1 + random_below(4), batch = 1 + random_below(4);
    const int64_t queries = 1 + random_below(2000), keys = 1 + random_below(40000);
    const bsrg_attention_args args = {
        .q = {.batch = batch, .heads = kv_heads * share, .rows = queries, .size = 128},
        .k = {.batch = batch, .heads = kv_heads, .rows = keys, .size = 128},
        .v = {.batch = batch, .heads = kv_heads, .rows = keys, .size = 128},
        .left = -1,
        .right = i % 2 ? 0 : -1};
    const bsrg_attention_order order = bsrg_attention_make_order(&args, 192);
    const int32_t count = order.heads * order.query_tiles;
    char *seen = calloc((size_t)count, 1);
    CHECK(order.heads == args.q.heads * batch && order.section % share == 0);
    for (int32_t t = 0; t < count; ++t) {
      const bsrg_attention_position at = bsrg_attention_tile_position(&order, t);
      CHECK(at.head >= 0 && at.head < order.heads && at.query_tile >= 0 && at.query_tile < order.query_tiles);
      CHECK(!seen[at.head * order.query_tiles + at.query_tile]++);
      if (t == 0) CHECK(at.query_tile == order.query_tiles - 1);
    }
    free(seen);
  }
}

typedef struct problem {
  int64_t batch, heads, mask_batch, mask_heads, queries, keys, height, width;
  int64_t left, right, diagonal;
  int32_t tile_keys;
  uint32_t percent;
  bool pairs;
} problem;

static bsrg_structure *make_mask(const problem *p) {
  const int64_t block_rows = bsrg_ceil_div(p->queries, p->height),
                block_cols = bsrg_ceil_div(p->keys, p->width);
  int64_t *indptr = calloc((size_t)block_rows + 1, sizeof(*indptr));
  int64_t *indices = malloc(sizeof(*indices) * (size_t)(block_rows * block_cols + 1));
  for (int64_t i = 0; i < block_rows; ++i) {
    indptr[i + 1] = indptr[i];
    for (int64_t j = 0; j < block_cols; ++j)
      if (i % 7 != 3 && random_below(100) < p->percent) indices[indptr[i + 1]++] = j;
  }
  return make_structure(block_rows, block_cols, p->height, p->width, indptr, indices);
}

static char *dense_mask(const bsrg_structure_view *v, const problem *p) {
  char *dense = calloc((size_t)(p->queries * p->keys), 1);
  for (int64_t q = 0; q < p->queries; ++q)
    for (int64_t i = v->indptr[q / p->height]; i < v->indptr[q / p->height + 1]; ++i)
      for (int64_t k = v->indices[i] * p->width; k < bsrg_min((v->indices[i] + 1) * p->width, p->keys); ++k)
        dense[q * p->keys + k] = 1;
  return dense;
}

/* Removes from `dense` what a query tile's entries show, and checks that nothing else is shown. */
static void read_tile(const bsrg_attention_plan *plan, const bsrg_attention_item *tile,
                      const bsrg_attention_bounds *bounds, int32_t tile_keys, char *dense) {
  const int64_t first = tile->first_row[0];
  CHECK(tile->first_row[1] == first + 64 && tile->steps == tile->entry_count && tile->slot == -1);
  CHECK(tile->entry_count > 0 && tile->entry_begin + tile->entry_count <= plan->entry_count);
  for (int32_t e = 0; e < tile->entry_count; ++e) {
    const bsrg_attention_entry *entry = &plan->entries[tile->entry_begin + e];
    CHECK(entry->key_tile >= 0 && (int64_t)entry->key_tile * tile_keys < bounds->keys);
    CHECK(e == 0 || entry->key_tile < entry[-1].key_tile);
    for (int64_t r = 0; r < bsrg_min(BSRG_ATTENTION_LIST_ROWS, bounds->queries - first); ++r)
      for (int64_t c = 0; c < tile_keys; ++c) {
        const int64_t query = first + r, key = (int64_t)entry->key_tile * tile_keys + c, group = r / 16;
        if (!passes(bounds, query, key, entry->flags)) continue;
        if (entry->flags & BSRG_ATTENTION_PARTIAL &&
            !(entry->groups[group / 4] >> (8 * (group % 4) + c / 16) & 1))
          continue;
        CHECK(key < bounds->keys);
        if (key < bounds->keys) CHECK(dense[query * bounds->keys + key]-- == 1);
      }
  }
}

/* An entry says how many without flags follow it, itself counted, too. */
static void check_runs(const bsrg_attention_plan *plan, const bsrg_attention_item *tile) {
  const bsrg_attention_entry *entries = plan->entries + tile->entry_begin;
  for (int32_t e = 0; e < tile->entry_count; ++e) {
    int32_t run = 1;
    while (run < BSRG_ATTENTION_RUN && e + run < tile->entry_count &&
           entries[e + run].flags % BSRG_ATTENTION_RUN_UNIT == 0)
      ++run;
    CHECK(entries[e].flags / BSRG_ATTENTION_RUN_UNIT == run);
  }
}

/* For pairs: of those that warpgroup w takes. */
static void check_paired_runs(const bsrg_attention_plan *plan, const bsrg_attention_item *tile, int w) {
  const int32_t masks =
      BSRG_ATTENTION_ABOVE | BSRG_ATTENTION_BELOW | BSRG_ATTENTION_HIDES_FIRST | BSRG_ATTENTION_HIDES_SECOND;
  const bsrg_attention_key_pair *pairs = plan->pairs + tile->entry_begin;
  for (int32_t e = 0; e < tile->entry_count; ++e) {
    int32_t run = 0;
    for (int32_t next = e; next < tile->entry_count && run < BSRG_ATTENTION_RUN; ++next) {
      if (!(pairs[next].flags[w] & BSRG_ATTENTION_TAKES)) continue;
      if (pairs[next].flags[w] & masks) break;
      ++run;
    }
    if (!(pairs[e].flags[w] & BSRG_ATTENTION_TAKES)) run = 0;
    CHECK(pairs[e].flags[w] / BSRG_ATTENTION_RUN_UNIT == run);
  }
}

/* The same for pairs, walking as each warpgroup of the kernel does. */
static void read_paired_tile(const bsrg_attention_plan *plan, const bsrg_attention_item *tile,
                             const bsrg_attention_bounds *bounds, char *dense) {
  const bsrg_attention_key_pair *pairs = plan->pairs + tile->entry_begin;
  const int64_t key_tiles = bsrg_ceil_div(bounds->keys, 64);
  CHECK(tile->entry_count > 0 && tile->entry_begin + tile->entry_count <= plan->entry_count);
  CHECK(tile->first_row[0] < bounds->queries && tile->first_row[0] != tile->first_row[1]);
  for (int w = 0; w < 2; ++w) {
    int32_t at = w == 1 && tile->passes_first;
    for (int32_t step = 0; step < tile->steps; ++step) {
      CHECK(at < tile->entry_count && pairs[at].flags[w] & BSRG_ATTENTION_TAKES);
      /* The first warpgroup's turn comes first, so its entry must too. */
      if (w == 0 && at + 1 < tile->entry_count && !(pairs[at].flags[1] & BSRG_ATTENTION_TAKES))
        CHECK(pairs[at + 1].flags[0] == 0 && pairs[at + 1].flags[1] & BSRG_ATTENTION_TAKES);
      for (int64_t c = 0; c < 128; ++c) {
        const int32_t key_tile = pairs[at].key_tile[c / 64];
        const bool hidden =
            pairs[at].flags[w] & (c / 64 ? BSRG_ATTENTION_HIDES_SECOND : BSRG_ATTENTION_HIDES_FIRST);
        CHECK(key_tile >= 0 && key_tile <= key_tiles && (key_tile < key_tiles || hidden));
        for (int64_t r = 0; r < bsrg_min(64, bounds->queries - tile->first_row[w]); ++r) {
          const int64_t query = tile->first_row[w] + r, key = key_tile * INT64_C(64) + c % 64;
          if (hidden || !passes(bounds, query, key, pairs[at].flags[w])) continue;
          CHECK(key < bounds->keys);
          if (key < bounds->keys) CHECK(dense[query * bounds->keys + key]-- == 1);
        }
      }
      at += pairs[at].flags[w] & BSRG_ATTENTION_PASSES_NEXT ? 2 : 1;
    }
    CHECK(at == tile->entry_count);
  }
}

static void check(const problem *p) {
  bsrg_structure *masks[16];
  const int64_t count = p->mask_batch * p->mask_heads;
  for (int64_t m = 0; m < count; ++m) masks[m] = make_mask(p);
  const bsrg_attention_args args = {
      .q = {.batch = p->batch, .heads = p->heads, .rows = p->queries, .size = 64},
      .k = {.batch = p->batch, .heads = p->heads, .rows = p->keys, .size = 64},
      .v = {.batch = p->batch, .heads = p->heads, .rows = p->keys, .size = 64},
      .diagonal = p->diagonal,
      .left = p->left,
      .right = p->right,
      .masks = masks,
      .mask_batch = p->mask_batch,
      .mask_heads = p->mask_heads};
  const bsrg_attention_plan_key key = {.order = bsrg_attention_make_order(&args, BSRG_ATTENTION_LIST_ROWS),
                                       .bounds = bsrg_attention_make_bounds(&args),
                                       .heads = (int32_t)p->heads,
                                       .tile_keys = p->tile_keys,
                                       .pairs = p->pairs,
                                       .sms = 1, /* nothing to gain by cuts, see test_attention_cut.c */
                                       .step_ns = 1000};
  int64_t options[BSRG_MASK_OPTIONS];
  bsrg_attention_key_options(&key, options);
  bsrg_attention_plan *plan = bsrg_attention_make_plan(&args, options);
  const int64_t query_tiles = bsrg_ceil_div(p->queries, BSRG_ATTENTION_LIST_ROWS);
  CHECK(plan->tile_count == p->batch * p->heads * query_tiles);
  const int64_t row_blocks = 2 * query_tiles; /* an odd number of them has an empty one */
  char *seen = calloc((size_t)(p->batch * p->heads * row_blocks), 1);
  for (int64_t t = 0; t < plan->tile_count; ++t) {
    const bsrg_attention_item *tile = &plan->tiles[t];
    const int64_t batch = p->mask_batch == 1 ? 0 : tile->head / p->heads;
    const int64_t head = tile->head % p->heads / (p->heads / p->mask_heads);
    for (int w = 0; w < 2; ++w) CHECK(!seen[tile->head * row_blocks + tile->first_row[w] / 64]++);
    char *dense = dense_mask(&masks[batch * p->mask_heads + head]->view, p);
    for (int64_t q = 0; q < p->queries; ++q)
      for (int64_t k = 0; k < p->keys; ++k)
        if (!in_bounds(&key.bounds, q, k)) dense[q * p->keys + k] = 0;
    if (p->pairs) {
      read_paired_tile(plan, tile, &key.bounds, dense);
      for (int w = 0; w < 2; ++w) check_paired_runs(plan, tile, w);
    } else {
      read_tile(plan, tile, &key.bounds, p->tile_keys, dense);
      check_runs(plan, tile);
    }
    for (int w = 0; w < 2; ++w) {
      const int64_t end = bsrg_min(tile->first_row[w] + 64, p->queries) * p->keys;
      for (int64_t i = tile->first_row[w] * p->keys; i < end; ++i) CHECK(dense[i] == 0);
    }
    free(dense);
    /* Everything is one section here. */
    CHECK(t == 0 || tile->steps <= tile[-1].steps);
  }
  free(seen);
  bsrg_attention_free_plan(plan);
  for (int64_t m = 0; m < count; ++m) bsrg_structure_destroy(masks[m]);
}

static void test_masks(void) {
  static const int64_t shapes[][2] = {{16, 16},  {32, 64},   {48, 80},   {64, 64},  {128, 128},
                                      {128, 16}, {256, 256}, {144, 272}, {16, 512}, {4096, 4096}};
  for (int i = 0; i < 60; ++i) {
    problem p = {.batch = 1 + i % 2,
                 .heads = 1 + i % 3,
                 .mask_batch = 1,
                 .mask_heads = 1,
                 .queries = 1 + random_below(600),
                 .keys = 1 + random_below(600),
                 .height = shapes[i % 10][0],
                 .width = shapes[i % 10][1],
                 .left = i % 4 == 1 ? (int64_t)random_below(200) : -1,
                 .right = i % 4 ? (int64_t)random_below(3) : -1,
                 .tile_keys = i / 10 % 2 ? 64 : 128,
                 .percent = (uint32_t)(i % 5) * 25};
    p.diagonal = p.keys - p.queries;
    if (i % 3 == 1) p.mask_batch = p.batch;
    if (i % 2 == 1) p.mask_heads = p.heads;
    if (i % 4 == 3) p.heads *= 2; /* each mask is for two of them */
    check(&p);
  }
}

static void test_pairs(void) {
  static const int64_t shapes[][2] = {{64, 64}, {64, 128}, {128, 64}, {192, 64}, {64, 320}};
  for (int i = 0; i < 200; ++i) {
    problem p = {.batch = 1 + i % 2,
                 .heads = 1 + i % 3,
                 .mask_batch = i % 3 == 1 ? 1 + i % 2 : 1,
                 .mask_heads = i % 2 == 1 ? 1 + i % 3 : 1,
                 .queries = 1 + random_below(900),
                 .keys = 1 + random_below(900),
                 .height = shapes[i % 5][0],
                 .width = shapes[i % 5][1],
                 .left = i % 4 == 1 ? (int64_t)random_below(200) : -1,
                 .right = i % 4 ? (int64_t)random_below(3) : -1,
                 .tile_keys = 128,
                 .percent = (uint32_t)(i % 6) * 20,
                 .pairs = true};
    p.diagonal = p.keys - p.queries;
    if (i % 4 == 3) p.heads *= 2;
    check(&p);
  }
}

/* Random masks: tiles that the two query blocks share are loaded once, and few steps see less than two tiles. */
static void test_pairs_save_loads(void) {
  const uint32_t percents[] = {13, 25, 50};
  const double loads[] = {0.91, 0.85, 0.75}; /* key tiles that are loaded, of those that are needed */
  for (int i = 0; i < 3; ++i) {
    const problem p = {.queries = 8192, .keys = 8192, .height = 64, .width = 64, .percent = percents[i]};
    bsrg_structure *mask = make_mask(&p);
    const bsrg_attention_bounds bounds = {8192, 8192, -8192, 8192};
    bsrg_attention_plan plan = {0};
    bsrg_attention_item lists[64];
    int64_t room = 0, steps = 0, loaded = 0;
    CHECK(bsrg_attention_suits_pairs((bsrg_block_shape){p.height, p.width}));
    CHECK(bsrg_attention_list_pairs(&bounds, &mask->view, &plan, &room, lists));
    for (int t = 0; t < 64; ++t) steps += 2 * lists[t].steps;
    for (int64_t e = 0; e < plan.entry_count; ++e)
      for (int half = 0; half < 2; ++half) loaded += plan.pairs[e].key_tile[half] < 128;
    const double needed = (double)mask->view.nnzb;
    CHECK((double)loaded <= loads[i] * needed);
    CHECK((double)(2 * steps) <= 1.08 * needed);
    free(plan.pairs);
    bsrg_structure_destroy(mask);
  }
}

int main(void) {
  test_key_range();
  test_limits();
  test_order();
  test_masks();
  test_pairs();
  test_pairs_save_loads();
  if (failures) fprintf(stderr, "%d checks failed\n", failures);
  return failures != 0;
}
