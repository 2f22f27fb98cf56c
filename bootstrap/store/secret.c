/*
 * Reads the job's secret. White space at the end of the file is ignored, because editors add it.
 */
#include "bootstrap/store/secret.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bootstrap/base/common.h"
#include "bootstrap/base/settings.h"

static tutti_status read_all(int fd, const char *path, char *text, size_t capacity, size_t *bytes_out) {
    size_t bytes = 0;
    while (bytes < capacity) {
        ssize_t got = read(fd, text + bytes, capacity - bytes);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return tutti_fail(TUTTI_ERR_CONFIG, "TUTTI_SECRET_FILE=%s: %s", path, strerror(errno));
        if (got == 0) break;
        bytes += (size_t)got;
    }
    *bytes_out = bytes;
    return TUTTI_OK;
}

static tutti_status read_file(const char *path, char *secret, size_t capacity) {
    /* Non-blocking: a pipe without a writer must not block the start. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return tutti_fail(TUTTI_ERR_CONFIG, "TUTTI_SECRET_FILE=%s: %s", path, strerror(errno));
    struct stat info;
    if (fstat(fd, &info) == 0 && S_ISREG(info.st_mode) && (info.st_mode & (S_IRGRP | S_IROTH)) != 0)
        tutti_log(TUTTI_LOG_WARN, "other users can read TUTTI_SECRET_FILE=%s; run chmod 600 on it", path);
    size_t bytes = 0;
    tutti_status status = read_all(fd, path, secret, capacity, &bytes);
    close(fd);
    if (status != TUTTI_OK) return status;
    if (bytes == capacity)
        return tutti_fail(TUTTI_ERR_CONFIG, "TUTTI_SECRET_FILE=%s: is longer than %zu bytes", path, capacity - 1);
    while (bytes > 0 && memchr(" \t\r\n", secret[bytes - 1], 4) != NULL) bytes--;
    if (bytes == 0 || memchr(secret, '\0', bytes) != NULL)
        return tutti_fail(TUTTI_ERR_CONFIG, "TUTTI_SECRET_FILE=%s: %s", path,
                          bytes == 0 ? "is empty" : "contains a zero byte; write the secret as text");
    secret[bytes] = '\0';
    return TUTTI_OK;
}

tutti_status tutti_secret_get(char *secret, size_t capacity, bool *set_out) {
    const char *text = tutti_setting_text(TUTTI_SETTING_SECRET), *path = tutti_setting_text(TUTTI_SETTING_SECRET_FILE);
    if (*text == '\0' && *path != '\0') {
        TUTTI_TRY(read_file(path, secret, capacity));
    } else if (strlen(text) < capacity) {
        memcpy(secret, text, strlen(text) + 1);
    } else {
        return tutti_fail(TUTTI_ERR_CONFIG, "TUTTI_SECRET is longer than %zu bytes", capacity - 1);
    }
    *set_out = *secret != '\0';
    return TUTTI_OK;
}
