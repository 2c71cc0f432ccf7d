/* The Hopper kernels of attention: what is worked out on the host. Kernels in kernels/sm90/attention.cuh. */
#ifndef BSRG_ATTENTION_HOPPER_H
#define BSRG_ATTENTION_HOPPER_H

#include "attention.h"

#include "../kernels/params.h"

/* The order of query tiles of `rows` rows. */
bsrg_attention_order bsrg_attention_make_order(const bsrg_attention_args *args, int32_t rows);
bsrg_attention_bounds bsrg_attention_make_bounds(const bsrg_attention_args *args);

/* For the kinds with blocks: every query tile with its list of key tiles, longest first in each section. */
typedef struct bsrg_attention_plan {
  bsrg_attention_item *tiles;
  bsrg_attention_entry *entries;
  int64_t tile_count, entry_count;
} bsrg_attention_plan;

/* What a plan depends on beside the masks. */
typedef struct bsrg_attention_plan_key {
  bsrg_attention_order order;
  bsrg_attention_bounds bounds;
  int32_t heads, tile_keys;
} bsrg_attention_plan_key;
void bsrg_attention_key_options(const bsrg_attention_plan_key *key, int64_t options[BSRG_MASK_OPTIONS]);

/* A bsrg_mask_plan_maker. */
void *bsrg_attention_make_plan(const bsrg_attention_args *args, const int64_t *options);
void bsrg_attention_free_plan(void *plan);

#endif
