/*
 * Tasks: functions of the caller that take a turn in a communicator's queue (tutti_submit). They make one
 * asynchronous operation of several collectives, or of collectives and messages with work between them.
 *
 * Only the worker thread runs them: a thread that waits for something may hold locks that the function needs. While
 * a task runs, its thread holds the queue (queue.c, `busy`), and collectives that it calls are carried out
 * immediately.
 */
#include <stdio.h>

#include "comm/api/api.h"
#include "comm/net/link.h"
#include "comm/p2p/p2p.h"
#include "comm/queue/queue.h"

/* If tutti_comm_abort broke the communicator meanwhile, it left the links to other hosts to the queue's holder. */
static void tell_hosts_if_broken(tutti_comm *comm) {
    if (comm->net.hosts == NULL || tutti_comm_check(comm) == TUTTI_OK) return;
    tutti_link_break_all(comm);
    tutti_p2p_notify_broken(comm);
}

static tutti_status run(tutti_work *work) {
    TUTTI_TRY(tutti_comm_check(work->comm));
    tutti_task_comm = work->comm;
    tutti_status status = work->function(work->context);
    tutti_task_comm = NULL;
    tutti_error error;
    if (status != TUTTI_OK) error = tutti_fail_save();
    tell_hosts_if_broken(work->comm);
    return status == TUTTI_OK ? status : tutti_fail_again(status, &error);
}

static tutti_status check(tutti_comm *comm, const tutti_options *options) {
    TUTTI_TRY(tutti_comm_check(comm));
    TUTTI_TRY(tutti_options_check(options, "tutti_submit"));
    if (tutti_group_is_open(comm))
        return tutti_fail(TUTTI_ERR_ARGUMENT,
                          "tutti_submit: this thread has a group open on communicator \"%s\"; end it first",
                          comm->name);
    if (options != NULL && (options->timeout_ms != 0 || options->stream != NULL || options->received != NULL))
        return tutti_fail(
            TUTTI_ERR_ARGUMENT,
            "tutti_submit: of the options only work is allowed; pass a timeout or a stream to the calls that the "
            "function makes");
    return TUTTI_OK;
}

tutti_status tutti_submit(tutti_comm *comm, tutti_status (*function)(void *context), void (*release)(void *context),
                          void *context, const tutti_options *options) {
    TUTTI_TAKE_OPTIONS("tutti_submit");
    tutti_work *work;
    if (comm == NULL || function == NULL) return tutti_fail(TUTTI_ERR_ARGUMENT, "tutti_submit: NULL argument");
    TUTTI_TRY(check(comm, options));
    TUTTI_TRY(tutti_work_create(comm, &work));
    work->run = run;
    work->function = function;
    work->release = release;
    work->context = context;
    tutti_status status = tutti_queue_push(comm, work);
    if (status == TUTTI_OK && options != NULL && options->work != NULL) {
        *options->work = work;
        return TUTTI_OK;
    }
    if (status == TUTTI_OK) status = tutti_work_finish(work);
    tutti_work_free(work);
    return status;
}
