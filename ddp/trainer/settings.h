/*
 * Checks the settings of a caller of <tutti/train.h>, and puts defaults in place of zeros.
 */
#ifndef TUTTI_TRAINER_SETTINGS_H
#define TUTTI_TRAINER_SETTINGS_H

#include <tutti/train.h>

/* Texts and arrays stay the caller's. An error names the wrong member and the expected values. */
tutti_status tutti_train_settings_take(const tutti_train_model *model, const tutti_train_data *data,
                                       const tutti_train_options *options, tutti_train_model *model_out,
                                       tutti_train_data *data_out, tutti_train_options *options_out);

/* The choices that follow from options, checkpoint and machine. */
typedef struct tutti_settings_chosen {
    const char *model, *optimizer;
    bool stand_alone, on_gpu;
    bool is_first; /* the first of all ranks, which writes */
} tutti_settings_chosen;

/* Checks the results of tutti_train_settings_take: an option that was given but would be ignored is an error. */
tutti_status tutti_train_settings_check_use(const tutti_train_model *model, const tutti_train_data *data,
                                            const tutti_train_options *options, const tutti_settings_chosen *chosen);

/* Fills in the initializers that a caller's list leaves open. */
void tutti_train_settings_fill_initializers(tutti_layer *layers, int nlayers);

#endif
