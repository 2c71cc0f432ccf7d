/* Products of two block-sparse matrices on a GPU: what their files share.
 *
 * Both operands are seen by lines, the blocks that make a row or a column of output tiles: those of A are its block
 * rows, those of B its block columns, the block rows of B transposed. Block k of a line of A meets block k of one of B. */
#ifndef BSRG_PAIRS_H
#define BSRG_PAIRS_H

#include "family.h"

/* Which blocks a structure stores, as bits by block row: for bsrg_pairs_operand, which says what the arrays are. */
struct bsrg_pair_index {
  uint32_t *bits;
  int32_t *first, *order; /* order: NULL where the view has none */
  int32_t
      *tiles; /* NULL where lines are about equally long, else row tiles as A and column_tiles of them as B */
  int64_t words, row_tiles, column_tiles;
};

/* Masks of more bytes than this are not made. */
enum { BSRG_PAIR_MASK_BYTES = 64 << 20 };
int64_t bsrg_pair_mask_bytes(const bsrg_structure_view *view);

/* The index of a structure of block heights that are multiples of 64, made at the first call. */
bsrg_status bsrg_pair_index_get(bsrg_structure *structure, const bsrg_pair_index **out, bsrg_error *error);

/* NULL if the Hopper kernels can compute it, else what they need. */
const char *bsrg_pairs_hopper_obstacle(const bsrg_matmul_sparse_args *args, const bsrg_gpu_info *gpu);
/* Whether they can store Y, which is copied otherwise. */
bool bsrg_pairs_hopper_takes(const bsrg_dense *y);
bsrg_status bsrg_pairs_hopper_launch(const bsrg_matmul_sparse_args *args, bsrg_gpu gpu, bsrg_error *error);
const char *bsrg_pairs_portable_obstacle(const bsrg_matmul_sparse_args *args, const bsrg_gpu_info *gpu);
/* What every family must bring from device memory at least: both operands and the result (pairs_predict.c). */
double bsrg_pairs_bytes(const bsrg_matmul_sparse_args *args);
/* pairs: stored blocks that meet. */
void bsrg_pairs_portable_predict(const bsrg_matmul_sparse_args *args, double pairs, const bsrg_chip *chip,
                                 bsrg_candidate *candidate);
bsrg_status bsrg_pairs_portable_launch(const bsrg_matmul_sparse_args *args, bsrg_gpu gpu, bsrg_error *error);

/* ---- with b as a dense matrix (pairs_spread.c) ------------------------------------------------------ */

const char *bsrg_pairs_spread_obstacle(const bsrg_matmul_sparse_args *args, const bsrg_gpu_info *gpu);
/* Whether that is little memory beside the operands and the result. */
/* The product with `b` in place of B, or with some columns of both and of C and Y, which the caller takes. */
bsrg_matmul_args bsrg_pairs_spread_product(const bsrg_matmul_sparse_args *args, const bsrg_dense *b);
bool bsrg_pairs_spread_has_room(const bsrg_matmul_sparse_args *args);
double bsrg_pairs_spread_copy_seconds(const bsrg_matmul_sparse_args *args, const bsrg_chip *chip);
/* Says also whether some family can compute the product. */
bsrg_status bsrg_pairs_spread_predict(const bsrg_matmul_sparse_args *args, const bsrg_chip *chip,
                                      bsrg_candidate *candidate, bsrg_error *error);
/* Blocks may be partial. */
bsrg_status bsrg_pairs_spread_launch(const bsrg_matmul_sparse_args *args, bsrg_gpu gpu, bsrg_error *error);

/* ---- which of them (pairs_predict.c) ---------------------------------------------------------------- */

/* Of BSRG_SPREAD and BSRG_PORTABLE the one that takes less time by prediction, for about as many blocks that meet as if columns
 * of A had equally many. */
bsrg_status bsrg_pairs_choose_other(const bsrg_matmul_sparse_args *args, const bsrg_chip *chip,
                                    bsrg_family *family, bsrg_error *error);

#endif
