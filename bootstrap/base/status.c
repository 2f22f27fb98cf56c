/*
 * Status names, and each thread's text of its last failure.
 *
 * The function that detects an error calls tutti_fail; callers propagate the status and may prepend context with
 * tutti_fail_context. A thread's text lives until its next failure. It is allocated at the first failure and freed
 * when the thread ends: as a thread-local array it would use up the small space that a process reserves for
 * thread-local variables of libraries loaded later, and loading such a library would fail.
 */
#include "bootstrap/base/common.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static pthread_key_t text_key; /* frees a thread's text when the thread ends */
static pthread_once_t text_key_once = PTHREAD_ONCE_INIT;
static bool text_key_made;
static _Thread_local char *last_error; /* TUTTI_ERROR_TEXT_BYTES; NULL: no failure yet, or no memory for its text */

static void text_free(void *text) {
    last_error = NULL; /* a failure after this, in another destructor, allocates a new text */
    free(text);
}

static void text_key_make(void) {
    text_key_made = pthread_key_create(&text_key, text_free) == 0;
}

/* The library may be closed before its threads end: they must not call text_free then. */
__attribute__((destructor)) static void text_key_delete(void) {
    if (text_key_made) pthread_key_delete(text_key);
}

/* Returns the calling thread's text; NULL when out of memory. */
static char *own_text(void) {
    if (last_error != NULL) return last_error;
    pthread_once(&text_key_once, text_key_make);
    char *text = text_key_made ? calloc(1, TUTTI_ERROR_TEXT_BYTES) : NULL;
    if (text != NULL && pthread_setspecific(text_key, text) != 0) {
        free(text);
        text = NULL;
    }
    return last_error = text;
}

const char *tutti_status_name(tutti_status status) {
    switch (status) {
    case TUTTI_OK: return "ok";
    case TUTTI_NOT_YET: return "not yet";
    case TUTTI_ERR_ARGUMENT: return "wrong argument";
    case TUTTI_ERR_MEMORY: return "out of memory";
    case TUTTI_ERR_SYSTEM: return "system call failed";
    case TUTTI_ERR_UNSUPPORTED: return "unsupported";
    case TUTTI_ERR_TIMEOUT: return "timeout";
    case TUTTI_ERR_PEER_DIED: return "peer died";
    case TUTTI_ERR_MISMATCH: return "calls differ";
    case TUTTI_ERR_TRUNCATED: return "message truncated";
    case TUTTI_ERR_BROKEN: return "communicator broken";
    case TUTTI_ERR_ABORTED: return "aborted";
    case TUTTI_ERR_FORKED: return "forked";
    case TUTTI_ERR_CONFIG: return "wrong configuration";
    case TUTTI_ERR_REFUSED: return "refused";
    case TUTTI_ERR_DATA: return "malformed data";
    case TUTTI_ERR_INTERRUPTED: return "interrupted";
    }
    return "unknown status";
}

const char *tutti_last_error(void) {
    return last_error != NULL ? last_error : "";
}

tutti_status tutti_fail(tutti_status status, const char *format, ...) {
    char text[TUTTI_ERROR_TEXT_BYTES]; /* the arguments may point into the old text */
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    char *own = own_text();
    if (own != NULL) memcpy(own, text, sizeof text);
    return status;
}

tutti_status tutti_struct_take(const char *name, const char *macro, const void *given, void *own, size_t own_bytes) {
    enum { MOST_BYTES = 4096 }; /* no struct is larger: what is there may be no struct at all */
    size_t bytes;
    memcpy(&bytes, given, sizeof bytes);
    if (bytes < sizeof bytes || bytes > MOST_BYTES)
        return tutti_fail(
            TUTTI_ERR_ARGUMENT,
            "%s: struct_bytes is %zu, which is not the size of a struct of any version (this library's has "
            "%zu bytes); fill the struct with %s",
            name, bytes, own_bytes, macro);
    for (size_t i = own_bytes; i < bytes; i++)
        if (((const unsigned char *)given)[i] != 0)
            return tutti_fail(TUTTI_ERR_ARGUMENT,
                              "%s: struct_bytes is %zu, and a member behind the %zu bytes that this library knows is "
                              "set; the program was built with a newer header: use a library of its version",
                              name, bytes, own_bytes);
    memset(own, 0, own_bytes);
    memcpy(own, given, bytes < own_bytes ? bytes : own_bytes);
    memcpy(own, &own_bytes, sizeof own_bytes);
    return TUTTI_OK;
}

tutti_status tutti_fail_errno(int error, const char *format, ...) {
    char text[TUTTI_ERROR_TEXT_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    char reason[128];
    return tutti_fail(TUTTI_ERR_SYSTEM, "%s: %s", text, strerror_r(error, reason, sizeof reason));
}

tutti_status tutti_fail_context(tutti_status status, const char *format, ...) {
    char text[TUTTI_ERROR_TEXT_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    return tutti_fail(status, "%s: %s", text, tutti_last_error());
}

tutti_error tutti_fail_save(void) {
    tutti_error error;
    snprintf(error.text, sizeof error.text, "%s", tutti_last_error());
    return error;
}

tutti_status tutti_fail_again(tutti_status status, const tutti_error *error) {
    return tutti_fail(status, "%s", error->text);
}

/* Bytes of the UTF-8 character that begins at c; 0: invalid. */
static size_t character_bytes(const unsigned char *c) {
    size_t bytes = *c < 0x80                 ? 1
                   : *c >= 0xc2 && *c < 0xe0 ? 2
                   : *c >= 0xe0 && *c < 0xf0 ? 3
                   : *c >= 0xf0 && *c < 0xf5 ? 4
                                             : 0;
    for (size_t i = 1; i < bytes; i++)
        if ((c[i] & 0xc0) != 0x80) return 0; /* also true for the final NUL */
    return bytes;
}

void tutti_make_printable(char *text) {
    for (unsigned char *c = (unsigned char *)text; *c != '\0';) {
        size_t bytes = character_bytes(c);
        bool is_c1 = bytes == 2 && c[0] == 0xc2 && c[1] < 0xa0;
        if (bytes == 0) *c = '?';
        else if (is_c1) c[0] = c[1] = ' ';
        else if (*c < ' ' || *c == 127) *c = ' ';
        c += bytes > 0 ? bytes : 1;
    }
}
