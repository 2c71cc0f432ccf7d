/* A structure as the portable kernels, and those of softmax, read it. */
#ifndef BSRG_PORTABLE_H
#define BSRG_PORTABLE_H

#include "family.h"

typedef struct bsrg_portable_uploads {
  const int64_t *indptr;
  const int32_t *indices, *row_order;
  const int64_t *order; /* NULL unless the structure is a transposed one */
} bsrg_portable_uploads;

/* Uploads a structure at the first call. plan: the portable family's. */
bsrg_status bsrg_portable_upload(bsrg_structure *structure, const void *plan, bsrg_gpu gpu,
                                 bsrg_portable_uploads *out, bsrg_error *error);

#endif
