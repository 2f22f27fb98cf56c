/*
 * The file of measured times (TUTTI_SPEED_FILE): a line with the format, one with the machine, and one for each
 * piece.
 *
 *   tutti speeds 1
 *   machine AMD EPYC 9R14, 2 ranks on 2 cores, host
 *   conv 5 1 0 1 1 0 2 14 14 32 64 200 812.500 1630.250
 *
 * The line of a piece has its kind, the members of tutti_piece in their order, and the two times in microseconds.
 */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "ddp/trainer/auto/pieces.h"

enum { LINE_BYTES = 512, NUMBERS = 12 };

static const char first_line[] = "tutti speeds 1";

static const char *name_of(int kind) {
    switch (kind) {
    case TUTTI_PIECE_INPUT: return "input";
    case TUTTI_PIECE_LOSS: return "loss";
    case TUTTI_PIECE_EXPANDED_LOSS: return "loss_expand";
    case TUTTI_PIECE_UPDATE: return "update";
    default: return tutti_layers_row((tutti_layer_kind)kind)->name;
    }
}

static tutti_status fail_line(const char *path, int line, const char *what) {
    return tutti_fail(
        TUTTI_ERR_CONFIG,
        "TUTTI_SPEED_FILE: %s, line %d: %s; the file is not from tutti-train, or it is damaged: remove it, or name "
        "another",
        path, line, what);
}

static tutti_status read_piece(const char *path, int number, const char *line, tutti_auto_pieces *pieces) {
    tutti_piece piece;
    char kind[32], rest;
    int32_t *n = &piece.kernel;
    tutti_piece_times times;
    _Static_assert(sizeof piece == (NUMBERS + 1) * sizeof *n, "a kind and the numbers of a line");
    memset(&piece, 0, sizeof piece);
    const int found = sscanf(line,
                             "%31s %" SCNd32 " %" SCNd32 " %" SCNd32 " %" SCNd32 " %" SCNd32 " %" SCNd32 " %" SCNd32
                             " %" SCNd32 " %" SCNd32 " %" SCNd32 " %" SCNd32 " %" SCNd32 " %lf %lf %c",
                             kind, &piece.kernel, &piece.stride, &piece.padding, &piece.relu, &piece.bias, &piece.drops,
                             &piece.backward, &piece.height, &piece.width, &piece.channels, &piece.units, &piece.batch,
                             &times.forward_us, &times.backward_us, &rest);
    if (found != NUMBERS + 3)
        return fail_line(path, number, "expected a kind of layer, 12 whole numbers and two times");
    while (piece.kind < TUTTI_PIECE_KIND_COUNT && strcmp(name_of(piece.kind), kind) != 0) piece.kind++;
    if (piece.kind == TUTTI_PIECE_KIND_COUNT) return fail_line(path, number, "there is no such kind of layer");
    if (!isfinite(times.forward_us) || !isfinite(times.backward_us) || times.forward_us < 0 || times.backward_us < 0)
        return fail_line(path, number, "expected times of at least 0");
    const int at = tutti_auto_pieces_find(pieces, &piece);
    if (at < 0) return tutti_fail(TUTTI_ERR_MEMORY, "no memory for a list of layers' times");
    if (pieces->entries[at].measured == at) pieces->entries[at].times = times;
    return TUTTI_OK;
}

static tutti_status read_lines(FILE *file, const char *path, const char *machine, tutti_auto_pieces *pieces) {
    char line[LINE_BYTES], prefix[] = "machine ";
    for (int number = 1; fgets(line, sizeof line, file) != NULL; number++) {
        if (strchr(line, '\n') == NULL) return fail_line(path, number, "the line is truncated or too long");
        line[strcspn(line, "\n")] = '\0';
        if (number > 2) {
            TUTTI_TRY(read_piece(path, number, line, pieces));
        } else if (number == 1) {
            if (strcmp(line, first_line) != 0) return fail_line(path, number, "expected \"tutti speeds 1\"");
        } else {
            if (strncmp(line, prefix, strlen(prefix)) != 0) return fail_line(path, number, "expected \"machine ...\"");
            if (strcmp(line + strlen(prefix), machine) != 0)
                return tutti_fail(
                    TUTTI_ERR_CONFIG,
                    "TUTTI_SPEED_FILE: %s was measured elsewhere (%s), and this is %s; name another file, "
                    "which is then written",
                    path, line + strlen(prefix), machine);
        }
    }
    if (ferror(file))
        return tutti_fail(TUTTI_ERR_SYSTEM, "TUTTI_SPEED_FILE: %s cannot be read: %s", path, strerror(errno));
    return TUTTI_OK;
}

tutti_status tutti_speed_file_read(const char *path, const char *machine, tutti_auto_pieces *pieces) {
    FILE *file = fopen(path, "re");
    if (file == NULL && errno == ENOENT) return TUTTI_OK;
    if (file == NULL)
        return tutti_fail(TUTTI_ERR_CONFIG, "TUTTI_SPEED_FILE: %s cannot be opened: %s", path, strerror(errno));
    const tutti_status status = read_lines(file, path, machine, pieces);
    fclose(file);
    return status;
}

static tutti_status fail_write(const char *path) {
    return tutti_fail(TUTTI_ERR_SYSTEM, "TUTTI_SPEED_FILE: %s cannot be written: %s", path, strerror(errno));
}

/* A reader sees the old file or the new one. */
tutti_status tutti_speed_file_write(const char *path, const char *machine, const tutti_auto_pieces *pieces) {
    char beside[4096];
    if (snprintf(beside, sizeof beside, "%s.%ld", path, (long)getpid()) >= (int)sizeof beside)
        return tutti_fail(TUTTI_ERR_CONFIG, "TUTTI_SPEED_FILE: %s: the path is too long", path);
    FILE *file = fopen(beside, "we");
    if (file == NULL) return fail_write(path);
    fprintf(file, "%s\nmachine %s\n", first_line, machine);
    for (int i = 0; i < pieces->count; i++) {
        const tutti_piece_entry *entry = &pieces->entries[i];
        const tutti_piece *p = &entry->piece;
        if (entry->measured != i || entry->times.forward_us < 0) continue;
        fprintf(file, "%s %d %d %d %d %d %d %d %d %d %d %d %d %.3f %.3f\n", name_of(p->kind), p->kernel, p->stride,
                p->padding, p->relu, p->bias, p->drops, p->backward, p->height, p->width, p->channels, p->units,
                p->batch, entry->times.forward_us, entry->times.backward_us);
    }
    const bool failed = ferror(file) != 0;
    if (fclose(file) != 0 || failed || rename(beside, path) != 0) {
        const tutti_status status = fail_write(path);
        (void)unlink(beside);
        return status;
    }
    return TUTTI_OK;
}
