/*
 * tuttirun's parts. launch.c hosts the store and starts attempts; launch_options.c reads the command line;
 * launch_command.c finds what to run; launch_bind.c decides on which cores; launch_process.c starts one rank;
 * launch_output.c carries its lines; launch_group.c watches an attempt's ranks until the last has ended;
 * launch_nodes*.c tell other nodes' tuttiruns of it, and us of theirs; launch_list.c finds this node in a list of nodes;
 * launch_keeper.c cleans up after a killed tuttirun.
 *
 * One thread does all of it (the store and the talk with other nodes have their own), driven by a signalfd, the ranks'
 * pipes and news from other nodes.
 */
#ifndef TUTTI_BOOTSTRAP_LAUNCH_H
#define TUTTI_BOOTSTRAP_LAUNCH_H

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/resource.h>
#include <sys/types.h>

#include <tutti/tutti.h>

#include "tools/tuttirun/launch_nodes.h"
#include "tools/tuttirun/launch_place.h"
#include "bootstrap/store/secret.h"

enum { TUTTI_LAUNCH_OUT = 1, TUTTI_LAUNCH_ERR = 2, TUTTI_LAUNCH_BOTH = 3 }; /* masks of --tee and --redirects */

/* --------------------------------------------------------------------------------------------- options */

typedef struct tutti_launch_options {
    int nnodes, node_rank, nproc;
    const char *master_addr;
    int master_port; /* 0: any free one */
    bool module, no_python;
    bool standalone;
    int max_restarts;
    const char *logdir;             /* OneFlow's: <logdir>/local_rank_<n>/{stdout,stderr} */
    bool redirect_all;              /* only there */
    const char *rank_dirs;          /* MindSpore's: ranks run in <rank_dirs><rank>, with log<rank> and env<rank>.log */
    const char *log_dir;            /* torchrun's */
    const char *tee, *redirects;    /* "3" or "0:1,1:3" */
    const char *local_ranks_filter; /* "0,2": whose output is shown; NULL: all */
    bool no_prefix;
    const char *run_id;
    const char *role;
    tutti_launch_place place;
    bool near_gpus; /* a rank's place is near its GPU, where there are GPUs */
    bool help, version;
    char **program; /* the program and its arguments, ended by NULL */
    /* As written, before they are checked and turned into the above. */
    const char *nnodes_text, *nproc_text, *endpoint, *backend, *bind, *numa_binding;
    const char *count_text; /* mpirun's -n */
    const char *nodes;      /* OneFlow's list of nodes */
} tutti_launch_options;

/* Reads the command line and PET_* variables. Any error is one line. */
tutti_status tutti_launch_options_parse(int argc, char **argv, tutti_launch_options *options_out);
void tutti_launch_options_help(void);
/* The mask for a local rank, from "3" or "0:1,1:3". */
tutti_status tutti_launch_mask(const char *text, int local_rank, int *mask_out);
/* Whether the list "0,2" (NULL: everybody) names the local rank. */
bool tutti_launch_listed(const char *list, int local_rank);

/* Which of the nodes in the list "192.168.1.12,192.168.1.11" (Slurm's "node[1-4]" too) this host is: by its name, or by an
 * address of its own. */
tutti_status tutti_launch_find_node(const char *list, int *node_out);
/* The list's length, and its first host, where the store is; an error where it cannot be read. */
tutti_status tutti_launch_read_nodes(const char *list, int *nnodes_out, char *first_out, size_t capacity);

/* --------------------------------------------------------------------------------------------- command */

/* The argument vector that runs the program: itself, or the Python interpreter first. Free with free(). */
tutti_status tutti_launch_command(const tutti_launch_options *options, char ***argv_out);

/* ------------------------------------------------------------------------------------------------ cores */

/* Where the ranks of this node run. */
typedef struct tutti_launch_binding {
    tutti_topology topology;
    tutti_place_range *ranges; /* by local rank; NULL: nobody is bound */
} tutti_launch_binding;

/* Reads --bind and --numa-binding into place and near_gpus. */
tutti_status tutti_launch_bind_parse(tutti_launch_options *options);
/* Decides, and logs what it has decided. Free it at the end. */
tutti_status tutti_launch_bind_plan(const tutti_launch_options *options, tutti_launch_binding *binding_out);
void tutti_launch_bind_free(tutti_launch_binding *binding);
/* Binds the calling process; async-signal-safe. */
void tutti_launch_bind_self(const tutti_launch_binding *binding, int local_rank);
/* The NUMA nodes of the GPUs that ranks [0..nranks) use, by the folders proc and sys in `root` ("" or a folder) and the
 * value of CUDA_VISIBLE_DEVICES (NULL: not set). False, and nothing filled in, when not every rank has a known GPU. */
bool tutti_launch_gpu_nodes(const char *root, const char *visible, int nranks, int *nodes_out);

/* ---------------------------------------------------------------------------------------------- output */

/* One of a rank's two streams. */
typedef struct tutti_launch_stream {
    int pipe_fd;     /* our end; -1: the rank writes elsewhere by itself, or has ended */
    int file_fd;     /* the log, -1: none */
    int terminal_fd; /* ours, STDOUT_FILENO or STDERR_FILENO; -1: not shown */
    int local_rank;
    bool reader_gone;    /* nobody reads our output any longer */
    size_t prefix, used; /* line[0..prefix) is "[0] ", line[prefix..used) an unfinished line */
    char *line;
} tutti_launch_stream;

tutti_status tutti_launch_stream_open(int pipe_fd, int file_fd, int terminal_fd, int local_rank, bool prefixed,
                                      tutti_launch_stream *stream_out);
/* Carries what is in the pipe; closes the pipe at its end. */
void tutti_launch_stream_carry(tutti_launch_stream *stream);
/* Carries the rest, ends an unfinished line and closes. */
void tutti_launch_stream_close(tutti_launch_stream *stream);

/* ---------------------------------------------------------------------------------------------- ranks */

typedef struct tutti_launch_rank {
    int rank, local_rank;
    pid_t pid; /* also its process group */
    bool running, stopped, stop_expected, failed;
    int stop_signal;
    int64_t stopped_ns;
    int exit_code; /* as a shell counts: 128 + signal for a death by signal */
    int signal;    /* it died of, 0: none */
    char error_file[512];
    tutti_launch_stream out, err;
} tutti_launch_rank;

/* What is the same for all attempts of a job. */
typedef struct tutti_launch_job {
    const tutti_launch_options *options;
    char **argv;
    tutti_launch_binding binding;
    const char *master_addr;
    int master_port;
    tutti_launch_nodes *nodes; /* the other nodes; NULL: there are none */
    char host[256];
    pid_t pid;                       /* our own, for the keeper, too */
    char secret[TUTTI_SECRET_BYTES]; /* the job's; "": it has none */
    bool made_secret;                /* by this tuttirun, for its ranks */
    char log_root[400];              /* of the files; "": none */
    sigset_t child_signals;          /* the mask that ranks start with */
    struct rlimit child_files;       /* and their limit of open files */
    int signal_fd, keeper_fd;
} tutti_launch_job;

/* The folder for log files, made now, if the options ask for files. */
tutti_status tutti_launch_log_root(tutti_launch_job *job);
/* Starts a rank of the attempt. */
tutti_status tutti_launch_rank_start(const tutti_launch_job *job, int attempt, int local_rank,
                                     tutti_launch_rank *rank_out);

/* ----------------------------------------------------------------------------------------------- group */

typedef struct tutti_launch_result {
    int exit_code;
    bool again;     /* several nodes: all start again */
    bool signalled; /* somebody asked tuttirun to end */
} tutti_launch_result;

/* Runs all ranks of one attempt; returns when none is left. */
tutti_status tutti_launch_attempt(const tutti_launch_job *job, int attempt, tutti_launch_result *result_out);

/* ---------------------------------------------------------------------------------------------- keeper */

/* What the keeper does when tuttirun has been killed, at the end, and for a bounded time. NULL: nothing. */
typedef struct tutti_launch_last_words {
    void (*say)(void *context);
    void *context;
} tutti_launch_last_words;

/* Starts the keeper; what it must know is written to *fd_out. Call before any other descriptor is opened. */
tutti_status tutti_launch_keeper_start(const tutti_launch_last_words *words, int *fd_out);
/* Tells the keeper of a process group that must end with tuttirun; -group: it has ended. */
void tutti_launch_keeper_add(int fd, pid_t group);
/* All groups have ended; the keeper ends too. */
void tutti_launch_keeper_stop(int fd);

/* One line on standard error, "tuttirun: ...". */
void tutti_launch_say(const char *format, ...) TUTTI_PRINTF(1, 2);

#endif
