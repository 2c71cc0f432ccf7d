/* The narrow family: up to 64 columns, float16 and bfloat16, from sm_80 up. Kernels in kernels/sm80/narrow.cuh. */
#ifndef BSRG_NARROW_H
#define BSRG_NARROW_H

#include "family.h"

/* What the CTAs compute. Strips of long rows are cut into pieces, whose sums a second pass adds. */
typedef struct bsrg_narrow_list {
  /* Every row of Y once, or in all pieces of its split; most blocks first if skewed. */
  bsrg_narrow_item *items;
  bsrg_narrow_split *splits; /* strips in pieces */
  /* The block columns of item i from i * longest_item on, so that a CTA need not know its item to ask for them. NULL where
   * lengths differ so much that half of it would be empty. */
  int32_t *columns;
  int32_t item_count, split_count, slot_count;
  int32_t strip;        /* rows of a strip: 16, 32 or 64 */
  int32_t longest_item; /* blocks */
  double item_blocks;   /* sum of block_count over the items */
} bsrg_narrow_list;

typedef struct bsrg_narrow_plan {
  bsrg_narrow_list low;  /* strips of 16 rows, 32 where blocks are higher than 16 */
  bsrg_narrow_list high; /* of 64, for BSRG_NARROW_BY_TMA; none where blocks are no higher than 32: strip 0 */
} bsrg_narrow_plan;

void *bsrg_narrow_make_plan(bsrg_structure *structure);
void bsrg_narrow_free_plan(void *plan);
void bsrg_narrow_predict(const bsrg_matmul_args *args, const void *plan, const bsrg_chip *chip,
                         bsrg_candidate *candidate);

/* The kernels that compute a product. X waits in Hopper's larger shared memory where it can be copied or described by a tensor
 * map: rows or columns of adjacent elements that begin at multiples of 16 bytes. Up to 16 columns have so few bytes that
 * loads into registers take less time, but not if blocks are higher than 32 and X is column-major. */
typedef enum bsrg_narrow_kind { BSRG_NARROW_PLAIN, BSRG_NARROW_BY_RING, BSRG_NARROW_BY_TMA } bsrg_narrow_kind;
bsrg_narrow_kind bsrg_narrow_kind_of(const bsrg_structure_view *view, const bsrg_narrow_plan *plan,
                                     int sm_arch, const bsrg_dense *x);
static inline const bsrg_narrow_list *bsrg_narrow_list_of(const bsrg_narrow_plan *plan,
                                                          bsrg_narrow_kind kind) {
  return kind == BSRG_NARROW_BY_TMA && plan->high.strip ? &plan->high : &plan->low;
}
/* The columns that a kernel of the other kinds is compiled for, for n of X. */
int32_t bsrg_narrow_columns(int64_t n);

#endif
