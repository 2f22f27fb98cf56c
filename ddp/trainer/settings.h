/*
 * What a caller of <tutti/train.h> gives: checked, with defaults in place of zeros.
 */
#ifndef TUTTI_TRAINER_SETTINGS_H
#define TUTTI_TRAINER_SETTINGS_H

#include <tutti/train.h>

/* Texts and arrays stay the caller's. An error names the member that is wrong, and what is expected. */
tutti_status tutti_settings_take(const tutti_train_model *model, const tutti_train_data *data,
                                 const tutti_train_options *options, tutti_train_model *model_out,
                                 tutti_train_data *data_out, tutti_train_options *options_out);

/* What options, the checkpoint and the machine have come to. */
typedef struct tutti_settings_chosen {
    const char *model, *optimizer;
    bool stand_alone, on_gpu;
    bool is_first; /* of all ranks: the one that writes */
} tutti_settings_chosen;

/* Of what tutti_settings_take gave: an option that was given and would be ignored is an error. */
tutti_status tutti_settings_check_use(const tutti_train_model *model, const tutti_train_data *data,
                                      const tutti_train_options *options, const tutti_settings_chosen *chosen);

/* Initializers that a list of the caller's leaves open. */
void tutti_settings_fill_initializers(tutti_layer *layers, int nlayers);

#endif
