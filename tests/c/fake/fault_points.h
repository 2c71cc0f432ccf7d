/* Failures on demand, for programs that are linked with
 *   -Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc,--wrap=posix_memalign,--wrap=free,--wrap=pthread_create
 * Every such call of the core is a point that can be made to fail, and so is every call of the fake driver that may fail
 * (fake_driver.h). Only calls between fault_arm and fault_disarm count, from all threads. */
#ifndef BSRG_TEST_FAULT_POINTS_H
#define BSRG_TEST_FAULT_POINTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum fault_kind { FAULT_MEMORY = 0, FAULT_THREAD, FAULT_DRIVER, FAULT_KINDS } fault_kind;

/* From now on the `number`th call of a kind fails, the first one being 1; 0: none. */
void fault_arm(fault_kind kind, int64_t number);
/* From now on the next call of this function of the driver fails. */
void fault_arm_named(const char *symbol);
/* No more failures. Returns whether there was one. */
bool fault_disarm(void);

/* Whether this call is the one. symbol: of the driver's function, or NULL. */
bool fault_hits(fault_kind kind, const char *symbol);

/* Blocks of memory that the core has not freed. */
int64_t fault_live_blocks(void);

/* Memory of the fake driver, which is no point of failure here. */
void *fault_plain_malloc(size_t bytes);
void fault_plain_free(void *memory);

#endif
