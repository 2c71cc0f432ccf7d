/* What host code and the kernels of top-k masks agree on, sm80/topk*.cuh; included by params.h, which is what everybody
 * includes. */
#ifndef BSRG_PARAMS_TOPK_H
#define BSRG_PARAMS_TOPK_H

#include "params.h"

/* One CTA a row of scores, or a list. */
enum {
  BSRG_TOPK_THREADS = 128,
  BSRG_TOPK_GROUP_TILES = 1024, /* key tiles whose groups a CTA holds at a time */
  BSRG_TOPK_PAIR_TILES = 4096,  /* key tiles of 64 likewise, for pairs */
  BSRG_TOPK_WORDS = 1024        /* words likewise, for the portable kernels */
};

/* Of a bsrg_topk_mask, what does not depend on scores. */
typedef struct bsrg_topk_shape {
  int64_t block_height, block_width, queries, diagonal;
  int32_t block_rows, block_cols;
  int32_t most; /* columns of a row, at most, and the pitch of rows in memory */
  int32_t causal;
} bsrg_topk_shape;

/* The first so many block columns compete. */
BSRG_BOTH_SIDES int32_t bsrg_topk_candidates(const bsrg_topk_shape *shape, int32_t row) {
  if (!shape->causal) return shape->block_cols;
  const int64_t end = (row + (int64_t)1) * shape->block_height;
  const int64_t last_key = (end < shape->queries ? end : shape->queries) - 1 + shape->diagonal;
  if (last_key < 0) return 0;
  const int64_t blocks = last_key / shape->block_width + 1;
  return blocks < shape->block_cols ? (int32_t)blocks : shape->block_cols;
}

BSRG_BOTH_SIDES int32_t bsrg_topk_count(const bsrg_topk_shape *shape, int32_t row) {
  const int32_t candidates = bsrg_topk_candidates(shape, row);
  return candidates < shape->most ? candidates : shape->most;
}

/* topk_f16, topk_bf16, topk_f32: CTA i has block row i % block_rows of pattern i / block_rows. */
typedef struct bsrg_topk_params {
  bsrg_topk_shape shape;
  const void *scores;
  int64_t batch_stride, head_stride, row_stride, column_stride;
  int32_t heads;    /* of patterns */
  int32_t *columns; /* as in bsrg_topk_mask */
} bsrg_topk_params;

/* topk_tiles, topk_pairs: what the host's plans of masks have, made from columns. CTA i makes the list of query tile
 * i % query_tiles of pattern i / query_tiles, and describes that query tile for all heads that share it. */
typedef struct bsrg_topk_lists_params {
  bsrg_topk_shape shape;
  const int32_t *columns;
  bsrg_attention_order order;
  bsrg_attention_bounds bounds;
  int32_t batch, heads;           /* of q */
  int32_t mask_batch, mask_heads; /* 1 or q's, and 1, k's or q's */
  int32_t tile_keys;              /* of an entry; pairs have their own */
  int32_t capacity;               /* entries of a list, at most; lists begin that far apart */
  bsrg_attention_item *tiles;
  void *entries; /* bsrg_attention_entry or bsrg_attention_key_pair */
} bsrg_topk_lists_params;

/* topk_words: the lists that the portable kernels read. CTAs as above. */
typedef struct bsrg_topk_words_params {
  bsrg_topk_shape shape;
  const int32_t *columns;
  int32_t queries, keys;
  int32_t query_tiles, tile_rows;
  int32_t capacity;   /* tiles of a list, at most */
  int32_t tile_words; /* block rows of a query tile, at most: tiles' words begin that far apart */
  int64_t *tile_begin, *tile_end;
  bsrg_attention_tile *tiles;
  uint64_t *words;
} bsrg_topk_words_params;

#endif
