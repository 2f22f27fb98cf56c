/*
 * What the collectives must compute, written a second time and as simply as possible: one element after the other,
 * sources in the order of their ranks, small floats through exact doubles. Slow, and independent of kernels/.
 */
#ifndef TUTTI_TESTS_REFERENCE_H
#define TUTTI_TESTS_REFERENCE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tutti/tutti.h>

/* A number that looks random and depends on all three. */
uint64_t reference_hash(uint64_t seed, uint64_t a, uint64_t b);

bool reference_is_float(tutti_type type);
bool reference_supports(tutti_type type, tutti_reduction reduction);
/* Factor of rank's input in a pre-multiplied sum; exact in every type. */
double reference_factor(tutti_type type, int rank);

/* Fills count elements with the stream of (seed, rank, block). Values suit the reduction: full range, but averages of
 * integers do not overflow; min and max see NaN, infinities and both zeros. */
void reference_fill(void *dst, size_t count, tutti_type type, tutti_reduction reduction, uint64_t seed, int rank,
                    int block);

/* dst[i] = srcs[0][i] op srcs[1][i] ..., in that order; where there are hosts, those of a host first. */
void reference_reduce(void *dst, const void *const *srcs, int nsrcs, size_t count, tutti_type type,
                      tutti_reduction reduction);

/* Sources that are on several hosts: host_of[k] is that of source k, hosts being numbered by their lowest source. Each
 * host's result is rounded to the type; then those of float32 and float64 are reduced in pairs, then pairs of pairs, others in
 * the order of hosts. NULL: there is one host. The array must stay. At most 64 hosts. */
void reference_set_hosts(const int *host_of);

/* Element i of a buffer: of integers and bool sign-extended to 64 bits, of floats as a number. Storing a number rounds it to nearest
 * even, once. */
uint64_t reference_load_integer(const void *src, size_t i, tutti_type type);
void reference_store_integer(void *dst, size_t i, tutti_type type, uint64_t bits);
double reference_load_float(const void *src, size_t i, tutti_type type);
void reference_store_float(void *dst, size_t i, tutti_type type, long double value);

/* Index of the first element that differs, or count. Bits must be equal; any NaN equals any NaN. */
size_t reference_compare(const void *a, const void *b, size_t count, tutti_type type);

/* Element `index` as text, for messages; `text` holds 64 bytes. */
const char *reference_show(const void *buffer, size_t index, tutti_type type, char *text);

#endif
