/*
 * The parts of tuttirun:
 *
 *   launch.c           hosts the store and starts attempts
 *   launch_options.c   reads the command line
 *   launch_command.c   finds the program to run
 *   launch_bind.c      chooses the cores of each rank
 *   launch_process.c   starts one rank
 *   launch_output.c    forwards its output lines, and prints tuttirun's own
 *   launch_group.c     watches the ranks of an attempt until the last has ended
 *   launch_nodes*.c    exchange events with the tuttiruns of other nodes
 *   launch_list.c      finds this node in a list of nodes
 *   launch_table.c     reads and writes rank tables
 *   launch_keeper.c    cleans up after a tuttirun that was killed
 *
 * One thread does all of this, driven by a signalfd, the pipes of the ranks and news from other nodes. The store
 * and the communication with other nodes have threads of their own.
 */
#ifndef TUTTI_BOOTSTRAP_LAUNCH_H
#define TUTTI_BOOTSTRAP_LAUNCH_H

#include <limits.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/resource.h>
#include <sys/types.h>

#include <tutti/tutti.h>

#include "bootstrap/store/secret.h"
#include "tools/tuttirun/launch_nodes.h"
#include "tools/tuttirun/launch_place.h"

enum { TUTTI_LAUNCH_OUT = 1, TUTTI_LAUNCH_ERR = 2, TUTTI_LAUNCH_BOTH = 3 }; /* masks of --tee and --redirects */

/* --------------------------------------------------------------------------------------------- options */

/* What a rank table says of a local rank. */
typedef struct tutti_launch_entry {
    int rank, device;
} tutti_launch_entry;

typedef struct tutti_launch_options {
    int nnodes, node_rank, nproc;
    int size;                    /* ranks of all nodes */
    tutti_launch_entry *entries; /* by local rank; NULL: there is no rank table, and ranks count on from node to node */
    int table_hash;              /* of the rank table; 0: there is none */
    const char *master_addr;
    int master_port; /* 0: any free port */
    bool module, no_python;
    bool standalone;
    int max_restarts;
    const char *logdir; /* OneFlow's: <logdir>/local_rank_<n>/{stdout,stderr} */
    bool redirect_all;  /* output goes only to the files in logdir */
    /* MindSpore's: ranks run in <rank_dirs><rank>, with log<rank> and env<rank>.log */
    const char *rank_dirs;
    const char *log_dir;            /* torchrun's */
    const char *tee, *redirects;    /* "3" or "0:1,1:3" */
    const char *local_ranks_filter; /* "0,2": local ranks whose output is shown; NULL: all */
    bool no_prefix;
    const char *run_id;
    const char *role;
    tutti_launch_place place;
    bool near_gpus; /* place each rank near its GPU, if there are GPUs */
    bool help, version;
    char **program; /* the program and its arguments, ended by NULL */
    /* As the user wrote them, before they are checked and converted to the fields above. */
    const char *nnodes_text, *nproc_text, *endpoint, *backend, *bind, *numa_binding;
    const char *count_text;       /* mpirun's -n */
    const char *nodes;            /* OneFlow's list of nodes */
    const char *rank_table;       /* after the checks: its path from the root */
    const char *write_rank_table; /* write a table of the nodes and ranks, and start nothing */
} tutti_launch_options;

/* Reads the command line and the PET_* variables. Each error is one line. */
tutti_status tutti_launch_options_parse(int argc, char **argv, tutti_launch_options *options_out);
void tutti_launch_options_help(void);
/* Returns the mask of a local rank, from "3" or "0:1,1:3". */
tutti_status tutti_launch_mask(const char *text, int local_rank, int *mask_out);
/* Whether the list "0,2" (NULL: all local ranks) contains the local rank. */
bool tutti_launch_listed(const char *list, int local_rank);

static inline int tutti_launch_rank_of(const tutti_launch_options *options, int local_rank) {
    if (options->entries != NULL) return options->entries[local_rank].rank;
    return options->node_rank * options->nproc + local_rank;
}

/* Takes nodes and ranks from the rank table of the options. */
tutti_status tutti_launch_read_table(tutti_launch_options *options);
/* Writes a rank table of the nodes and ranks that these options would start. */
tutti_status tutti_launch_write_table(const tutti_launch_options *options);

/* The value of --nodes as hosts separated by commas: from itself, from OneFlow's list [{"addr": "192.168.1.12"}, ...],
 * or from @FILE. Release it with free(). */
tutti_status tutti_launch_expand_nodes(const char *text, char **list_out);
/* Finds this host in the list of nodes "192.168.1.12,192.168.1.11" (or Slurm's "node[1-4]"), by its name or by one
 * of its addresses. */
tutti_status tutti_launch_find_node(const char *list, int *node_out);
/* Writes "eth0 10.0.0.1, lo 127.0.0.1": the addresses of this host. */
void tutti_launch_list_own(char *text, size_t capacity);
/* Returns the number of hosts in the list, and the first one, which hosts the store; fails if the list is
 * malformed. */
tutti_status tutti_launch_read_nodes(const char *list, int *nnodes_out, char *first_out, size_t capacity);

/* --------------------------------------------------------------------------------------------- command */

/* The argument vector that runs the program, directly or with the Python interpreter. Release it with free(). */
tutti_status tutti_launch_command(const tutti_launch_options *options, char ***argv_out);

/* ------------------------------------------------------------------------------------------------ cores */

/* The cores of the ranks of this node. */
typedef struct tutti_launch_binding {
    tutti_topology topology;
    tutti_place_range *ranges; /* by local rank; NULL: no rank is bound */
} tutti_launch_binding;

/* Reads --bind and --numa-binding into place and near_gpus. */
tutti_status tutti_launch_bind_parse(tutti_launch_options *options);
/* Chooses the cores of all ranks and logs the choice. Release it with tutti_launch_bind_free(). */
tutti_status tutti_launch_bind_plan(const tutti_launch_options *options, tutti_launch_binding *binding_out);
void tutti_launch_bind_free(tutti_launch_binding *binding);
/* Binds the calling process; async-signal-safe. */
void tutti_launch_bind_self(const tutti_launch_binding *binding, int local_rank);
/* The NUMA nodes of the GPUs that ranks [0..nranks) use, read from the folders proc and sys in `root` ("" or a
 * folder) and the value of CUDA_VISIBLE_DEVICES (NULL: not set). Returns false if not every rank has a known GPU;
 * nodes_out is invalid then. */
bool tutti_launch_gpu_nodes(const char *root, const char *visible, int nranks, int *nodes_out);

/* ---------------------------------------------------------------------------------------------- output */

/* Prints one line on standard error, "tuttirun: ...". */
void tutti_launch_say(const char *format, ...) TUTTI_PRINTF(1, 2);

/* One of the two output streams of a rank. */
typedef struct tutti_launch_stream {
    int pipe_fd;     /* our end of the pipe; -1: the rank writes elsewhere by itself, or has ended */
    int file_fd;     /* log file; -1: none */
    int terminal_fd; /* our STDOUT_FILENO or STDERR_FILENO; -1: not shown */
    int local_rank;
    bool reader_gone;    /* the reader of our output has closed it */
    size_t prefix, used; /* line[0..prefix) is "[0] ", line[prefix..used) an unfinished line */
    char *line;
} tutti_launch_stream;

tutti_status tutti_launch_stream_open(int pipe_fd, int file_fd, int terminal_fd, int local_rank, bool prefixed,
                                      tutti_launch_stream *stream_out);
/* Forwards what is in the pipe; closes the pipe at its end. */
void tutti_launch_stream_carry(tutti_launch_stream *stream);
/* Forwards the rest, ends an unfinished line and closes the stream. */
void tutti_launch_stream_close(tutti_launch_stream *stream);

/* ---------------------------------------------------------------------------------------------- ranks */

typedef struct tutti_launch_rank {
    int rank, local_rank;
    pid_t pid; /* also the id of its process group */
    bool running, stopped, stop_expected, failed;
    int stop_signal;
    int64_t stopped_ns;
    int exit_code; /* as in a shell: 128 + signal for a death by signal */
    int signal;    /* signal that killed it; 0: none */
    char error_file[PATH_MAX];
    tutti_launch_stream out, err;
} tutti_launch_rank;

/* State that all attempts of a job share. */
typedef struct tutti_launch_job {
    const tutti_launch_options *options;
    char **argv;
    tutti_launch_binding binding;
    const char *master_addr;
    int master_port;
    tutti_launch_nodes *nodes; /* connection to the other nodes; NULL: there are none */
    char host[256];
    pid_t pid;                       /* pid of tuttirun, also in the keeper */
    char secret[TUTTI_SECRET_BYTES]; /* secret of the job; "": none */
    bool made_secret;                /* this tuttirun created the secret for its ranks */
    char log_root[PATH_MAX / 2];     /* folder of the log files; "": none */
    sigset_t child_signals;          /* signal mask that ranks start with */
    struct rlimit child_files;       /* limit of open files that ranks start with */
    int signal_fd, keeper_fd;
} tutti_launch_job;

/* Creates the folder for log files, if the options ask for files. */
tutti_status tutti_launch_log_root(tutti_launch_job *job);
/* Starts one rank of the attempt. */
tutti_status tutti_launch_rank_start(const tutti_launch_job *job, int attempt, int local_rank,
                                     tutti_launch_rank *rank_out);

/* ----------------------------------------------------------------------------------------------- group */

typedef struct tutti_launch_result {
    int exit_code;
    bool again;     /* several nodes: all ranks start again */
    bool signalled; /* tuttirun received a signal to end */
} tutti_launch_result;

/* Runs all ranks of one attempt; returns when all have ended. */
tutti_status tutti_launch_attempt(const tutti_launch_job *job, int attempt, tutti_launch_result *result_out);

/* ---------------------------------------------------------------------------------------------- keeper */

/* Called by the keeper when tuttirun has been killed, as its last step and for a bounded time. say == NULL:
 * nothing. */
typedef struct tutti_launch_last_words {
    void (*say)(void *context);
    void *context;
} tutti_launch_last_words;

/* Starts the keeper. Messages to the keeper are written to *fd_out. Must be called before any other descriptor is
 * opened. */
tutti_status tutti_launch_keeper_start(const tutti_launch_last_words *words, int *fd_out);
/* Registers a process group that must end with tuttirun; -group: the group has ended. */
void tutti_launch_keeper_add(int fd, pid_t group);
/* Reports that all groups have ended, and ends the keeper. */
void tutti_launch_keeper_stop(int fd);

#endif
