/*
 * GPUs as /proc/driver/nvidia/gpus lists them. See gpus.h.
 */
#include "bootstrap/machine/gpus.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int is_device(const struct dirent *item) {
    return item->d_name[0] != '.' && strlen(item->d_name) < TUTTI_GPU_ADDRESS_BYTES;
}

/* Maps CUDA's GPU number `index` to the machine's GPU number; -1: not given by a number (but by a UUID, say). */
static int number_of(int index, const char *visible) {
    char *end;
    if (visible == NULL) return index;
    for (int i = 0; i < index; i++) {
        visible = strchr(visible, ',');
        if (visible == NULL) return -1;
        visible++;
    }
    long number = strtol(visible, &end, 10);
    return end != visible && (*end == ',' || *end == '\0') && number >= 0 && number < 1 << 16 ? (int)number : -1;
}

bool tutti_gpus_address(const char *root, const char *visible, int index, char address_out[TUTTI_GPU_ADDRESS_BYTES]) {
    char path[512];
    struct dirent **gpus; /* sorted by PCI address, which is the driver's order */
    snprintf(path, sizeof path, "%s/proc/driver/nvidia/gpus", root);
    int count = scandir(path, &gpus, is_device, alphasort), number = number_of(index, visible);
    if (count < 0) return false;
    bool found = number >= 0 && number < count;
    if (found)
        memcpy(address_out, gpus[number]->d_name, strlen(gpus[number]->d_name) + 1); /* it fits: checked by is_device */
    for (int i = 0; i < count; i++) free(gpus[i]);
    free(gpus);
    return found;
}
