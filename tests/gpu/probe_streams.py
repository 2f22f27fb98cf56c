#!/usr/bin/env python3
"""How the driver behaves where Tutti's design depends on it and NVIDIA's manuals say little: streams that wait for values, calls of
other threads meanwhile, the room in a stream, and what launches cost. Nothing of Tutti is in between.

Prints a line per question, "question: answer"; each is asked in a process of its own. A stream waits behind a gate, a counter that
the host or a timer raises: so nothing here can wait for ever. Needs libcuda.so.1 and a GPU, else it says so and exits with 77.
"""
import ctypes
import mmap
import os
import threading
import time

from driver import Driver, at, counter, end_without_driver, set_counter
from probing import ask

LIMIT_S = 12
HELD_S = 0.4                 # how long a gate stays shut
GATE = 500                   # index of a counter
MOST_QUEUED = 20000
SETTLED_S = 0.25             # no call has returned for so long: they are blocked
NOTHING = b""".version 7.0
.target sm_75
.address_size 64
.visible .entry nothing() { ret; }
"""


class Scene:
    """A driver, counters that it knows, memory, a kernel that does nothing, and a gate."""

    def __init__(self):
        self.driver = Driver()
        self.shared = mmap.mmap(-1, 4096)
        self.there = self.driver.register(self.shared, 4096)
        self.memory = self.driver.alloc(1 << 16)
        self.opened = 0
        self.kernel = self.load()
        self.launch(self.driver.stream)
        self.fill(self.driver.stream)
        self.driver.sync()

    def at(self, index):
        return at(self.there, index)

    def shut(self, stream):
        self.driver.wait_value(self.at(GATE), self.opened + 1, stream)

    def open(self):
        self.opened += 1
        set_counter(self.shared, GATE, self.opened)

    def fill(self, stream):
        self.driver.call("cuMemsetD8Async", self.memory, ctypes.c_ubyte(7), ctypes.c_size_t(4096), stream)

    def load(self):
        module, kernel = ctypes.c_void_p(), ctypes.c_void_p()
        self.driver.call("cuModuleLoadData", ctypes.byref(module), NOTHING)
        self.driver.call("cuModuleGetFunction", ctypes.byref(kernel), module, b"nothing")
        return kernel

    def launch(self, stream, kernel=None):
        one = ctypes.c_uint(1)
        self.driver.call("cuLaunchKernel", kernel or self.kernel, one, one, one, one, one, one, ctypes.c_uint(0), stream, None, None)

    def in_thread(self, body):
        """Started; its list becomes [seconds], or [seconds, error]."""
        spent = []

        def run():
            start = time.perf_counter()
            try:
                self.driver.enter()
                start = time.perf_counter()
                body()
                spent.append(time.perf_counter() - start)
            except OSError as error:
                spent.extend((time.perf_counter() - start, error))

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        return thread, spent


def told(spent):
    if len(spent) > 1:
        return "failed (%s)" % spent[1]
    return "%.2f ms" % (1e3 * spent[0]) if spent[0] < HELD_S / 2 else "HELD UP for %.0f ms" % (1e3 * spent[0])


# ------------------------------------------------------------------------------- what holds up calls of other threads

def beside(scene, first, then):
    """Seconds of two calls in two threads, the second 50 ms after the first, while a stream waits for its gate."""
    scene.shut(scene.driver.stream)
    scene.fill(scene.driver.stream)
    before, spent_first = scene.in_thread(first)
    time.sleep(0.05)
    behind, spent = scene.in_thread(then)
    time.sleep(HELD_S)
    scene.open()
    before.join()
    behind.join()
    scene.driver.sync()
    return spent_first, spent


def other_calls(scene):
    """What ranks that are threads go on with: (words, call)."""
    driver, other, event = scene.driver, scene.driver.make_stream(), scene.driver.make_event()
    scene.fill(other)
    driver.call("cuEventRecord", event, other)
    driver.sync(other)
    return (("cuEventQuery", lambda: driver.call("cuEventQuery", event)),
            ("a launch in another stream", lambda: scene.launch(other)),
            ("a write of a value in another stream", lambda: driver.write_value(scene.at(1), 1, other)),
            ("cuMemAlloc", lambda: driver.alloc(1 << 20)))


def calls_beside(prepare):
    scene = Scene()
    words = []
    for name, call in other_calls(scene):
        first, spent = beside(scene, prepare(scene), call)
        words.append("%s %s" % (name, told(spent)))
    return "itself: %s; meanwhile: %s" % (told(first), ", ".join(words))


def free_beside_a_wait():
    def prepare(scene):
        memory = scene.driver.alloc(1 << 22)
        return lambda: scene.driver.call("cuMemFree_v2", memory)

    return calls_beside(prepare)


def synchronize_beside_a_wait():
    return calls_beside(lambda scene: lambda: scene.driver.call("cuCtxSynchronize"))


def register_beside_a_wait():
    def prepare(scene):
        memory = mmap.mmap(-1, 1 << 20)
        return lambda: scene.driver.register(memory, 1 << 20)

    return calls_beside(prepare)


def load_beside_a_wait():
    def prepare(scene):
        stream = scene.driver.make_stream()
        return lambda: scene.launch(stream, scene.load())

    return calls_beside(prepare)


# --------------------------------------------------------------------------------------------- room in a stream

def room(scene, enqueue):
    """How many calls return while the stream waits, and what a launch in another stream takes when no more do."""
    driver, done, stop = scene.driver, [0], []
    other = driver.make_stream()

    def fill():
        while not stop and done[0] < MOST_QUEUED:
            enqueue()
            done[0] += 1

    scene.shut(driver.stream)
    filling, _ = scene.in_thread(fill)
    last, since = -1, time.monotonic()
    while filling.is_alive() and time.monotonic() - since < SETTLED_S:
        if done[0] != last:
            last, since = done[0], time.monotonic()
        time.sleep(0.01)
    blocked = filling.is_alive()
    stop.append(True)
    launching, spent = scene.in_thread(lambda: scene.launch(other))
    launching.join(SETTLED_S)
    held = launching.is_alive()
    scene.open()
    filling.join()
    launching.join()
    driver.sync()
    driver.sync(other)
    if not blocked:
        return "more than %d" % MOST_QUEUED
    return "%d (then a launch in another stream %s)" % (last, "is HELD UP, too" if held else "takes " + told(spent))


def room_in_a_stream():
    scene = Scene()
    driver, stream = scene.driver, scene.driver.stream
    kinds = (("waits", lambda: driver.wait_value(scene.at(2), 0)), ("writes", lambda: driver.write_value(scene.at(3), 1)),
             ("launches", lambda: scene.launch(stream)), ("fills", lambda: scene.fill(stream)))
    return ", ".join("%s: %s" % (name, room(scene, enqueue)) for name, enqueue in kinds)


# ------------------------------------------------------------------------------------------------ many streams

def chain_goes(scene, streams, turn):
    """Stream i waits for i + 1, and the last one, given its work last, for none: microseconds, or None where they are stuck."""
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
    for i in range(n):  # lets all go that are stuck
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

class Operation(ctypes.Structure):  # CUstreamBatchMemOpParams
    _fields_ = [("operation", ctypes.c_int), ("address", ctypes.c_uint64), ("value", ctypes.c_uint64), ("flags", ctypes.c_uint),
                ("alias", ctypes.c_uint64), ("rest", ctypes.c_uint64)]


WAIT_64, WRITE_64, GEQ = 4, 5, 0
PEERS, ROUNDS = 7, 12


def batch(driver, operations):
    array = (Operation * len(operations))(*operations)
    driver.call("cuStreamBatchMemOp_v2", driver.stream, ctypes.c_uint(len(operations)), array, ctypes.c_uint(0))


def one_batch_or_single():
    """A round is what a rank of eight does: it waits for seven values, and writes one."""
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


def capture(scene, body):
    graph, executable = ctypes.c_void_p(), ctypes.c_void_p()
    scene.driver.call("cuStreamBeginCapture_v2", scene.driver.stream, 1)
    body()
    scene.driver.call("cuStreamEndCapture", scene.driver.stream, ctypes.byref(graph))
    scene.driver.call("cuGraphInstantiateWithFlags", ctypes.byref(executable), graph, ctypes.c_ulonglong(0))
    return executable


def nodes_of_a_graph():
    """The time between kernels that wait for each other is a step's least: so many kernels, so many times this."""
    scene = Scene()
    driver, stream, nodes, words = scene.driver, scene.driver.stream, 64, []
    for name, work in (("empty kernels", scene.launch), ("fills of 4 KiB", scene.fill)):
        graph = capture(scene, lambda: [work(stream) for _ in range(nodes)])
        replays = [driver.time_ms(lambda: driver.call("cuGraphLaunch", graph, stream)) for _ in range(12)]
        many = [driver.time_ms(lambda: [driver.call("cuGraphLaunch", graph, stream) for _ in range(10)]) for _ in range(3)]
        words.append("%s: %.2f us each, %.1f us a graph of %d, one behind the other" % (
            name, 1e3 * sorted(replays)[6] / nodes, 1e3 * min(many) / 10, nodes))
    return "; ".join(words)


QUESTIONS = (
    ("cuMemFree beside a stream that waits for a value", free_beside_a_wait),
    ("cuCtxSynchronize beside a stream that waits", synchronize_beside_a_wait),
    ("cuMemHostRegister beside a stream that waits", register_beside_a_wait),
    ("the first launch of a kernel beside a stream that waits", load_beside_a_wait),
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
