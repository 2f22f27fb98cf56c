#!/usr/bin/env python3
"""Behaviour of the driver on which Tutti's design depends and that NVIDIA's manuals hardly document: streams that
wait for values, calls of other threads meanwhile, the capacity of a stream, and the cost of launches. Does not use
Tutti.

Prints a line per question, "question: answer"; each runs in its own process. A stream waits behind a gate, which is a
counter that the host or a timer raises, so nothing can wait forever. Needs libcuda.so.1 and a GPU, else prints so and
exits with 77.
"""
import ctypes
import mmap
import os
import time

from driver import BLOCKING, counter, end_without_driver, set_counter
from probing import ask
from scene import GEQ, HEAD_START_S, HELD_S, WAIT_64, WRITE_64, Call, Operation, Scene, batch, told

LIMIT_S = 12
MOST_QUEUED = 20000
SETTLED_S = 0.25             # if no call has returned for this time, they are blocked
KIB, MIB = 1 << 10, 1 << 20


# ------------------------------------------------------------------------------- what holds up calls of other threads

def beside(scene, waiting, first, then, patience_s):
    """Answers about two calls in two threads, the second 50 ms after the first, while a stream waits for its gate.
    The gate opens when both have returned, or their time is over, so the question takes little time if nothing is
    blocked."""
    calls = [Call(scene.driver, first), Call(scene.driver, then)]
    scene.shut(waiting)
    scene.fill(waiting)
    start = time.monotonic()
    calls[0].go()
    time.sleep(HEAD_START_S)
    calls[1].go().has_returned(HELD_S)
    calls[0].has_returned(max(patience_s - (time.monotonic() - start), 0))
    held = [not call.has_returned() for call in calls]
    scene.open()
    for call in calls:
        call.end()
    scene.driver.sync(waiting)
    return [told(*pair) for pair in zip(calls, held)]


def other_calls(scene):
    """The next calls of ranks that are threads: (name, call)."""
    driver, other, idle, event = scene.driver, scene.driver.make_stream(), scene.driver.make_stream(), scene.driver.make_event()
    scene.fill(other)
    driver.call("cuEventRecord", event, other)
    driver.sync(other)
    driver.sync(idle)
    return (("cuEventQuery", lambda: driver.call("cuEventQuery", event)),
            ("a launch in another stream", lambda: scene.launch(other)),
            ("a write of a value in another stream", lambda: driver.write_value(scene.at(1), 1, other)),
            ("cuMemAlloc", lambda: driver.alloc(4 * MIB)),
            ("cuStreamSynchronize of an idle stream", lambda: driver.sync(idle)))


def calls_beside(prepare, waiting_of=lambda scene: scene.driver.stream):
    """`prepare(scene, waiting)` returns the first call; `waiting_of(scene)` the stream that waits."""
    scene = Scene()
    yield from answers_beside(scene, prepare, waiting_of(scene))


def answers_beside(scene, prepare, waiting, words=""):
    patience_s = HELD_S + HEAD_START_S
    for name, call in other_calls(scene):
        try:
            first, then = beside(scene, waiting, prepare(scene, waiting), call, patience_s)
        except OSError as error:
            raise OSError("beside %s: %s" % (name, error)) from error
        if patience_s:
            yield "%sitself %s" % (words, first)
            patience_s = 0
        yield "%s%s %s" % ("meanwhile: " if name == "cuEventQuery" else "", name, then)


def free_beside_a_wait():
    def prepare(scene, _):
        memory = scene.driver.alloc(1 << 22)
        return lambda: scene.driver.call("cuMemFree_v2", memory)

    return calls_beside(prepare)


def synchronize_beside_a_wait():
    return calls_beside(lambda scene, _: lambda: scene.driver.call("cuCtxSynchronize"))


def register_beside_a_wait():
    def prepare(scene, _):
        memory = mmap.mmap(-1, 1 << 20)
        return lambda: scene.driver.register(memory, 1 << 20)

    return calls_beside(prepare)


def host_alloc_beside_a_wait():
    def prepare(scene, _):
        memory = ctypes.c_void_p()
        return lambda: scene.driver.call("cuMemHostAlloc", ctypes.byref(memory), ctypes.c_size_t(1 << 20), 3)

    return calls_beside(prepare)


def load_beside_a_wait():
    def prepare(scene, _):
        stream = scene.driver.make_stream()
        return lambda: scene.launch(stream, scene.load()[1])

    return calls_beside(prepare)


def wait_beside_a_wait():
    return calls_beside(lambda scene, waiting: lambda: scene.driver.sync(waiting))


def copies_beside_a_wait(copy, sizes, pinned=False, waiting_of=lambda scene: scene.driver.stream):
    """The first call is copy(driver, the GPU's memory, the host's, bytes, the stream that waits). Memory that is not
    pinned is malloc'd."""
    def prepare_with(size):
        def prepare(scene, waiting):
            there = scene.driver.alloc(size)
            here = mmap.mmap(-1, size) if pinned else ctypes.create_string_buffer(size)
            if pinned:
                scene.driver.register(here, size)
            at_host = ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(here)))
            kept.append(here)
            return lambda: copy(scene.driver, there, at_host, ctypes.c_size_t(size), waiting)

        return prepare

    scene, kept = Scene(), []
    waiting = waiting_of(scene)
    for size in sizes:
        yield from answers_beside(scene, prepare_with(size), waiting, "%d KiB: " % (size // KIB))


def to_host(driver, there, here, size, stream):
    driver.call("cuMemcpyDtoHAsync_v2", here, there, size, stream)


def to_host_at_once(driver, there, here, size, _):
    driver.call("cuMemcpyDtoH_v2", here, there, size)


def from_host(driver, there, here, size, stream):
    driver.call("cuMemcpyHtoDAsync_v2", there, here, size, stream)


def first_beside_a_wait(operation):
    """The driver loads its own kernels when it first needs them. None has run in this process."""
    scene = Scene(warm=False)
    other = scene.driver.make_stream()
    scene.shut(scene.driver.stream)
    for words in ("the first", "the second"):
        call = Call(scene.driver, lambda: operation(scene, other)).go()
        held = not call.has_returned(HELD_S)
        if held:
            scene.open()
        call.end()
        yield "%s %s" % (words, told(call, held))
        if held:
            scene.driver.sync()
            return
    start = time.perf_counter()
    ran = Call(scene.driver, lambda: scene.driver.sync(other)).go()
    yield "and both %s" % ("have run %.0f us later" % (1e6 * (time.perf_counter() - start)) if ran.has_returned(HELD_S) else
                           "RUN ONLY when the gate opens")
    scene.open()
    ran.end()
    scene.driver.sync()  # keep the counters as long as a stream reads them


# --------------------------------------------------------------------------------------------- room in a stream

def room(scene, enqueue):
    """How many calls return while the stream waits, and the time of a launch in another stream when no more do."""
    driver, done, stop = scene.driver, [0], []
    other = driver.make_stream()

    def fill():
        while not stop and done[0] < MOST_QUEUED:
            enqueue()
            done[0] += 1

    scene.shut(driver.stream)
    filling = Call(driver, fill).go().thread
    last, since = -1, time.monotonic()
    while filling.is_alive() and time.monotonic() - since < SETTLED_S:
        if done[0] != last:
            last, since = done[0], time.monotonic()
        time.sleep(0.01)
    blocked = filling.is_alive()
    stop.append(True)
    launching = Call(driver, lambda: scene.launch(other)).go()
    held = not launching.has_returned(SETTLED_S)
    scene.open()
    filling.join()
    launching.end()
    driver.sync()
    driver.sync(other)
    if not blocked:
        return "more than %d" % MOST_QUEUED
    return "%d (then a launch in another stream %s)" % (last, "is HELD UP, too" if held else told(launching, held))


def room_in_a_stream():
    scene = Scene()
    driver, stream = scene.driver, scene.driver.stream
    kinds = (("waits", lambda: driver.wait_value(scene.at(2), 0)), ("writes", lambda: driver.write_value(scene.at(3), 1)),
             ("launches", lambda: scene.launch(stream)), ("fills", lambda: scene.fill(stream)))
    return ", ".join("%s: %s" % (name, room(scene, enqueue)) for name, enqueue in kinds)


# ------------------------------------------------------------------------------------------------ many streams

def chain_goes(scene, streams, turn):
    """Stream i waits for i + 1, and the last one, which gets its work last, for none: microseconds, or None if they
    are stuck."""
    driver, n = scene.driver, len(streams)
    for i, stream in enumerate(streams):
        if i + 1 < n:
            driver.wait_value(scene.at(i + 1), turn, stream)
        scene.fill(stream)
        driver.write_value(scene.at(i), turn, stream)
    start = time.perf_counter()
    while counter(scene.shared, 0) < turn and time.perf_counter() - start < HELD_S:
        pass
    spent = time.perf_counter() - start
    stuck = counter(scene.shared, 0) < turn
    for i in range(n):  # releases all that are stuck
        set_counter(scene.shared, i, turn)
    for stream in streams:
        driver.sync(stream)
    return None if stuck else 1e6 * spent


def many_streams(connections):
    os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] = str(connections)
    scene = Scene()
    streams, words = [], []
    for turn, n in enumerate((4, 8, 9, 16, 32, 33, 64, 128), 1):
        streams += [scene.driver.make_stream() for _ in range(n - len(streams))]
        spent = chain_goes(scene, streams, turn)
        words.append("%d %s" % (n, "STUCK" if spent is None else "go (%.0f us)" % spent))
        if spent is None:
            break
    return ", ".join(words)


# ----------------------------------------------------------------------------------------- what operations cost

PEERS, ROUNDS = 7, 12


def one_batch_or_single():
    """A round is the work of one of eight ranks: it waits for seven values, and writes one."""
    scene = Scene()
    driver = scene.driver
    waits = [Operation(WAIT_64, scene.at(8 + i).value, 0, GEQ) for i in range(PEERS)]
    write = Operation(WRITE_64, scene.at(4).value, 1, 0)

    def single():
        for i in range(PEERS):
            driver.wait_value(scene.at(8 + i), 0)
        driver.write_value(scene.at(4), 1)

    def waits_in_one():
        batch(driver, waits)
        driver.write_value(scene.at(4), 1)

    words = []
    for name, enqueue in (("8 calls", single), ("waits in one", waits_in_one), ("all in one", lambda: batch(driver, waits + [write]))):
        calls, runs = [], []
        for _ in range(6):
            scene.shut(driver.stream)
            start = time.perf_counter()
            spent_ms = driver.time_ms(lambda: [enqueue() for _ in range(ROUNDS)],
                                      lambda: (calls.append(time.perf_counter() - start), scene.open()))
            runs.append(1e3 * spent_ms / ROUNDS)
        words.append("%s: %.1f us to enqueue (from Python), %.1f us in the stream" % (
            name, 1e6 * sorted(calls)[2] / ROUNDS, sorted(runs)[2]))
    return "; ".join(words)


def nodes_of_a_graph():
    """The time between dependent kernels is a lower bound of a step: this time multiplied by the number of kernels."""
    scene = Scene()
    driver, stream, nodes, words = scene.driver, scene.driver.stream, 64, []
    for name, work in (("empty kernels", scene.launch), ("fills of 4 KiB", scene.fill)):
        _, graph = scene.capture(lambda: [work(stream) for _ in range(nodes)])
        replays = [driver.time_ms(lambda: driver.call("cuGraphLaunch", graph, stream)) for _ in range(12)]
        many = [driver.time_ms(lambda: [driver.call("cuGraphLaunch", graph, stream) for _ in range(10)]) for _ in range(3)]
        words.append("%s: %.2f us each, %.1f us a graph of %d, one behind the other" % (
            name, 1e3 * sorted(replays)[6] / nodes, 1e3 * min(many) / 10, nodes))
    return "; ".join(words)


QUESTIONS = (
    ("cuMemFree beside a stream that waits for a value", free_beside_a_wait),
    ("cuCtxSynchronize beside a stream that waits", synchronize_beside_a_wait),
    ("cuMemHostRegister beside a stream that waits", register_beside_a_wait),
    ("cuMemHostAlloc beside a stream that waits", host_alloc_beside_a_wait),
    ("the first launch of a kernel beside a stream that waits", load_beside_a_wait),
    ("cuStreamSynchronize of a stream that waits", wait_beside_a_wait),
    ("cuMemcpyDtoHAsync to pageable memory in a stream that waits", lambda: copies_beside_a_wait(to_host, (256 * KIB, 4 * KIB))),
    ("cuMemcpyDtoHAsync to pinned memory in a stream that waits", lambda: copies_beside_a_wait(to_host, (256 * KIB,), True)),
    ("cuMemcpyDtoH to pageable memory behind a blocking stream that waits",
     lambda: copies_beside_a_wait(to_host_at_once, (256 * KIB,), waiting_of=lambda scene: scene.driver.make_stream(BLOCKING))),
    ("cuMemcpyHtoDAsync from pageable memory in a stream that waits", lambda: copies_beside_a_wait(from_host, (256 * KIB, 4 * KIB))),
    ("the first cuMemsetD8Async of a process beside a stream that waits", lambda: first_beside_a_wait(Scene.fill)),
    ("the first cuMemcpyDtoDAsync of a process beside a stream that waits", lambda: first_beside_a_wait(Scene.copy)),
    ("operations that a waiting stream takes before a call blocks", room_in_a_stream),
    ("streams in a chain of waits, 8 queues", lambda: many_streams(8)),
    ("streams in a chain of waits, 32 queues", lambda: many_streams(32)),
    ("waits for 7 values and a write, in single calls or one", one_batch_or_single),
    ("nodes of a captured graph", nodes_of_a_graph),
)


def main():
    end_without_driver()
    for question, probe in QUESTIONS:
        ask(question, probe, LIMIT_S)


if __name__ == "__main__":
    main()
