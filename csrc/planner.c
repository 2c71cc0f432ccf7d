/* Chooses between the kernel families by what they predict. Pure C: no device is needed. */
#include "dynamic.h"
#include "edges.h"
#include "views.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Best first where predictions are equal. */
static const bsrg_family_ops *const families[] = {
    &bsrg_tall_family,   &bsrg_stream_family, &bsrg_regroup_family,
    &bsrg_align_family,  &bsrg_narrow_family, &bsrg_portable_family,
    &bsrg_kmajor_family, &bsrg_widen_family,  &bsrg_kstream_family};
enum { FAMILIES = sizeof(families) / sizeof(families[0]) };

bsrg_chip bsrg_chip_h200(void) {
  return (bsrg_chip){.name = "NVIDIA H200",
                     .sm_arch = 90,
                     .sm_count = 132,
                     .hbm_bytes_per_s = 4.2e12,
                     .l2_bytes_per_s = 8.0e12,
                     .l2_bytes = 50e6,
                     .mma_flops_per_s = 650e12};
}

bsrg_gpu_info bsrg_question_gpu(const bsrg_question *question) {
  bsrg_gpu_info info = {.sm_arch = question->chip->sm_arch,
                        .sm_count = question->chip->sm_count,
                        .hbm_bytes_per_s = question->chip->hbm_bytes_per_s};
  snprintf(info.name, sizeof(info.name), "%s", question->chip->name);
  return info;
}

/* ---- plans of a structure -------------------------------------------------------------------- */

void bsrg_plans_destroy(bsrg_structure *structure) {
  for (int i = 0; i < FAMILIES; ++i) {
    void *plan = atomic_load(&structure->plans[families[i]->family]);
    void *low = atomic_load(&structure->low_plans[families[i]->family]);
    if (plan) families[i]->free_plan(plan);
    if (low && low != plan) families[i]->free_plan(low);
  }
  const bsrg_family_ops *const others[] = {&bsrg_sampled_lists, &bsrg_sampled_covers};
  for (int i = 0; i < 2; ++i) {
    void *plan = atomic_load(&structure->plans[others[i]->family]);
    if (plan) others[i]->free_plan(plan);
  }
}

bsrg_status bsrg_plan_get(bsrg_structure *structure, const bsrg_family_ops *ops, bool low, const void **out,
                          bsrg_error *error) {
  low = low && ops->make_low_plan;
  _Atomic(void *) *place = (low ? structure->low_plans : structure->plans) + ops->family;
  void *plan = atomic_load_explicit(place, memory_order_acquire);
  if (!plan) {
    plan = low ? ops->make_low_plan(structure) : ops->make_plan(structure);
    if (!plan)
      return bsrg_fail(error, BSRG_ERR_MEMORY, "no memory to plan a matrix of %lld blocks",
                       (long long)structure->view.nnzb);
    void *expected = NULL; /* two threads may plan at once; the first one's plan stays */
    if (!atomic_compare_exchange_strong(place, &expected, plan)) {
      if (plan != expected) ops->free_plan(plan);
      plan = expected;
    }
  }
  *out = plan;
  return BSRG_OK;
}

double bsrg_compulsory_bytes(const bsrg_structure_view *v, bsrg_dtype dtype, int64_t n) {
  return (double)bsrg_dtype_size(dtype) * ((double)v->nnzb * (double)(v->block_height * v->block_width) +
                                           ((double)v->cols + (double)v->rows) * (double)n);
}

/* ---- order of rows --------------------------------------------------------------------------- */

bool bsrg_sort_longest_first(const int64_t *length, int64_t count, int64_t longest, int32_t *order) {
  int64_t *start = calloc((size_t)longest + 2, sizeof(*start));
  if (!start) return false;
  for (int64_t i = 0; i < count; ++i) start[longest - length[i] + 1]++;
  for (int64_t l = 0; l <= longest; ++l) start[l + 1] += start[l];
  for (int64_t i = 0; i < count; ++i) order[start[longest - length[i]]++] = (int32_t)i;
  free(start);
  return true;
}

bool bsrg_sort_records(void *records, size_t size, const int64_t *length, int64_t count, int64_t longest) {
  int32_t *order = malloc(sizeof(*order) * (size_t)count);
  char *const from = records, *sorted = malloc(size * (size_t)count);
  const bool done = order && sorted && bsrg_sort_longest_first(length, count, longest, order);
  if (done) {
    for (int64_t i = 0; i < count; ++i)
      memcpy(sorted + (size_t)i * size, from + (size_t)order[i] * size, size);
    memcpy(records, sorted, size * (size_t)count);
  }
  free(order);
  free(sorted);
  return done;
}

bool bsrg_row_order(const bsrg_structure_view *v, int32_t *order) {
  if (!bsrg_is_skewed(v->longest_row, v->nnzb, v->block_rows)) {
    for (int64_t i = 0; i < v->block_rows; ++i) order[i] = (int32_t)i;
    return true;
  }
  int64_t *length = malloc(sizeof(*length) * (size_t)v->block_rows);
  if (!length) return false;
  for (int64_t i = 0; i < v->block_rows; ++i) length[i] = v->indptr[i + 1] - v->indptr[i];
  const bool done = bsrg_sort_longest_first(length, v->block_rows, v->longest_row, order);
  free(length);
  return done;
}

/* ---- choice ---------------------------------------------------------------------------------- */

enum { NO_REASON = 1 }; /* the first character where none is wanted */

bsrg_candidate bsrg_new_candidate(bsrg_family family, bool says_why) {
  return (bsrg_candidate){.family = family, .reason = {says_why ? 0 : NO_REASON}};
}

bool bsrg_says_why(const bsrg_candidate *candidate) { return candidate->reason[0] != NO_REASON; }

void bsrg_set_reason(bsrg_candidate *candidate, const char *format, ...) {
  if (!bsrg_says_why(candidate)) return;
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(candidate->reason, sizeof(candidate->reason), format, arguments);
  va_end(arguments);
}

static bsrg_status plan_for(const bsrg_family_ops *ops, const bsrg_matmul_args *args, const bsrg_chip *chip,
                            const void **plan, bsrg_error *error) {
  const bool low = ops->wants_low && ops->wants_low(&args->a->view, args->x.cols, chip->sm_count);
  return bsrg_plan_get(args->a, ops, low, plan, error);
}

/* One family's prediction; supported stays 0, and reason says why, where it cannot compute the product. */
static bsrg_status consider(const bsrg_family_ops *ops, const bsrg_matmul_args *args, const bsrg_chip *chip,
                            bool says_why, bsrg_candidate *candidate, const void **plan, bsrg_error *error) {
  *candidate = bsrg_new_candidate(ops->family, says_why);
  const char *obstacle = bsrg_dynamic_obstacle(args->a, ops->family);
  if (!obstacle) obstacle = ops->obstacle(&args->a->view, args->dtype, chip->sm_arch);
  if (!obstacle && ops->columns_obstacle) obstacle = ops->columns_obstacle(args->x.cols);
  bsrg_whole_product whole;
  const bsrg_matmul_args *computed = args;
  if (!obstacle && bsrg_needs_whole(ops, args)) {
    whole = bsrg_whole_product_of(ops, args);
    computed = &whole.args;
  }
  if (!obstacle && ops->layout_obstacle) obstacle = ops->layout_obstacle(computed);
  if (obstacle) {
    bsrg_set_reason(candidate, "%s", obstacle);
    return BSRG_OK;
  }
  const bsrg_status status = plan_for(ops, args, chip, plan, error);
  if (status != BSRG_OK) return status;
  ops->predict(computed, *plan, chip, candidate);
  if (computed != args) bsrg_whole_predict(&whole, args, chip, candidate);
  candidate->supported = 1;
  return BSRG_OK;
}

/* Where no family can, the one that can most says why not. */
static bsrg_status fail_all(const bsrg_matmul_args *args, const bsrg_chip *chip, bsrg_error *error) {
  bsrg_candidate candidate;
  const void *plan;
  const bsrg_status status = consider(&bsrg_portable_family, args, chip, true, &candidate, &plan, error);
  if (status != BSRG_OK) return status;
  return bsrg_fail(error, BSRG_ERR_VALUE, "no kernel can compute this product on %s: family '%s' %s",
                   chip->name, bsrg_family_name(candidate.family), candidate.reason);
}

enum { BSRG_CHOICE_ALIGNMENT = 16 }; /* the most that any family asks for */

static bsrg_dense by_alignment(const bsrg_dense *dense) {
  bsrg_dense key = *dense;
  key.data = (void *)((uintptr_t)dense->data % BSRG_CHOICE_ALIGNMENT);
  return key;
}

static void describe(const bsrg_matmul_args *args, const bsrg_chip *chip, bsrg_choice_key *key) {
  memset(key, 0, sizeof(*key)); /* the bytes between members, too */
  key->x = by_alignment(&args->x);
  key->y = by_alignment(&args->y);
  key->y_padded = args->y_padded;
  key->beta = args->beta != 0;
  if (key->beta) key->c = by_alignment(&args->c);
  key->values = (uintptr_t)args->values % BSRG_CHOICE_ALIGNMENT;
  key->dtype = (int)args->dtype;
  key->out_dtype = (int)args->out_dtype;
  key->family = (int)args->family;
  key->precision = (int)args->precision;
  key->sm_arch = chip->sm_arch;
  key->sm_count = chip->sm_count;
  key->hbm_bytes_per_s = chip->hbm_bytes_per_s;
  key->values_scale = args->values_scale != NULL;
  key->block_scales = args->values_scale_count > 1;
  key->x_scale = args->x_scale != NULL;
  key->row_scale = args->epilogue.row_scale.data != NULL;
  key->col_scale = args->epilogue.col_scale.data != NULL;
}

/* The family of the last choice if it was made for the like, else NULL. */
static const bsrg_family_ops *recall(bsrg_choice *choice, const bsrg_choice_key *key) {
  if (atomic_exchange_explicit(&choice->in_use, true, memory_order_acquire)) return NULL;
  const bool same = choice->family != BSRG_AUTO && memcmp(&choice->key, key, sizeof(*key)) == 0;
  const bsrg_family family = choice->family;
  atomic_store_explicit(&choice->in_use, false, memory_order_release);
  for (int i = 0; same && i < FAMILIES; ++i)
    if (families[i]->family == family) return families[i];
  return NULL;
}

static void remember(bsrg_choice *choice, const bsrg_choice_key *key, bsrg_family family) {
  if (atomic_exchange_explicit(&choice->in_use, true, memory_order_acquire)) return;
  choice->key = *key;
  choice->family = family;
  atomic_store_explicit(&choice->in_use, false, memory_order_release);
}

bsrg_status bsrg_choose_again(const bsrg_matmul_args *args, const bsrg_chip *chip,
                              const bsrg_family_ops **ops, const void **plan, bsrg_error *error) {
  bsrg_choice_key key;
  describe(args, chip, &key);
  *ops = recall(&args->a->choice, &key);
  if (*ops) return plan_for(*ops, args, chip, plan, error);
  const bsrg_status status = bsrg_choose_family(args, chip, ops, plan, error);
  if (status == BSRG_OK) remember(&args->a->choice, &key, (*ops)->family);
  return status;
}

bsrg_status bsrg_choose_candidate(const bsrg_matmul_args *args, const bsrg_chip *chip, bool says_why,
                                  const bsrg_family_ops **ops, const void **plan, bsrg_candidate *best,
                                  bsrg_error *error) {
  *ops = NULL;
  bsrg_candidate candidate;
  const void *its_plan = NULL;
  int last = 0;
  for (int i = 0; i < FAMILIES; ++i) {
    if (args->family != BSRG_AUTO && args->family != families[i]->family) continue;
    last = i;
    const bsrg_status status = consider(families[i], args, chip, says_why, &candidate, &its_plan, error);
    if (status != BSRG_OK) return status;
    if (!candidate.supported || (*ops && candidate.seconds >= best->seconds)) continue;
    *best = candidate;
    *ops = families[i];
    *plan = its_plan;
  }
  if (*ops) return BSRG_OK;
  if (args->family == BSRG_AUTO) return fail_all(args, chip, error);
  const bsrg_status status = consider(families[last], args, chip, true, &candidate, &its_plan, error);
  if (status != BSRG_OK) return status;
  return bsrg_fail(error, BSRG_ERR_VALUE, "family '%s' cannot compute this product on %s: it %s",
                   bsrg_family_name(args->family), chip->name, candidate.reason);
}

bsrg_status bsrg_choose_family(const bsrg_matmul_args *args, const bsrg_chip *chip,
                               const bsrg_family_ops **ops, const void **plan, bsrg_error *error) {
  bsrg_candidate best;
  return bsrg_choose_candidate(args, chip, false, ops, plan, &best, error);
}

bsrg_status bsrg_plan_explain_product(const bsrg_matmul_args *args, const bsrg_chip *chip,
                                      bsrg_plan_info *out, bsrg_error *error) {
  const int64_t n = args->x.cols;
  if (args->side != BSRG_A_LEFT || args->batch.ndim != 0)
    return bsrg_fail(error, BSRG_ERR_VALUE,
                     "a plan is of one product with the block-sparse matrix on the left; one with it on the "
                     "right is the transposed product of its transposed structure");
  if (n < 1)
    return bsrg_fail(error, BSRG_ERR_VALUE, "n is %lld, but a plan needs at least one column", (long long)n);
  if (n > BSRG_MOST_PLANNED)
    return bsrg_fail(error, BSRG_ERR_VALUE, "n is %lld, but a plan is for at most 2**56 columns",
                     (long long)n);
  bsrg_status status = bsrg_check_plan(args->dtype, BSRG_TAKES_BOTH, chip, error);
  if (status == BSRG_OK) status = bsrg_check_precision(args->precision, error);
  if (status != BSRG_OK) return status;
  const bsrg_structure_view *v = &args->a->view;
  memset(out, 0, sizeof(*out));
  out->useful_flops = 2 * bsrg_stored_elements(v) * (double)n;
  out->chosen = -1;
  for (int i = 0; i < FAMILIES; ++i) {
    const void *plan = NULL;
    bsrg_candidate *c = &out->candidates[out->count++];
    status = consider(families[i], args, chip, true, c, &plan, error);
    if (status != BSRG_OK) return status;
    if (c->supported && (out->chosen < 0 || c->seconds < out->candidates[out->chosen].seconds))
      out->chosen = i;
  }
  if (out->chosen < 0 && chip->sm_arch < 80)
    return bsrg_fail(error, BSRG_ERR_VALUE,
                     "chip has compute capability %d, but the GPU kernels need 80 or later", chip->sm_arch);
  if (out->chosen < 0) return fail_all(args, chip, error);
  return BSRG_OK;
}

bsrg_status bsrg_plan_explain(bsrg_structure *structure, bsrg_dtype dtype, bsrg_precision precision,
                              int64_t n, const bsrg_chip *chip, bsrg_plan_info *out, bsrg_error *error) {
  const bsrg_structure_view *v = &structure->view;
  const bsrg_matmul_args args = {.a = structure,
                                 .dtype = dtype,
                                 .precision = precision,
                                 .out_dtype = BSRG_BF16,
                                 .x = {NULL, v->cols, n, n, 1},
                                 .y = {NULL, v->rows, n, n, 1},
                                 .alpha = 1};
  return bsrg_plan_explain_product(&args, chip, out, error);
}
