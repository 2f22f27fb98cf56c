/*
 * The features of a record: decoding one into a blob, and the comparison of records. Most data sets have the same
 * features in each record: a record with other names or kinds may be damaged, though the format allows it.
 */
#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "data/ofrecord.h"

#define SHOWN_NAME    64
#define MOST_FEATURES 4096
#define MOST_COUNT    ((size_t)1 << 31)

/* Replaces characters that could control a terminal. */
static void format_name(tutti_ofrecord_span name, char text[SHOWN_NAME + 4]) {
    const size_t shown = name.bytes < SHOWN_NAME ? name.bytes : SHOWN_NAME;
    for (size_t i = 0; i < shown; i++) text[i] = isprint(name.data[i]) ? (char)name.data[i] : '?';
    snprintf(text + shown, 4, "%s", name.bytes > SHOWN_NAME ? "..." : "");
}

/* Writes "img_raw (float_list of 784), label (int32_list of 1)", truncated if it does not fit. */
static void list_features(tutti_ofrecord_span record, char *text, size_t bytes) {
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

/* ----------------------------------------------------------------------------------------------- blobs */

/* Finds the entry of the feature `name` in a record; the last, if there are several. data NULL: there is none. */
static tutti_status find_entry(tutti_ofrecord_span record, const char *name, tutti_ofrecord_span *entry_out) {
    tutti_ofrecord_span entry, key, found = {NULL, 0};
    const size_t bytes = strlen(name);
    for (size_t at = 0;;) {
        TUTTI_TRY(tutti_ofrecord_next(record, &at, &entry, &key));
        if (entry.data == NULL) break;
        if (key.bytes == bytes && memcmp(key.data, name, bytes) == 0) found = entry;
    }
    *entry_out = found;
    return TUTTI_OK;
}

size_t tutti_ofrecord_blob_count(const tutti_ofrecord_blob *blob) {
    size_t count = 1;
    for (int i = 0; i < blob->ndims; i++) {
        if (blob->shape[i] < 1 || (uint64_t)blob->shape[i] > MOST_COUNT / count) return 0;
        count *= (size_t)blob->shape[i];
    }
    return count;
}

static int64_t to_range(double value, double least, double most) {
    return isnan(value) ? 0 : (int64_t)(value < least ? least : value > most ? most : value);
}

/* Bytes come as int8, and become the same bytes in uint8; other numbers out of range become the nearest number in
 * range. */
static void store_integer(tutti_type type, bool from_bytes, int64_t value, size_t i, void *dst) {
    switch (type) {
    case TUTTI_UINT8:
        ((uint8_t *)dst)[i] = (uint8_t)(from_bytes ? value : value < 0 ? 0 : value > 255 ? 255 : value);
        return;
    case TUTTI_INT8:
        ((int8_t *)dst)[i] = (int8_t)(value < INT8_MIN ? INT8_MIN : value > INT8_MAX ? INT8_MAX : value);
        return;
    case TUTTI_INT32:
        ((int32_t *)dst)[i] = (int32_t)(value < INT32_MIN ? INT32_MIN : value > INT32_MAX ? INT32_MAX : value);
        return;
    case TUTTI_INT64: ((int64_t *)dst)[i] = value; return;
    case TUTTI_FLOAT32: ((float *)dst)[i] = (float)value; return;
    default: ((double *)dst)[i] = (double)value;
    }
}

static void store_real(tutti_type type, double value, size_t i, void *dst) {
    const double least = -9223372036854775808.0, most = 9223372036854774784.0; /* limits of int64 */
    if (type == TUTTI_FLOAT32) ((float *)dst)[i] = (float)value;
    else if (type == TUTTI_FLOAT64) ((double *)dst)[i] = value;
    else store_integer(type, false, to_range(value, least, most), i, dst);
}

static tutti_status decode_bytes(const tutti_ofrecord_values *values, const tutti_ofrecord_blob *blob, size_t count,
                                 void *dst) {
    if (values->count != 1)
        return tutti_fail(TUTTI_ERR_DATA, "feature %s has a bytes_list of %zu values, expected one", blob->name,
                          values->count);
    if (values->bytes.bytes < count)
        return tutti_fail(TUTTI_ERR_DATA, "feature %s has %zu bytes, expected %zu or more", blob->name,
                          values->bytes.bytes, count);
    for (size_t i = 0; i < count; i++) store_integer(blob->type, true, (int8_t)values->bytes.data[i], i, dst);
    return TUTTI_OK;
}

static tutti_status fail_missing(tutti_ofrecord_span record, const tutti_ofrecord_blob *blob) {
    char text[512];
    list_features(record, text, sizeof text);
    return tutti_fail(TUTTI_ERR_DATA, "there is no feature %s; the record has %s", blob->name, text);
}

static bool is_integer(tutti_type type) {
    return type != TUTTI_FLOAT32 && type != TUTTI_FLOAT64;
}

/* Numbers between 0 and 1 are scaled pixels, or probabilities: nearly all of them would become 0 as integers. */
static tutti_status check_reals(const tutti_ofrecord_values *values, const tutti_ofrecord_blob *blob) {
    const size_t count = values->count < values->capacity ? values->count : values->capacity;
    double between = 0;
    for (size_t i = 0; i < count; i++) {
        if (!(values->reals[i] >= 0 && values->reals[i] <= 1)) return TUTTI_OK;
        if (values->reals[i] > 0 && values->reals[i] < 1) between = values->reals[i];
    }
    if (between == 0) return TUTTI_OK;
    return tutti_fail(TUTTI_ERR_DATA,
                      "feature %s has a %s with values from 0 to 1, such as %g, which would be 0 in a blob of type %s; "
                      "give the blob the type float32",
                      blob->name, tutti_ofrecord_kind_name(values->kind), between, tutti_type_name(blob->type));
}

tutti_status tutti_ofrecord_decode(tutti_ofrecord_span record, const tutti_ofrecord_blob *blob, bool truncate,
                                   void *scratch, void *dst) {
    const size_t count = tutti_ofrecord_blob_count(blob);
    tutti_ofrecord_span entry;
    tutti_ofrecord_values values = {.capacity = count, .reals = scratch, .integers = scratch};
    TUTTI_TRY(find_entry(record, blob->name, &entry));
    if (entry.data == NULL) return fail_missing(record, blob);
    TUTTI_TRY(tutti_ofrecord_read_entry(record, entry, &values));
    if (values.kind == TUTTI_OFRECORD_BYTES) return decode_bytes(&values, blob, count, dst);
    if (values.kind == TUTTI_OFRECORD_NONE)
        return tutti_fail(TUTTI_ERR_DATA, "feature %s is empty: it has none of the lists", blob->name);
    if (values.count != count && !truncate)
        return tutti_fail(TUTTI_ERR_DATA,
                          "feature %s has a %s of %zu values, expected %zu; truncate (tutti-train "
                          "--truncate) cuts or fills up",
                          blob->name, tutti_ofrecord_kind_name(values.kind), values.count, count);
    if (is_integer(blob->type) && values.kind <= TUTTI_OFRECORD_DOUBLE) TUTTI_TRY(check_reals(&values, blob));
    for (size_t i = 0; i < count; i++) {
        if (i >= values.count) store_integer(blob->type, false, 0, i, dst);
        else if (values.kind <= TUTTI_OFRECORD_DOUBLE) store_real(blob->type, values.reals[i], i, dst);
        else store_integer(blob->type, false, values.integers[i], i, dst);
    }
    return TUTTI_OK;
}

/* ------------------------------------------------------------------------------------------- comparison */

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
