/* The part of the CUDA driver interface that bsrgemm calls, declared here so that building needs no CUDA
 * headers and running needs no CUDA until a GPU is used. Names, values and layouts are those of NVIDIA's
 * documented ABI. */
#ifndef BSRG_CUDA_API_H
#define BSRG_CUDA_API_H

#include <stddef.h>
#include <stdint.h>

typedef int CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef struct CUctx_st *CUcontext;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
typedef struct CUmemPoolHandle_st *CUmemoryPool;
typedef struct CUlib_st *CUlibrary;
typedef struct CUkern_st *CUkernel;
typedef struct CUfunc_st *CUfunction;

enum {
  CUDA_SUCCESS = 0,
  CUDA_ERROR_OUT_OF_MEMORY = 2,
  CUDA_ERROR_NOT_INITIALIZED = 3,
  CUDA_ERROR_NO_DEVICE = 100,
  CUDA_ERROR_INVALID_IMAGE = 200,
  CUDA_ERROR_NO_BINARY_FOR_GPU = 209,
  CUDA_ERROR_UNSUPPORTED_PTX_VERSION = 222
};

/* CUdevice_attribute */
enum {
  CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT = 16,
  CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE = 36,       /* kHz */
  CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH = 37, /* bits */
  CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 75,
  CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 76
};
enum { CU_FUNC_ATTRIBUTE_PTX_VERSION = 5, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8 };
enum { CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL = 9 };
enum { CU_EVENT_DISABLE_TIMING = 2 };
enum { CU_STREAM_NON_BLOCKING = 1 };
enum { CU_STREAM_CAPTURE_MODE_RELAXED = 2 };
#define CU_STREAM_PER_THREAD ((CUstream)(uintptr_t)2)

/* CUtensorMap encoding */
enum {
  CU_TENSOR_MAP_DATA_TYPE_UINT8 = 0,
  CU_TENSOR_MAP_DATA_TYPE_FLOAT16 = 6,
  CU_TENSOR_MAP_DATA_TYPE_FLOAT32 = 7,
  CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 = 9,
  CU_TENSOR_MAP_DATA_TYPE_TFLOAT32 = 11
};
enum { CU_TENSOR_MAP_INTERLEAVE_NONE = 0 };
enum {
  CU_TENSOR_MAP_SWIZZLE_NONE = 0,
  CU_TENSOR_MAP_SWIZZLE_32B = 1,
  CU_TENSOR_MAP_SWIZZLE_64B = 2,
  CU_TENSOR_MAP_SWIZZLE_128B = 3
};
enum { CU_TENSOR_MAP_L2_PROMOTION_L2_128B = 2 };
enum { CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE = 0 };

/* CUmemPoolProps */
enum { CU_MEM_ALLOCATION_TYPE_PINNED = 1, CU_MEM_LOCATION_TYPE_DEVICE = 1 };
enum { CU_MEMPOOL_ATTR_RELEASE_THRESHOLD = 4 };
typedef struct CUmemPoolProps {
  int allocType, handleTypes;
  struct {
    int type, id;
  } location;
  void *win32SecurityAttributes;
  size_t maxSize;
  unsigned char reserved[56];
} CUmemPoolProps;

/* CUlaunchConfig: only the attributes that are used have members. */
enum { CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION = 4, CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION = 6 };
typedef struct CUlaunchAttribute {
  int id;
  char pad[8 - sizeof(int)];
  union {
    char pad[64];
    struct {
      unsigned int x, y, z;
    } clusterDim;
    int programmaticStreamSerializationAllowed;
  } value;
} CUlaunchAttribute;

typedef struct CUlaunchConfig {
  unsigned int gridDimX, gridDimY, gridDimZ;
  unsigned int blockDimX, blockDimY, blockDimZ;
  unsigned int sharedMemBytes;
  CUstream hStream;
  CUlaunchAttribute *attrs;
  unsigned int numAttrs;
} CUlaunchConfig;

/* X(member, exported symbol, parameter list) */
#define BSRG_CUDA_FUNCTIONS(X)                                                                              \
  X(init, "cuInit", (unsigned int flags))                                                                   \
  X(driver_version, "cuDriverGetVersion", (int *version))                                                   \
  X(error_name, "cuGetErrorName", (CUresult error, const char **name))                                      \
  X(error_string, "cuGetErrorString", (CUresult error, const char **text))                                  \
  X(device_count, "cuDeviceGetCount", (int *count))                                                         \
  X(device_get, "cuDeviceGet", (CUdevice * device, int ordinal))                                            \
  X(device_name, "cuDeviceGetName", (char *name, int length, CUdevice device))                              \
  X(device_memory, "cuDeviceTotalMem_v2", (size_t *bytes, CUdevice device))                                 \
  X(device_attribute, "cuDeviceGetAttribute", (int *value, int attribute, CUdevice device))                 \
  X(primary_context_retain, "cuDevicePrimaryCtxRetain", (CUcontext * context, CUdevice device))             \
  X(primary_context_release, "cuDevicePrimaryCtxRelease_v2", (CUdevice device))                             \
  X(context_get, "cuCtxGetCurrent", (CUcontext * context))                                                  \
  X(context_push, "cuCtxPushCurrent_v2", (CUcontext context))                                               \
  X(context_pop, "cuCtxPopCurrent_v2", (CUcontext * context))                                               \
  X(library_load, "cuLibraryLoadData",                                                                      \
    (CUlibrary * library, const void *image, int *jit_options, void **jit_values, unsigned int jit_count,   \
     int *library_options, void **library_values, unsigned int library_count))                              \
  X(library_kernel, "cuLibraryGetKernel", (CUkernel * kernel, CUlibrary library, const char *name))         \
  X(kernel_set_attribute, "cuKernelSetAttribute",                                                           \
    (int attribute, int value, CUkernel kernel, CUdevice device))                                           \
  X(kernel_get_attribute, "cuKernelGetAttribute",                                                           \
    (int *value, int attribute, CUkernel kernel, CUdevice device))                                          \
  X(launch, "cuLaunchKernelEx",                                                                             \
    (const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra))                   \
  X(tensor_map_encode, "cuTensorMapEncodeTiled",                                                            \
    (void *map, int data_type, uint32_t rank, void *address, const uint64_t *dims, const uint64_t *strides, \
     const uint32_t *box, const uint32_t *element_strides, int interleave, int swizzle, int l2_promotion,   \
     int oob_fill))                                                                                         \
  X(memory_alloc, "cuMemAlloc_v2", (CUdeviceptr * pointer, size_t bytes))                                   \
  X(memory_free, "cuMemFree_v2", (CUdeviceptr pointer))                                                     \
  X(memory_alloc_async, "cuMemAllocAsync", (CUdeviceptr * pointer, size_t bytes, CUstream stream))          \
  X(pool_create, "cuMemPoolCreate", (CUmemoryPool * pool, const CUmemPoolProps *properties))                \
  X(pool_destroy, "cuMemPoolDestroy", (CUmemoryPool pool))                                                  \
  X(pool_set_attribute, "cuMemPoolSetAttribute", (CUmemoryPool pool, int attribute, void *value))           \
  X(pool_alloc_async, "cuMemAllocFromPoolAsync",                                                            \
    (CUdeviceptr * pointer, size_t bytes, CUmemoryPool pool, CUstream stream))                              \
  X(memory_free_async, "cuMemFreeAsync", (CUdeviceptr pointer, CUstream stream))                            \
  X(copy_to_device, "cuMemcpyHtoDAsync_v2",                                                                 \
    (CUdeviceptr destination, const void *source, size_t bytes, CUstream stream))                           \
  X(copy_to_host, "cuMemcpyDtoHAsync_v2",                                                                   \
    (void *destination, CUdeviceptr source, size_t bytes, CUstream stream))                                 \
  X(set_32, "cuMemsetD32Async", (CUdeviceptr pointer, unsigned int value, size_t count, CUstream stream))   \
  X(pointer_attribute, "cuPointerGetAttribute", (void *value, int attribute, CUdeviceptr pointer))          \
  X(stream_create, "cuStreamCreate", (CUstream * stream, unsigned int flags))                               \
  X(stream_destroy, "cuStreamDestroy_v2", (CUstream stream))                                                \
  X(stream_synchronize, "cuStreamSynchronize", (CUstream stream))                                           \
  X(stream_wait_event, "cuStreamWaitEvent", (CUstream stream, CUevent event, unsigned int flags))           \
  X(stream_is_capturing, "cuStreamIsCapturing", (CUstream stream, int *status))                             \
  X(stream_id, "cuStreamGetId", (CUstream stream, unsigned long long *id))                                  \
  X(exchange_capture_mode, "cuThreadExchangeStreamCaptureMode", (int *mode))                                \
  X(event_create, "cuEventCreate", (CUevent * event, unsigned int flags))                                   \
  X(event_record, "cuEventRecord", (CUevent event, CUstream stream))                                        \
  X(event_destroy, "cuEventDestroy_v2", (CUevent event))

typedef struct bsrg_cuda_api {
#define BSRG_CUDA_MEMBER(member, symbol, parameters) CUresult(*member) parameters;
  BSRG_CUDA_FUNCTIONS(BSRG_CUDA_MEMBER)
#undef BSRG_CUDA_MEMBER
} bsrg_cuda_api;

#endif
