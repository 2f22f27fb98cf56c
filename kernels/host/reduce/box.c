/*
 * Copies boxes in host memory. See box.h; box_plan.c makes the plan.
 *
 * The two innermost loops of a plan are a sheet: `a` is the innermost one, along dst, and `b` is the loop around it.
 * Sheets of rows are copied row by row; units of up to 128 bytes are moved by a few loads and stores instead of a
 * call of memcpy. A sheet that transposes is copied in tiles of one cache line on either side: a tile is transposed
 * in registers into a buffer in the first-level cache, from where whole lines go to dst. If it were written directly
 * to dst, lines of rows that are a power of two apart would evict each other from that cache half-written.
 */
#include "kernels/box.h"

#include <string.h>

#include "bootstrap/base/common.h"
#include "kernels/copy.h"

#define LINE TUTTI_CACHE_LINE
/* Arrays of at least this many bytes are assumed to lie in memory, not in a cache. A needless prefetch costs up to
 * a quarter of the speed, a missing prefetch half of it. */
#define FAR_BYTES  ((size_t)8 << 20)
#define TO_LEVEL_2 2 /* cache level: __builtin_prefetch's third argument */
/* gcc takes a function that only prefetches for one without effect, and removes its calls. */
#define ALWAYS_INLINE static inline __attribute__((always_inline))

typedef struct sheet {
    size_t unit; /* bytes */
    int64_t na, nb;
    ptrdiff_t dst_a, dst_b, src_a, src_b;
    bool streams, far; /* dst is written past the caches; the arrays lie in memory */
    bool whole;        /* rows of dst are whole lines */
} sheet;

typedef void (*sheet_copy)(const sheet *s, char *dst, const char *src);

/* ---------------------------------------------------------------------------------------------------- rows */

#define ROWS(name, MOVE)                                                                                               \
    static void name(const sheet *s, char *dst, const char *src) {                                                     \
        const size_t unit = s->unit;                                                                                   \
        const int64_t na = s->na, nb = s->nb;                                                                          \
        const ptrdiff_t dst_a = s->dst_a, dst_b = s->dst_b, src_a = s->src_a, src_b = s->src_b;                        \
        (void)unit;                                                                                                    \
        for (int64_t b = 0; b < nb; b++) {                                                                             \
            char *to = dst + b * dst_b;                                                                                \
            const char *from = src + b * src_b;                                                                        \
            for (int64_t a = 0; a < na; a++) {                                                                         \
                MOVE;                                                                                                  \
                to += dst_a;                                                                                           \
                from += src_a;                                                                                         \
            }                                                                                                          \
        }                                                                                                              \
    }
/* Moves a row of a known width without a call, or a row of at most twice that width as two pieces, one from each
 * end. */
#define EXACTLY(width)                                                                                                 \
    {                                                                                                                  \
        char moved[width];                                                                                             \
        memcpy(moved, from, width);                                                                                    \
        memcpy(to, moved, width);                                                                                      \
    }
#define FROM_BOTH_ENDS(width)                                                                                          \
    {                                                                                                                  \
        char head[width], tail[width];                                                                                 \
        memcpy(head, from, width);                                                                                     \
        memcpy(tail, from + unit - (width), width);                                                                    \
        memcpy(to, head, width);                                                                                       \
        memcpy(to + unit - (width), tail, width);                                                                      \
    }
ROWS(rows_of_1, EXACTLY(1))
ROWS(rows_of_2, EXACTLY(2))
ROWS(rows_to_3, FROM_BOTH_ENDS(2))
ROWS(rows_of_4, EXACTLY(4))
ROWS(rows_to_7, FROM_BOTH_ENDS(4))
ROWS(rows_of_8, EXACTLY(8))
ROWS(rows_to_15, FROM_BOTH_ENDS(8))
ROWS(rows_of_16, EXACTLY(16))
ROWS(rows_to_31, FROM_BOTH_ENDS(16))
ROWS(rows_of_32, EXACTLY(32))
ROWS(rows_to_63, FROM_BOTH_ENDS(32))
ROWS(rows_of_64, EXACTLY(64))
ROWS(rows_to_128, FROM_BOTH_ENDS(64))
/* The processor prefetches the next lines of a row by itself, but not the start of the next row: these functions
 * prefetch it some rows ahead, and whole rows where the arrays lie in memory. A prefetch past the last row does no
 * harm, since nothing is read. */
ALWAYS_INLINE void prefetch_from(const char *row, size_t bytes) {
    for (size_t i = 0; i < bytes; i += LINE) __builtin_prefetch(row + i, 0, TO_LEVEL_2);
}
ALWAYS_INLINE void prefetch_to(const char *row, size_t bytes) {
    for (size_t i = 0; i < bytes; i += LINE) __builtin_prefetch(row + i, 1, TO_LEVEL_2);
}
/* As prefetch_from, for rows that lie in memory and are written past the caches. If the lines were prefetched in
 * order, the processor would take a row for a long array and also fetch what follows its end, which costs up to a
 * quarter of the memory's speed. */
ALWAYS_INLINE void prefetch_far(const char *row, size_t bytes) {
    const size_t lines = (bytes + LINE - 1) / LINE, step = lines < 8         ? 1
                                                           : lines % 7 != 0  ? 7
                                                           : lines % 11 != 0 ? 11
                                                                             : 1;
    for (size_t i = 0, line = 0; i < lines; i++) {
        __builtin_prefetch(row + line * LINE, 0, TO_LEVEL_2);
        line += step;
        line -= line >= lines ? lines : 0;
    }
}
#define ROWS_AHEAD 8
ROWS(rows_by_memcpy, memcpy(to, from, unit))
ROWS(long_rows, (prefetch_from(from + 2 * src_a, 512), memcpy(to, from, unit)))
ROWS(far_rows, (prefetch_from(from + 4 * src_a, unit), prefetch_to(to + 4 * dst_a, unit), memcpy(to, from, unit)))
ROWS(rows_past_caches, tutti_copy_stream_part(to, from, unit))
ROWS(far_rows_past_caches, (prefetch_far(from + ROWS_AHEAD * src_a, unit), tutti_copy_stream_part(to, from, unit)))

/* In a shorter row, the ends, which are not written past the caches, are too large a part, unless the row has none. */
#define STREAM_LEAST 512
/* In longer rows the processor's own prefetching soon suffices. */
#define FAR_ROW_MOST 4096

static sheet_copy rows_for(const sheet *s) {
    static const sheet_copy exact[] = {[1] = rows_of_1,   [2] = rows_of_2,   [4] = rows_of_4,  [8] = rows_of_8,
                                       [16] = rows_of_16, [32] = rows_of_32, [64] = rows_of_64};
    static const struct {
        size_t most;
        sheet_copy copy;
    } others[] = {{3, rows_to_3},   {7, rows_to_7},   {15, rows_to_15},
                  {31, rows_to_31}, {63, rows_to_63}, {128, rows_to_128}};
    if (s->unit < TUTTI_COUNT_OF(exact) && exact[s->unit] != NULL) return exact[s->unit];
    for (size_t i = 0; i < TUTTI_COUNT_OF(others); i++)
        if (s->unit <= others[i].most) return others[i].copy;
    const bool far = s->far && s->unit <= FAR_ROW_MOST;
    if (s->streams && (s->whole || s->unit >= STREAM_LEAST)) return far ? far_rows_past_caches : rows_past_caches;
    if (far) return far_rows;
    return s->unit < 1024 ? rows_by_memcpy : long_rows;
}

/* ---------------------------------------------------------------------------------------------------- tiles */

/* Copies the units as rows, with the longer loop inside. */
static void copy_scattered(const sheet *s, int64_t na, int64_t nb, char *dst, const char *src, sheet_copy rows) {
    sheet part = *s;
    part.na = na;
    part.nb = nb;
    if (na < nb)
        part = (sheet){.unit = s->unit,
                       .na = nb,
                       .nb = na,
                       .dst_a = s->dst_b,
                       .dst_b = s->dst_a,
                       .src_a = s->src_b,
                       .src_b = s->src_a};
    if (na > 0 && nb > 0) rows(&part, dst, src);
}

#ifndef __has_builtin
#define __has_builtin(name) 0
#endif

#if __has_builtin(__builtin_shufflevector)
typedef uint8_t lanes_1 __attribute__((vector_size(16)));
typedef uint16_t lanes_2 __attribute__((vector_size(16)));
typedef uint32_t lanes_4 __attribute__((vector_size(16)));
typedef uint64_t lanes_8 __attribute__((vector_size(16)));

#define LOW_1(x, y)  __builtin_shufflevector(x, y, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23)
#define HIGH_1(x, y) __builtin_shufflevector(x, y, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31)
#define LOW_2(x, y)  __builtin_shufflevector(x, y, 0, 8, 1, 9, 2, 10, 3, 11)
#define HIGH_2(x, y) __builtin_shufflevector(x, y, 4, 12, 5, 13, 6, 14, 7, 15)
#define LOW_4(x, y)  __builtin_shufflevector(x, y, 0, 4, 1, 5)
#define HIGH_4(x, y) __builtin_shufflevector(x, y, 2, 6, 3, 7)
#define LOW_8(x, y)  __builtin_shufflevector(x, y, 0, 2)
#define HIGH_8(x, y) __builtin_shufflevector(x, y, 1, 3)

#if defined(__clang__)
#define UNROLLED _Pragma("clang loop unroll(full)")
#else
#define UNROLLED _Pragma("GCC unroll 16")
#endif

/* Interleaving row i with row i + N / 2, log2(N) times, transposes N x N. */
#define BLOCK(unit)                                                                                                    \
    static inline void block_##unit(char *dst, ptrdiff_t dst_pitch, const char *src, ptrdiff_t src_pitch) {            \
        enum { N = 16 / (unit) };                                                                                      \
        lanes_##unit rows[N], next[N];                                                                                 \
        UNROLLED for (int i = 0; i < N; i++) memcpy(&rows[i], src + i * src_pitch, 16);                                \
        UNROLLED for (int done = 1; done < N; done *= 2) {                                                             \
            UNROLLED for (int i = 0; i < N / 2; i++) {                                                                 \
                next[2 * i] = LOW_##unit(rows[i], rows[i + N / 2]);                                                    \
                next[2 * i + 1] = HIGH_##unit(rows[i], rows[i + N / 2]);                                               \
            }                                                                                                          \
            UNROLLED for (int i = 0; i < N; i++) rows[i] = next[i];                                                    \
        }                                                                                                              \
        UNROLLED for (int i = 0; i < N; i++) memcpy(dst + i * dst_pitch, &rows[i], 16);                                \
    }
#else
#define BLOCK(unit)                                                                                                    \
    static inline void block_##unit(char *dst, ptrdiff_t dst_pitch, const char *src, ptrdiff_t src_pitch) {            \
        enum { N = 16 / (unit) };                                                                                      \
        for (int i = 0; i < N; i++)                                                                                    \
            for (int k = 0; k < N; k++)                                                                                \
                memcpy(dst + i * dst_pitch + k * (unit), src + k * src_pitch + i * (unit), unit);                      \
    }
#endif

static inline void copy_line(char *dst, const char *line, bool streams) {
    if (streams) tutti_copy_stream_part(dst, line, LINE);
    else memcpy(dst, line, LINE);
}

/* Copies na x nb units. If they are not a whole tile, they are copied in blocks, and the rest unit by unit. */
#define TILE(unit_bytes)                                                                                               \
    BLOCK(unit_bytes)                                                                                                  \
    static void tile_##unit_bytes(const sheet *s, int64_t na, int64_t nb, char *dst, const char *src) {                \
        enum { N = 16 / (unit_bytes), SIDE = LINE / (unit_bytes) };                                                    \
        if (na == SIDE && nb == SIDE) {                                                                                \
            _Alignas(LINE) char lines[SIDE][LINE];                                                                     \
            for (int a = 0; a < SIDE; a += N)                                                                          \
                for (int b = 0; b < SIDE; b += N)                                                                      \
                    block_##unit_bytes(lines[b] + a * (unit_bytes), LINE, src + a * s->src_a + b * (unit_bytes),       \
                                       s->src_a);                                                                      \
            for (int b = 0; b < SIDE; b++) copy_line(dst + b * s->dst_b, lines[b], s->streams);                        \
            return;                                                                                                    \
        }                                                                                                              \
        const int64_t even_a = na / N * N, even_b = nb / N * N;                                                        \
        for (int64_t a = 0; a < even_a; a += N)                                                                        \
            for (int64_t b = 0; b < even_b; b += N)                                                                    \
                block_##unit_bytes(dst + a * (unit_bytes) + b * s->dst_b, s->dst_b,                                    \
                                   src + a * s->src_a + b * (unit_bytes), s->src_a);                                   \
        copy_scattered(s, na, nb - even_b, dst + even_b * s->dst_b, src + even_b * (unit_bytes),                       \
                       rows_of_##unit_bytes);                                                                          \
        copy_scattered(s, na - even_a, even_b, dst + even_a * (unit_bytes), src + even_a * s->src_a,                   \
                       rows_of_##unit_bytes);                                                                          \
    }
TILE(1)
TILE(2)
TILE(4)
TILE(8)

typedef void (*tile_copy)(const sheet *s, int64_t na, int64_t nb, char *dst, const char *src);

/* For units of other sizes, and where not both sides are dense: the units of a tile are copied one by one. */
static void tile_of_any(const sheet *s, int64_t na, int64_t nb, char *dst, const char *src) {
    copy_scattered(s, na, nb, dst, src, rows_for(s));
}

static tile_copy tile_for(const sheet *s) {
    static const tile_copy dense[] = {[1] = tile_1, [2] = tile_2, [4] = tile_4, [8] = tile_8};
    const ptrdiff_t unit = (ptrdiff_t)s->unit;
    if (unit > 8 || dense[unit] == NULL || s->dst_a != unit || s->src_b != unit) return tile_of_any;
    return dense[unit];
}

/* Returns whether cache lines begin at the same units in all rows of dst. */
static bool has_lines(const sheet *s, const char *dst) {
    return s->dst_a == (ptrdiff_t)s->unit && s->dst_b % LINE == 0 && (uintptr_t)dst % s->unit == 0 &&
           LINE % s->unit == 0;
}

/* Prefetches the lines that a tile will touch. */
ALWAYS_INLINE void prefetch_tile(const sheet *s, int64_t side, char *dst, const char *src) {
    for (int64_t i = 0; i < side; i++) {
        __builtin_prefetch(src + i * s->src_a, 0, TO_LEVEL_2);
        if (!s->streams) __builtin_prefetch(dst + i * s->dst_b, 1, TO_LEVEL_2);
    }
}

static void copy_tiles(const sheet *whole, char *dst, const char *src) {
    sheet s = *whole;
    const bool lines = has_lines(&s, dst);
    const int64_t head = lines ? (int64_t)(-(uintptr_t)dst % LINE / s.unit) : 0; /* tiles then end where lines end */
    s.streams = s.streams && lines;
    const tile_copy tile = tile_for(&s);
    const int64_t least = 8, line = LINE / (int64_t)s.unit, side = tile != tile_of_any || line > least ? line : least;
    /* If the box is thinner than a tile, tiles are longer. */
    const int64_t side_a = s.nb < side ? side * side / s.nb : side, side_b = s.na < side ? side * side / s.na : side;
    for (int64_t b = 0; b < s.nb; b += side_b) {
        const int64_t nb = tutti_min_i64(side_b, s.nb - b);
        for (int64_t a = 0, na; a < s.na; a += na) {
            char *to = dst + a * s.dst_a + b * s.dst_b;
            const char *from = src + a * s.src_a + b * s.src_b;
            na = tutti_min_i64(a == 0 && head > 0 ? head : side_a, s.na - a);
            if (s.far) prefetch_tile(&s, side, to + 2 * side * s.dst_a, from + 2 * side * s.src_a);
            tile(&s, na, nb, to, from);
        }
    }
}

/* ------------------------------------------------------------------------------------------------ all sheets */

static sheet make_sheet(const tutti_box_copy *copy, bool streams) {
    sheet s = {
        .unit = copy->unit_bytes, .na = 1, .nb = 1, .streams = streams, .far = streams || copy->bytes >= FAR_BYTES};
    if (copy->ndims > 0) {
        const tutti_box_dim *a = &copy->dims[copy->ndims - 1];
        s.na = a->count, s.dst_a = a->dst_step, s.src_a = a->src_step;
    }
    if (copy->ndims > 1) {
        const tutti_box_dim *b = &copy->dims[copy->ndims - 2];
        s.nb = b->count, s.dst_b = b->dst_step, s.src_b = b->src_step;
    }
    return s;
}

static void run(const tutti_box_copy *copy, char *dst, const char *src, bool streams) {
    if (copy->bytes == 0) return;
    sheet s = make_sheet(copy, streams);
    s.whole = ((s.unit | (size_t)s.dst_a | (size_t)s.dst_b | (uintptr_t)(dst + copy->dst_first)) & (LINE - 1)) == 0;
    const sheet_copy copy_sheet = copy->transposes ? copy_tiles : rows_for(&s);
    int64_t at[TUTTI_BOX_MOST_DIMS] = {0};
    dst += copy->dst_first;
    src += copy->src_first;
    for (;;) {
        copy_sheet(&s, dst, src);
        int i = copy->ndims - 3;
        for (; i >= 0; i--) { /* the indices of the loops around a sheet count up like an odometer */
            const tutti_box_dim *dim = &copy->dims[i];
            dst += dim->dst_step;
            src += dim->src_step;
            if (++at[i] < dim->count) break;
            dst -= dim->count * dim->dst_step;
            src -= dim->count * dim->src_step;
            at[i] = 0;
        }
        if (i < 0) return;
    }
}

void tutti_box_run(const tutti_box_copy *copy, void *dst, const void *src) {
    run(copy, dst, src, false);
}

void tutti_box_run_stream(const tutti_box_copy *copy, void *dst, const void *src) {
    run(copy, dst, src, true);
    tutti_copy_stream_fence();
}
