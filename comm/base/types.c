/*
 * Types and reductions: sizes and names.
 */
#include <tutti/tutti.h>

static const struct {
    const char *name;
    size_t bytes;
} types[TUTTI_TYPE_COUNT] = {
    [TUTTI_INT8] = {"int8", 1},
    [TUTTI_UINT8] = {"uint8", 1},
    [TUTTI_INT16] = {"int16", 2},
    [TUTTI_UINT16] = {"uint16", 2},
    [TUTTI_INT32] = {"int32", 4},
    [TUTTI_UINT32] = {"uint32", 4},
    [TUTTI_INT64] = {"int64", 8},
    [TUTTI_UINT64] = {"uint64", 8},
    [TUTTI_BOOL] = {"bool", 1},
    [TUTTI_FLOAT16] = {"float16", 2},
    [TUTTI_BFLOAT16] = {"bfloat16", 2},
    [TUTTI_FLOAT32] = {"float32", 4},
    [TUTTI_FLOAT64] = {"float64", 8},
    [TUTTI_FLOAT8_E4M3] = {"float8_e4m3", 1},
    [TUTTI_FLOAT8_E5M2] = {"float8_e5m2", 1},
};

static const char *const reductions[TUTTI_REDUCTION_COUNT] = {
    [TUTTI_SUM] = "sum", [TUTTI_PROD] = "prod", [TUTTI_MIN] = "min",
    [TUTTI_MAX] = "max", [TUTTI_AVG] = "avg",   [TUTTI_BAND] = "band",
    [TUTTI_BOR] = "bor", [TUTTI_BXOR] = "bxor", [TUTTI_PREMUL_SUM] = "premul_sum",
};

size_t tutti_type_bytes(tutti_type type) {
    return (unsigned)type < TUTTI_TYPE_COUNT ? types[type].bytes : 0;
}

const char *tutti_type_name(tutti_type type) {
    return (unsigned)type < TUTTI_TYPE_COUNT ? types[type].name : "?";
}

const char *tutti_reduction_name(tutti_reduction reduction) {
    return (unsigned)reduction < TUTTI_REDUCTION_COUNT ? reductions[reduction] : "?";
}

#define TEXT_(x) #x
#define TEXT(x)  TEXT_(x)

const char *tutti_version(void) {
    return TEXT(TUTTI_VERSION_MAJOR) "." TEXT(TUTTI_VERSION_MINOR) "." TEXT(TUTTI_VERSION_PATCH);
}
