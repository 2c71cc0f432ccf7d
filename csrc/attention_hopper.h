/* The Hopper kernels of attention: what is worked out on the host. Kernels in kernels/sm90/attention.cuh. */
#ifndef BSRG_ATTENTION_HOPPER_H
#define BSRG_ATTENTION_HOPPER_H

#include "attention.h"

#include "../kernels/params.h"

/* The order of query tiles of `rows` rows. */
bsrg_attention_order bsrg_attention_make_order(const bsrg_attention_args *args, int32_t rows);
bsrg_attention_bounds bsrg_attention_make_bounds(const bsrg_attention_args *args);
/* Whether every query sees every key. */
static inline bool bsrg_attention_sees_all(const bsrg_attention_bounds *bounds) {
  return bounds->queries - 1 + bounds->low_offset <= 0 && bounds->high_offset >= bounds->keys - 1;
}
/* The head behind the last one of the section that begins with head `first`. */
int64_t bsrg_attention_section_end(const bsrg_attention_order *order, int64_t first);

/* For the kinds with blocks: every query tile with its list of key tiles, longest first in each section. Lists that are
 * no pairs may be cut along the keys: their parts come as tiles of their own. */
typedef struct bsrg_attention_plan {
  bsrg_attention_item *tiles;
  bsrg_attention_entry *entries;  /* NULL for pairs */
  bsrg_attention_key_pair *pairs; /* NULL for the others */
  bsrg_attention_cut *cuts;       /* of tiles in parts; NULL if there are none */
  int64_t tile_count, entry_count, cut_count, part_count;
  bool in_step; /* tiles are about equally long, and none is cut: for as few CTAs as need no more rounds */
} bsrg_attention_plan;

/* attention_values.c: packs the values of a call with 8-bit elements for a kernel with these head and key tiles, on the
 * call's stream. *scratch holds them, and is the caller's to free, also on failure unless it is 0. */
bsrg_status bsrg_attention_pack_values(const bsrg_attention_args *args, const bsrg_tensor *distinct,
                                       int32_t size, int32_t tile_keys, bsrg_gpu gpu,
                                       bsrg_attention_values *values, CUdeviceptr *scratch,
                                       bsrg_error *error);

/* What a plan depends on beside the masks. */
typedef struct bsrg_attention_plan_key {
  bsrg_attention_order order;
  bsrg_attention_bounds bounds;
  int32_t heads;
  int32_t tile_keys; /* of an entry; a pair has 2 * BSRG_ATTENTION_PAIR_ROWS */
  bool pairs;
  int32_t sms, step_ns; /* of the GPU, and about what a key tile takes there */
} bsrg_attention_plan_key;
void bsrg_attention_key_options(const bsrg_attention_plan_key *key, int64_t options[BSRG_MASK_OPTIONS]);

/* A bsrg_mask_plan_maker. */
void *bsrg_attention_make_plan(const bsrg_attention_args *args, const int64_t *options);
void bsrg_attention_free_plan(void *plan);

/* attention_cut.c: what is cut of a call without masks. */
bsrg_attention_tail bsrg_attention_make_tail(const bsrg_attention_plan_key *key);
/* Cuts query tiles of a plan in order, without pairs. false: no memory. */
bool bsrg_attention_cut_tiles(const bsrg_attention_plan_key *key, bsrg_attention_plan *plan);

/* attention_pairs.c: whether a mask of these blocks is one that pairs are for. */
bool bsrg_attention_suits_pairs(bsrg_block_shape block);
/* Appends the lists of a mask to plan->pairs, which has room for *room, and describes its query tiles, but for the
 * head. false: no memory. */
bool bsrg_attention_list_pairs(const bsrg_attention_bounds *bounds, const bsrg_structure_view *mask,
                               bsrg_attention_plan *plan, int64_t *room, bsrg_attention_item *lists);

#endif
