/*
 * tutti_train_get: the details of a trainer, from its parts. Apart from the other calls of <tutti/train.h>, because the
 * trainer's own callbacks make this call.
 */
#include "ddp/trainer/train.h"

tutti_status tutti_train_get(const tutti_trainer *trainer, tutti_train_details *details_out) {
    if (trainer == NULL || details_out == NULL)
        return tutti_fail(TUTTI_ERR_ARGUMENT, "tutti_train_get: trainer and details_out must not be NULL");
    const tutti_input *input = &trainer->input;
    *details_out = (tutti_train_details){
        .rank = trainer->rank,
        .nranks = trainer->nranks,
        .model = trainer->model_name,
        .optimizer = trainer->optimizer_name,
        .data = input->name,
        .drawn = input->drawn,
        .resumed = trainer->options.resume != NULL ? trainer->resumed.path : NULL,
        .train_samples = input->train_count,
        .test_samples = input->test != NULL ? input->test_count : 0,
        .height = input->details.height,
        .width = input->details.width,
        .channels = input->details.channels,
        .classes = tutti_model_classes(trainer->model),
        .batch_size = trainer->global_batch,
        .steps_per_epoch = input->batches,
        .total_steps = trainer->total_steps,
        .step = trainer->step,
        .epoch = trainer->epoch,
        .parameters = tutti_model_parameter_count(trainer->model) - tutti_model_frozen_count(trainer->model),
        .frozen = tutti_model_frozen_count(trainer->model),
        .states = tutti_model_state_count(trainer->model),
        .memory_bytes = trainer->model->memory_bytes,
        .rank_batch = trainer->rows,
        .flops_per_sample = 3 * tutti_model_cost(trainer->model).flops, /* backward costs about twice forward */
    };
    return tutti_gradients_get_statistics(&trainer->gradients, &details_out->gradients);
}
