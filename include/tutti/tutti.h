/*
 * Tutti: collectives, point to point and data-parallel training for N processes that act as one.
 *
 * Rules that hold for every call below:
 *   - A call returns a tutti_status: 0 is success, errors are negative. tutti_last_error() returns the calling
 *     thread's text of the last failure: what failed, which peer, the likely cause, what to do.
 *   - Out parameters come last and are written only on success: a call that fails creates no handle.
 *   - Errors of many calls stand at the head of their section or file. Every call may return TUTTI_ERR_ARGUMENT (also
 *     for a NULL that is not allowed): then it has done nothing, and communicators stay whole, unless its comment says
 *     otherwise. Calls that move data on a broken communicator return the status that broke it, and in a child that
 *     was forked after it was created TUTTI_ERR_FORKED. tutti_comm_error tells whether a communicator is broken.
 *   - Counts are in elements unless a name says bytes. Ranks and roots are ranks of the communicator.
 *   - A call that moves data ends with `const tutti_options *`; NULL means a blocking call with the communicator's
 *     timeout. With `.work` set the call returns at once, and the work reports how the operation ended.
 *   - Buffers are in host memory or in a GPU's memory. With GPU memory the call is carried out in stream order; see
 *     device.h.
 *   - All ranks of a communicator call the same collectives in the same order, with equal arguments where this page
 *     says "on every rank". A difference is an error on all ranks, and its text shows both calls. A rank that needed
 *     nothing from the others may get the error from its next call.
 *   - Buffers may be the same (in place: src == dst; for all_gather, reduce_scatter, gather and scatter the rank's own
 *     slice of the big buffer). Buffers that overlap in part are an error.
 *   - Any thread may make any call; calls on one communicator are carried out in the order in which they start.
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

/* Structs of options: TUTTI_OPTIONS(.work = &work) and the other macros of its kind set struct_bytes, and all
 * members that are not given are zero; &TUTTI_OPTIONS(...) can be passed to a call. In C++ the struct lasts until
 * the end of the full expression, which covers that call; `.work = ` needs C++20. In C++17 set the members of a
 * variable: tutti_options options = TUTTI_OPTIONS(); options.work = &work; */
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
    TUTTI_NOT_YET = 1,          /* tutti_work_wait: its timeout passed first; the operation goes on */
    TUTTI_ERR_ARGUMENT = -1,    /* an argument is wrong */
    TUTTI_ERR_MEMORY = -2,      /* no memory (heap, shared heap) */
    TUTTI_ERR_SYSTEM = -3,      /* a system call failed */
    TUTTI_ERR_UNSUPPORTED = -4, /* not supported on this machine, or not built in */
    TUTTI_ERR_TIMEOUT = -5,     /* the operation's deadline passed; the communicator is broken */
    TUTTI_ERR_PEER_DIED = -6,   /* a rank's process ended; the communicator is broken */
    TUTTI_ERR_MISMATCH = -7,    /* ranks made different calls; the communicator is broken */
    TUTTI_ERR_TRUNCATED = -8,   /* a message is longer than the receive that took it */
    TUTTI_ERR_BROKEN = -9,      /* a rank has destroyed or broken the communicator, and gave no other reason */
    TUTTI_ERR_ABORTED = -10,    /* tutti_comm_abort or tutti_comm_destroy, on this rank or on a peer */
    TUTTI_ERR_FORKED = -11,     /* the process was forked after the communicator was created */
    TUTTI_ERR_CONFIG = -12,     /* variables of the launcher or settings are missing, wrong or differ between ranks */
    TUTTI_ERR_REFUSED = -13,    /* the peer was refused: wrong secret or wrong user */
    TUTTI_ERR_DATA = -14,       /* a file or message does not have the expected form */
    TUTTI_ERR_INTERRUPTED = -15 /* the function set by tutti_interrupt_set asked the waiting call to end */
} tutti_status;

/* Returns a short English name of the status, for example "peer died". Never NULL. */
TUTTI_API const char *tutti_status_name(tutti_status status);

/* Returns the calling thread's text of the last failure, or "" if there is none. Valid until this thread's next
 * failure. */
TUTTI_API const char *tutti_last_error(void);

/* Records the calling thread's error text and returns `status`: for code that is built on Tutti. tutti_last_error() may
 * be one of the arguments. */
TUTTI_API tutti_status tutti_fail(tutti_status status, const char *format, ...) TUTTI_PRINTF(2, 3);

/* Structs that begin with `size_t struct_bytes` may grow in later versions. A call takes such a struct from a program
 * that was built with an older header, whose struct is shorter: members that it does not have are zero. It takes a
 * longer one, of a newer header, if the members that this library does not have are zero. Anything else is
 * TUTTI_ERR_ARGUMENT.
 *
 * For code that is built on Tutti and has such structs of its own: copies `given` to `own`, of own_bytes bytes, in
 * that way. Neither may be NULL. The error's text begins with `name`, and says to fill the struct with `macro`. */
TUTTI_API tutti_status tutti_struct_take(const char *name, const char *macro, const void *given, void *own,
                                         size_t own_bytes);

/* For programs whose signal handlers must run on a certain thread, outside of this library (Python's must): while
 * the calling thread waits inside a call, that thread calls `asked(context)` about every 50 ms. A result other than 0
 * ends the call with TUTTI_ERR_INTERRUPTED: a blocking operation breaks its communicator (its peers get
 * TUTTI_ERR_ABORTED); a tutti_work_wait leaves the operation as it is, except a collective in host memory that this
 * thread carries out while it waits without a timeout, which ends so and breaks the communicator. `asked` must not
 * call anything on a communicator. With `asked` NULL no function is called. Returns TUTTI_OK. */
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

/* Returns the version of the library that runs as text, for example "0.1.0". */
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

/* Returns the bytes of one element; 0 for a value that is not a type. */
TUTTI_API size_t tutti_type_bytes(tutti_type type);
/* Returns "int8" ... "float8_e5m2"; "?" for a value that is not a type. */
TUTTI_API const char *tutti_type_name(tutti_type type);

typedef enum tutti_reduction {
    TUTTI_SUM = 0,
    TUTTI_PROD,
    TUTTI_MIN,
    TUTTI_MAX,
    TUTTI_AVG,  /* the sum, divided once by the number of ranks; integers truncate towards zero */
    TUTTI_BAND, /* bitwise, integers and bool only */
    TUTTI_BOR,
    TUTTI_BXOR,
    TUTTI_PREMUL_SUM, /* the sum of each rank's input times the options.factor of that rank */
    TUTTI_REDUCTION_COUNT
} tutti_reduction;

/* Returns "sum" ... "premul_sum"; "?" for a value that is not a reduction. */
TUTTI_API const char *tutti_reduction_name(tutti_reduction reduction);

/* ----------------------------------------------------------------------------------------------- world */

/* This process's rank as its launcher gives it. A process without launcher variables is a world of 1. Where the
 * launcher does not say which ranks share a host, as OneFlow's with several nodes, local_size, node and nodes are -1
 * (and local_rank where LOCAL_RANK is not set) until tutti_comm_create_world has found them. */
typedef struct tutti_world {
    int rank, size;             /* RANK, WORLD_SIZE */
    int local_rank, local_size; /* LOCAL_RANK, LOCAL_WORLD_SIZE */
    int node, nodes;            /* GROUP_RANK, number of nodes */
    int restart;                /* TORCHELASTIC_RESTART_COUNT, 0 when there is none */
    int device;                 /* device_id of a rank table: the number of this rank's card in its host; else -1 */
} tutti_world;

/* Reads the launcher's variables: torchrun's (tuttirun sets them), or a rank table, or those of MPI's launchers and
 * Slurm, or asks by PMIx. TUTTI_ERR_CONFIG: variables or the rank table are contradictory, missing or wrong; the text
 * lists what was looked for and what was found. TUTTI_ERR_UNSUPPORTED: this build has no module for rank tables or
 * PMIx. TUTTI_ERR_TIMEOUT, TUTTI_ERR_INTERRUPTED: while PMIx was asked. TUTTI_ERR_MEMORY, TUTTI_ERR_SYSTEM. */
TUTTI_API tutti_status tutti_world_get(tutti_world *world_out);

/* Nodes, port and devices of a job, as the program itself gives them: the same on all nodes. */
typedef struct tutti_world_config {
    size_t struct_bytes TUTTI_SIZE_OF(tutti_world_config); /* of this struct */
    const char *const *nodes TUTTI_ZERO;                   /* all, by name or address; NULL: this machine */
    int nnodes TUTTI_ZERO;                                 /* of the list */
    int ctrl_port TUTTI_ZERO;  /* where ranks meet, on the first node; 0: 29500, on this machine any */
    int device_num TUTTI_ZERO; /* ranks on each node; 0: 1 */
} tutti_world_config;

#define TUTTI_WORLD_CONFIG(...) TUTTI_INITIALIZED(tutti_world_config, __VA_ARGS__)

/* Called first in main, with its argc and argv: makes a program that is started once on each node, without a launcher,
 * a job. The process becomes tuttirun, which finds this node in the list and starts the program as its ranks, and does
 * not return from the call. In a rank the call returns at once; TUTTI_ERR_CONFIG: the launcher says otherwise. One
 * rank on this machine needs no launcher: the call returns. TUTTI_ERR_SYSTEM: tuttirun cannot be run. Also the errors
 * of tutti_world_get, and TUTTI_ERR_MEMORY. */
TUTTI_API tutti_status tutti_world_configure(const tutti_world_config *config, int argc, char **argv);

/* A key-value store that the caller provides for the rendezvous of tutti_comm_create. What the store returns is
 * bounded and checked. The functions are called only from the thread that creates the communicator. */
typedef struct tutti_store {
    size_t struct_bytes; /* sizeof(tutti_store) */
    void *context;       /* passed to each function */
    tutti_status (*set)(void *context, const char *key, const void *value, size_t bytes);
    /* Waits up to timeout_ms for the key. A value longer than capacity is TUTTI_ERR_DATA. */
    tutti_status (*get)(void *context, const char *key, void *value, size_t capacity, size_t *bytes_out,
                        int64_t timeout_ms);
    /* Adds to a counter that starts at 0 and returns its new value. */
    tutti_status (*add)(void *context, const char *key, int64_t amount, int64_t *value_out);
    /* 1 if the key exists, else 0; does not wait. */
    tutti_status (*check)(void *context, const char *key, int *exists_out);
} tutti_store;

/* --------------------------------------------------------------------------------------- communicators
 * Errors of the four calls that create communicators. Ranks that still need this one fail, too, at the latest when
 * their deadline (connect_timeout_ms) has passed.
 *   TUTTI_ERR_ARGUMENT     found before this rank takes part, unless the call says otherwise
 *   TUTTI_ERR_CONFIG       a setting (TUTTI_...) is wrong, or differs between ranks
 *   TUTTI_ERR_TIMEOUT      a rank or the store did not answer by the deadline
 *   TUTTI_ERR_PEER_DIED    a rank's process ended
 *   TUTTI_ERR_ABORTED      the creation failed on another rank, whose reason is in the text
 *   TUTTI_ERR_REFUSED      a rank or the store has another secret, or belongs to another user
 *   TUTTI_ERR_DATA         a rank or the store sent something malformed
 *   TUTTI_ERR_UNSUPPORTED  two hosts have no transport in common
 *   TUTTI_ERR_MEMORY, TUTTI_ERR_SYSTEM, TUTTI_ERR_INTERRUPTED, TUTTI_ERR_FORKED */

typedef struct tutti_comm tutti_comm;

typedef struct tutti_comm_options {
    size_t struct_bytes TUTTI_SIZE_OF(tutti_comm_options); /* of this struct */
    int64_t timeout_ms TUTTI_ZERO; /* deadline of each operation, >= 0; 0: the parent's, or TUTTI_TIMEOUT_MS */
    const char *name TUTTI_ZERO;   /* shown in errors and reports; NULL: "world", "comm" or the parent's name + "/n" */
    int64_t connect_timeout_ms
        TUTTI_ZERO; /* deadline of the creation, >= 0; 0: the parent's, or TUTTI_CONNECT_TIMEOUT_MS */
} tutti_comm_options;

#define TUTTI_COMM_OPTIONS(...) TUTTI_INITIALIZED(tutti_comm_options, __VA_ARGS__)

/* Creates the communicator of all processes that the launcher started; collective over them. The rendezvous is the
 * job's store, at MASTER_ADDR:MASTER_PORT or at the address that its launcher gives. Destroy it with
 * tutti_comm_destroy. TUTTI_ERR_CONFIG also where another program has taken that port. Also the errors of
 * tutti_world_get. */
TUTTI_API tutti_status tutti_comm_create_world(tutti_comm **comm_out);

/* Creates a communicator of `nranks` ranks that meet in `store`, with this process as `rank`; collective over them.
 * Keys are written below `prefix`, which must be fresh for this communicator and equal on every rank, and has at most
 * 256 characters. With 1 rank `store` and `prefix` may be NULL. Ranks may be processes or threads. Nothing that the
 * caller passes is used after the call. Destroy the communicator with tutti_comm_destroy. An error that a function of
 * the store returns is the call's. */
TUTTI_API tutti_status tutti_comm_create(int rank, int nranks, const tutti_store *store, const char *prefix,
                                         const tutti_comm_options *options, tutti_comm **comm_out);

#define TUTTI_COLOR_NONE (-1)
/* Creates one new communicator per colour (>= 0), with its ranks ordered by key, then by their rank in `comm`;
 * collective over `comm`. A rank that passes TUTTI_COLOR_NONE takes part and gets NULL. First the ranks exchange what
 * they pass: errors of that are those of a collective on `comm`, before and after its start. Later ones leave `comm`
 * whole, unless NCCL, in use on it, fails. A rank that has wrong options or no memory takes part: it gets its own error
 * (TUTTI_ERR_ARGUMENT, TUTTI_ERR_MEMORY), and the other ranks of its colour get TUTTI_ERR_ABORTED, which names it. */
TUTTI_API tutti_status tutti_comm_split(tutti_comm *comm, int color, int key, const tutti_comm_options *options,
                                        tutti_comm **comm_out);

/* Creates a communicator of the listed ranks of `comm`, in that order; only these ranks make the call, with equal
 * lists, which are copied. `tag` (0 to INT64_MAX / 2) tells apart creations by overlapping groups that are under way at
 * the same time. First the ranks exchange messages on `comm`: TUTTI_ERR_TIMEOUT (a rank did not come) and
 * TUTTI_ERR_PEER_DIED break `comm`, too. Later errors leave it whole. */
TUTTI_API tutti_status tutti_comm_create_group(tutti_comm *comm, const int *ranks, int nranks, int64_t tag,
                                               const tutti_comm_options *options, tutti_comm **comm_out);

/* This rank, and the number of ranks; -1 when comm is NULL. */
TUTTI_API int tutti_comm_rank(const tutti_comm *comm);
TUTTI_API int tutti_comm_size(const tutti_comm *comm);

/* The place of this rank among the hosts of a communicator, as its ranks found it: ranks that share memory are on
 * one host, whatever the launcher says. Hosts are numbered by their lowest rank, and the ranks of a host in their
 * order. */
typedef struct tutti_comm_details {
    int local_rank, local_size; /* rank and number of ranks of this communicator on this host */
    int host, hosts;            /* number of this host, and number of hosts */
    /* The number of ranks that compute at the same time, and of the cores that they may use together. The ranks are
     * those of the communicator that this one was split off; the cores follow from the ranks' affinity masks, the
     * quota of their control group and TUTTI_CPUS. Both count this host, or all hosts on its machine, such as
     * containers, where these have fewer cores for each rank. */
    int host_ranks, host_cores;
} tutti_comm_details;
/* Local; works on a broken communicator, too. TUTTI_ERR_ARGUMENT when an argument is NULL. */
TUTTI_API tutti_status tutti_comm_get(const tutti_comm *comm, tutti_comm_details *details_out);

/* Returns TUTTI_OK while the communicator is whole, else the status that calls on it return (text in
 * tutti_last_error). Local, does not wait. */
TUTTI_API tutti_status tutti_comm_error(tutti_comm *comm);

/* Breaks the communicator here and on its peers: calls and works under way, and later calls, get TUTTI_ERR_ABORTED,
 * with `reason` (copied; may be NULL). One that is broken already keeps its status; this is TUTTI_OK, too. Any thread
 * may call it until tutti_comm_destroy begins: while other threads wait in calls on `comm`, from callbacks of works,
 * and from functions of tutti_submit; but not from a signal handler or from a function of tutti_interrupt_set. Does
 * not wait for ranks. TUTTI_ERR_FORKED in a forked child. */
TUTTI_API tutti_status tutti_comm_abort(tutti_comm *comm, const char *reason);

/* Destroys the communicator. Local: waits for no rank. NULL is allowed. The pointer is invalid afterwards; no other
 * thread may be in a call on it, or begin one; tutti_comm_abort ends such calls, and their threads must have returned
 * before. Works that have not ended end with TUTTI_ERR_ABORTED, here and on the ranks that take part in them; their
 * handles stay valid, are still to be freed, and other threads may wait for them. Ranks that need this one later
 * get TUTTI_ERR_BROKEN. The call waits for a running function of tutti_submit; such a function must not destroy its
 * own communicator (TUTTI_ERR_ARGUMENT; it stays as it was). In a forked child the call does nothing. */
TUTTI_API tutti_status tutti_comm_destroy(tutti_comm *comm);

/* ----------------------------------------------------------------------------------- options and works */

typedef enum tutti_memory {
    TUTTI_MEMORY_ASK = 0, /* the library looks up where the pointer is */
    TUTTI_MEMORY_HOST,
    TUTTI_MEMORY_CUDA
} tutti_memory;

typedef struct tutti_work tutti_work;

/* What a receive received. */
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
    /* For TUTTI_PREMUL_SUM, which needs it (integers: a whole number) */
    double factor TUTTI_ZERO;
    tutti_received *received TUTTI_ZERO; /* blocking receives: what was received; may be NULL */
    tutti_work **work TUTTI_ZERO; /* not NULL: asynchronous; the handle is stored here, and the caller frees it */
} tutti_options;

#define TUTTI_OPTIONS(...) TUTTI_INITIALIZED(tutti_options, __VA_ARGS__)

/* Waits for the operation, up to timeout_ms, or, with -1, until it ends (it has its own deadline). Returns the
 * operation's status (and text), or TUTTI_NOT_YET. Never frees the work. Several threads may wait for one work. Of the
 * wait itself: TUTTI_ERR_INTERRUPTED (see tutti_interrupt_set); TUTTI_ERR_FORKED. */
TUTTI_API tutti_status tutti_work_wait(tutti_work *work, int64_t timeout_ms);
/* Returns 1 when the operation has ended, with success or failure, else 0. Does not wait. */
TUTTI_API int tutti_work_done(const tutti_work *work);

typedef struct tutti_work_details {
    tutti_status status;                  /* TUTTI_NOT_YET until the operation has ended */
    int source;                           /* receives: the sender's rank, else -1 */
    int64_t tag;                          /* receives: the message's tag, else -1 */
    size_t count;                         /* receives: elements received */
    uint64_t sequence;                    /* collectives: number of the operation on its communicator */
    int64_t created_ns, start_ns, end_ns; /* CLOCK_MONOTONIC; 0: not yet */
} tutti_work_details;
/* TUTTI_ERR_ARGUMENT when an argument is NULL. Does not wait. */
TUTTI_API tutti_status tutti_work_get(const tutti_work *work, tutti_work_details *details_out);
/* Returns the operation's error text, "" when it has none. Valid as long as the work. */
TUTTI_API const char *tutti_work_error(const tutti_work *work);

/* Calls `callback(status, context)` once when the operation has ended, on a thread of a pool; if it has ended
 * already, the pool runs the callback at once. The callback may make any call, blocking ones included; the work may
 * be freed before it runs. A work takes one callback; a second is TUTTI_ERR_ARGUMENT. */
typedef void (*tutti_callback)(tutti_status status, void *context);
TUTTI_API tutti_status tutti_work_on_done(tutti_work *work, tutti_callback callback, void *context);
/* Frees the handle; allowed at any time, the operation goes on. NULL is allowed. */
TUTTI_API void tutti_work_free(tutti_work *work);

/* Runs `function(context)` in the place that this call has in the order of what is started on `comm`: after all
 * collectives and functions that were started before, and before all that are started later, on this rank. It runs
 * on a thread of the communicator, which other calls on `comm` wait for. Collectives and messages on `comm` that
 * the function calls run within its turn: therefore all ranks must submit functions that make the same collectives.
 * Collectives in the function must not use options.work or buffers in CUDA memory, and it must not wait for what is
 * started on `comm` later.
 *
 * Local. Of the options only work may be set; without a work the call waits for the function. The work (without one:
 * the call) has the status that the function returns, and its tutti_last_error; the communicator stays whole unless a
 * call on it fails, or the wait is interrupted (TUTTI_ERR_INTERRUPTED). If the communicator breaks before the
 * function's turn, the work ends with that error; if it is destroyed before, with TUTTI_ERR_ABORTED; the function is
 * then not called. `release(context)` (NULL: nothing) is called once, before the work ends, whether the function was
 * called or not, on any thread.
 *
 * A call that is refused calls neither `release` nor the function: TUTTI_ERR_ARGUMENT, also inside of a group or of
 * such a function on `comm`; the status of a broken communicator; TUTTI_ERR_FORKED; TUTTI_ERR_MEMORY;
 * TUTTI_ERR_SYSTEM (no thread). */
TUTTI_API tutti_status tutti_submit(tutti_comm *comm, tutti_status (*function)(void *context),
                                    void (*release)(void *context), void *context, const tutti_options *options);

/* ----------------------------------------------------------------------------------------- collectives
 * n = tutti_comm_size(comm), r = the caller's rank. A call returns when the caller's buffers may be used again. It
 * waits only for ranks whose data the caller needs: the root of a broadcast or scatter, and all ranks but the root of a
 * reduce or gather, may return before other ranks have made the call. tutti_barrier waits for all.
 *
 * Errors of all collectives (device.h has those that CUDA memory adds). Before the start; the communicator stays whole,
 * and the other ranks wait for a correct call of this rank:
 *   TUTTI_ERR_ARGUMENT     a wrong type, root, reduction, count, buffer (NULL, or overlapping another in part) or
 *                          option; options.work inside of a group or of a function of tutti_submit
 *   TUTTI_ERR_MEMORY, TUTTI_ERR_SYSTEM   no memory; no thread for works
 * Later; they break the communicator on all its ranks, and the outputs may hold anything:
 *   TUTTI_ERR_MISMATCH     ranks made different calls
 *   TUTTI_ERR_TIMEOUT      a rank did not arrive by the deadline (timeout_ms)
 *   TUTTI_ERR_PEER_DIED    a rank's process ended, or its host is unreachable
 *   TUTTI_ERR_BROKEN       a rank has destroyed the communicator
 *   TUTTI_ERR_ABORTED      tutti_comm_abort, or a rank destroyed it or was interrupted in the midst of operations
 *   TUTTI_ERR_INTERRUPTED  on the rank that was interrupted (tutti_interrupt_set)
 *   TUTTI_ERR_MEMORY, TUTTI_ERR_SYSTEM, TUTTI_ERR_DATA   on any rank; between hosts also TUTTI_ERR_UNSUPPORTED,
 *                          TUTTI_ERR_CONFIG and TUTTI_ERR_REFUSED, where a connection cannot be made
 * With options.work the call itself returns the errors of the first group, TUTTI_ERR_FORKED, and the status of a
 * communicator that is broken already, and then stores no work; the work gets the others. */

/* dst[i] = reduction over ranks of src[i], i < count; count, type, reduction equal on every rank. */
TUTTI_API tutti_status tutti_all_reduce(tutti_comm *comm, const void *src, void *dst, size_t count, tutti_type type,
                                        tutti_reduction reduction, const tutti_options *options);
/* As tutti_all_reduce, but only root gets the result; dst is ignored on other ranks (may be NULL). */
TUTTI_API tutti_status tutti_reduce(tutti_comm *comm, const void *src, void *dst, size_t count, tutti_type type,
                                    tutti_reduction reduction, int root, const tutti_options *options);
/* Copies buffer[0..count) of root to buffer on every rank. */
TUTTI_API tutti_status tutti_broadcast(tutti_comm *comm, void *buffer, size_t count, tutti_type type, int root,
                                       const tutti_options *options);
/* src: count elements; dst: n*count, those of rank i at dst[i*count]. In place: src == dst + r*count elements. */
TUTTI_API tutti_status tutti_all_gather(tutti_comm *comm, const void *src, void *dst, size_t count, tutti_type type,
                                        const tutti_options *options);
/* src: n*count elements; dst: count, the reduction over ranks of src[r*count..]. In place: dst == src + r*count. */
TUTTI_API tutti_status tutti_reduce_scatter(tutti_comm *comm, const void *src, void *dst, size_t count, tutti_type type,
                                            tutti_reduction reduction, const tutti_options *options);
/* src[i*count..] goes to rank i's dst[r*count..]; both n*count elements. In place: src == dst. */
TUTTI_API tutti_status tutti_all_to_all(tutti_comm *comm, const void *src, void *dst, size_t count, tutti_type type,
                                        const tutti_options *options);
/* Every rank's src (count) goes to root's dst[rank*count..]; dst is ignored on other ranks. In place on root. */
TUTTI_API tutti_status tutti_gather(tutti_comm *comm, const void *src, void *dst, size_t count, tutti_type type,
                                    int root, const tutti_options *options);
/* Root's src[rank*count..] goes to every rank's dst (count); src is ignored on other ranks. In place on root. */
TUTTI_API tutti_status tutti_scatter(tutti_comm *comm, const void *src, void *dst, size_t count, tutti_type type,
                                     int root, const tutti_options *options);
/* Returns on no rank before every rank has called it. */
TUTTI_API tutti_status tutti_barrier(tutti_comm *comm, const tutti_options *options);

/* Variants with a count and a pointer per rank, so that lists of separate buffers need not be flattened. The arrays
 * have n entries and are copied by the call. Counts are compared pairwise: the receiver must expect the count that
 * the sender sends (else TUTTI_ERR_MISMATCH). A rank's count for itself must be equal on both sides, and its buffers
 * must not overlap (else TUTTI_ERR_ARGUMENT). A pointer may be NULL where its count is 0. In place: a rank's own entry
 * is its own buffer. */

/* src: src_count elements; dsts[i]: counts[i] elements from rank i; counts equal on every rank. */
TUTTI_API tutti_status tutti_all_gather_v(tutti_comm *comm, const void *src, size_t src_count, void *const *dsts,
                                          const size_t *counts, tutti_type type, const tutti_options *options);
/* srcs[i]: counts[i] elements for rank i; dst: counts[r] elements; counts equal on every rank. */
TUTTI_API tutti_status tutti_reduce_scatter_v(tutti_comm *comm, const void *const *srcs, void *dst,
                                              const size_t *counts, tutti_type type, tutti_reduction reduction,
                                              const tutti_options *options);
/* srcs[i], src_counts[i] elements, goes to rank i; dsts[i], dst_counts[i] elements, comes from rank i. */
TUTTI_API tutti_status tutti_all_to_all_v(tutti_comm *comm, const void *const *srcs, const size_t *src_counts,
                                          void *const *dsts, const size_t *dst_counts, tutti_type type,
                                          const tutti_options *options);
/* Root: dsts[i], counts[i] for every rank i (ignored on other ranks). */
TUTTI_API tutti_status tutti_gather_v(tutti_comm *comm, const void *src, size_t src_count, void *const *dsts,
                                      const size_t *counts, tutti_type type, int root, const tutti_options *options);
/* Root: srcs[i], counts[i] for every rank i (ignored on other ranks). */
TUTTI_API tutti_status tutti_scatter_v(tutti_comm *comm, const void *const *srcs, const size_t *counts, void *dst,
                                       size_t dst_count, tutti_type type, int root, const tutti_options *options);

/* --------------------------------------------------------------------------------------- point to point
 * Errors are those of collectives, from the call and the work as there, except TUTTI_ERR_MISMATCH. A rank's death is
 * an error only of messages that need that rank; those of TUTTI_ANY_SOURCE need all. Two more errors leave the
 * communicator whole, except in CUDA memory without a work, where they break it:
 *   TUTTI_ERR_TRUNCATED   a receive: the message is longer than count. It is consumed; the buffer holds its beginning
 *                         (in CUDA memory: nothing of it), and options.received and tutti_work_get describe it
 *   TUTTI_ERR_BROKEN      the peer has destroyed the communicator; what it sent before can be received all the same
 *
 * CUDA memory (device.h): a send copies its buffer in stream order, and then sends. A receive takes a message from the
 * call on, whatever its stream does; the stream waits for it there. Sends in CUDA memory with one peer and tag keep
 * the order of their calls, even in several streams; a send in host memory may overtake them. */

#define TUTTI_ANY_SOURCE (-1)
#define TUTTI_ANY_TAG    (-1)

/* Sends count elements to `peer` (self allowed) under `tag` (>= 0). Returns when src may be reused. Messages of one
 * pair and tag are received in the order in which the sends were called, except that one from host memory may come
 * before earlier ones from CUDA memory. Small messages do not wait for the receive. */
TUTTI_API tutti_status tutti_send(tutti_comm *comm, const void *src, size_t count, tutti_type type, int peer,
                                  int64_t tag, const tutti_options *options);
/* Receives up to count elements. peer may be TUTTI_ANY_SOURCE, tag may be TUTTI_ANY_TAG. options.received or
 * tutti_work_get reports what was received. */
TUTTI_API tutti_status tutti_recv(tutti_comm *comm, void *dst, size_t count, tutti_type type, int peer, int64_t tag,
                                  const tutti_options *options);

/* Calls on `comm` by this thread between begin and end are checked and recorded. end starts them all (sends and
 * receives are posted before anything waits) and is one operation: it returns, or its work ends, when all of them
 * have ended. Buffers and options.received of the calls inside must stay until then. options.work must not be set on
 * them. A thread has one group at a time: a second begin is TUTTI_ERR_ARGUMENT, as is end without an open group on
 * `comm`, or with options of a wrong size, which leaves the group open. Calls inside return TUTTI_ERR_ARGUMENT,
 * TUTTI_ERR_MEMORY or the status of a broken communicator; on an error cancel the group. After any other error of end
 * the group is closed: the error, of the call or of its work, is the first one of the operations inside. If one of
 * them cannot be started while others are under way, the communicator breaks, which ends those, and no work is
 * stored. */
TUTTI_API tutti_status tutti_group_begin(tutti_comm *comm);
TUTTI_API tutti_status tutti_group_end(tutti_comm *comm, const tutti_options *options);
/* Discards what was recorded since tutti_group_begin, in place of tutti_group_end. TUTTI_ERR_ARGUMENT: as end. */
TUTTI_API tutti_status tutti_group_cancel(tutti_comm *comm);

/* ---------------------------------------------------------------------------------------------- memory */

/* Allocates memory that peers on this host map, so that collectives on it skip a copy; all_reduce is fastest on it
 * in place. Aligned to 64 bytes (from 4 KiB on: to a page). Local, caching, under 1 us when warm. Free it with
 * tutti_mem_free. In a forked child it stays shared with the parent. After a failed call in which a peer was
 * stopped, that peer may still write into the call's buffer once it goes on; it never writes into what is allocated
 * later. TUTTI_ERR_MEMORY: the shared heap is full (TUTTI_HEAP_BYTES); TUTTI_ERR_SYSTEM: the system gives none;
 * TUTTI_ERR_FORKED: in a forked child. */
TUTTI_API tutti_status tutti_mem_alloc(size_t bytes, void **memory_out);
/* Frees memory of tutti_mem_alloc or tutti_mem_alloc_cuda; NULL is allowed; any other pointer is TUTTI_ERR_ARGUMENT.
 * TUTTI_ERR_FORKED: in a forked child; TUTTI_ERR_SYSTEM: the GPU has failed; TUTTI_ERR_MEMORY: no room in the heap's
 * lists, and the memory stays allocated. */
TUTTI_API tutti_status tutti_mem_free(void *memory);
/* Announces [memory, memory + bytes) as memory that calls will use often. Where data goes between hosts by RDMA, the
 * first transfer that uses a part of it registers all of it with the adapter, and later ones find it registered;
 * elsewhere the call changes nothing. The memory must stay valid until tutti_mem_deregister. TUTTI_ERR_ARGUMENT: memory
 * is NULL, bytes is 0, the range wraps around, or it begins where another one does; TUTTI_ERR_MEMORY. Local. */
TUTTI_API tutti_status tutti_mem_register(void *memory, size_t bytes);
/* Ends the registration that begins at `memory`; TUTTI_ERR_ARGUMENT when there is none. */
TUTTI_API tutti_status tutti_mem_deregister(void *memory);

/* Finds the address at which this process can read [memory, memory + bytes), where `memory` is an address in
 * `peer`: memory of its tutti_mem_alloc, on this host; or any memory of a rank that is a thread of this process.
 * NULL: this process cannot read it, as with ranks of other hosts. For the own rank it is the address itself, or
 * NULL where the other ranks of this host could not read it. Local, a few nanoseconds.
 *
 * The address stays valid until `comm` is destroyed, even if the peer's process ends; the memory belongs to the
 * peer and must not be written. It has what the peer stored before the peer entered a collective in which this rank
 * waited for it, such as a barrier. The peer must not change or free the memory before this rank has finished
 * reading, which another barrier can ensure. When that barrier fails, what was read may be anything.
 * TUTTI_ERR_ARGUMENT: `comm` or `here_out` is NULL, or `peer` is not one of its ranks. In a forked child it is
 * TUTTI_ERR_FORKED. */
TUTTI_API tutti_status tutti_mem_peer(tutti_comm *comm, int peer, const void *memory, size_t bytes,
                                      const void **here_out);

/* ------------------------------------------------------------------------------------------------ RDMA */

/* Opens this process's RDMA adapters now instead of at the first connection to another host, so that the program
 * learns at once whether there are any. TUTTI_ERR_UNSUPPORTED, with the reason: there is no adapter, none of its
 * ports is usable, or this build has no libtutti_verbs; communicators then use other transports. Local; needs no
 * other rank; may be called again. */
TUTTI_API tutti_status tutti_init_rdma(void);
/* Returns 1 when the adapters are open, through tutti_init_rdma or a connection, else 0. */
TUTTI_API int tutti_rdma_is_initialized(void);

/* Requires RDMA: checks that the hosts of `comm` reach each other by their RDMA adapters, and from then on allows
 * nothing else to carry data between them. Collective over `comm`, on its calling threads; returns when all ranks
 * have the result.
 *
 * It connects every host with every other host by libibverbs (transport "verbs"; rank by rank where all hosts have
 * the same number of ranks, else by the first rank of each). It returns TUTTI_OK on all ranks where all of that
 * succeeds. Otherwise all ranks get the same error, with up to three hosts and the reason for each:
 * TUTTI_ERR_UNSUPPORTED: a host has no usable adapter, or its adapter does not reach that of another host, which is
 * named, too; TUTTI_ERR_CONFIG: TUTTI_TRANSPORT or TUTTI_ENCRYPT excludes verbs on a host. After these errors the
 * communicator is whole, as it was before. A rank that does not make the call, or dies, is a timeout or a death as
 * in any collective.
 *
 * Afterwards collectives and messages in host memory go between these processes by verbs, or fail and break their
 * communicator: on `comm`, on those split from it, and on those created later that have the same processes. An
 * adapter that fails for longer than TUTTI_PEER_TIMEOUT_MS is an error, as is an adapter that reaches no peer when
 * a connection is made; TCP never takes over. This does not apply to the store, heartbeats and the setup of
 * connections, which stay on TCP; to ranks of one host, which share memory; and to what NCCL carries between GPUs:
 * NCCL chooses its own network (NCCL_NET=IB leaves it no other than RDMA).
 *
 * On one host there is no other host to reach, but an adapter is needed all the same. After a success, further
 * calls return TUTTI_OK at once; after a failure the call may be tried again. A forked child has no communicator:
 * there the call is TUTTI_ERR_FORKED. TUTTI_ERR_ARGUMENT, on this rank alone: `comm` is NULL, or this thread has a
 * group open. */
TUTTI_API tutti_status tutti_comm_init_rdma(tutti_comm *comm);

#ifdef __cplusplus
}
#endif

#endif
