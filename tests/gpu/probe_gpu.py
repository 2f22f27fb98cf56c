#!/usr/bin/env python3
"""Features of a GPU and its driver that Tutti needs, tested one by one through the driver's own calls. Does not use
Tutti.

Prints a line per probe, "name: yes", or "name: NO: reason", with times if they are meaningful. Needs libcuda.so.1 and
a GPU, else prints so and exits with 77. Processes are forked before any of them starts CUDA.
"""
import array
import ctypes
import mmap
import os
import select
import signal
import socket
import struct
import time

from driver import Driver, at, counter, end_without_driver, expect_end, set_counter
from probing import in_child, run

LIMIT_S = 10
ROUNDS = 1000
QUEUED = 100                 # rounds that wait in a stream: fewer than its capacity
GATE = 32                    # index of a counter
MIB = 1 << 20
ATTRIBUTES = (
    ("compute capability, major", 75), ("compute capability, minor", 76), ("multiprocessors", 16), ("bytes of L2", 38),
    ("compute mode (0: any process may use it)", 20), ("64-bit stream memory operations", 122),
    ("host memory can be registered", 99), ("memory as file descriptors", 103), ("IPC events", 125),
    ("pageable host memory can be read", 88),
)


# ---------------------------------------------------------------------------------------------------- probes

def facts():
    start = time.monotonic()
    driver = Driver()
    started = time.monotonic() - start
    version, size = ctypes.c_int(), ctypes.c_size_t()
    name, uuid = ctypes.create_string_buffer(128), ctypes.create_string_buffer(16)
    driver.call("cuDriverGetVersion", ctypes.byref(version))
    driver.call("cuDeviceGetName", name, 128, driver.device)
    driver.call("cuDeviceTotalMem_v2", ctypes.byref(size), driver.device)
    driver.call("cuDeviceGetUuid_v2", uuid, driver.device)
    for label, number in ATTRIBUTES:
        print("  %s: %d" % (label, driver.attribute(number)), flush=True)
    return "%s, %.1f GiB, driver for CUDA %d.%d, id %s, context made in %.2f s" % (
        name.value.decode(), size.value / 2**30, version.value // 1000, version.value % 1000 // 10, uuid.raw.hex(), started)


def copy_bandwidth():
    driver = Driver()
    size = 1 << 30
    src, dst = driver.alloc(size), driver.alloc(size)
    times = []
    for _ in range(6):
        times.append(driver.time_ms(
            lambda: driver.call("cuMemcpyDtoDAsync_v2", dst, src, ctypes.c_size_t(size), driver.stream)))
    best = sorted(times[1:])[2]
    return "%.0f GB/s read and written (%d MiB in %.3f ms, median of 5)" % (2 * size / best / 1e6, size // MIB, best)


def values_in_registered_memory():
    """A stream waits for the host, the host for the stream: one round is both ways."""
    driver = Driver()
    shared = mmap.mmap(-1, 4096)
    there = driver.register(shared, 4096)
    driver.wait_value(at(there, 0), 1)
    driver.write_value(at(there, 1), 1)
    time.sleep(0.02)
    if counter(shared, 1) != 0:
        raise OSError("the stream did not wait")
    set_counter(shared, 0, 1)
    driver.sync()
    if counter(shared, 1) != 1:
        raise OSError("the stream's write is not seen")
    start = time.perf_counter()
    for i in range(2, ROUNDS + 2):
        driver.wait_value(at(there, 0), i)
        driver.write_value(at(there, 1), i)
        set_counter(shared, 0, i)
        while counter(shared, 1) < i:
            pass
    return "%.1f us a round" % (1e6 * (time.perf_counter() - start) / ROUNDS)


def values_between_streams():
    """Everything is enqueued behind a gate first, so that the time is the GPU's and not that of the calls."""
    driver = Driver()
    other = driver.make_stream()
    shared = mmap.mmap(-1, 4096)
    there = driver.register(shared, 4096)
    driver.wait_value(at(there, GATE), 1)
    driver.wait_value(at(there, GATE), 1, other)
    for i in range(1, QUEUED + 1):
        driver.wait_value(at(there, 0), i - 1)
        driver.write_value(at(there, 1), i)
        driver.wait_value(at(there, 1), i, other)
        driver.write_value(at(there, 0), i, other)
    start = time.perf_counter()
    set_counter(shared, GATE, 1)
    driver.sync(other)
    driver.sync()
    return "%.1f us a round" % (1e6 * (time.perf_counter() - start) / QUEUED)


def meet(shared, own, peers, step):
    set_counter(shared, 16 + own, step)
    while counter(shared, 16 + peers) < step:
        time.sleep(0.001)


def play_between_processes(prepare, do):
    """Streams of two processes in turns, by counters in shared memory that both register: microseconds of a round. A
    turn enqueues do(driver, result of prepare(driver))."""
    fd = os.memfd_create("probe")
    os.ftruncate(fd, 1 << 16)

    def play(own, peers):
        driver = Driver()
        shared = mmap.mmap(fd, 1 << 16)
        there = driver.register(shared, 1 << 16)
        prepared = prepare(driver)
        driver.wait_value(at(there, GATE), 1)
        for i in range(1, QUEUED + 1):
            driver.wait_value(at(there, peers), i - (1 if own == 0 else 0))
            do(driver, prepared)
            driver.write_value(at(there, own), i)
        meet(shared, own, peers, 1)  # both have enqueued everything
        start = time.perf_counter()
        set_counter(shared, GATE, 1)
        driver.sync()
        spent = time.perf_counter() - start
        meet(shared, own, peers, 2)  # no process leaves before
        return 1e6 * spent / QUEUED

    pid = in_child(lambda: play(8, 0))
    spent = play(0, 8)
    expect_end(pid)
    return spent


def values_between_processes():
    """The pattern of ranks that share a GPU."""
    return "%.1f us a round" % play_between_processes(lambda driver: None, lambda driver, nothing: None)


def turns_of_two_processes():
    """Each in turn fills some memory: the cost of running processes on one GPU one at a time."""
    def fill(driver, memory):
        driver.call("cuMemsetD8Async", memory, ctypes.c_ubyte(7), ctypes.c_size_t(MIB), driver.stream)

    return "%.0f us a round, of two turns" % play_between_processes(lambda driver: driver.alloc(MIB), fill)


class Handle(ctypes.Structure):  # CUipcMemHandle, which calls take by value
    _fields_ = [("reserved", ctypes.c_ubyte * 64)]


def open_handle(driver, data):
    memory = ctypes.c_uint64()
    driver.call("cuIpcOpenMemHandle_v2", ctypes.byref(memory), Handle.from_buffer_copy(data), 1)
    return memory


def memory_by_ipc():
    reader, writer = os.pipe()

    def importer():
        data = os.read(reader, 64)
        driver = Driver()
        memory = open_handle(driver, data)
        if driver.get(memory, 4) != b"here":
            raise OSError("other bytes came")
        driver.put(memory, b"back")
        driver.call("cuIpcCloseMemHandle", memory)

    pid = in_child(importer)
    driver = Driver()
    memory = driver.alloc(2 * MIB)
    driver.put(memory, b"here")
    handle = ctypes.create_string_buffer(64)
    try:
        driver.call("cuIpcGetMemHandle", handle, memory)
        os.write(writer, handle.raw)
        expect_end(pid)
    except OSError:
        os.kill(pid, signal.SIGKILL)
        raise
    if driver.get(memory, 4) != b"back":
        raise OSError("what the other process wrote is not there")


def find_bytes(driver, opened, offsets, wanted):
    """Describes the offsets of the blocks behind the opened address."""
    found = []
    for offset in sorted(offsets):
        try:
            if driver.get(ctypes.c_uint64(opened.value + offset), 4) == wanted:
                found.append("+%d" % offset)
        except OSError:
            found.append("(no memory at +%d)" % offset)
    return " ".join(found) or "NOWHERE"


def import_blocks(data, offsets):
    """What another process finds through the two handles, and whether the second's memory remains valid after the
    first's is closed."""
    driver, opened, words = Driver(), [], []
    for name, begin, wanted in (("the first", 0, b"aaaa"), ("the second", 64, b"bbbb")):
        try:
            opened.append(open_handle(driver, data[begin:begin + 64]))
        except OSError as error:
            words.append("%s is NOT opened (%s)" % (name, error))
            continue
        words.append("%s has its bytes at %s" % (name, find_bytes(driver, opened[-1], offsets, wanted)))
    if opened:
        words.append("the first's mapping has the other's bytes at %s" % find_bytes(driver, opened[0], offsets, b"bbbb"))
    if len(opened) == 2:
        words.append("opened %d bytes apart" % (opened[1].value - opened[0].value))
        code = driver.code("cuIpcCloseMemHandle", opened[0])
        if code != 0:
            words.append("the first is NOT closed (%s)" % driver.code_name(code))
        words.append("when the first is closed, the second has %s" % find_bytes(driver, opened[1], {0}, b"bbbb"))
    return ", ".join(words)


def blocks_by_ipc(size):
    """Two blocks that may be parts of one chunk: whether handles, bases and numbers distinguish them."""
    to_child, to_parent = os.pipe(), os.pipe()

    def importer():
        data = os.read(to_child[0], 4096)
        offsets = struct.unpack("%dQ" % ((len(data) - 128) // 8), data[128:])
        os.write(to_parent[1], import_blocks(data, set(offsets)).encode())

    pid = in_child(importer)
    os.close(to_parent[1])
    driver = Driver()
    blocks, handles, words, offsets = [driver.alloc(size), driver.alloc(size)], [], [], {0}
    apart = blocks[1].value - blocks[0].value
    for block, data in zip(blocks, (b"aaaa", b"bbbb")):
        driver.put(block, data)
        handle = ctypes.create_string_buffer(64)
        driver.call("cuIpcGetMemHandle", handle, block)
        handles.append(handle.raw)
        base, length = driver.range_of(block)
        offsets |= {block.value - base, block.value % (2 * MIB)}
        words.append("%d behind its base, of %d bytes, number %d" % (block.value - base, length, driver.buffer_id(block)))
    if 0 < apart < 2 * size + 2 * MIB:
        offsets.add(apart)
    differ = [i for i in range(64) if handles[0][i] != handles[1][i]]
    os.write(to_child[1], b"".join(handles) + struct.pack("%dQ" % len(offsets), *offsets))
    found = os.read(to_parent[0], 4096).decode()
    expect_end(pid)
    return "%d bytes apart, the first: %s, the second: %s, handles %s; another process: %s" % (
        apart, words[0], words[1], "differ in bytes %s" % " ".join(map(str, differ)) if differ else "are EQUAL", found)


def freed_while_mapped():
    """The owner frees memory that a peer maps: whether it is freed at once, or when the peer closes it, and the time
    of closing."""
    to_child, to_parent = os.pipe(), os.pipe()
    size = 512 * MIB

    def importer():
        driver = Driver()
        opened = open_handle(driver, os.read(to_child[0], 64))
        os.write(to_parent[1], b"o")
        os.read(to_child[0], 1)  # memory is freed
        words = "the peer then reads %s" % ("its bytes" if find_bytes(driver, opened, {0}, b"here") == "+0" else "OTHER bytes")
        before, start = driver.free_bytes(), time.monotonic()
        code = driver.code("cuIpcCloseMemHandle", opened)
        took = time.monotonic() - start
        words += ", closing takes %.0f us (%s) and gives back %d MiB" % (
            1e6 * took, driver.code_name(code), (driver.free_bytes() - before) // MIB)
        os.write(to_parent[1], words.encode())

    pid = in_child(importer)
    driver = Driver()
    memory = driver.alloc(size)
    driver.put(memory, b"here")
    handle = ctypes.create_string_buffer(64)
    start = time.monotonic()
    driver.call("cuIpcGetMemHandle", handle, memory)
    exporting = time.monotonic() - start
    os.write(to_child[1], handle.raw)
    os.read(to_parent[0], 1)
    before = driver.free_bytes()
    driver.call("cuMemFree_v2", memory)
    back = (driver.free_bytes() - before) // MIB
    again = driver.alloc(size)
    words = "exported in %.0f us; freeing 512 MiB gives back %d MiB; the next block has %s address" % (
        1e6 * exporting, back, "the same" if again.value == memory.value else "another")
    os.write(to_child[1], b"f")
    found = os.read(to_parent[0], 4096).decode()
    expect_end(pid)
    return words + "; " + found


class Location(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int)]


class Properties(ctypes.Structure):  # CUmemAllocationProp
    _fields_ = [("type", ctypes.c_int), ("handles", ctypes.c_int), ("location", Location), ("windows", ctypes.c_void_p),
                ("flags", ctypes.c_ubyte * 8)]


class Access(ctypes.Structure):
    _fields_ = [("location", Location), ("flags", ctypes.c_int)]


def map_handle(driver, handle, size):
    address = ctypes.c_uint64()
    driver.call("cuMemAddressReserve", ctypes.byref(address), ctypes.c_size_t(size), ctypes.c_size_t(0), ctypes.c_uint64(0),
                ctypes.c_uint64(0))
    driver.call("cuMemMap", address, ctypes.c_size_t(size), ctypes.c_size_t(0), handle, ctypes.c_uint64(0))
    access = Access(Location(1, driver.device.value), 3)
    driver.call("cuMemSetAccess", address, ctypes.c_size_t(size), ctypes.byref(access), ctypes.c_size_t(1))
    return address


def memory_by_file_descriptor():
    """The newer API, which Tutti does not use: whether it is available where the older one is not."""
    ours, theirs = socket.socketpair(socket.AF_UNIX)

    def importer():
        driver = Driver()
        data, ancillary, _, _ = theirs.recvmsg(8, socket.CMSG_SPACE(4))
        fd = array.array("i", ancillary[0][2])[0]
        handle = ctypes.c_uint64()
        driver.call("cuMemImportFromShareableHandle", ctypes.byref(handle), ctypes.c_void_p(fd), 1)
        if driver.get(map_handle(driver, handle, struct.unpack("Q", data)[0]), 4) != b"here":
            raise OSError("other bytes came")

    pid = in_child(importer)
    theirs.close()
    try:
        driver = Driver()
        properties = Properties(type=1, handles=1, location=Location(1, driver.device.value))
        granule = ctypes.c_size_t()
        driver.call("cuMemGetAllocationGranularity", ctypes.byref(granule), ctypes.byref(properties), 0)
        handle = ctypes.c_uint64()
        driver.call("cuMemCreate", ctypes.byref(handle), granule, ctypes.byref(properties), ctypes.c_uint64(0))
        driver.put(map_handle(driver, handle, granule.value), b"here")
        fd = ctypes.c_int()
        driver.call("cuMemExportToShareableHandle", ctypes.byref(fd), handle, 1, ctypes.c_uint64(0))
        ours.sendmsg([struct.pack("Q", granule.value)], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd.value]))])
        expect_end(pid)
    except OSError:
        os.kill(pid, signal.SIGKILL)
        raise


def stream_is_captured():
    driver = Driver()
    memory, graph, executable = driver.alloc(4096), ctypes.c_void_p(), ctypes.c_void_p()
    driver.call("cuStreamBeginCapture_v2", driver.stream, 1)
    driver.call("cuMemsetD8Async", memory, ctypes.c_ubyte(7), ctypes.c_size_t(4096), driver.stream)
    driver.call("cuStreamEndCapture", driver.stream, ctypes.byref(graph))
    driver.call("cuGraphInstantiateWithFlags", ctypes.byref(executable), graph, ctypes.c_ulonglong(0))
    driver.call("cuGraphLaunch", executable, driver.stream)
    driver.sync()
    if driver.get(memory, 1) != b"\7":
        raise OSError("the graph did nothing")


def a_killed_process():
    """How soon the death of a process that uses the GPU is known, and whether the GPU is free for others then."""
    reader, writer = os.pipe()

    def victim():
        driver = Driver()
        driver.alloc(64 * MIB)
        os.write(writer, b"x")
        time.sleep(30)

    pid = in_child(victim)
    os.close(writer)
    if not os.read(reader, 1):
        raise OSError("the other process failed")
    fd = os.pidfd_open(pid)
    driver = Driver()
    start = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    told = bool(select.select([fd], [], [], 5)[0])
    known = time.monotonic() - start
    driver.put(driver.alloc(4096), b"go on")
    os.waitpid(pid, 0)
    if not told:
        raise OSError("pidfd does not tell it within 5 s")
    return "known after %.0f ms" % (1e3 * known)


PROBES = (
    ("GPU 0", facts),
    ("bandwidth of a copy", copy_bandwidth),
    ("streams wait for values in registered memory", values_in_registered_memory),
    ("two streams wait for each other", values_between_streams),
    ("streams of two processes wait for each other", values_between_processes),
    ("two processes take turns on the GPU", turns_of_two_processes),
    ("memory of another process by IPC handle", memory_by_ipc),
    ("two blocks of 4 bytes by IPC handles", lambda: blocks_by_ipc(4)),
    ("two blocks of 2 MiB by IPC handles", lambda: blocks_by_ipc(2 * MIB)),
    ("memory that is freed while a peer maps it", freed_while_mapped),
    ("memory of another process by file descriptor", memory_by_file_descriptor),
    ("a stream is captured into a graph", stream_is_captured),
    ("a process that uses the GPU is killed", a_killed_process),
)


def main():
    end_without_driver()
    for name, probe in PROBES:
        run(name, probe, LIMIT_S)


if __name__ == "__main__":
    main()
