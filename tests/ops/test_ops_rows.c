/*
 * Verifies the table of operators: each row, each signature on one and two axes, with even, odd and empty parts,
 * against one rank; and checks that wrong rows are detected.
 */
#include <criterion/criterion.h>
#include <string.h>

#include "tests/ops/rows.h"
#include "tests/support/ranks.h"

TestSuite(ops_rows, .timeout = 300);

static const int line[] = {2, 3, 0}, square[] = {4, 0};

static void run(const int *sizes, ranks_kind kind, ranks_body body) {
    for (; *sizes != 0; sizes++) {
        const char *failure = ranks_run(&(ranks_options){.kind = kind, .nranks = *sizes, .timeout_s = 280}, body);
        cr_assert(failure == NULL, "%s", failure);
    }
}

static tutti_status judge(ranks_context *context, const int *axes, int naxes, const row_case *c) {
    row_verdict verdict;
    const row_place place = {.comm = context->comm, .axes = axes, .naxes = naxes, .memory = TUTTI_MEMORY_HOST};
    TUTTI_TRY(judge_row(&place, c, &verdict));
    RANKS_CHECK(verdict.runs > 0, "%s: no runs", c->row->name);
    RANKS_CHECK(verdict.wrong == 0, "%s: %d of %d wrong; %s", c->row->name, verdict.wrong, verdict.runs, verdict.text);
    return TUTTI_OK;
}

static tutti_status judge_on_line(ranks_context *context) {
    for (const row_case *c = row_cases; c->row != NULL; c++) TUTTI_TRY(judge(context, &context->nranks, 1, c));
    return TUTTI_OK;
}

static tutti_status judge_on_square(ranks_context *context) {
    for (const row_case *c = row_cases; c->row != NULL; c++) TUTTI_TRY(judge(context, (int[]){2, 2}, 2, c));
    return TUTTI_OK;
}

/* At least one signature must have a wrong result, or be refused. */
static tutti_status catch_wrong_rows(ranks_context *context) {
    for (const row_case *c = wrong_cases; c->row != NULL; c++) {
        row_verdict verdict;
        const row_place place = {
            .comm = context->comm, .axes = &context->nranks, .naxes = 1, .memory = TUTTI_MEMORY_HOST};
        TUTTI_TRY(judge_row(&place, c, &verdict));
        RANKS_CHECK(verdict.wrong > 0, "%s: %d runs, and none was found wrong", c->row->name, verdict.runs);
    }
    return TUTTI_OK;
}

Test(ops_rows, signatures_on_one_axis_have_the_results_of_one_rank) {
    run(line, RANKS_THREADS, judge_on_line);
}

Test(ops_rows, signatures_on_two_axes_have_the_results_of_one_rank) {
    run(square, RANKS_THREADS, judge_on_square);
}

Test(ops_rows, wrong_rows_are_detected) {
    run(line, RANKS_THREADS, catch_wrong_rows);
}
