/*
 * The hash table of predictions.
 */
#include "ddp/trainer/auto/edges.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define BUCKET_ELEMENTS ((double)(25 << 20) / sizeof(float)) /* default of <tutti/ddp.h> */

enum { SAMPLES = 0, CHANNELS = 3, DIMS = 4 };

/* Has no padding, since it is hashed as bytes. */
typedef struct key {
    int32_t from, to; /* two bits for each axis */
    tutti_shape in, out;
} key;

struct tutti_price_edge {
    key key;
    bool used;
    double us;
};

static int32_t code_of(const tutti_prices *prices, const tutti_sbp *sbp) {
    int32_t code = 0;
    for (int a = 0; a < prices->mesh->naxes; a++) {
        const int word = sbp[a].kind == TUTTI_SBP_BROADCAST ? 0
                         : sbp[a].kind == TUTTI_SBP_PARTIAL ? 1
                         : sbp[a].dim == SAMPLES            ? 2
                                                            : 3;
        code = 4 * code + word;
    }
    return code;
}

static struct tutti_price_edge *find(const tutti_prices *prices, const key *k) {
    size_t at = tutti_auto_pieces_hash(k, sizeof *k) % prices->edges_size;
    while (prices->edges[at].used && memcmp(&prices->edges[at].key, k, sizeof *k) != 0)
        at = (at + 1) % prices->edges_size;
    return &prices->edges[at];
}

static bool grow(tutti_prices *prices) {
    struct tutti_price_edge *old = prices->edges;
    const size_t old_size = prices->edges_size, size = 2 * old_size + 4096;
    struct tutti_price_edge *edges = calloc(size, sizeof *edges);
    if (edges == NULL) return false;
    prices->edges = edges;
    prices->edges_size = size;
    for (size_t i = 0; i < old_size; i++)
        if (old[i].used) *find(prices, &old[i].key) = old[i];
    free(old);
    return true;
}

static void note_failure(tutti_prices *prices, tutti_status status) {
    if (prices->failure == TUTTI_OK) prices->failure = status;
}

static double predict(tutti_prices *prices, const tutti_edge *edge) {
    int64_t in[DIMS] = {prices->setup.batch, edge->in.height, edge->in.width, edge->in.channels};
    int64_t out[DIMS] = {prices->setup.batch, edge->out.height, edge->out.width, edge->out.channels};
    const tutti_layout src = TUTTI_LAYOUT(.placement = prices->placement, .sbp = edge->from, .type = TUTTI_FLOAT32,
                                          .ndims = DIMS, .shape = in, .name = "an activation");
    const tutti_layout dst = TUTTI_LAYOUT(.placement = prices->placement, .sbp = edge->to, .type = TUTTI_FLOAT32,
                                          .ndims = DIMS, .shape = out, .name = "an activation");
    double us = 0;
    const tutti_status status = tutti_layout_predict(&src, &dst, &us);
    if (status != TUTTI_OK) note_failure(prices, status);
    return us;
}

double tutti_edges_price(tutti_prices *prices, const tutti_edge *edge) {
    const key k = {code_of(prices, edge->from), code_of(prices, edge->to), edge->in, edge->out};
    _Static_assert(sizeof k == 8 * sizeof(int), "a key is hashed as bytes");
    if (!prices->measured) return 0;
    if (2 * prices->nedges >= prices->edges_size && !grow(prices)) {
        note_failure(prices, tutti_fail(TUTTI_ERR_MEMORY, "no memory for the prices of a strategy"));
        return 0;
    }
    struct tutti_price_edge *known = find(prices, &k);
    if (known->used) return known->us;
    *known = (struct tutti_price_edge){.key = k, .used = true, .us = predict(prices, edge)};
    prices->nedges++;
    return known->us;
}

/* Predicts an all_reduce over the ranks of some axes. */
static double predict_sum(tutti_prices *prices, unsigned axes, tutti_type type, int64_t count, const char *name) {
    tutti_sbp from[TUTTI_MOST_AXES] = {{.dim = 0}}, to[TUTTI_MOST_AXES] = {{.dim = 0}};
    for (int a = 0; a < TUTTI_MOST_AXES; a++)
        if ((axes >> a & 1) != 0) from[a] = TUTTI_PARTIAL(TUTTI_SUM);
    double us = 0;
    const tutti_layout src = TUTTI_LAYOUT(.placement = prices->placement, .sbp = from, .type = type, .ndims = 1,
                                          .shape = &count, .name = name);
    const tutti_layout dst = TUTTI_LAYOUT(.placement = prices->placement, .sbp = to, .type = type, .ndims = 1,
                                          .shape = &count, .name = name);
    const tutti_status status = tutti_layout_predict(&src, &dst, &us);
    if (status != TUTTI_OK) note_failure(prices, status);
    return us;
}

double tutti_edges_agreement(tutti_prices *prices, unsigned axes, int count) {
    if (axes == 0 || !prices->measured) return 0;
    return 2 * predict_sum(prices, axes, TUTTI_FLOAT64, count, "the sums of the loss");
}

double tutti_edges_reduction(tutti_prices *prices, unsigned axes, double count) {
    double us = 0;
    for (double left = count; left > 0; left -= BUCKET_ELEMENTS)
        us += predict_sum(prices, axes, TUTTI_FLOAT32, (int64_t)fmin(left, BUCKET_ELEMENTS), "gradients");
    return us;
}

/* The fractions of samples and of channels in one part. */
static void count_parts(const tutti_prices *prices, const tutti_sbp *sbp, double *samples, double *channels) {
    *samples = *channels = 1;
    for (int a = 0; a < prices->mesh->naxes; a++) {
        if (sbp[a].kind != TUTTI_SBP_SPLIT) continue;
        *(sbp[a].dim == SAMPLES ? samples : channels) *= prices->mesh->sizes[a];
    }
}

double tutti_edges_part(const tutti_prices *prices, const tutti_sbp *sbp, tutti_shape shape) {
    double samples, channels;
    count_parts(prices, sbp, &samples, &channels);
    return ceil(prices->setup.batch / samples) * shape.height * shape.width * ceil(shape.channels / channels);
}

/* Sums are reduced first: each of m ranks receives (m - 1) / m of its part. Then each receives what it lacks of the
 * target: if neither samples nor channels are divided differently from before, it lacks nothing. */
double tutti_edges_received(const tutti_prices *prices, const tutti_edge *edge) {
    double from[2], to[2], summed = 1, stays = 1;
    count_parts(prices, edge->from, &from[0], &from[1]);
    count_parts(prices, edge->to, &to[0], &to[1]);
    for (int a = 0; a < prices->mesh->naxes; a++) {
        if (edge->from[a].kind != TUTTI_SBP_PARTIAL || edge->to[a].kind == TUTTI_SBP_PARTIAL) continue;
        summed *= prices->mesh->sizes[a];
        if (edge->to[a].kind == TUTTI_SBP_BROADCAST) stays *= prices->mesh->sizes[a];
    }
    const double has = tutti_edges_part(prices, edge->from, edge->in),
                 wants = tutti_edges_part(prices, edge->to, edge->out);
    double common = (double)prices->setup.batch * (double)tutti_shape_count(edge->out) / stays;
    for (int d = 0; d < 2; d++) common /= fmax(from[d], to[d]);
    return sizeof(float) * ((summed - 1) / summed * has + fmax(0, wants - common));
}
