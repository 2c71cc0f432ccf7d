/* Long tiles of the tall family in parts, and the order of tiles: parts cover every entry of a tile once, in order;
 * whatever the order, every tile is computed once. */
#include <string.h>

#include "structures.h"
#include "tall.h"

/* Row i stores length(i) of the columns, from its own first one on. */
static bsrg_structure *make(int64_t rows, int64_t cols, int64_t height, int64_t width,
                            int64_t (*length)(int64_t row, int64_t cols)) {
  int64_t *indptr = calloc((size_t)rows + 1, sizeof(*indptr));
  int64_t *indices = malloc(sizeof(*indices) * (size_t)(rows * cols));
  for (int64_t i = 0; i < rows; ++i) {
    indptr[i + 1] = indptr[i];
    const int64_t count = length(i, cols), first = (int64_t)random_below((uint32_t)(cols - count + 1));
    for (int64_t j = first; j < first + count; ++j) indices[indptr[i + 1]++] = j;
  }
  return make_structure(rows, cols, height, width, indptr, indices);
}

static int64_t full_in_two(int64_t row, int64_t cols) { return row == 3 || row == 5 ? cols : 0; }
static int64_t like_zipf(int64_t row, int64_t cols) { return bsrg_max(1, cols / (1 + row * 7 % 31)); }
static int64_t equal(int64_t row, int64_t cols) { return row >= 0 ? cols / 2 : 0; }
static int64_t any(int64_t row, int64_t cols) { return 1 + (row + random_below((uint32_t)cols)) % cols; }

/* The tiles of a level: what their parts make together. */
static void check_level(const bsrg_tall_plan *plan, const bsrg_tall_level *level) {
  CHECK(level->tiles >= 1 && level->tiles <= plan->tile_count);
  CHECK(level->part_count >= level->tiles && level->part_count <= BSRG_TALL_MOST_PARTS);
  CHECK(level->part_begin + level->part_count <= plan->part_count);
  CHECK(level->cut_begin + level->cut_count <= plan->cut_count);
  const bsrg_tall_part *parts = plan->parts + level->part_begin;
  const bsrg_tall_part **of_slot = calloc((size_t)level->slot_count + 1, sizeof(*of_slot));
  int32_t whole = 0;
  for (int32_t p = 0; p < level->part_count; ++p) {
    CHECK(p == 0 || parts[p - 1].x_row <= parts[p].x_row);
    CHECK(parts[p].tile.entry_count <= level->most);
    CHECK(parts[p].slot >= -1 && parts[p].slot < level->slot_count);
    if (parts[p].slot < 0) {
      ++whole;
    } else {
      CHECK(of_slot[parts[p].slot] == NULL);
      of_slot[parts[p].slot] = &parts[p];
    }
  }
  CHECK(whole == level->tiles - level->cut_count && whole + level->slot_count == level->part_count);

  int32_t cut_index = level->cut_begin, slot = 0;
  for (int32_t t = 0; t < level->tiles; ++t) {
    const bsrg_tall_tile *tile = &plan->tiles[t];
    if (tile->entry_count <= level->most) {
      int32_t found = 0;
      for (int32_t p = 0; p < level->part_count; ++p)
        found += parts[p].slot < 0 && memcmp(&parts[p].tile, tile, sizeof(*tile)) == 0;
      CHECK(found == 1);
      continue;
    }
    const bsrg_tall_cut *cut = &plan->cuts[cut_index++];
    CHECK(memcmp(cut->strip, tile->strip, sizeof(cut->strip)) == 0);
    CHECK(cut->first_slot == slot && cut->slot_count >= 2 && slot + cut->slot_count <= level->slot_count);
    int32_t next = tile->entry_begin;
    for (; slot < cut->first_slot + cut->slot_count; ++slot) {
      const bsrg_tall_tile *part = &of_slot[slot]->tile;
      CHECK(memcmp(part->strip, tile->strip, sizeof(part->strip)) == 0);
      CHECK(part->entry_begin == next && part->entry_count >= 1);
      CHECK(of_slot[slot]->x_row == plan->entries[next].x_row);
      next += part->entry_count;
    }
    CHECK(next == tile->entry_begin + tile->entry_count);
  }
  CHECK(slot == level->slot_count && cut_index == level->cut_begin + level->cut_count);
  /* What follows the parts is short. */
  for (int32_t t = level->tiles; t < plan->tile_count; ++t) CHECK(plan->tiles[t].entry_count <= level->most);
  free(of_slot);
}

/* As tile_position in kernels/sm90/persistent.cuh. */
static void tile_position(int32_t t, int32_t rows, int32_t columns, int32_t group_size, int32_t lead,
                          int32_t at[2]) {
  if (t < lead * columns) {
    at[0] = t / columns;
    at[1] = t % columns;
    return;
  }
  t -= lead * columns;
  rows -= lead;
  const int32_t group = t / (rows * group_size), within = t % (rows * group_size);
  const int32_t left = columns - group * group_size, width = left < group_size ? left : group_size;
  const bool up = (((columns - 1) / group_size - group) & 1) != 0;
  at[0] = lead + (up ? rows - 1 - within / width : within / width);
  at[1] = group * group_size + within % width;
}

/* Every tile once, the tiles that are cut in the place of their parts. */
static void check_order(const bsrg_tall_plan *plan, const bsrg_tall_schedule *s) {
  const int32_t rows = plan->tile_count / s->cluster.rows, columns = s->n_tiles;
  const int32_t cut = s->level ? s->level->tiles : 0;
  uint8_t *seen = calloc((size_t)(rows * columns), 1);
  for (int32_t t = cut * columns; t < rows * columns; ++t) {
    int32_t at[2];
    tile_position(t, rows, columns, s->group, s->lead, at);
    CHECK(at[0] >= cut && at[0] < rows && at[1] >= 0 && at[1] < columns);
    CHECK(!seen[at[0] * columns + at[1]]);
    seen[at[0] * columns + at[1]] = 1;
    if (t + 1 == rows * columns && plan->skewed) CHECK(at[0] == rows - 1); /* the shortest one last */
  }
  free(seen);
}

static bsrg_tall_plan *checked_plan(bsrg_structure *structure) {
  bsrg_tall_plan *plan = bsrg_tall_make_plan(structure);
  const bsrg_structure_view view = bsrg_structure_get(structure);
  const bsrg_chip chip = bsrg_chip_h200();
  for (int32_t i = 0; i < plan->level_count; ++i) {
    CHECK(i == 0 || plan->levels[i].most < plan->levels[i - 1].most);
    check_level(plan, &plan->levels[i]);
  }
  for (int64_t n = 8; n <= 8192; n = n * 3 + 8) {
    const bsrg_tall_schedule s = bsrg_tall_schedule_for(&view, plan, NULL, n, 0, &chip);
    CHECK(!s.level || (s.level >= plan->levels && s.level < plan->levels + plan->level_count));
    check_order(plan, &s);
  }
  return plan;
}

static void test_levels(void) {
  int64_t (*const lengths[])(int64_t, int64_t) = {full_in_two, like_zipf, equal, any};
  static const int64_t heights[] = {64, 128, 192, 256};
  for (size_t l = 0; l < sizeof(lengths) / sizeof(*lengths); ++l)
    for (size_t h = 0; h < sizeof(heights) / sizeof(*heights); ++h)
      for (int i = 0; i < 6; ++i) {
        bsrg_structure *structure =
            make(6 + random_below(60), 40 + random_below(100), heights[h], 16 << random_below(4), lengths[l]);
        bsrg_tall_free_plan(checked_plan(structure));
        bsrg_structure_destroy(structure);
      }
}

/* Which products are cut on an H200. */
static void test_choice(void) {
  const bsrg_chip chip = bsrg_chip_h200();
  const struct {
    int64_t (*length)(int64_t, int64_t);
    int64_t rows, cols, height, width, n;
    bool cut;
  } cases[] = {
      {full_in_two, 64, 64, 128, 128, 8192, true}, /* 64 tiles for 132 SMs keep the others waiting */
      {full_in_two, 128, 128, 64, 64, 8192, true},
      {like_zipf, 64, 64, 128, 128, 8192, false}, /* the longest tile is shorter than an SM's share */
      {equal, 64, 64, 128, 128, 8192, false},
      {equal, 4, 256, 128, 64, 256, true}, /* fewer tiles than SMs, and long ones */
      {equal, 4, 8, 128, 64, 256, false},  /* short ones */
  };
  for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); ++i) {
    bsrg_structure *structure =
        make(cases[i].rows, cases[i].cols, cases[i].height, cases[i].width, cases[i].length);
    const bsrg_structure_view view = bsrg_structure_get(structure);
    bsrg_tall_plan *plan = checked_plan(structure);
    const bsrg_tall_schedule s = bsrg_tall_schedule_for(&view, plan, NULL, cases[i].n, 0, &chip);
    CHECK((s.level != NULL) == cases[i].cut);
    bsrg_tall_free_plan(plan);
    bsrg_structure_destroy(structure);
  }
}

/* A plan of very many tiles has no parts, and the planner no long list. */
static void test_limits(void) {
  bsrg_structure *structure = make(2000, 40, 128, 128, equal);
  bsrg_tall_plan *plan = checked_plan(structure);
  CHECK(plan->level_count == 0 && plan->part_count == 0);
  bsrg_tall_free_plan(plan);
  bsrg_structure_destroy(structure);
}

/* Longest tiles first over all columns, then the rest by panels; one panel needs no exceptions. */
static void test_lead(void) {
  const bsrg_chip chip = bsrg_chip_h200();
  bsrg_structure *structure = make(64, 64, 128, 128, like_zipf);
  const bsrg_structure_view view = bsrg_structure_get(structure);
  bsrg_tall_plan *plan = bsrg_tall_make_plan(structure);
  const bsrg_tall_schedule wide = bsrg_tall_schedule_for(&view, plan, NULL, 8192, 0, &chip);
  CHECK(plan->skewed && wide.lead > 0 && wide.lead < 20 && wide.group < wide.n_tiles);
  CHECK(wide.group * wide.cluster.columns >= 4);
  const bsrg_tall_schedule narrow = bsrg_tall_schedule_for(&view, plan, NULL, 512, 0, &chip);
  CHECK(narrow.group == narrow.n_tiles && narrow.lead == (narrow.level ? narrow.level->tiles : 0));
  bsrg_tall_free_plan(plan);
  bsrg_structure_destroy(structure);
}

int main(void) {
  test_levels();
  test_choice();
  test_limits();
  test_lead();
  if (failures) fprintf(stderr, "%d checks failed\n", failures);
  return failures != 0;
}
