/*
 * Freezes parameters of a list of layers.
 */
#include "ddp/trainer/layers/freeze.h"

#include <stdio.h>
#include <string.h>

/* False: the layer has no such parameter. */
static bool name_parameter(const tutti_layer *layer, int which, char name_out[TUTTI_MODEL_NAME_BYTES]) {
    const char *own = tutti_layers_row(layer->kind)->parameter_names[which];
    if (own == NULL || (which == 1 && layer->no_bias)) return false;
    snprintf(name_out, TUTTI_MODEL_NAME_BYTES, "%s.%s", layer->name, own);
    return true;
}

static tutti_status freeze(tutti_model_layers *list, const char *prefix) {
    char name[TUTTI_MODEL_NAME_BYTES];
    int found = 0;
    for (int i = 0; i < list->count; i++)
        for (int p = 0; p < TUTTI_LAYER_PARAMETERS; p++) {
            if (!name_parameter(&list->layers[i], p, name) || strncmp(name, prefix, strlen(prefix)) != 0) continue;
            list->frozen[i] |= (uint8_t)(1u << p);
            found++;
        }
    if (found > 0) return TUTTI_OK;
    for (int i = 0; i < list->count; i++)
        if (name_parameter(&list->layers[i], 0, name)) break;
    return tutti_fail(TUTTI_ERR_CONFIG,
                      "--freeze %s: no parameter's name begins with that; expected the beginning of names such as %s",
                      prefix, name);
}

tutti_status tutti_freeze(tutti_model_layers *list, const char *const *prefixes, int nprefixes) {
    char name[TUTTI_MODEL_NAME_BYTES];
    int trained = 0;
    if (nprefixes == 0) return TUTTI_OK;
    for (int i = 0; i < nprefixes; i++) TUTTI_TRY(freeze(list, prefixes[i]));
    for (int i = 0; i < list->count; i++)
        for (int p = 0; p < TUTTI_LAYER_PARAMETERS; p++)
            trained += name_parameter(&list->layers[i], p, name) && (list->frozen[i] >> p & 1) == 0;
    if (trained > 0) return TUTTI_OK;
    return tutti_fail(TUTTI_ERR_CONFIG, "--freeze: all parameters are frozen; expected some that are left to train");
}
