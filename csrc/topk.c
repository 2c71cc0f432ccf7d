/* Masks of the highest scores: checks, and the kernel that chooses the columns. */
#include "attention_topk.h"
#include "views.h"

#include <inttypes.h>

bsrg_status bsrg_topk_check(const bsrg_topk_mask *m, bsrg_error *error) {
  const int64_t most_blocks = INT64_C(1) << 30; /* kernels count them in 32 bits, some by strides */
  const int64_t most = INT64_C(1) << 40;        /* products of a number of blocks and a side fit in 64 bits */
  if (m->batch < 1 || m->heads < 1 || m->block_rows < 0 || m->block_cols < 0 || m->block_rows > most_blocks ||
      m->block_cols > most_blocks)
    return bsrg_fail(
        error, BSRG_ERR_VALUE,
        "mask has shape (batch, heads, block rows, block columns) = %s, but must have at least one "
        "batch and head, and from 0 to 2^30 block rows and columns",
        bsrg_format_numbers((int64_t[]){m->batch, m->heads, m->block_rows, m->block_cols}, 4).text);
  int64_t patterns, rows;
  if (!bsrg_mul_ok(m->batch, m->heads, &patterns) || !bsrg_mul_ok(patterns, m->block_rows, &rows) ||
      rows > most_blocks)
    return bsrg_fail(error, BSRG_ERR_VALUE,
                     "mask has %" PRId64 " batches of %" PRId64 " heads of %" PRId64
                     " block rows, but at most 2^30 block rows in all are accepted",
                     m->batch, m->heads, m->block_rows);
  /* Attention rounds up to whole blocks: as many as there are fit in 64 bits then. */
  if (m->block_height < 1 || m->block_width < 1 || m->block_height > most || m->block_width > most ||
      m->block_rows * (m->block_height >> 20) > most || m->block_cols * (m->block_width >> 20) > most)
    return bsrg_fail(
        error, BSRG_ERR_VALUE,
        "mask has %s blocks of %s, but sides from 1 to 2^40, and fewer than 2^60 queries and keys "
        "are accepted",
        bsrg_format_numbers((int64_t[]){m->block_rows, m->block_cols}, 2).text,
        bsrg_format_numbers((int64_t[]){m->block_height, m->block_width}, 2).text);
  if (m->k < 0) return bsrg_fail(error, BSRG_ERR_VALUE, "k is %" PRId64 ", but must be at least 0", m->k);
  const int64_t far = INT64_C(1) << 61;
  if (m->causal && (m->queries < 0 || m->queries > far || m->diagonal < -far || m->diagonal > far))
    return bsrg_fail(error, BSRG_ERR_VALUE,
                     "mask has %" PRId64 " queries and diagonal %" PRId64
                     ", but from 0 to 2^61 queries and a diagonal from -2^61 to 2^61 are accepted",
                     m->queries, m->diagonal);
  if (m->columns == NULL && m->block_rows > 0 && bsrg_min(m->k, m->block_cols) > 0)
    return bsrg_fail(error, BSRG_ERR_VALUE, "columns is NULL, but must be an array of block columns");
  return BSRG_OK;
}

bsrg_topk_shape bsrg_topk_shape_of(const bsrg_topk_mask *m) {
  return (bsrg_topk_shape){.block_height = m->block_height,
                           .block_width = m->block_width,
                           .queries = m->queries,
                           .diagonal = m->diagonal,
                           .block_rows = (int32_t)m->block_rows,
                           .block_cols = (int32_t)m->block_cols,
                           .most = (int32_t)bsrg_min(m->k, m->block_cols),
                           .causal = m->causal != 0};
}

bsrg_status bsrg_topk_check_dtype(bsrg_dtype dtype, bsrg_error *error) {
  if (dtype != BSRG_F64) return BSRG_OK;
  return bsrg_fail(error, BSRG_ERR_TYPE,
                   "scores has dtype float64, but must have dtype float16, bfloat16 or float32");
}

static bsrg_status check_scores(const bsrg_topk_mask *m, const bsrg_tensor *scores, bsrg_dtype dtype,
                                bsrg_device device, bsrg_error *error) {
  bsrg_status status = bsrg_check_place(dtype, BSRG_TAKES_NONE, device, error);
  if (status == BSRG_OK) status = bsrg_topk_check_dtype(dtype, error);
  if (status != BSRG_OK) return status;
  if (device.kind == BSRG_CPU)
    return bsrg_fail(error, BSRG_ERR_TYPE, "scores is on cpu, but must be on a GPU");
  const int64_t wanted[4] = {m->batch, m->heads, m->block_rows, m->block_cols};
  const int64_t found[4] = {scores->batch, scores->heads, scores->rows, scores->size};
  for (int i = 0; i < 4; ++i)
    if (found[i] != wanted[i])
      return bsrg_fail(error, BSRG_ERR_VALUE,
                       "scores has shape (batch, heads, block rows, block columns) = %s, but the mask has %s",
                       bsrg_format_numbers(found, 4).text, bsrg_format_numbers(wanted, 4).text);
  const int64_t pitch = bsrg_min(m->k, m->block_cols);
  bsrg_view in = {
      .name = "scores",
      .data = scores->data,
      .ndim = 4,
      .item = (int64_t)bsrg_dtype_size(dtype),
      .shape = {found[0], found[1], found[2], found[3]},
      .strides = {scores->batch_stride, scores->head_stride, scores->row_stride, scores->element_stride}};
  bsrg_view out = {.name = "columns",
                   .data = m->columns,
                   .ndim = 2,
                   .item = (int64_t)sizeof(int32_t),
                   .shape = {m->batch * m->heads * m->block_rows, pitch},
                   .strides = {pitch, 1}};
  status = bsrg_view_check(&in, error);
  if (status == BSRG_OK) status = bsrg_view_check(&out, error);
  if (status == BSRG_OK && bsrg_views_overlap(&in, &out))
    return bsrg_fail(error, BSRG_ERR_VALUE, "columns overlaps scores in memory, but must not");
  return status;
}

bsrg_status bsrg_topk_fill(const bsrg_topk_mask *mask, const bsrg_tensor *scores, bsrg_dtype dtype,
                           bsrg_device device, void *stream, bsrg_error *error) {
  bsrg_status status = bsrg_topk_check(mask, error);
  if (status == BSRG_OK) status = check_scores(mask, scores, dtype, device, error);
  if (status != BSRG_OK || mask->block_rows == 0 || bsrg_min(mask->k, mask->block_cols) == 0) return status;

  const bsrg_cuda_api *api;
  bsrg_device_state *state;
  bool pushed;
  status = bsrg_open_device(device.index, &api, &state, error);
  if (status == BSRG_OK) status = bsrg_enter(api, state, &pushed, error);
  if (status != BSRG_OK) return status;
  bsrg_topk_params p = {.shape = bsrg_topk_shape_of(mask),
                        .scores = scores->data,
                        .batch_stride = scores->batch_stride,
                        .head_stride = scores->head_stride,
                        .row_stride = scores->row_stride,
                        .column_stride = scores->element_stride,
                        .heads = (int32_t)mask->heads,
                        .columns = mask->columns};
  const bsrg_kernel_id kernel = dtype == BSRG_F16    ? BSRG_KERNEL_TOPK_F16
                                : dtype == BSRG_BF16 ? BSRG_KERNEL_TOPK_BF16
                                                     : BSRG_KERNEL_TOPK_F32;
  status = bsrg_check_arch(&state->info, error);
  if (status == BSRG_OK)
    status = bsrg_launch(api, state, kernel, mask->batch * mask->heads * mask->block_rows, 1,
                         (CUstream)stream, &p, error);
  bsrg_leave(api, pushed);
  return status;
}
