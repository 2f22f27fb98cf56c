/*
 * Optimizer steps on many arrays with one launch. Each block takes a run of one array; it finds the array by a search
 * in the numbers of the arrays' first blocks.
 */
#include "kernels/cuda/layers/quad.h"

/* The most that fits into the 4 KiB of a launch's arguments. */
#define MOST_PIECES 64
#define RUN         (THREADS * 4) /* elements per block */

struct piece_list {
    tutti_optimizer_piece pieces[MOST_PIECES];
    unsigned first_blocks[MOST_PIECES + 1]; /* the last one: the number of all blocks */
    int npieces;
};

/* The piece whose run this block takes, and the first element of this thread. */
static __device__ inline const tutti_optimizer_piece *find_piece(const piece_list &list, size_t *at_out) {
    int low = 0, high = list.npieces; /* the piece is in [low, high) */
    while (high - low > 1) {
        int middle = (low + high) / 2;
        if (list.first_blocks[middle] <= blockIdx.x) low = middle;
        else high = middle;
    }
    *at_out = (size_t)(blockIdx.x - list.first_blocks[low]) * RUN + 4 * threadIdx.x;
    return &list.pieces[low];
}

/* ---------------------------------------------------------------------------------------------- rules */

struct sgd_rule {
    float momentum, decay, lr;
    bool nesterov;

    __device__ void load(const tutti_step_values *values) {
        lr = values->lr;
    }
    __device__ bool keeps(int state) const {
        return state == 0 && momentum != 0;
    }
    __device__ void apply(float gradient, float *states, float *parameter) const {
        float g = gradient + decay * *parameter;
        if (momentum != 0) {
            states[0] = momentum * states[0] + g;
            g = nesterov ? g + momentum * states[0] : states[0];
        }
        *parameter -= lr * g;
    }
};

struct adam_rule {
    float beta_1, beta_2, coupled, epsilon;
    tutti_adam_factors factors;
    bool decays;

    __device__ void load(const tutti_step_values *values) {
        factors = values->adam;
        if (!decays) factors.keep = 1;
    }
    __device__ bool keeps(int) const {
        return true;
    }
    __device__ void apply(float gradient, float *states, float *parameter) const {
        float g = gradient + coupled * *parameter;
        states[0] = beta_1 * states[0] + (1 - beta_1) * g;
        states[1] = beta_2 * states[1] + (1 - beta_2) * g * g;
        *parameter =
            factors.keep * *parameter - factors.rate * states[0] / (sqrtf(states[1]) * factors.correction + epsilon);
    }
};

/* ------------------------------------------------------------------------------------------ the update */

template <typename Rule>
static __device__ inline void update_quad(const Rule &rule, const tutti_optimizer_piece *piece, size_t at) {
    float4 gradient = load_quad(piece->gradient + at), parameter = load_quad(piece->parameter + at);
    float4 states[2] = {};
    for (int s = 0; s < 2; s++)
        if (rule.keeps(s)) states[s] = load_quad(piece->states[s] + at);
    const float *g = &gradient.x;
    float *p = &parameter.x;
    for (int i = 0; i < 4; i++) {
        float own[2] = {(&states[0].x)[i], (&states[1].x)[i]};
        rule.apply(g[i], own, &p[i]);
        (&states[0].x)[i] = own[0];
        (&states[1].x)[i] = own[1];
    }
    for (int s = 0; s < 2; s++)
        if (rule.keeps(s)) store_quad(piece->states[s] + at, states[s]);
    store_quad(piece->parameter + at, parameter);
}

template <typename Rule> static __global__ void update(piece_list list, Rule rule, const tutti_step_values *values) {
    size_t at;
    const tutti_optimizer_piece *piece = find_piece(list, &at);
    if (at >= piece->count) return;
    rule.load(values);
    if (piece->count - at >= 4) {
        update_quad(rule, piece, at);
        return;
    }
    for (; at < piece->count; at++) {
        float states[2] = {};
        for (int s = 0; s < 2; s++)
            if (rule.keeps(s)) states[s] = piece->states[s][at];
        rule.apply(piece->gradient[at], states, &piece->parameter[at]);
        for (int s = 0; s < 2; s++)
            if (rule.keeps(s)) piece->states[s][at] = states[s];
    }
}

template <typename Rule>
static void launch_update(tutti_compute *compute, Rule rule, const tutti_step_values *values,
                          const tutti_optimizer_piece *pieces, int npieces) {
    static_assert(sizeof(piece_list) + sizeof(Rule) + sizeof values <= 4096, "arguments of a launch");
    while (npieces > 0) {
        piece_list list = {};
        for (; list.npieces < MOST_PIECES && npieces > 0; pieces++, npieces--) {
            if (pieces->count == 0) continue;
            list.pieces[list.npieces++] = *pieces;
            list.first_blocks[list.npieces] =
                list.first_blocks[list.npieces - 1] + (unsigned)((pieces->count + RUN - 1) / RUN);
        }
        unsigned blocks = list.first_blocks[list.npieces];
        if (blocks > 0) launch(compute, update<Rule>, blocks, THREADS, list, rule, values);
    }
}

void tutti_gpu_sgd(tutti_compute *compute, const tutti_sgd *rule, const tutti_step_values *values,
                   const tutti_optimizer_piece *pieces, int npieces) {
    sgd_rule how = {(float)rule->momentum, (float)rule->weight_decay, 0, rule->nesterov};
    launch_update(compute, how, values, pieces, npieces);
}

void tutti_gpu_adam(tutti_compute *compute, const tutti_adam *rule, const tutti_step_values *values,
                    const tutti_optimizer_piece *pieces, int npieces) {
    adam_rule how = {(float)rule->beta_1,
                     (float)rule->beta_2,
                     (float)(rule->decoupled ? 0 : rule->weight_decay),
                     (float)rule->epsilon,
                     {},
                     rule->weight_decay != 0};
    launch_update(compute, how, values, pieces, npieces);
}
