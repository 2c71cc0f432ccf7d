/* What all operations check: of what their operands are, where, and of the memory that they are views of. */
#ifndef BSRG_VIEWS_H
#define BSRG_VIEWS_H

#include "internal.h"

/* Which 8-bit dtypes an operation takes. */
typedef enum bsrg_eight_bits { BSRG_TAKES_NONE = 0, BSRG_TAKES_E4M3, BSRG_TAKES_BOTH } bsrg_eight_bits;
/* That dtype and device are ones that exist, and that the operation takes. */
bsrg_status bsrg_check_place(bsrg_dtype dtype, bsrg_eight_bits takes, bsrg_device device, bsrg_error *error);

bsrg_status bsrg_check_precision(bsrg_precision precision, bsrg_error *error);
/* That a finite alpha or beta is one in what the dtype's sums are multiplied in: float32, and float64 of its own. */
bsrg_status bsrg_check_factor(double value, const char *name, bsrg_dtype dtype, bsrg_error *error);
/* Of what a plan is asked for: that the operation has the dtype on a GPU, and that the chip is one. */
bsrg_status bsrg_check_plan(bsrg_dtype dtype, bsrg_eight_bits takes, const bsrg_chip *chip,
                            bsrg_error *error);

/* That one of the families of an operation is one of the device's. on_gpu: what there is on a GPU, in messages. */
bsrg_status bsrg_check_family_place(bsrg_family family, bsrg_device device, const char *on_gpu,
                                    bsrg_error *error);

enum { BSRG_VIEW_DIMS = 8 };

/* An operand: elements of `item` bytes, shape and strides in elements. */
typedef struct bsrg_view {
  const char *name; /* in messages */
  const void *data;
  int ndim;
  int64_t item;
  int64_t shape[BSRG_VIEW_DIMS], strides[BSRG_VIEW_DIMS];
  uintptr_t begin, end; /* the bytes from first to last element, end exclusive; set by bsrg_view_check */
} bsrg_view;

/* "(2, 3)" */
typedef struct bsrg_numbers_text {
  char text[192];
} bsrg_numbers_text;
bsrg_numbers_text bsrg_format_numbers(const int64_t *numbers, int count);

/* Sizes, pointer, alignment and reach; sets begin and end, both 0 when there are no elements. */
bsrg_status bsrg_view_check(bsrg_view *view, bsrg_error *error);

/* Refuses an output of which several elements share an address. With more than two dimensions that are stepped along,
 * each of them has to step over all that the smaller steps reach. */
bsrg_status bsrg_view_check_distinct(const bsrg_view *view, bsrg_error *error);

/* Whether two checked views may share an element. Windows beside one another in one larger array interleave without
 * touching; they are recognised, everything else is judged by the bytes from first to last element. */
bool bsrg_views_overlap(const bsrg_view *a, const bsrg_view *b);

/* Of a product's result and its operands, checked views. */
bsrg_status bsrg_check_apart(const bsrg_view *out, const bsrg_view *operand, bsrg_error *error);
/* C is checked here. It may be exactly Y, too. */
bsrg_status bsrg_check_memory_of_c(const bsrg_view *y, bsrg_view *c, bsrg_error *error);
/* That Y has the shape of a product of rows x cols, and so has C, which a beta other than 0 needs. */
bsrg_status bsrg_check_shapes_of_result(const bsrg_dense *y, const bsrg_dense *c, double beta, int64_t rows,
                                        int64_t cols, bsrg_error *error);

#endif
