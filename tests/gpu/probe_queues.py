#!/usr/bin/env python3
"""How many streams can wait for a value before another one, which waits for nothing, is blocked: streams share the
hardware's queues, whose number CUDA_DEVICE_MAX_CONNECTIONS sets. Also whether priorities have their own queues. Does
not use Tutti.

Prints a line per question, "question: answer"; each setting is tested in its own process. All streams wait behind one
gate that the host opens. Needs libcuda.so.1 and a GPU, else prints so and exits with 77.
"""
import os
import time

from driver import counter, end_without_driver
from probing import ask, wait_until
from scene import STUCK_S, Scene

LIMIT_S = 8
MOST = 96                    # streams that wait
MORE = 16                    # streams that are tested after one was blocked
RUNS_S = 0.04                # a write that has not happened by then never happens
ENDS = 200                   # index of the first of the counters that signal the end


class Streams:
    """Streams of one scene, and whether work enqueued in them runs."""

    def __init__(self, setting):
        os.environ.pop("CUDA_DEVICE_MAX_CONNECTIONS", None)
        if setting is not None:
            os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] = setting
        self.scene, self.turn, self.waiting = Scene(), 0, []

    def count_running(self, streams):
        """How many of them write a value within RUNS_S. The writes of the others stay enqueued."""
        self.turn += 1
        for index, stream in enumerate(streams):
            self.scene.driver.write_value(self.scene.at(index), self.turn, stream)

        def running():
            return sum(counter(self.scene.shared, index) >= self.turn for index in range(len(streams)))

        end = time.monotonic() + RUNS_S
        while running() < len(streams) and time.monotonic() < end:
            pass
        return running()

    def shut(self, streams):
        for stream in streams:
            self.scene.shut(stream)
        self.waiting += streams

    def open(self):
        """Releases all streams and waits for them by a value at the end of each, so that no call can hang."""
        self.scene.open()
        self.turn += 1
        for index, stream in enumerate(self.waiting):
            self.scene.driver.write_value(self.scene.at(ENDS + index), self.turn, stream)
        wait_until(lambda: all(counter(self.scene.shared, ENDS + index) >= self.turn for index in range(len(self.waiting))), STUCK_S,
                   "a stream whose gate is open")
        self.waiting = []


def until_one_stands(streams, make):
    """What happens if a user makes one stream after the other."""
    for number in range(MOST):
        stream = streams.scene.driver.stream if number == 0 else make()
        if streams.count_running([stream]) == 0:
            more = [make() for _ in range(MORE)]
            streams.waiting += [stream] + more
            return "%d wait, the next one STANDS; of %d more %d run" % (number, MORE, streams.count_running(more))
        streams.shut([stream])
    return "%d wait, and all have run" % MOST


def queues(setting):
    streams = Streams(setting)
    driver = streams.scene.driver
    yield until_one_stands(streams, driver.make_stream)
    streams.open()
    lowest, highest = driver.priorities()
    yield "priorities are %d to %d" % (lowest, highest)
    for blocked in (lowest, highest):
        many = [driver.make_stream_of(blocked) for _ in range(MOST // 2)]
        others = [number for number in range(highest, lowest + 1) if number != blocked]
        tried = [driver.make_stream_of(number) for number in others]
        streams.shut(many)
        running = [number for number, stream in zip(others, tried) if streams.count_running([stream])]
        yield "%d of priority %d wait: streams of priority %s run, of %s STAND" % (
            len(many), blocked, listed(running), listed([number for number in others if number not in running]))
        streams.waiting += tried
        streams.open()


def listed(numbers):
    return " ".join(map(str, numbers)) or "none"


QUESTIONS = (
    ("streams that wait before another one stands still, CUDA_DEVICE_MAX_CONNECTIONS unset", lambda: queues(None)),
    ("the same, CUDA_DEVICE_MAX_CONNECTIONS=1", lambda: queues("1")),
    ("the same, CUDA_DEVICE_MAX_CONNECTIONS=8", lambda: queues("8")),
    ("the same, CUDA_DEVICE_MAX_CONNECTIONS=32", lambda: queues("32")),
)


def main():
    end_without_driver()
    for question, probe in QUESTIONS:
        ask(question, probe, LIMIT_S)


if __name__ == "__main__":
    main()
