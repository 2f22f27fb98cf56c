/*
 * Selects the algorithm that carries out an operation.
 */
#ifndef TUTTI_SELECT_H
#define TUTTI_SELECT_H

#include "comm/base/comm.h"

/* Numbers op and runs the first row of the table that fits it; TUTTI_ALGORITHM overrides it where its row fits. The
 * choice depends only on values that are equal on all ranks, so every rank chooses the same row. For the thread that
 * holds the queue (comm->run). Any failure breaks the communicator, since its ranks would no longer agree on the next
 * call. */
tutti_status tutti_select_and_run(tutti_comm *comm, tutti_op *op);

/* Returns the row named by TUTTI_ALGORITHM, -1 if it is not set; fails with TUTTI_ERR_CONFIG if no row has that
 * name. */
tutti_status tutti_select_forced(int *row_out);

/* The rows of the table, for tutti-info; NULL after the last. */
const char *tutti_select_row(int index, char *text, size_t capacity);

#endif
