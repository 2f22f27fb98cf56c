/*
 * Sbp as text, and the sbp of gradients.
 */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "bootstrap/base/common.h"
#include <tutti/tensor.h>

/* The words of OneFlow, of DTensor, and the short ones; `inner` is the text in brackets (or after the S). */
typedef struct word {
    const char *text;
    tutti_sbp_kind kind;
    const char *reduction; /* reduction that the word itself names; NULL: none */
} word;

static const word words[] = {
    {"B", TUTTI_SBP_BROADCAST, NULL},
    {"broadcast", TUTTI_SBP_BROADCAST, NULL},
    {"Replicate", TUTTI_SBP_BROADCAST, NULL},
    {"R", TUTTI_SBP_BROADCAST, NULL},
    {"S", TUTTI_SBP_SPLIT, NULL},
    {"split", TUTTI_SBP_SPLIT, NULL},
    {"Shard", TUTTI_SBP_SPLIT, NULL},
    {"P", TUTTI_SBP_PARTIAL, NULL},
    {"partial", TUTTI_SBP_PARTIAL, NULL},
    {"Partial", TUTTI_SBP_PARTIAL, NULL},
    {"partial_sum", TUTTI_SBP_PARTIAL, "sum"},
};

static const struct {
    const char *foreign, *own;
} reductions[] = {{"product", "prod"}, {"mean", "avg"}};

/* Copies without blanks at the ends; false: it does not fit. */
static bool copy_trimmed(const char *from, size_t length, char *text, size_t capacity) {
    while (length > 0 && isspace((unsigned char)*from)) {
        from++;
        length--;
    }
    while (length > 0 && isspace((unsigned char)from[length - 1])) length--;
    if (length >= capacity) return false;
    memcpy(text, from, length);
    text[length] = '\0';
    return true;
}

static bool read_dim(const char *inner, int *dim_out) {
    char *end;
    const char *digits = strncmp(inner, "dim=", 4) == 0 ? inner + 4 : inner;
    if (!isdigit((unsigned char)*digits)) return false;
    long dim = strtol(digits, &end, 10);
    if (*end != '\0' || dim >= TUTTI_MOST_DIMS) return false;
    *dim_out = (int)dim;
    return true;
}

static bool read_reduction(const char *inner, tutti_reduction *reduction_out) {
    if (*inner == '\0') inner = "sum";
    for (size_t i = 0; i < TUTTI_COUNT_OF(reductions); i++)
        if (strcmp(inner, reductions[i].foreign) == 0) inner = reductions[i].own;
    for (int i = 0; i < TUTTI_REDUCTION_COUNT; i++) {
        if (i == TUTTI_PREMUL_SUM || strcmp(inner, tutti_reduction_name((tutti_reduction)i)) != 0) continue;
        *reduction_out = (tutti_reduction)i;
        return true;
    }
    return false;
}

/* Reads one sbp: a word, and the text in brackets after it. "S0" is short for "S(0)". */
static bool read_one(const char *text, tutti_sbp *sbp_out) {
    char name[16], inner[16] = "";
    const char *open = strchr(text, '(');
    size_t length = open != NULL ? (size_t)(open - text) : strlen(text);
    if (open != NULL) {
        size_t rest = strlen(open);
        if (open[rest - 1] != ')' || !copy_trimmed(open + 1, rest - 2, inner, sizeof inner)) return false;
    } else if (text[0] == 'S' && isdigit((unsigned char)text[1])) {
        length = 1;
        if (!copy_trimmed(text + 1, strlen(text + 1), inner, sizeof inner)) return false;
    }
    if (!copy_trimmed(text, length, name, sizeof name)) return false;
    for (size_t i = 0; i < TUTTI_COUNT_OF(words); i++) {
        if (strcmp(name, words[i].text) != 0) continue;
        tutti_sbp sbp = {.kind = words[i].kind};
        if (words[i].reduction != NULL && *inner != '\0') return false;
        bool good = sbp.kind == TUTTI_SBP_SPLIT     ? read_dim(inner, &sbp.dim)
                    : sbp.kind == TUTTI_SBP_PARTIAL ? read_reduction(inner, &sbp.reduction)
                                                    : *inner == '\0';
        if (good) *sbp_out = sbp;
        return good;
    }
    return false;
}

tutti_status tutti_sbp_parse(const char *text, tutti_sbp *sbp_out, int capacity, int *naxes_out) {
    int naxes = 0;
    if (text == NULL || sbp_out == NULL || naxes_out == NULL)
        return tutti_fail(TUTTI_ERR_ARGUMENT, "tutti_sbp_parse: NULL argument");
    for (const char *next = text;; next++) {
        char one[40];
        size_t length = strcspn(next, ",");
        if (naxes == capacity)
            return tutti_fail(TUTTI_ERR_ARGUMENT, "sbp \"%.80s\" has more than %d axes", text, capacity);
        if (!copy_trimmed(next, length, one, sizeof one) || !read_one(one, &sbp_out[naxes]))
            return tutti_fail(TUTTI_ERR_ARGUMENT,
                              "sbp \"%.80s\": \"%.*s\" is not an sbp; expected for each axis of the placement one of B "
                              "(broadcast), S0 "
                              "(split of dimension 0), P(sum) (partial; also prod, min, max, avg, band, bor, bxor), "
                              "separated by commas",
                              text, (int)tutti_min_size(length, 40), next);
        naxes++;
        next += length;
        if (*next == '\0') break;
    }
    *naxes_out = naxes;
    return TUTTI_OK;
}

void tutti_sbp_format(const tutti_sbp *sbp, int naxes, char *text, size_t bytes) {
    size_t used = 0;
    if (bytes > 0) text[0] = '\0';
    for (int i = 0; i < naxes && used < bytes; i++) {
        const char *comma = i > 0 ? "," : "";
        if (sbp[i].kind == TUTTI_SBP_BROADCAST) used += (size_t)snprintf(text + used, bytes - used, "%sB", comma);
        else if (sbp[i].kind == TUTTI_SBP_SPLIT)
            used += (size_t)snprintf(text + used, bytes - used, "%sS%d", comma, sbp[i].dim);
        else
            used +=
                (size_t)snprintf(text + used, bytes - used, "%sP(%s)", comma, tutti_reduction_name(sbp[i].reduction));
    }
}

tutti_status tutti_sbp_adjoint(tutti_sbp sbp, tutti_sbp *adjoint_out) {
    if (sbp.kind == TUTTI_SBP_PARTIAL && sbp.reduction != TUTTI_SUM)
        return tutti_fail(TUTTI_ERR_ARGUMENT,
                          "the gradient of a partial(%s) has no layout; only the gradient of a partial(sum) has one",
                          tutti_reduction_name(sbp.reduction));
    if (sbp.kind == TUTTI_SBP_BROADCAST) *adjoint_out = TUTTI_PARTIAL(TUTTI_SUM);
    else *adjoint_out = sbp.kind == TUTTI_SBP_SPLIT ? sbp : TUTTI_BROADCAST;
    return TUTTI_OK;
}
