#!/usr/bin/env python3
"""Features of the kernel that Tutti needs, tested one by one: containers and sandboxes may lack some.

Prints a line per probe, "name: yes", or "name: NO: reason"; leaves nothing behind. Exits with 0, since the reader
decides whether a missing feature matters. Each probe runs in its own process, for at most 5 s.
"""
import array
import ctypes
import fcntl
import mmap
import os
import select
import signal
import socket
import struct
import time

from probing import in_child, run

LIBC = ctypes.CDLL(None, use_errno=True)
ARM = os.uname().machine == "aarch64"
FUTEX, PROCESS_VM_READV, MEMBARRIER = (98, 270, 283) if ARM else (202, 310, 324)
LIMIT_S = 5


class Iovec(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("bytes", ctypes.c_size_t)]


def call(name, result):
    if result < 0:
        raise OSError(ctypes.get_errno(), "%s: %s" % (name, os.strerror(ctypes.get_errno())))
    return result


def system_call(name, number, *arguments):
    """All arguments are whole words: the upper bits of smaller ones would be undefined."""
    words = [ctypes.c_long(argument) if isinstance(argument, int) else argument for argument in arguments]
    return call(name, LIBC.syscall(ctypes.c_long(number), *words))


def memfd(bytes_count=1 << 20, flags=0):
    fd = os.memfd_create("probe", os.MFD_CLOEXEC | flags)
    os.ftruncate(fd, bytes_count)
    return fd


def address_of(shared, offset=0):
    return ctypes.addressof(ctypes.c_char.from_buffer(shared, offset))


def expect_end(pid):
    if os.waitpid(pid, 0)[1] != 0:
        raise OSError("the other process failed")


# ---------------------------------------------------------------------------------------------------- probes

def shared_memory_over_a_socket():
    """A sealed memfd, passed over an abstract UNIX socket, is one memory for both processes."""
    fd = memfd(flags=os.MFD_ALLOW_SEALING)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    name = "\0tutti-probe-%d" % os.getpid()
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(name)
    listener.listen()

    def join():
        with socket.socket(socket.AF_UNIX) as peer:
            peer.connect(name)
            _, ancillary, _, _ = peer.recvmsg(1, socket.CMSG_SPACE(4))
            passed = array.array("i", ancillary[0][2])[0]
        mmap.mmap(passed, 4096)[0:4] = b"seen"

    pid = in_child(join)
    peer, _ = listener.accept()
    who = struct.unpack("3i", peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    if who[0] != pid or who[1] != os.getuid():
        raise OSError("SO_PEERCRED tells pid %d, uid %d instead of %d, %d" % (who[0], who[1], pid, os.getuid()))
    peer.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))])
    expect_end(pid)
    if mmap.mmap(fd, 4096)[0:4] != b"seen":
        raise OSError("the other process's bytes are not seen")


def futex_between_processes():
    shared = mmap.mmap(memfd(4096), 4096)
    word = address_of(shared)

    def wait():
        timeout = struct.pack("qq", 3, 0)
        while struct.unpack_from("i", shared)[0] == 0:
            try:
                system_call("futex", FUTEX, word, 0, 0, timeout, 0, 0)
            except BlockingIOError:
                pass  # the value has changed meanwhile

    pid = in_child(wait)
    time.sleep(0.1)
    struct.pack_into("i", shared, 0, 1)
    if system_call("futex", FUTEX, word, 1, 1, 0, 0, 0) != 1:
        raise OSError("no thread was woken")
    expect_end(pid)


def pidfd_tells_a_death():
    pid = in_child(lambda: time.sleep(30))
    fd = os.pidfd_open(pid)
    if select.select([fd], [], [], 0.05)[0]:
        raise OSError("it is readable while the process lives")
    os.kill(pid, signal.SIGKILL)
    start = time.monotonic()
    if not select.select([fd], [], [], 3)[0]:
        raise OSError("it is not told within 3 s")
    os.waitpid(pid, 0)
    return "after %.1f ms" % (1e3 * (time.monotonic() - start))


def reading_a_peers_memory():
    secret = ctypes.create_string_buffer(b"forty-two", 16)
    parent = os.getpid()

    def read():
        got = ctypes.create_string_buffer(16)
        here = Iovec(ctypes.cast(got, ctypes.c_void_p), 9)
        there = Iovec(ctypes.cast(secret, ctypes.c_void_p), 9)
        secret.raw = bytes(16)  # the copy of this process
        system_call("process_vm_readv", PROCESS_VM_READV, parent, ctypes.byref(here), 1, ctypes.byref(there), 1, 0)
        if got.raw[:9] != b"forty-two":
            raise OSError("other bytes came")

    expect_end(in_child(read))


def membarrier():
    commands = system_call("membarrier", MEMBARRIER, 0, 0, 0)
    return "commands 0x%x" % commands


def holes_in_memfds():
    fd = memfd()
    os.posix_fallocate(fd, 0, 1 << 20)
    libc_fallocate = LIBC.fallocate
    libc_fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long]
    call("fallocate", libc_fallocate(fd, 3, 0, 1 << 20))  # keep size, punch hole
    blocks = os.fstat(fd).st_blocks
    if blocks * 512 > 1 << 19:
        raise OSError("%d blocks stay allocated" % blocks)


def memory_that_is_not_inherited():
    shared = mmap.mmap(memfd(8192), 8192)
    for name, advice in (("MADV_DONTFORK", 10), ("MADV_DONTDUMP", 16)):
        call(name, LIBC.madvise(ctypes.c_void_p(address_of(shared)), ctypes.c_size_t(8192), advice))


def children_end_with_their_parent():
    reader, writer = os.pipe()

    def parent():
        grandchild = os.fork()
        if grandchild == 0:
            call("prctl", LIBC.prctl(1, signal.SIGKILL, 0, 0, 0))
            os.write(writer, b"x")
            time.sleep(30)
            os._exit(0)
        os.read(reader, 1)  # the child has requested the signal
        os.write(writer, struct.pack("i", grandchild))

    expect_end(in_child(parent))
    grandchild = struct.unpack("i", os.read(reader, 4))[0]
    for _ in range(100):
        try:
            with open("/proc/%d/stat" % grandchild, encoding="ascii") as file:
                if file.read().rsplit(")", 1)[1].split()[0] == "Z":
                    return
        except OSError:
            return
        time.sleep(0.02)
    os.kill(grandchild, signal.SIGKILL)
    raise OSError("the grandchild lives on")


def waiting_for_many_events():
    queue = select.epoll()
    event = LIBC.eventfd(0, 0)
    call("eventfd", event)
    timer = call("timerfd_create", LIBC.timerfd_create(1, 0))
    queue.register(event, select.EPOLLIN)
    os.close(timer)
    os.write(event, struct.pack("Q", 1))
    if not queue.poll(1):
        raise OSError("an event is not seen")


def files_about_the_machine():
    missing = []
    for path in ("/proc/sys/kernel/random/boot_id", "/proc/self/status", "/proc/self/stat", "/proc/cpuinfo", "/proc/self/maps",
                 "/sys/devices/system/cpu/online", "/sys/fs/cgroup"):
        if not os.access(path, os.R_OK):
            missing.append(path)
    if missing:
        raise OSError("cannot be read: " + ", ".join(missing))
    return "%d cores for this process" % len(os.sched_getaffinity(0))


def locked_memory():
    import resource
    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    return "unlimited" if limit == resource.RLIM_INFINITY else "%d KiB" % (limit >> 10)


PROBES = (
    ("memfd over an abstract socket", shared_memory_over_a_socket),
    ("futex between processes", futex_between_processes),
    ("pidfd tells a death", pidfd_tells_a_death),
    ("process_vm_readv", reading_a_peers_memory),
    ("membarrier", membarrier),
    ("fallocate and holes in a memfd", holes_in_memfds),
    ("MADV_DONTFORK, MADV_DONTDUMP", memory_that_is_not_inherited),
    ("PR_SET_PDEATHSIG", children_end_with_their_parent),
    ("epoll, eventfd, timerfd", waiting_for_many_events),
    ("/proc and /sys", files_about_the_machine),
    ("memory that may be locked", locked_memory),
)


def main():
    for name, probe in PROBES:
        run(name, probe, LIMIT_S)


if __name__ == "__main__":
    main()
