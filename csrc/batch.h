/* Products with batches of dense operands, as few single ones as their strides allow. */
#ifndef BSRG_BATCH_H
#define BSRG_BATCH_H

#include "internal.h"

/* Takes dimensions of the batch as further columns of x, c and y wherever all of these continue along it at the distance
 * of their columns. What is left of the batch takes a product for each matrix. */
void bsrg_batch_fold(bsrg_matmul_args *args);

bool bsrg_batch_is_empty(const bsrg_batch *batch);
/* Steps to the next matrix; false behind the last one. */
bool bsrg_batch_next(const bsrg_batch *batch, int64_t *position);
/* The product of one matrix. */
bsrg_matmul_args bsrg_batch_at(const bsrg_matmul_args *args, const int64_t *position);

#endif
