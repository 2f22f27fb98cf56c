/*
 * tutti-ofrecord pack: writes the samples of a source to OFRecord files.
 */
#ifndef TUTTI_DATA_OFRECORD_PACK_H
#define TUTTI_DATA_OFRECORD_PACK_H

#include <stdbool.h>

#include <tutti/data.h>

typedef struct tutti_ofrecord_pack {
    const char *folder, *prefix; /* of the parts; a missing folder is created, existing parts are an error */
    int parts, digits;
    const char *image, *label; /* names of the features */
    bool bytes;                /* images as a bytes_list of pixels; else as a float_list of pixels / 255 */
} tutti_ofrecord_pack;

/* Sample i of n goes to part i * parts / n: in the order of the source. */
tutti_status tutti_ofrecord_pack_source(tutti_data_source *source, const tutti_ofrecord_pack *pack);

#endif
