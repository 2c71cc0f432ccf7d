#include "dynamic.h"
#include "epilogue.h"
#include "tall.h"
#include "tensor_map.h"
#include "uploads.h"

/* Of a block as it lies in values. */
static int64_t stored_height(const bsrg_structure_view *v) {
  return v->order ? v->block_width : v->block_height;
}
static int64_t stored_width(const bsrg_structure_view *v) {
  return v->order ? v->block_height : v->block_width;
}

static const char *obstacle(const bsrg_structure_view *v, bsrg_dtype dtype, int sm_arch) {
  int64_t a_rows;
  if (!bsrg_is_half(dtype)) return "needs float16 or bfloat16";
  if (v->nnzb == 0) return "needs at least one block";
  if (v->block_height % BSRG_TALL_STRIP) return "needs a block height that is a multiple of 64";
  if (v->block_width % 16) return "needs a block width that is a multiple of 16";
  if (bsrg_whole_rows(v) > INT32_MAX || bsrg_whole_cols(v) > INT32_MAX ||
      !bsrg_mul_ok(v->nnzb, stored_height(v), &a_rows) || a_rows > INT32_MAX)
    return "needs fewer than 2^31 rows, columns and stored block rows";
  if (sm_arch != 90) return "needs a Hopper GPU (compute capability 9.0)";
  return NULL;
}

static const char *layout_obstacle(const bsrg_matmul_args *args) {
  const bsrg_dense *c = &args->c;
  const bool c_suits =
      args->beta == 0 || (c->col_stride == 1 && c->row_stride % 2 == 0 && (uintptr_t)c->data % 4 == 0);
  return bsrg_map_layout_obstacle(
      args, c_suits ? NULL : "needs c in row-major order, its rows at multiples of 4 bytes");
}

/* The operands that lie transposed. */
typedef struct tall_form {
  bool a, x;
} tall_form;

/* Whether both strips of every tile have the same stages, and nothing is cut: for the kernels called whole. */
static bool is_whole(const bsrg_structure_view *v, tall_form form, const bsrg_tall_schedule *s) {
  return !form.a && !form.x && !s->level && (s->cluster.rows == 2 || !bsrg_tall_has_unions(v));
}

/* Alone, and in the form in which the operands are: else the passes over the sums add it. */
static int32_t bias_by_mma(const bsrg_matmul_args *args) {
  const bsrg_epilogue *e = &args->epilogue;
  const bool of_columns = e->col_bias.data != NULL;
  const bsrg_vector *v = of_columns ? &e->col_bias : &e->row_bias;
  if (args->alpha != 1 || e->row_scale.data || e->col_scale.data || (of_columns && e->row_bias.data))
    return BSRG_TALL_BIAS_NONE;
  if (!v->data || v->stride != 1 || v->dtype != args->dtype || (uintptr_t)v->data % 16)
    return BSRG_TALL_BIAS_NONE;
  return of_columns ? BSRG_TALL_BIAS_COLUMNS : BSRG_TALL_BIAS_ROWS;
}

static bsrg_kernel_id kernel_for(const bsrg_structure_view *v, bsrg_dtype dtype, tall_form form, int step_k,
                                 const bsrg_tall_schedule *s) {
  const int width = step_k == 64 ? 0 : step_k == 32 ? 1 : 2, pairing = s->cluster.columns - 1;
  const bool f16 = dtype == BSRG_F16;
  if (form.a || form.x) {
    const bsrg_kernel_id first =
        form.a && form.x ? (f16 ? BSRG_KERNEL_TALL_F16_TAX_K64_C1 : BSRG_KERNEL_TALL_BF16_TAX_K64_C1)
        : form.a         ? (f16 ? BSRG_KERNEL_TALL_F16_TA_K64_C1 : BSRG_KERNEL_TALL_BF16_TA_K64_C1)
                         : (f16 ? BSRG_KERNEL_TALL_F16_TX_K64_C1 : BSRG_KERNEL_TALL_BF16_TX_K64_C1);
    return (bsrg_kernel_id)((int)first + 2 * width + pairing);
  }
  if (s->cluster.rows == 2)
    return (
        bsrg_kernel_id)((int)(f16 ? BSRG_KERNEL_TALL_F16_WHOLE_K64_R2 : BSRG_KERNEL_TALL_BF16_WHOLE_K64_R2) +
                        width);
  if (s->level)
    return (
        bsrg_kernel_id)((int)(f16 ? BSRG_KERNEL_TALL_F16_PARTS_K64_C1 : BSRG_KERNEL_TALL_BF16_PARTS_K64_C1) +
                        2 * width + pairing);
  const bsrg_kernel_id first =
      is_whole(v, form, s) ? (f16 ? BSRG_KERNEL_TALL_F16_WHOLE_K64_C1 : BSRG_KERNEL_TALL_BF16_WHOLE_K64_C1)
                           : (f16 ? BSRG_KERNEL_TALL_F16_UNION_K64_C1 : BSRG_KERNEL_TALL_BF16_UNION_K64_C1);
  return (bsrg_kernel_id)((int)first + 2 * width + pairing);
}

static bsrg_kernel_id kernel_for_pieces(bsrg_dtype dtype, const bsrg_tall_pieces *pieces,
                                        const bsrg_tall_schedule *s) {
  const int width = pieces->width == 64   ? 0
                    : pieces->width == 32 ? 1
                    : pieces->width == 16 ? 2
                                          : 3,
            pairing = s->cluster.rows == 2 ? 2 : s->cluster.columns - 1;
  return (bsrg_kernel_id)((int)(dtype == BSRG_F16 ? BSRG_KERNEL_TALL_F16_PIECES_K64_C1
                                                  : BSRG_KERNEL_TALL_BF16_PIECES_K64_C1) +
                          3 * width + pairing);
}

/* columns: of a piece, for a box. */
static bsrg_map_shape pieces_shape(const bsrg_tall_pieces *pieces, int32_t columns) {
  const bsrg_structure_view *v = pieces->stored;
  const uint32_t together = BSRG_TALL_TWO_ROWS(pieces->width) ? BSRG_TWO_ROWS : 1;
  const uint64_t width = (uint64_t)v->block_width * together, rows = (uint64_t)(v->nnzb * v->block_height);
  return (bsrg_map_shape){2,
                          {width, rows / together},
                          {width},
                          {(uint32_t)columns * together, (uint32_t)pieces->height / together},
                          bsrg_map_swizzle((uint32_t)columns * 2 * together)};
}

static bsrg_map_shape a_shape(const bsrg_structure_view *v, uint32_t step_k) {
  const uint64_t width = (uint64_t)stored_width(v), rows = (uint64_t)(v->nnzb * stored_height(v));
  bsrg_map_shape shape = {
      2, {width, rows, 0}, {width, 0}, {step_k, BSRG_TALL_STRIP, 0}, bsrg_map_swizzle(2 * step_k)};
  if (v->order) {
    shape.box[0] = BSRG_TALL_STRIP;
    shape.box[1] = step_k;
    shape.swizzle = CU_TENSOR_MAP_SWIZZLE_128B;
  }
  return shape;
}

/* Of a tile, those that come as one box. A single one of fewer columns is whole, too, unless it ends within a panel or is for
 * two CTAs. */
static int32_t x_columns(int64_t n, tall_form form, const bsrg_tall_schedule *s) {
  if (n >= BSRG_TALL_TILE_N) return BSRG_TALL_TILE_N;
  return form.x || (n % 64 == 0 && s->cluster.rows == 1) ? (int32_t)n : 0;
}

/* k of a stage. By rows of X, the narrowest stage that a block fills, so that no stage is mostly empty. A transposed X
 * has whole stages always, of which that is best that rounds the block's width up by no more than a third. */
static int stage_k(int64_t block_width, tall_form form) {
  if (!form.x) return block_width >= 48 ? 64 : (int)block_width;
  for (int k = 64; k > 16; k /= 2)
    if (3 * bsrg_ceil_div(block_width, k) * k <= 4 * block_width) return k;
  return 16;
}

/* The second pass: the sums of the parts, in their order, to Y. */
static bsrg_status add_parts(const bsrg_matmul_args *args, bool transposed, const bsrg_tall_level *level,
                             const bsrg_tall_cut *cuts, const float *partial, bsrg_gpu gpu,
                             bsrg_error *error) {
  bsrg_tall_add_params p = {.cuts = cuts,
                            .partial = partial,
                            .c = args->c.data,
                            .y = args->y.data,
                            .c_row_stride = args->c.row_stride,
                            .y_row_stride = args->y.row_stride,
                            .rows = (int32_t)args->y.rows,
                            .n = (int32_t)args->x.cols,
                            .alpha = (float)args->alpha,
                            .beta = (float)args->beta,
                            .c_col_stride = args->c.col_stride,
                            .y_col_stride = args->y.col_stride,
                            .output = bsrg_output_of(args)};
  const bool f16 = args->dtype == BSRG_F16;
  if (transposed) { /* a CTA has eight columns of a tile at once, and loops beyond a few CTAs a tile */
    const int64_t across = bsrg_min(256, bsrg_ceil_div(args->x.cols, BSRG_TALL_ADD_THREADS / 16));
    return bsrg_launch(gpu.api, gpu.device,
                       f16 ? BSRG_KERNEL_TALL_F16_ADD_TRANSPOSED : BSRG_KERNEL_TALL_BF16_ADD_TRANSPOSED,
                       level->cut_count, across, (CUstream)args->stream, &p, error);
  }
  /* Eight columns a thread. Beyond a few CTAs a row they loop. */
  const int64_t across = bsrg_min(8, bsrg_ceil_div(args->x.cols, 8 * BSRG_TALL_ADD_THREADS));
  return bsrg_launch(gpu.api, gpu.device, f16 ? BSRG_KERNEL_TALL_F16_ADD : BSRG_KERNEL_TALL_BF16_ADD,
                     (int64_t)level->cut_count * 2 * BSRG_TALL_STRIP, across, (CUstream)args->stream, &p,
                     error);
}

/* The structure may have more rows than Y and more columns than X has rows, as the regroup family's have in their
 * last blocks: the bounds of the maps are those of X and Y, where TMA clips and fills with zeros. pieces: NULL where the
 * values are those of the structure. */
static bsrg_status launch_with(const bsrg_matmul_args *args, const void *plan, const bsrg_tall_pieces *pieces,
                               bsrg_gpu gpu, bsrg_error *error) {
  const bsrg_structure_view *v = &args->a->view;
  const bsrg_tall_plan *tall = plan;
  const int64_t n = args->x.cols;
  const bsrg_chip chip = bsrg_chip_of(gpu);
  const tall_form form = {.a = v->order, .x = bsrg_map_has_transposed_x(args)};
  const bsrg_tall_schedule s =
      bsrg_tall_schedule_for(v, tall, pieces, n, bsrg_tall_transposed_rows(args), &chip);
  const bsrg_tall_level *level = s.level;
  /* The kernels for parts write zeros aside; with beta or an epilogue, empty tiles are tiles like others. */
  const bool zeros = args->beta == 0 && !bsrg_epilogue_of(args);
  const int32_t empty_tiles = level && zeros ? tall->empty_tiles : 0;
  int64_t row_tiles = (tall->tile_count - empty_tiles) / s.cluster.rows;
  if (level) row_tiles += level->part_count - level->tiles;
  const int64_t tiles = row_tiles * s.n_tiles; /* of a cluster */
  if (tiles > INT32_MAX / 2)
    return bsrg_fail(error, BSRG_ERR_VALUE,
                     "b has %lld columns: with %lld rows of a that is more than 2^30 tiles", (long long)n,
                     (long long)v->rows);
  enum {
    ENTRIES = BSRG_TALL_ENTRIES,
    TILES = BSRG_TALL_TILES,
    PARTS = BSRG_TALL_PARTS,
    CUTS = BSRG_TALL_CUTS,
    UPLOADS = BSRG_TALL_UPLOADS
  };
  const bsrg_upload_part lists[UPLOADS] = {
      [ENTRIES] = {tall->entries, sizeof(bsrg_tall_entry) * (size_t)tall->entry_count},
      [TILES] = {tall->tiles, sizeof(bsrg_tall_tile) * (size_t)tall->tile_count},
      [PARTS] = {tall->parts, sizeof(bsrg_tall_part) * (size_t)tall->part_count},
      [CUTS] = {tall->cuts, sizeof(bsrg_tall_cut) * (size_t)tall->cut_count}};
  const CUdeviceptr *uploads;
  bsrg_status status = bsrg_uploads_get(args->a, BSRG_TALL, lists, UPLOADS, gpu, &uploads, error);
  if (status != BSRG_OK) return status;

  const int step_k = pieces ? (int)v->block_width : stage_k(v->block_width, form);
  const int32_t steps = (int32_t)bsrg_ceil_div(v->block_width, step_k);
  const int32_t tail_k = (int32_t)v->block_width - (steps - 1) * step_k;
  bsrg_tall_params p = {.entries = (const bsrg_tall_entry *)(uintptr_t)uploads[ENTRIES],
                        .tiles = (const bsrg_tall_tile *)(uintptr_t)uploads[TILES],
                        .c = args->c.data,
                        .c_row_stride = args->c.row_stride,
                        .y_data = args->y.data,
                        .y_row_stride = args->y.row_stride,
                        .tile_count = tall->tile_count - empty_tiles,
                        .empty_tiles = empty_tiles,
                        .n_tile_count = s.n_tiles,
                        .group = s.group,
                        .lead = s.lead,
                        .strips_per_block = (int32_t)(v->block_height / BSRG_TALL_STRIP),
                        .steps = steps,
                        .tail_k16 = tail_k / 16,
                        .x_columns = x_columns(n, form, &s),
                        .keep_a = 2 * v->nnzb * v->block_height * v->block_width <= BSRG_TALL_KEPT_BYTES,
                        .rows = (int32_t)args->y.rows,
                        .n = (int32_t)n,
                        .alpha = (float)args->alpha,
                        .beta = (float)args->beta,
                        .c_col_stride = args->c.col_stride,
                        .y_col_stride = args->y.col_stride,
                        .bias_by_mma = bias_by_mma(args),
                        .output = bsrg_output_of(args)};

  if (pieces) {
    p.pieces = pieces->pieces;
    p.k16s = pieces->k16s;
    p.zeros = pieces->zeros;
    p.strip_pieces = BSRG_TALL_STRIP * step_k / (pieces->height * pieces->width);
  }
  const int32_t first = pieces ? (int32_t)bsrg_min(pieces->width, BSRG_TALL_PIECED_WIDTH) : 0;
  const bsrg_map_shape a = pieces ? pieces_shape(pieces, first) : a_shape(v, (uint32_t)step_k);
  const uint32_t stored = !pieces && is_whole(v, form, &s) ? BSRG_TALL_STRIP : 16; /* rows, at a time */
  const bsrg_map_shape y = form.x ? bsrg_map_columns(&args->y, args->dtype, BSRG_TALL_STRIP, 64)
                                  : bsrg_map_panel(&args->y, stored);
  bsrg_map_tiles x_tiles = {.by_columns = form.x,
                            .rows = (uint32_t)step_k,
                            .tile = BSRG_TALL_TILE_N,
                            .whole = (uint32_t)p.x_columns / (uint32_t)s.cluster.rows};
  status = bsrg_encode_map(gpu.api, args->dtype, args->values, &a, &p.a, error);
  if (status == BSRG_OK && pieces && pieces->width > first) {
    const bsrg_map_shape rest = pieces_shape(pieces, pieces->width - first);
    status = bsrg_encode_map(gpu.api, args->dtype, args->values, &rest, &p.a_rest, error);
  }
  if (status == BSRG_OK)
    status = bsrg_encode_tiles(gpu.api, args->dtype, &args->x, &x_tiles, &p.x, &p.x_rest, error);
  p.x_tail = p.x;
  p.x_rest_tail = p.x_rest;
  x_tiles.rows = (uint32_t)tail_k;
  if (status == BSRG_OK && !form.x && tail_k != step_k)
    status = bsrg_encode_tiles(gpu.api, args->dtype, &args->x, &x_tiles, &p.x_tail, &p.x_rest_tail, error);
  if (status == BSRG_OK) status = bsrg_encode_map(gpu.api, args->dtype, args->y.data, &y, &p.y, error);
  if (status != BSRG_OK) return status;

  const CUstream stream = (CUstream)args->stream;
  CUdeviceptr partial = 0;
  if (level) {
    const size_t bytes = sizeof(float) * (size_t)level->slot_count * 2 * BSRG_TALL_STRIP * (size_t)n;
    status = bsrg_scratch_alloc(gpu.api, gpu.device, bytes, stream, &partial, error);
    if (status != BSRG_OK) return status;
    p.parts = (const bsrg_tall_part *)(uintptr_t)uploads[PARTS] + level->part_begin;
    p.partial = (float *)(uintptr_t)partial;
    p.part_count = level->part_count;
    p.cut_tiles = level->tiles;
  }
  const int32_t ctas = s.cluster.columns * s.cluster.rows; /* of a cluster */
  const int64_t most = bsrg_max(1, gpu.device->info.sm_count / ctas);
  const int64_t clusters = s.in_step ? bsrg_workers_in_step(tiles, most) : bsrg_min(most, tiles);
  const bsrg_kernel_id kernel =
      pieces ? kernel_for_pieces(args->dtype, pieces, &s) : kernel_for(v, args->dtype, form, step_k, &s);
  status = bsrg_launch_drawing(gpu.api, gpu.device, kernel, 0, clusters * ctas, stream, &p, &p.counter,
                               !s.in_step && tiles > clusters, error);
  if (!level) return status;
  if (status == BSRG_OK)
    status =
        add_parts(args, form.x, level, (const bsrg_tall_cut *)(uintptr_t)uploads[CUTS] + level->cut_begin,
                  p.partial, gpu, error);
  return bsrg_scratch_free(gpu.api, partial, stream, status, error);
}

static void predict(const bsrg_matmul_args *args, const void *plan, const bsrg_chip *chip,
                    bsrg_candidate *candidate) {
  bsrg_tall_predict(args, plan, NULL, chip, candidate);
}

static bsrg_status launch(const bsrg_matmul_args *args, const void *plan, bsrg_gpu gpu, bsrg_error *error) {
  return launch_with(args, plan, NULL, gpu, error);
}

bool bsrg_tall_takes_pieces(const bsrg_matmul_args *args, const void *plan, const bsrg_tall_pieces *pieces,
                            const bsrg_chip *chip) {
  if (bsrg_map_has_transposed_x(args) || (uintptr_t)args->values % 16) return false;
  return bsrg_tall_schedule_for(&args->a->view, plan, pieces, args->x.cols, 0, chip).level == NULL;
}

bsrg_status bsrg_tall_launch_pieces(const bsrg_matmul_args *args, const void *plan,
                                    const bsrg_tall_pieces *pieces, bsrg_gpu gpu, bsrg_error *error) {
  return launch_with(args, plan, pieces, gpu, error);
}

const bsrg_family_ops bsrg_tall_family = {.family = BSRG_TALL,
                                          .obstacle = obstacle,
                                          .columns_obstacle = bsrg_map_count_obstacle,
                                          .layout_obstacle = layout_obstacle,
                                          .make_plan = bsrg_tall_make_plan,
                                          .free_plan = bsrg_tall_free_plan,
                                          .predict = predict,
                                          .clips_x = true,
                                          .clips_y = true,
                                          .launch = launch};
