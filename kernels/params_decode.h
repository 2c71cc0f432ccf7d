/* What host code and the decode kernels of attention with masks agree on. Not included by params.h: other kernels have nothing
 * to do with it. */
#ifndef BSRG_PARAMS_DECODE_H
#define BSRG_PARAMS_DECODE_H

#include "params.h"

/* On a GPU, lists of the key tiles that queries meet: list i is tiles[tile_begin[i]] up to tiles[tile_end[i] - 1], ascending,
 * and words are as bsrg_attention_tile says. */
typedef struct bsrg_attention_tile_lists {
  const int64_t *tile_begin, *tile_end;
  const bsrg_attention_tile *tiles;
  const uint64_t *words;
} bsrg_attention_tile_lists;

enum { BSRG_DECODE_TURN = 32 }; /* entries that a CTA fetches at a time */

/* attention_decode_mask_f16_d<size>_r<rows> and attention_decode_mask_bf16_..., with the rows of BSRG_DECODE_TILES. All
 * queries of a head have one list. Units, which decode.heads counts in a batch, are the heads of k where those of q that
 * share one share their list too; else they are the heads of q, and decode.group is 1. Splits share out the entries of a
 * unit's list, so that decode.tiles does not count. */
typedef struct bsrg_masked_decode_params {
  bsrg_decode_params decode; /* also what the second kernel gets */
  bsrg_attention_tile_lists lists;
  int32_t list_batch_stride, list_group; /* in lists, 0: shared; how many heads of q share a list */
  int32_t key_group;                     /* units that share a head of k */
  int32_t mask_height;                   /* of the mask's blocks */
  int32_t block_rows;                    /* of the mask: words of an entry that has some */
  int32_t narrowed; /* whether lists may have tiles outside decode.first_key .. end_key - 1 */
} bsrg_masked_decode_params;

#endif
