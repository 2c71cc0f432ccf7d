/* The tall family's tiles for n columns: in which clusters and which order, whether long ones are cut, and what that
 * costs. */
#include "tall.h"
#include "tensor_map.h"

#include <math.h>

/* ---- clusters and order ------------------------------------------------------------------------ */

static bsrg_tall_cluster cluster_along_columns(int64_t n) {
  /* The odd column tile of a pair is computed for nothing: accept that only among many. */
  const int64_t tiles = bsrg_ceil_div(n, BSRG_TALL_TILE_N);
  return (bsrg_tall_cluster){.columns = tiles % 2 == 0 || tiles > 15 ? 2 : 1, .rows = 1};
}

static bsrg_tall_cluster cluster_for(const bsrg_structure_view *v, const bsrg_tall_plan *plan,
                                     const bsrg_tall_pieces *pieces, int64_t n, bool transposed) {
  /* Half of X is more than half of A, and no column tile is left over. Blocks of 16 columns, which the least
   * time of a stage limits, have no such kernel, and transposed operands neither. Where pieces are
   * as many as there can be, a CTA of a pair along columns asks for half of them. */
  const bool halved = pieces && bsrg_tall_has_most_pieces(pieces);
  if (plan->row_pairs && v->block_width > 16 && !transposed && !halved)
    return (bsrg_tall_cluster){.columns = 1, .rows = 2};
  return cluster_along_columns(n);
}

static int32_t group_for(const bsrg_structure_view *v, const bsrg_tall_plan *plan, bsrg_tall_cluster cluster,
                         int32_t n_tiles) {
  /* Column tiles of 256 a group, measured at 8192^3: fewer reread A, more push X out of L2. 2 up to 1024 k a row tile,
   * then in proportion; where a tile's strips store but a part of that k, and so less of A, 2 up to 4096. However
   * clusters pair, those at work cover the same tiles. Of skewed lists 4 at least: with 2, more of them go first, and
   * products of 64 x 64 blocks, rows of Zipf's lengths, took 5 to 9% longer. */
  const double k = (double)plan->tile_entries * (double)v->block_width / (double)plan->tile_count;
  const int32_t even = bsrg_tall_has_unions(v) ? (k <= 4096 ? 2 : 4) : k <= 1024 ? 2 : k <= 2048 ? 4 : 8;
  const int32_t tiles = plan->skewed ? (int32_t)bsrg_max(even, 4) : even;
  return (int32_t)bsrg_max(1, bsrg_min(tiles / cluster.columns, n_tiles));
}

/* Of 64 tiles of Zipf's lengths 4 would go first by bsrg_sweeps_of_first. With 5 to 8 of them blocks of 128 x 128 took 1 to 2%
 * less time, with 7 the least, with 10 .6%; those of 64 x 64, which read more of X, 3 to 5% more with 6 and 8. */
static const double sweeps_of_whole_rows = 1.05;

static int32_t lead_for(const bsrg_structure_view *v, const bsrg_tall_plan *plan, bsrg_tall_cluster cluster,
                        int32_t group, int32_t n_tiles, int64_t sm_count) {
  const double sweeps = bsrg_tall_has_unions(v) ? bsrg_sweeps_of_first : sweeps_of_whole_rows;
  const int32_t rows = plan->tile_count / cluster.rows;
  const double total = (double)plan->tile_entries / cluster.rows;
  const int64_t clusters = sm_count / (cluster.columns * cluster.rows);
  int32_t lead = 0;
  while (
      plan->skewed && lead < rows &&
      bsrg_goes_first(plan->tiles[lead * cluster.rows].entry_count, total, group, n_tiles, clusters, sweeps))
    ++lead;
  return lead;
}

bool bsrg_tall_stays_in_step(const bsrg_structure_view *v, const bsrg_tall_plan *plan) {
  const int64_t least_k = 1024; /* of a row tile */
  return plan->tile_entries * v->block_width >= least_k * plan->tile_count &&
         bsrg_is_even(plan->longest_tile, plan->tile_entries, plan->tile_count);
}

/* ---- cost -------------------------------------------------------------------------------------- */

/* Fitted on an H200: what a CTA does between two tiles. */
static const double tile_seconds = 2.2e-6;
/* Likewise: the least that a stage takes, which blocks of 16 and 32 columns do not fill. */
static double stage_seconds(int64_t block_width) { return (block_width <= 16 ? 0.32 : 0.365) * 1e-6; }
/* Of the time of a block's stages the share that its k would take in full ones: a last stage of 16 takes as long as one of about
 * 27 would (the least time above). Pieces have stages as wide as themselves. */
static double share_of_stages(const bsrg_structure_view *v, const bsrg_tall_pieces *pieces) {
  const int64_t least_k = 27, width = v->block_width, last = width % BSRG_TALL_STAGE_K;
  if (pieces || width < BSRG_TALL_STAGE_K || last == 0 || last >= least_k) return 1;
  return (double)width / (double)(width - last + least_k);
}
/* Likewise: the time of the tensor cores when stages are that short; strips of 64 rows pass by some of them. */
static double short_stage_overhead(const bsrg_structure_view *v) {
  if (v->block_width > 32) return 1;
  return v->block_width <= 16 ? 1.1 : v->block_height % (2 * BSRG_TALL_STRIP) ? 1.18 : 1.02;
}
/* Likewise: that of tiles which use nearly all block columns, since all of them walk X together; not in short stages, which do
 * not wait for it. */
static double shared_x_gain(const bsrg_structure_view *v, const bsrg_tall_plan *plan) {
  if (v->block_width <= 32) return 1;
  return (double)plan->tile_entries >= .95 * (double)plan->tile_count * (double)v->block_cols ? .96 : 1;
}
/* Of that of L2 where strips of 64 rows share what X they have in common, of 64 x 64 blocks. */
static double strips_l2_share(const bsrg_structure_view *v) {
  return v->block_height % (2 * BSRG_TALL_STRIP) ? .95 : 1;
}
/* Strips that may lie in different block rows ask a mask at every stage. Likewise. */
static const double mask_overhead = 1.015;
/* What the longest CTA's time and that of all together do not hide of one another. Two full rows: levels of 64, 43, 32
 * and 22 entries took 93, 83, 88 and 98 us. */
static const double unhidden = 0.25;
/* Not fitted: the launch that adds the parts. */
static const double add_seconds = 3e-6;

/* What a product takes of the chip, however it is scheduled. */
typedef struct costs {
  double columns; /* CTA tiles across */
  double mma_flops, l2_bytes;
  double cores;  /* seconds of all SMs, tensor cores and the least time of a stage */
  double flow;   /* the same with L2 */
  double entry;  /* seconds of a CTA that the others leave alone */
  double memory; /* seconds of device memory */
  const char *limit;
} costs;

static costs costs_for(const bsrg_structure_view *v, const bsrg_tall_plan *plan,
                       const bsrg_tall_pieces *pieces, int64_t n, bsrg_tall_cluster cluster,
                       const bsrg_chip *chip) {
  costs c = {.columns = (double)bsrg_ceil_div(n, BSRG_TALL_TILE_N * cluster.columns) * cluster.columns};
  const double blocks = (double)v->nnzb * (double)(v->block_height * v->block_width);
  const double entries = (double)plan->tile_entries;
  c.mma_flops = 2 * blocks * c.columns * BSRG_TALL_TILE_N;
  c.l2_bytes =
      c.columns * 2 *
      (blocks / cluster.columns + entries * (double)v->block_width * BSRG_TALL_TILE_N / cluster.rows);
  const double stages =
      entries * (pieces ? 1 : (double)bsrg_ceil_div(v->block_width, BSRG_TALL_STAGE_K)) * c.columns;
  const double least = stages * stage_seconds(v->block_width) / chip->sm_count;
  const double share = share_of_stages(v, pieces);
  const double mma = c.mma_flops / chip->mma_flops_per_s * short_stage_overhead(v) * shared_x_gain(v, plan) /
                     share * (pieces ? pieces->work : 1);
  const double l2 = c.l2_bytes / chip->l2_bytes_per_s * strips_l2_share(v) / share;
  c.cores = fmax(mma, least);
  c.flow = fmax(c.cores, l2);
  c.entry = c.cores * chip->sm_count / (entries * c.columns);
  c.memory = bsrg_compulsory_bytes(v, BSRG_F16, n) / chip->hbm_bytes_per_s;
  c.limit = least > mma && least > l2 ? "the time of a stage" : l2 > mma ? "L2 traffic" : "the tensor cores";
  return c;
}

static double uncut_seconds(const costs *c, const bsrg_tall_plan *plan, const bsrg_chip *chip) {
  /* Waves: the last of few is rarely full, and nothing ends before its longest tile. */
  const double tiles = (double)plan->tile_count * c->columns, waves = ceil(tiles / chip->sm_count);
  const double spread = plan->skewed || waves > 8 ? 1 : waves * chip->sm_count / tiles;
  const double busy = fmax(c->cores * spread, c->flow) + waves * tile_seconds;
  const double longest = c->entry * plan->longest_tile + tile_seconds;
  return BSRG_LAUNCH_SECONDS + fmax(fmax(busy, longest), c->memory);
}

static double partial_bytes(const bsrg_tall_level *level, int64_t n) {
  return 4.0 * level->slot_count * 2 * BSRG_TALL_STRIP * (double)n; /* written and read once each */
}

static double cut_seconds(const costs *c, const bsrg_tall_plan *plan, const bsrg_tall_level *level, int64_t n,
                          const bsrg_chip *chip) {
  const double parts = level->part_count * c->columns;
  /* Zeros are written aside. */
  const double tiles = (plan->tile_count - plan->empty_tiles - level->tiles) * c->columns + parts;
  const double busy = c->flow * mask_overhead + tiles * tile_seconds / chip->sm_count;
  /* Nothing ends before its rounds of parts, or the longest tile that follows them. */
  const double rounds =
      ceil(parts / chip->sm_count) * (c->entry * mask_overhead * level->most + tile_seconds);
  const int32_t rest = level->tiles < plan->tile_count ? plan->tiles[level->tiles].entry_count : 0;
  const double longest = c->entry * mask_overhead * rest + tile_seconds;
  const double one = fmax(rounds, longest), all = fmax(busy, c->memory);
  return BSRG_LAUNCH_SECONDS + fmax(one, all) + unhidden * fmin(one, all) + add_seconds +
         2 * partial_bytes(level, n) / chip->l2_bytes_per_s;
}

int64_t bsrg_tall_transposed_rows(const bsrg_matmul_args *args) {
  return bsrg_map_has_transposed_x(args) ? args->y.rows : 0;
}

bsrg_tall_schedule bsrg_tall_schedule_for(const bsrg_structure_view *v, const bsrg_tall_plan *plan,
                                          const bsrg_tall_pieces *pieces, int64_t n, int64_t transposed_rows,
                                          const bsrg_chip *chip) {
  bsrg_tall_schedule s = {.cluster = cluster_for(v, plan, pieces, n, v->order || transposed_rows)};
  const costs uncut = costs_for(v, plan, pieces, n, s.cluster, chip);
  s.seconds = uncut_seconds(&uncut, plan, chip);
  s.limit = uncut.limit;
  /* What cutting costs is not fitted: accept it only where it gains much. */
  const double needed = 0.9 * s.seconds;
  /* The kernels for parts have no pairs along rows. */
  const bsrg_tall_cluster across = cluster_along_columns(n);
  const costs cut = costs_for(v, plan, pieces, n, across, chip);
  /* The second pass of transposed products writes rows in eights, without a look at where Y ends. */
  const bool uncuttable = transposed_rows && transposed_rows != bsrg_whole_rows(v);
  for (int32_t i = 0; i < plan->level_count && !uncuttable; ++i) {
    const double seconds = cut_seconds(&cut, plan, &plan->levels[i], n, chip);
    if (seconds >= fmin(needed, s.seconds)) continue;
    s.seconds = seconds;
    s.level = &plan->levels[i];
    s.cluster = across;
    s.limit = cut.limit;
  }
  s.n_tiles = (int32_t)bsrg_ceil_div(n, BSRG_TALL_TILE_N * s.cluster.columns);
  s.group = group_for(v, plan, s.cluster, s.n_tiles);
  s.lead = lead_for(v, plan, s.cluster, s.group, s.n_tiles, chip->sm_count);
  if (s.level) s.lead = (int32_t)bsrg_max(s.lead, s.level->tiles);
  s.in_step = !s.level && bsrg_tall_stays_in_step(v, plan);
  return s;
}

void bsrg_tall_predict(const bsrg_matmul_args *args, const void *plan, const bsrg_tall_pieces *pieces,
                       const bsrg_chip *chip, bsrg_candidate *c) {
  const bsrg_structure_view *v = &args->a->view;
  const int64_t n = args->x.cols;
  const bsrg_tall_schedule s =
      bsrg_tall_schedule_for(v, plan, pieces, n, bsrg_tall_transposed_rows(args), chip);
  const costs of = costs_for(v, plan, pieces, n, s.cluster, chip);
  c->mma_flops = of.mma_flops;
  c->l2_bytes = of.l2_bytes + (s.level ? 2 * partial_bytes(s.level, n) : 0);
  c->hbm_bytes = bsrg_compulsory_bytes(v, args->dtype, n);
  c->seconds = s.seconds;
  if (s.level)
    bsrg_set_reason(c, "limited by %s; %d of %d row tiles in %d parts", s.limit, s.level->cut_count,
                    ((const bsrg_tall_plan *)plan)->tile_count, s.level->slot_count);
  else
    bsrg_set_reason(c, "limited by %s", s.limit);
}
