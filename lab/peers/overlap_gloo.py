"""Gloo for bench/overlap, through PyTorch: an asynchronous all_reduce per bucket. The timing core is the C one, loaded
as a library (CORE_LIBRARY); it computes outside Python's lock. Each callback into this file costs a microsecond or
two."""
import ctypes
import os
import sys

import torch
import torch.distributed as dist

ALLOC = RELEASE = OPEN = CLOSE = BUCKET = PROGRESS = ctypes.c_void_p  # not used here: NULL
START = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t)
FINISH = ctypes.CFUNCTYPE(ctypes.c_int)


class Peer(ctypes.Structure):  # overlap_peer of overlap.h
    _fields_ = [("rank", ctypes.c_int), ("size", ctypes.c_int), ("alloc", ALLOC), ("release", RELEASE), ("open", OPEN),
                ("close", CLOSE), ("bucket", BUCKET), ("start", START), ("progress", PROGRESS), ("finish", FINISH)]


def guarded(call):
    """Returns the call's status as a number; prints an exception to stderr."""
    def run(*arguments):
        try:
            call(*arguments)
            return 0
        except (RuntimeError, ValueError) as error:
            print("gloo:", str(error).split("\n")[0], file=sys.stderr, flush=True)
            return 1
    return run


def main():
    torch.set_num_threads(1)
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", init_method="file://" + os.environ["GLOO_STORE"], rank=rank, world_size=size)
    tensors, works = {}, []  # (address, elements): the tensor over that memory of the core; the works under way

    def start(index, address, count):
        if (address, count) not in tensors:
            tensors[address, count] = torch.frombuffer((ctypes.c_float * count).from_address(address), dtype=torch.float32)
        works.append(dist.all_reduce(tensors[address, count], async_op=True))

    def finish():
        for work in works:
            work.wait()
        works.clear()

    core = ctypes.CDLL(os.environ["CORE_LIBRARY"])
    words = [word.encode() for word in sys.argv]
    arguments = (ctypes.c_char_p * len(words))(*words)
    peer = Peer(rank=rank, size=size, start=START(guarded(start)), finish=FINISH(guarded(finish)))
    status = core.overlap_run(ctypes.byref(peer), len(words), arguments)
    dist.destroy_process_group()
    return status


sys.exit(main())
