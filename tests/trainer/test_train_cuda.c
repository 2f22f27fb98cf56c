/*
 * Training on a GPU: losses compared with the host's, for every optimizer, recorded or launched, on one or two ranks,
 * and across checkpoints. On the stand-in (TUTTI_CUDA_MODULE), whose kernels are those of kernels/cuda run on the
 * host, or on this machine's GPU. Skipped if there is neither.
 */
#include <criterion/criterion.h>
#include <dlfcn.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/training/files.h"
#include "tests/support/training/training.h"

static char folder[FILES_PATH_BYTES];

static void make_folder(void) {
    if (getenv("TUTTI_CUDA_MODULE") == NULL && access("/dev/nvidiactl", F_OK) != 0) cr_skip("no GPU or stand-in");
    files_make_folder(folder);
    files_write_mnist(folder, 120, 31);
}

static void remove_folder(void) {
    files_remove(folder);
}

TestSuite(train_cuda, .init = make_folder, .fini = remove_folder, .timeout = 100);

static void expect_run(int nranks, training_run *what, int steps, double *losses_out) {
    int count = 0;
    what->data = folder;
    const char *failure = training_losses(RANKS_PROCESSES, nranks, what, losses_out, &count);
    cr_assert_null(failure, "%s", failure);
    cr_assert_eq(count, steps);
}

static void expect_near(int count, const double *got, const double *expected, double tolerance) {
    for (int i = 0; i < count; i++)
        cr_assert(fabs(got[i] - expected[i]) <= tolerance * (1 + fabs(expected[i])), "step %d: %.10f, expected %.10f",
                  i + 1, got[i], expected[i]);
}

enum { STEPS = 8 };

#define OPTIONS(...) "--batch-size", "12", "--steps", "8", "--lr", "0.01", __VA_ARGS__

/* On the smooth model, since kernels differ: see training.h. */
Test(train_cuda, losses_are_the_hosts_with_every_optimizer) {
    static const char *const optimizers[] = {"sgd", "momentum", "adam", "adamw"};
    for (int i = 0; i < 4; i++) {
        training_run host = {.options = {OPTIONS("--optimizer", optimizers[i])}, .smooth = true}, cuda = host;
        cuda.options[8] = "--device", cuda.options[9] = "cuda";
        double expected[TRAINING_LOSSES], got[TRAINING_LOSSES];
        expect_run(1, &host, STEPS, expected);
        expect_run(1, &cuda, STEPS, got);
        expect_near(STEPS, got, expected, TRAINING_ROUNDING);
    }
}

/* The second loss agrees, too, if no value of a max-pool changes its place in the first step: at most one start in
 * ten has such a value, so three starts that all have one are rarer than one in a thousand. With such a value the
 * loss differs by about a thousandth. */
Test(train_cuda, lenet_begins_as_on_the_host) {
    static const char *const seeds[] = {"1", "2", "3"};
    int near = 0;
    for (int i = 0; i < 3; i++) {
        training_run host = {.options = {OPTIONS("--model", "lenet", "--seed", seeds[i])}}, cuda = host;
        host.options[3] = cuda.options[3] = "2";
        cuda.options[10] = "--device", cuda.options[11] = "cuda";
        double expected[TRAINING_LOSSES], got[TRAINING_LOSSES];
        expect_run(1, &host, 2, expected);
        expect_run(1, &cuda, 2, got);
        expect_near(1, got, expected, TRAINING_ROUNDING);
        expect_near(2, got, expected, 1e-2);
        near += fabs(got[1] - expected[1]) <= TRAINING_ROUNDING * (1 + expected[1]);
    }
    cr_assert(near > 0, "the second loss differs with each seed");
}

Test(train_cuda, a_recorded_step_gives_the_bits_of_a_launched_one) {
    training_run recorded = {.options = {OPTIONS("--model", "lenet", "--optimizer", "adam", "--lr-schedule", "cosine",
                                                 "--device", "cuda")}},
                 launched = recorded;
    launched.options[14] = "--eager";
    double a[TRAINING_LOSSES], b[TRAINING_LOSSES];
    expect_run(1, &recorded, STEPS, a);
    expect_run(1, &launched, STEPS, b);
    expect_near(STEPS, a, b, 0);
}

/* Compares with one rank that computes the parts of two, whose sums have only one order: bit for bit on the stand-in.
 * On a GPU cuBLAS may use another kernel for a gradient at another address; there `what` is smooth. */
static void expect_parts(training_run what, const double *got) {
    double parts[TRAINING_LOSSES];
    int count = 0;
    what.data = folder;
    const char *failure = training_losses_of_parts(RANKS_PROCESSES, 2, &what, parts, &count);
    cr_assert_null(failure, "%s", failure);
    cr_assert_eq(count, STEPS);
    expect_near(STEPS, got, parts, what.smooth ? TRAINING_ROUNDING : 0);
}

Test(train_cuda, two_ranks_give_the_bits_of_one_that_computes_both_parts) {
    training_run two = {.options = {OPTIONS("--model", "lenet", "--device", "cuda")}};
    two.options[1] = "6";
    two.smooth = getenv("TUTTI_CUDA_MODULE") == NULL;
    double got[TRAINING_LOSSES];
    expect_run(2, &two, STEPS, got);
    expect_parts(two, got);
}

/* Covers redistributions between the layers, forwards and backwards, and bias and ReLU after partial sums. */
Test(train_cuda, layers_that_are_divided_give_the_losses_of_one_rank) {
    static const char *const strategies[] = {"dense1 outputs\ndropout outputs\ndense2 samples\n",
                                             "dense1 inputs\ndense2 outputs\n", "dense1 samples\ndense2 inputs\n"};
    training_run one = {.options = {OPTIONS("--model", "mlp", "--view", "consistent", "--dropout", "0.3")}}, two = one;
    char path[FILES_PATH_BYTES];
    double a[TRAINING_LOSSES], b[TRAINING_LOSSES];
    expect_run(1, &one, STEPS, a);
    files_join(folder, "strategy", path);
    two.options[12] = "--device", two.options[13] = "cuda", two.options[14] = "--mesh", two.options[15] = "2";
    two.options[16] = "--strategy", two.options[17] = path;
    for (size_t i = 0; i < sizeof strategies / sizeof *strategies; i++) {
        files_write(folder, "strategy", false, strategies[i], strlen(strategies[i]));
        expect_run(2, &two, STEPS, b);
        expect_near(STEPS, b, a, TRAINING_ROUNDING);
    }
}

#define EXPAND OPTIONS("--model", "mlp", "--view", "consistent", "--loss", "softmax_cross_entropy_expand")

/* 0.9 for the label, the rest for a class that the sample's number selects, if that is known. */
static tutti_status smooth_labels(void *context, const int32_t *labels, const int64_t *indices, int count, int classes,
                                  float *distributions_out) {
    (void)context;
    memset(distributions_out, 0, (size_t)count * (size_t)classes * sizeof *distributions_out);
    for (int i = 0; i < count; i++) {
        distributions_out[i * classes + labels[i]] += 0.9f;
        distributions_out[i * classes + (indices != NULL ? (int)(indices[i] % classes) : 0)] += 0.1f;
    }
    return TUTTI_OK;
}

/* On ranks with whole logits, whose steps are recorded, and on ranks that have some of the classes, or of the classes
 * and samples. */
Test(train_cuda, the_expanded_loss_is_the_hosts_with_whole_and_with_divided_classes) {
    static const struct {
        int nranks;
        const char *mode, *mesh;
    } cases[] = {{1, "data_parallel", "1"},     {2, "data_parallel", "2"},      {2, "layerwise_parallel", "2"},
                 {2, "hybrid_parallel", "1x2"}, {4, "layerwise_parallel", "4"}, {4, "hybrid_parallel", "2x2"}};
    const size_t ncases = sizeof cases / sizeof *cases;
    double first = 0;
    for (size_t i = 0; i < 2 * ncases; i++) {
        const int nranks = cases[i % ncases].nranks;
        training_run host = {.options = {EXPAND, "--mesh", cases[i % ncases].mesh, "--parallel-mode",
                                         cases[i % ncases].mode},
                             .distribute = i < ncases ? NULL : smooth_labels},
                     cuda = host;
        cuda.options[16] = "--device", cuda.options[17] = "cuda";
        double expected[TRAINING_LOSSES], got[TRAINING_LOSSES];
        expect_run(nranks, &host, STEPS, expected);
        expect_run(nranks, &cuda, STEPS, got);
        expect_near(STEPS, got, expected, TRAINING_ROUNDING);
        expect_near(1, &cuda.test_loss, &host.test_loss, TRAINING_ROUNDING);
        cr_assert(cuda.test_accuracy > 0 && cuda.test_accuracy == host.test_accuracy, "case %zu: accuracy %g, not %g",
                  i, cuda.test_accuracy, host.test_accuracy);
        if (i == 0) first = got[0];
        cr_assert(fabs(got[0] - first) > 1e-3 || i < ncases, "case %zu: labels were not made smooth", i);
    }
}

Test(train_cuda, two_ranks_follow_one_rank_with_the_whole_batch) {
    training_run one = {.options = {OPTIONS("--device", "cuda")}, .smooth = true}, two = one;
    two.options[1] = "6";
    double a[TRAINING_LOSSES], b[TRAINING_LOSSES];
    expect_run(1, &one, STEPS, a);
    expect_run(2, &two, STEPS, b);
    expect_near(STEPS, b, a, TRAINING_ROUNDING);
}

/* With the stand-in for NCCL, whose calls can be recorded; with a fault, a run that makes more than that number of
 * calls fails. */
static void run_on_two_gpus(training_run *run, const char *fault, double *losses_out) {
    setenv("STANDIN_NCCL_FAIL", fault, 1);
    run->own_gpus = true;
    expect_run(2, run, STEPS, losses_out);
    unsetenv("STANDIN_NCCL_FAIL");
}

Test(train_cuda, a_recorded_step_contains_the_buckets_reduced_in_their_own_stream) {
    if (getenv("TUTTI_CUDA_MODULE") == NULL) cr_skip("how often NCCL is called is known of its stand-in only");
    training_run recorded = {.options = {OPTIONS("--model", "lenet", "--optimizer", "adam", "--device", "cuda")}},
                 launched;
    recorded.options[1] = "6";
    launched = recorded;
    launched.options[12] = "--eager";
    double a[TRAINING_LOSSES], b[TRAINING_LOSSES];
    run_on_two_gpus(&recorded, "ncclAllReduce:9:2", a); /* two buckets, three steps, and one trial */
    run_on_two_gpus(&launched, "", b);
    expect_near(STEPS, a, b, 0);
    launched.own_gpus = false;
    expect_parts(launched, a);
}

/* With the engine for ranks on one GPU: in each step that is not replayed a rank's stream writes at least one value. */
Test(train_cuda, ranks_that_share_a_gpu_record_their_steps) {
    enum { MANY = 24 };
    if (getenv("TUTTI_CUDA_MODULE") == NULL) cr_skip("how often streams write values is known of the stand-in only");
    training_run recorded = {.options = {OPTIONS("--model", "mlp", "--device", "cuda")}, .data = folder}, launched;
    recorded.options[1] = "6", recorded.options[3] = "24";
    launched = recorded;
    launched.options[10] = "--eager";
    double a[TRAINING_LOSSES], b[TRAINING_LOSSES], c[TRAINING_LOSSES];
    int count;
    expect_run(2, &launched, MANY, a);
    setenv("STANDIN_FAIL", "use_values:40", 1);
    expect_run(2, &recorded, MANY, b);
    const char *failure = training_losses(RANKS_PROCESSES, 2, &launched, c, &count);
    unsetenv("STANDIN_FAIL");
    cr_assert(failure != NULL && strstr(failure, "use_values") != NULL, "%s", failure);
    expect_near(MANY, b, a, 0);
}

Test(train_cuda, steps_are_launched_if_sums_keep_the_order_of_ranks) {
    if (getenv("TUTTI_CUDA_MODULE") == NULL) cr_skip("two GPUs and NCCL are the stand-ins'");
    training_run two = {.options = {OPTIONS("--model", "mlp", "--device", "cuda")}};
    two.options[1] = "6";
    double got[TRAINING_LOSSES];
    setenv("TUTTI_DETERMINISTIC", "1", 1);
    run_on_two_gpus(&two, "", got);
    unsetenv("TUTTI_DETERMINISTIC");
    two.own_gpus = false;
    expect_parts(two, got);
}

/* NCCL's sums on a GPU may have another order than the host's. */
static void check_zero(training_run plain, int at, bool own_gpus) {
    training_run zero = plain;
    double a[TRAINING_LOSSES], b[TRAINING_LOSSES];
    zero.options[at] = "--zero", zero.options[at + 1] = "1";
    plain.own_gpus = zero.own_gpus = own_gpus;
    expect_run(2, &plain, STEPS, a);
    expect_run(2, &zero, STEPS, b);
    expect_near(STEPS, b, a, getenv("TUTTI_CUDA_MODULE") != NULL ? 0 : 2e-4);
}

/* On ranks that share a GPU, and ranks with one each; recorded and launched; with divided layers, and with frozen
 * ones. */
Test(train_cuda, zero_gives_the_bits_of_whole_optimizers) {
    const bool own_gpus = getenv("TUTTI_CUDA_MODULE") != NULL;
    training_run run = {.options = {OPTIONS("--model", "mlp", "--optimizer", "adam", "--device", "cuda")}}, other = run;
    check_zero(run, 12, false);
    check_zero(run, 12, own_gpus);
    other.options[12] = "--eager", other.options[13] = "--freeze", other.options[14] = "dense1.bias";
    check_zero(other, 15, false);
    run.options[12] = "--parallel-mode", run.options[13] = "hybrid_parallel";
    run.options[14] = "--mesh", run.options[15] = "2x1";
    check_zero(run, 16, own_gpus);
}

Test(train_cuda, a_failed_recording_is_an_error_with_advice) {
    if (getenv("TUTTI_CUDA_MODULE") == NULL) cr_skip("failures can be made on the stand-in only");
    training_run what = {
        .options = {OPTIONS("--model", "lenet", "--device", "cuda")}, .data = folder, .own_gpus = true};
    double losses[TRAINING_LOSSES];
    int count;
    what.options[1] = "6";
    setenv("STANDIN_NCCL_FAIL", "ncclAllReduce:6:2", 1); /* the first one of the third step */
    const char *failure = training_losses(RANKS_PROCESSES, 2, &what, losses, &count);
    unsetenv("STANDIN_NCCL_FAIL");
    cr_assert(failure != NULL && strstr(failure, "--eager") != NULL, "%s", failure);
}

/* ------------------------------------------------------------------------------------- residual networks */

#define RESNET(device)                                                                                                 \
    OPTIONS("--model", "resnet20", "--resize", "16", "--optimizer", "momentum", "--nesterov", "--weight-decay",        \
            "1e-4", "--no-decay-norm-bias", "--device", device)

enum { FEW = 3, MORE = 18 }; /* steps; index of the options after those */

/* A test divides by moving variances, which are small after few steps: on an H100, losses of training that agree within
 * 1e-6 gave test losses within 1.6e-4. */
#define TEST_ROUNDING 5e-4

static bool is_near(double got, double expected, double tolerance) {
    return fabs(got - expected) <= tolerance * (1 + fabs(expected));
}

/* If no value of a ReLU changes its side in the first steps (training.h), as with more than half of the seeds, the
 * losses are the host's within rounding, and a test's results with the moving values are close. */
static void expect_host_and_cuda_agree(int nranks, training_run host) {
    static const char *const seeds[] = {"1", "2", "3", "4"};
    double expected[TRAINING_LOSSES], got[TRAINING_LOSSES];
    int agreed = 0, end = MORE;
    host.options[3] = "3";
    while (host.options[end] != NULL) end++;
    for (int i = 0; i < 4 && agreed == 0; i++) {
        host.options[end] = "--seed", host.options[end + 1] = seeds[i];
        training_run cuda = host;
        cuda.options[MORE - 1] = "cuda";
        expect_run(nranks, &host, FEW, expected);
        expect_run(nranks, &cuda, FEW, got);
        expect_near(1, got, expected, TRAINING_ROUNDING);
        expect_near(FEW, got, expected, 2e-2);
        cr_assert(host.test_loss > 0);
        bool same = is_near(cuda.test_loss, host.test_loss, TEST_ROUNDING);
        for (int step = 0; step < FEW; step++) same &= is_near(got[step], expected[step], TRAINING_ROUNDING);
        agreed += same;
    }
    cr_assert(agreed > 0, "the losses differ with each seed");
}

Test(train_cuda, a_residual_network_trains_and_is_tested_as_on_the_host) {
    expect_host_and_cuda_agree(1, (training_run){.options = {RESNET("host")}});
}

/* Batch norm over all samples of some channels, and over some samples, before a dense layer divided by outputs. */
Test(train_cuda, divided_layers_of_a_residual_network_give_the_hosts_losses) {
    static const char *const modes[] = {"layerwise_parallel", "hybrid_parallel"};
    for (int i = 0; i < 2; i++) {
        training_run host = {.options = {RESNET("host"), "--parallel-mode", modes[i]}};
        host.options[1] = "6";
        expect_host_and_cuda_agree(2, host);
    }
}

Test(train_cuda, a_recorded_step_of_a_residual_network_gives_the_bits_of_a_launched_one) {
    training_run recorded = {.options = {RESNET("cuda")}}, launched = recorded;
    recorded.options[1] = launched.options[1] = "4";
    launched.options[MORE] = "--eager";
    double a[TRAINING_LOSSES], b[TRAINING_LOSSES];
    expect_run(1, &recorded, STEPS, a);
    expect_run(1, &launched, STEPS, b);
    expect_near(STEPS, a, b, 0);
    cr_assert(a[0] != a[1] && recorded.test_loss == launched.test_loss);
}

/* 512 channels divided by three ranks are not multiples of four. */
Test(train_cuda, a_layer_without_kernels_for_gpus_is_refused_by_name) {
    training_run what = {.options = {OPTIONS("--model", "mlp", "--dropout", "0.3", "--device", "cuda",
                                             "--parallel-mode", "layerwise_parallel")},
                         .data = folder};
    double losses[TRAINING_LOSSES];
    int count;
    const char *failure = training_losses(RANKS_PROCESSES, 3, &what, losses, &count);
    cr_assert(failure != NULL && strstr(failure, "dropout (dropout)") != NULL &&
                  strstr(failure, "--device host") != NULL,
              "%s", failure);
}

/* bfloat16 rounds each factor by up to 2^-9 of it, a product by 2^-8 of its terms; for LeNet only the first loss is
 * close. */
Test(train_cuda, bfloat16_stays_near_fp32) {
    for (int smooth = 0; smooth < 2; smooth++) {
        training_run exact = {.options = {OPTIONS("--model", "lenet", "--device", "cuda")}, .smooth = smooth == 1};
        const int steps = smooth == 1 ? STEPS : 1;
        if (steps == 1) exact.options[3] = "1";
        training_run rounded = exact;
        rounded.options[10] = "--precision", rounded.options[11] = "bf16";
        double a[TRAINING_LOSSES], b[TRAINING_LOSSES];
        expect_run(1, &exact, steps, a);
        expect_run(1, &rounded, steps, b);
        expect_near(steps, b, a, 0x1p-8);
        cr_assert_neq(a[0], b[0]);
    }
}

/* The number of allocations of GPU memory in a run of the given steps, in a thread of this process. */
static int count_allocations(training_run what, const char *steps) {
    int (*counted)(void), count;
    double losses[TRAINING_LOSSES];
    what.data = folder;
    what.options[3] = steps;
    void *module = dlopen(getenv("TUTTI_CUDA_MODULE"), RTLD_NOW);
    void *symbol = module != NULL ? dlsym(module, "standin_allocations") : NULL;
    cr_assert_not_null(symbol);
    memcpy(&counted, &symbol, sizeof counted);
    int before = counted();
    const char *failure = training_losses(RANKS_THREADS, 1, &what, losses, &count);
    cr_assert_null(failure, "%s", failure);
    return counted() - before;
}

Test(train_cuda, a_step_allocates_no_memory) {
    if (getenv("TUTTI_CUDA_MODULE") == NULL) cr_skip("how often memory is taken is known on the stand-in only");
    training_run exact = {.options = {OPTIONS("--model", "mlp", "--optimizer", "adam", "--device", "cuda")}},
                 rounded = exact;
    rounded.options[12] = "--precision", rounded.options[13] = "bf16";
    for (int i = 0; i < 2; i++) {
        training_run what = i == 0 ? exact : rounded;
        int few = count_allocations(what, "1"), many = count_allocations(what, "9");
        cr_assert(few > 0 && few == many, "%d in a step, %d in nine", few, many);
    }
}

/* Half of the steps on one device, the rest, from a checkpoint, on the other. With the MLP: if a rounding moves a
 * value of its ReLU over 0, one unit lacks one sample, and the loss changes by less than 1e-4. */
static void check_resume(char *first_device, char *second_device, const double *expected) {
    char checkpoints[FILES_PATH_BYTES];
    double got[TRAINING_LOSSES];
    files_join(folder, "checkpoints", checkpoints);
    training_run first = {.options = {OPTIONS("--model", "mlp", "--optimizer", "adam", "--epochs", "9", "--device",
                                              first_device, "--checkpoint-dir", checkpoints)}},
                 second = first;
    first.options[3] = "4";
    second.options[13] = second_device;
    second.options[14] = "--resume";
    expect_run(1, &first, 4, got);
    expect_run(1, &second, STEPS - 4, got + 4);
    expect_near(STEPS, got, expected, 2e-4);
    files_remove(checkpoints);
}

Test(train_cuda, checkpoints_move_from_one_device_to_the_other) {
    training_run whole = {.options = {OPTIONS("--model", "mlp", "--optimizer", "adam", "--epochs", "9")}};
    double expected[TRAINING_LOSSES];
    expect_run(1, &whole, STEPS, expected);
    check_resume("cuda", "host", expected);
    check_resume("host", "cuda", expected);
    check_resume("cuda", "cuda", expected);
}

Test(train_cuda, a_failure_in_the_stream_ends_the_run_with_its_text) {
    if (getenv("TUTTI_CUDA_MODULE") == NULL) cr_skip("failures can be made on the stand-in only");
    static const char *const points[] = {"task:60", "task:20", "copy:9", "event_record:4", "alloc:6"};
    for (int i = 0; i < 5; i++) {
        training_run what = {.options = {OPTIONS("--model", "mlp", "--device", "cuda")}, .data = folder};
        double losses[TRAINING_LOSSES];
        int count;
        setenv("STANDIN_FAIL", points[i], 1);
        const char *failure = training_losses(RANKS_PROCESSES, 1, &what, losses, &count);
        unsetenv("STANDIN_FAIL");
        cr_assert(failure != NULL && strstr(failure, "stand-in") != NULL, "%s: %s", points[i], failure);
    }
}
