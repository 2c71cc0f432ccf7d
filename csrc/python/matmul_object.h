/* What the two ways into a product with a dense operand share: matmul() and try_matmul(), try_linear(). */
#ifndef BSRG_MATMUL_OBJECT_H
#define BSRG_MATMUL_OBJECT_H

#include "operands.h"

enum { VALUES, DENSE, C, OUT, ROW_SCALE, COL_SCALE, ROW_BIAS, COL_BIAS, VALUES_SCALE, X_SCALE, OPERANDS };

/* A product on its way to the core. Operands that have been given need releasing, also after a failure. */
typedef struct bsrg_matmul_call {
  bsrg_matmul_args args; /* at first but structure, factors, family, side, activation and precision */
  bool transposed;       /* the transposed of args.a is multiplied */
  const bsrg_chip_question *question; /* NULL: none */
  bsrg_work work;
  bsrg_operand operands[OPERANDS];
} bsrg_matmul_call;

/* Names operands that are all zeros, by the side. */
void bsrg_name_operands(bsrg_matmul_call *call);
/* One with at least one dimension. */
int bsrg_import_dense(bsrg_state *state, PyObject *obj, bsrg_operand *operand, bsrg_work *work);

/* Imports those of objects[0 .. OPERANDS) that have not been given yet (the dense operand first: a call that names no
 * stream takes that of its library), multiplies, and releases the operands. NULL and None stand for none. */
bsrg_outcome bsrg_call_matmul(bsrg_state *state, PyObject *const *objects, bsrg_matmul_call *call);

#endif
