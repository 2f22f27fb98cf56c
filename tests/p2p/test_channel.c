/*
 * The internals of channels between processes: rings that wrap, room, credit, and peers that write garbage.
 *
 * Two made-up peers stand in for another process. The mirror is a second mapping of our own heap under our own id, so
 * that what we write comes back to us. The stranger's heap is plain memory that the test fills.
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "comm/p2p/channel.h"
#include "comm/p2p/p2p.h"
#include "tests/support/ranks.h"

static tutti_peer *self;

static void init(void) {
    cr_assert(tutti_peer_self(&self) == TUTTI_OK, "%s", tutti_last_error());
}

/* ------------------------------------------------------------------------------------------- the mirror */

static tutti_peer mirror;

static tutti_channels *open_mirror(void) {
    init();
    void *base = mmap(NULL, self->bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, tutti_heap_fd(), 0);
    cr_assert(base != MAP_FAILED);
    mirror = *self;
    mirror.self = false;
    mirror.base = base;
    tutti_channels *channel;
    cr_assert(tutti_channel_open(&mirror, &channel) == TUTTI_OK);
    cr_assert(tutti_channel_make(channel) == TUTTI_OK, "%s", tutti_last_error());
    cr_assert(tutti_channel_find(channel), "the entry in the directory is not found");
    return channel;
}

static void fill(uint8_t *bytes, size_t count, unsigned seed) {
    for (size_t i = 0; i < count; i++) bytes[i] = (uint8_t)(i * 7 + seed);
}

static tutti_record eager(size_t bytes, int64_t tag) {
    return (tutti_record){.kind = TUTTI_RECORD_EAGER, .payload_bytes = (uint32_t)bytes, .comm_id = 9, .tag = tag};
}

static void write_and_read(tutti_channels *channel, size_t bytes, unsigned seed) {
    static uint8_t sent[TUTTI_CHANNEL_RING_BYTES], got[TUTTI_CHANNEL_RING_BYTES]; /* the largest payload */
    tutti_record out = eager(bytes, (int64_t)seed), in;
    fill(sent, bytes, seed);
    cr_assert(tutti_channel_has_room(channel, &out, 0));
    tutti_channel_write(channel, &out, sent);
    cr_assert(tutti_channel_peek(channel, &in), "%zu bytes do not come back: %s", bytes, channel->error);
    cr_assert(in.payload_bytes == bytes && in.tag == (int64_t)seed && in.comm_id == 9);
    tutti_channel_copy(channel, &in, got, bytes);
    tutti_channel_skip(channel, &in);
    cr_assert(memcmp(sent, got, bytes) == 0, "%zu bytes come back changed", bytes);
}

Test(channel, records_of_every_length_wrap_at_the_end_of_the_ring) {
    tutti_channels *channel = open_mirror();
    /* around the sizes from which payloads get lines of their own, a gap, and parts */
    const size_t lengths[] = {0, 1, 32, 33, 64, 65, 255, 256, 2047, 2048, 8191, 65536, TUTTI_CHANNEL_RING_BYTES - 8192};
    for (unsigned round = 0; round < 160; round++) {
        for (size_t i = 0; i < TUTTI_COUNT_OF(lengths); i++) {
            channel->distant = round % 2 != 0; /* then long payloads are followed by no gap */
            write_and_read(channel, lengths[i], round + (unsigned)i);
        }
    }
    tutti_channel_close(channel);
}

/* The writer stops in the middle of a message: the reader takes nothing, and all of it once the writer goes on. */
Test(channel, a_message_is_whole_once_its_last_part_is_there) {
    enum { BYTES = 20000, LAST = 2 * (64 + 8192) }; /* the line before the last of three parts */
    tutti_channels *channel = open_mirror();
    static uint8_t sent[BYTES], got[BYTES];
    tutti_record out = eager(BYTES, 7), in;
    fill(sent, BYTES, 3);
    tutti_channel_write(channel, &out, sent);
    uint32_t kind, none = 0;
    memcpy(&kind, channel->own->ring + LAST, sizeof kind);
    cr_assert(kind == TUTTI_RECORD_EAGER, "the last part is not where it should be");
    memcpy(channel->own->ring + LAST, &none, sizeof none);
    cr_assert(tutti_channel_peek(channel, &in) && !tutti_channel_is_whole(channel, &in));
    cr_assert(!tutti_channel_copy(channel, &in, got, BYTES), "a part that is not there was copied");
    cr_assert(tutti_channel_copy(channel, &in, got, 2 * 8192) && memcmp(sent, got, 2 * 8192) == 0);
    memcpy(channel->own->ring + LAST, &kind, sizeof kind);
    cr_assert(tutti_channel_is_whole(channel, &in) && tutti_channel_copy(channel, &in, got, BYTES));
    cr_assert(memcmp(sent, got, BYTES) == 0);
    tutti_channel_skip(channel, &in);
    write_and_read(channel, 100, 4);
    tutti_channel_close(channel);
}

Test(channel, a_full_ring_has_no_room_until_it_is_read) {
    tutti_channels *channel = open_mirror();
    tutti_record record = eager(4000, 1), in;
    static uint8_t bytes[4000];
    int written = 0;
    for (; tutti_channel_has_room(channel, &record, TUTTI_CHANNEL_RESERVE_BYTES); written++)
        tutti_channel_write(channel, &record, bytes);
    size_t room = channel->own_bytes - TUTTI_CHANNEL_RESERVE_BYTES - 64;
    size_t gap = channel->own_bytes < TUTTI_CHANNEL_LARGE_RING_BYTES ? 0 : TUTTI_GAP_BYTES;
    cr_assert(written == (int)(room / (4032 + 2 * 64 + gap)), "%d records of two parts fit", written);
    tutti_record answer = {.kind = TUTTI_RECORD_DONE};
    cr_assert(tutti_channel_has_room(channel, &answer, 0), "the reserve is for answers");
    cr_assert(tutti_channel_peek(channel, &in));
    tutti_channel_skip(channel, &in);
    cr_assert(tutti_channel_has_room(channel, &record, TUTTI_CHANNEL_RESERVE_BYTES));
    for (written--; written > 0; written--) {
        cr_assert(tutti_channel_peek(channel, &in));
        tutti_channel_skip(channel, &in);
    }
    cr_assert(!tutti_channel_peek(channel, &in), "more was read than was written");
    tutti_channel_close(channel);
}

/* The mirror's caches are our own: a load of a tail that has changed is fast, unless an interrupt comes in between. */
Test(channel, one_fast_look_at_a_changed_tail_proves_near_caches) {
    tutti_channels *channel = open_mirror();
    const int before = 3;
    channel->slow_looks = before;
    cr_assert(!tutti_channel_is_distant(channel) && channel->slow_looks == before, "nothing has changed");
    for (int i = 0; i < 20000 && channel->slow_looks > 0; i++) {
        write_and_read(channel, 100, (unsigned)i);
        tutti_channel_is_distant(channel);
    }
    cr_assert(channel->slow_looks == 0, "no look of 20000 was fast");
    channel->own->tail += 1 << 20; /* more than was sent */
    cr_assert(!tutti_channel_is_distant(channel) && channel->broken, "an impossible tail is accepted");
    tutti_channel_close(channel);
}

Test(channel, credit_ends_after_a_bounded_backlog_and_comes_back) {
    tutti_channels *channel = open_mirror();
    uint64_t sent = 0;
    for (; tutti_channel_has_credit(channel, 8192); sent++) channel->sent += tutti_channel_cost(8192);
    cr_assert(sent > 0 && sent * 8192 <= (1 << 20), "%llu messages", (unsigned long long)sent);
    tutti_channel_give_credit(channel, 8192);
    cr_assert(tutti_channel_has_credit(channel, 8192));
    tutti_channel_close(channel);
}

Test(channel, a_channel_that_was_closed_goes_on_where_it_stopped) {
    tutti_channels *channel = open_mirror();
    static uint8_t bytes[1000];
    tutti_record record = eager(sizeof bytes, 5), in;
    for (int i = 0; i < 3; i++) write_and_read(channel, 1000, 1);
    tutti_channel_write(channel, &record, bytes);
    tutti_channel_block *block = channel->own;
    tutti_channel_close(channel);
    cr_assert(tutti_channel_open(&mirror, &channel) == TUTTI_OK);
    cr_assert(channel->own == block && tutti_channel_find(channel));
    cr_assert(tutti_channel_peek(channel, &in) && in.tag == 5, "what was under way is lost");
    tutti_channel_skip(channel, &in);
    write_and_read(channel, 1000, 2);
    tutti_channel_close(channel);
}

/* ----------------------------------------------------------------------------------------- the stranger */

#define STRANGE_HEAP_BYTES ((size_t)1 << 20)
#define BLOCK_OFFSET       TUTTI_HEAP_DIRECTORY_BYTES

static tutti_peer stranger;

static tutti_channel_block *strange_block(void) {
    return (tutti_channel_block *)(stranger.base + BLOCK_OFFSET);
}

/* Creates a peer whose directory has an entry for us that names `offset`. */
static void make_stranger(uint64_t offset) {
    init();
    stranger = *self;
    stranger.self = false;
    static uint32_t met; /* a different one each time */
    met++;
    memcpy(stranger.id, &met, sizeof met);
    stranger.bytes = STRANGE_HEAP_BYTES;
    stranger.remote_base = UINT64_C(0x10000000);
    stranger.base = mmap(NULL, STRANGE_HEAP_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    cr_assert(stranger.base != MAP_FAILED);
    tutti_channel_directory *directory = (tutti_channel_directory *)stranger.base;
    memcpy(directory->entries[0].id, self->id, sizeof self->id);
    atomic_store(&directory->entries[0].offset, offset);
    atomic_store(&directory->count, 1);
    atomic_store(&directory->generation, 1);
    strange_block()->magic = TUTTI_CHANNEL_MAGIC;
    strange_block()->ring_bytes = TUTTI_CHANNEL_RING_BYTES;
    atomic_fetch_add(&((tutti_channel_directory *)tutti_heap_base())->callers, 1);
}

static tutti_channels *open_stranger(uint64_t offset) {
    tutti_channels *channel;
    make_stranger(offset);
    cr_assert(tutti_channel_open(&stranger, &channel) == TUTTI_OK);
    return channel;
}

Test(channel, a_block_outside_of_the_heap_is_refused) {
    const uint64_t offsets[] = {
        1, 63, STRANGE_HEAP_BYTES, STRANGE_HEAP_BYTES - 64, UINT64_MAX - 63, UINT64_MAX / 64 * 64};
    for (size_t i = 0; i < TUTTI_COUNT_OF(offsets); i++) {
        tutti_channels *channel = open_stranger(offsets[i]);
        cr_assert(!tutti_channel_find(channel) && channel->broken, "offset %llu", (unsigned long long)offsets[i]);
        tutti_channel_close(channel);
    }
}

Test(channel, a_block_of_another_kind_is_refused) {
    tutti_channels *channel = open_stranger(BLOCK_OFFSET);
    strange_block()->ring_bytes = 2 * TUTTI_CHANNEL_RING_BYTES;
    cr_assert(!tutti_channel_find(channel) && channel->broken);
    tutti_channel_close(channel);
}

Test(channel, a_directory_with_a_count_beyond_its_end_is_read_to_its_end_only) {
    tutti_channels *channel = open_stranger(0);
    atomic_store(&((tutti_channel_directory *)stranger.base)->count, UINT64_MAX);
    cr_assert(!tutti_channel_find(channel) && !channel->broken);
    tutti_channel_close(channel);
}

Test(channel, an_impossible_position_breaks_it) {
    tutti_channels *channel = open_stranger(BLOCK_OFFSET);
    tutti_record record = eager(60000, 1);
    static uint8_t bytes[60000];
    cr_assert(tutti_channel_find(channel));
    atomic_store(&strange_block()->tail, 64);
    while (tutti_channel_has_room(channel, &record, 0)) tutti_channel_write(channel, &record, bytes);
    cr_assert(!channel->broken, "64 bytes could have been read");
    atomic_store(&strange_block()->tail, UINT64_C(1) << 40);
    cr_assert(!tutti_channel_has_room(channel, &record, 0) && channel->broken);
    tutti_channel_close(channel);
}

/* ---------------------------------------------------------------------------- the stranger as a member */

static tutti_page pages[2];
static tutti_member members[2];
static tutti_comm comm;
static uint64_t said; /* bytes in the stranger's ring */

/* A communicator of this process (rank 0) and the stranger (rank 1), with the fields that point to point reads. */
static void open_comm(void) {
    said = 0;
    make_stranger(BLOCK_OFFSET);
    memset(&comm, 0, sizeof comm);
    memset(pages, 0, sizeof pages);
    comm.nranks = 2;
    comm.id = 77;
    comm.timeout_ms = 60000;
    strcpy(comm.name, "strange");
    comm.members = members;
    comm.page = &pages[0];
    members[0] = (tutti_member){.process = self, .page = &pages[0]};
    members[1] = (tutti_member){.process = &stranger, .page = &pages[1]};
    atomic_store(&comm.references, 1 << 20); /* lives as long as the test */
    for (int i = 0; i < 2; i++) atomic_store(&pages[i].comm_id, comm.id);
    cr_assert(tutti_p2p_open(&comm) == TUTTI_OK, "%s", tutti_last_error());
}

static void close_comm(void) {
    tutti_p2p_close(&comm);
    atomic_store(&stranger.dead, true); /* so that its block is reused */
    tutti_p2p_forget(&stranger);
    munmap(stranger.base, STRANGE_HEAP_BYTES);
    cr_assert(!tutti_p2p_pending(), "something is left behind");
}

static tutti_work *post(void *dst, size_t bytes) {
    tutti_work *work;
    cr_assert(tutti_work_create(&comm, &work) == TUTTI_OK);
    cr_assert(tutti_p2p_recv(&comm, dst, bytes, 1, 1, TUTTI_ANY_TAG, work) == TUTTI_OK);
    return work;
}

static void say(const tutti_record *record) {
    uint8_t *ring = strange_block()->ring;
    memset(ring + (said + sizeof *record) % TUTTI_CHANNEL_RING_BYTES, 0, sizeof(uint32_t));
    memcpy(ring + said % TUTTI_CHANNEL_RING_BYTES, record, sizeof *record);
    said += sizeof *record;
}

/* Drives until the work has ended, which the check for broken channels may notice a moment later. */
static tutti_status finish(tutti_work *work) {
    for (int i = 0; i < 5000 && !tutti_work_done(work); i++) {
        tutti_p2p_progress();
        if (!tutti_work_done(work)) usleep(1000);
    }
    cr_assert(tutti_work_done(work), "the work does not end");
    tutti_status status = work->status;
    tutti_work_free(work);
    return status;
}

Test(channel, a_valid_message_arrives) {
    char got[8] = "";
    open_comm();
    tutti_work *work = post(got, sizeof got);
    tutti_record record = eager(5, 3);
    record.comm_id = comm.id;
    record.source = 1;
    memcpy(record.tiny, "hello", 5);
    say(&record);
    cr_assert(finish(work) == TUTTI_OK && memcmp(got, "hello", 5) == 0);
    close_comm();
}

Test(channel, impossible_records_fail_receives_from_that_peer) {
    const tutti_record lies[] = {
        {.kind = TUTTI_RECORD_END},
        {.kind = 1000},
        {.kind = TUTTI_RECORD_FRAGMENT, .payload_bytes = UINT32_MAX},
        {.kind = TUTTI_RECORD_FRAGMENT, .payload_bytes = TUTTI_CHANNEL_RING_BYTES - 64},
        {.kind = TUTTI_RECORD_FRAGMENT | TUTTI_RECORD_GAP, .payload_bytes = TUTTI_CHANNEL_RING_BYTES - TUTTI_GAP_BYTES},
        {.kind = TUTTI_RECORD_EAGER, .comm_id = 77, .source = 0}, /* in our name */
        {.kind = TUTTI_RECORD_EAGER, .comm_id = 77, .source = -1},
        {.kind = TUTTI_RECORD_ANNOUNCE, .comm_id = 77, .source = 1 << 30, .bytes = 1 << 20},
    };
    for (size_t i = 0; i < TUTTI_COUNT_OF(lies); i++) {
        char got[8];
        open_comm();
        tutti_work *work = post(got, sizeof got);
        say(&lies[i]);
        tutti_status status = finish(work);
        cr_assert(status == TUTTI_ERR_DATA, "record %zu gave '%s'", i, tutti_status_name(status));
        cr_assert(atomic_load(&pages[0].state) == TUTTI_PAGE_BROKEN);
        close_comm();
    }
}

/* Announced bytes that cannot be read are requested; a stream that does not match the request is an error. */
Test(channel, a_stream_that_does_not_fit_breaks_it) {
    static char got[1000];
    open_comm();
    tutti_work *work = post(got, sizeof got);
    say(&(tutti_record){
        .kind = TUTTI_RECORD_ANNOUNCE, .comm_id = 77, .source = 1, .bytes = 1000, .transfer = 4, .address = 1});
    tutti_p2p_progress();
    tutti_record clear;
    memcpy(&clear, stranger.channels->own->ring, sizeof clear);
    cr_assert(clear.kind == TUTTI_RECORD_CLEAR && clear.transfer == 4 && clear.bytes == 1000, "kind %u", clear.kind);
    say(&(tutti_record){.kind = TUTTI_RECORD_FRAGMENT, .transfer = clear.answer, .bytes = 8});
    cr_assert(finish(work) == TUTTI_ERR_DATA);
    close_comm();
}

/* Whatever the stranger writes, this process goes on: random records, half of them nearly right. */
Test(channel, random_records_do_no_harm, .timeout = 100) {
    unsigned seed = (unsigned)getpid();
    fprintf(stderr, "seed %u\n", seed);
    srandom(seed);
    for (int round = 0; round < 300; round++) {
        static char got[20000];
        open_comm();
        tutti_work *work = post(got, 1 + (size_t)random() % sizeof got);
        for (int i = 0; i < 200; i++) {
            uint64_t *words = (uint64_t *)strange_block()->ring;
            for (int word = 0; word < 64; word++)
                words[random() % (TUTTI_CHANNEL_RING_BYTES / 8)] = (uint64_t)random() * 77;
            tutti_record record = {.kind = 1 + (uint32_t)random() % 5,
                                   .payload_bytes = random() % 4 == 0 ? (uint32_t)random() : 0,
                                   .comm_id = random() % 8 != 0 ? comm.id : (uint64_t)random(),
                                   .source = random() % 16 != 0,
                                   .tag = random() % 4 - 1,
                                   .bytes = random() % 2 != 0 ? 0 : (uint64_t)random(),
                                   .transfer = (uint64_t)random() % 4,
                                   .address = random() % 2 != 0 ? stranger.remote_base : (uint64_t)random()};
            say(&record);
            tutti_p2p_progress();
        }
        close_comm();
        tutti_work_free(work);
    }
}

/* --------------------------------------------------------------------------------------------- streams */

/* Large messages both ways at once, several at a time, where no process may read the other's memory. */
static tutti_status stream(ranks_context *context) {
    enum { MESSAGES = 4, COUNT = 300007 };
    int peer = 1 - context->rank;
    int *out = malloc(MESSAGES * COUNT * sizeof *out), *in = malloc(MESSAGES * COUNT * sizeof *in), word = peer;
    tutti_work *works[2 * MESSAGES];
    for (int i = 0; i < MESSAGES * COUNT; i++) out[i] = i * 3 + context->rank;
    for (int i = 0; i < MESSAGES; i++) {
        TUTTI_TRY(
            tutti_recv(context->comm, in + i * COUNT, COUNT, TUTTI_INT32, peer, i, &TUTTI_OPTIONS(.work = &works[i])));
        TUTTI_TRY(tutti_send(context->comm, out + i * COUNT, COUNT, TUTTI_INT32, peer, i,
                             &TUTTI_OPTIONS(.work = &works[MESSAGES + i])));
    }
    TUTTI_TRY(tutti_send(context->comm, &context->rank, 1, TUTTI_INT32, peer, 99, NULL));
    TUTTI_TRY(tutti_recv(context->comm, &word, 1, TUTTI_INT32, peer, 99, NULL)); /* overtakes */
    for (int i = 0; i < 2 * MESSAGES; i++) {
        TUTTI_TRY(tutti_work_wait(works[i], -1));
        tutti_work_free(works[i]);
    }
    RANKS_CHECK(word == peer, "the small message is %d", word);
    for (int i = 0; i < MESSAGES * COUNT; i++)
        RANKS_CHECK(in[i] == i * 3 + peer, "element %d is %d, not %d", i, in[i], i * 3 + peer);
    int readable = atomic_load(&context->comm->members[peer].process->readable);
    RANKS_CHECK(readable == TUTTI_PEER_UNREADABLE, "the bytes were read, not streamed");
    free(out);
    free(in);
    return TUTTI_OK;
}

Test(channel, large_messages_stream_where_memory_cannot_be_read) {
    if (!ranks_have_processes()) return; /* threads copy straight */
    const char *const refuse[] = {"TUTTI_FAULT=peer_read:0:1000", NULL};
    const char *failure = ranks_run(&(ranks_options){.nranks = 2, .environment = refuse}, stream);
    cr_assert(failure == NULL, "%s", failure);
}
