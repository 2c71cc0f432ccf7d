/* Lists that are ordered to meet: every element keeps a place of its own list, and those of a band have theirs in common. */
#include <stdlib.h>

#include "check.h"
#include "meet.h"
#include "structures.h"

enum { KEYS = 90, MOST = BSRG_MEET_LISTS * KEYS };

typedef struct lists {
  int32_t count, counts[BSRG_MEET_LISTS], keys[MOST], places[MOST];
} lists;

/* Meets, checks that places are a permutation of each list's, and counts at how many places a key is. */
static int64_t meetings(lists *l) {
  static bool met[KEYS][KEYS];
  int64_t count = 0;
  for (int i = 0; i < MOST; ++i) l->places[i] = -1;
  for (int key = 0; key < KEYS; ++key)
    for (int place = 0; place < KEYS; ++place) met[key][place] = false;
  const int64_t found = bsrg_meet(l->count, l->counts, l->keys, KEYS, l->places);
  int64_t at = 0;
  for (int32_t list = 0; list < l->count; ++list) {
    bool taken[KEYS] = {false};
    for (int32_t i = 0; i < l->counts[list]; ++i, ++at) {
      const int32_t key = l->keys[at], place = l->places[at];
      CHECK(place >= 0 && place < l->counts[list] && !taken[place]);
      taken[place] = true;
      count += !met[key][place];
      met[key][place] = true;
    }
  }
  CHECK(count == found);
  return count;
}

/* Key j is in list i where shows(i, j). */
static void fill(lists *l, int32_t count, bool (*shows)(int32_t, int32_t)) {
  int64_t at = 0;
  l->count = count;
  for (int32_t i = 0; i < count; ++i) {
    l->counts[i] = 0;
    for (int32_t j = 0; j < KEYS; ++j)
      if (shows(i, j)) l->keys[at++] = j, ++l->counts[i];
  }
}

static bool always(int32_t i, int32_t j) { return i + j >= 0; }
static bool sometimes(int32_t i, int32_t j) { return i + j >= 0 && random_below(3) == 0; }
static bool in_band(int32_t i, int32_t j) { return j >= i && j < i + 8; }

static void test_band(lists *l) {
  fill(l, BSRG_MEET_LISTS, in_band);
  CHECK(meetings(l) == BSRG_MEET_LISTS + 7); /* each key at one place */
}

static void test_all(lists *l) {
  fill(l, BSRG_MEET_LISTS, always);
  CHECK(meetings(l) == KEYS);
  fill(l, 0, always);
  CHECK(meetings(l) == 0);
}

static void test_random(lists *l) {
  for (int i = 0; i < 200; ++i) {
    fill(l, 1 + (int32_t)random_below(BSRG_MEET_LISTS), sometimes);
    meetings(l);
  }
}

int main(void) {
  lists *l = malloc(sizeof(*l));
  test_band(l);
  test_all(l);
  test_random(l);
  free(l);
  if (failures) fprintf(stderr, "%d checks failed\n", failures);
  return failures != 0;
}
