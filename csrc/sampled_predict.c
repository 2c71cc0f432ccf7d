/* What sampled products cost, and how they are computed. */
#include "dense.h"
#include "edges.h"
#include "sampled.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- Hopper ----------------------------------------------------------------------------------- */

/* Fitted on an H200: what a CTA does between two tiles, and the time of the tensor cores where a tile has one strip of
 * rows (64x64 blocks at densities .05 to .5 took 1.13 to 1.29 times that of two). */
static const double tile_seconds = 3e-6, one_strip_overhead = 1.18;

double bsrg_sampled_strip_overhead(int32_t strips) { return strips == 1 ? one_strip_overhead : 1; }

static void predict_hopper(const bsrg_sampled_args *args, const bsrg_sampled_plan *plan,
                           const bsrg_chip *chip, bsrg_candidate *c) {
  const bsrg_structure_view *v = &args->pattern->view;
  const double k = (double)(bsrg_ceil_div(args->a.cols, BSRG_SAMPLED_STAGE_K) * BSRG_SAMPLED_STAGE_K);
  const double height = (double)BSRG_SAMPLED_STRIP * plan->strips, part = plan->part;
  /* Those of whole strips are listed once a block row. */
  const double lists = part == BSRG_SAMPLED_STRIP ? (double)v->block_height / height : 1;
  const double panels = (double)plan->panel_count * lists;
  const double tiles = (double)plan->tile_count;
  c->mma_flops = 2 * panels * height * part * k;
  c->l2_bytes = 2 * k * (panels * part + tiles * height);
  const double cores = c->mma_flops / chip->mma_flops_per_s * bsrg_sampled_strip_overhead(plan->strips);
  /* Tiles are about equal, so that they end in rounds. */
  const double rounds = ceil(tiles / chip->sm_count);
  const double busy = rounds * (cores * chip->sm_count / tiles + tile_seconds);
  const double memory = c->hbm_bytes / chip->hbm_bytes_per_s;
  c->seconds = BSRG_LAUNCH_SECONDS + fmax(busy, memory);
  snprintf(c->reason, sizeof(c->reason), "limited by %s",
           memory > busy                                       ? "memory"
           : rounds * chip->sm_count > 1.2 * tiles             ? "a last round of tiles that is not full"
           : cores * chip->sm_count / tiles < 3 * tile_seconds ? "the output of short tiles"
                                                               : "the tensor cores");
}

/* ---- portable --------------------------------------------------------------------------------- */

/* Time for a product of a tile against a full one of the portable products with dense operands. 16 bit: fitted on an H200 to
 * 192 products of blocks from 8x8 to 64x16 at k from 32 to 2,048; those of the other dtypes not. */
static const double half_cost[BSRG_SAMPLED_TILES] = {7.5, 5.2, 2.4};
static const double simt_cost[BSRG_SAMPLED_TILES] = {2, 1.5, 1.1};
/* Of blocks less than 16 wide, whose columns are looked up one by one. */
static const double narrow_cost = 1.2;
static const double half_share = 0.50, f32_share = 0.057, f64_share = 0.042;
/* The rest fitted to the same products: a tile, for an SM that has as many as it can, its way along k alone, per element of that,
 * and an element of A or B that is read for itself, of 16 bits. */
static const double portable_tile_seconds = 2e-6, k_seconds = 23e-9, gather_seconds = 2.2e-12,
                    gather_k_seconds = 130e-9;

static void predict_portable(const bsrg_sampled_args *args, const bsrg_sampled_plan *plan,
                             const bsrg_chip *chip, bsrg_candidate *c) {
  const bsrg_structure_view *v = &args->pattern->view;
  const bool half = bsrg_is_half(args->dtype);
  const bsrg_sampled_shape tile = bsrg_sampled_choose_tile(v, args->dtype, plan);
  const double tiles = (double)plan->item_count * (double)bsrg_ceil_div(v->block_height, tile.rows);
  const double k = (double)args->a.cols, columns = (double)plan->item_columns;
  c->mma_flops = 2 * tiles * (double)tile.rows * columns * k;
  c->l2_bytes = (double)bsrg_dtype_size(args->dtype) * tiles * k * ((double)tile.rows + columns);
  const double share = half ? half_share : args->dtype == BSRG_F32 ? f32_share : f64_share;
  const double cost = (half ? half_cost : simt_cost)[tile.index] * (v->block_width < 16 ? narrow_cost : 1);
  /* Some SMs have one tile more than others. */
  const double most = ceil(tiles / chip->sm_count) * chip->sm_count / tiles;
  double work = c->mma_flops * cost * most / (chip->mma_flops_per_s * share) +
                portable_tile_seconds * tiles / (double)(chip->sm_count * tile.ctas);
  double alone = portable_tile_seconds;
  if (half) {
    const bsrg_sampled_loads loads = bsrg_sampled_choose_loads(args);
    const double gathered = (loads.vector_a ? 0 : (double)tile.rows) + (loads.vector_b ? 0 : columns);
    work += tiles * gathered * k * gather_seconds;
    alone += k * (gathered > 0 ? gather_k_seconds : k_seconds);
  }
  const double memory = c->hbm_bytes / chip->hbm_bytes_per_s;
  c->seconds = BSRG_LAUNCH_SECONDS + fmax(fmax(work, alone), memory);
  snprintf(c->reason, sizeof(c->reason), "limited by %s",
           memory > fmax(work, alone) ? "memory"
           : alone > work             ? "the length of k, which a tile goes through alone"
                                      : "its tiles");
}

/* ---- partial blocks --------------------------------------------------------------------------- */

/* The portable kernels take copies of A and B; what blocks have beyond the matrix is cleared after all. turned: A and B
 * are what the caller has as the transposes of b and a. */
static void predict_edges(const bsrg_sampled_args *args, bool turned, const bsrg_chip *chip,
                          bsrg_candidate *c) {
  const bsrg_structure_view *v = &args->pattern->view;
  const bool copies = c->family == BSRG_PORTABLE;
  const bool copy_a = copies && v->rows != bsrg_whole_rows(v);
  const bool copy_b = copies && v->cols != bsrg_whole_cols(v);
  const int64_t launches = bsrg_clear_launches(v) + 2 * (copy_a + copy_b);
  if (launches == 0) return;
  const double lines = (copy_a ? (double)v->rows : 0) + (copy_b ? (double)v->cols : 0);
  const double bytes = 2 * lines * (double)args->a.cols * (double)bsrg_dtype_size(args->dtype);
  bsrg_copies_predict(launches, bytes,
                      copy_a && copy_b ? "copies of a and b, and zeros beyond the matrix, for partial blocks"
                      : (turned ? copy_b : copy_a)
                          ? "copies of a, and zeros beyond the matrix, for partial blocks"
                      : copy_a || copy_b ? "copies of b, and zeros beyond the matrix, for partial blocks"
                                         : "zeros beyond the matrix for partial blocks",
                      chip, c);
}

/* ---- entry ------------------------------------------------------------------------------------ */

static double bytes_of(const bsrg_sampled_args *args) {
  const bsrg_structure_view *v = &args->pattern->view;
  const double k = (double)args->a.cols;
  return (double)bsrg_dtype_size(args->dtype) *
         (k * ((double)v->rows + (double)v->cols) +
          (double)v->nnzb * (double)(v->block_height * v->block_width));
}

static bsrg_status check(bsrg_dtype dtype, int64_t k, const bsrg_chip *chip, bsrg_error *error) {
  if (k < 1)
    return bsrg_fail(error, BSRG_ERR_VALUE, "k is %lld, but a plan needs an a of at least one column",
                     (long long)k);
  if (k > BSRG_MOST_PLANNED)
    return bsrg_fail(error, BSRG_ERR_VALUE, "k is %lld, but a plan is for at most 2**56 columns",
                     (long long)k);
  if (bsrg_is_8_bit(dtype))
    return bsrg_fail(error, BSRG_ERR_TYPE,
                     "dtype is %s, but sampled products have float16, bfloat16, float32 and float64",
                     bsrg_dtype_name(dtype));
  const bsrg_status status = bsrg_check_plan(dtype, BSRG_TAKES_NONE, chip, error);
  if (status != BSRG_OK) return status;
  if (chip->sm_arch < 80)
    return bsrg_fail(error, BSRG_ERR_VALUE,
                     "chip has compute capability %d, but the GPU kernels need 80 or later", chip->sm_arch);
  return BSRG_OK;
}

/* At larger blocks, and what copies from them take. */
static void predict_cover(const bsrg_sampled_args *args, const bsrg_regrouped *cover, const bsrg_chip *chip,
                          bsrg_candidate *c) {
  const bsrg_sampled_args child = bsrg_sampled_of_cover(args, cover);
  bsrg_candidate product = {.hbm_bytes = bytes_of(&child)};
  predict_hopper(&child, cover->child_plan, chip, &product);
  const double bytes = bsrg_sampled_cover_bytes(args, cover);
  c->seconds =
      product.seconds + (args->beta != 0 ? 2 : 1) * BSRG_LAUNCH_SECONDS + bytes / chip->hbm_bytes_per_s;
  c->mma_flops = product.mma_flops;
  c->l2_bytes = product.l2_bytes;
  c->hbm_bytes = product.hbm_bytes + bytes;
  snprintf(c->reason, sizeof(c->reason), "at %dx%d blocks; %.100s", cover->shape.height, cover->shape.width,
           product.reason);
}

enum { HOPPER, COVER, PORTABLE, WAYS };
static const bsrg_family families[WAYS] = {BSRG_SAMPLED, BSRG_COVER, BSRG_PORTABLE};

/* All ways with what they need or take, and their plans; the index of the chosen one, of those that args admit, or -1. A cover
 * is planned where nothing else of Hopper's computes the product, or where it is named. all: predicts even so. */
static bsrg_status consider(const bsrg_sampled_args *args, bool turned, bool all, const bsrg_chip *chip,
                            bsrg_candidate found[WAYS], const void *plans[WAYS], int *chosen,
                            bsrg_error *error) {
  memset(found, 0, WAYS * sizeof(*found));
  for (int i = 0; i < WAYS; ++i) {
    found[i].family = families[i];
    found[i].hbm_bytes = bytes_of(args);
  }
  bsrg_status status = bsrg_plan_get(args->pattern, &bsrg_sampled_lists, false, &plans[HOPPER], error);
  if (status != BSRG_OK) return status;
  plans[PORTABLE] = plans[HOPPER];
  const char *of_hopper = bsrg_sampled_obstacle(args, plans[HOPPER], chip->sm_arch);
  const bool wants_cover = args->family == BSRG_COVER || (args->family == BSRG_AUTO && of_hopper);
  const char *of_cover = bsrg_sampled_cover_obstacle(args, chip->sm_arch);
  if (!of_cover && !wants_cover) of_cover = "is for blocks that the kernels of 'sampled' do not take";
  if (!of_cover) {
    status = bsrg_plan_get(args->pattern, &bsrg_sampled_covers, false, &plans[COVER], error);
    if (status != BSRG_OK) return status;
    const bsrg_regrouped *cover = plans[COVER];
    const bsrg_sampled_args child = bsrg_sampled_of_cover(args, cover);
    of_cover = bsrg_sampled_obstacle(&child, cover->child_plan, chip->sm_arch);
  }
  found[HOPPER].supported = !of_hopper;
  found[COVER].supported = !of_cover;
  found[PORTABLE].supported = 1;
  if (of_hopper) snprintf(found[HOPPER].reason, sizeof(found[HOPPER].reason), "%s", of_hopper);
  if (of_cover) snprintf(found[COVER].reason, sizeof(found[COVER].reason), "%s", of_cover);
  if (all && !of_hopper) predict_hopper(args, plans[HOPPER], chip, &found[HOPPER]);
  if (!of_cover) predict_cover(args, plans[COVER], chip, &found[COVER]);
  if (all || !of_cover) predict_portable(args, plans[PORTABLE], chip, &found[PORTABLE]);
  for (int i = 0; i < WAYS; ++i)
    if (found[i].supported) predict_edges(args, turned, chip, &found[i]);
  *chosen = -1;
  for (int i = 0; i < WAYS; ++i) {
    if (!found[i].supported || (args->family != BSRG_AUTO && args->family != families[i])) continue;
    /* Whatever the predictions: where Hopper's kernels take the blocks as they are, they compute it. */
    if (*chosen == HOPPER || (*chosen >= 0 && found[i].seconds >= found[*chosen].seconds)) continue;
    *chosen = i;
  }
  return BSRG_OK;
}

bsrg_status bsrg_sampled_choose(const bsrg_sampled_args *args, const bsrg_chip *chip, bsrg_sampled_way *way,
                                bsrg_error *error) {
  bsrg_candidate found[WAYS];
  const void *plans[WAYS] = {NULL};
  int chosen;
  const bsrg_status status = consider(args, false, false, chip, found, plans, &chosen, error);
  if (status != BSRG_OK) return status;
  for (int i = 0; chosen < 0 && i < WAYS; ++i)
    if (args->family == families[i])
      return bsrg_fail(error, BSRG_ERR_VALUE, "family '%s' cannot compute this product on %s: it %s",
                       bsrg_family_name(args->family), chip->name, found[i].reason);
  *way = (bsrg_sampled_way){families[chosen], plans[chosen]};
  return BSRG_OK;
}

double bsrg_sampled_seconds(const bsrg_sampled_args *args, const bsrg_chip *chip) {
  const bsrg_sampled_copies copies = bsrg_sampled_describe_copies(args);
  bsrg_candidate found[WAYS];
  const void *plans[WAYS] = {NULL};
  int chosen;
  if (consider(&copies.args, false, true, chip, found, plans, &chosen, NULL) != BSRG_OK || chosen < 0)
    return INFINITY;
  return found[chosen].seconds + bsrg_sampled_copies_seconds(&copies);
}

bsrg_status bsrg_sampled_explain(bsrg_structure *pattern, bsrg_dtype dtype, int64_t k, const bsrg_chip *chip,
                                 bsrg_plan_info *out, bsrg_error *error) {
  bsrg_status status = check(dtype, k, chip, error);
  if (status != BSRG_OK) return status;
  const bsrg_structure_view *v = &pattern->view;
  bsrg_sampled_args args = {.pattern = pattern,
                            .dtype = dtype,
                            .a = {NULL, v->rows, k, k, 1},
                            .b = {NULL, k, v->cols, v->cols, 1},
                            .alpha = 1};
  if (v->order) { /* computed as the transposed product at the blocks as they are stored */
    args.pattern = pattern->original;
    args.a = (bsrg_dense){NULL, v->cols, k, 1, v->cols};
    args.b = (bsrg_dense){NULL, k, v->rows, 1, k};
  }
  memset(out, 0, sizeof(*out));
  out->useful_flops = 2 * bsrg_stored_elements(v) * (double)k;
  out->count = WAYS;
  out->chosen = PORTABLE;
  if (v->nnzb > 0) {
    const void *plans[WAYS];
    return consider(&args, v->order != NULL, true, chip, out->candidates, plans, &out->chosen, error);
  }
  for (int i = 0; i < WAYS; ++i) {
    bsrg_candidate *c = &out->candidates[i];
    c->family = families[i];
    snprintf(c->reason, sizeof(c->reason), "%s",
             i == PORTABLE ? "without blocks nothing is launched" : "needs at least one block");
  }
  out->candidates[PORTABLE].supported = 1;
  out->candidates[PORTABLE].hbm_bytes = bytes_of(&args);
  return BSRG_OK;
}
