/*
 * The table of TUTTI_* variables: defaults, suffixes, bounds, choices, and the text that goes with a bad value.
 */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "bootstrap/base/settings.h"

static void set_and_read(const char *name, const char *value) {
    setenv(name, value, 1);
    tutti_settings_reload();
}

Test(settings, every_row_is_filled_and_its_default_is_within_its_bounds) {
    tutti_settings_reload();
    cr_assert_eq(tutti_settings_check(), TUTTI_OK, "%s", tutti_last_error());
    for (int i = 0; i < TUTTI_SETTING_COUNT; i++) {
        const tutti_setting_row *row = tutti_setting_row_of((tutti_setting)i);
        cr_assert_not_null(row->name);
        cr_assert_eq(strncmp(row->name, "TUTTI_", 6), 0, "%s", row->name);
        cr_assert(row->help != NULL && strlen(row->help) > 0, "%s has no help", row->name);
        cr_assert_not_null(row->fallback);
        cr_assert_str_eq(tutti_setting_text((tutti_setting)i), row->fallback);
    }
}

Test(settings, bytes_take_suffixes_in_powers_of_1024) {
    set_and_read("TUTTI_CHUNK_BYTES", "4k");
    cr_assert_eq(tutti_setting_int(TUTTI_SETTING_CHUNK_BYTES), 4096);
    set_and_read("TUTTI_CHUNK_BYTES", "2M");
    cr_assert_eq(tutti_setting_int(TUTTI_SETTING_CHUNK_BYTES), 2 << 20);
    set_and_read("TUTTI_HEAP_BYTES", "3G");
    cr_assert_eq(tutti_setting_int(TUTTI_SETTING_HEAP_BYTES), INT64_C(3) << 30);
    cr_assert_eq(tutti_settings_check(), TUTTI_OK);
}

Test(settings, a_value_that_cannot_be_read_is_named_with_its_bounds) {
    static const char *const wrong[] = {"12x", "-1", "", "9223372036854775808", "255", "2T", "0x1000", "1073741825"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        set_and_read("TUTTI_CHUNK_BYTES", wrong[i]);
        if (*wrong[i] == '\0') { /* empty counts as unset */
            cr_assert_eq(tutti_settings_check(), TUTTI_OK);
            continue;
        }
        cr_assert_eq(tutti_settings_check(), TUTTI_ERR_CONFIG, "'%s' was taken", wrong[i]);
        cr_assert(strstr(tutti_last_error(), "TUTTI_CHUNK_BYTES") != NULL, "%s", tutti_last_error());
        cr_assert(strstr(tutti_last_error(), "256") != NULL, "%s", tutti_last_error());
        cr_assert_eq(tutti_setting_int(TUTTI_SETTING_CHUNK_BYTES), 0, "the default, auto, holds");
    }
}

Test(settings, a_choice_is_its_index_whatever_the_case) {
    set_and_read("TUTTI_LOG", "DEBUG");
    cr_assert_eq(tutti_setting_int(TUTTI_SETTING_LOG), 3);
    set_and_read("TUTTI_LOG", "warn");
    cr_assert_eq(tutti_setting_int(TUTTI_SETTING_LOG), 1);
    set_and_read("TUTTI_LOG", "loud");
    cr_assert_eq(tutti_settings_check(), TUTTI_ERR_CONFIG);
    cr_assert(strstr(tutti_last_error(), "error|warn|info|debug") != NULL, "%s", tutti_last_error());
}

Test(settings, the_agreed_text_holds_what_must_be_equal_and_nothing_else) {
    char text[512];
    set_and_read("TUTTI_CHUNK_BYTES", "512");
    tutti_settings_agreed(text, sizeof text);
    cr_assert(strstr(text, "TUTTI_CHUNK_BYTES=512") != NULL, "%s", text);
    cr_assert(strstr(text, "TUTTI_SECRET") == NULL, "%s", text);
    char small[8];
    tutti_settings_agreed(small, sizeof small);
    cr_assert_lt(strlen(small), sizeof small);
}
