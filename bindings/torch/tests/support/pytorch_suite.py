"""One worker of run_pytorch_suite: runs PyTorch's own tests of torch.distributed from the installed PyTorch.

Does what upstream's test/distributed/test_distributed_spawn.py does, with one difference: the ranks of a test are
forked from this process, which has PyTorch loaded already, instead of being spawned; that saves 2 s per test. They
still end like Python programs, interpreter exit included. TUTTI_SUITE_SPAWN=1 spawns them as upstream does.

Arguments: folder for logs, then names of tests (none: print all names). Results go to stdout, one JSON object per line.
Environment: BACKEND, WORLD_SIZE, TUTTI_SUITE_TIMEOUT (seconds per test), TUTTI_SUITE_IN_PLACE=1 (BACKEND is "gloo", but
every group is made by torch_tutti). Nothing here runs operators of PyTorch: a fork would lose their threads.
"""
import faulthandler
import gc
import json
import logging
import multiprocessing
import multiprocessing.context
import multiprocessing.popen_fork
import os
import re
import sys
import time
import traceback
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
os.environ.setdefault("PYTORCH_PRINT_REPRO_ON_FAILURE", "0")
os.environ.setdefault("TEMP_DIR", "/nonexistent")  # the suite needs it at import; each test makes its own

import torch
from torch.testing._internal import common_distributed
from torch.testing._internal.distributed import distributed_test
import in_place

KILL_AFTER_S = 5  # limit for ranks that do not end when a test is over
LOG_TAIL = 6000   # characters of the ranks' output kept with a failure

if os.environ.get("TUTTI_SUITE_IN_PLACE"):
    in_place.take_the_place_of_gloo()
elif os.environ["BACKEND"] not in ("gloo", "nccl", "mpi", "ucc"):
    for feature in ("plugin", "ddp"):
        common_distributed.DistTestCases.backend_feature[feature].add(os.environ["BACKEND"])

common_distributed.TIMEOUT_DEFAULT = int(os.environ.get("TUTTI_SUITE_TIMEOUT", "300"))
if "TUTTI_SUITE_TIMEOUT" in os.environ:
    common_distributed.TIMEOUT_OVERRIDE.clear()


class RankEnds(KeyboardInterrupt):
    """Ends a forked rank by unwinding its whole stack; unittest lets KeyboardInterrupt pass."""

    def __init__(self, code):
        super().__init__()
        self.code = code


class ForkPopen(multiprocessing.popen_fork.Popen):
    """Forks; the child returns to the end of this program, to exit like any other Python program."""

    def _launch(self, process_obj):
        parent_read, child_write = os.pipe()
        child_read, parent_write = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(parent_read)
            os.close(parent_write)
            # This process's own folder: a rank must not remove it.
            common_distributed.tmp_dir._finalizer.detach()
            raise RankEnds(process_obj._bootstrap(parent_sentinel=child_read))
        os.close(child_write)
        os.close(child_read)
        self.finalizer = multiprocessing.util.Finalize(
            self, multiprocessing.util.close_fds, (parent_read, parent_write))
        self.sentinel = parent_read


class ForkProcess(multiprocessing.context.ForkProcess):
    @staticmethod
    def _Popen(process_obj):
        return ForkPopen(process_obj)


class TestDistBackendWithSpawn(distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):
    def setUp(self):
        super().setUp()
        if os.environ.get("TUTTI_SUITE_SPAWN"):
            self._spawn_processes()
        else:
            self._start_processes(ForkProcess)

    def tearDown(self):
        processes = self.processes
        super().tearDown()
        deadline = time.monotonic() + KILL_AFTER_S
        for process in processes:
            process.join(max(0.0, deadline - time.monotonic()))
            if process.exitcode is None:
                process.kill()
                process.join()


class Reporter(unittest.TestResult):
    """Writes the result of each test; the output of its ranks goes to a log of its own."""

    def __init__(self, out, folder):
        super().__init__()
        self.out, self.folder = out, folder
        self.row, self.log, self.began = {}, "", 0.0
        self.process = os.getpid()

    def startTest(self, test):
        super().startTest(test)
        self.row = {"test": test.id().split(".")[-1], "result": "passed", "reason": ""}
        self.log = os.path.join(self.folder, self.row["test"] + ".log")
        descriptor = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        sys.stdout.flush()
        sys.stderr.flush()
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        os.close(descriptor)
        self.began = time.monotonic()

    def stopTest(self, test):
        if os.getpid() != self.process:
            return  # a rank that exits
        super().stopTest(test)
        sys.stdout.flush()
        sys.stderr.flush()
        with open(self.log, encoding="utf-8", errors="replace") as file:
            text = file.read()
        if self.row["result"] == "skipped":
            said = re.search(r"skipping test \S+ for following reason: (.*)", text)
            if said:
                self.row["reason"] = said.group(1)
        elif self.row["result"] == "failed":
            self.row["output"] = text[-LOG_TAIL:]
        self.row["seconds"] = round(time.monotonic() - self.began, 2)
        self.out.write(json.dumps(self.row) + "\n")
        self.out.flush()

    def fail(self, error):
        self.row["result"] = "failed"
        self.row["reason"] = "".join(traceback.format_exception(*error))

    def addError(self, test, err):
        super().addError(test, err)
        self.fail(err)

    def addFailure(self, test, err):
        super().addFailure(test, err)
        self.fail(err)

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self.row["result"], self.row["reason"] = "skipped", reason


def main():
    folder, names = sys.argv[1], sys.argv[2:]
    if not names:
        print("\n".join(unittest.defaultTestLoader.getTestCaseNames(TestDistBackendWithSpawn)))
        return 0
    # The reason for which a rank skips is only logged.
    logger = logging.getLogger(common_distributed.__name__)
    logger.addHandler(logging.StreamHandler(sys.stderr))
    faulthandler.enable()
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    gc.collect()
    gc.freeze()  # the garbage collector skips everything loaded so far when a rank ends
    suite = unittest.TestSuite(TestDistBackendWithSpawn(name) for name in names)
    try:
        suite.run(Reporter(out, folder))
    except RankEnds as end:
        return end.code
    return 0


if __name__ == "__main__":
    sys.exit(main())
