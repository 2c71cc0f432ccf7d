/* What the short ways to products take: arrays of the usual kinds, whose memory is all that there is to them. */
#ifndef BSRG_USUAL_H
#define BSRG_USUAL_H

#include "array.h"

/* Whether autograd records what tensors that want gradients go into: one answer for a call, asked for when its first
 * tensor is met. */
typedef enum bsrg_recording { BSRG_RECORDING_UNKNOWN, BSRG_RECORDING, BSRG_NOT_RECORDING } bsrg_recording;

/* Whether obj is a tensor and nothing but its memory; that, an array of NumPy or a DeviceArray. is_values: those of a matrix were
 * no negated ones when it was made, which saves asking. */
bool bsrg_is_plain_tensor(bsrg_state *state, PyObject *obj, bool is_values, bsrg_recording *recorded);
bool bsrg_is_usual(bsrg_state *state, PyObject *obj, bool is_values, bsrg_recording *recorded);

/* A number of the two common types; others are judged elsewhere. */
bool bsrg_parse_factor(PyObject *obj, double *out);

/* An array for a result, as `like` is one. NULL also without an exception. */
PyObject *bsrg_new_usual(bsrg_state *state, PyObject *like, const bsrg_element *element, int ndim,
                         const int64_t *shape);

/* NotImplemented, without the exception that there may be. */
PyObject *bsrg_not_implemented(void);
/* The same, but the exception stays where it is none of the argument's, such as KeyboardInterrupt: NULL then. */
PyObject *bsrg_give_up(void);

#endif
