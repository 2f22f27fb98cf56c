/*
 * The list of pieces with its hash table, and the number of samples that each is measured with.
 */
#include "ddp/trainer/auto/pieces.h"

#include <stdlib.h>
#include <string.h>

#include "ddp/trainer/hash.h"

/* Limits of a forward and backward run of a measured piece, unless a single sample exceeds them: operations, and
 * bytes of its arrays. They amount to some milliseconds. */
#define MOST_FLOPS 6e8
#define MOST_BYTES 48e6

void tutti_auto_pieces_fini(tutti_auto_pieces *pieces) {
    free(pieces->entries), free(pieces->index);
    *pieces = (tutti_auto_pieces){.count = 0};
}

size_t tutti_auto_pieces_hash(const void *key, size_t bytes) {
    uint64_t hash = TUTTI_TRAINER_HASH_BASIS;
    for (size_t i = 0; i < bytes; i += sizeof(uint32_t)) {
        uint32_t word;
        memcpy(&word, (const char *)key + i, sizeof word);
        hash = tutti_trainer_hash_add(hash, word);
    }
    return (size_t)(hash ^ hash >> 32);
}

/* The piece's slot in the table, or the free slot where it belongs. */
static int *slot(const tutti_auto_pieces *pieces, const tutti_piece *piece) {
    size_t at = tutti_auto_pieces_hash(piece, sizeof *piece) % (size_t)pieces->index_size;
    while (pieces->index[at] >= 0 && memcmp(&pieces->entries[pieces->index[at]].piece, piece, sizeof *piece) != 0)
        at = (at + 1) % (size_t)pieces->index_size;
    return &pieces->index[at];
}

static bool grow(tutti_auto_pieces *pieces) {
    const int capacity = 2 * pieces->capacity + 256;
    tutti_piece_entry *entries = realloc(pieces->entries, (size_t)capacity * sizeof *entries);
    if (entries == NULL) return false;
    pieces->entries = entries;
    int *index = malloc(2 * (size_t)capacity * sizeof *index);
    if (index == NULL) return false;
    free(pieces->index);
    pieces->index = index;
    pieces->index_size = 2 * capacity;
    pieces->capacity = capacity;
    for (int i = 0; i < pieces->index_size; i++) index[i] = -1;
    for (int i = 0; i < pieces->count; i++) *slot(pieces, &entries[i].piece) = i;
    return true;
}

tutti_status tutti_piece_place(const tutti_piece *piece, tutti_layer *layer, tutti_node *node_out) {
    *layer = (tutti_layer){
        .name = "a measured layer",
        .kind = (tutti_layer_kind)piece->kind,
        .units = piece->units,
        .kernel = piece->kernel,
        .stride = piece->stride,
        .padding = (tutti_padding)piece->padding,
        .relu = piece->relu != 0,
        .no_bias = piece->bias == 0,
        .rate = piece->drops != 0 ? 0.5 : 0,
        .epsilon = 1e-5,
        .momentum = 0.01,
    };
    *node_out = (tutti_node){
        .layer = layer,
        .in = {piece->height, piece->width, piece->channels},
        .units = piece->units,
        .number = 1,
        .wants_gradient = piece->backward != 0,
    };
    return tutti_layers_row(layer->kind)->place(node_out);
}

/* The number of samples that a piece is measured with. */
static int samples_of(const tutti_piece *piece) {
    tutti_layer layer;
    tutti_node node;
    if (piece->kind >= TUTTI_LAYER_KIND_COUNT) return piece->batch; /* these are fast */
    /* the measurement reports the error */
    if (tutti_piece_place(piece, &layer, &node) != TUTTI_OK) return piece->batch;
    const tutti_layer_cost cost = tutti_layers_row(layer.kind)->cost(&node);
    const double parameters = 4.0 * (double)(node.parameter_counts[0] + node.parameter_counts[1]);
    const double by_flops = MOST_FLOPS / (3 * cost.flops), by_bytes = MOST_BYTES / (cost.bytes - parameters);
    const double most = by_flops < by_bytes ? by_flops : by_bytes;
    return most >= piece->batch ? piece->batch : most > 1 ? (int)most : 1;
}

static int add(tutti_auto_pieces *pieces, const tutti_piece *piece) {
    if (2 * pieces->count >= pieces->capacity && !grow(pieces)) return -1;
    *slot(pieces, piece) = pieces->count;
    pieces->entries[pieces->count] =
        (tutti_piece_entry){.piece = *piece, .measured = pieces->count, .factor = 1, .times = {-1, -1}};
    return pieces->count++;
}

int tutti_auto_pieces_find(tutti_auto_pieces *pieces, const tutti_piece *piece) {
    if (pieces->count > 0 && *slot(pieces, piece) >= 0) return *slot(pieces, piece);
    return add(pieces, piece);
}

double tutti_auto_pieces_crowding(const tutti_auto_pieces *pieces) {
    return pieces->crowding > 1 ? pieces->crowding : 1;
}

tutti_piece_times tutti_auto_pieces_get(tutti_auto_pieces *pieces, const tutti_piece *piece) {
    const tutti_piece_times none = {0, 0};
    const int known = pieces->count;
    const int at = tutti_auto_pieces_find(pieces, piece);
    if (at >= 0 && pieces->count > known) { /* new */
        tutti_piece less = *piece;
        less.batch = samples_of(piece);
        const int measured = less.batch < piece->batch ? tutti_auto_pieces_find(pieces, &less) : at;
        if (measured >= 0) pieces->entries[at].measured = measured;
        pieces->entries[at].factor = (double)piece->batch / less.batch;
    }
    if (at < 0) {
        if (pieces->failure == TUTTI_OK)
            pieces->failure = tutti_fail(TUTTI_ERR_MEMORY, "no memory for a list of layers' times");
        return none;
    }
    const tutti_piece_entry *entry = &pieces->entries[at];
    const tutti_piece_times *times = &pieces->entries[entry->measured].times;
    if (times->forward_us < 0) return none;
    const double factor = entry->factor * tutti_auto_pieces_crowding(pieces);
    return (tutti_piece_times){factor * times->forward_us, factor * times->backward_us};
}
