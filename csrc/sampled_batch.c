/* Batches of sampled products on a GPU: several as one product, at the blocks of a matrix that has the pattern along its diagonal, or
 * below one another where there is one B for all. */
#include "batch.h"
#include "edges.h"
#include "sampled.h"

#include <string.h>

/* ---- steps --------------------------------------------------------------------------------------- */

static void remove_dimension(bsrg_sampled_batch *batch, int d) {
  const size_t rest = sizeof(int64_t) * (size_t)(--batch->ndim - d);
  int64_t *const all[] = {batch->shape, batch->a_strides, batch->b_strides, batch->values_strides};
  for (int i = 0; i < 4; ++i) memmove(all[i] + d, all[i] + d + 1, rest);
}

void bsrg_sampled_fold(bsrg_sampled_args *args) {
  bsrg_sampled_batch *batch = &args->batch;
  for (int d = batch->ndim - 1; d >= 0; --d)
    if (batch->shape[d] == 1) remove_dimension(batch, d);
  for (int d = batch->ndim - 2; d >= 0; --d) {
    const int64_t count = batch->shape[d + 1];
    if (!bsrg_batch_is_one(batch->a_strides, d, count) || !bsrg_batch_is_one(batch->b_strides, d, count) ||
        (args->beta != 0 && !bsrg_batch_is_one(batch->values_strides, d, count)))
      continue;
    batch->shape[d + 1] *= batch->shape[d];
    remove_dimension(batch, d);
  }
}

static void *moved(const void *data, const int64_t *strides, const int64_t *position, int ndim,
                   uint64_t item) {
  return (void *)((uintptr_t)data + bsrg_batch_offset(ndim, strides, position) * item);
}

bsrg_sampled_args bsrg_sampled_at(const bsrg_sampled_args *args, const int64_t *position) {
  const bsrg_sampled_batch *batch = &args->batch;
  const bsrg_structure_view v = bsrg_structure_get(args->pattern);
  const uint64_t item = bsrg_dtype_size(args->dtype);
  uint64_t number = 0;
  for (int d = 0; d < batch->ndim; ++d) number = number * (uint64_t)batch->shape[d] + (uint64_t)position[d];
  bsrg_sampled_args one = *args;
  one.a.data = moved(args->a.data, batch->a_strides, position, batch->ndim, item);
  one.b.data = moved(args->b.data, batch->b_strides, position, batch->ndim, item);
  if (args->beta != 0) one.values = moved(args->values, batch->values_strides, position, batch->ndim, item);
  one.out = (char *)args->out + number * (uint64_t)(v.nnzb * v.block_height * v.block_width) * item;
  one.batch.ndim = 0;
  return one;
}

/* ---- several as one ------------------------------------------------------------------------------ */

/* The data of copies is NULL until there is memory. */
typedef struct sampled_stack {
  bsrg_sampled_args args;
  int64_t count;
  bool copy_a, copy_b;
} sampled_stack;

/* A batch of one dimension from here on. */
static bool can_stack(const bsrg_sampled_args *args) {
  const bsrg_structure_view v = bsrg_structure_get(args->pattern);
  const bsrg_sampled_batch *batch = &args->batch;
  int64_t rows, cols, elements;
  return v.rows % v.block_height == 0 && (v.cols % v.block_width == 0 || batch->b_strides[0] == 0) &&
         (args->beta == 0 || batch->values_strides[0] == v.nnzb * v.block_height * v.block_width) &&
         bsrg_mul_ok(batch->shape[0], v.rows, &rows) && bsrg_mul_ok(batch->shape[0], v.cols, &cols) &&
         bsrg_mul_ok(bsrg_max(rows, cols), args->a.cols, &elements) && elements < (int64_t)1 << 56;
}

static sampled_stack stack_from(const bsrg_sampled_args *args, int64_t first) {
  const bsrg_sampled_batch *batch = &args->batch;
  const bool diagonal = batch->b_strides[0] != 0;
  sampled_stack s = {.args = bsrg_sampled_at(args, &first)};
  s.args.pattern = bsrg_structure_stack(args->pattern, batch->shape[0] - first, diagonal, &s.count);
  if (s.count == 1) return s;
  bsrg_dense *a = &s.args.a, *b = &s.args.b;
  s.copy_a = !bsrg_batch_follows(a->rows, a->row_stride, batch->a_strides[0]);
  s.copy_b = diagonal && !bsrg_batch_follows(b->cols, b->col_stride, batch->b_strides[0]);
  if (s.copy_a)
    *a = bsrg_sampled_copy_of(a, s.count * a->rows, a->cols, args->dtype);
  else
    a->rows *= s.count;
  if (s.copy_b)
    *b = bsrg_sampled_copy_of(b, b->rows, s.count * b->cols, args->dtype);
  else if (diagonal)
    b->cols *= s.count;
  return s;
}

/* ---- which of them ------------------------------------------------------------------------------- */

static double seconds_one_by_one(const bsrg_sampled_args *args, const bsrg_chip *chip) {
  bsrg_sampled_args one = *args;
  one.batch.ndim = 0;
  return (double)args->batch.shape[0] * bsrg_sampled_seconds(&one, chip);
}

static double seconds_stacked(const bsrg_sampled_args *args, const bsrg_chip *chip) {
  double seconds = 0;
  for (int64_t first = 0; first < args->batch.shape[0];) {
    const sampled_stack s = stack_from(args, first);
    const bsrg_sampled_copies copies = {.args = s.args, .a = s.copy_a, .b = s.copy_b};
    seconds += bsrg_sampled_seconds(&s.args, chip) + bsrg_sampled_copies_seconds(&copies);
    first += s.count;
  }
  return seconds;
}

/* ---- launch -------------------------------------------------------------------------------------- */

static bsrg_status one_by_one(const bsrg_sampled_args *args, int64_t first, int64_t count,
                              bsrg_sampled_launcher launch, bsrg_gpu gpu, bsrg_error *error) {
  bsrg_status status = BSRG_OK;
  for (int64_t i = first; status == BSRG_OK && i < first + count; ++i) {
    const bsrg_sampled_args one = bsrg_sampled_at(args, &i);
    status = launch(&one, gpu, error);
  }
  return status;
}

static bsrg_status copy(const bsrg_dense *one, int64_t stride, const bsrg_dense *all, int64_t count,
                        bool below, const bsrg_sampled_args *args, bsrg_gpu gpu, bsrg_error *error) {
  const bsrg_tensor from = bsrg_batch_tensor(one, count, stride), to = bsrg_joined_tensor(all, count, below);
  return bsrg_batch_copy(&from, &to, false, (int64_t)bsrg_dtype_size(args->dtype), gpu, args->stream, error);
}

/* From `first` on. */
static bsrg_status launch_stack(const bsrg_sampled_args *args, int64_t first, sampled_stack *s,
                                bsrg_sampled_launcher launch, bsrg_gpu gpu, bsrg_error *error) {
  if (!s->copy_a && !s->copy_b) return launch(&s->args, gpu, error);
  const bsrg_sampled_args one = bsrg_sampled_at(args, &first);
  const CUstream stream = (CUstream)args->stream;
  const int64_t size = (int64_t)bsrg_dtype_size(args->dtype);
  bsrg_dense *a = &s->args.a, *b = &s->args.b;
  const size_t a_bytes = s->copy_a ? bsrg_lines_bytes(a, size) : 0;
  const size_t b_bytes = s->copy_b ? bsrg_lines_bytes(b, size) : 0;
  CUdeviceptr scratch;
  bsrg_status status = bsrg_scratch_alloc(gpu.api, gpu.device, a_bytes + b_bytes, stream, &scratch, error);
  if (status == BSRG_ERR_MEMORY) return one_by_one(args, first, s->count, launch, gpu, error);
  if (status != BSRG_OK) return status;
  if (s->copy_a) a->data = (void *)(uintptr_t)scratch;
  if (s->copy_b) b->data = (void *)(uintptr_t)(scratch + a_bytes);
  if (s->copy_a) status = copy(&one.a, args->batch.a_strides[0], a, s->count, true, args, gpu, error);
  if (status == BSRG_OK && s->copy_b)
    status = copy(&one.b, args->batch.b_strides[0], b, s->count, false, args, gpu, error);
  if (status == BSRG_OK) status = launch(&s->args, gpu, error);
  return bsrg_scratch_free(gpu.api, scratch, stream, status, error);
}

bsrg_status bsrg_sampled_launch_batch(const bsrg_sampled_args *args, bsrg_sampled_launcher launch,
                                      bsrg_gpu gpu, bsrg_error *error) {
  const int64_t all = args->batch.shape[0];
  const bsrg_chip chip = bsrg_chip_of(gpu);
  if (!can_stack(args) || seconds_stacked(args, &chip) >= seconds_one_by_one(args, &chip))
    return one_by_one(args, 0, all, launch, gpu, error);
  bsrg_status status = BSRG_OK;
  for (int64_t first = 0; status == BSRG_OK && first < all;) {
    sampled_stack s = stack_from(args, first);
    status = launch_stack(args, first, &s, launch, gpu, error);
    first += s.count;
  }
  return status;
}
