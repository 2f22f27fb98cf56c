/*
 * oneDNN's convolutions.
 *
 * Images stay [batch, height, width, channels], which oneDNN calls nhwc; weights and their gradient are copied
 * between our layout (hwio) and the one that oneDNN's kernel needs, which is little work compared with the
 * convolution. The primitives of a convolution are made once for each shape and batch, and kept until the process
 * ends: ranks of one process share them.
 *
 * Invariant: everything runs on the calling thread, so that ranks do not take each other's cores and sums have one
 * order. A oneDNN with threads other than OpenMP's is not used: it has no setting for this.
 */
#include "kernels/host/layers/conv_library.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include <oneapi/dnnl/dnnl.h>

#define NDIMS 4

/* A primitive, the layout of its weights, and the memory that it needs. */
typedef struct pass {
    dnnl_primitive_t primitive, reorder; /* reorder NULL: both layouts are the same */
    dnnl_memory_desc_t weights;          /* the layout that the primitive needs */
    size_t weights_bytes, scratch_bytes;
} pass;

typedef struct record {
    tutti_conv conv;
    int batch;
    bool works;
    dnnl_memory_desc_t x, y, weights, bias; /* the layouts of our arrays */
    pass forward, of_x, of_weights;
    size_t scratch_count;
    struct record *next;
} record;

/* Records are only added, at the front, under the lock. */
static struct {
    pthread_mutex_t lock;
    bool tried, off;
    dnnl_engine_t engine; /* NULL: oneDNN is not used */
    record *records;
} library = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* Only a oneDNN with OpenMP brings this function; else its address is NULL. */
extern void omp_set_num_threads(int threads) __attribute__((weak));

static void use_one_thread(void) {
    if (omp_set_num_threads != NULL) omp_set_num_threads(1);
}

static size_t align(size_t bytes) {
    return (bytes + 63) / 64 * 64;
}

/* ---------------------------------------------------------------------------------------- making records */

static void open_engine(void) {
    const unsigned runtime = dnnl_version()->cpu_runtime;
    library.tried = true;
    if (runtime != DNNL_RUNTIME_SEQ && runtime != DNNL_RUNTIME_OMP) return;
    if (dnnl_engine_create(&library.engine, dnnl_cpu, 0) != dnnl_success) library.engine = NULL;
}

static bool describe(record *r) {
    const tutti_window *w = &r->conv.window;
    const dnnl_dims_t x = {r->batch, w->channels, w->in_height, w->in_width};
    const dnnl_dims_t y = {r->batch, r->conv.filters, w->out_height, w->out_width};
    const dnnl_dims_t weights = {r->conv.filters, w->channels, w->kernel, w->kernel}, bias = {r->conv.filters};
    return dnnl_memory_desc_init_by_tag(&r->x, NDIMS, x, dnnl_f32, dnnl_nhwc) == dnnl_success &&
           dnnl_memory_desc_init_by_tag(&r->y, NDIMS, y, dnnl_f32, dnnl_nhwc) == dnnl_success &&
           dnnl_memory_desc_init_by_tag(&r->weights, NDIMS, weights, dnnl_f32, dnnl_hwio) == dnnl_success &&
           dnnl_memory_desc_init_by_tag(&r->bias, 1, bias, dnnl_f32, dnnl_x) == dnnl_success;
}

/* True for kernels that oneDNN generates for the processor; its reference kernel is slower than a matrix product. */
static bool is_quick(const_dnnl_primitive_desc_t description) {
    const char *name = "";
    (void)dnnl_primitive_desc_query(description, dnnl_query_impl_info_str, 0, (void *)&name);
    return strncmp(name, "jit", 3) == 0 || strncmp(name, "brg", 3) == 0;
}

/* Makes a copy between two layouts of weights; NULL if they are the same. */
static bool make_reorder(const dnnl_memory_desc_t *from, const dnnl_memory_desc_t *to, dnnl_primitive_t *reorder_out) {
    dnnl_primitive_desc_t description;
    if (dnnl_memory_desc_equal(from, to)) return true;
    if (dnnl_reorder_primitive_desc_create(&description, from, library.engine, to, library.engine, NULL) !=
        dnnl_success)
        return false;
    bool made = dnnl_primitive_create(reorder_out, description) == dnnl_success;
    (void)dnnl_primitive_desc_destroy(description);
    return made;
}

/* Fills in p, and destroys the description. */
static bool fill_pass(record *r, dnnl_primitive_desc_t description, dnnl_query_t weights, pass *p) {
    const dnnl_memory_desc_t *own = dnnl_primitive_desc_query_md(description, weights, 0);
    const dnnl_memory_desc_t *beside = dnnl_primitive_desc_query_md(description, dnnl_query_scratchpad_md, 0);
    const bool gives = weights == dnnl_query_diff_weights_md;
    bool good = own != NULL && is_quick(description);
    if (good) {
        p->weights = *own;
        p->weights_bytes = align(dnnl_memory_desc_get_size(own));
        p->scratch_bytes = beside != NULL ? align(dnnl_memory_desc_get_size(beside)) : 0;
        good = dnnl_primitive_create(&p->primitive, description) == dnnl_success &&
               make_reorder(gives ? own : &r->weights, gives ? &r->weights : own, &p->reorder);
        size_t count = (p->weights_bytes + p->scratch_bytes) / sizeof(float);
        if (count > r->scratch_count) r->scratch_count = count;
    }
    (void)dnnl_primitive_desc_destroy(description);
    return good;
}

/* The caller provides scratch; ReLU is fused after forward. */
static bool make_attributes(const record *r, bool forward, dnnl_primitive_attr_t *attributes_out) {
    dnnl_primitive_attr_t attributes;
    dnnl_post_ops_t behind = NULL;
    if (dnnl_primitive_attr_create(&attributes) != dnnl_success) return false;
    bool good = dnnl_primitive_attr_set_scratchpad_mode(attributes, dnnl_scratchpad_mode_user) == dnnl_success;
    if (good && forward && r->conv.relu) {
        good = dnnl_post_ops_create(&behind) == dnnl_success &&
               dnnl_post_ops_append_eltwise(behind, 1, dnnl_eltwise_relu, 0, 0) == dnnl_success &&
               dnnl_primitive_attr_set_post_ops(attributes, behind) == dnnl_success;
        if (behind != NULL) (void)dnnl_post_ops_destroy(behind);
    }
    if (!good) (void)dnnl_primitive_attr_destroy(attributes);
    else *attributes_out = attributes;
    return good;
}

/* The forward primitive's description is a hint for the other two. */
static bool make_passes(record *r, dnnl_primitive_attr_t forward_attributes, dnnl_primitive_attr_t attributes) {
    const tutti_window *w = &r->conv.window;
    const int64_t rows = (int64_t)(w->out_height - 1) * w->stride + w->kernel - w->in_height - w->pad_top;
    const int64_t columns = (int64_t)(w->out_width - 1) * w->stride + w->kernel - w->in_width - w->pad_left;
    const dnnl_dims_t strides = {w->stride, w->stride}, before = {w->pad_top, w->pad_left}, after = {rows, columns};
    const dnnl_memory_desc_t *bias = r->conv.no_bias ? NULL : &r->bias;
    dnnl_memory_desc_t any;
    dnnl_convolution_desc_t forward, of_x, of_weights;
    dnnl_primitive_desc_t hint, description;
    if (dnnl_memory_desc_init_by_tag(&any, NDIMS, r->weights.dims, dnnl_f32, dnnl_format_tag_any) != dnnl_success ||
        dnnl_convolution_forward_desc_init(&forward, dnnl_forward_training, dnnl_convolution_direct, &r->x, &any, bias,
                                           &r->y, strides, before, after) != dnnl_success ||
        dnnl_convolution_backward_data_desc_init(&of_x, dnnl_convolution_direct, &r->x, &any, &r->y, strides, before,
                                                 after) != dnnl_success ||
        dnnl_convolution_backward_weights_desc_init(&of_weights, dnnl_convolution_direct, &r->x, &any, NULL, &r->y,
                                                    strides, before, after) != dnnl_success ||
        dnnl_primitive_desc_create(&hint, &forward, forward_attributes, library.engine, NULL) != dnnl_success)
        return false;
    bool good = dnnl_primitive_desc_create(&description, &of_x, attributes, library.engine, hint) == dnnl_success &&
                fill_pass(r, description, dnnl_query_weights_md, &r->of_x);
    good = good &&
           dnnl_primitive_desc_create(&description, &of_weights, attributes, library.engine, hint) == dnnl_success &&
           fill_pass(r, description, dnnl_query_diff_weights_md, &r->of_weights);
    bool forwards = fill_pass(r, hint, dnnl_query_weights_md, &r->forward);
    return good && forwards;
}

static void make(record *r) {
    dnnl_primitive_attr_t forward_attributes, attributes;
    use_one_thread();
    if (!describe(r) || !make_attributes(r, true, &forward_attributes)) return;
    if (make_attributes(r, false, &attributes)) {
        r->works = make_passes(r, forward_attributes, attributes);
        (void)dnnl_primitive_attr_destroy(attributes);
    }
    (void)dnnl_primitive_attr_destroy(forward_attributes);
}

static bool is_same(const tutti_conv *a, const tutti_conv *b) {
    return memcmp(&a->window, &b->window, sizeof a->window) == 0 && a->filters == b->filters && a->relu == b->relu &&
           a->no_bias == b->no_bias;
}

/* Returns NULL if oneDNN does not do this convolution. */
static const record *find(const tutti_conv *conv, int batch) {
    if (batch == 0) return NULL;
    pthread_mutex_lock(&library.lock);
    if (!library.tried) open_engine();
    record *r = library.engine != NULL && !library.off ? library.records : NULL;
    while (r != NULL && !(r->batch == batch && is_same(&r->conv, conv))) r = r->next;
    if (r == NULL && library.engine != NULL && !library.off && (r = calloc(1, sizeof *r)) != NULL) {
        r->conv = *conv;
        r->batch = batch;
        r->next = library.records;
        library.records = r;
        make(r);
    }
    pthread_mutex_unlock(&library.lock);
    return r != NULL && r->works ? r : NULL;
}

/* ----------------------------------------------------------------------------------------------- running */

typedef struct argument {
    int name;
    const dnnl_memory_desc_t *description;
    const void *data;
} argument;

#define MOST_ARGUMENTS 5

static bool execute(dnnl_primitive_t primitive, const argument *arguments, int count) {
    dnnl_exec_arg_t list[MOST_ARGUMENTS];
    dnnl_stream_t stream;
    if (dnnl_stream_create(&stream, library.engine, dnnl_stream_default_flags) != dnnl_success) return false;
    int made = 0;
    bool good = true;
    for (; good && made < count; made += good) {
        list[made].arg = arguments[made].name;
        good = dnnl_memory_create(&list[made].memory, arguments[made].description, library.engine,
                                  (void *)arguments[made].data) == dnnl_success;
    }
    good = good && dnnl_primitive_execute(primitive, stream, count, list) == dnnl_success &&
           dnnl_stream_wait(stream) == dnnl_success;
    for (int i = 0; i < made; i++) (void)dnnl_memory_destroy(list[i].memory);
    (void)dnnl_stream_destroy(stream);
    return good;
}

/* Gives the weights in p's layout: copied to the start of the scratch, or where they are if no copy is needed. */
static bool bring_weights(const record *r, const pass *p, const float *weight, float *scratch, const float **own_out) {
    *own_out = p->reorder != NULL ? scratch : weight;
    const argument arguments[] = {{DNNL_ARG_FROM, &r->weights, weight}, {DNNL_ARG_TO, &p->weights, scratch}};
    return p->reorder == NULL || execute(p->reorder, arguments, 2);
}

static dnnl_memory_desc_t bytes_of(size_t bytes) {
    dnnl_memory_desc_t description;
    (void)dnnl_memory_desc_init_by_tag(&description, 1, (dnnl_dims_t){(dnnl_dim_t)bytes}, dnnl_u8, dnnl_x);
    return description;
}

/* The scratch of the primitive itself lies after the weights. */
static argument scratch_of(const pass *p, const dnnl_memory_desc_t *description, float *scratch) {
    return (argument){DNNL_ARG_SCRATCHPAD, description, (char *)scratch + p->weights_bytes};
}

size_t tutti_conv_library_scratch_count(const tutti_conv *conv, int batch) {
    const record *r = find(conv, batch);
    return r != NULL ? r->scratch_count : 0;
}

bool tutti_conv_library_forward(const tutti_conv *conv, const tutti_conv_forward_args *args) {
    const record *r = find(conv, args->batch);
    const float *weight;
    if (r == NULL || r->scratch_count > args->scratch_count) return false;
    use_one_thread();
    if (!bring_weights(r, &r->forward, args->weight, args->scratch, &weight)) return false;
    const dnnl_memory_desc_t beside = bytes_of(r->forward.scratch_bytes);
    const argument arguments[] = {{DNNL_ARG_SRC, &r->x, args->x},
                                  {DNNL_ARG_WEIGHTS, &r->forward.weights, weight},
                                  {DNNL_ARG_DST, &r->y, args->y},
                                  scratch_of(&r->forward, &beside, args->scratch),
                                  {DNNL_ARG_BIAS, &r->bias, args->bias}};
    return execute(r->forward.primitive, arguments, conv->no_bias ? 4 : 5);
}

static bool differentiate_weights(const record *r, const tutti_conv_backward_args *args) {
    const pass *p = &r->of_weights;
    const dnnl_memory_desc_t beside = bytes_of(p->scratch_bytes);
    float *own = p->reorder != NULL ? args->scratch : args->dweight;
    const argument arguments[] = {{DNNL_ARG_SRC, &r->x, args->x},
                                  {DNNL_ARG_DIFF_WEIGHTS, &p->weights, own},
                                  {DNNL_ARG_DIFF_DST, &r->y, args->dy},
                                  scratch_of(p, &beside, args->scratch)};
    const argument back[] = {{DNNL_ARG_FROM, &p->weights, own}, {DNNL_ARG_TO, &r->weights, args->dweight}};
    return execute(p->primitive, arguments, 4) && (p->reorder == NULL || execute(p->reorder, back, 2));
}

static bool differentiate_x(const record *r, const tutti_conv_backward_args *args) {
    const pass *p = &r->of_x;
    const float *weight;
    const dnnl_memory_desc_t beside = bytes_of(p->scratch_bytes);
    if (!bring_weights(r, p, args->weight, args->scratch, &weight)) return false;
    const argument arguments[] = {{DNNL_ARG_DIFF_SRC, &r->x, args->dx},
                                  {DNNL_ARG_WEIGHTS, &p->weights, weight},
                                  {DNNL_ARG_DIFF_DST, &r->y, args->dy},
                                  scratch_of(p, &beside, args->scratch)};
    return execute(p->primitive, arguments, 4);
}

bool tutti_conv_library_backward(const tutti_conv *conv, const tutti_conv_backward_args *args) {
    const record *r = find(conv, args->batch);
    const size_t pixels = (size_t)args->batch * (size_t)conv->window.out_height * (size_t)conv->window.out_width;
    if (r == NULL || r->scratch_count > args->scratch_count) return false;
    use_one_thread();
    if (!conv->no_bias) memset(args->dbias, 0, (size_t)conv->filters * sizeof *args->dbias);
    tutti_conv_bias_backward(conv, pixels, args->y, args->dy, args->dbias);
    return differentiate_weights(r, args) && (args->dx == NULL || differentiate_x(r, args));
}

void tutti_conv_library_use(bool use) {
    pthread_mutex_lock(&library.lock);
    library.off = !use;
    pthread_mutex_unlock(&library.lock);
}
