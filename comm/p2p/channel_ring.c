/*
 * Records in the rings of a channel: writing, reading, the bound of what is kept for the peer, and answers that wait
 * for room. See channel.h.
 *
 * A writer first clears the lines that follow what it writes, then writes the payload, and last publishes the
 * record in its first word. A reader polls that word, and no other, for a new record. Payloads above some size go
 * past the caches (kernels/copy.h).
 */
#include <stdlib.h>
#include <string.h>

#include "bootstrap/base/deadline.h"
#include "comm/base/cacheline.h"
#include "comm/p2p/p2p_state.h"
#include "comm/p2p/remote_channel.h"
#include "kernels/copy.h"

#define BACKLOG_BYTES (UINT64_C(1) << 20)
/* Parts are halves of the payload, within these bounds; LARGE_PART_BYTES for messages of more than LARGE_BYTES. */
#define LEAST_PART_BYTES ((size_t)2 << 10)
#define MOST_PART_BYTES  ((size_t)4 << 10)
#define LARGE_PART_BYTES ((size_t)8 << 10)
#define LARGE_BYTES      ((size_t)16 << 10)
/* Payloads from these sizes on go past the caches: in small rings between near caches, and between distant caches. */
#define STREAM_NEAR_BYTES ((size_t)16 << 10)
#define STREAM_FAR_BYTES  ((size_t)2 << 10)
#define FAR_LINE_NS       14  /* time to write a line of the ring: near 1 to 7, distant 27 */
#define FAR_LOAD_NS       100 /* time to load a line that the peer has written: near 20 to 110, distant 120 and more */
#define SLOW_LOOKS        10  /* slow loads in a row that show that the peer's caches are distant */
/* to another host: payloads of at least this size go from the caller's memory */
#define STRAIGHT_BYTES   ((size_t)1 << 10)
#define STREAMS_PER_LOOK 256 /* payloads between two checks of the distance */
#define LOOKS_FOR_PART   4096
#define PREFETCHED_BYTES ((size_t)512) /* of payloads of STREAM_FAR_BYTES and more; shorter ones whole */
/* Payloads from this size on are followed by a gap (TUTTI_GAP_BYTES). */
#define LEAST_GAP_PAYLOAD    ((size_t)256)
#define MOST_GAP_PAYLOAD_FAR ((size_t)4 << 10)

/* --------------------------------------------------------------------------------------------- writing */

static bool is_tiny(const tutti_record *record) {
    return record->kind == TUTTI_RECORD_EAGER && record->payload_bytes <= TUTTI_RECORD_TINY_BYTES;
}

/* Most records: one part and no gap. Each of them takes the short way through this file, since its instructions are in
 * the time of each message. */
static bool is_plain(const tutti_record *record) {
    return record->payload_bytes < LEAST_GAP_PAYLOAD;
}

/* Only messages come in parts: fragments of a stream follow each other anyway. */
static size_t part_bytes(const tutti_channels *channel, const tutti_record *record) {
    if (record->kind != TUTTI_RECORD_EAGER || channel->remote != NULL) return TUTTI_CHANNEL_RING_BYTES;
    size_t half = tutti_align_up(record->payload_bytes / 2, TUTTI_CACHE_LINE);
    size_t most = record->payload_bytes <= LARGE_BYTES ? MOST_PART_BYTES : LARGE_PART_BYTES;
    return tutti_min_size(tutti_max_size(half, LEAST_PART_BYTES), most);
}

static size_t part_count(const tutti_channels *channel, const tutti_record *record) {
    size_t bytes = part_bytes(channel, record);
    return record->payload_bytes <= bytes ? 1 : (record->payload_bytes - 1) / bytes + 1;
}

/* Returns true if this side leaves a gap after the record. A small ring has no room for gaps, and after payloads that
 * go past the caches gaps made messages slower. */
static bool leaves_gap(const tutti_channels *channel, const tutti_record *record) {
    size_t most = channel->distant ? MOST_GAP_PAYLOAD_FAR : SIZE_MAX;
    return !is_plain(record) && channel->own_bytes >= TUTTI_CHANNEL_LARGE_RING_BYTES && record->payload_bytes <= most;
}

/* Bytes of the ring that the record takes. */
static size_t span(const tutti_channels *channel, const tutti_record *record, bool gap) {
    if (is_tiny(record)) return sizeof *record;
    if (is_plain(record)) return sizeof *record + tutti_align_up(record->payload_bytes, TUTTI_CACHE_LINE);
    return part_count(channel, record) * sizeof *record + tutti_align_up(record->payload_bytes, TUTTI_CACHE_LINE) +
           (gap ? TUTTI_GAP_BYTES : 0);
}

static size_t own_span(const tutti_channels *channel, const tutti_record *record) {
    return span(channel, record, leaves_gap(channel, record));
}

/* Offset, from the start of the record, of the line in front of a part. */
static size_t part_offset(const tutti_channels *channel, const tutti_record *record, size_t part) {
    return part * (sizeof *record + part_bytes(channel, record));
}

/* Reads how far the peer has read our ring. Returns true if that changed; an impossible value breaks the channel. */
static bool look_at_tail(tutti_channels *channel) {
    uint64_t tail = atomic_load_explicit(&channel->theirs->tail, memory_order_acquire); /* pairs with _skip */
    if (tail - channel->tail_seen > channel->head - channel->tail_seen) {
        tutti_channel_break(channel, "it reports that it has read more than was sent");
        return false;
    }
    bool changed = tail != channel->tail_seen;
    channel->tail_seen = tail;
    return changed;
}

bool tutti_channel_has_room(tutti_channels *channel, const tutti_record *record, size_t reserve_bytes) {
    size_t wanted = own_span(channel, record) + TUTTI_CACHE_LINE + reserve_bytes; /* and the line that ends it */
    if (TUTTI_LIKELY(channel->head - channel->tail_seen + wanted <= channel->own_bytes)) return true;
    if (channel->theirs == NULL || channel->broken) return false;
    look_at_tail(channel);
    return !channel->broken && channel->head - channel->tail_seen + wanted <= channel->own_bytes;
}

/* Waits for all loads before it; the processor may read the clock before they end otherwise. */
static void finish_loads(void) {
#if defined(__x86_64__)
    __builtin_ia32_lfence();
#elif defined(__aarch64__)
    __asm__ volatile("dsb ld\n\tisb" ::: "memory");
#else
    __sync_synchronize();
#endif
}

/* The peer writes its tail when it takes a record. If it has done so since the last look, the line comes from its
 * cache. One fast look proves near caches. A slow one proves nothing: an interrupt or another rank's copies may have
 * caused it (up to a third of all looks between near cores). A process that only receives long messages writes no
 * payloads, so that note_distance tells it nothing. */
bool tutti_channel_is_distant(tutti_channels *channel) {
    if (channel->theirs == NULL || channel->broken) return false;
    finish_loads();
    uint64_t start = tutti_ticks();
    finish_loads();
    bool changed = look_at_tail(channel);
    finish_loads();
    int64_t ns = tutti_ticks_to_ns(tutti_ticks() - start);
    if (changed && ns < FAR_LOAD_NS) channel->slow_looks = 0;
    if (changed && ns >= FAR_LOAD_NS && channel->slow_looks < SLOW_LOOKS) channel->slow_looks++;
    return channel->slow_looks == SLOW_LOOKS;
}

/* Returns true if this payload goes past the caches. Taking the lines of a small ring back from the reader's caches
 * costs more than a write to memory: from some size on, and far sooner between distant caches, known by that cost. */
static bool streams(tutti_channels *channel, size_t payload_bytes) {
    if (channel->distant) return ++channel->streamed % STREAMS_PER_LOOK != 0;
    return channel->own_bytes < TUTTI_CHANNEL_LARGE_RING_BYTES && payload_bytes >= STREAM_NEAR_BYTES;
}

/* Two checks in a row decide: one may contain the time of another thread. */
static void note_distance(tutti_channels *channel, uint64_t ticks, size_t bytes) {
    bool distant = tutti_ticks_to_ns(ticks) * TUTTI_CACHE_LINE > FAR_LINE_NS * (int64_t)bytes;
    bool other = distant != channel->distant;
    if (other && (!distant || channel->doubted)) channel->distant = distant;
    channel->doubted = other && channel->distant != distant;
}

static void ring_write(const tutti_channels *channel, uint64_t at, const void *src, size_t bytes,
                       void (*copy)(void *, const void *, size_t)) {
    uint8_t *ring = channel->own->ring;
    size_t offset = at & (channel->own_bytes - 1);
    size_t first = tutti_min_size(bytes, channel->own_bytes - offset);
    copy(ring + offset, src, first);
    if (TUTTI_UNLIKELY(first < bytes)) copy(ring, (const char *)src + first, bytes - first);
}

static void copy_cached(void *dst, const void *src, size_t bytes) {
    memcpy(dst, src, bytes);
}

/* The record that begins at this position of our ring. */
static tutti_record *record_at(tutti_channels *channel, uint64_t at) {
    return (tutti_record *)(void *)(channel->own->ring + (at & (channel->own_bytes - 1)));
}

static _Atomic uint32_t *kind_at(tutti_channels *channel, uint64_t at) {
    return (_Atomic uint32_t *)&record_at(channel, at)->kind;
}

/* Position of the mark after a part of the record at this position: in front of the next part, or the next record. */
static uint64_t mark_after(const tutti_channels *channel, uint64_t at, const tutti_record *record, size_t part) {
    bool last = part + 1 == part_count(channel, record);
    return at + (last ? own_span(channel, record) : part_offset(channel, record, part + 1));
}

/* Clears the marks after all parts, prefetched together: one after the other, each would take the round trip. */
static void clear_marks(tutti_channels *channel, uint64_t at, const tutti_record *record) {
    size_t parts = part_count(channel, record);
    for (size_t i = 0; i < parts; i++) tutti_prefetch_to_write(record_at(channel, mark_after(channel, at, record, i)));
    for (size_t i = 0; i < parts; i++)
        atomic_store_explicit(kind_at(channel, mark_after(channel, at, record, i)), 0, memory_order_relaxed);
}

/* Writes the record's own line, at once and last: the reader polls it, and would take it back in between. */
static void write_line(tutti_channels *channel, uint64_t at, const tutti_record *record, const void *payload) {
    tutti_record *line = record_at(channel, at);
    uint64_t tiny[TUTTI_RECORD_TINY_BYTES / sizeof(uint64_t)];
    bool carries = is_tiny(record);
    if (carries && record->payload_bytes > 0) memcpy(tiny, payload, record->payload_bytes);
    /* Field by field: the record was only just written in this way, and wider loads would wait for those stores. */
    line->payload_bytes = record->payload_bytes;
    line->comm_id = record->comm_id;
    __atomic_store_n(&line->source, record->source, __ATOMIC_RELAXED); /* not both at once */
    __atomic_store_n(&line->destination, record->destination, __ATOMIC_RELAXED);
    line->tag = record->tag;
    if (carries) {
        if (record->payload_bytes > 0) memcpy(line->tiny, tiny, record->payload_bytes);
    } else {
        line->bytes = record->bytes;
        line->transfer = record->transfer;
        line->answer = record->answer;
        line->address = record->address;
    }
    uint32_t kind = record->kind | (leaves_gap(channel, record) ? TUTTI_RECORD_GAP : 0);
    atomic_store_explicit(kind_at(channel, at), kind, memory_order_release); /* pairs with _peek */
}

/* Writes a record with a payload of STREAM_FAR_BYTES or more, and publishes each part. */
static void write_parts(tutti_channels *channel, uint64_t at, const tutti_record *record, const char *payload) {
    size_t total = record->payload_bytes;
    bool past = streams(channel, total);
    uint64_t start = tutti_ticks();
    clear_marks(channel, at, record);
    for (size_t part = 0, done = 0; done < total; part++) {
        uint64_t line = at + part_offset(channel, record, part);
        size_t bytes = tutti_min_size(total - done, part_bytes(channel, record));
        ring_write(channel, line + sizeof *record, payload + done, bytes, past ? tutti_copy_stream : copy_cached);
        if (part == 0) write_line(channel, line, record, payload);
        else atomic_store_explicit(kind_at(channel, line), record->kind, memory_order_release); /* pairs with _copy */
        done += bytes;
    }
    if (!past) note_distance(channel, tutti_ticks() - start, total);
}

/* Fetches the lines of the next such record and the mark after it: they come back while no thread waits. */
static void fetch_next(tutti_channels *channel, const tutti_record *record, size_t span_bytes) {
    uint64_t next = channel->head; /* whose first line has just been written */
    if (!is_tiny(record) && record->payload_bytes > TUTTI_MOST_FETCHED_BYTES) return;
    size_t bytes = is_tiny(record) ? 0 : record->payload_bytes;
    for (size_t at = 0; at < bytes; at += TUTTI_CACHE_LINE)
        tutti_prefetch_to_write(record_at(channel, next + sizeof *record + at));
    tutti_prefetch_to_write(record_at(channel, next + span_bytes));
}

static void write_record(tutti_channels *channel, const tutti_record *record, const void *payload) {
    uint64_t at = channel->head;
    size_t span_bytes = own_span(channel, record);
    channel->head += span_bytes;
    if (record->payload_bytes >= STREAM_FAR_BYTES) {
        write_parts(channel, at, record, payload);
        tutti_channel_ring(channel);
        return;
    }
    atomic_store_explicit(kind_at(channel, channel->head), 0, memory_order_relaxed); /* the end mark comes first */
    if (!is_tiny(record) && record->payload_bytes > 0)
        ring_write(channel, at + sizeof *record, payload, record->payload_bytes, copy_cached);
    write_line(channel, at, record, payload);
    tutti_channel_ring(channel);
    fetch_next(channel, record, span_bytes);
}

/* To another host: only the system reads our ring, at once if it can. */
static void write_far(tutti_channels *channel, const tutti_record *record, const void *payload) {
    uint64_t at = channel->head;
    size_t bytes = is_tiny(record) ? 0 : record->payload_bytes;
    write_line(channel, at, record, payload);
    bool straight =
        bytes >= STRAIGHT_BYTES && tutti_remote_send_straight(channel, payload, bytes, own_span(channel, record));
    channel->head += own_span(channel, record);
    if (straight && tutti_remote_has_straight(channel)) return;
    if (bytes > 0) ring_write(channel, at + sizeof *record, payload, bytes, copy_cached);
    if (straight) tutti_remote_send_rest(channel, own_span(channel, record));
    tutti_remote_flush(channel);
}

void tutti_channel_write(tutti_channels *channel, const tutti_record *record, const void *payload) {
    if (TUTTI_UNLIKELY(channel->remote != NULL)) write_far(channel, record, payload);
    else write_record(channel, record, payload);
}

/* --------------------------------------------------------------------------------------------- reading */

const _Atomic uint32_t *tutti_channel_next(const tutti_channels *channel) {
    return (const _Atomic uint32_t *)(const void *)(channel->theirs->ring +
                                                    (channel->tail & (channel->their_bytes - 1)));
}

/* Prefetches the first lines, all at once: the processor's own prefetching begins after some lines. */
static void prefetch_payload(const char *payload, size_t bytes) {
    size_t most = bytes < STREAM_FAR_BYTES ? bytes : PREFETCHED_BYTES;
    for (size_t at = 0; at < most; at += TUTTI_CACHE_LINE) __builtin_prefetch(payload + at);
}

bool tutti_channel_peek(tutti_channels *channel, tutti_record *record_out) {
    const _Atomic uint32_t *next = tutti_channel_next(channel);
    /* Acquire: the record's line has been written; pairs with tutti_channel_write. */
    if (atomic_load_explicit(next, memory_order_acquire) == 0 || TUTTI_UNLIKELY(channel->broken)) return false;
    memcpy(record_out, (const void *)next, sizeof *record_out);
    bool gap = (record_out->kind & TUTTI_RECORD_GAP) != 0;
    record_out->kind &= ~TUTTI_RECORD_GAP;
    channel->next_bytes = span(channel, record_out, gap);
    if (!is_tiny(record_out)) prefetch_payload((const char *)next + sizeof *record_out, record_out->payload_bytes);
    size_t most = channel->remote != NULL ? tutti_remote_unread(channel) : channel->their_bytes - 1;
    if (record_out->kind == 0 || record_out->kind >= TUTTI_RECORD_END ||
        record_out->payload_bytes > TUTTI_CHANNEL_RING_BYTES || channel->next_bytes > most ||
        (record_out->kind == TUTTI_RECORD_ANNOUNCE && record_out->payload_bytes > record_out->bytes)) {
        tutti_channel_break(channel, "it sent an invalid record (kind %u, %u bytes)", record_out->kind,
                            record_out->payload_bytes);
        return false;
    }
    return true;
}

static uint32_t part_kind(const tutti_channels *channel, const tutti_record *record, size_t part) {
    uint64_t at = channel->tail + part_offset(channel, record, part);
    const void *line = channel->theirs->ring + (at & (channel->their_bytes - 1));
    return atomic_load_explicit((const _Atomic uint32_t *)line, memory_order_acquire); /* pairs with write_parts */
}

bool tutti_channel_is_whole(const tutti_channels *channel, const tutti_record *record) {
    size_t parts = is_tiny(record) ? 1 : part_count(channel, record);
    return parts == 1 || part_kind(channel, record, parts - 1) != 0;
}

static bool wait_for_part(const tutti_channels *channel, const tutti_record *record, size_t part) {
    for (int i = 0; i < LOOKS_FOR_PART; i++) {
        if (part_kind(channel, record, part) != 0) return true;
        tutti_relax();
    }
    return false;
}

static void ring_read(const tutti_channels *channel, uint64_t at, char *dst, size_t bytes,
                      void (*copy)(void *, const void *, size_t)) {
    const uint8_t *ring = channel->theirs->ring;
    size_t offset = at & (channel->their_bytes - 1);
    size_t first = tutti_min_size(bytes, channel->their_bytes - offset);
    copy(dst, ring + offset, first);
    if (TUTTI_UNLIKELY(first < bytes)) copy(dst + first, ring, bytes - first);
}

bool tutti_channel_copy(const tutti_channels *channel, const tutti_record *record, void *dst, size_t bytes) {
    if (is_tiny(record)) {
        /* From the ring: the copy in `record` was only just stored, and wider loads would wait for those stores. */
        const tutti_record *line = (const tutti_record *)(const void *)tutti_channel_next(channel);
        if (bytes > 0) memcpy(dst, line->tiny, bytes);
        return true;
    }
    if (is_plain(record)) {
        ring_read(channel, channel->tail + sizeof *record, dst, bytes, copy_cached);
        return true;
    }
    for (size_t part = 0, done = 0; done < bytes; part++) {
        size_t here = tutti_min_size(bytes - done, part_bytes(channel, record));
        if (part > 0 && !wait_for_part(channel, record, part)) return false;
        uint64_t line = channel->tail + part_offset(channel, record, part);
        ring_read(channel, line + sizeof *record, (char *)dst + done, here, copy_cached);
        done += here;
    }
    return true;
}

void tutti_channel_copy_past(const tutti_channels *channel, const tutti_record *fragment, void *dst) {
    ring_read(channel, channel->tail + sizeof *fragment, dst, fragment->payload_bytes, tutti_copy_stream);
}

void tutti_channel_pass(tutti_channels *channel, size_t bytes) {
    channel->tail += bytes;
    /* Release: the bytes have been read before the peer may overwrite them; pairs with tutti_channel_has_room. */
    atomic_store_explicit(&channel->own->tail, channel->tail, memory_order_release);
}

void tutti_channel_skip(tutti_channels *channel, const tutti_record *record) {
    tutti_channel_pass(channel, channel->next_bytes);
    /* Writers hardly ever wait for the room of one line; writers that wait for credit are woken below. */
    if (!is_tiny(record) && channel->remote == NULL) tutti_channel_ring(channel);
}

/* --------------------------------------------------------------------------------------------- backlog */

bool tutti_channel_has_credit(tutti_channels *channel, uint64_t bytes) {
    uint64_t sent = channel->sent + tutti_channel_cost(bytes);
    if (TUTTI_LIKELY(sent - channel->matched_seen <= BACKLOG_BYTES)) return true;
    if (channel->theirs == NULL) return false;
    channel->matched_seen =
        atomic_load_explicit(&channel->theirs->matched, memory_order_relaxed); /* a hint: any order */
    return sent - channel->matched_seen <= BACKLOG_BYTES;
}

void tutti_channel_give_credit(tutti_channels *channel, uint64_t bytes) {
    channel->matched += tutti_channel_cost(bytes);
    atomic_store_explicit(&channel->own->matched, channel->matched, memory_order_relaxed); /* a hint: any order */
    if (channel->remote == NULL) tutti_channel_ring(channel);
}

/* --------------------------------------------------------------------------------------------- answers */

void tutti_channel_answer(tutti_channels *channel, const tutti_record *record) {
    if (STAILQ_EMPTY(&channel->notes) && tutti_channel_has_room(channel, record, 0)) {
        tutti_channel_write(channel, record, NULL);
        return;
    }
    tutti_note *note = malloc(sizeof *note);
    if (note == NULL) {
        tutti_channel_break(channel, "no memory for an answer");
        return;
    }
    note->record = *record;
    STAILQ_INSERT_TAIL(&channel->notes, note, link);
    atomic_fetch_add_explicit(&tutti_p2p.pending, 1, memory_order_relaxed);
}

void tutti_channel_notify(tutti_channels *channel, const tutti_record *record, const char *text) {
    tutti_record bare = *record;
    bare.payload_bytes = 0;
    if (STAILQ_EMPTY(&channel->notes) && tutti_channel_has_room(channel, record, 0))
        tutti_channel_write(channel, record, text);
    else tutti_channel_answer(channel, &bare);
}

void tutti_channel_send_notes(tutti_channels *channel) {
    tutti_note *note;
    while ((note = STAILQ_FIRST(&channel->notes)) != NULL && tutti_channel_has_room(channel, &note->record, 0)) {
        tutti_channel_write(channel, &note->record, NULL);
        STAILQ_REMOVE_HEAD(&channel->notes, link);
        atomic_fetch_sub_explicit(&tutti_p2p.pending, 1, memory_order_relaxed);
        free(note);
    }
}

void tutti_channel_done(tutti_channels *channel, uint64_t transfer, bool taken) {
    tutti_channel_answer(channel,
                         &(tutti_record){.kind = TUTTI_RECORD_DONE, .transfer = transfer, .bytes = taken ? 0 : 1});
}
