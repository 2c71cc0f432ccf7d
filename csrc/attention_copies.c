/* Attention of tensors that kernels cannot read by vectors of 16 bytes: with rows, heads or batches at other distances, elements
 * that are no neighbours, or head sizes of which a row is no whole number of vectors. They are copied, and their rows filled up
 * with zeros, by kernels/sm80/tensor_copy.cu. */
#include "attention.h"

/* The size of a head in whole vectors, of the operands' dtype. */
static int64_t whole_size(int64_t size, const bsrg_attention_args *args) {
  const int64_t vector = 16 / (int64_t)bsrg_dtype_size(args->dtype);
  return bsrg_ceil_div(size, vector) * vector;
}

/* The data is missing. Heads or batches that are all one stay so. */
static bsrg_tensor whole(const bsrg_tensor *t, const bsrg_attention_args *args) {
  const int64_t size = whole_size(t->size, args);
  const int64_t head = t->rows * size, heads = t->head_stride == 0 ? 1 : t->heads;
  return (bsrg_tensor){.batch = t->batch,
                       .heads = t->heads,
                       .rows = t->rows,
                       .size = size,
                       .batch_stride = t->batch_stride == 0 ? 0 : heads * head,
                       .head_stride = t->head_stride == 0 ? 0 : head,
                       .row_stride = size,
                       .element_stride = 1};
}

static int64_t stored_heads(const bsrg_tensor *t) {
  return (t->batch_stride == 0 ? 1 : t->batch) * (t->head_stride == 0 ? 1 : t->heads);
}

/* A multiple of 16 bytes. */
static size_t bytes_of(const bsrg_tensor *copy, bsrg_dtype dtype) {
  return (size_t)(stored_heads(copy) * copy->rows * copy->size) * bsrg_dtype_size(dtype);
}

bsrg_attention_copies bsrg_attention_describe_copies(const bsrg_attention_args *args) {
  const bool size = whole_size(args->q.size, args) != args->q.size;
  const bool value_size = whole_size(args->v.size, args) != args->v.size;
  bsrg_attention_copies copies = {
      .args = *args,
      .q = size || !bsrg_attention_can_describe(&args->q, args->dtype),
      .k = size || !bsrg_attention_can_describe(&args->k, args->dtype),
      .v = value_size || !bsrg_attention_can_describe(&args->v, args->dtype),
      .out = value_size || !bsrg_attention_can_describe(&args->out, bsrg_attention_out_dtype(args))};
  if (copies.q) copies.args.q = whole(&args->q, args);
  if (copies.k) copies.args.k = whole(&args->k, args);
  if (copies.v) copies.args.v = whole(&args->v, args);
  if (copies.out) copies.args.out = whole(&args->out, args);
  return copies;
}

bool bsrg_attention_wants_copies(const bsrg_attention_args *args, const bsrg_attention_copies *copies) {
  /* The portable kernels need some 8 us for each 64 keys that they read element by element, four copies together 12. */
  enum { FEW_KEYS = 128 };
  return args->family == BSRG_AUTO && (copies->q || copies->k || copies->v || copies->out) &&
         (args->k.rows > FEW_KEYS || bsrg_is_8_bit(args->dtype));
}

static bsrg_status copy(const bsrg_tensor *source, const bsrg_tensor *target, bsrg_dtype dtype, void *stream,
                        bsrg_gpu gpu, bsrg_error *error) {
  return bsrg_copy_tensor(source, target, (int64_t)bsrg_dtype_size(dtype), gpu, (CUstream)stream, error);
}

static bsrg_status compute(const bsrg_attention_args *args, const bsrg_attention_copies *copies,
                           bsrg_attention_launcher launch, bsrg_gpu gpu, bsrg_error *error) {
  const bsrg_attention_args *on = &copies->args;
  const bsrg_dtype dtype = args->dtype, out_dtype = bsrg_attention_out_dtype(args);
  bsrg_status status = BSRG_OK;
  if (copies->q) status = copy(&args->q, &on->q, dtype, args->stream, gpu, error);
  if (status == BSRG_OK && copies->k) status = copy(&args->k, &on->k, dtype, args->stream, gpu, error);
  if (status == BSRG_OK && copies->v) status = copy(&args->v, &on->v, dtype, args->stream, gpu, error);
  /* Rows of no sequence stay as they are. */
  if (status == BSRG_OK && copies->out && args->sequences)
    status = copy(&args->out, &on->out, out_dtype, args->stream, gpu, error);
  if (status == BSRG_OK) status = launch(on, gpu, error);
  if (status == BSRG_OK && copies->out)
    status = copy(&on->out, &args->out, out_dtype, args->stream, gpu, error);
  return status;
}

bsrg_status bsrg_attention_launch_copies(const bsrg_attention_args *args, bsrg_attention_copies *copies,
                                         bsrg_attention_launcher launch, bsrg_gpu gpu, bsrg_error *error) {
  bsrg_attention_args *on = &copies->args;
  bsrg_tensor *const tensors[] = {&on->q, &on->k, &on->v, &on->out};
  const bool copied[] = {copies->q, copies->k, copies->v, copies->out};
  size_t at[4], bytes = 0;
  for (int i = 0; i < 4; ++i) {
    at[i] = bytes;
    if (copied[i]) bytes += bytes_of(tensors[i], i < 3 ? args->dtype : bsrg_attention_out_dtype(args));
  }
  const CUstream stream = (CUstream)args->stream;
  CUdeviceptr scratch;
  bsrg_status status = bsrg_scratch_alloc(gpu.api, gpu.device, bytes, stream, &scratch, error);
  if (status != BSRG_OK) return status;
  for (int i = 0; i < 4; ++i)
    if (copied[i]) tensors[i]->data = (void *)(uintptr_t)(scratch + at[i]);
  status = compute(args, copies, launch, gpu, error);
  return bsrg_scratch_free(gpu.api, scratch, stream, status, error);
}
