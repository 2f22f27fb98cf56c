/*
 * The table of engines for CUDA memory. The first engine that fits the capabilities of all ranks is chosen; the
 * last one always fits.
 */
#include "comm/gpu/stream.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "bootstrap/base/settings.h"
#include "comm/base/op.h"

/* ---------------------------------------------------------------------------------------- the engine for one rank
 * Inputs are copied to outputs. As on the host (single.c), reductions still run.
 */

static bool fits_single(const tutti_comm *comm, char *reason_out, size_t capacity) {
    snprintf(reason_out, capacity, "it has %d ranks", comm->nranks);
    return comm->nranks == 1;
}

static tutti_status enqueue_single(tutti_comm *comm, const tutti_stream_call *call) {
    const tutti_device *device = comm->cuda.streams->device;
    const tutti_op *op = call->op;
    tutti_span input = tutti_op_input(comm, op, 0), output = tutti_op_output(comm, op, 0);
    if (input.bytes == 0 || !tutti_op_has_output(op, 0)) return TUTTI_OK;
    void *dst = (void *)output.data;
    const void *src = input.data;
    if (tutti_op_reduces(op)) {
        tutti_reduce_args args = {.srcs = &src,
                                  .factors = op->reduction == TUTTI_PREMUL_SUM ? &op->factor : NULL,
                                  .nsrcs = 1,
                                  .count = input.bytes / tutti_type_bytes(op->type),
                                  .type = op->type,
                                  .reduction = op->reduction,
                                  .divisor = 1};
        return device->reduce(&args, &dst, 1, call->stream);
    }
    return src == dst ? TUTTI_OK : device->copy(dst, src, input.bytes, call->stream);
}

static const tutti_stream_engine single = {
    .name = "single",
    .when = "one rank",
    .fits = fits_single,
    .enqueue = enqueue_single,
    .captures = true,
    .minds_deaths = true,
};

/* ------------------------------------------------------------------------------------------------ the table */

static const tutti_stream_engine *const rows[] = {
    &single,
    &tutti_engine_same_gpu,
    &tutti_engine_nccl,
    &tutti_engine_staged,
};

void tutti_engines_fill_caps(const tutti_comm *comm, tutti_stream_caps *own) {
    for (size_t i = 0; i < TUTTI_COUNT_OF(rows); i++)
        if (rows[i]->fill_caps != NULL) rows[i]->fill_caps(comm, own);
}

/* Users with GPUs do not expect calls to go through host memory: a warning, but only the first time. */
static void tell_slow(const tutti_comm *comm, const char *reasons) {
    static atomic_flag logged = ATOMIC_FLAG_INIT;
    if (comm->rank != 0) return;
    tutti_log(atomic_flag_test_and_set(&logged) ? TUTTI_LOG_INFO : TUTTI_LOG_WARN,
              "communicator \"%s\": calls on CUDA memory go through host memory, which is slow (%s)", comm->name,
              reasons);
}

const tutti_stream_engine *tutti_engines_choose(const tutti_comm *comm) {
    const char *forced = tutti_setting_text(TUTTI_SETTING_ALGORITHM);
    char reason[TUTTI_ENGINES_REASON_BYTES] = "", reasons[2 * TUTTI_ENGINES_REASON_BYTES + 64] = "";
    size_t used = 0;
    const tutti_stream_engine *first = NULL;
    for (size_t i = 0; i < TUTTI_COUNT_OF(rows); i++) {
        bool named = strcmp(rows[i]->name, forced) == 0;
        bool fits = rows[i]->fits(comm, reason, sizeof reason);
        if (fits && named) return rows[i];
        if (named && comm->rank == 0)
            tutti_log(TUTTI_LOG_WARN, "TUTTI_ALGORITHM=%s does not fit communicator \"%s\": %s", forced, comm->name,
                      reason);
        if (fits && first == NULL) first = rows[i];
        bool tells = rows[i] == &tutti_engine_same_gpu || rows[i] == &tutti_engine_nccl;
        if (!fits && tells && used < sizeof reasons)
            used += (size_t)snprintf(reasons + used, sizeof reasons - used, "%s%s: %s", used > 0 ? "; " : "",
                                     rows[i]->name, reason);
    }
    if (first == &tutti_engine_staged) tell_slow(comm, reasons);
    return first;
}

bool tutti_engines_have(const char *name) {
    for (size_t i = 0; i < TUTTI_COUNT_OF(rows); i++)
        if (strcmp(rows[i]->name, name) == 0) return true;
    return false;
}

const char *tutti_engines_names(void) {
    static _Thread_local char names[128];
    size_t used = 0;
    for (size_t i = 0; i < TUTTI_COUNT_OF(rows) && used < sizeof names; i++)
        used += (size_t)snprintf(names + used, sizeof names - used, "%s%s", used > 0 ? ", " : "", rows[i]->name);
    return names;
}

const char *tutti_engines_row(int index, char *text, size_t capacity) {
    if (index < 0 || (size_t)index >= TUTTI_COUNT_OF(rows)) return NULL;
    snprintf(text, capacity, "%-16s(%s)", rows[index]->name, rows[index]->when);
    return text;
}
