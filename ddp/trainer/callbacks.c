/*
 * Loss lines, metrics and the progress line.
 */
#include "ddp/trainer/callbacks.h"

#include <errno.h>
#include <math.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define DRAW_EVERY_NS INT64_C(100000000)
#define NS_PER_S      1e9

int64_t tutti_callbacks_now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

tutti_status tutti_callbacks_open(tutti_callbacks *callbacks, bool prints, const char *metrics_path, bool append) {
    *callbacks = (tutti_callbacks){.metrics_path = metrics_path, .start_ns = tutti_callbacks_now_ns()};
    callbacks->prints = prints;
    callbacks->progress = prints && isatty(STDERR_FILENO) == 1;
    if (metrics_path == NULL) return TUTTI_OK;
    callbacks->metrics = fopen(metrics_path, append ? "ae" : "we");
    if (callbacks->metrics == NULL)
        return tutti_fail(TUTTI_ERR_SYSTEM, "--metrics %s: cannot be written: %s", metrics_path, strerror(errno));
    return TUTTI_OK;
}

/* --------------------------------------------------------------------------------------------- metrics */

/* JSON knows no NaN and no infinity. */
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

static void put_members(FILE *file, const tutti_event *event) {
    switch (event->kind) {
    case TUTTI_EVENT_START:
        put_text(file, "model", event->model);
        put_text(file, "data", event->data);
        put_number(file, "ranks", event->ranks);
        put_number(file, "batch_size", event->batch_size);
        put_number(file, "parameters", (double)event->parameters);
        put_number(file, "states", (double)event->states);
        put_number(file, "memory_bytes", (double)event->memory_bytes);
        put_number(file, "flops_per_image", event->flops_per_image);
        put_number(file, "total_steps", (double)event->total_steps);
        return;
    case TUTTI_EVENT_STEP:
        put_number(file, "loss", event->loss);
        put_number(file, "lr", event->lr);
        put_number(file, "images_per_second", event->images_per_second);
        return;
    case TUTTI_EVENT_EVALUATION:
        put_number(file, "test_loss", event->loss);
        put_number(file, "test_accuracy", event->accuracy);
        return;
    case TUTTI_EVENT_CHECKPOINT: put_text(file, "path", event->path); return;
    case TUTTI_EVENT_END:
        put_number(file, "ddp_buckets", (double)event->ddp.buckets);
        put_number(file, "ddp_bytes", (double)event->ddp.bytes);
        put_number(file, "ddp_compute_s", (double)event->ddp.compute_ns / NS_PER_S);
        put_number(file, "ddp_communication_s", (double)event->ddp.communication_ns / NS_PER_S);
        put_number(file, "ddp_exposed_s", (double)event->ddp.exposed_ns / NS_PER_S);
        return;
    }
}

static tutti_status tell_metrics(tutti_callbacks *callbacks, const tutti_event *event) {
    static const char *const names[] = {
        [TUTTI_EVENT_START] = "start",           [TUTTI_EVENT_STEP] = "step", [TUTTI_EVENT_EVALUATION] = "evaluation",
        [TUTTI_EVENT_CHECKPOINT] = "checkpoint", [TUTTI_EVENT_END] = "end",
    };
    FILE *file = callbacks->metrics;
    if (file == NULL || (event->kind == TUTTI_EVENT_STEP && !event->has_loss)) return TUTTI_OK;
    double seconds = (double)(tutti_callbacks_now_ns() - callbacks->start_ns) / NS_PER_S;
    fprintf(file, "{\"event\":\"%s\",\"step\":%lld,\"epoch\":%lld", names[event->kind], (long long)event->step,
            (long long)event->epoch);
    put_number(file, "time_s", seconds);
    put_members(file, event);
    fputs("}\n", file);
    if (fflush(file) != 0 || ferror(file))
        return tutti_fail(TUTTI_ERR_SYSTEM, "--metrics %s: writing failed: %s", callbacks->metrics_path,
                          strerror(errno));
    return TUTTI_OK;
}

/* -------------------------------------------------------------------------------- losses and progress */

static void wipe_progress(tutti_callbacks *callbacks) {
    if (!callbacks->progress_drawn) return;
    fputs("\r\033[K", stderr);
    fflush(stderr);
    callbacks->progress_drawn = false;
}

static void draw_progress(tutti_callbacks *callbacks, const tutti_event *event) {
    int64_t now = tutti_callbacks_now_ns();
    if (!callbacks->progress || now - callbacks->drawn_ns < DRAW_EVERY_NS) return;
    callbacks->drawn_ns = now;
    callbacks->progress_drawn = true;
    fprintf(stderr, "\repoch %lld  step %lld of %lld  %.0f images/s\033[K", (long long)event->epoch,
            (long long)event->step, (long long)event->total_steps, event->images_per_second);
    fflush(stderr);
}

static void tell_people(tutti_callbacks *callbacks, const tutti_event *event) {
    if (event->kind == TUTTI_EVENT_STEP && !event->has_loss) {
        draw_progress(callbacks, event);
        return;
    }
    wipe_progress(callbacks);
    if (event->kind == TUTTI_EVENT_START)
        printf("%s: %llu trained parameters, %llu other values, %.1f MiB for a batch of %d on each rank\n",
               event->model, (unsigned long long)event->parameters, (unsigned long long)event->states,
               (double)event->memory_bytes / (1 << 20), event->batch_size);
    if (event->kind == TUTTI_EVENT_STEP && !callbacks->heading_printed) printf("%12s %12s\n", "step", "loss");
    callbacks->heading_printed |= event->kind == TUTTI_EVENT_STEP;
    if (event->kind == TUTTI_EVENT_STEP) printf("%12lld %12.10f\n", (long long)event->step, event->loss);
    else if (event->kind == TUTTI_EVENT_CHECKPOINT) printf("checkpoint written: %s\n", event->path);
    else if (event->kind == TUTTI_EVENT_EVALUATION)
        printf("step %lld: test loss %.4f, test accuracy %.2f %%\n", (long long)event->step, event->loss,
               100 * event->accuracy);
    fflush(stdout);
}

tutti_status tutti_callbacks_tell(tutti_callbacks *callbacks, const tutti_event *event) {
    if (callbacks->prints) tell_people(callbacks, event);
    return tell_metrics(callbacks, event);
}

void tutti_callbacks_close(tutti_callbacks *callbacks) {
    wipe_progress(callbacks);
    if (callbacks->metrics != NULL) fclose(callbacks->metrics);
    callbacks->metrics = NULL;
}
