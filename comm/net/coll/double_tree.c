/*
 * Two binary trees at once, for long vectors on many ranks: each tree carries one half of the vector, and an inner
 * rank of one tree is a leaf of the other. So every rank sends and receives the whole vector once, and a piece
 * reaches all ranks in log2(n) steps.
 *
 * Ranks are numbered from the root on. The root, 0, is above both trees; in the first tree the others are in order:
 *
 *           4              The second tree is the first with the numbers reversed (v -> n-v; odd, hence leaf, becomes
 *        /     \           even) if n is odd, else shifted by one.
 *       2       6
 *     /  \     / \         Steps are the same on all ranks: in step t a rank at depth d of a tree receives piece t-d
 *    1    3   5   7        (going down) and sends piece t-d-1. So no rank waits for one that is in another step.
 *
 * The order of sums is not the rail's.
 *
 * Source: Sanders, Speck, Traeff: Two-tree algorithms for full bandwidth broadcast, reduction and scan (2009).
 */
#include "comm/base/slice.h"
#include "comm/net/coll/rail_call.h"

/* A rank's place in a tree; -1: the tree has no parent or child there. */
typedef struct place {
    int parent, children[2]; /* ranks of the rail */
    size_t depth;            /* root: 0 */
    size_t start, bytes;     /* the part of the vector that the tree carries */
    size_t npieces;
} place;

typedef struct double_tree {
    tutti_rail_call *call;
    int ntrees; /* 1 for two ranks */
    place places[2];
    size_t height; /* at least the depth of the deepest rank */
    size_t npieces;
} double_tree;

/* ---------------------------------------------------------------------------------------------------- the trees */

static int lowest_bit(int number) {
    return number & -number;
}

static int parent_of(int n, int number) {
    int bit = lowest_bit(number), parent = (number ^ bit) | bit << 1;
    return parent < n ? parent : number ^ bit;
}

static void find_children(int n, int number, int children_out[2]) {
    int bit = 1;
    if (number == 0) {
        while (2 * bit < n) bit *= 2;
        children_out[0] = n > 1 ? bit : -1;
        children_out[1] = -1;
        return;
    }
    bit = lowest_bit(number) / 2;
    children_out[0] = bit > 0 ? number - bit : -1;
    while (bit > 0 && number + bit >= n) bit /= 2;
    children_out[1] = bit > 0 ? number + bit : -1;
}

/* Maps numbers to those of the second tree; turn_back maps them back. */
static int turn(int n, int number) {
    if (number == 0) return 0;
    return n % 2 != 0 ? n - number : number % (n - 1) + 1;
}

static int turn_back(int n, int number) {
    if (number == 0) return 0;
    if (n % 2 != 0) return n - number;
    return number == 1 ? n - 1 : number - 1;
}

static int rank_of(const tutti_rail_call *call, int tree, int number) {
    if (number < 0) return -1;
    return tutti_rail_next(call, tree == 0 ? number : turn_back(call->rail->n, number), call->root);
}

static place find_place(const tutti_rail_call *call, int tree) {
    int n = call->rail->n, number = tutti_rail_next(call, call->rail->me, -call->root), children[2];
    if (tree == 1) number = turn(n, number);
    find_children(n, number, children);
    place p = {.parent = number == 0 ? -1 : rank_of(call, tree, parent_of(n, number)),
               .children = {rank_of(call, tree, children[0]), rank_of(call, tree, children[1])}};
    for (int up = number; up != 0; up = parent_of(n, up)) p.depth++;
    return p;
}

static double_tree make_trees(tutti_rail_call *call, size_t count, size_t item_bytes) {
    double_tree t = {.call = call, .ntrees = call->rail->n > 2 ? 2 : 1, .height = 1};
    for (int n = 1; n < call->rail->n; n *= 2) t.height++;
    for (int tree = 0; tree < t.ntrees; tree++) {
        tutti_slice half = tutti_slice_of(count, item_bytes, t.ntrees, tree);
        place *p = &t.places[tree];
        *p = find_place(call, tree);
        p->start = half.start * item_bytes;
        p->bytes = half.count * item_bytes;
        p->npieces = tutti_rail_pieces(p->bytes, call->piece_bytes);
        t.npieces = tutti_max_size(t.npieces, p->npieces);
    }
    return t;
}

/* Piece `index` of a tree's part, as a range of the vector; 0 bytes if there is none (index wraps below 0). */
static tutti_rail_piece piece_of(const double_tree *t, const place *p, size_t index) {
    if (index >= p->npieces) return (tutti_rail_piece){0};
    tutti_rail_piece piece = tutti_rail_piece_of(p->bytes, t->call->piece_bytes, index);
    piece.start += p->start;
    return piece;
}

static void add(tutti_link_part *parts, int *nparts, int rank, bool sends, void *data, size_t bytes) {
    if (rank >= 0) parts[(*nparts)++] = (tutti_link_part){.rank = rank, .sends = sends, .data = data, .bytes = bytes};
}

/* ---------------------------------------------------------------------------------------------------- going down */

static tutti_status spread(const double_tree *t, char *data) {
    for (size_t step = 1; step < t->npieces + t->height; step++) {
        tutti_link_part parts[6];
        int nparts = 0;
        for (int tree = 0; tree < t->ntrees; tree++) {
            const place *p = &t->places[tree];
            tutti_rail_piece in = piece_of(t, p, step - p->depth), out = piece_of(t, p, step - p->depth - 1);
            add(parts, &nparts, p->parent, false, tutti_rail_at(data, in.start), in.bytes);
            for (int i = 0; i < 2; i++)
                add(parts, &nparts, p->children[i], true, tutti_rail_at(data, out.start), out.bytes);
        }
        TUTTI_TRY(tutti_rail_move(t->call, parts, nparts, NULL));
    }
    return TUTTI_OK;
}

/* ------------------------------------------------------------------------------------------------------ going up */

/* Memory that a rank needs to add in one tree. */
typedef struct sums {
    char *inputs[2]; /* one piece of each child */
    char *made[2];   /* two pieces of the sum, used in turn, if they are not written to dst */
} sums;

static size_t sums_bytes(size_t bytes, size_t piece_bytes) {
    return 4 * tutti_rail_room(tutti_min_size(bytes, piece_bytes));
}

size_t tutti_double_tree_scratch(int n, size_t bytes, size_t piece_bytes) {
    (void)n;
    return 2 * sums_bytes(bytes, piece_bytes);
}

static sums take_sums(tutti_rail_call *call) {
    size_t bytes = tutti_min_size(call->bytes, call->piece_bytes);
    return (sums){.inputs = {tutti_rail_take(call, bytes), tutti_rail_take(call, bytes)},
                  .made = {tutti_rail_take(call, bytes), tutti_rail_take(call, bytes)}};
}

/* Where this rank's sum of piece `index` is; a leaf's sum is its input. */
static char *sum_of(const double_tree *t, const place *p, const sums *s, size_t index) {
    const tutti_rail_call *call = t->call;
    size_t start = piece_of(t, p, index).start;
    bool is_leaf = p->children[0] < 0 && p->children[1] < 0;
    if (is_leaf) return tutti_rail_at(call->vector.src, start);
    if (call->kind == TUTTI_KIND_ALL_REDUCE || call->rail->me == call->root)
        return tutti_rail_at(call->vector.dst, start);
    return s->made[index % 2];
}

static void add_up(const double_tree *t, const place *p, const sums *s, size_t index) {
    tutti_rail_piece piece = piece_of(t, p, index);
    if (piece.bytes == 0) return;
    tutti_rail_vector sum = t->call->vector;
    bool is_whole = p->parent < 0; /* only the root's sum includes all inputs */
    if (sum.reduction == TUTTI_AVG && !is_whole) sum.reduction = TUTTI_SUM;
    const void *views[3] = {tutti_rail_at(sum.src, piece.start)};
    int nviews = 1;
    for (int i = 0; i < 2; i++)
        if (p->children[i] >= 0) views[nviews++] = s->inputs[i];
    if (nviews > 1) tutti_rail_reduce_now(&sum, sum_of(t, p, s, index), views, nviews, piece.bytes);
}

/* The way down, reversed: a rank at depth d receives piece t - (height - d) + 1, and sends the piece before. */
static tutti_status gather_sum(const double_tree *t) {
    sums all[2] = {take_sums(t->call), take_sums(t->call)};
    for (size_t step = 0; step < t->npieces + t->height; step++) {
        tutti_link_part parts[6];
        int nparts = 0;
        for (int tree = 0; tree < t->ntrees; tree++) {
            const place *p = &t->places[tree];
            size_t index = step + p->depth - t->height; /* the piece that is sent; wraps */
            add(parts, &nparts, p->parent, true, sum_of(t, p, &all[tree], index), piece_of(t, p, index).bytes);
            for (int i = 0; i < 2; i++)
                add(parts, &nparts, p->children[i], false, all[tree].inputs[i], piece_of(t, p, index + 1).bytes);
        }
        TUTTI_TRY(tutti_rail_move(t->call, parts, nparts, NULL));
        for (int tree = 0; tree < t->ntrees; tree++) {
            const place *p = &t->places[tree];
            add_up(t, p, &all[tree], step + p->depth - t->height + 1);
        }
    }
    return TUTTI_OK;
}

/* -------------------------------------------------------------------------------------------------------- calls */

tutti_status tutti_double_tree_broadcast(tutti_rail_call *call) {
    double_tree t = make_trees(call, call->receives[0].bytes, 1);
    return spread(&t, call->receives[0].data);
}

tutti_status tutti_double_tree_reduce(tutti_rail_call *call) {
    double_tree t = make_trees(call, call->vector.count, tutti_type_bytes(call->vector.type));
    return gather_sum(&t);
}

tutti_status tutti_double_tree_all_reduce(tutti_rail_call *call) {
    double_tree t = make_trees(call, call->vector.count, tutti_type_bytes(call->vector.type));
    TUTTI_TRY(gather_sum(&t));
    return spread(&t, call->vector.dst);
}
