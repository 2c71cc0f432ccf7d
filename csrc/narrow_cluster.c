/* The narrow family's kernels that share X over a cluster: what they are told of a structure, what that costs, and how
 * they are launched. */
#include "dense.h"
#include "narrow.h"
#include "tensor_map.h"

#include <math.h>
#include <stdlib.h>

enum { STRIP = BSRG_NARROW_CLUSTER_STRIP, STAGE_K = BSRG_NARROW_CLUSTER_STAGE_K };

/* Clusters of one CTA an SM that an H100 or H200 has room for. */
static int64_t at_once(int32_t parts) {
  return parts == 4 ? BSRG_NARROW_CLUSTERS_OF_FOUR : BSRG_NARROW_SMS / 2;
}

static int64_t rounds_of(const bsrg_narrow_cluster *c) {
  return bsrg_ceil_div(c->clusters, at_once(c->parts));
}

/* Fitted on an H100, the first two on an H200: launch, first loads and sums on their way, of which two parts of k have fewer;
 * the same for another round; what a warp takes for a block of 512 bytes once others are done; X through an SM, and the share
 * of that time in which A has to wait for it. */
static const double four_parts_seconds = 4.8e-6, two_parts_seconds = 4.1e-6, round_seconds = 4e-6;
static const double block_seconds = 0.13e-6, sm_x_bytes_per_s = 150e9, x_share = 0.6;
static const double memory_share = 0.95;

double bsrg_narrow_cluster_seconds(const bsrg_structure_view *v, const bsrg_narrow_cluster *c,
                                   double hbm_bytes, const bsrg_chip *chip) {
  const double rounds = (double)rounds_of(c);
  const double memory = hbm_bytes / (chip->hbm_bytes_per_s * memory_share);
  const double x = rounds * c->stages * BSRG_NARROW_CLUSTER_STAGE_BYTES / sm_x_bytes_per_s;
  const double longest = c->longest * ((double)v->block_width / 16) * block_seconds;
  return (c->parts == 4 ? four_parts_seconds : two_parts_seconds) + (rounds - 1) * round_seconds +
         x_share * x + fmax(memory, longest);
}

double bsrg_narrow_cluster_l2_bytes(const bsrg_structure_view *v, const bsrg_narrow_cluster *c) {
  const double of_block = (double)(2 * v->block_height * v->block_width);
  return (double)v->nnzb * of_block +
         (double)c->clusters * c->parts * c->stages * BSRG_NARROW_CLUSTER_STAGE_BYTES;
}

/* Masks for each block, at most: otherwise rows have next to nothing, and a plan must not take more than its structure. */
enum { MOST_MASKS = 8 };

/* Sizes for so many parts of k; false where a part has too many stages, or all of them too many masks. */
static bool divide(const bsrg_structure_view *v, int32_t parts, bsrg_narrow_cluster *c) {
  const int64_t all = v->block_rows;
  const int64_t stages = bsrg_ceil_div(bsrg_whole_cols(v), (int64_t)STAGE_K * parts);
  const int64_t most = bsrg_min(INT32_MAX, MOST_MASKS * v->nnzb);
  if (stages > BSRG_NARROW_CLUSTER_MOST_STAGES || all > most / (parts * stages)) return false;
  const int64_t room = at_once(parts);
  const int64_t rounds = bsrg_ceil_div(all, room * BSRG_NARROW_CLUSTER_STRIPS);
  int64_t strips = bsrg_ceil_div(all, room * rounds);
  if (parts == 4) strips += strips % 2; /* rows of a CTA in groups of eight */
  *c = (bsrg_narrow_cluster){.parts = parts,
                             .stages = (int32_t)stages,
                             .strips = (int32_t)strips,
                             .clusters = (int32_t)bsrg_ceil_div(all, strips)};
  return true;
}

static bool place_blocks(const bsrg_structure_view *v, bsrg_narrow_cluster *c) {
  const size_t lists = (size_t)(v->block_rows * c->parts);
  c->first = malloc(sizeof(*c->first) * (lists + 1));
  c->masks = calloc(lists * (size_t)c->stages, sizeof(*c->masks));
  if (!c->first || !c->masks) return false;
  const int log2_in_stage = v->block_width == 16 ? 4 : 3; /* block columns of a stage */
  const int64_t in_part = (int64_t)c->stages << log2_in_stage;
  int64_t block = 0;
  for (int64_t row = 0; row < v->block_rows; ++row)
    for (int64_t part = 0; part < c->parts; ++part) {
      const int64_t list = row * c->parts + part, begin = block;
      uint16_t *masks = c->masks + list * c->stages;
      c->first[list] = (int32_t)block;
      for (; block < v->indptr[row + 1] && v->indices[block] < (part + 1) * in_part; ++block) {
        const int64_t place = v->indices[block] - part * in_part, stage = place >> log2_in_stage;
        masks[stage] |= (uint16_t)(1u << (place - (stage << log2_in_stage)));
      }
      c->longest = (int32_t)bsrg_max(c->longest, block - begin);
    }
  c->first[lists] = (int32_t)block;
  return true;
}

static bool suits(const bsrg_structure_view *v) {
  return (v->block_width == 16 || v->block_width == 32) && v->block_height <= STRIP && v->nnzb > 0 &&
         v->nnzb <= INT32_MAX && v->column_order == BSRG_ASCENDING && bsrg_whole_cols(v) <= INT32_MAX;
}

bool bsrg_narrow_make_cluster(const bsrg_structure_view *v, bsrg_narrow_cluster *best) {
  if (!suits(v)) return true;
  const bsrg_chip chip = bsrg_chip_h200();
  const double bytes = bsrg_compulsory_bytes(v, BSRG_F16, BSRG_NARROW_MAX_N);
  double best_seconds = INFINITY; /* of rows whose parts are alike */
  for (int32_t parts = 2; parts <= 4; parts += 2) {
    bsrg_narrow_cluster c;
    if (!divide(v, parts, &c)) continue;
    const double seconds = bsrg_narrow_cluster_seconds(v, &c, bytes, &chip);
    if (seconds >= best_seconds) continue;
    best_seconds = seconds;
    *best = c;
  }
  return !best->parts || place_blocks(v, best);
}

void bsrg_narrow_free_cluster(bsrg_narrow_cluster *c) {
  free(c->first);
  free(c->masks);
  *c = (bsrg_narrow_cluster){0};
}

bsrg_status bsrg_narrow_launch_cluster(const bsrg_matmul_args *args, const bsrg_narrow_cluster *c,
                                       const bsrg_narrow_params *narrow, const CUdeviceptr *uploads,
                                       bsrg_gpu gpu, bsrg_error *error) {
  const bsrg_structure_view *v = &args->a->view;
  const int32_t rest = BSRG_NARROW_CLUSTER_REST_BYTES(c->parts, c->strips);
  const int32_t room = (BSRG_NARROW_CLUSTER_SHARED_BYTES - rest) / BSRG_NARROW_CLUSTER_STAGE_BYTES;
  bsrg_narrow_cluster_params p = {.narrow = *narrow,
                                  .first = (const int32_t *)(uintptr_t)uploads[0],
                                  .masks = (const uint16_t *)(uintptr_t)uploads[1],
                                  .stages = c->stages,
                                  .ring = (int32_t)bsrg_min(room, BSRG_NARROW_CLUSTER_RING),
                                  .strips = c->strips,
                                  .all_strips = (int32_t)v->block_rows,
                                  .y_rows = (int32_t)v->rows};
  const bool by_columns = !bsrg_map_can_describe(&args->x);
  bsrg_dense x = args->x;
  if (by_columns) bsrg_dense_turn(&x);
  p.x_columns = by_columns ? narrow->n : 64;
  const uint32_t box = BSRG_NARROW_CLUSTER_BOX;
  const bsrg_map_shape shape = {2,
                                {(uint64_t)x.cols, (uint64_t)x.rows, 0},
                                {(uint64_t)x.row_stride, 0},
                                {64, by_columns ? (uint32_t)narrow->n : box, 0},
                                CU_TENSOR_MAP_SWIZZLE_128B};
  const bsrg_status status = bsrg_encode_map(gpu.api, args->dtype, x.data, &shape, &p.x, error);
  if (status != BSRG_OK) return status;
  const int first = args->dtype == BSRG_F16 ? BSRG_KERNEL_NARROW_CLUSTER_F16_P2_W16
                                            : BSRG_KERNEL_NARROW_CLUSTER_BF16_P2_W16;
  const int kernel = first + 4 * (c->parts == 4) + 2 * (v->block_width == 32) + by_columns;
  return bsrg_launch(gpu.api, gpu.device, (bsrg_kernel_id)kernel, (int64_t)c->clusters * c->parts, 1,
                     (CUstream)args->stream, &p, error);
}
