/*
 * The number of a received signal, in a flag that the loop reads.
 */
#include "ddp/trainer/stop.h"

#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>

static const int numbers[] = {SIGINT, SIGTERM};
#define NUMBERS (sizeof numbers / sizeof numbers[0])

/* Ranks that are threads share it. Lock-free, so handlers may write it. */
static atomic_int came;

static void note(int number) {
    atomic_store_explicit(&came, number, memory_order_relaxed);
}

void tutti_stop_listen(void) {
    struct sigaction before, ours = {.sa_handler = note, .sa_flags = SA_RESTART | (int)SA_RESETHAND};
    sigemptyset(&ours.sa_mask);
    atomic_store_explicit(&came, 0, memory_order_relaxed);
    for (size_t i = 0; i < NUMBERS; i++)
        if (sigaction(numbers[i], NULL, &before) == 0 && before.sa_handler == SIG_DFL)
            sigaction(numbers[i], &ours, NULL);
}

void tutti_stop_forget(void) {
    struct sigaction now;
    for (size_t i = 0; i < NUMBERS; i++)
        if (sigaction(numbers[i], NULL, &now) == 0 && now.sa_handler == note) signal(numbers[i], SIG_DFL);
}

int tutti_stop_signal(void) {
    return atomic_load_explicit(&came, memory_order_relaxed);
}
