/*
 * Messages of a process of another host for sends and receives: frames with records of the ring, and parts of
 * streams. The first byte selects the size of the pieces. Pending are a short receive, one from any source, and a
 * send that has been announced. For any input only the requested bytes are written.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/fuzz/far.h"
#include "tests/fuzz/fuzz.h"

enum { SHORT_BYTES = 40, LONG_BYTES = 20000, EAGER_BYTES = 4096, TURNS = 40, TAG = 5 };

/* Limits long messages so that examples can reach them. */
static tutti_channels *set_up(far_scene *s, int me, const canned_pipe *pipe) {
    char eager[16];
    snprintf(eager, sizeof eager, "%d", EAGER_BYTES);
    setenv("TUTTI_EAGER_BYTES", eager, 1);
    return far_set_up(s, me, pipe);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    static far_scene s;
    static char out[LONG_BYTES];
    if (bytes < 1) return 0;
    canned_pipe pipe = canned_of(data + 1, bytes - 1, 1 + (size_t)data[0] * data[0]);
    const tutti_channels *channel = set_up(&s, 0, &pipe);
    char *few = malloc(SHORT_BYTES), *many = malloc(LONG_BYTES); /* exact: a write beyond is detected */
    far_check(few != NULL && many != NULL);
    far_check(tutti_p2p_recv(&s.comm, few, SHORT_BYTES, 1, 1, TAG, far_add_work(&s)) == TUTTI_OK);
    far_check(tutti_p2p_recv(&s.comm, many, LONG_BYTES, 1, TUTTI_ANY_SOURCE, TUTTI_ANY_TAG, far_add_work(&s)) ==
              TUTTI_OK);
    far_check(tutti_p2p_send(&s.comm, out, LONG_BYTES, 1, TAG, far_add_work(&s)) == TUTTI_OK);
    far_go_on(TURNS);
    far_check(channel->tail <= channel->remote->came); /* nothing is read before it has arrived */
    far_take_down(&s);
    free(few);
    free(many);
    return 0;
}

/* ---------------------------------------------------------------------------------------------- examples
 * The other side's messages, which this code sends, too.
 */

/* As if the other side had requested the announced messages: its send is number 1, its receives are 2 and 3. The
 * first announcement makes the connection; the next one carries bytes. */
static void clear_announced(tutti_channels *channel) {
    tutti_request *request;
    for (uint64_t answer = 2; (request = TAILQ_FIRST(&channel->announced)) != NULL; answer++) {
        request->wanted = answer == 2 ? SHORT_BYTES : LONG_BYTES;
        request->moved = answer == 2 ? 0 : EAGER_BYTES;
        request->answer = answer;
        tutti_request_move(request, TUTTI_PHASE_STREAMING, &channel->streaming);
    }
}

size_t fuzz_example(int index, uint8_t *data, size_t capacity) {
    static const size_t sizes[] = {0, 8, SHORT_BYTES, 1000, 7000, LONG_BYTES};
    static const int64_t tags[] = {TAG, 6};
    static far_scene s;
    static char message[LONG_BYTES];
    enum { SIZES = sizeof sizes / sizeof *sizes, TAGS = 2 };
    if (index >= SIZES * TAGS) return 0;
    canned_pipe pipe = canned_of(NULL, 0, 1);
    pipe.kept = data + 1;
    pipe.kept_most = capacity - 1;
    tutti_channels *channel = set_up(&s, 1, &pipe);
    for (int i = 0; i < 2; i++)
        far_check(tutti_p2p_send(&s.comm, message, sizes[index % SIZES], 0, tags[index / SIZES] + i,
                                 far_add_work(&s)) == TUTTI_OK);
    clear_announced(channel);
    far_go_on(4);
    s.pipe.pipe.status = TUTTI_OK; /* there is no reply, but the pipe has not ended */
    size_t bytes = 1 + s.pipe.kept_bytes;
    data[0] = (uint8_t)(20 * index);
    far_take_down(&s);
    return bytes;
}
