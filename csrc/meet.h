/* The order of what several SMs read at the same time. */
#ifndef BSRG_MEET_H
#define BSRG_MEET_H

#include <stdint.h>

/* Lists that are dealt with together, a bit each: about half as many as there are SMs. */
enum { BSRG_MEET_LISTS = 64 };

/* SMs that begin together and stay in step walk through lists of what they read. L2 answers several that ask for the same lines
 * at once with one read. So this deals the elements of each list to its places, for as many lists as possible to have a key at
 * the same place. By ascending keys, lists of a band never meet: each is one key behind the one before it.
 *
 * lists: at most BSRG_MEET_LISTS. counts: of their elements. keys: of these, one list behind the other, each below key_count
 * and once in a list. places: the place of each in its list, likewise. Returns at how many places keys are, all together; -1:
 * no memory. */
int64_t bsrg_meet(int32_t lists, const int32_t *counts, const int32_t *keys, int32_t key_count,
                  int32_t *places);

#endif
