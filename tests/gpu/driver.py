"""The calls of CUDA's driver that the probes need, by ctypes, and counters in shared memory for streams and the host.

As a program it keeps GPU 0 initialised: it has a context there until it is ended, so that other processes start faster.
"""
import ctypes
import os
import signal
import struct
import sys
import time

GEQ = 0                      # CU_STREAM_WAIT_VALUE_GEQ
PORTABLE_AND_MAPPED = 3      # CU_MEMHOSTREGISTER_PORTABLE | _DEVICEMAP
NON_BLOCKING = 1             # CU_STREAM_NON_BLOCKING
BUFFER_ID = 7                # CU_POINTER_ATTRIBUTE_BUFFER_ID
BLOCKING = 0                 # CU_STREAM_DEFAULT: it and the legacy stream wait for each other


def end_without_driver():
    """Exits like a skipped test if there is no driver."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        print("skipped: no driver: %s" % error)
        sys.exit(77)


class Driver:
    """libcuda, started in this process on GPU 0, with one stream."""

    def __init__(self):
        self.library = ctypes.CDLL("libcuda.so.1")
        self.call("cuInit", 0)
        self.device = ctypes.c_int()
        self.call("cuDeviceGet", ctypes.byref(self.device), 0)
        self.context = ctypes.c_void_p()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(self.context), self.device)
        self.enter()
        self.stream = self.make_stream()

    def enter(self):
        """Each calling thread must call this first."""
        self.call("cuCtxSetCurrent", self.context)

    def code(self, name, *arguments):
        """The result of a call: 0 is success."""
        return getattr(self.library, name)(*arguments)

    def code_name(self, code):
        """The header's name, such as CUDA_ERROR_NOT_READY; "ok" for success."""
        text = ctypes.c_char_p()
        self.library.cuGetErrorName(code, ctypes.byref(text))
        return "ok" if code == 0 else (text.value or b"error %d" % code).decode()

    def call(self, name, *arguments):
        result = self.code(name, *arguments)
        if result != 0:
            text = ctypes.c_char_p()
            self.library.cuGetErrorString(result, ctypes.byref(text))
            raise OSError("%s: %s (%d)" % (name, (text.value or b"?").decode(), result))

    def make_stream(self, flags=NON_BLOCKING):
        stream = ctypes.c_void_p()
        self.call("cuStreamCreate", ctypes.byref(stream), flags)
        return stream

    def make_stream_of(self, priority):
        stream = ctypes.c_void_p()
        self.call("cuStreamCreateWithPriority", ctypes.byref(stream), NON_BLOCKING, priority)
        return stream

    def priorities(self):
        """(the lowest, the highest): smaller numbers are higher."""
        lowest, highest = ctypes.c_int(), ctypes.c_int()
        self.call("cuCtxGetStreamPriorityRange", ctypes.byref(lowest), ctypes.byref(highest))
        return lowest.value, highest.value

    def attribute(self, number):
        value = ctypes.c_int()
        self.call("cuDeviceGetAttribute", ctypes.byref(value), number, self.device)
        return value.value

    def free_bytes(self):
        """Free bytes of GPU 0's memory; other processes may use the rest."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value

    def alloc(self, size):
        memory = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(memory), ctypes.c_size_t(size))
        return memory

    def range_of(self, memory):
        """(base, bytes) of the allocation that contains the address."""
        base, size = ctypes.c_uint64(), ctypes.c_size_t()
        self.call("cuMemGetAddressRange_v2", ctypes.byref(base), ctypes.byref(size), memory)
        return base.value, size.value

    def buffer_id(self, memory):
        number = ctypes.c_uint64()
        self.call("cuPointerGetAttribute", ctypes.byref(number), BUFFER_ID, memory)
        return number.value

    def put(self, memory, data):
        self.call("cuMemcpyHtoD_v2", memory, data, ctypes.c_size_t(len(data)))

    def get(self, memory, size):
        data = ctypes.create_string_buffer(size)
        self.call("cuMemcpyDtoH_v2", data, memory, ctypes.c_size_t(size))
        return data.raw

    def register(self, shared, size):
        """The GPU's address of memory of this process."""
        address = ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(shared)))
        self.call("cuMemHostRegister_v2", address, ctypes.c_size_t(size), PORTABLE_AND_MAPPED)
        there = ctypes.c_uint64()
        self.call("cuMemHostGetDevicePointer_v2", ctypes.byref(there), address, 0)
        return there

    def wait_value(self, at, value, stream=None):
        self.call("cuStreamWaitValue64_v2", stream or self.stream, at, ctypes.c_uint64(value), GEQ)

    def write_value(self, at, value, stream=None):
        self.call("cuStreamWriteValue64_v2", stream or self.stream, at, ctypes.c_uint64(value), 0)

    def sync(self, stream=None):
        self.call("cuStreamSynchronize", stream or self.stream)

    def make_event(self):
        event = ctypes.c_void_p()
        self.call("cuEventCreate", ctypes.byref(event), 0)
        return event

    def time_ms(self, body, first=lambda: None, stream=None):
        """The time of the work that the body enqueues, by events. `first` runs when all is enqueued: it opens a gate,
        for example."""
        stream = stream or self.stream
        events = [self.make_event(), self.make_event()]
        self.call("cuEventRecord", events[0], stream)
        body()
        self.call("cuEventRecord", events[1], stream)
        first()
        self.sync(stream)
        spent = ctypes.c_float()
        name = "cuEventElapsedTime_v2" if hasattr(self.library, "cuEventElapsedTime_v2") else "cuEventElapsedTime"
        self.call(name, ctypes.byref(spent), events[0], events[1])
        return spent.value


def counter(shared, index):
    return struct.unpack_from("Q", shared, index * 8)[0]


def set_counter(shared, index, value):
    struct.pack_into("Q", shared, index * 8, value)


def at(base, index):
    return ctypes.c_uint64(base.value + 8 * index)


def expect_end(pid):
    if os.waitpid(pid, 0)[1] != 0:
        raise OSError("the other process failed")


def main():
    start = time.monotonic()
    driver = Driver()
    print("GPU 0 was up after %.2f s, with %.1f GiB free" % (time.monotonic() - start, driver.free_bytes() / 2**30), flush=True)
    signal.pause()


if __name__ == "__main__":
    main()
