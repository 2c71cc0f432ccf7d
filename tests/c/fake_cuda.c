/* A CUDA driver without a GPU, as libcuda.so.1: device memory is the host's, kernels do nothing, and every object
 * that is made and not destroyed is counted. What it pretends to be stands in environment variables:
 *
 *   FAKE_CUDA_INIT=803        what cuInit returns
 *   FAKE_CUDA_DEVICES=0       how many devices there are; 1 by default
 *   FAKE_CUDA_ARCH=70         their compute capability; 90 by default
 *   FAKE_CUDA_PTX=80          the PTX that kernels were compiled from; 90 by default
 *   FAKE_CUDA_CAPTURING=9     a stream on which a graph is being captured
 *   FAKE_CUDA_STRICT=1        meanwhile what the driver does not allow then is refused
 *   FAKE_CUDA_FAIL=cuMemAlloc_v2:2,cuStreamCreate:2  these always fail, with these errors
 *   FAKE_CUDA_KERNELS=libkernels.so  has the kernels, and emulation_launch: see tests/emulation.py; what it lacks fails
 *
 * and fake_fail_at() makes any one call fail, but those that free something and those that change the current context,
 * which stand before and behind them. fake_note() begins notes of what is put on streams, and in which device's context.
 * As with the real driver, nothing works in a forked child, and nothing is put on a stream without a context. */
#include "cuda_api.h"
#include "fake_tensor_map.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DECLARE(member, symbol, parameters) CUresult member parameters __asm__(symbol);
BSRG_CUDA_FUNCTIONS(DECLARE)
#undef DECLARE

/* ---- what tests ask for ---------------------------------------------------------------------- */

static atomic_llong live_objects, live_bytes, calls, launches;
static _Atomic(const char *) last_kernel;
static atomic_llong fail_at = -1;
static atomic_int fail_with;

/* Objects: memory, pools, streams, events, retained contexts. Libraries live as long as the process. */
long long fake_live_objects(void) { return live_objects; }
long long fake_live_bytes(void) { return live_bytes; }
long long fake_calls(void) { return calls; }
long long fake_launches(void) { return launches; }
const char *fake_last_kernel(void) { return last_kernel; }
/* Of the calls from now on, counted from 0, that one fails; none with -1. */
void fake_fail_at(long long call, int with) {
  atomic_store(&calls, 0);
  atomic_store(&fail_with, with);
  atomic_store(&fail_at, call);
}

/* Called within each launch, as what another thread might do meanwhile; NULL: nothing. */
static void (*_Atomic at_launch)(void);
void fake_at_launch(void (*call)(void)) { at_launch = call; }

static long number(const char *variable, long otherwise) {
  const char *text = getenv(variable);
  return text ? strtol(text, NULL, 10) : otherwise;
}

static pid_t initialised; /* by this process */

static CUresult begin(const char *symbol) {
  if (initialised != getpid()) return CUDA_ERROR_NOT_INITIALIZED;
  if (atomic_fetch_add(&calls, 1) == atomic_load(&fail_at)) return atomic_load(&fail_with);
  const char *failing = getenv("FAKE_CUDA_FAIL");
  const size_t length = strlen(symbol);
  for (const char *at = failing; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL)
    if (strncmp(at, symbol, length) == 0 && at[length] == ':') return atoi(at + length + 1);
  return CUDA_SUCCESS;
}

#define BEGIN(symbol)                          \
  {                                            \
    const CUresult result = begin(symbol);     \
    if (result != CUDA_SUCCESS) return result; \
  }

/* ---- contexts and notes ---------------------------------------------------------------------- */

static _Thread_local CUcontext contexts[16];
static _Thread_local int depth;

/* That of the current context, -1 where there is none. */
static int current_device(void) { return depth ? (int)(uintptr_t)contexts[depth - 1] - 1 : -1; }

static FILE *notes; /* NULL: nobody reads them */
static char *noted;
static size_t noted_bytes;

/* What was noted before is forgotten. */
void fake_note(void) {
  if (notes) fclose(notes);
  free(noted);
  notes = open_memstream(&noted, &noted_bytes);
}

/* A line each: the device, the stream, the function, and what it is about: an event, or a kernel and whether it may begin
 * early. */
const char *fake_noted(void) {
  fflush(notes);
  return noted;
}

enum { INVALID_VALUE = 1, INVALID_CONTEXT = 201, NO_SUCH_KERNEL = 500 };

static CUresult put(CUstream stream, const char *symbol, const char *about) {
  const int device = current_device();
  if (device < 0) return INVALID_CONTEXT;
  if (notes) fprintf(notes, "%d %llu %s %s\n", device, (unsigned long long)(uintptr_t)stream, symbol, about);
  return CUDA_SUCCESS;
}

static CUresult put_event(CUstream stream, const char *symbol, CUevent event) {
  char about[32];
  snprintf(about, sizeof about, "%p", (void *)event);
  return put(stream, symbol, about);
}

#define PUT(stream, symbol)                          \
  {                                                  \
    const CUresult result = put(stream, symbol, ""); \
    if (result != CUDA_SUCCESS) return result;       \
  }

/* ---- objects --------------------------------------------------------------------------------- */

/* Ahead of every object, on an alignment that device memory has. All are in a ring. */
typedef struct header {
  size_t bytes;
  int device;
  struct header *next, *previous;
  char pad[256 - 4 * sizeof(size_t)];
} header;

static header objects = {.next = &objects, .previous = &objects};
static pthread_mutex_t ring = PTHREAD_MUTEX_INITIALIZER;

static CUresult make(void **out, size_t bytes) {
  header *object;
  if (posix_memalign((void **)&object, 256, sizeof *object + bytes) != 0) return CUDA_ERROR_OUT_OF_MEMORY;
  object->bytes = bytes;
  object->device = current_device();
  memset(object + 1, 0xff, bytes);
  pthread_mutex_lock(&ring);
  object->next = &objects;
  object->previous = objects.previous;
  object->previous->next = objects.previous = object;
  pthread_mutex_unlock(&ring);
  ++live_objects;
  live_bytes += (long long)bytes;
  *out = object + 1;
  return CUDA_SUCCESS;
}

static CUresult destroy(void *pointer) {
  header *object = (header *)pointer - 1;
  pthread_mutex_lock(&ring);
  object->next->previous = object->previous;
  object->previous->next = object->next;
  pthread_mutex_unlock(&ring);
  --live_objects;
  live_bytes -= (long long)object->bytes;
  free(object);
  return CUDA_SUCCESS;
}

static CUresult make_memory(CUdeviceptr *out, size_t bytes) {
  void *memory;
  const CUresult result = make(&memory, bytes);
  if (result == CUDA_SUCCESS) *out = (CUdeviceptr)(uintptr_t)memory;
  return result;
}

/* What the driver does not allow while a stream is being captured, but to threads that have said that they are relaxed. */
static _Thread_local int capture_mode; /* 0: global, as every thread begins */
static int forbidden_while_capturing(void) {
  return number("FAKE_CUDA_STRICT", 0) && number("FAKE_CUDA_CAPTURING", -1) >= 0 &&
         capture_mode != CU_STREAM_CAPTURE_MODE_RELAXED;
}
#define ALLOWED_WHILE_CAPTURING                             \
  if (forbidden_while_capturing()) {                        \
    ++refused_calls;                                        \
    return 900; /* CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED */ \
  }
static atomic_llong refused_calls;
long long fake_refused_calls(void) { return refused_calls; }

/* The next event is made so late that other threads have gone on. */
static atomic_int slow;
void fake_slow(void) { slow = 1; }

/* ---- the driver's functions ------------------------------------------------------------------ */

CUresult init(unsigned flags) {
  (void)flags;
  if (initialised && initialised != getpid()) return CUDA_ERROR_NOT_INITIALIZED;
  initialised = getpid();
  return (CUresult)number("FAKE_CUDA_INIT", CUDA_SUCCESS);
}

CUresult driver_version(int *version) {
  BEGIN("cuDriverGetVersion")
  *version = 12080;
  return CUDA_SUCCESS;
}

CUresult error_name(CUresult error, const char **name) {
  static _Thread_local char text[32];
  snprintf(text, sizeof text, "CUDA_ERROR_%d", error);
  *name = text;
  return CUDA_SUCCESS;
}

CUresult error_string(CUresult error, const char **text) {
  (void)error;
  *text = "by a test";
  return CUDA_SUCCESS;
}

CUresult device_count(int *count) {
  BEGIN("cuDeviceGetCount")
  *count = (int)number("FAKE_CUDA_DEVICES", 1);
  return CUDA_SUCCESS;
}

CUresult device_get(CUdevice *device, int ordinal) {
  BEGIN("cuDeviceGet")
  *device = ordinal;
  return CUDA_SUCCESS;
}

CUresult device_name(char *name, int length, CUdevice device) {
  (void)device;
  BEGIN("cuDeviceGetName")
  snprintf(name, (size_t)length, "Fake GPU");
  return CUDA_SUCCESS;
}

CUresult device_memory(size_t *bytes, CUdevice device) {
  (void)device;
  BEGIN("cuDeviceTotalMem_v2")
  *bytes = (size_t)1 << 30;
  return CUDA_SUCCESS;
}

CUresult device_attribute(int *value, int attribute, CUdevice device) {
  (void)device;
  BEGIN("cuDeviceGetAttribute")
  const int arch = (int)number("FAKE_CUDA_ARCH", 90);
  *value =
      attribute == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR   ? arch / 10
      : attribute == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR ? arch % 10
      : attribute == CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT     ? (int)number("FAKE_CUDA_SMS", 132)
      : attribute == CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE ? (int)number("FAKE_CUDA_MEMORY_CLOCK", 3201000)
      : attribute == CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH ? (int)number("FAKE_CUDA_BUS_WIDTH", 6144)
                                                                 : 132;
  return CUDA_SUCCESS;
}

CUresult primary_context_retain(CUcontext *context, CUdevice device) {
  BEGIN("cuDevicePrimaryCtxRetain")
  ++live_objects;
  *context = (CUcontext)(uintptr_t)(device + 1);
  return CUDA_SUCCESS;
}

CUresult primary_context_release(CUdevice device) {
  (void)device;
  --live_objects;
  return CUDA_SUCCESS;
}

CUresult context_get(CUcontext *context) {
  *context = depth ? contexts[depth - 1] : NULL;
  return CUDA_SUCCESS;
}

/* More pushes than pops are a leak, which this says at once. */
CUresult context_push(CUcontext context) {
  if (depth == 16) abort();
  contexts[depth++] = context;
  return CUDA_SUCCESS;
}

CUresult context_pop(CUcontext *context) {
  if (depth == 0) abort();
  *context = contexts[--depth];
  return CUDA_SUCCESS;
}

CUresult library_load(CUlibrary *library, const void *image, int *jit_options, void **jit_values,
                      unsigned jit_count, int *library_options, void **library_values,
                      unsigned library_count) {
  (void)jit_options, (void)jit_values, (void)jit_count;
  (void)library_options, (void)library_values, (void)library_count;
  BEGIN("cuLibraryLoadData")
  *library = (CUlibrary)(uintptr_t)image;
  return CUDA_SUCCESS;
}

CUresult library_kernel(CUkernel *kernel, CUlibrary library, const char *name) {
  (void)library;
  BEGIN("cuLibraryGetKernel")
  *kernel = (CUkernel)(uintptr_t)name;
  return CUDA_SUCCESS;
}

CUresult kernel_get_attribute(int *value, int attribute, CUkernel kernel, CUdevice device) {
  (void)attribute, (void)kernel, (void)device;
  BEGIN("cuKernelGetAttribute")
  *value = (int)number("FAKE_CUDA_PTX", 90);
  return CUDA_SUCCESS;
}

CUresult kernel_set_attribute(int attribute, int value, CUkernel kernel, CUdevice device) {
  (void)attribute, (void)value;
  BEGIN("cuKernelSetAttribute")
  if (notes) fprintf(notes, "%d 0 cuKernelSetAttribute %s\n", device, (const char *)kernel);
  return CUDA_SUCCESS;
}

typedef bool (*emulation)(const char *name, const unsigned *grid, const unsigned *block, unsigned cluster,
                          void *parameter);

/* NULL where kernels do nothing. */
static emulation find_emulation(void) {
  const char *path = getenv("FAKE_CUDA_KERNELS");
  if (!path) return NULL;
  void *library = dlopen(path, RTLD_NOW);
  if (!library) {
    fprintf(stderr, "%s\n", dlerror());
    abort();
  }
  return (emulation)dlsym(library, "emulation_launch");
}

CUresult launch(const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra) {
  (void)extra;
  BEGIN("cuLaunchKernelEx")
  ++launches;
  last_kernel = (const char *)function; /* as library_kernel made it */
  const emulation emulate = find_emulation();
  const unsigned grid[] = {config->gridDimX, config->gridDimY, config->gridDimZ},
                 block[] = {config->blockDimX, config->blockDimY, config->blockDimZ};
  unsigned cluster = 1;
  bool early = false;
  for (unsigned i = 0; i < config->numAttrs; ++i)
    if (config->attrs[i].id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION)
      cluster = config->attrs[i].value.clusterDim.x;
    else if (config->attrs[i].id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION)
      early = config->attrs[i].value.programmaticStreamSerializationAllowed;
  char about[128];
  snprintf(about, sizeof about, "%s %s", last_kernel, early ? "early" : "");
  const CUresult result = put(config->hStream, "cuLaunchKernelEx", about);
  if (result != CUDA_SUCCESS) return result;
  void (*const call)(void) = at_launch;
  if (call) call();
  if (grid[0] == 0 || grid[1] == 0 || grid[2] == 0) return INVALID_VALUE;
  return !emulate || emulate((const char *)function, grid, block, cluster, parameters[0]) ? CUDA_SUCCESS
                                                                                          : NO_SUCH_KERNEL;
}

CUresult tensor_map_encode(void *map, int data_type, uint32_t rank, void *address, const uint64_t *dims,
                           const uint64_t *strides, const uint32_t *box, const uint32_t *element_strides,
                           int interleave, int swizzle, int l2_promotion, int oob_fill) {
  (void)element_strides, (void)interleave, (void)l2_promotion, (void)oob_fill;
  BEGIN("cuTensorMapEncodeTiled")
  const bool tf32 = data_type == CU_TENSOR_MAP_DATA_TYPE_TFLOAT32;
  fake_tensor_map told = {.data = address,
                          .rank = rank,
                          .item = data_type == CU_TENSOR_MAP_DATA_TYPE_UINT8             ? 1
                                  : tf32 || data_type == CU_TENSOR_MAP_DATA_TYPE_FLOAT32 ? 4
                                                                                         : 2,
                          .swizzle_bytes = swizzle == 0 ? 0 : 16 << swizzle,
                          .is_tf32 = tf32};
  for (uint32_t d = 0; d < rank; ++d) {
    told.dims[d] = dims[d];
    told.box[d] = box[d];
    if (d > 0) told.strides[d - 1] = strides[d - 1];
  }
  memset(map, 0, 128);
  memcpy(map, &told, sizeof told);
  return CUDA_SUCCESS;
}

CUresult memory_alloc(CUdeviceptr *pointer, size_t bytes) {
  ALLOWED_WHILE_CAPTURING
  BEGIN("cuMemAlloc_v2")
  PUT(NULL, "cuMemAlloc_v2")
  return make_memory(pointer, bytes);
}

CUresult memory_free(CUdeviceptr pointer) {
  ALLOWED_WHILE_CAPTURING
  PUT(NULL, "cuMemFree_v2")
  return destroy((void *)(uintptr_t)pointer);
}

CUresult memory_alloc_async(CUdeviceptr *pointer, size_t bytes, CUstream stream) {
  BEGIN("cuMemAllocAsync")
  PUT(stream, "cuMemAllocAsync")
  return make_memory(pointer, bytes);
}

CUresult pool_create(CUmemoryPool *pool, const CUmemPoolProps *properties) {
  (void)properties;
  BEGIN("cuMemPoolCreate")
  return make((void **)pool, 1);
}

CUresult pool_destroy(CUmemoryPool pool) { return destroy(pool); }

CUresult pool_set_attribute(CUmemoryPool pool, int attribute, void *value) {
  (void)pool, (void)attribute, (void)value;
  BEGIN("cuMemPoolSetAttribute")
  return CUDA_SUCCESS;
}

CUresult pool_alloc_async(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool, CUstream stream) {
  (void)pool;
  BEGIN("cuMemAllocFromPoolAsync")
  PUT(stream, "cuMemAllocFromPoolAsync")
  return make_memory(pointer, bytes);
}

CUresult memory_free_async(CUdeviceptr pointer, CUstream stream) {
  PUT(stream, "cuMemFreeAsync")
  return destroy((void *)(uintptr_t)pointer);
}

CUresult copy_to_device(CUdeviceptr destination, const void *source, size_t bytes, CUstream stream) {
  BEGIN("cuMemcpyHtoDAsync_v2")
  PUT(stream, "cuMemcpyHtoDAsync_v2")
  memcpy((void *)(uintptr_t)destination, source, bytes);
  return CUDA_SUCCESS;
}

CUresult copy_to_host(void *destination, CUdeviceptr source, size_t bytes, CUstream stream) {
  BEGIN("cuMemcpyDtoHAsync_v2")
  PUT(stream, "cuMemcpyDtoHAsync_v2")
  memcpy(destination, (const void *)(uintptr_t)source, bytes);
  return CUDA_SUCCESS;
}

CUresult set_32(CUdeviceptr pointer, unsigned value, size_t count, CUstream stream) {
  BEGIN("cuMemsetD32Async")
  PUT(stream, "cuMemsetD32Async")
  for (size_t i = 0; i < count; ++i) ((unsigned *)(uintptr_t)pointer)[i] = value;
  return CUDA_SUCCESS;
}

CUresult pointer_attribute(void *value, int attribute, CUdeviceptr pointer) {
  (void)attribute;
  BEGIN("cuPointerGetAttribute")
  *(int *)value = 0; /* of memory that no driver has made, which tests lend */
  pthread_mutex_lock(&ring);
  for (const header *object = objects.next; object != &objects; object = object->next)
    if (pointer - (uintptr_t)(object + 1) < object->bytes) *(int *)value = object->device;
  pthread_mutex_unlock(&ring);
  return CUDA_SUCCESS;
}

CUresult stream_create(CUstream *stream, unsigned flags) {
  (void)flags;
  BEGIN("cuStreamCreate")
  return make((void **)stream, 1);
}

CUresult stream_destroy(CUstream stream) { return destroy(stream); }

CUresult stream_synchronize(CUstream stream) {
  ALLOWED_WHILE_CAPTURING
  BEGIN("cuStreamSynchronize")
  PUT(stream, "cuStreamSynchronize")
  return CUDA_SUCCESS;
}

CUresult stream_wait_event(CUstream stream, CUevent event, unsigned flags) {
  (void)flags;
  BEGIN("cuStreamWaitEvent")
  return put_event(stream, "cuStreamWaitEvent", event);
}

CUresult stream_is_capturing(CUstream stream, int *status) {
  BEGIN("cuStreamIsCapturing")
  *status = number("FAKE_CUDA_CAPTURING", -1) == (long)(intptr_t)stream;
  return CUDA_SUCCESS;
}

CUresult stream_id(CUstream stream, unsigned long long *id) {
  BEGIN("cuStreamGetId")
  *id = (uintptr_t)stream;
  return CUDA_SUCCESS;
}

CUresult exchange_capture_mode(int *mode) {
  const int before = capture_mode;
  capture_mode = *mode;
  *mode = before;
  return CUDA_SUCCESS;
}

CUresult event_create(CUevent *event, unsigned flags) {
  (void)flags;
  BEGIN("cuEventCreate")
  if (atomic_exchange(&slow, 0)) usleep(200000);
  return make((void **)event, 1);
}

CUresult event_record(CUevent event, CUstream stream) {
  BEGIN("cuEventRecord")
  return put_event(stream, "cuEventRecord", event);
}

CUresult event_destroy(CUevent event) { return destroy(event); }
