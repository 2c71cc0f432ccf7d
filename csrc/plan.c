/* From a structure to tiles, and the cost model that chooses between kernel families. Pure C: no device is
 * needed. */
#include "plan.h"

#include "kernels.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- order of rows --------------------------------------------------------------------------- */

/* Lengths that differ this much are worth sorting; below, natural order keeps neighbours in L2 together. */
static bool is_skewed(int64_t longest, int64_t total, int64_t count) { return longest * count > 2 * total; }

/* Writes 0 .. count - 1 into order, longest first, equal lengths in their order (counting sort). */
static bool sort_longest_first(const int64_t *length, int64_t count, int64_t longest, int32_t *order) {
  int64_t *start = calloc((size_t)longest + 2, sizeof(*start));
  if (!start) return false;
  for (int64_t i = 0; i < count; ++i) start[longest - length[i] + 1]++;
  for (int64_t l = 0; l <= longest; ++l) start[l + 1] += start[l];
  for (int64_t i = 0; i < count; ++i) order[start[longest - length[i]]++] = (int32_t)i;
  free(start);
  return true;
}

static bool make_row_order(const bsrg_structure_view *v, int32_t *order) {
  if (!is_skewed(v->longest_row, v->nnzb, v->block_rows)) {
    for (int64_t i = 0; i < v->block_rows; ++i) order[i] = (int32_t)i;
    return true;
  }
  int64_t *length = malloc(sizeof(*length) * (size_t)v->block_rows);
  if (!length) return false;
  for (int64_t i = 0; i < v->block_rows; ++i) length[i] = v->indptr[i + 1] - v->indptr[i];
  const bool done = sort_longest_first(length, v->block_rows, v->longest_row, order);
  free(length);
  return done;
}

/* ---- the tall family's tiles ----------------------------------------------------------------- */

/* Word operations that the search for rows with common columns may spend; about a millisecond. */
enum { PAIRING_BUDGET = 1 << 20, PAIRING_WINDOW = 256 };

/* Partners for strips of different block rows: partner[i] is a block row that shares many columns with i, or
 * -1. Two rows that share a column share one load of X; the work of the tensor cores is the same for any
 * pairing. */
static bool pair_rows(const bsrg_structure_view *v, const int32_t *order, int32_t *partner) {
  const int64_t rows = v->block_rows, words = bsrg_ceil_div(v->block_cols, 64);
  int64_t candidates = rows > 0 && words > 0 ? PAIRING_BUDGET / (rows * words) : 0;
  if (candidates > PAIRING_WINDOW) candidates = PAIRING_WINDOW;
  for (int64_t i = 0; i < rows; ++i) partner[i] = -1;
  if (candidates < 2) { /* too large to search: neighbours in the order */
    for (int64_t k = 0; k + 1 < rows; k += 2) {
      partner[order[k]] = order[k + 1];
      partner[order[k + 1]] = order[k];
    }
    return true;
  }
  uint64_t *bits = calloc((size_t)(rows * words), sizeof(*bits));
  if (!bits) return false;
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t b = v->indptr[i]; b < v->indptr[i + 1]; ++b)
      bits[i * words + v->indices[b] / 64] |= (uint64_t)1 << (v->indices[b] % 64);
  for (int64_t k = 0; k < rows; ++k) {
    const int32_t row = order[k];
    if (partner[row] >= 0) continue;
    int64_t best_shared = -1, tried = 0;
    int32_t best = -1;
    for (int64_t l = k + 1; l < rows && tried < candidates; ++l) {
      const int32_t other = order[l];
      if (partner[other] >= 0) continue;
      int64_t shared = 0;
      for (int64_t w = 0; w < words; ++w)
        shared += __builtin_popcountll(bits[row * words + w] & bits[other * words + w]);
      ++tried;
      if (shared > best_shared) {
        best_shared = shared;
        best = other;
      }
    }
    if (best >= 0) {
      partner[row] = best;
      partner[best] = row;
    }
  }
  free(bits);
  return true;
}

/* Appends the union of the columns of block rows i and j (j < 0: i alone; j == i: both strips in one block
 * row). */
static void append_entries(const bsrg_structure_view *v, int64_t i, int64_t j, bsrg_tall_plan *plan) {
  int64_t a = v->indptr[i], a_end = v->indptr[i + 1];
  int64_t b = j >= 0 && j != i ? v->indptr[j] : 0, b_end = j >= 0 && j != i ? v->indptr[j + 1] : 0;
  while (a < a_end || b < b_end) {
    const int32_t column_a = a < a_end ? v->indices[a] : INT32_MAX;
    const int32_t column_b = b < b_end ? v->indices[b] : INT32_MAX;
    const int32_t column = column_a < column_b ? column_a : column_b;
    bsrg_tall_entry entry = {(int32_t)(column * v->block_width), {-1, -1}, 0};
    if (a < a_end && column_a == column) entry.a_block[0] = (int32_t)(a++ * v->block_height);
    if (b < b_end && column_b == column) entry.a_block[1] = (int32_t)(b++ * v->block_height);
    if (i == j) entry.a_block[1] = entry.a_block[0];
    plan->entries[plan->entry_count++] = entry;
  }
}

static void append_tile(bsrg_tall_plan *plan, int64_t strip0, int64_t strip1, int64_t begin) {
  const int32_t count = (int32_t)(plan->entry_count - begin);
  plan->tiles[plan->tile_count++] =
      (bsrg_tall_tile){{(int32_t)strip0, (int32_t)strip1}, (int32_t)begin, count};
  plan->tile_entries += count;
  if (count > plan->longest_tile) plan->longest_tile = count;
}

static bool sort_tiles(bsrg_tall_plan *plan) {
  const size_t count = (size_t)plan->tile_count;
  int64_t *length = calloc(count, sizeof(*length));
  int32_t *order = malloc(sizeof(*order) * count);
  bsrg_tall_tile *sorted = malloc(sizeof(*sorted) * count);
  bool done = length && order && sorted;
  if (done) {
    for (size_t t = 0; t < count; ++t) length[t] = plan->tiles[t].entry_count;
    done = sort_longest_first(length, plan->tile_count, plan->longest_tile, order);
  }
  if (done) {
    for (size_t t = 0; t < count; ++t) sorted[t] = plan->tiles[order[t]];
    memcpy(plan->tiles, sorted, sizeof(*sorted) * count);
  }
  free(length);
  free(order);
  free(sorted);
  return done;
}

static bool tall_shape(const bsrg_structure_view *v) {
  int64_t a_rows;
  return v->nnzb > 0 && v->block_height % BSRG_TALL_STRIP == 0 && v->block_width % 16 == 0 &&
         v->rows <= INT32_MAX && v->cols <= INT32_MAX && bsrg_mul_ok(v->nnzb, v->block_height, &a_rows) &&
         a_rows <= INT32_MAX;
}

static bool make_tall(const bsrg_structure_view *v, const int32_t *row_order, bsrg_tall_plan *plan) {
  const int64_t strips = v->block_height / BSRG_TALL_STRIP;
  plan->entries = malloc(sizeof(*plan->entries) * (size_t)(strips > 1 ? 2 : 1) * (size_t)v->nnzb);
  plan->tiles = malloc(sizeof(*plan->tiles) * (size_t)(v->block_rows * bsrg_ceil_div(strips, 2)));
  if (!plan->entries || !plan->tiles) return false;

  if (strips > 1) { /* pairs inside a block row: all columns in common */
    for (int64_t k = 0; k < v->block_rows; ++k) {
      const int64_t row = row_order[k], begin = plan->entry_count;
      append_entries(v, row, row, plan);
      for (int64_t s = 0; s + 1 < strips; s += 2)
        append_tile(plan, row * strips + s, row * strips + s + 1, begin);
    }
  }
  if (strips % 2 == 1) { /* the last strip of each block row, with one of another */
    int32_t *partner = malloc(sizeof(*partner) * (size_t)v->block_rows);
    if (!partner || !pair_rows(v, row_order, partner)) {
      free(partner);
      return false;
    }
    for (int64_t k = 0; k < v->block_rows; ++k) {
      const int64_t row = row_order[k], begin = plan->entry_count;
      const int64_t other = partner[row];
      if (other == -2) continue;
      if (other >= 0) partner[other] = -2; /* done with its partner */
      append_entries(v, row, other, plan);
      append_tile(plan, row * strips + strips - 1, other >= 0 ? other * strips + strips - 1 : -1, begin);
    }
    free(partner);
  }
  plan->skewed = is_skewed(plan->longest_tile, plan->tile_entries, plan->tile_count);
  return !plan->skewed || sort_tiles(plan);
}

/* ---- the plan of a structure ----------------------------------------------------------------- */

void bsrg_plan_destroy(bsrg_plan *plan) {
  if (!plan) return;
  free(plan->tall.entries);
  free(plan->tall.tiles);
  free(plan->row_order);
  free(plan);
}

bsrg_status bsrg_plan_get(bsrg_structure *structure, const bsrg_plan **out, bsrg_error *error) {
  bsrg_plan *plan = atomic_load_explicit(&structure->plan, memory_order_acquire);
  if (!plan) {
    const bsrg_structure_view *v = &structure->view;
    plan = calloc(1, sizeof(*plan));
    if (plan) plan->row_order = malloc(sizeof(int32_t) * (size_t)(v->block_rows + 1));
    if (!plan || !plan->row_order || !make_row_order(v, plan->row_order) ||
        (tall_shape(v) && !make_tall(v, plan->row_order, &plan->tall))) {
      bsrg_plan_destroy(plan);
      return bsrg_fail(error, BSRG_ERR_MEMORY, "no memory to plan a matrix of %lld blocks",
                       (long long)v->nnzb);
    }
    bsrg_plan *expected = NULL; /* two threads may plan at once; the first one's plan stays */
    if (!atomic_compare_exchange_strong(&structure->plan, &expected, plan)) {
      bsrg_plan_destroy(plan);
      plan = expected;
    }
  }
  *out = plan;
  return BSRG_OK;
}

/* ---- tile order for n columns ---------------------------------------------------------------- */

int bsrg_tall_cluster(int64_t n) {
  /* The odd column tile of a pair is computed for nothing: accept that only among many. */
  const int64_t tiles = bsrg_ceil_div(n, BSRG_TALL_TILE_N);
  return tiles % 2 == 0 || tiles > 15 ? 2 : 1;
}

int32_t bsrg_tall_group(const bsrg_structure *structure, const bsrg_tall_plan *plan, int cluster,
                        int32_t n_tiles) {
  if (plan->skewed) return n_tiles;
  /* Column tiles of 256 a group: 2 up to 1024 stored k a row, then in proportion. Measured at 8192^3: fewer
   * reread A, more push X out of L2. */
  const double k =
      (double)plan->tile_entries * (double)structure->view.block_width / (double)plan->tile_count;
  const int32_t tiles = k <= 1024 ? 2 : k <= 2048 ? 4 : 8;
  return (int32_t)bsrg_max(1, bsrg_min(tiles / cluster, n_tiles));
}

/* ---- tiles of the portable family ------------------------------------------------------------- */

/* Time for a row of a tile against the best tile of its list, in the order of the lists. 16 bit: full tiles on an
 * H200 reached 305 TF/s with 128 rows, 296 with 64, 242 with 48, 232 with 32 and 158 with 16; the two narrow ones
 * are for few columns. */
static const double mma_cost[] = {2.0, 1.1, 1.9, 1.3, 1.26, 1.03, 1.0};
static const double simt_cost[] = {1.3, 1.2, 1.07, 1.0};
#define TILE_SHAPE(rows, columns, ...) {rows, columns},
static const int64_t mma_shape[][2] = {BSRG_MMA_TILES(TILE_SHAPE)};
static const int64_t f32_shape[][2] = {BSRG_SIMT_F32_TILES(TILE_SHAPE)};
static const int64_t f64_shape[][2] = {BSRG_SIMT_F64_TILES(TILE_SHAPE)};
#undef TILE_SHAPE
#define COUNT(array) ((int)(sizeof(array) / sizeof((array)[0])))
_Static_assert(COUNT(mma_cost) == COUNT(mma_shape), "a cost for each tile");
_Static_assert(COUNT(simt_cost) == COUNT(f32_shape) && COUNT(simt_cost) == COUNT(f64_shape), "likewise");

bsrg_portable_tile bsrg_portable_choose(bsrg_dtype dtype, int64_t block_height, int64_t n) {
  const bool half = dtype == BSRG_F16 || dtype == BSRG_BF16, single = dtype == BSRG_F32;
  const int64_t (*shape)[2] = half ? mma_shape : single ? f32_shape : f64_shape;
  const double *cost = half ? mma_cost : simt_cost;
  const int count = half ? COUNT(mma_shape) : COUNT(f32_shape);
  const int first = dtype == BSRG_F16    ? BSRG_KERNEL_PORTABLE_F16_M16N64
                    : dtype == BSRG_BF16 ? BSRG_KERNEL_PORTABLE_BF16_M16N64
                    : single             ? BSRG_KERNEL_SIMT_F32_M32N32
                                         : BSRG_KERNEL_SIMT_F64_M32N32;
  bsrg_portable_tile best = {-1, 0, 0, 0};
  double least = INFINITY;
  for (int i = 0; i < count; ++i) {
    const double rows = (double)(bsrg_ceil_div(block_height, shape[i][0]) * shape[i][0]);
    const double columns = (double)(bsrg_ceil_div(n, shape[i][1]) * shape[i][1]);
    /* Narrow tiles read A more often: they must save most of the columns to be worth it. */
    const double narrow = shape[i][1] <= 64 && n > 64 ? 2 : 1;
    if (rows * columns * cost[i] * narrow < least) {
      least = rows * columns * cost[i] * narrow;
      best = (bsrg_portable_tile){first + i, shape[i][0], shape[i][1], cost[i]};
    }
  }
  return best;
}

/* ---- cost model ------------------------------------------------------------------------------ */

bsrg_chip bsrg_chip_h200(void) {
  return (bsrg_chip){.name = "NVIDIA H200",
                     .sm_arch = 90,
                     .sm_count = 132,
                     .hbm_bytes_per_s = 4.2e12,
                     .l2_bytes_per_s = 8.0e12,
                     .l2_bytes = 50e6,
                     .mma_flops_per_s = 650e12};
}

/* Fixed parts, fitted on an H200: a launch, and what a CTA does between two tiles. */
static const double launch_seconds = 4e-6, tall_tile_seconds = 2.2e-6;
/* What the best tiles of the portable kernels reach there, as shares of mma_flops_per_s. */
static const double portable_share = 0.47, f32_share = 0.057, f64_share = 0.028;

const char *bsrg_family_obstacle(bsrg_family family, const bsrg_structure *structure, bsrg_dtype dtype,
                                 int sm_arch) {
  if (family == BSRG_TALL) {
    if (dtype != BSRG_F16 && dtype != BSRG_BF16) return "needs float16 or bfloat16";
    if (structure->view.nnzb == 0) return "needs at least one block";
    if (structure->view.block_height % BSRG_TALL_STRIP)
      return "needs a block height that is a multiple of 64";
    if (structure->view.block_width % 16) return "needs a block width that is a multiple of 16";
    if (!tall_shape(&structure->view)) return "needs fewer than 2^31 rows, columns and stored block rows";
    if (sm_arch != 90) return "needs a Hopper GPU (compute capability 9.0)";
  } else if (family == BSRG_PORTABLE) {
    if (sm_arch < 80) return "needs a GPU of compute capability 8.0 or later";
  } else {
    return "does not run on a GPU";
  }
  return NULL;
}

static double max3(double a, double b, double c) { return fmax(a, fmax(b, c)); }

/* What all families must bring from device memory at least: A once, X once, Y once. */
static double compulsory_bytes(const bsrg_structure_view *v, double size, double n) {
  return size * ((double)v->nnzb * (double)(v->block_height * v->block_width) +
                 ((double)v->cols + (double)v->rows) * n);
}

static void predict_tall(const bsrg_structure *structure, const bsrg_plan *plan, int64_t n,
                         const bsrg_chip *chip, bsrg_candidate *c) {
  const bsrg_structure_view *v = &structure->view;
  const bsrg_tall_plan *tall = &plan->tall;
  const int cluster = bsrg_tall_cluster(n);
  const double columns =
      (double)bsrg_ceil_div(n, BSRG_TALL_TILE_N * cluster) * cluster; /* CTA tiles across */
  const double blocks = (double)v->nnzb * (double)(v->block_height * v->block_width);
  c->mma_flops = 2 * blocks * columns * BSRG_TALL_TILE_N;
  c->l2_bytes = columns * 2 *
                (blocks / cluster + (double)tall->tile_entries * (double)v->block_width * BSRG_TALL_TILE_N);
  c->hbm_bytes = compulsory_bytes(v, 2, (double)n);
  const double work = max3(c->mma_flops / chip->mma_flops_per_s, c->l2_bytes / chip->l2_bytes_per_s,
                           c->hbm_bytes / chip->hbm_bytes_per_s);
  /* Waves: the last one is rarely full, and nothing ends before its longest tile. */
  const double tiles = (double)tall->tile_count * columns, waves = ceil(tiles / chip->sm_count);
  const double busy = tall->skewed ? work : work * waves * chip->sm_count / tiles;
  const double longest = work * chip->sm_count * tall->longest_tile / ((double)tall->tile_entries * columns);
  c->seconds = launch_seconds + waves * tall_tile_seconds + fmax(busy, longest);
  snprintf(c->reason, sizeof(c->reason), "%s",
           c->l2_bytes / chip->l2_bytes_per_s > c->mma_flops / chip->mma_flops_per_s
               ? "limited by L2 traffic"
               : "limited by the tensor cores");
}

static void predict_portable(const bsrg_structure *structure, bsrg_dtype dtype, int64_t n,
                             const bsrg_chip *chip, bsrg_candidate *c) {
  const bsrg_structure_view *v = &structure->view;
  const double size = (double)bsrg_dtype_size(dtype);
  const bsrg_portable_tile tile = bsrg_portable_choose(dtype, v->block_height, n);
  const double row_tiles = (double)bsrg_ceil_div(v->block_height, tile.rows);
  const double column_tiles = (double)bsrg_ceil_div(n, tile.columns);
  const double columns = column_tiles * (double)tile.columns;
  const double k = (double)v->nnzb * (double)v->block_width;
  c->mma_flops = 2 * k * row_tiles * (double)tile.rows * columns;
  c->l2_bytes = size * k * (row_tiles * columns + (double)v->block_height * column_tiles);
  c->hbm_bytes = compulsory_bytes(v, size, (double)n);
  const double share = dtype == BSRG_F64 ? f64_share : dtype == BSRG_F32 ? f32_share : portable_share;
  const double work = c->mma_flops * tile.cost / (chip->mma_flops_per_s * share);
  const double memory = c->hbm_bytes / chip->hbm_bytes_per_s;
  /* Two CTAs an SM share the work, and nothing ends before the longest row. */
  const double longest =
      work * 2 * chip->sm_count * (double)v->longest_row / fmax(1, (double)v->nnzb * column_tiles);
  c->seconds = launch_seconds + max3(work, memory, longest);
  snprintf(c->reason, sizeof(c->reason), "%s", memory > work ? "limited by memory" : "limited by its tiles");
}

bsrg_family bsrg_choose_family(const bsrg_structure *structure, const bsrg_plan *plan, bsrg_dtype dtype,
                               int64_t n, const bsrg_chip *chip, bool tall_ok) {
  if (!tall_ok || bsrg_family_obstacle(BSRG_TALL, structure, dtype, chip->sm_arch)) return BSRG_PORTABLE;
  bsrg_candidate tall, portable;
  predict_tall(structure, plan, n, chip, &tall);
  predict_portable(structure, dtype, n, chip, &portable);
  return tall.seconds <= portable.seconds ? BSRG_TALL : BSRG_PORTABLE;
}

bsrg_status bsrg_plan_explain(bsrg_structure *structure, bsrg_dtype dtype, int64_t n, const bsrg_chip *chip,
                              bsrg_plan_info *out, bsrg_error *error) {
  if (n < 1)
    return bsrg_fail(error, BSRG_ERR_VALUE, "n is %lld, but a plan needs at least one column", (long long)n);
  const bsrg_plan *plan;
  const bsrg_status status = bsrg_plan_get(structure, &plan, error);
  if (status != BSRG_OK) return status;
  const bsrg_structure_view *v = &structure->view;
  memset(out, 0, sizeof(*out));
  out->useful_flops = 2 * (double)v->nnzb * (double)(v->block_height * v->block_width) * (double)n;
  out->chosen = -1;
  const bsrg_family families[] = {BSRG_TALL, BSRG_PORTABLE};
  for (int i = 0; i < 2; ++i) {
    bsrg_candidate *c = &out->candidates[out->count++];
    c->family = families[i];
    const char *obstacle = bsrg_family_obstacle(families[i], structure, dtype, chip->sm_arch);
    if (!obstacle && families[i] == BSRG_TALL && n % 8)
      obstacle = "needs a number of columns that is a multiple of 8";
    if (obstacle) {
      snprintf(c->reason, sizeof(c->reason), "%s", obstacle);
      continue;
    }
    c->supported = 1;
    if (families[i] == BSRG_TALL)
      predict_tall(structure, plan, n, chip, c);
    else
      predict_portable(structure, dtype, n, chip, c);
    if (out->chosen < 0 || c->seconds < out->candidates[out->chosen].seconds) out->chosen = i;
  }
  if (out->chosen < 0)
    return bsrg_fail(error, BSRG_ERR_VALUE,
                     "chip has compute capability %d, but the GPU kernels need 80 or later", chip->sm_arch);
  return BSRG_OK;
}
