/* Query tiles in parts: parts cover the key tiles of a tile once, in order, and come where that is worth it. */
#include <string.h>

#include "attention_hopper.h"
#include "structures.h"

enum { SMS = 132, SIZE = 128, TILE = 128 };

typedef struct problem {
  int64_t heads, query_tiles, key_tiles;
  const int64_t *length; /* of each query tile's list */
  int32_t sms;
} problem;

static bsrg_structure *make_mask(const problem *p) {
  int64_t *indptr = calloc((size_t)p->query_tiles + 1, sizeof(*indptr)), total = 0;
  for (int64_t i = 0; i < p->query_tiles; ++i) total += p->length[i];
  int64_t *indices = malloc(sizeof(*indices) * (size_t)(total + 1));
  for (int64_t i = 0; i < p->query_tiles; ++i) {
    indptr[i + 1] = indptr[i] + p->length[i];
    for (int64_t j = 0; j < p->length[i]; ++j) indices[indptr[i] + j] = j;
  }
  return make_structure(p->query_tiles, p->key_tiles, TILE, TILE, indptr, indices);
}

static bsrg_attention_plan *make_plan(const problem *p, bsrg_structure **mask) {
  const bsrg_attention_args args = {
      .dtype = BSRG_BF16,
      .q = {.batch = 1, .heads = p->heads, .rows = p->query_tiles * TILE, .size = SIZE},
      .k = {.batch = 1, .heads = p->heads, .rows = p->key_tiles * TILE, .size = SIZE},
      .v = {.batch = 1, .heads = p->heads, .rows = p->key_tiles * TILE, .size = SIZE},
      .left = -1,
      .right = -1,
      .masks = mask,
      .mask_batch = 1,
      .mask_heads = 1};
  const bsrg_attention_plan_key key = {.order = bsrg_attention_make_order(&args, BSRG_ATTENTION_LIST_ROWS),
                                       .bounds = bsrg_attention_make_bounds(&args),
                                       .heads = (int32_t)p->heads,
                                       .tile_keys = TILE,
                                       .sms = p->sms,
                                       .step_ns = 1500};
  int64_t options[BSRG_MASK_OPTIONS];
  bsrg_attention_key_options(&key, options);
  return bsrg_attention_make_plan(&args, options);
}

/* Checks a plan and returns how many parts it has. */
static int64_t check(const problem *p) {
  bsrg_structure *mask = make_mask(p);
  bsrg_attention_plan *plan = make_plan(p, &mask);
  const int64_t tiles = p->heads * p->query_tiles;
  int64_t *whole = calloc((size_t)tiles, sizeof(*whole));
  const bsrg_attention_item **part = calloc((size_t)plan->part_count + 1, sizeof(*part));
  for (int64_t t = 0; t < plan->tile_count; ++t) {
    const bsrg_attention_item *item = &plan->tiles[t];
    CHECK(item->steps == item->entry_count && item->entry_count > 0);
    if (item->slot >= 0) {
      CHECK(item->slot < plan->part_count && !part[item->slot]);
      part[item->slot] = item;
    } else {
      const int64_t query_tile = item->first_row[0] / TILE;
      CHECK(!whole[item->head * p->query_tiles + query_tile]++);
      CHECK(item->entry_count == bsrg_max(1, p->length[query_tile]));
    }
  }
  int64_t slots = 0;
  for (int64_t c = 0; c < plan->cut_count; ++c) {
    const bsrg_attention_cut *cut = &plan->cuts[c];
    const int64_t query_tile = cut->first_row / TILE;
    CHECK(cut->first_slot == slots && cut->slot_count >= 2);
    CHECK(!whole[cut->head * p->query_tiles + query_tile]++);
    int64_t entries = 0;
    for (int32_t s = cut->first_slot; s < cut->first_slot + cut->slot_count; ++s) {
      CHECK(part[s] && part[s]->head == cut->head && part[s]->first_row[0] == cut->first_row);
      CHECK(part[s]->first_row[1] == cut->first_row + TILE / 2);
      for (int32_t e = 0; e < part[s]->entry_count; ++e)
        CHECK(plan->entries[part[s]->entry_begin + e].key_tile == p->length[query_tile] - 1 - entries - e);
      entries += part[s]->entry_count;
    }
    CHECK(entries == p->length[query_tile]);
    slots += cut->slot_count;
  }
  CHECK(slots == plan->part_count);
  for (int64_t t = 0; t < tiles; ++t) CHECK(whole[t] == 1);
  free(whole);
  free(part);
  bsrg_attention_free_plan(plan);
  bsrg_structure_destroy(mask);
  return slots;
}

static int64_t check_equal(int64_t heads, int64_t query_tiles, int64_t length, int32_t sms) {
  int64_t lengths[256];
  for (int64_t i = 0; i < query_tiles; ++i) lengths[i] = length;
  return check(&(problem){heads, query_tiles, bsrg_max(1, length), lengths, sms});
}

static void test_equal_tiles(void) {
  CHECK(check_equal(1, 2, 64, SMS) >= 16);    /* nearly all SMs would have nothing to do */
  CHECK(check_equal(1, 2, 7, SMS) == 0);      /* parts would be too short */
  CHECK(check_equal(16, 128, 64, SMS) >= 68); /* 15.5 rounds: the last half one */
  CHECK(check_equal(16, 128, 6, SMS) == 0);   /* the second kernel would take longer than that gains */
  CHECK(check_equal(32, 66, 64, SMS) == 0);   /* 16 rounds */
  CHECK(check_equal(16, 256, 32, SMS) == 0);  /* 31.03: nobody waits for a whole round */
  CHECK(check_equal(3, 40, 200, 1) == 0);
  CHECK(check_equal(1, 1, 0, SMS) == 0);
}

static void test_one_long_row(void) {
  int64_t lengths[40];
  for (int i = 0; i < 40; ++i) lengths[i] = i % 5;
  lengths[17] = 200;
  CHECK(check(&(problem){1, 40, 200, lengths, SMS}) >= 8);
  CHECK(check(&(problem){4, 40, 200, lengths, SMS}) >= 32);
}

/* Lengths like 1 / rank, whose longest take as long as half of everything. */
static void test_zipf(void) {
  int64_t lengths[128];
  for (int i = 0; i < 128; ++i) lengths[i * 37 % 128] = bsrg_min(128, 480 / (i + 1));
  const int64_t parts = check(&(problem){16, 128, 128, lengths, SMS});
  CHECK(parts >= 40 && parts <= 400);
}

static void test_random(void) {
  for (int i = 0; i < 300; ++i) {
    int64_t lengths[64];
    const int64_t query_tiles = 1 + random_below(64), key_tiles = 1 + random_below(200);
    const uint32_t likely = 1 + random_below(20);
    for (int64_t t = 0; t < query_tiles; ++t)
      lengths[t] =
          random_below((uint32_t)(random_below(20) < likely ? bsrg_min(key_tiles, 8) : key_tiles) + 1);
    check(&(problem){1 + random_below(20), query_tiles, key_tiles, lengths,
                     i % 3 ? SMS : 1 + (int32_t)random_below(20)});
  }
}

/* ---- calls without masks --------------------------------------------------------------------- */

/* Checks the tail of a call and returns how many of its query tiles are cut. */
static int64_t check_tail(int64_t heads, int64_t query_tiles, int64_t key_tiles, int32_t sms) {
  const bsrg_attention_plan_key key = {
      .order = {(int32_t)heads, (int32_t)query_tiles, 1, (int32_t)heads},
      .bounds = {(int32_t)query_tiles * TILE, (int32_t)key_tiles * TILE, -(1 << 30), 1 << 30},
      .heads = (int32_t)heads,
      .tile_keys = TILE,
      .sms = sms,
      .step_ns = 1500};
  const bsrg_attention_tail tail = bsrg_attention_make_tail(&key);
  if (tail.tiles == 0) {
    CHECK(tail.first == INT32_MAX && tail.shares == 0);
    return 0;
  }
  CHECK(tail.first + tail.tiles == heads * query_tiles && tail.first % sms == 0 && tail.shares <= sms);
  int32_t share = 0, second = 0;
  for (int32_t tile = 0; tile < tail.tiles; ++tile) {
    const bsrg_attention_cut cut = bsrg_attention_cut_of_tail(&tail, &key.order, tile);
    const bsrg_attention_position at = bsrg_attention_tile_position(&key.order, tail.first + tile);
    CHECK(cut.first_row == at.query_tile * TILE && cut.head == at.head);
    int32_t steps = 0;
    for (int32_t slot = cut.first_slot; slot < cut.first_slot + cut.slot_count; ++slot) {
      const bsrg_attention_tail_item item = bsrg_attention_item_of_share(&tail, share, second);
      CHECK(item.tile == tail.first + tile && item.slot == slot && item.begin == steps && item.count > 0);
      CHECK(item.slot < tail.shares + tail.tiles);
      steps += item.count;
      second = !second && bsrg_attention_item_of_share(&tail, share, 1).count > 0;
      share += !second;
    }
    CHECK(steps == key_tiles);
  }
  CHECK(share == tail.shares && second == 0);
  return tail.tiles;
}

static void test_tails(void) {
  CHECK(check_tail(16, 128, 128, SMS) == 68); /* 15.5 rounds */
  CHECK(check_tail(16, 128, 6, SMS) == 0);    /* the second kernel would take longer than that gains */
  CHECK(check_tail(32, 66, 64, SMS) == 0);    /* 16 rounds */
  CHECK(check_tail(1, 1, 1000, SMS) == 1);
  CHECK(check_tail(1, 131, 128, SMS) == 0); /* all but one SM work */
  for (int i = 0; i < 1000; ++i)
    check_tail(1 + random_below(20), 1 + random_below(60), 1 + random_below(300),
               i % 3 ? SMS : 1 + (int32_t)random_below(200));
}

/* Where some query does not see every key, or tiles are of different lengths. */
static void test_no_tail_with_bounds(void) {
  bsrg_attention_plan_key key = {.order = {16, 128, 1, 16},
                                 .bounds = {128 * TILE, 128 * TILE, -(1 << 30), 1 << 30},
                                 .heads = 16,
                                 .tile_keys = TILE,
                                 .sms = SMS,
                                 .step_ns = 1500};
  CHECK(bsrg_attention_make_tail(&key).tiles == 68);
  key.bounds.high_offset = 0;
  CHECK(bsrg_attention_make_tail(&key).tiles == 0);
  key.bounds.high_offset = key.bounds.keys - 1;
  CHECK(bsrg_attention_make_tail(&key).tiles == 68);
  key.bounds.low_offset = -key.bounds.queries + 2;
  CHECK(bsrg_attention_make_tail(&key).tiles == 0);
}

int main(void) {
  test_equal_tiles();
  test_one_long_row();
  test_zipf();
  test_random();
  test_tails();
  test_no_tail_with_bounds();
  if (failures) fprintf(stderr, "%d checks failed\n", failures);
  return failures != 0;
}
