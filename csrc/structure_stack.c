/* Patterns that repeat: batches of matrices of one pattern as one matrix. */
#include "internal.h"

#include <stdlib.h>

struct bsrg_stack {
  int64_t count;
  bool diagonal;
  bsrg_structure *structure;
  bsrg_stack *next;
};

/* Of a stack; and as many block rows. */
enum { MOST_BLOCKS = 1 << 22 };

static bsrg_structure *find(const bsrg_stack *stacks, int64_t count, bool diagonal) {
  for (const bsrg_stack *s = stacks; s; s = s->next)
    if (s->count == count && s->diagonal == diagonal) return s->structure;
  return NULL;
}

/* NULL: no memory. */
static bsrg_structure *repeat(const bsrg_structure_view *a, int64_t count, bool diagonal) {
  int64_t *indptr = malloc(sizeof(*indptr) * (size_t)(count * a->block_rows + 1));
  int64_t *indices = malloc(sizeof(*indices) * (size_t)(count * a->nnzb));
  bsrg_structure *made = NULL;
  if (indptr && indices) {
    indptr[0] = 0;
    for (int64_t i = 0; i < count; ++i) {
      for (int64_t row = 1; row <= a->block_rows; ++row)
        indptr[i * a->block_rows + row] = i * a->nnzb + a->indptr[row];
      for (int64_t b = 0; b < a->nnzb; ++b)
        indices[i * a->nnzb + b] = (diagonal ? i * a->block_cols : 0) + a->indices[b];
    }
    const bsrg_pattern pattern = {.rows = count * a->rows,
                                  .cols = (diagonal ? count : 1) * a->cols,
                                  .block_height = a->block_height,
                                  .block_width = a->block_width,
                                  .nnzb = count * a->nnzb,
                                  .indptr_len = count * a->block_rows + 1,
                                  .index_type = BSRG_I64,
                                  .indices = indices,
                                  .indptr = indptr};
    if (bsrg_structure_create(&pattern, a->column_order == BSRG_ASCENDING, &made, NULL) != BSRG_OK)
      made = NULL;
  }
  free(indices);
  free(indptr);
  return made;
}

static bsrg_structure *stacked(bsrg_structure *structure, int64_t count, bool diagonal) {
  const bsrg_structure_view *a = &structure->view;
  bsrg_stack *first = atomic_load(&structure->stacks);
  bsrg_structure *found = find(first, count, diagonal);
  int64_t blocks, rows, cols;
  if (found || !bsrg_mul_ok(count, a->nnzb, &blocks) || blocks > MOST_BLOCKS ||
      !bsrg_mul_ok(count, a->block_rows, &rows) || rows > MOST_BLOCKS ||
      !bsrg_mul_ok(count, a->block_cols, &cols) || cols > INT32_MAX)
    return found;
  bsrg_stack *made = malloc(sizeof(*made));
  if (!made) return NULL;
  *made = (bsrg_stack){count, diagonal, repeat(a, count, diagonal), first};
  if (!made->structure) {
    free(made);
    return NULL;
  }
  while (!atomic_compare_exchange_weak(&structure->stacks, &made->next, made)) {
    found = find(made->next, count, diagonal);
    if (found) { /* another thread was faster */
      bsrg_structure_destroy(made->structure);
      free(made);
      return found;
    }
  }
  return made->structure;
}

static bsrg_structure *of_view(bsrg_structure *structure, int64_t count, bool diagonal) {
  if (structure->original == NULL) return stacked(structure, count, diagonal);
  if (!diagonal) return NULL; /* their values do not follow one another */
  bsrg_structure *made = stacked(structure->original, count, true);
  return made && bsrg_structure_transposed(made, &made, NULL) == BSRG_OK ? made : NULL;
}

/* By powers of two: patterns of these are few, whatever the numbers of matrices, and which operations came before makes no
 * difference. */
bsrg_structure *bsrg_structure_stack(bsrg_structure *structure, int64_t most, bool diagonal, int64_t *count) {
  for (*count = 1; *count <= most / 2;) *count *= 2;
  for (; *count > 1; *count /= 2) {
    bsrg_structure *made = of_view(structure, *count, diagonal);
    if (made) return made;
  }
  return structure;
}

void bsrg_stacks_destroy(bsrg_stack *stacks) {
  while (stacks) {
    bsrg_stack *next = stacks->next;
    bsrg_structure_destroy(stacks->structure);
    free(stacks);
    stacks = next;
  }
}
