/*
 * The table of algorithms on a rail. For each kind and size class, the applicable row with the least predicted time
 * is written into the table once, when a communicator is made; a call looks it up.
 *
 * The choice depends only on values that are equal on all ranks (see rail.h), so every rank takes the same row.
 */
#include "comm/net/coll/rail.h"

#include <stdio.h>
#include <string.h>

#include "comm/net/coll/rail_call.h"

#define LEAST_PIECE_BYTES ((size_t)256 << 10)
#define CACHE_PIECE_BYTES ((size_t)1 << 20) /* vectors and pieces of this size stay in a cache */
#define MOST_PIECE_BYTES  ((size_t)16 << 20)

#define KIND(name) (1u << TUTTI_KIND_##name)
#define SUMS       (KIND(ALL_REDUCE) | KIND(REDUCE) | KIND(REDUCE_SCATTER))

/* ------------------------------------------------------------------------------------------------ predicted times
 * By the cost model: successive steps, messages, bytes, and additions; the steps are described in the algorithms' own
 * files. Rough: they only have to show which of two algorithms is faster.
 */

/* Input of a prediction. `bytes` as in tutti_rail_scratch_bytes. */
typedef struct question {
    const tutti_cost *cost;
    double n, bytes, piece_bytes;
    double log_n;  /* rounded up */
    bool is_power; /* of two */
} question;

static double moving(const question *q, double steps, double messages, double bytes) {
    return tutti_cost_of_moving(q->cost, steps, messages, bytes);
}

static double reducing(const question *q, double bytes) {
    return tutti_cost_of_reducing(q->cost, bytes);
}

/* Data that is sent or added to long after it was written is read from memory: at about a sixth of the speed at
 * which inputs in a cache are added. Algorithms in pieces avoid this cost. */
static double rereading(const question *q, double bytes) {
    return bytes > (double)CACHE_PIECE_BYTES ? reducing(q, 6 * bytes) : 0;
}

static double pieces(double bytes, double piece_bytes) {
    return bytes <= piece_bytes ? 1 : bytes / piece_bytes;
}

static double predict_dissemination(const question *q) {
    return moving(q, q->log_n, q->log_n, q->log_n);
}

/* Also of sliced reduce_scatter, where `bytes` is the size of a segment. */
static double predict_whole(const question *q) {
    double others = q->n - 1, steps = pieces(q->bytes * others, q->piece_bytes);
    return moving(q, steps, steps * others, others * q->bytes) + reducing(q, q->n * q->bytes);
}

static double predict_sliced(const question *q) {
    double others = q->n - 1, slice = q->bytes / q->n, steps = 2 * pieces(slice * others, q->piece_bytes);
    return moving(q, steps, steps * others, 2 * others * slice) + reducing(q, q->bytes);
}

static double predict_ring_all_reduce(const question *q) {
    double steps = 2 * (q->n - 1), slice = q->bytes / q->n;
    return moving(q, steps, steps, steps * slice) + reducing(q, steps * slice) + rereading(q, q->bytes);
}

static double predict_ring_scatter(const question *q) {
    double steps = q->n - 1;
    return moving(q, steps, steps, steps * q->bytes) + reducing(q, 3 * steps * q->bytes) +
           rereading(q, q->n * q->bytes);
}

/* With ranks that sit out, the vector is moved two more times. */
static double predict_doubling(const question *q) {
    double steps = q->is_power ? q->log_n : q->log_n + 1;
    return moving(q, steps, steps, steps * q->bytes) + reducing(q, 2 * steps * q->bytes);
}

/* A power of two of ranks takes part: each of them sends the vector without one slice, twice. */
static double predict_halving(const question *q) {
    double members = q->is_power ? q->n : (double)(1 << ((int)q->log_n - 1));
    double steps = 2 * q->log_n, moved = 2 * q->bytes * (1 - 1 / members) + (q->is_power ? 0 : 2 * q->bytes);
    return moving(q, steps, steps, moved) + reducing(q, moved) + rereading(q, q->bytes);
}

static double predict_tree(const question *q) {
    return moving(q, q->log_n, q->log_n, q->log_n * q->bytes);
}

static double predict_tree_reduce(const question *q) {
    return predict_tree(q) + reducing(q, 2 * q->log_n * q->bytes);
}

static double predict_double_tree(const question *q) {
    double npieces = pieces(q->bytes / 2, q->piece_bytes), steps = npieces + q->log_n;
    return moving(q, steps, 2 * steps, q->bytes / npieces * steps);
}

static double predict_double_tree_reduce(const question *q) {
    return predict_double_tree(q) + reducing(q, 3 * q->bytes);
}

static double predict_double_tree_all_reduce(const question *q) {
    return predict_double_tree(q) + predict_double_tree_reduce(q);
}

static double predict_chain(const question *q) {
    double npieces = pieces(q->bytes, q->piece_bytes), steps = npieces + q->n - 2;
    return moving(q, steps, steps, q->bytes / npieces * steps);
}

static double predict_direct_broadcast(const question *q) {
    double others = q->n - 1;
    return moving(q, 2, 2 * others, 2 * others / q->n * q->bytes);
}

static double predict_direct(const question *q) {
    return moving(q, 1, q->n - 1, (q->n - 1) * q->bytes);
}

static double predict_ring(const question *q) {
    return moving(q, q->n - 1, q->n - 1, (q->n - 1) * q->bytes);
}

static double predict_direct_all_to_all(const question *q) {
    double steps = pieces(q->bytes, q->piece_bytes);
    return moving(q, steps, steps * (q->n - 1), (q->n - 1) * q->bytes);
}

/* Includes packing and unpacking of the blocks. */
static double predict_bruck_gather(const question *q) {
    return moving(q, q->log_n, q->log_n, (q->n - 1) * q->bytes) + reducing(q, 2 * q->n * q->bytes);
}

static double predict_bruck_all_to_all(const question *q) {
    double moved = q->log_n * q->n / 2 * q->bytes;
    return moving(q, q->log_n, q->log_n, moved) + reducing(q, 2 * (q->n * q->bytes + moved));
}

/* ---------------------------------------------------------------------------------------------------- the table */

typedef struct row {
    const char *name;
    unsigned kinds;
    tutti_rail_order order; /* of its sums */
    bool only_pieces;       /* scratch grows with `bytes`: used for at most one piece, unless it is forced */
    double (*predict_us)(const question *q);
    size_t (*scratch)(int n, size_t bytes, size_t piece_bytes); /* NULL: none */
    tutti_status (*run)(tutti_rail_call *call);
} row;

static const row rows[] = {
    {.name = "dissemination",
     .kinds = KIND(BARRIER),
     .predict_us = predict_dissemination,
     .run = tutti_dissemination_barrier},
    {.name = "direct_whole",
     .kinds = KIND(ALL_REDUCE) | KIND(REDUCE),
     .order = TUTTI_RAIL_ALL_TOGETHER,
     .predict_us = predict_whole,
     .scratch = tutti_direct_reduce_scratch,
     .run = tutti_direct_whole},
    {.name = "direct",
     .kinds = KIND(ALL_REDUCE) | KIND(REDUCE),
     .order = TUTTI_RAIL_ALL_TOGETHER,
     .predict_us = predict_sliced,
     .scratch = tutti_direct_reduce_scratch,
     .run = tutti_direct_sliced},
    {.name = "direct",
     .kinds = KIND(REDUCE_SCATTER),
     .order = TUTTI_RAIL_ALL_TOGETHER,
     .predict_us = predict_whole,
     .scratch = tutti_direct_reduce_scratch,
     .run = tutti_direct_sliced},
    {.name = "direct",
     .kinds = KIND(ALL_GATHER) | KIND(GATHER) | KIND(SCATTER),
     .predict_us = predict_direct,
     .scratch = tutti_direct_move_scratch,
     .run = tutti_direct_move},
    {.name = "direct",
     .kinds = KIND(ALL_TO_ALL) | KIND(ALL_TO_ALL_V),
     .predict_us = predict_direct_all_to_all,
     .scratch = tutti_direct_all_to_all_scratch,
     .run = tutti_direct_all_to_all},
    {.name = "direct",
     .kinds = KIND(BROADCAST),
     .predict_us = predict_direct_broadcast,
     .scratch = tutti_direct_move_scratch,
     .run = tutti_direct_broadcast},
    {.name = "ring", .kinds = KIND(ALL_REDUCE), .predict_us = predict_ring_all_reduce, .run = tutti_ring_all_reduce},
    {.name = "ring",
     .kinds = KIND(REDUCE_SCATTER),
     .predict_us = predict_ring_scatter,
     .scratch = tutti_ring_scratch,
     .run = tutti_ring_reduce_scatter},
    {.name = "ring", .kinds = KIND(ALL_GATHER), .predict_us = predict_ring, .run = tutti_ring_all_gather},
    {.name = "chain", .kinds = KIND(BROADCAST), .predict_us = predict_chain, .run = tutti_ring_broadcast},
    {.name = "doubling",
     .kinds = KIND(ALL_REDUCE),
     .order = TUTTI_RAIL_IN_PAIRS,
     .predict_us = predict_doubling,
     .scratch = tutti_doubling_scratch,
     .only_pieces = true,
     .run = tutti_doubling_all_reduce},
    {.name = "halving",
     .kinds = KIND(ALL_REDUCE),
     .order = TUTTI_RAIL_IN_PAIRS,
     .predict_us = predict_halving,
     .run = tutti_doubling_halving},
    {.name = "tree", .kinds = KIND(BROADCAST), .predict_us = predict_tree, .run = tutti_tree_broadcast},
    {.name = "tree",
     .kinds = KIND(REDUCE),
     .order = TUTTI_RAIL_IN_PAIRS,
     .predict_us = predict_tree_reduce,
     .scratch = tutti_doubling_scratch,
     .only_pieces = true,
     .run = tutti_tree_reduce},
    {.name = "double_tree",
     .kinds = KIND(BROADCAST),
     .predict_us = predict_double_tree,
     .run = tutti_double_tree_broadcast},
    {.name = "double_tree",
     .kinds = KIND(REDUCE),
     .predict_us = predict_double_tree_reduce,
     .scratch = tutti_double_tree_scratch,
     .run = tutti_double_tree_reduce},
    {.name = "double_tree",
     .kinds = KIND(ALL_REDUCE),
     .predict_us = predict_double_tree_all_reduce,
     .scratch = tutti_double_tree_scratch,
     .run = tutti_double_tree_all_reduce},
    {.name = "bruck",
     .kinds = KIND(ALL_GATHER),
     .predict_us = predict_bruck_gather,
     .scratch = tutti_bruck_scratch,
     .only_pieces = true,
     .run = tutti_bruck_all_gather},
    {.name = "bruck",
     .kinds = KIND(ALL_TO_ALL),
     .predict_us = predict_bruck_all_to_all,
     .scratch = tutti_bruck_scratch,
     .only_pieces = true,
     .run = tutti_bruck_all_to_all},
};

static bool fits(const row *candidate, tutti_kind kind, tutti_rail_order order) {
    bool adds = (SUMS >> kind & 1) != 0;
    return (candidate->kinds >> kind & 1) != 0 && (!adds || candidate->order >= order);
}

/* ------------------------------------------------------------------------------------------------------- filling */

/* Between two pieces a link is idle for about one latency. This must be at most a 50th of the time, as long as
 * pieces stay in a cache; on links with a long delay, a 10th. */
static size_t choose_piece_bytes(const tutti_cost *cost) {
    double latency_bytes = cost->latency_us * cost->bandwidth_gbs * 1e3;
    size_t piece_bytes = LEAST_PIECE_BYTES;
    while (piece_bytes < CACHE_PIECE_BYTES && (double)piece_bytes < 50 * latency_bytes) piece_bytes *= 2;
    while (piece_bytes < MOST_PIECE_BYTES && (double)piece_bytes < 10 * latency_bytes) piece_bytes *= 2;
    return piece_bytes;
}

static int class_of(size_t bytes) {
    int size_class = 0;
    while (size_class + 1 < TUTTI_RAIL_CLASSES && bytes >> (size_class + 1) != 0) size_class++;
    return size_class;
}

static question ask(const tutti_rail_table *table, double bytes) {
    question q = {.cost = &table->cost, .n = table->n, .bytes = bytes, .piece_bytes = (double)table->piece_bytes};
    while ((1 << (int)q.log_n) < table->n) q.log_n++;
    q.is_power = (1 << (int)q.log_n) == table->n;
    return q;
}

/* A size in the middle of a size class. */
static double middle_of(int size_class) {
    return 1.5 * (double)(UINT64_C(1) << size_class);
}

static bool is_forced(const tutti_rail_table *table, const row *candidate) {
    return table->forced != NULL && strcmp(table->forced, candidate->name) == 0;
}

/* The best row except `without` (-1: of all rows); -1: there is none. */
static int best_row(const tutti_rail_table *table, tutti_kind kind, int size_class, tutti_rail_order order,
                    int without) {
    question q = ask(table, middle_of(size_class));
    bool is_short = (size_t)2 << size_class <= table->piece_bytes;
    int best = -1;
    double best_us = 0;
    for (int i = 0; i < (int)TUTTI_COUNT_OF(rows); i++) {
        if (i == without || !fits(&rows[i], kind, order)) continue;
        if (without < 0 && is_forced(table, &rows[i])) return i;
        double us = rows[i].predict_us(&q);
        if ((rows[i].only_pieces && !is_short) || (best >= 0 && us >= best_us)) continue;
        best = i;
        best_us = us;
    }
    return best;
}

static size_t scratch_of_class(const tutti_rail_table *table, tutti_kind kind, int size_class, size_t bytes) {
    size_t most = 0;
    for (int order = 0; order < TUTTI_RAIL_ORDERS; order++) {
        const row *chosen = &rows[table->rows[order][kind][size_class]];
        if ((chosen->kinds >> kind & 1) == 0 || chosen->scratch == NULL) continue;
        most = tutti_max_size(most, chosen->scratch(table->n, bytes, table->piece_bytes));
    }
    return most;
}

/* Block sizes that differ are not known to all ranks: one choice for all sizes. */
#define TYPICAL_CLASS 16

void tutti_rail_table_fill(const tutti_rail_rules *rules, const tutti_cost *cost, tutti_rail_table *table_out) {
    tutti_rail_table table = {.n = rules->n, .cost = *cost, .piece_bytes = rules->piece_bytes};
    if (table.piece_bytes == 0) table.piece_bytes = choose_piece_bytes(cost);
    table.piece_bytes = tutti_align_up(table.piece_bytes, TUTTI_CACHE_LINE);
    for (size_t i = 0; i < TUTTI_COUNT_OF(rows) && rules->forced != NULL; i++)
        if (strcmp(rules->forced, rows[i].name) == 0) table.forced = rows[i].name;
    for (int order = 0; order < TUTTI_RAIL_ORDERS; order++)
        for (int kind = 0; kind < TUTTI_KIND_COUNT; kind++)
            for (int size_class = 0; size_class < TUTTI_RAIL_CLASSES; size_class++) {
                int size = kind == TUTTI_KIND_ALL_TO_ALL_V ? TYPICAL_CLASS : size_class;
                tutti_rail_order least = rules->reorders ? TUTTI_RAIL_ANY_ORDER : (tutti_rail_order)order;
                int best = best_row(&table, (tutti_kind)kind, size, least, -1);
                table.rows[order][kind][size_class] = (uint8_t)(best >= 0 ? best : 0);
            }
    for (int kind = 0; kind < TUTTI_KIND_COUNT; kind++)
        for (int size_class = 1; size_class < TUTTI_RAIL_CLASSES; size_class++)
            table.scratch_below[kind][size_class] = tutti_max_size(
                table.scratch_below[kind][size_class - 1],
                scratch_of_class(&table, (tutti_kind)kind, size_class - 1, ((size_t)1 << size_class) - 1));
    *table_out = table;
}

bool tutti_rail_has_row(const char *name) {
    for (size_t i = 0; i < TUTTI_COUNT_OF(rows); i++)
        if (strcmp(name, rows[i].name) == 0) return true;
    return false;
}

const char *tutti_rail_row_names(void) {
    static _Thread_local char names[256];
    size_t used = 0;
    for (size_t i = 0; i < TUTTI_COUNT_OF(rows) && used < sizeof names; i++)
        if (i == 0 || strcmp(rows[i].name, rows[i - 1].name) != 0) /* rows of one name are adjacent */
            used += (size_t)snprintf(names + used, sizeof names - used, "%s%s", used > 0 ? ", " : "", rows[i].name);
    return names;
}

/* -------------------------------------------------------------------------------------------------------- using */

static const row *look_up(const tutti_rail_table *table, tutti_kind kind, size_t bytes, tutti_rail_order order) {
    return &rows[table->rows[order][kind][class_of(bytes)]];
}

/* The maximum over all rows up to that size: the scratch of the longest of several calls is enough for the others. */
static size_t scratch_of(const tutti_rail_table *table, tutti_kind kind, size_t bytes) {
    int size_class = class_of(bytes);
    return tutti_max_size(table->scratch_below[kind][size_class], scratch_of_class(table, kind, size_class, bytes));
}

size_t tutti_rail_scratch_bytes(const tutti_rail_table *table, tutti_kind kind, size_t bytes) {
    size_t most = scratch_of(table, kind, bytes);
    if (kind == TUTTI_KIND_ALL_TO_ALL) most = tutti_max_size(most, scratch_of(table, TUTTI_KIND_ALL_TO_ALL_V, bytes));
    return most;
}

tutti_status tutti_rail_choose_and_run(const tutti_rail_table *table, tutti_kind kind, tutti_rail_order order,
                                       tutti_rail_call *call) {
    return look_up(table, kind, call->bytes, order)->run(call);
}

const char *tutti_rail_chosen(const tutti_rail_table *table, tutti_kind kind, size_t bytes, tutti_rail_order order) {
    return look_up(table, kind, bytes, order)->name;
}

static double predict(const tutti_rail_table *table, int index, double bytes) {
    question q = ask(table, bytes);
    return rows[index].predict_us(&q);
}

double tutti_rail_predict(const tutti_rail_table *table, tutti_kind kind, size_t bytes) {
    return predict(table, table->rows[TUTTI_RAIL_IN_PAIRS][kind][class_of(bytes)], (double)bytes);
}

/* ---------------------------------------------------------------------------------------------------- explaining */

static void write_bytes(char *text, size_t capacity, int size_class) {
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    snprintf(text, capacity, "%d %s", size_class == 0 ? 0 : 1 << size_class % 10, units[size_class / 10]);
}

/* Classes [first, end) share a row. */
static int end_of_range(const uint8_t *chosen, int first) {
    int end = first + 1;
    while (end < TUTTI_RAIL_CLASSES && chosen[end] == chosen[first]) end++;
    return end;
}

const char *tutti_rail_explain(const tutti_rail_table *table, tutti_kind kind, int line, char *text, size_t capacity) {
    const uint8_t *chosen = table->rows[TUTTI_RAIL_IN_PAIRS][kind];
    int first = 0;
    if ((rows[chosen[0]].kinds >> kind & 1) == 0) return NULL;
    for (; line > 0 && first < TUTTI_RAIL_CLASSES; line--) first = end_of_range(chosen, first);
    if (first >= TUTTI_RAIL_CLASSES) return NULL;
    double bytes = middle_of(first);
    char from[32];
    write_bytes(from, sizeof from, first);
    size_t used = (size_t)snprintf(text, capacity, "%s from %s: %s, %.4g us at %.4g bytes", tutti_kind_name(kind), from,
                                   rows[chosen[first]].name, predict(table, chosen[first], bytes), bytes);
    int second = best_row(table, kind, first, TUTTI_RAIL_IN_PAIRS, chosen[first]);
    if (second >= 0 && used < capacity)
        snprintf(text + used, capacity - used, " (%s: %.4g)", rows[second].name, predict(table, second, bytes));
    return text;
}
