/*
 * The features of a record, for errors and for the comparison of records. Most data sets have the same features in
 * each record: a record with other names or kinds may be damaged, though the format allows it.
 */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "data/ofrecord.h"

#define SHOWN_NAME    64
#define MOST_FEATURES 4096

/* Replaces characters that could control a terminal. */
static void format_name(tutti_ofrecord_span name, char text[SHOWN_NAME + 4]) {
    const size_t shown = name.bytes < SHOWN_NAME ? name.bytes : SHOWN_NAME;
    for (size_t i = 0; i < shown; i++) text[i] = isprint(name.data[i]) ? (char)name.data[i] : '?';
    snprintf(text + shown, 4, "%s", name.bytes > SHOWN_NAME ? "..." : "");
}

void tutti_ofrecord_list_features(tutti_ofrecord_span record, char *text, size_t bytes) {
    size_t used = 0;
    text[0] = '\0';
    for (size_t at = 0; used < bytes;) {
        char name[SHOWN_NAME + 4];
        tutti_ofrecord_span entry, key;
        tutti_ofrecord_values values = {.capacity = 0};
        if (tutti_ofrecord_next(record, &at, &entry, &key) != TUTTI_OK || entry.data == NULL) break;
        if (tutti_ofrecord_read_entry(record, entry, &values) != TUTTI_OK) break;
        format_name(key, name);
        used += (size_t)snprintf(text + used, bytes - used, "%s%s (%s of %zu)", used > 0 ? ", " : "", name,
                                 tutti_ofrecord_kind_name(values.kind), values.count);
    }
    if (used == 0) snprintf(text, bytes, "none");
}

static const tutti_ofrecord_feature *find(const tutti_ofrecord_features *list, tutti_ofrecord_span name) {
    for (int i = 0; i < list->count; i++)
        if (list->all[i].name.bytes == name.bytes && memcmp(list->all[i].name.data, name.data, name.bytes) == 0)
            return &list->all[i];
    return NULL;
}

/* Adds a feature; of two with one name the last counts, as in a map. */
static tutti_status add(tutti_ofrecord_features *list, tutti_ofrecord_feature feature) {
    tutti_ofrecord_feature *old = (tutti_ofrecord_feature *)find(list, feature.name);
    if (old != NULL) {
        *old = feature;
        return TUTTI_OK;
    }
    if (list->count == MOST_FEATURES)
        return tutti_fail(TUTTI_ERR_DATA, "the record has more than %d features", MOST_FEATURES);
    tutti_ofrecord_feature *all = realloc(list->all, ((size_t)list->count + 1) * sizeof *all);
    if (all == NULL) return tutti_fail(TUTTI_ERR_MEMORY, "no memory for the list of a record's features");
    list->all = all;
    all[list->count++] = feature;
    return TUTTI_OK;
}

static tutti_status read_all(tutti_ofrecord_span record, tutti_ofrecord_features *list) {
    for (size_t at = 0;;) {
        tutti_ofrecord_span entry;
        tutti_ofrecord_feature feature;
        tutti_ofrecord_values values = {.capacity = 0};
        TUTTI_TRY(tutti_ofrecord_next(record, &at, &entry, &feature.name));
        if (entry.data == NULL) return TUTTI_OK;
        TUTTI_TRY(tutti_ofrecord_read_entry(record, entry, &values));
        feature.kind = values.kind;
        TUTTI_TRY(add(list, feature));
    }
}

/* The record's memory belongs to the file, so names are copied to one block. */
static tutti_status keep_names(tutti_ofrecord_features *list) {
    size_t bytes = 1, used = 0;
    for (int i = 0; i < list->count; i++) bytes += list->all[i].name.bytes;
    list->names = malloc(bytes);
    if (list->names == NULL) return tutti_fail(TUTTI_ERR_MEMORY, "no memory for the names of a record's features");
    for (int i = 0; i < list->count; i++) {
        tutti_ofrecord_span *name = &list->all[i].name;
        memcpy(list->names + used, name->data, name->bytes);
        name->data = list->names + used;
        used += name->bytes;
    }
    return TUTTI_OK;
}

/* Returns a feature of `missing` that `others` lacks. */
static const tutti_ofrecord_feature *find_lacking(const tutti_ofrecord_features *missing,
                                                  const tutti_ofrecord_features *others) {
    for (int i = 0; i < missing->count; i++)
        if (find(others, missing->all[i].name) == NULL) return &missing->all[i];
    return NULL;
}

static void compare(const tutti_ofrecord_features *list, const tutti_ofrecord_features *first, char *unlike,
                    size_t bytes) {
    const tutti_ofrecord_feature *lacks = find_lacking(first, list), *more = find_lacking(list, first);
    char name[SHOWN_NAME + 4], other[SHOWN_NAME + 4];
    if (lacks != NULL) format_name(lacks->name, name);
    if (more != NULL) format_name(more->name, other);
    if (lacks != NULL && more != NULL)
        snprintf(unlike, bytes, "it has a feature %s, and no feature %s, which the first record has", other, name);
    else if (lacks != NULL) snprintf(unlike, bytes, "it has no feature %s, which the first record has", name);
    else if (more != NULL) snprintf(unlike, bytes, "it has a feature %s, which the first record lacks", other);
    for (int i = 0; i < list->count && unlike[0] == '\0'; i++) {
        const tutti_ofrecord_feature *own = &list->all[i], *its = find(first, own->name);
        if (own->kind == its->kind) continue;
        format_name(own->name, name);
        snprintf(unlike, bytes, "its feature %s has a %s, that of the first record a %s", name,
                 tutti_ofrecord_kind_name(own->kind), tutti_ofrecord_kind_name(its->kind));
    }
}

tutti_status tutti_ofrecord_compare(tutti_ofrecord_span record, tutti_ofrecord_features *first, char *unlike,
                                    size_t bytes) {
    tutti_ofrecord_features list = {.all = NULL};
    tutti_status status = read_all(record, &list);
    unlike[0] = '\0';
    if (status == TUTTI_OK && first->names != NULL) compare(&list, first, unlike, bytes);
    else if (status == TUTTI_OK && (status = keep_names(&list)) == TUTTI_OK) {
        *first = list;
        return TUTTI_OK;
    }
    tutti_ofrecord_features_free(&list);
    return status;
}

void tutti_ofrecord_features_free(tutti_ofrecord_features *features) {
    free(features->all);
    free(features->names);
    *features = (tutti_ofrecord_features){.all = NULL};
}
