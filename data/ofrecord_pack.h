/*
 * tutti-ofrecord pack: samples of a source of data become files of OFRecord.
 */
#ifndef TUTTI_DATA_OFRECORD_PACK_H
#define TUTTI_DATA_OFRECORD_PACK_H

#include <stdbool.h>

#include <tutti/data.h>

typedef struct tutti_ofrecord_pack {
    const char *folder, *prefix; /* of the parts; a folder that is missing is made, parts that are there are an error */
    int parts, digits;
    const char *image, *label; /* names of the features */
    bool bytes;                /* images as a bytes_list of pixels; else as a float_list of pixels / 255 */
} tutti_ofrecord_pack;

/* Sample i of n goes into part i * parts / n: in the order of the source. */
tutti_status tutti_ofrecord_pack_source(tutti_data_source *source, const tutti_ofrecord_pack *pack);

#endif
