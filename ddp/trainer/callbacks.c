/*
 * Loss lines, metrics, the progress line, and the list of callbacks.
 */
#include "ddp/trainer/callbacks.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define DRAW_EVERY_NS INT64_C(100000000)
#define NS_PER_S      1e9
#define MOST_OWN      5

int64_t tutti_callbacks_now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* --------------------------------------------------------------------------------------------- metrics */

/* JSON has no NaN and no infinity. */
static void put_number(FILE *file, const char *key, double number) {
    if (isfinite(number)) fprintf(file, ",\"%s\":%.10g", key, number);
    else fprintf(file, ",\"%s\":null", key);
}

static void put_text(FILE *file, const char *key, const char *text) {
    fprintf(file, ",\"%s\":\"", key);
    for (; *text != '\0'; text++) {
        if (*text == '"' || *text == '\\') fputc('\\', file);
        if ((unsigned char)*text >= ' ') fputc(*text, file);
        else fprintf(file, "\\u%04x", (unsigned char)*text);
    }
    fputc('"', file);
}

static void begin_line(const tutti_callbacks *callbacks, const char *event, const tutti_train_moment *now) {
    fprintf(callbacks->metrics, "{\"event\":\"%s\",\"step\":%lld,\"epoch\":%lld", event, (long long)now->step,
            (long long)now->epoch);
    put_number(callbacks->metrics, "time_s", (double)(tutti_callbacks_now_ns() - callbacks->start_ns) / NS_PER_S);
}

static tutti_status end_line(const tutti_callbacks *callbacks) {
    fputs("}\n", callbacks->metrics);
    if (fflush(callbacks->metrics) == 0 && !ferror(callbacks->metrics)) return TUTTI_OK;
    return tutti_fail(TUTTI_ERR_SYSTEM, "--metrics %s: writing failed: %s", callbacks->metrics_path, strerror(errno));
}

static tutti_status metrics_begin(void *context, const tutti_train_moment *now) {
    const tutti_callbacks *callbacks = context;
    FILE *file = callbacks->metrics;
    tutti_train_details about;
    TUTTI_TRY(tutti_train_get(now->trainer, &about));
    /* Pipes and devices cannot be truncated: that is no error. */
    if (about.resumed == NULL && ftruncate(fileno(file), 0) != 0 && errno != EINVAL)
        return tutti_fail(TUTTI_ERR_SYSTEM, "--metrics %s: its old lines cannot be removed: %s",
                          callbacks->metrics_path, strerror(errno));
    begin_line(callbacks, "start", now);
    put_text(file, "model", about.model);
    put_text(file, "data", about.data);
    put_number(file, "ranks", about.nranks);
    put_number(file, "batch_size", (double)about.rank_batch);
    put_number(file, "parameters", (double)about.parameters);
    put_number(file, "frozen_parameters", (double)about.frozen);
    put_number(file, "states", (double)about.states);
    put_number(file, "memory_bytes", (double)about.memory_bytes);
    put_number(file, "flops_per_image", about.flops_per_sample);
    put_number(file, "total_steps", (double)now->total_steps);
    return end_line(callbacks);
}

static tutti_status metrics_step_end(void *context, const tutti_train_moment *now) {
    const tutti_callbacks *callbacks = context;
    if (!now->has_loss) return TUTTI_OK;
    begin_line(callbacks, "step", now);
    put_number(callbacks->metrics, "loss", now->loss);
    put_number(callbacks->metrics, "lr", now->lr);
    put_number(callbacks->metrics, "images_per_second", now->samples_per_second);
    return end_line(callbacks);
}

static tutti_status metrics_evaluated(void *context, const tutti_train_moment *now) {
    const tutti_callbacks *callbacks = context;
    begin_line(callbacks, "evaluation", now);
    put_number(callbacks->metrics, "test_loss", now->test->loss);
    put_number(callbacks->metrics, "test_accuracy", now->test->accuracy);
    return end_line(callbacks);
}

static tutti_status metrics_saved(void *context, const tutti_train_moment *now) {
    const tutti_callbacks *callbacks = context;
    begin_line(callbacks, "checkpoint", now);
    put_text(callbacks->metrics, "path", now->path);
    return end_line(callbacks);
}

static tutti_status metrics_end(void *context, const tutti_train_moment *now) {
    const tutti_callbacks *callbacks = context;
    FILE *file = callbacks->metrics;
    tutti_train_details about;
    TUTTI_TRY(tutti_train_get(now->trainer, &about));
    begin_line(callbacks, "end", now);
    put_number(file, "ddp_buckets", (double)about.gradients.buckets);
    put_number(file, "ddp_bytes", (double)about.gradients.bytes);
    put_number(file, "ddp_compute_s", (double)about.gradients.compute_ns / NS_PER_S);
    put_number(file, "ddp_communication_s", (double)about.gradients.communication_ns / NS_PER_S);
    put_number(file, "ddp_exposed_s", (double)about.gradients.exposed_ns / NS_PER_S);
    return end_line(callbacks);
}

/* ------------------------------------------------------------------------------------ losses and monitor */

static tutti_status losses_begin(void *context, const tutti_train_moment *now) {
    (void)context;
    tutti_train_details about;
    TUTTI_TRY(tutti_train_get(now->trainer, &about));
    printf("%s: %llu trained parameters, ", about.model, (unsigned long long)about.parameters);
    if (about.frozen > 0) printf("%llu frozen ones, ", (unsigned long long)about.frozen);
    printf("%llu other values, %.1f MiB for a batch of %lld on each rank\n", (unsigned long long)about.states,
           (double)about.memory_bytes / (1 << 20), (long long)about.rank_batch);
    fflush(stdout);
    return TUTTI_OK;
}

static tutti_status losses_step_end(void *context, const tutti_train_moment *now) {
    tutti_callbacks *callbacks = context;
    if (!now->has_loss) return TUTTI_OK;
    if (!callbacks->heading_printed) printf("%12s %12s\n", "step", "loss");
    callbacks->heading_printed = true;
    printf("%12lld %12.10f\n", (long long)now->step, now->loss);
    fflush(stdout);
    return TUTTI_OK;
}

static tutti_status losses_saved(void *context, const tutti_train_moment *now) {
    (void)context;
    printf("checkpoint written: %s\n", now->path);
    fflush(stdout);
    return TUTTI_OK;
}

static tutti_status losses_evaluated(void *context, const tutti_train_moment *now) {
    (void)context;
    printf("step %lld: test loss %.4f, test accuracy %.2f %%\n", (long long)now->step, now->test->loss,
           100 * now->test->accuracy);
    fflush(stdout);
    return TUTTI_OK;
}

static tutti_status monitor_step_end(void *context, const tutti_train_moment *now) {
    const tutti_callbacks *callbacks = context;
    if (!now->has_loss || now->epoch_step % callbacks->monitor_every != 0) return TUTTI_OK;
    printf("epoch: %lld step: %lld, loss is %.7g\n", (long long)now->epoch, (long long)now->epoch_step, now->loss);
    fflush(stdout);
    return TUTTI_OK;
}

/* --------------------------------------------------------------------------------------------- progress */

static tutti_status wipe(void *context, const tutti_train_moment *now) {
    tutti_callbacks *callbacks = context;
    (void)now;
    if (!callbacks->drawn) return TUTTI_OK;
    fputs("\r\033[K", stderr);
    fflush(stderr);
    callbacks->drawn = false;
    return TUTTI_OK;
}

static tutti_status wipe_step_end(void *context, const tutti_train_moment *now) {
    return now->has_loss ? wipe(context, now) : TUTTI_OK;
}

static void put_time_left(double seconds) {
    const long long left = seconds < 1e9 ? (long long)(seconds + 0.5) : 0;
    if (left >= 3600) fprintf(stderr, "  %lld:%02lld:%02lld left", left / 3600, left / 60 % 60, left % 60);
    else fprintf(stderr, "  %lld:%02lld left", left / 60, left % 60);
}

static tutti_status draw_step_end(void *context, const tutti_train_moment *now) {
    tutti_callbacks *callbacks = context;
    const int64_t ns = tutti_callbacks_now_ns();
    tutti_train_details about;
    if (ns - callbacks->drawn_ns < DRAW_EVERY_NS) return TUTTI_OK;
    TUTTI_TRY(tutti_train_get(now->trainer, &about));
    callbacks->drawn_ns = ns;
    callbacks->drawn = true;
    fprintf(stderr, "\repoch %lld  step %lld of %lld", (long long)now->epoch, (long long)now->step,
            (long long)now->total_steps);
    if (isfinite(now->loss)) fprintf(stderr, "  loss %.4f", now->loss);
    fprintf(stderr, "  %.0f images/s", now->samples_per_second);
    if (now->samples_per_second > 0)
        put_time_left((double)(now->total_steps - now->step) * (double)about.batch_size / now->samples_per_second);
    fputs("\033[K", stderr);
    fflush(stderr);
    return TUTTI_OK;
}

/* -------------------------------------------------------------------------------------------- the list */

/* Opens for appending: the old content stays until training begins, so a preparation that fails loses nothing. */
static tutti_status open_metrics(tutti_callbacks *callbacks, const tutti_train_options *options) {
    callbacks->metrics_path = options->metrics;
    callbacks->metrics = fopen(options->metrics, "ae");
    if (callbacks->metrics != NULL) return TUTTI_OK;
    return tutti_fail(TUTTI_ERR_SYSTEM, "--metrics %s: cannot be written: %s", options->metrics, strerror(errno));
}

static void add(tutti_callbacks *callbacks, tutti_train_callback row) {
    row.context = callbacks;
    callbacks->rows[callbacks->count++] = row;
}

static bool draws(const tutti_train_options *options) {
    return options->print && isatty(STDERR_FILENO) == 1;
}

/* Adds the trainer's own callbacks that run before the caller's. */
static tutti_status add_own(tutti_callbacks *callbacks, const tutti_train_options *options) {
    callbacks->monitor_every = options->monitor_every;
    if (draws(options))
        add(callbacks, (tutti_train_callback){.name = "wipe",
                                              .epoch_end = wipe,
                                              .step_end = wipe_step_end,
                                              .evaluated = wipe,
                                              .saved = wipe,
                                              .end = wipe});
    if (options->print)
        add(callbacks, (tutti_train_callback){.name = "losses",
                                              .begin = losses_begin,
                                              .step_end = options->monitor_every == 0 ? losses_step_end : NULL,
                                              .evaluated = losses_evaluated,
                                              .saved = losses_saved});
    if (options->monitor_every > 0)
        add(callbacks, (tutti_train_callback){.name = "monitor", .step_end = monitor_step_end});
    if (options->metrics == NULL) return TUTTI_OK;
    TUTTI_TRY(open_metrics(callbacks, options));
    add(callbacks, (tutti_train_callback){.name = "metrics",
                                          .begin = metrics_begin,
                                          .step_end = metrics_step_end,
                                          .evaluated = metrics_evaluated,
                                          .saved = metrics_saved,
                                          .end = metrics_end});
    return TUTTI_OK;
}

tutti_status tutti_callbacks_open(tutti_callbacks *callbacks, const tutti_train_options *options, bool speaks) {
    *callbacks = (tutti_callbacks){.start_ns = tutti_callbacks_now_ns()};
    callbacks->rows = calloc(MOST_OWN + (size_t)options->ncallbacks, sizeof *callbacks->rows);
    if (callbacks->rows == NULL) return tutti_fail(TUTTI_ERR_MEMORY, "no memory for a list of callbacks");
    if (speaks) TUTTI_TRY(add_own(callbacks, options));
    callbacks->first = callbacks->count;
    for (int i = 0; i < options->ncallbacks; i++) callbacks->rows[callbacks->count++] = options->callbacks[i];
    if (speaks && draws(options)) add(callbacks, (tutti_train_callback){.name = "progress", .step_end = draw_step_end});
    return TUTTI_OK;
}

static tutti_train_hook find_hook(const tutti_train_callback *callback, tutti_event event) {
    switch (event) {
    case TUTTI_EVENT_BEGIN: return callback->begin;
    case TUTTI_EVENT_EPOCH_BEGIN: return callback->epoch_begin;
    case TUTTI_EVENT_STEP_BEGIN: return callback->step_begin;
    case TUTTI_EVENT_STEP_END: return callback->step_end;
    case TUTTI_EVENT_EPOCH_END: return callback->epoch_end;
    case TUTTI_EVENT_EVALUATED: return callback->evaluated;
    case TUTTI_EVENT_SAVED: return callback->saved;
    case TUTTI_EVENT_END: return callback->end;
    }
    return NULL;
}

void tutti_callbacks_forget_errors(void) {
    tutti_fail(TUTTI_OK, "%s", "");
}

tutti_status tutti_callbacks_fail(tutti_status status, const char *function) {
    const char *text = tutti_last_error();
    if (text[0] != '\0') return tutti_fail(status, "%s: %s", function, text);
    return tutti_fail(status, "%s returned status %d (%s) and gave no reason; tutti_fail sets one", function,
                      (int)status, tutti_status_name(status));
}

/* Names the failed callback in the error. The errors of the trainer's own callbacks need no name. */
static tutti_status fail_of(const tutti_callbacks *callbacks, int index, tutti_status status) {
    char function[256];
    const tutti_train_callback *callback = &callbacks->rows[index];
    if (callback->context == callbacks) return status;
    if (callback->name != NULL) snprintf(function, sizeof function, "callback %s", callback->name);
    else snprintf(function, sizeof function, "callback %d of the list", index - callbacks->first);
    return tutti_callbacks_fail(status, function);
}

tutti_status tutti_callbacks_run(const tutti_callbacks *callbacks, tutti_event event, const tutti_train_moment *now) {
    for (int i = 0; i < callbacks->count; i++) {
        const tutti_train_hook hook = find_hook(&callbacks->rows[i], event);
        if (hook == NULL) continue;
        tutti_callbacks_forget_errors();
        const tutti_status status = hook(callbacks->rows[i].context, now);
        if (status != TUTTI_OK) return fail_of(callbacks, i, status);
    }
    return TUTTI_OK;
}

void tutti_callbacks_close(tutti_callbacks *callbacks) {
    (void)wipe(callbacks, NULL);
    if (callbacks->metrics != NULL) fclose(callbacks->metrics);
    free(callbacks->rows);
    *callbacks = (tutti_callbacks){.count = 0};
}
