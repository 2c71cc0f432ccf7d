/* Sequences of different lengths: what is checked of them, and what kernels get. */
#include "attention.h"

#include <inttypes.h>
#include <stdlib.h>

static void copy_offsets(const void *offsets, bsrg_index_type type, int64_t count, int64_t *out) {
  for (int64_t s = 0; s <= count; ++s)
    out[s] = type == BSRG_I32 ? ((const int32_t *)offsets)[s] : ((const int64_t *)offsets)[s];
}

static bsrg_status check_offsets(const char *side, const int64_t *offsets, int64_t count, int64_t rows,
                                 int64_t longest, bsrg_error *error) {
  int64_t before = 0;
  for (int64_t s = 0; s <= count; ++s) {
    const int64_t at = offsets[s];
    if (at < before || at > rows)
      return bsrg_fail(error, BSRG_ERR_VALUE,
                       "cu_seqlens_%s[%" PRId64 "] is %" PRId64 ", but must be from %" PRId64
                       ", the entry before it, to %" PRId64 ", the rows that there are",
                       side, s, at, before, rows);
    if (s > 0 && at - before > longest)
      return bsrg_fail(error, BSRG_ERR_VALUE,
                       "max_seqlen_%s is %" PRId64 ", but sequence %" PRId64 " has %" PRId64 " rows", side,
                       longest, s - 1, at - before);
    before = at;
  }
  return BSRG_OK;
}

bsrg_status bsrg_attention_check_sequences(const bsrg_attention_args *args, bsrg_error *error) {
  const bsrg_sequences *s = args->sequences;
  if (bsrg_attention_is_masked(args))
    return bsrg_fail(error, BSRG_ERR_VALUE,
                     "block_mask and cu_seqlens_q are both given, but only one of them is accepted");
  if (s->count < 0 || args->q.batch != 1)
    return bsrg_fail(error, BSRG_ERR_VALUE,
                     "there are %" PRId64 " sequences in %" PRId64
                     " batches, but sequences must lie in tensors of one batch",
                     s->count, args->q.batch);
  return BSRG_OK;
}

bsrg_status bsrg_attention_copy_sequences(const bsrg_attention_args *args, bsrg_sequences *out, void **memory,
                                          bsrg_error *error) {
  const bsrg_sequences *s = args->sequences;
  const int64_t offsets = s->count + 1;
  int64_t bytes;
  int64_t *q = bsrg_mul_ok(offsets, 2 * (int64_t)sizeof(*q), &bytes) ? malloc((size_t)bytes) : NULL;
  *memory = q;
  if (q == NULL)
    return bsrg_fail(error, BSRG_ERR_MEMORY, "no memory for the offsets of %" PRId64 " sequences", s->count);
  int64_t *k = q + offsets;
  copy_offsets(s->q_offsets, s->q_type, s->count, q);
  copy_offsets(s->k_offsets, s->k_type, s->count, k);
  *out = *s;
  out->q_offsets = q;
  out->k_offsets = k;
  out->q_type = out->k_type = BSRG_I64;
  const bsrg_status status = check_offsets("q", q, s->count, args->q.rows, s->max_queries, error);
  return status != BSRG_OK ? status : check_offsets("k", k, s->count, args->k.rows, s->max_keys, error);
}

int64_t bsrg_attention_slots(const bsrg_attention_args *args, int64_t tile_rows) {
  return args->q.rows / tile_rows + args->sequences->count;
}

bsrg_attention_sequences bsrg_attention_sequences_of(const bsrg_attention_args *args) {
  const int64_t far = INT64_C(1) << 40; /* beyond all rows, and sums stay within 64 bits */
  const bsrg_sequences *s = args->sequences;
  return (bsrg_attention_sequences){.q_offsets = s->q_offsets,
                                    .k_offsets = s->k_offsets,
                                    .diagonal = bsrg_max(-far, bsrg_min(args->diagonal, far)),
                                    .left = bsrg_min(args->left, far),
                                    .right = bsrg_min(args->right, far),
                                    .count = (int32_t)s->count,
                                    .wide_q = s->q_type == BSRG_I64,
                                    .wide_k = s->k_type == BSRG_I64,
                                    .queries = (int32_t)args->q.rows,
                                    .keys = (int32_t)args->k.rows,
                                    .align_last = s->align_last};
}
