/* One launcher a kernel family: from a validated product to the parameters of its kernel. */
#ifndef BSRG_LAUNCH_H
#define BSRG_LAUNCH_H

#include "uploads.h"

/* NULL when TMA can address the operands of args, else what it needs of them. */
const char *bsrg_tall_layout_obstacle(const bsrg_matmul_args *args);

bsrg_status bsrg_launch_tall(const bsrg_matmul_args *args, const bsrg_plan *plan, const bsrg_uploads *uploads,
                             const bsrg_cuda_api *api, bsrg_device_state *device, bsrg_error *error);
bsrg_status bsrg_launch_portable(const bsrg_matmul_args *args, const bsrg_uploads *uploads,
                                 const bsrg_cuda_api *api, bsrg_device_state *device, bsrg_error *error);

#endif
