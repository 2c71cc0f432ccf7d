#include "epilogue.h"

#include <inttypes.h>

_Static_assert((int)BSRG_IDENTITY == BSRG_OUTPUT_IDENTITY && (int)BSRG_RELU == BSRG_OUTPUT_RELU &&
                   (int)BSRG_GELU == BSRG_OUTPUT_GELU && (int)BSRG_GELU_TANH == BSRG_OUTPUT_GELU_TANH &&
                   (int)BSRG_SILU == BSRG_OUTPUT_SILU,
               "the kernels' numbers");

const char *bsrg_activation_name(bsrg_activation activation) {
  static const char *const names[] = {"identity", "relu", "gelu", "gelu_tanh", "silu"};
  return (int)activation >= 0 && activation < BSRG_ACTIVATION_COUNT ? names[activation] : "unknown";
}

static bool is_given(const bsrg_vector *v) { return v->data != NULL || v->size != 0; }

/* ---- checks ------------------------------------------------------------------------------------ */

/* The vectors by the names that they have in messages. */
typedef struct named_vector {
  const char *name;
  const bsrg_vector *vector;
  bool of_rows;
} named_vector;

enum { VECTORS = 4 };

static void name_vectors(const bsrg_epilogue *e, named_vector vectors[VECTORS]) {
  vectors[0] = (named_vector){"row_scale", &e->row_scale, true};
  vectors[1] = (named_vector){"col_scale", &e->col_scale, false};
  vectors[2] = (named_vector){"bias", &e->row_bias, true};
  vectors[3] = (named_vector){"bias", &e->col_bias, false};
}

static bsrg_status check_vector(const named_vector *named, const bsrg_matmul_args *args, bsrg_error *error) {
  const bsrg_vector *v = named->vector;
  if (!is_given(v)) return BSRG_OK;
  const int64_t expected = named->of_rows ? args->y.rows : args->y.cols;
  if (v->size != expected)
    return bsrg_fail(error, BSRG_ERR_VALUE,
                     "%s has %" PRId64 " elements, but a @ b has %" PRId64
                     " %s, for each of which it must "
                     "have one",
                     named->name, v->size, expected, named->of_rows ? "rows" : "columns");
  const bsrg_dtype result = bsrg_out_dtype(args);
  const bool half = bsrg_is_half(result);
  if (v->dtype == result || (half && v->dtype == BSRG_F32)) return BSRG_OK;
  return bsrg_fail(error, BSRG_ERR_TYPE, "%s has dtype %s, but must have dtype %s%s, as %s %s", named->name,
                   bsrg_dtype_name(v->dtype), bsrg_dtype_name(result), half ? " or float32" : "",
                   bsrg_is_8_bit(args->dtype) ? "the result is" : "the operands are",
                   bsrg_dtype_name(result));
}

bsrg_status bsrg_epilogue_check(const bsrg_matmul_args *args, bsrg_error *error) {
  const bsrg_activation activation = args->epilogue.activation;
  if ((int)activation < 0 || activation >= BSRG_ACTIVATION_COUNT)
    return bsrg_fail(error, BSRG_ERR_VALUE, "activation is %d, but activations are numbered 0 to %d",
                     (int)activation, BSRG_ACTIVATION_COUNT - 1);
  named_vector vectors[VECTORS];
  name_vectors(&args->epilogue, vectors);
  for (int i = 0; i < VECTORS; ++i) {
    const bsrg_status status = check_vector(&vectors[i], args, error);
    if (status != BSRG_OK) return status;
  }
  return BSRG_OK;
}

bsrg_status bsrg_epilogue_check_memory(const bsrg_epilogue *epilogue, const bsrg_view *out,
                                       bsrg_error *error) {
  named_vector vectors[VECTORS];
  name_vectors(epilogue, vectors);
  for (int i = 0; i < VECTORS; ++i) {
    const bsrg_vector *v = vectors[i].vector;
    if (!is_given(v)) continue;
    bsrg_view view = {.name = vectors[i].name,
                      .data = v->data,
                      .ndim = 1,
                      .item = (int64_t)bsrg_dtype_size(v->dtype),
                      .shape = {v->size},
                      .strides = {v->stride}};
    bsrg_status status = bsrg_view_check(&view, error);
    if (status == BSRG_OK) status = bsrg_check_apart(out, &view, error);
    if (status != BSRG_OK) return status;
  }
  return BSRG_OK;
}

/* ---- forms of it ------------------------------------------------------------------------------- */

static void swap(bsrg_vector *a, bsrg_vector *b) {
  const bsrg_vector old = *a;
  *a = *b;
  *b = old;
}

void bsrg_epilogue_turn(bsrg_epilogue *epilogue) {
  swap(&epilogue->row_scale, &epilogue->col_scale);
  swap(&epilogue->row_bias, &epilogue->col_bias);
}

const bsrg_epilogue *bsrg_epilogue_of(const bsrg_matmul_args *args) {
  const bsrg_epilogue *e = &args->epilogue;
  const bool any = e->row_scale.data || e->col_scale.data || e->row_bias.data || e->col_bias.data ||
                   e->activation != BSRG_IDENTITY;
  return any ? e : NULL;
}

static bsrg_output_vector output_vector(const bsrg_vector *v) {
  return (bsrg_output_vector){
      .data = v->data, .stride = v->stride, .count = v->size, .is_float = v->dtype == BSRG_F32};
}

/* See params.h. For GELU a minimax fit for |x| up to 5.6, where GELU is within 6e-8 of its limits: relative errors below
 * 2.8e-4, about half of what rounding to float16 may cost. From there on the polynomial falls faster than what it fits. */
static void set_curve(bsrg_output_params *p) {
  static const float gelu[BSRG_OUTPUT_GELU_TERMS] = {-1.0003902f,   -1.1459152f,   -0.47027728f,
                                                     -0.044248175f, 0.0047871578f, -0.00022654654f};
  /* Likewise a minimax fit, of 1 / (1 + e): relative errors below 3e-4. */
  static const float logistic[] = {0.15224468f, -0.53285685f, 0.86589304f, -0.98483484f, 0.99970263f};
  const float log2_e = 1.4426950408889634f;
  if (p->activation == BSRG_OUTPUT_GELU) {
    for (int i = 0; i < BSRG_OUTPUT_GELU_TERMS; ++i) p->curve[i] = gelu[i];
    return;
  }
  for (int i = 2; i < BSRG_OUTPUT_CURVE_TERMS; ++i) p->curve[i] = logistic[i - 2];
  if (p->activation == BSRG_OUTPUT_GELU_TANH) {
    p->curve[0] = -1.5957691216057308f * log2_e; /* 2 sqrt(2 / pi) */
    p->curve[1] = 0.044715f * p->curve[0];
  } else if (p->activation == BSRG_OUTPUT_SILU) {
    p->curve[0] = -log2_e;
  }
}

bsrg_output_params bsrg_output_of(const bsrg_matmul_args *args) {
  const bsrg_epilogue *e = bsrg_epilogue_of(args);
  if (!e) return (bsrg_output_params){0};
  bsrg_output_params p = {.row_scale = output_vector(&e->row_scale),
                          .col_scale = output_vector(&e->col_scale),
                          .row_bias = output_vector(&e->row_bias),
                          .col_bias = output_vector(&e->col_bias),
                          .given = 1,
                          .scaled = e->row_scale.data || e->col_scale.data,
                          .activation = (int32_t)e->activation};
  set_curve(&p);
  return p;
}
