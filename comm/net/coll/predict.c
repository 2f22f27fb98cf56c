/*
 * Predicted times of the algorithms on rails. See predict.h; the steps are described in the algorithms' own files.
 */
#include "comm/net/coll/predict.h"

static double moving(const tutti_question *q, double steps, double messages, double bytes) {
    return tutti_cost_of_moving(q->cost, steps, messages, bytes);
}

static double reducing(const tutti_question *q, double bytes) {
    return tutti_cost_of_reducing(q->cost, bytes);
}

/* Data that is sent or added to long after it was written is read from memory: at about a sixth of the speed at
 * which inputs in a cache are added. Algorithms in pieces avoid this cost. */
static double rereading(const tutti_question *q, double bytes) {
    return bytes > (double)TUTTI_PREDICT_CACHE_BYTES ? reducing(q, 6 * bytes) : 0;
}

static double pieces(double bytes, double piece_bytes) {
    return bytes <= piece_bytes ? 1 : bytes / piece_bytes;
}

double tutti_predict_dissemination(const tutti_question *q) {
    return moving(q, q->log_n, q->log_n, q->log_n);
}

double tutti_predict_whole(const tutti_question *q) {
    double others = q->n - 1, steps = pieces(q->bytes * others, q->piece_bytes);
    return moving(q, steps, steps * others, others * q->bytes) + reducing(q, q->n * q->bytes);
}

double tutti_predict_sliced(const tutti_question *q) {
    double others = q->n - 1, slice = q->bytes / q->n, steps = 2 * pieces(slice * others, q->piece_bytes);
    return moving(q, steps, steps * others, 2 * others * slice) + reducing(q, q->bytes);
}

/* Here `bytes` is the size of a segment. */
double tutti_predict_scattered(const tutti_question *q) {
    double others = q->n - 1, steps = pieces(q->bytes * others, q->piece_bytes);
    return moving(q, steps, steps * others, others * q->bytes) + reducing(q, q->n * q->bytes);
}

double tutti_predict_ring_all_reduce(const tutti_question *q) {
    double steps = 2 * (q->n - 1), slice = q->bytes / q->n;
    return moving(q, steps, steps, steps * slice) + reducing(q, steps * slice) + rereading(q, q->bytes);
}

double tutti_predict_ring_scatter(const tutti_question *q) {
    double steps = q->n - 1;
    return moving(q, steps, steps, steps * q->bytes) + reducing(q, 3 * steps * q->bytes) +
           rereading(q, q->n * q->bytes);
}

/* With ranks that sit out, the vector is moved two more times. */
double tutti_predict_doubling(const tutti_question *q) {
    double steps = q->is_power ? q->log_n : q->log_n + 1;
    return moving(q, steps, steps, steps * q->bytes) + reducing(q, 2 * steps * q->bytes);
}

double tutti_predict_halving(const tutti_question *q) {
    double steps = 2 * q->log_n, more = q->is_power ? 0 : 2 * q->bytes;
    return moving(q, steps, steps, 2 * q->bytes + more) + reducing(q, 2 * q->bytes + more) + rereading(q, q->bytes);
}

double tutti_predict_tree(const tutti_question *q) {
    return moving(q, q->log_n, q->log_n, q->log_n * q->bytes);
}

double tutti_predict_tree_reduce(const tutti_question *q) {
    return tutti_predict_tree(q) + reducing(q, 2 * q->log_n * q->bytes);
}

double tutti_predict_double_tree(const tutti_question *q) {
    double npieces = pieces(q->bytes / 2, q->piece_bytes), steps = npieces + q->log_n;
    return moving(q, steps, 2 * steps, q->bytes / npieces * steps);
}

double tutti_predict_double_tree_reduce(const tutti_question *q) {
    return tutti_predict_double_tree(q) + reducing(q, 3 * q->bytes);
}

double tutti_predict_double_tree_all_reduce(const tutti_question *q) {
    return tutti_predict_double_tree(q) + tutti_predict_double_tree_reduce(q);
}

double tutti_predict_chain(const tutti_question *q) {
    double npieces = pieces(q->bytes, q->piece_bytes), steps = npieces + q->n - 2;
    return moving(q, steps, steps, q->bytes / npieces * steps);
}

double tutti_predict_direct_broadcast(const tutti_question *q) {
    double others = q->n - 1;
    return moving(q, 2, 2 * others, 2 * others / q->n * q->bytes);
}

double tutti_predict_direct(const tutti_question *q) {
    return moving(q, 1, q->n - 1, (q->n - 1) * q->bytes);
}

double tutti_predict_ring(const tutti_question *q) {
    return moving(q, q->n - 1, q->n - 1, (q->n - 1) * q->bytes);
}

double tutti_predict_direct_all_to_all(const tutti_question *q) {
    double steps = pieces(q->bytes, q->piece_bytes);
    return moving(q, steps, steps * (q->n - 1), (q->n - 1) * q->bytes);
}

/* Includes packing and unpacking of the blocks. */
double tutti_predict_bruck_gather(const tutti_question *q) {
    return moving(q, q->log_n, q->log_n, (q->n - 1) * q->bytes) + reducing(q, 2 * q->n * q->bytes);
}

double tutti_predict_bruck_all_to_all(const tutti_question *q) {
    double moved = q->log_n * q->n / 2 * q->bytes;
    return moving(q, q->log_n, q->log_n, moved) + reducing(q, 2 * (q->n * q->bytes + moved));
}
