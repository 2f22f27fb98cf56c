"""A rank of test_hosts.py, started by torchrun: each part writes its results to FOLDER/PART.RANK.

    python -m support.on_hosts FOLDER
"""
import os
import signal
import sys
import time
import traceback

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from support import ranks

COUNTS = (1, 5, 300001)  # numbers of elements: an eager message, and a long one
VICTIM = 3
STEPS, ITEMS = 4, 6


def pattern(rank, count, step=1):
    """Small integers, whose sums are exact."""
    return torch.arange(count, dtype=torch.float64) * step % 17 + 100 * rank


def gathered(me, size, count):
    """Collectives that gather or move all ranks' data."""
    everyone = [pattern(rank, count) for rank in range(size)]
    parts = [torch.empty(count, dtype=torch.float64) for _ in range(size)]
    dist.all_gather(parts, pattern(me, count))
    yield "all_gather", torch.cat(parts), torch.cat(everyone)
    whole = torch.empty(size * count, dtype=torch.float64)
    dist.all_gather_into_tensor(whole, pattern(me, count))
    yield "all_gather_into_tensor", whole, torch.cat(everyone)
    for root in (0, size - 1):
        parts = [torch.empty(count, dtype=torch.float64) for _ in range(size)] if me == root else None
        dist.gather(pattern(me, count), parts, dst=root)
        if me == root:
            yield "gather", torch.cat(parts), torch.cat(everyone)
        mine = torch.empty(count, dtype=torch.float64)
        dist.scatter(mine, everyone if me == root else None, src=root)
        yield "scatter", mine, everyone[me]
        copy = pattern(me, count)
        dist.broadcast(copy, src=root)
        yield "broadcast", copy, everyone[root]


def reduced(me, size, count):
    """Collectives that compute: rank r has p + 100 r."""
    total = size * pattern(0, count) + 100 * (size * (size - 1) // 2)
    for name, op, expected in (("sum", dist.ReduceOp.SUM, total), ("avg", dist.ReduceOp.AVG, total / size),
                               ("min", dist.ReduceOp.MIN, pattern(0, count)), ("max", dist.ReduceOp.MAX, pattern(size - 1, count))):
        values = pattern(me, count)
        dist.all_reduce(values, op)
        yield "all_reduce " + name, values, expected
    for root in (1, size - 1):
        values = pattern(me, count)
        dist.reduce(values, dst=root)
        if me == root:
            yield "reduce", values, total
    parts = [pattern(me, count, step) for step in range(1, size + 1)]
    expected = size * pattern(0, count, me + 1) + 100 * (size * (size - 1) // 2)
    values = torch.empty(count, dtype=torch.float64)
    dist.reduce_scatter(values, parts)
    yield "reduce_scatter", values, expected
    values = torch.empty(count, dtype=torch.float64)
    dist.reduce_scatter_tensor(values, torch.cat(parts))
    yield "reduce_scatter_tensor", values, expected


def exchanged(me, size, count):
    """Each pair of ranks has its own data."""
    parts = [pattern(me, count, step) for step in range(1, size + 1)]
    expected = [pattern(rank, count, me + 1) for rank in range(size)]
    values = [torch.empty(count, dtype=torch.float64) for _ in range(size)]
    dist.all_to_all(values, parts)
    yield "all_to_all", torch.cat(values), torch.cat(expected)
    values = torch.empty(size * count, dtype=torch.float64)
    dist.all_to_all_single(values, torch.cat(parts))
    yield "all_to_all_single", values, torch.cat(expected)
    splits = [count + rank for rank in range(size)]  # r more for rank r
    values = torch.empty(size * (count + me), dtype=torch.float64)
    dist.all_to_all_single(values, torch.cat([pattern(me, split) for split in splits]), [count + me] * size, splits)
    yield "all_to_all_single with splits", values, torch.cat([pattern(rank, count + me) for rank in range(size)])
    there, back = (me + 2) % size, (me + size - 2) % size  # on the other host
    values = torch.empty(count, dtype=torch.float64)
    for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, pattern(me, count), there), dist.P2POp(dist.irecv, values, back)]):
        work.wait()
    yield "batch_isend_irecv", values, pattern(back, count)
    values = torch.empty(count, dtype=torch.float64)
    if me < there:
        dist.send(pattern(me, count), there)
        dist.recv(values, there)
    else:
        dist.recv(values, there)
        dist.send(pattern(me, count), there)
    yield "send and recv", values, pattern(there, count)


def objects(me, size):
    """Pickled, of different lengths."""
    mine = {"rank": me, "text": "x" * (1000 * me)}
    everyone = [{"rank": rank, "text": "x" * (1000 * rank)} for rank in range(size)]
    found = [None] * size
    dist.all_gather_object(found, mine)
    yield "all_gather_object", found, everyone
    found = [mine]
    dist.broadcast_object_list(found, src=size - 1)
    yield "broadcast_object_list", found, everyone[-1:]
    found = [None]
    dist.scatter_object_list(found, everyone if me == 1 else [None] * size, src=1)
    yield "scatter_object_list", found, [mine]


def collectives():
    me, size, count = dist.get_rank(), dist.get_world_size(), 0
    for elements in COUNTS:
        for part in (gathered, reduced, exchanged):
            for name, values, expected in part(me, size, elements):
                assert torch.equal(values, expected), "%s of %d elements" % (name, elements)
                count += 1
    for name, found, expected in objects(me, size):
        assert found == expected, name
        count += 1
    dist.barrier()
    return "%d right" % count


def train(model, slices):
    """Full batches for one process; rank r's part for a rank."""
    torch.manual_seed(3)
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    for _ in range(STEPS):
        x, y = torch.randn(ITEMS * dist.get_world_size(), 16, dtype=torch.float64), torch.randn(ITEMS * dist.get_world_size(), 4, dtype=torch.float64)
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x[slices]), y[slices]).backward()
        optimizer.step()


def net():
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(16, 300), nn.Tanh(), nn.Linear(300, 4)).double()


def ddp():
    """Training by all ranks has the results of one process with whole batches."""
    me, alone, together = dist.get_rank(), net(), net()
    train(alone, slice(None))
    train(DDP(together, bucket_cap_mb=0.02), slice(me * ITEMS, (me + 1) * ITEMS))
    most = max((a - b).abs().max().item() for a, b in zip(alone.parameters(), together.parameters()))
    moved = max((a - b).abs().max().item() for a, b in zip(net().parameters(), together.parameters()))
    assert most < 1e-12 < 1e-3 < moved, "differs by %g, after moving by %g" % (most, moved)
    return "differs by %g" % most


def layout():
    """What the ranks know of their hosts; and RDMA, which these hosts lack."""
    from torch_tutti import env  # pylint: disable=import-outside-toplevel

    try:
        env.init_rdma()
    except RuntimeError as error:
        return "%d %d %d\n%s" % (env.get_node_size(), env.get_local_rank(), env.rdma_is_initialized(), error)
    raise AssertionError("there is RDMA between namespaces")


def note(folder, name, text=""):
    with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
        file.write(text)


def death(folder):
    """One rank is killed while all sum, and none is still in the previous call. It writes its process id for the
    others, which should name it, within some time since its end: all ranks have one clock.

    torchrun polls every 2 s and then ends the ranks beside the dead one: these report first, too.
    """
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    pids = [None] * dist.get_world_size()
    dist.all_gather_object(pids, os.getpid())
    note(folder, "warm.%d" % dist.get_rank())
    if dist.get_rank() == VICTIM:
        while not all(os.path.exists(os.path.join(folder, "warm.%d" % rank)) for rank in range(dist.get_world_size())):
            time.sleep(0.01)
        time.sleep(0.3)
        note(folder, "struck", "%r" % time.monotonic())
        os.kill(os.getpid(), signal.SIGKILL)
    began = time.monotonic()
    try:
        while time.monotonic() < began + 20:
            dist.all_reduce(torch.ones(1000))
    except RuntimeError as error:
        told = time.monotonic()
        with open(os.path.join(folder, "struck"), encoding="utf-8") as file:
            return "%g\n%d\n%s" % (told - float(file.read()), pids[VICTIM], error)
    raise AssertionError("no error reported")


def main(folder):
    dist.init_process_group(ranks.BACKEND)
    for part, arguments in ((collectives, ()), (ddp, ()), (layout, ()), (death, (folder,))):
        try:
            text = "ok " + part(*arguments)
        except Exception:  # pylint: disable=broad-except
            text = traceback.format_exc()
        note(folder, "%s.%d" % (part.__name__, dist.get_rank()), text)
    sys.exit(1)  # a job with a dead rank


if __name__ == "__main__":
    main(sys.argv[1])
