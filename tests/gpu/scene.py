"""Shared by the probes of streams: a driver with counters, kernels and a gate, and calls in their own threads.

A stream waits behind a gate, which is a counter that the host raises by a plain store, so nothing here can wait
forever.
"""
import ctypes
import mmap
import threading
import time

from driver import Driver, at, set_counter

HELD_S = 0.3                 # how long a gate stays shut for a call that does not return
HEAD_START_S = 0.05          # time of a first call, before another one begins
STUCK_S = 4                  # after its gate was opened, everything that waited has ended within this time
GATE = 500                   # index of a counter
WAIT_64, WRITE_64, GEQ = 4, 5, 0
# "spin" writes `value` to `started` once and ends after a number of nanoseconds. "work" counts rounds: the clock
# continues while another process's kernels run, this count does not.
KERNELS = b""".version 7.0
.target sm_75
.address_size 64
.visible .entry nothing() { ret; }
.visible .entry spin(.param .u64 started, .param .u64 value, .param .u64 nanoseconds)
{
    .reg .u64 %rd<5>;
    .reg .u32 %r<2>;
    .reg .pred %p<2>;
    ld.param.u64 %rd0, [started];
    ld.param.u64 %rd1, [value];
    ld.param.u64 %rd2, [nanoseconds];
    mov.u64 %rd3, %globaltimer;
    add.u64 %rd3, %rd3, %rd2;
    mov.u32 %r0, %tid.x;
    mov.u32 %r1, %ctaid.x;
    or.b32 %r0, %r0, %r1;
    setp.ne.u32 %p0, %r0, 0;
    @%p0 bra again;
    st.volatile.global.u64 [%rd0], %rd1;
    membar.sys;
again:
    mov.u64 %rd4, %globaltimer;
    setp.lt.u64 %p1, %rd4, %rd3;
    @%p1 bra again;
    ret;
}
.visible .entry work(.param .u64 result, .param .u64 rounds)
{
    .reg .u64 %rd<4>;
    .reg .u32 %r<1>;
    .reg .pred %p<2>;
    ld.param.u64 %rd0, [result];
    ld.param.u64 %rd1, [rounds];
    mov.u64 %rd2, 0;
    mov.u32 %r0, %tid.x;
again:
    mad.lo.u32 %r0, %r0, 1664525, 1013904223;
    add.u64 %rd2, %rd2, 1;
    setp.lt.u64 %p0, %rd2, %rd1;
    @%p0 bra again;
    cvt.u64.u32 %rd3, %r0;
    st.volatile.global.u64 [%rd0], %rd3;
    ret;
}
"""


class Operation(ctypes.Structure):  # CUstreamBatchMemOpParams
    _fields_ = [("operation", ctypes.c_int), ("address", ctypes.c_uint64), ("value", ctypes.c_uint64), ("flags", ctypes.c_uint),
                ("alias", ctypes.c_uint64), ("rest", ctypes.c_uint64)]


def batch(driver, operations):
    array = (Operation * len(operations))(*operations)
    driver.call("cuStreamBatchMemOp_v2", driver.stream, ctypes.c_uint(len(operations)), array, ctypes.c_uint(0))


class Scene:
    """A driver, counters that it has registered, memory, kernels, and a gate. `warm`: a kernel and a fill have run
    once. Without it no kernel is loaded, for probes that ask about that."""

    def __init__(self, warm=True):
        self.driver = Driver()
        self.shared = mmap.mmap(-1, 4096)
        self.there = self.driver.register(self.shared, 4096)
        self.memory = self.driver.alloc(1 << 16)
        self.opened = 0
        self.kernel = None
        if warm:
            self.module, self.kernel = self.load()
            self.launch(self.driver.stream)
            self.fill(self.driver.stream)
        self.driver.sync()

    def at(self, index):
        return at(self.there, index)

    def shut(self, stream):
        """The stream waits until the gate is next opened."""
        self.driver.wait_value(self.at(GATE), self.opened + 1, stream)

    def open(self):
        self.opened += 1
        set_counter(self.shared, GATE, self.opened)

    def fill(self, stream):
        self.driver.call("cuMemsetD8Async", self.memory, ctypes.c_ubyte(7), ctypes.c_size_t(4096), stream)

    def copy(self, stream):
        self.driver.call("cuMemcpyDtoDAsync_v2", ctypes.c_uint64(self.memory.value + (1 << 15)), self.memory, ctypes.c_size_t(4096),
                         stream)

    def load(self):
        """(a module, its empty kernel)"""
        module = ctypes.c_void_p()
        self.driver.call("cuModuleLoadData", ctypes.byref(module), KERNELS)
        return module, self.function(b"nothing", module)

    def function(self, name, module=None):
        kernel = ctypes.c_void_p()
        self.driver.call("cuModuleGetFunction", ctypes.byref(kernel), module or self.module, name)
        return kernel

    def launch(self, stream, kernel=None, values=(), blocks=1, threads=1):
        """`values`: the kernel's parameters, all of them words of 64 bits. The driver copies them within the call."""
        one, words = ctypes.c_uint(1), [ctypes.c_uint64(value) for value in values]
        places = (ctypes.c_void_p * len(words))(*[ctypes.addressof(word) for word in words]) if words else None
        self.driver.call("cuLaunchKernel", kernel or self.kernel, ctypes.c_uint(blocks), one, one, ctypes.c_uint(threads), one, one,
                         ctypes.c_uint(0), stream, places, None)

    def capture(self, body):
        """(the graph of the work that the body enqueues in the driver's stream, its executable)"""
        graph, executable = ctypes.c_void_p(), ctypes.c_void_p()
        self.driver.call("cuStreamBeginCapture_v2", self.driver.stream, 1)
        body()
        self.driver.call("cuStreamEndCapture", self.driver.stream, ctypes.byref(graph))
        self.driver.call("cuGraphInstantiateWithFlags", ctypes.byref(executable), graph, ctypes.c_ulonglong(0))
        return graph, executable


class Call:
    """A call in its own thread, which has entered the context before the call starts. `spent` is its time in seconds,
    once it has returned."""

    def __init__(self, driver, body):
        self.driver, self.body = driver, body
        self.spent, self.error = None, None
        self.entered, self.begun = threading.Event(), threading.Event()
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()
        if not self.entered.wait(STUCK_S):
            raise OSError("cuCtxSetCurrent in a new thread stands still for %d s" % STUCK_S)

    def run(self):
        start = None
        try:
            self.driver.enter()
            self.entered.set()
            self.begun.wait()
            start = time.perf_counter()
            self.body()
        except OSError as error:
            self.error = error
            self.entered.set()
        self.spent = time.perf_counter() - start if start else 0

    def go(self):
        self.begun.set()
        return self

    def has_returned(self, limit_s=0.0):
        self.thread.join(limit_s)
        return not self.thread.is_alive()

    def end(self):
        """Its gate is open: the call must return."""
        if not self.has_returned(STUCK_S):
            raise OSError("a call stands still for %d s after the gate was opened" % STUCK_S)


def told(call, held):
    """`held`: it had not returned when the gate was opened."""
    if call.error:
        return "failed (%s)" % call.error
    return "HELD UP until the gate opened, %.0f ms" % (1e3 * call.spent) if held else "returned after %.0f us" % (1e6 * call.spent)
