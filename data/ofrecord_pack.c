/*
 * Packs one part after the other, one sample at a time.
 */
#include "data/ofrecord_pack.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "data/ofrecord.h"
#include "data/source.h"

#define PATH_BYTES 4096

typedef struct packer {
    tutti_data_source *source;
    const tutti_ofrecord_pack *pack;
    uint8_t *pixels;
    float *numbers;
    size_t elements;
    tutti_ofrecord_message message;
} packer;

static tutti_status put_sample(packer *p, int64_t index) {
    int32_t label;
    TUTTI_TRY(p->source->row->read(p->source, index, p->pixels, &label));
    if (p->pack->bytes) {
        tutti_ofrecord_put_bytes(&p->message, p->pack->image, p->pixels, p->elements);
    } else {
        const float factor = 1.0f / 255;
        for (size_t i = 0; i < p->elements; i++) p->numbers[i] = (float)p->pixels[i] * factor;
        tutti_ofrecord_put_floats(&p->message, p->pack->image, p->numbers, p->elements);
    }
    tutti_ofrecord_put_integers(&p->message, p->pack->label, TUTTI_OFRECORD_INT32, &(int64_t){label}, 1);
    return TUTTI_OK;
}

static tutti_status write_part(packer *p, int part) {
    char path[PATH_BYTES];
    const int64_t count = p->source->details.count, parts = p->pack->parts;
    TUTTI_TRY(tutti_ofrecord_part_path(p->pack->folder, p->pack->prefix, p->pack->digits, part, path, sizeof path));
    FILE *file = fopen(path, "wxe");
    if (file == NULL)
        return tutti_fail(errno == EEXIST ? TUTTI_ERR_CONFIG : TUTTI_ERR_SYSTEM, "%s: %s%s", path, strerror(errno),
                          errno == EEXIST ? "; remove it, or give another folder" : "");
    tutti_status status = TUTTI_OK;
    for (int64_t i = count * part / parts; i < count * (part + 1) / parts && status == TUTTI_OK; i++) {
        status = put_sample(p, i);
        if (status == TUTTI_OK) status = tutti_ofrecord_write(file, path, &p->message);
    }
    if (fclose(file) != 0 && status == TUTTI_OK) status = tutti_fail(TUTTI_ERR_SYSTEM, "%s: %s", path, strerror(errno));
    return status;
}

/* Creates the folder and its parents. */
static tutti_status make_folders(const char *folder) {
    char path[PATH_BYTES];
    if (snprintf(path, sizeof path, "%s", folder) >= PATH_BYTES)
        return tutti_fail(TUTTI_ERR_ARGUMENT, "%.200s...: the path is too long", folder);
    for (char *at = path; *at != '\0';) {
        at += strspn(at, "/");
        at += strcspn(at, "/");
        const char kept = *at;
        *at = '\0';
        if (mkdir(path, 0777) != 0 && errno != EEXIST)
            return tutti_fail(TUTTI_ERR_SYSTEM, "%s: %s", path, strerror(errno));
        *at = kept;
    }
    return TUTTI_OK;
}

tutti_status tutti_ofrecord_pack_source(tutti_data_source *source, const tutti_ofrecord_pack *pack) {
    packer p = {.source = source, .pack = pack, .elements = tutti_data_source_bytes(source)};
    if (pack->parts > source->details.count)
        return tutti_fail(TUTTI_ERR_CONFIG, "--parts %d: there are only %lld samples", pack->parts,
                          (long long)source->details.count);
    TUTTI_TRY(make_folders(pack->folder));
    p.pixels = malloc(p.elements);
    p.numbers = malloc(p.elements * sizeof *p.numbers);
    tutti_status status =
        p.pixels != NULL && p.numbers != NULL ? TUTTI_OK : tutti_fail(TUTTI_ERR_MEMORY, "no memory for an image");
    for (int part = 0; part < pack->parts && status == TUTTI_OK; part++) status = write_part(&p, part);
    free(p.pixels);
    free(p.numbers);
    free(p.message.data);
    return status;
}
