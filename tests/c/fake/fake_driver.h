/* A CUDA driver in host memory, for programs that are linked with fake_driver.c in place of kernel_images.c and with
 * -Wl,--wrap=dlopen,--wrap=dlsym beside what fault_points.h asks for.
 *
 * It has two GPUs like an H200. Device memory is host memory; kernels are launched and compute nothing, but their grids
 * and tensor maps are held to the limits that the real driver has. Streams are done when a call returns. */
#ifndef BSRG_TEST_FAKE_DRIVER_H
#define BSRG_TEST_FAKE_DRIVER_H

#include <stdatomic.h>
#include <stdint.h>

typedef struct fake_driver_state {
  /* Blocks of device memory, pools, streams, events and retained contexts that are alive. */
  _Atomic int64_t allocations;
  _Atomic int64_t launches;
  int generation;    /* of streams, which have other ids in each, if the same handles */
  char refused[256]; /* the last argument that a real driver would not take; empty: none */
  void (*launched)(const char *kernel, const void *parameters); /* NULL: nobody asks */
} fake_driver_state;
extern fake_driver_state fake_driver;

/* Contexts that this thread has pushed and not popped. */
int64_t fake_driver_contexts(void);

/* The functions that can be made to fail, NULL behind the last one. */
extern const char *const fake_driver_fallible[];

#endif
