/* The bytes of a fuzzer's input as numbers, and what the entry shares with the calls that it makes. */
#ifndef BSRG_TEST_FUZZ_INPUT_H
#define BSRG_TEST_FUZZ_INPUT_H

#include "internal.h"

/* Zeros follow the last byte. */
typedef struct fuzz_input {
  const uint8_t *data;
  size_t size, at;
} fuzz_input;

static inline uint8_t fuzz_byte(fuzz_input *in) { return in->at < in->size ? in->data[in->at++] : 0; }

/* 0 .. end - 1, end <= 65536. */
static inline int64_t fuzz_below(fuzz_input *in, int64_t end) {
  int64_t number = fuzz_byte(in);
  if (end > 256) number = number << 8 | fuzz_byte(in);
  return number % end;
}

/* Any number, near the ends of ranges more often than not. */
static inline int64_t fuzz_wild(fuzz_input *in) {
  static const int64_t kEnds[] = {0,         INT32_MAX, (int64_t)1 << 32, INT64_MAX,        INT64_MIN,
                                  INT32_MIN, 1 << 16,   (int64_t)1 << 40, (int64_t)1 << 62, 1 << 30};
  enum { ENDS = sizeof kEnds / sizeof *kEnds };
  const int64_t kind = fuzz_byte(in);
  if (kind < 128) return kind - 4;
  if (kind < 240) return (int64_t)((uint64_t)kEnds[kind % ENDS] + (uint64_t)((int64_t)fuzz_byte(in) - 128));
  uint64_t number = 0;
  for (int i = 0; i < 8; ++i) number = number << 8 | fuzz_byte(in);
  return (int64_t)number;
}

/* Ends the program with what did not hold. */
void fuzz_fail(const char *what, const char *message);
#define FUZZ_CHECK(condition, message)                \
  do {                                                \
    if (!(condition)) fuzz_fail(#condition, message); \
  } while (0)

/* Two structures of which the second can stand on the right of the first: either may be NULL. */
typedef struct fuzz_structures {
  bsrg_structure *a, *b;
} fuzz_structures;

/* Reads a call from the input and makes it. */
bsrg_status fuzz_call(fuzz_input *in, fuzz_structures structures, bsrg_error *error);

#endif
