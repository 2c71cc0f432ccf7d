/* The order in which query tiles that are computed at the same time meet key tiles. Of bands that stay in step it takes 1 to
 * 2.5% of the time. */
#include "attention_hopper.h"
#include "meet.h"

#include <stdlib.h>

/* What all of it may take, places times entries: some milliseconds. */
static const int64_t order_budget = 1 << 22;

/* What the lists of some query tiles, one behind the other, have to say. */
typedef struct window {
  int32_t *keys, *places;
  bsrg_attention_entry *before; /* the entries as they were */
} window;

/* Entries without flags alone: they see their key tiles as a whole. How many follow one another is noted in flags. */
static bool order_window(const bsrg_attention_plan_key *key, const bsrg_attention_item *lists, int32_t count,
                         bsrg_attention_entry *entries, window *w) {
  int32_t counts[BSRG_MEET_LISTS];
  int64_t total = 0;
  for (int32_t i = 0; i < count; ++i) {
    counts[i] = lists[i].entry_count;
    for (int32_t e = 0; e < counts[i]; ++e, ++total) {
      const bsrg_attention_entry *entry = &entries[lists[i].entry_begin + e];
      w->before[total] = *entry;
      w->keys[total] = entry->flags % BSRG_ATTENTION_RUN_UNIT ? -1 : entry->key_tile;
    }
  }
  const int32_t key_tiles = (int32_t)bsrg_ceil_div(key->bounds.keys, key->tile_keys);
  if (!bsrg_meet(count, counts, w->keys, key_tiles, w->places)) return false;
  int64_t at = 0;
  for (int32_t i = 0; i < count; ++i)
    for (int32_t e = 0; e < counts[i]; ++e, ++at) {
      bsrg_attention_entry *entry = &entries[lists[i].entry_begin + w->places[at]];
      const int32_t flags = entry->flags;
      *entry = w->before[at];
      entry->flags = flags;
    }
  return true;
}

bool bsrg_attention_order_entries(const bsrg_attention_plan_key *key, const bsrg_attention_item *lists,
                                  int64_t count, bsrg_attention_plan *plan) {
  int64_t longest = 0;
  for (int64_t i = 0; i < count; ++i) longest = bsrg_max(longest, lists[i].entry_count);
  if (longest * plan->entry_count > order_budget) return true;
  const size_t most = (size_t)longest * BSRG_MEET_LISTS;
  window w = {.keys = malloc(sizeof(*w.keys) * most),
              .places = malloc(sizeof(*w.places) * most),
              .before = malloc(sizeof(*w.before) * most)};
  bool done = w.keys && w.places && w.before;
  for (int64_t first = 0; done && first < count; first += BSRG_MEET_LISTS) {
    /* Query tiles of a mask follow one another, and those of the next mask them. */
    const int32_t lists_here = (int32_t)bsrg_min(BSRG_MEET_LISTS, count - first);
    done = order_window(key, lists + first, lists_here, plan->entries, &w);
  }
  free(w.keys);
  free(w.places);
  free(w.before);
  return done;
}
