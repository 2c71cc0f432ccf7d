/* Lists of key tiles: each list has exactly the keys that the mask shows to its queries, in ascending tiles. */
#include <stdbool.h>
#include <string.h>

#include "attention_lists.h"
#include "structures.h"

static bsrg_structure *random_mask(int64_t block_rows, int64_t block_cols, int64_t height, int64_t width,
                                   uint32_t of_ten) {
  int64_t *indptr = malloc(sizeof *indptr * (size_t)(block_rows + 1));
  int64_t *indices = malloc(sizeof *indices * (size_t)(block_rows * block_cols + 1));
  indptr[0] = 0;
  for (int64_t i = 0, p = 0; i < block_rows; ++i) {
    for (int64_t j = 0; j < block_cols; ++j)
      if (random_below(10) < of_ten) indices[p++] = j;
    indptr[i + 1] = p;
  }
  return make_structure(block_rows, block_cols, height, width, indptr, indices);
}

static bool stores(const bsrg_structure_view *mask, int64_t query, int64_t key) {
  const int64_t row = query / mask->block_height;
  for (int64_t p = mask->indptr[row]; p < mask->indptr[row + 1]; ++p)
    if (mask->indices[p] == key / mask->block_width) return true;
  return false;
}

/* Marks what the list of one tile of queries shows; whole tiles only where it says so. */
static void check_row(const bsrg_attention_lists *lists, int64_t row, const bsrg_structure_view *mask,
                      int64_t first, int64_t last, int64_t keys) {
  bool *shown = calloc((size_t)keys, sizeof *shown);
  for (int64_t query = first; query <= last; ++query) {
    memset(shown, 0, (size_t)keys * sizeof *shown);
    int64_t before = -1;
    for (int64_t t = lists->tile_begin[row]; t < lists->tile_end[row]; ++t) {
      const bsrg_attention_tile at = lists->tiles[t];
      CHECK(at.tile > before);
      before = at.tile;
      uint64_t bits = UINT64_MAX;
      if (at.bits >= 0) {
        const int64_t word = at.bits + query / mask->block_height - first / mask->block_height;
        CHECK(word < lists->word_count);
        bits = lists->words[word];
      }
      for (int64_t c = 0; c < BSRG_ATTENTION_KEYS; ++c) {
        const int64_t key = at.tile * (int64_t)BSRG_ATTENTION_KEYS + c;
        if (key < keys && bits >> c & 1) shown[key] = true;
      }
    }
    bool right = true;
    for (int64_t key = 0; key < keys; ++key) right = right && shown[key] == stores(mask, query, key);
    CHECK(right);
  }
  free(shown);
}

static void check_masks(int64_t queries, int64_t keys, int64_t height, int64_t width, uint32_t of_ten,
                        int64_t tile_rows) {
  enum { MASKS = 2 };
  bsrg_structure *masks[MASKS];
  const int64_t block_rows = bsrg_ceil_div(queries, height), block_cols = bsrg_ceil_div(keys, width);
  for (int m = 0; m < MASKS; ++m) masks[m] = random_mask(block_rows, block_cols, height, width, of_ten);
  bsrg_attention_args args = {.masks = masks, .mask_batch = 1, .mask_heads = MASKS};
  args.q.rows = queries;
  args.k.rows = keys;
  const int64_t tiles = bsrg_ceil_div(queries, tile_rows);
  bsrg_attention_lists *lists = bsrg_attention_make_lists(&args, (int64_t[]){tile_rows, tiles});
  CHECK(lists != NULL && lists->rows == MASKS * tiles);
  CHECK(lists->tile_begin[0] == 0 && lists->tile_end[lists->rows - 1] == lists->tile_count);
  int64_t longest = 0;
  for (int64_t row = 0; row < lists->rows; ++row)
    longest = bsrg_max(longest, lists->tile_end[row] - lists->tile_begin[row]);
  CHECK(lists->longest == longest);
  for (int64_t row = 0; row < lists->rows; ++row) {
    const int64_t first = row % tiles * tile_rows;
    check_row(lists, row, &masks[row / tiles]->view, first, bsrg_min(first + tile_rows, queries) - 1, keys);
  }
  /* Whole blocks of whole tiles need no words. */
  if (height % tile_rows == 0 && width % BSRG_ATTENTION_KEYS == 0) CHECK(lists->word_count == 0);
  bsrg_attention_free_lists(lists);
  for (int m = 0; m < MASKS; ++m) bsrg_structure_destroy(masks[m]);
}

/* Heads and batches that are one mask have one list of each tile of queries. */
static void test_shared(void) {
  bsrg_structure *a = random_mask(300, 10, 1, 24, 5), *b = random_mask(300, 10, 1, 24, 5);
  enum { BATCH = 3, HEADS = 3, ROWS = 64, TILES = 5 };
  bsrg_structure *masks[BATCH * HEADS] = {a, a, b, a, a, b, b, a, b};
  bsrg_attention_args args = {.masks = masks, .mask_batch = 1, .mask_heads = 1};
  args.q.rows = 300;
  args.k.rows = 240;
  const int64_t options[] = {ROWS, TILES};
  bsrg_attention_lists *one = bsrg_attention_make_lists(&args, options);
  args.mask_heads = 2;
  bsrg_attention_lists *two = bsrg_attention_make_lists(&args, options);
  CHECK(two->rows == 2 * TILES && two->tile_count == one->tile_count && two->word_count == one->word_count);
  args.mask_batch = BATCH, args.mask_heads = HEADS;
  bsrg_attention_lists *all = bsrg_attention_make_lists(&args, options);
  CHECK(all->rows == BATCH * HEADS * TILES);
  for (int64_t row = 0; row < all->rows; ++row) {
    const int64_t first = row % TILES * ROWS;
    check_row(all, row, &masks[row / TILES]->view, first, bsrg_min(first + ROWS, 300) - 1, 240);
  }
  CHECK(memcmp(all->tile_begin, all->tile_begin + HEADS * TILES, HEADS * TILES * sizeof(int64_t)) == 0);
  bsrg_attention_free_lists(one);
  bsrg_attention_free_lists(two);
  bsrg_attention_free_lists(all);
  bsrg_structure_destroy(a);
  bsrg_structure_destroy(b);
}

/* One plan a set of masks: found again, and freed with the first of them. */
static void test_cache(void) {
  bsrg_structure *a = random_mask(4, 4, 64, 64, 5), *b = random_mask(4, 4, 64, 64, 5);
  bsrg_structure *pair[] = {a, b}, *reversed[] = {b, a};
  bsrg_attention_args args = {.masks = pair, .mask_batch = 2, .mask_heads = 1};
  args.q.rows = args.k.rows = 256;
  bsrg_mask_plan *first, *found;
#define GET(rows, out)                                                                             \
  CHECK(bsrg_mask_plan_get(&args, BSRG_PORTABLE, (int64_t[BSRG_MASK_OPTIONS]){rows, 256 / (rows)}, \
                           bsrg_attention_make_lists, bsrg_attention_free_lists, out, NULL) == BSRG_OK)
  GET(64, &first);
  GET(64, &found);
  CHECK(found == first);
  GET(128, &found);
  CHECK(found != first);
  args.mask_batch = 1, args.mask_heads = 2;
  GET(64, &found);
  CHECK(found != first);
  args.mask_heads = 1;
  GET(64, &found);
  CHECK(found != first && ((bsrg_attention_lists *)found->plan)->rows == 4);
  args.masks = reversed, args.mask_heads = 2;
  GET(64, &found);
  CHECK(found->ids[0] == b->id && found->ids[1] == a->id);
#undef GET
  bsrg_structure_destroy(a);
  bsrg_structure_destroy(b);
}

int main(void) {
  static const int64_t sides[] = {1, 3, 7, 16, 24, 32, 48, 64, 100, 128, 192, 256, 1000};
  enum { SIDES = sizeof(sides) / sizeof(sides[0]) };
  for (int i = 0; i < SIDES; ++i) {
    for (int j = 0; j < SIDES; ++j) {
      for (uint32_t of_ten = 0; of_ten <= 10; of_ten += 5) {
        const int64_t queries = 1 + random_below(300), keys = 1 + random_below(300);
        check_masks(queries, keys, sides[i], sides[j], of_ten, random_below(2) ? 64 : 128);
      }
    }
  }
  test_shared();
  test_cache();
  if (failures > 0) fprintf(stderr, "%d failures\n", failures);
  return failures > 0;
}
