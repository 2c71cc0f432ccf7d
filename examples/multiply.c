/* Y = A @ X with A block-sparse, in C: on the CPU and, where there is one, on a GPU. See docs/c.md.
 *
 *   make example && build/c/multiply
 */
#include <bsrgemm.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* A has 3 x 4 blocks of 2 x 3 elements, of which 5 are stored: in block row 0 those of block columns 0 and 2, in block
 * row 1 none, in block row 2 those of 1, 2 and 3. */
enum { BLOCK_ROWS = 3, BLOCK_COLS = 4, HEIGHT = 2, WIDTH = 3, NNZB = 5 };
enum { ROWS = BLOCK_ROWS * HEIGHT, COLS = BLOCK_COLS * WIDTH, N = 7 };
static const int32_t indptr[BLOCK_ROWS + 1] = {0, 2, 2, 5};
static const int32_t indices[NNZB] = {0, 2, 1, 2, 3};

/* Every function that can fail returns a status and says in words why. */
static void check(bsrg_status status, const bsrg_error *error) {
  if (status == BSRG_OK) return;
  fprintf(stderr, "%s\n", error->message);
  exit(1);
}

/* The same by its definition. */
static float expected(const float *values, const float *x, int row, int column) {
  float sum = 0;
  for (int block = indptr[row / HEIGHT]; block < indptr[row / HEIGHT + 1]; ++block)
    for (int k = 0; k < WIDTH; ++k)
      sum +=
          values[(block * HEIGHT + row % HEIGHT) * WIDTH + k] * x[(indices[block] * WIDTH + k) * N + column];
  return sum;
}

static void compare(const char *device, const float *values, const float *x, const float *y) {
  float worst = 0;
  for (int i = 0; i < ROWS; ++i)
    for (int j = 0; j < N; ++j) worst = fmaxf(worst, fabsf(y[i * N + j] - expected(values, x, i, j)));
  printf("%s: largest difference %g\n", device, worst);
  if (!(worst < 1e-4f)) exit(1);
}

/* The operands go to the GPU and the result comes back, all on its default stream. The structure needs no copying: what
 * kernels read of it is uploaded at the first product. */
static void multiply_on_gpu(bsrg_matmul_args args, const float *values, const float *x, float *y) {
  enum { GPU = 0 };
  const size_t sizes[3] = {sizeof(float) * NNZB * HEIGHT * WIDTH, sizeof(float) * COLS * N,
                           sizeof(float) * ROWS * N};
  void *memory[3];
  bsrg_error error;
  for (int i = 0; i < 3; ++i) check(bsrg_gpu_alloc(GPU, sizes[i], NULL, &memory[i], &error), &error);
  check(bsrg_gpu_copy(GPU, memory[0], values, sizes[0], 0, NULL, &error), &error);
  check(bsrg_gpu_copy(GPU, memory[1], x, sizes[1], 0, NULL, &error), &error);
  args.values = memory[0];
  args.x.data = memory[1];
  args.y.data = memory[2];
  args.device = (bsrg_device){BSRG_CUDA, GPU};
  const bsrg_status status = bsrg_matmul(&args, &error);
  if (status == BSRG_ERR_UNAVAILABLE) {
    printf("GPU: left out, %s\n", error.message); /* the library was built without kernels */
  } else {
    check(status, &error);
    check(bsrg_gpu_copy(GPU, y, memory[2], sizes[2], 1, NULL, &error), &error);
    compare("GPU", values, x, y);
  }
  for (int i = 0; i < 3; ++i) check(bsrg_gpu_free(GPU, memory[i], NULL, &error), &error);
}

int main(void) {
  float values[NNZB * HEIGHT * WIDTH], x[COLS * N], y[ROWS * N];
  for (int i = 0; i < NNZB * HEIGHT * WIDTH; ++i) values[i] = (float)(i % 7) - 3;
  for (int i = 0; i < COLS * N; ++i) x[i] = (float)(i % 5) / 4;

  const bsrg_pattern pattern = {.rows = ROWS,
                                .cols = COLS,
                                .block_height = HEIGHT,
                                .block_width = WIDTH,
                                .nnzb = NNZB,
                                .indptr_len = BLOCK_ROWS + 1,
                                .index_type = BSRG_I32,
                                .indices = indices,
                                .indptr = indptr};
  bsrg_structure *structure;
  bsrg_error error;
  check(bsrg_structure_create(&pattern, 1, &structure, &error), &error);

  const bsrg_matmul_args args = {.a = structure,
                                 .values = values,
                                 .dtype = BSRG_F32,
                                 .x = {x, COLS, N, N, 1},
                                 .y = {y, ROWS, N, N, 1},
                                 .alpha = 1};
  check(bsrg_matmul(&args, &error), &error);
  compare("CPU", values, x, y);

  int gpus;
  if (bsrg_gpu_count(&gpus, &error) == BSRG_OK)
    multiply_on_gpu(args, values, x, y);
  else
    printf("GPU: left out, %s\n", error.message);
  bsrg_structure_destroy(structure);
  return 0;
}
