/*
 * Groups of ranks by NCCL_TESTS_SPLIT and NCCL_TESTS_SPLIT_MASK, as nccl-tests reads them: ranks with the same colour
 * form a group of their own.
 */
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "bench/options.h"

/* The number after an operator: decimal, 0x or 0b. */
static bool read_operand(const char *text, int *value_out) {
    char *end;
    text += strspn(text, " ");
    bool binary = strncasecmp(text, "0b", 2) == 0;
    long value = strtol(binary ? text + 2 : text, &end, binary ? 2 : 0);
    *value_out = (int)value;
    return end != text && *end == '\0';
}

tutti_status bench_options_color(int rank, int *color_out) {
    static const struct {
        const char *name;
        char operation;
    } operators[] = {{"AND", '&'}, {"OR", '|'}, {"MOD", '%'}, {"DIV", '/'},
                     {"&", '&'},   {"|", '|'},  {"%", '%'},   {"/", '/'}};
    const char *mask = getenv("NCCL_TESTS_SPLIT_MASK");
    const char *split = getenv("NCCL_TESTS_SPLIT");
    *color_out = 0;
    if (mask != NULL) {
        *color_out = rank & (int)strtoul(mask, NULL, 16);
        return TUTTI_OK;
    }
    if (split == NULL) return TUTTI_OK;
    for (size_t i = 0; i < sizeof operators / sizeof operators[0]; i++) {
        size_t length = strlen(operators[i].name);
        int value;
        if (strncasecmp(split, operators[i].name, length) != 0 || !read_operand(split + length, &value)) continue;
        if (value <= 0 && strchr("%/", operators[i].operation) != NULL) break;
        switch (operators[i].operation) {
        case '&': *color_out = rank & value; break;
        case '|': *color_out = rank | value; break;
        case '%': *color_out = rank % value; break;
        default: *color_out = rank / value; break;
        }
        return TUTTI_OK;
    }
    return tutti_fail(TUTTI_ERR_ARGUMENT, "NCCL_TESTS_SPLIT=%s: must be AND, OR, MOD or DIV and a number, such as MOD2",
                      split);
}
