/*
 * The few calls of zlib that Tutti makes, for machines without zlib: files are read and written uncompressed, and
 * gzipped ones are refused. tests/gpu/check builds with it if there is no zlib.
 */
#ifndef TUTTI_PLAIN_ZLIB_H
#define TUTTI_PLAIN_ZLIB_H

#define ZLIB_VERSION "1.0.0"
#define Z_OK         0
#define Z_STREAM_END 1
#define Z_ERRNO      (-1)
#define Z_DATA_ERROR (-3)
#define Z_BUF_ERROR  (-5)

typedef struct plain_file *gzFile;

gzFile gzopen(const char *path, const char *mode);
int gzread(gzFile file, void *data, unsigned bytes);
int gzwrite(gzFile file, const void *data, unsigned bytes);
int gzdirect(gzFile file); /* 1: not gzipped, like all files that are read here */
int gzclose(gzFile file);
const char *gzerror(gzFile file, int *error_out);

#endif
