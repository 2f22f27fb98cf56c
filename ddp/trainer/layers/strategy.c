/*
 * Meshes, the strategies of modes, and strategy files.
 */
#include "ddp/trainer/layers/strategy.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { LINE_BYTES = 512, PATH_BYTES = 4096, MESH_BYTES = 12 * TUTTI_MOST_AXES };

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

/* Parses "2x2". `from` names its origin, for errors. */
static tutti_status parse_mesh(const char *from, const char *text, int nranks, tutti_strategy *strategy) {
    long all = 1;
    strategy->naxes = 0;
    for (const char *next = text;; next++) {
        char *end;
        long size = strtol(next, &end, 10);
        if (end == next || size < 1 || size > nranks || (*end != 'x' && *end != 'X' && *end != '\0') ||
            strategy->naxes == TUTTI_MOST_AXES)
            return tutti_fail(TUTTI_ERR_CONFIG,
                              "%s %s: expected the sizes of 1 to %d axes, such as 2x2, each from 1 to the number of "
                              "ranks, %d",
                              from, text, TUTTI_MOST_AXES, nranks);
        strategy->sizes[strategy->naxes++] = (int)size;
        all = all > nranks ? all : all * size;
        next = end;
        if (*end == '\0') break;
    }
    if (all != nranks)
        return tutti_fail(TUTTI_ERR_CONFIG, "%s %s: the product of its axes must be the number of ranks, %d", from,
                          text, nranks);
    return TUTTI_OK;
}

static void format_mesh(const tutti_strategy *strategy, char *text, size_t bytes) {
    size_t used = 0;
    text[0] = '\0';
    for (int a = 0; a < strategy->naxes && used < bytes; a++)
        used += (size_t)snprintf(text + used, bytes - used, "%s%d", a > 0 ? "x" : "", strategy->sizes[a]);
}

/* ------------------------------------------------------------------------------------------- strategies */

static bool has_weights(const tutti_layer *layer) {
    return layer->kind == TUTTI_LAYER_CONV || layer->kind == TUTTI_LAYER_DENSE;
}

/* The first input of layer `index`, as an index in the list; -1: the model's input. */
static int read_by(const tutti_model_layers *list, int index) {
    const char *name = list->layers[index].inputs[0];
    if (name == NULL) return index - 1;
    for (int i = 0; i < index; i++)
        if (strcmp(list->layers[i].name, name) == 0) return i;
    return -1;
}

/* Divides a layer without weights like its input, whose partial sums are complete at that point. */
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

/* The position of an error. */
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
    return tutti_fail(TUTTI_ERR_CONFIG, "%s:%d: layer %s: \"%s\" is not one of samples, inputs, outputs, none", at.path,
                      at.line, layer->name, word);
}

/* Reads the next line without its comment. Bytes that are not text are an error, so that they do not reach a
 * terminal. */
static tutti_status next_line(FILE *file, place at, char *line, bool *end_out) {
    size_t used = 0;
    bool comment = false;
    int byte;
    while ((byte = getc(file)) != EOF && byte != '\n') {
        comment |= byte == '#';
        if (comment) continue;
        if ((byte < ' ' && byte != '\t' && byte != '\r') || byte > '~')
            return tutti_fail(TUTTI_ERR_CONFIG,
                              "%s:%d: byte 0x%02x in column %zu is not a letter, digit or sign; expected lines such as "
                              "\"dense1 outputs,none\": is it a file that --save-strategy wrote?",
                              at.path, at.line, (unsigned)byte, used + 1);
        if (used == LINE_BYTES - 1)
            return tutti_fail(TUTTI_ERR_CONFIG, "%s:%d: the line is longer than %d bytes", at.path, at.line,
                              LINE_BYTES - 1);
        line[used++] = (char)byte;
    }
    line[used] = '\0';
    *end_out = byte == EOF && used == 0;
    if (ferror(file))
        return tutti_fail(TUTTI_ERR_SYSTEM, "--strategy %s: cannot be read: %s", at.path, strerror(errno));
    return TUTTI_OK;
}

/* The sizes in a line "mesh 2x2", else NULL. The words of a layer with the name mesh do not begin with a digit. */
static const char *find_sizes(const char *line) {
    const char *text = line + strspn(line, " \t\r");
    if (strncmp(text, "mesh", 4) != 0) return NULL;
    const size_t spaces = strspn(text + 4, " \t\r");
    return spaces > 0 && isdigit((unsigned char)text[4 + spaces]) ? text + 4 + spaces : NULL;
}

static tutti_status read_file_mesh(place at, const char *sizes, int nranks, tutti_strategy *strategy) {
    char from[PATH_BYTES], text[LINE_BYTES];
    snprintf(from, sizeof from, "%s:%d: mesh", at.path, at.line);
    snprintf(text, sizeof text, "%.*s", (int)strcspn(sizes, " \t\r"), sizes);
    return parse_mesh(from, text, nranks, strategy);
}

/* Checks a line "mesh 2x2". */
static tutti_status check_mesh(place at, const char *sizes, const tutti_strategy *strategy) {
    tutti_strategy found = {.naxes = 0};
    char own[MESH_BYTES], given[MESH_BYTES];
    int nranks = 1;
    for (int a = 0; a < strategy->naxes; a++) nranks *= strategy->sizes[a];
    TUTTI_TRY(read_file_mesh(at, sizes, nranks, &found));
    if (found.naxes == strategy->naxes &&
        memcmp(found.sizes, strategy->sizes, (size_t)found.naxes * sizeof *found.sizes) == 0)
        return TUTTI_OK;
    format_mesh(&found, own, sizeof own);
    format_mesh(strategy, given, sizeof given);
    return tutti_fail(TUTTI_ERR_CONFIG,
                      "%s:%d: the file is for --mesh %s, not %s; leave out --mesh, or change the file", at.path,
                      at.line, own, given);
}

static tutti_status fail_words(place at, const char *name, int found, const tutti_strategy *strategy) {
    int nranks = 1;
    for (int a = 0; a < strategy->naxes; a++) nranks *= strategy->sizes[a];
    char advice[64];
    snprintf(advice, sizeof advice, found == 1 ? "--mesh %d" : "a --mesh of %d axes", found == 1 ? nranks : found);
    return tutti_fail(
        TUTTI_ERR_CONFIG,
        "%s:%d: layer %s has %d words, expected one for each of the mesh's %d axes; give a word for each, "
        "or %s (in the file: a line that begins with mesh)",
        at.path, at.line, name, found, strategy->naxes, advice);
}

/* Reads a line "dense1 outputs,none". */
static tutti_status read_line(place at, char *line, const tutti_model_layers *list, tutti_strategy *strategy,
                              bool *given) {
    const char *sizes = find_sizes(line);
    if (sizes != NULL) return check_mesh(at, sizes, strategy);
    char *rest, *name = strtok_r(line, " \t\r", &rest);
    if (name == NULL) return TUTTI_OK;
    int index = 0;
    while (index < list->count && strcmp(list->layers[index].name, name) != 0) index++;
    if (index == list->count)
        return tutti_fail(TUTTI_ERR_CONFIG, "%s:%d: the model has no layer %s; its first is %s, its last %s", at.path,
                          at.line, name, list->layers[0].name, list->layers[list->count - 1].name);
    if (given[index]) return tutti_fail(TUTTI_ERR_CONFIG, "%s:%d: layer %s occurs twice", at.path, at.line, name);
    given[index] = true;
    int axes = 0;
    for (char *word; (word = strtok_r(NULL, ", \t\r", &rest)) != NULL; axes++) {
        uint8_t split = 0;
        TUTTI_TRY(read_split(at, &list->layers[index], word, &split));
        if (axes < strategy->naxes) strategy->layers[index][axes] = split;
    }
    return axes == strategy->naxes ? TUTTI_OK : fail_words(at, name, axes, strategy);
}

static tutti_status read_lines(FILE *file, const char *path, const tutti_model_layers *list, tutti_strategy *strategy,
                               bool *given) {
    char line[LINE_BYTES];
    for (place at = {.path = path, .line = 1};; at.line++) {
        bool end;
        TUTTI_TRY(next_line(file, at, line, &end));
        if (end) return TUTTI_OK;
        TUTTI_TRY(read_line(at, line, list, strategy, given));
    }
}

/* The mesh in the file, or the default of hybrid_parallel if it names none. */
static tutti_status find_mesh(FILE *file, const char *path, int nranks, tutti_strategy *strategy) {
    char line[LINE_BYTES];
    for (place at = {.path = path, .line = 1};; at.line++) {
        bool end;
        TUTTI_TRY(next_line(file, at, line, &end));
        const char *sizes = find_sizes(line);
        if (sizes != NULL) return read_file_mesh(at, sizes, nranks, strategy);
        if (!end) continue;
        make_mesh(nranks, TUTTI_MODE_HYBRID_PARALLEL, strategy);
        return TUTTI_OK;
    }
}

static tutti_status open_file(const char *path, FILE **file_out) {
    *file_out = fopen(path, "re");
    return *file_out != NULL ? TUTTI_OK : tutti_fail(TUTTI_ERR_CONFIG, "--strategy %s: %s", path, strerror(errno));
}

tutti_status tutti_strategy_read_mesh(const char *text, const char *path, int nranks, tutti_parallel_mode mode,
                                      tutti_strategy *strategy) {
    FILE *file;
    if (text != NULL) return parse_mesh("--mesh", text, nranks, strategy);
    if (path == NULL) {
        make_mesh(nranks, mode, strategy);
        return TUTTI_OK;
    }
    TUTTI_TRY(open_file(path, &file));
    const tutti_status status = find_mesh(file, path, nranks, strategy);
    fclose(file);
    return status;
}

tutti_status tutti_strategy_read(const char *path, const tutti_model_layers *list, tutti_strategy *strategy) {
    bool given[TUTTI_MODEL_LAYERS] = {false};
    FILE *file;
    TUTTI_TRY(open_file(path, &file));
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
    char mesh[MESH_BYTES];
    format_mesh(strategy, mesh, sizeof mesh);
    fprintf(file, "mesh %s # then layers, and how each is divided along each axis of the mesh\n", mesh);
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
