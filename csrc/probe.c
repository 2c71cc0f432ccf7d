/* Runs one WGMMA on images from the host: kernels/sm90/probe.cu. */
#include "driver.h"

#include <string.h>

bsrg_status bsrg_gpu_probe_wgmma(int index, const bsrg_wgmma_probe *probe, bsrg_error *error) {
  if (!bsrg_is_half(probe->dtype))
    return bsrg_fail(error, BSRG_ERR_TYPE, "dtype is %s, but the probe takes float16 and bfloat16",
                     bsrg_dtype_name(probe->dtype));
  if (probe->image_bytes > BSRG_PROBE_IMAGE_BYTES)
    return bsrg_fail(error, BSRG_ERR_VALUE, "images have %zu bytes, but the probe takes at most %d",
                     probe->image_bytes, BSRG_PROBE_IMAGE_BYTES);
  const bsrg_cuda_api *api;
  bsrg_device_state *device;
  bool pushed;
  bsrg_status status = bsrg_open_device(index, &api, &device, error);
  if (status != BSRG_OK) return status;
  if (device->info.sm_arch != 90)
    return bsrg_fail(error, BSRG_ERR_UNAVAILABLE,
                     "cuda:%d has compute capability %d.%d, but WGMMA exists on 9.0 only", index,
                     device->info.sm_arch / 10, device->info.sm_arch % 10);
  status = bsrg_enter(api, device, &pushed, error);
  if (status != BSRG_OK) return status;

  /* Both images, then the result, in one allocation. */
  static const size_t d_bytes = 64 * 64 * sizeof(float);
  unsigned char host[2 * BSRG_PROBE_IMAGE_BYTES + 64 * 64 * sizeof(float)];
  memset(host, 0, sizeof(host));
  memcpy(host, probe->image_a, probe->image_bytes);
  memcpy(host + BSRG_PROBE_IMAGE_BYTES, probe->image_b, probe->image_bytes);
  CUdeviceptr memory = 0;
  status = bsrg_upload(api, device, host, sizeof(host), &memory, error);
  if (status == BSRG_OK) {
    unsigned char *const base = (unsigned char *)(uintptr_t)memory;
    bsrg_probe_params p = {.descriptor_a = probe->descriptor_a,
                           .descriptor_b = probe->descriptor_b,
                           .image_a = base,
                           .image_b = base + BSRG_PROBE_IMAGE_BYTES,
                           .d = (float *)(base + 2 * BSRG_PROBE_IMAGE_BYTES)};
    const bsrg_kernel_id first =
        probe->dtype == BSRG_F16 ? BSRG_KERNEL_PROBE_F16_A0_B0 : BSRG_KERNEL_PROBE_BF16_A0_B0;
    const int variant = 2 * (probe->transpose_a != 0) + (probe->transpose_b != 0);
    status =
        bsrg_launch(api, device, (bsrg_kernel_id)((int)first + variant), 1, 1, device->upload, &p, error);
    CUresult result = CUDA_SUCCESS;
    if (status == BSRG_OK)
      result = api->copy_to_host(probe->d, memory + 2 * BSRG_PROBE_IMAGE_BYTES, d_bytes, device->upload);
    if (result == CUDA_SUCCESS) result = api->stream_synchronize(device->upload);
    if (status == BSRG_OK) status = bsrg_cuda_check(api, result, "running the probe", error);
    api->memory_free(memory);
  }
  bsrg_leave(api, pushed);
  return status;
}
