/* The CUDA driver as the rest of the core sees it: found at first use, one state per device, kernels by table
 * row. */
#ifndef BSRG_DRIVER_H
#define BSRG_DRIVER_H

#include "cuda_api.h"
#include "internal.h"
#include "kernels.h"

#include "../kernels/params.h"

/* Streams that have a counter of their own, by which tiles are handed out: the first so many of a process. See
 * bsrg_launch_drawing for others. */
enum { BSRG_COUNTER_SLOTS = 1024 };

typedef struct bsrg_device_state {
  int index;
  CUdevice device;
  CUcontext context;    /* the primary context, shared with PyTorch and CuPy */
  CUstream upload;      /* non-blocking: uploads work while a caller's stream is being captured */
  CUmemoryPool scratch; /* keeps its memory between products */
  CUdeviceptr counters; /* BSRG_COUNTER_SLOTS zeros */
  /* Their ids: the driver gives a new stream the handle of one that was destroyed while it was busy. */
  unsigned long long counter_stream[BSRG_COUNTER_SLOTS];
  int counter_count;
  bool prepared[BSRG_KERNEL_COUNT], waits[BSRG_KERNEL_COUNT]; /* of kernels, see prepare_kernel */
  bsrg_gpu_info info;
} bsrg_device_state;

/* The driver's functions. BSRG_ERR_UNAVAILABLE says what is missing. */
bsrg_status bsrg_cuda(const bsrg_cuda_api **api, bsrg_error *error);
/* The device's state, made at the first call. BSRG_ERR_VALUE when there is no such device. */
bsrg_status bsrg_open_device(int index, const bsrg_cuda_api **api, bsrg_device_state **device,
                             bsrg_error *error);

/* Whether there are kernels for the device. */
bsrg_status bsrg_check_arch(const bsrg_gpu_info *info, bsrg_error *error);

/* BSRG_OK, or the driver's error in words: "cuLaunchKernelEx failed: CUDA_ERROR_...". */
bsrg_status bsrg_cuda_check(const bsrg_cuda_api *api, CUresult result, const char *call, bsrg_error *error);

/* Makes the device's primary context current; pass what it returned to bsrg_leave. */
bsrg_status bsrg_enter(const bsrg_cuda_api *api, const bsrg_device_state *device, bool *pushed,
                       bsrg_error *error);
void bsrg_leave(const bsrg_cuda_api *api, bool pushed);

/* Device memory with the given contents; the host waits for the copy, no other stream does. */
bsrg_status bsrg_upload(const bsrg_cuda_api *api, bsrg_device_state *device, const void *source, size_t bytes,
                        CUdeviceptr *out, bsrg_error *error);

/* Device memory for the length of a product, allocated and freed in the stream's order. */
bsrg_status bsrg_scratch_alloc(const bsrg_cuda_api *api, bsrg_device_state *device, size_t bytes,
                               CUstream stream, CUdeviceptr *out, bsrg_error *error);

/* Returns status or, where that is BSRG_OK, whether freeing worked. */
bsrg_status bsrg_scratch_free(const bsrg_cuda_api *api, CUdeviceptr scratch, CUstream stream,
                              bsrg_status status, bsrg_error *error);

/* Launches a row of the kernel table; parameters is the struct that the kernel takes by value. */
bsrg_status bsrg_launch(const bsrg_cuda_api *api, bsrg_device_state *device, bsrg_kernel_id kernel,
                        int64_t grid_x, int64_t grid_y, CUstream stream, void *parameters, bsrg_error *error);

/* The same, of a kernel whose CTAs draw tiles from *counter, a member of parameters that this sets: a number that is zero
 * when the kernel starts. Streams have one each. Where none can be promised to a kernel alone (a graph may be replayed
 * beside another of the same capture, the per-thread stream is many streams), it is scratch memory, set to zero in the
 * stream's order, if `drawn` says that this is worth it: that tiles take unequally long and are more than CTAs. Else it is
 * NULL, and tiles are dealt in turn. cluster: how many neighbouring CTAs are one; 0: as many as the table says. */
bsrg_status bsrg_launch_drawing(const bsrg_cuda_api *api, bsrg_device_state *device, bsrg_kernel_id kernel,
                                int cluster, int64_t ctas, CUstream stream, void *parameters,
                                uint32_t **counter, bool drawn, bsrg_error *error);

/* One lock for everything that is made once: device states, kernels, plans, uploads. */
void bsrg_lock(void);
void bsrg_unlock(void);

#endif
