/* The tall family's plan: its tiles multiply every block once, and row tiles that a cluster may pair have equal lists
 * of columns. */
#include <stdlib.h>
#include <string.h>

#include "structures.h"
#include "tall.h"

enum { COLS = 7 };

/* Row i stores block column j where bit j of rows[i] is set. */
static bsrg_structure *make(const uint32_t *rows, int64_t block_rows, int64_t height, int64_t width) {
  int64_t *indptr = calloc((size_t)block_rows + 1, sizeof(*indptr));
  int64_t *indices = malloc(sizeof(*indices) * (size_t)(block_rows * COLS));
  for (int64_t i = 0; i < block_rows; ++i) {
    indptr[i + 1] = indptr[i];
    for (int64_t j = 0; j < COLS; ++j)
      if (rows[i] >> j & 1) indices[indptr[i + 1]++] = j;
  }
  return make_structure(block_rows, COLS, height, width, indptr, indices);
}

/* The row of values at which a block begins. */
static int64_t begin_of(const bsrg_structure_view *v, int64_t block) {
  return v->order ? v->order[block] * v->block_width : block * v->block_height;
}

/* One strip of a tile: its entries are its block row's blocks, each once, and nothing for the other columns. */
static void check_strip(const bsrg_structure_view *v, const bsrg_tall_plan *plan, const bsrg_tall_tile *tile,
                        int s, uint8_t *seen) {
  const int64_t strip = tile->strip[s], row = strip * BSRG_TALL_STRIP / v->block_height;
  CHECK(strip >= 0 ? row < v->block_rows && !seen[strip] : s == 1);
  if (strip < 0) return;
  seen[strip] = 1;
  int64_t found = 0;
  for (int64_t block = v->indptr[row]; block < v->indptr[row + 1]; ++block)
    for (int32_t e = 0; e < tile->entry_count; ++e) {
      const bsrg_tall_entry *entry = &plan->entries[tile->entry_begin + e];
      if (entry->a_block[s] != begin_of(v, block)) continue;
      CHECK(entry->x_row == v->indices[block] * v->block_width);
      ++found;
    }
  int64_t there = 0;
  for (int32_t e = 0; e < tile->entry_count; ++e)
    there += plan->entries[tile->entry_begin + e].a_block[s] >= 0;
  CHECK(found == v->indptr[row + 1] - v->indptr[row] && there == found);
}

static void check_tiles(const bsrg_structure_view *v, const bsrg_tall_plan *plan) {
  const int64_t strips = v->rows / BSRG_TALL_STRIP;
  uint8_t *seen = calloc((size_t)strips, 1);
  int64_t entries = 0;
  for (int32_t t = 0; t < plan->tile_count; ++t) {
    const bsrg_tall_tile *tile = &plan->tiles[t];
    CHECK(tile->entry_begin >= 0 && tile->entry_begin + tile->entry_count <= plan->entry_count);
    CHECK(tile->entry_count <= plan->longest_tile);
    CHECK(!plan->skewed || t == 0 || tile[-1].entry_count >= tile->entry_count);
    entries += tile->entry_count;
    for (int s = 0; s < 2; ++s) check_strip(v, plan, tile, s, seen);
  }
  CHECK(entries == plan->tile_entries);
  for (int64_t s = 0; s < strips; ++s) CHECK(seen[s]);
  free(seen);
}

/* What the kernel for row pairs relies on: CTAs that share X make the same steps, each with both strips. */
static void check_pairs(const bsrg_structure_view *v, const bsrg_tall_plan *plan) {
  CHECK(plan->tile_count % 2 == 0);
  for (int32_t t = 0; t < plan->tile_count; t += 2) {
    const bsrg_tall_tile *pair = &plan->tiles[t];
    CHECK(pair[0].entry_count == pair[1].entry_count);
    for (int i = 0; i < 2; ++i)
      CHECK(pair[i].strip[0] >= 0 && pair[i].strip[1] == pair[i].strip[0] + 1 &&
            pair[i].strip[0] * BSRG_TALL_STRIP / v->block_height ==
                pair[i].strip[1] * BSRG_TALL_STRIP / v->block_height);
    for (int32_t e = 0; e < pair->entry_count; ++e) {
      const bsrg_tall_entry *a = &plan->entries[pair[0].entry_begin + e],
                            *b = &plan->entries[pair[1].entry_begin + e];
      CHECK(a->x_row == b->x_row);
      for (int s = 0; s < 2; ++s) CHECK(a->a_block[s] >= 0 && b->a_block[s] >= 0);
    }
  }
}

/* Bytes from L2 as the kernels ask for them: pairs along columns halve A, pairs along rows X; parts of tiles are written
 * and read. */
static void check_cost(bsrg_structure *structure, const bsrg_tall_plan *plan, int64_t n, bool paired) {
  const bsrg_structure_view v = bsrg_structure_get(structure);
  const bsrg_chip chip = bsrg_chip_h200();
  const bsrg_tall_schedule s = bsrg_tall_schedule_for(&v, plan, NULL, n, 0, &chip);
  CHECK(s.cluster.rows == (paired && !s.level ? 2 : 1));
  CHECK(s.cluster.rows == 1 || s.cluster.columns == 1);
  CHECK(s.n_tiles == bsrg_ceil_div(n, BSRG_TALL_TILE_N * s.cluster.columns));
  CHECK(s.group >= 1 && s.group <= s.n_tiles);
  CHECK(s.lead >= (s.level ? s.level->tiles : 0) && s.lead <= plan->tile_count / s.cluster.rows);
  CHECK(plan->skewed || s.level || s.lead == 0);

  const bsrg_matmul_args args = {.a = structure, .dtype = BSRG_F16, .x.cols = n};
  bsrg_candidate candidate = {0};
  bsrg_tall_predict(&args, plan, NULL, &chip, &candidate);
  const int64_t across = s.n_tiles * s.cluster.columns;
  const int64_t a = 2 * v.nnzb * v.block_height * v.block_width;
  const int64_t x = 2 * plan->tile_entries * v.block_width * BSRG_TALL_TILE_N;
  const int64_t partial = s.level ? 8 * s.level->slot_count * 2 * BSRG_TALL_STRIP * n : 0;
  CHECK(candidate.l2_bytes == (double)(across * (a / s.cluster.columns + x / s.cluster.rows) + partial));
  CHECK(candidate.seconds == s.seconds && s.seconds > 0 && s.seconds < 1);
}

/* Whether the plan pairs its row tiles. */
static bool pairs(const uint32_t *rows, int64_t block_rows, int64_t height, int64_t width) {
  bsrg_structure *structure = make(rows, block_rows, height, width);
  const bsrg_structure_view view = bsrg_structure_get(structure);
  bsrg_tall_plan *plan = bsrg_tall_make_plan(structure);
  const bool paired = plan->row_pairs;
  check_tiles(&view, plan);
  if (paired) check_pairs(&view, plan);
  for (int64_t n = 8; n <= 8192; n += 248) check_cost(structure, plan, n, paired && width > 16);
  bsrg_tall_free_plan(plan);
  bsrg_structure_destroy(structure);
  return paired;
}

static void test_heights(void) {
  static const uint32_t different[] = {0x1b, 0x06, 0x7f}, equal[] = {0x2d, 0x2d, 0x2d};
  static const int64_t widths[] = {16, 32, 48, 64, 112};
  for (size_t i = 0; i < sizeof(widths) / sizeof(widths[0]); ++i) {
    const int64_t w = widths[i];
    for (int64_t rows = 1; rows <= 3; ++rows) {
      /* An even number of tiles a block row: pairs inside it, whatever the pattern. */
      CHECK(pairs(different, rows, 256, w) && pairs(different, rows, 512, w));
      /* An odd one: pairs across block rows, if these are equal and come out even. */
      CHECK(!pairs(different, rows, 128, w) && !pairs(different, rows, 384, w));
      CHECK(pairs(equal, rows, 128, w) == (rows == 2) && pairs(equal, rows, 384, w) == (rows == 2));
      /* Half a tile is left over in every block row. */
      CHECK(!pairs(equal, rows, 64, w) && !pairs(equal, rows, 192, w) && !pairs(equal, rows, 320, w));
    }
  }
}

static void test_neighbours(void) {
  static const uint32_t twos[] = {0x03, 0x03, 0x00, 0x00, 0x7f, 0x7f};
  static const uint32_t shifted[] = {0x01, 0x03, 0x03, 0x0f, 0x0f, 0x01};
  static const uint32_t same_length[] = {0x03, 0x03, 0x05, 0x06};
  CHECK(pairs(twos, 6, 128, 64));
  CHECK(!pairs(shifted, 6, 128, 64));
  CHECK(!pairs(same_length, 4, 128, 64));
}

/* Sorted by length, where pairs must not come apart. */
static void test_skewed(void) {
  static const uint32_t rows[] = {0x00, 0x01, 0x00, 0x7f, 0x02, 0x00, 0x04, 0x00};
  CHECK(pairs(rows, 8, 256, 64) && pairs(rows, 8, 512, 32));
  static const uint32_t twos[] = {0x00, 0x00, 0x01, 0x01, 0x00, 0x00, 0x7f, 0x7f, 0x02, 0x02};
  CHECK(pairs(twos, 10, 128, 64));
  static const uint32_t apart[] = {0x01, 0x03, 0x03, 0x7f, 0x7f, 0x01};
  CHECK(pairs(apart, 6, 128, 64));
}

static void test_random(void) {
  for (int i = 0; i < 400; ++i) {
    uint32_t rows[9];
    const int64_t block_rows = 1 + random_below(9);
    for (int64_t r = 0; r < block_rows; ++r) rows[r] = random_below(4) ? random_below(1 << COLS) : 0;
    rows[random_below((uint32_t)block_rows)] |= 1;
    pairs(rows, block_rows, 64 * (1 + random_below(8)), 16 * (1 + random_below(8)));
  }
}

/* The plan of a transposed view, of which no cluster pairs along rows. */
static void test_transposed(void) {
  const bsrg_chip chip = bsrg_chip_h200();
  for (int i = 0; i < 200; ++i) {
    uint32_t rows[9];
    const int64_t block_rows = 1 + random_below(9);
    for (int64_t r = 0; r < block_rows; ++r) rows[r] = random_below(4) ? random_below(1 << COLS) : 0;
    rows[0] |= 1;
    bsrg_structure *structure =
        make(rows, block_rows, 16 * (1 + random_below(8)), 64 * (1 + random_below(8)));
    bsrg_structure *transposed = NULL;
    CHECK(bsrg_structure_transposed(structure, &transposed, NULL) == BSRG_OK);
    const bsrg_structure_view view = bsrg_structure_get(transposed);
    bsrg_tall_plan *plan = bsrg_tall_make_plan(transposed);
    check_tiles(&view, plan);
    CHECK(bsrg_tall_schedule_for(&view, plan, NULL, 1024, 0, &chip).cluster.rows == 1);
    bsrg_tall_free_plan(plan);
    bsrg_structure_destroy(structure);
  }
}

/* However clusters pair, the tiles in flight lie in the same columns: in fewer of them where strips of different block
 * rows share a tile. */
static void test_groups(void) {
  static const int64_t widths[] = {64, 160, 320, 640}; /* k of a full row: 448, 1120, 2240, 4480 */
  static const int32_t expected[] = {2, 4, 8, 8}, of_unions[] = {2, 2, 2, 4};
  static const uint32_t full[] = {0x7f, 0x7f}, different[] = {0x7f, 0x7f, 0x7f};
  const bsrg_chip chip = bsrg_chip_h200();
  for (int i = 0; i < 4; ++i) {
    for (int kind = 0; kind < 3; ++kind) {
      const bool pairs_along_rows = kind == 1, unions = kind == 2;
      bsrg_structure *structure =
          make(pairs_along_rows ? full : different, 3 - pairs_along_rows, unions ? 64 : 128, widths[i]);
      const bsrg_structure_view view = bsrg_structure_get(structure);
      bsrg_tall_plan *plan = bsrg_tall_make_plan(structure);
      const bsrg_tall_schedule s =
          bsrg_tall_schedule_for(&view, plan, NULL, 32 * 2 * BSRG_TALL_TILE_N, 0, &chip);
      CHECK(s.cluster.rows == 1 + pairs_along_rows);
      CHECK(s.group * s.cluster.columns == (unions ? of_unions : expected)[i]);
      CHECK(s.in_step == (i > 0)); /* all tiles are equally long, and those of 1024 k and more long enough */
      CHECK(bsrg_tall_schedule_for(&view, plan, NULL, 8, 0, &chip).group == 1);
      bsrg_tall_free_plan(plan);
      bsrg_structure_destroy(structure);
    }
  }
}

/* As few workers as need no more rounds, unless that leaves out more than one in twenty. */
static void test_workers_in_step(void) {
  CHECK(bsrg_workers_in_step(2048, 132) == 128);
  CHECK(bsrg_workers_in_step(1024, 66) == 64);
  CHECK(bsrg_workers_in_step(4096, 132) == 128);
  CHECK(bsrg_workers_in_step(1056, 132) == 132);
  CHECK(bsrg_workers_in_step(140, 132) == 132);
  CHECK(bsrg_workers_in_step(128, 132) == 128);
  CHECK(bsrg_workers_in_step(10, 132) == 10);
  CHECK(bsrg_workers_in_step(0, 132) == 0);
  CHECK(bsrg_is_even(11, 100, 10) && !bsrg_is_even(12, 100, 10));
}

int main(void) {
  test_heights();
  test_neighbours();
  test_skewed();
  test_random();
  test_transposed();
  test_groups();
  test_workers_in_step();
  if (failures) fprintf(stderr, "%d checks failed\n", failures);
  return failures != 0;
}
