/*
 * Moving data between hosts: every algorithm, over links that buffer nothing; byte i of the data from `from` to `to`
 * has a closed form. Also the table of algorithms, and costs.
 */
#include <criterion/criterion.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/links/rails.h"

#define PIECE_BYTES 256
#define MOST_RANKS  8

static const int sizes[] = {1, 2, 3, 4, 5, 7, 8, 0};
static const size_t lengths[] = {0, 1, 3, 7, 61, 256, 257, 1031, 4099};

static unsigned char byte_of(int from, int to, size_t i) {
    return (unsigned char)(i * 31 + (size_t)from * 7 + (size_t)to * 101 + i / 256 + 1);
}

static tutti_status check_bytes(const rails_rank *rank, const char *what, const tutti_rail_block *block, int from,
                                int to) {
    for (size_t i = 0; i < block->bytes; i++)
        RANKS_CHECK(((unsigned char *)block->data)[i] == byte_of(from, to, i),
                    "%s: byte %zu of %zu from rank %d is wrong on rank %d", what, i, block->bytes, from, rank->rail.me);
    return TUTTI_OK;
}

static tutti_status make_block(size_t bytes, tutti_rail_block *block_out) {
    block_out->bytes = bytes;
    return tutti_calloc(bytes, 1, &block_out->data);
}

static void fill_block(const tutti_rail_block *block, int from, int to) {
    for (size_t i = 0; i < block->bytes; i++) ((unsigned char *)block->data)[i] = byte_of(from, to, i);
}

static void free_blocks(const tutti_rail_block *blocks, int n) {
    for (int i = 0; i < n; i++) free(blocks[i].data);
}

/* ------------------------------------------------------------------------------------------------------- barrier */

static tutti_status barrier_body(rails_rank *rank) {
    atomic_int *arrived = rank->argument;
    for (int round = 1; round <= 20; round++) {
        rails_next(rank, NULL, 0);
        if (rank->rail.me == round % rank->rail.n) usleep(1000);
        int before = atomic_fetch_add(&arrived[rank->rail.n], 1);
        TUTTI_TRY(rails_prepare(rank, TUTTI_KIND_BARRIER, 0));
        TUTTI_TRY(tutti_rail_barrier(&rank->rail, &rank->setup));
        RANKS_CHECK(atomic_load(&arrived[rank->rail.n]) >= round * rank->rail.n && before < round * rank->rail.n,
                    "rank %d left barrier %d before all had come", rank->rail.me, round);
    }
    return TUTTI_OK;
}

Test(rails_move, no_rank_leaves_a_barrier_before_all_have_entered_it) {
    static atomic_int arrived[MOST_RANKS + 1];
    const char *failure = rails_run(sizes, barrier_body, arrived);
    cr_assert(failure == NULL, "%s", failure);
}

/* ----------------------------------------------------------------------------------------------------- broadcast */

static tutti_status broadcast_body(rails_rank *rank) {
    static const char *const names[] = {NULL, "direct", "chain", "tree", "double_tree"};
    for (size_t i = 0; i < TUTTI_COUNT_OF(names); i++)
        for (size_t j = 0; j < TUTTI_COUNT_OF(lengths); j++)
            for (int root = 0; root < rank->rail.n; root++) {
                tutti_rail_block block;
                TUTTI_TRY(make_block(lengths[j], &block));
                if (rank->rail.me == root) fill_block(&block, root, 0);
                rails_next(rank, names[i], PIECE_BYTES);
                TUTTI_TRY(rails_prepare(rank, TUTTI_KIND_BROADCAST, block.bytes));
                TUTTI_TRY(tutti_rail_broadcast(&rank->rail, &rank->setup, root, block.data, block.bytes));
                TUTTI_TRY(check_bytes(rank, names[i] != NULL ? names[i] : "choice", &block, root, 0));
                free(block.data);
            }
    return TUTTI_OK;
}

Test(rails_move, a_broadcast_reaches_all_from_every_root) {
    const char *failure = rails_run(sizes, broadcast_body, NULL);
    cr_assert(failure == NULL, "%s", failure);
}

/* ---------------------------------------------------------------------------------------------------- all_gather */

static tutti_status try_all_gather(rails_rank *rank, const char *name, size_t bytes, bool equal) {
    int n = rank->rail.n;
    tutti_rail_block blocks[MOST_RANKS];
    size_t most = 0;
    for (int i = 0; i < n; i++) {
        size_t own = equal ? bytes : bytes * (size_t)(i % 3) / 2 + (size_t)i;
        most = own > most ? own : most;
        TUTTI_TRY(make_block(own, &blocks[i]));
    }
    fill_block(&blocks[rank->rail.me], rank->rail.me, 0);
    rails_next(rank, name, PIECE_BYTES);
    TUTTI_TRY(rails_prepare(rank, TUTTI_KIND_ALL_GATHER, most));
    TUTTI_TRY(tutti_rail_all_gather(&rank->rail, &rank->setup, blocks));
    for (int i = 0; i < n; i++) TUTTI_TRY(check_bytes(rank, name != NULL ? name : "choice", &blocks[i], i, 0));
    free_blocks(blocks, n);
    return TUTTI_OK;
}

static tutti_status all_gather_body(rails_rank *rank) {
    static const char *const names[] = {NULL, "direct", "ring", "bruck"};
    for (size_t i = 0; i < TUTTI_COUNT_OF(names); i++)
        for (size_t j = 0; j < TUTTI_COUNT_OF(lengths); j++)
            for (int equal = 0; equal < 2; equal++) TUTTI_TRY(try_all_gather(rank, names[i], lengths[j], equal == 1));
    return TUTTI_OK;
}

Test(rails_move, an_all_gather_brings_blocks_of_any_sizes) {
    const char *failure = rails_run(sizes, all_gather_body, NULL);
    cr_assert(failure == NULL, "%s", failure);
}

/* ---------------------------------------------------------------------------------------------------- all_to_all */

static size_t bytes_between(size_t bytes, int from, int to, bool uniform) {
    return uniform ? bytes : bytes * (size_t)((from + 2 * to) % 4) / 3 + (size_t)to;
}

/* Calls in place on every second rank, where sizes allow it. */
static tutti_status try_all_to_all(rails_rank *rank, const char *name, size_t bytes, bool uniform) {
    int n = rank->rail.n, me = rank->rail.me;
    bool in_place = uniform && (me + (int)bytes) % 2 == 0;
    tutti_rail_block sends[MOST_RANKS], receives[MOST_RANKS];
    size_t most = 0;
    for (int i = 0; i < n; i++) {
        TUTTI_TRY(make_block(bytes_between(bytes, me, i, uniform), &sends[i]));
        TUTTI_TRY(make_block(bytes_between(bytes, i, me, uniform), &receives[i]));
        fill_block(&sends[i], me, i);
        most = sends[i].bytes > most ? sends[i].bytes : most;
        most = receives[i].bytes > most ? receives[i].bytes : most;
    }
    rails_next(rank, name, PIECE_BYTES);
    TUTTI_TRY(rails_prepare(rank, TUTTI_KIND_ALL_TO_ALL, most));
    const tutti_rail_block *results = in_place ? sends : receives;
    TUTTI_TRY(tutti_rail_all_to_all(&rank->rail, &rank->setup, sends, results, uniform));
    for (int i = 0; i < n; i++) {
        TUTTI_TRY(check_bytes(rank, name != NULL ? name : "choice", &results[i], i, me));
        if (!in_place) TUTTI_TRY(check_bytes(rank, "what was sent", &sends[i], me, i));
    }
    free_blocks(sends, n);
    free_blocks(receives, n);
    return TUTTI_OK;
}

static tutti_status all_to_all_body(rails_rank *rank) {
    static const char *const names[] = {NULL, "direct", "bruck"};
    for (size_t i = 0; i < TUTTI_COUNT_OF(names); i++)
        for (size_t j = 0; j < TUTTI_COUNT_OF(lengths); j++)
            for (int uniform = 0; uniform < 2; uniform++)
                TUTTI_TRY(try_all_to_all(rank, names[i], lengths[j], uniform == 1));
    return TUTTI_OK;
}

Test(rails_move, an_all_to_all_brings_every_block_in_place_and_not_uniform_and_not) {
    const char *failure = rails_run(sizes, all_to_all_body, NULL);
    cr_assert(failure == NULL, "%s", failure);
}

/* ----------------------------------------------------------------------------------------------- gather, scatter */

static tutti_status try_rooted(rails_rank *rank, size_t bytes, int root, bool in_place) {
    int n = rank->rail.n, me = rank->rail.me;
    tutti_rail_block blocks[MOST_RANKS], own;
    for (int i = 0; i < n; i++) TUTTI_TRY(make_block(bytes * (size_t)(i % 3) + (size_t)i, &blocks[i]));
    TUTTI_TRY(make_block(blocks[me].bytes, &own));
    tutti_rail_block used = me == root && in_place ? blocks[root] : own;
    fill_block(&used, me, 0);
    rails_next(rank, NULL, PIECE_BYTES);
    TUTTI_TRY(rails_prepare(rank, TUTTI_KIND_GATHER, blocks[n - 1].bytes));
    TUTTI_TRY(tutti_rail_gather(&rank->rail, &rank->setup, root, used, me == root ? blocks : NULL));
    for (int i = 0; i < n && me == root; i++) TUTTI_TRY(check_bytes(rank, "gather", &blocks[i], i, 0));
    for (int i = 0; i < n && me == root; i++) fill_block(&blocks[i], root, i);
    if (!in_place) memset(own.data, 0, own.bytes);
    rails_next(rank, NULL, PIECE_BYTES);
    TUTTI_TRY(rails_prepare(rank, TUTTI_KIND_SCATTER, blocks[n - 1].bytes));
    TUTTI_TRY(tutti_rail_scatter(&rank->rail, &rank->setup, root, used, me == root ? blocks : NULL));
    TUTTI_TRY(check_bytes(rank, "scatter", &used, root, me));
    free_blocks(blocks, n);
    free(own.data);
    return TUTTI_OK;
}

static tutti_status rooted_body(rails_rank *rank) {
    for (size_t j = 0; j < TUTTI_COUNT_OF(lengths); j++)
        for (int root = 0; root < rank->rail.n; root++)
            for (int in_place = 0; in_place < 2; in_place++)
                TUTTI_TRY(try_rooted(rank, lengths[j], root, in_place == 1));
    return TUTTI_OK;
}

Test(rails_move, gather_and_scatter_serve_every_root) {
    const char *failure = rails_run(sizes, rooted_body, NULL);
    cr_assert(failure == NULL, "%s", failure);
}

/* ----------------------------------------------------------------------------------------------- table and costs */

static const char *chosen_at(const tutti_cost *cost, int n, tutti_kind kind, size_t bytes) {
    tutti_rail_table table;
    tutti_rail_table_fill(&(tutti_rail_rules){.n = n}, cost, &table);
    return tutti_rail_chosen(&table, kind, bytes, TUTTI_RAIL_IN_PAIRS);
}

Test(rails_move, the_table_follows_the_costs) {
    const tutti_cost slow = {.latency_us = 1000, .message_us = 50, .bandwidth_gbs = 1, .reduce_gbs = 10};
    cr_assert_str_eq(chosen_at(&slow, 2, TUTTI_KIND_ALL_REDUCE, 8), "direct_whole");
    cr_assert_str_eq(chosen_at(&slow, 64, TUTTI_KIND_ALL_REDUCE, 8), "direct_whole");
    cr_assert_str_eq(chosen_at(&slow, 8, TUTTI_KIND_ALL_REDUCE, (size_t)64 << 20), "direct");
    cr_assert_str_eq(chosen_at(&tutti_cost_ordinary, 64, TUTTI_KIND_BROADCAST, 8), "tree");
    cr_assert_str_eq(chosen_at(&tutti_cost_ordinary, 2, TUTTI_KIND_ALL_GATHER, 8), "direct");
    const tutti_cost busy = {.latency_us = 5, .message_us = 5, .bandwidth_gbs = 1, .reduce_gbs = 10};
    cr_assert_str_eq(chosen_at(&busy, 64, TUTTI_KIND_ALL_REDUCE, 8), "doubling");
    cr_assert_str_eq(chosen_at(&busy, 64, TUTTI_KIND_ALL_TO_ALL, 8), "bruck");
    cr_assert_str_eq(chosen_at(&busy, 64, TUTTI_KIND_ALL_GATHER, 8), "bruck");
}

/* A row that is never the best would be unused code. */
Test(rails_move, each_row_is_best_somewhere) {
    static const double latencies_us[] = {1, 25, 2000}, messages[] = {0.02, 0.2, 1}, bandwidths_gbs[] = {0.05, 1.2, 50};
    static const int ranks[] = {2, 3, 8, 64, 512};
    static const struct {
        tutti_kind kind;
        const char *names;
    } rows[] = {{TUTTI_KIND_BARRIER, "dissemination"},
                {TUTTI_KIND_ALL_REDUCE, "direct_whole direct ring doubling halving double_tree"},
                {TUTTI_KIND_REDUCE, "direct_whole direct tree double_tree"},
                {TUTTI_KIND_REDUCE_SCATTER, "direct ring"},
                {TUTTI_KIND_BROADCAST, "direct chain tree double_tree"},
                {TUTTI_KIND_ALL_GATHER, "direct bruck"},
                {TUTTI_KIND_ALL_TO_ALL, "direct bruck"}};
    char chosen[TUTTI_COUNT_OF(rows)][256] = {0};
    tutti_rail_table table;
    for (int i = 0; i < 3 * 3 * 3 * 5; i++) {
        const tutti_cost cost = {.latency_us = latencies_us[i % 3],
                                 .message_us = latencies_us[i % 3] * messages[i / 3 % 3],
                                 .bandwidth_gbs = bandwidths_gbs[i / 9 % 3],
                                 .reduce_gbs = 12,
                                 .cores = 1};
        tutti_rail_table_fill(&(tutti_rail_rules){.n = ranks[i / 27]}, &cost, &table);
        for (size_t r = 0; r < TUTTI_COUNT_OF(rows); r++)
            for (int j = 0; j < 32 * TUTTI_RAIL_ORDERS; j++) {
                const char *name = tutti_rail_chosen(&table, rows[r].kind, (size_t)1 << j / TUTTI_RAIL_ORDERS,
                                                     (tutti_rail_order)(j % TUTTI_RAIL_ORDERS));
                char word[32];
                snprintf(word, sizeof word, " %s ", name);
                if (strstr(chosen[r], word) == NULL)
                    snprintf(chosen[r] + strlen(chosen[r]), sizeof chosen[r] - strlen(chosen[r]), "%s", word);
            }
    }
    for (size_t r = 0; r < TUTTI_COUNT_OF(rows); r++) {
        char names[128];
        snprintf(names, sizeof names, "%s", rows[r].names);
        for (char *name = strtok(names, " "); name != NULL; name = strtok(NULL, " ")) {
            char word[32];
            snprintf(word, sizeof word, " %s ", name);
            cr_assert(strstr(chosen[r], word) != NULL, "%s by %s is never chosen, only%s",
                      tutti_kind_name(rows[r].kind), name, chosen[r]);
        }
    }
}

Test(rails_move, floats_are_summed_in_rank_order_unless_that_is_waived) {
    tutti_rail_table table;
    for (int reorders = 0; reorders < 2; reorders++)
        for (int n = 2; n < 100; n += 7) {
            tutti_rail_rules rules = {.n = n, .forced = "ring", .reorders = reorders == 1};
            tutti_rail_table_fill(&rules, &tutti_cost_ordinary, &table);
            for (size_t bytes = 1; bytes < (size_t)1 << 32; bytes *= 8) {
                const char *name = tutti_rail_chosen(&table, TUTTI_KIND_ALL_REDUCE, bytes, TUTTI_RAIL_ALL_TOGETHER);
                cr_assert(reorders ? strcmp(name, "ring") == 0 : strncmp(name, "direct", 6) == 0, "%s", name);
                name = tutti_rail_chosen(&table, TUTTI_KIND_ALL_REDUCE, bytes, TUTTI_RAIL_IN_PAIRS);
                cr_assert((strcmp(name, "ring") == 0) == (reorders == 1), "%s", name);
                cr_assert_str_eq(tutti_rail_chosen(&table, TUTTI_KIND_ALL_REDUCE, bytes, TUTTI_RAIL_ANY_ORDER), "ring");
            }
        }
    cr_assert_not(tutti_rail_has_row("abacus"));
    char names[256];
    int count = 0;
    cr_assert_lt(strlen(tutti_rail_row_names()), sizeof names);
    for (char *next = strtok(strcpy(names, tutti_rail_row_names()), ", "); next != NULL; next = strtok(NULL, ", ")) {
        cr_assert(tutti_rail_has_row(next), "%s", next);
        count++;
    }
    cr_assert_eq(count, 10);
}

Test(rails_move, scratch_for_a_call_is_enough_for_shorter_calls) {
    static const tutti_kind kinds[] = {TUTTI_KIND_ALL_REDUCE,     TUTTI_KIND_REDUCE,     TUTTI_KIND_BROADCAST,
                                       TUTTI_KIND_REDUCE_SCATTER, TUTTI_KIND_ALL_GATHER, TUTTI_KIND_ALL_TO_ALL};
    const tutti_cost far = {.latency_us = 20000, .message_us = 5, .bandwidth_gbs = 0.1, .reduce_gbs = 10};
    tutti_rail_table table;
    for (int n = 2; n <= 32; n += 3) {
        tutti_rail_table_fill(&(tutti_rail_rules){.n = n}, &far, &table);
        for (size_t i = 0; i < TUTTI_COUNT_OF(kinds); i++) {
            size_t before = 0;
            for (size_t bytes = 1; bytes < (size_t)1 << 34; bytes += bytes / 3 + 1) {
                size_t needed = tutti_rail_scratch_bytes(&table, kinds[i], bytes);
                cr_assert_geq(needed, before, "%s of %zu bytes, %d ranks", tutti_kind_name(kinds[i]), bytes, n);
                before = needed;
            }
        }
    }
}

Test(rails_move, the_choice_is_explained_for_every_size) {
    tutti_rail_table table;
    char text[256];
    int lines = 0;
    tutti_rail_table_fill(&(tutti_rail_rules){.n = 4}, &tutti_cost_ordinary, &table);
    for (; tutti_rail_explain(&table, TUTTI_KIND_ALL_REDUCE, lines, text, sizeof text) != NULL; lines++)
        cr_assert(strncmp(text, "all_reduce from ", 16) == 0 && strstr(text, " us") != NULL, "%s", text);
    cr_assert(lines >= 2 && lines < 6, "%d lines", lines);
    cr_assert_null(tutti_rail_explain(&table, TUTTI_KIND_SCATTER_V, 0, text, sizeof text));
}

static tutti_status cost_body(rails_rank *rank) {
    static tutti_cost told[MOST_RANKS];
    char *scratch;
    TUTTI_TRY(tutti_calloc(TUTTI_COST_SCRATCH_BYTES, 1, &scratch));
    rails_next(rank, NULL, 0);
    TUTTI_TRY(tutti_cost_agree(&rank->rail, scratch, &told[rank->rail.me]));
    rails_next(rank, NULL, 0);
    TUTTI_TRY(rails_prepare(rank, TUTTI_KIND_BARRIER, 0));
    TUTTI_TRY(tutti_rail_barrier(&rank->rail, &rank->setup));
    const tutti_cost *cost = &told[rank->rail.me];
    RANKS_CHECK(memcmp(&told[0], cost, sizeof *cost) == 0, "ranks have different costs");
    RANKS_CHECK(cost->latency_us > 0 && cost->bandwidth_gbs > 0 && cost->reduce_gbs > 0, "costs are missing");
    free(scratch);
    return TUTTI_OK;
}

Test(rails_move, all_ranks_use_the_costs_of_the_first_one) {
    const char *failure = rails_run(sizes, cost_body, NULL);
    cr_assert(failure == NULL, "%s", failure);
}
