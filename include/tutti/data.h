/*
 * Data pipelines: samples from a source, through a list of operations, in batches. Library: libtutti_data (pkg-config
 * tutti_data), with libtutti and zlib.
 *
 *   tutti_data_source *source;
 *   tutti_data_open_cifar10(folder, TUTTI_DATA_TRAIN, &source);
 *   const tutti_data_op ops[] = {{"random_crop", {32, 32, 4, 4, 4, 4}}, {"random_horizontal_flip", {0}},
 *                                {"rescale", {1.0 / 255}}, {"shuffle", {10}}, {"batch", {32, 1}}};
 *   tutti_data *data;
 *   tutti_data_create(source, ops, 5, &TUTTI_DATA_OPTIONS(.comm = comm), &data);
 *   for (tutti_data_batch batch; tutti_data_next(data, &batch) == TUTTI_OK && batch.count > 0;) ...
 *
 * A sample is an image [height, width, channels] of uint8 or float32, and a label. A pass is one run over the data;
 * its order is a permutation of all samples, and each shard (by default: each rank) takes its part. Random choices
 * depend on (seed, pass, sample) only: not on the number of shards, nor on threads, nor on how far batches are read
 * ahead.
 *
 * Batches are made ahead on a thread of the pipeline. A source must outlive its pipelines; several pipelines may read
 * one source at the same time, except where a call below says otherwise. One thread at a time calls a pipeline. These
 * calls do not communicate with other ranks, and break no communicator. What the caller passes is copied, except
 * memory behind a `context`.
 *
 * Errors of all calls; after those of calls that open or create something there is nothing to destroy:
 *   TUTTI_ERR_ARGUMENT  a wrong argument, option or operation; a path that is too long
 *   TUTTI_ERR_CONFIG    files that are not there; more shards than files (OFRecord); too many samples
 *   TUTTI_ERR_DATA      with file and offset: files that are damaged, cut or of another kind
 *   TUTTI_ERR_SYSTEM    the system refuses to open or read a file, or to start the pipeline's thread
 *   TUTTI_ERR_MEMORY
 */
#ifndef TUTTI_DATA_H
#define TUTTI_DATA_H

#include <tutti/tutti.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---------------------------------------------------------------------------------------------- sources */

typedef struct tutti_data_source tutti_data_source;

typedef enum tutti_data_part { TUTTI_DATA_TRAIN = 0, TUTTI_DATA_TEST } tutti_data_part;

/* Opens CIFAR-10, binary version: data_batch_1.bin to data_batch_5.bin (those that exist, without a gap) or
 * test_batch.bin in `folder`. 32x32x3, uint8, R, G, B; 10 classes. Samples are read when they are needed. Destroy
 * the source with tutti_data_source_destroy, as the sources of all calls below. */
TUTTI_API tutti_status tutti_data_open_cifar10(const char *folder, tutti_data_part part,
                                               tutti_data_source **source_out);

typedef enum tutti_data_cifar100_labels {
    TUTTI_DATA_FINE = 0, /* 100 classes */
    TUTTI_DATA_COARSE    /* 20 classes */
} tutti_data_cifar100_labels;

/* Opens CIFAR-100, binary version: train.bin or test.bin in `folder`. */
TUTTI_API tutti_status tutti_data_open_cifar100(const char *folder, tutti_data_part part,
                                                tutti_data_cifar100_labels labels, tutti_data_source **source_out);

/* Opens MNIST, Fashion-MNIST and data sets of their format: train- or t10k-images-idx3-ubyte and -labels-idx1-ubyte
 * in `folder`, plain or gzipped (.gz), or with the names used by mirrors (train-images.idx3-ubyte). height x width
 * x 1, uint8; labels 0 to 9. The data is kept in memory. */
TUTTI_API tutti_status tutti_data_open_mnist(const char *folder, tutti_data_part part, tutti_data_source **source_out);

/* Draws `count` digits of 28x28x1, uint8; the digits depend on seed and part only. */
TUTTI_API tutti_status tutti_data_open_digits(uint64_t seed, tutti_data_part part, int64_t count,
                                              tutti_data_source **source_out);

/* A source that the caller provides: either samples by number (count and read), or in sequence (begin and next).
 * The functions are called on the thread of a pipeline, and by tutti_data_seek or, with options.ahead -1,
 * tutti_data_next on the caller's thread; where several pipelines read the source, the functions must allow calls
 * from several threads at the same time. A function reports a failure with tutti_fail; tutti_data_next returns it
 * with the number of the sample. */
typedef struct tutti_data_user {
    size_t struct_bytes TUTTI_SIZE_OF(tutti_data_user); /* of this struct */
    void *context TUTTI_ZERO;                           /* passed to each call */
    int height TUTTI_ZERO, width TUTTI_ZERO, channels TUTTI_ZERO;
    tutti_type type TUTTI_ZERO; /* of images: TUTTI_UINT8 or TUTTI_FLOAT32 */
    int classes TUTTI_ZERO;     /* labels are from 0 to classes - 1, which is checked; 0: any label */
    int64_t count TUTTI_ZERO;   /* with read: the number of all samples */
    /* Reads sample `index`, 0 to count - 1: writes the image, [height, width, channels], and the label. */
    tutti_status (*read)(void *context, int64_t index, void *image, int32_t *label) TUTTI_ZERO;
    /* Begins a pass of one of the shards. Used without read. */
    tutti_status (*begin)(void *context, int64_t pass, int shard_id, int num_shards) TUTTI_ZERO;
    /* Reads the next sample of that shard; *end_out = 1: there is none. One pipeline at a time. */
    tutti_status (*next)(void *context, void *image, int32_t *label, int *end_out) TUTTI_ZERO;
} tutti_data_user;

#define TUTTI_DATA_USER(...) TUTTI_INITIALIZED(tutti_data_user, __VA_ARGS__)

/* Opens a source of the functions in `user`. TUTTI_ERR_ARGUMENT without read and a count from 1, or begin and next. */
TUTTI_API tutti_status tutti_data_open_user(const tutti_data_user *user, tutti_data_source **source_out);

#define TUTTI_OFRECORD_DIMS 8

/* What is read from each record of OFRecord files: a feature and how it is decoded (OneFlow's BlobConf with
 * RawCodec). */
typedef struct tutti_ofrecord_blob {
    const char *name; /* name of the feature */
    int ndims;
    int64_t shape[TUTTI_OFRECORD_DIMS];
    /* Type that the values are converted to: image uint8 or float32; label uint8, int8, int32 or int64 */
    tutti_type type;
} tutti_ofrecord_blob;

typedef struct tutti_ofrecord_options {
    size_t struct_bytes TUTTI_SIZE_OF(tutti_ofrecord_options); /* of this struct */
    int data_part_num TUTTI_ZERO;                              /* number of files; 0: 1 */
    const char *part_name_prefix TUTTI_ZERO;                   /* NULL: "part-" */
    int part_name_suffix_length TUTTI_ZERO; /* digits of a file's number, padded with zeros; 0 or -1: as needed */
    int truncate TUTTI_ZERO;                /* 1: lists of another length are cut, or padded with zeros */
    int shuffle_after_epoch TUTTI_ZERO;     /* 1: each pass takes the files in another order, the same on all ranks */
    int classes TUTTI_ZERO;                 /* labels are from 0 to classes - 1; 0: any */
} tutti_ofrecord_options;

#define TUTTI_OFRECORD_OPTIONS(...) TUTTI_INITIALIZED(tutti_ofrecord_options, __VA_ARGS__)

/* Opens files of OneFlow's OFRecord format, as flow.data.decode_ofrecord reads them: part-0, part-1 and so on in
 * `folder`. Files are divided over shards in order and evenly, the first (files mod shards) shards have one more;
 * more shards than files is an error of tutti_data_create. A file is read as a stream; at most one of its records
 * is in memory.
 *
 * There are two blobs: the label is the blob with one element and an integer type; the other is the image, of uint8
 * or float32 and of shape (height, width, channels), or (channels, height, width) where the first extent is 1 or 3
 * and the last is not. A feature that is a list of numbers must have the length of the blob (see truncate). A
 * feature of bytes must hold one value; its bytes are read as int8, as OneFlow does: 200 becomes -56 in a float32
 * blob, and is 200 again in a uint8 blob. Floats from 0 to 1 in an integer blob are an error, because nearly all
 * would be 0. Bytes beyond the size of the blob are cut; fewer bytes are an error. Record r of file p is sample p *
 * 2^32 + r. Errors of records name file, offset and record. */
TUTTI_API tutti_status tutti_ofrecord_open(const char *folder, const tutti_ofrecord_blob *blobs, int nblobs,
                                           const tutti_ofrecord_options *options, tutti_data_source **source_out);

typedef struct tutti_data_source_details {
    int height, width, channels;
    tutti_type type;
    int classes;      /* 0: unknown */
    int64_t count;    /* number of all samples; -1: unknown */
    const char *name; /* description of their origin, for people; valid as long as the source */
} tutti_data_source_details;

/* Gives the source's details. TUTTI_ERR_ARGUMENT when an argument is NULL. */
TUTTI_API tutti_status tutti_data_source_get(const tutti_data_source *source, tutti_data_source_details *details_out);

/* Frees the source. NULL is allowed. */
TUTTI_API void tutti_data_source_destroy(tutti_data_source *source);

/* ------------------------------------------------------------------------------------------- operations
 * A list of operations, carried out in order. Values that are left out are 0; where a default is named, 0 means it.
 *
 *   "random_crop"             height, width, left, top, right, bottom: pads with zeros by the last four, then takes
 *                             height x width at a random place, all places equally likely
 *   "random_horizontal_flip"  probability (default: 0.5)
 *   "resize"                  height, width: bilinear; source = (i + 0.5) in / out - 0.5, clamped to the edge; uint8
 *   is
 *                             rounded to the nearest
 *   "rescale"                 factor, shift: x * factor + shift, float32
 *   "normalize"               a mean for each channel, then a deviation for each: (x - mean) / deviation, float32
 *   "hwc_to_chw"              [height, width, channels] becomes [channels, height, width]
 *   "type_cast"               column (0: image, 1: label), type (a tutti_type): images uint8 or float32 (to uint8:
 *                             towards zero, to the nearer end of the range), labels int32
 *   "shuffle"                 buffer_size: a buffer of that many samples is filled; each time a random one of them is
 *                             returned and replaced by the next; at the end the rest follows in random order
 *   "batch"                   size (default: 32), drop_remainder (1: an incomplete last batch is dropped)
 *   "repeat"                  count (default: 1): number of passes, each with new random numbers; -1: without end
 *
 * The operations up to type_cast change one sample; crop, flip and resize come before hwc_to_chw. shuffle, batch and
 * repeat come after those, in this order, each at most once. Images of batches are float32, whatever the list ends
 * with. Normalization is by the position of the channel: CIFAR's images are R, G, B. */

#define TUTTI_DATA_OP_VALUES 16

typedef struct tutti_data_op {
    const char *name;
    double values[TUTTI_DATA_OP_VALUES];
} tutti_data_op;

/* -------------------------------------------------------------------------------------------- pipelines */

typedef struct tutti_data tutti_data;

/* How a pass of `count` samples is divided over n shards. With batches of b samples, batch k of all shards together
 * is the k-th run of n * b samples of the order, of which shard s has the s-th b; the rest at the end of the pass
 * is divided in the same way, by smaller runs. Therefore a global batch does not depend on n. */
typedef enum tutti_data_division {
    TUTTI_DATA_WRAP = 0, /* ceil(count / n) samples each: the last samples are the first of the order again */
    TUTTI_DATA_CUT,      /* floor(count / n) each; the rest is left out */
    TUTTI_DATA_RANGES    /* runs of the order, each sample once; lengths differ by up to one: for tests */
} tutti_data_division;

typedef struct tutti_data_options {
    size_t struct_bytes TUTTI_SIZE_OF(tutti_data_options); /* of this struct */
    const tutti_comm *comm TUTTI_ZERO; /* with num_shards 0: shards are its ranks. NULL: one shard */
    int num_shards TUTTI_ZERO;         /* 0: see comm */
    int shard_id TUTTI_ZERO;           /* with num_shards: 0 to num_shards - 1 */
    uint64_t seed TUTTI_ZERO;          /* the same on all shards */
    int in_order TUTTI_ZERO;           /* 1: samples come in the order of the source, not in a random one */
    tutti_data_division division TUTTI_ZERO;
    int ahead TUTTI_ZERO; /* batches that are made ahead; 0: 2; -1: none, tutti_data_next makes each batch itself */
    /* Only the samples from part_first on, part_count of them, are made of each batch; 0: all. For ranks that
     * divide each batch by rows, in parts of any size: with num_shards 1 all ranks have the same batches, and each
     * makes its own rows. Order, numbers and images are those of the whole batch. Sources by number are not read
     * for other rows; streams are read through. */
    int part_first TUTTI_ZERO, part_count TUTTI_ZERO;
    /* 1: batches have the labels of all their rows. Samples of other rows are then read, but not operated on. */
    int all_labels TUTTI_ZERO;
} tutti_data_options;

#define TUTTI_DATA_OPTIONS(...) TUTTI_INITIALIZED(tutti_data_options, __VA_ARGS__)

/* Creates a pipeline. Sources that stream (OFRecord, user.next) give each shard its own samples, in their order.
 * With OFRecord each shard takes the number of samples that the division gives: a shard that has fewer starts its
 * files again, a shard that has more leaves out the rest; TUTTI_DATA_RANGES: all of its own. options NULL:
 * defaults. Destroy the pipeline with tutti_data_destroy; `source` must outlive it. */
TUTTI_API tutti_status tutti_data_create(tutti_data_source *source, const tutti_data_op *ops, int nops,
                                         const tutti_data_options *options, tutti_data **data_out);

typedef struct tutti_data_details {
    int height, width, channels; /* of batches */
    int chw;                     /* 1: images are [channels, height, width] */
    int classes;                 /* 0: unknown */
    int batch_size;              /* of whole batches, as the next two members */
    int64_t samples;             /* of this shard in a pass; -1: unknown */
    int64_t batches;             /* of this shard in a pass; -1: unknown */
    int num_shards, shard_id;
    int drop_remainder; /* 1: an incomplete last batch is dropped */
    int64_t repeat;     /* passes; -1: without end */
} tutti_data_details;

/* Gives the pipeline's details. TUTTI_ERR_ARGUMENT when an argument is NULL. */
TUTTI_API tutti_status tutti_data_get(const tutti_data *data, tutti_data_details *details_out);

/* The memory belongs to the pipeline and is valid until the next call on it. */
typedef struct tutti_data_batch {
    const float *images;    /* [count, height, width, channels], or with chw [count, channels, height, width] */
    const int32_t *labels;  /* [count] */
    const int64_t *indices; /* [count]: numbers of the samples in the source; of user.next: numbers within the pass */
    int count;              /* 0: the end, after the last pass; with part_count see whole */
    int64_t pass, number;   /* from 0; batch `number` of the pass */
    /* Samples of the whole batch; 0: the end. An incomplete last batch may have no samples of the part. */
    int whole;
    const int32_t *all_labels; /* [whole]; NULL without options.all_labels */
} tutti_data_batch;

/* Gives the next batch. Errors of files and of the source's functions, whose status it returns, appear at the batch
 * that they concern: each later call returns the same error, until tutti_data_seek. TUTTI_ERR_MEMORY for batches and
 * TUTTI_ERR_SYSTEM for the thread may be tried again. After an error only the batches before it have been given. */
TUTTI_API tutti_status tutti_data_next(tutti_data *data, tutti_data_batch *batch_out);

/* Continues with batch `number` of a pass: to resume, or for other passes. Batches and numbers are those of an
 * uninterrupted run. A streaming source is read from the start of the pass up to that batch: errors as in
 * tutti_data_next, which returns them again. TUTTI_ERR_ARGUMENT, pass or number below 0: the position stays. */
TUTTI_API tutti_status tutti_data_seek(tutti_data *data, int64_t pass, int64_t number);

/* Ends the pipeline's thread and frees the pipeline. NULL is allowed. */
TUTTI_API void tutti_data_destroy(tutti_data *data);

#ifdef __cplusplus
}
#endif

#endif
