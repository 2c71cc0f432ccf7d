/* Finding libcuda, devices and kernels. Nothing here is touched before the first use of a GPU. */
#include "driver.h"

#include "kernel_images.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_DEVICES = 64 };
/* What the scratch pool holds on to when the device is synchronised. */
enum { SCRATCH_KEPT_BYTES = 256 << 20 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
void bsrg_lock(void) { pthread_mutex_lock(&lock); }
void bsrg_unlock(void) { pthread_mutex_unlock(&lock); }

/* ---- the driver library ---------------------------------------------------------------------- */

static pthread_once_t load_once = PTHREAD_ONCE_INIT;
static bsrg_cuda_api api_table;
static bsrg_status load_status;
static bsrg_error load_error;

/* The driver's threads and mappings are not in a forked child, where its calls fail, hang or crash. */
#define FORKED                                                                                         \
  "CUDA was used in this process's parent before the fork, and the driver does not work in such a "    \
  "child: start it with multiprocessing's method 'spawn' or 'forkserver', or use no GPU before forks." \
  " Products on the CPU work here"
static atomic_bool forked;
static void note_fork(void) { atomic_store(&forked, true); }

typedef struct error_text {
  const char *name, *text;
} error_text;

/* The driver gives no text for codes that it does not know. */
static error_text describe_error(const bsrg_cuda_api *api, CUresult result) {
  error_text said = {NULL, NULL};
  api->error_name(result, &said.name);
  api->error_string(result, &said.text);
  if (!said.name) said.name = "unknown error";
  if (!said.text) said.text = "";
  return said;
}

static void load_driver(void) {
  void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    load_status =
        bsrg_fail(&load_error, BSRG_ERR_UNAVAILABLE, "no CUDA driver on this machine: %s", dlerror());
    return;
  }
  const char *missing = NULL;
#define FIND(member, symbol, parameters)                    \
  {                                                         \
    void *function = dlsym(library, symbol);                \
    if (!function) missing = symbol;                        \
    memcpy(&api_table.member, &function, sizeof(function)); \
  }
  BSRG_CUDA_FUNCTIONS(FIND)
#undef FIND
  if (missing) {
    load_status = bsrg_fail(
        &load_error, BSRG_ERR_UNAVAILABLE,
        "the CUDA driver on this machine is too old: it has no %s (a driver for CUDA 12.0 or later is "
        "needed)",
        missing);
    return;
  }
  const CUresult result = api_table.init(0);
  if (result == CUDA_ERROR_NOT_INITIALIZED) { /* another library had used it */
    load_status = bsrg_fail(&load_error, BSRG_ERR_UNAVAILABLE, FORKED);
  } else if (result != CUDA_SUCCESS) {
    const error_text said = describe_error(&api_table, result);
    load_status = bsrg_fail(&load_error, BSRG_ERR_UNAVAILABLE, "the CUDA driver cannot be used: %s (%s)",
                            said.name, said.text);
  } else if (pthread_atfork(NULL, NULL, note_fork) != 0) {
    load_status = bsrg_fail(&load_error, BSRG_ERR_MEMORY, "no memory to watch for forks");
  }
}

bsrg_status bsrg_cuda(const bsrg_cuda_api **api, bsrg_error *error) {
  pthread_once(&load_once, load_driver);
  if (load_status != BSRG_OK) return bsrg_fail(error, load_status, "%s", load_error.message);
  if (atomic_load_explicit(&forked, memory_order_relaxed))
    return bsrg_fail(error, BSRG_ERR_UNAVAILABLE, FORKED);
  *api = &api_table;
  return BSRG_OK;
}

bsrg_status bsrg_cuda_check(const bsrg_cuda_api *api, CUresult result, const char *call, bsrg_error *error) {
  if (result == CUDA_SUCCESS) return BSRG_OK;
  const error_text said = describe_error(api, result);
  const bsrg_status status = result == CUDA_ERROR_OUT_OF_MEMORY ? BSRG_ERR_MEMORY : BSRG_ERR_CUDA;
  return bsrg_fail(error, status, "%s failed: %s (%s)", call, said.name, said.text);
}

/* ---- devices --------------------------------------------------------------------------------- */

static _Atomic(bsrg_device_state *) devices[MAX_DEVICES];

/* What large reads reach of two words a clock: 4.2 of 4.9 TB/s on an H200, 2.9 of 3.35 on an H100. */
static const double memory_share = 0.854;
static double memory_rate(int clock_khz, int width) {
  const double peak = 2e3 * (double)clock_khz * (double)width / 8;
  return peak > 0 ? memory_share * peak : bsrg_chip_h200().hbm_bytes_per_s;
}

static CUresult describe_device(const bsrg_cuda_api *api, CUdevice device, bsrg_gpu_info *info) {
  int major = 0, minor = 0, clock_khz = 0, width = 0;
  size_t bytes = 0;
  CUresult result = api->device_name(info->name, sizeof(info->name), device);
  if (result == CUDA_SUCCESS) result = api->device_memory(&bytes, device);
  if (result == CUDA_SUCCESS) result = api->driver_version(&info->driver_version);
  if (result == CUDA_SUCCESS)
    result = api->device_attribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device);
  if (result == CUDA_SUCCESS)
    result = api->device_attribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device);
  if (result == CUDA_SUCCESS)
    result = api->device_attribute(&info->sm_count, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device);
  if (result == CUDA_SUCCESS)
    result = api->device_attribute(&clock_khz, CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE, device);
  if (result == CUDA_SUCCESS)
    result = api->device_attribute(&width, CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH, device);
  info->hbm_bytes_per_s = memory_rate(clock_khz, width);
  info->memory_bytes = (int64_t)bytes;
  info->sm_arch = 10 * major + minor;
  return result;
}

/* What a state holds of its device, all of it or none. Its context is current. */
static CUresult fill_device(const bsrg_cuda_api *api, bsrg_device_state *state) {
  /* A pool of our own: the device's default one, which belongs to everybody, gives its memory back at every
   * synchronisation. */
  const CUmemPoolProps pool = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                               .location = {CU_MEM_LOCATION_TYPE_DEVICE, state->device}};
  uint64_t kept = SCRATCH_KEPT_BYTES;
  CUresult result = api->pool_create(&state->scratch, &pool);
  if (result != CUDA_SUCCESS) return result;
  result = api->pool_set_attribute(state->scratch, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &kept);
  if (result == CUDA_SUCCESS) result = api->stream_create(&state->upload, CU_STREAM_NON_BLOCKING);
  if (result == CUDA_SUCCESS)
    result = api->memory_alloc(&state->counters, sizeof(uint32_t) * BSRG_COUNTER_SLOTS);
  if (result == CUDA_SUCCESS) result = api->set_32(state->counters, 0, BSRG_COUNTER_SLOTS, state->upload);
  if (result == CUDA_SUCCESS) result = api->stream_synchronize(state->upload);
  if (result == CUDA_SUCCESS) return result;
  if (state->counters) api->memory_free(state->counters);
  if (state->upload) api->stream_destroy(state->upload);
  api->pool_destroy(state->scratch);
  return result;
}

static bsrg_status make_device(const bsrg_cuda_api *api, int index, bsrg_device_state *state,
                               bsrg_error *error) {
  state->index = state->info.index = index;
  bsrg_status status = bsrg_cuda_check(api, api->device_get(&state->device, index), "cuDeviceGet", error);
  if (status == BSRG_OK)
    status = bsrg_cuda_check(api, describe_device(api, state->device, &state->info),
                             "asking for the GPU's properties", error);
  if (status == BSRG_OK)
    status = bsrg_cuda_check(api, api->primary_context_retain(&state->context, state->device),
                             "cuDevicePrimaryCtxRetain", error);
  if (status != BSRG_OK) return status;
  bool pushed;
  status = bsrg_enter(api, state, &pushed, error);
  if (status == BSRG_OK) {
    int mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    api->exchange_capture_mode(&mode);
    const CUresult result = fill_device(api, state);
    api->exchange_capture_mode(&mode);
    bsrg_leave(api, pushed);
    status = bsrg_cuda_check(api, result, "preparing the GPU", error);
  }
  if (status != BSRG_OK) api->primary_context_release(state->device);
  return status;
}

static bsrg_status first_use(const bsrg_cuda_api *api, int index, bsrg_error *error) {
  bsrg_status status = BSRG_OK;
  bsrg_lock();
  if (!atomic_load(&devices[index])) {
    bsrg_device_state *state = calloc(1, sizeof(*state));
    status = state ? make_device(api, index, state, error)
                   : bsrg_fail(error, BSRG_ERR_MEMORY, "no memory for the state of cuda:%d", index);
    if (status == BSRG_OK)
      atomic_store_explicit(&devices[index], state, memory_order_release);
    else
      free(state);
  }
  bsrg_unlock();
  return status;
}

bsrg_status bsrg_open_device(int index, const bsrg_cuda_api **api, bsrg_device_state **device,
                             bsrg_error *error) {
  bsrg_status status = bsrg_cuda(api, error);
  if (status != BSRG_OK) return status;
  if (index < 0 || index >= MAX_DEVICES || !atomic_load_explicit(&devices[index], memory_order_acquire)) {
    int count = 0;
    status = bsrg_gpu_count(&count, error);
    if (status != BSRG_OK) return status;
    if (count > MAX_DEVICES) count = MAX_DEVICES;
    if (index < 0 || index >= count)
      return bsrg_fail(error, BSRG_ERR_VALUE, "device is cuda:%d, but this machine has cuda:0 to cuda:%d",
                       index, count - 1);
    status = first_use(*api, index, error);
  }
  *device = atomic_load_explicit(&devices[index], memory_order_acquire);
  return status;
}

bsrg_status bsrg_check_arch(const bsrg_gpu_info *info, bsrg_error *error) {
  if (info->sm_arch >= 80) return BSRG_OK;
  return bsrg_fail(error, BSRG_ERR_UNAVAILABLE,
                   "cuda:%d (%s) has compute capability %d.%d, but the kernels need 8.0 or later",
                   info->index, info->name, info->sm_arch / 10, info->sm_arch % 10);
}

bsrg_status bsrg_enter(const bsrg_cuda_api *api, const bsrg_device_state *device, bool *pushed,
                       bsrg_error *error) {
  CUcontext current = NULL;
  *pushed = false;
  if (api->context_get(&current) == CUDA_SUCCESS && current == device->context) return BSRG_OK;
  const bsrg_status status =
      bsrg_cuda_check(api, api->context_push(device->context), "cuCtxPushCurrent", error);
  *pushed = status == BSRG_OK;
  return status;
}

void bsrg_leave(const bsrg_cuda_api *api, bool pushed) {
  CUcontext ignored;
  if (pushed) api->context_pop(&ignored);
}

bsrg_status bsrg_upload(const bsrg_cuda_api *api, bsrg_device_state *device, const void *source, size_t bytes,
                        CUdeviceptr *out, bsrg_error *error) {
  /* Relaxed: allocating is legal while the caller captures a graph, since nothing here touches that stream.
   * */
  int mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  api->exchange_capture_mode(&mode);
  *out = 0;
  CUresult result = api->memory_alloc(out, bytes ? bytes : 1);
  if (result == CUDA_SUCCESS && bytes) result = api->copy_to_device(*out, source, bytes, device->upload);
  if (result == CUDA_SUCCESS) result = api->stream_synchronize(device->upload);
  if (result != CUDA_SUCCESS && *out) {
    api->memory_free(*out);
    *out = 0;
  }
  api->exchange_capture_mode(&mode);
  if (result == CUDA_ERROR_OUT_OF_MEMORY)
    return bsrg_fail(error, BSRG_ERR_MEMORY, "cuda:%d has no room for %zu bytes of a plan", device->index,
                     bytes ? bytes : 1);
  return bsrg_cuda_check(api, result, "uploading a plan", error);
}

bsrg_status bsrg_scratch_alloc(const bsrg_cuda_api *api, bsrg_device_state *device, size_t bytes,
                               CUstream stream, CUdeviceptr *out, bsrg_error *error) {
  *out = 0;
  if (bytes == 0) return BSRG_OK; /* the driver refuses that */
  const CUresult result = api->pool_alloc_async(out, bytes, device->scratch, stream);
  if (result == CUDA_ERROR_OUT_OF_MEMORY)
    return bsrg_fail(error, BSRG_ERR_MEMORY,
                     "cuda:%d has no room for %zu bytes that the product needs meanwhile", device->index,
                     bytes);
  return bsrg_cuda_check(api, result, "cuMemAllocFromPoolAsync", error);
}

bsrg_status bsrg_scratch_free(const bsrg_cuda_api *api, CUdeviceptr scratch, CUstream stream,
                              bsrg_status status, bsrg_error *error) {
  if (scratch == 0) return status;
  const CUresult result = api->memory_free_async(scratch, stream);
  return status == BSRG_OK ? bsrg_cuda_check(api, result, "cuMemFreeAsync", error) : status;
}

/* ---- kernels --------------------------------------------------------------------------------- */

static CUlibrary libraries[BSRG_KERNEL_COUNT]; /* of the image that a table row names; rows may share one */
static CUkernel kernels[BSRG_KERNEL_COUNT];

/* An image that the device or its driver does not take is found out at any of the calls up to the launch: the driver
 * may load it as late as that. */
static bsrg_status check_kernel(const bsrg_cuda_api *api, const bsrg_device_state *device, CUresult result,
                                const char *call, bsrg_error *error) {
  bsrg_error reason;
  const bsrg_status status = bsrg_cuda_check(api, result, call, &reason);
  if (status == BSRG_OK) return BSRG_OK;
  const bsrg_gpu_info *info = &device->info;
  if (result == CUDA_ERROR_INVALID_IMAGE || result == CUDA_ERROR_NO_BINARY_FOR_GPU ||
      result == CUDA_ERROR_UNSUPPORTED_PTX_VERSION)
    return bsrg_fail(
        error, BSRG_ERR_UNAVAILABLE,
        "cuda:%d (%s, compute capability %d.%d, driver for CUDA %d.%d) cannot run the kernels of "
        "this build: %s. Install a newer driver, or bsrgemm built by an nvcc of that CUDA",
        info->index, info->name, info->sm_arch / 10, info->sm_arch % 10, info->driver_version / 1000,
        info->driver_version % 1000 / 10, reason.message);
  return bsrg_fail(error, status, "%s", reason.message);
}

static bsrg_status load_kernel(const bsrg_cuda_api *api, const bsrg_device_state *device, bsrg_kernel_id id,
                               bsrg_error *error) {
  const bsrg_kernel *row = &bsrg_kernels[id];
  for (int other = 0; other < BSRG_KERNEL_COUNT && !libraries[id]; ++other)
    if (libraries[other] && strcmp(bsrg_kernels[other].image, row->image) == 0)
      libraries[id] = libraries[other];
  for (int i = 0; i < bsrg_kernel_image_count && !libraries[id]; ++i) {
    if (strcmp(bsrg_kernel_images[i].name, row->image) != 0) continue;
    CUlibrary library;
    const bsrg_status status = check_kernel(
        api, device, api->library_load(&library, bsrg_kernel_images[i].data, NULL, NULL, 0, NULL, NULL, 0),
        "cuLibraryLoadData", error);
    if (status != BSRG_OK) return status;
    libraries[id] = library;
  }
  if (!libraries[id])
    return bsrg_fail(
        error, BSRG_ERR_UNAVAILABLE,
        "this build of bsrgemm has no CUDA kernels: install it where nvcc can be had, with BSRGEMM_CUDA=1");
  CUkernel kernel;
  const bsrg_status status = check_kernel(api, device, api->library_kernel(&kernel, libraries[id], row->name),
                                          "cuLibraryGetKernel", error);
  if (status == BSRG_OK) kernels[id] = kernel;
  return status;
}

/* Rows of the table may launch one kernel with different amounts: the attribute is the kernel's, so the largest
 * counts. */
static int most_shared_bytes(const bsrg_kernel *row) {
  int most = 0;
  for (int i = 0; i < BSRG_KERNEL_COUNT; ++i)
    if (strcmp(bsrg_kernels[i].name, row->name) == 0 && bsrg_kernels[i].shared_bytes > most)
      most = bsrg_kernels[i].shared_bytes;
  return most;
}

/* For who launches kernels of others that never end between ours, or looks for one that reads too early. */
static bool early_launch_is_off(void) {
  const char *given = getenv("BSRGEMM_EARLY_LAUNCH");
  return given && strcmp(given, "0") == 0;
}

/* Before the first launch on a device. waits: whether the kernel's code, of which the driver may compile other than the
 * build did, waits for the one before it (follow_grid_before in kernels/ptx/sync.cuh): what comes from PTX for sm_80
 * does not. */
static bsrg_status prepare_kernel(const bsrg_cuda_api *api, bsrg_device_state *device, bsrg_kernel_id id,
                                  bsrg_error *error) {
  int ptx_version = 0;
  bsrg_status status = check_kernel(
      api, device,
      api->kernel_set_attribute(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                                most_shared_bytes(&bsrg_kernels[id]), kernels[id], device->device),
      "cuKernelSetAttribute", error);
  if (status == BSRG_OK)
    status = check_kernel(
        api, device,
        api->kernel_get_attribute(&ptx_version, CU_FUNC_ATTRIBUTE_PTX_VERSION, kernels[id], device->device),
        "cuKernelGetAttribute", error);
  device->waits[id] = device->info.sm_arch == 90 && ptx_version >= 90 && !early_launch_is_off();
  device->prepared[id] = status == BSRG_OK;
  return status;
}

/* Graphs are left alone: who captures may not know edges of the kind that such a launch makes. */
static bool may_begin_early(const bsrg_cuda_api *api, const bsrg_device_state *device, bsrg_kernel_id id,
                            CUstream stream) {
  int capturing = 0;
  return device->waits[id] && stream != CU_STREAM_PER_THREAD &&
         api->stream_is_capturing(stream, &capturing) == CUDA_SUCCESS && !capturing;
}

/* cluster: how many neighbouring CTAs along x are one; 0: as many as the table says. */
static bsrg_status launch(const bsrg_cuda_api *api, bsrg_device_state *device, bsrg_kernel_id id, int cluster,
                          int64_t grid_x, int64_t grid_y, CUstream stream, void *parameters,
                          bsrg_error *error) {
  const bsrg_kernel *row = &bsrg_kernels[id];
  bsrg_status status = BSRG_OK;
  bsrg_lock();
  if (!kernels[id]) status = load_kernel(api, device, id, error);
  if (status == BSRG_OK && !device->prepared[id]) status = prepare_kernel(api, device, id, error);
  bsrg_unlock();
  if (status != BSRG_OK) return status;

  CUlaunchAttribute attributes[2];
  unsigned count = 0;
  if (cluster == 0) cluster = row->cluster;
  if (cluster > 1) {
    CUlaunchAttribute *dimension = &attributes[count++];
    *dimension = (CUlaunchAttribute){.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION};
    dimension->value.clusterDim.x = (unsigned)cluster;
    dimension->value.clusterDim.y = dimension->value.clusterDim.z = 1;
  }
  if (may_begin_early(api, device, id, stream)) {
    CUlaunchAttribute *early = &attributes[count++];
    *early = (CUlaunchAttribute){.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION};
    early->value.programmaticStreamSerializationAllowed = 1;
  }
  const CUlaunchConfig config = {.gridDimX = (unsigned)grid_x,
                                 .gridDimY = (unsigned)grid_y,
                                 .gridDimZ = 1,
                                 .blockDimX = (unsigned)row->threads,
                                 .blockDimY = 1,
                                 .blockDimZ = 1,
                                 .sharedMemBytes = (unsigned)row->shared_bytes,
                                 .hStream = stream,
                                 .attrs = attributes,
                                 .numAttrs = count};
  void *arguments[] = {parameters};
  return check_kernel(api, device, api->launch(&config, (CUfunction)kernels[id], arguments, NULL), row->name,
                      error);
}

bsrg_status bsrg_launch(const bsrg_cuda_api *api, bsrg_device_state *device, bsrg_kernel_id id,
                        int64_t grid_x, int64_t grid_y, CUstream stream, void *parameters,
                        bsrg_error *error) {
  return launch(api, device, id, 0, grid_x, grid_y, stream, parameters, error);
}

/* The counter of a stream, 0 if it has none. */
static CUdeviceptr stream_counter(const bsrg_cuda_api *api, bsrg_device_state *device, CUstream stream) {
  int capturing = 0;
  unsigned long long id;
  if (stream == CU_STREAM_PER_THREAD) return 0;
  if (api->stream_is_capturing(stream, &capturing) != CUDA_SUCCESS || capturing) return 0;
  if (api->stream_id(stream, &id) != CUDA_SUCCESS) return 0;
  bsrg_lock();
  int slot = 0;
  while (slot < device->counter_count && device->counter_stream[slot] != id) ++slot;
  if (slot == device->counter_count && slot < BSRG_COUNTER_SLOTS) {
    device->counter_stream[slot] = id;
    device->counter_count++;
  }
  bsrg_unlock();
  return slot < BSRG_COUNTER_SLOTS ? device->counters + sizeof(uint32_t) * (CUdeviceptr)slot : 0;
}

bsrg_status bsrg_launch_drawing(const bsrg_cuda_api *api, bsrg_device_state *device, bsrg_kernel_id kernel,
                                int cluster, int64_t ctas, CUstream stream, void *parameters,
                                uint32_t **counter, bool drawn, bsrg_error *error) {
  CUdeviceptr scratch = 0, at = stream_counter(api, device, stream);
  bsrg_status status = BSRG_OK;
  if (!at && drawn) {
    status = bsrg_scratch_alloc(api, device, sizeof(**counter), stream, &scratch, error);
    if (status != BSRG_OK) return status;
    at = scratch;
    status = bsrg_cuda_check(api, api->set_32(at, 0, 1, stream), "cuMemsetD32Async", error);
  }
  *counter = (uint32_t *)(uintptr_t)at;
  if (status == BSRG_OK) status = launch(api, device, kernel, cluster, ctas, 1, stream, parameters, error);
  return scratch ? bsrg_scratch_free(api, scratch, stream, status, error) : status;
}
