/*
 * The table of the GPUs (kernels/device.h): the same tests on the stand-in, where TUTTI_CUDA_MODULE names it, and on
 * the GPUs of this machine. Streams and events are in test_device_streams.c, reductions in test_device_reduce.c,
 * failures in test_device_failure.c.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bootstrap/machine/module.h"
#include "tests/support/gpu/on_gpu.h"
#include "tests/support/programs/variables.h"

TestSuite(device, .timeout = 120);

/* ---------------------------------------------------------------------------------------- which GPUs there are */

Test(device, facts_are_given_for_each_gpu_and_for_no_other) {
    int count = 0, current = -1;
    tutti_device_facts facts, again;
    open_device();
    GOOD(gpu->count(&count));
    cr_assert_geq(count, 1);
    for (int i = 0; i < count; i++) {
        static const uint8_t none[TUTTI_DEVICE_ID_BYTES];
        GOOD(gpu->facts(i, &facts));
        GOOD(gpu->facts(i, &again));
        cr_assert(memcmp(facts.id, none, sizeof none) != 0 && memcmp(facts.id, again.id, sizeof none) == 0);
        cr_assert(facts.name[0] != '\0' && facts.pci[0] != '\0' && facts.major >= 5 && facts.memory_bytes > 0);
        cr_assert_gt(facts.processors, 0);
    }
    cr_assert_neq(gpu->facts(count, &facts), TUTTI_OK);
    cr_assert_neq(gpu->facts(-1, &facts), TUTTI_OK);
    cr_assert_neq(gpu->use(count), TUTTI_OK);
    GOOD(gpu->use(count - 1));
    GOOD(gpu->current(&current));
    cr_assert_eq(current, count - 1);
}

Test(device, a_rank_takes_the_gpu_of_its_place_on_the_host_or_the_one_that_is_set) {
    int count = 0, chosen = -1;
    char text[16];
    open_device();
    GOOD(gpu->count(&count));
    for (int local = 0; local < 3; local++) {
        char list[128];
        snprintf(list, sizeof list, "RANK=%d WORLD_SIZE=3 LOCAL_RANK=%d LOCAL_WORLD_SIZE=3", local, local);
        variables_set(list);
        GOOD(tutti_device_choose(&chosen));
        cr_assert_eq(chosen, local % count);
    }
    snprintf(text, sizeof text, "%d", count - 1);
    setenv("TUTTI_DEVICE", text, 1);
    tutti_settings_reload();
    GOOD(tutti_device_choose(&chosen));
    cr_assert_eq(chosen, count - 1);
    snprintf(text, sizeof text, "%d", count);
    setenv("TUTTI_DEVICE", text, 1);
    tutti_settings_reload();
    cr_assert_eq(tutti_device_choose(&chosen), TUTTI_ERR_CONFIG);
}

static int chosen_with(const char *variables) {
    int chosen = -1;
    variables_set(variables);
    GOOD(tutti_device_choose(&chosen));
    return chosen;
}

/* As MindSpore's documents have it: "device_id indicates the physical sequence number of a card". */
Test(device, a_rank_table_gives_each_rank_the_gpu_of_its_device_id) {
    static const char table[] = "{\"version\": \"1.0\", \"status\": \"completed\", \"server_list\": [{\"server_id\": "
                                "\"here\", \"device\": [{\"device_id\": \"4\", \"rank_id\": \"0\"}, {\"device_id\": "
                                "\"5\", \"rank_id\": \"1\"}]}]}";
    const tutti_module_calls *calls;
    char path[] = "/tmp/tutti-table-XXXXXX", first[128], second[128];
    int count = 0;
    setenv("STANDIN_GPUS", "8", 1);
    unsetenv("CUDA_VISIBLE_DEVICES");
    open_device();
    GOOD(gpu->count(&count));
    if (count < 6) cr_skip_test("%d GPUs", count);
    if (tutti_module_open("json", "", &calls) != TUTTI_OK) cr_skip_test("no module json: %s", tutti_last_error());
    int fd = mkstemp(path);
    cr_assert(fd >= 0 && write(fd, table, strlen(table)) == (ssize_t)strlen(table));
    close(fd);
    snprintf(first, sizeof first, "RANK_TABLE_FILE=%s RANK_ID=0", path);
    snprintf(second, sizeof second, "RANK_TABLE_FILE=%s DEVICE_ID=5", path);
    cr_assert_eq(chosen_with(first), 4);
    cr_assert_eq(chosen_with(second), 5);
    setenv("CUDA_VISIBLE_DEVICES", "7,5,4", 1); /* the indices of cards 4 and 5 among the visible ones */
    cr_assert_eq(chosen_with(first), 2);
    cr_assert_eq(chosen_with(second), 1);
    setenv("CUDA_VISIBLE_DEVICES", "0,1", 1); /* neither is visible: by the local rank, with a warning */
    cr_assert_eq(chosen_with(first), 0);
    cr_assert_eq(chosen_with(second), 1);
    setenv("CUDA_VISIBLE_DEVICES", "GPU-aaaa,GPU-bbbb", 1);
    cr_assert_eq(chosen_with(second), 1);
    unsetenv("CUDA_VISIBLE_DEVICES");
    setenv("TUTTI_DEVICE", "3", 1);
    tutti_settings_reload();
    cr_assert_eq(chosen_with(first), 3);
    unlink(path);
}

Test(device, it_is_in_use_from_the_first_context_on) {
    cr_assert_null(tutti_device_in_use());
    cr_assert_null(tutti_device_in_use());
    GOOD(tutti_device_open(&gpu));
    cr_assert_null(tutti_device_in_use(), "asking which GPUs there are makes no context");
    open_device();
    void *memory = alloc(8);
    cr_assert_eq(tutti_device_in_use(), gpu);
    GOOD(gpu->free(memory));
}

Test(device, without_a_module_each_answer_gives_the_reason) {
    setenv("TUTTI_CUDA_MODULE", "/no/such/module.so", 1);
    tutti_settings_reload();
    for (int i = 0; i < 2; i++) {
        cr_assert_eq(tutti_device_open(&gpu), TUTTI_ERR_UNSUPPORTED);
        cr_assert(strstr(tutti_last_error(), "/no/such/module.so") != NULL, "%s", tutti_last_error());
    }
    cr_assert_null(tutti_device_in_use());
}

/* ------------------------------------------------------------------------------------------------- memory */

Test(device, a_pointer_is_recognised_with_its_allocation) {
    enum { BYTES = 100000 };
    tutti_device_place place, later;
    int on_stack = 0, count = 0;
    open_device();
    GOOD(gpu->count(&count));
    for (int i = 0; i < count; i++) {
        GOOD(gpu->use(i));
        char *memory = alloc(BYTES);
        GOOD(gpu->locate(memory + 12345, &place));
        cr_assert_eq(place.memory, TUTTI_MEMORY_CUDA);
        cr_assert_eq(place.device, i);
        cr_assert_eq(place.base, (void *)memory);
        cr_assert_geq(place.bytes, BYTES);
        GOOD(gpu->free(memory));
        char *other = alloc(BYTES);
        GOOD(gpu->locate(other, &later));
        cr_assert_neq(later.serial, place.serial, "another allocation, if at the same address");
        GOOD(gpu->free(other));
    }
    void *heap = malloc(BYTES), *pinned = NULL, *device = NULL;
    GOOD(gpu->alloc_pinned(BYTES, &pinned, &device));
    void *ordinary[] = {&on_stack, heap, pinned, (void *)&gpu, (void *)(uintptr_t)8};
    for (size_t i = 0; i < sizeof ordinary / sizeof *ordinary; i++) {
        GOOD(gpu->locate(ordinary[i], &place));
        cr_assert_eq(place.memory, TUTTI_MEMORY_HOST, "%zu", i);
    }
    GOOD(gpu->free_pinned(pinned));
    free(heap);
}

Test(device, copies_go_between_any_two_places) {
    enum { BYTES = 1000003, PLACES = 5 };
    open_device();
    static char *page; /* pinned until the process ends */
    char *written = malloc(BYTES), *read = malloc(BYTES);
    void *places[PLACES], *pinned = NULL;
    GOOD(gpu->alloc_pinned(BYTES, &pinned, NULL));
    cr_assert_eq(posix_memalign((void **)&page, 4096, BYTES), 0);
    GOOD(gpu->pin(page, BYTES, NULL));
    places[0] = alloc(BYTES), places[1] = alloc(BYTES), places[2] = pinned, places[3] = page, places[4] = malloc(BYTES);
    for (int from = 0; from < PLACES; from++) {
        for (int to = 0; to < PLACES; to++) {
            if (from == to) continue;
            for (int i = 0; i < BYTES; i++) written[i] = (char)(i * 7 + from * 31 + to);
            put(places[from], written, BYTES);
            put(places[to], places[from], BYTES);
            memset(read, 0, BYTES);
            get(read, places[to], BYTES);
            cr_assert_eq(memcmp(read, written, BYTES), 0, "from %d to %d", from, to);
        }
    }
    GOOD(gpu->copy(places[1], places[0], 0, stream));
    GOOD(gpu->free_pinned(pinned));
    GOOD(gpu->free(places[0]));
    GOOD(gpu->free(places[1]));
    GOOD(gpu->free(NULL));
    free(places[4]), free(written), free(read);
}

Test(device, fill_and_many_copies_touch_just_their_bytes) {
    enum { BYTES = 5000, COPIES = 70 };
    unsigned char written[BYTES], read[BYTES], expected[BYTES];
    void *dsts[COPIES];
    const void *srcs[COPIES];
    size_t bytes[COPIES];
    open_device();
    unsigned char *from = alloc(BYTES), *to = alloc(BYTES);
    for (int i = 0; i < BYTES; i++) written[i] = (unsigned char)(i * 13 + 5);
    put(from, written, BYTES);
    GOOD(gpu->fill(to, 0x61, BYTES, stream));
    GOOD(gpu->fill(to + 3, 0x162, 7, stream));
    memset(expected, 0x61, BYTES);
    memset(expected + 3, 0x62, 7);
    for (int i = 0; i < COPIES; i++) { /* of all alignments, some empty */
        bytes[i] = (size_t)(i * 5 % 61);
        dsts[i] = to + 64 + i * 64 + i % 3;
        srcs[i] = from + i * 61 + i % 2;
        memcpy(expected + 64 + i * 64 + i % 3, written + i * 61 + i % 2, bytes[i]);
    }
    GOOD(gpu->copy_many(dsts, srcs, bytes, COPIES, stream));
    get(read, to, BYTES);
    for (int i = 0; i < BYTES; i++) cr_assert_eq(read[i], expected[i], "[%d] is %d, not %d", i, read[i], expected[i]);
}

Test(device, a_kernel_reads_and_writes_pinned_memory_by_its_device_address) {
    static float *page; /* pinned until the process ends */
    float *host = NULL;
    void *host_device = NULL, *page_device = NULL;
    open_device();
    GOOD(gpu->alloc_pinned(4096, (void **)&host, &host_device));
    cr_assert_eq(posix_memalign((void **)&page, 4096, 4096), 0);
    GOOD(gpu->pin(page, 4096, &page_device));
    for (int i = 0; i < 1024; i++) host[i] = (float)i, page[i] = 1;
    const void *srcs[] = {host_device, page_device};
    tutti_reduce_args args = {.srcs = srcs, .nsrcs = 2, .count = 1024, .type = TUTTI_FLOAT32, .reduction = TUTTI_SUM};
    GOOD(gpu->reduce(&args, &page_device, 1, stream));
    GOOD(gpu->stream_sync(stream));
    for (int i = 0; i < 1024; i++) cr_assert_eq(page[i], (float)i + 1);
    GOOD(gpu->free_pinned(host));
}

/* Reports failures by its exit code: Criterion's checks do not work in a child. */
static int import_and_answer(int in, int out) {
    tutti_device_export exported;
    void *base = NULL;
    int value = 0;
    if (read(in, &exported, sizeof exported) != sizeof exported) return 2;
    if (tutti_device_open(&gpu) != TUTTI_OK || gpu->use(0) != TUTTI_OK || gpu->stream_create(&stream) != TUTTI_OK)
        return 3;
    if (gpu->import_memory(&exported, &base) != TUTTI_OK) return 4;
    char *there = (char *)base + exported.offset;
    if (gpu->copy(&value, there, sizeof value, stream) != TUTTI_OK || gpu->stream_sync(stream) != TUTTI_OK) return 5;
    if (value != 4711) return 6;
    value = 4712;
    if (gpu->copy(there, &value, sizeof value, stream) != TUTTI_OK || gpu->stream_sync(stream) != TUTTI_OK) return 7;
    tutti_device_place place;
    if (gpu->locate(there, &place) != TUTTI_OK || place.memory != TUTTI_MEMORY_CUDA) return 8;
    if (gpu->close_import(base) != TUTTI_OK) return 9;
    return write(out, "x", 1) == 1 ? 0 : 10;
}

Test(device, another_process_maps_an_exported_allocation) {
    enum { OFFSET = 4096 };
    int down[2], up[2], value = 4711, ended = 0;
    char byte;
    tutti_device_facts facts;
    tutti_device_export exported;
    if (THREAD_SANITIZER) cr_skip_test("it forbids threads in a forked process");
    cr_assert(pipe(down) == 0 && pipe(up) == 0);
    pid_t child = fork(); /* before this process uses CUDA */
    if (child == 0) _exit(import_and_answer(down[0], up[1]));
    close(up[1]);
    open_device();
    GOOD(gpu->facts(0, &facts));
    if (facts.ipc) {
        char *memory = alloc(65536);
        put(memory + OFFSET, &value, sizeof value);
        GOOD(gpu->export_memory(memory + OFFSET, &exported));
        cr_assert_eq(write(down[1], &exported, sizeof exported), sizeof exported);
        bool answered = read(up[0], &byte, 1) == 1;
        waitpid(child, &ended, 0);
        cr_assert(answered && WIFEXITED(ended) && WEXITSTATUS(ended) == 0, "the importer ended with %d", ended);
        get(&value, memory + OFFSET, sizeof value);
        cr_assert_eq(value, 4712);
        cr_assert_neq(gpu->export_memory(&value, &exported), TUTTI_OK, "the stack cannot be exported");
    } else {
        kill(child, SIGKILL);
        waitpid(child, &ended, 0);
        cr_skip_test("memory of this GPU cannot be exported");
    }
}
