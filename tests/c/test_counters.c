/* Which streams' kernels draw tiles from which counter. */
#include "check.h"
#include "driver.h"
#include "fake/fake_driver.h"

static const bsrg_cuda_api *api;
static bsrg_device_state *device;

static uint32_t *counter_of(uintptr_t stream, int generation) {
  bsrg_error error;
  uint32_t *counter = NULL;
  int parameters = 0;
  fake_driver.generation = generation;
  CHECK(bsrg_launch_drawing(api, device, BSRG_KERNEL_PIECES_F16, 0, 1, (CUstream)stream, &parameters,
                            &counter, false, &error) == BSRG_OK);
  return counter;
}

int main(void) {
  bsrg_error error;
  bool pushed;
  CHECK(bsrg_open_device(0, &api, &device, &error) == BSRG_OK);
  CHECK(bsrg_enter(api, device, &pushed, &error) == BSRG_OK);
  uint32_t *const first = counter_of(7, 0);
  CHECK(first && counter_of(7, 0) == first);
  CHECK(counter_of(9, 0) && counter_of(9, 0) != first);
  /* The first stream was destroyed, and another one, which has its handle, may run beside its last kernel. */
  CHECK(counter_of(7, 1) && counter_of(7, 1) != first);
  CHECK(counter_of(7, 0) == first);
  /* Whoever comes when all are taken has none. */
  for (int i = 2; i < BSRG_COUNTER_SLOTS; ++i) counter_of(100 + (uintptr_t)i, 0);
  CHECK(!counter_of(13, 0) && counter_of(7, 0) == first);
  bsrg_leave(api, pushed);
  return failures != 0;
}
