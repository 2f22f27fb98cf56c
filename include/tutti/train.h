/*
 * Training as a library: what tutti-train does, with the caller's own model and data. Library: libtutti_trainer
 * (pkg-config tutti_trainer), with libtutti, libtutti_data and a CBLAS.
 *
 *   tutti_comm *comm;
 *   tutti_train_result result;
 *   tutti_comm_create_world(&comm);
 *   tutti_train(comm, &TUTTI_TRAIN_MODEL(.name = "lenet"),
 *               &TUTTI_TRAIN_DATA(.dataset = "mnist", .folder = "data/mnist"),
 *               &TUTTI_TRAIN_OPTIONS(.epochs = 2, .optimizer = "momentum", .lr = 0.05), &result);
 *
 * A model is a list of the caller's layers or a ready model; data are a named data set, sources with operations, or
 * pipelines (tutti/data.h); options have the names of tutti-train's. Gradients are reduced over the ranks while
 * backward runs; layers may be divided over ranks, too. tutti_train does a whole run. For a loop in the caller:
 *
 *   tutti_train_open(comm, &model, &data, &options, &trainer);
 *   tutti_train_get(trainer, &details);
 *   for (int64_t step = details.step; step < details.total_steps; step++) tutti_train_step(trainer, &loss);
 *   tutti_train_evaluate(trainer, &evaluation);
 *   tutti_train_save(trainer, NULL, 0);
 *   tutti_train_close(trainer);
 *
 * Calls are collective over `comm` unless they say otherwise: all ranks make the same calls, in the same order, with
 * equal arguments. One thread at a time calls a trainer. Zero in a member means its default. Texts, arrays, sources and
 * pipelines that a struct points to stay the caller's, and must live until tutti_train_close.
 *
 * Errors of all calls:
 *   TUTTI_ERR_CONFIG, TUTTI_ERR_ARGUMENT   settings and models that do not fit
 *   TUTTI_ERR_DATA         files that are damaged; a loss that is not a number; no test samples
 *   TUTTI_ERR_UNSUPPORTED  what this machine or build lacks
 *   TUTTI_ERR_MISMATCH     settings differ between ranks, or parameters (options.check_parameters)
 *   TUTTI_ERR_MEMORY, TUTTI_ERR_SYSTEM   of the host or a GPU; a file cannot be read or written
 *   the errors of collectives (tutti/tutti.h) and of tutti/tensor.h, and the status that a callback, a source or
 *   distribute returned
 * Texts name a setting by the option of tutti-train: --batch-size is batch_size. A preparation that fails on one rank
 * fails on all ranks with that rank's status and text; the communicator stays whole then, and there is no trainer. A
 * later failure breaks the communicator (the other ranks get TUTTI_ERR_ABORTED), so that no rank waits for a rank that
 * has failed; after that only tutti_train_close may be called. TUTTI_ERR_ARGUMENT for a NULL, or for a call that a
 * callback must not make, comes from this rank alone, has done nothing and breaks nothing: the others wait.
 *
 * From tutti_train_open on the CBLAS computes with one thread in the whole process, unless OPENBLAS_NUM_THREADS or
 * OMP_NUM_THREADS is set: ranks share the cores.
 */
#ifndef TUTTI_TRAIN_H
#define TUTTI_TRAIN_H

#include <stdbool.h>
#include <stdio.h>

#include <tutti/data.h>
#include <tutti/ddp.h>
#include <tutti/tutti.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ----------------------------------------------------------------------------------------------- models */

#define TUTTI_LAYER_INPUTS 2

/* Activations are [batch, height, width, channels] of float32. A dense layer reads [batch, height * width *
 * channels] and its output is 1 x 1 x units. */
typedef enum tutti_layer_kind {
    TUTTI_LAYER_CONV = 0, /* units filters of kernel x kernel; weight [kernel, kernel, channels, units], bias [units] */
    TUTTI_LAYER_MAX_POOL, /* windows of kernel x kernel */
    TUTTI_LAYER_RELU,
    TUTTI_LAYER_DENSE, /* weight [inputs, units], bias [units] */
    /* Sets a part `rate` to zero and scales the rest by 1 / (1 - rate); does nothing in tests */
    TUTTI_LAYER_DROPOUT,
    TUTTI_LAYER_ADD,         /* the sum of two inputs of one shape: a residual connection */
    TUTTI_LAYER_BATCH_NORM,  /* over all but the channels; gamma, beta, moving_mean, moving_variance [channels] */
    TUTTI_LAYER_AVERAGE_POOL /* kernel 0: the mean of all pixels of square images */
} tutti_layer_kind;

typedef enum tutti_padding {
    TUTTI_PADDING_VALID, /* windows lie inside the image: out = ceil((in - kernel + 1) / stride) */
    TUTTI_PADDING_SAME   /* out = ceil(in / stride); the larger half of an odd padding comes after the image */
} tutti_padding;

/* How weights are initialized. fan_in and fan_out: the number of products in the sum of each output, or of each
 * gradient of an input. */
typedef enum tutti_initializer {
    /* Standard deviation tutti_layer.stddev, cut at two of them. With stddev 0, as in a layer that sets nothing:
     * HE_NORMAL for a convolution or dense layer with relu, XAVIER_UNIFORM for one without, 1 for batch norm's
     * gamma. For weights of 0 use CONSTANT. */
    TUTTI_INITIALIZER_TRUNCATED_NORMAL = 0,
    TUTTI_INITIALIZER_HE_NORMAL,      /* truncated normal of variance 2 / fan_in (He et al., 2015) */
    TUTTI_INITIALIZER_XAVIER_UNIFORM, /* in +-sqrt(6 / (fan_in + fan_out)) (Glorot and Bengio, 2010) */
    TUTTI_INITIALIZER_UNIFORM,        /* in +-tutti_layer.limit */
    TUTTI_INITIALIZER_CONSTANT        /* tutti_layer.constant */
} tutti_initializer;

/* One layer of a list. Members that its kind does not use are 0. */
typedef struct tutti_layer {
    /* Unique, not "input", up to 40 letters, digits and ._-; the layer's parameters are "<name>.weight" and so
     * on. */
    const char *name;
    tutti_layer_kind kind;
    /* Names of earlier layers, or "input"; inputs[0] NULL: the layer before. An add names both inputs. */
    const char *inputs[TUTTI_LAYER_INPUTS];
    int units;          /* filters of a convolution, outputs of a dense layer */
    int kernel, stride; /* of a window, in pixels */
    tutti_padding padding;
    bool relu;                     /* relu fused into a convolution, dense layer, batch norm or add */
    bool no_bias;                  /* a convolution or dense layer without bias */
    double rate;                   /* dropout: the rate, [0, 1) */
    double epsilon;                /* batch norm: added to the variance, above 0 */
    double momentum;               /* batch norm: the weight of each batch in the moving values, [0, 1] */
    tutti_initializer initializer; /* of weights, and of batch norm's gamma; its argument is one of: */
    double stddev, limit, constant;
    double bias;       /* start value of biases, and of batch norm's beta */
    double bias_limit; /* above 0: biases start uniform in +- this instead */
} tutti_layer;

#define TUTTI_TRAIN_LAYERS 256 /* most layers of a list */

/* A ready model, or a list of layers whose last layer gives the logits, 1 x 1 x classes. The output of each other
 * layer must be read by a later one. */
typedef struct tutti_train_model {
    size_t struct_bytes TUTTI_SIZE_OF(tutti_train_model); /* of this struct */
    /* Without layers: a ready model: "lenet", "mlp", "resnet20", "resnet18" or "resnet50" (docs/training.md); NULL:
     * "lenet", for CIFAR "resnet20", or, with options.resume, the checkpoint's model. With layers: a name for
     * checkpoints and messages; NULL: "model". */
    const char *name TUTTI_ZERO;
    /* Number of classes of a ready model; 0: that of the data, which must then be known */
    int classes TUTTI_ZERO;
    /* Dropout rate of a ready model; 0: the model's own (lenet: 0.5); below 0: none */
    double dropout TUTTI_ZERO;
    int hidden TUTTI_ZERO;                         /* units of the hidden layer of mlp; 0: 512 */
    const tutti_layer *layers TUTTI_ZERO;          /* the list; NULL: a ready model */
    int nlayers TUTTI_ZERO;                        /* layers in the list, 1 to TUTTI_TRAIN_LAYERS */
    size_t layer_bytes TUTTI_SIZE_OF(tutti_layer); /* sizeof(tutti_layer) */
} tutti_train_model;

#ifdef __cplusplus
#define TUTTI_TRAIN_MODEL(...) TUTTI_INITIALIZED(tutti_train_model, __VA_ARGS__)
#else
#define TUTTI_TRAIN_MODEL(...) TUTTI_INITIALIZED(tutti_train_model, .layer_bytes = sizeof(tutti_layer), __VA_ARGS__)
#endif

/* ------------------------------------------------------------------------------------------------- data */

/* The data that a model is trained and tested on, given in one of three ways.
 *
 *   a named set     dataset and folder. CIFAR's images are normalized, and cropped and flipped for training; uint8
 *                   becomes float32 in [0, 1]
 *   sources         train_source and test_source, with the caller's operations on samples; the trainer shuffles the
 *                   samples, divides them over ranks, makes batches and repeats
 *   pipelines       train and test: batches as the caller's pipelines make them. Only for parallel_mode data_parallel
 *                   with view mirrored: each rank has its own batches, all of one size, and options.batch_size is not
 *                   read
 */
typedef struct tutti_train_data {
    size_t struct_bytes TUTTI_SIZE_OF(tutti_train_data); /* of this struct */

    /* "mnist" (also Fashion-MNIST), "digits" (drawn), "cifar10", "cifar100" or "ofrecord". NULL: "mnist", or
     * "digits" where no folder is named or found. */
    const char *dataset TUTTI_ZERO;
    /* Folder of the set's files; for ofrecord, with folders train and test. NULL: the value of the environment
     * variable TUTTI_DATA; for mnist also ../shared/data/mnist and data/mnist. */
    const char *folder TUTTI_ZERO;
    const tutti_ofrecord_blob *blobs TUTTI_ZERO; /* ofrecord: two, image and label */
    int nblobs TUTTI_ZERO;
    const tutti_ofrecord_options *ofrecord TUTTI_ZERO; /* ofrecord; NULL: defaults, with 10 classes */
    /* ofrecord: files of the test data; 0: the number of training files */
    int test_part_num TUTTI_ZERO;
    bool no_augment TUTTI_ZERO; /* CIFAR: no crop and no flip */
    int resize TUTTI_ZERO;      /* images are resized to N x N; 0: not resized */

    tutti_data_source *train_source TUTTI_ZERO;
    tutti_data_source *test_source TUTTI_ZERO; /* NULL: no tests are run */
    const tutti_data_op *train_ops TUTTI_ZERO; /* operations on samples, without shuffle, batch and repeat */
    int ntrain_ops TUTTI_ZERO;                 /* up to 12 */
    const tutti_data_op *test_ops TUTTI_ZERO;
    int ntest_ops TUTTI_ZERO;

    /* For named sets and sources. */
    bool no_shuffle TUTTI_ZERO; /* train in the order of the source */
    /* Buffer in samples. Sources that stream (OFRecord) are shuffled by such a buffer only; 0: none. */
    int64_t shuffle_buffer TUTTI_ZERO;
    int64_t repeat TUTTI_ZERO; /* passes over the data in an epoch; 0: 1 */

    /* Created with tutti_data_options.comm = comm, "batch" with drop_remainder 1, and "repeat" with -1. An epoch is
     * `repeat` passes; the trainer seeks its first batch. drop_remainder may be 0 where the batch size divides the
     * number of the shard's samples. Order and random numbers follow from the pipeline's seed. */
    tutti_data *train TUTTI_ZERO;
    /* Created with comm and TUTTI_DATA_RANGES, in one pass; batches must be no larger than those of train. NULL: no
     * tests are run. */
    tutti_data *test TUTTI_ZERO;
} tutti_train_data;

#define TUTTI_TRAIN_DATA(...) TUTTI_INITIALIZED(tutti_train_data, __VA_ARGS__)

/* -------------------------------------------------------------------------------------------- callbacks */

typedef struct tutti_trainer tutti_trainer;

/* The result of a test on all test data. */
typedef struct tutti_train_evaluation {
    double loss;     /* mean over the samples */
    double accuracy; /* 0 to 1 */
    int64_t samples; /* of all ranks; 0: without test data; loss and accuracy are then 0 */
} tutti_train_evaluation;

/* The state of a run; valid during the call that gets it. */
typedef struct tutti_train_moment {
    tutti_trainer *trainer; /* for tutti_train_get, _stop, _evaluate and _save; the last two are collective as always */
    int rank, nranks;
    int64_t step;        /* steps done, those before a resume included */
    int64_t total_steps; /* the step at which the run ends */
    int64_t epoch;       /* epoch of the last step, or of the step that begins, from 1; 0: there is none yet */
    int64_t epoch_step;  /* number of that step in the epoch, from 1 */
    int64_t epoch_steps; /* steps of an epoch */
    bool has_loss;       /* step_end: the loss of this step was read (options.loss_every, monitor_every) */
    double loss;         /* the last loss that was read, the mean over the samples of all ranks; NaN: none */
    double lr;           /* learning rate of the step */
    /* Samples of all ranks per second: with has_loss since the last step that had it, else over recent steps; without
     * the time of tests and checkpoints. */
    double samples_per_second;
    const tutti_train_evaluation *test; /* evaluated: the result; else NULL */
    const char *path;                   /* saved: path of the checkpoint; else NULL */
    int stopped_by;                     /* end: as in tutti_train_result */
} tutti_train_moment;

typedef tutti_status (*tutti_train_hook)(void *context, const tutti_train_moment *now);

/* Functions that are called during training; each may be NULL. The thread that trains calls them, on the rank that
 * has them. A result other than TUTTI_OK ends training on all ranks with an error that names the callback. Inside
 * of a callback tutti_train_step, tutti_train_run and tutti_train_explain are errors, as are tutti_train_evaluate
 * in evaluated and tutti_train_save in saved; tutti_train_close does nothing there. */
typedef struct tutti_train_callback {
    const char *name;       /* for errors; NULL: its number in the list */
    void *context;          /* passed to each function; owned by the caller */
    tutti_train_hook begin; /* before the first step of this trainer */
    tutti_train_hook epoch_begin;
    tutti_train_hook step_begin;
    tutti_train_hook step_end;
    tutti_train_hook epoch_end; /* after the epoch's last step_end */
    tutti_train_hook evaluated; /* after each test */
    tutti_train_hook saved;     /* after each checkpoint, on rank 0 */
    tutti_train_hook end;       /* in tutti_train and tutti_train_run, after the last test */
} tutti_train_callback;

/* ---------------------------------------------------------------------------------------------- options */

/* Labels as distributions over the classes (MindSpore's sparse=False): writes [count, classes]; the row of each
 * sample follows from its label or its index in the source, and has numbers of at least 0 whose sum is usually 1.
 * indices is NULL where layers are divided over ranks and a rank computes losses of other samples than it reads.
 * Called for each batch, those of tests included. */
typedef tutti_status (*tutti_train_distribute)(void *context, const int32_t *labels, const int64_t *indices, int count,
                                               int classes, float *distributions_out);

/* Equal on all ranks, except callbacks, which each rank has of its own, and metrics, checkpoint_dir, overwrite and
 * save_strategy, which are taken from rank 0. */
typedef struct tutti_train_options {
    size_t struct_bytes TUTTI_SIZE_OF(tutti_train_options); /* of this struct */

    /* Length of the run. The run ends at whichever of steps and epochs comes first; with neither, after one epoch.
     * Both count from the very first step, before a resume, too. */
    int64_t steps TUTTI_ZERO;  /* 0: the run ends by epochs; -1: no step, tests only */
    int64_t epochs TUTTI_ZERO; /* 0: the run ends by steps; -1: no step, tests only */
    /* Samples of a step: of each rank, or, with view consistent, of all ranks together; up to 65536; 0: 100. */
    int64_t batch_size TUTTI_ZERO;
    /* For parameters, order of samples and dropout; with resume the checkpoint's seed is used */
    uint64_t seed TUTTI_ZERO;

    /* "softmax_cross_entropy", one kernel; or "softmax_cross_entropy_expand", in small steps: equal except for
     * rounding, finite for all finite logits. Where the last layer is divided by outputs, the second does not move
     * the logits of each class and reduces two numbers of each sample instead. NULL: the first. */
    const char *loss TUTTI_ZERO;
    /* softmax_cross_entropy_expand: function that makes distributions of labels; NULL: labels are classes. */
    tutti_train_distribute distribute TUTTI_ZERO;
    void *distribute_context TUTTI_ZERO; /* passed to distribute */

    /* Update of the parameters. */
    /* "sgd", "momentum", "adam" or "adamw"; NULL: "sgd", or, with resume, the checkpoint's optimizer. */
    const char *optimizer TUTTI_ZERO;
    /* Learning rate; 0: 0.001 with adam and adamw, else 0.01 for the ready models resnet18 and resnet50 and 0.1 for
     * all others. Below 0: a rate of 0. */
    double lr TUTTI_ZERO;
    /* For sgd and momentum, up to 1; 0: none with sgd, 0.9 with momentum; below 0: none */
    double momentum TUTTI_ZERO;
    double weight_decay TUTTI_ZERO;     /* for every optimizer; decoupled in adamw */
    bool nesterov TUTTI_ZERO;           /* for sgd and momentum, with a momentum above 0 */
    bool no_decay_norm_bias TUTTI_ZERO; /* no weight decay for biases and for batch norm's parameters */
    /* "constant", "linear" and "cosine" (down to 0 at the last step), "step"; NULL: "constant". */
    const char *lr_schedule TUTTI_ZERO;
    /* For step: rising epochs, "80,120"; NULL: after one half and three quarters of all steps. */
    const char *lr_milestones TUTTI_ZERO;
    /* For step: factor of the rate at each milestone; up to 1; 0: 0.1; below 0: 0. */
    double lr_factor TUTTI_ZERO;
    int64_t warmup_steps TUTTI_ZERO; /* steps in which the rate grows linearly up to lr */

    /* How the model and the data are divided over ranks (docs/training.md). */
    /* "mirrored": each rank has its own batch; "consistent": the batch is the job's; NULL: "mirrored" */
    const char *view TUTTI_ZERO;
    /* "stand_alone", "data_parallel", "layerwise_parallel", "hybrid_parallel" or "auto_parallel", in lower or upper
     * case; NULL: "data_parallel", or, with strategy, "hybrid_parallel". */
    const char *parallel_mode TUTTI_ZERO;
    const char *mesh TUTTI_ZERO; /* "2x2": the ranks as an array; NULL: as in strategy, or the mode's own */
    /* Path of a file with a line "mesh 2x2", unless mesh gives it, and lines "dense1 samples,outputs"; NULL: the
     * mode's own. */
    const char *strategy TUTTI_ZERO;
    int64_t memory_limit TUTTI_ZERO;      /* for auto_parallel: bytes of each rank; 0: no limit */
    const char *save_strategy TUTTI_ZERO; /* path that the strategy is written to; NULL: not written */

    /* How the ranks train together. */
    int zero TUTTI_ZERO; /* 1: ZeRO-1, each rank keeps and updates one part of the optimizer's state; 0: all of it */
    /* Each rank begins with its own parameters. Where only the batch is divided, seeds may then differ. */
    bool no_parameter_broadcast TUTTI_ZERO;
    bool no_mirror_mean TUTTI_ZERO;      /* view mirrored: gradients are summed over ranks, not averaged */
    int64_t check_parameters TUTTI_ZERO; /* compare the ranks' parameters every N steps; 0: never */
    /* Parameters whose names ("conv1.weight") begin with one of these nfreeze texts are not trained. */
    const char *const *freeze TUTTI_ZERO;
    int nfreeze TUTTI_ZERO;

    /* Where the ranks compute. */
    const char *device TUTTI_ZERO;    /* "auto" (a GPU where there is one), "host" or "cuda"; NULL: "auto" */
    const char *precision TUTTI_ZERO; /* of matrix products on GPUs: "fp32", "tf32" or "bf16"; NULL: "fp32" */
    bool eager TUTTI_ZERO;            /* GPUs: launch every kernel instead of replaying a recorded step */

    /* Checkpoints: safetensors files with the parameters, the optimizer's state and the position of the run,
     * <folder>/step-<step>.safetensors. tutti_train and tutti_train_run write one after each epoch and at the
     * end. */
    /* A folder without checkpoints, or the folder of resume; created when needed; NULL: no checkpoints are
     * written. */
    const char *checkpoint_dir TUTTI_ZERO;
    bool overwrite
        TUTTI_ZERO; /* checkpoint_dir may have checkpoints; they are removed after the first new one is written */
    const char *resume TUTTI_ZERO; /* a checkpoint, or a folder whose latest one is used; NULL: start anew */
    /* tutti_train and tutti_train_run, with a checkpoint_dir: SIGINT or SIGTERM to any rank ends the run on all
     * ranks, with a checkpoint. Handlers are installed only during the run, and only where the default action was
     * in place. One run at a time. */
    bool catch_signals TUTTI_ZERO;

    /* Output. Losses are means over the samples of all ranks. */
    int64_t eval_every TUTTI_ZERO; /* test after every N steps; 0: at the end only */
    /* Tests use the first N samples of the test data, whatever the number of ranks; with the caller's pipelines,
     * the first samples of each rank's pipeline, N together. 0: all samples. */
    int64_t eval_samples TUTTI_ZERO;
    /* The losses of step 1 and of every N-th step are read, which takes a small reduction over ranks; 0: 20. Losses
     * before a test or a checkpoint are read, too, and with monitor_every all losses, but these are not reported. A
     * loss that is not a number is an error. */
    int64_t loss_every TUTTI_ZERO;
    /* Rank 0 prints these losses, tests and checkpoints to stdout, and progress to stderr where that is a terminal. */
    bool print TUTTI_ZERO;
    /* N: rank 0 prints "epoch: 1 step: 156, loss is 1.9" to stdout for steps whose number in their epoch is a
     * multiple of N, as MindSpore's LossMonitor(N) does, in place of print's losses; 0: no such lines; -1: no
     * losses are printed at all. */
    int64_t monitor_every TUTTI_ZERO;
    /* Path of a file of JSON lines that rank 0 writes: these losses, tests, checkpoints; continued with resume;
     * NULL: none. */
    const char *metrics TUTTI_ZERO;
    /* Each rank's own list, called in its order; lists may differ between ranks, or be empty. Where any rank has
     * one, the ranks agree after each step whether to stop, which is a small reduction. */
    const tutti_train_callback *callbacks TUTTI_ZERO;
    int ncallbacks TUTTI_ZERO;
} tutti_train_options;

#define TUTTI_TRAIN_OPTIONS(...) TUTTI_INITIALIZED(tutti_train_options, __VA_ARGS__)

/* ------------------------------------------------------------------------------------------------- runs */

typedef struct tutti_train_result {
    tutti_train_evaluation test; /* after the last step; zeros in a run that was stopped by a signal */
    double loss;                 /* the last loss that was read, which a test does, too; NaN: none */
    int64_t steps;               /* steps done, those before a resume included */
    /* 0: all steps are done; TUTTI_TRAIN_STOPPED_BY_CALLBACK; above 0: the signal that stopped the run. */
    int stopped_by;
} tutti_train_result;

#define TUTTI_TRAIN_STOPPED_BY_CALLBACK (-1)

/* Does a whole run: open, run, close. model NULL: the default ready model. options NULL: defaults. A failure has
 * broken `comm`, except a failure of the preparation; with parallel_mode stand_alone, only the rank's own one. */
TUTTI_API tutti_status tutti_train(tutti_comm *comm, const tutti_train_model *model, const tutti_train_data *data,
                                   const tutti_train_options *options, tutti_train_result *result_out);

/* Reads data and checkpoint, makes the model and the optimizer, and, without options.no_parameter_broadcast, makes
 * the parameters of all ranks equal. `comm` must outlive the trainer. With parallel_mode stand_alone each rank has
 * its own trainer, and later calls are not collective. Close it with tutti_train_close. */
TUTTI_API tutti_status tutti_train_open(tutti_comm *comm, const tutti_train_model *model, const tutti_train_data *data,
                                        const tutti_train_options *options, tutti_trainer **trainer_out);

typedef struct tutti_train_details {
    int rank, nranks;      /* among the ranks that train together */
    const char *model;     /* name of the model */
    const char *optimizer; /* name of the optimizer */
    const char *data;      /* description of the origin of the data, for people */
    bool drawn;            /* digits are drawn, because that was asked for or no MNIST was found */
    const char *resumed;   /* path of the checkpoint that the run resumed from; NULL: none */
    int64_t train_samples; /* of all ranks, in a pass; -1: unknown */
    int64_t test_samples;  /* the same for tests; 0: there are no tests */
    int height, width, channels, classes;
    int64_t batch_size; /* samples of a step, of all ranks */
    int64_t rank_batch; /* of these, the samples that this rank reads */
    int64_t steps_per_epoch;
    int64_t total_steps;            /* step at which the run ends, by steps and epochs */
    int64_t step;                   /* steps done */
    int64_t epoch;                  /* epoch under way, from 0: the number of whole epochs done */
    uint64_t parameters;            /* trained numbers of the whole model, those of all ranks' parts together */
    uint64_t frozen;                /* numbers in parameters that are not trained (options.freeze) */
    uint64_t states;                /* other numbers of the model: batch norm's moving values */
    uint64_t memory_bytes;          /* of the model with its activations, on this rank */
    double flops_per_sample;        /* forward and backward */
    tutti_ddp_statistics gradients; /* statistics of the gradients' reduction so far */
} tutti_train_details;

/* Local. Texts are valid as long as the trainer. TUTTI_ERR_ARGUMENT when an argument is NULL. */
TUTTI_API tutti_status tutti_train_get(const tutti_trainer *trainer, tutti_train_details *details_out);

/* Does one step on the next batch, whatever total_steps is. loss_out: the loss before the update, the mean over the
 * samples of all ranks; NULL, on all ranks: the loss is not read. On a GPU the step is enqueued, unless its loss is
 * read. */
TUTTI_API tutti_status tutti_train_step(tutti_trainer *trainer, double *loss_out);

/* Runs a test with the current parameters. */
TUTTI_API tutti_status tutti_train_evaluate(tutti_trainer *trainer, tutti_train_evaluation *evaluation_out);

/* Rank 0 writes a checkpoint to options.checkpoint_dir; without that option the call does nothing. path_out, of
 * `capacity` bytes, gets the path on rank 0, and "" on other ranks; it may be NULL, with capacity 0. A path that does
 * not fit is TUTTI_ERR_ARGUMENT: the checkpoint is written, and the communicator whole. TUTTI_ERR_SYSTEM: it cannot be
 * written; no part of it stays. */
TUTTI_API tutti_status tutti_train_save(tutti_trainer *trainer, char *path_out, size_t capacity);

/* Does the steps up to total_steps, with tests and checkpoints between them, and a test at the end. */
TUTTI_API tutti_status tutti_train_run(tutti_trainer *trainer, tutti_train_result *result_out);

/* Local, for callbacks: the run ends after this step, with a checkpoint (checkpoint_dir) and a test, on all ranks,
 * whichever rank asked. In begin and epoch_begin: after the step that follows. Does nothing in a loop of the
 * caller. */
TUTTI_API tutti_status tutti_train_stop(tutti_trainer *trainer);

/* Rank 0 prints to `file` how layers are divided over ranks and what a step moves; other ranks print nothing. */
TUTTI_API tutti_status tutti_train_explain(tutti_trainer *trainer, FILE *file);

/* Frees the trainer. Local. NULL is allowed. `comm` stays the caller's. */
TUTTI_API void tutti_train_close(tutti_trainer *trainer);

#ifdef __cplusplus
}
#endif

#endif
