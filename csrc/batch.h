/* Products with batches of dense operands, as few single ones as their strides allow. */
#ifndef BSRG_BATCH_H
#define BSRG_BATCH_H

#include "family.h"
#include "views.h"

/* Takes dimensions of the batch as further columns of x, c and y wherever all of these continue along it at the distance
 * of their columns. What is left of the batch takes a product for each matrix. */
void bsrg_batch_fold(bsrg_matmul_args *args);

/* Whether the next matrix of a batch, so far away, begins where the lines of one would go on, or its columns; and that one with the columns of
 * `count` of them. The number fits. */
bool bsrg_batch_follows(int64_t lines, int64_t line_stride, int64_t stride);
bool bsrg_batch_continues(const bsrg_dense *matrix, int64_t stride);
void bsrg_batch_extend(bsrg_dense *matrix, int64_t count, int64_t stride);

/* Several matrices of a batch of one dimension as one product. Operands whose matrices follow one another as the lines of one do
 * stay where they are; others are copied, and the data of copies is NULL until there is memory. */
typedef struct bsrg_joined {
  bsrg_matmul_args args;
  int64_t count;               /* of matrices */
  bool below;                  /* in copies they lie below one another, not side by side */
  bool copy_x, copy_c, copy_y; /* C is copied to where Y goes */
} bsrg_joined;
/* An operand's matrices as the heads of a tensor, whose rows they have; and the same in its copy. */
bsrg_tensor bsrg_batch_tensor(const bsrg_dense *one, int64_t count, int64_t stride);
bsrg_tensor bsrg_joined_tensor(const bsrg_dense *all, int64_t count, bool below);
/* Copies the former to the latter on a GPU, or back. */
bsrg_status bsrg_batch_copy(const bsrg_tensor *matrices, const bsrg_tensor *joined, bool back, int64_t size,
                            bsrg_gpu gpu, void *stream, bsrg_error *error);

/* batch_join.c: with the columns of all, whose values are one. Operands that stay decide in which order others are copied. Not where
 * vectors along the columns begin anew with each matrix. */
bool bsrg_batch_can_join(const bsrg_matmul_args *args);
bsrg_joined bsrg_batch_join(const bsrg_matmul_args *args);

/* batch_stack.c: of some matrices from `first` on, whose values are not one, with their rows. */
bool bsrg_batch_can_stack(const bsrg_matmul_args *args);
bsrg_joined bsrg_batch_stack(const bsrg_matmul_args *args, int64_t first);

/* batch_columns.c: the products of a batch of one dimension on a GPU, by one or more of `multiply`. */
typedef bsrg_status (*bsrg_multiply)(const bsrg_matmul_args *args, bsrg_gpu gpu, bsrg_error *error);
bsrg_status bsrg_batch_multiply(const bsrg_matmul_args *args, bsrg_gpu gpu, bsrg_multiply multiply,
                                bsrg_error *error);

bool bsrg_batch_is_empty(int ndim, const int64_t *shape);
/* Steps to the next matrix; false behind the last one. */
bool bsrg_batch_next(int ndim, const int64_t *shape, int64_t *position);
/* Where the matrix of a position is, in elements. Unsigned: strides of operands without elements can be any. */
uint64_t bsrg_batch_offset(int ndim, const int64_t *strides, const int64_t *position);
/* All matrices of a batch, of which `dense` is the first. */
bsrg_view bsrg_batch_view(const char *name, const bsrg_dense *dense, int ndim, const int64_t *shape,
                          const int64_t *strides, int64_t item);
/* Whether two dimensions, of which the second has so many steps, are steps of one as far as an operand goes. */
bool bsrg_batch_is_one(const int64_t *strides, int d, int64_t count);
/* Takes away the last dimension, and returns it. */
bsrg_batch bsrg_batch_take_last(bsrg_batch *batch);
/* The product of one matrix; and those of `count` from `first` on, of a batch of one dimension. */
bsrg_matmul_args bsrg_batch_at(const bsrg_matmul_args *args, const int64_t *position);
bsrg_matmul_args bsrg_batch_part(const bsrg_matmul_args *args, int64_t first, int64_t count);

#endif
