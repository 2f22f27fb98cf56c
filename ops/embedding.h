/*
 * Rows of table lookups.
 */
#ifndef TUTTI_OPS_EMBEDDING_H
#define TUTTI_OPS_EMBEDDING_H

#include "ops/call.h"

/* Inputs: indices, table | indices, dy, with params: int64_t, rows of the table */
extern const tutti_ops_row tutti_ops_row_embedding, tutti_ops_row_embedding_backward;

#endif
