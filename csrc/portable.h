/* A structure as the portable kernels, and those of softmax, read it. */
#ifndef BSRG_PORTABLE_H
#define BSRG_PORTABLE_H

#include "family.h"

typedef struct bsrg_portable_uploads {
  const int64_t *indptr;
  const int32_t *indices, *row_order;
  const int64_t *order; /* NULL unless the structure is a transposed one */
} bsrg_portable_uploads;

/* Plans and uploads a structure at the first call. */
bsrg_status bsrg_portable_upload(bsrg_structure *structure, bsrg_gpu gpu, bsrg_portable_uploads *out,
                                 bsrg_error *error);

/* What storing Y element by element takes beside vectors. */
double bsrg_portable_storing_seconds(const bsrg_dense *y, bool vectors);

/* portable_few.c: products of up to BSRG_FEW_MAX_N columns, of which A is read for a few at a time, of fewer than 2^31 rows and
 * blocks, with sides of at most BSRG_FEW_MAX_SIDE. */
enum { BSRG_FEW_MAX_SIDE = 1 << 30 };
void bsrg_few_predict(const bsrg_matmul_args *args, const bsrg_chip *chip, bsrg_candidate *candidate);
/* portable: all but the row tiles. Of fewer than 2^31 of these. */
bsrg_status bsrg_few_launch(const bsrg_matmul_args *args, const bsrg_portable_params *portable, bsrg_gpu gpu,
                            bsrg_error *error);

/* portable_eight.c: the scales of products of 8 bits, and these in tiles. */
bsrg_scaling bsrg_scaling_of(const bsrg_matmul_args *args);
/* Blocks are filled up to whole chunks: not those of which little is left then. */
bool bsrg_eight_suits(const bsrg_structure_view *view);
void bsrg_eight_predict(const bsrg_matmul_args *args, const bsrg_chip *chip, bsrg_candidate *candidate);
/* X in chunks of 16 k, those of a block's rows filled up with zeros: of `columns` one, then the next. They come in groups of
 * 1 << tile_bits, each with places eight apart. */
int64_t bsrg_eight_x_bytes(const bsrg_matmul_args *args, int64_t columns);
bsrg_status bsrg_eight_copy_x(const bsrg_matmul_args *args, int64_t columns, int32_t tile_bits,
                              CUdeviceptr target, bsrg_gpu gpu, bsrg_error *error);
/* portable: all but the row tiles. */
bsrg_status bsrg_eight_launch(const bsrg_matmul_args *args, const bsrg_portable_params *portable,
                              bsrg_gpu gpu, bsrg_error *error);

#endif
