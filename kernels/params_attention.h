/* What host code and the kernels of attention agree on; the end of params.h, which is what everybody includes. */
#ifndef BSRG_PARAMS_ATTENTION_H
#define BSRG_PARAMS_ATTENTION_H

#include "params.h"

/* ---- sm90/attention.cuh ---------------------------------------------------------------------- */

/* A query tile is what a CTA computes at a time, a key tile one step of it. The tiles that are compiled, one row a
 * kernel, attention_f16_h<size>_<kind>, attention_bf16_... and attention_e4m3_...: X(head size, kind, query rows, keys,
 * listing, capped). Smaller heads run in the next larger one. `listing` is a bsrg_attention_listing; capped kinds bound
 * the scores by a softcap. */
typedef enum bsrg_attention_listing {
  BSRG_ATTENTION_BY_BOUNDS,  /* every key tile that the bounds of the keys let through */
  BSRG_ATTENTION_BY_LIST,    /* lists of key tiles, with a bit for every 16 x 16 elements */
  BSRG_ATTENTION_BY_PAIRS,   /* lists of pairs of 64 keys, for masks of blocks of 64 x 64 or multiples */
  BSRG_ATTENTION_BY_SEQUENCE /* as by bounds, of the sequence that the query tile lies in */
} bsrg_attention_listing;
#define BSRG_ATTENTION_KINDS(X, size, rows, keys, other_rows, other_keys) \
  X(size, plain, rows, keys, BSRG_ATTENTION_BY_BOUNDS, 0)                 \
  X(size, capped, other_rows, other_keys, BSRG_ATTENTION_BY_BOUNDS, 1)    \
  X(size, blocks, other_rows, other_keys, BSRG_ATTENTION_BY_LIST, 0)      \
  X(size, capped_blocks, other_rows, other_keys, BSRG_ATTENTION_BY_LIST, 1)
#define BSRG_ATTENTION_PAIR_KINDS(X, size)             \
  X(size, pairs, 128, 128, BSRG_ATTENTION_BY_PAIRS, 0) \
  X(size, capped_pairs, 128, 128, BSRG_ATTENTION_BY_PAIRS, 1)
#define BSRG_ATTENTION_SEQUENCE_KINDS(X, size, keys)        \
  X(size, varlen, 128, keys, BSRG_ATTENTION_BY_SEQUENCE, 0) \
  X(size, capped_varlen, 128, keys, BSRG_ATTENTION_BY_SEQUENCE, 1)
#define BSRG_ATTENTION_TILES(X)                    \
  BSRG_ATTENTION_KINDS(X, 64, 192, 128, 128, 128)  \
  BSRG_ATTENTION_PAIR_KINDS(X, 64)                 \
  BSRG_ATTENTION_SEQUENCE_KINDS(X, 64, 128)        \
  BSRG_ATTENTION_KINDS(X, 96, 128, 128, 128, 128)  \
  BSRG_ATTENTION_KINDS(X, 128, 128, 128, 128, 128) \
  BSRG_ATTENTION_PAIR_KINDS(X, 128)                \
  BSRG_ATTENTION_SEQUENCE_KINDS(X, 128, 128)       \
  BSRG_ATTENTION_KINDS(X, 192, 128, 96, 128, 64)   \
  BSRG_ATTENTION_KINDS(X, 256, 128, 64, 128, 64)   \
  BSRG_ATTENTION_SEQUENCE_KINDS(X, 256, 64)
/* Of 8-bit elements. A step's matrix instructions take half as long, its exponentials as long as ever, so what a step
 * costs beside them counts for more: more keys a step. */
#define BSRG_ATTENTION_TILES_8(X)                  \
  BSRG_ATTENTION_KINDS(X, 64, 192, 160, 128, 128)  \
  BSRG_ATTENTION_PAIR_KINDS(X, 64)                 \
  BSRG_ATTENTION_KINDS(X, 128, 128, 224, 128, 128) \
  BSRG_ATTENTION_PAIR_KINDS(X, 128)                \
  BSRG_ATTENTION_KINDS(X, 192, 128, 160, 128, 128) \
  BSRG_ATTENTION_KINDS(X, 256, 128, 128, 128, 128)

enum {
  BSRG_ATTENTION_MAX_SIZE = 256,
  BSRG_ATTENTION_MAX_ROWS = 1000000000, /* of queries and of keys: sums of a row and an offset fit 32 bits */
  BSRG_ATTENTION_STAGES = 2,            /* key tiles and as many value tiles in flight */
  BSRG_ATTENTION_LIST_ROWS = 128,       /* query rows of the kinds with blocks */
  BSRG_ATTENTION_GROUP = 16,            /* rows and keys that one bit of an entry stands for */
  BSRG_ATTENTION_PAIR_SIZE = 128,       /* largest head size of the kinds with pairs */
  BSRG_ATTENTION_PAIR_ROWS = 64,        /* query rows of a warpgroup, and keys of one half of a pair */
};

/* One consumer warpgroup for 64 query rows, and a warpgroup of producers. */
#define BSRG_ATTENTION_THREADS(rows) (128 * ((rows) / 64 + 1))
/* Two buffers let the next tile's queries arrive while this one is computed; large heads leave no room for it. */
#define BSRG_ATTENTION_QUERY_BUFFERS(size) ((size) <= 128 ? 2 : 1)
/* Pieces of PIECE_ROWS x 64 outputs, of as many as it has rows, that a consumer warpgroup has room for. */
enum { BSRG_ATTENTION_PIECE_ROWS = 64 };
#define BSRG_ATTENTION_PIECES(size) ((size) < 128 ? 1 : 2)
/* Queries, keys and values of `item` bytes an element, output pieces, barriers and records, and slack to align the
 * start to 1024. */
#define BSRG_ATTENTION_HOPPER_BYTES(item, size, rows, keys)                                               \
  ((item) * (size) * (BSRG_ATTENTION_QUERY_BUFFERS(size) * (rows) + 2 * BSRG_ATTENTION_STAGES * (keys)) + \
   (rows) * BSRG_ATTENTION_PIECES(size) * 128 + 512 + 1024)

/* Which keys the rows of one query tile may see, in key tiles: begin to end - 1, at least one, although perhaps with no
 * visible key. Tiles from above_begin on hold keys that are too high for some row, tiles before below_end such that are
 * too low. */
typedef struct bsrg_attention_range {
  int32_t begin, end, above_begin, below_end;
} bsrg_attention_range;

/* Row i sees keys i + low_offset to i + high_offset; the offsets are within +-BSRG_ATTENTION_MAX_ROWS. */
typedef struct bsrg_attention_bounds {
  int32_t queries, keys, low_offset, high_offset;
} bsrg_attention_bounds;

BSRG_BOTH_SIDES bsrg_attention_range bsrg_attention_key_range(const bsrg_attention_bounds *bounds,
                                                              int32_t first_row, int32_t rows,
                                                              int32_t tile_keys) {
  const int32_t keys = bounds->keys, low_offset = bounds->low_offset, high_offset = bounds->high_offset;
  const int32_t end_row = first_row + rows < bounds->queries ? first_row + rows : bounds->queries;
  const int32_t last_row = end_row - 1;
  const int32_t low = first_row + low_offset > 0 ? first_row + low_offset : 0;
  const int32_t high = last_row + high_offset < keys ? last_row + high_offset : keys - 1;
  const int32_t first_high = first_row + high_offset < keys ? first_row + high_offset : keys - 1;
  const int32_t last_low = last_row + low_offset < keys ? last_row + low_offset : keys;
  bsrg_attention_range range;
  range.begin = (low < keys ? low : keys - 1) / tile_keys;
  range.end = low <= high ? high / tile_keys + 1 : range.begin + 1;
  range.above_begin = first_high < 0 ? 0 : (first_high + 1) / tile_keys;
  range.below_end = last_low <= 0 ? 0 : (last_low + tile_keys - 1) / tile_keys;
  return range;
}

/* Sequences of different lengths, one behind the other: sequence s has the rows from offset s to offset s + 1. */
typedef struct bsrg_attention_sequences {
  const void *q_offsets, *k_offsets; /* [count + 1], of 64 bits where wide, in device memory */
  int64_t diagonal, left, right;     /* as in bsrg_attention_args, within +-2^40 */
  int32_t count, wide_q, wide_k;
  int32_t queries, keys; /* of all: no offset is taken to be more */
  int32_t align_last;
} bsrg_attention_sequences;

/* One of them. */
typedef struct bsrg_attention_sequence {
  bsrg_attention_bounds bounds;
  int32_t first_query, first_key; /* among all rows */
  int32_t first_slot;
} bsrg_attention_sequence;

BSRG_BOTH_SIDES int32_t bsrg_attention_offset(const void *offsets, int32_t wide, int32_t i, int32_t least,
                                              int32_t most) {
  const int64_t at = wide ? ((const int64_t *)offsets)[i] : ((const int32_t *)offsets)[i];
  return at < least ? least : at > most ? most : (int32_t)at;
}

/* Query tiles have slots, so that a tile finds its sequence without counting those before it: sequence s has the slots
 * from its first query / tile_rows + s on, and there are as many as it has tiles, or one more. */
BSRG_BOTH_SIDES int32_t bsrg_attention_first_slot(const bsrg_attention_sequences *all, int32_t s,
                                                  int32_t tile_rows) {
  return bsrg_attention_offset(all->q_offsets, all->wide_q, s, 0, all->queries) / tile_rows + s;
}

/* The sequence that slot `slot` belongs to. */
BSRG_BOTH_SIDES bsrg_attention_sequence bsrg_attention_sequence_at(const bsrg_attention_sequences *all,
                                                                   int32_t slot, int32_t tile_rows) {
  int32_t low = 0, high = all->count; /* the last one whose slots begin no later */
  while (high - low > 1) {
    const int32_t middle = low + (high - low) / 2;
    if (bsrg_attention_first_slot(all, middle, tile_rows) <= slot)
      low = middle;
    else
      high = middle;
  }
  bsrg_attention_sequence found;
  found.first_query = bsrg_attention_offset(all->q_offsets, all->wide_q, low, 0, all->queries);
  found.first_key = bsrg_attention_offset(all->k_offsets, all->wide_k, low, 0, all->keys);
  found.first_slot = bsrg_attention_first_slot(all, low, tile_rows);
  const int32_t queries =
      bsrg_attention_offset(all->q_offsets, all->wide_q, low + 1, found.first_query, all->queries) -
      found.first_query;
  const int32_t keys =
      bsrg_attention_offset(all->k_offsets, all->wide_k, low + 1, found.first_key, all->keys) -
      found.first_key;
  const int64_t diagonal = all->diagonal + (all->align_last ? keys - queries : 0);
  const int64_t first = all->left < 0 ? -queries : diagonal - all->left;
  const int64_t last = all->right < 0 ? keys : diagonal + all->right;
  found.bounds.queries = queries;
  found.bounds.keys = keys;
  found.bounds.low_offset = (int32_t)(first < -queries ? -queries : first > keys ? keys : first);
  found.bounds.high_offset = (int32_t)(last < -queries ? -queries : last > keys ? keys : last);
  return found;
}

/* In which order the query tiles of all heads of all batches are computed: sections of heads whose keys and values
 * fit in L2 together, the last query tile of all its heads first. The last section is larger, so that the chip is not
 * left with one long tile after another. */
typedef struct bsrg_attention_order {
  int32_t heads, query_tiles; /* heads of all batches */
  int32_t section;            /* heads of a section */
  int32_t tail_begin;         /* first head of the last section */
} bsrg_attention_order;

typedef struct bsrg_attention_position {
  int32_t head, query_tile;
} bsrg_attention_position;

BSRG_BOTH_SIDES bsrg_attention_position bsrg_attention_tile_position(const bsrg_attention_order *order,
                                                                     int32_t t) {
  int32_t first = order->tail_begin, end = order->heads;
  if (t < order->tail_begin * order->query_tiles) {
    first = t / (order->section * order->query_tiles) * order->section;
    end = first + order->section < order->tail_begin ? first + order->section : order->tail_begin;
  }
  const int32_t within = t - first * order->query_tiles, width = end - first;
  bsrg_attention_position position;
  position.head = first + within % width;
  position.query_tile = order->query_tiles - 1 - within / width;
  return position;
}

/* The t that bsrg_attention_tile_position has this position for. */
BSRG_BOTH_SIDES int32_t bsrg_attention_tile_index(const bsrg_attention_order *order, int32_t head,
                                                  int32_t query_tile) {
  int32_t first = order->tail_begin, end = order->heads;
  if (head < order->tail_begin) {
    first = head / order->section * order->section;
    end = first + order->section < order->tail_begin ? first + order->section : order->tail_begin;
  }
  return first * order->query_tiles + (order->query_tiles - 1 - query_tile) * (end - first) + head - first;
}

/* A query tile of the kinds with blocks, and its key tiles. */
typedef struct bsrg_attention_item {
  int32_t first_row[2];             /* of each warpgroup's 64 queries; may lie behind the last query */
  int32_t head;                     /* of all batches */
  int32_t steps;                    /* entries that a warpgroup computes, as many for both */
  int32_t entry_begin, entry_count; /* at least one */
  int32_t passes_first;             /* pairs: the second warpgroup does not take the first entry */
  int32_t slot;                     /* of a part of a query tile, where its sums go; -1: the whole tile */
} bsrg_attention_item;

enum { BSRG_ATTENTION_ABOVE = 1, BSRG_ATTENTION_BELOW = 2, BSRG_ATTENTION_PARTIAL = 4 };
enum { BSRG_ATTENTION_RUN = 32, BSRG_ATTENTION_RUN_UNIT = 256 };

/* One key tile of a list, and what must be masked in it: keys above or below some row's bounds, and where PARTIAL is
 * set groups of 16 x 16 whose bit is not set. Bit 8 * (r % 4) + c of word r / 4: row group r, key group c. Key
 * tiles descend in a list. RUN_UNIT times: an entry and those without flags that follow it, RUN at most. */
typedef struct bsrg_attention_entry {
  int32_t key_tile, flags;
  uint32_t groups[2];
} bsrg_attention_entry;

/* One step of the kinds with pairs: twice 64 keys, each at key tile * 64; a key tile behind the last one is zeros. Each
 * warpgroup has flags of its own: those above, and these. A warpgroup takes at least one of two entries that follow
 * one another, also across query tiles. RUN_UNIT times: an entry that it takes and masks nothing in, and those that follow
 * it; where it masks something none. */
typedef struct bsrg_attention_key_pair {
  int32_t key_tile[2];
  int32_t flags[2];
} bsrg_attention_key_pair;
enum {
  BSRG_ATTENTION_TAKES = 8,        /* the warpgroup computes this entry */
  BSRG_ATTENTION_PASSES_NEXT = 16, /* but the next one of this query tile it does not */
  BSRG_ATTENTION_HIDES_FIRST = 32, /* it sees none of the first 64 keys */
  BSRG_ATTENTION_HIDES_SECOND = 64
};

/* Parts of query tiles that lists cut along the keys. A part leaves BSRG_ATTENTION_LIST_ROWS rows of `size` sums, the
 * head size of the kernel, and for each row the shift and the sum of its exponentials. The sums lie as in WGMMA
 * accumulators: [slot][16 rows of a warp][8 elements][lane][row lane / 4, row lane / 4 + 8][2 elements]. */
typedef struct bsrg_attention_parts {
  float *sums;
  float *stats; /* [slot][row][2]; the shift of a row that sees no key is -FLT_MAX */
} bsrg_attention_parts;

/* Where every query sees every key, the last query tiles, too few for all SMs, are cut along the keys: their key tiles
 * one after another are dealt to the SMs in shares, of which each reaches into two query tiles at most. So an item of a
 * share is part of one query tile, and slots number the items, those of a query tile without gaps. */
typedef struct bsrg_attention_tail {
  int32_t first;  /* query tile in the order; INT32_MAX: none is cut */
  int32_t tiles;  /* from there on */
  int32_t steps;  /* key tiles of a query tile */
  int32_t share;  /* key tiles of a share, at most `steps` */
  int32_t shares; /* the last one may be smaller */
} bsrg_attention_tail;
enum { BSRG_ATTENTION_TAIL_SIZE = 128 }; /* head size of the kernels that do this, with 16-bit elements */

typedef struct bsrg_attention_tail_item {
  int32_t tile;               /* in the order */
  int32_t begin, count, slot; /* its key tiles; count <= 0: there is no such item */
} bsrg_attention_tail_item;

BSRG_BOTH_SIDES bsrg_attention_tail_item bsrg_attention_item_of_share(const bsrg_attention_tail *tail,
                                                                      int32_t share, int32_t second) {
  const int32_t all = tail->tiles * tail->steps, begin = share * tail->share;
  const int32_t end = begin + tail->share < all ? begin + tail->share : all;
  const int32_t tile = begin / tail->steps + second;
  const int32_t from = second ? 0 : begin - tile * tail->steps;
  const int32_t to = end - tile * tail->steps;
  bsrg_attention_tail_item item;
  item.tile = tail->first + tile;
  item.begin = from;
  item.count = (to < tail->steps ? to : tail->steps) - from;
  item.slot = share + tile;
  return item;
}

/* Heads that share what the map describes: head h of batch b is at h / head_divisor, b * batch_factor.
 *
 * Of sequences: {size, box rows, heads, windows}, of which window w is box rows from row w of all on. A box from row r of
 * it takes what is left of the window and nothing behind it: loads get zeros there, and stores leave the next sequence
 * alone. Windows do not begin before the first row, since TMA fails where no memory is mapped at a map's address, even
 * if nothing there is asked for. So rows that end before the first window does are taken one by one. */
typedef struct bsrg_attention_map {
  bsrg_tensor_map map; /* {size, rows, heads, batches}, box a panel x the rows of a tile, or 64 */
  int32_t head_divisor, batch_factor;
} bsrg_attention_map;

/* Values of 8-bit elements, packed by sm80/attention_values.cu for what WGMMA takes as it lies: key chunks of 16, each
 * [size][16] with the keys in the order of BSRG_ATTENTION_VALUE_KEY, the size being the kernel's. Zeros beyond the last
 * key and element. */
typedef struct bsrg_attention_values {
  uint8_t *data;      /* [batch][head][chunk][size][16], of what bsrg_attention_map calls distinct */
  int64_t head_bytes; /* from one head to the next */
  int32_t heads;
} bsrg_attention_values;
enum { BSRG_ATTENTION_VALUE_CHUNK = 16 };
/* The key of a chunk at byte 4 * word + i. */
#define BSRG_ATTENTION_VALUE_KEY(word, i) (2 * (word) + (i) % 2 + (i) / 2 * 8)

/* One factor for each batch and head of k, at data[batch * batch_stride + head * head_stride], or `all` for all of them
 * where data is NULL. */
typedef struct bsrg_attention_factors {
  const float *data;
  int64_t batch_stride, head_stride;
  float all;
} bsrg_attention_factors;

typedef struct bsrg_attention_params {
  bsrg_attention_map q, k, v;       /* 8 bits: v without the map */
  bsrg_tensor_map out;              /* {size, rows, heads, batches}, box 64 elements x PIECE_ROWS */
  float *lse;                       /* NULL, or [batch][head][row] */
  const bsrg_attention_item *tiles; /* kinds with blocks */
  const void *entries;              /* bsrg_attention_entry or bsrg_attention_key_pair */
  uint32_t *counter;                /* as in bsrg_tall_params */
  bsrg_attention_order order;
  bsrg_attention_bounds bounds;
  int32_t tile_count, heads;
  float scale_log2; /* scores, or capped ones, times this are exponents of 2 */
  float
      cap_log2; /* capped kinds: a score times this is the exponent of 2 that makes exp(2 * score * scale / softcap) */
  /* 8 bits */
  bsrg_attention_values values;
  bsrg_attention_factors q_factors, k_factors, v_factors;
  int32_t group;                      /* heads of q that share one of k */
  bsrg_attention_sequences sequences; /* kinds by sequence, whose order.query_tiles are slots */
  bsrg_attention_parts parts;         /* where some tile has a slot */
  bsrg_attention_tail tail;           /* kinds by bounds; tile_count counts its shares instead of its tiles */
  /* Kinds by sequence: {size, rows, heads, 1}, box a panel of one row. */
  bsrg_tensor_map q_rows, k_rows, v_rows, out_rows;
} bsrg_attention_params;

/* ---- sm80/attention_values.cu ---------------------------------------------------------------- */

enum { BSRG_ATTENTION_VALUE_THREADS = 256 };
/* Chunks of one CTA: a thread packs 16 x 16 elements together with three others. */
#define BSRG_ATTENTION_VALUE_CHUNKS(size) (4 * BSRG_ATTENTION_VALUE_THREADS / (size))

typedef struct bsrg_attention_values_params {
  const uint8_t *v; /* unit stride of elements, everything else at multiples of 16 */
  int64_t batch_stride, head_stride, row_stride;
  int32_t keys, value_size;
  bsrg_attention_values values;
  int32_t size;         /* of the kernel that reads them */
  int32_t chunks, ctas; /* of a head */
} bsrg_attention_values_params;

/* ---- sm80/attention_parts.cu ----------------------------------------------------------------- */

enum { BSRG_ATTENTION_JOIN_WARPS = 4 };

/* A query tile in parts, in the order of their keys. */
typedef struct bsrg_attention_cut {
  int32_t first_row, head; /* as in bsrg_attention_item */
  int32_t first_slot, slot_count;
} bsrg_attention_cut;

/* Of query tile `tile` of a tail. */
BSRG_BOTH_SIDES bsrg_attention_cut bsrg_attention_cut_of_tail(const bsrg_attention_tail *tail,
                                                              const bsrg_attention_order *order,
                                                              int32_t tile) {
  const bsrg_attention_position at = bsrg_attention_tile_position(order, tail->first + tile);
  const int32_t first = tile * tail->steps / tail->share;
  const int32_t last = ((tile + 1) * tail->steps - 1) / tail->share;
  bsrg_attention_cut cut;
  cut.first_row = at.query_tile * BSRG_ATTENTION_LIST_ROWS;
  cut.head = at.head;
  cut.first_slot = first + tile;
  cut.slot_count = last - first + 1;
  return cut;
}

/* A warp joins 16 rows x 32 elements of a query tile: warps = cuts * (BSRG_ATTENTION_LIST_ROWS / 16) * (size / 32). */
typedef struct bsrg_attention_join_params {
  const bsrg_attention_cut *cuts; /* NULL: of the tail */
  bsrg_attention_tail tail;
  bsrg_attention_order order;
  bsrg_attention_parts parts;
  bsrg_tensor_operand out; /* unit stride of elements, rows at multiples of 16 bytes */
  float *lse;              /* NULL, or [batch][head][row] */
  int32_t heads, queries, size, value_size;
} bsrg_attention_join_params;

/* ---- sm80/attention.cuh ---------------------------------------------------------------------- */

/* Keys that meet a tile of queries at a time: a bit each in a word. */
enum { BSRG_ATTENTION_KEYS = 64 };

/* The kernels, portable_attention_f16_d<size> and portable_attention_bf16_..., for head sizes up to `size`:
 *   X(size, query rows of a warp, CTAs of an SM)
 * A CTA has four warps. */
#define BSRG_ATTENTION_SIZES(X) \
  X(32, 32, 2)                  \
  X(64, 32, 2)                  \
  X(96, 32, 2)                  \
  X(128, 16, 2)                 \
  X(192, 16, 2)                 \
  X(256, 16, 1)
/* Those of sequences, portable_attention_f16_d<size>_varlen and portable_attention_bf16_.... */
#define BSRG_ATTENTION_SEQUENCE_SIZES(X) \
  X(64, 32, 2)                           \
  X(128, 16, 2)                          \
  X(256, 16, 1)
enum { BSRG_ATTENTION_WARPS = 4 };
/* Shared memory: the queries of a tile, its present keys and their values. */
#define BSRG_ATTENTION_SHARED_BYTES(size, warp_rows) \
  (2 * (size) * (BSRG_ATTENTION_WARPS * (warp_rows) + 2 * BSRG_ATTENTION_KEYS))

/* A tile of keys that some query of a tile may see. words + bits: one word for each of the mask's block rows that the
 * queries are in, whose bit c is set if they see key tile * BSRG_ATTENTION_KEYS + c. bits < 0: all see all of them. */
typedef struct bsrg_attention_tile {
  int32_t tile, bits;
} bsrg_attention_tile;

typedef struct bsrg_attention_portable_params {
  bsrg_tensor_operand q, k, v, out;
  float *lse; /* or NULL */
  /* tiles of mask m and query tile i: from tile_begin[m * query_tiles + i] up to tile_end of the same index, ascending.
   * NULL: no masks. */
  const int64_t *tile_begin, *tile_end;
  const bsrg_attention_tile *tiles;
  const uint64_t *words;
  int32_t heads, group;                  /* of q, and how many of them share a head of k and v */
  int32_t mask_batch_stride, mask_group; /* in masks, 0: shared; how many heads of q share a mask */
  int32_t mask_height;                   /* of its blocks */
  int32_t query_tiles;
  int32_t queries, keys, size, value_size;
  int32_t band_first, band_last;            /* query i sees keys i + band_first .. i + band_last */
  int32_t copy_q, copy_k, copy_v, copy_out; /* unit element stride, all rows 16-byte aligned */
  float scale;                              /* of scores, or of scores / softcap */
  float softcap;                            /* 0: none */
  bsrg_attention_sequences
      sequences; /* kernels of sequences, where query_tiles are slots and queries all of them */
} bsrg_attention_portable_params;

/* ---- sm80/attention_decode.cuh --------------------------------------------------------------- */

/* The kernels, attention_decode_f16_d<size>_r<rows> and attention_decode_bf16_..., for head sizes up to `size` and so
 * many queries of all heads that share a head of k and v: X(size, rows, CTAs of a Hopper SM)
 * A warp has 16 rows and, of every stage, some of the keys. The shared memory of a CTA is what every GPU from sm_80 up
 * has. */
#define BSRG_DECODE_TILES(X) \
  X(64, 16, 3)               \
  X(64, 32, 3)               \
  X(64, 64, 3)               \
  X(128, 16, 2)              \
  X(128, 32, 2)              \
  X(128, 64, 2)              \
  X(256, 16, 2)              \
  X(256, 32, 2)              \
  X(256, 64, 2)
#define BSRG_DECODE_KEYS(size) ((size) > 128 ? 32 : 64) /* of a stage */
#define BSRG_DECODE_STAGES(size) ((size) > 64 ? 3 : 4)
#define BSRG_DECODE_KEY_WARPS(size, rows) ((rows) > 16 ? 64 / (rows) : BSRG_DECODE_KEYS(size) / 16)
#define BSRG_DECODE_THREADS(size, rows) (2 * (rows) * BSRG_DECODE_KEY_WARPS(size, rows))
#define BSRG_DECODE_SHARED_BYTES(size) (4 * (size) * BSRG_DECODE_KEYS(size) * BSRG_DECODE_STAGES(size))

enum {
  BSRG_DECODE_ROWS = 64,  /* at most */
  BSRG_COMBINE_WARPS = 4, /* of a CTA of attention_combine_f16 and attention_combine_bf16 */
  BSRG_COMBINE_SHARED_BYTES = 1024 * BSRG_COMBINE_WARPS
};

/* Operands have unit element strides and rows that begin at multiples of 16 bytes; sizes are multiples of 8. CTA i has
 * split i % splits of batch and head i / splits. */
typedef struct bsrg_decode_params {
  bsrg_tensor_operand q, k, v, out;
  float *lse;   /* or NULL */
  float *sums;  /* [batches][heads][splits][rows][value_size], relative to the maximum; with one split NULL */
  float *stats; /* [batches][heads][splits][rows][2]: maximum and total; with one split NULL */
  int32_t heads, group;  /* of k and v, and how many of q share one */
  int32_t queries, rows; /* rows = queries * group */
  int32_t size, value_size;
  int32_t first_key, end_key;    /* what some query sees lies in first_key .. end_key - 1 */
  int32_t tiles, splits;         /* of those keys, the tiles being what a stage holds */
  int32_t band_first, band_last; /* query i sees keys i + band_first .. i + band_last */
  float scale;                   /* of scores, or of scores / softcap */
  float softcap;                 /* 0: none */
} bsrg_decode_params;

#endif
