/* Copies on the CPU between tensors of any strides: each element arrives, and nothing around them changes. */
#include "check.h"
#include "cpu/cpu.h"

#include <stdlib.h>
#include <string.h>

enum { AXES = 4, POISON = 0xA5 };

static uint64_t state = 1;

static int64_t below(int64_t n) {
  state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
  return (int64_t)((state >> 33) % (uint64_t)n);
}

static int64_t *axis_of(bsrg_tensor *t, int axis, bool stride) {
  int64_t *const counts[] = {&t->batch, &t->heads, &t->rows, &t->size};
  int64_t *const strides[] = {&t->batch_stride, &t->head_stride, &t->row_stride, &t->element_stride};
  return stride ? strides[axis] : counts[axis];
}

/* Lays the axes out in any order, forwards or backwards, with gaps; returns the elements of memory that takes. */
static int64_t lay_out(bsrg_tensor *t, int64_t *first) {
  int order[AXES] = {0, 1, 2, 3};
  for (int i = AXES - 1; i > 0; i--) {
    const int64_t j = below(i + 1);
    const int swapped = order[i];
    order[i] = order[j];
    order[j] = swapped;
  }
  int64_t stride = 1 + below(2);
  *first = 0;
  for (int i = 0; i < AXES; i++) {
    const int64_t count = *axis_of(t, order[i], false);
    const bool backwards = below(4) == 0;
    *axis_of(t, order[i], true) = backwards ? -stride : stride;
    if (backwards && count > 0) *first += (count - 1) * stride;
    stride = stride * bsrg_max(1, count) + below(3);
  }
  return stride;
}

static int64_t place_of(const bsrg_tensor *t, int64_t b, int64_t h, int64_t r, int64_t e) {
  return b * t->batch_stride + h * t->head_stride + r * t->row_stride + e * t->element_stride;
}

static void check_copy(int64_t size, const int64_t *counts) {
  bsrg_tensor from = {.batch = counts[0], .heads = counts[1], .rows = counts[2], .size = counts[3]},
              to = from;
  int64_t from_first, to_first;
  const int64_t from_count = lay_out(&from, &from_first), to_count = lay_out(&to, &to_first);
  if (below(4) == 0) from.head_stride = 0; /* all heads the same */
  unsigned char *source = malloc((size_t)(from_count * size)), *target = malloc((size_t)(to_count * size)),
                *expected = malloc((size_t)(to_count * size));
  for (int64_t i = 0; i < from_count * size; i++) source[i] = (unsigned char)below(256);
  memset(target, POISON, (size_t)(to_count * size));
  memset(expected, POISON, (size_t)(to_count * size));
  for (int64_t b = 0; b < from.batch; b++)
    for (int64_t h = 0; h < from.heads; h++)
      for (int64_t r = 0; r < from.rows; r++)
        for (int64_t e = 0; e < from.size; e++)
          memcpy(expected + (to_first + place_of(&to, b, h, r, e)) * size,
                 source + (from_first + place_of(&from, b, h, r, e)) * size, (size_t)size);
  from.data = source + from_first * size;
  to.data = target + to_first * size;
  bsrg_cpu_copy(&from, &to, size);
  CHECK(memcmp(target, expected, (size_t)(to_count * size)) == 0);
  free(source);
  free(target);
  free(expected);
}

static void test_any_strides(void) {
  static const int64_t some[] = {0, 1, 1, 2, 3, 4, 7, 8, 15, 16, 17, 32, 33, 64, 65, 129, 200};
  for (int round = 0; round < 2000; round++) {
    int64_t counts[AXES], all = 1;
    for (int i = 0; i < AXES; i++) {
      counts[i] = some[below((int64_t)(sizeof some / sizeof some[0]))];
      if (all * counts[i] > 20000) counts[i] = 1;
      all *= counts[i];
    }
    check_copy((int64_t)1 << below(4), counts);
  }
}

/* Heads that are one in memory are copied once, and stay one. */
static void test_rows(void) {
  float memory[3 * 5], copy[64];
  for (int i = 0; i < 15; i++) memory[i] = (float)i;
  const bsrg_tensor columns = {memory, 2, 4, 3, 5, 0, 0, 1, 3};
  bsrg_tensor rows = bsrg_cpu_in_rows(&columns);
  CHECK(rows.batch == 2 && rows.heads == 4 && rows.batch_stride == 0 && rows.head_stride == 0);
  CHECK(bsrg_cpu_rows_bytes(&rows, 4) == 64);
  bsrg_cpu_copy_rows(&columns, &rows, copy, 4);
  for (int r = 0; r < 3; r++)
    for (int e = 0; e < 5; e++) CHECK(copy[r * rows.row_stride + e] == memory[r + 3 * e]);
}

int main(void) {
  test_any_strides();
  test_rows();
  return failures != 0;
}
