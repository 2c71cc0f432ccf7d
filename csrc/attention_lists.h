/* Which tiles of keys a tile of queries meets under masks: what the portable kernels of attention walk over. */
#ifndef BSRG_ATTENTION_LISTS_H
#define BSRG_ATTENTION_LISTS_H

#include "../kernels/params_decode.h"
#include "attention.h"

/* The lists of all masks, each with one row a tile of queries; see bsrg_attention_tile. Neighbours that are one mask share
 * theirs. Where there would be 2^31 words or more, there are numbers alone. */
typedef struct bsrg_attention_lists {
  int64_t *tile_begin, *tile_end; /* [rows] */
  bsrg_attention_tile *tiles;
  uint64_t *words;
  int64_t rows, tile_count, word_count;
  int64_t longest; /* tiles of a row, at most */
} bsrg_attention_lists;

/* For bsrg_mask_plan_get, with the queries of a tile and the number of tiles as options. */
void *bsrg_attention_make_lists(const bsrg_attention_args *args, const int64_t *options);
void bsrg_attention_free_lists(void *plan);

/* The lists of args' masks of either kind on the GPU, where the call's stream finds them. *longest: the most tiles that
 * one can have. *scratch, memory that the caller frees behind the attention kernel, also on failure: 0 where there is none. */
bsrg_status bsrg_attention_get_lists(const bsrg_attention_args *args, int64_t tile_rows, bsrg_gpu gpu,
                                     bsrg_attention_tile_lists *out, int64_t *longest, CUdeviceptr *scratch,
                                     bsrg_error *error);

#endif
