/* What the core's files share with one another and with nobody else. */
#ifndef BSRG_INTERNAL_H
#define BSRG_INTERNAL_H

#include "bsrgemm.h"

#include <stdatomic.h>
#include <stdbool.h>

#if defined(__GNUC__)
#define BSRG_PRINTF(format_index, first) __attribute__((format(printf, format_index, first)))
#else
#define BSRG_PRINTF(format_index, first)
#endif

/* Writes the message and returns status, so that a failure reads `return bsrg_fail(error, ...)`. */
bsrg_status bsrg_fail(bsrg_error *error, bsrg_status status, const char *format, ...) BSRG_PRINTF(3, 4);

/* More columns than any memory has: predictions can round up to tiles without a second thought. */
#define BSRG_MOST_PLANNED ((int64_t)1 << 56)
enum { BSRG_MOST_SMS = 10000 };

/* false when the product does not fit in an int64_t. */
static inline bool bsrg_mul_ok(int64_t a, int64_t b, int64_t *out) {
  return !__builtin_mul_overflow(a, b, out);
}

/* Of sizes; the greatest number where the product does not fit. */
static inline int64_t bsrg_mul_saturated(int64_t a, int64_t b) {
  int64_t product;
  return bsrg_mul_ok(a, b, &product) ? product : INT64_MAX;
}

/* a + b - 1 may not fit: a number of columns can be any. */
static inline int64_t bsrg_ceil_div(int64_t a, int64_t b) { return a / b + (a % b > 0); }
static inline int64_t bsrg_min(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t bsrg_max(int64_t a, int64_t b) { return a > b ? a : b; }

/* The last block row and the last block column may reach beyond the matrix: sizes with all of their blocks, and how much
 * of a block row or column belongs to the matrix. */
static inline int64_t bsrg_whole_rows(const bsrg_structure_view *v) {
  return v->block_rows * v->block_height;
}
static inline int64_t bsrg_whole_cols(const bsrg_structure_view *v) { return v->block_cols * v->block_width; }
static inline int64_t bsrg_rows_of(const bsrg_structure_view *v, int64_t block_row) {
  return bsrg_min(v->block_height, v->rows - block_row * v->block_height);
}
static inline int64_t bsrg_cols_of(const bsrg_structure_view *v, int64_t block_col) {
  return bsrg_min(v->block_width, v->cols - block_col * v->block_width);
}
/* The length of a run of blocks from block p on, at most count, that all lie inside the matrix across, or 1 where block p
 * is partial. */
static inline int64_t bsrg_whole_run(const bsrg_structure_view *v, int64_t p, int64_t count) {
  if (v->cols == bsrg_whole_cols(v)) return count;
  for (int64_t i = 0; i < count; ++i)
    if (v->indices[p + i] == v->block_cols - 1) return bsrg_max(i, 1);
  return count;
}

static inline bool bsrg_is_8_bit(bsrg_dtype dtype) { return dtype == BSRG_F8_E4M3 || dtype == BSRG_F8_E5M2; }
static inline bool bsrg_is_half(bsrg_dtype dtype) { return dtype == BSRG_F16 || dtype == BSRG_BF16; }
/* Of C and Y. */
static inline bsrg_dtype bsrg_out_dtype(const bsrg_matmul_args *args) {
  return bsrg_is_8_bit(args->dtype) ? args->out_dtype : args->dtype;
}

typedef struct bsrg_uploads bsrg_uploads;       /* uploads.h */
typedef struct bsrg_mask_plan bsrg_mask_plan;   /* attention.h */
typedef struct bsrg_mask_link bsrg_mask_link;   /* likewise */
typedef struct bsrg_pair_index bsrg_pair_index; /* pairs.h */
typedef struct bsrg_stack bsrg_stack;

/* What the choice of a family follows from beside the structure (planner.c). Addresses count by their alignment, C where
 * it is read. */
typedef struct bsrg_choice_key {
  bsrg_dense x, y, c;
  uintptr_t values;
  double hbm_bytes_per_s;
  int dtype, out_dtype, family, precision, sm_arch, sm_count;
  bool y_padded, beta;
  /* Which scales there are: of A, of all its blocks, of X, of rows and of columns. */
  bool values_scale, block_scales, x_scale, row_scale, col_scale;
} bsrg_choice_key;

/* The last choice that was made for a structure. Who finds it in use chooses anew. */
typedef struct bsrg_choice {
  atomic_bool in_use;
  bsrg_family family; /* BSRG_AUTO: none yet */
  bsrg_choice_key key;
} bsrg_choice;

struct bsrg_structure {
  bsrg_structure_view view;             /* owns its arrays */
  _Atomic(bsrg_structure *) transposed; /* made at the first call that wants it */
  bsrg_structure *original;             /* of a transposed one, which belongs to it; else NULL */
  /* Of each family, made at the first product or question that needs it. */
  _Atomic(void *) plans[BSRG_FAMILY_COUNT];
  _Atomic(void *) low_plans[BSRG_FAMILY_COUNT]; /* for few columns */
  bsrg_choice choice;
  _Atomic(bsrg_uploads *) uploads; /* a list, one node a device and family, newest first */
  /* As a mask of attention: a list of the plans that it has a part in, newest first. attention_masks.c has its lock. */
  _Atomic(bsrg_mask_link *) mask_links;
  _Atomic(bsrg_pair_index *) pair_index; /* made at the first product with another block-sparse matrix */
  _Atomic(bsrg_stack *) stacks;          /* the pattern repeated: a list, newest first */
  uint64_t id;                           /* never used twice; 0 where the pattern is a GPU's */
  /* NULL or, where a GPU makes the pattern (dynamic.h), what for: the view has no indices and no indptr then, nnzb is the
   * capacity and an order that is not NULL says nothing but that this is a transposed reading. The original's. */
  struct bsrg_dynamic *dynamic;
};

/* planner.c: the GPU that a question is about, as backends know one. */
bsrg_gpu_info bsrg_question_gpu(const bsrg_question *question);

/* structure.c: the same pattern of blocks `times` as wide, stored one after the other whatever the order of those of a
 * transposed structure. */
bsrg_status bsrg_structure_widen(const bsrg_structure *structure, int64_t times, bsrg_structure **out,
                                 bsrg_error *error);
/* structure_stack.c: the pattern several times, along the diagonal of a larger matrix or else below one another, in which whole blocks
 * follow whole blocks: as often as the greatest power of two up to `most` for which there is memory, and not too many blocks. Belongs
 * to the structure, which it is if that is once. */
bsrg_structure *bsrg_structure_stack(bsrg_structure *structure, int64_t most, bool diagonal, int64_t *count);
/* structure.c: the sizes of a pattern, not its arrays. */
bsrg_status bsrg_check_sizes(const bsrg_pattern *pattern, bsrg_error *error);
/* For calls that do not take dynamic structures. */
bsrg_status bsrg_check_fixed(const bsrg_structure *structure, const char *name, bsrg_error *error);
/* Likewise, that find blocks by their columns. */
bsrg_status bsrg_check_ascending(const bsrg_structure *structure, const char *name, bsrg_error *error);
/* And of a view that what it views has such columns, too: B is read by its transposed pattern. */
bsrg_status bsrg_check_ascending_both(const bsrg_structure *structure, const char *name, bsrg_error *error);

/* Free what planner.c, uploads.c, attention_masks.c, pairs_index.c and structure_stack.c made for a structure. */
void bsrg_plans_destroy(bsrg_structure *structure);
void bsrg_uploads_destroy(bsrg_uploads *uploads);
void bsrg_mask_plans_destroy(bsrg_structure *mask);
void bsrg_pair_index_destroy(bsrg_pair_index *index);
void bsrg_stacks_destroy(bsrg_stack *stacks);

/* cpu/batch.c: args have been validated by bsrg_matmul, which turns products with A on the right into ones with the
 * transposed A on the left, and leaves one dimension of the batch or none. */
bsrg_status bsrg_cpu_matmul(const bsrg_matmul_args *args, bsrg_error *error);
/* gpu.c: likewise. */
bsrg_status bsrg_gpu_matmul(const bsrg_matmul_args *args, bsrg_error *error);
/* cpu/pairs.c, pairs.c: likewise, checked by bsrg_matmul_sparse. Y and C have settled strides. */
bsrg_status bsrg_cpu_matmul_sparse(const bsrg_matmul_sparse_args *args, bsrg_error *error);
bsrg_status bsrg_gpu_matmul_sparse(const bsrg_matmul_sparse_args *args, bsrg_error *error);
/* cpu/softmax.c: args have been validated by bsrg_softmax. */
bsrg_status bsrg_cpu_softmax(const bsrg_softmax_args *args, bsrg_error *error);

/* cpu/sampled.c, sampled_launch.c: args have been validated by bsrg_sampled_matmul, which turns products at the blocks of
 * a transposed pattern into ones at those of its original. There is at least one block. */
bsrg_status bsrg_cpu_sampled(const bsrg_sampled_args *args, bsrg_error *error);
bsrg_status bsrg_gpu_sampled(const bsrg_sampled_args *args, bsrg_error *error);

#endif
