/* Masks of the highest scores: what bsrg_topk_fill and the backends of attention share. Kernels in kernels/sm80/topk*. */
#ifndef BSRG_ATTENTION_TOPK_H
#define BSRG_ATTENTION_TOPK_H

#include "../kernels/params_decode.h"
#include "attention_hopper.h"

/* topk.c: sizes and pointer, beside what depends on operands. */
bsrg_status bsrg_topk_check(const bsrg_topk_mask *mask, bsrg_error *error);
/* Of scores. */
bsrg_status bsrg_topk_check_dtype(bsrg_dtype dtype, bsrg_error *error);
bsrg_topk_shape bsrg_topk_shape_of(const bsrg_topk_mask *mask);

/* Put kernels on the call's stream that make the lists of args->topk, in scratch memory that the caller frees behind the
 * attention kernel, also on failure unless it is 0. */
/* For the Hopper kernels: sets p->tiles and p->entries. */
bsrg_status bsrg_topk_list_tiles(const bsrg_attention_args *args, const bsrg_attention_plan_key *key,
                                 bsrg_gpu gpu, bsrg_attention_params *p, CUdeviceptr *scratch,
                                 bsrg_error *error);
/* For the portable kernels and those of few queries. */
bsrg_status bsrg_topk_list_words(const bsrg_attention_args *args, int64_t tile_rows, bsrg_gpu gpu,
                                 bsrg_attention_tile_lists *out, CUdeviceptr *scratch, bsrg_error *error);

/* The most key tiles of tile_keys keys that a list can have: of the block rows of any tile_rows queries. */
int64_t bsrg_topk_most_tiles(const bsrg_topk_mask *mask, int64_t keys, int64_t tile_rows, int64_t tile_keys);

#endif
