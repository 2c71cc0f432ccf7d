/* Copies of dense matrices on a GPU, between any strides. Kernels in kernels/sm80/align_copy.cu. */
#ifndef BSRG_COPY_H
#define BSRG_COPY_H

#include "family.h"

/* 16-bit elements onto rows of few, whole vectors of 16 bytes, in which anything comes behind the source's. */
bsrg_status bsrg_copy_to_vectors(const bsrg_dense *source, const bsrg_dense *target, bsrg_gpu gpu,
                                 CUstream stream, bsrg_error *error);
/* Elements of 1, 2, 4 or 8 bytes, as many rows and columns as both have. */
bsrg_status bsrg_copy(const bsrg_dense *source, const bsrg_dense *target, int64_t size, bsrg_gpu gpu,
                      CUstream stream, bsrg_error *error);
static inline bsrg_tensor_operand bsrg_tensor_operand_of(const bsrg_tensor *t) {
  return (bsrg_tensor_operand){t->data, t->batch_stride, t->head_stride, t->row_stride, t->element_stride};
}

/* Elements of 1, 2, 4 or 8 bytes of as many batches, heads and rows, and zeros where the target's rows are longer. Batches or heads at
 * a distance of 0 in both are copied once. */
bsrg_status bsrg_copy_tensor(const bsrg_tensor *from, const bsrg_tensor *to, int64_t size, bsrg_gpu gpu,
                             CUstream stream, bsrg_error *error);

#endif
