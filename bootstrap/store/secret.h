/*
 * The job's secret, which a process must know to connect: from TUTTI_SECRET, else from the file TUTTI_SECRET_FILE.
 */
#ifndef TUTTI_BOOTSTRAP_SECRET_H
#define TUTTI_BOOTSTRAP_SECRET_H

#include <stdbool.h>
#include <stddef.h>

#include <tutti/tutti.h>

/* Upper bound for the length of a secret. */
#define TUTTI_SECRET_BYTES 1024

/* Copies the secret with a final NUL; if there is none, *set_out is false and the text is empty. Fails with
 * TUTTI_ERR_CONFIG when the file cannot be read, is empty or is too long. */
tutti_status tutti_secret_get(char *secret, size_t capacity, bool *set_out);

#endif
