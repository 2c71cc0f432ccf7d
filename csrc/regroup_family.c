/* The regroup family: which larger blocks suit a structure, what they cost, and the launch. */
#include "regroup.h"
#include "stream.h"
#include "tensor_map.h"
#include "uploads.h"

#include <math.h>
#include <stdlib.h>

/* ---- what a shape costs ----------------------------------------------------------------------- */

/* Copying: the child's values are written, the stored ones read. */
static double packing_seconds(const bsrg_structure_view *v, double child_blocks, bsrg_block_shape shape,
                              const bsrg_chip *chip, double *bytes) {
  *bytes = 2 * (child_blocks * shape.height * shape.width +
                (double)v->nnzb * (double)(v->block_height * v->block_width));
  return BSRG_LAUNCH_SECONDS + *bytes / chip->hbm_bytes_per_s;
}

/* That zeros draw less power, whose share this is, sustained. */
static double power_of(const bsrg_structure_view *v, bsrg_block_shape shape, double blocks, double zeros) {
  const double places = ceil((double)v->rows / shape.height) * ceil((double)v->cols / shape.width);
  return blocks > 0.95 * places ? 0.97 * (1 - 0.11 * zeros) : 1 - 0.09 * zeros;
}

/* What the tall family's prediction leaves out: widths that do not fill their last stage (it knows by itself what blocks of 16
 * and 32 columns and last stages of 16 cost) and strips of different block rows. */
static double tall_overhead(bsrg_block_shape shape) {
  const double stages = ceil(shape.width / 64.0);
  const double stage =
      shape.width <= 32 || shape.width % 64 == 16 ? 1 : (1 + 8 * stages / shape.width) / (1 + 8 / 64.0);
  return stage * (shape.height == BSRG_TALL_STRIP ? 1.09 : 1);
}

static double zeros_of(const bsrg_structure_view *v, double child_blocks, bsrg_block_shape shape) {
  const double stored = (double)v->nnzb * (double)(v->block_height * v->block_width);
  return fmax(0, 1 - stored / (child_blocks * shape.height * shape.width));
}

/* ---- the choice of a shape -------------------------------------------------------------------- */

enum { TYPICAL_COLUMNS = 8192 }; /* plans are made for any number */

/* The best found so far, and what it takes to look at others. */
typedef struct search {
  const bsrg_structure_view *v;
  bsrg_chip chip;
  int32_t *marks, stamp; /* of bsrg_regroup_estimate_blocks */
  double least;          /* predicted seconds */
  bsrg_block_shape shape;
  const bsrg_family_ops *family;
} search;

static double sample(search *s, int32_t height, int32_t width) {
  enum { LOOK_AT = 4096 }; /* blocks; shares come out within a few percent */
  return bsrg_regroup_estimate_blocks(s->v, (bsrg_block_shape){height, width}, LOOK_AT, s->marks, &s->stamp);
}

/* A child of about so many blocks; its pattern is missing. */
static bsrg_structure_view child_view(const bsrg_structure_view *v, bsrg_block_shape shape, double blocks) {
  const int64_t rows = bsrg_ceil_div(bsrg_whole_rows(v), shape.height),
                cols = bsrg_ceil_div(bsrg_whole_cols(v), shape.width);
  return (bsrg_structure_view){.rows = rows * shape.height,
                               .cols = cols * shape.width,
                               .block_height = shape.height,
                               .block_width = shape.width,
                               .block_rows = rows,
                               .block_cols = cols,
                               .nnzb = (int64_t)ceil(blocks)};
}

/* Keeps the shape if nothing better is known. */
static void offer(search *s, const bsrg_family_ops *family, bsrg_block_shape shape, double blocks,
                  bool in_place, double product_seconds) {
  double bytes;
  const double seconds =
      product_seconds + (in_place ? 0 : packing_seconds(s->v, blocks, shape, &s->chip, &bytes));
  if (seconds >= s->least) return;
  s->least = seconds;
  s->shape = shape;
  s->family = family;
}

/* The tall kernels count rows of stored blocks in 32 bits. */
static bool fits_tall(const bsrg_structure_view *v, bsrg_block_shape shape) {
  return bsrg_regroup_most_blocks(v, shape) <= INT32_MAX / shape.height;
}

/* entries: what the tiles of two strips need in block columns. */
static void offer_tall(search *s, bsrg_block_shape shape, double blocks, double entries) {
  if (!fits_tall(s->v, shape)) return;
  bsrg_structure child = {.view = child_view(s->v, shape, blocks)};
  bsrg_tall_plan plan = {.tile_count = (int32_t)bsrg_ceil_div(child.view.rows, 2 * BSRG_TALL_STRIP),
                         .tile_entries = (int64_t)ceil(entries)};
  plan.longest_tile = (int32_t)bsrg_ceil_div(plan.tile_entries, plan.tile_count); /* spread evenly */
  bsrg_candidate product;
  const bsrg_matmul_args args = {.a = &child, .dtype = BSRG_F16, .x.cols = TYPICAL_COLUMNS};
  const bsrg_block_shape part = bsrg_regroup_source_shape(s->v, shape, &bsrg_tall_family);
  const double power = power_of(s->v, shape, blocks, zeros_of(s->v, blocks, shape));
  const bsrg_tall_pieces pieces = {.stored = s->v, .height = part.height, .width = part.width, .work = power};
  const bool in_place = part.height > 0;
  bsrg_tall_predict(&args, &plan, in_place ? &pieces : NULL, &s->chip, &product);
  offer(s, &bsrg_tall_family, shape, blocks, in_place,
        product.seconds * tall_overhead(shape) * (in_place ? 1 : power));
}

/* Widths that fill a stage of the tall kernels well, and the stored blocks' own, made a multiple of 16, which cuts no
 * block in two. 64 rows fill up with fewer zeros, 128 share their columns of X. */
static void search_tall(search *s) {
  int32_t own = bsrg_regroup_is_wide(s->v) ? BSRG_TALL_WIDE_PIECE
                : s->v->block_width > 128  ? 64
                                           : (int32_t)s->v->block_width;
  while (own % 16 || own < 32) own *= 2;
  const int32_t widths[] = {64, 32, own};
  for (int i = 0; i < (own > 128 || 64 % own == 0 ? 2 : 3); ++i) {
    const double pairs = sample(s, 128, widths[i]), strips = sample(s, 64, widths[i]);
    offer_tall(s, (bsrg_block_shape){128, widths[i]}, pairs, pairs);
    offer_tall(s, (bsrg_block_shape){64, widths[i]}, strips, fmin(pairs, strips));
  }
}

/* As sample, for heights up to a tile's of the stream kernels, of which several shapes ask for the same. known: by
 * height / 8, 0 where nobody has asked yet. */
enum { MOST_HEIGHTS = BSRG_STREAM_GROUPS * BSRG_STREAM_GROUP_ROWS / 8 + 1 };
static double sample_once(search *s, double known[MOST_HEIGHTS], int32_t height, int32_t width) {
  if (known[height / 8] == 0) known[height / 8] = sample(s, height, width);
  return known[height / 8];
}

/* The shapes that the stream kernels take in one part: larger blocks would be cut into these, with parts of nothing
 * but zeros among them. A slot is a block column that some row of a tile meets: a block of so many rows, whose number the
 * same sample tells. */
static void search_stream(search *s) {
  static const int32_t shapes[][2] = {
#define SHAPE(height, width) {height, width},
      BSRG_STREAM_SHAPES(SHAPE)
#undef SHAPE
  };
  double known[3][MOST_HEIGHTS] = {{0}}; /* widths 8, 16 and 32 */
  const bsrg_stream_shape own = bsrg_stream_choose(s->v);
  for (int i = 0; i < BSRG_STREAM_SHAPE_COUNT; ++i) {
    const bsrg_block_shape shape = {shapes[i][0], shapes[i][1]};
    if (shape.height == own.height && shape.width == own.width) continue; /* the stream family's candidate */
    /* The stream plan counts 8 x 16 elements in 32 bits. */
    if (bsrg_regroup_most_blocks(s->v, shape) > INT32_MAX / (shape.height * shape.width / 128)) continue;
    const int32_t tile = BSRG_STREAM_GROUPS * bsrg_stream_group_height(shape.height);
    double *const mine = known[shape.width / 16];
    bsrg_stream_work work = {.height = shape.height,
                             .width = shape.width,
                             .parts = sample_once(s, mine, shape.height, shape.width),
                             .slots = sample_once(s, mine, tile, shape.width),
                             .tiles = (double)bsrg_ceil_div(bsrg_whole_rows(s->v), tile)};
    work.steps = bsrg_stream_steps(&work);
    work.longest_tile = work.parts / work.tiles; /* spread evenly */
    const bsrg_structure_view child = child_view(s->v, shape, work.parts);
    bsrg_candidate product;
    bsrg_stream_predict_packed(&work, bsrg_compulsory_bytes(&child, BSRG_F16, TYPICAL_COLUMNS),
                               TYPICAL_COLUMNS, false, &s->chip, &product);
    offer(s, &bsrg_stream_family, shape, work.parts, false, product.seconds);
  }
}

/* Whether the stream kernels take these blocks as they are, in parts as high as blocks or nearly so: not by 8 rows where
 * blocks have 88. Then only tall ones gain from being larger. */
static bool suits_stream(const bsrg_structure_view *v, int sm_arch) {
  return !bsrg_stream_family.obstacle(v, BSRG_F16, sm_arch) && bsrg_stream_choose(v).height > 8;
}

/* The best family and shape by what a sample of the blocks says. false: no memory. */
static bool choose_shape(search *s, const bsrg_structure_view *v) {
  *s = (search){.v = v,
                .chip = bsrg_chip_h200(),
                .marks = calloc((size_t)(bsrg_whole_cols(v) / 8 + 1), sizeof(*s->marks)),
                .stamp = 1,
                .least = INFINITY};
  if (!s->marks) return false;
  search_tall(s);
  if (!suits_stream(v, s->chip.sm_arch)) search_stream(s);
  free(s->marks);
  return true;
}

/* ---- plan and prediction ---------------------------------------------------------------------- */

static const char *obstacle(const bsrg_structure_view *v, bsrg_dtype dtype, int sm_arch) {
  int64_t block;
  if (!bsrg_is_half(dtype)) return "needs float16 or bfloat16";
  if (v->nnzb == 0) return "needs at least one block";
  if (v->column_order != BSRG_ASCENDING) return "needs block columns that ascend strictly";
  if (v->order) return BSRG_ORDER_OBSTACLE;
  if (v->block_height % 64 == 0 && v->block_width % 16 == 0 && v->block_width > 32 &&
      !bsrg_regroup_is_wide(v))
    return "needs blocks that gain from being larger: the tall kernels are fast on multiples of (64, 16) "
           "with more than 32 columns, but for 80, 160, 240 ...";
  if (bsrg_whole_rows(v) > INT32_MAX - 128 || bsrg_whole_cols(v) > INT32_MAX - 128 || v->nnzb > INT32_MAX ||
      !bsrg_mul_ok(v->block_height, v->block_width, &block) || block > INT32_MAX ||
      !fits_tall(v, (bsrg_block_shape){64, 64}))
    return "needs fewer than 2^31 rows, columns, stored blocks and rows of larger blocks";
  if (sm_arch != 90) return "needs a Hopper GPU (compute capability 9.0)";
  return NULL;
}

static const char *layout_obstacle(const bsrg_matmul_args *args) {
  bsrg_matmul_args packed = *args;
  packed.values = NULL; /* the stored values may start anywhere; the packed ones are aligned */
  return bsrg_stream_family.layout_obstacle(&packed);
}

static void *make_plan(bsrg_structure *structure) {
  const bsrg_structure_view *v = &structure->view;
  search best;
  return choose_shape(&best, v) ? bsrg_regroup(v, best.shape, best.family, false) : NULL;
}

/* The tall kernels have one plan for all numbers of columns. */
static void *make_low_plan(bsrg_structure *structure) {
  const bsrg_structure_view *v = &structure->view;
  search best;
  if (!choose_shape(&best, v)) return NULL;
  if (best.family == &bsrg_stream_family) return bsrg_regroup(v, best.shape, best.family, true);
  const void *plan = NULL;
  return bsrg_plan_get(structure, &bsrg_regroup_family, false, &plan, NULL) == BSRG_OK ? (void *)plan : NULL;
}

/* The arguments with the child in place of the stored blocks, whose values are packed or where they were. */
static bsrg_matmul_args of_child(const bsrg_matmul_args *args, const bsrg_regrouped *r, const void *values) {
  bsrg_matmul_args child = *args;
  child.a = r->child;
  child.values = values;
  return child;
}

static bsrg_tall_pieces pieces_of(const bsrg_structure_view *stored, const bsrg_regrouped *r) {
  /* Fitted to products of density .5 to 1, sustained: sixteens of k that a strip has no part in are passed over, which gains less
   * than their WGMMAs' time, since other strips wait for the same stages. */
  const double blocks = (double)r->child->view.nnzb, gain = r->source_shape.width == 16 ? 0.6 : 0.5;
  const double power = power_of(stored, r->shape, blocks, zeros_of(stored, blocks, r->shape));
  return (bsrg_tall_pieces){.stored = stored,
                            .height = r->source_shape.height,
                            .width = r->source_shape.width,
                            .work = (1 - gain * r->skipped) * power};
}

static bool stays_in_place(const bsrg_matmul_args *args, const bsrg_regrouped *r, const bsrg_chip *chip) {
  const bsrg_matmul_args child = of_child(args, r, args->values);
  const bsrg_tall_pieces pieces = pieces_of(&args->a->view, r);
  return r->sources && bsrg_tall_takes_pieces(&child, r->child_plan, &pieces, chip);
}

static void predict(const bsrg_matmul_args *args, const void *plan, const bsrg_chip *chip,
                    bsrg_candidate *c) {
  const bsrg_structure_view *v = &args->a->view;
  const bsrg_regrouped *r = plan;
  const bsrg_structure_view *child = &r->child->view;
  bsrg_candidate product = bsrg_new_candidate(r->family->family, bsrg_says_why(c));
  const double zeros = zeros_of(v, (double)child->nnzb, r->shape);
  const bool in_place = stays_in_place(args, r, chip);
  if (r->family == &bsrg_stream_family) {
    const bsrg_stream_work work = bsrg_stream_work_of(r->child_plan);
    const int64_t n = args->x.cols;
    bsrg_stream_predict_packed(&work, bsrg_compulsory_bytes(child, args->dtype, n), n,
                               bsrg_map_has_transposed_x(args), chip, &product);
  } else {
    const bsrg_matmul_args product_args = of_child(args, r, args->values);
    const bsrg_tall_pieces pieces = pieces_of(v, r);
    bsrg_tall_predict(&product_args, r->child_plan, in_place ? &pieces : NULL, chip, &product);
    product.seconds *= tall_overhead(r->shape);
    if (!in_place)
      product.seconds *= power_of(v, r->shape, (double)child->nnzb, zeros);
    else if (bsrg_tall_has_most_pieces(&pieces))
      product.seconds *= 1.04;
  }
  double bytes = 0;
  c->seconds = product.seconds;
  if (!in_place) c->seconds += packing_seconds(v, (double)child->nnzb, r->shape, chip, &bytes);
  c->mma_flops = product.mma_flops;
  c->l2_bytes = product.l2_bytes;
  c->hbm_bytes = product.hbm_bytes + bytes;
  bsrg_set_reason(c, "as %dx%d blocks for %s%s, %.0f%% zeros; %.80s", r->shape.height, r->shape.width,
                  bsrg_family_name(r->family->family), in_place ? " in place" : "", 100 * zeros,
                  product.reason);
}

/* ---- launch ----------------------------------------------------------------------------------- */

/* Elements that lie together in every row of a block, at aligned addresses: 8, 4, 2 or 1. */
static int32_t elements_at_once(const bsrg_structure_view *v, const void *values) {
  int32_t elements = 8;
  while (v->block_width % elements || (uintptr_t)values % (2 * (uintptr_t)elements)) elements /= 2;
  return elements;
}

static const uint8_t ZERO_BYTES[BSRG_TALL_ZERO_BYTES]; /* for pieces that no block has */

enum { TILE_BEGIN, PIECES, SOURCES, K16S, ZEROS, PARTS };

static bsrg_status upload(bsrg_structure *stored, int key, const bsrg_regrouped *r, bsrg_gpu gpu,
                          const CUdeviceptr **uploads, bsrg_error *error) {
  const bsrg_upload_part parts[PARTS] = {
      [TILE_BEGIN] = {r->tile_begin, sizeof(*r->tile_begin) * (size_t)(r->tile_count + 1)},
      [PIECES] = {r->pieces, sizeof(*r->pieces) * (size_t)r->tile_begin[r->tile_count]},
      [SOURCES] = {r->sources, sizeof(*r->sources) * (size_t)r->source_count},
      [K16S] = {r->k16s, r->sources ? (size_t)r->child->view.nnzb : 0},
      [ZEROS] = {ZERO_BYTES, r->sources ? sizeof(ZERO_BYTES) : 0}};
  return bsrg_uploads_get(stored, key, parts, PARTS, gpu, uploads, error);
}

static int key_of(const bsrg_regrouped *r) { return bsrg_upload_key(BSRG_REGROUP, r->low); }

static bsrg_status copy(bsrg_structure *stored, int key, const bsrg_regrouped *r, bool back,
                        bsrg_regroup_params p, bsrg_gpu gpu, CUstream stream, bsrg_error *error) {
  const bsrg_structure_view *v = &stored->view;
  const CUdeviceptr *uploads;
  const bsrg_status status = upload(stored, key, r, gpu, &uploads, error);
  if (status != BSRG_OK) return status;

  const int32_t elements = elements_at_once(v, back ? p.stored : p.values);
  /* One thread a copy up to a warp a piece, then about four copies a thread, whose loads overlap. */
  const int64_t copies =
      bsrg_min(v->block_height, r->shape.height) * bsrg_min(v->block_width, r->shape.width) / elements;
  while (p.lanes_log2 < 8 && (p.lanes_log2 < 5 ? 1 : 4) << p.lanes_log2 < copies) ++p.lanes_log2;
  p.tile_begin = (const int64_t *)(uintptr_t)uploads[TILE_BEGIN];
  p.pieces = (const bsrg_regroup_piece *)(uintptr_t)uploads[PIECES];
  p.elements = r->child->view.nnzb * r->shape.height * r->shape.width;
  p.block_elements = v->block_height * v->block_width;
  p.tile_elements = r->tile_elements;
  p.block_width = (int32_t)v->block_width;
  p.child_width = r->shape.width;
  p.for_stream = r->family == &bsrg_stream_family;
  const int which = elements == 8 ? 0 : elements == 4 ? 1 : elements == 2 ? 2 : 3;
  const int first = back ? BSRG_KERNEL_UNGROUP_V8 : BSRG_KERNEL_REGROUP_V8;
  return bsrg_launch(gpu.api, gpu.device, (bsrg_kernel_id)(first + which), r->tile_count, 1, stream, &p,
                     error);
}

bsrg_status bsrg_regroup_pack(bsrg_structure *stored, int key, const bsrg_regrouped *r, const void *values,
                              CUdeviceptr packed, bsrg_gpu gpu, CUstream stream, bsrg_error *error) {
  const bsrg_regroup_params p = {.values = values, .regrouped = (void *)(uintptr_t)packed};
  return copy(stored, key, r, false, p, gpu, stream, error);
}

bsrg_status bsrg_regroup_unpack(bsrg_structure *stored, int key, const bsrg_regrouped *r, CUdeviceptr packed,
                                void *values, bsrg_gpu gpu, CUstream stream, bsrg_error *error) {
  const bsrg_regroup_params p = {.stored = values, .regrouped = (void *)(uintptr_t)packed};
  return copy(stored, key, r, true, p, gpu, stream, error);
}

static bsrg_status multiply(const bsrg_matmul_args *args, const bsrg_regrouped *r, CUdeviceptr packed,
                            bsrg_gpu gpu, bsrg_error *error) {
  const bsrg_matmul_args child = of_child(args, r, (const void *)(uintptr_t)packed);
  if (r->family == &bsrg_stream_family)
    return bsrg_stream_launch_packed(&child, r->child_plan, packed, gpu, error);
  return r->family->launch(&child, r->child_plan, gpu, error);
}

static bsrg_status multiply_in_place(const bsrg_matmul_args *args, const bsrg_regrouped *r, bsrg_gpu gpu,
                                     bsrg_error *error) {
  const CUdeviceptr *uploads;
  const bsrg_status status = upload(args->a, key_of(r), r, gpu, &uploads, error);
  if (status != BSRG_OK) return status;
  bsrg_tall_pieces pieces = pieces_of(&args->a->view, r);
  pieces.pieces = (const bsrg_tall_piece *)(uintptr_t)uploads[SOURCES];
  pieces.k16s = (const uint8_t *)(uintptr_t)uploads[K16S];
  pieces.zeros = (const void *)(uintptr_t)uploads[ZEROS];
  const bsrg_matmul_args child = of_child(args, r, args->values);
  return bsrg_tall_launch_pieces(&child, r->child_plan, &pieces, gpu, error);
}

static bsrg_status launch(const bsrg_matmul_args *args, const void *plan, bsrg_gpu gpu, bsrg_error *error) {
  const bsrg_regrouped *r = plan;
  const bsrg_chip chip = bsrg_chip_of(gpu);
  if (stays_in_place(args, r, &chip)) return multiply_in_place(args, r, gpu, error);
  const CUstream stream = (CUstream)args->stream;
  const int64_t bytes = 2 * r->child->view.nnzb * r->shape.height * r->shape.width;
  CUdeviceptr packed = 0;
  bsrg_status status = bsrg_scratch_alloc(gpu.api, gpu.device, (size_t)bytes, stream, &packed, error);
  if (status != BSRG_OK) return status;

  status = bsrg_regroup_pack(args->a, key_of(r), r, args->values, packed, gpu, stream, error);
  if (status == BSRG_OK) status = multiply(args, r, packed, gpu, error);
  return bsrg_scratch_free(gpu.api, packed, stream, status, error);
}

const bsrg_family_ops bsrg_regroup_family = {.family = BSRG_REGROUP,
                                             .obstacle = obstacle,
                                             .columns_obstacle = bsrg_map_count_obstacle,
                                             .layout_obstacle = layout_obstacle,
                                             .make_plan = make_plan,
                                             .wants_low = bsrg_stream_wants_low,
                                             .make_low_plan = make_low_plan,
                                             .free_plan = bsrg_regrouped_free,
                                             .predict = predict,
                                             .clips_x = true,
                                             .clips_y = true,
                                             .launch = launch};
