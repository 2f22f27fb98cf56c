#!/usr/bin/env python3
"""How several processes on one GPU affect each other: a value's path from one process's stream to the other's,
concurrent kernels, and how long a process takes to end while one of its streams waits. Does not use Tutti.

Prints a line per question, "question: answer". Processes are forked before any of them starts CUDA, and end with
their question. Needs libcuda.so.1 and a GPU, else prints so and exits with 77.
"""
import ctypes
import mmap
import os
import select
import signal
import struct
import time

from driver import at, counter, end_without_driver, expect_end, set_counter
from probing import ask, in_child, wait_until
from scene import GATE, Scene

LIMIT_S = 12
EXIT_S = 4                   # a process that has not ended by then hangs
MEET_S = 6                   # time for the other process to start CUDA
ROUND_S = 1                  # limit for one round of a few microseconds
ROUNDS = 100                 # all wait in streams: fewer than their capacity
BYTES = 1 << 16
FIRST, MIDDLE, LAST, MEETING = 0, 8, 16, 64  # indices of counters, each in its own cache line
NEVER = 1 << 40
WORK_MS = 15


class Meeting:
    """Two processes that proceed together: memory for counters, which both map."""

    def __init__(self):
        self.fd = os.memfd_create("probe")
        os.ftruncate(self.fd, BYTES)
        self.shared, self.own = None, 0

    def enter(self, own):
        self.shared, self.own = mmap.mmap(self.fd, BYTES), own
        return self.shared

    def meet(self, step):
        set_counter(self.shared, MEETING + 8 * self.own, step)
        wait_until(lambda: counter(self.shared, MEETING + 8 * (1 - self.own)) >= step, MEET_S, "the other process", 0.0002)


# ------------------------------------------------------------------------------------------------ ways of a value

def hop(scene, there, stream, source, target, between):
    """Enqueues all rounds in a stream: each waits for the source's value, and forwards it."""
    for i in range(1, ROUNDS + 1):
        scene.driver.wait_value(at(there, source), i, stream)
        between(scene, stream)
        scene.driver.write_value(at(there, target), i, stream)


def go_round(shared, first, last):
    """The host writes a value, and sees it when it has gone through all streams: "median (least, most)" in microseconds."""
    spent = []
    for i in range(1, ROUNDS + 1):
        start = time.perf_counter()
        set_counter(shared, first, i)
        wait_until(lambda: counter(shared, last) >= i, ROUND_S, "a value on its way through two streams")
        spent.append(1e6 * (time.perf_counter() - start))
    spent.sort()
    return "%.1f us (%.1f to %.1f)" % (spent[ROUNDS // 2], spent[0], spent[-1])


BETWEEN = (("nothing in between", lambda scene, stream: None), ("a kernel in each", lambda scene, stream: scene.launch(stream)))


def ways():
    """Each with its own counters: (name, what comes in between, the first, the middle, the last)."""
    return [(words, between, 24 * i + FIRST, 24 * i + MIDDLE, 24 * i + LAST) for i, (words, between) in enumerate(BETWEEN)]


def way_in_one_process():
    meeting, scene = Meeting(), Scene()
    there = scene.driver.register(meeting.enter(0), BYTES)
    other = scene.driver.make_stream()
    for words, between, first, middle, last in ways():
        hop(scene, there, scene.driver.stream, first, middle, between)
        hop(scene, there, other, middle, last, between)
        yield "%s %s" % (words, go_round(meeting.shared, first, last))


def way_in_two_processes():
    meeting = Meeting()

    def enter(own):
        scene = Scene()
        return scene, scene.driver.register(meeting.enter(own), BYTES)

    def pass_on():
        scene, there = enter(1)
        for step, (_, between, _, middle, last) in enumerate(ways(), 1):
            hop(scene, there, scene.driver.stream, middle, last, between)
            meeting.meet(step)
        meeting.meet(len(BETWEEN) + 1)  # no process leaves before

    pid = in_child(pass_on)
    scene, there = enter(0)
    for step, (words, between, first, middle, last) in enumerate(ways(), 1):
        hop(scene, there, scene.driver.stream, first, middle, between)
        meeting.meet(step)
        yield "%s %s" % (words, go_round(meeting.shared, first, last))
    meeting.meet(len(BETWEEN) + 1)
    expect_end(pid)


# ---------------------------------------------------------------------------------------------- kernels at once

def kernels_at_once():
    """Each process runs a kernel of one block and one thread, first alone and then both: whether they run
    concurrently or in turns."""
    meeting = Meeting()

    def work(scene, kernel, rounds):
        start = time.perf_counter()
        scene.launch(scene.driver.stream, kernel, (scene.memory.value, rounds))
        scene.driver.sync()
        return 1e3 * (time.perf_counter() - start)

    def play(own):
        scene = Scene()
        meeting.enter(own)
        kernel, rounds = scene.function(b"work"), 100000
        work(scene, kernel, rounds)
        meeting.meet(1)
        if own == 1:  # the other one measures itself alone
            meeting.meet(2)
            rounds = counter(meeting.shared, FIRST)
            alone = 0.0
        else:
            rounds = min(int(rounds * WORK_MS / max(work(scene, kernel, rounds), 0.01)), 10**8)
            alone = min(work(scene, kernel, rounds) for _ in range(3))
            set_counter(meeting.shared, FIRST, rounds)
            meeting.meet(2)
        meeting.meet(3)
        spent = work(scene, kernel, rounds)
        set_counter(meeting.shared, MIDDLE + own, int(1e3 * spent))
        meeting.meet(4)
        return alone

    pid = in_child(lambda: play(1))
    alone = play(0)
    expect_end(pid)
    longest = max(counter(meeting.shared, MIDDLE), counter(meeting.shared, MIDDLE + 1)) / 1e3
    return "%.1f ms alone, %.1f ms where both run one: %s" % (
        alone, longest, "IN TURNS" if longest > 1.6 * alone else "at the same time")


# ------------------------------------------------------------------------------------- ends beside a wait

def leave(how):
    if how == "exit":
        ctypes.CDLL(None).exit(0)  # includes the driver's work at the end of a program
    if how == "_exit":
        os._exit(0)
    os.kill(os.getpid(), signal.SIGKILL)


def end_of_a_process(how, waits):
    """Seconds from its last statement until its parent is notified."""
    reader, writer = os.pipe()

    def body():
        scene = Scene()
        if waits:
            scene.driver.wait_value(scene.at(GATE), NEVER)
            scene.fill(scene.driver.stream)
            time.sleep(0.05)
        os.write(writer, struct.pack("d", time.monotonic()))
        leave(how)

    pid = in_child(body)
    os.close(writer)
    fd = os.pidfd_open(pid)
    data = os.read(reader, 8)
    if len(data) != 8:
        raise OSError("the other process failed")
    gone = bool(select.select([fd], [], [], EXIT_S)[0])
    spent = time.monotonic() - struct.unpack("d", data)[0]
    if gone:
        os.waitpid(pid, 0)
        return "gone after %.0f ms" % (1e3 * spent)
    os.kill(pid, signal.SIGKILL)
    killed = bool(select.select([fd], [], [], 2)[0])
    return "STANDS STILL for %d s, then SIGKILL %s" % (EXIT_S, "ended it" if killed else "did not end it within 2 s")


QUESTIONS = (
    ("host to a stream to another stream to the host, one process", way_in_one_process),
    ("host to a stream to another process's stream to the host", way_in_two_processes),
    ("kernels of two processes, of one thread each", kernels_at_once),
    ("a process ends by exit() while nothing waits", lambda: end_of_a_process("exit", False)),
    ("a process ends by exit() while a stream waits", lambda: end_of_a_process("exit", True)),
    ("a process ends by _exit() while a stream waits", lambda: end_of_a_process("_exit", True)),
    ("a process is killed while a stream waits", lambda: end_of_a_process("SIGKILL", True)),
)


def main():
    end_without_driver()
    for question, probe in QUESTIONS:
        ask(question, probe, LIMIT_S)


if __name__ == "__main__":
    main()
