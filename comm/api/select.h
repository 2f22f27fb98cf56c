/*
 * Which algorithm carries out an operation.
 */
#ifndef TUTTI_SELECT_H
#define TUTTI_SELECT_H

#include "comm/base/comm.h"

/* The first row of the table that fits op; TUTTI_ALGORITHM overrides where it fits. Every rank chooses the same: only
 * what is equal on all ranks is looked at. */
tutti_status tutti_select_and_run(tutti_comm *comm, const tutti_op *op);

/* The row named by TUTTI_ALGORITHM, -1 when it is not set; a name that no row has is TUTTI_ERR_CONFIG. */
tutti_status tutti_select_forced(int *row_out);

/* The table's rows, for tutti-info; NULL after the last. */
const char *tutti_select_row(int index, char *text, size_t capacity);

#endif
