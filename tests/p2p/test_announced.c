/*
 * Announcements that carry the first part of their message, from another host: the rest is requested at once, and all
 * bytes go into the receive's buffer. The frames come in pieces here; meanwhile receives are posted late, are too
 * short, or fail. And what a sender announces to another host.
 */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "bootstrap/base/lock.h"
#include "tests/fuzz/far.h"

enum { TAG = 5, TRANSFER = 41, FIRST = 3000, ALL = 10000, LARGEST = 128 << 10 };

static far_scene scene;
static uint8_t frames[1 << 20], sent[4 << 20];
static size_t frames_bytes;

static uint8_t byte_at(size_t at) {
    return (uint8_t)(at * 13 + at / 256 + 1);
}

static size_t right_bytes(const uint8_t *data, size_t bytes) {
    size_t at = 0;
    while (at < bytes && data[at] == byte_at(at)) at++;
    return at;
}

/* ---------------------------------------------------------------------------------------- the other host */

/* Adds the bytes from..from + bytes of the message, and padding up to `whole`. */
static void add_bytes(size_t from, size_t bytes, size_t whole) {
    for (size_t i = 0; i < whole; i++) frames[frames_bytes++] = i < bytes ? byte_at(from + i) : 0;
}

static void add_record(const tutti_record *record, size_t whole) {
    tutti_remote_frame frame = {.magic = TUTTI_REMOTE_FRAME_MAGIC, .bytes = (uint32_t)(sizeof *record + whole)};
    memcpy(frame.lead, record, sizeof *record);
    memcpy(frames + frames_bytes, &frame, sizeof frame);
    frames_bytes += sizeof frame;
    add_bytes(0, record->payload_bytes, whole);
}

static tutti_record announcement(size_t first, size_t all) {
    return (tutti_record){.kind = TUTTI_RECORD_ANNOUNCE,
                          .payload_bytes = (uint32_t)first,
                          .comm_id = FAR_COMM_ID,
                          .source = 1,
                          .tag = TAG,
                          .bytes = all,
                          .transfer = TRANSFER};
}

static void announce(size_t first, size_t all) {
    const tutti_record record = announcement(first, all);
    add_record(&record, tutti_align_up(first, TUTTI_CACHE_LINE));
}

/* Adds the rest of the message, in two frames. */
static void stream(uint64_t answer, size_t from, size_t to) {
    size_t ends[] = {from + (to - from + 2) / 3, to};
    for (int i = 0; i < 2 && from < to; from = ends[i++]) {
        tutti_remote_frame frame = {
            .magic = TUTTI_REMOTE_FRAME_MAGIC, .bytes = (uint32_t)(ends[i] - from), .transfer = answer, .offset = from};
        memcpy(frames + frames_bytes, &frame, sizeof frame);
        frames_bytes += sizeof frame;
        add_bytes(from, ends[i] - from, ends[i] - from);
    }
}

/* A short message with the tag after TAG. */
static void say_hello(void) {
    add_record(&(tutti_record){.kind = TUTTI_RECORD_EAGER,
                               .payload_bytes = 5,
                               .comm_id = FAR_COMM_ID,
                               .source = 1,
                               .tag = TAG + 1,
                               .tiny = "hello"},
               0);
}

static tutti_channels *begin(size_t piece) {
    canned_pipe pipe = canned_of(frames, 0, piece);
    pipe.waits = true;
    pipe.kept = sent;
    pipe.kept_most = sizeof sent;
    frames_bytes = 0;
    return far_set_up(&scene, 0, &pipe);
}

/* Lets up to `bytes` of the frames come. */
static void take(size_t bytes) {
    size_t come = (size_t)(scene.pipe.next - frames) + scene.pipe.left;
    bytes = tutti_min_size(bytes, frames_bytes - come);
    scene.pipe.left += bytes;
    for (size_t turn = 0; turn <= bytes / scene.pipe.piece + 4; turn++) far_go_on(1);
}

static tutti_work *post(void *dst, size_t bytes, int64_t tag) {
    tutti_work *work = NULL;
    cr_assert_eq(tutti_work_create(&scene.comm, &work), TUTTI_OK);
    cr_assert_eq(tutti_p2p_recv(&scene.comm, dst, bytes, 1, 1, tag, work), TUTTI_OK);
    return work;
}

static void expect(tutti_work *work, tutti_status status, const uint8_t *data, size_t bytes) {
    cr_assert(tutti_work_done(work), "the message has not come");
    cr_assert_eq(work->status, status, "%s", tutti_status_name(work->status));
    cr_assert_eq(right_bytes(data, bytes), bytes, "byte %zu is wrong", right_bytes(data, bytes));
    tutti_work_free(work);
}

/* The last record that this process has sent; kind 0: none. */
static tutti_record last_sent(void) {
    tutti_record last = {.kind = 0};
    for (size_t at = 0; at < scene.pipe.kept_bytes;) {
        tutti_remote_frame frame;
        memcpy(&frame, sent + at, tutti_min_size(sizeof frame, scene.pipe.kept_bytes - at));
        if (frame.bytes > 0 && frame.transfer == 0) memcpy(&last, frame.lead, sizeof last);
        bool ring = frame.transfer == 0 && frame.bytes > 0;
        at += ring ? offsetof(tutti_remote_frame, lead) + frame.bytes : sizeof frame + frame.bytes;
    }
    return last;
}

/* Returns the id that the receiver gave the transfer. */
static uint64_t expect_clear(size_t from, size_t bytes) {
    tutti_record record = last_sent();
    cr_assert_eq(record.kind, TUTTI_RECORD_CLEAR, "kind %u", record.kind);
    cr_assert_eq(record.transfer, TRANSFER);
    cr_assert_eq(record.from, from, "from %llu", (unsigned long long)record.from);
    cr_assert_eq(record.bytes, bytes, "bytes %llu", (unsigned long long)record.bytes);
    return record.answer;
}

static void end(void) {
    const tutti_channels *channel = scene.remote.channels;
    cr_assert_not(channel->broken, "%s", channel->error);
    cr_assert_eq(channel->tail, channel->remote->came);
    cr_assert_eq(channel->came, channel->matched, "credit is lost");
    far_take_down(&scene);
}

/* --------------------------------------------------------------------------------------------- receiving */

Test(announced, the_rest_is_requested_before_the_first_part_has_come) {
    static const size_t pieces[] = {1, 7, 64, 1000, sizeof frames};
    for (size_t p = 0; p < sizeof pieces / sizeof *pieces; p++) {
        uint8_t *data = malloc(ALL); /* exact, for the address sanitizer */
        begin(pieces[p]);
        tutti_work *work = post(data, ALL, TAG);
        announce(FIRST, ALL);
        take(sizeof(tutti_remote_frame) + FIRST / 2);
        uint64_t answer = expect_clear(FIRST, ALL);
        cr_assert_geq(right_bytes(data, FIRST), FIRST / 2);
        stream(answer, FIRST, ALL);
        say_hello();
        take(frames_bytes);
        expect(work, TUTTI_OK, data, ALL);
        tutti_work *hello = post(data, 5, TAG + 1);
        expect(hello, TUTTI_OK, data, 0);
        cr_assert(memcmp(data, "hello", 5) == 0);
        end();
        free(data);
    }
}

Test(announced, a_receive_that_is_posted_later_gets_the_kept_part) {
    static uint8_t data[ALL];
    const tutti_channels *channel = begin(500);
    announce(FIRST, ALL);
    say_hello();
    take(frames_bytes);
    cr_assert_eq(last_sent().kind, 0);
    cr_assert_eq(channel->came - channel->matched, tutti_channel_cost(FIRST) + tutti_channel_cost(5));
    tutti_work *work = post(data, ALL, TAG);
    take(0);
    stream(expect_clear(FIRST, ALL), FIRST, ALL);
    take(frames_bytes);
    expect(work, TUTTI_OK, data, ALL);
    tutti_work_free(post(data, 5, TAG + 1));
    end();
}

/* Buffers that end before, at the end of, and after the first part; posted before and after it comes. */
Test(announced, a_receive_that_is_too_short_gets_what_it_holds) {
    static const size_t buffers[] = {0, 1, FIRST - 1, FIRST, FIRST + 1, ALL - 1};
    for (size_t i = 0; i < 2 * sizeof buffers / sizeof *buffers; i++) {
        size_t bytes = buffers[i / 2];
        uint8_t *data = malloc(bytes + 1);
        data[bytes] = 0xa5;
        begin(700);
        tutti_work *work = i % 2 == 0 ? post(data, bytes, TAG) : NULL;
        announce(FIRST, ALL);
        take(frames_bytes);
        if (work == NULL) work = post(data, bytes, TAG);
        take(0);
        if (bytes > FIRST) {
            stream(expect_clear(FIRST, bytes), FIRST, bytes);
            take(frames_bytes);
        } else {
            tutti_record record = last_sent();
            cr_assert(record.kind == TUTTI_RECORD_DONE && record.transfer == TRANSFER && record.bytes == 0);
        }
        expect(work, TUTTI_ERR_TRUNCATED, data, bytes);
        cr_assert_eq(data[bytes], 0xa5);
        end();
        free(data);
    }
}

Test(announced, a_receive_that_fails_meanwhile_gets_no_more_bytes) {
    static uint8_t data[ALL], was[ALL], hello[5];
    begin(500);
    tutti_work *work = post(data, ALL, TAG), *next = post(hello, sizeof hello, TAG + 1);
    announce(FIRST, ALL);
    take(sizeof(tutti_remote_frame) + FIRST / 2);
    uint64_t answer = expect_clear(FIRST, ALL);
    tutti_request *request = TAILQ_FIRST(&scene.remote.channels->receiving);
    cr_assert_not_null(request);
    tutti_lock(TUTTI_LOCK_P2P);
    tutti_request_fail(request, TUTTI_ERR_TIMEOUT, "for a test");
    tutti_p2p_unlock();
    expect(work, TUTTI_ERR_TIMEOUT, data, FIRST / 2);
    memcpy(was, data, sizeof was);
    stream(answer, FIRST, ALL);
    say_hello();
    take(frames_bytes);
    cr_assert(memcmp(was, data, sizeof was) == 0, "bytes were written after the receive had failed");
    expect(next, TUTTI_OK, hello, 0);
    cr_assert(memcmp(hello, "hello", 5) == 0);
    end();
}

Test(announced, a_message_of_an_unknown_communicator_is_refused) {
    begin(500);
    tutti_record record = announcement(FIRST, ALL);
    record.comm_id++;
    add_record(&record, tutti_align_up(FIRST, TUTTI_CACHE_LINE));
    take(frames_bytes);
    tutti_record answer = last_sent();
    cr_assert(answer.kind == TUTTI_RECORD_DONE && answer.transfer == TRANSFER && answer.bytes == 1);
    end();
}

Test(announced, a_message_that_no_receive_asks_for_is_refused_at_the_end) {
    const tutti_channels *channel = begin(500);
    announce(FIRST, ALL);
    take(frames_bytes);
    tutti_p2p_close(&scene.comm);
    tutti_record answer = last_sent();
    cr_assert(answer.kind == TUTTI_RECORD_DONE && answer.transfer == TRANSFER && answer.bytes == 1);
    cr_assert_eq(channel->came, channel->matched, "credit is lost");
    tutti_p2p_forget(&scene.remote);
}

Test(announced, a_part_that_is_longer_than_its_message_breaks_the_channel) {
    static uint8_t data[ALL];
    for (int posted = 0; posted < 2; posted++) {
        const tutti_channels *channel = begin(500);
        tutti_work *work = posted ? post(data, sizeof data, TAG) : NULL;
        announce(FIRST, FIRST - 1);
        take(frames_bytes);
        cr_assert(channel->broken && strstr(channel->error, "invalid record") != NULL, "%s", channel->error);
        cr_assert(work == NULL || !tutti_work_done(work)); /* the watchdog fails it */
        far_take_down(&scene);
        if (work != NULL) tutti_work_free(work);
    }
}

/* ----------------------------------------------------------------------------------------------- sending */

static tutti_work *start(const uint8_t *data, size_t bytes) {
    tutti_work *work = NULL;
    cr_assert_eq(tutti_work_create(&scene.comm, &work), TUTTI_OK);
    cr_assert_eq(tutti_p2p_send(&scene.comm, data, bytes, 1, TAG, work), TUTTI_OK);
    far_go_on(2);
    return work;
}

/* Until nothing more is credited; then bare announcements. The connection is used from the first message on. */
Test(announced, a_long_message_goes_with_its_announcement_as_long_as_there_is_credit) {
    static uint8_t data[LARGEST + 1];
    tutti_work *works[10];
    for (size_t i = 0; i < sizeof data; i++) data[i] = byte_at(i);
    tutti_channels *channel = begin(500);
    tutti_work_free(start(data, 8));
    for (int i = 0; i < 10; i++) {
        scene.pipe.kept_bytes = 0;
        works[i] = start(data, sizeof data);
        channel->tail_seen = channel->head; /* as if the other side had read it */
        tutti_record record = last_sent();
        cr_assert_eq(record.kind, TUTTI_RECORD_ANNOUNCE);
        cr_assert_eq(record.bytes, sizeof data);
        cr_assert_eq(record.payload_bytes, i < 7 ? LARGEST : 0, "%u bytes with announcement %d", record.payload_bytes,
                     i);
        cr_assert_eq(right_bytes(sent + sizeof(tutti_remote_frame), record.payload_bytes), record.payload_bytes);
        cr_assert_not(tutti_work_done(works[i]));
    }
    far_take_down(&scene);
    for (int i = 0; i < 10; i++) tutti_work_free(works[i]);
}

/* Two first parts do not fit into the ring; the third message is short. */
Test(announced, messages_do_not_wait_for_the_room_of_a_first_part) {
    static uint8_t data[LARGEST + 1];
    begin(500);
    tutti_work_free(start(data, 8));
    tutti_work *first = start(data, sizeof data);
    cr_assert_eq(last_sent().payload_bytes, LARGEST);
    tutti_work *second = start(data, sizeof data);
    tutti_record record = last_sent();
    cr_assert(record.kind == TUTTI_RECORD_ANNOUNCE && record.payload_bytes == 0, "%u bytes", record.payload_bytes);
    tutti_work *brief = start(data, 8);
    cr_assert(tutti_work_done(brief) && last_sent().kind == TUTTI_RECORD_EAGER);
    far_take_down(&scene);
    tutti_work_free(first);
    tutti_work_free(second);
    tutti_work_free(brief);
}

Test(announced, the_rest_follows_on_request) {
    static uint8_t data[3 * LARGEST];
    for (size_t i = 0; i < sizeof data; i++) data[i] = byte_at(i);
    tutti_channels *channel = begin(500);
    tutti_work_free(start(data, 8));
    tutti_work *work = start(data, sizeof data);
    uint64_t transfer = last_sent().transfer;
    scene.pipe.kept_bytes = 0;
    add_record(
        &(tutti_record){
            .kind = TUTTI_RECORD_CLEAR, .transfer = transfer, .answer = 9, .bytes = sizeof data, .from = LARGEST},
        0);
    take(frames_bytes);
    cr_assert(tutti_work_done(work) && work->status == TUTTI_OK, "%s", channel->error);
    size_t moved = LARGEST;
    for (size_t at = 0; at < scene.pipe.kept_bytes;) {
        tutti_remote_frame frame;
        memcpy(&frame, sent + at, sizeof frame);
        cr_assert(frame.transfer == 9 && frame.offset == moved);
        cr_assert(memcmp(sent + at + sizeof frame, data + moved, frame.bytes) == 0);
        at += sizeof frame + frame.bytes;
        moved += frame.bytes;
    }
    cr_assert_eq(moved, sizeof data);
    tutti_work_free(work);
    far_take_down(&scene);
}
