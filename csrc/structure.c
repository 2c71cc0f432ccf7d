/* Structures: validation of what a caller brings, the immutable copy, and its transpose.
 *
 * Everything later (plans, kernels, the CPU backend) indexes memory by what stands here without looking
 * again, so nothing is stored that has not been checked. Checks run on the values as they are copied: an
 * array that another thread changes meanwhile cannot slip past them.
 */
#include "internal.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static const int64_t kMaxBlocksAcross = INT32_MAX; /* block rows and block columns are 32-bit everywhere */

bsrg_status bsrg_check_sizes(const bsrg_pattern *p, bsrg_error *error) {
  const int64_t bh = p->block_height, bw = p->block_width;
  if (bh <= 0 || bw <= 0 || bh > INT32_MAX || bw > INT32_MAX) {
    return bsrg_fail(error, BSRG_ERR_VALUE,
                     "blocksize is (%" PRId64 ", %" PRId64 "), but both numbers must be from 1 to %d", bh, bw,
                     INT32_MAX);
  }
  if (p->rows < 0 || p->cols < 0) {
    return bsrg_fail(error, BSRG_ERR_VALUE,
                     "shape is (%" PRId64 ", %" PRId64 "), but both numbers must be at least 0", p->rows,
                     p->cols);
  }
  if (p->rows > INT64_MAX - bh || p->cols > INT64_MAX - bw || bsrg_ceil_div(p->rows, bh) > kMaxBlocksAcross ||
      bsrg_ceil_div(p->cols, bw) > kMaxBlocksAcross) {
    return bsrg_fail(error, BSRG_ERR_VALUE,
                     "shape is (%" PRId64 ", %" PRId64 ") and blocksize (%" PRId64 ", %" PRId64
                     "): at most %" PRId64 " block rows and as many block columns are accepted",
                     p->rows, p->cols, bh, bw, kMaxBlocksAcross);
  }
  const int64_t block_rows = bsrg_ceil_div(p->rows, bh);
  if (p->indptr_len != block_rows + 1) {
    return bsrg_fail(error, BSRG_ERR_VALUE,
                     "indptr has length %" PRId64 ", but %" PRId64 " rows in blocks of height %" PRId64
                     " are %" PRId64 " block rows: indptr must have length %" PRId64,
                     p->indptr_len, p->rows, bh, block_rows, block_rows + 1);
  }
  if (p->nnzb < 0) {
    return bsrg_fail(error, BSRG_ERR_VALUE, "indices has length %" PRId64 ", which must be at least 0",
                     p->nnzb);
  }
  int64_t elements, bytes;
  if (!bsrg_mul_ok(p->nnzb, bh * bw, &elements) ||
      !bsrg_mul_ok(elements, (int64_t)bsrg_dtype_size(BSRG_F64), &bytes)) {
    return bsrg_fail(error, BSRG_ERR_VALUE,
                     "indices has length %" PRId64 ", but so many blocks of blocksize (%" PRId64 ", %" PRId64
                     ") exceed the 2**63 - 1 bytes that a 64-bit size can count",
                     p->nnzb, bh, bw);
  }
  return BSRG_OK;
}

bsrg_status bsrg_check_fixed(const bsrg_structure *structure, const char *name, bsrg_error *error) {
  if (!structure->dynamic) return BSRG_OK;
  return bsrg_fail(error, BSRG_ERR_VALUE,
                   "%s is a dynamic structure, but must be one whose pattern the host knows", name);
}

bsrg_status bsrg_check_ascending(const bsrg_structure *structure, const char *name, bsrg_error *error) {
  const bsrg_status status = bsrg_check_fixed(structure, name, error);
  if (status != BSRG_OK) return status;
  if (structure->view.column_order == BSRG_ASCENDING) return BSRG_OK;
  return bsrg_fail(error, BSRG_ERR_VALUE,
                   "%s has block columns that are %s within a block row, which its check would have refused, "
                   "but they must "
                   "ascend strictly here",
                   name, structure->view.column_order == BSRG_REPEATED ? "repeated" : "unsorted");
}

bsrg_status bsrg_check_ascending_both(const bsrg_structure *structure, const char *name, bsrg_error *error) {
  const bsrg_status status = bsrg_check_ascending(structure, name, error);
  return status != BSRG_OK || !structure->original ? status
                                                   : bsrg_check_ascending(structure->original, name, error);
}

static bsrg_status check_pointer(const void *pointer, int64_t length, size_t item, const char *name,
                                 bsrg_error *error) {
  if (pointer == NULL && length > 0) {
    return bsrg_fail(error, BSRG_ERR_VALUE, "%s has length %" PRId64 ", but its pointer is NULL", name,
                     length);
  }
  if ((uintptr_t)pointer % item != 0) {
    return bsrg_fail(error, BSRG_ERR_VALUE,
                     "%s starts at address %p, which is no multiple of its item size %zu", name, pointer,
                     item);
  }
  return BSRG_OK;
}

/* Inlined with a constant type into the two loops below, so that each becomes plain 32- or 64-bit code. */
static inline int64_t load_index(const void *array, bsrg_index_type type, int64_t at) {
  return type == BSRG_I32 ? ((const int32_t *)array)[at] : ((const int64_t *)array)[at];
}

/* Copies indptr and checks that it rises from 0 to nnzb: with that, no row can reach outside indices. */
static inline bsrg_status copy_indptr(const bsrg_pattern *p, bsrg_index_type type, int64_t *indptr,
                                      int64_t *longest, bsrg_error *error) {
  const int64_t first = load_index(p->indptr, type, 0);
  if (first != 0) {
    return bsrg_fail(error, BSRG_ERR_VALUE, "indptr[0] is %" PRId64 ", but must be 0", first);
  }
  indptr[0] = 0;
  int64_t previous = 0, most = 0;
  for (int64_t i = 1; i < p->indptr_len; ++i) {
    const int64_t current = load_index(p->indptr, type, i);
    if (current < previous) {
      return bsrg_fail(error, BSRG_ERR_VALUE,
                       "indptr[%" PRId64 "] is %" PRId64 ", less than indptr[%" PRId64 "] = %" PRId64
                       ", but indptr must never decrease",
                       i, current, i - 1, previous);
    }
    most = bsrg_max(most, current - previous);
    indptr[i] = previous = current;
  }
  if (previous != p->nnzb) {
    return bsrg_fail(error, BSRG_ERR_VALUE,
                     "indptr[%" PRId64 "] is %" PRId64 ", but indices has %" PRId64
                     " entries: the last entry of indptr must be the length of indices",
                     p->indptr_len - 1, previous, p->nnzb);
  }
  *longest = most;
  return BSRG_OK;
}

/* Says which rule entry `at` of a row that begins at `begin` breaks; BSRG_OK when none. */
static bsrg_status judge_index(const bsrg_pattern *p, int check, int64_t row, int64_t begin, int64_t at,
                               int64_t before, int64_t found, bsrg_error *error) {
  const int64_t block_cols = bsrg_ceil_div(p->cols, p->block_width);
  if (found < 0 || found >= block_cols) {
    if (block_cols == 0) {
      return bsrg_fail(error, BSRG_ERR_VALUE,
                       "indices[%" PRId64 "] is %" PRId64 ", but a matrix of 0 columns has no block columns",
                       at, found);
    }
    return bsrg_fail(error, BSRG_ERR_VALUE,
                     "indices[%" PRId64 "] is %" PRId64 ", but block columns of a matrix of %" PRId64
                     " columns in blocks of width %" PRId64 " are 0 to %" PRId64,
                     at, found, p->cols, p->block_width, block_cols - 1);
  }
  if (!check || at == begin || found > before) return BSRG_OK;
  if (found == before) {
    return bsrg_fail(error, BSRG_ERR_VALUE,
                     "indices[%" PRId64 "] and indices[%" PRId64 "] are both %" PRId64
                     " in block row %" PRId64
                     ", a duplicate: block columns must ascend strictly within a block row",
                     at - 1, at, found, row);
  }
  return bsrg_fail(error, BSRG_ERR_VALUE,
                   "indices[%" PRId64 "] is %" PRId64 " after indices[%" PRId64 "] = %" PRId64
                   " in block row %" PRId64
                   ", unsorted: block columns must ascend strictly within a block row",
                   at, found, at - 1, before, row);
}

/* Copies indices and checks them. Rising strictly from above -1 and ending below block_cols is all there is
 * to check, so the loop compares each entry once and a defect is named afterwards. */
static inline bsrg_status copy_indices(const bsrg_pattern *p, bsrg_index_type type, int check,
                                       const int64_t *indptr, int32_t *indices, bsrg_column_order *order,
                                       bsrg_error *error) {
  bool descends = false, repeats = false;
  const int64_t block_rows = p->indptr_len - 1, block_cols = bsrg_ceil_div(p->cols, p->block_width);
  for (int64_t row = 0; row < block_rows; ++row) {
    const int64_t begin = indptr[row], end = indptr[row + 1];
    int64_t previous = -1;
    bool bad = false;
    if (check) {
      for (int64_t k = begin; k < end; ++k) {
        const int64_t current = load_index(p->indices, type, k);
        bad |= current <= previous;
        previous = current;
        indices[k] = (int32_t)current;
      }
      bad |= previous >= block_cols;
    } else {
      for (int64_t k = begin; k < end; ++k) {
        const int64_t current = load_index(p->indices, type, k);
        bad |= (uint64_t)current >= (uint64_t)block_cols; /* negative ones wrap to large ones */
        descends |= current < previous;
        repeats |= current == previous;
        previous = current;
        indices[k] = (int32_t)current;
      }
    }
    if (!bad) continue;
    previous = -1;
    for (int64_t k = begin; k < end; ++k) {
      const int64_t current = load_index(p->indices, type, k);
      const bsrg_status status = judge_index(p, check, row, begin, k, previous, current, error);
      if (status != BSRG_OK) return status;
      previous = current;
    }
    return bsrg_fail(error, BSRG_ERR_VALUE,
                     "indices[%" PRId64 "] to indices[%" PRId64 "] changed while they were being read", begin,
                     end - 1);
  }
  *order = descends ? BSRG_UNSORTED : repeats ? BSRG_REPEATED : BSRG_ASCENDING;
  return BSRG_OK;
}

static bsrg_structure *allocate(int64_t block_rows, int64_t nnzb) {
  static _Atomic uint64_t next_id = 1;
  bsrg_structure *structure = calloc(1, sizeof *structure);
  int64_t *indptr = malloc(((size_t)block_rows + 1) * sizeof *indptr);
  /* One entry more than needed: malloc(0) may return NULL, which is no failure. */
  int32_t *indices =
      (uint64_t)nnzb < SIZE_MAX / sizeof *indices ? malloc(((size_t)nnzb + 1) * sizeof *indices) : NULL;
  if (structure == NULL || indptr == NULL || indices == NULL) {
    free(structure);
    free(indptr);
    free(indices);
    return NULL;
  }
  structure->id = atomic_fetch_add(&next_id, 1);
  structure->view.indptr = indptr;
  structure->view.indices = indices;
  return structure;
}

static bsrg_status fail_memory(int64_t block_rows, int64_t nnzb, bsrg_error *error) {
  return bsrg_fail(error, BSRG_ERR_MEMORY,
                   "no host memory for a structure of %" PRId64 " block rows and %" PRId64 " blocks",
                   block_rows, nnzb);
}

bsrg_status bsrg_structure_create(const bsrg_pattern *pattern, int check, bsrg_structure **out,
                                  bsrg_error *error) {
  *out = NULL;
  bsrg_status status = bsrg_check_sizes(pattern, error);
  if (status != BSRG_OK) return status;
  const bsrg_index_type type = pattern->index_type;
  if (type != BSRG_I32 && type != BSRG_I64) {
    return bsrg_fail(error, BSRG_ERR_TYPE, "index_type is %d, but must be BSRG_I32 or BSRG_I64", (int)type);
  }
  const size_t item = type == BSRG_I32 ? sizeof(int32_t) : sizeof(int64_t);
  status = check_pointer(pattern->indptr, pattern->indptr_len, item, "indptr", error);
  if (status == BSRG_OK) status = check_pointer(pattern->indices, pattern->nnzb, item, "indices", error);
  if (status != BSRG_OK) return status;

  const int64_t block_rows = pattern->indptr_len - 1;
  bsrg_structure *structure = allocate(block_rows, pattern->nnzb);
  if (structure == NULL) return fail_memory(block_rows, pattern->nnzb, error);
  bsrg_structure_view *view = &structure->view;
  view->rows = pattern->rows;
  view->cols = pattern->cols;
  view->block_height = pattern->block_height;
  view->block_width = pattern->block_width;
  view->block_rows = block_rows;
  view->block_cols = bsrg_ceil_div(pattern->cols, pattern->block_width);
  view->nnzb = pattern->nnzb;
  int64_t *indptr = (int64_t *)view->indptr;
  int32_t *indices = (int32_t *)view->indices;
  bsrg_column_order *order = &view->column_order;
  if (type == BSRG_I32) {
    status = copy_indptr(pattern, BSRG_I32, indptr, &view->longest_row, error);
    if (status == BSRG_OK) status = copy_indices(pattern, BSRG_I32, check, indptr, indices, order, error);
  } else {
    status = copy_indptr(pattern, BSRG_I64, indptr, &view->longest_row, error);
    if (status == BSRG_OK) status = copy_indices(pattern, BSRG_I64, check, indptr, indices, order, error);
  }
  if (status != BSRG_OK) {
    bsrg_structure_destroy(structure);
    return status;
  }
  *out = structure;
  return BSRG_OK;
}

void bsrg_structure_destroy(bsrg_structure *structure) {
  if (structure == NULL) return;
  bsrg_structure_destroy(atomic_load(&structure->transposed));
  bsrg_mask_plans_destroy(structure);
  bsrg_pair_index_destroy(atomic_load(&structure->pair_index));
  bsrg_uploads_destroy(atomic_load(&structure->uploads));
  bsrg_plans_destroy(structure);
  bsrg_stacks_destroy(atomic_load(&structure->stacks));
  if (structure->original == NULL) free(structure->dynamic);
  free((void *)structure->view.indptr);
  free((void *)structure->view.indices);
  free((void *)structure->view.order);
  free(structure);
}

bsrg_structure_view bsrg_structure_get(const bsrg_structure *structure) { return structure->view; }

bsrg_status bsrg_structure_widen(const bsrg_structure *structure, int64_t times, bsrg_structure **out,
                                 bsrg_error *error) {
  const bsrg_structure_view *a = &structure->view;
  bsrg_structure *wide = allocate(a->block_rows, a->nnzb);
  *out = wide;
  if (wide == NULL) return fail_memory(a->block_rows, a->nnzb, error);
  const bsrg_structure_view own = wide->view;
  wide->view = *a;
  wide->view.cols = times * a->cols;
  wide->view.block_width = times * a->block_width;
  wide->view.indptr = own.indptr;
  wide->view.indices = own.indices;
  wide->view.order = NULL;
  memcpy((void *)own.indptr, a->indptr, ((size_t)a->block_rows + 1) * sizeof *a->indptr);
  memcpy((void *)own.indices, a->indices, (size_t)a->nnzb * sizeof *a->indices);
  return BSRG_OK;
}

/* Of a structure whose rows are sorted. */
static bsrg_column_order order_of_sorted(const bsrg_structure_view *v) {
  for (int64_t row = 0; row < v->block_rows; ++row)
    for (int64_t p = v->indptr[row] + 1; p < v->indptr[row + 1]; ++p)
      if (v->indices[p] == v->indices[p - 1]) return BSRG_REPEATED;
  return BSRG_ASCENDING;
}

bsrg_status bsrg_structure_transpose(const bsrg_structure *structure, bsrg_structure **out, int64_t *order,
                                     bsrg_error *error) {
  *out = NULL;
  const bsrg_status fixed = bsrg_check_fixed(structure, "a structure to transpose", error);
  if (fixed != BSRG_OK) return fixed;
  const bsrg_structure_view *a = &structure->view;
  bsrg_structure *transposed = allocate(a->block_cols, a->nnzb);
  if (transposed == NULL) return fail_memory(a->block_cols, a->nnzb, error);
  bsrg_structure_view *t = &transposed->view;
  t->rows = a->cols;
  t->cols = a->rows;
  t->block_height = a->block_width;
  t->block_width = a->block_height;
  t->block_rows = a->block_cols;
  t->block_cols = a->block_rows;
  t->nnzb = a->nnzb;

  /* Counting sort by block column. Rows are visited in ascending order, so each transposed row comes out
   * sorted. next[j] is where the next block of column j goes; it ends up at the beginning of column j + 1,
   * hence the counts are kept one place further along and no second array is needed. */
  int64_t *next = (int64_t *)t->indptr;
  int32_t *indices = (int32_t *)t->indices;
  memset(next, 0, ((size_t)t->block_rows + 1) * sizeof *next);
  for (int64_t k = 0; k < a->nnzb; ++k) ++next[a->indices[k] + 1];
  int64_t begin = 0;
  for (int64_t j = 1; j <= t->block_rows; ++j) {
    const int64_t count = next[j];
    t->longest_row = bsrg_max(t->longest_row, count);
    next[j] = begin;
    begin += count;
  }
  for (int64_t row = 0; row < a->block_rows; ++row) {
    for (int64_t k = a->indptr[row]; k < a->indptr[row + 1]; ++k) {
      const int64_t to = next[a->indices[k] + 1]++;
      indices[to] = (int32_t)row;
      order[to] = k;
    }
  }
  t->column_order = a->column_order == BSRG_ASCENDING ? BSRG_ASCENDING : order_of_sorted(t);
  *out = transposed;
  return BSRG_OK;
}

bsrg_status bsrg_structure_transposed(bsrg_structure *structure, bsrg_structure **out, bsrg_error *error) {
  *out = structure->original;
  if (*out == NULL) *out = atomic_load(&structure->transposed);
  if (*out != NULL) return BSRG_OK;
  const bsrg_structure_view *a = &structure->view;
  int64_t *order = malloc(((size_t)a->nnzb + 1) * sizeof *order);
  if (order == NULL) return fail_memory(a->block_cols, a->nnzb, error);
  bsrg_structure *made;
  const bsrg_status status = bsrg_structure_transpose(structure, &made, order, error);
  if (status != BSRG_OK) {
    free(order);
    return status;
  }
  made->view.order = order;
  made->original = structure;
  if (atomic_compare_exchange_strong(&structure->transposed, out, made)) {
    *out = made;
  } else { /* another thread was faster: *out is what it made */
    bsrg_structure_destroy(made);
  }
  return BSRG_OK;
}
