/*
 * operators_perf: the cost of an operator's call on global tensors, next to that of its redistributions alone.
 *
 *   tuttirun --nproc_per_node N operators_perf [-n ITERS] [SIDE...]
 *
 * Operands are float32 matrices of SIDE x SIDE (by default 8, where the call itself takes nearly all of the time, and
 * 512). A row is rank 0's median of rounds, each the mean over calls. "moves" are the inputs' conversions, called
 * alone.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <tutti/ops.h>

enum { ROUNDS = 7, MOST_SIDES = 16 };

typedef struct operands {
    tutti_placement *placement;
    tutti_tensor *rows, *columns, *whole; /* split(0), split(1), broadcast */
} operands;

typedef tutti_status (*operation)(const tutti_tensor *a, const tutti_tensor *b, const tutti_op_options *options,
                                  tutti_tensor **result_out);

static tutti_status multiply(const tutti_tensor *a, const tutti_tensor *b, const tutti_op_options *options,
                             tutti_tensor **result_out) {
    return tutti_op_matmul(a, b, NULL, options, result_out);
}

static tutti_status rectify(const tutti_tensor *a, const tutti_tensor *b, const tutti_op_options *options,
                            tutti_tensor **result_out) {
    (void)b;
    return tutti_op_relu(a, options, result_out);
}

typedef enum operand { ROWS, COLUMNS, WHOLE } operand;

/* moves: the call redistributes its second operand to split(0). */
static const struct {
    const char *name, *layouts;
    operation call;
    operand a, b;
    bool moves;
} table[] = {
    {"relu", "S0", rectify, ROWS, ROWS, false},          {"add", "S0 + S0", tutti_op_add, ROWS, ROWS, false},
    {"add", "B + B", tutti_op_add, WHOLE, WHOLE, false}, {"add", "S0 + S1", tutti_op_add, ROWS, COLUMNS, true},
    {"matmul", "S0 x B", multiply, ROWS, WHOLE, false},  {"matmul", "S1 x S0, partial", multiply, COLUMNS, ROWS, false},
};

static double now_us(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e6 + (double)time.tv_nsec * 1e-3;
}

static int compare_numbers(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static const tutti_tensor *pick(const operands *o, operand which) {
    return which == ROWS ? o->rows : which == COLUMNS ? o->columns : o->whole;
}

static tutti_status time_operation(tutti_comm *world, const operands *o, size_t row, int calls, double *us_out) {
    double rounds[ROUNDS];
    for (int round = -1; round < ROUNDS; round++) { /* round -1 warms up */
        TUTTI_TRY(tutti_barrier(world, NULL));
        double start = now_us();
        for (int i = 0; i < calls; i++) {
            tutti_tensor *result;
            TUTTI_TRY(table[row].call(pick(o, table[row].a), pick(o, table[row].b), NULL, &result));
            tutti_tensor_destroy(result);
        }
        if (round >= 0) rounds[round] = (now_us() - start) / calls;
    }
    qsort(rounds, ROUNDS, sizeof *rounds, compare_numbers);
    *us_out = rounds[ROUNDS / 2];
    return TUTTI_OK;
}

/* Times converting the second operand to the layout of the first, as a call does it: into a new tensor. */
static tutti_status time_moves(tutti_comm *world, const operands *o, int calls, double *us_out) {
    double rounds[ROUNDS];
    for (int round = -1; round < ROUNDS; round++) {
        TUTTI_TRY(tutti_barrier(world, NULL));
        double start = now_us();
        for (int i = 0; i < calls; i++) {
            tutti_tensor *moved;
            TUTTI_TRY(tutti_tensor_create(tutti_tensor_layout(o->rows), &moved));
            tutti_status status = tutti_tensor_redistribute(o->columns, moved, NULL);
            tutti_tensor_destroy(moved);
            TUTTI_TRY(status);
        }
        if (round >= 0) rounds[round] = (now_us() - start) / calls;
    }
    qsort(rounds, ROUNDS, sizeof *rounds, compare_numbers);
    *us_out = rounds[ROUNDS / 2];
    return TUTTI_OK;
}

static tutti_status make_operands(operands *o, int64_t side) {
    const tutti_sbp sbps[] = {TUTTI_SPLIT(0), TUTTI_SPLIT(1), TUTTI_BROADCAST};
    tutti_tensor **tensors[] = {&o->rows, &o->columns, &o->whole};
    const int64_t shape[] = {side, side};
    const tutti_random_options normal = {.distribution = TUTTI_NORMAL, .b = 1, .seed = 1};
    for (int i = 0; i < 3; i++) {
        tutti_layout layout =
            TUTTI_LAYOUT(.placement = o->placement, .sbp = &sbps[i], .type = TUTTI_FLOAT32, .ndims = 2, .shape = shape);
        TUTTI_TRY(tutti_op_random(&layout, &normal, tensors[i]));
    }
    return TUTTI_OK;
}

static void free_operands(operands *o) {
    tutti_tensor_destroy(o->rows);
    tutti_tensor_destroy(o->columns);
    tutti_tensor_destroy(o->whole);
    o->rows = o->columns = o->whole = NULL;
}

static tutti_status measure(tutti_comm *world, operands *o, int64_t side, int calls) {
    double moves_us = 0, us;
    TUTTI_TRY(make_operands(o, side));
    TUTTI_TRY(time_moves(world, o, calls, &moves_us));
    for (size_t row = 0; row < sizeof table / sizeof *table; row++) {
        TUTTI_TRY(time_operation(world, o, row, calls, &us));
        if (tutti_comm_rank(world) == 0)
            printf("%8lld  %-8s %-18s %10.2f %10.2f\n", (long long)side, table[row].name, table[row].layouts, us,
                   table[row].moves ? moves_us : 0.0);
    }
    return TUTTI_OK;
}

static tutti_status run(tutti_comm *world, const int64_t *sides, int nsides, int calls) {
    operands o = {0};
    int size = tutti_comm_size(world);
    TUTTI_TRY(tutti_placement_create(world, TUTTI_MEMORY_HOST, NULL, &size, 1, &o.placement));
    if (tutti_comm_rank(world) == 0)
        printf("# operators_perf: %d ranks, float32, median of %d rounds of %d calls\n#   side  operator layouts       "
               "       time(us)  moves(us)\n",
               size, ROUNDS, calls);
    tutti_status status = TUTTI_OK;
    for (int i = 0; i < nsides && status == TUTTI_OK; i++) {
        status = measure(world, &o, sides[i], calls);
        free_operands(&o);
    }
    tutti_placement_destroy(o.placement);
    return status;
}

static int64_t take_number(const char *text) {
    char *end;
    errno = 0;
    long long number = strtoll(text, &end, 10);
    return errno == 0 && end != text && *end == '\0' && number > 0 && number <= 1 << 20 ? number : 0;
}

int main(int argc, char **argv) {
    int64_t sides[MOST_SIDES] = {8, 512}, calls = 200;
    int nsides = 0;
    for (int i = 1; i < argc; i++) {
        bool counts = strcmp(argv[i], "-n") == 0 && i + 1 < argc;
        int64_t number = take_number(argv[counts ? ++i : i]);
        if (number == 0 || nsides == MOST_SIDES) {
            fputs("usage: tuttirun --nproc_per_node N operators_perf [-n CALLS] [SIDE...]\n"
                  "  CALLS, and up to 16 SIDEs of the matrices, are whole numbers from 1 to 1048576\n",
                  stderr);
            return EXIT_FAILURE;
        }
        if (counts) calls = number;
        else sides[nsides++] = number;
    }
    tutti_comm *world = NULL;
    tutti_status status = tutti_comm_create_world(&world);
    if (status == TUTTI_OK) status = run(world, sides, nsides > 0 ? nsides : 2, (int)calls);
    if (status != TUTTI_OK) fprintf(stderr, "operators_perf: %s\n", tutti_last_error());
    tutti_comm_destroy(world);
    return status == TUTTI_OK ? EXIT_SUCCESS : EXIT_FAILURE;
}
