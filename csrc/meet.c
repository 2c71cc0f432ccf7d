#include "meet.h"

#include <stdlib.h>

#include "family.h"

/* An element of a list: its bit among the lists, and where it is in keys and places. */
typedef struct element {
  uint64_t bit;
  int64_t at;
} element;

typedef struct meeting {
  int32_t *places;
  int64_t *begin; /* of each key's elements, and where the last one's end */
  element *elements;
  uint64_t *free; /* of each place, the lists that have no element there yet */
  int32_t length; /* places */
} meeting;

/* To the place where most of the lists that have the key are free, until all have it. A list has as many places as elements,
 * so that none is left without. Returns how many places that takes. */
static int64_t place_key(meeting *m, int32_t key) {
  int64_t taken = 0;
  uint64_t left = 0;
  for (int64_t i = m->begin[key]; i < m->begin[key + 1]; ++i) left |= m->elements[i].bit;
  while (left) {
    int32_t best = 0;
    int most = 0;
    for (int32_t place = 0; place < m->length; ++place) {
      const int there = __builtin_popcountll(left & m->free[place]);
      if (there > most) most = there, best = place;
    }
    const uint64_t here = left & m->free[best];
    for (int64_t i = m->begin[key]; i < m->begin[key + 1]; ++i)
      if (m->elements[i].bit & here) m->places[m->elements[i].at] = best;
    m->free[best] &= ~here;
    left &= ~here;
    ++taken;
  }
  return taken;
}

static void gather(meeting *m, int32_t lists, const int32_t *counts, const int32_t *keys, int64_t *next) {
  int64_t at = 0;
  for (int32_t list = 0; list < lists; ++list)
    for (int32_t i = 0; i < counts[list]; ++i, ++at) {
      const uint64_t bit = (uint64_t)1 << list;
      m->free[i] |= bit;
      m->elements[next[keys[at]]++] = (element){bit, at};
    }
}

int64_t bsrg_meet(int32_t lists, const int32_t *counts, const int32_t *keys, int32_t key_count,
                  int32_t *places) {
  int64_t total = 0, taken = 0;
  meeting m = {.places = places};
  for (int32_t list = 0; list < lists; ++list) {
    total += counts[list];
    if (counts[list] > m.length) m.length = counts[list];
  }
  m.begin = calloc((size_t)key_count + 2, sizeof(*m.begin));
  m.elements = malloc(sizeof(*m.elements) * (size_t)(total + 1));
  m.free = calloc((size_t)m.length + 1, sizeof(*m.free));
  int64_t *rank = calloc((size_t)key_count + 1, sizeof(*rank)); /* how many lists have a key */
  int32_t *by_rank = malloc(sizeof(*by_rank) * (size_t)(key_count + 1));
  bool done = m.begin && m.elements && m.free && rank && by_rank;
  if (done) {
    /* Counts stand two places further along, so that after the sums each is where a key begins and, once its elements are
     * gathered, where the next one does. */
    int64_t *const next = m.begin + 1;
    for (int64_t i = 0; i < total; ++i) ++next[keys[i] + 1];
    for (int32_t key = 0; key < key_count; ++key) {
      rank[key] = next[key + 1];
      next[key + 1] += next[key];
    }
    gather(&m, lists, counts, keys, next);
    done = bsrg_sort_longest_first(rank, key_count, BSRG_MEET_LISTS, by_rank);
    for (int32_t i = 0; done && i < key_count; ++i) taken += place_key(&m, by_rank[i]);
  }
  free(m.begin);
  free(m.elements);
  free(m.free);
  free(rank);
  free(by_rank);
  return done ? taken : -1;
}
