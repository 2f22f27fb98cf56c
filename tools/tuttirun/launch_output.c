/*
 * Output of ranks: each line is written to our own output in one write, so that lines of several ranks never mix,
 * with the rank in front as soon as a second rank prints there. The unchanged output also goes to the rank's log
 * file. A carriage return ends a line too, since progress bars would otherwise never appear. Lines longer than the
 * buffer are split. tuttirun's own lines go to standard error.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bootstrap/base/common.h"
#include "tools/tuttirun/launch.h"

enum { LINE_BYTES = 16 << 10, PIECE_BYTES = 4096, PIECES_PER_TURN = 64 };

void tutti_launch_say(const char *format, ...) {
    char line[4096] = "tuttirun: ";
    size_t used = strlen(line);
    va_list arguments;
    va_start(arguments, format);
    int text = vsnprintf(line + used, sizeof line - used - 1, format, arguments);
    va_end(arguments);
    if (text < 0) return;
    used = tutti_min_size(used + (size_t)text, sizeof line - 2);
    line[used++] = '\n';
    ssize_t written = write(STDERR_FILENO, line, used);
    (void)written; /* an error cannot be reported anywhere */
}

tutti_status tutti_launch_stream_open(int pipe_fd, int file_fd, int terminal_fd, int local_rank, bool prefixed,
                                      tutti_launch_stream *stream_out) {
    tutti_launch_stream stream = {
        .pipe_fd = pipe_fd, .file_fd = file_fd, .terminal_fd = terminal_fd, .local_rank = local_rank};
    if (pipe_fd >= 0) {
        if (fcntl(pipe_fd, F_SETFL, O_NONBLOCK) != 0) return tutti_fail_errno(errno, "a rank's pipe");
        TUTTI_TRY(tutti_calloc(LINE_BYTES, 1, &stream.line));
        if (prefixed) stream.prefix = (size_t)snprintf(stream.line, LINE_BYTES, "[%d] ", local_rank);
        stream.used = stream.prefix;
    }
    *stream_out = stream;
    return TUTTI_OK;
}

/* Returns false if the write fails, for example because the reader has closed the file. */
static bool write_all(int fd, const char *data, size_t bytes) {
    while (bytes > 0) {
        ssize_t written = write(fd, data, bytes);
        if (written < 0 && errno == EINTR) continue;
        if (written < 0) return false;
        data += written;
        bytes -= (size_t)written;
    }
    return true;
}

/* The rank that has printed to our output (1) and error output (2): NO_RANK, the number of one rank + 1, or SEVERAL.
 * The output of a program in which only one rank prints, as in most, then looks as without a launcher. */
enum { NO_RANK = 0, SEVERAL = -1 };
static int speakers[3];

static bool needs_prefix(const tutti_launch_stream *stream) {
    int *speaker = &speakers[stream->terminal_fd];
    if (*speaker == NO_RANK) *speaker = stream->local_rank + 1;
    else if (*speaker != stream->local_rank + 1) *speaker = SEVERAL;
    return *speaker == SEVERAL;
}

static void emit(tutti_launch_stream *stream) {
    size_t skipped = needs_prefix(stream) ? 0 : stream->prefix;
    if (!write_all(stream->terminal_fd, stream->line + skipped, stream->used - skipped)) {
        stream->terminal_fd = -1;
        stream->reader_gone = true;
    }
    stream->used = stream->prefix;
}

static void show(tutti_launch_stream *stream, const char *data, size_t bytes) {
    for (size_t i = 0; i < bytes && stream->terminal_fd >= 0; i++) {
        bool returned = stream->used > stream->prefix && stream->line[stream->used - 1] == '\r';
        if (returned && data[i] != '\n') emit(stream);
        stream->line[stream->used++] = data[i];
        if (stream->used == LINE_BYTES - 1 && data[i] != '\n') stream->line[stream->used++] = '\n';
        if (stream->line[stream->used - 1] == '\n') emit(stream);
    }
}

void tutti_launch_stream_carry(tutti_launch_stream *stream) {
    char piece[PIECE_BYTES];
    for (int i = 0; i < PIECES_PER_TURN && stream->pipe_fd >= 0; i++) {
        ssize_t got = read(stream->pipe_fd, piece, sizeof piece);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0 && errno == EAGAIN) return;
        if (got <= 0) {
            close(stream->pipe_fd);
            stream->pipe_fd = -1;
            return;
        }
        if (stream->file_fd >= 0 && !write_all(stream->file_fd, piece, (size_t)got)) {
            tutti_launch_say("cannot write a log file: %s", strerror(errno));
            close(stream->file_fd);
            stream->file_fd = -1;
        }
        if (stream->terminal_fd >= 0) show(stream, piece, (size_t)got);
        if (stream->reader_gone &&
            stream->file_fd < 0) { /* the rank gets SIGPIPE or EPIPE, as if it had written there itself */
            close(stream->pipe_fd);
            stream->pipe_fd = -1;
        }
    }
}

void tutti_launch_stream_close(tutti_launch_stream *stream) {
    if (stream->pipe_fd >= 0) tutti_launch_stream_carry(stream);
    if (stream->used > stream->prefix && stream->terminal_fd >= 0) {
        stream->line[stream->used++] = '\n'; /* show() leaves room for the newline */
        emit(stream);
    }
    if (stream->pipe_fd >= 0) close(stream->pipe_fd);
    if (stream->file_fd >= 0) close(stream->file_fd);
    free(stream->line);
    *stream = (tutti_launch_stream){.pipe_fd = -1, .file_fd = -1, .terminal_fd = -1};
}
