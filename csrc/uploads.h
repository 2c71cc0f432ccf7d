/* Device copies of a structure and its plans. */
#ifndef BSRG_UPLOADS_H
#define BSRG_UPLOADS_H

#include "family.h"

enum { BSRG_UPLOAD_PARTS = 12 }; /* at most */

typedef struct bsrg_upload_part {
  const void *source;
  size_t bytes;
} bsrg_upload_part;

struct bsrg_uploads {
  bsrg_uploads *next;
  int device, key;
  bool borrowed; /* the parts lie in memory that is freed elsewhere */
  CUdeviceptr parts[BSRG_UPLOAD_PARTS];
};

/* What tells the lists of a structure's plans apart: the plan's family, and whether it is the one for few columns. */
static inline int bsrg_upload_key(bsrg_family family, bool low) {
  return (int)family + (low ? BSRG_FAMILY_COUNT : 0);
}
/* The device copies of a plan's parts, in their order, uploaded at the first call: later ones ignore `parts`. */
bsrg_status bsrg_uploads_get(bsrg_structure *structure, int key, const bsrg_upload_part *parts, int count,
                             bsrg_gpu gpu, const CUdeviceptr **out, bsrg_error *error);
/* The same for a list of the caller's, which frees it with bsrg_uploads_destroy. */
bsrg_status bsrg_uploads_get_in(_Atomic(bsrg_uploads *) *list, int key, const bsrg_upload_part *parts,
                                int count, bsrg_gpu gpu, const CUdeviceptr **out, bsrg_error *error);

#endif
