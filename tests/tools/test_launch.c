/*
 * tuttirun as a program, started by a shell, with small shell programs as ranks: the variables of ranks, the handling
 * of their output, and users' mistakes.
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/programs/shell.h"
#include "tests/support/stores/wire.h"

TestSuite(launch, .timeout = 90);
#define LAUNCH_TEST(name) Test(launch, name, .init = shell_enter_folder, .fini = shell_leave_folder)

/* ------------------------------------------------------------------------------------------- variables */

LAUNCH_TEST(each_rank_gets_torchruns_variables) {
    int port = wire_free_port();
    cr_assert_eq(shell_run("$T --nproc_per_node 3 --master_port %d --max-restarts 2 --rdzv-id job --role worker sh -c "
                           "'env | sed s/^/of-$RANK-/'",
                           port),
                 0, "%s", shell_output);
    char line[64];
    for (int rank = 0; rank < 3; rank++) {
        static const char *const names[] = {"RANK", "LOCAL_RANK", "ROLE_RANK", "RANK_ID", "DEVICE_ID"};
        for (int i = 0; i < 5; i++) {
            snprintf(line, sizeof line, "of-%d-%s=%d\n", rank, names[i], rank);
            HAS(line);
        }
        static const char *const equal[] = {"WORLD_SIZE=3",
                                            "LOCAL_WORLD_SIZE=3",
                                            "ROLE_WORLD_SIZE=3",
                                            "RANK_SIZE=3",
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
            snprintf(line, sizeof line, "of-%d-%s\n", rank, equal[i]);
            HAS(line);
        }
        snprintf(line, sizeof line, "of-%d-MASTER_PORT=%d\n", rank, port);
        HAS(line);
    }
}

LAUNCH_TEST(one_node_gets_a_fresh_secret_unless_the_user_brings_one) {
    static char first[128];
    cr_assert_eq(shell_run("$T --standalone --nproc-per-node 2 sh -c 'echo $TUTTI_SECRET'"), 0);
    const char *secret = strchr(shell_output, ' ') + 1;
    cr_assert_eq(strspn(secret, "0123456789abcdef"), 64, "%s", shell_output);
    snprintf(first, sizeof first, "%.64s", secret);
    cr_assert_eq(shell_count(first), 2, "the same for both: %s", shell_output);
    cr_assert_eq(shell_run("$T --standalone sh -c 'echo $TUTTI_SECRET'"), 0);
    HAS_NOT(first);
    cr_assert_eq(shell_run("TUTTI_SECRET=mine $T --standalone sh -c 'echo $TUTTI_SECRET'"), 0);
    HAS("mine\n");
    cr_assert_eq(shell_run("echo mine >own; chmod 600 own\n"
                           "TUTTI_SECRET_FILE=own $T --standalone sh -c 'echo \"<$TUTTI_SECRET>\"'"),
                 0);
    HAS("<>\n");
    cr_assert_eq(shell_run("TUTTI_SECRET_FILE=none $T --standalone touch started"), 1);
    cr_assert_str_eq(shell_output, "tuttirun: TUTTI_SECRET_FILE=none: No such file or directory\n");
    cr_assert_neq(access("started", F_OK), 0, "a rank was started");
}

LAUNCH_TEST(options_come_with_dashes_underscores_equal_signs_and_from_pet_variables) {
    static const char *const ways[] = {"--nproc-per-node 2 --master-port %d", "--nproc_per_node=2 --master_port=%d",
                                       "--nproc-per_node=2 --master_port %d"};
    char command[256];
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        snprintf(command, sizeof command, "$T %s sh -c 'echo rank $RANK of $WORLD_SIZE'", ways[i]);
        char with_port[256];
        snprintf(with_port, sizeof with_port, command, wire_free_port());
        cr_assert_eq(shell_run("%s", with_port), 0, "%s", shell_output);
        HAS("rank 0 of 2\n");
        HAS("rank 1 of 2\n");
    }
    cr_assert_eq(shell_run("PET_NPROC_PER_NODE=3 PET_STANDALONE=1 $T sh -c 'echo rank $RANK of $WORLD_SIZE'"), 0, "%s",
                 shell_output);
    HAS("rank 2 of 3\n");
}

LAUNCH_TEST(the_number_of_ranks_is_also_given_as_for_mpirun) {
    static const char *const ways[] = {"-n 2", "-n2", "-n=2", "-np 2", "-np=2", "--np 2", "--np=2"};
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        cr_assert_eq(shell_run("$T %s sh -c 'echo rank $RANK of $WORLD_SIZE at $MASTER_PORT.'", ways[i]), 0, "%s: %s",
                     ways[i], shell_output);
        HAS("rank 0 of 2 at ");
        HAS("rank 1 of 2 at ");
        HAS_NOT("at 29500.");
    }
    cr_assert_eq(shell_run("PET_NPROC_PER_NODE=3 $T -n 2 sh -c 'echo rank $RANK of $WORLD_SIZE'"), 0);
    HAS("rank 1 of 2\n");
    static const char *const wrong[][2] = {
        {"-n 2 --nproc-per-node 3", "-n 2 and --nproc-per-node 3 are the same option; give one of them"},
        {"-n 2 --nnodes 2", "-n 2 with 2 nodes could mean the ranks of each node or of all; give --nproc-per-node"},
        {"-n x", "-n x: must be a whole number from 1"},
        {"-np 0", "-n 0: must be a whole number from 1"},
        {"-n", "option -n needs a value"},
        {"-nope 1", "-n ope: must be a whole number from 1"},
        {"-N 2", "unknown option -N"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        bool with_program = strcmp(wrong[i][0], "-n") != 0;
        cr_assert_eq(shell_run("$T %s %s", wrong[i][0], with_program ? "true" : ""), 2, "%s: %s", wrong[i][0],
                     shell_output);
        HAS(wrong[i][1]);
    }
}

LAUNCH_TEST(a_setting_that_cannot_be_read_is_refused_before_ranks_start) {
    cr_assert_eq(shell_run("TUTTI_CONNECT_TIMEOUT_MS=soon $T -n 2 echo started"), 1);
    HAS("tuttirun: ");
    HAS("TUTTI_CONNECT_TIMEOUT_MS");
    HAS("soon");
    HAS_NOT("started");
}

LAUNCH_TEST(options_behind_the_program_are_the_programs) {
    cr_assert_eq(shell_run("$T --standalone echo --nproc_per_node 2 --help -m"), 0);
    cr_assert_str_eq(shell_output, "--nproc_per_node 2 --help -m\n");
    cr_assert_eq(shell_run("$T --standalone -- echo -m"), 0);
    cr_assert_str_eq(shell_output, "-m\n");
}

/* ------------------------------------------------------------------------------------------- programs */

LAUNCH_TEST(a_py_file_runs_with_python_and_m_takes_a_module) {
    cr_assert_eq(shell_run("printf 'import os, sys\\nprint(os.environ[\"RANK\"], sys.argv[1:])\\n' >prog.py\n"
                           "$T --standalone --nproc-per-node 2 prog.py --x 1"),
                 0, "%s", shell_output);
    HAS("0 ['--x', '1']\n");
    HAS("1 ['--x', '1']\n");
    cr_assert_eq(shell_run("$T --standalone -m prog --y"), 0, "%s", shell_output);
    HAS("0 ['--y']\n");
    cr_assert_eq(shell_run("PYTHON_EXEC=/bin/echo $T --standalone prog.py z"), 0, "%s", shell_output);
    cr_assert_str_eq(shell_output, "-u prog.py z\n");
    cr_assert_eq(
        shell_run(
            "printf '#!/bin/sh\\necho run $1\\n' >own.py; chmod +x own.py; $T --standalone --no_python ./own.py a"),
        0, "%s", shell_output);
    cr_assert_str_eq(shell_output, "run a\n");
    cr_assert_eq(
        shell_run(
            "printf '#!/bin/sh\\necho here\\n' >local-program; chmod +x local-program; $T --standalone local-program"),
        0, "%s", shell_output);
    cr_assert_str_eq(shell_output, "here\n");
}

/* "Do not prepend the training script with python." */
LAUNCH_TEST(a_file_that_is_not_executable_runs_with_python) {
    cr_assert_eq(
        shell_run("printf 'import sys\\nprint(\"in python\", sys.argv[1:])\\n' >train; $T --standalone ./train 1"), 0,
        "%s", shell_output);
    cr_assert_str_eq(shell_output, "in python ['1']\n");
    cr_assert_eq(shell_run("$T --standalone train 2"), 0, "%s", shell_output);
    cr_assert_str_eq(shell_output, "in python ['2']\n");
    cr_assert_eq(shell_run("$T --standalone --rank-dirs r train 3; cat r0/log0"), 0, "%s", shell_output);
    cr_assert_str_eq(shell_output, "in python ['3']\n");
}

/* As `python -m torch_tutti.launch`, which finds tuttirun beside it if pip has installed it. */
LAUNCH_TEST(the_python_package_has_the_launcher) {
    if (getenv("TUTTI_SOURCE") == NULL) cr_skip_test("TUTTI_SOURCE is not set");
    const char *name = "python=$(python3 -c 'import sys; print(sys.executable)'); "
                       "L=$TUTTI_SOURCE/bindings/torch/torch_tutti/launch.py";
    cr_assert_eq(
        shell_run(
            "echo 'import os, sys; print(os.environ[\"RANK\"], sys.executable, sys.argv[1:])' >train.py; %s\n"
            "unset PYTHON_EXEC; PATH=$TUTTI_BUILD/bin:$PATH $python $L --standalone --nproc_per_node 2 train.py --x "
            ">out; cat out; grep -c \" $python \" out",
            name),
        0, "%s", shell_output);
    HAS("0 /");
    HAS("1 /");
    HAS("['--x']\n2\n");
    cr_assert_eq(shell_run("%s; cp $L . && PATH=/nowhere $python launch.py -n 2 true", name), 1, "%s", shell_output);
    HAS("python -m torch_tutti.launch: there is no tuttirun beside");
    HAS("install");
}

LAUNCH_TEST(output_of_python_is_not_buffered) {
    cr_assert_eq(shell_run("printf 'import time\\nprint(\"early\")\\ntime.sleep(60)\\n' >slow.py\n"
                           "timeout -s INT 5 ${T#*60 } --standalone --nproc-per-node 2 slow.py"),
                 124, "%s", shell_output);
    HAS("early\n");
}

LAUNCH_TEST(a_program_that_cannot_run_is_a_one_line_error) {
    cr_assert_eq(shell_run("$T --standalone --nproc-per-node 4 no-such-program"), 2);
    cr_assert_str_eq(shell_output, "tuttirun: no such program: no-such-program\n");
    cr_assert_eq(shell_run("$T --standalone ./missing.py"), 2);
    HAS("tuttirun: cannot read ./missing.py: No such file");
    cr_assert_eq(shell_run("echo x >text; $T --standalone --no_python ./text"), 2);
    HAS("cannot run ./text: Permission denied; chmod +x it, name its interpreter, or leave out --no-python");
    cr_assert_eq(shell_run("PYTHON_EXEC=no-python $T --standalone -m x"), 2);
    HAS("no Python interpreter 'no-python'");
}

/* --------------------------------------------------------------------------------------------- output */

LAUNCH_TEST(lines_carry_the_rank_when_several_print_and_do_not_mix) {
    cr_assert_eq(shell_run("$T --standalone --nproc-per-node 4 sh -c 'echo hello; echo hello >&2; sleep 0.5; i=0; "
                           "while [ $i -lt 500 ]; do echo line $i of rank $RANK; i=$((i+1)); done; printf unfinished; "
                           "echo wrong >&2'"),
                 0);
    int lines = 0;
    for (char *next = shell_output, *line; (line = strsep(&next, "\n")) != NULL && *line != '\0'; lines++) {
        int rank, number, of;
        bool counted = sscanf(line, "[%d] line %d of rank %d", &rank, &number, &of) == 3 && rank == of;
        bool first = strcmp(line, "hello") == 0; /* before a second rank prints */
        bool named = line[0] == '[' && line[1] >= '0' && line[1] <= '3' && line[2] == ']' && line[3] == ' ';
        bool other = named && (strcmp(line + 4, "hello") == 0 || strcmp(line + 4, "unfinished") == 0 ||
                               strcmp(line + 4, "wrong") == 0);
        cr_assert(counted || first || other, "'%s'", line);
    }
    cr_assert_eq(lines, 4 * 504);
    cr_assert_eq(shell_run("$T --standalone sh -c 'echo alone; printf unfinished'"), 0);
    cr_assert_str_eq(shell_output, "alone\nunfinished");
    cr_assert_eq(shell_run("$T --standalone --nproc-per-node 2 --no-prefix sh -c 'echo same'"), 0);
    cr_assert_str_eq(shell_output, "same\nsame\n");
}

LAUNCH_TEST(long_lines_are_broken_and_nothing_is_lost) {
    cr_assert_eq(
        shell_run("$T --standalone --nproc-per-node 2 sh -c 'if [ $RANK = 1 ]; then head -c 50000 /dev/zero | tr "
                  "\"\\0\" x; fi'"),
        0);
    size_t xs = 0;
    for (const char *c = shell_output; *c != '\0'; c++) xs += *c == 'x';
    cr_assert_eq(xs, 50000);
    cr_assert_eq(strncmp(shell_output, "xxx", 3), 0); /* a single rank needs no prefix */
}

LAUNCH_TEST(ranks_get_an_error_when_the_reader_has_closed_the_pipe) {
    cr_assert_eq(
        shell_run(
            "$T --standalone --nproc-per-node 2 --local-ranks-filter 1 sh -c 'if [ $RANK = 1 ]; then exec yes; fi' "
            "| head -n 1"),
        0);
    HAS("y\n");
    HAS("was killed by SIGPIPE");
}

LAUNCH_TEST(only_the_listed_ranks_are_shown) {
    cr_assert_eq(shell_run("$T --standalone --nproc-per-node 3 --local-ranks-filter 0,2 sh -c 'echo here $RANK'"), 0);
    HAS("here 0\n");
    HAS_NOT("here 1\n");
    HAS("here 2\n");
}

LAUNCH_TEST(files_are_where_torchrun_puts_them) {
    cr_assert_eq(shell_run("$T --standalone --nproc-per-node 2 --rdzv-id job --log-dir logs --tee 3 -r 1:1 "
                           "sh -c 'echo out $RANK; echo err $RANK >&2; echo $TORCHELASTIC_ERROR_FILE'\n"
                           "cd logs/job_*/attempt_0 && for r in 0 1; do cat $r/stdout.log $r/stderr.log; done"),
                 0, "%s", shell_output);
    cr_assert_eq(shell_count("out 0\n"), 2, "once from the rank, once in its file:\n%s", shell_output);
    cr_assert_eq(shell_count("err 1\n"), 2, "%s", shell_output);
    HAS("\nout 0\nlogs/job_");
    HAS("/attempt_0/0/error.json\n");
    HAS("\nerr 0\n");
    HAS("\nerr 1\n");
    cr_assert_eq(shell_run("$T --standalone --nproc-per-node 2 --log-dir only --redirects 1:3 sh -c 'echo out $RANK'\n"
                           "cat only/*/attempt_0/1/stdout.log"),
                 0, "%s", shell_output);
    cr_assert_eq(shell_count("out 0\n"), 1, "%s", shell_output);
    cr_assert_eq(shell_count("out 1\n"), 1, "only in its file:\n%s", shell_output);
}

LAUNCH_TEST(files_are_where_oneflow_puts_them) {
    cr_assert_eq(
        shell_run("$T --standalone --nproc_per_node 2 --redirect_stdout_and_stderr --logdir a/b sh -c 'echo out $RANK; "
                  "echo err $RANK >&2'; for r in 0 1; do cat a/b/local_rank_$r/stdout a/b/local_rank_$r/stderr; done"),
        0);
    cr_assert_str_eq(shell_output, "out 0\nerr 0\nout 1\nerr 1\n");
    cr_assert_eq(shell_run("$T --redirect_stdout_and_stderr true"), 2);
    HAS("needs --logdir");
    cr_assert_eq(
        shell_run("$T --standalone --nproc_per_node 2 --logdir c/d sh -c 'echo out $RANK; echo err $RANK >&2'\n"
                  "for r in 0 1; do cat c/d/local_rank_$r/stdout c/d/local_rank_$r/stderr; done"),
        0);
    HAS("\nout 0\nerr 0\nout 1\nerr 1\n");
    cr_assert_eq(shell_count("out 0\n"), 2, "shown, and in its file:\n%s", shell_output);
    cr_assert_eq(shell_count("err 1\n"), 2, "%s", shell_output);
    cr_assert_eq(shell_run("$T -n 1 --logdir one sh -c 'echo alone'; cat one/local_rank_0/stdout"), 0);
    cr_assert_str_eq(shell_output, "alone\nalone\n");
}

/* Like scripts in MindSpore's documents: "per rank i: mkdir device$i, cd there, env > env$i.log, output to log$i". */
LAUNCH_TEST(ranks_run_in_folders_of_their_own_as_mindspores_scripts_make_them) {
    cr_assert_eq(
        shell_run("mkdir sub && printf '#!/bin/sh\\necho out $RANK_ID of $RANK_SIZE on $DEVICE_ID\\necho err >&2\\n"
                  "touch made\\n' >sub/program && chmod +x sub/program\n"
                  "$T --standalone --nproc_per_node 2 --rank-dirs a/device sub/program && "
                  "for r in 0 1; do cd a/device$r && ls && cat log$r && cd ../..; done"),
        0, "%s", shell_output);
    cr_assert_str_eq(shell_output, "env0.log\nlog0\nmade\nout 0 of 2 on 0\nerr\n"
                                   "env1.log\nlog1\nmade\nout 1 of 2 on 1\nerr\n");
    cr_assert_eq(shell_run("cat a/device1/env1.log; stat -c %%a a/device1/env1.log"), 0);
    HAS("RANK_ID=1\n");
    HAS("PATH=");
    HAS("\n600\n");
    cr_assert_null(strstr(shell_output, "TUTTI_SECRET="), "the secret is in a file");
    cr_assert_eq(shell_run("echo 'import os; print(os.path.basename(os.getcwd()))' >cwd.py; "
                           "$T --standalone --nproc_per_node 2 --rank-dirs py cwd.py && cat py1/log1"),
                 0, "%s", shell_output);
    cr_assert_str_eq(shell_output, "py1\n");
    cr_assert_eq(shell_run("$T --rank-dirs device --tee 3 true"), 2);
    HAS("--rank-dirs says where output goes; leave out");
    cr_assert_eq(shell_run("touch taken0; $T --rank-dirs taken true"), 1);
    HAS("taken0");
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
        cr_assert_eq(shell_run("$T %s true", wrong[i][0]), 2, "%s: %s", wrong[i][0], shell_output);
        HAS(wrong[i][1]);
        cr_assert_eq(shell_count("\n"), 1, "one line: %s", shell_output);
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
        cr_assert_eq(shell_run("$T %s", wrong[i][0]), 2, "%s: %s", wrong[i][0], shell_output);
        HAS(wrong[i][1]);
        cr_assert_eq(shell_count("\n"), 1, "one line: %s", shell_output);
    }
}

LAUNCH_TEST(a_port_in_use_is_named_with_its_owner_and_advice) {
    int port, fd = wire_listen(&port);
    char text[128];
    cr_assert_eq(shell_run("$T --nproc-per-node 2 --master_port %d true", port), 1);
    snprintf(text, sizeof text, "tuttirun: port %d is in use by pid %d (", port, (int)getpid());
    HAS(text);
    HAS("--standalone");
    cr_assert_eq(shell_count("\n"), 1, "one line: %s", shell_output);
    close(fd);
}

LAUNCH_TEST(help_and_version_are_printed) {
    cr_assert_eq(shell_run("$T --help"), 0);
    HAS("usage: tuttirun");
    HAS("--nproc-per-node");
    HAS("--redirect-stdout-and-stderr");
    cr_assert_eq(shell_run("$T --version"), 0);
    HAS("tuttirun 0.1.0\n");
}
