/* What products of two block-sparse matrices cost, and which kernels compute them where Hopper's do not. */
#include "edges.h"
#include "pairs.h"
#include "views.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static double out_bytes(const bsrg_matmul_sparse_args *args) {
  return (double)bsrg_dtype_size(args->dtype) * (double)args->a->view.rows * (double)args->b->view.cols;
}

double bsrg_pairs_bytes(const bsrg_matmul_sparse_args *args) {
  const bsrg_structure_view *a = &args->a->view, *b = &args->b->view;
  return out_bytes(args) + (double)bsrg_dtype_size(args->dtype) *
                               ((double)a->nnzb * (double)(a->block_height * a->block_width) +
                                (double)b->nnzb * (double)(b->block_height * b->block_width));
}

/* ---- what meets -------------------------------------------------------------------------------- */

/* For each block column, how many tiles of so many rows store something in it. rows 0: how many block rows do. false: no
 * memory. */
static bool count_tiles(const bsrg_structure_view *v, int64_t rows, int64_t *count) {
  int64_t *begin = calloc((size_t)v->block_cols + 1, sizeof(*begin)); /* the first tile not yet counted */
  if (!begin) return false;
  for (int64_t i = 0; i < v->block_rows; ++i) {
    const int64_t first = rows ? i * v->block_height / rows : i;
    const int64_t end = rows ? bsrg_ceil_div((i + 1) * v->block_height, rows) : i + 1;
    for (int64_t b = v->indptr[i]; b < v->indptr[i + 1]; ++b) {
      int64_t *const from = &begin[v->indices[b]];
      count[v->indices[b]] += end - bsrg_max(first, *from);
      *from = end;
    }
  }
  free(begin);
  return true;
}

/* The sum over block columns of A, which are block rows of B, of how many tiles of A times how many of B store
 * something there. bt: B transposed. Negative: no memory. */
static double meetings(const bsrg_structure_view *a, const bsrg_structure_view *bt, int64_t a_rows,
                       int64_t b_columns) {
  int64_t *of_a = calloc((size_t)a->block_cols + 1, sizeof(*of_a));
  int64_t *of_b = calloc((size_t)a->block_cols + 1, sizeof(*of_b));
  double sum = -1;
  if (of_a && of_b && count_tiles(a, a_rows, of_a) && count_tiles(bt, b_columns, of_b)) {
    sum = 0;
    for (int64_t k = 0; k < a->block_cols; ++k) sum += (double)of_a[k] * (double)of_b[k];
  }
  free(of_a);
  free(of_b);
  return sum;
}

/* For each block column, the rows of the matrix in its blocks. */
static void count_rows(const bsrg_structure_view *v, double *count) {
  for (int64_t i = 0; i < v->block_rows; ++i)
    for (int64_t b = v->indptr[i]; b < v->indptr[i + 1]; ++b)
      count[v->indices[b]] += (double)bsrg_rows_of(v, i);
}

/* Products of elements, of both matrices, in blocks that meet. Negative: no memory. */
static double useful_products(const bsrg_structure_view *a, const bsrg_structure_view *bt) {
  double *of_a = calloc((size_t)a->block_cols + 1, sizeof(*of_a));
  double *of_b = calloc((size_t)a->block_cols + 1, sizeof(*of_b));
  double sum = -1;
  if (of_a && of_b) {
    count_rows(a, of_a);
    count_rows(bt, of_b);
    sum = 0;
    for (int64_t k = 0; k < a->block_cols; ++k) sum += of_a[k] * of_b[k] * (double)bsrg_cols_of(a, k);
  }
  free(of_a);
  free(of_b);
  return sum;
}

/* ---- Hopper ----------------------------------------------------------------------------------- */

/* Fitted on an H200 at densities .125, .25 and .5, within 12%: what a CTA does between two tiles, a stage of 64 k beside
 * its products, and the time of these; of 128x128 blocks and of 64x64. */
static const double tile_seconds = 2.2e-6;
static const double joined_stage_seconds = 0.1e-6, joined_overhead = 1.03;
static const double stage_seconds = 0.18e-6, overhead = 1.2;

/* stages: of all tiles. */
static void predict_hopper(const bsrg_matmul_sparse_args *args, double pairs, double stages,
                           const bsrg_chip *chip, bsrg_candidate *c) {
  const bsrg_structure_view *a = &args->a->view, *b = &args->b->view;
  const bool joined = a->block_height % BSRG_PAIRS_TILE_M == 0;
  const double tiles = (double)bsrg_ceil_div(bsrg_whole_rows(a), BSRG_PAIRS_TILE_M) *
                       (double)bsrg_ceil_div(bsrg_whole_cols(b), BSRG_PAIRS_TILE_N);
  c->mma_flops = 2 * pairs * (double)(a->block_height * a->block_width) * (double)b->block_width;
  c->l2_bytes = 2 * stages * BSRG_PAIRS_STRIP * (BSRG_PAIRS_TILE_M + BSRG_PAIRS_TILE_N);
  c->hbm_bytes = bsrg_pairs_bytes(args);
  const double cores = c->mma_flops / chip->mma_flops_per_s * (joined ? joined_overhead : overhead);
  const double staging = stages * (joined ? joined_stage_seconds : stage_seconds) / chip->sm_count;
  const double output = ceil(tiles / chip->sm_count) * tile_seconds;
  const double memory = c->hbm_bytes / chip->hbm_bytes_per_s;
  c->seconds = BSRG_LAUNCH_SECONDS + fmax(output + staging + cores, memory);
  snprintf(c->reason, sizeof(c->reason), "limited by %s",
           memory > output + staging + cores    ? "memory"
           : output > cores && output > staging ? "the output of its tiles"
           : staging > cores                    ? "loads for blocks that fill few of their tiles"
                                                : "the tensor cores");
  if (bsrg_pairs_hopper_takes(&args->y)) return;
  bsrg_copies_predict(1, 2 * out_bytes(args), "a copy of out, whose rows have no vectors", chip, c);
}

/* ---- portable --------------------------------------------------------------------------------- */

/* With the copy of Y where its last blocks are partial. */
static void predict_portable(const bsrg_matmul_sparse_args *args, double pairs, const bsrg_chip *chip,
                             bsrg_candidate *c) {
  const bsrg_structure_view *a = &args->a->view, *b = &args->b->view;
  const int64_t rows = bsrg_whole_rows(a), cols = bsrg_whole_cols(b);
  bsrg_matmul_sparse_args whole = *args;
  const bool partial = a->rows != rows || b->cols != cols;
  if (partial)
    whole.c = whole.y = bsrg_dense_of_lines(rows, cols, false, (int64_t)bsrg_dtype_size(args->dtype));
  bsrg_pairs_portable_predict(&whole, pairs, chip, c);
  if (!partial) return;
  bsrg_copies_predict(1, 2 * out_bytes(args), "copies of out for partial blocks", chip, c);
}

/* ---- the choice --------------------------------------------------------------------------------- */

bsrg_status bsrg_pairs_choose_other(const bsrg_matmul_sparse_args *args, const bsrg_chip *chip,
                                    bsrg_family *family, bsrg_error *error) {
  const bsrg_structure_view *a = &args->a->view, *b = &args->b->view;
  const bsrg_gpu_info gpu = {.sm_arch = chip->sm_arch};
  const double pairs = (double)a->nnzb * (double)b->nnzb / (double)bsrg_max(1, a->block_cols);
  bsrg_candidate portable = {0}, spread = {0};
  *family = BSRG_PORTABLE;
  if (bsrg_pairs_spread_obstacle(args, &gpu) || !bsrg_pairs_spread_has_room(args)) return BSRG_OK;
  if (!bsrg_pairs_portable_obstacle(args, &gpu)) {
    predict_portable(args, pairs, chip, &portable);
    /* Most often copies alone take longer: no family is asked then. */
    if (portable.seconds <= bsrg_pairs_spread_copy_seconds(args, chip)) return BSRG_OK;
  } else {
    portable.seconds = INFINITY;
  }
  const bsrg_status status = bsrg_pairs_spread_predict(args, chip, &spread, error);
  if (status == BSRG_OK && spread.supported && spread.seconds < portable.seconds) *family = BSRG_SPREAD;
  return status;
}

/* ---- entry ------------------------------------------------------------------------------------ */

static bsrg_status check(const bsrg_structure *given_a, const bsrg_structure *given_b, bsrg_dtype dtype,
                         const bsrg_chip *chip, bsrg_error *error) {
  bsrg_status status = bsrg_check_ascending(given_a, "a", error);
  if (status == BSRG_OK) status = bsrg_check_ascending_both(given_b, "b", error);
  if (status != BSRG_OK) return status;
  const bsrg_structure_view *a = &given_a->view, *b = &given_b->view;
  if (b->rows != a->cols || b->block_height != a->block_width)
    return bsrg_fail(error, BSRG_ERR_VALUE,
                     "b has %lld rows in blocks %lld high, but a has %lld columns in blocks %lld wide: these "
                     "must be equal",
                     (long long)b->rows, (long long)b->block_height, (long long)a->cols,
                     (long long)a->block_width);
  if (bsrg_is_8_bit(dtype))
    return bsrg_fail(error, BSRG_ERR_TYPE,
                     "dtype is %s, but products of two block-sparse matrices have float16, bfloat16, float32 "
                     "and float64",
                     bsrg_dtype_name(dtype));
  return bsrg_check_plan(dtype, BSRG_TAKES_NONE, chip, error);
}

bsrg_status bsrg_matmul_sparse_explain(bsrg_structure *a, bsrg_structure *b, bsrg_dtype dtype,
                                       const bsrg_chip *chip, bsrg_plan_info *out, bsrg_error *error) {
  bsrg_structure *bt;
  bsrg_status status = check(a, b, dtype, chip, error);
  if (status == BSRG_OK) status = bsrg_structure_transposed(b, &bt, error);
  if (status != BSRG_OK) return status;
  const bsrg_matmul_sparse_args args = {
      .a = a, .b = b, .dtype = dtype, .y = {NULL, a->view.rows, b->view.cols, b->view.cols, 1}, .alpha = 1};
  const bsrg_gpu_info gpu = {.sm_arch = chip->sm_arch};
  const double pairs = meetings(&a->view, &bt->view, 0, 0);
  const double stages = meetings(&a->view, &bt->view, BSRG_PAIRS_TILE_M, BSRG_PAIRS_TILE_N) *
                        ((double)a->view.block_width / BSRG_PAIRS_STRIP);
  const double products = useful_products(&a->view, &bt->view);
  if (pairs < 0 || stages < 0 || products < 0)
    return bsrg_fail(error, BSRG_ERR_MEMORY, "no memory to count blocks that meet");
  memset(out, 0, sizeof(*out));
  out->useful_flops = 2 * products;
  enum { HOPPER, SPREAD, PORTABLE };
  static const bsrg_family families[] = {BSRG_PAIRS, BSRG_SPREAD, BSRG_PORTABLE};
  const char *const obstacles[] = {bsrg_pairs_hopper_obstacle(&args, &gpu),
                                   bsrg_pairs_spread_obstacle(&args, &gpu),
                                   bsrg_pairs_portable_obstacle(&args, &gpu)};
  out->count = 3;
  out->chosen = -1;
  for (int i = 0; i < out->count; ++i) {
    bsrg_candidate *c = &out->candidates[i];
    c->family = families[i];
    c->supported = !obstacles[i];
    if (obstacles[i]) snprintf(c->reason, sizeof(c->reason), "%s", obstacles[i]);
  }
  if (!obstacles[HOPPER]) predict_hopper(&args, pairs, stages, chip, &out->candidates[HOPPER]);
  if (!obstacles[SPREAD]) status = bsrg_pairs_spread_predict(&args, chip, &out->candidates[SPREAD], error);
  if (!obstacles[PORTABLE]) predict_portable(&args, pairs, chip, &out->candidates[PORTABLE]);
  bsrg_family other = BSRG_PORTABLE;
  if (status == BSRG_OK && obstacles[HOPPER]) status = bsrg_pairs_choose_other(&args, chip, &other, error);
  if (status != BSRG_OK) return status;
  /* Whatever the predictions: Hopper's kernels where they can. */
  for (int i = 0; i < out->count && out->chosen < 0; ++i)
    if (!obstacles[i] && (i == HOPPER || families[i] == other)) out->chosen = i;
  if (out->chosen < 0)
    return bsrg_fail(error, BSRG_ERR_VALUE, "no kernel computes this product on %s: 'portable' %s",
                     chip->name, out->candidates[PORTABLE].reason);
  return BSRG_OK;
}
