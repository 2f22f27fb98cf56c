#!/usr/bin/env python3
"""The host's time of a driver call, for values one by one and in a batch, launches, events, and graphs of such
operations. Does not use Tutti.

Prints a line per question, "question: answer". The times include Python's part of a call, which is printed, too:
their differences matter. Needs libcuda.so.1 and a GPU, else prints so and exits with 77.
"""
import ctypes
import time

from driver import end_without_driver
from probing import ask
from scene import GEQ, WAIT_64, WRITE_64, Operation, Scene, batch

LIMIT_S = 8
COUNTS = (1, 2, 4, 8, 14)
REPEATS = 60                 # the median counts; the stream is empty before each
GRAPH_NODES = 14             # of one of eight ranks
WORD = 16                    # index of the first counter that is written
CALLS = 8                    # of one kind; the time of one is an eighth


def median(values):
    return sorted(values)[len(values) // 2]


def host_us(driver, body):
    """The time of one run of the body, while the stream executes its work."""
    spent = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        body()
        spent.append(1e6 * (time.perf_counter() - start))
        driver.sync()
    return median(spent)


def operations_of(scene, kind, count):
    """Operations for a batch. The values of waits are present already."""
    value, flags = (0, GEQ) if kind == WAIT_64 else (1, 0)
    return [Operation(kind, scene.at(WORD + 8 * (i % 40)).value, value, flags) for i in range(count)]


def single(scene, kind, count):
    """The same, call by call, without Python's conversions in between."""
    name = "cuStreamWaitValue64_v2" if kind == WAIT_64 else "cuStreamWriteValue64_v2"
    function, stream = getattr(scene.driver.library, name), scene.driver.stream
    words = [(ctypes.c_uint64(operation.address), ctypes.c_uint64(operation.value), ctypes.c_uint(operation.flags))
             for operation in operations_of(scene, kind, count)]

    def body():
        for address, value, flags in words:
            if function(stream, address, value, flags) != 0:
                raise OSError("%s failed" % name)

    return body


def batched(scene, kind, count):
    array = (Operation * count)(*operations_of(scene, kind, count))
    function, stream, number, flags = scene.driver.library.cuStreamBatchMemOp_v2, scene.driver.stream, ctypes.c_uint(count), ctypes.c_uint(0)

    def body():
        if function(stream, number, array, flags) != 0:
            raise OSError("cuStreamBatchMemOp failed")

    return body


def values():
    scene = Scene()
    for name, kind in (("writes", WRITE_64), ("waits", WAIT_64)):
        for count in COUNTS:
            yield "%d %s %.1f us single and %.1f us in a batch" % (
                count, name, host_us(scene.driver, single(scene, kind, count)), host_us(scene.driver, batched(scene, kind, count)))


def other_calls():
    scene = Scene()
    driver, stream, event, version, number = scene.driver, scene.driver.stream, scene.driver.make_event(), ctypes.c_int(), ctypes.c_int()
    driver.call("cuEventRecord", event, stream)
    kinds = (("a call that does nothing (Python's part)", lambda: driver.call("cuDriverGetVersion", ctypes.byref(version))),
             ("a launch", lambda: scene.launch(stream)),
             ("a fill of 4 KiB", lambda: scene.fill(stream)),
             ("a copy of 4 KiB within the GPU", lambda: scene.copy(stream)),
             ("cuEventRecord", lambda: driver.call("cuEventRecord", event, stream)),
             ("cuStreamWaitEvent", lambda: driver.call("cuStreamWaitEvent", stream, event, 0)),
             ("cuEventQuery", lambda: driver.code("cuEventQuery", event)),
             ("cuStreamIsCapturing", lambda: driver.call("cuStreamIsCapturing", stream, ctypes.byref(number))))
    for name, body in kinds:
        yield "%s %.1f us" % (name, host_us(driver, lambda: [body() for _ in range(CALLS)]) / CALLS)


def graph_of_values():
    """A launch into an empty stream: when the call returns, when the host sees that it is done, and the GPU's own
    time."""
    scene = Scene()
    driver = scene.driver
    kinds = (("%d writes, one by one" % GRAPH_NODES, single(scene, WRITE_64, GRAPH_NODES)),
             ("%d writes in one batch" % GRAPH_NODES, batched(scene, WRITE_64, GRAPH_NODES)),
             ("one write", single(scene, WRITE_64, 1)),
             ("%d waits in one batch" % GRAPH_NODES, batched(scene, WAIT_64, GRAPH_NODES)),
             ("one empty kernel", lambda: scene.launch(driver.stream)))
    for name, body in kinds:
        try:
            graph, executable = scene.capture(body)
        except OSError as error:
            yield "%s: NOT captured: %s" % (name, error)
            ended = ctypes.c_void_p()
            driver.code("cuStreamEndCapture", driver.stream, ctypes.byref(ended))
            continue
        nodes = ctypes.c_size_t()
        driver.call("cuGraphGetNodes", graph, None, ctypes.byref(nodes))
        yield "%s: %d nodes, %s" % (name, nodes.value, graph_times(driver, executable))


def graph_times(driver, executable):
    called, done = [], []

    def launch():
        driver.call("cuGraphLaunch", executable, driver.stream)

    launch()
    driver.sync()
    for _ in range(REPEATS):
        start = time.perf_counter()
        launch()
        returned = time.perf_counter()
        driver.sync()
        done.append(1e6 * (time.perf_counter() - start))
        called.append(1e6 * (returned - start))
    on_gpu = median([1e3 * driver.time_ms(launch) for _ in range(REPEATS // 4)])
    return "cuGraphLaunch returns after %.1f us, done after %.1f us, %.1f us on the GPU" % (median(called), median(done), on_gpu)


def values_with_sync():
    """The time of a call from begin to end, in an empty stream."""
    scene = Scene()
    driver = scene.driver
    for name, body in (("%d writes, one by one" % GRAPH_NODES, single(scene, WRITE_64, GRAPH_NODES)),
                       ("in one batch", lambda: batch(driver, operations_of(scene, WRITE_64, GRAPH_NODES))),
                       ("a launch", lambda: scene.launch(driver.stream))):
        yield "%s %.1f us, %.1f us on the GPU" % (name, host_us(driver, lambda: (body(), driver.sync())),
                                                  1e3 * median([driver.time_ms(body) for _ in range(REPEATS // 4)]))


QUESTIONS = (
    ("the host's time for writes of values, and for waits for values that are there", values),
    ("the host's time for other calls", other_calls),
    ("enqueued and done, in an empty stream", values_with_sync),
    ("graphs of values", graph_of_values),
)


def main():
    end_without_driver()
    for question, probe in QUESTIONS:
        ask(question, probe, LIMIT_S)


if __name__ == "__main__":
    main()
