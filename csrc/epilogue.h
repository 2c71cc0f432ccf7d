/* What becomes of a product before it is rounded: checks, and how backends see it. */
#ifndef BSRG_EPILOGUE_H
#define BSRG_EPILOGUE_H

#include "params.h"
#include "views.h"

/* Sizes, dtypes and the activation. */
bsrg_status bsrg_epilogue_check(const bsrg_matmul_args *args, bsrg_error *error);
/* That the vectors can be read and share no memory with out, which has been checked itself. */
bsrg_status bsrg_epilogue_check_memory(const bsrg_epilogue *epilogue, const bsrg_view *out,
                                       bsrg_error *error);
/* The same of a transposed product. */
void bsrg_epilogue_turn(bsrg_epilogue *epilogue);

/* NULL where it does nothing. */
const bsrg_epilogue *bsrg_epilogue_of(const bsrg_matmul_args *args);
/* For the kernels. */
bsrg_output_params bsrg_output_of(const bsrg_matmul_args *args);

#endif
