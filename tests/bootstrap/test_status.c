/*
 * How texts that come from outside are printed, and saving errors.
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "bootstrap/base/common.h"

static const char *printable(const char *text) {
    static char made[64];
    snprintf(made, sizeof made, "%s", text);
    tutti_make_printable(made);
    return made;
}

Test(status, control_characters_are_not_printed) {
    cr_assert_str_eq(printable("rank 3: \x1b[31mred\x07 \x7f"), "rank 3:  [31mred   ");
    cr_assert_str_eq(printable("\xc2\x9b"
                               "31m"),
                     "  31m"); /* the C1 form of ESC [ */
    cr_assert_str_eq(printable("\x9b"
                               "31m"),
                     "?31m");
}

Test(status, text_in_any_language_is_kept) {
    cr_assert_str_eq(printable("h\xc3\xb4te, \xe4\xb8\xbb\xe6\x9c\xba, \xf0\x9f\x98\x80\xc2\xa0"),
                     "h\xc3\xb4te, \xe4\xb8\xbb\xe6\x9c\xba, \xf0\x9f\x98\x80\xc2\xa0");
}

Test(status, invalid_utf_8_becomes_a_question_mark_and_ends_where_the_text_ends) {
    cr_assert_str_eq(printable("a\xc3"), "a?");
    cr_assert_str_eq(printable("\xe4\xb8"), "??");
    cr_assert_str_eq(printable("\xf0\x9f\x98x"), "???x");
    cr_assert_str_eq(printable("\xc0\xaf\xff\xfe"), "????");
    cr_assert_str_eq(printable(""), "");
}

Test(status, a_saved_error_survives_later_ones) {
    tutti_fail(TUTTI_ERR_SYSTEM, "the %d%% that matter", 100);
    const tutti_error error = tutti_fail_save();
    tutti_fail(TUTTI_ERR_MEMORY, "a cleanup failed, too");
    cr_assert_eq(tutti_fail_again(TUTTI_ERR_SYSTEM, &error), TUTTI_ERR_SYSTEM);
    cr_assert_str_eq(tutti_last_error(), "the 100% that matter");
}
