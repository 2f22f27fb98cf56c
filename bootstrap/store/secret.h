/*
 * The job's secret, which who connects must know: from TUTTI_SECRET, else from the file TUTTI_SECRET_FILE.
 */
#ifndef TUTTI_BOOTSTRAP_SECRET_H
#define TUTTI_BOOTSTRAP_SECRET_H

#include <stdbool.h>
#include <stddef.h>

#include <tutti/tutti.h>

/* More than any sensible secret. */
#define TUTTI_SECRET_BYTES 1024

/* Copies the secret, with a final NUL; without one, *set_out is false and the text empty. A file that cannot be
 * read, is empty or does not fit is TUTTI_ERR_CONFIG. */
tutti_status tutti_secret_get(char *secret, size_t capacity, bool *set_out);

#endif
