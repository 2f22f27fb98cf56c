/*
 * Runs the threads of emulated kernels.
 *
 * A thread that waits for the others of its block needs a stack of its own. Stacks are made once and reused from
 * block to block; the threads are switched by _longjmp, which needs no system call and is about a hundred times
 * faster than making a context.
 */
#undef _FORTIFY_SOURCE /* its longjmp reports a jump to another stack as an error */
#include "kernels/cuda/grid.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <ucontext.h>

#define STACK_BYTES  ((size_t)64 << 10)
#define MOST_THREADS 1024

dim3 threadIdx, blockIdx, blockDim, gridDim;

static pthread_mutex_t kernels_lock = PTHREAD_MUTEX_INITIALIZER;

/* The threads of the block that runs; protected by the lock. */
static struct {
    jmp_buf scheduler, threads[MOST_THREADS];
    bool has_stack[MOST_THREADS], done[MOST_THREADS], on_own_stack;
    unsigned current;
    void (*body)(void *context);
    void *context;
} block_of;

static void choose_thread(unsigned number) {
    block_of.current = number;
    threadIdx = dim3(number % blockDim.x, number / blockDim.x % blockDim.y, number / (blockDim.x * blockDim.y));
}

/* Back to resume(), until it is this thread's turn again. */
static void leave() {
    if (_setjmp(block_of.threads[block_of.current]) == 0) _longjmp(block_of.scheduler, 1);
}

/* The endless loop of a stack: runs one thread of each block. */
static void live() {
    for (;;) {
        block_of.body(block_of.context);
        block_of.done[block_of.current] = true;
        leave();
    }
}

/* Switches to a new stack. */
static void enter_stack() {
    ucontext_t fresh;
    getcontext(&fresh);
    fresh.uc_stack.ss_sp = malloc(STACK_BYTES);
    fresh.uc_stack.ss_size = STACK_BYTES;
    fresh.uc_link = NULL;
    makecontext(&fresh, live, 0);
    setcontext(&fresh);
}

/* Runs the thread until it ends or waits. */
static void resume(unsigned number) {
    choose_thread(number);
    block_of.on_own_stack = true;
    if (_setjmp(block_of.scheduler) == 0) {
        if (block_of.has_stack[number]) _longjmp(block_of.threads[number], 1);
        block_of.has_stack[number] = true;
        enter_stack();
    }
    block_of.on_own_stack = false;
}

static void begin(unsigned number) {
    block_of.done[number] = false;
    resume(number);
}

void __syncthreads() {
    if (!block_of.on_own_stack) {
        fprintf(stderr, "emulation: a thread waits for others, of which the first has ended without\n");
        abort();
    }
    leave();
}

static void run_block(unsigned threads) {
    begin(0);
    if (block_of.done[0]) {
        for (unsigned number = 1; number < threads; number++) {
            choose_thread(number);
            block_of.body(block_of.context);
        }
        return;
    }
    for (unsigned number = 1; number < threads; number++) begin(number);
    for (unsigned left = threads; left > 0;) {
        left = 0;
        for (unsigned number = 0; number < threads; number++) {
            if (block_of.done[number]) continue;
            resume(number);
            left += !block_of.done[number];
        }
    }
}

void emulated_run(dim3 grid, dim3 block, void (*body)(void *context), void *context) {
    unsigned threads = block.x * block.y * block.z;
    if (threads == 0 || threads > MOST_THREADS || grid.x == 0 || grid.y == 0 || grid.y > 65535 || grid.z != 1) {
        fprintf(stderr, "emulation: beyond a GPU's limits: grid %u x %u x %u, blocks of %u threads\n", grid.x, grid.y,
                grid.z, threads);
        abort();
    }
    pthread_mutex_lock(&kernels_lock);
    block_of.body = body;
    block_of.context = context;
    gridDim = grid;
    blockDim = block;
    for (blockIdx.y = 0; blockIdx.y < grid.y; blockIdx.y++)
        for (blockIdx.x = 0; blockIdx.x < grid.x; blockIdx.x++) run_block(threads);
    pthread_mutex_unlock(&kernels_lock);
}
