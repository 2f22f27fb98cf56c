/*
 * Tutti: collectives, point to point and data-parallel training for N processes that act as one.
 *
 * Rules that hold for every call below:
 *   - It returns a tutti_status: 0 is success, errors are negative. tutti_last_error() gives the calling
 *     thread's text of the last failure: what failed, which peer, the likely cause, what to do.
 *   - Out parameters come last and are written only on success.
 *   - Counts are in elements unless a name says bytes. Ranks and roots are ranks of the communicator.
 *   - A call that moves data ends with `const tutti_options *`; NULL means: blocking, the communicator's
 *     timeout. With `.work` set the call returns at once and the work tells the rest.
 *   - Buffers are in host memory, or in a GPU's: then the call is done in stream order; see device.h.
 *   - All ranks of a communicator call the same collectives in the same order with equal arguments where
 *     this page says "on every rank"; a difference is an error on all ranks that shows both calls (of this
 *     call, or of the next on ranks that needed nothing of the others).
 *   - Buffers may be the same (in place: src == dst; for all_gather, reduce_scatter, gather and scatter
 *     the rank's own slice of the big buffer). Buffers that overlap in part are an error.
 *   - Any thread may call anything; calls on one communicator are carried out in the order of their start.
 */
#ifndef TUTTI_H
#define TUTTI_H

#include <stddef.h>
#include <stdint.h>

#define TUTTI_VERSION_MAJOR 0
#define TUTTI_VERSION_MINOR 1
#define TUTTI_VERSION_PATCH 0

#if defined(__GNUC__)
#define TUTTI_API                               __attribute__((visibility("default")))
#define TUTTI_PRINTF(format_index, first_index) __attribute__((format(printf, format_index, first_index)))
#else
#define TUTTI_API
#define TUTTI_PRINTF(format_index, first_index)
#endif

/* Structs of options: TUTTI_OPTIONS(.work = &work) and its likes have the size set and all else zero, and &TUTTI_OPTIONS(...)
 * can be handed to a call. In C++ they last until the end of the full expression, so during that call; `.work = ` is C++20.
 * C++17 sets members of a variable: tutti_options options = TUTTI_OPTIONS(); options.work = &work; */
#ifdef __cplusplus
#define TUTTI_SIZE_OF(type)          = sizeof(type)
#define TUTTI_ZERO                   = {}
#define TUTTI_INITIALIZED(type, ...) (tutti_temporary(type{__VA_ARGS__})) /* members have the defaults above */
extern "C++" {
template <class T> inline const T &tutti_temporary(const T &options) noexcept {
    return options;
}
}
#else
#define TUTTI_SIZE_OF(type)
#define TUTTI_ZERO
#define TUTTI_INITIALIZED(type, ...) ((type){.struct_bytes = sizeof(type), __VA_ARGS__})
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---------------------------------------------------------------------------------------------- status */

typedef enum tutti_status {
    TUTTI_OK = 0,
    TUTTI_NOT_YET = 1,          /* tutti_work_wait: its timeout passed first, the work goes on */
    TUTTI_ERR_ARGUMENT = -1,    /* a wrong argument; the communicator is whole */
    TUTTI_ERR_MEMORY = -2,      /* no memory (heap, shared heap) */
    TUTTI_ERR_SYSTEM = -3,      /* a system call failed */
    TUTTI_ERR_UNSUPPORTED = -4, /* not on this machine, or not built in */
    TUTTI_ERR_TIMEOUT = -5,     /* the operation's deadline passed; the communicator is broken */
    TUTTI_ERR_PEER_DIED = -6,   /* a rank's process ended; the communicator is broken */
    TUTTI_ERR_MISMATCH = -7,    /* ranks made different calls; the communicator is broken */
    TUTTI_ERR_TRUNCATED = -8,   /* a message is longer than the receive that took it */
    TUTTI_ERR_BROKEN = -9,      /* an earlier failure broke this communicator */
    TUTTI_ERR_ABORTED = -10,    /* tutti_comm_abort was called, here or on a peer */
    TUTTI_ERR_FORKED = -11,     /* the process was forked after the communicator was made */
    TUTTI_ERR_CONFIG = -12,     /* launcher variables or settings are missing, wrong or differ */
    TUTTI_ERR_REFUSED = -13,    /* a stranger: wrong secret or wrong user */
    TUTTI_ERR_DATA = -14,       /* a file or message has not the form it should have */
    TUTTI_ERR_INTERRUPTED = -15 /* tutti_interrupt_set's function asked the waiting call to end */
} tutti_status;

/* A short English name of the status, for example "peer died". Never NULL. */
TUTTI_API const char *tutti_status_name(tutti_status status);

/* The calling thread's text of the last failure, "" if none. Valid until this thread's next failure. */
TUTTI_API const char *tutti_last_error(void);

/* Records the calling thread's error text and returns `status`: for code that is built on Tutti. */
TUTTI_API tutti_status tutti_fail(tutti_status status, const char *format, ...) TUTTI_PRINTF(2, 3);

/* For programs whose signal handlers must run on a certain thread, outside of this library (Python's do): while the
 * calling thread waits inside a call, `asked(context)` is called there about every 100 ms. Anything but 0 ends the call
 * with TUTTI_ERR_INTERRUPTED: a blocking operation breaks its communicator (its peers get TUTTI_ERR_ABORTED), a
 * tutti_work_wait leaves the operation as it is. It may not call anything on a communicator. NULL: nobody is asked. */
TUTTI_API tutti_status tutti_interrupt_set(int (*asked)(void *context), void *context);

/* Returns from the enclosing function when `expr` is an error. */
#define TUTTI_TRY(expr)                                                                                                \
    do {                                                                                                               \
        tutti_status tutti_try_status_ = (expr);                                                                       \
        if (tutti_try_status_ != TUTTI_OK) return tutti_try_status_;                                                   \
    } while (0)

/* Jumps to `label` when `expr`, stored in `status`, is an error. */
#define TUTTI_TRY_GOTO(status, expr, label)                                                                            \
    do {                                                                                                               \
        (status) = (expr);                                                                                             \
        if ((status) != TUTTI_OK) goto label;                                                                          \
    } while (0)

/* Version of the library that runs, as text, for example "0.1.0". */
TUTTI_API const char *tutti_version(void);

/* ----------------------------------------------------------------------------------------------- types */

typedef enum tutti_type {
    TUTTI_INT8 = 0,
    TUTTI_UINT8,
    TUTTI_INT16,
    TUTTI_UINT16,
    TUTTI_INT32,
    TUTTI_UINT32,
    TUTTI_INT64,
    TUTTI_UINT64,
    TUTTI_BOOL, /* one byte; any value but 0 is true, results are 0 or 1 */
    TUTTI_FLOAT16,
    TUTTI_BFLOAT16,
    TUTTI_FLOAT32,
    TUTTI_FLOAT64,
    TUTTI_FLOAT8_E4M3, /* "fn": no infinities, NaN is 0x7f and 0xff */
    TUTTI_FLOAT8_E5M2,
    TUTTI_TYPE_COUNT
} tutti_type;

/* Bytes of one element; 0 for a value that is no type. */
TUTTI_API size_t tutti_type_bytes(tutti_type type);
/* "int8" ... "float8_e5m2"; "?" for a value that is no type. */
TUTTI_API const char *tutti_type_name(tutti_type type);

typedef enum tutti_reduction {
    TUTTI_SUM = 0,
    TUTTI_PROD,
    TUTTI_MIN,
    TUTTI_MAX,
    TUTTI_AVG,  /* sums, then divides once by the number of ranks; integers truncate towards zero */
    TUTTI_BAND, /* bitwise, integers and bool only */
    TUTTI_BOR,
    TUTTI_BXOR,
    TUTTI_PREMUL_SUM, /* each rank's input times its own options.factor, then summed */
    TUTTI_REDUCTION_COUNT
} tutti_reduction;

/* "sum" ... "premul_sum"; "?" for a value that is no reduction. */
TUTTI_API const char *tutti_reduction_name(tutti_reduction reduction);

/* ----------------------------------------------------------------------------------------------- world */

/* Who this process is, as its launcher says. One process without launcher variables is a world of 1. */
typedef struct tutti_world {
    int rank, size;             /* RANK, WORLD_SIZE */
    int local_rank, local_size; /* LOCAL_RANK, LOCAL_WORLD_SIZE */
    int node, nodes;            /* GROUP_RANK, number of nodes */
    int restart;                /* TORCHELASTIC_RESTART_COUNT, 0 when there is none */
} tutti_world;

/* Reads the launcher's variables: torchrun's (tuttirun sets them), or a rank table, or those of MPI's launchers and Slurm, or
 * asks by PMIx. Contradictions and missing ones are TUTTI_ERR_CONFIG; the text lists
 * what was looked for and found. */
TUTTI_API tutti_status tutti_world_get(tutti_world *world_out);

/* A key-value store that the caller brings for the rendezvous of tutti_comm_create. What comes from it is
 * bounded and checked. Each call may be made from the thread that creates the communicator only. */
typedef struct tutti_store {
    size_t struct_bytes; /* sizeof(tutti_store) */
    void *context;       /* handed to each function */
    tutti_status (*set)(void *context, const char *key, const void *value, size_t bytes);
    /* Waits up to timeout_ms for the key. A value longer than capacity is TUTTI_ERR_DATA. */
    tutti_status (*get)(void *context, const char *key, void *value, size_t capacity, size_t *bytes_out,
                        int64_t timeout_ms);
    /* Adds to a counter that starts at 0 and gives its new value. */
    tutti_status (*add)(void *context, const char *key, int64_t amount, int64_t *value_out);
    /* 1 if the key is there, else 0; does not wait. */
    tutti_status (*check)(void *context, const char *key, int *exists_out);
} tutti_store;

/* --------------------------------------------------------------------------------------- communicators */

typedef struct tutti_comm tutti_comm;

typedef struct tutti_comm_options {
    size_t struct_bytes TUTTI_SIZE_OF(tutti_comm_options); /* of this struct */
    int64_t timeout_ms TUTTI_ZERO; /* deadline of each operation, >= 0; 0: the parent's, or TUTTI_TIMEOUT_MS */
    const char *name TUTTI_ZERO;   /* shown in errors and reports; NULL: "world", "comm" or the parent's name + "/n" */
    int64_t connect_timeout_ms
        TUTTI_ZERO; /* deadline of the creation, >= 0; 0: the parent's, or TUTTI_CONNECT_TIMEOUT_MS */
} tutti_comm_options;

#define TUTTI_COMM_OPTIONS(...) TUTTI_INITIALIZED(tutti_comm_options, __VA_ARGS__)

/* The communicator of all processes that the launcher started; collective over them. The rendezvous is the
 * job's store, at MASTER_ADDR:MASTER_PORT or where its launcher tells. Destroy it with tutti_comm_destroy. */
TUTTI_API tutti_status tutti_comm_create_world(tutti_comm **comm_out);

/* A communicator of `nranks` ranks that meet in `store`, this one being `rank`; collective over them. Keys
 * are written below `prefix`, which must be fresh for this communicator and equal on every rank. Ranks may be
 * processes or threads. The store is not used after the call. */
TUTTI_API tutti_status tutti_comm_create(int rank, int nranks, const tutti_store *store, const char *prefix,
                                         const tutti_comm_options *options, tutti_comm **comm_out);

#define TUTTI_COLOR_NONE (-1)
/* One new communicator per colour (>= 0), ranks ordered by key, then by rank here; collective over `comm`.
 * A rank that passes TUTTI_COLOR_NONE takes part and gets NULL. */
TUTTI_API tutti_status tutti_comm_split(tutti_comm *comm, int color, int key, const tutti_comm_options *options,
                                        tutti_comm **comm_out);

/* A communicator of the listed ranks of `comm`, in that order; only they call it, with equal lists. `tag`
 * (>= 0) tells apart creations by overlapping groups that are under way at the same time. */
TUTTI_API tutti_status tutti_comm_create_group(tutti_comm *comm, const int *ranks, int nranks, int64_t tag,
                                               const tutti_comm_options *options, tutti_comm **comm_out);

TUTTI_API int tutti_comm_rank(const tutti_comm *comm);
TUTTI_API int tutti_comm_size(const tutti_comm *comm);

/* Where this rank stands among the hosts of a communicator, as its ranks have found: those that share memory are on one host,
 * whatever the launcher says. Hosts are numbered by their lowest rank, ranks of a host in their order. */
typedef struct tutti_comm_details {
    int local_rank, local_size; /* on this host, of this communicator's ranks */
    int host, hosts;            /* this one, and how many there are */
    /* Ranks that compute beside each other, of the communicator that this one was split off, and the cores that they may use
     * together, by their affinity masks, the quota of their control group and TUTTI_CPUS: those of this host; or of all hosts on
     * its machine, such as containers, where these have fewer cores for each rank. */
    int host_ranks, host_cores;
} tutti_comm_details;
/* Local; also on a broken communicator. */
TUTTI_API tutti_status tutti_comm_get(const tutti_comm *comm, tutti_comm_details *details_out);

/* TUTTI_OK while whole, else the status that every call answers (text in tutti_last_error). */
TUTTI_API tutti_status tutti_comm_error(tutti_comm *comm);

/* Breaks the communicator here and on its peers: calls under way and later ones answer TUTTI_ERR_ABORTED.
 * From any thread, at any time; does not wait. `reason` may be NULL. */
TUTTI_API tutti_status tutti_comm_abort(tutti_comm *comm, const char *reason);

/* Local: waits for no rank. Operations still under way on it fail. NULL is allowed. The pointer is gone. A function of
 * tutti_submit that runs is waited for; it may not destroy its own communicator. */
TUTTI_API tutti_status tutti_comm_destroy(tutti_comm *comm);

/* ----------------------------------------------------------------------------------- options and works */

typedef enum tutti_memory {
    TUTTI_MEMORY_ASK = 0, /* the library looks the pointer up */
    TUTTI_MEMORY_HOST,
    TUTTI_MEMORY_CUDA
} tutti_memory;

typedef struct tutti_work tutti_work;

/* What a receive took. */
typedef struct tutti_received {
    int source;
    int64_t tag;
    size_t count; /* elements of the receive's type */
} tutti_received;

typedef struct tutti_options {
    size_t struct_bytes TUTTI_SIZE_OF(tutti_options); /* of this struct */
    void *stream TUTTI_ZERO;                          /* cudaStream_t for CUDA memory; NULL: the default stream */
    int64_t timeout_ms TUTTI_ZERO;                    /* this operation's deadline; 0: the communicator's */
    tutti_memory memory TUTTI_ZERO;                   /* where the buffers are, if the caller knows */
    double factor TUTTI_ZERO;                         /* of TUTTI_PREMUL_SUM, needed there (integers: a whole number) */
    tutti_received *received TUTTI_ZERO;              /* blocking receives: what came; may be NULL */
    tutti_work **work TUTTI_ZERO; /* not NULL: asynchronous, the handle is stored here; free it yourself */
} tutti_options;

#define TUTTI_OPTIONS(...) TUTTI_INITIALIZED(tutti_options, __VA_ARGS__)

/* Waits for the operation: up to timeout_ms, or, with -1, until it ends (it has its own deadline). Gives the
 * operation's status (and text), or TUTTI_NOT_YET. Never frees. Several threads may wait for one work. */
TUTTI_API tutti_status tutti_work_wait(tutti_work *work, int64_t timeout_ms);
/* 1 when the operation has ended, well or badly, else 0. Does not wait. */
TUTTI_API int tutti_work_done(const tutti_work *work);

typedef struct tutti_work_details {
    tutti_status status;                  /* TUTTI_NOT_YET until it ended */
    int source;                           /* receives: the sender's rank, else -1 */
    int64_t tag;                          /* receives: the message's tag, else -1 */
    size_t count;                         /* receives: elements that came */
    uint64_t sequence;                    /* collectives: number of the operation on its communicator */
    int64_t created_ns, start_ns, end_ns; /* CLOCK_MONOTONIC; 0: not yet */
} tutti_work_details;
TUTTI_API tutti_status tutti_work_get(const tutti_work *work, tutti_work_details *details_out);
/* The operation's error text, "" when it has none. Valid as long as the work. */
TUTTI_API const char *tutti_work_error(const tutti_work *work);

/* Calls `callback(status, context)` once when the operation has ended, on a pool of threads; at once through
 * the pool if it has ended already. It may call anything, blocking calls included. One callback per work. */
typedef void (*tutti_callback)(tutti_status status, void *context);
TUTTI_API tutti_status tutti_work_on_done(tutti_work *work, tutti_callback callback, void *context);
/* Gives the handle back, at any time; the operation goes on. NULL is allowed. */
TUTTI_API void tutti_work_free(tutti_work *work);

/* Runs `function(context)` in the turn that this call has among what is started on `comm`: after all collectives and functions
 * that were started before, and before all that are started later, on this rank. It runs on a thread of the communicator's,
 * which other calls on `comm` wait for. Collectives and messages on `comm` that the function calls run within its turn: so all
 * ranks must submit functions that make the same collectives. Collectives there may not have options.work or buffers in CUDA
 * memory, and it may not wait for what is started on `comm` later.
 *
 * Local. Of the options work counts; without one the call returns when the function has. The work has the status that the
 * function gives, and its tutti_last_error; the communicator stays whole, unless a call on it fails. Where it breaks before the
 * function's turn, the work ends with the error of that, and where it is destroyed, with TUTTI_ERR_ABORTED, and the
 * function is not called. `release(context)` (NULL: nothing) is called once, before the work ends, whether the function was
 * called or not, on any thread; only where this call gives an error itself it is not, nor is the function. Inside of a group, and
 * in a forked child, it is an error. */
TUTTI_API tutti_status tutti_submit(tutti_comm *comm, tutti_status (*function)(void *context),
                                    void (*release)(void *context), void *context, const tutti_options *options);

/* ----------------------------------------------------------------------------------------- collectives
 * n = tutti_comm_size(comm), r = the caller's rank. A call returns when the caller's buffers may be used again. It
 * waits for those only whose data the caller needs: the root of a broadcast or scatter, and all but the root of a reduce
 * or gather, may be back before others have come. tutti_barrier waits for all. */

/* dst[i] = reduction over ranks of src[i], i < count; count, type, reduction equal on every rank. */
TUTTI_API tutti_status tutti_all_reduce(tutti_comm *comm, const void *src, void *dst, size_t count, tutti_type type,
                                        tutti_reduction reduction, const tutti_options *options);
/* The same, result only on root; dst is ignored elsewhere (may be NULL). */
TUTTI_API tutti_status tutti_reduce(tutti_comm *comm, const void *src, void *dst, size_t count, tutti_type type,
                                    tutti_reduction reduction, int root, const tutti_options *options);
/* buffer[0..count) of root goes to buffer on every rank. */
TUTTI_API tutti_status tutti_broadcast(tutti_comm *comm, void *buffer, size_t count, tutti_type type, int root,
                                       const tutti_options *options);
/* src: count elements; dst: n*count, rank i's at dst[i*count]. In place: src == dst + r*count elements. */
TUTTI_API tutti_status tutti_all_gather(tutti_comm *comm, const void *src, void *dst, size_t count, tutti_type type,
                                        const tutti_options *options);
/* src: n*count elements; dst: count, the reduction over ranks of src[r*count..]. In place: dst == src + r*count. */
TUTTI_API tutti_status tutti_reduce_scatter(tutti_comm *comm, const void *src, void *dst, size_t count, tutti_type type,
                                            tutti_reduction reduction, const tutti_options *options);
/* src[i*count..] goes to rank i's dst[r*count..]; both n*count elements. In place: src == dst. */
TUTTI_API tutti_status tutti_all_to_all(tutti_comm *comm, const void *src, void *dst, size_t count, tutti_type type,
                                        const tutti_options *options);
/* Every rank's src (count) goes to root's dst[rank*count..]; dst is ignored elsewhere. In place on root. */
TUTTI_API tutti_status tutti_gather(tutti_comm *comm, const void *src, void *dst, size_t count, tutti_type type,
                                    int root, const tutti_options *options);
/* Root's src[rank*count..] goes to every rank's dst (count); src is ignored elsewhere. In place on root. */
TUTTI_API tutti_status tutti_scatter(tutti_comm *comm, const void *src, void *dst, size_t count, tutti_type type,
                                     int root, const tutti_options *options);
/* Returns on no rank before every rank has called it. */
TUTTI_API tutti_status tutti_barrier(tutti_comm *comm, const tutti_options *options);

/* Variants with a count and a pointer per rank, so that lists of separate buffers are never flattened. The
 * arrays have n entries and are copied by the call. Counts are compared pairwise: what one sends, the other
 * must expect. A pointer may be NULL where its count is 0. In place: a rank's own entry is its own buffer. */

/* src: src_count elements; rank i's go to dsts[i], counts[i] elements; counts equal on every rank. */
TUTTI_API tutti_status tutti_all_gather_v(tutti_comm *comm, const void *src, size_t src_count, void *const *dsts,
                                          const size_t *counts, tutti_type type, const tutti_options *options);
/* srcs[i]: counts[i] elements meant for rank i; dst: counts[r]; counts equal on every rank. */
TUTTI_API tutti_status tutti_reduce_scatter_v(tutti_comm *comm, const void *const *srcs, void *dst,
                                              const size_t *counts, tutti_type type, tutti_reduction reduction,
                                              const tutti_options *options);
/* srcs[i], src_counts[i] go to rank i; dsts[i], dst_counts[i] come from rank i. */
TUTTI_API tutti_status tutti_all_to_all_v(tutti_comm *comm, const void *const *srcs, const size_t *src_counts,
                                          void *const *dsts, const size_t *dst_counts, tutti_type type,
                                          const tutti_options *options);
/* Root: dsts[i], counts[i] for every rank i (ignored elsewhere). */
TUTTI_API tutti_status tutti_gather_v(tutti_comm *comm, const void *src, size_t src_count, void *const *dsts,
                                      const size_t *counts, tutti_type type, int root, const tutti_options *options);
/* Root: srcs[i], counts[i] for every rank i (ignored elsewhere). */
TUTTI_API tutti_status tutti_scatter_v(tutti_comm *comm, const void *const *srcs, const size_t *counts, void *dst,
                                       size_t dst_count, tutti_type type, int root, const tutti_options *options);

/* --------------------------------------------------------------------------------------- point to point */

#define TUTTI_ANY_SOURCE (-1)
#define TUTTI_ANY_TAG    (-1)

/* Sends count elements to `peer` (self allowed) under `tag` (>= 0). Returns when src may be reused. Messages
 * of one pair and tag are received in the order of their sending. Small ones do not wait for the receive. */
TUTTI_API tutti_status tutti_send(tutti_comm *comm, const void *src, size_t count, tutti_type type, int peer,
                                  int64_t tag, const tutti_options *options);
/* Receives up to count elements; a longer message is TUTTI_ERR_TRUNCATED (and is taken). peer may be
 * TUTTI_ANY_SOURCE, tag TUTTI_ANY_TAG. What came: options.received, or tutti_work_get. */
TUTTI_API tutti_status tutti_recv(tutti_comm *comm, void *dst, size_t count, tutti_type type, int peer, int64_t tag,
                                  const tutti_options *options);

/* Calls on `comm` by this thread between begin and end are checked and recorded; end starts them all (sends
 * and receives are posted before anything waits) and is one operation: it returns, or its work ends, when all
 * have. options.work may not be set inside. One group per thread at a time. */
TUTTI_API tutti_status tutti_group_begin(tutti_comm *comm);
TUTTI_API tutti_status tutti_group_end(tutti_comm *comm, const tutti_options *options);
/* Forgets what was recorded since tutti_group_begin, instead of tutti_group_end. */
TUTTI_API tutti_status tutti_group_cancel(tutti_comm *comm);

/* ---------------------------------------------------------------------------------------------- memory */

/* Memory that peers on this host map, so that collectives on it skip a copy; for all_reduce best in place. Aligned to
 * 64 bytes (from 4 KiB on: to a page). Local, caching, under 1 us when warm. In a forked child it stays shared with the
 * parent. After a failed call in which a peer was stopped, that peer may still write into the call's buffer once it goes
 * on; it will never write into what is allocated later. */
TUTTI_API tutti_status tutti_mem_alloc(size_t bytes, void **memory_out);
/* Gives such memory back; NULL is allowed; anything else is TUTTI_ERR_ARGUMENT. */
TUTTI_API tutti_status tutti_mem_free(void *memory);
/* Tells that [memory, memory + bytes) will be used often; peers may then read it in one copy where the
 * system permits that. It must stay valid until tutti_mem_deregister. */
TUTTI_API tutti_status tutti_mem_register(void *memory, size_t bytes);
TUTTI_API tutti_status tutti_mem_deregister(void *memory);

/* Where this process can read [memory, memory + bytes), which is an address of `peer`'s: memory of its tutti_mem_alloc, on this
 * host; or any memory of a rank that is a thread of this process. NULL: nowhere, as for ranks of other hosts. Asked of the
 * own rank it is the address itself, or NULL where the other ranks of this host could not read it. Local, a few nanoseconds.
 *
 * The address stays valid until `comm` is destroyed, even if the peer's process ends; the memory is the peer's, and must not be
 * written. It has what the peer stored before it entered a collective in which this rank waited for it, such as a barrier.
 * The peer must not change or free it before this rank is done, which another barrier tells it. When that barrier fails, what
 * was read may be anything. Wrong: `comm` or `here_out` NULL, no such rank. In a forked child it is TUTTI_ERR_FORKED. */
TUTTI_API tutti_status tutti_mem_peer(tutti_comm *comm, int peer, const void *memory, size_t bytes,
                                      const void **here_out);

/* ------------------------------------------------------------------------------------------------ RDMA */

/* Opens this process's RDMA adapters now, instead of at the first connection to another host, so that it is known at once
 * whether there are any. TUTTI_ERR_UNSUPPORTED, with the reason: no adapter, none of its ports is usable, or this build has
 * no libtutti_verbs; communicators then use other transports. Local; needs no other rank; may be called again. */
TUTTI_API tutti_status tutti_init_rdma(void);
/* 1 when the adapters are open, by tutti_init_rdma or by a connection, else 0. */
TUTTI_API int tutti_rdma_is_initialized(void);

/* RDMA or an error: makes sure that the hosts of `comm` reach each other by their RDMA adapters, and from then on lets nothing
 * else carry data between them. Collective over `comm`, on its calling threads; returns when all ranks have the result.
 *
 * It connects every host with every other one by libibverbs (transport "verbs"; rank by rank where all hosts have as many, else
 * by the first rank of each). TUTTI_OK on all ranks where all of that succeeds. Otherwise the same error on all ranks, with up to
 * three hosts and the reason for each: TUTTI_ERR_UNSUPPORTED: a host has no usable adapter, or its adapter does not reach that of
 * another, which is named, too; TUTTI_ERR_CONFIG: TUTTI_TRANSPORT or TUTTI_ENCRYPT excludes verbs on a host. After these the
 * communicator is whole, as it was before. A rank that does not call it, or dies, is a timeout or a death as in any collective.
 *
 * Afterwards collectives and messages in host memory go between these processes by verbs or fail, and break their communicator:
 * on `comm`, on those split from it, and on those made later that have the same processes. An adapter that fails for longer than
 * TUTTI_PEER_TIMEOUT_MS is an error, as is one that leads nowhere when a connection is made; TCP never takes over. Not meant are
 * the store, heartbeats and the setting up of connections, which stay on TCP; ranks of one host, which share memory; and what
 * NCCL carries between GPUs: NCCL chooses its own network (NCCL_NET=IB leaves it no other than RDMA).
 *
 * On one host there is nobody to reach, but an adapter is needed all the same. Where it has succeeded, further calls return
 * TUTTI_OK at once; where it has failed it may be tried again. A forked child has no communicator: there it is TUTTI_ERR_FORKED. */
TUTTI_API tutti_status tutti_comm_init_rdma(tutti_comm *comm);

#ifdef __cplusplus
}
#endif

#endif
