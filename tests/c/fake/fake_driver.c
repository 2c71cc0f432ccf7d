#include "fake_driver.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda_api.h"
#include "fault_points.h"
#include "kernel_images.h"
#include "kernels.h"

enum { CUDA_ERROR_INVALID_VALUE = 1, CUDA_ERROR_UNKNOWN = 999, DEVICES = 2 };

fake_driver_state fake_driver;

/* What a call begins with that can fail. Memory runs out, of everything else the reason is unknown. */
#define MAY_FAIL(symbol) \
  if (fault_hits(FAULT_DRIVER, symbol)) return failure(symbol)

static CUresult failure(const char *symbol) {
  return strstr(symbol, "Alloc") ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_UNKNOWN;
}

static CUresult refuse(const char *what, uint64_t number) {
  snprintf(fake_driver.refused, sizeof fake_driver.refused, "%s is %llu", what, (unsigned long long)number);
  return CUDA_ERROR_INVALID_VALUE;
}

/* Handles are distinct objects, so that LeakSanitizer and use after free apply to them too. */
static void *make_handle(size_t bytes) {
  void *handle = fault_plain_malloc(bytes ? bytes : 1);
  if (!handle) abort();
  ++fake_driver.allocations;
  return handle;
}
static void free_handle(void *handle) {
  --fake_driver.allocations;
  fault_plain_free(handle);
}

/* ---- devices and contexts ---------------------------------------------------------------------- */

static CUresult fake_init(unsigned int flags) { return flags == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE; }

static CUresult fake_driver_version(int *version) {
  *version = 13000;
  return CUDA_SUCCESS;
}

static CUresult fake_error_name(CUresult error, const char **name) {
  *name = error == CUDA_ERROR_OUT_OF_MEMORY   ? "CUDA_ERROR_OUT_OF_MEMORY"
          : error == CUDA_ERROR_INVALID_VALUE ? "CUDA_ERROR_INVALID_VALUE"
                                              : "CUDA_ERROR_UNKNOWN";
  return CUDA_SUCCESS;
}

static CUresult fake_error_string(CUresult error, const char **text) {
  *text = error == CUDA_ERROR_INVALID_VALUE ? fake_driver.refused : "made to fail";
  return CUDA_SUCCESS;
}

static CUresult fake_device_count(int *count) {
  MAY_FAIL("cuDeviceGetCount");
  *count = DEVICES;
  return CUDA_SUCCESS;
}

static CUresult fake_device_get(CUdevice *device, int ordinal) {
  MAY_FAIL("cuDeviceGet");
  *device = ordinal;
  return CUDA_SUCCESS;
}

static CUresult fake_device_name(char *name, int length, CUdevice device) {
  snprintf(name, (size_t)length, "fake GPU %d", device);
  return CUDA_SUCCESS;
}

static CUresult fake_device_memory(size_t *bytes, CUdevice device) {
  (void)device;
  *bytes = (size_t)140 << 30;
  return CUDA_SUCCESS;
}

static CUresult fake_device_attribute(int *value, int attribute, CUdevice device) {
  (void)device;
  *value = attribute == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR   ? 9
           : attribute == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR ? 0
           : attribute == CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE        ? 3201000
           : attribute == CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH  ? 6144
                                                                       : 132;
  return CUDA_SUCCESS;
}

static char contexts[DEVICES]; /* their addresses are the handles */
static _Thread_local CUcontext stack[64];
static _Thread_local int64_t depth;
int64_t fake_driver_contexts(void) { return depth; }

static CUresult fake_primary_context_retain(CUcontext *context, CUdevice device) {
  MAY_FAIL("cuDevicePrimaryCtxRetain");
  *context = (CUcontext)(void *)&contexts[device];
  ++fake_driver.allocations;
  return CUDA_SUCCESS;
}

static CUresult fake_primary_context_release(CUdevice device) {
  (void)device;
  --fake_driver.allocations;
  return CUDA_SUCCESS;
}

static CUresult fake_context_get(CUcontext *context) {
  *context = depth ? stack[depth - 1] : NULL;
  return CUDA_SUCCESS;
}

static CUresult fake_context_push(CUcontext context) {
  MAY_FAIL("cuCtxPushCurrent_v2");
  stack[depth++] = context;
  return CUDA_SUCCESS;
}

static CUresult fake_context_pop(CUcontext *context) {
  if (depth == 0) abort();
  *context = stack[--depth];
  return CUDA_SUCCESS;
}

/* ---- kernels ----------------------------------------------------------------------------------- */

/* Every kernel has an image. */
const bsrg_kernel_image bsrg_kernel_images[] = {
#define BSRG_KERNEL(id, image, name, threads, shared_bytes, cluster) {image, "", 0},
#include "kernels.def"
#undef BSRG_KERNEL
};
const int bsrg_kernel_image_count = BSRG_KERNEL_COUNT;

/* They are loaded once and stay, as devices' states do. */
static CUresult fake_library_load(CUlibrary *library, const void *image, int *jit_options, void **jit_values,
                                  unsigned int jit_count, int *library_options, void **library_values,
                                  unsigned int library_count) {
  (void)jit_options, (void)jit_values, (void)jit_count;
  (void)library_options, (void)library_values, (void)library_count;
  MAY_FAIL("cuLibraryLoadData");
  *library = (CUlibrary)(uintptr_t)image;
  return CUDA_SUCCESS;
}

static CUresult fake_library_kernel(CUkernel *kernel, CUlibrary library, const char *name) {
  (void)library;
  MAY_FAIL("cuLibraryGetKernel");
  *kernel = (CUkernel)(uintptr_t)name;
  return CUDA_SUCCESS;
}

static CUresult fake_kernel_get_attribute(int *value, int attribute, CUkernel kernel, CUdevice device) {
  (void)attribute, (void)kernel, (void)device;
  MAY_FAIL("cuKernelGetAttribute");
  *value = 90;
  return CUDA_SUCCESS;
}

static CUresult fake_kernel_set_attribute(int attribute, int value, CUkernel kernel, CUdevice device) {
  (void)attribute, (void)kernel, (void)device;
  MAY_FAIL("cuKernelSetAttribute");
  return value <= 227 << 10 ? CUDA_SUCCESS : refuse("shared memory", (uint64_t)value);
}

static CUresult fake_launch(const CUlaunchConfig *config, CUfunction function, void **parameters,
                            void **extra) {
  (void)extra;
  MAY_FAIL("cuLaunchKernelEx");
  unsigned cluster = 1;
  for (unsigned i = 0; i < config->numAttrs; ++i)
    if (config->attrs[i].id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION)
      cluster = config->attrs[i].value.clusterDim.x;
    else if (config->attrs[i].id != CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION)
      return refuse("attribute", config->attrs[i].id);
  if (config->gridDimX == 0 || config->gridDimX > INT32_MAX) return refuse("gridDimX", config->gridDimX);
  if (config->gridDimY == 0 || config->gridDimY > 65535) return refuse("gridDimY", config->gridDimY);
  if (config->gridDimX % cluster) return refuse("gridDimX, of clusters,", config->gridDimX);
  if (config->blockDimX == 0 || config->blockDimX > 1024) return refuse("blockDimX", config->blockDimX);
  if (!parameters[0]) return refuse("the parameters' address", 0);
  if (fake_driver.launched) fake_driver.launched((const char *)function, parameters[0]);
  ++fake_driver.launches;
  return CUDA_SUCCESS;
}

/* The limits of the driver's documentation for tiled maps without interleaving. */
static CUresult fake_tensor_map_encode(void *map, int data_type, uint32_t rank, void *address,
                                       const uint64_t *dims, const uint64_t *strides, const uint32_t *box,
                                       const uint32_t *element_strides, int interleave, int swizzle,
                                       int l2_promotion, int oob_fill) {
  (void)interleave, (void)l2_promotion, (void)oob_fill;
  MAY_FAIL("cuTensorMapEncodeTiled");
  const uint64_t item = data_type == CU_TENSOR_MAP_DATA_TYPE_UINT8      ? 1
                        : data_type == CU_TENSOR_MAP_DATA_TYPE_TFLOAT32 ? 4
                                                                        : 2;
  if ((uintptr_t)map % 64) return refuse("the map's address", (uintptr_t)map);
  if (rank < 1 || rank > 5) return refuse("the map's rank", rank);
  if ((uintptr_t)address % 16) return refuse("the matrix's address", (uintptr_t)address);
  for (uint32_t d = 0; d < rank; ++d) {
    if (dims[d] == 0 || dims[d] > UINT64_C(1) << 32) return refuse("a size", dims[d]);
    if (box[d] == 0 || box[d] > 256) return refuse("a side of the box", box[d]);
    if (element_strides[d] == 0 || element_strides[d] > 8) return refuse("a step", element_strides[d]);
    if (d + 1 < rank && (strides[d] % 16 || strides[d] >= UINT64_C(1) << 40))
      return refuse("a stride in bytes", strides[d]);
  }
  if (box[0] * item % 16) return refuse("the box's width in bytes", box[0] * item);
  if (swizzle != CU_TENSOR_MAP_SWIZZLE_NONE && box[0] * item > UINT64_C(16) << swizzle)
    return refuse("the swizzled width in bytes", box[0] * item);
  memset(map, 1, 128);
  return CUDA_SUCCESS;
}

/* ---- memory ------------------------------------------------------------------------------------ */

static CUresult allocate(CUdeviceptr *pointer, size_t bytes) {
  if (bytes == 0) return refuse("bytes", 0);
  if (bytes > (size_t)32 << 20) return CUDA_ERROR_OUT_OF_MEMORY; /* of a GPU that is nearly full */
  *pointer = (CUdeviceptr)(uintptr_t)make_handle(bytes);
  memset((void *)(uintptr_t)*pointer, 0xff, bytes < 4096 ? bytes : 4096);
  return CUDA_SUCCESS;
}

static CUresult fake_memory_alloc(CUdeviceptr *pointer, size_t bytes) {
  MAY_FAIL("cuMemAlloc_v2");
  return allocate(pointer, bytes);
}

static CUresult fake_memory_free(CUdeviceptr pointer) {
  free_handle((void *)(uintptr_t)pointer);
  return CUDA_SUCCESS;
}

static CUresult fake_memory_alloc_async(CUdeviceptr *pointer, size_t bytes, CUstream stream) {
  (void)stream;
  MAY_FAIL("cuMemAllocAsync");
  return allocate(pointer, bytes);
}

static CUresult fake_pool_create(CUmemoryPool *pool, const CUmemPoolProps *properties) {
  (void)properties;
  MAY_FAIL("cuMemPoolCreate");
  *pool = make_handle(1);
  return CUDA_SUCCESS;
}

static CUresult fake_pool_destroy(CUmemoryPool pool) {
  free_handle(pool);
  return CUDA_SUCCESS;
}

static CUresult fake_pool_set_attribute(CUmemoryPool pool, int attribute, void *value) {
  (void)pool, (void)attribute, (void)value;
  MAY_FAIL("cuMemPoolSetAttribute");
  return CUDA_SUCCESS;
}

static CUresult fake_pool_alloc_async(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool,
                                      CUstream stream) {
  (void)pool, (void)stream;
  MAY_FAIL("cuMemAllocFromPoolAsync");
  return allocate(pointer, bytes);
}

/* Reports, as the real one may, what went wrong earlier: the memory is free all the same. */
static CUresult fake_memory_free_async(CUdeviceptr pointer, CUstream stream) {
  (void)stream;
  free_handle((void *)(uintptr_t)pointer);
  MAY_FAIL("cuMemFreeAsync");
  return CUDA_SUCCESS;
}

static CUresult fake_copy_to_device(CUdeviceptr destination, const void *source, size_t bytes,
                                    CUstream stream) {
  (void)stream;
  MAY_FAIL("cuMemcpyHtoDAsync_v2");
  memcpy((void *)(uintptr_t)destination, source, bytes);
  return CUDA_SUCCESS;
}

static CUresult fake_copy_to_host(void *destination, CUdeviceptr source, size_t bytes, CUstream stream) {
  (void)stream;
  MAY_FAIL("cuMemcpyDtoHAsync_v2");
  memcpy(destination, (const void *)(uintptr_t)source, bytes);
  return CUDA_SUCCESS;
}

static CUresult fake_set_32(CUdeviceptr pointer, unsigned int value, size_t count, CUstream stream) {
  (void)stream;
  MAY_FAIL("cuMemsetD32Async");
  uint32_t *words = (uint32_t *)(uintptr_t)pointer;
  for (size_t i = 0; i < count; ++i) words[i] = value;
  return CUDA_SUCCESS;
}

static CUresult fake_pointer_attribute(void *value, int attribute, CUdeviceptr pointer) {
  (void)pointer;
  MAY_FAIL("cuPointerGetAttribute");
  if (attribute != CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL) return refuse("attribute", (uint64_t)attribute);
  *(int *)value = 0;
  return CUDA_SUCCESS;
}

/* ---- streams and events ------------------------------------------------------------------------ */

static CUresult fake_stream_create(CUstream *stream, unsigned int flags) {
  (void)flags;
  MAY_FAIL("cuStreamCreate");
  *stream = make_handle(1);
  return CUDA_SUCCESS;
}

static CUresult fake_stream_destroy(CUstream stream) {
  free_handle(stream);
  return CUDA_SUCCESS;
}

static CUresult fake_stream_synchronize(CUstream stream) {
  (void)stream;
  MAY_FAIL("cuStreamSynchronize");
  return CUDA_SUCCESS;
}

static CUresult fake_stream_wait_event(CUstream stream, CUevent event, unsigned int flags) {
  (void)stream, (void)event, (void)flags;
  MAY_FAIL("cuStreamWaitEvent");
  return CUDA_SUCCESS;
}

static CUresult fake_stream_is_capturing(CUstream stream, int *status) {
  (void)stream;
  *status = 0;
  return CUDA_SUCCESS;
}

static CUresult fake_stream_id(CUstream stream, unsigned long long *id) {
  *id = (uintptr_t)stream + ((unsigned long long)fake_driver.generation << 56);
  return CUDA_SUCCESS;
}

static CUresult fake_exchange_capture_mode(int *mode) {
  (void)mode;
  return CUDA_SUCCESS;
}

static CUresult fake_event_create(CUevent *event, unsigned int flags) {
  (void)flags;
  MAY_FAIL("cuEventCreate");
  *event = make_handle(1);
  return CUDA_SUCCESS;
}

static CUresult fake_event_record(CUevent event, CUstream stream) {
  (void)event, (void)stream;
  MAY_FAIL("cuEventRecord");
  return CUDA_SUCCESS;
}

static CUresult fake_event_destroy(CUevent event) {
  free_handle(event);
  return CUDA_SUCCESS;
}

/* ---- the library ------------------------------------------------------------------------------- */

const char *const fake_driver_fallible[] = {
    "cuDeviceGetCount",       "cuDeviceGet",          "cuDevicePrimaryCtxRetain",
    "cuCtxPushCurrent_v2",    "cuMemPoolCreate",      "cuMemPoolSetAttribute",
    "cuStreamCreate",         "cuMemAlloc_v2",        "cuMemsetD32Async",
    "cuStreamSynchronize",    "cuMemcpyHtoDAsync_v2", "cuLibraryLoadData",
    "cuLibraryGetKernel",     "cuKernelSetAttribute", "cuKernelGetAttribute",
    "cuTensorMapEncodeTiled", "cuLaunchKernelEx",     NULL};

void *__wrap_dlopen(const char *name, int flags);
void *__wrap_dlopen(const char *name, int flags) {
  (void)flags;
  return strcmp(name, "libcuda.so.1") == 0 ? &fake_driver : NULL;
}

void *__wrap_dlsym(void *library, const char *symbol);
void *__wrap_dlsym(void *library, const char *symbol) {
  if (library != &fake_driver) abort();
#define FOUND(member, name, parameters) \
  if (strcmp(symbol, name) == 0) return (void *)(uintptr_t)fake_##member;
  BSRG_CUDA_FUNCTIONS(FOUND)
#undef FOUND
  return NULL;
}
