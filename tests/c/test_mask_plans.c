/* What is planned from masks of attention lives as long as all of them. */
#include <stdlib.h>

#include "bsrgemm.h"
#include "check.h"
#include "fake/fake_driver.h"
#include "fake/fault_points.h"
#include "structures.h"

enum { BLOCKS = 8, SIDE = 128, HEADS = 2, SIZE = 64 };

static bsrg_structure *make_mask(void) {
  int64_t *indptr = malloc((BLOCKS + 1) * sizeof(*indptr)),
          *indices = malloc(BLOCKS * BLOCKS * sizeof(*indices));
  int64_t count = 0;
  for (int64_t row = 0; row < BLOCKS; ++row) {
    indptr[row] = count;
    for (int64_t col = 0; col < BLOCKS; ++col)
      if (col == row || random_below(2)) indices[count++] = col;
  }
  indptr[BLOCKS] = count;
  return make_structure(BLOCKS, BLOCKS, SIDE, SIDE, indptr, indices);
}

static bsrg_tensor tensor(uintptr_t address) {
  const int64_t rows = BLOCKS * SIDE;
  return (bsrg_tensor){(void *)address, 1, HEADS, rows, SIZE, HEADS * rows * SIZE, rows * SIZE, SIZE, 1};
}

static void call(bsrg_structure *first, bsrg_structure *second) {
  bsrg_structure *masks[HEADS] = {first, second};
  const bsrg_attention_args args = {.q = tensor((uintptr_t)1 << 42),
                                    .k = tensor((uintptr_t)2 << 42),
                                    .v = tensor((uintptr_t)3 << 42),
                                    .out = tensor((uintptr_t)4 << 42),
                                    .dtype = BSRG_F16,
                                    .scale = 1,
                                    .left = -1,
                                    .right = -1,
                                    .masks = masks,
                                    .mask_batch = 1,
                                    .mask_heads = HEADS,
                                    .device = {BSRG_CUDA, 0}};
  bsrg_error error = {""};
  if (bsrg_attention(&args, &error) == BSRG_OK) return;
  fprintf(stderr, "%s\n", error.message);
  ++failures;
}

typedef struct alive {
  int64_t blocks, allocations;
} alive;
static alive count_alive(void) { return (alive){fault_live_blocks(), atomic_load(&fake_driver.allocations)}; }

int main(void) {
  bsrg_structure *kept = make_mask();
  call(kept, kept); /* and what the device keeps */
  const alive before = count_alive();
  for (int place = 0; place < 2; ++place)
    for (int i = 0; i < 20; ++i) {
      bsrg_structure *other = make_mask();
      for (int again = 0; again < 2; ++again) call(place ? kept : other, place ? other : kept);
      const alive meanwhile = count_alive();
      CHECK(meanwhile.allocations > before.allocations);
      bsrg_structure_destroy(other);
      const alive now = count_alive();
      CHECK(now.blocks == before.blocks && now.allocations == before.allocations);
      call(kept, kept);
      CHECK(count_alive().allocations == before.allocations);
    }
  bsrg_structure_destroy(kept);
  CHECK(count_alive().allocations < before.allocations);
  return failures != 0;
}
