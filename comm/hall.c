/*
 * The halls of this process. See hall.h.
 *
 * All descriptors of one memfd in one process share its locks, and closing any of them gives the locks up. So a process has
 * one hall for each memfd, however many of its threads are ranks, and takes its locks anew after it has closed a second
 * descriptor; that happens only before anybody can have learned whom to ask about.
 */
#include "comm/hall.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bootstrap/base/deadline.h"
#include "bootstrap/base/fault.h"
#include "bootstrap/base/status.h"

#define HALL_MAGIC   UINT64_C(0x31306c6c61687474) /* "tthall01" */
#define PAGE         ((size_t)4096)
#define ASK_AGAIN_NS (50 * TUTTI_NS_PER_MS)

/* The first bytes of the memfd; written by the leader before it is passed on. */
typedef struct hall_head {
    uint64_t magic;
    int32_t nseats, nranks;
    uint64_t roll_bytes;
    uint64_t doors_bytes; /* 0: none */
} hall_head;

/* Where the parts begin. */
typedef struct hall_plan {
    size_t seats, pages, roll, doors, end;
} hall_plan;

struct tutti_hall {
    int fd; /* -1: given back by tutti_hall_settle */
    dev_t device;
    ino_t inode;
    hall_head *head; /* the mapping */
    hall_plan plan;
    int nseats, nranks;
    bool *own_seats;
    int references;
    int watched; /* seats that this process asks about */
    tutti_hall *next;
};

static pthread_mutex_t halls_lock = PTHREAD_MUTEX_INITIALIZER;
static tutti_hall *halls; /* also those without references, until all have left */

#define PAGE_STRIDE ((sizeof(tutti_page) + PAGE - 1) & ~(PAGE - 1))

static hall_plan plan_of(const hall_head *head) {
    hall_plan plan = {.seats = PAGE};
    plan.pages = tutti_align_up(plan.seats + (size_t)head->nseats * sizeof(tutti_seat), PAGE);
    plan.roll = plan.pages + (size_t)head->nseats * PAGE_STRIDE;
    plan.doors = tutti_align_up(plan.roll + head->roll_bytes, PAGE);
    plan.end = tutti_align_up(plan.doors + head->doors_bytes, PAGE);
    return plan;
}

/* ------------------------------------------------------------------------------------------------ parts */

static char *at(const tutti_hall *hall, size_t offset) {
    return (char *)hall->head + offset;
}

int tutti_hall_fd(const tutti_hall *hall) {
    return hall->fd;
}

tutti_seat *tutti_hall_seat(const tutti_hall *hall, int seat) {
    return (tutti_seat *)(void *)at(hall, hall->plan.seats) + seat;
}

tutti_page *tutti_hall_page(const tutti_hall *hall, int seat) {
    return (tutti_page *)(void *)at(hall, hall->plan.pages + (size_t)seat * PAGE_STRIDE);
}

const tutti_roll *tutti_hall_roll(const tutti_hall *hall) {
    return (const tutti_roll *)(void *)at(hall, hall->plan.roll);
}

tutti_door_card *tutti_hall_doors(const tutti_hall *hall) {
    return hall->head->doors_bytes > 0 ? (tutti_door_card *)(void *)at(hall, hall->plan.doors) : NULL;
}

bool tutti_hall_holds(const tutti_hall *hall, const tutti_page *page) {
    return hall != NULL && (uintptr_t)page - (uintptr_t)hall->head < hall->plan.end;
}

/* --------------------------------------------------------------------------------------- making, joining */

/* Makes sure of the memory, so that shortage is an error here and never SIGBUS later. */
static tutti_status commit(int fd, size_t offset, size_t bytes) {
    if (!tutti_fault("hall_shortage") && fallocate(fd, 0, (off_t)offset, (off_t)bytes) == 0) return TUTTI_OK;
    return tutti_fail(
        TUTTI_ERR_MEMORY,
        "no shared memory for a communicator (%zu KiB); the machine's memory or the container's limit is too "
        "small",
        bytes >> 10);
}

static tutti_status map(int fd, size_t bytes, tutti_hall *hall) {
    void *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (base == MAP_FAILED) return tutti_fail_errno(errno, "cannot map %zu KiB of shared memory", bytes >> 10);
    madvise(base, bytes, MADV_DONTFORK);
    madvise(base, bytes, MADV_DONTDUMP);
    hall->head = base;
    return TUTTI_OK;
}

static void discard(tutti_hall *hall) {
    if (hall->head != NULL) munmap(hall->head, hall->plan.end);
    if (hall->fd >= 0) close(hall->fd);
    free(hall->own_seats);
    free(hall);
}

/* The lock is held. */
static tutti_status enter(tutti_hall *hall) {
    struct stat status;
    if (fstat(hall->fd, &status) != 0) return tutti_fail_errno(errno, "shared memory of a communicator");
    hall->nseats = hall->head->nseats;
    hall->nranks = hall->head->nranks;
    TUTTI_TRY(tutti_calloc((size_t)hall->nseats, sizeof *hall->own_seats, &hall->own_seats));
    hall->device = status.st_dev;
    hall->inode = status.st_ino;
    hall->references = 1;
    hall->next = halls;
    halls = hall;
    return TUTTI_OK;
}

static tutti_status make(const hall_head *head, tutti_hall *hall) {
    hall->plan = plan_of(head);
    hall->fd = memfd_create("tutti-hall", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (hall->fd < 0) return tutti_fail_errno(errno, "cannot make shared memory (memfd_create)");
    if (ftruncate(hall->fd, (off_t)hall->plan.end) != 0 ||
        fcntl(hall->fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
        return tutti_fail_errno(errno, "cannot make shared memory of %zu KiB", hall->plan.end >> 10);
    TUTTI_TRY(commit(hall->fd, 0, hall->plan.pages)); /* each rank sees to its page, so that it is near its core */
    TUTTI_TRY(commit(hall->fd, hall->plan.roll, hall->plan.end - hall->plan.roll));
    TUTTI_TRY(map(hall->fd, hall->plan.end, hall));
    *hall->head = *head;
    return TUTTI_OK;
}

tutti_status tutti_hall_create(const tutti_roll *roll, int host, tutti_hall **hall_out) {
    tutti_hall *hall;
    hall_head head = {.magic = HALL_MAGIC,
                      .nseats = tutti_roll_hosts(roll)[host].nranks,
                      .nranks = roll->nranks,
                      .roll_bytes = tutti_roll_bytes(roll)};
    if (roll->nhosts > 1) head.doors_bytes = (uint64_t)roll->nranks * sizeof(tutti_door_card);
    TUTTI_TRY(tutti_calloc(1, sizeof *hall, &hall));
    hall->fd = -1;
    tutti_status status = make(&head, hall);
    if (status == TUTTI_OK) {
        memcpy(at(hall, hall->plan.roll), roll, head.roll_bytes);
        pthread_mutex_lock(&halls_lock);
        status = enter(hall);
        pthread_mutex_unlock(&halls_lock);
    }
    if (status != TUTTI_OK) {
        discard(hall);
        return status;
    }
    *hall_out = hall;
    return TUTTI_OK;
}

/* Maps a hall that another process has made, after checking that it cannot shrink under us. */
static tutti_status open_hall(tutti_hall *hall, int nranks, int neighbours) {
    struct stat status;
    hall_head head;
    int seals = fcntl(hall->fd, F_GET_SEALS);
    if (fstat(hall->fd, &status) != 0 || seals < 0 || (seals & F_SEAL_SHRINK) == 0 ||
        pread(hall->fd, &head, sizeof head, 0) != (ssize_t)sizeof head || head.magic != HALL_MAGIC)
        return tutti_fail(TUTTI_ERR_REFUSED, "the shared memory of this host's first rank is not sealed, or is none");
    const tutti_roll largest = {.nhosts = nranks, .count = nranks};
    bool possible = head.nranks == nranks && head.nseats == neighbours && head.roll_bytes >= sizeof(tutti_roll) &&
                    head.roll_bytes <= tutti_roll_bytes(&largest) &&
                    (head.doors_bytes == 0 || head.doors_bytes == (uint64_t)nranks * sizeof(tutti_door_card));
    hall->plan = plan_of(&head);
    if (!possible || (uint64_t)status.st_size != hall->plan.end)
        return tutti_fail(TUTTI_ERR_REFUSED, "the shared memory of this host's first rank is not of the size it says");
    TUTTI_TRY(map(hall->fd, hall->plan.end, hall));
    TUTTI_TRY(tutti_roll_check(tutti_hall_roll(hall), head.roll_bytes, nranks));
    return enter(hall);
}

static tutti_status lock_seat(const tutti_hall *hall, int seat) {
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = seat, .l_len = 1};
    if (fcntl(hall->fd, F_SETLK, &lock) == 0) return TUTTI_OK;
    return tutti_fail_errno(errno,
                            "cannot lock a seat in shared memory: another process has it, or the system has no locks");
}

static tutti_hall *find(int fd) {
    struct stat status;
    if (fstat(fd, &status) != 0) return NULL;
    tutti_hall *hall = halls;
    while (hall != NULL && (hall->device != status.st_dev || hall->inode != status.st_ino)) hall = hall->next;
    return hall;
}

static tutti_status join_locked(int fd, int nranks, int neighbours, tutti_hall **hall_out) {
    tutti_hall *hall = find(fd);
    if (hall != NULL) {
        close(fd); /* with it all locks of this process have gone */
        for (int seat = 0; seat < hall->nseats; seat++)
            if (hall->own_seats[seat]) TUTTI_TRY(lock_seat(hall, seat));
        hall->references++;
        *hall_out = hall;
        return TUTTI_OK;
    }
    tutti_status status = tutti_calloc(1, sizeof *hall, &hall);
    if (status != TUTTI_OK) {
        close(fd);
        return status;
    }
    hall->fd = fd;
    status = open_hall(hall, nranks, neighbours);
    if (status == TUTTI_OK) *hall_out = hall;
    else discard(hall);
    return status;
}

tutti_status tutti_hall_join(int fd, int nranks, int neighbours, tutti_hall **hall_out) {
    pthread_mutex_lock(&halls_lock);
    tutti_status status = join_locked(fd, nranks, neighbours, hall_out);
    pthread_mutex_unlock(&halls_lock);
    return status;
}

tutti_status tutti_hall_sit(tutti_hall *hall, int seat) {
    TUTTI_TRY(commit(hall->fd, hall->plan.pages + (size_t)seat * PAGE_STRIDE, PAGE_STRIDE));
    pthread_mutex_lock(&halls_lock);
    tutti_status status = lock_seat(hall, seat);
    hall->own_seats[seat] = status == TUTTI_OK;
    pthread_mutex_unlock(&halls_lock);
    return status;
}

/* ---------------------------------------------------------------------------------------------- leaving */

/* Does another process ask about this one here? */
static bool is_watched(const tutti_hall *hall) {
    for (int seat = 0; seat < hall->nseats; seat++)
        if (hall->own_seats[seat] && atomic_load(&tutti_hall_seat(hall, seat)->watchers) > 0) return true;
    return false;
}

void tutti_hall_settle(tutti_hall *hall) {
    pthread_mutex_lock(&halls_lock);
    if (hall->fd >= 0 && hall->watched == 0 && !is_watched(hall)) {
        close(hall->fd);
        hall->fd = -1;
    }
    pthread_mutex_unlock(&halls_lock);
}

void tutti_hall_retain(tutti_hall *hall) {
    pthread_mutex_lock(&halls_lock);
    hall->references++;
    pthread_mutex_unlock(&halls_lock);
}

/* Does nobody ask here after this process any more? Those who did may have died before they could say that they leave. */
static bool is_deserted(tutti_hall *hall) {
    if (!is_watched(hall)) return true;
    for (int seat = 0; seat < hall->nseats; seat++)
        if (!hall->own_seats[seat] && atomic_load(&tutti_hall_seat(hall, seat)->left) == 0 &&
            !tutti_hall_has_ended(hall, seat))
            return false;
    return true;
}

/* Takes halls that nobody needs any more off the list. */
static tutti_hall *take_deserted(void) {
    tutti_hall *taken = NULL;
    for (tutti_hall **link = &halls; *link != NULL;) {
        tutti_hall *hall = *link;
        if (hall->references > 0 || !is_deserted(hall)) {
            link = &hall->next;
            continue;
        }
        *link = hall->next;
        hall->next = taken;
        taken = hall;
    }
    return taken;
}

void tutti_hall_release(tutti_hall *hall) {
    if (hall == NULL) return;
    pthread_mutex_lock(&halls_lock);
    tutti_hall *deserted = NULL;
    if (--hall->references == 0) {
        for (int seat = 0; seat < hall->nseats; seat++)
            if (hall->own_seats[seat]) atomic_store(&tutti_hall_seat(hall, seat)->left, 1);
        deserted = take_deserted();
    }
    pthread_mutex_unlock(&halls_lock);
    while (deserted != NULL) {
        tutti_hall *next = deserted->next;
        discard(deserted);
        deserted = next;
    }
}

/* ------------------------------------------------------------------------------------------------ life */

void tutti_hall_watch(tutti_hall *hall, int seat) {
    pthread_mutex_lock(&halls_lock);
    hall->references++;
    hall->watched++;
    pthread_mutex_unlock(&halls_lock);
    atomic_fetch_add(&tutti_hall_seat(hall, seat)->watchers, 1);
}

void tutti_hall_unwatch(tutti_hall *hall, int seat) {
    atomic_fetch_sub(&tutti_hall_seat(hall, seat)->watchers, 1);
    pthread_mutex_lock(&halls_lock);
    hall->watched--;
    pthread_mutex_unlock(&halls_lock);
    tutti_hall_release(hall);
}

bool tutti_hall_has_ended(tutti_hall *hall, int seat_index) {
    tutti_seat *seat = tutti_hall_seat(hall, seat_index);
    if (atomic_load_explicit(&seat->dead, memory_order_acquire) != 0) return true;
    int64_t now_ns = tutti_now_ns(), asked_ns = atomic_load_explicit(&seat->asked_ns, memory_order_relaxed);
    if (now_ns >= asked_ns && now_ns - asked_ns < ASK_AGAIN_NS) return false;
    atomic_store_explicit(&seat->asked_ns, now_ns, memory_order_relaxed);
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = seat_index, .l_len = 1};
    if (fcntl(hall->fd, F_GETLK, &lock) != 0 || lock.l_type != F_UNLCK) return false;
    atomic_store_explicit(&seat->dead, 1, memory_order_release);
    return true;
}
