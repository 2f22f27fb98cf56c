/*
 * Protobuf's wire format, as far as OFRecord uses it.
 *
 * Every read is bounded by its span, and every span lies inside the previous one, so nothing outside of the record
 * is read, whatever its content.
 */
#include <string.h>

#include "data/ofrecord.h"

enum { WIRE_VARINT = 0, WIRE_8_BYTES = 1, WIRE_BYTES = 2, WIRE_GROUP = 3, WIRE_GROUP_END = 4, WIRE_4_BYTES = 5 };
#define MOST_GROUPS 32

const char *tutti_ofrecord_kind_name(tutti_ofrecord_kind kind) {
    static const char *const names[TUTTI_OFRECORD_KINDS] = {"empty feature", "bytes_list", "float_list",
                                                            "double_list",   "int32_list", "int64_list"};
    return names[kind];
}

/* A span that is being read; `start` is the start of the record, from which positions count. */
typedef struct reader {
    const uint8_t *start, *next, *end;
} reader;

typedef struct wire_field {
    uint64_t number;
    int wire;
    uint64_t value;           /* VARINT, 4_BYTES, 8_BYTES */
    tutti_ofrecord_span span; /* BYTES */
} wire_field;

static reader read_span(tutti_ofrecord_span record, tutti_ofrecord_span span) {
    return (reader){record.data, span.data, span.data + span.bytes};
}

static tutti_status fail_at(const reader *from, const uint8_t *at, const char *what) {
    return tutti_fail(TUTTI_ERR_DATA, "at byte %lld of the message: %s", (long long)(at - from->start), what);
}

static tutti_status read_varint(reader *from, uint64_t *value_out) {
    const uint8_t *begin = from->next;
    uint64_t value = 0;
    for (int shift = 0; shift < 70; shift += 7) {
        if (from->next == from->end) return fail_at(from, begin, "a number is cut off");
        uint8_t byte = *from->next++;
        value |= shift < 64 ? (uint64_t)(byte & 0x7f) << shift : 0;
        if (byte < 0x80) {
            *value_out = value;
            return TUTTI_OK;
        }
    }
    return fail_at(from, begin, "a number of more than ten bytes");
}

static tutti_status read_fixed(reader *from, int bytes, uint64_t *value_out) {
    if (from->end - from->next < bytes) return fail_at(from, from->next, "a number is cut off");
    uint64_t value = 0;
    for (int i = 0; i < bytes; i++) value |= (uint64_t)from->next[i] << (8 * i);
    from->next += bytes;
    *value_out = value;
    return TUTTI_OK;
}

static tutti_status read_bytes(reader *from, tutti_ofrecord_span *span_out) {
    const uint8_t *begin = from->next;
    uint64_t bytes = 0;
    TUTTI_TRY(read_varint(from, &bytes));
    if (bytes > (uint64_t)(from->end - from->next)) return fail_at(from, begin, "a field is longer than what is left");
    *span_out = (tutti_ofrecord_span){from->next, (size_t)bytes};
    from->next += bytes;
    return TUTTI_OK;
}

static tutti_status read_tag(reader *from, wire_field *field) {
    const uint8_t *begin = from->next;
    uint64_t tag = 0;
    TUTTI_TRY(read_varint(from, &tag));
    field->number = tag >> 3;
    field->wire = (int)(tag & 7);
    if (tag > UINT32_MAX || field->number == 0 || field->wire > WIRE_4_BYTES)
        return fail_at(from, begin, "no valid tag of a field");
    return TUTTI_OK;
}

/* Skips a group. Groups are deprecated, and skipped like other unknown fields. */
static tutti_status pass_group(reader *from, uint64_t number) {
    uint64_t open[MOST_GROUPS] = {number};
    for (int depth = 1; depth > 0;) {
        const uint8_t *begin = from->next;
        wire_field inside;
        if (from->next == from->end) return fail_at(from, begin, "a group has no end");
        TUTTI_TRY(read_tag(from, &inside));
        switch (inside.wire) {
        case WIRE_VARINT: TUTTI_TRY(read_varint(from, &inside.value)); break;
        case WIRE_8_BYTES: TUTTI_TRY(read_fixed(from, 8, &inside.value)); break;
        case WIRE_4_BYTES: TUTTI_TRY(read_fixed(from, 4, &inside.value)); break;
        case WIRE_BYTES: TUTTI_TRY(read_bytes(from, &inside.span)); break;
        case WIRE_GROUP:
            if (depth == MOST_GROUPS) return fail_at(from, begin, "groups are nested too deep");
            open[depth++] = inside.number;
            break;
        case WIRE_GROUP_END:
            if (open[--depth] != inside.number) return fail_at(from, begin, "the end of another group");
            break;
        }
    }
    return TUTTI_OK;
}

static tutti_status read_field(reader *from, wire_field *field) {
    const uint8_t *begin = from->next;
    TUTTI_TRY(read_tag(from, field));
    switch (field->wire) {
    case WIRE_VARINT: return read_varint(from, &field->value);
    case WIRE_8_BYTES: return read_fixed(from, 8, &field->value);
    case WIRE_4_BYTES: return read_fixed(from, 4, &field->value);
    case WIRE_BYTES: return read_bytes(from, &field->span);
    case WIRE_GROUP: return pass_group(from, field->number);
    default: return fail_at(from, begin, "the end of a group that did not begin");
    }
}

/* --------------------------------------------------------------------------------------------- entries */

/* Reads the key; of several the last counts, without one it is "". */
static tutti_status read_key(tutti_ofrecord_span record, tutti_ofrecord_span entry, tutti_ofrecord_span *key_out) {
    reader from = read_span(record, entry);
    *key_out = (tutti_ofrecord_span){entry.data, 0};
    while (from.next < from.end) {
        wire_field field;
        TUTTI_TRY(read_field(&from, &field));
        if (field.number == 1 && field.wire == WIRE_BYTES) *key_out = field.span;
    }
    return TUTTI_OK;
}

tutti_status tutti_ofrecord_next(tutti_ofrecord_span record, size_t *at, tutti_ofrecord_span *entry_out,
                                 tutti_ofrecord_span *key_out) {
    reader from = read_span(record, record);
    *entry_out = (tutti_ofrecord_span){NULL, 0};
    for (from.next += *at; from.next < from.end;) {
        wire_field field;
        TUTTI_TRY(read_field(&from, &field));
        *at = (size_t)(from.next - record.data);
        if (field.number != 1 || field.wire != WIRE_BYTES) continue;
        *entry_out = field.span;
        return read_key(record, field.span, key_out);
    }
    return TUTTI_OK;
}

/* ---------------------------------------------------------------------------------------------- values */

static void take_real(tutti_ofrecord_values *values, double value) {
    if (values->count < values->capacity) values->reals[values->count] = value;
    values->count++;
}

static void take_bits(tutti_ofrecord_values *values, uint64_t bits) {
    uint32_t low = (uint32_t)bits;
    float real;
    double wide;
    int32_t number;
    switch (values->kind) {
    case TUTTI_OFRECORD_FLOAT:
        memcpy(&real, &low, sizeof real);
        take_real(values, (double)real);
        return;
    case TUTTI_OFRECORD_DOUBLE:
        memcpy(&wide, &bits, sizeof wide);
        take_real(values, wide);
        return;
    case TUTTI_OFRECORD_INT32: /* the low half, as in protobuf */
        memcpy(&number, &low, sizeof number);
        if (values->count < values->capacity) values->integers[values->count] = number;
        values->count++;
        return;
    default:
        if (values->count < values->capacity) values->integers[values->count] = (int64_t)bits;
        values->count++;
    }
}

static int wire_of(tutti_ofrecord_kind kind) {
    return kind == TUTTI_OFRECORD_FLOAT ? WIRE_4_BYTES : kind == TUTTI_OFRECORD_DOUBLE ? WIRE_8_BYTES : WIRE_VARINT;
}

static tutti_status read_packed(tutti_ofrecord_span record, tutti_ofrecord_span packed, tutti_ofrecord_values *values) {
    reader from = read_span(record, packed);
    const int wire = wire_of(values->kind);
    while (from.next < from.end) {
        uint64_t bits = 0;
        TUTTI_TRY(wire == WIRE_VARINT ? read_varint(&from, &bits)
                                      : read_fixed(&from, wire == WIRE_4_BYTES ? 4 : 8, &bits));
        take_bits(values, bits);
    }
    return TUTTI_OK;
}

static tutti_status read_list(tutti_ofrecord_span record, tutti_ofrecord_span list, tutti_ofrecord_values *values) {
    reader from = read_span(record, list);
    while (from.next < from.end) {
        wire_field field;
        TUTTI_TRY(read_field(&from, &field));
        if (field.number != 1) continue;
        if (values->kind == TUTTI_OFRECORD_BYTES) {
            if (field.wire != WIRE_BYTES) continue;
            if (values->count++ == 0) values->bytes = field.span;
        } else if (field.wire == WIRE_BYTES) {
            TUTTI_TRY(read_packed(record, field.span, values));
        } else if (field.wire == wire_of(values->kind)) {
            take_bits(values, field.value);
        }
    }
    return TUTTI_OK;
}

/* A feature of another kind replaces the present one; one of the same kind continues it, as protobuf merges fields. */
static tutti_status read_feature(tutti_ofrecord_span record, tutti_ofrecord_span feature,
                                 tutti_ofrecord_values *values) {
    reader from = read_span(record, feature);
    while (from.next < from.end) {
        wire_field field;
        TUTTI_TRY(read_field(&from, &field));
        if (field.wire != WIRE_BYTES || field.number >= TUTTI_OFRECORD_KINDS) continue;
        if (values->kind != (tutti_ofrecord_kind)field.number) values->count = 0;
        values->kind = (tutti_ofrecord_kind)field.number;
        TUTTI_TRY(read_list(record, field.span, values));
    }
    return TUTTI_OK;
}

tutti_status tutti_ofrecord_read_entry(tutti_ofrecord_span record, tutti_ofrecord_span entry,
                                       tutti_ofrecord_values *values) {
    reader from = read_span(record, entry);
    values->kind = TUTTI_OFRECORD_NONE;
    values->count = 0;
    while (from.next < from.end) {
        wire_field field;
        TUTTI_TRY(read_field(&from, &field));
        if (field.number == 2 && field.wire == WIRE_BYTES) TUTTI_TRY(read_feature(record, field.span, values));
    }
    return TUTTI_OK;
}
