/*
 * tuttirun as its users see it: the real program, started by a shell, with small shell programs as ranks.
 */
#include <criterion/criterion.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bootstrap/base/deadline.h"
#include "tests/support/wire.h"

TestSuite(launch, .timeout = 90);

static char output[64 << 10]; /* of the last run, both streams */
static char folder[64];       /* a fresh working folder */

/* A shell command with $T for tuttirun; gives its exit code, its output in `output`. */
static int run(const char *format, ...) __attribute__((format(printf, 1, 2)));
static int run(const char *format, ...) {
    char command[4096], whole[4608];
    const char *build = getenv("TUTTI_BUILD");
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(command, sizeof command, format, arguments);
    va_end(arguments);
    snprintf(whole, sizeof whole, "T='timeout -k 1 60 %s/bin/tuttirun'; { %s\n} 2>&1 </dev/null",
             build != NULL ? build : ".", command);
    FILE *pipe = popen(whole, "r");
    cr_assert_not_null(pipe);
    size_t used = fread(output, 1, sizeof output - 1, pipe);
    output[used] = '\0';
    int status = pclose(pipe);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static void enter_folder(void) {
    if (getenv("TUTTI_BUILD") == NULL) { /* run by hand, in the build folder */
        char *here = getcwd(NULL, 0);
        setenv("TUTTI_BUILD", here, 1);
        free(here);
    }
    snprintf(folder, sizeof folder, "/tmp/tutti-launch-XXXXXX");
    cr_assert_not_null(mkdtemp(folder));
    cr_assert_eq(chdir(folder), 0);
    unsetenv("OMP_NUM_THREADS");
    unsetenv("TUTTI_SECRET");
}

static void leave_folder(void) {
    cr_assert_eq(chdir("/"), 0);
    run("rm -rf %s", folder);
}

#define LAUNCH_TEST(name) Test(launch, name, .init = enter_folder, .fini = leave_folder)
#define HAS(text)         cr_assert(strstr(output, text) != NULL, "no '%s' in:\n%s", text, output)
#define HAS_NOT(text)     cr_assert(strstr(output, text) == NULL, "'%s' in:\n%s", text, output)

static int count_of(const char *text) {
    int count = 0;
    for (const char *at = output; (at = strstr(at, text)) != NULL; at += strlen(text)) count++;
    return count;
}

static int free_port(void) {
    int port, fd = wire_listen(&port);
    cr_assert(fd >= 0);
    close(fd);
    return port;
}

/* ------------------------------------------------------------------------------------------- variables */

LAUNCH_TEST(each_rank_gets_torchruns_variables) {
    int port = free_port();
    cr_assert_eq(
        run("$T --nproc_per_node 3 --master_port %d --max-restarts 2 --rdzv-id job --role worker sh -c 'env | sort'",
            port),
        0, "%s", output);
    char line[64];
    for (int rank = 0; rank < 3; rank++) {
        static const char *const names[] = {"RANK", "LOCAL_RANK", "ROLE_RANK"};
        for (int i = 0; i < 3; i++) {
            snprintf(line, sizeof line, "[%d] %s=%d\n", rank, names[i], rank);
            HAS(line);
        }
        static const char *const equal[] = {"WORLD_SIZE=3",
                                            "LOCAL_WORLD_SIZE=3",
                                            "ROLE_WORLD_SIZE=3",
                                            "GROUP_RANK=0",
                                            "GROUP_WORLD_SIZE=1",
                                            "ROLE_NAME=worker",
                                            "MASTER_ADDR=127.0.0.1",
                                            "TORCHELASTIC_RESTART_COUNT=0",
                                            "TORCHELASTIC_MAX_RESTARTS=2",
                                            "TORCHELASTIC_RUN_ID=job",
                                            "TORCHELASTIC_USE_AGENT_STORE=True",
                                            "OMP_NUM_THREADS=1",
                                            "TORCH_NCCL_ASYNC_ERROR_HANDLING=1"};
        for (size_t i = 0; i < sizeof equal / sizeof *equal; i++) {
            snprintf(line, sizeof line, "[%d] %s\n", rank, equal[i]);
            HAS(line);
        }
        snprintf(line, sizeof line, "[%d] MASTER_PORT=%d\n", rank, port);
        HAS(line);
    }
}

LAUNCH_TEST(a_later_node_has_later_ranks_and_hosts_nothing) {
    cr_assert_eq(run("$T --nnodes=2 --node-rank=1 --nproc-per-node=2 --master-addr=127.0.0.1 --master-port=%d "
                     "sh -c 'echo $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $GROUP_RANK/$GROUP_WORLD_SIZE'",
                     free_port()),
                 0, "%s", output);
    HAS("[0] 2/4 0/2 1/2\n");
    HAS("[1] 3/4 1/2 1/2\n");
}

LAUNCH_TEST(node_0_stays_until_the_other_nodes_have_ended) {
    int port = free_port();
    cr_assert_eq(run("N='--nnodes 2 --master_addr 127.0.0.1 --master_port %d'\n"
                     "{ $T $N --node_rank 0 sh -c 'exit 0'; echo node 0 ends; } &\n"
                     "$T $N --node_rank 1 sh -c 'sleep 1; echo rank 1 ends'\nwait",
                     port),
                 0, "%s", output);
    const char *rank = strstr(output, "rank 1 ends"), *node = strstr(output, "node 0 ends");
    cr_assert(rank != NULL && node != NULL && rank < node, "%s", output);
}

LAUNCH_TEST(one_node_gets_a_fresh_secret_unless_the_user_brings_one) {
    static char first[128];
    cr_assert_eq(run("$T --standalone --nproc-per-node 2 sh -c 'echo $TUTTI_SECRET'"), 0);
    const char *secret = strchr(output, ' ') + 1;
    cr_assert_eq(strspn(secret, "0123456789abcdef"), 64, "%s", output);
    snprintf(first, sizeof first, "%.64s", secret);
    cr_assert_eq(count_of(first), 2, "the same for both: %s", output);
    cr_assert_eq(run("$T --standalone sh -c 'echo $TUTTI_SECRET'"), 0);
    HAS_NOT(first);
    cr_assert_eq(run("TUTTI_SECRET=mine $T --standalone sh -c 'echo $TUTTI_SECRET'"), 0);
    HAS("mine\n");
    cr_assert_eq(run("TUTTI_SECRET_FILE=/some/file $T --standalone sh -c 'echo \"<$TUTTI_SECRET>\"'"), 0);
    HAS("<>\n");
}

LAUNCH_TEST(options_come_with_dashes_underscores_equal_signs_and_from_pet_variables) {
    static const char *const ways[] = {"--nproc-per-node 2 --master-port %d", "--nproc_per_node=2 --master_port=%d",
                                       "--nproc-per_node=2 --master_port %d"};
    char command[256];
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        snprintf(command, sizeof command, "$T %s sh -c 'echo $WORLD_SIZE'", ways[i]);
        char with_port[256];
        snprintf(with_port, sizeof with_port, command, free_port());
        cr_assert_eq(run("%s", with_port), 0, "%s", output);
        HAS("[1] 2\n");
    }
    cr_assert_eq(run("PET_NPROC_PER_NODE=3 PET_STANDALONE=1 $T sh -c 'echo $WORLD_SIZE'"), 0, "%s", output);
    HAS("[2] 3\n");
}

LAUNCH_TEST(options_behind_the_program_are_the_programs) {
    cr_assert_eq(run("$T --standalone echo --nproc_per_node 2 --help -m"), 0);
    cr_assert_str_eq(output, "--nproc_per_node 2 --help -m\n");
    cr_assert_eq(run("$T --standalone -- echo -m"), 0);
    cr_assert_str_eq(output, "-m\n");
}

/* ------------------------------------------------------------------------------------------- programs */

LAUNCH_TEST(a_py_file_runs_with_python_and_m_takes_a_module) {
    cr_assert_eq(run("printf 'import os, sys\\nprint(os.environ[\"RANK\"], sys.argv[1:])\\n' >prog.py\n"
                     "$T --standalone --nproc-per-node 2 prog.py --x 1"),
                 0, "%s", output);
    HAS("[0] 0 ['--x', '1']\n");
    HAS("[1] 1 ['--x', '1']\n");
    cr_assert_eq(run("$T --standalone -m prog --y"), 0, "%s", output);
    HAS("0 ['--y']\n");
    cr_assert_eq(run("PYTHON_EXEC=/bin/echo $T --standalone prog.py z"), 0, "%s", output);
    cr_assert_str_eq(output, "-u prog.py z\n");
    cr_assert_eq(
        run("printf '#!/bin/sh\\necho run $1\\n' >own.py; chmod +x own.py; $T --standalone --no_python ./own.py a"), 0,
        "%s", output);
    cr_assert_str_eq(output, "run a\n");
    cr_assert_eq(
        run("printf '#!/bin/sh\\necho here\\n' >local-program; chmod +x local-program; $T --standalone local-program"),
        0, "%s", output);
    cr_assert_str_eq(output, "here\n");
}

LAUNCH_TEST(what_python_prints_is_seen_at_once) {
    cr_assert_eq(run("printf 'import time\\nprint(\"early\")\\ntime.sleep(60)\\n' >slow.py\n"
                     "timeout -s INT 5 ${T#*60 } --standalone --nproc-per-node 2 slow.py"),
                 124, "%s", output);
    HAS("[0] early\n");
}

LAUNCH_TEST(what_cannot_run_is_one_line) {
    cr_assert_eq(run("$T --standalone --nproc-per-node 4 no-such-program"), 2);
    cr_assert_str_eq(output, "tuttirun: no such program: no-such-program\n");
    cr_assert_eq(run("$T --standalone ./missing.py"), 2);
    HAS("tuttirun: cannot read ./missing.py: No such file");
    cr_assert_eq(run("echo x >text; $T --standalone ./text"), 2);
    HAS("cannot run ./text: Permission denied");
    cr_assert_eq(run("PYTHON_EXEC=no-python $T --standalone -m x"), 2);
    HAS("no Python interpreter 'no-python'");
}

/* --------------------------------------------------------------------------------------------- output */

LAUNCH_TEST(lines_carry_the_rank_when_several_print_and_do_not_mix) {
    cr_assert_eq(
        run("$T --standalone --nproc-per-node 4 sh -c 'i=0; while [ $i -lt 500 ]; do echo line $i of rank $RANK; "
            "i=$((i+1)); done; printf unfinished; echo wrong >&2'"),
        0);
    int lines = 0;
    for (char *next = output, *line; (line = strsep(&next, "\n")) != NULL && *line != '\0'; lines++) {
        int rank, number, of;
        bool counted = sscanf(line, "[%d] line %d of rank %d", &rank, &number, &of) == 3 && rank == of;
        bool other = strcmp(line + 4, "unfinished") == 0 || strcmp(line + 4, "wrong") == 0;
        cr_assert(counted || other, "'%s'", line);
    }
    cr_assert_eq(lines, 4 * 502);
    cr_assert_eq(run("$T --standalone sh -c 'echo alone; printf unfinished'"), 0);
    cr_assert_str_eq(output, "alone\nunfinished");
    cr_assert_eq(run("$T --standalone --nproc-per-node 2 --no-prefix sh -c 'echo same'"), 0);
    cr_assert_str_eq(output, "same\nsame\n");
}

LAUNCH_TEST(long_lines_are_broken_and_nothing_is_lost) {
    cr_assert_eq(run("$T --standalone --nproc-per-node 2 sh -c 'if [ $RANK = 1 ]; then head -c 50000 /dev/zero | tr "
                     "\"\\0\" x; fi'"),
                 0);
    size_t xs = 0;
    for (const char *c = output; *c != '\0'; c++) xs += *c == 'x';
    cr_assert_eq(xs, 50000);
    cr_assert_eq(strncmp(output, "[1] xxx", 7), 0);
}

LAUNCH_TEST(ranks_notice_that_nobody_reads_any_longer) {
    cr_assert_eq(
        run("$T --standalone --nproc-per-node 2 --local-ranks-filter 1 sh -c 'if [ $RANK = 1 ]; then exec yes; fi' "
            "| head -n 1"),
        0);
    HAS("[1] y\n");
    HAS("was killed by SIGPIPE");
}

LAUNCH_TEST(only_the_listed_ranks_are_shown) {
    cr_assert_eq(run("$T --standalone --nproc-per-node 3 --local-ranks-filter 0,2 sh -c 'echo here'"), 0);
    HAS("[0] here\n");
    HAS_NOT("[1] here\n");
    HAS("[2] here\n");
}

LAUNCH_TEST(files_are_where_torchrun_puts_them) {
    cr_assert_eq(run("$T --standalone --nproc-per-node 2 --rdzv-id job --log-dir logs --tee 3 -r 1:1 "
                     "sh -c 'echo out $RANK; echo err $RANK >&2; echo $TORCHELASTIC_ERROR_FILE'\n"
                     "cd logs/job_*/attempt_0 && for r in 0 1; do cat $r/stdout.log $r/stderr.log; done"),
                 0, "%s", output);
    HAS("[0] out 0\n");
    HAS("[1] err 1\n");
    HAS("\nout 0\nlogs/job_");
    HAS("/attempt_0/0/error.json\n");
    HAS("\nerr 0\n");
    HAS("\nerr 1\n");
    cr_assert_eq(run("$T --standalone --nproc-per-node 2 --log-dir only --redirects 1:3 sh -c 'echo out $RANK'\n"
                     "cat only/*/attempt_0/1/stdout.log"),
                 0, "%s", output);
    HAS("[0] out 0\n");
    HAS_NOT("[1] out 1\n");
    HAS("\nout 1\n");
}

LAUNCH_TEST(files_are_where_oneflow_puts_them) {
    cr_assert_eq(
        run("$T --standalone --nproc_per_node 2 --redirect_stdout_and_stderr --logdir a/b sh -c 'echo out $RANK; "
            "echo err $RANK >&2'; for r in 0 1; do cat a/b/local_rank_$r/stdout a/b/local_rank_$r/stderr; done"),
        0);
    cr_assert_str_eq(output, "out 0\nerr 0\nout 1\nerr 1\n");
    cr_assert_eq(run("$T --redirect_stdout_and_stderr true"), 2);
    HAS("needs --logdir");
}

/* --------------------------------------------------------------------------------------------- failures */

LAUNCH_TEST(the_first_failure_is_named_and_its_exit_code_returned) {
    char host[256], text[512];
    gethostname(host, sizeof host);
    cr_assert_eq(
        run("$T --standalone --nproc-per-node 3 sh -c 'if [ $RANK = 1 ]; then echo $$ >pid; exit 7; fi; sleep 0.5; "
            "echo rank $RANK gives up; exit 1'; code=$?; echo pid $(cat pid); exit $code"),
        7);
    const char *pid = strstr(output, "\npid ");
    cr_assert_not_null(pid);
    snprintf(text, sizeof text,
             "tuttirun: rank 1 (local rank 1, host %s, pid %d) ended with exit code 7; the other 2 get 2 s", host,
             atoi(pid + 5));
    HAS(text);
    HAS("[0] rank 0 gives up\n"); /* in their own words */
    HAS("[2] rank 2 gives up\n");
    HAS("tuttirun: after rank 1: rank 0 ended with exit code 1, rank 2 ended with exit code 1\n");
}

LAUNCH_TEST(a_death_by_signal_is_named_and_counts_128_more) {
    cr_assert_eq(run("$T --standalone --nproc-per-node 2 sh -c 'if [ $RANK = 0 ]; then kill -9 $$; fi; sleep 0.3'"),
                 137);
    HAS("was killed by SIGKILL (signal 9); the other gets 2 s");
    cr_assert_eq(run("$T --standalone sh -c 'kill -SEGV $$'"), 139);
    HAS("tuttirun: rank 0 (local rank 0, ");
    HAS("was killed by SIGSEGV (signal 11)\n");
}

LAUNCH_TEST(who_does_not_end_is_asked_and_then_killed) {
    int64_t begin_ns = tutti_now_ns();
    cr_assert_eq(
        run("$T --standalone --nproc-per-node 3 sh -c 'if [ $RANK = 0 ]; then exit 3; fi; if [ $RANK = 1 ]; then "
            "trap \"echo asked; exit 0\" TERM; fi; if [ $RANK = 2 ]; then trap \"\" TERM; fi; "
            "while true; do sleep 0.1; done'"),
        3);
    int64_t took_ms = (tutti_now_ns() - begin_ns) / 1000000;
    cr_assert(took_ms >= 6900 && took_ms < 20000, "took %lld ms", (long long)took_ms);
    HAS("tuttirun: stops what still runs: rank 1 (pid ");
    HAS("[1] asked\n");
    HAS("tuttirun: kills what does not end: rank 2 (pid ");
    HAS("tuttirun: after rank 0: rank 2 was killed by SIGKILL");
}

LAUNCH_TEST(a_stopped_rank_is_named_and_does_not_stay) {
    cr_assert_eq(
        run("$T --standalone --nproc-per-node 2 sh -c 'if [ $RANK = 1 ]; then kill -STOP $$; fi; sleep 1; exit 4'"), 4);
    HAS("tuttirun: rank 1 (local rank 1, ");
    HAS("was stopped by SIGSTOP; 'kill -CONT ");
    HAS(", stopped by SIGSTOP ");
}

/* The processes listed in `pids` are gone. A zombie that nobody reaps is no process that stays behind. */
static void expect_gone(int count) {
    cr_assert_eq(run("sleep 0.5; [ $(wc -w <pids) = %d ] || echo wrong; for p in $(cat pids); do s=$(sed 's,.*) ,,' "
                     "/proc/$p/stat 2>/dev/null); "
                     "case $s in ''|Z*) ;; *) echo $p is $s;; esac; done",
                     count),
                 0);
    cr_assert_str_eq(output, "");
}

LAUNCH_TEST(what_a_rank_leaves_behind_ends_with_it) {
    cr_assert_eq(run("$T --standalone --nproc-per-node 2 sh -c 'sleep 1234 & echo $! >>pids; exit $RANK'"), 1);
    expect_gone(2);
}

LAUNCH_TEST(a_failed_job_starts_again_as_often_as_it_may) {
    cr_assert_eq(run("$T --standalone --nproc-per-node 2 --max-restarts 3 sh -c 'echo try $TORCHELASTIC_RESTART_COUNT "
                     "$MASTER_PORT; "
                     "[ $TORCHELASTIC_RESTART_COUNT = 2 ] || exit 5'"),
                 0);
    HAS("[0] try 0 ");
    HAS("[1] try 2 ");
    HAS_NOT("try 3");
    HAS("tuttirun: starts all ranks again (restart 2 of 3)\n");
    cr_assert_eq(run("$T --standalone --max-restarts 1 sh -c 'exit 6'"), 6);
    cr_assert_eq(count_of("starts all ranks again"), 1);
}

/* ---------------------------------------------------------------------------------------------- signals */

/* Starts tuttirun in the background with the ranks' program, sends it a signal when all have said "ready". A
 * background job of a shell ignores SIGINT and SIGQUIT, which env takes back. */
static int run_and_signal(const char *signal_name, const char *program) {
    return run("cat >program.sh <<'EOF'\n%s\nEOF\n"
               "env --default-signal=INT,QUIT ${T#*60 } --standalone --nproc-per-node 2 sh program.sh >log 2>&1 &\n"
               "for i in $(seq 100); do [ $(grep -c ready log) = 2 ] && break; sleep 0.1; done\n"
               "kill -%s $!; wait $!; code=$?; cat log; exit $code",
               program, signal_name);
}

LAUNCH_TEST(signals_are_passed_on_and_the_exit_code_tells) {
    static const struct {
        const char *name;
        int number;
    } signals[] = {{"INT", SIGINT}, {"TERM", SIGTERM}, {"HUP", SIGHUP}, {"QUIT", SIGQUIT}};
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++) {
        char program[256], text[64];
        snprintf(program, sizeof program, "trap 'echo got %s; exit 9' %s; echo ready; while true; do sleep 0.1; done",
                 signals[i].name, signals[i].name);
        cr_assert_eq(run_and_signal(signals[i].name, program), 128 + signals[i].number, "%s: %s", signals[i].name,
                     output);
        snprintf(text, sizeof text, "[0] got %s\n", signals[i].name);
        HAS(text);
        snprintf(text, sizeof text, "[1] got %s\n", signals[i].name);
        HAS(text);
    }
}

LAUNCH_TEST(ranks_that_end_well_on_a_signal_are_no_failure) {
    cr_assert_eq(run_and_signal("TERM", "trap 'exit 0' TERM; echo ready; while true; do sleep 0.1; done"), 0, "%s",
                 output);
}

LAUNCH_TEST(user_signals_are_passed_on_and_end_nothing) {
    cr_assert_eq(run_and_signal("USR1", "trap 'echo noted; exit 0' USR1; echo ready; while true; do sleep 0.1; done"),
                 0, "%s", output);
    HAS("[0] noted\n");
    HAS("[1] noted\n");
    HAS_NOT("tuttirun:");
}

LAUNCH_TEST(nothing_survives_a_killed_tuttirun) {
    cr_assert_eq(run_and_signal("KILL", "sleep 4321 & echo $$ $! >>pids; echo ready; wait"), 137, "%s", output);
    expect_gone(4);
}

/* ---------------------------------------------------------------------------------------------- mistakes */

LAUNCH_TEST(an_unknown_option_is_one_line_with_the_nearest_known_one) {
    static const char *const wrong[][2] = {
        {"--nproc_per_nod 2", "unknown option --nproc_per_nod; did you mean --nproc_per_node?"},
        {"--nproc=2", "unknown option --nproc; did you mean --nproc-per-node?"},
        {"--master-prot 1", "unknown option --master-prot; did you mean --master-port?"},
        {"--standalon", "unknown option --standalon; did you mean --standalone?"},
        {"--standalone=yes", "unknown option --standalone"},
        {"-x", "unknown option -x"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        cr_assert_eq(run("$T %s true", wrong[i][0]), 2, "%s: %s", wrong[i][0], output);
        HAS(wrong[i][1]);
        cr_assert_eq(count_of("\n"), 1, "one line: %s", output);
    }
}

LAUNCH_TEST(wrong_values_are_one_line) {
    static const char *const wrong[][2] = {
        {"", "no program given"},
        {"--nnodes 0 true", "--nnodes 0: must be a whole number from 1"},
        {"--nnodes 1:4 true", "a range is not supported"},
        {"--nnodes 2 --node-rank 2 true", "--node-rank 2 must be less than --nnodes 2"},
        {"--nproc-per-node x true", "--nproc-per-node x: must be a whole number"},
        {"--nproc-per-node", "option --nproc-per-node needs a value"},
        {"--master-port 70000 true", "--master-port 70000: must be a whole number from 0 to 65535"},
        {"--max-restarts -1 true", "--max-restarts -1: must be"},
        {"--tee 4 true", "mask"},
        {"--tee 0:1,x true", "mask 0:1,x"},
        {"--standalone --nnodes 2 true", "--standalone means one node"},
        {"-m --no_python x", "exclude each other"},
        {"--rdzv-backend etcd true", "--rdzv-backend etcd is not supported"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        cr_assert_eq(run("$T %s", wrong[i][0]), 2, "%s: %s", wrong[i][0], output);
        HAS(wrong[i][1]);
        cr_assert_eq(count_of("\n"), 1, "one line: %s", output);
    }
}

LAUNCH_TEST(a_port_in_use_is_named_with_who_has_it_and_what_to_do) {
    int port, fd = wire_listen(&port);
    char text[128];
    cr_assert_eq(run("$T --nproc-per-node 2 --master_port %d true", port), 1);
    snprintf(text, sizeof text, "tuttirun: port %d is in use by pid %d (", port, (int)getpid());
    HAS(text);
    HAS("--standalone");
    cr_assert_eq(count_of("\n"), 1, "one line: %s", output);
    close(fd);
}

LAUNCH_TEST(help_and_version_are_there) {
    cr_assert_eq(run("$T --help"), 0);
    HAS("usage: tuttirun");
    HAS("--nproc-per-node");
    HAS("--redirect-stdout-and-stderr");
    cr_assert_eq(run("$T --version"), 0);
    HAS("tuttirun 0.1.0\n");
}
