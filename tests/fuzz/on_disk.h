/*
 * Bytes from outside as a file, for targets that read files.
 */
#ifndef TUTTI_TESTS_FUZZ_ON_DISK_H
#define TUTTI_TESTS_FUZZ_ON_DISK_H

#include <stddef.h>
#include <stdint.h>

#include <tutti/data.h>

/* Writes the bytes to the file `name` in a folder of the process, which is removed at its end; returns the folder.
 * Aborts if that is not possible. */
const char *fuzz_write(const char *name, const uint8_t *data, size_t bytes);

/* Reads a whole source, and destroys it: checks that each label is within its classes, and each pixel is a number
 * from 0 to 255. */
void fuzz_read_all(tutti_data_source *source);

#endif
