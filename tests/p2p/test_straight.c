/*
 * Messages of another host whose receive waits: their bytes go into its buffer, not into the ring. They come in pieces
 * here; meanwhile receives are given up, fail, are too short, or come in another order.
 */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "bootstrap/base/lock.h"
#include "tests/fuzz/far.h"

enum { TAG = 5, MOST = 60000, MANY = 12 };

static far_scene sender, scene;
static uint8_t frames[1 << 20];
static size_t frames_bytes, to_come, piece;
static int64_t tag_step = 1;

static uint8_t byte_at(size_t at, int message) {
    return (uint8_t)(at * 13 + at / 256 + (size_t)message * 7 + 1);
}

/* Writes the frames in which another host sends messages of these sizes: number i with tag TAG + i * tag_step. */
static void say(const size_t *sizes, int count) {
    static uint8_t message[MOST];
    canned_pipe pipe = canned_of(NULL, 0, 1);
    pipe.kept = frames;
    pipe.kept_most = sizeof frames;
    pipe.waits = true;
    tutti_channels *channel = far_set_up(&sender, 1, &pipe);
    for (int i = 0; i < count; i++) {
        for (size_t at = 0; at < sizes[i]; at++) message[at] = byte_at(at, i);
        tutti_work *work = NULL;
        cr_assert_eq(tutti_work_create(&sender.comm, &work), TUTTI_OK);
        cr_assert_eq(tutti_p2p_send(&sender.comm, message, sizes[i], 0, TAG + i * tag_step, work), TUTTI_OK);
        far_go_on(1);
        cr_assert(tutti_work_done(work), "message %d of %zu bytes was not sent at once", i, sizes[i]);
        tutti_work_free(work);
        channel->tail_seen = channel->head; /* as if the other side had read and matched it */
        channel->matched_seen = channel->sent;
    }
    frames_bytes = sender.pipe.kept_bytes;
    far_take_down(&sender);
}

/* Connects this process to the other host, of which nothing has come yet. */
static void hear(size_t bytes) {
    canned_pipe pipe = canned_of(frames, 0, sizeof frames);
    pipe.waits = true;
    far_set_up(&scene, 0, &pipe);
    piece = bytes;
    to_come = frames_bytes;
}

static tutti_work *post(void *dst, size_t bytes, int64_t tag) {
    tutti_work *work = NULL;
    cr_assert_eq(tutti_work_create(&scene.comm, &work), TUTTI_OK);
    cr_assert_eq(tutti_p2p_recv(&scene.comm, dst, bytes, 1, 1, tag, work), TUTTI_OK);
    return work;
}

static void take_pieces(int pieces) {
    for (int i = 0; i < pieces; i++) {
        size_t bytes = tutti_min_size(piece, to_come);
        scene.pipe.left += bytes;
        to_come -= bytes;
        far_go_on(2);
    }
}

/* What recv() makes of its arguments. */
static tutti_waiter waiter_for(void *dst, size_t bytes, int64_t tag, tutti_received *received_out) {
    return (tutti_waiter){.port = tutti_p2p_port(FAR_COMM_ID, 0),
                          .channel = scene.remote.channels,
                          .dst = dst,
                          .bytes = bytes,
                          .peer = 1,
                          .tag = tag,
                          .received_out = received_out};
}

static size_t right_bytes(const uint8_t *data, size_t bytes, int message) {
    size_t at = 0;
    while (at < bytes && data[at] == byte_at(at, message)) at++;
    return at;
}

static void expect(tutti_work *work, tutti_status status, const uint8_t *data, size_t bytes, int message) {
    cr_assert(tutti_work_done(work), "message %d of %zu bytes has not come", message, bytes);
    cr_assert_eq(work->status, status, "message %d: %s", message, tutti_status_name(work->status));
    cr_assert_eq(right_bytes(data, bytes, message), bytes, "byte %zu of message %d is wrong",
                 right_bytes(data, bytes, message), message);
    tutti_work_free(work);
}

static void end(void) {
    const tutti_channels *channel = scene.remote.channels;
    cr_assert_eq(channel->tail, channel->remote->came);
    cr_assert_eq(channel->came, channel->matched, "credit is lost");
    far_take_down(&scene);
}

/* Around the sizes that fit into a record, fill lines, or do not; the ring is passed several times. */
Test(straight, messages_of_all_sizes_in_pieces_of_all_sizes) {
    static const size_t sizes[MANY] = {0, 8, 32, 33, 63, 64, 65, 128, 4000, 4096, 30001, MOST};
    static const size_t pieces[] = {1, 7, 64, 104, 1000, 20000, sizeof frames};
    say(sizes, MANY);
    for (size_t p = 0; p < sizeof pieces / sizeof *pieces; p++) {
        uint8_t *data[MANY];
        tutti_work *works[MANY];
        hear(pieces[p]);
        for (int i = 0; i < MANY; i++) {
            data[i] = malloc(sizes[i] + 1); /* exact, for the address sanitizer, but for one byte */
            data[i][sizes[i]] = 0xa5;
            works[i] = post(data[i], sizes[i], TAG + i);
        }
        while (to_come > 0) take_pieces(1);
        far_go_on(2 * MANY);
        for (int i = 0; i < MANY; i++) {
            expect(works[i], TUTTI_OK, data[i], sizes[i], i);
            cr_assert_eq(data[i][sizes[i]], 0xa5);
            free(data[i]);
        }
        end();
    }
}

Test(straight, bytes_are_in_the_buffer_before_all_have_come) {
    static const size_t size = 10000;
    static uint8_t data[10000];
    say(&size, 1);
    hear(1000);
    tutti_work *work = post(data, size, TAG);
    take_pieces(4);
    cr_assert_gt(right_bytes(data, size, 0), 1000);
    cr_assert_not(tutti_work_done(work));
    take_pieces(12);
    expect(work, TUTTI_OK, data, size, 0);
    end();
}

/* It fails with its communicator, in fact; here alone. */
Test(straight, a_receive_that_fails_gets_no_more_bytes_and_the_next_one_gets_the_next_message) {
    static const size_t sizes[] = {10000, 5000};
    static uint8_t data[10000], other[5000], was[10000];
    say(sizes, 2);
    hear(1000);
    tutti_work *work = post(data, sizes[0], TAG), *next = post(other, sizes[1], TAG + 1);
    take_pieces(4);
    tutti_request *request = TAILQ_FIRST(&scene.remote.channels->receiving);
    cr_assert_not_null(request);
    tutti_lock(TUTTI_LOCK_P2P);
    tutti_request_fail(request, TUTTI_ERR_TIMEOUT, "for a test");
    tutti_p2p_unlock();
    cr_assert(tutti_work_done(work) && work->status == TUTTI_ERR_TIMEOUT);
    tutti_work_free(work);
    memcpy(was, data, sizeof was);
    take_pieces(30);
    expect(next, TUTTI_OK, other, sizes[1], 1);
    cr_assert(memcmp(was, data, sizeof was) == 0, "bytes were written after the receive had failed");
    end();
}

/* What recv() does when it stops waiting for a message that has begun to come: another receive gets it, whole. */
Test(straight, a_message_whose_receive_was_given_up_goes_to_the_next_receive) {
    static const size_t sizes[] = {50000, 50000, 50000, 50000, 50000, 50000, 50000};
    static uint8_t data[50000], other[50000], was[50000];
    say(sizes, 7); /* more than the ring holds: some messages wrap */
    hear(frames_bytes / 7 / 8);
    cr_assert_eq(frames_bytes % (7 * 8), 0);
    for (int i = 0; i < 7; i++) {
        tutti_received received = {.count = 0};
        tutti_waiter waiter = waiter_for(data, sizeof data, TAG + i, &received);
        waiter.port->waiter = &waiter;
        take_pieces(i + 1);
        cr_assert(atomic_load(&waiter.claimed) && !waiter.taken, "message %d", i);
        tutti_lock(TUTTI_LOCK_P2P);
        waiter.port->waiter = NULL;
        tutti_remote_leave_waiter(&waiter);
        tutti_unlock(TUTTI_LOCK_P2P);
        memcpy(was, data, sizeof was);
        tutti_work *work = post(other, sizeof other, TAG + i);
        for (int turn = 0; turn < 40 && !tutti_work_done(work); turn++) take_pieces(1);
        expect(work, TUTTI_OK, other, sizes[i], i);
        cr_assert(memcmp(was, data, sizeof was) == 0, "message %d: bytes went to the first receive", i);
    }
    end();
}

Test(straight, a_waiting_receive_gets_its_message) {
    static const size_t size = 10000;
    static uint8_t data[10000];
    say(&size, 1);
    hear(1000);
    tutti_received received = {.count = 0};
    tutti_waiter waiter = waiter_for(data, sizeof data, TUTTI_ANY_TAG, &received);
    waiter.port->waiter = &waiter;
    const _Atomic uint32_t *place = tutti_channel_next(scene.remote.channels);
    take_pieces(10);
    cr_assert_eq(atomic_load(place), 0);
    take_pieces(6);
    cr_assert(waiter.taken && atomic_load(place) != 0, "the thread that polls would not notice");
    cr_assert_eq(right_bytes(data, size, 0), size);
    cr_assert(received.source == 1 && received.tag == TAG && received.count == size);
    waiter.port->waiter = NULL;
    end();
}

/* Without a request, which would cost a twelfth of the time of 8 bytes. Another receive waits for the next message. */
Test(straight, a_waiting_receive_gets_a_short_message) {
    static const size_t sizes[] = {8, 8};
    static uint8_t data[8], other[8];
    say(sizes, 2);
    hear(50);
    tutti_received received = {.count = 0};
    tutti_waiter waiter = waiter_for(data, sizeof data, TUTTI_ANY_TAG, &received);
    waiter.port->waiter = &waiter;
    while (to_come > 0) take_pieces(1);
    far_go_on(4);
    cr_assert(waiter.taken && received.source == 1 && received.tag == TAG && received.count == 8);
    cr_assert_eq(right_bytes(data, 8, 0), 8, "the second message overwrote the first one");
    waiter.port->waiter = NULL;
    expect(post(other, sizeof other, TAG + 1), TUTTI_OK, other, 8, 1);
    end();
}

/* The first one is in the ring, unread, when the header of the second one comes. */
Test(straight, a_message_does_not_overtake_one_that_is_in_the_ring) {
    static const size_t sizes[] = {8, 1000};
    static uint8_t first[1000], second[1000];
    tag_step = 0;
    say(sizes, 2);
    hear(sizeof frames);
    scene.pipe.ahead = true;
    tutti_work *works[] = {post(first, sizeof first, TAG), post(second, sizeof second, TAG)};
    take_pieces(2);
    expect(works[0], TUTTI_OK, first, sizes[0], 0);
    expect(works[1], TUTTI_OK, second, sizes[1], 1);
    cr_assert_eq(right_bytes(first, sizeof first, 1), 0);
    end();
}

/* A message that is too long, one that nobody has asked for, and one that overtakes no other. */
Test(straight, other_messages_take_the_ring) {
    static const size_t sizes[] = {5000, 3000, 4000};
    static uint8_t brief[1000], data[4000], late[3000];
    say(sizes, 3);
    hear(700);
    tutti_work *works[] = {post(brief, sizeof brief, TAG), post(data, sizeof data, TAG + 2)};
    take_pieces(40);
    expect(works[0], TUTTI_ERR_TRUNCATED, brief, sizeof brief, 0);
    expect(works[1], TUTTI_OK, data, sizeof data, 2);
    expect(post(late, sizeof late, TAG + 1), TUTTI_OK, late, sizeof late, 1);
    end();
}
