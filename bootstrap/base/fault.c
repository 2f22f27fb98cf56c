/*
 * Fault points: one small table, parsed from TUTTI_FAULT at first use.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "bootstrap/base/common.h"
#include "bootstrap/base/settings.h"

#define MOST_FAULTS 8

typedef struct fault {
    char name[48];
    int after, times;
    atomic_int passes;
} fault;

static pthread_once_t faults_once = PTHREAD_ONCE_INIT;
static fault faults[MOST_FAULTS];
static int nfaults;

static void parse(void) {
    const char *next = tutti_setting_text(TUTTI_SETTING_FAULT);
    while (*next != '\0' && nfaults < MOST_FAULTS) {
        fault *f = &faults[nfaults];
        f->times = 1;
        if (sscanf(next, "%47[^:,]:%d:%d", f->name, &f->after, &f->times) >= 1) nfaults++;
        next += strcspn(next, ",");
        next += *next == ',';
    }
}

bool tutti_fault(const char *name) {
    pthread_once(&faults_once, parse);
    if (TUTTI_LIKELY(nfaults == 0)) return false;
    for (int i = 0; i < nfaults; i++) {
        if (strcmp(faults[i].name, name) != 0) continue;
        int pass = atomic_fetch_add_explicit(&faults[i].passes, 1, memory_order_relaxed);
        return pass >= faults[i].after && pass < faults[i].after + faults[i].times;
    }
    return false;
}
