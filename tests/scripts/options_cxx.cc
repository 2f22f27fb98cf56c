/*
 * Structs of options in C++, on one rank: the macros of tutti.h and ddp.h, and variables. test_cxx.sh compiles it as
 * C++17 and C++20, with warnings as errors. Checks that a call gets the values that were set.
 */
#include <cstdio>
#include <cstdlib>

#include <tutti/ddp.h>
#include <tutti/train.h>
#include <tutti/tutti.h>

static void check(bool right, const char *what) {
    if (right) return;
    std::fprintf(stderr, "%s (%s)\n", what, tutti_last_error());
    std::exit(1);
}

/* 21, summed over one rank with the factor 2. */
static void check_work(tutti_work *work, const double &value, const char *what) {
    check(work != nullptr && tutti_work_wait(work, -1) == TUTTI_OK && value == 42, what);
    tutti_work_free(work);
}

/* The temporary must exist until the call has copied what it needs; its memory must not be reused before. */
static void check_call(const tutti_options *options, const tutti_comm_options *comm, const tutti_ddp_options *ddp) {
    check(options->struct_bytes == sizeof(tutti_options) && options->stream == nullptr && options->factor == 0,
          "options");
    check(comm->struct_bytes == sizeof(tutti_comm_options) && comm->name == nullptr, "options of a communicator");
    check(ddp->struct_bytes == sizeof(tutti_ddp_options) && ddp->sums == 0, "options of an engine");
}

static void check_training(const tutti_train_model *model, const tutti_train_data *data,
                           const tutti_train_options *options) {
    check(model->struct_bytes == sizeof(tutti_train_model) && model->layer_bytes == sizeof(tutti_layer) &&
              model->layers == nullptr,
          "a model");
    check(data->struct_bytes == sizeof(tutti_train_data) && data->folder == nullptr, "data");
    check(options->struct_bytes == sizeof(tutti_train_options) && options->lr == 0 && !options->print,
          "options of training");
}

int main() {
    tutti_comm *comm = nullptr;
    check(tutti_comm_create_world(&comm) == TUTTI_OK, "no communicator");

    double value = 21;
    tutti_work *work = nullptr;
    tutti_options options = TUTTI_OPTIONS();
    options.work = &work;
    options.factor = 2;
    check(tutti_all_reduce(comm, &value, &value, 1, TUTTI_FLOAT64, TUTTI_PREMUL_SUM, &options) == TUTTI_OK,
          "a variable");
    check_work(work, value, "a variable");

    tutti_options plain;
    check_call(&plain, &TUTTI_COMM_OPTIONS(), &TUTTI_DDP_OPTIONS());
    check_training(&TUTTI_TRAIN_MODEL(), &TUTTI_TRAIN_DATA(), &TUTTI_TRAIN_OPTIONS());
    check_call(&TUTTI_OPTIONS(), &TUTTI_COMM_OPTIONS(), &TUTTI_DDP_OPTIONS());

#if __cplusplus >= 202002L
    value = 21;
    work = nullptr;
    check(tutti_all_reduce(comm, &value, &value, 1, TUTTI_FLOAT64, TUTTI_PREMUL_SUM,
                           &TUTTI_OPTIONS(.factor = 2, .work = &work)) == TUTTI_OK,
          "a temporary");
    check_work(work, value, "a temporary");

    tutti_comm *half = nullptr;
    check(tutti_comm_split(comm, 0, 0, &TUTTI_COMM_OPTIONS(.timeout_ms = 5000, .name = "half"), &half) == TUTTI_OK,
          "split");
    check(tutti_comm_destroy(half) == TUTTI_OK, "split");

    tutti_ddp *ddp = nullptr;
    float weight = 1;
    const tutti_ddp_parameter parameter = {.name = "w", .data = &weight, .count = 1, .type = TUTTI_FLOAT32};
    check(tutti_ddp_create(comm, &parameter, 1, &TUTTI_DDP_OPTIONS(.bucket_bytes = 1024, .sums = 1), &ddp) == TUTTI_OK,
          "ddp");
    tutti_ddp_destroy(ddp);
#endif
    tutti_comm_destroy(comm);
    return 0;
}
