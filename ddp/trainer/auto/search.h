/*
 * The least sum of tables: each variable has some choices, each table gives a number for every combination of the choices of its
 * variables, and wanted is the choice of every variable for which all tables together give the least.
 *
 * Variables are eliminated one after the other: the tables that name a variable become one, over the other variables that they
 * name, which holds the least over the variable's choices; and which choice that was is kept. The result is exact. Of a chain no
 * table ever has more than two variables, of a residual network three; the order is that of the smallest next table. This is
 * dynamic programming (Bertele and Brioschi, 1972); it knows nothing of layers.
 */
#ifndef TUTTI_TRAINER_SEARCH_H
#define TUTTI_TRAINER_SEARCH_H

#include <tutti/tutti.h>

#define TUTTI_SEARCH_VARIABLES 8 /* of one table */

typedef struct tutti_search_table {
    int nvariables;
    int variables[TUTTI_SEARCH_VARIABLES]; /* distinct */
    double *values; /* row-major, the last variable quickest; INFINITY where a combination is not allowed; malloc's */
} tutti_search_table;

typedef struct tutti_search {
    int nvariables;
    int *nchoices; /* of each variable; malloc's, as the tables */
    tutti_search_table *tables;
    int ntables, capacity;
} tutti_search;

tutti_status tutti_search_init(tutti_search *search, int nvariables);
/* Accepts half-made ones. */
void tutti_search_fini(tutti_search *search);
/* A table of zeros over variables whose choices are known by now; the caller fills it in. */
tutti_status tutti_search_add(tutti_search *search, const int *variables, int nvariables, double **values_out);

/* Of several that are equally good the one is taken whose choices come first. least_out: INFINITY where no combination is allowed.
 * Tables that would become larger than some hundred MB are TUTTI_ERR_UNSUPPORTED. */
tutti_status tutti_search_solve(const tutti_search *search, int *choices_out, double *least_out);

#endif
