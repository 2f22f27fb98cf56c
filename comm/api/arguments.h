/*
 * Checks of a caller's arguments: missing buffers, buffers that overlap in part, options that this build does not
 * support.
 */
#ifndef TUTTI_ARGUMENTS_H
#define TUTTI_ARGUMENTS_H

#include "comm/base/comm.h"

/* Uniform kinds: buffers of src_count and dst_count elements (0: not used on this rank). They may overlap only
 * where one is the slice of the other that starts at element own_slice (in place). */
tutti_status tutti_arguments_check(const tutti_op *op, const void *src, size_t src_count, const void *dst,
                                   size_t dst_count, size_t own_slice);
/* v-kinds: checks every entry; a rank's own input may be its own output. */
tutti_status tutti_arguments_check_lists(const tutti_op *op, int nranks, int rank);
/* options may be NULL; `name` is the name of the call. */
tutti_status tutti_options_check(const tutti_options *options, const char *name);

/* At the beginning of each call that has a parameter `options`: options of another version's size are copied. */
#define TUTTI_TAKE_OPTIONS(name)                                                                                       \
    tutti_options taken_options;                                                                                       \
    if (TUTTI_UNLIKELY(options != NULL && options->struct_bytes != sizeof *options)) {                                 \
        TUTTI_TRY(                                                                                                     \
            tutti_struct_take(name ": options", "TUTTI_OPTIONS(...)", options, &taken_options, sizeof taken_options)); \
        options = &taken_options;                                                                                      \
    }

#endif
