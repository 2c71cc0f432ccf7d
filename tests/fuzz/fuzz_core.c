/* A fuzzer of the core: any structures, with any defects, and any calls with those that are accepted, on the CPU and on
 * the fake driver's GPU, some with an allocation that fails. AddressSanitizer and UndefinedBehaviorSanitizer watch;
 * beyond that, an independent check says which structures are valid, the driver refuses nothing, every failure has a
 * message, and nothing is left behind.
 *
 * `make fuzz` runs it with clang's libFuzzer; replay.c runs the corpus through it with any compiler. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fake/fake_driver.h"
#include "fake/fault_points.h"
#include "fuzz_input.h"

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* As on a machine of little memory. */
const char *__asan_default_options(void);
const char *__asan_default_options(void) { return "allocator_may_return_null=1:max_allocation_size_mb=64"; }

void fuzz_fail(const char *what, const char *message) {
  fprintf(stderr, "%s does not hold: \"%s\"\n", what, message);
  abort();
}

/* ---- structures -------------------------------------------------------------------------------- */

enum { MOST_ENTRIES = 4096 };

/* A pattern and the memory that it points to, which ends where the arrays end. */
typedef struct fuzz_pattern {
  bsrg_pattern pattern;
  void *indptr, *indices;
} fuzz_pattern;

static size_t item_of(const bsrg_pattern *p) { return p->index_type == BSRG_I32 ? 4 : 8; }

static void store(const bsrg_pattern *p, void *array, int64_t at, int64_t number) {
  if (p->index_type == BSRG_I32)
    ((int32_t *)array)[at] = (int32_t)number;
  else
    ((int64_t *)array)[at] = number;
}

static int64_t load(const bsrg_pattern *p, const void *array, int64_t at) {
  return p->index_type == BSRG_I32 ? ((const int32_t *)array)[at] : ((const int64_t *)array)[at];
}

static int64_t read_side(fuzz_input *in) {
  static const int64_t kSides[] = {1,  2,  3,  4,  5,  7,  8,   16,  20,  24,
                                   32, 40, 48, 64, 80, 96, 128, 192, 256, 512};
  enum { SIDES = sizeof kSides / sizeof *kSides };
  const int64_t kind = fuzz_below(in, SIDES + 2);
  return kind < SIDES ? kSides[kind] : kind == SIDES ? 1 + fuzz_below(in, 256) : fuzz_wild(in);
}

/* Up to 64 x 64 places, each taken with one of eight probabilities; perhaps with longer rows in between. */
static void fill_random(fuzz_input *in, fuzz_pattern *f) {
  bsrg_pattern *p = &f->pattern;
  const int64_t block_rows = p->indptr_len - 1, block_cols = p->cols / p->block_width;
  const int64_t density = fuzz_below(in, 8), full = fuzz_below(in, 80);
  uint64_t state = (uint64_t)fuzz_byte(in) + 1;
  int64_t *taken = malloc(sizeof *taken * MOST_ENTRIES);
  if (!taken) abort();
  f->indptr = malloc((size_t)p->indptr_len * item_of(p));
  if (!f->indptr) abort();
  int64_t count = 0;
  store(p, f->indptr, 0, 0);
  for (int64_t i = 0; i < block_rows; ++i) {
    for (int64_t j = 0; j < bsrg_min(block_cols, 64) && count < MOST_ENTRIES; ++j) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      if (i == full || (int64_t)(state >> 61) < density) taken[count++] = j;
    }
    store(p, f->indptr, i + 1, count);
  }
  p->nnzb = count;
  f->indices = malloc((size_t)count * item_of(p) + (count == 0));
  if (!f->indices) abort();
  for (int64_t k = 0; k < count; ++k) store(p, f->indices, k, taken[k]);
  free(taken);
}

/* Breaks a rule, or none. Sizes that no array has here come with no array: nobody may look. */
static void add_defects(fuzz_input *in, fuzz_pattern *f) {
  bsrg_pattern *p = &f->pattern;
  for (int64_t left = fuzz_below(in, 4); left > 0; --left) {
    int64_t *const sizes[] = {&p->rows,        &p->cols, &p->block_height,
                              &p->block_width, &p->nnzb, &p->indptr_len};
    const int64_t kind = fuzz_below(in, 10), at = fuzz_below(in, 65536), number = fuzz_wild(in);
    const int64_t had_indptr = p->indptr_len, had_indices = p->nnzb;
    if (kind < 6) *sizes[kind] = number;
    if (kind == 6 && f->indptr && p->indptr_len > 0) store(p, f->indptr, at % p->indptr_len, number);
    if (kind >= 7 && f->indices && p->nnzb > 0) store(p, f->indices, at % p->nnzb, number);
    if (p->indptr_len > had_indptr) free(f->indptr), f->indptr = NULL;
    if (p->nnzb > had_indices) free(f->indices), f->indices = NULL;
  }
}

/* Of blocks of this height, and so many rows, unless these are 0. */
static fuzz_pattern read_pattern(fuzz_input *in, int64_t block_rows, int64_t height) {
  fuzz_pattern f = {{0}, NULL, NULL};
  bsrg_pattern *p = &f.pattern;
  const int64_t form = fuzz_byte(in);
  p->index_type = form & 1 ? BSRG_I64 : BSRG_I32;
  p->block_height = height ? height : read_side(in);
  p->block_width = read_side(in);
  block_rows = height ? block_rows : fuzz_below(in, 65);
  /* Many columns come without being stored. */
  const int64_t block_cols = form & 2 ? fuzz_wild(in) : fuzz_below(in, 65);
  p->indptr_len = block_rows + 1;
  if (p->block_height < 1 || p->block_width < 1 || !bsrg_mul_ok(block_rows, p->block_height, &p->rows) ||
      !bsrg_mul_ok(block_cols, p->block_width, &p->cols) || block_rows > MOST_ENTRIES || block_cols < 0)
    p->indptr_len = 0;
  else
    fill_random(in, &f);
  if (form >= 192 && p->indptr_len > 1 && block_cols > 0) { /* the last blocks reach beyond the matrix */
    p->rows -= fuzz_below(in, bsrg_min(p->block_height, 65536));
    p->cols -= fuzz_below(in, bsrg_min(p->block_width, 65536));
  }
  if (form & 4) add_defects(in, &f);
  p->indptr = f.indptr;
  p->indices = f.indices;
  return f;
}

static bool rows_are_valid(const bsrg_pattern *p, int check) {
  const int64_t block_cols = bsrg_ceil_div(p->cols, p->block_width);
  if (load(p, p->indptr, 0) != 0) return false;
  for (int64_t i = 0; i + 1 < p->indptr_len; ++i) {
    const int64_t begin = load(p, p->indptr, i), end = load(p, p->indptr, i + 1);
    if (end < begin || end > p->nnzb) return false;
    for (int64_t k = begin; k < end; ++k) {
      const int64_t j = load(p, p->indices, k);
      if (j < 0 || j >= block_cols) return false;
      if (check && k > begin && j <= load(p, p->indices, k - 1)) return false;
    }
  }
  return load(p, p->indptr, p->indptr_len - 1) == p->nnzb;
}

/* The rules of bsrg_structure_create, once more. */
static bool is_valid(const bsrg_pattern *p, int check) {
  int64_t elements;
  if (p->block_height < 1 || p->block_width < 1 || p->block_height > INT32_MAX || p->block_width > INT32_MAX)
    return false;
  if (p->rows < 0 || p->cols < 0) return false;
  const int64_t block_rows = bsrg_ceil_div(p->rows, p->block_height);
  if (block_rows > INT32_MAX || bsrg_ceil_div(p->cols, p->block_width) > INT32_MAX) return false;
  if (p->indptr_len != block_rows + 1 || p->nnzb < 0) return false;
  if (!bsrg_mul_ok(p->nnzb, p->block_height * p->block_width, &elements) || elements > INT64_MAX / 8)
    return false;
  return p->indptr && (p->indices || p->nnzb == 0) && rows_are_valid(p, check);
}

static bsrg_structure *make_structure(fuzz_input *in, int64_t block_rows, int64_t height) {
  fuzz_pattern f = read_pattern(in, block_rows, height);
  const int check = fuzz_byte(in) % 8 != 0;
  bsrg_structure *made = (bsrg_structure *)&f;
  bsrg_error error = {""};
  const bsrg_status status = bsrg_structure_create(&f.pattern, check, &made, &error);
  FUZZ_CHECK((status == BSRG_OK) == (made != NULL), error.message);
  FUZZ_CHECK((status == BSRG_OK) == is_valid(&f.pattern, check), error.message);
  FUZZ_CHECK(status == BSRG_OK || error.message[0], "");
  if (made) {
    const bsrg_structure_view v = bsrg_structure_get(made);
    for (int64_t k = 0; k < v.nnzb; ++k)
      FUZZ_CHECK(v.indices[k] == load(&f.pattern, f.indices, k), "indices");
  }
  free(f.indptr);
  free(f.indices);
  return made;
}

/* ---- entry ------------------------------------------------------------------------------------- */

/* Devices, threads and scratch memory, which stay, are made beforehand. */
int LLVMFuzzerInitialize(int *argc, char ***argv) {
  (void)argc, (void)argv;
  bsrg_error error = {""};
  FUZZ_CHECK(bsrg_gpu_synchronize(0, NULL, &error) == BSRG_OK, error.message);
  FUZZ_CHECK(bsrg_set_num_threads(2, &error) == BSRG_OK, error.message);
  return 0;
}

static void call(fuzz_input *in, fuzz_structures structures) {
  const int64_t fault = fuzz_byte(in);
  bsrg_error error = {""};
  if (fault >= 192) fault_arm(FAULT_MEMORY, fault - 191);
  const bsrg_status status = fuzz_call(in, structures, &error);
  const bool failed = fault_disarm();
  FUZZ_CHECK(status != BSRG_ERR_CUDA, error.message);
  FUZZ_CHECK(status == BSRG_OK || error.message[0], "");
  FUZZ_CHECK(!failed || status == BSRG_OK || status == BSRG_ERR_MEMORY, error.message);
  FUZZ_CHECK(fake_driver_contexts() == 0, error.message);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  enum { MOST_CALLS = 6 };
  fuzz_input in = {data, size, 0};
  const int64_t before = atomic_load(&fake_driver.allocations);
  fuzz_structures structures = {make_structure(&in, 0, 0), NULL};
  if (structures.a) {
    const bsrg_structure_view v = bsrg_structure_get(structures.a);
    if (v.block_cols <= MOST_ENTRIES) structures.b = make_structure(&in, v.block_cols, v.block_width);
  }
  for (int i = 0; i < MOST_CALLS && in.at < in.size; ++i) call(&in, structures);
  bsrg_structure_destroy(structures.a);
  bsrg_structure_destroy(structures.b);
  FUZZ_CHECK(atomic_load(&fake_driver.allocations) == before, "device memory");
  return 0;
}
