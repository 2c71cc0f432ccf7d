/* Slots of query tiles: each tile of each sequence has one, whatever the lengths, and nothing reaches beyond the rows. */
#include <stdlib.h>

#include "attention.h"
#include "structures.h"

enum { MOST = 40, MOST_TILES = 64 };

static int64_t make_lengths(int64_t count, int64_t *offsets) {
  offsets[0] = 0;
  for (int64_t s = 0; s < count; ++s) {
    static const int64_t usual[] = {0, 0, 1, 63, 64, 65, 127, 128, 129, 192, 256};
    const uint32_t which = random_below(16);
    offsets[s + 1] = offsets[s] + (which < 11 ? usual[which] : random_below(700));
  }
  return offsets[count];
}

static void check_lengths(int64_t count, int64_t tile_rows, int align_last) {
  int64_t q_offsets[MOST + 1], k_offsets[MOST + 1];
  int32_t narrow[MOST + 1];
  const int64_t rest = random_below(300);
  const bsrg_sequences sequences = {.count = count,
                                    .q_offsets = q_offsets,
                                    .k_offsets = narrow,
                                    .q_type = BSRG_I64,
                                    .k_type = BSRG_I32,
                                    .align_last = align_last};
  bsrg_attention_args args = {.diagonal = (int64_t)random_below(20) - 10, .left = 5, .right = 3};
  args.sequences = &sequences;
  args.q.rows = make_lengths(count, q_offsets) + rest;
  args.k.rows = make_lengths(count, k_offsets) + rest;
  for (int64_t s = 0; s <= count; ++s) narrow[s] = (int32_t)k_offsets[s];
  const bsrg_attention_sequences all = bsrg_attention_sequences_of(&args);
  int found[MOST][MOST_TILES] = {0};
  for (int64_t slot = 0; slot < bsrg_attention_slots(&args, tile_rows); ++slot) {
    const bsrg_attention_sequence at = bsrg_attention_sequence_at(&all, (int32_t)slot, (int32_t)tile_rows);
    const int64_t tile = slot - at.first_slot;
    if (tile * tile_rows >= at.bounds.queries) continue;
    int64_t s = 0;
    while (q_offsets[s] != at.first_query || q_offsets[s + 1] == q_offsets[s]) ++s;
    CHECK(at.first_key == k_offsets[s]);
    CHECK(at.bounds.queries == q_offsets[s + 1] - q_offsets[s]);
    CHECK(at.bounds.keys == k_offsets[s + 1] - k_offsets[s]);
    const bsrg_band band = bsrg_attention_sequence_band(&args, at.bounds.queries, at.bounds.keys);
    CHECK(at.bounds.low_offset == band.first && at.bounds.high_offset == band.last);
    CHECK(tile >= 0 && tile < MOST_TILES);
    ++found[s][tile];
  }
  for (int64_t s = 0; s < count; ++s)
    for (int64_t tile = 0; tile < MOST_TILES; ++tile)
      CHECK(found[s][tile] == (tile * tile_rows < q_offsets[s + 1] - q_offsets[s]));
}

static void check_malformed(void) {
  int64_t offsets[MOST + 1];
  const bsrg_sequences sequences = {
      .count = MOST, .q_offsets = offsets, .k_offsets = offsets, .q_type = BSRG_I64, .k_type = BSRG_I64};
  for (int64_t s = 0; s <= MOST; ++s)
    offsets[s] = random_below(4)   ? (int64_t)random_below(2000) - 500
                 : random_below(2) ? INT64_MIN
                                   : INT64_MAX;
  bsrg_attention_args args = {.left = -1, .right = INT64_MAX, .diagonal = INT64_MIN};
  args.sequences = &sequences;
  args.q.rows = 1000;
  args.k.rows = 900;
  const bsrg_attention_sequences all = bsrg_attention_sequences_of(&args);
  for (int64_t slot = 0; slot < bsrg_attention_slots(&args, 64); ++slot) {
    const bsrg_attention_sequence at = bsrg_attention_sequence_at(&all, (int32_t)slot, 64);
    CHECK(at.first_query >= 0 && at.bounds.queries >= 0 && at.first_query + at.bounds.queries <= 1000);
    CHECK(at.first_key >= 0 && at.bounds.keys >= 0 && at.first_key + at.bounds.keys <= 900);
    CHECK(at.bounds.high_offset >= -at.bounds.queries && at.bounds.high_offset <= at.bounds.keys);
  }
}

int main(void) {
  for (int i = 0; i < 2000; ++i) {
    check_lengths(1 + random_below(MOST), i % 2 ? 64 : 128, i % 3 == 0);
    check_malformed();
  }
  return failures != 0;
}
