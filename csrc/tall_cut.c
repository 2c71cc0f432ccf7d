/* Tiles of the tall family cut along K: where a tile has more than a CTA's share of a product, its parts are computed
 * side by side and added in their order. */
#include "tall.h"

#include <stdlib.h>

/* Parts of the longest tile at each level. */
static const int32_t most_parts[BSRG_TALL_LEVELS] = {2, 3, 4, 6, 8, 12, 16, 24, 32};
/* k below which a part is not worth its start and its sums. */
enum { LEAST_PART_K = 256 };

/* An empty tile, too, has a part: somebody writes its zeros. */
static int64_t parts_of(const bsrg_tall_tile *tile, int32_t most) {
  return bsrg_max(1, bsrg_ceil_div(tile->entry_count, most));
}

/* The level whose parts have up to `most` entries, without its place in the lists. */
static bsrg_tall_level level_for(const bsrg_tall_plan *plan, int32_t most) {
  bsrg_tall_level level = {.most = most, .part_begin = plan->part_count, .cut_begin = plan->cut_count};
  int64_t parts = 0;
  for (int32_t t = 0; t < plan->tile_count && parts <= BSRG_TALL_MOST_PARTS; ++t) {
    const int64_t of_tile = parts_of(&plan->tiles[t], most);
    if (plan->skewed && of_tile == 1) break; /* sorted: no later one is cut */
    parts += of_tile;
    level.cut_count += of_tile > 1;
    level.slot_count += of_tile > 1 ? (int32_t)of_tile : 0;
    level.tiles = t + 1;
  }
  level.part_count = (int32_t)parts;
  return level;
}

static void append_parts(bsrg_tall_plan *plan, int32_t tile_index, int32_t most, int32_t *slots) {
  const bsrg_tall_tile *tile = &plan->tiles[tile_index];
  const int64_t parts = parts_of(tile, most), entries = tile->entry_count;
  if (parts > 1)
    plan->cuts[plan->cut_count++] = (bsrg_tall_cut){{tile->strip[0], tile->strip[1]}, *slots, (int32_t)parts};
  for (int64_t p = 0; p < parts; ++p) {
    const int32_t from = (int32_t)(entries * p / parts), to = (int32_t)(entries * (p + 1) / parts);
    plan->parts[plan->part_count++] =
        (bsrg_tall_part){.tile = {{tile->strip[0], tile->strip[1]}, tile->entry_begin + from, to - from},
                         .slot = parts > 1 ? (*slots)++ : -1,
                         .x_row = to > from ? plan->entries[tile->entry_begin + from].x_row : 0};
  }
}

/* Parts that run at the same time should read the same rows of X. */
static int by_x_row(const void *a, const void *b) {
  const bsrg_tall_part *one = a, *other = b;
  if (one->x_row != other->x_row) return one->x_row < other->x_row ? -1 : 1;
  if (one->slot != other->slot) return one->slot < other->slot ? -1 : 1;
  return (one->tile.strip[0] > other->tile.strip[0]) - (one->tile.strip[0] < other->tile.strip[0]);
}

static bool append_level(bsrg_tall_plan *plan, bsrg_tall_level level) {
  bsrg_tall_part *parts =
      realloc(plan->parts, sizeof(*parts) * (size_t)(plan->part_count + level.part_count));
  if (parts) plan->parts = parts;
  bsrg_tall_cut *cuts = realloc(plan->cuts, sizeof(*cuts) * (size_t)(plan->cut_count + level.cut_count));
  if (cuts) plan->cuts = cuts;
  if (!parts || !cuts) return false;
  int32_t slots = 0;
  for (int32_t t = 0; t < level.tiles; ++t) append_parts(plan, t, level.most, &slots);
  qsort(plan->parts + level.part_begin, (size_t)level.part_count, sizeof(*plan->parts), by_x_row);
  plan->levels[plan->level_count++] = level;
  return true;
}

bool bsrg_tall_make_cuts(bsrg_tall_plan *plan, int64_t block_width) {
  int32_t last = plan->longest_tile;
  for (int i = 0; i < BSRG_TALL_LEVELS; ++i) {
    const int32_t most = (int32_t)bsrg_ceil_div(plan->longest_tile, most_parts[i]);
    if (most == last) continue;
    if (most * block_width < LEAST_PART_K) break;
    last = most;
    const bsrg_tall_level level = level_for(plan, most);
    if (level.part_count > BSRG_TALL_MOST_PARTS) break;
    if (!append_level(plan, level)) return false;
  }
  return true;
}
