/* Kernel families: each says what it can compute, what that would cost, and how it runs.
 *
 * A product on a GPU goes: planner.c asks every family that admits it for a prediction, the best one's launcher
 * fills its kernel's parameters. A new family is one row of the table in planner.c. */
#ifndef BSRG_FAMILY_H
#define BSRG_FAMILY_H

#include "driver.h"
#include "internal.h"

/* What a launcher needs beside the product. */
typedef struct bsrg_gpu {
  const bsrg_cuda_api *api;
  bsrg_device_state *device;
} bsrg_gpu;

/* What predictions and schedules are made for: an H200 with the name, the SMs and the memory of this GPU. */
bsrg_chip bsrg_chip_of(bsrg_gpu gpu);

typedef struct bsrg_family_ops {
  bsrg_family family;
  /* NULL when the family can compute a product of this structure and dtype, else what it needs. */
  const char *(*obstacle)(const bsrg_structure_view *view, bsrg_dtype dtype, int sm_arch);
  /* NULL when n columns suit it. The function itself is NULL where any number does. */
  const char *(*columns_obstacle)(int64_t n);
  /* NULL when the operands' addresses and strides suit it. Likewise NULL itself where any do. */
  const char *(*layout_obstacle)(const bsrg_matmul_args *args);
  /* What is worked out once from a structure, on any machine; NULL when memory ran out. Only called without an
   * obstacle. */
  void *(*make_plan)(bsrg_structure *structure);
  /* Whether a product of n columns wants another one, for few columns, and that one, which may also be the first. NULL where
   * the same serves all. */
  bool (*wants_low)(const bsrg_structure_view *view, int64_t n, int64_t sm_count);
  void *(*make_low_plan)(bsrg_structure *structure);
  void (*free_plan)(void *plan);
  /* Fills all of the candidate but family and supported. Only called without an obstacle. */
  void (*predict)(const bsrg_matmul_args *args, const void *plan, const bsrg_chip *chip,
                  bsrg_candidate *candidate);
  bsrg_status (*launch)(const bsrg_matmul_args *args, const void *plan, bsrg_gpu gpu, bsrg_error *error);
  /* Of matrices whose last blocks are partial (edges.h): the kernels read zeros where X ends before the last block column
   * does, and write nothing where Y ends before the last block row. Others get operands of whole blocks. */
  bool clips_x, clips_y;
} bsrg_family_ops;

extern const bsrg_family_ops bsrg_tall_family;     /* tall_plan.c, tall_launch.c */
extern const bsrg_family_ops bsrg_stream_family;   /* stream_plan.c, stream_launch.c */
extern const bsrg_family_ops bsrg_regroup_family;  /* regroup.c, regroup_family.c */
extern const bsrg_family_ops bsrg_align_family;    /* align.c */
extern const bsrg_family_ops bsrg_narrow_family;   /* narrow_plan.c, narrow_launch.c */
extern const bsrg_family_ops bsrg_portable_family; /* portable.c */
extern const bsrg_family_ops bsrg_kmajor_family;   /* kmajor_plan.c, kmajor_launch.c */
extern const bsrg_family_ops bsrg_widen_family;    /* widen.c */
extern const bsrg_family_ops bsrg_kstream_family;  /* kstream.c */

/* Sampled products have kernels of their own but plan like families (sampled_plan.c, sampled_cover.c): make_plan and
 * free_plan only. The second's plan is a bsrg_regrouped. */
extern const bsrg_family_ops bsrg_sampled_lists, bsrg_sampled_covers;

/* The family's plan of a structure, made at the first call. low: the one for few columns, where it has one. */
bsrg_status bsrg_plan_get(bsrg_structure *structure, const bsrg_family_ops *ops, bool low, const void **plan,
                          bsrg_error *error);
/* The family to compute a product with on a chip: the one that args names, or the fastest by prediction. */
bsrg_status bsrg_choose_family(const bsrg_matmul_args *args, const bsrg_chip *chip,
                               const bsrg_family_ops **ops, const void **plan, bsrg_error *error);
/* Likewise, and what it predicts. says_why: with a reason. */
bsrg_status bsrg_choose_candidate(const bsrg_matmul_args *args, const bsrg_chip *chip, bool says_why,
                                  const bsrg_family_ops **ops, const void **plan, bsrg_candidate *best,
                                  bsrg_error *error);
/* Likewise, of a chip as bsrg_chip_of describes it. The structure remembers the last answer: to ask all families takes
 * a tenth of what a launch does. */
bsrg_status bsrg_choose_again(const bsrg_matmul_args *args, const bsrg_chip *chip,
                              const bsrg_family_ops **ops, const void **plan, bsrg_error *error);

/* Writes a candidate's reason, unless nobody is going to read it: a launch has no time for that. */
void bsrg_set_reason(bsrg_candidate *candidate, const char *format, ...) BSRG_PRINTF(2, 3);
/* A candidate of zeros whose reason is wanted or not. */
bsrg_candidate bsrg_new_candidate(bsrg_family family, bool says_why);
bool bsrg_says_why(const bsrg_candidate *candidate);

/* ---- shared by the families' plans (planner.c) ------------------------------------------------ */

/* Lengths that differ this much are worth sorting; below, natural order keeps neighbours in L2 together. */
static inline bool bsrg_is_skewed(int64_t longest, int64_t total, int64_t count) {
  return longest * count > 2 * total;
}
/* How many row tiles of a list, longest first, go before the sweeps over panels of columns: those that take longer than so many
 * of these, in which every worker has an equal share. At the end of the last sweep they would keep the chip waiting; where
 * there are so many products to a row of X, reading it again costs little. */
static const double bsrg_sweeps_of_first = 1.75;
static inline bool bsrg_goes_first(double length, double total, int64_t group, int64_t n_tiles,
                                   int64_t workers, double sweeps) {
  return group < n_tiles && length * (double)workers > sweeps * total * (double)group;
}
/* Whether the longest of `count` tiles is not much longer than all of them are on average. */
static inline bool bsrg_is_even(int64_t longest, int64_t total, int64_t count) {
  return 10 * longest * count <= 11 * total;
}
/* Of `most` workers as few as need no more rounds of even tiles, where only few of them are left over. Those at work stay
 * in step, so that they find what they share in L2, and have the power of the others: 1 to 2% where tiles are long. */
static inline int64_t bsrg_workers_in_step(int64_t tiles, int64_t most) {
  const int64_t fewest = bsrg_ceil_div(tiles, bsrg_max(1, bsrg_ceil_div(tiles, most)));
  return 20 * fewest >= 19 * most ? fewest : bsrg_min(most, tiles);
}
/* Writes 0 .. count - 1 into order, longest first, equal lengths in their order. false: no memory. */
bool bsrg_sort_longest_first(const int64_t *length, int64_t count, int64_t longest, int32_t *order);
/* Puts records of `size` bytes into that order. */
bool bsrg_sort_records(void *records, size_t size, const int64_t *length, int64_t count, int64_t longest);
/* The block rows, longest first where their lengths differ much, else in their order. */
bool bsrg_row_order(const bsrg_structure_view *view, int32_t *order);
/* What families say that only read blocks as they are stored. */
#define BSRG_ORDER_OBSTACLE "needs blocks as they are stored, not those of a transposed view"
/* A launch's fixed cost, fitted on an H200. */
#define BSRG_LAUNCH_SECONDS 4e-6
/* What every family must bring from device memory at least: A, X and Y once. */
double bsrg_compulsory_bytes(const bsrg_structure_view *view, bsrg_dtype dtype, int64_t n);

#endif
