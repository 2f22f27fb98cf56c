/*
 * Lets Criterion run under the thread sanitizer. Criterion's sandbox (BoxFort) maps its arena at a random fixed
 * address from 0x200000000000 on, in steps of 16 MiB; the sanitizer permits mappings only in a few ranges. This
 * rand_r replaces libc's and draws addresses in one of them, [0x550000000000, 0x568000000000).
 */
#include <stdlib.h>

#define FIRST_STEP 0x350000u /* (0x550000000000 - 0x200000000000) >> 24 */
#define STEPS      0x18000u

__attribute__((visibility("default"))) int rand_r(unsigned int *seed) {
    *seed = *seed * 1103515245u + 12345u;
    return (int)(FIRST_STEP + (*seed >> 8) % STEPS);
}
