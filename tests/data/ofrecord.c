/*
 * OFRecord: messages written byte by byte here, independently of protobuf, and files that are cut or damaged.
 */
#include <math.h>
#include <stdlib.h>

#include "data/ofrecord.h"
#include "data/ofrecord_pack.h"
#include "data/source.h"
#include "tests/data/check.h"
#include "tests/support/training/files.h"

static char folder[FILES_PATH_BYTES];

static void make_folder(void) {
    files_make_folder(folder);
}

static void remove_folder(void) {
    files_remove(folder);
}

TestSuite(ofrecord, .init = make_folder, .fini = remove_folder);

/* ------------------------------------------------------------------------------------------- by hand */

/* A message under construction. Lengths here are below 128, so one byte. */
typedef struct text {
    uint8_t data[512];
    size_t bytes;
} text;

static text piece(const void *data, size_t bytes) {
    text t = {.bytes = bytes};
    memcpy(t.data, data, bytes);
    return t;
}
#define BYTES(...) piece((const uint8_t[]){__VA_ARGS__}, sizeof((const uint8_t[]){__VA_ARGS__}))

static text join(text a, text b) {
    memcpy(a.data + a.bytes, b.data, b.bytes);
    a.bytes += b.bytes;
    return a;
}

static text field(int number, text inside) {
    text head = BYTES((uint8_t)(number << 3 | 2), (uint8_t)inside.bytes);
    cr_assert_lt(inside.bytes, 128);
    return join(head, inside);
}

/* An entry of a record: its name, and the kind's list. */
static text entry(const char *name, int kind, text list) {
    return field(1, join(field(1, piece(name, strlen(name))), field(2, field(kind, list))));
}

static text floats(const float *values, size_t count) {
    return piece(values, count * sizeof *values);
}

static tutti_status decode(text record, const char *name, int count, tutti_type type, bool truncate, void *dst) {
    uint8_t *exact = malloc(record.bytes + 1); /* the sanitizer detects a read beyond it */
    double scratch[64];
    memcpy(exact, record.data, record.bytes);
    const tutti_ofrecord_blob blob = {.name = name, .ndims = 1, .shape = {count}, .type = type};
    tutti_status status =
        tutti_ofrecord_decode((tutti_ofrecord_span){exact, record.bytes}, &blob, truncate, scratch, dst);
    free(exact);
    return status;
}

enum { LIST_BYTES = 1, LIST_FLOAT, LIST_DOUBLE, LIST_INT32, LIST_INT64 };

Test(ofrecord, each_list_is_read_packed_and_unpacked_into_each_type) {
    static const float reals[3] = {1.5f, -2, 300};
    static const double wide[3] = {1.5, -2, 300};
    /* -2 as int32: ten bytes; 300: two */
    const text numbers = BYTES(1, 0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01, 0xac, 0x02);
    const text loose = BYTES(8, 1, 8, 0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01, 8, 0xac, 0x02);
    text loose_floats = {.bytes = 0}, loose_doubles = {.bytes = 0};
    for (int i = 0; i < 3; i++) {
        loose_floats = join(loose_floats, join(BYTES(0x0d), piece(&reals[i], 4)));
        loose_doubles = join(loose_doubles, join(BYTES(0x09), piece(&wide[i], 8)));
    }
    const struct {
        int kind;
        text list;
        double first;
    } cases[] = {{LIST_FLOAT, field(1, floats(reals, 3)), 1.5},
                 {LIST_FLOAT, loose_floats, 1.5},
                 {LIST_DOUBLE, field(1, piece(wide, sizeof wide)), 1.5},
                 {LIST_DOUBLE, loose_doubles, 1.5},
                 {LIST_INT32, field(1, numbers), 1},
                 {LIST_INT32, loose, 1},
                 {LIST_INT64, field(1, numbers), 1},
                 {LIST_INT64, join(loose, (text){.bytes = 0}), 1},
                 /* one value packed, two not: the list is both */
                 {LIST_INT32, join(field(1, BYTES(1)), piece(loose.data + 2, loose.bytes - 2)), 1}};
    for (int i = 0; i < COUNT_OF(cases); i++) {
        float f[3];
        double d[3];
        int8_t i8[3];
        uint8_t u8[3];
        int32_t i32[3];
        int64_t i64[3];
        const text record = entry("x", cases[i].kind, cases[i].list);
        expect_ok(decode(record, "x", 3, TUTTI_FLOAT32, false, f));
        expect_ok(decode(record, "x", 3, TUTTI_FLOAT64, false, d));
        expect_ok(decode(record, "x", 3, TUTTI_INT32, false, i32));
        expect_ok(decode(record, "x", 3, TUTTI_INT64, false, i64));
        expect_ok(decode(record, "x", 3, TUTTI_INT8, false, i8));
        expect_ok(decode(record, "x", 3, TUTTI_UINT8, false, u8));
        cr_assert(f[0] == (float)cases[i].first && f[1] == -2 && f[2] == 300, "case %d", i);
        cr_assert(d[0] == cases[i].first && d[1] == -2 && d[2] == 300);
        cr_assert(i32[0] == 1 && i32[1] == -2 && i32[2] == 300 && i64[0] == 1 && i64[1] == -2 && i64[2] == 300);
        cr_assert(i8[0] == 1 && i8[1] == -2 && i8[2] == 127 && u8[0] == 1 && u8[1] == 0 && u8[2] == 255);
    }
}

Test(ofrecord, bytes_are_int8_as_in_oneflow_and_the_same_bytes_in_uint8) {
    const text record = entry("x", LIST_BYTES, field(1, BYTES(0, 127, 128, 200, 255)));
    float f[5];
    uint8_t u8[5];
    int32_t i32[5];
    expect_ok(decode(record, "x", 5, TUTTI_FLOAT32, false, f));
    expect_ok(decode(record, "x", 5, TUTTI_UINT8, false, u8));
    expect_ok(decode(record, "x", 5, TUTTI_INT32, false, i32));
    cr_assert_arr_eq(f, ((float[]){0, 127, -128, -56, -1}), sizeof f);
    cr_assert_arr_eq(u8, ((uint8_t[]){0, 127, 128, 200, 255}), sizeof u8);
    cr_assert_arr_eq(i32, ((int32_t[]){0, 127, -128, -56, -1}), sizeof i32);
    expect_ok(decode(record, "x", 3, TUTTI_UINT8, false, u8)); /* cut without an error */
    for (int truncate = 0; truncate < 2; truncate++)
        expect_error(decode(record, "x", 6, TUTTI_FLOAT32, truncate, f), TUTTI_ERR_DATA, "feature x has 5 bytes",
                     "expected 6");
    const text two = entry("x", LIST_BYTES, join(field(1, BYTES(1)), field(1, BYTES(2))));
    expect_error(decode(two, "x", 1, TUTTI_UINT8, false, u8), TUTTI_ERR_DATA, "2 values", "expected one");
}

Test(ofrecord, lists_of_another_length_are_errors_or_cut_or_filled_up) {
    static const float reals[3] = {1, 2, 3};
    const text record = entry("x", LIST_FLOAT, field(1, floats(reals, 3)));
    float f[5] = {9, 9, 9, 9, 9};
    expect_error(decode(record, "x", 2, TUTTI_FLOAT32, false, f), TUTTI_ERR_DATA, "float_list of 3 values",
                 "expected 2");
    expect_error(decode(record, "x", 4, TUTTI_FLOAT32, false, f), TUTTI_ERR_DATA, "3 values", "expected 4", "truncate");
    expect_ok(decode(record, "x", 2, TUTTI_FLOAT32, true, f));
    cr_assert(f[0] == 1 && f[1] == 2 && f[2] == 9);
    expect_ok(decode(record, "x", 5, TUTTI_FLOAT32, true, f));
    cr_assert_arr_eq(f, ((float[]){1, 2, 3, 0, 0}), sizeof f);
}

Test(ofrecord, floats_from_0_to_1_do_not_become_integers) {
    static const float pixels[3] = {0, 0.25f, 1}, whole[3] = {0, 1, 1}, more[3] = {0, 0.25f, 1.5f};
    const text record = entry("x", LIST_FLOAT, field(1, floats(pixels, 3)));
    uint8_t u8[3];
    int64_t i64[3];
    float f[3];
    expect_error(decode(record, "x", 3, TUTTI_UINT8, false, u8), TUTTI_ERR_DATA, "feature x has a float_list", "0.25",
                 "a blob of type uint8; give the blob the type float32");
    expect_error(decode(record, "x", 3, TUTTI_INT64, false, i64), TUTTI_ERR_DATA, "type int64");
    expect_ok(decode(record, "x", 3, TUTTI_FLOAT32, false, f));
    cr_assert_arr_eq(f, pixels, sizeof f);
    expect_ok(decode(entry("x", LIST_FLOAT, field(1, floats(whole, 3))), "x", 3, TUTTI_UINT8, false, u8));
    cr_assert(u8[0] == 0 && u8[1] == 1 && u8[2] == 1);
    expect_ok(decode(entry("x", LIST_FLOAT, field(1, floats(more, 3))), "x", 3, TUTTI_UINT8, false, u8));
    cr_assert(u8[0] == 0 && u8[1] == 0 && u8[2] == 1);
}

static tutti_status compare(text record, tutti_ofrecord_features *first, char unlike[256]) {
    uint8_t *exact = malloc(record.bytes + 1); /* the sanitizer detects a read beyond it, or of a freed name */
    memcpy(exact, record.data, record.bytes);
    const tutti_status status = tutti_ofrecord_compare((tutti_ofrecord_span){exact, record.bytes}, first, unlike, 256);
    memset(exact, 0, record.bytes);
    free(exact);
    return status;
}

Test(ofrecord, a_record_with_other_features_than_the_first_is_reported) {
    const text one = field(1, BYTES(1)), two = field(1, BYTES(1, 2)), label = entry("label", LIST_INT32, one);
    const struct {
        text record;
        const char *said; /* NULL: same features as the first */
    } cases[] = {
        {join(entry("x", LIST_INT64, two), label), NULL},
        {join(label, entry("x", LIST_INT64, two)), NULL},
        {join(entry("x", LIST_INT64, one), join(label, entry("x", LIST_INT64, two))),
         NULL}, /* the last feature of a name counts */
        {join(entry("x\xff", LIST_INT64, two), label),
         "it has a feature x?, and no feature x, which the first record has"},
        {label, "it has no feature x, which"},
        {join(label, join(entry("x", LIST_INT64, two), entry("y", LIST_INT64, two))), "it has a feature y, which"},
        {join(entry("x", LIST_INT32, two), label), "feature x has a int32_list, that of the first record a int64_list"},
        {join(entry("x", LIST_INT64, one), label), NULL}, /* list of another length */
    };
    tutti_ofrecord_features first = {.all = NULL};
    for (int i = 0; i < COUNT_OF(cases); i++) {
        char unlike[256];
        expect_ok(compare(cases[i].record, &first, unlike));
        if (cases[i].said == NULL) cr_assert_str_empty(unlike, "case %d: %s", i, unlike);
        else cr_assert_neq(strstr(unlike, cases[i].said), NULL, "case %d: \"%s\"", i, unlike);
    }
    expect_error(compare(BYTES(0x0a, 5, 1), &first, (char[256]){""}), TUTTI_ERR_DATA, "longer than what is left");
    tutti_ofrecord_features_free(&first);
}

Test(ofrecord, unknown_fields_orders_and_duplicates_are_as_in_protobuf) {
    const text one = field(1, BYTES(1)), two = field(1, BYTES(2));
    const text strange =
        join(join(BYTES(0x98, 0x06, 7), BYTES(0x9d, 0x06, 1, 2, 3, 4)), /* field 99: varint, 4 bytes */
             join(join(BYTES(0x99, 0x06, 1, 2, 3, 4, 5, 6, 7, 8), field(14, BYTES(1, 2))),
                  BYTES(0x53, 0x08, 1, 0x5b, 0x5c, 0x54))); /* group 10 with a varint and a group 11 in it */
    const text name = field(1, BYTES('x')), value = field(2, field(LIST_INT32, two));
    const struct {
        text record;
        int expected;
    } cases[] = {
        {join(entry("x", LIST_INT32, one), entry("x", LIST_INT32, two)), 2}, /* the last of the map's entries counts */
        {join(entry("y", LIST_INT32, one), entry("x", LIST_INT32, two)), 2},
        {join(entry("x", LIST_INT32, two), entry("xx", LIST_INT32, one)), 2},
        {field(1, join(value, name)), 2},                             /* the value before the key */
        {field(1, join(field(1, BYTES('y')), join(value, name))), 2}, /* the last key counts */
        {field(1, join(name, join(field(2, field(LIST_FLOAT, field(1, BYTES(0, 0, 0, 0)))), value))),
         2}, /* the last kind counts */
        {join(strange,
              join(field(1, join(strange, join(name, field(2, join(strange, field(LIST_INT32, join(strange, two))))))),
                   strange)),
         2},
        {join(entry("x", LIST_INT32, field(1, BYTES(0x82, 0x80, 0x80, 0x80, 0x10))), (text){.bytes = 0}),
         2},                                                    /* the low 32 bits */
        {join(BYTES(0x08, 5), entry("x", LIST_INT32, two)), 2}, /* field 1 of another wire type */
    };
    for (int i = 0; i < COUNT_OF(cases); i++) {
        int32_t value_of = 0;
        cr_assert_eq(decode(cases[i].record, "x", 1, TUTTI_INT32, false, &value_of), TUTTI_OK, "case %d: %s", i,
                     tutti_last_error());
        cr_assert_eq(value_of, cases[i].expected, "case %d: %d", i, value_of);
    }
    int32_t both[2]; /* two values of one entry are merged */
    expect_ok(
        decode(field(1, join(name, join(field(2, field(LIST_INT32, one)), value))), "x", 2, TUTTI_INT32, false, both));
    cr_assert(both[0] == 1 && both[1] == 2);
    expect_error(decode(entry("x", LIST_INT32, one), "z", 1, TUTTI_INT32, false, both), TUTTI_ERR_DATA, "no feature z");
    expect_error(decode(field(1, join(name, field(2, (text){.bytes = 0}))), "x", 1, TUTTI_INT32, false, both),
                 TUTTI_ERR_DATA, "feature x is empty");
}

Test(ofrecord, damaged_messages_are_errors_with_the_offset) {
    const text good = field(1, BYTES('x'));
    const struct {
        text record;
        const char *words[2];
    } cases[] = {
        {BYTES(0x0a, 5, 1), {"at byte 1 of", "longer than what is left"}},
        {BYTES(0x0a), {"at byte 1 of", "cut off"}},
        {BYTES(0x02, 0), {"at byte 0 of", "no valid tag"}},
        {BYTES(0x0e, 0), {"at byte 0 of", "no valid tag"}},
        {BYTES(0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1), {"at byte 0 of", "more than ten bytes"}},
        {BYTES(0x15, 1, 2, 3), {"at byte 1 of", "cut off"}},
        {BYTES(0x13, 0x08, 1), {"at byte 3 of", "no end"}},
        {BYTES(0x13, 0x1c), {"at byte 1 of", "another group"}},
        {BYTES(0x14), {"at byte 0 of", "did not begin"}},
        {field(1, join(good, field(2, field(LIST_FLOAT, field(1, BYTES(1, 2, 3)))))), {"at byte 11 of", "cut off"}},
    };
    for (int i = 0; i < COUNT_OF(cases); i++) {
        float f;
        expect_error(decode(cases[i].record, "x", 1, TUTTI_FLOAT32, true, &f), TUTTI_ERR_DATA, cases[i].words[0],
                     cases[i].words[1]);
    }
}

/* --------------------------------------------------------------------------------------------- files */

enum { SIDE = 2, PIXELS = SIDE * SIDE * 3 };

/* `parts` files that hold `count` samples of pixels_source(..., 2, 2, 3), labels 0. */
static void pack(int64_t count, int parts, bool bytes) {
    tutti_data_source *source = pixels_source(count, SIDE, SIDE, 3, TUTTI_UINT8);
    expect_ok(tutti_ofrecord_pack_source(source, &(tutti_ofrecord_pack){.folder = folder,
                                                                        .prefix = "part-",
                                                                        .parts = parts,
                                                                        .digits = 5,
                                                                        .image = "img_raw",
                                                                        .label = "label",
                                                                        .bytes = bytes}));
    tutti_data_source_destroy(source);
}

static tutti_status open_packed(int parts, tutti_type type, int reorder, tutti_data_source **source_out) {
    const tutti_ofrecord_blob blobs[] = {{"label", 2, {1, 1}, TUTTI_INT32}, {"img_raw", 3, {SIDE, SIDE, 3}, type}};
    return tutti_ofrecord_open(
        folder, blobs, 2,
        &TUTTI_OFRECORD_OPTIONS(.data_part_num = parts, .part_name_suffix_length = 5, .shuffle_after_epoch = reorder),
        source_out);
}

typedef struct got {
    int count;
    int64_t indices[256];
} got;

/* Reads all of a shard's passes; checks images. */
static void take(tutti_data_source *source, const int64_t *first_of_part, const tutti_data_options *options, int passes,
                 got *to) {
    tutti_data *data;
    const tutti_data_op ops[] = {{"batch", {4}}, {"repeat", {passes}}};
    expect_ok(tutti_data_create(source, ops, 2, options, &data));
    to->count = 0;
    for (tutti_data_batch batch;;) {
        expect_ok(tutti_data_next(data, &batch));
        if (batch.count == 0) break;
        for (int i = 0; i < batch.count; i++) {
            const int64_t index = batch.indices[i], sample = first_of_part[index >> 32] + (index & 0xffffffff);
            for (int p = 0; p < PIXELS; p++)
                cr_assert_eq(batch.images[i * PIXELS + p], pixels_at(sample, p) * (1.0f / 255));
            to->indices[to->count++] = sample;
        }
    }
    tutti_data_destroy(data);
}

Test(ofrecord, parts_are_shared_in_order_the_first_shards_have_one_more) {
    static const int64_t first[] = {0, 3, 6, 10, 13, 17, 20}; /* 7 parts of 24 samples */
    static const int cases[][2] = {{1, 0}, {2, 0}, {2, 1}, {3, 0}, {3, 2}, {7, 6}};
    static const int parts[][2] = {{0, 7}, {0, 4}, {4, 7}, {0, 3}, {5, 7}, {6, 7}};
    tutti_data_source *source;
    pack(24, 7, false);
    expect_ok(open_packed(7, TUTTI_FLOAT32, 0, &source));
    for (int i = 0; i < COUNT_OF(cases); i++) {
        got all;
        const int64_t begin = first[parts[i][0]], end = parts[i][1] == 7 ? 24 : first[parts[i][1]];
        take(source, first,
             &TUTTI_DATA_OPTIONS(.num_shards = cases[i][0], .shard_id = cases[i][1], .division = TUTTI_DATA_RANGES), 2,
             &all);
        cr_assert_eq(all.count, 2 * (end - begin));
        for (int s = 0; s < all.count; s++) cr_assert_eq(all.indices[s], begin + s % (end - begin));
        /* the same number for each: a shard with fewer starts over, one with more skips some */
        take(source, first, &TUTTI_DATA_OPTIONS(.num_shards = cases[i][0], .shard_id = cases[i][1]), 1, &all);
        cr_assert_eq(all.count, (24 + cases[i][0] - 1) / cases[i][0]);
        for (int s = 0; s < all.count; s++) cr_assert_eq(all.indices[s], begin + s % (end - begin));
    }
    tutti_data *data;
    expect_error(tutti_data_create(source, NULL, 0, &TUTTI_DATA_OPTIONS(.num_shards = 8), &data), TUTTI_ERR_CONFIG,
                 "8 ranks share 7 OFRecord files", "start fewer ranks");
    tutti_data_source_destroy(source);
}

Test(ofrecord, sixty_files_are_shared_by_up_to_sixty_ranks_and_not_by_61) {
    tutti_data_source *source;
    tutti_data *data;
    pack(60, 60, false);
    expect_ok(open_packed(60, TUTTI_FLOAT32, 0, &source));
    for (int nshards = 1; nshards <= 60; nshards += nshards < 59 ? 29 : 1) {
        expect_ok(tutti_data_create(source, NULL, 0, &TUTTI_DATA_OPTIONS(.num_shards = nshards), &data));
        tutti_data_destroy(data);
    }
    expect_error(tutti_data_create(source, NULL, 0, &TUTTI_DATA_OPTIONS(.num_shards = 61), &data), TUTTI_ERR_CONFIG,
                 "61 ranks share 60");
    tutti_data_source_destroy(source);
}

Test(ofrecord, files_in_another_order_each_pass_are_the_same_for_all_shards) {
    static const int64_t first[] = {0, 3, 6, 10, 13, 17, 20};
    tutti_data_source *source;
    int differ = 0, seen[4][24] = {{0}};
    pack(24, 7, false);
    expect_ok(open_packed(7, TUTTI_FLOAT32, 1, &source));
    for (int shard = 0; shard < 3; shard++) {
        got all;
        take(source, first,
             &TUTTI_DATA_OPTIONS(.num_shards = 3, .shard_id = shard, .seed = 2, .division = TUTTI_DATA_RANGES), 1,
             &all);
        for (int s = 0; s < all.count; s++) seen[0][all.indices[s]]++;
        if (shard > 0) continue;
        take(source, first, &TUTTI_DATA_OPTIONS(.seed = 2), 4, &all);
        cr_assert_eq(all.count, 96);
        for (int pass = 1; pass < 4; pass++)
            differ += memcmp(all.indices, all.indices + 24 * pass, 24 * sizeof *all.indices) != 0;
        for (int s = 24; s < 96; s++) seen[s / 24][all.indices[s]]++;
    }
    for (int pass = 0; pass < 4; pass++)
        for (int s = 0; s < 24; s++) cr_assert_eq(seen[pass][s], 1);
    cr_assert_geq(differ, 2);
    tutti_data_source_destroy(source);
}

/* bytes in the file, uint8 blobs: divided by 255 in the list; planes become pixels. */
Test(ofrecord, bytes_and_planes_give_the_images_that_were_packed) {
    tutti_data_source *source;
    tutti_data *data;
    tutti_data_batch batch;
    pack(5, 1, true);
    expect_ok(open_packed(1, TUTTI_UINT8, 0, &source));
    expect_ok(tutti_data_create(source, NULL, 0, NULL, &data));
    expect_ok(tutti_data_next(data, &batch));
    for (int i = 0; i < 5; i++)
        for (int p = 0; p < PIXELS; p++) cr_assert_eq(batch.images[i * PIXELS + p], pixels_at(i, p));
    tutti_data_destroy(data), tutti_data_source_destroy(source);
    const tutti_ofrecord_blob planes[] = {{"img_raw", 3, {3, SIDE, SIDE}, TUTTI_UINT8}, {"label", 0, {0}, TUTTI_INT64}};
    expect_ok(tutti_ofrecord_open(folder, planes, 2, &TUTTI_OFRECORD_OPTIONS(.part_name_suffix_length = 5), &source));
    expect_ok(tutti_data_create(source, NULL, 0, NULL, &data));
    expect_ok(tutti_data_next(data, &batch));
    for (int i = 0; i < 5; i++)
        for (int p = 0; p < PIXELS; p++) cr_assert_eq(batch.images[i * PIXELS + p % 4 * 3 + p / 4], pixels_at(i, p));
    tutti_data_destroy(data), tutti_data_source_destroy(source);
}

Test(ofrecord, a_file_cut_anywhere_names_file_offset_and_record) {
    char path[FILES_PATH_BYTES], words[64];
    size_t bytes;
    pack(3, 1, false);
    files_join(folder, "part-00000", path);
    uint8_t *file = files_read(path, &bytes);
    const size_t record = bytes / 3;
    for (size_t kept = 0; kept < bytes; kept++) {
        tutti_data_source *source;
        files_write(folder, "part-00000", false, file, kept);
        if (kept > 0 && kept % record == 0) continue; /* a file of fewer records */
        snprintf(words, sizeof words, "record %zu at offset %zu: ", kept / record, kept / record * record);
        expect_error(open_packed(1, TUTTI_FLOAT32, 0, &source), TUTTI_ERR_DATA, kept == 0 ? folder : "part-00000",
                     kept == 0 ? "no record" : words, kept == 0 ? "" : "truncated");
    }
    free(file);
}

Test(ofrecord, damage_inside_a_record_names_it) {
    char path[FILES_PATH_BYTES];
    size_t bytes;
    tutti_data_source *source;
    tutti_data *data;
    tutti_data_batch batch;
    pack(3, 1, false);
    files_join(folder, "part-00000", path);
    uint8_t *file = files_read(path, &bytes);
    const size_t record = bytes / 3;
    int refused = 0;
    for (size_t at = 0; at < record; at++) { /* each byte of the second record */
        file[record + at] ^= 0x81;
        files_write(folder, "part-00000", false, file, bytes);
        tutti_status status = open_packed(1, TUTTI_FLOAT32, 0, &source);
        if (status == TUTTI_OK) {
            expect_ok(tutti_data_create(source, NULL, 0, NULL, &data));
            status = tutti_data_next(data, &batch);
            tutti_data_destroy(data), tutti_data_source_destroy(source);
        }
        if (status != TUTTI_OK) expect_error(status, TUTTI_ERR_DATA, "part-00000", "record 1 at offset");
        refused += status != TUTTI_OK;
        file[record + at] ^= 0x81;
    }
    cr_assert_gt(refused, 20); /* the remaining bytes are the values themselves */
    files_write(folder, "part-00000", false, file, bytes);
    const tutti_ofrecord_blob wrong[] = {{"image", 3, {2, 2, 3}, TUTTI_FLOAT32}, {"label", 0, {0}, TUTTI_INT32}};
    expect_ok(tutti_ofrecord_open(folder, wrong, 2, &TUTTI_OFRECORD_OPTIONS(.part_name_suffix_length = 5), &source));
    expect_ok(tutti_data_create(source, NULL, 0, NULL, &data));
    expect_error(tutti_data_next(data, &batch), TUTTI_ERR_DATA, "part-00000: record 0 at offset 0", "no feature image",
                 "; the record has img_raw (float_list of 12), label (int32_list of 1)");
    tutti_data_destroy(data), tutti_data_source_destroy(source);
    free(file);
}

Test(ofrecord, wrong_arguments_are_errors_with_the_expected_values) {
    tutti_data_source *source;
    const tutti_ofrecord_blob label = {"label", 0, {0}, TUTTI_INT32}, image = {"x", 3, {2, 2, 3}, TUTTI_FLOAT32},
                              none = {"x", 3, {2, 0, 3}, TUTTI_FLOAT32}, half = {"x", 3, {2, 2, 3}, TUTTI_FLOAT16},
                              wide = {"x", 3, {2, 2, 3}, TUTTI_FLOAT64};
    expect_error(tutti_ofrecord_open(folder, &label, 1, NULL, &source), TUTTI_ERR_ARGUMENT, "1 blobs, expected two");
    expect_error(tutti_ofrecord_open(folder, (tutti_ofrecord_blob[]){image, image}, 2, NULL, &source),
                 TUTTI_ERR_ARGUMENT, "neither x nor x is a label");
    expect_error(tutti_ofrecord_open(folder, (tutti_ofrecord_blob[]){none, label}, 2, NULL, &source),
                 TUTTI_ERR_ARGUMENT, "blob x", "below 1");
    expect_error(tutti_ofrecord_open(folder, (tutti_ofrecord_blob[]){half, label}, 2, NULL, &source),
                 TUTTI_ERR_ARGUMENT, "blob x: type float16, ", "float32");
    expect_error(tutti_ofrecord_open(folder, (tutti_ofrecord_blob[]){wide, label}, 2, NULL, &source),
                 TUTTI_ERR_ARGUMENT, "x: images of type float64, expected uint8 or float32");
    expect_error(tutti_ofrecord_open(folder, (tutti_ofrecord_blob[]){image, label}, 2, NULL, &source), TUTTI_ERR_CONFIG,
                 "/part-0", "No such file", "expected 1 files whose names are part- and a number", "--data-part-num");
    expect_error(tutti_ofrecord_open(folder, (tutti_ofrecord_blob[]){image, label}, 2,
                                     &TUTTI_OFRECORD_OPTIONS(.data_part_num = -3), &source),
                 TUTTI_ERR_ARGUMENT, "data_part_num -3");
}
