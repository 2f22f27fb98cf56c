/*
 * What the files of this folder share: checks of a caller's arguments; the path from a checked call to its execution
 * (at once, queued with a work, or recorded in a group); the choice of an algorithm; and the steps that all ways to
 * create a communicator share (world, split, group).
 */
#ifndef TUTTI_API_H
#define TUTTI_API_H

#include "comm/base/op.h"

/* -------------------------------------------------------------------------------------------------- arguments.c */

/* Uniform kinds: buffers of src_count and dst_count elements (0: not used on this rank). They may overlap only
 * where one is the slice of the other that starts at element own_slice (in place). */
tutti_status tutti_arguments_check(const tutti_op *op, const void *src, size_t src_count, const void *dst,
                                   size_t dst_count, size_t own_slice);
/* v-kinds: checks every entry; a rank's own input may be its own output. */
tutti_status tutti_arguments_check_lists(const tutti_op *op, int nranks, int rank);
/* options may be NULL; `name` is the name of the call. */
tutti_status tutti_options_check(const tutti_options *options, const char *name);

/* At the beginning of each call that has a parameter `options`: options of another version's size are copied. */
#define TUTTI_TAKE_OPTIONS(name)                                                                                       \
    tutti_options taken_options;                                                                                       \
    if (TUTTI_UNLIKELY(options != NULL && options->struct_bytes != sizeof *options)) {                                 \
        TUTTI_TRY(                                                                                                     \
            tutti_struct_take(name ": options", "TUTTI_OPTIONS(...)", options, &taken_options, sizeof taken_options)); \
        options = &taken_options;                                                                                      \
    }

/* ----------------------------------------------------------------------------------------------------- submit.c */

/* options may be NULL. The op's arrays are copied if they must outlive the call. */
tutti_status tutti_submit_op(tutti_comm *comm, tutti_op *op, const tutti_options *options);
tutti_status tutti_submit_message(tutti_comm *comm, tutti_message *message, const tutti_options *options);

/* Returns true if this thread records a group on comm. */
bool tutti_group_is_open(const tutti_comm *comm);

/* ----------------------------------------------------------------------------------------------------- select.c */

/* Numbers op and runs the first row of the table that fits it; TUTTI_ALGORITHM overrides it where its row fits. The
 * choice depends only on values that are equal on all ranks. For the thread that holds the queue (comm->run). Any
 * failure breaks the communicator, since its ranks would no longer agree on the next call. */
tutti_status tutti_select_and_run(tutti_comm *comm, tutti_op *op);

/* Returns the row named by TUTTI_ALGORITHM, -1 if it is not set; TUTTI_ERR_CONFIG if no row has that name. */
tutti_status tutti_select_forced(int *row_out);

/* The rows of the table, for tutti-info; NULL after the last. */
const char *tutti_select_row(int index, char *text, size_t capacity);

/* ------------------------------------------------------------------------------------------------------- comm.c */

/* Makes a communicator with its own page and no data of other ranks yet. */
tutti_status tutti_create_begin(int rank, int nranks, const tutti_comm_options *options, const char *name,
                                tutti_comm **comm_out);
/* All members, host_ranks and host_cores are filled in: opens the communicator and meets the other ranks. */
tutti_status tutti_create_end(tutti_comm *comm);
/* Frees the struct and what belongs to it; for tutti_comm_release. */
void tutti_comm_free(tutti_comm *comm);
/* Removes a communicator whose creation failed; peers that see its page get the thread's error text. NULL: nothing. */
void tutti_create_cancel(tutti_comm *comm);

#endif
