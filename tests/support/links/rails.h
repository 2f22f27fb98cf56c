/*
 * A rail whose ranks are threads of this process, over strict links, for tests of algorithms between hosts. Each rank
 * runs a body; rails_next numbers its calls, which get scratch memory of exactly the size that the table requires.
 */
#ifndef TUTTI_TESTS_RAILS_H
#define TUTTI_TESTS_RAILS_H

#include "comm/net/coll/rail.h"
#include "tests/support/ranks.h"

typedef struct rails_rank {
    tutti_rail rail;
    tutti_op op;
    tutti_rail_table table;
    tutti_rail_setup setup;
    void *argument;
} rails_rank;

typedef tutti_status (*rails_body)(rails_rank *rank);

/* Runs the body on rails of each size (ended by 0); NULL, or the first failure as text. */
const char *rails_run(const int *sizes, rails_body body, void *argument);

/* Begins the next call: by the algorithm of that name (NULL: the table's choice), in pieces of that size (0: the
 * default). */
void rails_next(rails_rank *rank, const char *algorithm, size_t piece_bytes);
/* Allocates scratch memory for it; fails if there is none. */
tutti_status rails_prepare(rails_rank *rank, tutti_kind kind, size_t bytes);

#endif
