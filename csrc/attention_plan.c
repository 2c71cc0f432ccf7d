/* Which query tile of attention comes when, and for masks the key tiles that each of them meets. */
#include "attention_hopper.h"

#include <stdlib.h>
#include <string.h>

/* ---- order and bounds ------------------------------------------------------------------------ */

/* Keys and values of a section together, and of the last one. Tuned at 16 heads of 128 elements, 16384 queries and keys: masks
 * that show a query few keys want larger sections, others smaller ones, each by 1%. */
static const int64_t section_bytes = 8 << 20, causal_tail_bytes = 32 << 20, mask_tail_bytes = 16 << 20,
                     light_section_bytes = 16 << 20;
static const double light = 1.0 / 16; /* of the blocks; measured were 1/20 and 1/8 */

bsrg_attention_bounds bsrg_attention_make_bounds(const bsrg_attention_args *args) {
  const bsrg_band band = bsrg_attention_band(args);
  return (bsrg_attention_bounds){.queries = (int32_t)args->q.rows,
                                 .keys = (int32_t)args->k.rows,
                                 .low_offset = (int32_t)band.first,
                                 .high_offset = (int32_t)band.last};
}

/* Heads whose keys and values take so many bytes, at least one head of k with all of q's that share it. */
static int64_t heads_of(const bsrg_attention_args *args, int64_t bytes) {
  const int64_t of_one = (int64_t)bsrg_dtype_size(args->dtype) * args->k.rows * (args->q.size + args->v.size);
  return bsrg_max(1, bytes / bsrg_max(1, of_one)) * (args->q.heads / args->k.heads);
}

static bool is_light(const bsrg_attention_args *args) {
  if (args->topk) return (double)args->topk->k < light * (double)args->topk->block_cols;
  double stored = 0, all = 0;
  for (int64_t i = 0; i < args->mask_batch * args->mask_heads; ++i) {
    const bsrg_structure_view *mask = &args->masks[i]->view;
    stored += (double)mask->nnzb;
    all += (double)mask->block_rows * (double)mask->block_cols;
  }
  return stored < light * all;
}

bsrg_attention_order bsrg_attention_make_order(const bsrg_attention_args *args, int32_t rows) {
  const int64_t heads = args->q.batch * args->q.heads;
  /* Without bounds or masks all tiles take equally long: one head after another. */
  int64_t section = heads_of(args, 0), tail = 0;
  if (bsrg_attention_is_masked(args) && is_light(args)) {
    section = heads_of(args, light_section_bytes);
  } else if (bsrg_attention_is_masked(args) || bsrg_attention_band(args).last < args->k.rows - 1) {
    section = heads_of(args, section_bytes);
    tail = heads_of(args, bsrg_attention_is_masked(args) ? mask_tail_bytes : causal_tail_bytes);
  }
  section = bsrg_min(section, heads);
  return (bsrg_attention_order){
      .heads = (int32_t)heads,
      .query_tiles = (int32_t)bsrg_ceil_div(args->q.rows, rows),
      .section = (int32_t)section,
      .tail_begin = (int32_t)(tail ? bsrg_max(0, heads - tail) / section * section : heads)};
}

int64_t bsrg_attention_section_end(const bsrg_attention_order *order, int64_t first) {
  if (first >= order->tail_begin) return order->heads;
  return bsrg_min(first + order->section, order->tail_begin);
}

/* ---- plans of masks -------------------------------------------------------------------------- */

void bsrg_attention_key_options(const bsrg_attention_plan_key *key, int64_t options[BSRG_MASK_OPTIONS]) {
  const int64_t numbers[BSRG_MASK_OPTIONS] = {key->order.heads,
                                              key->heads,
                                              key->order.section,
                                              key->order.tail_begin,
                                              key->bounds.queries,
                                              key->bounds.keys,
                                              key->bounds.low_offset,
                                              key->bounds.high_offset,
                                              key->tile_keys,
                                              key->pairs,
                                              key->sms,
                                              key->step_ns};
  memcpy(options, numbers, sizeof(numbers));
}

static bsrg_attention_plan_key key_of(const int64_t *options) {
  const int32_t queries = (int32_t)options[4];
  return (bsrg_attention_plan_key){
      .order = {.heads = (int32_t)options[0],
                .query_tiles = (int32_t)bsrg_ceil_div(queries, BSRG_ATTENTION_LIST_ROWS),
                .section = (int32_t)options[2],
                .tail_begin = (int32_t)options[3]},
      .bounds = {.queries = queries,
                 .keys = (int32_t)options[5],
                 .low_offset = (int32_t)options[6],
                 .high_offset = (int32_t)options[7]},
      .heads = (int32_t)options[1],
      .tile_keys = (int32_t)options[8],
      .pairs = options[9] != 0,
      .sms = (int32_t)options[10],
      .step_ns = (int32_t)options[11]};
}

typedef struct builder {
  const bsrg_attention_plan_key *key;
  bsrg_attention_plan *plan;
  int64_t entry_room;
  uint64_t *groups;           /* of each key tile of the query tile in hand: byte r has row group r's bits */
  bsrg_attention_item *lists; /* of each mask's query tiles, without a head */
} builder;

/* A row of `count` bits from `begin` on. */
static uint64_t bits(int64_t begin, int64_t count) { return ((UINT64_C(1) << count) - 1) << begin; }

/* Marks the groups that one block row's blocks cover. lanes has a 1 in the byte of each row group of the block row. */
static void mark_block_row(builder *b, const bsrg_structure_view *mask, int64_t block_row, uint64_t lanes,
                           bsrg_attention_range range) {
  const int64_t width = mask->block_width / BSRG_ATTENTION_GROUP,
                tile_width = b->key->tile_keys / BSRG_ATTENTION_GROUP;
  for (int64_t i = mask->indptr[block_row]; i < mask->indptr[block_row + 1]; ++i) {
    const int64_t begin = mask->indices[i] * width, end = begin + width;
    const int64_t first = bsrg_max(begin / tile_width, range.begin);
    const int64_t last = bsrg_min((end - 1) / tile_width, range.end - 1);
    for (int64_t tile = first; tile <= last; ++tile) {
      const int64_t from = bsrg_max(begin - tile * tile_width, 0);
      const int64_t to = bsrg_min(end - tile * tile_width, tile_width);
      b->groups[tile] |= lanes * bits(from, to - from);
    }
  }
}

static bool append(builder *b, bsrg_attention_entry entry) {
  bsrg_attention_plan *plan = b->plan;
  if (plan->entry_count == b->entry_room) {
    const int64_t room = 2 * b->entry_room + 1024;
    bsrg_attention_entry *entries = realloc(plan->entries, sizeof(*entries) * (size_t)room);
    if (!entries) return false;
    plan->entries = entries;
    b->entry_room = room;
  }
  plan->entries[plan->entry_count++] = entry;
  return true;
}

/* The groups of a key tile that hold any query and key at all: the others do not make it partial. */
static uint64_t existing_groups(const builder *b, int64_t first_row, int64_t tile) {
  const bsrg_attention_bounds *bounds = &b->key->bounds;
  const int64_t rows = bsrg_min(bounds->queries - first_row, BSRG_ATTENTION_LIST_ROWS);
  const int64_t keys = bsrg_min(bounds->keys - tile * b->key->tile_keys, b->key->tile_keys);
  uint64_t existing = 0;
  for (int64_t r = 0; r < bsrg_ceil_div(rows, BSRG_ATTENTION_GROUP); ++r)
    existing |= bits(0, bsrg_ceil_div(keys, BSRG_ATTENTION_GROUP)) << 8 * r;
  return existing;
}

/* Notes in the entries from `begin` on how many without flags follow each of them. */
static void note_runs(bsrg_attention_plan *plan, int64_t begin) {
  int32_t run = 1; /* with the entry itself */
  for (int64_t e = plan->entry_count - 1; e >= begin; --e) {
    bsrg_attention_entry *entry = &plan->entries[e];
    const int32_t next = entry->flags ? 1 : (int32_t)bsrg_min(run + 1, BSRG_ATTENTION_RUN);
    entry->flags += run * BSRG_ATTENTION_RUN_UNIT;
    run = next;
  }
}

static bool list_query_tile(builder *b, const bsrg_structure_view *mask, int32_t query_tile,
                            bsrg_attention_item *list) {
  const bsrg_attention_bounds *bounds = &b->key->bounds;
  const int32_t first_row = query_tile * BSRG_ATTENTION_LIST_ROWS;
  const bsrg_attention_range range =
      bsrg_attention_key_range(bounds, first_row, BSRG_ATTENTION_LIST_ROWS, b->key->tile_keys);
  memset(b->groups + range.begin, 0, sizeof(*b->groups) * (size_t)(range.end - range.begin));
  uint64_t lanes = 0;
  for (int r = 0; r < BSRG_ATTENTION_LIST_ROWS / BSRG_ATTENTION_GROUP; ++r) {
    const int64_t row = first_row + r * BSRG_ATTENTION_GROUP, next = row + BSRG_ATTENTION_GROUP;
    if (row >= bounds->queries) break;
    lanes |= UINT64_C(1) << 8 * r;
    const bool ends = r == BSRG_ATTENTION_LIST_ROWS / BSRG_ATTENTION_GROUP - 1 || next >= bounds->queries ||
                      next / mask->block_height != row / mask->block_height;
    if (!ends) continue;
    mark_block_row(b, mask, row / mask->block_height, lanes, range);
    lanes = 0;
  }
  const int64_t begin = b->plan->entry_count;
  /* The last keys first: a diagonal, or where the keys end, is in the query tile's first step then, in which masks cost
   * least. */
  for (int32_t tile = range.end - 1; tile >= range.begin; --tile) {
    if (!b->groups[tile]) continue; /* nearly all of a long sparse mask */
    const uint64_t existing = existing_groups(b, first_row, tile), seen = b->groups[tile] & existing;
    if (!seen) continue;
    const int32_t flags = (tile >= range.above_begin ? BSRG_ATTENTION_ABOVE : 0) |
                          (tile < range.below_end ? BSRG_ATTENTION_BELOW : 0) |
                          (seen != existing ? BSRG_ATTENTION_PARTIAL : 0);
    if (!append(b, (bsrg_attention_entry){tile, flags, {(uint32_t)seen, (uint32_t)(seen >> 32)}}))
      return false;
  }
  /* The kernel's pipeline has no place for a query tile without key tiles: one of which nothing is seen. */
  if (b->plan->entry_count == begin &&
      !append(b, (bsrg_attention_entry){range.begin, BSRG_ATTENTION_PARTIAL, {0, 0}}))
    return false;
  note_runs(b->plan, begin);
  const int32_t count = (int32_t)(b->plan->entry_count - begin);
  *list = (bsrg_attention_item){.first_row = {first_row, first_row + BSRG_ATTENTION_LIST_ROWS / 2},
                                .entry_begin = (int32_t)begin,
                                .entry_count = count,
                                .steps = count,
                                .slot = -1};
  return true;
}

static bool list_masks(builder *b, const bsrg_attention_args *args) {
  const int64_t query_tiles = b->key->order.query_tiles;
  for (int64_t m = 0; m < args->mask_batch * args->mask_heads; ++m) {
    const bsrg_structure_view *mask = &args->masks[m]->view;
    bsrg_attention_item *lists = b->lists + m * query_tiles;
    if (b->key->pairs) {
      if (!bsrg_attention_list_pairs(&b->key->bounds, mask, b->plan, &b->entry_room, lists)) return false;
    } else {
      for (int64_t t = 0; t < query_tiles; ++t)
        if (!list_query_tile(b, mask, (int32_t)t, lists + t)) return false;
    }
  }
  return true;
}

static bool order_tiles(builder *b, const bsrg_attention_args *args) {
  const bsrg_attention_order *order = &b->key->order;
  bsrg_attention_item *tiles = b->plan->tiles;
  int64_t *length = malloc(sizeof(*length) * (size_t)b->plan->tile_count), longest = 0;
  if (!length) return false;
  for (int64_t t = 0; t < b->plan->tile_count; ++t) {
    const bsrg_attention_position at = bsrg_attention_tile_position(order, (int32_t)t);
    const int64_t batch = args->mask_batch == 1 ? 0 : at.head / b->key->heads;
    const int64_t head = at.head % b->key->heads / (b->key->heads / args->mask_heads);
    tiles[t] = b->lists[(batch * args->mask_heads + head) * order->query_tiles + at.query_tile];
    tiles[t].head = at.head;
    length[t] = tiles[t].steps;
    longest = bsrg_max(longest, length[t]);
  }
  bool done = true;
  for (int64_t first = 0, end; first < order->heads && done; first = end) {
    end = bsrg_attention_section_end(order, first);
    const int64_t begin = first * order->query_tiles, count = (end - first) * order->query_tiles;
    done = bsrg_sort_records(tiles + begin, sizeof(*tiles), length + begin, count, longest);
  }
  free(length);
  return done;
}

static bool is_even(const bsrg_attention_plan *plan) {
  int64_t longest = 0, total = 0;
  for (int64_t t = 0; t < plan->tile_count; ++t) {
    longest = bsrg_max(longest, plan->tiles[t].steps);
    total += plan->tiles[t].steps;
  }
  return plan->part_count == 0 && bsrg_is_even(longest, total, plan->tile_count);
}

void bsrg_attention_free_plan(void *plan) {
  bsrg_attention_plan *p = plan;
  if (!p) return;
  free(p->tiles);
  free(p->entries);
  free(p->pairs);
  free(p->cuts);
  free(p);
}

void *bsrg_attention_make_plan(const bsrg_attention_args *args, const int64_t *options) {
  const bsrg_attention_plan_key key = key_of(options);
  const int64_t lists = args->mask_batch * args->mask_heads * key.order.query_tiles;
  bsrg_attention_plan *plan = calloc(1, sizeof(*plan));
  if (!plan) return NULL;
  plan->tile_count = (int64_t)key.order.heads * key.order.query_tiles;
  plan->tiles = malloc(sizeof(*plan->tiles) * (size_t)plan->tile_count);
  builder b = {.key = &key,
               .plan = plan,
               .groups = malloc(sizeof(*b.groups) * (size_t)bsrg_ceil_div(key.bounds.keys, key.tile_keys)),
               .lists = malloc(sizeof(*b.lists) * (size_t)lists)};
  const bool done = plan->tiles && b.groups && b.lists && list_masks(&b, args) && order_tiles(&b, args) &&
                    (key.pairs || bsrg_attention_cut_tiles(&key, plan));
  free(b.groups);
  free(b.lists);
  plan->in_step = done && is_even(plan);
  if (done) return plan;
  bsrg_attention_free_plan(plan);
  return NULL;
}
