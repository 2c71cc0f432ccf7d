/* How the narrow family shares out rows of unequal length: every block once, evenly, and only where that pays. */
#include <string.h>

#include "narrow.h"
#include "structures.h"

/* A strip's parts lie in CTAs beside one another of one cluster, in their order, and have its blocks once between them. A CTA has
 * at most one strip that began before, then whole ones, then at most one that goes on, and the columns of all their blocks.
 * Returns the sum of all CTAs' blocks. */
static int64_t check_shares(const bsrg_structure_view *v, const bsrg_narrow_shares *shares) {
  enum { CTAS = BSRG_NARROW_SHARES_CTAS };
  const int64_t strips = bsrg_ceil_div(v->block_height, BSRG_NARROW_TMA_STRIP);
  int64_t *covered = calloc((size_t)(v->block_rows * strips), sizeof(*covered));
  int64_t *seen = calloc((size_t)(v->block_rows * strips), sizeof(*seen)), all = 0;
  bsrg_narrow_share before = {0}; /* the one of the CTA before that goes on */
  for (int64_t cta = 0; cta < (int64_t)shares->clusters * CTAS; ++cta) {
    const bsrg_narrow_share *const list = shares->shares + cta * shares->most;
    const int32_t *const numbers = shares->columns + cta * (1 + shares->longest);
    int32_t blocks = 0, last_kind = 0, i = 0;
    bsrg_narrow_share goes_on = {0};
    bool continued = false;
    if (cta % CTAS == 0) CHECK(before.parts == 0);
    for (; i < shares->most && list[i].parts > 0; ++i) {
      const bsrg_narrow_share *const s = &list[i];
      const int64_t row = s->y_row / v->block_height,
                    at = row * strips + s->row_in_block / BSRG_NARROW_TMA_STRIP;
      const int32_t kind = s->part > 0 ? 0 : s->parts == 1 ? 1 : 2;
      CHECK(s->part >= 0 && s->part < s->parts && s->parts <= CTAS);
      CHECK(i == 0 || kind > last_kind || (kind == 1 && last_kind == 1));
      CHECK(s->y_row % v->block_height == s->row_in_block && s->row_in_block % BSRG_NARROW_TMA_STRIP == 0);
      CHECK(s->rows == bsrg_min(BSRG_NARROW_TMA_STRIP, bsrg_rows_of(v, row) - s->row_in_block));
      CHECK(s->blocks_before == blocks && (s->block_count > 0 || s->parts == 1));
      CHECK(s->first_block == v->indptr[row] + covered[at]);
      CHECK(memcmp(numbers + 1 + blocks, v->indices + s->first_block,
                   sizeof(*numbers) * (size_t)s->block_count) == 0);
      if (s->part > 0) {
        CHECK(before.y_row == s->y_row && before.parts == s->parts && before.part == s->part - 1);
        continued = true;
      }
      if (s->parts > 1 && s->part < s->parts - 1) {
        CHECK(goes_on.parts == 0);
        goes_on = *s;
      }
      covered[at] += s->block_count;
      ++seen[at];
      blocks += s->block_count;
      last_kind = kind;
    }
    CHECK(i < shares->most && continued == (before.parts > 0));
    CHECK(numbers[0] == blocks && blocks <= shares->longest);
    all += blocks;
    before = goes_on;
  }
  CHECK(before.parts == 0);
  for (int64_t s = 0; s < v->block_rows * strips; ++s) {
    const bool there = bsrg_rows_of(v, s / strips) > s % strips * BSRG_NARROW_TMA_STRIP;
    CHECK((seen[s] > 0) == there &&
          covered[s] == (there ? v->indptr[s / strips + 1] - v->indptr[s / strips] : 0));
  }
  free(covered);
  free(seen);
  return all;
}

/* Rows of any lengths are shared out evenly, as far as parts are worth it and a row may be cut. */
static void test_shares(void) {
  enum { MOST = 700 };
  static const int64_t heights[] = {33, 64, 96, 128, 256, 320};
  int shared = 0;
  for (int round = 0; round < 300; ++round) {
    int64_t lengths[MOST], all = 0;
    const int64_t height = heights[round % 6], width = 48 + 16 * (round % 7);
    const int64_t rows = 1 + (int64_t)random_below(round % 3 ? 70 : MOST);
    const uint32_t most = 1 + random_below(40);
    for (int64_t i = 0; i < rows; ++i) {
      lengths[i] = random_below(most);
      if (random_below(50) == 0) lengths[i] *= 20;
      all += lengths[i];
    }
    bsrg_structure *structure = make_rows(lengths, rows, 1000, height, width, false);
    const bsrg_structure_view v = bsrg_structure_get(structure);
    bsrg_narrow_shares shares = {0};
    CHECK(bsrg_narrow_make_shares(&v, &shares));
    const int64_t strips = bsrg_ceil_div(height, BSRG_NARROW_TMA_STRIP);
    CHECK(!shares.clusters || (all > 0 && rows * strips <= 64 * 29));
    if (shares.clusters) {
      ++shared;
      const int64_t blocks = check_shares(&v, &shares);
      CHECK(blocks == all * strips && shares.longest * 4 * shares.clusters <= 3 * blocks);
      /* A cluster has no more than its even share and one strip, of which CTAs get a quarter and what is not worth a cut. */
      const double even = (double)blocks / (29 * 4);
      CHECK(shares.longest <= 1.3 * (even + (double)v.longest_row / 4) + 8);
    }
    bsrg_narrow_free_shares(&shares);
    bsrg_structure_destroy(structure);
  }
  CHECK(shared > 150);
}

/* What shares are for: some rows much longer than others, or so few that SMs have nothing to do. */
static void test_where_shares_pay(void) {
  static const struct {
    int64_t height, width, rows, blocks,
        falling; /* row i has blocks / (1 + i / falling); 0: all have as many */
    bool of_16, of_64, of_128;
  } cases[] = {{128, 128, 64, 60, 4, true, true, false},  {64, 64, 128, 120, 8, true, true, true},
               {64, 64, 64, 40, 32, true, true, true},    {128, 128, 64, 8, 0, false, false, false},
               {64, 64, 128, 32, 0, false, false, false}, {16, 16, 512, 500, 30, false, false, false}};
  for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); ++i) {
    int64_t lengths[512];
    for (int64_t row = 0; row < cases[i].rows; ++row)
      lengths[row] = cases[i].blocks / (1 + (cases[i].falling ? row / cases[i].falling : 0));
    bsrg_structure *structure =
        make_rows(lengths, cases[i].rows, 512, cases[i].height, cases[i].width, false);
    bsrg_narrow_plan *plan = bsrg_narrow_make_plan(structure);
    const bsrg_narrow_shares *shares = &plan->shares;
    CHECK(shares->of_16 == cases[i].of_16 && shares->of_64 == cases[i].of_64);
    CHECK(shares->of_128 == cases[i].of_128);
    CHECK((shares->clusters > 0) == (shares->of_8 || shares->of_16 || shares->of_64 || shares->of_128));
    bsrg_narrow_free_plan(plan);
    bsrg_structure_destroy(structure);
  }
}

int main(void) {
  test_shares();
  test_where_shares_pay();
  return failures != 0;
}
