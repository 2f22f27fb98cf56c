/*
 * Slurm's compressed lists, read without expanding them: a list may name a hundred thousand hosts.
 *
 * A list is items separated by commas outside of brackets. An item is text with any number of brackets in it, each
 * a list of numbers and ranges whose width is that of the range's first number ("[08-11]" is 08, 09, 10, 11).
 * Several brackets multiply, the last one varying fastest: host k of an item is k written with the brackets as
 * digits.
 */
#include "bootstrap/launcher/launcher.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_HOSTS = 1 << 24 };

/* Length of the item at `text`: up to a comma outside of brackets, or the end. */
static size_t item_length(const char *text) {
    size_t length = 0;
    for (bool inside = false; text[length] != '\0' && (inside || text[length] != ','); length++) {
        if (text[length] == '[') inside = true;
        if (text[length] == ']') inside = false;
    }
    return length;
}

/* One range, "7" or "01-03", that ends at `,` or `]`. */
typedef struct range {
    long long first, last;
    int width;
    const char *end;
} range;

static bool read_range(const char *text, range *range_out) {
    char *end;
    if (*text < '0' || *text > '9') return false;
    range found = {.first = strtoll(text, &end, 10)};
    found.width = (int)(end - text);
    found.last = found.first;
    if (*end == '-') {
        if (end[1] < '0' || end[1] > '9') return false;
        found.last = strtoll(end + 1, &end, 10);
    }
    if ((*end != ',' && *end != ']') || found.width > 18 || found.last < found.first ||
        found.last - found.first >= MOST_HOSTS)
        return false;
    found.end = end;
    *range_out = found;
    return true;
}

/* Returns how many numbers the bracket at `text` holds, or 0 when it is malformed, and where it ends; if index >=
 * 0, also writes number `index` of them. */
static long long read_bracket(const char *text, const char **end_out, long long index, char *number, size_t capacity) {
    long long count = 0;
    const char *next = text; /* at '[' or ',' */
    do {
        range found;
        if (!read_range(next + 1, &found)) return 0;
        long long inside = index - count;
        if (inside >= 0 && inside <= found.last - found.first)
            snprintf(number, capacity, "%0*lld", found.width, found.first + inside);
        count += found.last - found.first + 1;
        next = found.end;
    } while (*next == ',');
    *end_out = next + 1;
    return count;
}

/* Number of hosts in the item; 0: it is malformed. */
static long long count_item(const char *item, size_t length) {
    long long count = length > 0;
    for (const char *next = item; next < item + length && count > 0 && count <= MOST_HOSTS;) {
        long long numbers = 1;
        if (*next == '[') numbers = read_bracket(next, &next, -1, NULL, 0);
        else if (*next++ == ']') numbers = 0;
        count *= numbers;
    }
    return count <= MOST_HOSTS ? count : 0;
}

/* Writes host `index` of a well-formed item of `count` hosts. */
static bool expand_item(const char *item, size_t length, long long count, long long index, char *host,
                        size_t capacity) {
    size_t used = 0;
    for (const char *next = item; next < item + length;) {
        char number[32] = "";
        if (*next == '[') {
            const char *end;
            count /= read_bracket(next, &end, -1, NULL, 0);
            read_bracket(next, &end, index / count, number, sizeof number);
            index %= count;
            next = end;
        } else {
            number[0] = *next++;
        }
        if (used + strlen(number) >= capacity) return false;
        used += (size_t)snprintf(host + used, capacity - used, "%s", number);
    }
    return used > 0;
}

int tutti_hostlist_count(const char *list) {
    long long count = 0;
    for (const char *next = list; *next != '\0';) {
        size_t length = item_length(next);
        long long hosts = count_item(next, length);
        if (hosts == 0 || count + hosts > MOST_HOSTS) return -1;
        count += hosts;
        next += length;
        if (*next == ',' && *++next == '\0') return -1;
    }
    return count > 0 ? (int)count : -1;
}

bool tutti_hostlist_get(const char *list, int index, char *host_out, size_t capacity) {
    if (index < 0 || tutti_hostlist_count(list) < 0) return false;
    long long left = index;
    for (const char *next = list; *next != '\0'; next += *next == ',') {
        size_t length = item_length(next);
        long long hosts = count_item(next, length);
        if (left < hosts) return expand_item(next, length, hosts, left, host_out, capacity);
        left -= hosts;
        next += length;
    }
    return false;
}

bool tutti_slurm_tasks_of(const char *text, int node, int *tasks_out) {
    for (const char *next = text; *next != '\0'; next += *next == ',') {
        char *end;
        long tasks = strtol(next, &end, 10), times = 1;
        if (end == next || tasks < 1 || tasks > INT32_MAX) return false;
        if (end[0] == '(' && end[1] == 'x') {
            times = strtol(end + 2, &end, 10);
            if (*end++ != ')') return false;
        }
        if (times < 1 || times > MOST_HOSTS || (*end != ',' && *end != '\0')) return false;
        if (node < times) {
            *tasks_out = (int)tasks;
            return true;
        }
        node -= (int)times;
        next = end;
    }
    return false;
}
