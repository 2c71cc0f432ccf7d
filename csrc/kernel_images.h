/* The compiled kernels inside this library: one image for each kernels/<architecture>/<file>.cu, named
 * "<architecture>/<file>". The table is made by the build, and is empty in a build without CUDA. */
#ifndef BSRG_KERNEL_IMAGES_H
#define BSRG_KERNEL_IMAGES_H

#include <stddef.h>

typedef struct bsrg_kernel_image {
  const char *name;
  const void *data; /* a fatbin */
  size_t size;
} bsrg_kernel_image;

extern const bsrg_kernel_image bsrg_kernel_images[];
extern const int bsrg_kernel_image_count;

#endif
