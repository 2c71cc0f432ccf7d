/* Attention on a GPU: from a checked call to the kernels that compute it. */
#include "attention.h"

/* One row a backend, the fastest first. One with `suits` is passed over where that says no, unless args name it. */
static const struct backend {
  bsrg_family family;
  const char *(*obstacle)(const bsrg_attention_args *args, const bsrg_gpu_info *gpu);
  bsrg_status (*launch)(const bsrg_attention_args *args, bsrg_gpu gpu, bsrg_error *error);
  bool (*suits)(const bsrg_attention_args *args, const bsrg_gpu_info *gpu);
} backends[] = {
    {BSRG_ATTENTION_DECODE, bsrg_attention_decode_obstacle, bsrg_attention_decode_launch,
     bsrg_attention_decode_suits},
    {BSRG_ATTENTION_HOPPER, bsrg_attention_hopper_obstacle, bsrg_attention_hopper_launch, NULL},
    {BSRG_PORTABLE, bsrg_attention_portable_obstacle, bsrg_attention_portable_launch, NULL},
};
enum { BACKENDS = sizeof(backends) / sizeof(backends[0]) };

/* The first backend that can compute it, among all or the one that args name. */
static bsrg_status choose(const bsrg_attention_args *args, const bsrg_gpu_info *gpu,
                          const struct backend **chosen, bsrg_error *error) {
  const char *obstacle = "has no backend";
  for (int i = 0; i < BACKENDS; ++i) {
    /* One backend alone takes 8 bits: what it lacks is what there is to say. */
    const bsrg_family wanted =
        args->family == BSRG_AUTO && args->dtype == BSRG_F8_E4M3 ? BSRG_ATTENTION_HOPPER : args->family;
    if (wanted != BSRG_AUTO && wanted != backends[i].family) continue;
    obstacle = backends[i].obstacle(args, gpu);
    const bool passed_over =
        obstacle == NULL && args->family == BSRG_AUTO && backends[i].suits && !backends[i].suits(args, gpu);
    if (obstacle == NULL && !passed_over) {
      *chosen = &backends[i];
      return BSRG_OK;
    }
  }
  /* The last one takes the most, so what it lacks is what there is to say. */
  return bsrg_fail(error, BSRG_ERR_VALUE, "attention on %s with family '%s' %s", gpu->name,
                   bsrg_family_name(args->family), obstacle);
}

/* Without keys results are zeros whatever q holds. No kernel of 8 bits does that, but those of 16 bits do: *other is such a
 * call, with the result in the place of q. Else args themselves. */
static const bsrg_attention_args *without_keys(const bsrg_attention_args *args, const bsrg_gpu_info *gpu,
                                               bsrg_attention_args *other) {
  if (args->dtype != BSRG_F8_E4M3 || args->k.rows > 0 || args->family != BSRG_AUTO || gpu->sm_arch != 90)
    return args;
  *other = *args;
  other->dtype = bsrg_attention_out_dtype(args);
  other->q = args->out;
  other->k = args->v;
  other->masks = NULL;
  other->topk = NULL;
  return other;
}

/* The backend for a call or, with copies, for the same on these: *copied says which. */
static bsrg_status choose_way(const bsrg_attention_args *args, const bsrg_gpu_info *gpu,
                              bsrg_attention_copies *copies, bool *copied, const struct backend **chosen,
                              bsrg_error *error) {
  *copies = bsrg_attention_describe_copies(args);
  /* Copies take all that the tensors themselves do, so what they lack is what there is to say. */
  *copied = bsrg_attention_wants_copies(args, copies);
  return choose(*copied ? &copies->args : args, gpu, chosen, error);
}

static bsrg_status answer(const bsrg_attention_args *args, bsrg_error *error) {
  const bsrg_gpu_info info = bsrg_question_gpu(args->question);
  bsrg_attention_args other;
  args = without_keys(args, &info, &other);
  const struct backend *backend = NULL;
  bsrg_attention_copies copies;
  bool copied;
  bsrg_status status = bsrg_check_arch(&info, error);
  if (status == BSRG_OK) status = choose_way(args, &info, &copies, &copied, &backend, error);
  if (status == BSRG_OK) args->question->family = backend->family;
  return status;
}

static bsrg_status compute(const bsrg_attention_args *args, bsrg_gpu gpu, bsrg_error *error) {
  bsrg_attention_args other;
  args = without_keys(args, &gpu.device->info, &other);
  const struct backend *backend = NULL;
  bsrg_attention_copies copies;
  bool copied;
  bsrg_status status = choose_way(args, &gpu.device->info, &copies, &copied, &backend, error);
  if (status != BSRG_OK) return status;
  return copied ? bsrg_attention_launch_copies(args, &copies, backend->launch, gpu, error)
                : backend->launch(args, gpu, error);
}

bsrg_status bsrg_gpu_attention(const bsrg_attention_args *args, bsrg_error *error) {
  if (args->question) return answer(args, error);
  const bsrg_cuda_api *api;
  bsrg_device_state *device;
  bool pushed;
  bsrg_status status = bsrg_open_device(args->device.index, &api, &device, error);
  if (status == BSRG_OK) status = bsrg_enter(api, device, &pushed, error);
  if (status != BSRG_OK) return status;
  status = bsrg_check_arch(&device->info, error);
  if (status == BSRG_OK) status = compute(args, (bsrg_gpu){api, device}, error);
  bsrg_leave(api, pushed);
  return status;
}
