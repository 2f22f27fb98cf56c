/*
 * The minimum of a sum of tables: each variable has some choices, each table has a value for every combination of
 * the choices of its variables, and the result is the choice of every variable for which the sum of all tables is
 * smallest.
 *
 * Variables are eliminated one after another: the tables that contain a variable become one table over their other
 * variables, which holds the minimum over the variable's choices; the choice that gives it is stored. The result is
 * exact. In a chain no table ever has more than two variables, in a residual network three. The next variable is
 * the one with the smallest resulting table. This is dynamic programming (Bertele and Brioschi, 1972); it does not
 * depend on layers.
 */
#ifndef TUTTI_TRAINER_SEARCH_H
#define TUTTI_TRAINER_SEARCH_H

#include <tutti/tutti.h>

#define TUTTI_SEARCH_VARIABLES 8 /* most variables of one table */

typedef struct tutti_search_table {
    int nvariables;
    int variables[TUTTI_SEARCH_VARIABLES]; /* distinct */
    /* row-major, the last variable fastest; INFINITY: the combination is not allowed; allocated by malloc */
    double *values;
} tutti_search_table;

typedef struct tutti_search {
    int nvariables;
    int *nchoices; /* by variable; allocated by malloc, like the tables */
    tutti_search_table *tables;
    int ntables, capacity;
} tutti_search;

tutti_status tutti_search_init(tutti_search *search, int nvariables);
/* Accepts a search that is only partly made. */
void tutti_search_fini(tutti_search *search);
/* Adds a table of zeros over variables whose numbers of choices are already set; the caller fills it in. */
tutti_status tutti_search_add(tutti_search *search, const int *variables, int nvariables, double **values_out);

/* Among several optimal results, returns the one with the earliest choices. least_out: INFINITY if no combination is
 * allowed. Tables above some hundred MB fail with TUTTI_ERR_UNSUPPORTED. */
tutti_status tutti_search_solve(const tutti_search *search, int *choices_out, double *least_out);

#endif
