/* The DLPack ABI, major version 1, as its specification lays it out (dmlc.github.io/dlpack).
 *
 * Only layout and numbering matter between libraries, so names follow this code base. The exchange table is
 * that of DLPack 1.3: a PyCapsule named "dlpack_exchange_api" in the type attribute
 * __dlpack_c_exchange_api__.
 */
#ifndef BSRG_DLPACK_H
#define BSRG_DLPACK_H

#include <stdint.h>

enum { DLPACK_MAJOR = 1, DLPACK_MINOR = 3 };

enum { DLPACK_CPU = 1, DLPACK_CUDA = 2, DLPACK_CUDA_HOST = 3, DLPACK_CUDA_MANAGED = 13 };

enum {
  DLPACK_INT = 0,
  DLPACK_UINT = 1,
  DLPACK_FLOAT = 2,
  DLPACK_BFLOAT = 4,
  DLPACK_COMPLEX = 5,
  DLPACK_BOOL = 6,
  DLPACK_FLOAT8_E4M3FN = 10,
  DLPACK_FLOAT8_E5M2 = 12
};

#define DLPACK_FLAG_READ_ONLY ((uint64_t)1)
#define DLPACK_FLAG_COPIED ((uint64_t)2)

typedef struct dlpack_version {
  uint32_t major, minor;
} dlpack_version;

typedef struct dlpack_device {
  int32_t type; /* an enum in the specification, which has the size of an int */
  int32_t index;
} dlpack_device;

typedef struct dlpack_dtype {
  uint8_t code, bits;
  uint16_t lanes;
} dlpack_dtype;

typedef struct dlpack_tensor {
  void *data;
  dlpack_device device;
  int32_t ndim;
  dlpack_dtype dtype;
  int64_t *shape;
  int64_t *strides; /* in elements; NULL, before version 1.2, for a contiguous tensor */
  uint64_t byte_offset;
} dlpack_tensor;

/* In a capsule named "dltensor". */
typedef struct dlpack_managed {
  dlpack_tensor tensor;
  void *context;
  void (*deleter)(struct dlpack_managed *self);
} dlpack_managed;

/* In a capsule named "dltensor_versioned". Nothing after deleter may be read when the major version
 * differs. */
typedef struct dlpack_managed_versioned {
  dlpack_version version;
  void *context;
  void (*deleter)(struct dlpack_managed_versioned *self);
  uint64_t flags;
  dlpack_tensor tensor;
} dlpack_managed_versioned;

typedef struct dlpack_exchange_header {
  dlpack_version version;
  struct dlpack_exchange_header *previous; /* the same table for an older major version, or NULL */
} dlpack_exchange_header;

/* Functions return 0, or -1 with a Python exception set. */
typedef struct dlpack_exchange {
  dlpack_exchange_header header;
  int (*allocate)(dlpack_tensor *prototype, dlpack_managed_versioned **out, void *error_context,
                  void (*set_error)(void *error_context, const char *kind, const char *message));
  int (*export_managed)(void *object, dlpack_managed_versioned **out);
  int (*import_managed)(dlpack_managed_versioned *tensor, void **out_object);
  int (*export_borrowed)(void *object, dlpack_tensor *out); /* may be NULL */
  int (*current_stream)(int32_t device_type, int32_t device_index, void **out);
} dlpack_exchange;

#endif
