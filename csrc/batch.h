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
