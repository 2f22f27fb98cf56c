/*
 * The path from a checked call to its execution: at once, queued with a work, or recorded in a group.
 */
#ifndef TUTTI_SUBMIT_H
#define TUTTI_SUBMIT_H

#include "comm/base/comm.h"
#include "comm/base/message.h"

/* options may be NULL. The op's arrays are copied if they must outlive the call. */
tutti_status tutti_submit_op(tutti_comm *comm, tutti_op *op, const tutti_options *options);
tutti_status tutti_submit_message(tutti_comm *comm, tutti_message *message, const tutti_options *options);

/* Returns true if this thread records a group on comm. */
bool tutti_group_is_open(const tutti_comm *comm);

#endif
