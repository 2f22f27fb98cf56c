/*
 * The expected results of the collectives, implemented a second time and as simply as possible: one element after the
 * other, sources in the order of their ranks, small floats through exact doubles. Slow, and independent of kernels/.
 */
#ifndef TUTTI_TESTS_REFERENCE_H
#define TUTTI_TESTS_REFERENCE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tutti/tutti.h>

/* A pseudo-random number that depends on all three. */
uint64_t reference_hash(uint64_t seed, uint64_t a, uint64_t b);

bool reference_is_float(tutti_type type);
bool reference_supports(tutti_type type, tutti_reduction reduction);
/* Factor of rank's input in a pre-multiplied sum; exact in every type. */
double reference_factor(tutti_type type, int rank);

/* Fills count elements with the stream of (seed, rank, block). Values suit the reduction: full range, but averages of
 * integers do not overflow; min and max see NaN, infinities and both zeros. */
void reference_fill(void *dst, size_t count, tutti_type type, tutti_reduction reduction, uint64_t seed, int rank,
                    int block);

/* dst[i] = srcs[0][i] op srcs[1][i] ..., in that order; with several hosts, the sources of a host first. */
void reference_reduce(void *dst, const void *const *srcs, int nsrcs, size_t count, tutti_type type,
                      tutti_reduction reduction);

/* Declares that sources are on several hosts: host_of[k] is the host of source k; hosts are numbered by their lowest
 * source. Each host's result is rounded to the type; then results of float32 and float64 are reduced in pairs, then
 * pairs of pairs, other types in the order of hosts. NULL: there is one host. The array must stay valid. At most 64
 * hosts. */
void reference_set_hosts(const int *host_of);

/* Element i of a buffer: integers and bools are sign-extended to 64 bits, floats are numbers. Storing a number rounds
 * it once, to nearest even. */
uint64_t reference_load_integer(const void *src, size_t i, tutti_type type);
void reference_store_integer(void *dst, size_t i, tutti_type type, uint64_t bits);
double reference_load_float(const void *src, size_t i, tutti_type type);
void reference_store_float(void *dst, size_t i, tutti_type type, long double value);

/* Index of the first element that differs, or count. Elements must be equal bit for bit; any NaN equals any NaN. */
size_t reference_compare(const void *a, const void *b, size_t count, tutti_type type);

/* Element `index` as text, for messages; `text` holds 64 bytes. */
const char *reference_show(const void *buffer, size_t index, tutti_type type, char *text);

#endif
