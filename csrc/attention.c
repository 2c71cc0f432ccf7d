/* Attention: checks everything that a backend relies on, then hands over to the backend of the device. */
#include "attention.h"
#include "attention_topk.h"
#include "views.h"

#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bsrg_status check_family(const bsrg_attention_args *args, bsrg_error *error) {
  const bsrg_family family = args->family;
  if (family != BSRG_AUTO && family != BSRG_ATTENTION_HOPPER && family != BSRG_ATTENTION_DECODE &&
      family != BSRG_PORTABLE && family != BSRG_HOST) {
    return bsrg_fail(error, BSRG_ERR_VALUE,
                     "family is %d, '%s', but attention has 'auto', 'hopper', 'decode', 'portable' and 'cpu'",
                     (int)family, bsrg_family_name(family));
  }
  return bsrg_check_family_place(family, args->device, "'auto', 'hopper', 'decode' and 'portable' exist",
                                 error);
}

static bsrg_status check_dtype(const bsrg_attention_args *args, bsrg_error *error) {
  if (args->device.kind == BSRG_CPU || (args->dtype != BSRG_F32 && args->dtype != BSRG_F64)) return BSRG_OK;
  return bsrg_fail(
      error, BSRG_ERR_TYPE,
      "q has dtype %s, but attention on a GPU needs float16, bfloat16 or, on Hopper, float8_e4m3fn; the CPU "
      "computes it in float32 and float64 too",
      bsrg_dtype_name(args->dtype));
}

static bsrg_numbers_text shape_of(const bsrg_tensor *t) {
  return bsrg_format_numbers((int64_t[]){t->batch, t->heads, t->rows, t->size}, 4);
}

/* Shapes are reported as (batch, heads, rows, size), whatever the order in memory. */
static bsrg_status check_shapes(const bsrg_attention_args *args, bsrg_error *error) {
  const bsrg_tensor *q = &args->q, *k = &args->k, *v = &args->v, *out = &args->out;
  if (q->size < 1 || v->size < 1) {
    const bsrg_tensor *bad = q->size < 1 ? q : v;
    return bsrg_fail(error, BSRG_ERR_VALUE,
                     "%s has shape (batch, heads, rows, size) = %s, but the size must be at least 1",
                     bad == q ? "q" : "v", shape_of(bad).text);
  }
  /* Broadcast dimensions have no memory that would limit them; this keeps sums of sizes in range. */
  const int64_t most_rows = INT64_C(1) << 40, most_size = INT64_C(1) << 20;
  if (q->rows > most_rows || k->rows > most_rows || q->size > most_size || v->size > most_size) {
    return bsrg_fail(
        error, BSRG_ERR_VALUE,
        "q has shape (batch, heads, rows, size) = %s, k %s and v %s, but at most 2**40 rows and a "
        "size of at most 2**20 are accepted",
        shape_of(q).text, shape_of(k).text, shape_of(v).text);
  }
  if (k->batch != q->batch || k->size != q->size) {
    return bsrg_fail(error, BSRG_ERR_VALUE,
                     "k has shape (batch, heads, keys, size) = %s and q %s, but both must have one batch and "
                     "one size",
                     shape_of(k).text, shape_of(q).text);
  }
  if (v->batch != k->batch || v->heads != k->heads || v->rows != k->rows) {
    return bsrg_fail(
        error, BSRG_ERR_VALUE,
        "v has shape (batch, heads, keys, size) = %s and k %s, but both must have one batch, one "
        "number of heads and one of keys",
        shape_of(v).text, shape_of(k).text);
  }
  if (k->heads < 1 ? q->heads != 0 : q->heads % k->heads != 0) {
    return bsrg_fail(error, BSRG_ERR_VALUE,
                     "q has %" PRId64 " heads and k %" PRId64
                     ", but the number of q's heads must be a multiple of k's",
                     q->heads, k->heads);
  }
  if (out->batch != q->batch || out->heads != q->heads || out->rows != q->rows || out->size != v->size) {
    return bsrg_fail(
        error, BSRG_ERR_VALUE, "out has shape %s, but the result has shape %s, which out must have too",
        shape_of(out).text, bsrg_format_numbers((int64_t[]){q->batch, q->heads, q->rows, v->size}, 4).text);
  }
  return BSRG_OK;
}

static const char *const factor_names[] = {"q_descale", "k_descale", "v_descale"};

static bsrg_status check_numbers(const bsrg_attention_args *args, bsrg_error *error) {
  if (!isfinite(args->scale))
    return bsrg_fail(error, BSRG_ERR_VALUE, "scale is %g, but must be finite", args->scale);
  if (args->dtype != BSRG_F64 && fabs(args->scale) > FLT_MAX)
    return bsrg_fail(error, BSRG_ERR_VALUE, "scale is %g, but must be from %g to %g where q has dtype %s",
                     args->scale, -(double)FLT_MAX, (double)FLT_MAX, bsrg_dtype_name(args->dtype));
  if (!isfinite(args->softcap) || args->softcap < 0)
    return bsrg_fail(error, BSRG_ERR_VALUE, "softcap is %g, but must be finite and at least 0",
                     args->softcap);
  if (args->dtype != BSRG_F64 && args->softcap > 0 &&
      !(args->softcap >= FLT_TRUE_MIN && args->softcap <= FLT_MAX))
    return bsrg_fail(error, BSRG_ERR_VALUE, "softcap is %g, but must be from %g to %g where q has dtype %s",
                     args->softcap, (double)FLT_TRUE_MIN, (double)FLT_MAX, bsrg_dtype_name(args->dtype));
  if (args->dtype != BSRG_F8_E4M3) return BSRG_OK;
  const bsrg_factors *factors[] = {&args->q_descale, &args->k_descale, &args->v_descale};
  for (int i = 0; i < 3; ++i)
    if (factors[i]->data == NULL && !(factors[i]->all >= 0 && factors[i]->all <= FLT_MAX))
      return bsrg_fail(error, BSRG_ERR_VALUE, "%s is %g, but must be a float32 of at least 0",
                       factor_names[i], factors[i]->all);
  return BSRG_OK;
}

typedef struct sizes_text {
  char text[80];
} sizes_text;

/* "1 or 4 or 16", each once. */
static sizes_text alternatives(int64_t a, int64_t b) {
  const int64_t sizes[] = {1, a, b};
  sizes_text said = {"1"};
  for (int i = 1; i < 3; ++i) {
    const size_t used = strlen(said.text);
    if (sizes[i] != 1 && sizes[i] != sizes[i - 1])
      snprintf(said.text + used, sizeof(said.text) - used, " or %" PRId64, sizes[i]);
  }
  return said;
}

static bsrg_status check_leading(const bsrg_attention_args *args, int64_t batch, int64_t heads,
                                 bsrg_error *error) {
  const int64_t q_batch = args->q.batch, q_heads = args->q.heads, k_heads = args->k.heads;
  if ((batch == 1 || batch == q_batch) && (heads == 1 || heads == k_heads || heads == q_heads))
    return BSRG_OK;
  const bool of_both = k_heads != 1 && k_heads != q_heads;
  return bsrg_fail(error, BSRG_ERR_VALUE,
                   "block_mask has leading dimensions (%" PRId64 ", %" PRId64 "), but must have (%s, %s), %s",
                   batch, heads, alternatives(q_batch, q_batch).text,
                   alternatives(of_both ? k_heads : q_heads, q_heads).text,
                   of_both ? "the batch of q and the heads of k or q" : "the batch and heads of q");
}

static bsrg_status wrong_block_count(const bsrg_attention_args *args, int64_t block_rows, int64_t block_cols,
                                     bsrg_block_shape block, bsrg_error *error) {
  const int64_t queries = args->q.rows, keys = args->k.rows;
  const int64_t wanted[2] = {bsrg_ceil_div(queries, block.height), bsrg_ceil_div(keys, block.width)};
  return bsrg_fail(error, BSRG_ERR_VALUE,
                   "block_mask has %s blocks of %s, but %" PRId64 " queries and %" PRId64
                   " keys, rounded up to whole blocks, are %s of them",
                   bsrg_format_numbers((int64_t[]){block_rows, block_cols}, 2).text,
                   bsrg_format_numbers((int64_t[]){block.height, block.width}, 2).text, queries, keys,
                   bsrg_format_numbers(wanted, 2).text);
}

static bsrg_status check_masks(const bsrg_attention_args *args, bsrg_error *error) {
  if (args->masks == NULL) return BSRG_OK;
  const bsrg_tensor *q = &args->q;
  const bsrg_status leading = check_leading(args, args->mask_batch, args->mask_heads, error);
  if (leading != BSRG_OK) return leading;
  for (int64_t i = 0; i < args->mask_batch * args->mask_heads; ++i) {
    if (args->masks[i] == NULL)
      return bsrg_fail(error, BSRG_ERR_VALUE, "block_mask %" PRId64 " is NULL, but must be a structure", i);
    const bsrg_status ascending = bsrg_check_ascending(args->masks[i], "block_mask", error);
    if (ascending != BSRG_OK) return ascending;
    const bsrg_structure_view *first = &args->masks[0]->view, *mask = &args->masks[i]->view;
    const int64_t block_rows = bsrg_ceil_div(q->rows, mask->block_height);
    const int64_t block_cols = bsrg_ceil_div(args->k.rows, mask->block_width);
    if (mask->block_height != first->block_height || mask->block_width != first->block_width)
      return bsrg_fail(error, BSRG_ERR_VALUE,
                       "block_mask has blocks of %s and of %s, but must have one block shape",
                       bsrg_format_numbers((int64_t[]){first->block_height, first->block_width}, 2).text,
                       bsrg_format_numbers((int64_t[]){mask->block_height, mask->block_width}, 2).text);
    if (mask->block_rows != block_rows || mask->block_cols != block_cols)
      return wrong_block_count(args, mask->block_rows, mask->block_cols,
                               (bsrg_block_shape){mask->block_height, mask->block_width}, error);
  }
  return BSRG_OK;
}

static bsrg_status check_topk(const bsrg_attention_args *args, bsrg_error *error) {
  const bsrg_topk_mask *mask = args->topk;
  if (mask == NULL) return BSRG_OK;
  if (args->masks != NULL)
    return bsrg_fail(error, BSRG_ERR_VALUE, "masks and topk are both given, but only one may be");
  if (args->device.kind == BSRG_CPU)
    return bsrg_fail(error, BSRG_ERR_TYPE,
                     "block_mask is on a GPU and q on cpu, but both must be on one device");
  const bsrg_status status = bsrg_topk_check(mask, error);
  if (status != BSRG_OK) return status;
  const int64_t block_rows = bsrg_ceil_div(args->q.rows, mask->block_height);
  const int64_t block_cols = bsrg_ceil_div(args->k.rows, mask->block_width);
  if (mask->block_rows != block_rows || mask->block_cols != block_cols)
    return wrong_block_count(args, mask->block_rows, mask->block_cols,
                             (bsrg_block_shape){mask->block_height, mask->block_width}, error);
  return check_leading(args, mask->batch, mask->heads, error);
}

static bsrg_view view_of(const char *name, const bsrg_tensor *t, int64_t item) {
  return (bsrg_view){.name = name,
                     .data = t->data,
                     .ndim = 4,
                     .item = item,
                     .shape = {t->batch, t->heads, t->rows, t->size},
                     .strides = {t->batch_stride, t->head_stride, t->row_stride, t->element_stride}};
}

static bsrg_view offsets_view(const char *name, const void *offsets, bsrg_index_type type, int64_t count) {
  return (bsrg_view){.name = name,
                     .data = offsets,
                     .ndim = 1,
                     .item = type == BSRG_I32 ? 4 : 8,
                     .shape = {bsrg_min(count, INT64_MAX - 1) + 1},
                     .strides = {1}};
}

static bsrg_status check_memory(const bsrg_attention_args *args, bsrg_error *error) {
  const int64_t item = (int64_t)bsrg_dtype_size(args->dtype);
  const bsrg_tensor *q = &args->q;
  bsrg_view in[8] = {view_of("q", q, item), view_of("k", &args->k, item), view_of("v", &args->v, item)};
  bsrg_view out[2] = {view_of("out", &args->out, (int64_t)bsrg_dtype_size(bsrg_attention_out_dtype(args)))};
  int inputs = 3, outputs = 1;
  const bsrg_factors *factors[] = {&args->q_descale, &args->k_descale, &args->v_descale};
  for (int i = 0; i < 3; ++i) {
    if (args->dtype != BSRG_F8_E4M3 || factors[i]->data == NULL) continue;
    in[inputs++] = (bsrg_view){.name = factor_names[i],
                               .data = factors[i]->data,
                               .ndim = 2,
                               .item = (int64_t)sizeof(float),
                               .shape = {args->k.batch, args->k.heads},
                               .strides = {factors[i]->batch_stride, factors[i]->head_stride}};
  }
  if (args->sequences != NULL) {
    const bsrg_sequences *s = args->sequences;
    in[inputs++] = offsets_view("cu_seqlens_q", s->q_offsets, s->q_type, s->count);
    in[inputs++] = offsets_view("cu_seqlens_k", s->k_offsets, s->k_type, s->count);
  }
  if (args->lse != NULL) {
    out[outputs++] = (bsrg_view){.name = "lse",
                                 .data = args->lse,
                                 .ndim = 3,
                                 .item = (int64_t)sizeof(float),
                                 .shape = {q->batch, q->heads, q->rows},
                                 .strides = {bsrg_mul_saturated(q->heads, q->rows), q->rows, 1}};
  }
  bsrg_status status = BSRG_OK;
  for (int i = 0; i < inputs && status == BSRG_OK; ++i) status = bsrg_view_check(&in[i], error);
  for (int i = 0; i < outputs && status == BSRG_OK; ++i) status = bsrg_view_check(&out[i], error);
  if (status == BSRG_OK) status = bsrg_view_check_distinct(&out[0], error);
  if (status != BSRG_OK) return status;
  for (int o = 0; o < outputs; ++o)
    for (int i = 0; i < inputs; ++i)
      if (bsrg_views_overlap(&out[o], &in[i]))
        return bsrg_fail(error, BSRG_ERR_VALUE,
                         "%s overlaps %s in memory, but must share memory with no operand", out[o].name,
                         in[i].name);
  if (outputs == 2 && bsrg_views_overlap(&out[0], &out[1]))
    return bsrg_fail(error, BSRG_ERR_VALUE, "out overlaps lse in memory, but must share memory with nothing");
  return BSRG_OK;
}

/* Libraries put anything into the stride of a dimension of one element, and into all strides of an empty tensor.
 * Backends choose fast paths by strides, so such a stride becomes what it would be in a contiguous tensor. */
static void settle_strides(bsrg_tensor *t) {
  const bool empty = t->batch == 0 || t->heads == 0 || t->rows == 0 || t->size == 0;
  if (empty || t->size == 1) t->element_stride = 1;
  if (empty || t->rows == 1) t->row_stride = t->size;
  if (empty || t->heads == 1) t->head_stride = bsrg_mul_saturated(t->rows, t->size);
  if (empty || t->batch == 1)
    t->batch_stride = bsrg_mul_saturated(bsrg_mul_saturated(t->heads, t->rows), t->size);
}

/* What has been checked. */
static bsrg_status compute(const bsrg_attention_args *args, bsrg_error *error) {
  const bsrg_tensor *q = &args->q;
  if (q->batch == 0 || q->heads == 0 || q->rows == 0) return BSRG_OK;
  if (args->sequences != NULL && args->sequences->count == 0) return BSRG_OK;
  bsrg_attention_args settled = *args;
  settle_strides(&settled.q);
  settle_strides(&settled.k);
  settle_strides(&settled.v);
  settle_strides(&settled.out);
  if (settled.topk != NULL) {
    settled.mask_batch = settled.topk->batch;
    settled.mask_heads = settled.topk->heads;
  }
  return settled.device.kind == BSRG_CPU ? bsrg_cpu_attention(&settled, error)
                                         : bsrg_gpu_attention(&settled, error);
}

bsrg_status bsrg_attention(const bsrg_attention_args *args, bsrg_error *error) {
  if (args->question) args->question->family = BSRG_AUTO;
  bsrg_status status = bsrg_check_place(args->dtype, BSRG_TAKES_E4M3, args->device, error);
  if (status == BSRG_OK) status = check_family(args, error);
  if (status == BSRG_OK) status = check_dtype(args, error);
  if (status == BSRG_OK) status = check_shapes(args, error);
  if (status == BSRG_OK) status = check_numbers(args, error);
  if (status == BSRG_OK) status = check_memory(args, error);
  if (status == BSRG_OK && args->sequences) status = bsrg_attention_check_sequences(args, error);
  if (status == BSRG_OK) status = check_masks(args, error);
  if (status == BSRG_OK) status = check_topk(args, error);
  if (status != BSRG_OK) return status;
  if (args->sequences == NULL || args->device.kind != BSRG_CPU) return compute(args, error);

  bsrg_sequences sequences;
  void *offsets;
  status = bsrg_attention_copy_sequences(args, &sequences, &offsets, error);
  bsrg_attention_args own = *args;
  own.sequences = &sequences;
  if (status == BSRG_OK) status = compute(&own, error);
  free(offsets);
  return status;
}

/* ---- what backends share ---------------------------------------------------------------------- */

/* a + b, or the end of the range where that does not fit. */
static int64_t add_saturated(int64_t a, int64_t b) {
  int64_t sum;
  return !__builtin_add_overflow(a, b, &sum) ? sum : a < 0 ? INT64_MIN : INT64_MAX;
}

bsrg_capped_scale bsrg_attention_capped_scale(const bsrg_attention_args *args) {
  const double softcap = fmin(args->softcap, 0x1p100);
  const double scale = softcap > 0 ? args->scale / softcap : args->scale;
  const double most = softcap > 0 ? FLT_MAX : FLT_MAX / 1.5;
  return (bsrg_capped_scale){(float)fmax(-most, fmin(most, scale)), (float)softcap};
}

bsrg_band bsrg_attention_band(const bsrg_attention_args *args) {
  return bsrg_attention_sequence_band(args, args->q.rows, args->k.rows);
}

bsrg_band bsrg_attention_sequence_band(const bsrg_attention_args *args, int64_t queries, int64_t keys) {
  const bool align_last = args->sequences && args->sequences->align_last;
  const int64_t diagonal = add_saturated(args->diagonal, align_last ? keys - queries : 0);
  /* -left cannot overflow: it is not INT64_MIN where it is used. */
  const int64_t first = args->left < 0 ? -queries : add_saturated(diagonal, -args->left);
  const int64_t last = args->right < 0 ? keys : add_saturated(diagonal, args->right);
  return (bsrg_band){bsrg_max(-queries, bsrg_min(first, keys)), bsrg_max(-queries, bsrg_min(last, keys))};
}
