/* Products with batches of dense operands, as few single ones as their strides allow. */
#ifndef BSRG_BATCH_H
#define BSRG_BATCH_H

#include "family.h"

/* Takes dimensions of the batch as further columns of x, c and y wherever all of these continue along it at the distance
 * of their columns. What is left of the batch takes a product for each matrix. */
void bsrg_batch_fold(bsrg_matmul_args *args);

/* Whether the next matrix of a batch, so far away, begins where the columns of one would go on; and that one with the columns of
 * `count` of them. The number fits. */
bool bsrg_batch_continues(const bsrg_dense *matrix, int64_t stride);
void bsrg_batch_extend(bsrg_dense *matrix, int64_t count, int64_t stride);

/* ---- batch_join.c: batches of one dimension, whose values are one ---- */

/* As one product with the columns of all matrices. Operands whose matrices follow one another along the columns stay where they
 * are, and decide in which order others are copied, the data of which is NULL until there is memory. */
typedef struct bsrg_joined {
  bsrg_matmul_args args;
  bool copy_x, copy_c, copy_y; /* C is copied to where Y goes */
} bsrg_joined;
/* Not where vectors along the columns begin anew with each matrix. */
bool bsrg_batch_can_join(const bsrg_matmul_args *args);
bsrg_joined bsrg_batch_join(const bsrg_matmul_args *args);
/* An operand's matrices as the heads of a tensor, whose rows they have; and the same in its copy. */
bsrg_tensor bsrg_batch_tensor(const bsrg_dense *one, int64_t count, int64_t stride);
bsrg_tensor bsrg_joined_tensor(const bsrg_dense *all, int64_t count);

/* ---- batch_stack.c: batches of one dimension, whose values are not one ---- */

bool bsrg_batch_can_stack(const bsrg_matmul_args *args);
/* Some matrices from `first` on as one product; returns how many. */
int64_t bsrg_batch_stack(const bsrg_matmul_args *args, int64_t first, bsrg_matmul_args *stacked);

/* batch_columns.c: the products of a batch of one dimension on a GPU, by one or more of `multiply`. */
typedef bsrg_status (*bsrg_multiply)(const bsrg_matmul_args *args, bsrg_gpu gpu, bsrg_error *error);
bsrg_status bsrg_batch_multiply(const bsrg_matmul_args *args, bsrg_gpu gpu, bsrg_multiply multiply,
                                bsrg_error *error);

bool bsrg_batch_is_empty(const bsrg_batch *batch);
/* Steps to the next matrix; false behind the last one. */
bool bsrg_batch_next(const bsrg_batch *batch, int64_t *position);
/* Takes away the last dimension, and returns it. */
bsrg_batch bsrg_batch_take_last(bsrg_batch *batch);
/* The product of one matrix. */
bsrg_matmul_args bsrg_batch_at(const bsrg_matmul_args *args, const int64_t *position);

#endif
