/* Matrices whose last block row or column is partial: blocks that reach beyond the matrix.
 *
 * What is stored there is 0: the callers bring it so, and everything that the library writes has it so. On the CPU
 * nobody reads it. The kernels of a GPU compute whole blocks: zeros of A meet rows of X that there are not. Where
 * they read X and write Y by TMA, its maps end where the matrices do; for others X is copied to memory that goes on
 * with zeros up to the end of the last blocks, and Y from such memory. */
#ifndef BSRG_EDGES_H
#define BSRG_EDGES_H

#include "family.h"

/* ---- values: blocks as they are stored, of no transposed view --------------------------------- */

/* How many stored elements belong to the matrix. */
double bsrg_stored_elements(const bsrg_structure_view *v);
/* Sets elements of `size` bytes beyond the matrix to 0. */
void bsrg_cpu_clear_edges(const bsrg_structure_view *v, void *values, int64_t size);
/* The same on a GPU. */
bsrg_status bsrg_gpu_clear_edges(bsrg_structure *structure, void *values, bsrg_dtype dtype, bsrg_gpu gpu,
                                 CUstream stream, bsrg_error *error);
/* How many launches that takes: 1, or 0 without partial blocks. */
int64_t bsrg_clear_launches(const bsrg_structure_view *v);

/* ---- dense operands --------------------------------------------------------------------------- */

/* A matrix of rows x cols elements of `size` bytes in memory of its own, which is missing, its rows or columns at multiples of 128
 * bytes; the same in the order in which d lies; and how many bytes such a one takes, a multiple of 128. */
bsrg_dense bsrg_dense_of_lines(int64_t rows, int64_t cols, bool by_columns, int64_t size);
bsrg_dense bsrg_whole_dense(const bsrg_dense *d, int64_t rows, int64_t cols, int64_t size);
size_t bsrg_lines_bytes(const bsrg_dense *lines, int64_t size);
/* Copies d there, and zeros to what is beyond it. */
bsrg_status bsrg_copy_to_whole(const bsrg_dense *d, const bsrg_dense *whole, int64_t size, bsrg_gpu gpu,
                               CUstream stream, bsrg_error *error);

/* ---- products of BSR and dense matrices ------------------------------------------------------- */

/* The product that a family's kernels compute. The data of copies is NULL until there is memory. */
typedef struct bsrg_whole_product {
  bsrg_matmul_args args;
  bool copy_x, copy_c, copy_y; /* C is copied to where Y goes */
} bsrg_whole_product;

/* Whether there are copies; without any, the product is that of args. */
bool bsrg_needs_whole(const bsrg_family_ops *ops, const bsrg_matmul_args *args);
bsrg_whole_product bsrg_whole_product_of(const bsrg_family_ops *ops, const bsrg_matmul_args *args);
/* Adds to a candidate what copies cost, of so many bytes read and written in so many launches, and what `what` says of
 * them to its reason. */
void bsrg_copies_predict(int64_t launches, double bytes, const char *what, const bsrg_chip *chip,
                         bsrg_candidate *candidate);
/* The same of all of such a product. */
void bsrg_whole_predict(const bsrg_whole_product *whole, const bsrg_matmul_args *args, const bsrg_chip *chip,
                        bsrg_candidate *candidate);
bsrg_status bsrg_whole_launch(const bsrg_family_ops *ops, const bsrg_matmul_args *args, const void *plan,
                              bsrg_gpu gpu, bsrg_error *error);

#endif
