#include "uploads.h"

#include <stdlib.h>

static void free_all(const bsrg_cuda_api *api, CUdeviceptr *const *pointers, int count) {
  for (int i = 0; i < count; ++i) {
    if (*pointers[i]) api->memory_free(*pointers[i]);
    *pointers[i] = 0;
  }
}

void bsrg_uploads_destroy(bsrg_uploads *uploads) {
  const bsrg_cuda_api *api;
  bsrg_device_state *device;
  while (uploads) {
    bsrg_uploads *next = uploads->next;
    bool pushed;
    /* Relaxed: a structure may be collected while its thread captures a graph. */
    int mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    if (bsrg_open_device(uploads->device, &api, &device, NULL) == BSRG_OK &&
        bsrg_enter(api, device, &pushed, NULL) == BSRG_OK) {
      api->exchange_capture_mode(&mode);
      CUdeviceptr *const all[] = {&uploads->entries, &uploads->tiles, &uploads->indptr, &uploads->indices,
                                  &uploads->row_order};
      free_all(api, all, 5); /* cuMemFree waits for kernels that still read them */
      api->exchange_capture_mode(&mode);
      bsrg_leave(api, pushed);
    }
    free(uploads);
    uploads = next;
  }
}

/* Uploads every part or none. */
static bsrg_status upload_parts(const bsrg_cuda_api *api, bsrg_device_state *device,
                                CUdeviceptr *const *targets, const void *const *sources, const size_t *bytes,
                                int count, bsrg_error *error) {
  for (int i = 0; i < count; ++i) {
    const bsrg_status status = bsrg_upload(api, device, sources[i], bytes[i], targets[i], error);
    if (status != BSRG_OK) {
      free_all(api, targets, i);
      return status;
    }
  }
  return BSRG_OK;
}

static bsrg_status upload_family(const bsrg_structure *structure, const bsrg_plan *plan, bsrg_family family,
                                 const bsrg_cuda_api *api, bsrg_device_state *device, bsrg_uploads *node,
                                 bsrg_error *error) {
  if (family == BSRG_TALL) {
    if (node->tiles) return BSRG_OK;
    CUdeviceptr *const targets[] = {&node->entries, &node->tiles};
    const void *const sources[] = {plan->tall.entries, plan->tall.tiles};
    const size_t bytes[] = {sizeof(bsrg_tall_entry) * (size_t)plan->tall.entry_count,
                            sizeof(bsrg_tall_tile) * (size_t)plan->tall.tile_count};
    return upload_parts(api, device, targets, sources, bytes, 2, error);
  }
  if (node->row_order) return BSRG_OK;
  const bsrg_structure_view *v = &structure->view;
  CUdeviceptr *const targets[] = {&node->indptr, &node->indices, &node->row_order};
  const void *const sources[] = {v->indptr, v->indices, plan->row_order};
  const size_t bytes[] = {sizeof(int64_t) * (size_t)(v->block_rows + 1), sizeof(int32_t) * (size_t)v->nnzb,
                          sizeof(int32_t) * (size_t)v->block_rows};
  return upload_parts(api, device, targets, sources, bytes, 3, error);
}

bsrg_status bsrg_uploads_get(bsrg_structure *structure, const bsrg_plan *plan, bsrg_family family,
                             const bsrg_cuda_api *api, bsrg_device_state *device, const bsrg_uploads **out,
                             bsrg_error *error) {
  bsrg_lock();
  bsrg_uploads *first = atomic_load(&structure->uploads), *node = first;
  while (node && node->device != device->index) node = node->next;
  bsrg_status status = BSRG_OK;
  if (!node) {
    node = calloc(1, sizeof(*node));
    if (node) {
      node->device = device->index;
      node->next = first;
      atomic_store(&structure->uploads, node);
    } else {
      status = bsrg_fail(error, BSRG_ERR_MEMORY, "no memory to upload a plan");
    }
  }
  if (status == BSRG_OK) status = upload_family(structure, plan, family, api, device, node, error);
  bsrg_unlock();
  *out = node;
  return status;
}
