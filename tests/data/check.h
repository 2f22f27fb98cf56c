/*
 * Shared by the tests of data pipelines.
 */
#ifndef TUTTI_TESTS_DATA_CHECK_H
#define TUTTI_TESTS_DATA_CHECK_H

#include <criterion/criterion.h>
#include <string.h>

#include <tutti/data.h>

#define COUNT_OF(array) ((int)(sizeof(array) / sizeof *(array)))

#define expect_ok(call) cr_assert_eq((call), TUTTI_OK, "%s", tutti_last_error())

/* Expects the status, and each of the texts in the error. */
#define expect_error(status, expected, ...)                                                                            \
    do {                                                                                                               \
        const char *parts_[] = {__VA_ARGS__};                                                                          \
        cr_assert_eq((status), (expected), "other error: %s", tutti_last_error());                                     \
        for (size_t part_ = 0; part_ < sizeof parts_ / sizeof *parts_; part_++)                                        \
            cr_assert_not_null(strstr(tutti_last_error(), parts_[part_]), "\"%s\" lacks \"%s\"", tutti_last_error(),   \
                               parts_[part_]);                                                                         \
    } while (0)

/* A source of `count` samples of 1x1x1: the pixel is the sample's number mod 251, the label its number. */
tutti_data_source *numbers_source(int64_t count);

/* A source of one shape whose sample i has pixel p = (31 i + 7 p) mod 256; labels 0. float32: the same numbers. */
tutti_data_source *pixels_source(int64_t count, int height, int width, int channels, tutti_type type);
uint8_t pixels_at(int64_t sample, int64_t element);

#endif
