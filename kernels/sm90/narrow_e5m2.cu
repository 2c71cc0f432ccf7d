#include "sm80/narrow.cuh"

#define FEWEST(...) BSRG_NARROW_KERNEL(narrow_e5m2, __nv_fp8_e5m2, false, __VA_ARGS__)
BSRG_NARROW_FEWEST_TILES(FEWEST)
#define BY_RING(...) BSRG_NARROW_SM90_KERNEL(narrow_e5m2, __nv_fp8_e5m2, false, __VA_ARGS__)
BSRG_NARROW_SM90_TILES(BY_RING)
