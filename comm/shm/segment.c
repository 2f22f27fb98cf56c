/*
 * The segments of this process. See segment.h.
 *
 * All descriptors of one memfd in one process share its locks, and closing any of them releases the locks. So a
 * process has one segment for each memfd, however many of its threads are ranks, and takes its locks again after it
 * has closed a second descriptor. That happens only before any other process can know which local ranks to check.
 */
#include "comm/shm/segment.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bootstrap/base/deadline.h"
#include "bootstrap/base/lock.h"

#define MAGIC        UINT64_C(0x31306d6765737474) /* "ttsegm01" */
#define PAGE         ((size_t)4096)
#define ASK_AGAIN_NS (50 * TUTTI_NS_PER_MS)

/* Header of the memfd; written by the leader before it passes the memfd on. */
typedef struct segment_head {
    uint64_t magic;
    int32_t nmembers, nranks;
    uint64_t table_bytes;
    uint64_t listeners_bytes; /* 0: none */
} segment_head;

/* Offsets of the parts. */
typedef struct segment_plan {
    size_t members, pages, table, listeners, end;
} segment_plan;

struct tutti_shm_segment {
    int fd; /* -1: closed by tutti_shm_segment_close_fd */
    dev_t device;
    ino_t inode;
    segment_head *head; /* the mapping */
    segment_plan plan;
    int nmembers, nranks;
    bool *is_own;
    int references;
    int watched; /* number of local ranks that this process checks */
    tutti_shm_segment *next;
};

static tutti_shm_segment *segments; /* includes segments without references, until all processes have left them */

#define PAGE_STRIDE ((sizeof(tutti_page) + PAGE - 1) & ~(PAGE - 1))

static segment_plan plan_of(const segment_head *head) {
    segment_plan plan = {.members = PAGE};
    plan.pages = tutti_align_up(plan.members + (size_t)head->nmembers * sizeof(tutti_shm_member), PAGE);
    plan.table = plan.pages + (size_t)head->nmembers * PAGE_STRIDE;
    plan.listeners = tutti_align_up(plan.table + head->table_bytes, PAGE);
    plan.end = tutti_align_up(plan.listeners + head->listeners_bytes, PAGE);
    return plan;
}

/* ------------------------------------------------------------------------------------------------ parts */

static char *at(const tutti_shm_segment *segment, size_t offset) {
    return (char *)segment->head + offset;
}

int tutti_shm_segment_fd(const tutti_shm_segment *segment) {
    return segment->fd;
}

tutti_shm_member *tutti_shm_segment_member(const tutti_shm_segment *segment, int local_rank) {
    return (tutti_shm_member *)(void *)at(segment, segment->plan.members) + local_rank;
}

tutti_page *tutti_shm_segment_page(const tutti_shm_segment *segment, int local_rank) {
    return (tutti_page *)(void *)at(segment, segment->plan.pages + (size_t)local_rank * PAGE_STRIDE);
}

const void *tutti_shm_segment_peer_table(const tutti_shm_segment *segment) {
    return at(segment, segment->plan.table);
}

void *tutti_shm_segment_listeners(const tutti_shm_segment *segment) {
    return segment->head->listeners_bytes > 0 ? at(segment, segment->plan.listeners) : NULL;
}

bool tutti_shm_segment_holds(const tutti_shm_segment *segment, const tutti_page *page) {
    return segment != NULL && (uintptr_t)page - (uintptr_t)segment->head < segment->plan.end;
}

/* --------------------------------------------------------------------------------------- making, joining */

/* Commits the memory, so that a shortage is an error here and never a SIGBUS later. */
static tutti_status commit(int fd, size_t offset, size_t bytes) {
    if (!tutti_fault("segment_shortage") && fallocate(fd, 0, (off_t)offset, (off_t)bytes) == 0) return TUTTI_OK;
    return tutti_fail(
        TUTTI_ERR_MEMORY,
        "no shared memory for a communicator (%zu KiB): the machine's memory or the container's limit is too "
        "small",
        bytes >> 10);
}

static tutti_status map(int fd, size_t bytes, tutti_shm_segment *segment) {
    void *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (base == MAP_FAILED) return tutti_fail_errno(errno, "cannot map %zu KiB of shared memory", bytes >> 10);
    madvise(base, bytes, MADV_DONTFORK);
    madvise(base, bytes, MADV_DONTDUMP);
    segment->head = base;
    return TUTTI_OK;
}

static void discard(tutti_shm_segment *segment) {
    if (segment->head != NULL) munmap(segment->head, segment->plan.end);
    if (segment->fd >= 0) close(segment->fd);
    free(segment->is_own);
    free(segment);
}

/* Lock held. */
static tutti_status enter(tutti_shm_segment *segment) {
    struct stat status;
    if (fstat(segment->fd, &status) != 0)
        return tutti_fail_errno(errno, "cannot stat the shared memory of a communicator");
    segment->nmembers = segment->head->nmembers;
    segment->nranks = segment->head->nranks;
    TUTTI_TRY(tutti_calloc((size_t)segment->nmembers, sizeof *segment->is_own, &segment->is_own));
    segment->device = status.st_dev;
    segment->inode = status.st_ino;
    segment->references = 1;
    segment->next = segments;
    segments = segment;
    return TUTTI_OK;
}

static tutti_status make(const segment_head *head, tutti_shm_segment *segment) {
    segment->plan = plan_of(head);
    segment->fd = memfd_create("tutti-segment", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (segment->fd < 0) return tutti_fail_errno(errno, "cannot create shared memory (memfd_create)");
    if (ftruncate(segment->fd, (off_t)segment->plan.end) != 0 ||
        fcntl(segment->fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
        return tutti_fail_errno(errno, "cannot create shared memory of %zu KiB", segment->plan.end >> 10);
    /* each rank commits its own page, so that the page is near its core */
    TUTTI_TRY(commit(segment->fd, 0, segment->plan.pages));
    TUTTI_TRY(commit(segment->fd, segment->plan.table, segment->plan.end - segment->plan.table));
    TUTTI_TRY(map(segment->fd, segment->plan.end, segment));
    *segment->head = *head;
    return TUTTI_OK;
}

tutti_status tutti_shm_segment_create(int nranks, int neighbours, const void *table, size_t table_bytes,
                                      size_t listeners_bytes, tutti_shm_segment **segment_out) {
    tutti_shm_segment *segment;
    segment_head head = {.magic = MAGIC,
                         .nmembers = neighbours,
                         .nranks = nranks,
                         .table_bytes = table_bytes,
                         .listeners_bytes = listeners_bytes};
    TUTTI_TRY(tutti_calloc(1, sizeof *segment, &segment));
    segment->fd = -1;
    tutti_status status = make(&head, segment);
    if (status == TUTTI_OK) {
        memcpy(at(segment, segment->plan.table), table, head.table_bytes);
        tutti_lock(TUTTI_LOCK_SEGMENTS);
        status = enter(segment);
        tutti_unlock(TUTTI_LOCK_SEGMENTS);
    }
    if (status != TUTTI_OK) {
        discard(segment);
        return status;
    }
    *segment_out = segment;
    return TUTTI_OK;
}

/* Maps a segment that another process has created, after checking that it cannot shrink. */
static tutti_status open_segment(tutti_shm_segment *segment, const tutti_shm_segment_limits *limits) {
    struct stat status;
    segment_head head;
    int seals = fcntl(segment->fd, F_GET_SEALS);
    if (fstat(segment->fd, &status) != 0 || seals < 0 || (seals & F_SEAL_SHRINK) == 0 ||
        pread(segment->fd, &head, sizeof head, 0) != (ssize_t)sizeof head || head.magic != MAGIC)
        return tutti_fail(TUTTI_ERR_REFUSED,
                          "the shared memory of this host's first rank is not sealed, or is not a segment");
    bool possible = head.nranks == limits->nranks && head.nmembers == limits->neighbours &&
                    head.table_bytes >= limits->least_table_bytes && head.table_bytes <= limits->most_table_bytes &&
                    (head.listeners_bytes == 0 || head.listeners_bytes == limits->listeners_bytes);
    segment->plan = plan_of(&head);
    if (!possible || (uint64_t)status.st_size != segment->plan.end)
        return tutti_fail(TUTTI_ERR_REFUSED,
                          "the shared memory of this host's first rank does not have the size given in its header");
    TUTTI_TRY(map(segment->fd, segment->plan.end, segment));
    TUTTI_TRY(limits->check_table(tutti_shm_segment_peer_table(segment), head.table_bytes, limits->nranks));
    return enter(segment);
}

static tutti_status lock_member(const tutti_shm_segment *segment, int local_rank) {
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = local_rank, .l_len = 1};
    if (fcntl(segment->fd, F_SETLK, &lock) == 0) return TUTTI_OK;
    return tutti_fail_errno(
        errno,
        "cannot lock a byte of shared memory: another process holds it, or the system does not support file locks");
}

static tutti_shm_segment *find(int fd) {
    struct stat status;
    if (fstat(fd, &status) != 0) return NULL;
    tutti_shm_segment *segment = segments;
    while (segment != NULL && (segment->device != status.st_dev || segment->inode != status.st_ino))
        segment = segment->next;
    return segment;
}

static tutti_status join_locked(int fd, const tutti_shm_segment_limits *limits, tutti_shm_segment **segment_out) {
    tutti_shm_segment *segment = find(fd);
    if (segment != NULL) {
        close(fd); /* this releases all locks of this process */
        for (int local_rank = 0; local_rank < segment->nmembers; local_rank++)
            if (segment->is_own[local_rank]) TUTTI_TRY(lock_member(segment, local_rank));
        segment->references++;
        *segment_out = segment;
        return TUTTI_OK;
    }
    tutti_status status = tutti_calloc(1, sizeof *segment, &segment);
    if (status != TUTTI_OK) {
        close(fd);
        return status;
    }
    segment->fd = fd;
    status = open_segment(segment, limits);
    if (status == TUTTI_OK) *segment_out = segment;
    else discard(segment);
    return status;
}

tutti_status tutti_shm_segment_join(int fd, const tutti_shm_segment_limits *limits, tutti_shm_segment **segment_out) {
    tutti_lock(TUTTI_LOCK_SEGMENTS);
    tutti_status status = join_locked(fd, limits, segment_out);
    tutti_unlock(TUTTI_LOCK_SEGMENTS);
    return status;
}

tutti_status tutti_shm_segment_enter(tutti_shm_segment *segment, int local_rank) {
    TUTTI_TRY(commit(segment->fd, segment->plan.pages + (size_t)local_rank * PAGE_STRIDE, PAGE_STRIDE));
    tutti_lock(TUTTI_LOCK_SEGMENTS);
    tutti_status status = lock_member(segment, local_rank);
    segment->is_own[local_rank] = status == TUTTI_OK;
    tutti_unlock(TUTTI_LOCK_SEGMENTS);
    return status;
}

/* ---------------------------------------------------------------------------------------------- leaving */

/* True if another process checks here whether this process lives. */
static bool is_watched(const tutti_shm_segment *segment) {
    for (int local_rank = 0; local_rank < segment->nmembers; local_rank++)
        if (segment->is_own[local_rank] && atomic_load(&tutti_shm_segment_member(segment, local_rank)->watchers) > 0)
            return true;
    return false;
}

void tutti_shm_segment_close_fd(tutti_shm_segment *segment) {
    tutti_lock(TUTTI_LOCK_SEGMENTS);
    if (segment->fd >= 0 && segment->watched == 0 && !is_watched(segment)) {
        close(segment->fd);
        segment->fd = -1;
    }
    tutti_unlock(TUTTI_LOCK_SEGMENTS);
}

void tutti_shm_segment_retain(tutti_shm_segment *segment) {
    tutti_lock(TUTTI_LOCK_SEGMENTS);
    segment->references++;
    tutti_unlock(TUTTI_LOCK_SEGMENTS);
}

/* True if no other process checks here for this process any more: all have left, or died without marking that. */
static bool is_deserted(tutti_shm_segment *segment) {
    if (!is_watched(segment)) return true;
    for (int local_rank = 0; local_rank < segment->nmembers; local_rank++)
        if (!segment->is_own[local_rank] && atomic_load(&tutti_shm_segment_member(segment, local_rank)->left) == 0 &&
            !tutti_shm_segment_has_ended(segment, local_rank))
            return false;
    return true;
}

/* Removes segments that are no longer needed from the list and returns them. */
static tutti_shm_segment *take_deserted(void) {
    tutti_shm_segment *taken = NULL;
    for (tutti_shm_segment **link = &segments; *link != NULL;) {
        tutti_shm_segment *segment = *link;
        if (segment->references > 0 || !is_deserted(segment)) {
            link = &segment->next;
            continue;
        }
        *link = segment->next;
        segment->next = taken;
        taken = segment;
    }
    return taken;
}

void tutti_shm_segment_release(tutti_shm_segment *segment) {
    if (segment == NULL) return;
    tutti_lock(TUTTI_LOCK_SEGMENTS);
    tutti_shm_segment *deserted = NULL;
    if (--segment->references == 0) {
        for (int local_rank = 0; local_rank < segment->nmembers; local_rank++)
            if (segment->is_own[local_rank]) atomic_store(&tutti_shm_segment_member(segment, local_rank)->left, 1);
        deserted = take_deserted();
    }
    tutti_unlock(TUTTI_LOCK_SEGMENTS);
    while (deserted != NULL) {
        tutti_shm_segment *next = deserted->next;
        discard(deserted);
        deserted = next;
    }
}

/* ------------------------------------------------------------------------------------------------ life */

void tutti_shm_segment_watch(tutti_shm_segment *segment, int local_rank) {
    tutti_lock(TUTTI_LOCK_SEGMENTS);
    segment->references++;
    segment->watched++;
    tutti_unlock(TUTTI_LOCK_SEGMENTS);
    atomic_fetch_add(&tutti_shm_segment_member(segment, local_rank)->watchers, 1);
}

void tutti_shm_segment_unwatch(tutti_shm_segment *segment, int local_rank) {
    atomic_fetch_sub(&tutti_shm_segment_member(segment, local_rank)->watchers, 1);
    tutti_lock(TUTTI_LOCK_SEGMENTS);
    segment->watched--;
    tutti_unlock(TUTTI_LOCK_SEGMENTS);
    tutti_shm_segment_release(segment);
}

bool tutti_shm_segment_has_ended(tutti_shm_segment *segment, int local_rank) {
    tutti_shm_member *member = tutti_shm_segment_member(segment, local_rank);
    if (atomic_load_explicit(&member->dead, memory_order_acquire) != 0) return true;
    int64_t now_ns = tutti_now_ns(), asked_ns = atomic_load_explicit(&member->asked_ns, memory_order_relaxed);
    if (now_ns >= asked_ns && now_ns - asked_ns < ASK_AGAIN_NS) return false;
    atomic_store_explicit(&member->asked_ns, now_ns, memory_order_relaxed);
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = local_rank, .l_len = 1};
    if (fcntl(segment->fd, F_GETLK, &lock) != 0 || lock.l_type != F_UNLCK) return false;
    atomic_store_explicit(&member->dead, 1, memory_order_release);
    return true;
}
