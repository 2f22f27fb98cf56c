/*
 * The process's shared heap: a sparse memfd, cut into pieces of fixed size classes.
 *
 * Size classes are powers of two up to a page, then four steps per doubling. A free piece is kept on its class's
 * stack. Pieces below a page are cut from slabs of one class. Freed pieces keep their memory up to CACHE_BYTES in
 * total; beyond that a hole is punched, and the next allocation of the piece commits it again. The notes on the
 * heap's pages are kept in `pages`, outside of the shared memory, so that no peer can corrupt the allocator.
 */
#include "comm/shm/heap.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "bootstrap/base/lock.h"
#include "bootstrap/base/settings.h"
#include "comm/base/comm.h"
#include "comm/base/fork.h"

#define PAGE          ((size_t)4096)
#define SMALLEST      ((size_t)64)
#define SMALL_CLASSES 6 /* 64 .. 2048 */
#define CLASSES       (SMALL_CLASSES + 4 * 36)
#define SLAB          ((size_t)64 << 10)
#define CACHE_BYTES   ((size_t)512 << 20)
#define LEAST_HEAP    ((size_t)256 << 20)

enum { PIECE_NONE, PIECE_FREE, PIECE_USED };

/* Note on the piece (or slab) that starts at a page; all zero: no piece starts here. */
typedef struct page_note {
    uint8_t state; /* PIECE_*; slabs: always PIECE_USED */
    uint8_t class_index;
    uint32_t committed_pages;
} page_note;

typedef struct free_stack {
    size_t *offsets;
    size_t count, capacity;
} free_stack;

typedef struct area {
    size_t next, end;          /* [next, end) was never handed out */
    free_stack free_[CLASSES]; /* freed pieces */
} area;

static char *heap_base; /* NULL until init; atomic: release pairs with the acquire in tutti_heap_init */
static size_t heap_bytes, control_bytes;
static int heap_fd = -1;
static area areas[2];
static page_note *pages;
/* handed out; backed by real memory; free and backed by real memory */
static size_t used_bytes, committed_bytes, cached_bytes;
static bool retires_blocks;
static void (*_Atomic watcher)(void *start);

void tutti_heap_watch(void (*function)(void *start)) {
    atomic_store_explicit(&watcher, function, memory_order_release);
}

/* The pages of this piece or range may change from now on. */
static void note_change(void *start) {
    void (*function)(void *) = atomic_load_explicit(&watcher, memory_order_acquire);
    if (function != NULL) function(start);
}

static int class_of(size_t bytes) {
    if (bytes <= PAGE / 2) {
        int index = 0;
        while (SMALLEST << index < bytes) index++;
        return index;
    }
    int doubling = 0;
    while (PAGE << doubling < bytes) doubling++;
    if (doubling == 0) return SMALL_CLASSES;
    size_t half = PAGE << (doubling - 1), step = half / 4;
    int quarter = (int)((bytes - half + step - 1) / step);
    return SMALL_CLASSES + 4 * (doubling - 1) + quarter;
}

static size_t class_bytes(int index) {
    if (index < SMALL_CLASSES) return SMALLEST << index;
    int large = index - SMALL_CLASSES;
    size_t base = PAGE << (large / 4);
    return tutti_align_up(base + (size_t)(large % 4) * (base / 4), PAGE);
}

static tutti_status map_heap(size_t bytes) {
    int fd = memfd_create("tutti", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0) return tutti_fail_errno(errno, "cannot create shared memory (memfd_create)");
    void *base = MAP_FAILED;
    if (ftruncate(fd, (off_t)bytes) == 0)
        base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
    if (base == MAP_FAILED || fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
        int error = errno;
        if (base != MAP_FAILED) munmap(base, bytes);
        close(fd);
        return tutti_fail_errno(error, "cannot map a shared heap of %zu MiB of address space (see ulimit -v)",
                                bytes >> 20);
    }
    madvise(base, bytes, MADV_DONTDUMP);
    madvise(base, bytes / 2, MADV_DONTFORK);
    heap_fd = fd;
    heap_bytes = bytes;
    control_bytes = bytes / 2;
    areas[TUTTI_HEAP_CONTROL] = (area){.next = TUTTI_HEAP_DIRECTORY_BYTES, .end = control_bytes};
    areas[TUTTI_HEAP_BLOCKS] = (area){.next = control_bytes, .end = bytes};
    __atomic_store_n(&heap_base, base, __ATOMIC_RELEASE);
    return TUTTI_OK;
}

static tutti_status commit(size_t offset, size_t bytes) {
    int error = tutti_fault("heap_shortage")                              ? ENOSPC
                : fallocate(heap_fd, 0, (off_t)offset, (off_t)bytes) == 0 ? 0
                                                                          : errno;
    if (error == 0) {
        committed_bytes += bytes;
        return TUTTI_OK;
    }
    return tutti_fail(TUTTI_ERR_MEMORY,
                      "no shared memory for %zu bytes (%zu in use by this process): %s; the machine's memory or the "
                      "container's limit is too small",
                      bytes, committed_bytes, strerror(error));
}

static tutti_status init_locked(void) {
    tutti_fork_watch();
    size_t machine = (size_t)sysconf(_SC_PHYS_PAGES) * (size_t)sysconf(_SC_PAGESIZE);
    size_t wanted = (size_t)tutti_setting_int(TUTTI_SETTING_HEAP_BYTES);
    size_t bytes = tutti_align_up(wanted != 0 ? tutti_max_size(wanted, LEAST_HEAP) : 2 * machine, LEAST_HEAP);
    tutti_status status = map_heap(bytes);
    while (status != TUTTI_OK && wanted == 0 && bytes > LEAST_HEAP) {
        bytes = tutti_align_up(bytes / 2, LEAST_HEAP);
        status = map_heap(bytes);
    }
    TUTTI_TRY(status);
    pages = mmap(NULL, heap_bytes / PAGE * sizeof *pages, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (pages == MAP_FAILED) return tutti_fail_errno(errno, "no memory for the heap's table");
    return commit(0, TUTTI_HEAP_DIRECTORY_BYTES);
}

tutti_status tutti_heap_init(void) {
    if (TUTTI_LIKELY(__atomic_load_n(&heap_base, __ATOMIC_ACQUIRE) != NULL)) return TUTTI_OK;
    tutti_lock(TUTTI_LOCK_HEAP);
    tutti_status status = heap_base != NULL ? TUTTI_OK : init_locked();
    tutti_unlock(TUTTI_LOCK_HEAP);
    return status;
}

char *tutti_heap_base(void) {
    return heap_base;
}

size_t tutti_heap_bytes(void) {
    return heap_bytes;
}

int tutti_heap_fd(void) {
    return heap_fd;
}

static tutti_status stack_push(free_stack *stack, size_t offset) {
    if (stack->count == stack->capacity) {
        size_t capacity = stack->capacity > 0 ? 2 * stack->capacity : 16;
        size_t *offsets = realloc(stack->offsets, capacity * sizeof *offsets);
        if (offsets == NULL) return tutti_fail(TUTTI_ERR_MEMORY, "no memory for the heap's free list");
        stack->offsets = offsets;
        stack->capacity = capacity;
    }
    stack->offsets[stack->count++] = offset;
    return TUTTI_OK;
}

/* Cuts a piece off the part of the area that was never handed out. */
static tutti_status cut(area *a, size_t bytes, size_t *offset_out) {
    if (a->end - a->next < bytes)
        return tutti_fail(TUTTI_ERR_MEMORY,
                          "the address space of the shared heap is exhausted (%zu more bytes needed): raise "
                          "TUTTI_HEAP_BYTES",
                          bytes);
    *offset_out = a->next;
    a->next += bytes;
    return TUTTI_OK;
}

/* Fills the stack of a small class from a new slab. */
static tutti_status add_slab(area *a, int index) {
    size_t offset = 0;
    TUTTI_TRY(cut(a, SLAB, &offset));
    tutti_status status = commit(offset, SLAB);
    if (status != TUTTI_OK) {
        a->next -= SLAB;
        return status;
    }
    for (size_t page = offset / PAGE; page < (offset + SLAB) / PAGE; page++)
        pages[page] = (page_note){.state = PIECE_USED, .class_index = (uint8_t)index};
    for (size_t piece = offset + SLAB; piece > offset; piece -= class_bytes(index))
        TUTTI_TRY(stack_push(&a->free_[index], piece - class_bytes(index)));
    return TUTTI_OK;
}

static tutti_status alloc_small(area *a, int index, size_t *offset_out) {
    free_stack *stack = &a->free_[index];
    if (stack->count == 0) TUTTI_TRY(add_slab(a, index));
    *offset_out = stack->offsets[--stack->count];
    return TUTTI_OK;
}

static tutti_status alloc_large(area *a, int index, size_t bytes, size_t *offset_out) {
    free_stack *stack = &a->free_[index];
    size_t offset = 0;
    if (stack->count > 0) offset = stack->offsets[--stack->count];
    else TUTTI_TRY(cut(a, class_bytes(index), &offset));
    page_note *note = &pages[offset / PAGE];
    note->class_index = (uint8_t)index;
    note->state = PIECE_FREE;
    size_t had = note->committed_pages * PAGE, wanted = tutti_align_up(bytes, PAGE);
    if (had > 0) cached_bytes -= had;
    if (had < wanted) {
        tutti_status status = commit(offset + had, wanted - had);
        if (status != TUTTI_OK) {
            cached_bytes += had;
            return stack_push(stack, offset) != TUTTI_OK ? TUTTI_ERR_MEMORY : status;
        }
        note->committed_pages = (uint32_t)(wanted / PAGE);
        if (had > 0) note_change(heap_base + offset); /* the piece has grown */
    }
    note->state = PIECE_USED;
    *offset_out = offset;
    return TUTTI_OK;
}

/*
 * Uses atomic stores: a rank that has not yet noticed the end of a communicator (retire.c) may still read the flags
 * in a page that its peer has freed, while the page is handed out again. Such a reader takes 0 for "freed".
 */
static void clear_control(char *memory, size_t bytes) {
    _Atomic uint64_t *words = (_Atomic uint64_t *)memory;
    for (size_t i = 0; i < bytes / sizeof *words; i++) atomic_store_explicit(&words[i], 0, memory_order_relaxed);
}

tutti_status tutti_heap_alloc(tutti_heap_area which, size_t bytes, void **memory_out) {
    if (tutti_forked()) return tutti_fail(TUTTI_ERR_FORKED, "this process was forked from one that uses Tutti");
    TUTTI_TRY(tutti_heap_init());
    if (bytes == 0) bytes = 1;
    if (bytes > heap_bytes)
        return tutti_fail(TUTTI_ERR_MEMORY, "%zu bytes do not fit into the shared heap: raise TUTTI_HEAP_BYTES", bytes);
    bool control = which == TUTTI_HEAP_CONTROL;
    if (control) bytes = tutti_align_up(bytes, PAGE);
    int index = class_of(bytes);
    size_t offset = 0;
    tutti_lock(TUTTI_LOCK_HEAP);
    tutti_status status = index < SMALL_CLASSES ? alloc_small(&areas[which], index, &offset)
                                                : alloc_large(&areas[which], index, bytes, &offset);
    if (status == TUTTI_OK) used_bytes += class_bytes(index);
    tutti_unlock(TUTTI_LOCK_HEAP);
    TUTTI_TRY(status);
    if (control) clear_control(heap_base + offset, bytes);
    *memory_out = heap_base + offset;
    return TUTTI_OK;
}

static tutti_status free_locked(size_t offset) {
    page_note *note = &pages[offset / PAGE];
    area *a = &areas[offset < control_bytes ? TUTTI_HEAP_CONTROL : TUTTI_HEAP_BLOCKS];
    bool small = note->class_index < SMALL_CLASSES;
    size_t piece = class_bytes(note->class_index);
    if (note->state != PIECE_USED || (small ? offset % piece : offset % PAGE) != 0)
        return tutti_fail(TUTTI_ERR_ARGUMENT, "this memory is not from tutti_mem_alloc, or is already freed");
    bool retired = retires_blocks && offset >= control_bytes;
    if (!retired) TUTTI_TRY(stack_push(&a->free_[note->class_index], offset));
    used_bytes -= piece;
    if (small) return TUTTI_OK;
    note->state = PIECE_FREE;
    size_t held = note->committed_pages * PAGE;
    if (!retired && cached_bytes + held <= CACHE_BYTES) {
        cached_bytes += held;
        return TUTTI_OK;
    }
    note_change(heap_base + offset);
    fallocate(heap_fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)offset, (off_t)held);
    committed_bytes -= held;
    note->committed_pages = 0;
    return TUTTI_OK;
}

tutti_status tutti_heap_free(void *memory) {
    if (memory == NULL) return TUTTI_OK;
    if (tutti_forked()) return tutti_fail(TUTTI_ERR_FORKED, "this process was forked from one that uses Tutti");
    size_t offset = (size_t)((char *)memory - heap_base);
    if (heap_base == NULL || (char *)memory < heap_base || offset >= heap_bytes)
        return tutti_fail(TUTTI_ERR_ARGUMENT, "this memory is not from tutti_mem_alloc");
    tutti_lock(TUTTI_LOCK_HEAP);
    tutti_status status = free_locked(offset);
    tutti_unlock(TUTTI_LOCK_HEAP);
    return status;
}

bool tutti_heap_holds(const void *memory, size_t bytes) {
    const char *base = __atomic_load_n(&heap_base, __ATOMIC_ACQUIRE);
    if (base == NULL) return false;
    uintptr_t offset = (uintptr_t)memory - (uintptr_t)base;
    return offset >= control_bytes && offset < heap_bytes && bytes <= heap_bytes - offset;
}

static bool find_piece(const void *memory, void **piece_out, size_t *bytes_out) {
    const char *base = __atomic_load_n(&heap_base, __ATOMIC_ACQUIRE);
    size_t offset = (size_t)((uintptr_t)memory - (uintptr_t)base);
    if (base == NULL || offset >= heap_bytes) return false;
    tutti_lock(TUTTI_LOCK_HEAP);
    size_t page = offset / PAGE;
    while (page > 0 && pages[page].state == PIECE_NONE) page--;
    const page_note *note = &pages[page];
    bool found =
        note->state == PIECE_USED && note->class_index >= SMALL_CLASSES && page + note->committed_pages > offset / PAGE;
    if (found) {
        *piece_out = heap_base + page * PAGE;
        *bytes_out = note->committed_pages * PAGE;
    }
    tutti_unlock(TUTTI_LOCK_HEAP);
    return found;
}

void tutti_heap_retire_blocks(void) {
    tutti_lock(TUTTI_LOCK_HEAP);
    retires_blocks = true;
    tutti_unlock(TUTTI_LOCK_HEAP);
}

void tutti_heap_usage(size_t *used_bytes_out, size_t *committed_bytes_out) {
    tutti_lock(TUTTI_LOCK_HEAP);
    *used_bytes_out = used_bytes;
    *committed_bytes_out = committed_bytes;
    tutti_unlock(TUTTI_LOCK_HEAP);
}

/* ----------------------------------------------------------------------------- ranges registered by the program */

/* In an array: programs register few, large ranges. */
typedef struct range {
    uintptr_t start;
    size_t bytes;
} range;

static range *ranges;
static size_t capacity;
static atomic_size_t nranges; /* changed under lock */

static bool find_registered(const void *memory, void **start_out, size_t *bytes_out) {
    if (TUTTI_LIKELY(atomic_load_explicit(&nranges, memory_order_relaxed) == 0)) return false;
    bool found = false;
    tutti_lock(TUTTI_LOCK_REGISTRY);
    for (size_t i = 0; i < nranges && !found; i++) {
        if ((uintptr_t)memory - ranges[i].start >= ranges[i].bytes) continue;
        *start_out = (void *)ranges[i].start;
        *bytes_out = ranges[i].bytes;
        found = true;
    }
    tutti_unlock(TUTTI_LOCK_REGISTRY);
    return found;
}

bool tutti_heap_find_lasting(const void *memory, void **start_out, size_t *bytes_out) {
    return find_piece(memory, start_out, bytes_out) || find_registered(memory, start_out, bytes_out);
}

static tutti_status add(range added) {
    for (size_t i = 0; i < nranges; i++)
        if (ranges[i].start == added.start)
            return tutti_fail(TUTTI_ERR_ARGUMENT,
                              "tutti_mem_register: this address is already registered; deregister it first");
    if (nranges == capacity) {
        size_t wanted = capacity > 0 ? 2 * capacity : 16;
        range *grown = realloc(ranges, wanted * sizeof *grown);
        if (grown == NULL) return tutti_fail(TUTTI_ERR_MEMORY, "no memory for the table of registered ranges");
        ranges = grown;
        capacity = wanted;
    }
    ranges[nranges] = added;
    nranges++;
    return TUTTI_OK;
}

tutti_status tutti_mem_register(void *memory, size_t bytes) {
    if (memory == NULL || bytes == 0)
        return tutti_fail(TUTTI_ERR_ARGUMENT, "tutti_mem_register: memory is NULL or bytes is 0");
    if (bytes > UINTPTR_MAX - (uintptr_t)memory)
        return tutti_fail(TUTTI_ERR_ARGUMENT,
                          "tutti_mem_register: %zu bytes at %p reach past the end of the address space", bytes, memory);
    tutti_lock(TUTTI_LOCK_REGISTRY);
    tutti_status status = add((range){.start = (uintptr_t)memory, .bytes = bytes});
    tutti_unlock(TUTTI_LOCK_REGISTRY);
    return status;
}

tutti_status tutti_mem_deregister(void *memory) {
    bool found = false;
    tutti_lock(TUTTI_LOCK_REGISTRY);
    for (size_t i = 0; i < nranges && !found; i++) {
        if (ranges[i].start != (uintptr_t)memory) continue;
        ranges[i] = ranges[nranges - 1];
        nranges--;
        found = true;
        note_change(memory);
    }
    tutti_unlock(TUTTI_LOCK_REGISTRY);
    return found ? TUTTI_OK : tutti_fail(TUTTI_ERR_ARGUMENT, "tutti_mem_deregister: %p is not registered", memory);
}
