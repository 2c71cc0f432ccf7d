#include "kernel_images.h"

/* The build passes BSRG_IMAGE_LIST, a header of lines BSRG_IMAGE(id, name, path, size) that is empty without
 * kernels. The assembler reads each fatbin into read-only data, where nothing touches it before it is loaded.
 * The symbols are global because a table in C must refer to them, and hidden so that they stay in here. */
#ifdef BSRG_IMAGE_LIST
#define BSRG_IMAGE(id, name, path, size)           \
  __asm__(                                         \
      ".pushsection .rodata.bsrg_kernels, \"a\"\n" \
      ".balign 64\n"                               \
      ".globl bsrg_" #id                           \
      "\n"                                         \
      ".hidden bsrg_" #id                          \
      "\n"                                         \
      "bsrg_" #id                                  \
      ":\n"                                        \
      ".incbin \"" path                            \
      "\"\n"                                       \
      ".popsection\n");                            \
  extern const unsigned char bsrg_##id[];
#include BSRG_IMAGE_LIST
#undef BSRG_IMAGE
#endif

/* The last entry stands for nothing: C has no empty arrays. */
const bsrg_kernel_image bsrg_kernel_images[] = {
#ifdef BSRG_IMAGE_LIST
#define BSRG_IMAGE(id, name, path, size) {name, bsrg_##id, size},
#include BSRG_IMAGE_LIST
#undef BSRG_IMAGE
#endif
    {NULL, NULL, 0}};

const int bsrg_kernel_image_count = sizeof(bsrg_kernel_images) / sizeof(bsrg_kernel_images[0]) - 1;
