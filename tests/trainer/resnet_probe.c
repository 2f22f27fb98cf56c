/*
 * Runs a bundled model once on the contents of a safetensors file, for resnet_torch.py:
 *
 *   resnet_probe MODEL IN OUT
 *
 * IN: the model's parameters and states by name, "input" [batch, height, width, channels] and "labels" [batch] as
 * floats. OUT: "logits" while training, "test_logits" after it with the moving values, "loss" (a mean), the
 * gradient of each parameter by its name, and the states after the training pass.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ddp/trainer/checkpoint/safetensors.h"
#include "ddp/trainer/models/models.h"
#include "kernels/gemm.h"

typedef struct probe {
    tutti_compute *compute;
    tutti_model *model;
    tutti_safetensors in;
    float **gradients;
    int32_t *labels;
    int batch;
} probe;

static float *gradient_where(void *context, int parameter) {
    return ((probe *)context)->gradients[parameter];
}

static tutti_status gradient_ready(void *context, int parameter) {
    (void)context, (void)parameter;
    return TUTTI_OK;
}

static tutti_status find(const probe *p, const char *name, const tutti_safetensors_entry **entry_out) {
    *entry_out = tutti_safetensors_find(&p->in, name);
    return *entry_out != NULL ? TUTTI_OK : tutti_fail(TUTTI_ERR_DATA, "tensor %s is missing", name);
}

static tutti_status take(const probe *p, const tutti_parameter *into) {
    const tutti_safetensors_entry *entry;
    TUTTI_TRY(find(p, into->name, &entry));
    if (entry->ndims != into->ndims || memcmp(entry->dims, into->dims, (size_t)into->ndims * sizeof *into->dims) != 0)
        return tutti_fail(TUTTI_ERR_DATA, "tensor %s has another shape", into->name);
    memcpy(into->data, entry->data, into->count * sizeof *into->data);
    return TUTTI_OK;
}

static tutti_status open_probe(probe *p, const char *name, const char *path) {
    const tutti_safetensors_entry *input, *labels;
    const tutti_models_row *row = tutti_models_find(name);
    tutti_model_layers *list = calloc(1, sizeof *list);
    if (row == NULL || list == NULL) return tutti_fail(TUTTI_ERR_ARGUMENT, "unknown model %s", name);
    tutti_gemm_use_one_thread();
    TUTTI_TRY(tutti_kernels_host.open(&(tutti_compute_options){.precision = TUTTI_PRECISION_FP32}, &p->compute));
    TUTTI_TRY(tutti_safetensors_read(path, &p->in));
    TUTTI_TRY(find(p, "input", &input));
    TUTTI_TRY(find(p, "labels", &labels));
    p->batch = (int)input->dims[0];
    row->fill(&(tutti_models_options){.classes = 10, .dropout = 0}, list);
    tutti_shape shape = {(int)input->dims[1], (int)input->dims[2], (int)input->dims[3]};
    TUTTI_TRY(tutti_model_create(list, shape, p->batch, p->compute, &p->model));
    free(list);
    p->model->poisons = true;
    p->gradients = calloc((size_t)p->model->nparameters, sizeof *p->gradients);
    p->labels = calloc((size_t)p->batch, sizeof *p->labels);
    for (int i = 0; i < p->model->nparameters; i++) {
        p->gradients[i] = calloc(p->model->parameters[i].count, sizeof(float));
        TUTTI_TRY(take(p, &p->model->parameters[i]));
    }
    for (int i = 0; i < p->model->nstates; i++) TUTTI_TRY(take(p, &p->model->states[i]));
    for (int i = 0; i < p->batch; i++) p->labels[i] = (int32_t)labels->data[i];
    memcpy(tutti_model_input(p->model), input->data, input->count * sizeof *input->data);
    return TUTTI_OK;
}

static void put(tutti_safetensors *out, const char *name, float *data, int ndims, const int64_t *dims) {
    tutti_safetensors_entry *entry = &out->entries[out->nentries++];
    snprintf(entry->name, sizeof entry->name, "%s", name);
    entry->ndims = ndims;
    entry->count = 1;
    for (int i = 0; i < ndims; i++) entry->count *= (size_t)(entry->dims[i] = dims[i]);
    entry->data = data;
}

static tutti_status run(probe *p, const char *path) {
    tutti_model *model = p->model;
    const int classes = tutti_model_classes(model);
    const size_t bytes = (size_t)p->batch * (size_t)classes * sizeof(float);
    float *logits = malloc(bytes), *test_logits = malloc(bytes), mean;
    double sums[2];
    tutti_pass pass = {.batch = p->batch, .training = true};
    tutti_softmax_loss_args loss = {.batch = p->batch,
                                    .classes = classes,
                                    .logits = tutti_model_forward(model, &pass),
                                    .labels = p->labels,
                                    .scale = 1.0f / (float)p->batch,
                                    .dlogits = tutti_model_logits_gradient(model)};
    memcpy(logits, loss.logits, bytes);
    p->compute->kernels->softmax_loss(p->compute, &loss, false, sums);
    mean = (float)(sums[0] / p->batch);
    tutti_gradient_sink sink = {.context = p, .where = gradient_where, .ready = gradient_ready};
    TUTTI_TRY(tutti_model_backward(model, &pass, &sink));
    tutti_pass test = {.batch = p->batch};
    memcpy(test_logits, tutti_model_forward(model, &test), bytes);

    tutti_safetensors out = {.nentries = 0};
    out.entries = calloc((size_t)(model->nparameters + model->nstates + 3), sizeof *out.entries);
    put(&out, "logits", logits, 2, (int64_t[]){p->batch, classes});
    put(&out, "test_logits", test_logits, 2, (int64_t[]){p->batch, classes});
    put(&out, "loss", &mean, 1, (int64_t[]){1});
    for (int i = 0; i < model->nparameters; i++)
        put(&out, model->parameters[i].name, p->gradients[i], model->parameters[i].ndims, model->parameters[i].dims);
    for (int i = 0; i < model->nstates; i++)
        put(&out, model->states[i].name, model->states[i].data, 1, model->states[i].dims);
    tutti_status status = tutti_safetensors_write(path, &out);
    free(out.entries), free(logits), free(test_logits);
    return status;
}

int main(int argc, char **argv) {
    probe p = {.model = NULL};
    if (argc != 4) return 2;
    tutti_status status = open_probe(&p, argv[1], argv[2]);
    if (status == TUTTI_OK) status = run(&p, argv[3]);
    if (status != TUTTI_OK) fprintf(stderr, "resnet_probe: %s\n", tutti_last_error());
    for (int i = 0; p.gradients != NULL && i < p.model->nparameters; i++) free(p.gradients[i]);
    free(p.gradients), free(p.labels);
    tutti_model_destroy(p.model);
    tutti_safetensors_close(&p.in);
    if (p.compute != NULL) p.compute->kernels->close(p.compute);
    return status == TUTTI_OK ? 0 : 1;
}
