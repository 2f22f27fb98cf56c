/*
 * Runs the cases that tests/tensor/model.py writes, on all ranks of a world, and compares each shard's hash with the
 * expected one. model.py describes the cases' format and the source's values.
 *
 *     tuttirun --nproc-per-node 8 model_probe FILE [MEMORY]
 *
 * MEMORY: where the tensors are: host (default), cuda, from_cuda (the source only) or to_cuda (the target only);
 * works: host, and then again with works where plans accept these, several of them at a time.
 *
 * Prints the first cases that differ, and how many there were; exits with 1 if any did.
 */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tutti/device.h>
#include <tutti/tensor.h>

enum { MOST_RANKS = 64, MOST_PARTS = 64, SHOWN = 10, AT_ONCE = 8 };

typedef struct side {
    int ndims, nranks, naxes;
    int64_t shape[TUTTI_MOST_DIMS];
    int ranks[MOST_RANKS], axes[TUTTI_MOST_AXES];
    tutti_sbp sbp[TUTTI_MOST_AXES];
    tutti_split_rule rule;
    int64_t offsets[TUTTI_MOST_DIMS][MOST_PARTS + 1];
    const int64_t *cuts[TUTTI_MOST_DIMS];
} side;

typedef struct model_case {
    long id;
    tutti_type type;
    uint64_t seed;
    side src, dst;
    char expect[MOST_RANKS * 17];
} model_case;

static bool src_on_gpu, dst_on_gpu, with_works;
static void *stream; /* of the GPU */

static _Noreturn void give_up(const char *what) {
    fprintf(stderr, "model_probe: %s: %s\n", what, tutti_last_error());
    exit(2);
}

#define MUST(call)                                                                                                     \
    do {                                                                                                               \
        if ((call) != TUTTI_OK) give_up(#call);                                                                        \
    } while (0)

/* ------------------------------------------------------------------------------------------------- reading */

static int read_numbers(const char *text, int64_t *numbers, int capacity) {
    int count = 0;
    if (strcmp(text, "-") == 0) return 0;
    for (char *next = (char *)text; count < capacity; next++) {
        numbers[count++] = strtoll(next, &next, 10);
        if (*next != ',') return count;
    }
    give_up("a list is too long");
}

static int read_ints(const char *text, int *numbers, int capacity) {
    int64_t wide[MOST_RANKS];
    int count = read_numbers(text, wide, capacity);
    for (int i = 0; i < count; i++) numbers[i] = (int)wide[i];
    return count;
}

static void read_cuts(char *text, side *s) {
    if (strcmp(text, "-") == 0) return;
    for (char *next = text; next != NULL;) {
        char *one = next;
        next = strchr(one, ';');
        if (next != NULL) *next++ = '\0';
        int dim = atoi(one);
        read_numbers(strchr(one, ':') + 1, s->offsets[dim], MOST_PARTS + 1);
        s->cuts[dim] = s->offsets[dim];
    }
}

static void read_side(side *s, const char *key, char *value) {
    int naxes;
    if (strcmp(key, "shape") == 0) s->ndims = read_numbers(value, s->shape, TUTTI_MOST_DIMS);
    else if (strcmp(key, "ranks") == 0) s->nranks = read_ints(value, s->ranks, MOST_RANKS);
    else if (strcmp(key, "axes") == 0) s->naxes = read_ints(value, s->axes, TUTTI_MOST_AXES);
    else if (strcmp(key, "sbp") == 0) MUST(tutti_sbp_parse(value, s->sbp, TUTTI_MOST_AXES, &naxes));
    else if (strcmp(key, "rule") == 0) s->rule = strcmp(value, "chunk") == 0 ? TUTTI_SPLIT_CHUNK : TUTTI_SPLIT_BALANCED;
    else if (strcmp(key, "cuts") == 0) read_cuts(value, s);
}

static tutti_type read_type(const char *name) {
    for (int type = 0; type < TUTTI_TYPE_COUNT; type++)
        if (strcmp(name, tutti_type_name((tutti_type)type)) == 0) return (tutti_type)type;
    give_up("a type that is none");
}

static void read_case(char *line, model_case *c) {
    memset(c, 0, sizeof *c);
    for (char *word = strtok(line, " \n"); word != NULL; word = strtok(NULL, " \n")) {
        char *value = strchr(word, '=');
        if (value == NULL) give_up("a word without a value");
        *value++ = '\0';
        if (strcmp(word, "id") == 0) c->id = atol(value);
        else if (strcmp(word, "type") == 0) c->type = read_type(value);
        else if (strcmp(word, "seed") == 0) c->seed = strtoull(value, NULL, 10);
        else if (strcmp(word, "expect") == 0) snprintf(c->expect, sizeof c->expect, "%s", value);
        else if (strncmp(word, "src.", 4) == 0) read_side(&c->src, word + 4, value);
        else if (strncmp(word, "dst.", 4) == 0) read_side(&c->dst, word + 4, value);
    }
}

/* ------------------------------------------------------------------------------------------------- values */

static uint64_t splitmix64(uint64_t x) {
    x += UINT64_C(0x9E3779B97F4A7C15);
    x = (x ^ x >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    x = (x ^ x >> 27) * UINT64_C(0x94D049BB133111EB);
    return x ^ x >> 31;
}

static const struct {
    int exponent_bits, mantissa_bits, bias;
} floats[TUTTI_TYPE_COUNT] = {
    [TUTTI_FLOAT16] = {5, 10, 15},    [TUTTI_BFLOAT16] = {8, 7, 127},  [TUTTI_FLOAT32] = {8, 23, 127},
    [TUTTI_FLOAT64] = {11, 52, 1023}, [TUTTI_FLOAT8_E4M3] = {4, 3, 7}, [TUTTI_FLOAT8_E5M2] = {5, 2, 15},
};

static uint64_t value_of(const model_case *c, uint64_t number, uint64_t term) {
    uint64_t u = splitmix64(c->seed + number * UINT64_C(0x9E3779B97F4A7C15) + term * UINT64_C(0xD1B54A32D192ED03));
    int exponent_bits = floats[c->type].exponent_bits, mantissa_bits = floats[c->type].mantissa_bits;
    if (c->type == TUTTI_BOOL) return u & 1;
    if (exponent_bits == 0) return u;
    uint64_t mantissa = c->type == TUTTI_FLOAT64 ? splitmix64(u) >> 12 : u >> 33 & ((UINT64_C(1) << mantissa_bits) - 1);
    uint64_t exponent = (uint64_t)floats[c->type].bias - 3 + (u >> 1 & 0xffffffff) % 7;
    return (u & 1) << (exponent_bits + mantissa_bits) | exponent << mantissa_bits | mantissa;
}

/* This rank's number on the partial axes. */
static uint64_t term_of(const side *s, const tutti_placement *placement) {
    uint64_t term = 0;
    for (int axis = 0; axis < s->naxes; axis++)
        if (s->sbp[axis].kind == TUTTI_SBP_PARTIAL)
            term = term * (uint64_t)s->axes[axis] + (uint64_t)tutti_placement_coordinate(placement, axis);
    return term;
}

/* The shard, or memory for a copy of the GPU's shard, which the caller frees. */
static char *reach(const tutti_local *local, size_t bytes, bool on_gpu) {
    char *memory = on_gpu ? malloc(bytes + 1) : local->data;
    if (on_gpu && memory == NULL) give_up("no memory");
    return memory;
}

static void fill(const model_case *c, const tutti_placement *placement, const tutti_tensor *tensor) {
    tutti_local local;
    size_t bytes = tutti_type_bytes(c->type);
    int64_t at[TUTTI_MOST_DIMS] = {0};
    MUST(tutti_tensor_local(tensor, &local));
    char *data = reach(&local, local.count * bytes, src_on_gpu);
    uint64_t term = local.count > 0 ? term_of(&c->src, placement) : 0;
    for (size_t i = 0; i < local.count; i++) {
        uint64_t number = 0;
        for (int d = 0; d < local.ndims; d++)
            number = number * (uint64_t)c->src.shape[d] + (uint64_t)(local.first[d] + at[d]);
        uint64_t value = value_of(c, number, term);
        memcpy(data + i * bytes, &value, bytes);
        for (int d = local.ndims - 1; d >= 0 && ++at[d] == local.shape[d]; d--) at[d] = 0;
    }
    if (!src_on_gpu) return;
    MUST(tutti_device_copy(local.data, data, local.count * bytes, stream));
    free(data);
}

static uint64_t hash_of(const tutti_tensor *tensor, size_t element_bytes) {
    tutti_local local;
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    MUST(tutti_tensor_local(tensor, &local));
    size_t bytes = local.count * element_bytes;
    char *data = reach(&local, bytes, dst_on_gpu);
    if (dst_on_gpu) MUST(tutti_device_copy(data, local.data, bytes, stream));
    for (size_t i = 0; i < bytes; i++) hash = (hash ^ (uint8_t)data[i]) * UINT64_C(0x100000001b3);
    if (dst_on_gpu) free(data);
    return hash;
}

/* ------------------------------------------------------------------------------------------------- cases */

static bool has(const side *s, int rank) {
    for (int i = 0; i < s->nranks; i++)
        if (s->ranks[i] == rank) return true;
    return false;
}

static tutti_layout layout_of(const model_case *c, const side *s, tutti_placement *placement, const char *name) {
    return TUTTI_LAYOUT(.placement = placement, .sbp = s->sbp, .type = c->type, .ndims = s->ndims, .shape = s->shape,
                        .rule = s->rule, .cuts = s->cuts, .name = name);
}

static tutti_memory memory_of(bool on_gpu) {
    return on_gpu ? TUTTI_MEMORY_CUDA : TUTTI_MEMORY_HOST;
}

/* In host memory, one of every three cases has all shards in memory that other processes cannot read, and one has
 * those of a single rank there. */
static void make_tensor(const model_case *c, int rank, int size, const tutti_layout *layout, void **private_out,
                        tutti_tensor **tensor_out) {
    tutti_local local;
    MUST(tutti_tensor_create(layout, tensor_out));
    *private_out = NULL;
    if (tutti_placement_memory(layout->placement) == TUTTI_MEMORY_CUDA) return;
    if (c->id % 3 == 0 || (c->id % 3 == 1 && c->id / 3 % size != rank)) return;
    MUST(tutti_tensor_local(*tensor_out, &local));
    tutti_tensor_destroy(*tensor_out);
    *private_out = malloc(local.count * tutti_type_bytes(c->type) + 1);
    if (*private_out == NULL) give_up("out of memory for a shard");
    MUST(tutti_tensor_wrap(layout, *private_out, tensor_out));
}

/* A case in which this rank has a part. */
typedef struct running {
    long id;
    tutti_type type;
    void *private[2];
    tutti_placement *from, *to;
    tutti_tensor *src, *dst;
    tutti_work *work;
    char expected[17];
} running;

static bool is_right(const running *r) {
    char got[17] = "-";
    if (tutti_placement_coordinate(r->to, -1) >= 0)
        snprintf(got, sizeof got, "%016llx", (unsigned long long)hash_of(r->dst, tutti_type_bytes(r->type)));
    return strcmp(got, r->expected) == 0;
}

static void end_case(running *r) {
    tutti_tensor_destroy(r->src);
    tutti_tensor_destroy(r->dst);
    free(r->private[0]);
    free(r->private[1]);
    tutti_placement_destroy(r->from);
    tutti_placement_destroy(r->to);
}

/* Returns false if this rank has no part in it. */
static bool run_case(tutti_comm *comm, const model_case *c, running *r) {
    int rank = tutti_comm_rank(comm), size = tutti_comm_size(comm);
    char *at = (char *)c->expect;
    *r = (running){.id = c->id, .type = c->type};
    for (int i = 0; i < rank && at != NULL; i++) at = strchr(at, ',') != NULL ? strchr(at, ',') + 1 : NULL;
    if (at != NULL) snprintf(r->expected, sizeof r->expected, "%.*s", (int)strcspn(at, ","), at);
    if (!has(&c->src, rank) && !has(&c->dst, rank)) return false;
    MUST(tutti_placement_create(comm, memory_of(src_on_gpu), c->src.ranks, c->src.axes, c->src.naxes, &r->from));
    MUST(tutti_placement_create(comm, memory_of(dst_on_gpu), c->dst.ranks, c->dst.axes, c->dst.naxes, &r->to));
    const tutti_layout src_layout = layout_of(c, &c->src, r->from, "source"),
                       dst_layout = layout_of(c, &c->dst, r->to, "target");
    make_tensor(c, rank, size, &src_layout, &r->private[0], &r -> src);
    make_tensor(c, rank, size, &dst_layout, &r->private[1], &r -> dst);
    fill(c, r->from, r->src);
    MUST(tutti_tensor_redistribute(r->src, r->dst, &TUTTI_OPTIONS(.stream = stream)));
    return true;
}

static void spoil(const running *r) {
    tutti_local local;
    MUST(tutti_tensor_local(r->dst, &local));
    if (local.count > 0) memset(local.data, 0xa5, local.count * tutti_type_bytes(r->type));
}

/* For plans that refuse works, the blocking call stays between the works of others. */
static void start_again(running *r) {
    spoil(r);
    tutti_status status = tutti_tensor_redistribute(r->src, r->dst, &TUTTI_OPTIONS(.work = &r->work));
    if (status == TUTTI_ERR_UNSUPPORTED) status = tutti_tensor_redistribute(r->src, r->dst, NULL);
    MUST(status);
}

/* Runs all again, waits for their works from the last to the first, then ends them. Returns how many differ. */
static long run_again(running *all, int count, long *works) {
    long wrong = 0;
    for (int i = 0; i < count && with_works; i++) start_again(&all[i]);
    for (int i = count - 1; i >= 0; i--) {
        if (all[i].work != NULL) {
            MUST(tutti_work_wait(all[i].work, -1));
            tutti_work_free(all[i].work);
            ++*works;
        }
        if (with_works && !is_right(&all[i]) && wrong++ < SHOWN)
            fprintf(stderr, "case %ld differs, run once more%s\n", all[i].id,
                    all[i].work != NULL ? " with a work" : "");
    }
    for (int i = 0; i < count; i++) end_case(&all[i]);
    return wrong;
}

static bool read_memory(const char *word) {
    src_on_gpu = strcmp(word, "cuda") == 0 || strcmp(word, "from_cuda") == 0;
    dst_on_gpu = strcmp(word, "cuda") == 0 || strcmp(word, "to_cuda") == 0;
    with_works = strcmp(word, "works") == 0;
    return src_on_gpu || dst_on_gpu || with_works || strcmp(word, "host") == 0;
}

int main(int argc, char **argv) {
    static char line[1 << 16], copy[1 << 16];
    static model_case c;
    running all[AT_ONCE];
    int kept = 0;
    tutti_comm *comm;
    tutti_placement *keeper;
    long count = 0, wrong = 0, works = 0;
    if (argc < 2 || argc > 3 || !read_memory(argc > 2 ? argv[2] : "host")) {
        fprintf(stderr, "usage: model_probe FILE [host|works|cuda|from_cuda|to_cuda]\n");
        return 2;
    }
    MUST(tutti_comm_create_world(&comm));
    if (src_on_gpu || dst_on_gpu) {
        MUST(tutti_device_use(-1));
        MUST(tutti_device_stream_create(&stream));
    }
    int size = tutti_comm_size(comm);
    /* This placement keeps the groups of ranks, and plans, from case to case. */
    MUST(tutti_placement_create(comm, TUTTI_MEMORY_HOST, NULL, &size, 1, &keeper));
    FILE *file = fopen(argv[1], "re");
    if (file == NULL) give_up(argv[1]);
    for (; fgets(line, sizeof line, file) != NULL; count++) {
        memcpy(copy, line, sizeof copy);
        read_case(line, &c);
        if (count % AT_ONCE == 0) {
            wrong += run_again(all, kept, &works);
            kept = 0;
        }
        if (!run_case(comm, &c, &all[kept])) continue;
        if (!is_right(&all[kept++]) && wrong++ < SHOWN)
            fprintf(stderr, "rank %d differs: %s", tutti_comm_rank(comm), copy);
    }
    wrong += run_again(all, kept, &works);
    fclose(file);
    tutti_placement_destroy(keeper);
    if (src_on_gpu || dst_on_gpu) MUST(tutti_device_stream_destroy(stream));
    if (tutti_comm_rank(comm) == 0 || wrong > 0)
        printf("rank %d: %ld cases, %ld differ; %ld works\n", tutti_comm_rank(comm), count, wrong, works);
    MUST(tutti_comm_destroy(comm));
    return count == 0 || wrong > 0 || (with_works && works == 0);
}
