#include "uploads.h"

#include <stdlib.h>

static void free_parts(const bsrg_cuda_api *api, bsrg_uploads *node) {
  /* Relaxed: a structure may be collected, or an upload fail, while its thread captures a graph. */
  int mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  api->exchange_capture_mode(&mode);
  for (int i = 0; i < BSRG_UPLOAD_PARTS; ++i)
    if (node->parts[i]) api->memory_free(node->parts[i]); /* waits for kernels that still read it */
  api->exchange_capture_mode(&mode);
}

void bsrg_uploads_destroy(bsrg_uploads *uploads) {
  const bsrg_cuda_api *api;
  bsrg_device_state *device;
  while (uploads) {
    bsrg_uploads *next = uploads->next;
    bool pushed;
    if (!uploads->borrowed && bsrg_open_device(uploads->device, &api, &device, NULL) == BSRG_OK &&
        bsrg_enter(api, device, &pushed, NULL) == BSRG_OK) {
      free_parts(api, uploads);
      bsrg_leave(api, pushed);
    }
    free(uploads);
    uploads = next;
  }
}

/* Uploads every part or none. */
static bsrg_status upload(bsrg_gpu gpu, const bsrg_upload_part *parts, int count, bsrg_uploads *node,
                          bsrg_error *error) {
  for (int i = 0; i < count; ++i) {
    const bsrg_status status =
        bsrg_upload(gpu.api, gpu.device, parts[i].source, parts[i].bytes, &node->parts[i], error);
    if (status != BSRG_OK) {
      free_parts(gpu.api, node);
      return status;
    }
  }
  return BSRG_OK;
}

bsrg_status bsrg_uploads_get_in(_Atomic(bsrg_uploads *) *list, int key, const bsrg_upload_part *parts,
                                int count, bsrg_gpu gpu, const CUdeviceptr **out, bsrg_error *error) {
  bsrg_status status = BSRG_OK;
  bsrg_lock();
  bsrg_uploads *first = atomic_load(list), *node = first;
  while (node && (node->device != gpu.device->index || node->key != key)) node = node->next;
  if (!node) {
    node = calloc(1, sizeof(*node));
    status = node ? upload(gpu, parts, count, node, error)
                  : bsrg_fail(error, BSRG_ERR_MEMORY, "no memory to upload a plan");
    if (status == BSRG_OK) {
      node->device = gpu.device->index;
      node->key = key;
      node->next = first;
      atomic_store(list, node);
    } else {
      free(node);
      node = NULL;
    }
  }
  bsrg_unlock();
  if (node) *out = node->parts;
  return status;
}

bsrg_status bsrg_uploads_get(bsrg_structure *structure, int key, const bsrg_upload_part *parts, int count,
                             bsrg_gpu gpu, const CUdeviceptr **out, bsrg_error *error) {
  return bsrg_uploads_get_in(&structure->uploads, key, parts, count, gpu, out, error);
}
