#!/usr/bin/env python3
"""Checks whether copies within a GPU need its multiprocessors. A kernel occupies all of them for a while, and copies
are enqueued in another stream: a copy that is done meanwhile ran on a copy engine, one that waits for the kernel's
end did not.

Prints a line per question, "question: answer". The kernel ends by its own clock. Needs libcuda.so.1 and a GPU, else
prints so and exits with 77.
"""
import ctypes
import mmap
import time

from driver import counter, end_without_driver
from probing import ask, wait_until
from scene import STUCK_S, Scene

LIMIT_S = 10
SPIN_MS = 40
SETTLED_S = 0.001            # from the first block's signal until the last block runs
THREADS = 512
MULTIPROCESSORS, THREADS_OF_ONE = 16, 39  # attributes of a device
STARTED = 8                  # index of a counter
KIB, MIB = 1 << 10, 1 << 20


def spent_ms(driver, stream, body):
    """The time from the call until the host sees that it is done."""
    start = time.perf_counter()
    body()
    driver.sync(stream)
    return 1e3 * (time.perf_counter() - start)


class FullGpu:
    """A scene, and a kernel that fills the GPU."""

    def __init__(self):
        self.scene, self.turn = Scene(), 0
        driver = self.scene.driver
        self.kernel = self.scene.function(b"spin")
        self.blocks = driver.attribute(MULTIPROCESSORS) * (driver.attribute(THREADS_OF_ONE) // THREADS)

    def fill(self):
        """Starts the kernel, and returns when it runs."""
        self.turn += 1
        scene, started = self.scene, self.scene.at(STARTED).value
        scene.launch(scene.driver.stream, self.kernel, (started, self.turn, SPIN_MS * 10**6), self.blocks, THREADS)
        wait_until(lambda: counter(scene.shared, STARTED) >= self.turn, STUCK_S, "a kernel that was launched")
        time.sleep(SETTLED_S)


def copies_beside_a_kernel():
    full = FullGpu()
    scene, driver = full.scene, full.scene.driver
    other = driver.make_stream()
    size = 256 * MIB
    src, dst = driver.alloc(size), driver.alloc(size)
    pinned = mmap.mmap(-1, 16 * MIB)
    driver.register(pinned, len(pinned))
    at_host = ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(pinned)))

    def copy(count):
        return lambda: driver.call("cuMemcpyDtoDAsync_v2", dst, src, ctypes.c_size_t(count), other)

    kinds = (("an empty kernel", lambda: scene.launch(other)),
             ("a copy of 256 MiB within the GPU", copy(size)), ("of 1 MiB", copy(MIB)), ("of 4 KiB", copy(4 * KIB)),
             ("of 1 MiB by cuMemcpyAsync", lambda: driver.call("cuMemcpyAsync", dst, src, ctypes.c_size_t(MIB), other)),
             ("of 16 MiB to pinned memory",
              lambda: driver.call("cuMemcpyDtoHAsync_v2", at_host, src, ctypes.c_size_t(len(pinned)), other)),
             ("of 16 MiB from pinned memory",
              lambda: driver.call("cuMemcpyHtoDAsync_v2", dst, at_host, ctypes.c_size_t(len(pinned)), other)),
             ("a fill of 1 MiB", lambda: driver.call("cuMemsetD8Async", dst, ctypes.c_ubyte(7), ctypes.c_size_t(MIB), other)),
             ("a write of a value", lambda: driver.write_value(scene.at(1), 1, other)))
    yield "the kernel has %d blocks of %d threads, %d ms" % (full.blocks, THREADS, SPIN_MS)
    for name, body in kinds:
        alone = sorted(spent_ms(driver, other, body) for _ in range(4))[1]
        full.fill()
        beside = spent_ms(driver, other, body)
        ended = driver.code("cuStreamQuery", driver.stream) == 0  # the kernel, too
        driver.sync()
        yield "%s %.3f ms alone and %.3f ms beside it%s" % (name, alone, beside, ": WAITS for it" if ended else "")


QUESTIONS = (
    ("copies beside a kernel that fills all multiprocessors", copies_beside_a_kernel),
)


def main():
    end_without_driver()
    for question, probe in QUESTIONS:
        ask(question, probe, LIMIT_S)


if __name__ == "__main__":
    main()
