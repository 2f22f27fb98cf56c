/*
 * Streams and events in the table of the GPUs (kernels/device.h).
 */
#include <string.h>
#include <unistd.h>

#include "tests/support/gpu/on_gpu.h"

TestSuite(device_streams, .timeout = 120);

/* A counter that the host stores to and streams wait for. */
typedef struct counter {
    _Atomic uint64_t *host;
    void *device;
} counter;

static counter counter_create(void) {
    void *host = NULL, *device = NULL;
    GOOD(gpu->alloc_pinned(4096, &host, &device));
    memset(host, 0, 4096);
    return (counter){host, device};
}

static void counter_set(counter c, uint64_t value) {
    atomic_store_explicit(c.host, value, memory_order_release);
}

static uint64_t counter_get(counter c) {
    return atomic_load_explicit(c.host, memory_order_acquire);
}

Test(device_streams, a_stream_waits_for_a_value_and_goes_on_at_that_or_a_higher_one) {
    open_device();
    counter gate = counter_create(), passed = counter_create();
    tutti_event_handle event = NULL;
    GOOD(gpu->event_create(&event));
    GOOD(gpu->event_query(event)); /* never recorded: nothing to wait for */
    GOOD(gpu->wait_value(stream, gate.device, 5));
    GOOD(gpu->write_value(stream, passed.device, 1));
    GOOD(gpu->event_record(event, stream));
    counter_set(gate, 4);
    usleep(50000);
    cr_assert_eq(gpu->event_query(event), TUTTI_NOT_YET);
    cr_assert_eq(counter_get(passed), 0);
    counter_set(gate, INT64_MAX);
    GOOD(gpu->stream_sync(stream));
    GOOD(gpu->event_query(event));
    cr_assert_eq(counter_get(passed), 1);
    GOOD(gpu->event_destroy(event));
    GOOD(gpu->stream_destroy(stream));
}

Test(device_streams, a_stream_waits_for_several_values_at_once) {
    open_device();
    counter gates[3] = {counter_create(), counter_create(), counter_create()}, passed = counter_create();
    counter begun = counter_create();
    tutti_device_value values[] = {{begun.device, 5, .waits = false},
                                   {gates[0].device, 9, .waits = true},
                                   {gates[1].device, 9, .waits = true},
                                   {gates[2].device, 9, .waits = true},
                                   {passed.device, 1, .waits = false}};
    GOOD(gpu->use_values(stream, values, 0));
    GOOD(gpu->use_values(stream, values, 5));
    memset(values, 0, sizeof values); /* the call has copied the values */
    counter_set(gates[2], 9);
    counter_set(gates[0], 10);
    counter_set(gates[1], 8);
    usleep(20000);
    cr_assert_eq(counter_get(passed), 0);
    cr_assert_eq(counter_get(begun), 5);
    counter_set(gates[1], 9);
    GOOD(gpu->stream_sync(stream));
    cr_assert_eq(counter_get(passed), 1);
    GOOD(gpu->stream_destroy(stream));
}

Test(device_streams, an_event_stands_for_its_last_record_at_the_time_of_the_wait) {
    tutti_stream other = NULL;
    tutti_event_handle event = NULL;
    open_device();
    counter gate = counter_create(), passed = counter_create();
    GOOD(gpu->stream_create(&other));
    GOOD(gpu->event_create(&event));
    GOOD(gpu->wait_value(stream, gate.device, 1));
    GOOD(gpu->event_record(event, stream));
    GOOD(gpu->stream_wait_event(other, event));
    GOOD(gpu->write_value(other, passed.device, 7));
    GOOD(gpu->wait_value(stream, gate.device, 2));
    GOOD(gpu->event_record(event, stream)); /* the other stream does not wait for this record */
    usleep(20000);
    cr_assert_eq(counter_get(passed), 0);
    counter_set(gate, 1);
    GOOD(gpu->stream_sync(other));
    cr_assert_eq(counter_get(passed), 7);
    cr_assert_eq(gpu->event_query(event), TUTTI_NOT_YET);
    counter_set(gate, 2);
    GOOD(gpu->stream_sync(stream));
    GOOD(gpu->event_query(event));
    GOOD(gpu->event_destroy(event));
    GOOD(gpu->stream_destroy(other));
}

Test(device_streams, tasks_of_a_stream_run_in_order) {
    enum { ROUNDS = 50 };
    open_device();
    counter turn = counter_create();
    int *memory = alloc(sizeof *memory), *out = NULL;
    GOOD(gpu->alloc_pinned(ROUNDS * sizeof *out, (void **)&out, NULL));
    for (int i = 0; i < ROUNDS; i++) {
        GOOD(gpu->fill(memory, i + 1, sizeof *memory, stream));
        GOOD(gpu->copy(out + i, memory, sizeof *memory, stream));
        GOOD(gpu->write_value(stream, turn.device, (uint64_t)i + 1));
    }
    GOOD(gpu->stream_sync(stream));
    cr_assert_eq(counter_get(turn), ROUNDS);
    for (int i = 0; i < ROUNDS; i++) cr_assert_eq(out[i], (i + 1) * 0x01010101);
    bool captures = true;
    GOOD(gpu->stream_captures(stream, &captures));
    cr_assert_not(captures);
    GOOD(gpu->stream_captures(NULL, &captures));
    cr_assert_not(captures);
}

Test(device_streams, two_streams_of_two_gpus_meet_on_one_value) {
    int count = 0;
    tutti_stream other = NULL;
    open_device();
    GOOD(gpu->count(&count));
    counter there = counter_create(), back = counter_create();
    GOOD(gpu->use(count - 1));
    GOOD(gpu->stream_create(&other));
    for (uint64_t round = 1; round <= 20; round++) {
        GOOD(gpu->wait_value(other, there.device, round));
        GOOD(gpu->write_value(other, back.device, round));
        GOOD(gpu->use(0));
        GOOD(gpu->write_value(stream, there.device, round));
        GOOD(gpu->wait_value(stream, back.device, round));
        GOOD(gpu->use(count - 1));
    }
    GOOD(gpu->use(0));
    GOOD(gpu->stream_sync(stream));
    cr_assert_eq(counter_get(back), 20);
}

/* The size is read when the stream comes to it. */
Test(device_streams, a_counted_copy_reads_its_size_when_it_runs) {
    enum { BYTES = 5000, MOST = 4000 };
    unsigned char *pinned = NULL, read[BYTES];
    void *pinned_device = NULL;
    open_device();
    counter gate = counter_create();
    _Atomic uint64_t *said = gate.host + 1; /* the number of bytes */
    unsigned char *to = alloc(BYTES);
    GOOD(gpu->alloc_pinned(BYTES, (void **)&pinned, &pinned_device));
    for (uint64_t turn = 1; turn <= 3; turn++) {
        const uint64_t bytes = turn == 1 ? 0 : turn == 2 ? 1234 : MOST + 7, expected = bytes < MOST ? bytes : MOST;
        memset(pinned, 0, BYTES);
        atomic_store(said, 99);
        GOOD(gpu->fill(to, 0x61, BYTES, stream));
        GOOD(gpu->wait_value(stream, gate.device, turn));
        GOOD(gpu->copy_counted(to + 3, pinned_device, (char *)gate.device + sizeof *said, MOST, stream));
        for (int i = 0; i < BYTES; i++) pinned[i] = (unsigned char)(i * 13 + 5);
        atomic_store(said, bytes);
        counter_set(gate, turn);
        get(read, to, BYTES);
        for (uint64_t i = 0; i < BYTES; i++) {
            unsigned char byte = i < 3 || i >= expected + 3 ? 0x61 : (unsigned char)((i - 3) * 13 + 5);
            cr_assert_eq(read[i], byte, "turn %d: [%d] is %d, not %d", (int)turn, (int)i, read[i], byte);
        }
    }
    GOOD(gpu->free_pinned((void *)gate.host));
    GOOD(gpu->free_pinned(pinned));
}
