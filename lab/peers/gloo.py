"""Gloo for the comparison, through PyTorch. The timing core is the C one, loaded as a library (CORE_LIBRARY); each
operation is a callback into this file, which costs a microsecond or two."""
import ctypes
import os
import sys

import torch
import torch.distributed as dist

RUN = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t,
                       ctypes.c_int)


class Peer(ctypes.Structure):  # core_peer of core.h
    _fields_ = [("rank", ctypes.c_int), ("size", ctypes.c_int), ("slice_stays", ctypes.c_int), ("alloc", ctypes.c_void_p),
                ("release", ctypes.c_void_p), ("run", RUN)]


tensors = {}  # (address, elements): the tensor over that memory of the core


def tensor(address, count):
    if (address, count) not in tensors:
        memory = (ctypes.c_float * count).from_address(address)
        tensors[address, count] = torch.frombuffer(memory, dtype=torch.float32)
    return tensors[address, count]


def all_reduce(src, dst, count, rank, size, root):
    if src != dst:  # torch has this operation only in place
        tensor(dst, count).copy_(tensor(src, count))
    dist.all_reduce(tensor(dst, count))


def all_gather(src, dst, count, rank, size, root):
    dist.all_gather_into_tensor(tensor(dst, count * size), tensor(src, count))


def reduce_scatter(src, dst, count, rank, size, root):
    source = tensor(src, count * size)
    result = tensor(src + 4 * rank * count, count) if src == dst else tensor(dst, count)
    dist.reduce_scatter_tensor(result, source)


def broadcast(src, dst, count, rank, size, root):
    dist.broadcast(tensor(dst, count), root)


def all_to_all(src, dst, count, rank, size, root):
    dist.all_to_all_single(tensor(dst, count * size), tensor(src, count * size))


def barrier(src, dst, count, rank, size, root):
    dist.barrier()


def ping_pong(src, dst, count, rank, size, root):
    if rank % 2 == 0:
        dist.send(tensor(src, count), rank ^ 1)
        dist.recv(tensor(dst, count), rank ^ 1)
    else:
        dist.recv(tensor(dst, count), rank ^ 1)
        dist.send(tensor(src, count), rank ^ 1)


def gather(src, dst, count, rank, size, root):
    dist.gather(tensor(src, count), list(tensor(dst, count * size).chunk(size)) if rank == root else None, root)


def scatter(src, dst, count, rank, size, root):
    dist.scatter(tensor(dst, count), list(tensor(src, count * size).chunk(size)) if rank == root else None, root)


OPERATIONS = [all_reduce, all_gather, reduce_scatter, broadcast, all_to_all, barrier, ping_pong, gather,
              scatter]  # core_collective


def main():
    torch.set_num_threads(1)
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", init_method="file://" + os.environ["GLOO_STORE"], rank=rank, world_size=size)

    def run(collective, src, dst, count, root):
        try:
            OPERATIONS[collective](src, dst, count, rank, size, root)
            return 0
        except (RuntimeError, ValueError, NotImplementedError) as error:
            print("gloo:", str(error).split("\n")[0], file=sys.stderr, flush=True)
            return 1

    core = ctypes.CDLL(os.environ["CORE_LIBRARY"])
    words = [word.encode() for word in sys.argv]
    arguments = (ctypes.c_char_p * len(words))(*words)
    peer = Peer(rank=rank, size=size, slice_stays=1, run=RUN(run))
    status = core.core_run(ctypes.byref(peer), len(words), arguments)
    dist.destroy_process_group()
    return status


sys.exit(main())
