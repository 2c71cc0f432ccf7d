/* Device copies of a structure and its plans. */
#ifndef BSRG_UPLOADS_H
#define BSRG_UPLOADS_H

#include "family.h"

enum { BSRG_UPLOAD_PARTS = 10 }; /* at most */

typedef struct bsrg_upload_part {
  const void *source;
  size_t bytes;
} bsrg_upload_part;

struct bsrg_uploads {
  bsrg_uploads *next;
  int device;
  bsrg_family family;
  CUdeviceptr parts[BSRG_UPLOAD_PARTS];
};

/* The device copies of a family's parts, in their order, uploaded at the first call: later ones ignore `parts`. */
bsrg_status bsrg_uploads_get(bsrg_structure *structure, bsrg_family family, const bsrg_upload_part *parts,
                             int count, bsrg_gpu gpu, const CUdeviceptr **out, bsrg_error *error);
/* The same for a list of the caller's, which frees it with bsrg_uploads_destroy. */
bsrg_status bsrg_uploads_get_in(_Atomic(bsrg_uploads *) *list, bsrg_family family,
                                const bsrg_upload_part *parts, int count, bsrg_gpu gpu,
                                const CUdeviceptr **out, bsrg_error *error);

#endif
