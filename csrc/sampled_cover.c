/* Sampled products at blocks that Hopper's kernels do not take: at larger blocks that cover them, in scratch memory, from
 * which the stored ones are copied. */
#include "dynamic.h"
#include "sampled.h"

#include <math.h>
#include <stdlib.h>

/* ---- which larger blocks ------------------------------------------------------------------------ */

/* Strips of tiles are 64 rows, which low blocks fill by two, or 128. */
static const struct cover {
  bsrg_block_shape shape, strip;
} covers[] = {{{32, 32}, {64, 32}}, {{64, 64}, {64, 64}}, {{128, 64}, {128, 64}}};
enum { COVERS = sizeof(covers) / sizeof(covers[0]), TYPICAL_K = 2048 };

static double copy_bytes(const bsrg_structure_view *v, double elements) {
  return 2 * (elements + (double)v->nnzb * (double)(v->block_height * v->block_width));
}

/* The cover that takes the least time. Of no rows: no memory. */
static bsrg_block_shape choose_shape(const bsrg_structure_view *v) {
  enum { LOOK_AT = 4096 }; /* blocks; shares come out within a few percent */
  const bsrg_chip chip = bsrg_chip_h200();
  bsrg_block_shape best = {0, 0};
  double least = INFINITY;
  int32_t *marks = calloc((size_t)(bsrg_whole_cols(v) / 8 + 1), sizeof(*marks)), stamp = 1;
  for (int i = 0; marks && i < COVERS; ++i) {
    const struct cover *c = &covers[i];
    const double strips = bsrg_regroup_estimate_blocks(v, c->strip, LOOK_AT, marks, &stamp);
    const double elements = strips * c->strip.height * c->strip.width;
    const double overhead = bsrg_sampled_strip_overhead(c->strip.height / BSRG_SAMPLED_STRIP);
    const double seconds = 2.0 * TYPICAL_K * elements * overhead / chip.mma_flops_per_s +
                           copy_bytes(v, elements) / chip.hbm_bytes_per_s;
    if (seconds >= least) continue;
    least = seconds;
    best = c->shape;
  }
  free(marks);
  return best;
}

const char *bsrg_sampled_cover_obstacle(const bsrg_sampled_args *args, int sm_arch) {
  const bsrg_structure_view *v = &args->pattern->view;
  const char *const wants_fewer =
      "needs fewer than 2^31 rows, columns, elements of a block and larger blocks";
  int64_t block;
  const char *const unknown = bsrg_dynamic_obstacle(args->pattern, BSRG_COVER);
  if (unknown) return unknown;
  if (sm_arch != 90) return "needs a GPU of compute capability 9.0";
  if (!bsrg_is_half(args->dtype)) return "needs float16 or bfloat16";
  if (v->column_order != BSRG_ASCENDING) return "needs block columns that ascend strictly";
  if (bsrg_whole_rows(v) > INT32_MAX - 128 || bsrg_whole_cols(v) > INT32_MAX - 128 || v->nnzb > INT32_MAX ||
      !bsrg_mul_ok(v->block_height, v->block_width, &block) || block > INT32_MAX)
    return wants_fewer;
  for (int i = 0; i < COVERS; ++i)
    if (bsrg_regroup_most_blocks(v, covers[i].shape) > INT32_MAX / 128) return wants_fewer;
  return NULL;
}

/* ---- the plan ----------------------------------------------------------------------------------- */

static void free_plan(void *plan) { bsrg_regrouped_free(plan); }

static void *make_plan(bsrg_structure *structure) {
  const bsrg_block_shape shape = choose_shape(&structure->view);
  return shape.height ? bsrg_regroup(&structure->view, shape, &bsrg_sampled_lists, false) : NULL;
}

const bsrg_family_ops bsrg_sampled_covers = {
    .family = BSRG_COVER, .make_plan = make_plan, .free_plan = free_plan};

bsrg_sampled_args bsrg_sampled_of_cover(const bsrg_sampled_args *args, const bsrg_regrouped *cover) {
  bsrg_sampled_args child = *args;
  child.pattern = cover->child;
  child.values = child.out = NULL;
  return child;
}

double bsrg_sampled_cover_bytes(const bsrg_sampled_args *args, const bsrg_regrouped *cover) {
  const bsrg_structure_view *child = &cover->child->view;
  const double elements = (double)child->nnzb * (double)(child->block_height * child->block_width);
  return (args->beta != 0 ? 2 : 1) * copy_bytes(&args->pattern->view, elements);
}

/* ---- launch ------------------------------------------------------------------------------------- */

bsrg_status bsrg_sampled_launch_cover(const bsrg_sampled_args *args, const bsrg_regrouped *cover,
                                      bsrg_gpu gpu, bsrg_error *error) {
  const bsrg_structure_view *v = &cover->child->view;
  const CUstream stream = (CUstream)args->stream;
  const int key = BSRG_COVER;
  const size_t bytes = 2 * (size_t)v->nnzb * (size_t)(v->block_height * v->block_width);
  CUdeviceptr scratch;
  bsrg_status status = bsrg_scratch_alloc(gpu.api, gpu.device, bytes, stream, &scratch, error);
  if (status != BSRG_OK) return status;
  bsrg_sampled_args child = bsrg_sampled_of_cover(args, cover);
  child.values = child.out = (void *)(uintptr_t)scratch;
  if (args->beta != 0)
    status = bsrg_regroup_pack(args->pattern, key, cover, args->values, scratch, gpu, stream, error);
  if (status == BSRG_OK) status = bsrg_sampled_launch_hopper(&child, cover->child_plan, gpu, error);
  if (status == BSRG_OK)
    status = bsrg_regroup_unpack(args->pattern, key, cover, scratch, args->out, gpu, stream, error);
  return bsrg_scratch_free(gpu.api, scratch, stream, status, error);
}
