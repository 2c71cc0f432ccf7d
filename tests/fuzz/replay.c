/* Runs files through the fuzzer's entry, once each: a stand-in for libFuzzer's main. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void replay(const char *path) {
  FILE *file = fopen(path, "rb");
  if (!file) {
    perror(path);
    exit(2);
  }
  /* Memory that ends with the input, as a fuzzer gives it. */
  fseek(file, 0, SEEK_END);
  const size_t size = (size_t)ftell(file);
  rewind(file);
  uint8_t *data = malloc(size ? size : 1);
  if (!data || fread(data, 1, size, file) != size) abort();
  fclose(file);
  LLVMFuzzerTestOneInput(data, size);
  free(data);
}

int main(int argc, char **argv) {
  LLVMFuzzerInitialize(&argc, &argv);
  for (int i = 1; i < argc; ++i) {
    fprintf(stderr, "%s\n", argv[i]); /* the last one named is the one that ended the program */
    replay(argv[i]);
  }
  return 0;
}
