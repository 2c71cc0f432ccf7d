/* Device copies of a structure and its plan. */
#ifndef BSRG_UPLOADS_H
#define BSRG_UPLOADS_H

#include "driver.h"
#include "plan.h"

struct bsrg_uploads {
  bsrg_uploads *next;
  int device;
  CUdeviceptr entries, tiles;             /* the tall family's, 0 until it runs */
  CUdeviceptr indptr, indices, row_order; /* the portable family's */
};

/* The copies on a device that a family reads, uploaded at the first call. */
bsrg_status bsrg_uploads_get(bsrg_structure *structure, const bsrg_plan *plan, bsrg_family family,
                             const bsrg_cuda_api *api, bsrg_device_state *device, const bsrg_uploads **out,
                             bsrg_error *error);

#endif
