/*
 * Shell commands for tests.
 */
#include "tests/support/programs/shell.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

char shell_output[64 << 10];
static char folder[64];

int shell_run(const char *format, ...) {
    char command[4096], whole[4608];
    const char *build = getenv("TUTTI_BUILD");
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(command, sizeof command, format, arguments);
    va_end(arguments);
    snprintf(whole, sizeof whole, "T='timeout -k 1 60 %s/bin/tuttirun'; { %s\n} 2>&1 </dev/null",
             build != NULL ? build : ".", command);
    FILE *pipe = popen(whole, "r");
    if (pipe == NULL) return -1;
    size_t used = fread(shell_output, 1, sizeof shell_output - 1, pipe);
    shell_output[used] = '\0';
    int status = pclose(pipe);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

int shell_count(const char *text) {
    int count = 0;
    for (const char *at = shell_output; (at = strstr(at, text)) != NULL; at += strlen(text)) count++;
    return count;
}

void shell_enter_folder(void) {
    if (getenv("TUTTI_BUILD") == NULL) { /* for runs by hand, in the build folder */
        char *here = getcwd(NULL, 0);
        setenv("TUTTI_BUILD", here, 1);
        free(here);
    }
    snprintf(folder, sizeof folder, "/tmp/tutti-shell-XXXXXX");
    if (mkdtemp(folder) == NULL || chdir(folder) != 0) abort();
    unsetenv("OMP_NUM_THREADS");
    unsetenv("TUTTI_SECRET");
    unsetenv("TUTTI_SECRET_FILE");
}

void shell_leave_folder(void) {
    if (chdir("/") == 0) shell_run("rm -rf %s", folder);
}
