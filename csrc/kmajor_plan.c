/* What the kmajor family takes, its plan, and what a product costs. */
#include "kmajor.h"

#include <math.h>
#include <stdlib.h>

/* ---- obstacles --------------------------------------------------------------------------------- */

const char *bsrg_kmajor_obstacle(const bsrg_structure_view *v, bsrg_dtype dtype, int sm_arch) {
  int64_t a_rows, a_cols;
  const bool eight = bsrg_is_8_bit(dtype);
  if (dtype != BSRG_F32 && !eight) return "needs 8-bit floats, or float32 with precision 'tf32'";
  if (v->nnzb == 0 && !eight) return "needs at least one block";
  if (v->block_height % BSRG_TALL_STRIP) return "needs a block height that is a multiple of 64";
  if (v->block_width * (int64_t)bsrg_dtype_size(dtype) % BSRG_KMAJOR_STEP_BYTES)
    return eight ? "needs a block width that is a multiple of 32 for 8-bit floats"
                 : "needs a block width that is a multiple of 8 for float32";
  if (bsrg_whole_rows(v) > INT32_MAX || bsrg_whole_cols(v) > INT32_MAX ||
      !bsrg_mul_ok(v->nnzb, v->block_height, &a_rows) || !bsrg_mul_ok(v->nnzb, v->block_width, &a_cols) ||
      a_rows > INT32_MAX || a_cols > INT32_MAX)
    return "needs fewer than 2^31 rows, columns and stored block rows";
  if (sm_arch != 90) return "needs a Hopper GPU (compute capability 9.0)";
  return NULL;
}

const char *bsrg_kmajor_columns_obstacle(int64_t n) {
  return n > INT32_MAX - 2 * BSRG_TALL_TILE_N ? "needs fewer than 2^31 - 512 columns" : NULL;
}

const char *bsrg_kmajor_layout_obstacle(const bsrg_matmul_args *args) {
  if (args->dtype == BSRG_F32 && args->precision != BSRG_TF32) return "needs precision 'tf32' for float32";
  if (!args->a->view.order && (uintptr_t)args->values % 16)
    return "needs a.data to start at a multiple of 16 bytes";
  return NULL;
}

/* ---- copies and order -------------------------------------------------------------------------- */

bsrg_kmajor_copies bsrg_kmajor_copies_for(const bsrg_matmul_args *args) {
  const bsrg_dense *x = &args->x;
  const int64_t item = (int64_t)bsrg_dtype_size(args->dtype);
  /* A single column has no stride to another one. */
  const bool columns = x->cols == 1 || (x->col_stride >= x->rows && x->col_stride * item % 16 == 0 &&
                                        x->col_stride < (int64_t)1 << 37);
  return (bsrg_kmajor_copies){.values = args->a->view.order != NULL,
                              .x = x->row_stride != 1 || !columns || (uintptr_t)x->data % 16 != 0};
}

bsrg_kmajor_schedule bsrg_kmajor_schedule_for(const bsrg_matmul_args *args, const bsrg_kmajor_plan *plan,
                                              int64_t sm_count) {
  const bsrg_structure_view *v = &args->a->view;
  const bsrg_tall_plan *tall = plan->tall;
  const int64_t tiles = bsrg_ceil_div(args->x.cols, BSRG_TALL_TILE_N);
  /* As in the tall family, by bytes: its types have two. */
  bsrg_kmajor_schedule s = {.pair = tiles % 2 == 0 || tiles > 15 ? 2 : 1};
  s.n_tiles = (int32_t)bsrg_ceil_div(tiles, s.pair);
  const double k = (double)tall->tile_entries * (double)v->block_width / (double)tall->tile_count *
                   (double)bsrg_dtype_size(args->dtype) / 2;
  /* Of float32 more columns of X do not stay in L2 beside A. */
  const int32_t group = k <= 1024 || args->dtype == BSRG_F32 ? 2 : k <= 2048 ? 4 : 8;
  s.group = (int32_t)bsrg_max(1, bsrg_min(group / s.pair, s.n_tiles));
  while (tall->skewed && s.lead < tall->tile_count &&
         bsrg_goes_first(tall->tiles[s.lead].entry_count, (double)tall->tile_entries, s.group, s.n_tiles,
                         sm_count / s.pair, bsrg_sweeps_of_first))
    ++s.lead;
  s.in_step = k >= 1024 && bsrg_is_even(tall->longest_tile, tall->tile_entries, tall->tile_count);
  return s;
}

/* ---- plan -------------------------------------------------------------------------------------- */

void bsrg_kmajor_free_plan(void *plan) {
  bsrg_kmajor_plan *kmajor = plan;
  free(kmajor->entries);
  free(kmajor);
}

void *bsrg_kmajor_make_plan(bsrg_structure *structure) {
  const bsrg_structure_view *v = &structure->view;
  const int32_t block_rows = (int32_t)(v->order ? v->block_width : v->block_height); /* as they are stored */
  const void *tall = NULL;
  if (bsrg_plan_get(structure, &bsrg_tall_family, false, &tall, NULL) != BSRG_OK) return NULL;
  bsrg_kmajor_plan *plan = calloc(1, sizeof(*plan));
  if (!plan) return NULL;
  plan->tall = tall;
  plan->entries = malloc(sizeof(*plan->entries) * (size_t)(plan->tall->entry_count + 1));
  if (!plan->entries) {
    free(plan);
    return NULL;
  }
  for (int64_t e = 0; e < plan->tall->entry_count; ++e) {
    const bsrg_tall_entry *from = &plan->tall->entries[e];
    plan->entries[e] = (bsrg_kmajor_entry){.x_row = from->x_row};
    for (int i = 0; i < 2; ++i)
      plan->entries[e].block[i] = from->a_block[i] < 0 ? -1 : from->a_block[i] / block_rows;
  }
  return plan;
}

/* ---- cost -------------------------------------------------------------------------------------- */

/* Rates of the tensor cores against those of 16-bit floats. */
static const double eight_bit_rate = 2, tf32_rate = 0.5;
/* Shares of L2's rate, fitted on an H200 to 128x128 blocks at densities .05 to .25 and to 64x64 ones: predictions are
 * within 13%, of tf32 within 20%. */
static const double eight_bit_l2_share = 0.71, tf32_l2_share = 0.8;
/* Parts of these times that the longest tile takes, the last one under way, when few take from L2 and the chip's power: of tf32,
 * fitted on an H200 to up to 1,000 columns. */
static const double longest_l2 = 0.35, longest_mma = 0.72;
/* What a CTA does between two tiles: of tf32 that of the tall kernels. */
static const double eight_bit_tile_seconds = 1.2e-6, tf32_tile_seconds = 2.2e-6;
/* What copies read and write goes at this share of the memory's rate, which is not fitted; and what each takes in any case,
 * fitted on an H100 to X of up to 64 columns. */
static const double copy_share = 0.7, copy_seconds = 2e-6;

const char *bsrg_kmajor_copied(bsrg_kmajor_copies copies) {
  if (!copies.x && !copies.values) return "";
  return !copies.values ? ", after a K-major copy of the dense operand"
         : !copies.x    ? ", after a K-major copy of the blocks"
                        : ", after a K-major copy of both operands";
}

double bsrg_kmajor_copy_seconds(bsrg_kmajor_copies copies, double bytes, const bsrg_chip *chip) {
  return bytes / (chip->hbm_bytes_per_s * copy_share) +
         ((copies.x ? 1 : 0) + (copies.values ? 1 : 0)) * copy_seconds;
}

void bsrg_kmajor_predict(const bsrg_matmul_args *args, const void *plan, const bsrg_chip *chip,
                         bsrg_candidate *c) {
  const bsrg_structure_view *v = &args->a->view;
  const bsrg_kmajor_plan *kmajor = plan;
  const bsrg_tall_plan *tall = kmajor->tall;
  const bool eight = bsrg_is_8_bit(args->dtype);
  const double n = (double)args->x.cols, item = (double)bsrg_dtype_size(args->dtype);
  const double out = (double)bsrg_dtype_size(bsrg_out_dtype(args));
  const bsrg_kmajor_schedule s = bsrg_kmajor_schedule_for(args, kmajor, chip->sm_count);
  const bsrg_kmajor_copies copies = bsrg_kmajor_copies_for(args);
  const double columns = (double)s.n_tiles * s.pair, entries = (double)tall->tile_entries;
  const double blocks = (double)v->nnzb * (double)(v->block_height * v->block_width);
  c->mma_flops = 2 * blocks * columns * BSRG_TALL_TILE_N;
  c->l2_bytes = columns * item * (blocks / s.pair + entries * (double)v->block_width * BSRG_TALL_TILE_N);
  const double x_bytes = item * (double)v->cols * n;
  const double copied = (copies.x ? 2 * x_bytes : 0) + (copies.values ? 2 * item * blocks : 0);
  c->hbm_bytes = copied + item * blocks + x_bytes + out * (double)v->rows * n;

  const double mma = c->mma_flops / (chip->mma_flops_per_s * (eight ? eight_bit_rate : tf32_rate));
  const double l2 = c->l2_bytes / (chip->l2_bytes_per_s * (eight ? eight_bit_l2_share : tf32_l2_share));
  const double tile_seconds = eight ? eight_bit_tile_seconds : tf32_tile_seconds;
  const double memory = (c->hbm_bytes - copied) / chip->hbm_bytes_per_s;
  const double waves = ceil((double)tall->tile_count * columns / chip->sm_count);
  const double in_longest = eight ? fmax(mma, l2) : fmax(longest_mma * mma, longest_l2 * l2);
  const double entry = entries > 0 ? in_longest * chip->sm_count / (entries * columns) : 0;
  const double longest = entry * tall->longest_tile + tile_seconds;
  c->seconds = BSRG_LAUNCH_SECONDS + bsrg_kmajor_copy_seconds(copies, copied, chip) +
               fmax(fmax(fmax(mma, l2) + waves * tile_seconds, longest), memory);
  bsrg_set_reason(c, "limited by %s%s", l2 > mma ? "L2 traffic" : "the tensor cores",
                  bsrg_kmajor_copied(copies));
}
