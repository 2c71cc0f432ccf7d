/* Top-k masks on the host: which blocks compete, how long lists can become, where query tiles are found, and what is
 * refused. */
#include <string.h>

#include "attention_topk.h"
#include "structures.h"

static void test_candidates(void) {
  for (int i = 0; i < 2000; ++i) {
    const bsrg_topk_mask mask = {.batch = 1,
                                 .heads = 1,
                                 .block_rows = 1 + random_below(6),
                                 .block_cols = 1 + random_below(6),
                                 .block_height = 1 + random_below(9),
                                 .block_width = 1 + random_below(9),
                                 .k = random_below(8),
                                 .causal = i % 4 != 0,
                                 .queries = random_below(50),
                                 .diagonal = (int64_t)random_below(100) - 50};
    const bsrg_topk_shape shape = bsrg_topk_shape_of(&mask);
    for (int32_t r = 0; r < shape.block_rows; ++r) {
      const int64_t last = bsrg_min((r + 1) * mask.block_height, mask.queries) - 1 + mask.diagonal;
      int32_t candidates = 0;
      for (int64_t c = 0; c < mask.block_cols; ++c)
        candidates += !mask.causal || c * mask.block_width <= last;
      CHECK(bsrg_topk_candidates(&shape, r) == candidates);
      CHECK(bsrg_topk_count(&shape, r) == bsrg_min(candidates, mask.k));
    }
  }
}

/* Counts the key tiles that random columns cover for each query tile: never more than is reserved. */
static void test_most_tiles(void) {
  static const int64_t sides[] = {1, 5, 16, 48, 64, 100, 128, 144, 320, 4096};
  for (int i = 0; i < 3000; ++i) {
    const int64_t tile_rows = i % 3 ? 128 : 64, tile_keys = i % 2 ? 128 : i % 5 ? 64 : 96;
    const int64_t queries = 1 + random_below(600), keys = 1 + random_below(2000);
    bsrg_topk_mask mask = {.batch = 1, .heads = 1, .k = random_below(6)};
    mask.block_height = sides[random_below(10)];
    mask.block_width = sides[random_below(10)];
    mask.block_rows = bsrg_ceil_div(queries, mask.block_height);
    mask.block_cols = bsrg_ceil_div(keys, mask.block_width);
    const int64_t most = bsrg_topk_most_tiles(&mask, keys, tile_rows, tile_keys);
    const int64_t key_tiles = bsrg_ceil_div(keys, tile_keys);
    for (int64_t first = 0; first < queries; first += tile_rows) {
      char seen[2000] = {0};
      const int64_t end = bsrg_min(first + tile_rows, queries);
      for (int64_t r = first / mask.block_height; r <= (end - 1) / mask.block_height; ++r)
        for (int64_t j = 0; j < bsrg_min(mask.k, mask.block_cols); ++j) {
          const int64_t begin = random_below((uint32_t)mask.block_cols) * mask.block_width;
          const int64_t last = bsrg_min(begin + mask.block_width, keys) - 1;
          for (int64_t t = begin / tile_keys; t <= last / tile_keys; ++t) seen[t] = 1;
        }
      int64_t count = 0;
      for (int64_t t = 0; t < key_tiles; ++t) count += seen[t];
      CHECK(count <= most);
    }
    CHECK(most <= key_tiles);
  }
}

static void test_tile_index(void) {
  for (int i = 0; i < 300; ++i) {
    bsrg_attention_order order = {.heads = 1 + (int32_t)random_below(20),
                                  .query_tiles = 1 + (int32_t)random_below(9)};
    order.section = 1 + (int32_t)random_below((uint32_t)order.heads);
    order.tail_begin = i % 2 ? order.heads : (int32_t)random_below((uint32_t)order.heads + 1);
    order.tail_begin = i % 2 ? order.heads : order.tail_begin / order.section * order.section;
    for (int32_t t = 0; t < order.heads * order.query_tiles; ++t) {
      const bsrg_attention_position at = bsrg_attention_tile_position(&order, t);
      CHECK(bsrg_attention_tile_index(&order, at.head, at.query_tile) == t);
    }
  }
}

static void test_refusals(void) {
  int32_t columns[8];
  float data[8];
  const bsrg_topk_mask right = {.batch = 1,
                                .heads = 2,
                                .block_rows = 2,
                                .block_cols = 2,
                                .block_height = 16,
                                .block_width = 16,
                                .k = 1,
                                .columns = columns};
  const bsrg_tensor scores = {.data = data,
                              .batch = 1,
                              .heads = 2,
                              .rows = 2,
                              .size = 2,
                              .batch_stride = 8,
                              .head_stride = 4,
                              .row_stride = 2,
                              .element_stride = 1};
  const bsrg_device gpu = {BSRG_CUDA, 0}, cpu = {BSRG_CPU, 0};
#define REFUSES(change, change_scores, dtype, device, text)                   \
  {                                                                           \
    bsrg_topk_mask mask = right;                                              \
    bsrg_tensor given = scores;                                               \
    bsrg_error error = {""};                                                  \
    change;                                                                   \
    change_scores;                                                            \
    CHECK(bsrg_topk_fill(&mask, &given, dtype, device, NULL, &error));        \
    CHECK(strstr(error.message, text));                                       \
    if (!strstr(error.message, text)) fprintf(stderr, "%s\n", error.message); \
  }
  REFUSES(mask.heads = 0, , BSRG_F32, gpu, "(1, 0, 2, 2)")
  REFUSES(mask.block_cols = INT64_MAX, , BSRG_F32, gpu, "2^30 block rows and columns")
  REFUSES(mask.batch = 1 << 30, , BSRG_F32, gpu, "2^30 block rows in all")
  REFUSES(mask.block_width = 0, , BSRG_F32, gpu, "blocks of (16, 0)")
  REFUSES(mask.block_height = INT64_MAX, , BSRG_F32, gpu, "sides from 1 to 2^40")
  REFUSES(mask.k = -1, , BSRG_F32, gpu, "k is -1")
  REFUSES((mask.causal = 1, mask.queries = -1), , BSRG_F32, gpu, "-1 queries")
  REFUSES((mask.causal = 1, mask.diagonal = INT64_MIN), , BSRG_F32, gpu, "a diagonal from")
  REFUSES(mask.columns = NULL, , BSRG_F32, gpu, "columns is NULL")
  REFUSES(, , BSRG_F64, gpu, "dtype float64")
  REFUSES(, , BSRG_F32, cpu, "scores is on cpu")
  REFUSES(, given.rows = 3, BSRG_F32, gpu, "(1, 2, 3, 2), but the mask has (1, 2, 2, 2)")
  REFUSES(, given.data = NULL, BSRG_F32, gpu, "scores has elements, but its pointer is NULL")
  REFUSES(, given.data = columns, BSRG_F32, gpu, "columns overlaps scores")
#undef REFUSES
}

int main(void) {
  test_candidates();
  test_most_tiles();
  test_tile_index();
  test_refusals();
  if (failures) fprintf(stderr, "%d checks failed\n", failures);
  return failures != 0;
}
