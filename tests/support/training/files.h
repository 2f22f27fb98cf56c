/*
 * Temporary folders and data sets for the trainer's tests.
 */
#ifndef TUTTI_TESTS_FILES_H
#define TUTTI_TESTS_FILES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FILES_PATH_BYTES 512

/* A new folder below TMPDIR; files_remove deletes it with its content. path_out holds FILES_PATH_BYTES. */
void files_make_folder(char *path_out);
void files_remove(const char *folder);

/* folder + "/" + name; path_out holds FILES_PATH_BYTES. */
void files_join(const char *folder, const char *name, char *path_out);

/* Writes bytes to folder/name, gzipped or not. */
void files_write(const char *folder, const char *name, bool gzipped, const void *data, size_t bytes);

/* Reads a whole file; the caller frees it. A zero byte follows the content. NULL if the file cannot be read. */
uint8_t *files_read(const char *path, size_t *bytes_out);

/* An IDX file of unsigned bytes in memory; the caller frees it. */
uint8_t *files_make_idx(int ndims, const int64_t *dims, const uint8_t *data, size_t *bytes_out);

/* MNIST's four files, gzipped, with digits that are drawn. */
void files_write_mnist(const char *folder, int64_t train_count, int64_t test_count);

/* A file of CIFAR's binary version, of records with one label (CIFAR-10) or two, with drawn images that are easy to
 * distinguish: record i is of class i mod classes. */
void files_write_cifar(const char *folder, const char *name, int nlabels, int classes, int64_t count);

#endif
