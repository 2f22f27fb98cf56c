/*
 * What a caller of <tutti/train.h> gives: checked, with defaults in place of zeros.
 */
#ifndef TUTTI_TRAINER_SETTINGS_H
#define TUTTI_TRAINER_SETTINGS_H

#include <tutti/train.h>

/* Texts and arrays stay the caller's. An error names the member that is wrong, and what is expected. */
tutti_status tutti_settings_take(const tutti_train_model *model, const tutti_train_data *data,
                                 const tutti_train_options *options, tutti_train_model *model_out,
                                 tutti_train_options *options_out);

#endif
