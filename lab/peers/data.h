/*
 * The numbers that a comparison's ranks exchange. Element i of a rank's data is a hash of i, so that no piece equals
 * another one, plus an offset by rank and step. All numbers are whole, and sums stay far below 2^24: exact in
 * float32.
 */
#ifndef BENCH_PEERS_DATA_H
#define BENCH_PEERS_DATA_H

#include <stddef.h>
#include <stdint.h>

static inline float data_hash(size_t i) {
    return (float)(int32_t)(((uint32_t)i * 2654435761u) >> 24);
}

static inline float data_offset(int rank, uint64_t step) {
    return (float)(3 * rank + (int)(step % 16));
}

static inline float data_offset_sum(int size, uint64_t step) {
    float sum = 0;
    for (int rank = 0; rank < size; rank++) sum += data_offset(rank, step);
    return sum;
}

/* The number of elements of `data`, whose first one has index `first`, that differ from times * hash + add. */
static inline size_t data_count_wrong(const float *data, size_t count, size_t first, float times, float add) {
    size_t wrong = 0;
    for (size_t i = 0; i < count; i++) wrong += data[i] != times * data_hash(first + i) + add;
    return wrong;
}

#endif
