/* The GPU backend: device memory and streams for callers, and the way from a product to a launch. */
#include "batch.h"
#include "edges.h"

#include <string.h>

/* ---- devices, memory, streams ---------------------------------------------------------------- */

bsrg_status bsrg_gpu_count(int *count, bsrg_error *error) {
  const bsrg_cuda_api *api;
  *count = 0;
  const bsrg_status status = bsrg_cuda(&api, error);
  if (status != BSRG_OK) return status;
  const CUresult result = api->device_count(count);
  if (result == CUDA_ERROR_NO_DEVICE || (result == CUDA_SUCCESS && *count == 0))
    return bsrg_fail(error, BSRG_ERR_UNAVAILABLE, "the CUDA driver sees no GPU on this machine");
  return bsrg_cuda_check(api, result, "cuDeviceGetCount", error);
}

bsrg_status bsrg_gpu_get_info(int index, bsrg_gpu_info *out, bsrg_error *error) {
  const bsrg_cuda_api *api;
  bsrg_device_state *device;
  const bsrg_status status = bsrg_open_device(index, &api, &device, error);
  if (status == BSRG_OK) *out = device->info;
  return status;
}

/* Enters the device's context; public functions below start here and end with bsrg_leave, but for bsrg_gpu_pointer_device. */
static bsrg_status begin(int index, const bsrg_cuda_api **api, bsrg_device_state **device, bool *pushed,
                         bsrg_error *error) {
  const bsrg_status status = bsrg_open_device(index, api, device, error);
  return status == BSRG_OK ? bsrg_enter(*api, *device, pushed, error) : status;
}

bsrg_status bsrg_gpu_alloc(int index, size_t bytes, void *stream, void **out, bsrg_error *error) {
  const bsrg_cuda_api *api;
  bsrg_device_state *device;
  bool pushed;
  *out = NULL;
  const bsrg_status status = begin(index, &api, &device, &pushed, error);
  if (status != BSRG_OK) return status;
  CUdeviceptr pointer = 0;
  const CUresult result = api->memory_alloc_async(&pointer, bytes ? bytes : 1, (CUstream)stream);
  bsrg_leave(api, pushed);
  if (result == CUDA_ERROR_OUT_OF_MEMORY)
    return bsrg_fail(error, BSRG_ERR_MEMORY, "cuda:%d has no room for %zu bytes", index, bytes);
  *out = (void *)(uintptr_t)pointer;
  return bsrg_cuda_check(api, result, "cuMemAllocAsync", error);
}

bsrg_status bsrg_gpu_free(int index, void *pointer, void *stream, bsrg_error *error) {
  const bsrg_cuda_api *api;
  bsrg_device_state *device;
  bool pushed;
  if (!pointer) return BSRG_OK;
  const bsrg_status status = begin(index, &api, &device, &pushed, error);
  if (status != BSRG_OK) return status;
  const CUresult result = api->memory_free_async((CUdeviceptr)(uintptr_t)pointer, (CUstream)stream);
  bsrg_leave(api, pushed);
  return bsrg_cuda_check(api, result, "cuMemFreeAsync", error);
}

bsrg_status bsrg_gpu_copy(int index, void *destination, const void *source, size_t bytes, int direction,
                          void *stream, bsrg_error *error) {
  const bsrg_cuda_api *api;
  bsrg_device_state *device;
  bool pushed;
  if (bytes == 0) return BSRG_OK;
  const bsrg_status status = begin(index, &api, &device, &pushed, error);
  if (status != BSRG_OK) return status;
  CUresult result =
      direction == 0
          ? api->copy_to_device((CUdeviceptr)(uintptr_t)destination, source, bytes, (CUstream)stream)
          : api->copy_to_host(destination, (CUdeviceptr)(uintptr_t)source, bytes, (CUstream)stream);
  if (result == CUDA_SUCCESS) result = api->stream_synchronize((CUstream)stream);
  bsrg_leave(api, pushed);
  return bsrg_cuda_check(api, result, direction == 0 ? "copying to the device" : "copying to the host",
                         error);
}

bsrg_status bsrg_gpu_order_streams(int index, void *producer, void *consumer, bsrg_error *error) {
  const bsrg_cuda_api *api;
  bsrg_device_state *device;
  bool pushed;
  if (producer == consumer) return BSRG_OK;
  const bsrg_status status = begin(index, &api, &device, &pushed, error);
  if (status != BSRG_OK) return status;
  CUevent event = NULL;
  CUresult result = api->event_create(&event, CU_EVENT_DISABLE_TIMING);
  if (result == CUDA_SUCCESS) {
    result = api->event_record(event, (CUstream)producer);
    if (result == CUDA_SUCCESS) result = api->stream_wait_event((CUstream)consumer, event, 0);
    api->event_destroy(event); /* the driver keeps it until the wait is over */
  }
  bsrg_leave(api, pushed);
  return bsrg_cuda_check(api, result, "ordering two streams", error);
}

bsrg_status bsrg_gpu_synchronize(int index, void *stream, bsrg_error *error) {
  const bsrg_cuda_api *api;
  bsrg_device_state *device;
  bool pushed;
  const bsrg_status status = begin(index, &api, &device, &pushed, error);
  if (status != BSRG_OK) return status;
  const CUresult result = api->stream_synchronize((CUstream)stream);
  bsrg_leave(api, pushed);
  return bsrg_cuda_check(api, result, "cuStreamSynchronize", error);
}

bsrg_status bsrg_gpu_pointer_device(const void *pointer, int *index, bsrg_error *error) {
  const bsrg_cuda_api *api;
  const bsrg_status status = bsrg_cuda(&api, error);
  if (status != BSRG_OK) return status;
  return bsrg_cuda_check(
      api,
      api->pointer_attribute(index, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, (CUdeviceptr)(uintptr_t)pointer),
      "cuPointerGetAttribute", error);
}

/* ---- products -------------------------------------------------------------------------------- */

bsrg_chip bsrg_chip_of(bsrg_gpu gpu) {
  bsrg_chip chip = bsrg_chip_h200();
  chip.sm_arch = gpu.device->info.sm_arch;
  chip.sm_count = gpu.device->info.sm_count;
  chip.hbm_bytes_per_s = gpu.device->info.hbm_bytes_per_s;
  memcpy(chip.name, gpu.device->info.name, sizeof(chip.name) - 1); /* which ends with the last zero */
  return chip;
}

static bsrg_status multiply(const bsrg_matmul_args *args, bsrg_gpu gpu, bsrg_error *error) {
  const bsrg_chip chip = bsrg_chip_of(gpu);
  const bsrg_family_ops *ops;
  const void *plan;
  bsrg_status status = bsrg_check_arch(&gpu.device->info, error);
  if (status == BSRG_OK) status = bsrg_choose_again(args, &chip, &ops, &plan, error);
  if (status == BSRG_OK) status = bsrg_whole_launch(ops, args, plan, gpu, error);
  /* The portable kernels need scratch memory for partial blocks alone. Not where the product overwrites C, of which a launch
   * that failed half-way may have changed a part. */
  const bool repeatable = args->beta == 0 || args->c.data != args->y.data;
  const bool suits = !bsrg_portable_family.obstacle(&args->a->view, args->dtype, chip.sm_arch);
  if (status == BSRG_ERR_MEMORY && args->family == BSRG_AUTO && repeatable && suits) {
    status = bsrg_plan_get(args->a, &bsrg_portable_family, false, &plan, error);
    if (status == BSRG_OK) status = bsrg_whole_launch(&bsrg_portable_family, args, plan, gpu, error);
  }
  return status;
}

static bsrg_status answer(const bsrg_matmul_args *args, bsrg_error *error) {
  const bsrg_family_ops *ops;
  const void *plan;
  const bsrg_gpu_info info = bsrg_question_gpu(args->question);
  bsrg_status status = bsrg_check_arch(&info, error);
  if (status == BSRG_OK) status = bsrg_choose_family(args, args->question->chip, &ops, &plan, error);
  if (status == BSRG_OK) args->question->family = ops->family;
  return status;
}

bsrg_status bsrg_gpu_matmul(const bsrg_matmul_args *args, bsrg_error *error) {
  if (args->question) return answer(args, error);
  const bsrg_cuda_api *api;
  bsrg_device_state *device;
  bool pushed;
  bsrg_status status = begin(args->device.index, &api, &device, &pushed, error);
  if (status != BSRG_OK) return status;
  const bsrg_gpu gpu = {api, device};
  status = args->batch.ndim ? bsrg_batch_multiply(args, gpu, multiply, error) : multiply(args, gpu, error);
  bsrg_leave(api, pushed);
  return status;
}
