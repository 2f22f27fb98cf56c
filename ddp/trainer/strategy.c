/*
 * Meshes, strategies of modes, and their files.
 */
#include "ddp/trainer/strategy.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { LINE_BYTES = 512 };

static const struct {
    const char *name;
    uint8_t split;
} words[] = {
    {"samples", TUTTI_SPLIT_SAMPLES}, {"inputs", TUTTI_SPLIT_INPUTS}, {"outputs", TUTTI_SPLIT_OUTPUTS}, {"none", 0}};

enum { NWORDS = sizeof words / sizeof words[0] };

/* ------------------------------------------------------------------------------------- modes and meshes */

tutti_status tutti_strategy_find_mode(const char *text, tutti_parallel_mode *mode_out) {
    static const char *const names[] = {[TUTTI_MODE_STAND_ALONE] = "stand_alone",
                                        [TUTTI_MODE_DATA_PARALLEL] = "data_parallel",
                                        [TUTTI_MODE_LAYERWISE_PARALLEL] = "layerwise_parallel",
                                        [TUTTI_MODE_HYBRID_PARALLEL] = "hybrid_parallel",
                                        [TUTTI_MODE_AUTO_PARALLEL] = "auto_parallel"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strcasecmp(text, names[i]) == 0) {
            *mode_out = (tutti_parallel_mode)i;
            return TUTTI_OK;
        }
    return tutti_fail(TUTTI_ERR_CONFIG, "--parallel-mode %s: expected one of " TUTTI_MODE_NAMES, text);
}

static void make_mesh(int nranks, tutti_parallel_mode mode, tutti_strategy *strategy) {
    strategy->naxes = 1;
    strategy->sizes[0] = nranks;
    if (mode != TUTTI_MODE_HYBRID_PARALLEL) return;
    int inner = 1;
    for (int i = 2; i * i <= nranks; i++)
        if (nranks % i == 0) inner = i;
    if (inner == 1) inner = nranks;
    strategy->naxes = 2;
    strategy->sizes[0] = nranks / inner;
    strategy->sizes[1] = inner;
}

tutti_status tutti_strategy_read_mesh(const char *text, int nranks, tutti_parallel_mode mode,
                                      tutti_strategy *strategy) {
    if (text == NULL) {
        make_mesh(nranks, mode, strategy);
        return TUTTI_OK;
    }
    long all = 1;
    strategy->naxes = 0;
    for (const char *next = text;; next++) {
        char *end;
        long size = strtol(next, &end, 10);
        if (end == next || size < 1 || size > nranks || (*end != 'x' && *end != 'X' && *end != '\0') ||
            strategy->naxes == TUTTI_MOST_AXES)
            return tutti_fail(
                TUTTI_ERR_CONFIG,
                "--mesh %s: expected the sizes of 1 to %d axes, such as 2x2, each from 1 to the number of "
                "ranks, %d",
                text, TUTTI_MOST_AXES, nranks);
        strategy->sizes[strategy->naxes++] = (int)size;
        all = all > nranks ? all : all * size;
        next = end;
        if (*end == '\0') break;
    }
    if (all != nranks)
        return tutti_fail(TUTTI_ERR_CONFIG, "--mesh %s: the product of its axes must be the number of ranks, %d", text,
                          nranks);
    return TUTTI_OK;
}

/* ------------------------------------------------------------------------------------------- strategies */

static bool has_weights(const tutti_layer *layer) {
    return layer->kind == TUTTI_LAYER_CONV || layer->kind == TUTTI_LAYER_DENSE;
}

/* The layer of the list that layer `index` reads first; -1: the model's input. */
static int read_by(const tutti_model_layers *list, int index) {
    const char *name = list->layers[index].inputs[0];
    if (name == NULL) return index - 1;
    for (int i = 0; i < index; i++)
        if (strcmp(list->layers[i].name, name) == 0) return i;
    return -1;
}

/* A layer without weights: as what it reads, whose sums of inputs are whole by then. */
static void follow(const tutti_model_layers *list, int index, tutti_strategy *strategy) {
    const int from = read_by(list, index);
    for (int a = 0; a < strategy->naxes; a++) {
        const uint8_t split = from < 0 ? TUTTI_SPLIT_SAMPLES : strategy->layers[from][a];
        strategy->layers[index][a] = split == TUTTI_SPLIT_INPUTS ? 0 : split;
    }
}

void tutti_strategy_fill(tutti_parallel_mode mode, const tutti_model_layers *list, tutti_strategy *strategy) {
    strategy->nlayers = list->count;
    for (int i = 0; i < list->count; i++) {
        const tutti_layer *layer = &list->layers[i];
        const bool by_outputs = mode == TUTTI_MODE_LAYERWISE_PARALLEL ||
                                (mode == TUTTI_MODE_HYBRID_PARALLEL && layer->kind == TUTTI_LAYER_DENSE);
        if (!has_weights(layer)) {
            follow(list, i, strategy);
            continue;
        }
        for (int a = 0; a < strategy->naxes; a++)
            strategy->layers[i][a] = by_outputs && a == strategy->naxes - 1 ? TUTTI_SPLIT_OUTPUTS : TUTTI_SPLIT_SAMPLES;
    }
}

bool tutti_strategy_is_data_parallel(const tutti_strategy *strategy) {
    for (int i = 0; i < strategy->nlayers; i++)
        for (int a = 0; a < strategy->naxes; a++)
            if (strategy->sizes[a] > 1 && strategy->layers[i][a] != TUTTI_SPLIT_SAMPLES) return false;
    return true;
}

void tutti_strategy_format(const tutti_strategy *strategy, int layer, char *text, size_t bytes) {
    size_t used = 0;
    text[0] = '\0';
    for (int a = 0; a < strategy->naxes; a++)
        for (int w = 0; w < NWORDS && used < bytes; w++)
            if (words[w].split == strategy->layers[layer][a])
                used += (size_t)snprintf(text + used, bytes - used, "%s%s", a > 0 ? "," : "", words[w].name);
}

/* ------------------------------------------------------------------------------------------------ files */

/* Where an error is. */
typedef struct place {
    const char *path;
    int line;
} place;

static tutti_status read_split(place at, const tutti_layer *layer, const char *word, uint8_t *split_out) {
    const unsigned allowed = tutti_layers_row(layer->kind)->split_axes;
    for (int w = 0; w < NWORDS; w++) {
        if (strcmp(word, words[w].name) != 0) continue;
        if (words[w].split != 0 && (allowed & words[w].split) == 0)
            return tutti_fail(TUTTI_ERR_CONFIG,
                              "%s:%d: layer %s (%s) cannot be divided by %s; it can by samples, %s or none", at.path,
                              at.line, layer->name, tutti_layers_row(layer->kind)->name, word,
                              (allowed & TUTTI_SPLIT_INPUTS) != 0 ? "inputs, outputs" : "outputs");
        *split_out = words[w].split;
        return TUTTI_OK;
    }
    return tutti_fail(TUTTI_ERR_CONFIG, "%s:%d: layer %s: \"%s\" is none of samples, inputs, outputs, none", at.path,
                      at.line, layer->name, word);
}

/* "dense1 outputs,none", without comment. */
static tutti_status read_line(place at, char *line, const tutti_model_layers *list, tutti_strategy *strategy,
                              bool *given) {
    char *rest, *name = strtok_r(line, " \t\r\n", &rest);
    if (name == NULL) return TUTTI_OK;
    int index = 0;
    while (index < list->count && strcmp(list->layers[index].name, name) != 0) index++;
    if (index == list->count)
        return tutti_fail(TUTTI_ERR_CONFIG, "%s:%d: the model has no layer %s; its first is %s, its last %s", at.path,
                          at.line, name, list->layers[0].name, list->layers[list->count - 1].name);
    if (given[index]) return tutti_fail(TUTTI_ERR_CONFIG, "%s:%d: layer %s comes twice", at.path, at.line, name);
    given[index] = true;
    int axes = 0;
    for (char *word; (word = strtok_r(NULL, ", \t\r\n", &rest)) != NULL; axes++) {
        uint8_t split = 0;
        TUTTI_TRY(read_split(at, &list->layers[index], word, &split));
        if (axes < strategy->naxes) strategy->layers[index][axes] = split;
    }
    if (axes != strategy->naxes)
        return tutti_fail(TUTTI_ERR_CONFIG, "%s:%d: layer %s has %d words, expected one for each of the mesh's %d axes",
                          at.path, at.line, name, axes, strategy->naxes);
    return TUTTI_OK;
}

static tutti_status read_lines(FILE *file, const char *path, const tutti_model_layers *list, tutti_strategy *strategy,
                               bool *given) {
    char line[LINE_BYTES];
    place at = {.path = path};
    while (fgets(line, sizeof line, file) != NULL) {
        at.line++;
        if (strchr(line, '\n') == NULL && strlen(line) == sizeof line - 1)
            return tutti_fail(TUTTI_ERR_CONFIG, "%s:%d: the line is longer than %zu bytes", path, at.line,
                              sizeof line - 2);
        line[strcspn(line, "#")] = '\0';
        TUTTI_TRY(read_line(at, line, list, strategy, given));
    }
    if (ferror(file)) return tutti_fail(TUTTI_ERR_SYSTEM, "--strategy %s: cannot be read: %s", path, strerror(errno));
    return TUTTI_OK;
}

tutti_status tutti_strategy_read(const char *path, const tutti_model_layers *list, tutti_strategy *strategy) {
    bool given[TUTTI_MODEL_LAYERS] = {false};
    FILE *file = fopen(path, "re");
    if (file == NULL) return tutti_fail(TUTTI_ERR_CONFIG, "--strategy %s: %s", path, strerror(errno));
    strategy->nlayers = list->count;
    tutti_status status = read_lines(file, path, list, strategy, given);
    fclose(file);
    TUTTI_TRY(status);
    for (int i = 0; i < list->count; i++) {
        if (given[i]) continue;
        if (!has_weights(&list->layers[i])) follow(list, i, strategy);
        else memset(strategy->layers[i], TUTTI_SPLIT_SAMPLES, sizeof strategy->layers[i]);
    }
    return TUTTI_OK;
}

tutti_status tutti_strategy_write(const char *path, const tutti_model_layers *list, const tutti_strategy *strategy) {
    FILE *file = fopen(path, "we");
    if (file == NULL) return tutti_fail(TUTTI_ERR_SYSTEM, "--save-strategy %s: %s", path, strerror(errno));
    fputs("# --mesh ", file);
    for (int a = 0; a < strategy->naxes; a++) fprintf(file, "%s%d", a > 0 ? "x" : "", strategy->sizes[a]);
    fputs("; a layer, and how it is divided along each axis of the mesh\n", file);
    for (int i = 0; i < list->count; i++) {
        char text[16 * TUTTI_MOST_AXES];
        tutti_strategy_format(strategy, i, text, sizeof text);
        fprintf(file, "%s %s\n", list->layers[i].name, text);
    }
    const bool failed = ferror(file) != 0;
    if (fclose(file) != 0 || failed)
        return tutti_fail(TUTTI_ERR_SYSTEM, "--save-strategy %s: writing failed: %s", path, strerror(errno));
    return TUTTI_OK;
}
