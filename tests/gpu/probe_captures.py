#!/usr/bin/env python3
"""The driver's results of calls while a stream is captured, and whether the capture survives them. Does not use Tutti.

Prints a line per question, "question: answer"; an answer is an error's name or "ok", and "the capture is LOST" if it
was invalidated. Needs libcuda.so.1 and a GPU, else prints so and exits with 77.
"""
import ctypes

from driver import BLOCKING, NON_BLOCKING, end_without_driver
from probing import ask
from scene import Call, Scene

LIMIT_S = 8
GLOBAL, THREAD_LOCAL = 0, 1
LEGACY, PER_THREAD = ctypes.c_void_p(1), ctypes.c_void_p(2)
STATES = {0: "is not captured", 1: "is captured", 2: "is invalidated"}


def within_a_capture(scene, stream, mode, body):
    """The body's answer, and the state of the capture. Each capture contains a fill."""
    driver, graph = scene.driver, ctypes.c_void_p()
    driver.call("cuStreamBeginCapture_v2", stream, mode)
    scene.fill(stream)
    try:
        words = body()
    finally:
        code = driver.code("cuStreamEndCapture", stream, ctypes.byref(graph))
    return words + ("" if code == 0 else ", the capture is LOST (%s)" % driver.code_name(code))


def captured_state(driver, stream):
    state = ctypes.c_int()
    code = driver.code("cuStreamIsCapturing", stream, ctypes.byref(state))
    return STATES.get(state.value, "?") if code == 0 else driver.code_name(code)


def is_capturing():
    scene = Scene()
    driver = scene.driver
    asked = (("NULL", ctypes.c_void_p()), ("CU_STREAM_LEGACY", LEGACY), ("CU_STREAM_PER_THREAD", PER_THREAD),
             ("another blocking stream", driver.make_stream(BLOCKING)), ("another non-blocking stream", driver.make_stream()))
    for name, flags in (("blocking", BLOCKING), ("non-blocking", NON_BLOCKING)):
        stream = driver.make_stream(flags)
        for number, (words, other) in enumerate(asked):
            answer = within_a_capture(scene, stream, GLOBAL, lambda: captured_state(driver, other))
            yield "%s%s %s" % ("while a %s stream is captured: " % name if number == 0 else "", words, answer)


def calls_during(mode):
    """Calls that Tutti and PyTorch's allocator make, from the capturing thread and from another one."""
    scene = Scene()
    driver, other, captured = scene.driver, scene.driver.make_stream(), scene.driver.make_stream()
    event, inside, memory, number = driver.make_event(), driver.make_event(), ctypes.c_uint64(), ctypes.c_uint64()
    data = ctypes.create_string_buffer(64)
    driver.call("cuEventRecord", event, other)
    driver.sync(other)

    def record_and_query():
        code = driver.code("cuEventRecord", inside, captured)
        return code or driver.code("cuEventQuery", inside)

    kinds = (("cuEventQuery of an event from before", lambda: driver.code("cuEventQuery", event)),
             ("cuEventRecord in the captured stream and cuEventQuery of it", record_and_query),
             ("cuStreamQuery of another stream", lambda: driver.code("cuStreamQuery", other)),
             ("cuStreamSynchronize of another stream", lambda: driver.code("cuStreamSynchronize", other)),
             ("cuEventRecord in another stream", lambda: driver.code("cuEventRecord", event, other)),
             ("a write of a value in another stream",
              lambda: driver.code("cuStreamWriteValue64_v2", other, scene.at(1), ctypes.c_uint64(1), 0)),
             ("cuMemAlloc", lambda: driver.code("cuMemAlloc_v2", ctypes.byref(memory), ctypes.c_size_t(1 << 20))),
             ("cuPointerGetAttribute", lambda: driver.code("cuPointerGetAttribute", ctypes.byref(number), 7, scene.memory)),
             ("cuMemcpyDtoHAsync to pageable memory in another stream",
              lambda: driver.code("cuMemcpyDtoHAsync_v2", data, scene.memory, ctypes.c_size_t(len(data)), other)))
    for who, in_thread in (("by the thread that captures: ", False), ("by another thread: ", True)):
        for index, (name, body) in enumerate(kinds):
            words = within_a_capture(scene, captured, mode, lambda: driver.code_name(in_a_thread(driver, body) if in_thread else body()))
            yield "%s%s %s" % ("" if index else who, name, words)


def in_a_thread(driver, body):
    codes = []
    Call(driver, lambda: codes.append(body())).go().end()
    return codes[0]


QUESTIONS = (
    ("cuStreamIsCapturing during a capture", is_capturing),
    ("calls during a capture in global mode", lambda: calls_during(GLOBAL)),
    ("calls during a capture in thread-local mode", lambda: calls_during(THREAD_LOCAL)),
)


def main():
    end_without_driver()
    for question, probe in QUESTIONS:
        ask(question, probe, LIMIT_S)


if __name__ == "__main__":
    main()
