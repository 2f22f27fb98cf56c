/*
 * Sources that the caller implements.
 */
#include <stdio.h>
#include <stdlib.h>

#include "data/source.h"

typedef struct user_source {
    tutti_data_source base;
    tutti_data_user user;
    int64_t given; /* number of samples that `next` has returned in the pass */
} user_source;

static tutti_status fail_label(const user_source *source, int64_t index, int32_t label) {
    return tutti_fail(TUTTI_ERR_DATA, "the caller's source: sample %lld has label %d, expected 0 to %d",
                      (long long)index, label, source->user.classes - 1);
}

static bool is_wrong(const user_source *source, int32_t label) {
    return source->user.classes > 0 && (label < 0 || label >= source->user.classes);
}

/* Clears the thread's error text, so that an older one is not taken for that of the caller's function. */
static void forget_errors(void) {
    tutti_fail(TUTTI_OK, "%s", "");
}

/* Reports that `function` has failed at `place`, for example "sample 3". */
static tutti_status fail_call(tutti_status status, const char *function, const char *place, int64_t number) {
    const char *text = tutti_last_error();
    if (text[0] != '\0') return tutti_fail(status, "the caller's source, %s %lld: %s", place, (long long)number, text);
    return tutti_fail(
        status,
        "the caller's source, %s %lld: its %s returned status %d (%s) and gave no reason; tutti_fail sets "
        "one",
        place, (long long)number, function, (int)status, tutti_status_name(status));
}

static tutti_status read_user(tutti_data_source *base, int64_t index, void *image, int32_t *label) {
    user_source *source = (user_source *)base;
    forget_errors();
    const tutti_status status = source->user.read(source->user.context, index, image, label);
    if (status != TUTTI_OK) return fail_call(status, "read", "sample", index);
    return is_wrong(source, *label) ? fail_label(source, index, *label) : TUTTI_OK;
}

static tutti_status check_user(const tutti_data_source *base, int nshards) {
    (void)base, (void)nshards;
    return TUTTI_OK;
}

static int64_t count_user(const tutti_data_source *base, int shard, int nshards) {
    (void)base, (void)shard, (void)nshards;
    return -1;
}

static tutti_status begin_user(tutti_data_source *base, const tutti_data_pass *pass, void **stream_out) {
    user_source *source = (user_source *)base;
    forget_errors();
    const tutti_status status = source->user.begin(source->user.context, pass->pass, pass->shard, pass->nshards);
    if (status != TUTTI_OK) return fail_call(status, "begin", "pass", pass->pass);
    source->given = 0;
    *stream_out = source;
    return TUTTI_OK;
}

static tutti_status next_user(void *stream, void *image, int32_t *label, int64_t *index_out, bool *end_out) {
    user_source *source = stream;
    int end = 0;
    forget_errors();
    const tutti_status status = source->user.next(source->user.context, image, label, &end);
    if (status != TUTTI_OK) return fail_call(status, "next", "sample", source->given);
    *end_out = end != 0;
    if (end != 0) return TUTTI_OK;
    *index_out = source->given++;
    return is_wrong(source, *label) ? fail_label(source, *index_out, *label) : TUTTI_OK;
}

static void end_user(void *stream) {
    (void)stream;
}

static void close_user(tutti_data_source *base) {
    free(base);
}

static const tutti_data_source_row by_number = {.read = read_user, .close = close_user};
static const tutti_data_source_row as_stream = {.check = check_user,
                                                .count = count_user,
                                                .begin = begin_user,
                                                .next = next_user,
                                                .end = end_user,
                                                .close = close_user};

tutti_status tutti_data_open_user(const tutti_data_user *given, tutti_data_source **source_out) {
    user_source *source;
    tutti_data_user taken, *user = &taken;
    if (given == NULL || source_out == NULL)
        return tutti_fail(TUTTI_ERR_ARGUMENT, "tutti_data_open_user: user and source_out must not be NULL");
    TUTTI_TRY(tutti_struct_take("tutti_data_open_user: user", "TUTTI_DATA_USER(...)", given, &taken, sizeof taken));
    bool numbered = user->read != NULL;
    if (numbered ? user->count < 1 || user->next != NULL
                 : user->begin == NULL || user->next == NULL || user->count != 0)
        return tutti_fail(TUTTI_ERR_ARGUMENT, "tutti_data_open_user: give read and a count from 1, or begin and next");
    if (user->classes < 0) return tutti_fail(TUTTI_ERR_ARGUMENT, "tutti_data_open_user: %d classes", user->classes);
    const tutti_data_source_details details = {.height = user->height,
                                               .width = user->width,
                                               .channels = user->channels,
                                               .type = user->type,
                                               .classes = user->classes,
                                               .count = numbered ? user->count : -1};
    TUTTI_TRY(tutti_data_source_check_shape(&details, "tutti_data_open_user"));
    TUTTI_TRY(tutti_data_source_new(numbered ? &by_number : &as_stream, sizeof *source, &source));
    source->base.details = details;
    source->user = *user;
    snprintf(source->base.name, sizeof source->base.name, "the caller's source");
    *source_out = &source->base;
    return TUTTI_OK;
}
