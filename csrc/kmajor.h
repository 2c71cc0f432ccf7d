/* The kmajor family: products of tf32 and of 8-bit floats on Hopper. Kernels in kernels/sm90/kmajor.cuh. */
#ifndef BSRG_KMAJOR_H
#define BSRG_KMAJOR_H

#include "tall.h"

/* The tall family's tiles, and their entries with blocks by number. */
typedef struct bsrg_kmajor_plan {
  const bsrg_tall_plan *tall; /* belongs to the structure */
  bsrg_kmajor_entry *entries;
} bsrg_kmajor_plan;

/* Which operands are copied first, so that all are K-major: the elements along k adjacent. */
typedef struct bsrg_kmajor_copies {
  bool values, x;
} bsrg_kmajor_copies;
bsrg_kmajor_copies bsrg_kmajor_copies_for(const bsrg_matmul_args *args);
/* What copying them, so many bytes read and written, takes. */
double bsrg_kmajor_copy_seconds(bsrg_kmajor_copies copies, double bytes, const bsrg_chip *chip);
/* For the reason of a candidate: what is copied before. */
const char *bsrg_kmajor_copied(bsrg_kmajor_copies copies);
/* Of X copied so. */
size_t bsrg_kmajor_x_bytes(const bsrg_matmul_args *args);
/* Copies X to `target`, and has *x as it lies there. */
bsrg_status bsrg_kmajor_copy_x(const bsrg_matmul_args *args, CUdeviceptr target, bsrg_gpu gpu, bsrg_dense *x,
                               bsrg_error *error);
/* A product of operands that are K-major, and one that copies those first that are not. */
typedef bsrg_status bsrg_kmajor_multiply(const bsrg_matmul_args *args, const void *plan, bsrg_gpu gpu,
                                         bsrg_error *error);
bsrg_status bsrg_kmajor_launch_on_copies(const bsrg_matmul_args *args, const void *plan,
                                         bsrg_kmajor_multiply *product, bsrg_gpu gpu, bsrg_error *error);
/* Elements from a column of such an X to the next one, for maps: a single one has no stride. */
int64_t bsrg_kmajor_pitch(const bsrg_matmul_args *args);

/* How the tiles of a plan are computed for n columns. */
typedef struct bsrg_kmajor_schedule {
  int32_t pair;    /* CTAs of a cluster: 1, or 2 that share A */
  int32_t n_tiles; /* column tiles of a cluster */
  int32_t group, lead;
  bool in_step; /* for as few clusters as need no more rounds */
} bsrg_kmajor_schedule;
bsrg_kmajor_schedule bsrg_kmajor_schedule_for(const bsrg_matmul_args *args, const bsrg_kmajor_plan *plan,
                                              int64_t sm_count);

/* How the kernels name the dtype of Y. */
static inline int32_t bsrg_kmajor_out(const bsrg_matmul_args *args) {
  const bsrg_dtype out = bsrg_out_dtype(args);
  return out == BSRG_F16 ? BSRG_KMAJOR_F16 : out == BSRG_BF16 ? BSRG_KMAJOR_BF16 : BSRG_KMAJOR_F32;
}

/* The tiles of a transposed copy of elements of `item` bytes. */
void bsrg_turn_split(bsrg_turn_params *p, int64_t item);

const char *bsrg_kmajor_obstacle(const bsrg_structure_view *view, bsrg_dtype dtype, int sm_arch);
const char *bsrg_kmajor_columns_obstacle(int64_t n);
const char *bsrg_kmajor_layout_obstacle(const bsrg_matmul_args *args);
void *bsrg_kmajor_make_plan(bsrg_structure *structure);
void bsrg_kmajor_free_plan(void *plan);
void bsrg_kmajor_predict(const bsrg_matmul_args *args, const void *plan, const bsrg_chip *chip,
                         bsrg_candidate *candidate);

#endif
