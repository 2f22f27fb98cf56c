"""Runs a function on n ranks, which are forked from the test's process, and gathers their results.

The test's process has PyTorch loaded but never runs its operators, so that forks lose no threads; a rank starts
within milliseconds. The first failure is reported, with the others' state; then, or after the time limit, all are
ended with everything that they have started. No process remains, even if the test's process is killed.
"""
import ctypes
import datetime
import faulthandler
import gc
import importlib.util
import io
import os
import selectors
import signal
import sys
import tempfile
import time
import traceback

os.environ.setdefault("OMP_NUM_THREADS", "1")  # ranks share the cores

import torch
import torch.distributed as dist

HAVE_TUTTI = importlib.util.find_spec("torch_tutti") is not None
# The backend under test. With gloo, the tests test themselves.
BACKEND = os.environ.get("TUTTI_TEST_BACKEND") or ("tutti" if HAVE_TUTTI else "gloo")
IS_TUTTI = BACKEND != "gloo"
if IS_TUTTI:
    import torch_tutti
OLD = not hasattr(torch, "_import_device_backends")  # PyTorch 2.4
HAVE_RECORDER = hasattr(torch._C._distributed_c10d.Backend, "supports_completion_hooks")  # its flight recorder is for all backends
# First line of programs that tests start: in old versions "tutti" is known only after this import.
IMPORT = "import torch_tutti\n" if IS_TUTTI and OLD else ""

TIMEOUT_S = 60       # for all ranks together
CALL_TIMEOUT_S = 30  # for one operation: less than the above, so that its error is seen
LAST_WORDS_S = 3     # for the others, after one has failed
MOST_TEXT = 4000     # characters of an error
PR_SET_PDEATHSIG = 1

gc.collect()
gc.freeze()


class RanksFailed(AssertionError):
    pass


class Context:
    """The argument of a body: its rank, the number of ranks, a folder that all share, and ways to start a group."""

    def __init__(self, rank, size, folder):
        self.rank, self.size, self.folder = rank, size, folder

    def store(self, name="store"):
        return dist.FileStore(os.path.join(self.folder, name), self.size)

    def init(self, backend=BACKEND, timeout_s=CALL_TIMEOUT_S, name="store", **named):
        store = self.store(name)
        dist.init_process_group(backend, store=store, rank=self.rank, world_size=self.size,
                                timeout=datetime.timedelta(seconds=timeout_s), **named)
        if "gloo" in str(backend):
            self.meet(store, timeout_s)

    def meet(self, store, timeout_s):
        """Gloo's ranks fail to connect to a rank that has finished connecting and ended."""
        end = time.monotonic() + timeout_s
        there = store.add("ranks that have begun", 1)
        while there < self.size and time.monotonic() < end:
            time.sleep(0.005)
            there = store.add("ranks that have begun", 0)


class Rank:
    def __init__(self, pid, pipe, log):
        self.pid, self.pipe, self.log = pid, pipe, log
        self.data, self.status, self.result, self.error = b"", None, None, None

    def finish(self):
        """The pipe is closed: the rank has reported, or is dead."""
        self.pipe.close()
        if not self.data:
            return
        kind, value = torch.load(io.BytesIO(self.data), weights_only=False)
        if kind == "ok":
            self.result = value
        else:
            self.error = value

    def reap(self):
        _, status = os.waitpid(self.pid, 0)
        self.status = os.waitstatus_to_exitcode(status)

    def kill(self):
        try:
            os.killpg(self.pid, signal.SIGKILL)  # also the processes that it has started
        except ProcessLookupError:
            pass

    def story(self, number):
        if self.error:
            text = self.error if len(self.error) < MOST_TEXT else self.error[: MOST_TEXT // 2] + "\n...\n" + self.error[-MOST_TEXT // 2 :]
        elif self.data:
            text = "done"
        elif self.status is not None and self.status < 0 and self.status != -signal.SIGKILL:
            text = "ended by %s" % signal.Signals(-self.status).name
        else:
            text = "no result (exit code %s)" % self.status
        with open(self.log, encoding="utf-8", errors="replace") as file:
            said = file.read()[-3000:].strip()
        return "rank %d: %s%s" % (number, text, "\n  it said:\n" + said if said and not self.result else "")


def can_destroy():
    """In PyTorch 2.4 gloo's end sometimes hangs: it waits for its own threads, which need the GIL."""
    return not OLD or not any("gloo" in str(names) for names, _ in dist.distributed_c10d._world.pg_map.values())


def be_rank(body, context, arguments, writer, log, init, backend):
    """The life of a forked rank. Never returns."""
    code = 1
    try:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        os.setpgid(0, 0)
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        sys.stdout, sys.stderr = os.fdopen(1, "w", buffering=1, closefd=False), os.fdopen(2, "w", buffering=1, closefd=False)
        faulthandler.enable(file=sys.stderr)
        faulthandler.register(signal.SIGUSR1, file=sys.stderr)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        torch.manual_seed(17 + context.rank)
        # Where PyTorch's flight recorder writes its dump when a group fails.
        os.environ["TORCH_FR_DUMP_TEMP_FILE"] = os.path.join(context.folder, "trace_rank_")
        try:
            if init:
                context.init(backend)
            report = ("ok", body(context, *arguments))
            if init and dist.is_initialized() and can_destroy():
                dist.destroy_process_group()
            code = 0
        except BaseException:  # pylint: disable=broad-except
            report = ("error", traceback.format_exc())
        buffer = io.BytesIO()
        torch.save(report, buffer)
        with os.fdopen(writer, "wb") as pipe:
            pipe.write(buffer.getvalue())
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


def run(size, body, *arguments, init=True, backend=BACKEND, timeout=TIMEOUT_S, victims=()):
    """body(context, *arguments) on `size` ranks; returns the list of what they returned. Ranks in `victims` may die."""
    with tempfile.TemporaryDirectory(prefix="torch-ranks-") as folder:
        ranks = []
        sys.stdout.flush()
        sys.stderr.flush()
        for number in range(size):
            reader, writer = os.pipe()
            log = os.path.join(folder, "rank%d.log" % number)
            with open(log, "w", encoding="utf-8"):
                pass
            pid = os.fork()
            if pid == 0:
                os.close(reader)
                be_rank(body, Context(number, size, folder), arguments, writer, log, init, backend)
            os.close(writer)
            ranks.append(Rank(pid, os.fdopen(reader, "rb", buffering=0), log))
        try:
            failed, late = gather(ranks, timeout, victims)
        finally:
            for rank in ranks:
                rank.kill()
                if rank.status is None:
                    rank.reap()
        judge(ranks, failed, late, timeout)
        return [rank.result for rank in ranks]


def gather(ranks, timeout, victims):
    """Reads all reports. Returns the numbers of ranks in the order in which they failed, and whether time ran out."""
    waiting = selectors.DefaultSelector()
    for number, rank in enumerate(ranks):
        waiting.register(rank.pipe, selectors.EVENT_READ, number)
    deadline, failed, late = time.monotonic() + timeout, [], False
    while waiting.get_map():
        ready = waiting.select(max(0.0, deadline - time.monotonic()))
        for key, _ in ready:
            rank = ranks[key.data]
            piece = rank.pipe.read(1 << 16)
            if piece:
                rank.data += piece
                continue
            waiting.unregister(rank.pipe)
            rank.finish()
            rank.reap()
            if (rank.error or not rank.data) and key.data not in victims:
                failed.append(key.data)
                deadline = min(deadline, time.monotonic() + LAST_WORDS_S)
        if not ready and time.monotonic() >= deadline:
            late = not failed
            for key in waiting.get_map().values():
                os.kill(ranks[key.data].pid, signal.SIGUSR1)  # print the stacks
            time.sleep(0.3)
            break
    return failed, late


def judge(ranks, failed, late, timeout):
    if not failed and not late:
        return
    order = failed + [number for number in range(len(ranks)) if number not in failed]
    text = "not done after %d s" % timeout if late else "rank %d failed first" % failed[0]
    raise RanksFailed(text + "\n" + "\n".join(ranks[number].story(number) for number in order))
