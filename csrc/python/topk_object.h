/* Top-k masks as arguments: a tuple of their numbers, and the array of their columns. */
#ifndef BSRG_TOPK_OBJECT_H
#define BSRG_TOPK_OBJECT_H

#include "operands.h"

/* Everything but mask->columns. */
int bsrg_parse_topk(PyObject *numbers, bsrg_topk_mask *mask);
/* Sets mask->columns. The operand is to be released, also after a failure. */
int bsrg_import_columns(bsrg_state *state, PyObject *obj, bsrg_operand *operand, bsrg_work *work,
                        bsrg_topk_mask *mask);

#endif
