/*
 * Communicators, and the terms of this folder.
 *
 *   rank         a member of a communicator; several may live in one process, as threads
 *   process      an address space that holds ranks; peers of one host map each other's heaps (heap.h, peer.h)
 *   heap         memory of a process that its peers map: one memfd; (owner, offset) names a place in it
 *   page         what one rank shows the other ranks of one communicator: posts, step, state; only it writes there
 *   post         the lines with which a rank enters a collective: sequence number, signature, location of its data
 *   meeting      a rank has read the posts of all ranks whose data it needs; mismatched calls are found here
 *   loose        a call in which some rank needs no data of the others and does not wait for them: rooted kinds
 *   step         a growing number per rank and communicator: sequence number * 2^24 + progress within the call
 *   slots        staging memory in the heap, leased from the process for the duration of a call; slots.h
 *   op           the description of a collective; all parts of the library use it
 *   work         the handle of an asynchronous operation
 *   direct       peers can read this buffer in place; otherwise it is staged through slots
 *   broken       a communicator that failed; every later call returns the first failure at once
 *
 * Invariant: a rank writes only its own page, its own slots and its own buffers: data is pulled. The exceptions are
 * shm/coll/push.c, which writes into blocks of tutti_mem_alloc (quiesce.h says what that requires), and, where ranks
 * share cores, the arrivals in the page of rank 0 and the result of shm/coll/combine.c, in another rank's post or slot.
 */
#ifndef TUTTI_COMM_H
#define TUTTI_COMM_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "bootstrap/base/common.h"
#include "bootstrap/base/deadline.h"
#include "comm/base/cacheline.h"
#include "comm/base/kinds.h"
#include <tutti/tutti.h>

/* For the few thread-local bytes that every call reads: no function call, even in a library loaded late. */
#define TUTTI_THREAD_LOCAL _Thread_local __attribute__((tls_model("initial-exec")))

/*
 * One collective. Uniform kinds use src, dst and count. v-kinds use the arrays, which have one entry per rank:
 * srcs/src_counts where the rank's input is split by receiver, dsts/dst_counts where its output is split by sender.
 * Fields that a kind does not use are 0.
 */
typedef struct tutti_op {
    tutti_kind kind;
    tutti_type type;
    tutti_reduction reduction;
    int root;
    bool cuda; /* the buffers, or parts of them, are CUDA memory */
    const void *src;
    void *dst;
    size_t count;
    double factor; /* PREMUL_SUM */
    const void *const *srcs;
    const size_t *src_counts;
    void *const *dsts;
    const size_t *dst_counts;
    int64_t timeout_ms; /* 0: use the communicator's timeout */
    int64_t begun_ns;   /* tutti_coarse_now_ns() at the begin of the call, for reports; 0: set when it runs */
    uint64_t signature; /* equal on all ranks, otherwise the calls mismatch */
    uint64_t sequence;  /* number on its communicator, from 1; set when it runs */
    const struct tutti_op *part_of; /* of a part of another operation: that operation, for reports; else NULL */
    /* Over several hosts: runs instead of the algorithm of the kind (comm/api/rdma.c); NULL: none. */
    tutti_status (*between_hosts)(tutti_comm *comm, const struct tutti_op *op);
} tutti_op;

/* What a rank publishes about its call, for errors and reports: fixed size, lives in shared memory. */
typedef struct tutti_call {
    uint64_t sequence;
    uint64_t shown; /* the number that the user sees: for a part of a call over hosts, that call's number */
    uint64_t count;
    int32_t root;
    uint8_t kind, type, reduction, cuda;
} tutti_call;

/* Bytes for a payload that travels in the post itself: a short one begins in the post's first line, one of
 * TUTTI_POST_LONG_BYTES or more with the next line. There, loads and stores do not cross the ends of lines, which takes
 * a tenth off the time of 4 KiB. */
#define TUTTI_POST_PAYLOAD_BYTES 4200
#define TUTTI_POST_SHORT_BYTES   40 /* rest of the first line */
#define TUTTI_POST_LONG_BYTES    1024
#define TUTTI_POST_INLINE_BYTES  (TUTTI_POST_PAYLOAD_BYTES - TUTTI_POST_SHORT_BYTES)

/* No call has this signature. A rank that arrives late at a call that the others have given up finds it in their posts.
 * So a stopped rank does not take a broken call for a good one, and a good call need not read the state of any rank. */
#define TUTTI_SIGNATURE_BROKEN UINT64_MAX

enum {
    TUTTI_POST_SRC_DIRECT = 1,
    TUTTI_POST_DST_DIRECT = 2,
    TUTTI_POST_IN_PLACE = 4, /* the owner overwrites its input in this call */
    TUTTI_POST_STAGED = 8,   /* the first piece is already in its slot */
    TUTTI_POST_OFFERED = 16, /* readers may also fetch their segments from the owner's memory; shm/coll/copy.c */
};

/* Entry to a collective. The fast path reads the first line and those that a payload fills; `call` is for errors. */
typedef struct tutti_post {
    _Atomic uint64_t sequence;  /* written last, release; pairs with the acquire in tutti_meet_rank */
    _Atomic uint64_t signature; /* TUTTI_SIGNATURE_BROKEN once the owner has given up this call */
    double factor;
    union {
        struct {
            uint64_t src, dst; /* addresses in the owner's process; valid where DIRECT */
            uint64_t slots;    /* address of the leased slots in the owner's process */
            uint64_t rounds;   /* number of pieces that the owner needs */
            uint32_t first;    /* slot of its first piece */
            uint32_t flags;    /* TUTTI_POST_* */
        };
        uint8_t payload[TUTTI_POST_PAYLOAD_BYTES];
    };
    TUTTI_ALIGNED_LINE tutti_call call;
    _Atomic int64_t begun_ns;                        /* start of the call: tutti_coarse_now_ns() */
    TUTTI_ALIGNED_LINE uint8_t gap[TUTTI_GAP_BYTES]; /* unused: readers of the payload prefetch these lines */
} TUTTI_ALIGNED_LINE tutti_post;

_Static_assert(offsetof(tutti_post, call) % 128 == 0, "a payload fills whole pairs of lines");
_Static_assert((offsetof(tutti_post, payload) + TUTTI_POST_SHORT_BYTES) % TUTTI_CACHE_LINE == 0, "long payloads");

typedef enum tutti_page_state {
    TUTTI_PAGE_WHOLE,
    TUTTI_PAGE_BREAKING, /* the reason is being written */
    TUTTI_PAGE_BROKEN,
} tutti_page_state;

#define TUTTI_BROKEN_TEXT_BYTES 1024

/* A post is reused this many calls later, once all ranks have finished the call. */
#define TUTTI_POSTS 4

/* A collective on CUDA memory that is not recorded in a post; call_log.h. */
typedef struct tutti_stream_record {
    _Atomic uint64_t number;    /* from 1; 0 while the other fields change */
    _Atomic uint64_t signature; /* of this call and all calls before it */
    _Atomic uint64_t count, what;
} tutti_stream_record;

/* Number of records kept: ranks can be this many calls apart and still be compared. */
#define TUTTI_STREAM_RECORDS 128

/* How many ranks have posted a call, in one line, so that a rank need not read the posts of all others. All fields only
 * grow, from one call that uses a post to the next. */
typedef struct tutti_arrivals {
    TUTTI_ALIGNED_LINE _Atomic uint64_t count; /* incremented after the post and `signatures` */
    _Atomic uint64_t signatures;               /* sum; a rank that gives up a call that it has posted makes it wrong */
    _Atomic uint64_t claimed, done;            /* pieces of reductions; shm/coll/combine.c */
} tutti_arrivals;

/* What one rank shows the other ranks. Written by its owner only, except `sleepers`, `finished`, `arrivals` and
 * `shares`. */
typedef struct tutti_page {
    _Atomic uint64_t comm_id;  /* 0: the owner has left and reclaimed the memory */
    _Atomic uint32_t departed; /* the owner destroyed its communicator */
    _Atomic int32_t core;      /* core of the owner at its last post or message; a hint */
    /* the owner orders its flag stores and its loads of `sleepers` itself; otherwise sleepers must order them */
    _Atomic uint32_t fenced;
    TUTTI_ALIGNED_LINE _Atomic uint32_t sleepers; /* waiters asleep on this page's flags; incremented by them */
    /* in the page of rank 0: a call that all ranks have finished; flags.c */
    TUTTI_ALIGNED_LINE _Atomic uint64_t finished;
    TUTTI_ALIGNED_LINE tutti_post posts[TUTTI_POSTS]; /* call k uses posts[k % TUTTI_POSTS] */
    tutti_arrivals arrivals[TUTTI_POSTS];             /* at these calls; in the page of rank 0, if comm->counts */
    TUTTI_ALIGNED_LINE _Atomic uint64_t step;
    /* the owner left this call after a failure and no longer writes into other ranks' buffers */
    _Atomic uint64_t quiet;
    /* how the owner and the root of scatter k have shared the owner's segment, in [k % TUTTI_POSTS]; shm/coll/copy.c */
    TUTTI_ALIGNED_LINE _Atomic uint64_t shares[TUTTI_POSTS];
    /* the last collective on CUDA memory that is not in a post; monitor.h */
    TUTTI_ALIGNED_LINE _Atomic uint64_t stream_call;
    _Atomic uint64_t stream_number;                           /* of the newest record; stored after it, release */
    tutti_stream_record stream_records[TUTTI_STREAM_RECORDS]; /* number k is in [k % TUTTI_STREAM_RECORDS] */
    TUTTI_ALIGNED_LINE _Atomic uint32_t state;                /* tutti_page_state; stored after the reason, release */
    int32_t broken_status;
    char broken_text[TUTTI_BROKEN_TEXT_BYTES];
} tutti_page;

/* Progress values of `step`. */
#define TUTTI_STEP_BITS 24
#define TUTTI_STEP_DONE ((UINT64_C(1) << TUTTI_STEP_BITS) - 1)
static inline uint64_t tutti_progress_at(uint64_t sequence, uint64_t progress) {
    return (sequence << TUTTI_STEP_BITS) + progress;
}

struct tutti_hosts;
struct tutti_peer;
struct tutti_slots;
struct tutti_work_queue;
struct tutti_links;
struct tutti_stream_comm;
struct tutti_stream_seed;

/* One rank as seen by the other ranks of its communicator. */
typedef struct tutti_member {
    struct tutti_peer *process; /* process of the rank; peer.h */
    tutti_page *page;           /* as mapped here */
    int job_rank;               /* split communicators: 1 + its rank in the first one; else 0 */
} tutti_member;

/* What a wait of the current operation knows of its deadlines; reset when the operation starts. */
typedef struct tutti_wait_state {
    const tutti_op *op;
    bool started;            /* the clocks run; set once a wait is not short */
    tutti_deadline deadline; /* for the operation */
    tutti_deadline stall;    /* for the stall report */
    bool reported;
    bool yields;  /* this thread shares its core: do not spin */
    bool crowded; /* it shares its core with other ranks, more ranks than cores; flags.c */
} tutti_wait_state;

/* The checks of the ranks' placement; spread.c. */
typedef struct tutti_spread_state {
    _Atomic int64_t due_ns; /* no check before; by tutti_ticks */
    _Atomic int64_t pause_ns;
} tutti_spread_state;

/* How staging memory is written; slots.c. */
typedef struct tutti_store_policy {
    float line_ns; /* recent cost of a line written through the caches; 0: unknown */
    bool streams;  /* writes bypass the caches */
    unsigned writes;
    const char *warmed; /* a place that the last trial has brought into the caches; its next write is measured */
} tutti_store_policy;

/* Memory that peers may read until all ranks have left; segment.h. */
typedef struct tutti_kept {
    void *memory;
    void (*give_back)(void *memory);
} tutti_kept;

struct tutti_comm {
    int rank, nranks;
    uint64_t id; /* equal on all ranks; unique among all communicators of any of them */
    char name[64];
    int64_t timeout_ms, connect_timeout_ms;
    bool one_process; /* all ranks are threads of this process */
    bool spins;       /* every rank of the host has a core of its own; the same on all ranks */
    bool counts;      /* its calls count arrivals, because ranks share cores; the same on all ranks */
    /* ranks of the host that share its cores, and number of cores; a split communicator inherits both */
    int host_ranks, host_cores;
    size_t chunk_bytes;
    int forced_row; /* row of the algorithm table set by TUTTI_ALGORITHM; -1: none */
    /* runs an operation in its turn: tutti_select_and_run; called by the queue */
    tutti_status (*run)(tutti_comm *comm, tutti_op *op);
    tutti_member *members; /* nranks entries */
    tutti_page *page;      /* own: members[rank].page */
    /* for the communicator of one host within one over several hosts: the latter; else NULL */
    tutti_comm *outer;
    const int *shown_ranks; /* if outer is set: the rank numbers that the user sees */
    uint64_t sequence;      /* number of collectives started */
    uint64_t finished;      /* all ranks have finished this call and all calls before it, as far as known here */
    uint64_t history;       /* hash of all calls so far, part of the next signature */
    uint64_t splits;        /* communicators split from this one; equal on all ranks */
    bool reports_early;     /* in the barrier that ends its creation: report a stall soon; used by its runner only */
    tutti_wait_state wait_state;    /* of the running collective; used by its runner only */
    tutti_spread_state spread;      /* spread.h */
    struct tutti_work_queue *queue; /* queue.h */
    struct {                        /* comm/shm */
        /* one reference; set if the communicator was created through a store or split from such a one, else NULL */
        struct tutti_shm_segment *segment;
        tutti_store_policy store_policy;
        uint64_t waited;                  /* ticks when the last wait on a shared core ended; used by its runner only */
        struct tutti_slots *slots;        /* lease; NULL: none; slots.h */
        atomic_int slots_busy;            /* 1 while a call uses the lease, so that no other communicator takes it */
        const void **views;               /* scratch of nranks pointers, for algorithms */
        double *factors;                  /* scratch of nranks factors */
        char **buffers;                   /* scratch of nranks pointers */
        tutti_kept kept[3];               /* released with the page */
        uint64_t signatures[TUTTI_POSTS]; /* sum of the own calls', as in tutti_arrivals */
        uint64_t pieces[TUTTI_POSTS];     /* sum of the calls' pieces, as in tutti_arrivals */
        /* last call in which peers may write into this rank's buffers; quiesce.h */
        uint64_t exposed;
    } shm;
    struct {                       /* comm/net */
        struct tutti_hosts *hosts; /* NULL: all ranks are on this host; hosts.h */
        struct tutti_links *links; /* to ranks of other hosts, link.c; NULL: none yet */
        atomic_bool has_rdma;      /* tutti_comm_init_rdma has succeeded */
    } net;
    struct {                                       /* comm/gpu */
        struct tutti_stream_comm *_Atomic streams; /* calls on CUDA memory, stream.h; NULL: none yet */
        struct tutti_stream_seed *seed;            /* for its CUDA engine, taken from the parent's engine; else NULL */
    } cuda;
    atomic_int references;   /* one for the user, and one for each work and thread that may access it */
    atomic_bool destroyed;   /* tutti_comm_destroy was called */
    struct tutti_comm *next; /* list of the communicators of this process */
};

/* The rank number that the user sees. */
static inline int tutti_comm_shown(const tutti_comm *comm, int rank) {
    return comm->shown_ranks != NULL ? comm->shown_ranks[rank] : rank;
}

/* Sets the id; must be called before any other rank can see the page. */
void tutti_comm_identify(tutti_comm *comm, uint64_t id);

/* For errors, after a rank's process: ", rank 5 of the job" if the job's number differs from the one shown, else "". */
static inline const char *tutti_comm_job_rank(const tutti_comm *comm, int rank, char text[40]) {
    const int job_rank = comm->members != NULL ? comm->members[rank].job_rank : 0;
    text[0] = '\0';
    if (job_rank > 0 && job_rank - 1 != tutti_comm_shown(comm, rank))
        snprintf(text, 40, ", rank %d of the job", job_rank - 1);
    return text;
}

/* Fails if the process was forked, or if the communicator is broken or being destroyed; else returns TUTTI_OK. */
tutti_status tutti_comm_check(tutti_comm *comm);

/* Breaks the communicator with `status` and this thread's error text, unless it is already broken; wakes waiters.
 * Returns the status with which it is broken and sets its text as this thread's error. */
tutti_status tutti_comm_break(tutti_comm *comm, tutti_status status);

/* Wakes the ranks that sleep until this one has posted or made progress, so that they check its state. */
void tutti_comm_wake(tutti_comm *comm);

/* Reference count of the struct; the last release frees it. */
void tutti_comm_retain(tutti_comm *comm);
void tutti_comm_release(tutti_comm *comm);

/* True in a process forked from one that uses Tutti, i.e. forked after the first tutti_fork_watch (fork.h). */
extern bool tutti_has_forked; /* written in the child, before it has threads */
static inline bool tutti_forked(void) {
    return tutti_has_forked;
}

/* ------------------------------------------------------------------------------------------------------- call.c */

/* "all_reduce(float32, 1024, sum) #17", with the parts that the kind has. Returns `text`. */
const char *tutti_call_describe(const tutti_call *call, char *text, size_t capacity);
/* The record of op for reports. */
tutti_call tutti_call_of(const tutti_op *op);

/* A call in one word, for tutti_page's stream_call: its number above TUTTI_STREAM_CALL_BITS bits of a hash. */
#define TUTTI_STREAM_CALL_BITS 40
uint64_t tutti_call_pack(const tutti_call *call);

/* Breaks the communicator because `rank` made another call; the error shows both, and `hint` if they look alike. */
tutti_status tutti_calls_differ(tutti_comm *comm, const tutti_call *own, int rank, const tutti_call *other,
                                const char *hint);

/* ----------------------------------------------------------------------------------------------------- broken.c */

/* The reason for which a rank's page is broken. */
typedef struct tutti_broken {
    int32_t status; /* as stored by its owner; tutti_broken_peer_status() converts it for another rank */
    char text[TUTTI_BROKEN_TEXT_BYTES];
} tutti_broken;
/* Reads it. False: the page of `rank` is not broken, or its owner has reclaimed it meanwhile. */
bool tutti_broken_read(const tutti_comm *comm, int rank, tutti_broken *broken_out);

/* The reason that `rank` gives, with the rank that found it; not with ranks that only pass it on. Returns `text`. */
const char *tutti_broken_quote(const char *reason, int rank, char *text, size_t capacity);
/* Breaks the communicator for the reason that `rank` gives. */
tutti_status tutti_broken_adopt(tutti_comm *comm, int rank, int32_t broken_status, const char *reason);
/* Converts the status of another rank's broken page to this rank's own status. */
tutti_status tutti_broken_peer_status(int32_t broken_status);

/* In the barrier that ends a creation, a page may not have its id yet: members set it one after the other. */
static inline bool tutti_page_is_unborn(const tutti_comm *comm, uint64_t page_id) {
    return page_id == 0 && comm->sequence <= 1;
}

#endif
