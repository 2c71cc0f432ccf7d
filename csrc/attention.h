/* Attention inside the core: what each backend offers. */
#ifndef BSRG_ATTENTION_H
#define BSRG_ATTENTION_H

#include "copy.h"
#include "uploads.h"

/* The functions below get args that bsrg_attention has checked, with at least one query. There may be no keys. On a GPU
 * elements have 16 or 8 bits. */

/* cpu/attention.c. Offsets of sequences are BSRG_I64. */
bsrg_status bsrg_cpu_attention(const bsrg_attention_args *args, bsrg_error *error);
/* attention_gpu.c */
bsrg_status bsrg_gpu_attention(const bsrg_attention_args *args, bsrg_error *error);

/* The Hopper kernels (attention_plan.c, attention_launch.c): NULL when they can compute it, else what they need. */
const char *bsrg_attention_hopper_obstacle(const bsrg_attention_args *args, const bsrg_gpu_info *gpu);
bsrg_status bsrg_attention_hopper_launch(const bsrg_attention_args *args, bsrg_gpu gpu, bsrg_error *error);
/* The portable kernels (attention_portable.c). */
const char *bsrg_attention_portable_obstacle(const bsrg_attention_args *args, const bsrg_gpu_info *gpu);
bsrg_status bsrg_attention_portable_launch(const bsrg_attention_args *args, bsrg_gpu gpu, bsrg_error *error);

/* attention_copies.c: a call whose tensors all backends can read by vectors, on copies of those that are not so. */
typedef struct bsrg_attention_copies {
  bsrg_attention_args args; /* the data of copies is NULL until there is memory */
  bool q, k, v, out;
} bsrg_attention_copies;
bsrg_attention_copies bsrg_attention_describe_copies(const bsrg_attention_args *args);
/* Whether there are any, and the backends for tensors as they are would take longer, or are none. */
bool bsrg_attention_wants_copies(const bsrg_attention_args *args, const bsrg_attention_copies *copies);
typedef bsrg_status (*bsrg_attention_launcher)(const bsrg_attention_args *args, bsrg_gpu gpu,
                                               bsrg_error *error);
/* Copies, lets `launch` compute and copies the result. */
bsrg_status bsrg_attention_launch_copies(const bsrg_attention_args *args, bsrg_attention_copies *copies,
                                         bsrg_attention_launcher launch, bsrg_gpu gpu, bsrg_error *error);

/* The decode kernels (attention_decode.c). */
const char *bsrg_attention_decode_obstacle(const bsrg_attention_args *args, const bsrg_gpu_info *gpu);
/* Whether they are the fastest, where they can compute it. */
bool bsrg_attention_decode_suits(const bsrg_attention_args *args, const bsrg_gpu_info *gpu);
bsrg_status bsrg_attention_decode_launch(const bsrg_attention_args *args, bsrg_gpu gpu, bsrg_error *error);
enum {
  BSRG_DECODE_SPLIT_KEYS = 256, /* of a split, at least, but for rounding to tiles */
  BSRG_DECODE_SLOT_SPLITS = 4   /* splits in all for each CTA that fits the GPU, about, at most */
};
/* How many CTAs share the keys of each of `units` heads: the GPU has `slots` of them at a time. */
int64_t bsrg_attention_decode_splits(int64_t units, int64_t keys, int64_t tile_keys, int64_t slots);

/* attention.c: query i may see the keys i + first .. i + last, as far as there are such; both are from -queries to
 * keys. */
typedef struct bsrg_band {
  int64_t first, last;
} bsrg_band;
bsrg_band bsrg_attention_band(const bsrg_attention_args *args);
/* The same of a sequence. */
bsrg_band bsrg_attention_sequence_band(const bsrg_attention_args *args, int64_t queries, int64_t keys);

/* attention.c: numbers for kernels that compute softcap * tanh(score * scale), or score * scale where softcap is 0. They do
 * not overflow or vanish, nor does the cap, or the scale where there is none, when a kernel multiplies it by log2(e) before
 * anything else: an infinite factor would make NaN of a score of 0. So caps are 2^100 at most, as larger ones change no score
 * that leaves more than one weight, and scales FLT_MAX / 1.5. */
typedef struct bsrg_capped_scale {
  float scale, softcap;
} bsrg_capped_scale;
bsrg_capped_scale bsrg_attention_capped_scale(const bsrg_attention_args *args);

/* attention_sequences.c: all but the offsets. */
bsrg_status bsrg_attention_check_sequences(const bsrg_attention_args *args, bsrg_error *error);
/* On the CPU: *out are the sequences of args with offsets of BSRG_I64 in *memory, which is to be freed in any case.
 * What is checked are these: others may write to the caller's meanwhile. */
bsrg_status bsrg_attention_copy_sequences(const bsrg_attention_args *args, bsrg_sequences *out, void **memory,
                                          bsrg_error *error);
/* What kernels get, for at most 2^30 queries and keys in all. */
bsrg_attention_sequences bsrg_attention_sequences_of(const bsrg_attention_args *args);
/* Slots for the query tiles of one head, see bsrg_attention_first_slot. */
int64_t bsrg_attention_slots(const bsrg_attention_args *args, int64_t tile_rows);

static inline bsrg_dtype bsrg_attention_out_dtype(const bsrg_attention_args *args) {
  return args->dtype == BSRG_F8_E4M3 ? BSRG_BF16 : args->dtype;
}

/* Whether rows can be copied 8 elements at a time. */
static inline bool bsrg_attention_has_aligned_rows(const bsrg_tensor *t) {
  return t->element_stride == 1 && (uintptr_t)t->data % 16 == 0 && t->row_stride % 8 == 0 &&
         t->head_stride % 8 == 0 && t->batch_stride % 8 == 0;
}

/* Whether a tensor map can describe it, and vectors of 16 bytes read it. A stride of 0 between heads or batches is left out of
 * the map. */
static inline bool bsrg_attention_can_describe(const bsrg_tensor *t, bsrg_dtype dtype) {
  const int64_t end = (int64_t)1 << 39, unit = 16 / (int64_t)bsrg_dtype_size(dtype);
  return t->element_stride == 1 && (uintptr_t)t->data % 16 == 0 && t->row_stride >= t->size &&
         t->row_stride < end && t->row_stride % unit == 0 && t->head_stride >= 0 && t->head_stride < end &&
         t->head_stride % unit == 0 && t->batch_stride >= 0 && t->batch_stride < end &&
         t->batch_stride % unit == 0;
}

/* Whether args have masks of either kind. bsrg_attention sets mask_batch and mask_heads for both. */
static inline bool bsrg_attention_is_masked(const bsrg_attention_args *args) {
  return args->masks != NULL || args->topk != NULL;
}

/* One for all masks of a call. Only where it is masked. */
typedef struct bsrg_block_shape {
  int64_t height, width;
} bsrg_block_shape;
static inline bsrg_block_shape bsrg_attention_block_shape(const bsrg_attention_args *args) {
  if (args->topk != NULL) return (bsrg_block_shape){args->topk->block_height, args->topk->block_width};
  return (bsrg_block_shape){args->masks[0]->view.block_height, args->masks[0]->view.block_width};
}

/* How many neighbouring heads of q share a mask. Only where it is masked. */
static inline int64_t bsrg_attention_mask_group(const bsrg_attention_args *args) {
  return args->q.heads / args->mask_heads;
}

/* The mask of a batch and a head of q; NULL without masks. */
static inline const bsrg_structure_view *bsrg_attention_mask(const bsrg_attention_args *args, int64_t batch,
                                                             int64_t head) {
  if (args->masks == NULL) return NULL;
  const int64_t b = args->mask_batch == 1 ? 0 : batch, h = head / bsrg_attention_mask_group(args);
  return &args->masks[b * args->mask_heads + h]->view;
}

/* ---- attention_masks.c: what a backend works out from the masks of a call ----------------------- */

enum { BSRG_MASK_OPTIONS = 12 };

/* Makes a plan; NULL when memory ran out. */
typedef void *(*bsrg_mask_plan_maker)(const bsrg_attention_args *args, const int64_t *options);

/* A mask's part in a plan. */
struct bsrg_mask_link {
  bsrg_mask_link *before, *next; /* of the same mask */
  bsrg_structure *mask;
  bsrg_mask_plan *plan;
};

/* Made at the first call with these masks and options, and kept until the first of these masks is destroyed. */
struct bsrg_mask_plan {
  bsrg_mask_link *links; /* of each mask, once */
  int64_t link_count;
  bsrg_mask_plan *next_dead;
  bsrg_family family;
  int64_t options[BSRG_MASK_OPTIONS]; /* as given to bsrg_mask_plan_get */
  int64_t mask_batch, mask_heads;
  uint64_t *ids; /* of the masks, by which they are known: an address may come back */
  void *plan;
  void (*free_plan)(void *plan);
  _Atomic(bsrg_uploads *) uploads; /* for bsrg_uploads_get_in */
};

/* The plan that make(args, options) makes. options are BSRG_MASK_OPTIONS numbers of the backend's own, such as a tile's
 * height: apart from them, the plan may depend on the masks only. */
bsrg_status bsrg_mask_plan_get(const bsrg_attention_args *args, bsrg_family family, const int64_t *options,
                               bsrg_mask_plan_maker make, void (*free_plan)(void *plan), bsrg_mask_plan **out,
                               bsrg_error *error);

#endif
