/*
 * Not a library, but the limit for one: the memory operations that a collective must do, without the flags, checks
 * and waits between them. So data may be missing when a rank reads them: results are wrong, and are not checked.
 *
 * Every rank has an area that all map: a ring of 2 MiB (more than 4 ranks: 1 MiB), through which each operation goes
 * in quarters, and for memory "shared" also its buffers. The table shows the bytes on each rank, for n ranks and a
 * vector of V bytes (all_gather, reduce_scatter and all_to_all: n slices of V / n). Buffers lie in memory, as V is
 * larger than the caches. Rings, and data read or written a moment ago, lie in caches: for far cores, in another
 * core's. An ordinary store first reads its line, unless a cache of its core has it.
 *
 *                           src -> own ring   results -> own ring   rings -> here   src again, cached   to dst
 *   all_reduce, 2 ranks            V                  -                   V                 V             V
 *   all_reduce, more           (n-1)/n V            V / n            2 (n-1)/n V            -             V
 *   all_gather                   V / n                -               (n-1)/n V           V / n           V
 *   all_to_all                 (n-1)/n V              -               (n-1)/n V             -             V
 *   reduce_scatter             (n-1)/n V              -               (n-1)/n V             -           V / n
 *   broadcast, root; others      V; 0                 -                  0; V               -           0; V
 *   scatter, root; others      (n-1)/n V; 0           -                  0; V / n           -           V / n
 *   gather, root; others        0; V / n              -             (n-1)/n V; 0            -           V; 0
 *   ping_pong                      V                  -                   V                 -             V
 *
 * The slice of src that stays on the rank (1/n V; not in all_reduce of 2 ranks, all_gather and ping_pong) is read from
 * memory. In ping_pong a rank writes the ring while its partner reads it, and then the other way round; in shared
 * memory both read at once, as if two cores copied each message.
 *
 *   memory "shared"              read                                        written
 *   all_reduce                   V / n of each src                           V / n of each dst
 *   all_gather, all_to_all       V / n of each src                           V
 *   reduce_scatter               V / n of each src                           V / n
 *   broadcast, others            V of the root's                             V
 *   scatter                      V / n of the root's src                     V / n
 *   gather, root                 V / n of each src                           V
 *   ping_pong                    V of the partner's src                      V
 *
 * There are four ways to do the same work: writes to the ring, and to dst, each through or past the caches. Warm-up
 * tries them; the way whose slowest rank is fastest counts. An operation ends on all ranks at once: a rank that
 * continued with its next input would take bandwidth, or the core, from ranks that are still at work.
 *
 * Below 1 MiB it is for ranks that share cores: the same work, through the caches, in one turn of each rank.
 * An operation ends when all ranks have counted up one number, and ranks that wait yield. A barrier is that alone. In a
 * broadcast ranks wait for its root only, and the root changes with each operation. Better loops than these may take
 * less: the time is that of a bare program, not a bound.
 */
#include <fcntl.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "core.h"
#include "limit_loops.h"
#include "meeting.h"

/* Some processors find a line by a hash of its address, and lines whose addresses differ only in high bits evict each
 * other (measured: a third more time). So no two areas and no two buffers are a round distance apart. */
#define AREA_BYTES         (((size_t)32 << 30) + ((size_t)0x5a5 << 12)) /* sparse: untouched pages cost nothing */
#define BUFFER_SKEW        ((size_t)0x133 << 12)
#define RING_OFFSET        ((size_t)1 << 20) /* in rank 0's area, the page where the ranks meet is before it */
#define TURNS_OFFSET       ((size_t)1 << 19)
#define HEAP_OFFSET        ((size_t)4 << 20)
#define SLOTS              4
#define LOOKS_BEFORE_YIELD 24
#define LONG_BYTES  ((size_t)1 << 20) /* from here on all buffers of ranks that share cores leave their own caches */
#define PATIENCE_MS 30000

enum { WAYS = 4, TRIALS = 3 }; /* TRIALS: operations whose times the core does not count */
enum { PAST_RING = 1, PAST_RESULT = 2 };

/* The operation on this rank. Sizes are elements. */
typedef struct operation {
    const float *src;
    float *dst;
    size_t count;
    int root;
    int ring_past, result_past; /* stores go past the caches */
} operation;

static int rank, size, shared;
static char *areas[MEETING_RANKS];
static size_t heap_next, heap_blocks;
static size_t chunk; /* elements of a quarter of the ring */
static meeting all;

static size_t least(size_t a, size_t b) {
    return a < b ? a : b;
}

static float *slot_of(int owner, size_t round) {
    return (float *)(areas[owner] + RING_OFFSET) + round % SLOTS * chunk;
}

/* The same place in another rank's buffers: all ranks allocate in the same way. */
static float *in_area(int owner, const float *own) {
    return (float *)(areas[owner] + ((const char *)own - areas[rank]));
}

/* The start of a rank's slice of `count` elements, at a whole line; rank == size: the end. */
static size_t slice_start(size_t count, int of) {
    return of == size ? count : count / (size_t)size * (size_t)of / 16 * 16;
}

/* ----------------------------------------------------------------------------------- ordinary memory */

static void reduce_whole(const operation *o) {
    for (size_t start = 0, round = 0; start < o->count; start += chunk, round++) {
        size_t count = least(chunk, o->count - start);
        loop_copy(slot_of(rank, round), o->src + start, count, o->ring_past);
        loop_add(o->dst + start, o->src + start, slot_of(rank ^ 1, round), count, o->result_past);
    }
}

static void reduce_slice(const operation *o, size_t start, size_t round, size_t from, size_t to) {
    const float *views[MEETING_RANKS];
    float sum[LOOP_BLOCK];
    for (size_t at = from; at < to; at += LOOP_BLOCK) {
        size_t part = least(LOOP_BLOCK, to - at);
        for (int other = 0; other < size; other++)
            views[other] = other == rank ? o->src + start + at : slot_of(other, round) + at;
        loop_reduce(sum, views, size, part, 0);
        loop_copy(o->dst + start + at, sum, part, o->result_past);
        loop_copy(slot_of(rank, round) + at, sum, part, o->ring_past);
    }
}

static void reduce_sliced(const operation *o) {
    for (size_t start = 0, round = 0; start < o->count; start += chunk, round++) {
        size_t count = least(chunk, o->count - start), from = slice_start(count, rank),
               to = slice_start(count, rank + 1);
        loop_copy(slot_of(rank, round), o->src + start, from, o->ring_past);
        loop_copy(slot_of(rank, round) + to, o->src + start + to, count - to, o->ring_past);
        reduce_slice(o, start, round, from, to);
        for (int i = 1; i < size; i++) {
            int other = (rank + i) % size;
            size_t theirs = slice_start(count, other);
            loop_copy(o->dst + start + theirs, slot_of(other, round) + theirs, slice_start(count, other + 1) - theirs,
                      o->result_past);
        }
    }
}

static void all_gather(const operation *o) {
    for (size_t start = 0, round = 0; start < o->count; start += chunk, round++) {
        size_t count = least(chunk, o->count - start);
        loop_copy(slot_of(rank, round), o->src + start, count, o->ring_past);
        for (int i = 0; i < size; i++) {
            int other = (rank + i) % size;
            const float *from = other == rank ? o->src + start : slot_of(other, round);
            loop_copy(o->dst + (size_t)other * o->count + start, from, count, o->result_past);
        }
    }
}

/* Copies a piece for each other rank into the slot. */
static void stage_pieces(const operation *o, size_t start, size_t round, size_t piece, size_t count) {
    for (int reader = 0; reader < size; reader++)
        if (reader != rank)
            loop_copy(slot_of(rank, round) + (size_t)reader * piece, o->src + (size_t)reader * o->count + start, count,
                      o->ring_past);
}

static const float *piece_of(const operation *o, int owner, size_t start, size_t round, size_t piece) {
    size_t mine = (size_t)rank;
    return owner == rank ? o->src + mine * o->count + start : slot_of(owner, round) + mine * piece;
}

static void all_to_all(const operation *o) {
    size_t piece = chunk / (size_t)size / 16 * 16;
    for (size_t start = 0, round = 0; start < o->count; start += piece, round++) {
        size_t count = least(piece, o->count - start);
        stage_pieces(o, start, round, piece, count);
        for (int i = 0; i < size; i++) {
            int other = (rank + i) % size;
            loop_copy(o->dst + (size_t)other * o->count + start, piece_of(o, other, start, round, piece), count,
                      o->result_past);
        }
    }
}

static float *scattered(const operation *o) {
    return o->dst == o->src ? o->dst + (size_t)rank * o->count : o->dst;
}

static void reduce_scatter(const operation *o) {
    size_t piece = chunk / (size_t)size / 16 * 16;
    const float *views[MEETING_RANKS];
    for (size_t start = 0, round = 0; start < o->count; start += piece, round++) {
        size_t count = least(piece, o->count - start);
        stage_pieces(o, start, round, piece, count);
        for (int other = 0; other < size; other++) views[other] = piece_of(o, other, start, round, piece);
        loop_reduce(scattered(o) + start, views, size, count, o->result_past);
    }
}

static void broadcast(const operation *o) {
    for (size_t start = 0, round = 0; start < o->count; start += chunk, round++) {
        size_t count = least(chunk, o->count - start);
        if (rank == o->root) loop_copy(slot_of(rank, round), o->dst + start, count, o->ring_past);
        else loop_copy(o->dst + start, slot_of(o->root, round), count, o->result_past);
    }
}

static void scatter(const operation *o) {
    size_t piece = chunk / (size_t)size / 16 * 16;
    for (size_t start = 0, round = 0; start < o->count; start += piece, round++) {
        size_t count = least(piece, o->count - start);
        if (rank == o->root) stage_pieces(o, start, round, piece, count);
        loop_copy(o->dst + start, piece_of(o, o->root, start, round, piece), count, o->result_past);
    }
}

static void gather(const operation *o) {
    for (size_t start = 0, round = 0; start < o->count; start += chunk, round++) {
        size_t count = least(chunk, o->count - start);
        if (rank != o->root) loop_copy(slot_of(rank, round), o->src + start, count, o->ring_past);
        for (int other = 0; rank == o->root && other < size; other++) {
            const float *from = other == rank ? o->src + start : slot_of(other, round);
            loop_copy(o->dst + (size_t)other * o->count + start, from, count, o->result_past);
        }
    }
}

/* One message, from or to the partner. */
static void message(const operation *o, int sends) {
    for (size_t start = 0, round = 0; start < o->count; start += chunk, round++) {
        size_t count = least(chunk, o->count - start);
        if (sends) loop_copy(slot_of(rank, round), o->src + start, count, o->ring_past);
        else loop_copy(o->dst + start, slot_of(rank ^ 1, round), count, o->result_past);
    }
}

static void ping_pong(const operation *o) {
    message(o, rank % 2 == 0);
    message(o, rank % 2 == 1);
}

static int run_staged(int collective, const operation *o) {
    switch (collective) {
    case CORE_ALL_REDUCE: size == 2 ? reduce_whole(o) : reduce_sliced(o); return 0;
    case CORE_ALL_GATHER: all_gather(o); return 0;
    case CORE_REDUCE_SCATTER: reduce_scatter(o); return 0;
    case CORE_BROADCAST: broadcast(o); return 0;
    case CORE_ALL_TO_ALL: all_to_all(o); return 0;
    case CORE_SCATTER: scatter(o); return 0;
    case CORE_GATHER: gather(o); return 0;
    case CORE_PING_PONG: ping_pong(o); return 0;
    default: return -1;
    }
}

/* ------------------------------------------------------------------------------------- shared memory */

/* dst = the sum over all ranks of the elements from `src` on. */
static void reduce_lent(const operation *o, float *dst, const float *src, size_t count) {
    const float *views[MEETING_RANKS];
    for (int other = 0; other < size; other++) views[other] = in_area(other, src);
    loop_reduce(dst, views, size, count, o->result_past);
}

static void fetch_peers(const operation *o, size_t at, size_t end) {
    for (int other = 0; other < size && at < end; other++)
        if (other != rank) loop_fetch(in_area(other, o->dst) + at, least(LOOP_BLOCK, end - at));
}

/* Writes the rank's own slice to the buffers of all ranks. Fetches lines of the peers for writing, instead of a
 * ring's. */
static void reduce_push(const operation *o) {
    size_t end = slice_start(o->count, rank + 1);
    const float *views[MEETING_RANKS];
    float sum[LOOP_BLOCK];
    for (size_t at = slice_start(o->count, rank); at < end; at += LOOP_BLOCK) {
        size_t part = least(LOOP_BLOCK, end - at);
        if (o->ring_past) fetch_peers(o, at + LOOP_BLOCK, end);
        for (int other = 0; other < size; other++) views[other] = in_area(other, o->src) + at;
        loop_reduce(sum, views, size, part, 0);
        for (int i = 0; i < size; i++) loop_copy(in_area((rank + i) % size, o->dst) + at, sum, part, o->result_past);
    }
}

static void copy_lent(const operation *o, size_t offset) {
    for (int i = 0; i < size; i++) {
        int other = (rank + i) % size;
        loop_copy(o->dst + (size_t)other * o->count, in_area(other, o->src) + offset, o->count, o->result_past);
    }
}

static int run_lent(int collective, const operation *o) {
    switch (collective) {
    case CORE_ALL_REDUCE: reduce_push(o); return 0;
    case CORE_ALL_GATHER: copy_lent(o, 0); return 0;
    case CORE_REDUCE_SCATTER: reduce_lent(o, scattered(o), o->src + (size_t)rank * o->count, o->count); return 0;
    case CORE_BROADCAST:
        if (rank != o->root) loop_copy(o->dst, in_area(o->root, o->dst), o->count, o->result_past);
        return 0;
    case CORE_ALL_TO_ALL: copy_lent(o, (size_t)rank * o->count); return 0;
    case CORE_SCATTER:
        loop_copy(o->dst, in_area(o->root, o->src) + (size_t)rank * o->count, o->count, o->result_past);
        return 0;
    case CORE_GATHER:
        if (rank == o->root) copy_lent(o, 0);
        return 0;
    case CORE_PING_PONG: loop_copy(o->dst, in_area(rank ^ 1, o->src), o->count, o->result_past); return 0;
    default: return -1;
    }
}

/* ---------------------------------------------------------------------------------------------- ways */

static int run_way(int collective, operation *o, int way) {
    o->ring_past = (way & PAST_RING) != 0;
    o->result_past = (way & PAST_RESULT) != 0;
    return shared ? run_lent(collective, o) : run_staged(collective, o);
}

/* The measurements of the ways of one row; the same on all ranks. */
typedef struct trials {
    size_t count;
    int in_place, done;
    double ns[WAYS]; /* the fastest trial of each */
} trials;

static int quickest(const trials *t) {
    int best = 0;
    for (int way = 1; way < WAYS; way++)
        if (t->ns[way] < t->ns[best]) best = way;
    return best;
}

/* Tries each way once, starting with another one each time. The very first pass maps peers' pages and does not
 * count. */
static int try_ways(trials *t, int collective, operation *o) {
    int status = t->done == 0 ? run_way(collective, o, 0) : 0;
    for (int i = 0; i < WAYS; i++) {
        int way = (t->done + i) % WAYS;
        meeting_wait(&all);
        double start = meeting_now_ns();
        status |= run_way(collective, o, way);
        double ns = meeting_most(&all, meeting_now_ns() - start);
        if (t->done == 0 || ns < t->ns[way]) t->ns[way] = ns;
    }
    t->done++;
    return status;
}

static size_t vector_bytes(int collective, size_t count) {
    int whole = collective == CORE_ALL_REDUCE || collective == CORE_BROADCAST || collective == CORE_PING_PONG;
    return count * sizeof(float) * (size_t)(whole ? 1 : size);
}

/* Counts for ranks that share cores, in rank 0's area. */
typedef struct turns {
    _Alignas(64) uint64_t taken; /* turns of all ranks */
    _Alignas(64) uint64_t begun; /* broadcasts */
} turns;

/* A rank that runs on another core answers sooner than a yield returns. */
static void await(const uint64_t *counter, uint64_t value) {
    for (int i = 1; __atomic_load_n(counter, __ATOMIC_ACQUIRE) < value; i++)
        if (i % LOOKS_BEFORE_YIELD == 0) sched_yield();
}

/* Where ranks share cores: the bytes, and one turn of each rank. */
static int run_turn(int collective, operation *o) {
    static uint64_t own_turns, own_broadcasts;
    turns *t = (turns *)(areas[0] + TURNS_OFFSET);
    if (collective == CORE_BROADCAST) {
        own_broadcasts++;
        if (rank != o->root) await(&t->begun, own_broadcasts);
        int status = run_way(collective, o, 0);
        if (rank == o->root) __atomic_store_n(&t->begun, own_broadcasts, __ATOMIC_RELEASE);
        return status;
    }
    int status = collective == CORE_BARRIER ? 0 : run_way(collective, o, 0);
    own_turns++;
    __atomic_fetch_add(&t->taken, 1, __ATOMIC_ACQ_REL);
    await(&t->taken, own_turns * (uint64_t)size);
    return status;
}

static int run(int collective, const float *src, float *dst, size_t count, int root) {
    static trials known;
    operation o = {.src = src, .dst = dst, .count = count, .root = root};
    if (all.crowded && vector_bytes(collective, count) < LONG_BYTES) return run_turn(collective, &o);
    if (known.count != count || known.in_place != (src == dst))
        known = (trials){.count = count, .in_place = src == dst};
    int status = known.done < TRIALS ? try_ways(&known, collective, &o) : run_way(collective, &o, quickest(&known));
    meeting_wait(&all);
    return status;
}

/* ------------------------------------------------------------------------------------------- memory */

static void *alloc(size_t bytes) {
    size_t offset = heap_blocks++ == 0 ? HEAP_OFFSET : heap_next;
    heap_next = offset + (bytes + 4095) / 4096 * 4096 + BUFFER_SKEW;
    return heap_next <= AREA_BYTES ? areas[rank] + offset : NULL;
}

/* The core releases all memory before it allocates more. */
static void release(void *memory) {
    (void)memory;
    heap_blocks--;
}

static char *map_area(int file) {
    void *memory = mmap(NULL, AREA_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

/* The other ranks find an area by a link beside the meeting's file, so that no memory outlives the processes. */
static int make_area(const char *name) {
    char path[64];
    int file = memfd_create("limit", MFD_CLOEXEC);
    if (file < 0 || ftruncate(file, (off_t)AREA_BYTES) != 0) return -1;
    areas[rank] = map_area(file);
    snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)getpid(), file);
    return areas[rank] != NULL ? symlink(path, name) : -1;
}

static int open_area(int owner, const char *name) {
    const struct timespec pause = {.tv_nsec = 1000000};
    int file = -1;
    for (int ms = 0; ms < PATIENCE_MS && (file = open(name, O_RDWR | O_CLOEXEC)) < 0; ms++) nanosleep(&pause, NULL);
    if (file < 0) return -1;
    areas[owner] = map_area(file);
    close(file);
    return areas[owner] != NULL ? 0 : -1;
}

static int open_areas(const char *meeting_path) {
    char name[4096];
    for (int i = 0; i < size; i++) { /* its own area first */
        int owner = (rank + i) % size;
        snprintf(name, sizeof name, "%s.area.%d", meeting_path, owner);
        if ((i == 0 ? make_area(name) : open_area(owner, name)) != 0) return -1;
    }
    snprintf(name, sizeof name, "%s.area.0", meeting_path);
    return meeting_open(&all, name, rank, size, 0);
}

int main(int argc, char **argv) {
    const char *own = getenv("RANK"), *ranks = getenv("WORLD_SIZE");
    core_start(argc, argv);
    rank = own != NULL ? atoi(own) : 0;
    size = ranks != NULL ? atoi(ranks) : 0;
    if (argc < 2 || size < 2 || size > MEETING_RANKS || open_areas(argv[1]) != 0) {
        fprintf(stderr, "limit: needs RANK, WORLD_SIZE from 2 on and an area of memory that all ranks map\n");
        return EXIT_FAILURE;
    }
    shared = strcmp(core_memory(argc, argv), "shared") == 0;
    chunk = ((size_t)(size <= 4 ? 2 : 1) << 20) / SLOTS / sizeof(float);
    core_peer peer = {.rank = rank, .size = size, .slice_stays = 1, .run = run};
    if (shared) peer.alloc = alloc, peer.release = release;
    return core_run(&peer, argc, argv);
}
