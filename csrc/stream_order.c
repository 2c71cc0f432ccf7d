/* The order of the streaming family's block rows: those that share block columns come into one tile, which then streams
 * fewer rows of X. Random patterns gain, too: of many rows some have more in common than others. */
#include "stream.h"

#include <stdlib.h>
#include <string.h>

/* Tiles among whose rows one may choose. Each of them looks at the blocks of all rows that are left, so the time is that
 * of some WINDOW_TILES / 2 passes over the blocks, however large the matrix is. */
enum { WINDOW_TILES = 32 };

typedef struct search {
  const bsrg_structure_view *v;
  const int32_t *order; /* as given; rows go by their places there */
  int32_t *places;      /* [nnzb]: the rows of each column, ascending */
  int32_t *begin,
      *end; /* [block columns]: each column's part of places; begin moves past what lies before the window */
  int32_t *covered;       /* [block columns]: the last tile that uses the column, counted from 1 */
  int32_t *shared;        /* [window]: how many of a row's columns the tile at hand uses */
  int32_t *left, *chosen; /* [window]: the places that no tile has, ascending; the rows in their new order */
  int32_t tile;
  int64_t window, window_end; /* places */
} search;

static void list_columns(search *s) {
  const bsrg_structure_view *v = s->v;
  for (int64_t k = 0; k < v->nnzb; ++k) ++s->end[v->indices[k]];
  int32_t total = 0;
  for (int64_t c = 0; c < v->block_cols; ++c) {
    s->begin[c] = total;
    total += s->end[c];
    s->end[c] = s->begin[c];
  }
  for (int64_t place = 0; place < v->block_rows; ++place)
    for (int64_t k = v->indptr[s->order[place]]; k < v->indptr[s->order[place] + 1]; ++k)
      s->places[s->end[v->indices[k]]++] = (int32_t)place;
}

/* What the tile uses, now that it has the row, too. */
static void cover(search *s, int32_t row) {
  const bsrg_structure_view *v = s->v;
  for (int64_t k = v->indptr[row]; k < v->indptr[row + 1]; ++k) {
    const int32_t column = v->indices[k];
    if (s->covered[column] == s->tile) continue;
    s->covered[column] = s->tile;
    const int32_t end = s->end[column];
    int32_t i = s->begin[column];
    while (s->places[i] < s->window) ++i;
    s->begin[column] = i;
    for (; i < end && s->places[i] < s->window_end; ++i) ++s->shared[s->places[i] - s->window];
  }
}

/* The row that shares most columns with the tile beyond those that it would add. */
static int64_t best_of(const search *s, int64_t count) {
  const int64_t *indptr = s->v->indptr;
  int64_t best = 0, most = INT64_MIN;
  for (int64_t i = 0; i < count; ++i) {
    const int32_t row = s->order[s->left[i]];
    const int64_t gain = 2 * (int64_t)s->shared[s->left[i] - s->window] - (indptr[row + 1] - indptr[row]);
    if (gain > most) {
      most = gain;
      best = i;
    }
  }
  return best;
}

/* start: of each of the window's tiles. */
static void order_window(search *s, const int64_t *start) {
  int64_t count = s->window_end - s->window;
  for (int64_t i = 0; i < count; ++i) s->left[i] = (int32_t)(s->window + i);
  for (int64_t taken = 0; count > 0; ++taken) {
    int64_t i = 0; /* a tile begins with the first row that is left */
    if (s->window + taken == *start) {
      ++start;
      ++s->tile;
      memset(s->shared, 0, sizeof(*s->shared) * (size_t)(s->window_end - s->window));
    } else {
      i = best_of(s, count);
    }
    s->chosen[taken] = s->order[s->left[i]];
    memmove(s->left + i, s->left + i + 1, sizeof(*s->left) * (size_t)(--count - i));
    cover(s, s->chosen[taken]);
  }
}

bool bsrg_stream_order(const bsrg_structure_view *v, const int64_t *start, int64_t tiles, int32_t *order) {
  const size_t columns = (size_t)v->block_cols;
  int64_t window = 0; /* rows of the largest */
  for (int64_t t = 0; t < tiles; t += WINDOW_TILES)
    window = bsrg_max(window, start[bsrg_min(t + WINDOW_TILES, tiles)] - start[t]);
  search s = {.v = v,
              .order = order,
              .places = malloc(sizeof(*s.places) * (size_t)(v->nnzb + 1)),
              .begin = malloc(sizeof(*s.begin) * columns),
              .end = calloc(columns, sizeof(*s.end)),
              .covered = calloc(columns, sizeof(*s.covered)),
              .shared = malloc(sizeof(*s.shared) * (size_t)window),
              .left = malloc(sizeof(*s.left) * (size_t)window),
              .chosen = malloc(sizeof(*s.chosen) * (size_t)window)};
  const bool done = s.places && s.begin && s.end && s.covered && s.shared && s.left && s.chosen;
  if (done) {
    list_columns(&s);
    for (int64_t t = 0; t < tiles; t += WINDOW_TILES) {
      s.window = start[t];
      s.window_end = start[bsrg_min(t + WINDOW_TILES, tiles)];
      order_window(&s, start + t);
      memcpy(order + s.window, s.chosen, sizeof(*order) * (size_t)(s.window_end - s.window));
    }
  }
  free(s.places);
  free(s.begin);
  free(s.end);
  free(s.covered);
  free(s.shared);
  free(s.left);
  free(s.chosen);
  return done;
}
