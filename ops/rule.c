/*
 * Reading rules. See rule.h.
 */
#include "ops/rule.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

int tutti_ops_rule_find(const tutti_ops_rule *rule, char letter) {
    for (int f = 0; f < rule->nfactors; f++)
        if (rule->letters[f] == letter) return f;
    return -1;
}

int tutti_ops_dims_find(const tutti_ops_dims *dims, int factor) {
    for (int d = 0; d < dims->ndims; d++)
        if (dims->factor[d] == factor) return d;
    return -1;
}

/* One letter or digit. */
static bool read_dim(tutti_ops_rule *rule, tutti_ops_dims *dims, char letter) {
    if (dims->ndims == TUTTI_MOST_DIMS) return false;
    int d = dims->ndims++, factor = -1;
    if (isalpha((unsigned char)letter)) {
        factor = tutti_ops_rule_find(rule, letter);
        if (factor < 0) {
            if (rule->nfactors == TUTTI_OPS_FACTORS) return false;
            factor = rule->nfactors++;
            rule->letters[factor] = letter;
            rule->extents[factor] = -1;
        }
        for (int other = 0; other < d; other++)
            if (dims->factor[other] == factor) return false; /* the same letter twice: a diagonal */
    } else if (!isdigit((unsigned char)letter)) {
        return false;
    }
    dims->factor[d] = factor;
    dims->shape[d] = factor < 0 ? letter - '0' : -1;
    return true;
}

static bool read_mask(const tutti_ops_rule *rule, const char *letters, unsigned *mask_out) {
    unsigned mask = 0;
    for (; letters != NULL && *letters != '\0'; letters++) {
        int factor = tutti_ops_rule_find(rule, *letters);
        if (factor < 0) return false;
        mask |= 1u << factor;
    }
    *mask_out = mask;
    return true;
}

bool tutti_ops_rule_read(const char *text, const char *sums, const char *whole, tutti_ops_rule *rule_out) {
    tutti_ops_rule rule = {.ninputs = 1, .reduction = TUTTI_SUM};
    tutti_ops_dims *dims = &rule.inputs[0];
    snprintf(rule.text, sizeof rule.text, "%s", text);
    for (const char *at = text; *at != '\0'; at++) {
        if (*at == ',' && dims != &rule.output && rule.ninputs < TUTTI_OPS_INPUTS) {
            dims = &rule.inputs[rule.ninputs++];
        } else if (at[0] == '-' && at[1] == '>' && dims != &rule.output) {
            dims = &rule.output;
            at++;
        } else if (!read_dim(&rule, dims, *at)) {
            return false;
        }
    }
    if (dims != &rule.output || !read_mask(&rule, sums, &rule.sums) || !read_mask(&rule, whole, &rule.whole))
        return false;
    *rule_out = rule;
    return true;
}
