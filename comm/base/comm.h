/*
 * Communicators, and the words of this folder.
 *
 *   rank         a member of a communicator; several may live in one process, as threads
 *   process      an address space that holds ranks; peers of one host map each other's heaps (heap.h, peer.h)
 *   heap         a process's memory that its peers map: one memfd; (owner, offset) names a place in it
 *   page         what one rank shows the others of one communicator: posts, step, state; only it writes there
 *   post         the line with which a rank enters a collective: sequence number, signature, where its data is
 *   meeting      a rank has read the posts of all whose data it needs; calls that differ are found here
 *   loose        a call in which some rank needs nothing of the others, so does not wait for them: rooted kinds
 *   step         one growing number per rank and communicator: sequence number * 2^24 + progress within the call
 *   slots        staging memory in the heap, leased from the process for the time of a call; slots.h
 *   op           one description of a collective; all parts of the library speak of it
 *   work         the handle of an asynchronous operation
 *   direct       peers can read this buffer where it is; otherwise it is staged through slots
 *   broken       a communicator that failed; every later call answers the first failure at once
 *
 * Invariant: a rank writes only its own page, its own slots and its own buffers: data is pulled. The exception is
 * shm/coll/push.c, which writes into blocks of tutti_mem_alloc; quiesce.h says what that takes.
 */
#ifndef TUTTI_COMM_H
#define TUTTI_COMM_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "bootstrap/base/common.h"
#include "bootstrap/base/deadline.h"
#include "comm/base/kinds.h"
#include <tutti/tutti.h>

/* For the few bytes of a thread that every call reads: found without a call, though the library was loaded late. */
#define TUTTI_THREAD_LOCAL _Thread_local __attribute__((tls_model("initial-exec")))

/*
 * One collective. Uniform kinds use src, dst and count; v-kinds the arrays, which have one entry per rank:
 * srcs/src_counts where the rank's input is split by receiver, dsts/dst_counts where its output is split by
 * sender. Fields that a kind does not use are 0.
 */
typedef struct tutti_op {
    tutti_kind kind;
    tutti_type type;
    tutti_reduction reduction;
    int root;
    bool cuda; /* the buffers are CUDA memory, or (parts) stand for such */
    const void *src;
    void *dst;
    size_t count;
    double factor; /* PREMUL_SUM */
    const void *const *srcs;
    const size_t *src_counts;
    void *const *dsts;
    const size_t *dst_counts;
    int64_t timeout_ms;             /* 0: the communicator's */
    int64_t begun_ns;               /* tutti_coarse_now_ns() when the call began, for reports; 0: when it runs */
    uint64_t signature;             /* equal on all ranks, else it is a mismatch */
    uint64_t sequence;              /* number on its communicator, from 1; set when it runs */
    const struct tutti_op *part_of; /* of a part of another operation: that one, for what is told; NULL */
    /* Over several hosts: runs instead of what the kind says (verbs_only.c); NULL. */
    tutti_status (*between_hosts)(tutti_comm *comm, const struct tutti_op *op);
} tutti_op;

/* What a rank tells of its call, for errors and reports: fixed size, lives in shared memory. */
typedef struct tutti_call {
    uint64_t sequence;
    uint64_t shown; /* the number by which the user knows it: of a part of a call over hosts, that call's */
    uint64_t count;
    int32_t root;
    uint8_t kind, type, reduction, cuda;
} tutti_call;

/* Bytes of a payload that travels in the post itself, from its first line on. */
#define TUTTI_POST_PAYLOAD_BYTES 4200

/* No call has it. Who arrives late at a call that the others have given up finds it in their posts: so a rank that
 * was stopped does not take a broken call for a good one, and a good one needs no look at anyone's state. */
#define TUTTI_SIGNATURE_BROKEN UINT64_MAX

enum {
    TUTTI_POST_SRC_DIRECT = 1,
    TUTTI_POST_DST_DIRECT = 2,
    TUTTI_POST_IN_PLACE = 4, /* the owner overwrites its input in this call */
    TUTTI_POST_STAGED = 8,   /* the first piece is in its slot already */
};

/* Entry to a collective. The fast path reads the first line, and those that a payload fills; `call` is for errors. */
typedef struct tutti_post {
    _Atomic uint64_t sequence;  /* last to be written, release; pairs with the acquire in tutti_meet_rank */
    _Atomic uint64_t signature; /* TUTTI_SIGNATURE_BROKEN once the owner has given up in this call */
    double factor;
    union {
        struct {
            uint64_t src, dst; /* addresses in the owner's process; of use where DIRECT */
            uint64_t slots;    /* address of the leased slots in the owner's process */
            uint64_t rounds;   /* how many pieces the owner needs */
            uint32_t first;    /* slot of its first piece */
            uint32_t flags;    /* TUTTI_POST_* */
        };
        uint8_t payload[TUTTI_POST_PAYLOAD_BYTES];
    };
    TUTTI_ALIGNED_LINE tutti_call call;
    _Atomic int64_t begun_ns; /* of the call: tutti_coarse_now_ns() */
} TUTTI_ALIGNED_LINE tutti_post;

_Static_assert(offsetof(tutti_post, call) % 128 == 0, "a payload fills whole pairs of lines");

typedef enum tutti_page_state {
    TUTTI_PAGE_WHOLE,
    TUTTI_PAGE_BREAKING, /* the reason is being written */
    TUTTI_PAGE_BROKEN,
} tutti_page_state;

#define TUTTI_BROKEN_TEXT_BYTES 1024

/* A post is written again this many calls later, once all ranks have finished the call. */
#define TUTTI_POSTS 4

/* A collective on CUDA memory, where no post tells of it; call_log.h. */
typedef struct tutti_stream_record {
    _Atomic uint64_t number;    /* from 1; 0 while the others change */
    _Atomic uint64_t signature; /* of this call and all before it */
    _Atomic uint64_t count, what;
} tutti_stream_record;

/* So many of them are kept: as far ranks can be apart, and be compared. */
#define TUTTI_STREAM_RECORDS 128

/* What one rank shows the others. Written by its owner only, but for `sleepers` and `finished`. */
typedef struct tutti_page {
    _Atomic uint64_t comm_id;  /* 0: the owner has left and taken the memory back */
    _Atomic uint32_t departed; /* the owner destroyed its communicator */
    _Atomic int32_t core;      /* on which the owner last posted; a hint */
    _Atomic uint32_t fenced;   /* the owner orders its flags and its looks at `sleepers` itself; else sleepers must */
    TUTTI_ALIGNED_LINE _Atomic uint32_t sleepers;     /* waiters asleep on this page's flags; they count themselves */
    TUTTI_ALIGNED_LINE _Atomic uint64_t finished; /* in the page of rank 0: a call that all ranks have finished; flags.c */
    TUTTI_ALIGNED_LINE tutti_post posts[TUTTI_POSTS]; /* call k uses posts[k % TUTTI_POSTS] */
    TUTTI_ALIGNED_LINE _Atomic uint64_t step;
    _Atomic uint64_t quiet; /* the owner left this call by a failure and writes no more into others' buffers */
    TUTTI_ALIGNED_LINE _Atomic uint64_t
        stream_call;                /* the last collective on CUDA memory that no post tells of; monitor.h */
    _Atomic uint64_t stream_number; /* of the newest record; release, after it */
    tutti_stream_record stream_records[TUTTI_STREAM_RECORDS]; /* number k is in [k % TUTTI_STREAM_RECORDS] */
    TUTTI_ALIGNED_LINE _Atomic uint32_t state;                /* tutti_page_state; release after the reason */
    int32_t broken_status;
    char broken_text[TUTTI_BROKEN_TEXT_BYTES];
} tutti_page;

/* Progress values of `step`. */
#define TUTTI_STEP_BITS 24
#define TUTTI_STEP_DONE ((UINT64_C(1) << TUTTI_STEP_BITS) - 1)
static inline uint64_t tutti_step_at(uint64_t sequence, uint64_t progress) {
    return (sequence << TUTTI_STEP_BITS) + progress;
}

struct tutti_hosts;
struct tutti_peer;
struct tutti_slots;
struct tutti_work_queue;
struct tutti_links;
struct tutti_stream_comm;
struct tutti_stream_seed;

/* One rank as the others of its communicator see it. */
typedef struct tutti_member {
    struct tutti_peer *process; /* holds the rank; peer.h */
    tutti_page *page;           /* mapped here */
} tutti_member;

/* Why and how long the current operation waits; reset when it starts. */
typedef struct tutti_wait_state {
    const tutti_op *op;
    bool started;            /* the clocks run: only once a wait is not short */
    tutti_deadline deadline; /* of the operation */
    tutti_deadline stall;    /* of the report */
    bool reported;
    bool yields;  /* this thread shares its core: do not spin */
    bool crowded; /* it shares it with ranks, of which there are more than cores; oversubscribed.h */
} tutti_wait_state;

/* When to look next at where the ranks are; oversubscribed.c. */
typedef struct tutti_oversubscribed {
    unsigned waits, pause; /* since the last look; between two */
} tutti_oversubscribed;

/* How staging memory is written; slots.c. */
typedef struct tutti_store_policy {
    float line_ns; /* what a line has cost of late, through the caches; 0: not known */
    bool streams;  /* writes go past the caches */
    unsigned writes;
} tutti_store_policy;

/* Something that peers may look at until all have left; retire.h. */
typedef struct tutti_kept {
    void *memory;
    void (*give_back)(void *memory);
} tutti_kept;

struct tutti_comm {
    int rank, nranks;
    uint64_t id; /* equal on all ranks, different from any other's that one of them has */
    char name[64];
    int64_t timeout_ms, connect_timeout_ms;
    bool one_process; /* all ranks are threads of this process */
    bool spins;       /* every rank of the host has a core of its own; the same on all ranks */
    int host_ranks,
        host_cores; /* ranks that share these cores; of the communicator that this one comes from, at the start */
    size_t chunk_bytes;
    int forced_row;            /* of the algorithm table, by TUTTI_ALGORITHM; -1: none */
    tutti_member *members;     /* nranks entries */
    struct tutti_hosts *hosts; /* NULL: all ranks are on this host; hosts.h */
    struct tutti_shm_segment *segment;   /* one reference: made through a store, or split from such a one; else NULL */
    tutti_comm *outer;         /* of the communicator of one host within one over several: that one; else NULL */
    const int *shown_ranks;    /* then: by which numbers the user knows the ranks */
    tutti_page *page;          /* own: members[rank].page */
    uint64_t sequence;         /* collectives started */
    uint64_t finished;         /* all ranks have finished this call and all before it; what is known of it */
    uint64_t history;          /* hash of all calls so far, part of the next signature */
    tutti_store_policy pace;
    uint64_t splits;                       /* communicators made from this one; equal on all ranks */
    atomic_bool has_rdma;                  /* tutti_comm_init_rdma has succeeded */
    bool meeting;                          /* the barrier that ends its creation; its runner's only */
    tutti_wait_state patience;               /* of the running collective; its runner's only */
    tutti_oversubscribed crowd;                     /* its runner's only */
    struct tutti_slots *slots;             /* lease, NULL: none; slots.h */
    atomic_int slots_busy;                 /* 1 while a call uses the lease, so that nobody takes it */
    const void **views;                    /* scratch of nranks pointers, for algorithms */
    double *factors;                       /* scratch of nranks factors */
    char **buffers;                        /* scratch of nranks pointers */
    tutti_kept kept[2];                    /* goes with the page */
    uint64_t exposed;                      /* last call in which peers may write into this rank's buffers; quiesce.h */
    struct tutti_work_queue *queue;        /* queue.h */
    struct tutti_links *links;             /* to ranks of other hosts, link.c; NULL: none so far */
    struct tutti_stream_comm *_Atomic gpu; /* calls on CUDA memory, stream.h; NULL: none so far */
    struct tutti_stream_seed *seed;        /* for its engine there, from the parent's; NULL */
    atomic_int references;                 /* the user's, and one for each work and thread that may look at it */
    atomic_bool destroyed;                 /* tutti_comm_destroy was called */
    struct tutti_comm *next;               /* list of the process's communicators */
};

/* The rank as the user knows it. */
static inline int tutti_comm_shown(const tutti_comm *comm, int rank) {
    return comm->shown_ranks != NULL ? comm->shown_ranks[rank] : rank;
}

/* Answers for a call: the process was forked, the communicator is broken or being destroyed; else TUTTI_OK. */
tutti_status tutti_comm_check(tutti_comm *comm);

/* Breaks the communicator with `status` and this thread's error text, unless it is broken already; wakes waiters.
 * Gives the status with which it is broken, and that text as this thread's error. */
tutti_status tutti_comm_break(tutti_comm *comm, tutti_status status);

/* The same, and tells other hosts: from any thread but one that runs an operation of the communicator. */
tutti_status tutti_comm_give_up(tutti_comm *comm, tutti_status status);

/* Counts references to the struct; the last one frees it. */
void tutti_comm_retain(tutti_comm *comm);
void tutti_comm_release(tutti_comm *comm);

/* True in a process forked from one that uses Tutti: since the first tutti_fork_watch (fork.h). */
extern bool tutti_has_forked; /* written in the child, before it has threads */
static inline bool tutti_forked(void) {
    return tutti_has_forked;
}

#endif
