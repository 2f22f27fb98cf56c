/*
 * Bytes from outside as a file, for targets that read files.
 */
#ifndef TUTTI_TESTS_FUZZ_ON_DISK_H
#define TUTTI_TESTS_FUZZ_ON_DISK_H

#include <stddef.h>
#include <stdint.h>

#include <tutti/data.h>

/* Writes the bytes to the file `name` in a folder of the process's own, which goes with it; gives the folder. Where that is not
 * possible it aborts. */
const char *fuzz_write(const char *name, const uint8_t *data, size_t bytes);

/* Reads all of a source, and destroys it: each label lies in its classes, and each pixel is a number from 0 to 255. */
void fuzz_read_all(tutti_data_source *source);

#endif
