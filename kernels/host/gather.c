/*
 * A batch from images that are kept as bytes.
 */
#include "kernels/kernels.h"

void tutti_samples_gather(const tutti_gather_args *args) {
    const tutti_real scale = (tutti_real)1 / 255;
    tutti_real *images = args->images_out;
    for (int i = 0; i < args->count; i++, images += args->image_bytes) {
        const uint8_t *image = args->images + args->indices[i] * args->image_bytes;
        for (size_t p = 0; p < args->image_bytes; p++) images[p] = (tutti_real)image[p] * scale;
        args->labels_out[i] = args->labels[args->indices[i]];
    }
}
