/* Operands of a call: arrays of one dtype on one device, used on one stream. */
#ifndef BSRG_OPERANDS_H
#define BSRG_OPERANDS_H

#include "array.h"

typedef struct bsrg_operand {
  const char *name; /* as the public functions call it */
  bsrg_array array;
  bool takes_e4m3, takes_e5m2; /* float8_e4m3fn and float8_e5m2, which few operations do */
  bool given;                  /* needs releasing, also after a failure */
} bsrg_operand;

typedef enum bsrg_outcome {
  BSRG_DONE,
  BSRG_REFUSED, /* with an exception, before anything was put on a stream or written */
  BSRG_FAILED   /* with an exception */
} bsrg_outcome;
/* Of a call of the core that was made, raising what went wrong. */
bsrg_outcome bsrg_outcome_of(bsrg_state *state, bsrg_status status, const bsrg_error *error);

/* The stream argument of a call: None adopts the stream of the first operand's library. */
int bsrg_parse_work(PyObject *obj, bsrg_work *work);

/* TypeError unless the dtype is one that is computed with. */
int bsrg_import_operand(bsrg_state *state, PyObject *obj, bsrg_operand *operand, bsrg_work *work);
/* The operand is an imported one, which its object was given as, too. */
void bsrg_share_operand(const bsrg_operand *shared, bsrg_operand *operand);
int bsrg_check_same_device(const bsrg_operand *first, const bsrg_operand *other);
/* Nothing is checked of an operand that is not given. */
int bsrg_check_same_kind(const bsrg_operand *first, const bsrg_operand *other);
int bsrg_check_writable(const bsrg_operand *operand);
/* ValueError unless there are `ndim` dimensions; accepted: how messages call that. */
int bsrg_check_dimensions(const bsrg_operand *operand, int ndim, const char *accepted);
/* The shape of a matrix's values, of a transposed view as they are stored. */
void bsrg_values_shape(const bsrg_structure_view *a, int64_t shape[3]);
/* ValueError unless they are the contiguous values, of three dimensions, of a matrix of that structure. */
int bsrg_check_values(const bsrg_structure_view *a, const bsrg_operand *operand);
/* The same for those of a batch of matrices, with any dimensions before these three. */
int bsrg_check_value_batch(const bsrg_structure_view *a, const bsrg_operand *operand);
/* Of two or more dimensions: the matrix, or the first one of a batch. */
bsrg_dense bsrg_operand_dense(const bsrg_operand *operand);

/* used: work with them has been put on the stream, where it may still be running. */
void bsrg_release_operands(bsrg_state *state, bsrg_operand *operands, int count, bool used,
                           const bsrg_work *work);

#endif
