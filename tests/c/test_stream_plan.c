/* The streaming family's plan: read as the kernel reads it, it multiplies every part of every block once, and no stage
 * holds more than shared memory does. */
#include <string.h>

#include "stream.h"
#include "structures.h"

/* A block is stored with probability percent / 100; in two of three rows with a tenth of that when skewed. */
static bsrg_structure *make(int64_t block_rows, int64_t block_cols, int64_t height, int64_t width,
                            uint32_t percent, bool skewed) {
  int64_t *indptr = calloc((size_t)block_rows + 1, sizeof(*indptr));
  int64_t *indices = malloc(sizeof(*indices) * (size_t)(block_rows * block_cols + 1));
  for (int64_t i = 0; i < block_rows; ++i) {
    indptr[i + 1] = indptr[i];
    for (int64_t j = 0; j < block_cols; ++j)
      if (random_below(1000) < percent * (skewed && i % 3 ? 1 : 10)) indices[indptr[i + 1]++] = j;
  }
  return make_structure(block_rows, block_cols, height, width, indptr, indices);
}

typedef struct reader {
  const bsrg_structure_view *v;
  const bsrg_stream_plan *plan;
  uint8_t *seen; /* [part_count], by source */
  int32_t *row_of_block;
  int64_t *position; /* in the structure, of each block of values */
  int64_t steps;
} reader;

/* A part that the plan brings together with row y of Y and row x of X is the one that belongs there. */
static void check_part(const reader *r, int64_t packed, int32_t y, int32_t x) {
  const bsrg_stream_shape *shape = &r->plan->shape;
  CHECK(packed >= 0 && packed < r->plan->part_count);
  const int32_t source = r->plan->source[packed];
  const int32_t column = source % shape->columns, row = source / shape->columns % shape->rows;
  CHECK(source / shape->columns / shape->rows < r->v->nnzb);
  const int64_t block = r->position[source / shape->columns / shape->rows];
  CHECK(y == r->row_of_block[block] * r->v->block_height + row * shape->height);
  CHECK(x == r->v->indices[block] * r->v->block_width + column * shape->width);
  CHECK(!r->seen[source]);
  r->seen[source] = 1;
}

static void check_stage(reader *r, const bsrg_stream_stage *stage, const int32_t *rows) {
  const bsrg_stream_shape *shape = &r->plan->shape;
  const int32_t group_rows = BSRG_STREAM_ROWS_OF(shape->height);
  CHECK(stage->x_count >= 1 && stage->x_count <= BSRG_STREAM_SLOTS_OF(shape->width));
  CHECK(2 * (stage->x_count * shape->width * BSRG_STREAM_TILE_N +
             stage->a_count * shape->width * shape->height) <=
        BSRG_STREAM_STAGE_BYTES);
  int64_t packed = stage->a_begin;
  for (int32_t g = 0; g < BSRG_STREAM_GROUPS; ++g) {
    const bsrg_stream_share *share = &stage->share[g];
    CHECK(stage->a_begin + stage->a_count - share->blocks == packed);
    const bool in_pairs = BSRG_STREAM_PAIRS(shape->width);
    for (int32_t row = 0; row < BSRG_STREAM_MOST_ROWS / (in_pairs ? 2 : 1); ++row) {
      uint32_t slots = in_pairs ? share->slots[row] : share->slots[row / 2] >> row % 2 * 16 & 0xffff;
      CHECK((uint64_t)slots >> stage->x_count == 0 && (row < group_rows || slots == 0));
      int64_t parts = 0;
      for (; slots; ++parts) {
        const int highest = 31 - __builtin_clz(slots), lowest = __builtin_ctz(slots);
        const int slot = in_pairs ? lowest : highest;
        check_part(r, packed++, rows[g * group_rows + row], stage->x_row[slot]);
        slots ^= 1u << slot;
      }
      r->steps += in_pairs ? (parts + 1) / 2 : parts * shape->width / 16;
    }
  }
  CHECK(packed == stage->a_begin + stage->a_count);
}

static void check_plan(bsrg_structure *structure, bool low) {
  const bsrg_structure_view *v = &structure->view;
  bsrg_stream_plan *plan = low ? bsrg_stream_make_low_plan(structure) : bsrg_stream_make_plan(structure);
  CHECK(plan != NULL);
  if (!plan) return;
  const bsrg_stream_shape *shape = &plan->shape;
  CHECK(shape->height * shape->rows == v->block_height && shape->width * shape->columns == v->block_width);
  CHECK(plan->part_count == v->nnzb * shape->rows * shape->columns);

  reader r = {v,
              plan,
              calloc((size_t)plan->part_count + 1, 1),
              malloc(sizeof(int32_t) * (size_t)(v->nnzb + 1)),
              malloc(sizeof(int64_t) * (size_t)(v->nnzb + 1)),
              0};
  for (int64_t k = 0; k < v->nnzb; ++k) r.position[v->order ? v->order[k] : k] = k;
  for (int64_t i = 0; i < v->block_rows; ++i)
    for (int64_t k = v->indptr[i]; k < v->indptr[i + 1]; ++k) r.row_of_block[k] = (int32_t)i;
  const int32_t group_rows = BSRG_STREAM_ROWS_OF(shape->height), tile_rows = BSRG_STREAM_GROUPS * group_rows;
  uint8_t *written = calloc((size_t)v->rows, 1);
  for (int32_t t = 0; t < plan->tile_count; ++t) {
    const bsrg_stream_tile *tile = &plan->tiles[t];
    CHECK(tile->row_begin >= 0 && tile->row_begin + tile_rows <= plan->row_count);
    const int32_t *rows = plan->rows + tile->row_begin;
    int32_t count[BSRG_STREAM_GROUPS] = {0};
    for (int32_t i = 0; i < tile_rows; ++i) {
      if (rows[i] < 0) continue;
      ++count[i / group_rows];
      CHECK(rows[i] + shape->height <= v->rows && !written[rows[i]]);
      memset(written + rows[i], 1, (size_t)shape->height);
    }
    /* As many for each warpgroup, but for the last one, and no more than a low tile may have. */
    for (int32_t g = 0; g + 1 < BSRG_STREAM_GROUPS; ++g)
      CHECK(count[g] >= count[g + 1] &&
            (g + 2 == BSRG_STREAM_GROUPS || count[g] == count[g + 1] || count[g + 2] == 0));
    CHECK(!low || count[0] <= bsrg_max(shape->rows, bsrg_ceil_div(2 * tile_rows / 3, BSRG_STREAM_GROUPS)));
    for (int32_t s = 0; s < tile->stage_count; ++s)
      check_stage(&r, &plan->stages[tile->stage_begin + s], rows);
  }
  for (int64_t i = 0; i < v->rows; ++i) CHECK(written[i]);
  for (int64_t i = 0; i < plan->part_count; ++i) CHECK(r.seen[i]);
  CHECK(plan->steps == r.steps);
  free(written);
  free(r.seen);
  free(r.row_of_block);
  free(r.position);
  bsrg_stream_free_plan(plan);
}

/* What L2 keeps, of lists that are not skewed, and how many column tiles are swept together. */
static void check_group(bsrg_structure *structure, bool skewed, bool kept, int32_t group) {
  bsrg_stream_plan *plan = bsrg_stream_make_plan(structure);
  CHECK(plan->skewed == skewed);
  CHECK(bsrg_stream_keeps(plan) == kept);
  CHECK(bsrg_stream_group(plan, 1, 100) == group && bsrg_stream_group(plan, 1, 1) == 1);
  CHECK(bsrg_stream_group(plan, 2, 50) == bsrg_max(1, group / 2) && bsrg_stream_group(plan, 2, 1) == 1);
  bsrg_stream_free_plan(plan);
  bsrg_structure_destroy(structure);
}

static void test_groups(void) {
  check_group(make(160, 160, 16, 16, 20, false), false, true, 1);
  check_group(make(160, 160, 16, 16, 50, true), true, false, 4);
  check_group(make(256, 256, 16, 16, 100, false), false, false, 8); /* 32 MB */
  check_group(make(1024, 1024, 16, 16, 6, false), false, false, 4);
}

/* Pairs of column tiles, where none is left over and SMs have more than one. */
static void test_clusters(void) {
  CHECK(bsrg_stream_cluster(8192, 22, 132) == 2 && bsrg_stream_cluster(8065, 22, 132) == 2);
  CHECK(bsrg_stream_cluster(8064, 22, 132) == 1); /* 63 */
  CHECK(bsrg_stream_cluster(1024, 22, 132) == 2 && bsrg_stream_cluster(512, 22, 132) == 1);
}

/* Tiles of 256 rows, not 384, where they let more of 132 SMs work. */
static void test_low(void) {
  bsrg_structure *structure = make(512, 512, 16, 16, 2, false);
  CHECK(bsrg_stream_wants_low(&structure->view, 128, 132));   /* 32 tiles and not 22 */
  CHECK(bsrg_stream_wants_low(&structure->view, 512, 132));   /* 128, 88 */
  CHECK(bsrg_stream_wants_low(&structure->view, 1024, 132));  /* two rounds */
  CHECK(!bsrg_stream_wants_low(&structure->view, 8192, 132)); /* 16 rounds of low tiles, or 11 */
  bsrg_stream_plan *low = bsrg_stream_make_low_plan(structure), *plan = bsrg_stream_make_plan(structure);
  CHECK(low->low && low->tile_count == 32 && !plan->low && plan->tile_count == 22);
  bsrg_stream_free_plan(low);
  bsrg_stream_free_plan(plan);
  /* The structure keeps both. */
  const void *kept[2], *again;
  for (int i = 0; i < 2; ++i) {
    CHECK(bsrg_plan_get(structure, &bsrg_stream_family, i == 1, &kept[i], NULL) == BSRG_OK);
    CHECK(((const bsrg_stream_plan *)kept[i])->low == (i == 1));
    CHECK(bsrg_plan_get(structure, &bsrg_stream_family, i == 1, &again, NULL) == BSRG_OK && again == kept[i]);
  }
  bsrg_structure_destroy(structure);
  structure = make(16, 16, 16, 16, 50, false);
  CHECK(!bsrg_stream_wants_low(&structure->view, 64, 132)); /* one tile of either */
  bsrg_structure_destroy(structure);
}

int main(void) {
  test_groups();
  test_clusters();
  test_low();
  static const int64_t heights[] = {8, 16, 24, 32, 40, 48, 56, 64, 72, 96, 128, 168};
  static const int64_t widths[] = {8, 16, 24, 32, 48, 64, 112};
  static const uint32_t percents[] = {0, 2, 12, 50, 100};
  for (size_t h = 0; h < sizeof(heights) / sizeof(*heights); ++h)
    for (size_t w = 0; w < sizeof(widths) / sizeof(*widths); ++w)
      for (size_t p = 0; p < sizeof(percents) / sizeof(*percents); ++p)
        for (int skewed = 0; skewed < 2; ++skewed) {
          if (heights[h] == 8 && widths[w] % 16) continue; /* there is no such part */
          bsrg_structure *structure = make(1 + random_below(70), 1 + random_below(60), heights[h], widths[w],
                                           percents[p], skewed != 0);
          check_plan(structure, p % 2);
          bsrg_structure_destroy(structure);
          structure = make(1 + random_below(70), 1 + random_below(60), widths[w], heights[h], percents[p],
                           skewed != 0);
          bsrg_structure *transposed = NULL;
          CHECK(bsrg_structure_transposed(structure, &transposed, NULL) == BSRG_OK);
          if (transposed) check_plan(transposed, p % 2 == 0);
          bsrg_structure_destroy(structure);
        }
  return failures != 0;
}
