/*
 * Elimination of variables.
 */
#include "ddp/trainer/auto/search.h"

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define MOST_VALUES ((size_t)1 << 24)

tutti_status tutti_search_init(tutti_search *search, int nvariables) {
    *search = (tutti_search){.nvariables = nvariables};
    search->nchoices = calloc((size_t)nvariables, sizeof *search->nchoices);
    if (search->nchoices == NULL) return tutti_fail(TUTTI_ERR_MEMORY, "no memory to search for a strategy");
    return TUTTI_OK;
}

static void free_tables(tutti_search_table *tables, int ntables) {
    for (int t = 0; t < ntables; t++) free(tables[t].values);
    free(tables);
}

void tutti_search_fini(tutti_search *search) {
    free_tables(search->tables, search->ntables);
    free(search->nchoices);
    *search = (tutti_search){.nvariables = 0};
}

/* Values of a table; 0: more than MOST_VALUES. */
static size_t size_of(const tutti_search *search, const int *variables, int nvariables) {
    size_t size = 1;
    for (int i = 0; i < nvariables; i++) {
        size *= (size_t)search->nchoices[variables[i]];
        if (size > MOST_VALUES) return 0;
    }
    return size;
}

tutti_status tutti_search_add(tutti_search *search, const int *variables, int nvariables, double **values_out) {
    const size_t size = nvariables <= TUTTI_SEARCH_VARIABLES ? size_of(search, variables, nvariables) : 0;
    if (size == 0)
        return tutti_fail(
            TUTTI_ERR_UNSUPPORTED,
            "searching for a strategy: %d layers read one output, or depend on each other in another way, "
            "which is more than can be searched; give a strategy by --strategy",
            nvariables - 1);
    if (search->ntables == search->capacity) {
        const int capacity = 2 * search->capacity + 16;
        tutti_search_table *tables = realloc(search->tables, (size_t)capacity * sizeof *tables);
        if (tables == NULL) return tutti_fail(TUTTI_ERR_MEMORY, "no memory to search for a strategy");
        search->tables = tables;
        search->capacity = capacity;
    }
    tutti_search_table *table = &search->tables[search->ntables];
    *table = (tutti_search_table){.nvariables = nvariables};
    memcpy(table->variables, variables, (size_t)nvariables * sizeof *variables);
    table->values = calloc(size, sizeof *table->values);
    if (table->values == NULL)
        return tutti_fail(TUTTI_ERR_MEMORY, "no memory to search for a strategy, %zu bytes", size * sizeof(double));
    search->ntables++;
    *values_out = table->values;
    return TUTTI_OK;
}

/* ------------------------------------------------------------------------------------------ elimination */

/* An eliminated variable: its best choice for each combination of its neighbours' choices. */
typedef struct eliminated {
    int variable, nneighbours;
    int neighbours[TUTTI_SEARCH_VARIABLES];
    uint16_t *best;
} eliminated;

typedef struct state {
    tutti_search work; /* the remaining tables */
    bool *gone;        /* by variable */
    eliminated *order;
    int norder;
} state;

static bool names(const tutti_search_table *table, int variable) {
    for (int i = 0; i < table->nvariables; i++)
        if (table->variables[i] == variable) return true;
    return false;
}

/* The other variables of the tables that contain `variable`. -1: too many. */
static int find_neighbours(const tutti_search *work, int variable, int *neighbours_out) {
    int count = 0;
    for (int t = 0; t < work->ntables; t++) {
        const tutti_search_table *table = &work->tables[t];
        for (int i = 0; i < table->nvariables && names(table, variable); i++) {
            int at = 0;
            while (at < count && neighbours_out[at] != table->variables[i]) at++;
            if (table->variables[i] == variable || at < count) continue;
            if (count == TUTTI_SEARCH_VARIABLES) return -1;
            neighbours_out[count++] = table->variables[i];
        }
    }
    return count;
}

/* Chooses the variable whose elimination takes the least work. */
static tutti_status choose_next(const state *s, eliminated *next_out) {
    size_t least = SIZE_MAX;
    for (int v = 0; v < s->work.nvariables; v++) {
        eliminated next = {.variable = v};
        if (s->gone[v]) continue;
        next.nneighbours = find_neighbours(&s->work, v, next.neighbours);
        const size_t size = next.nneighbours < 0 ? 0 : size_of(&s->work, next.neighbours, next.nneighbours);
        if (size == 0 || size * (size_t)s->work.nchoices[v] >= least) continue;
        least = size * (size_t)s->work.nchoices[v];
        *next_out = next;
    }
    if (least < SIZE_MAX) return TUTTI_OK;
    return tutti_fail(
        TUTTI_ERR_UNSUPPORTED,
        "searching for a strategy: the layers of this model depend on each other in more ways than can be "
        "searched; give a strategy by --strategy");
}

/* A table that contains the variable, during the walk over the neighbours' choices. */
typedef struct view {
    const double *at;                               /* address for the neighbours' current choices */
    size_t strides[TUTTI_SEARCH_VARIABLES], stride; /* strides of the neighbours, and of the variable */
} view;

static view make_view(const tutti_search *work, const tutti_search_table *table, const eliminated *next) {
    view made = {.at = table->values};
    size_t stride = 1;
    for (int i = table->nvariables - 1; i >= 0; i--) {
        const int variable = table->variables[i];
        if (variable == next->variable) made.stride = stride;
        for (int k = 0; k < next->nneighbours; k++)
            if (next->neighbours[k] == variable) made.strides[k] = stride;
        stride *= (size_t)work->nchoices[variable];
    }
    return made;
}

/* Finds the best choice of the variable for all choices of the neighbours. */
static void take_least(const tutti_search *work, const eliminated *next, view *views, int nviews, double *values) {
    int choices[TUTTI_SEARCH_VARIABLES] = {0};
    const int count = work->nchoices[next->variable];
    const size_t size = size_of(work, next->neighbours, next->nneighbours);
    for (size_t i = 0; i < size; i++) {
        double least = INFINITY;
        int best = 0;
        for (int c = 0; c < count; c++) {
            double sum = 0;
            for (int v = 0; v < nviews; v++) sum += views[v].at[(size_t)c * views[v].stride];
            if (sum < least) least = sum, best = c;
        }
        values[i] = least;
        next->best[i] = (uint16_t)best;
        for (int k = next->nneighbours - 1; k >= 0; k--) {
            const int last = work->nchoices[next->neighbours[k]] - 1;
            const bool turns = choices[k] == last;
            for (int v = 0; v < nviews; v++)
                views[v].at +=
                    turns ? -(ptrdiff_t)((size_t)last * views[v].strides[k]) : (ptrdiff_t)views[v].strides[k];
            choices[k] = turns ? 0 : choices[k] + 1;
            if (!turns) break;
        }
    }
}

/* Removes the tables that contain the variable, and compacts the others. */
static void drop_tables(tutti_search *work, int variable) {
    int left = 0;
    for (int t = 0; t < work->ntables; t++) {
        if (names(&work->tables[t], variable)) free(work->tables[t].values);
        else work->tables[left++] = work->tables[t];
    }
    work->ntables = left;
}

static tutti_status eliminate(state *s) {
    eliminated *next = &s->order[s->norder];
    double *values;
    TUTTI_TRY(choose_next(s, next));
    next->best = malloc(size_of(&s->work, next->neighbours, next->nneighbours) * sizeof *next->best);
    s->norder++;
    view *views = calloc((size_t)s->work.ntables + 1, sizeof *views);
    tutti_status status = TUTTI_OK;
    if (next->best == NULL || views == NULL)
        status = tutti_fail(TUTTI_ERR_MEMORY, "no memory to search for a strategy");
    int nviews = 0;
    for (int t = 0; status == TUTTI_OK && t < s->work.ntables; t++)
        if (names(&s->work.tables[t], next->variable)) views[nviews++] = make_view(&s->work, &s->work.tables[t], next);
    if (status == TUTTI_OK) status = tutti_search_add(&s->work, next->neighbours, next->nneighbours, &values);
    if (status == TUTTI_OK) {
        take_least(&s->work, next, views, nviews, values);
        drop_tables(&s->work, next->variable);
        s->gone[next->variable] = true;
    }
    free(views);
    return status;
}

/* ------------------------------------------------------------------------------------------------ solve */

static tutti_status copy(const tutti_search *search, tutti_search *copy_out) {
    TUTTI_TRY(tutti_search_init(copy_out, search->nvariables));
    memcpy(copy_out->nchoices, search->nchoices, (size_t)search->nvariables * sizeof *search->nchoices);
    for (int t = 0; t < search->ntables; t++) {
        const tutti_search_table *table = &search->tables[t];
        double *values;
        TUTTI_TRY(tutti_search_add(copy_out, table->variables, table->nvariables, &values));
        memcpy(values, table->values, size_of(search, table->variables, table->nvariables) * sizeof *values);
    }
    return TUTTI_OK;
}

/* Goes backward: the neighbours of a variable were eliminated after it, so their choices are already known. */
static void read_choices(const state *s, int *choices_out) {
    for (int i = s->norder - 1; i >= 0; i--) {
        const eliminated *done = &s->order[i];
        size_t at = 0;
        for (int k = 0; k < done->nneighbours; k++)
            at = at * (size_t)s->work.nchoices[done->neighbours[k]] + (size_t)choices_out[done->neighbours[k]];
        choices_out[done->variable] = done->best[at];
    }
}

tutti_status tutti_search_solve(const tutti_search *search, int *choices_out, double *least_out) {
    const size_t count = (size_t)search->nvariables;
    state s = {.gone = calloc(count, sizeof *s.gone), .order = calloc(count, sizeof *s.order)};
    tutti_status status = TUTTI_OK;
    if (s.gone == NULL || s.order == NULL) status = tutti_fail(TUTTI_ERR_MEMORY, "no memory to search for a strategy");
    if (status == TUTTI_OK) status = copy(search, &s.work);
    while (status == TUTTI_OK && s.norder < search->nvariables) status = eliminate(&s);
    if (status == TUTTI_OK) {
        double least = 0; /* the remaining tables have no variables */
        for (int t = 0; t < s.work.ntables; t++) least += s.work.tables[t].values[0];
        read_choices(&s, choices_out);
        *least_out = least;
    }
    for (int i = 0; i < s.norder; i++) free(s.order[i].best);
    tutti_search_fini(&s.work);
    free(s.gone), free(s.order);
    return status;
}
