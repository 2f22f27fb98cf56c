/*
 * The list of bundled models.
 */
#include "ddp/trainer/models/models.h"

#include <string.h>

static const tutti_models_row rows[] = {
    {.name = "lenet", .fill = tutti_lenet_fill},
    {.name = "mlp", .fill = tutti_mlp_fill},
    {.name = "resnet20", .fill = tutti_resnet20_fill},
    {.name = "resnet18", .fill = tutti_resnet18_fill, .lr = 0.01},
    {.name = "resnet50", .fill = tutti_resnet50_fill, .lr = 0.01},
};

const tutti_models_row *tutti_models_find(const char *name) {
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (strcmp(rows[i].name, name) == 0) return &rows[i];
    return NULL;
}
