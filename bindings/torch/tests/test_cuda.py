"""CUDA tensors, on a stand-in (support/gpu.py): values, groups, failures, ends. Order in streams: test_cuda_streams.py."""
import os
import signal
import threading
import unittest

import torch
import torch.distributed as dist

from support import gpu, ranks
from support.cuda_ranks import SECONDS, filled, load, raises, run, same, start

NCCL = os.environ.get("TUTTI_NCCL_LIBRARY")  # also a stand-in


def setUpModule():
    load()


# ------------------------------------------------------------------------------------------------------ values


def programs(rank, size, count, dtype):
    """(name, program(make, asynchronous)) -> work, results; `make` makes a tensor on the device."""
    own = (torch.arange(count) % 5 + rank + 1).to(dtype)
    wide = (torch.arange(count * size) % 7 + rank + 1).to(dtype)
    root = size - 1

    def none(shape=count):
        return torch.zeros(shape, dtype=dtype)

    def simple(call, tensor, *arguments):
        def program(make, asynchronous):
            made = make(tensor)
            return call(made, *arguments, async_op=asynchronous), [made]
        return program

    def many(make, shapes=None):
        return [make(none(shape)) for shape in shapes or [count] * size]

    def all_gather(make, asynchronous):
        outs = many(make)
        return dist.all_gather(outs, make(own), async_op=asynchronous), outs

    def all_gather_base(make, asynchronous):
        out = make(none(count * size))
        return dist.all_gather_into_tensor(out, make(own), async_op=asynchronous), [out]

    def gather(make, asynchronous):
        outs = many(make) if rank == root else None
        return dist.gather(make(own), outs, root, async_op=asynchronous), outs or []

    def scatter(make, asynchronous):
        out = make(none())
        return dist.scatter(out, [make(own * peer) for peer in range(size)] if rank == root else None, root, async_op=asynchronous), [out]

    def reduce_scatter(make, asynchronous):
        out = make(none())
        return dist.reduce_scatter(out, [make(own * peer) for peer in range(size)], async_op=asynchronous), [out]

    def reduce_scatter_base(make, asynchronous):
        out = make(none())
        return dist.reduce_scatter_tensor(out, make(wide), async_op=asynchronous), [out]

    def all_to_all(make, asynchronous):
        outs = many(make)
        return dist.all_to_all(outs, [make(own * peer) for peer in range(size)], async_op=asynchronous), outs

    def all_to_all_base(make, asynchronous):
        out = make(none(count * size))
        return dist.all_to_all_single(out, make(wide), async_op=asynchronous), [out]

    def all_to_all_splits(make, asynchronous):
        splits = [rank + peer for peer in range(size)]
        out = make(none(sum(splits)))
        return dist.all_to_all_single(out, make(torch.arange(sum(splits)).to(dtype) + rank), splits, splits, async_op=asynchronous), [out]

    def coalesced(make, asynchronous):
        tensors = [make(own), make(wide)]
        with dist._coalescing_manager(async_ops=asynchronous) as manager:
            for tensor in tensors:
                dist.all_reduce(tensor)
        return manager if asynchronous else None, tensors

    return [
        ("all_reduce", simple(dist.all_reduce, own)),
        ("all_reduce max", simple(dist.all_reduce, own, dist.ReduceOp.MAX)),
        ("all_reduce premul_sum", simple(dist.all_reduce, own, dist._make_nccl_premul_sum(2.0))),
        ("reduce", lambda make, asynchronous: (lambda made: (dist.reduce(made, root, async_op=asynchronous), [made] if rank == root else []))(make(own))),
        ("broadcast", simple(dist.broadcast, own, root)),
        ("all_gather", all_gather), ("all_gather_into_tensor", all_gather_base), ("gather", gather), ("scatter", scatter),
        ("reduce_scatter", reduce_scatter), ("reduce_scatter_tensor", reduce_scatter_base), ("all_to_all", all_to_all),
        ("all_to_all_single", all_to_all_base), ("all_to_all_single, splits", all_to_all_splits), ("coalescing manager", coalesced),
    ]


def finish(outcome):
    work, results = outcome
    if work is not None:
        work.wait()
    return results


def sweep(context, index, nccl=None):
    """CUDA tensors have the results of the same call on the CPU; on a different stream in each call."""
    start(context, index(context.rank), delay_us=50, nccl=nccl)
    on = index(context.rank)
    number = 0
    for count, dtype in ((0, torch.float32), (1031, torch.float32), (3, torch.bfloat16)):
        for name, program in programs(context.rank, context.size, count, dtype):
            right = finish(program(torch.clone, False))
            for asynchronous in (False, True):
                number += 1
                gaps = number % 3 == 0
                gpu.ops.use_stream(on, number % 4)
                got = finish(program(lambda tensor, gaps=gaps: gpu.put(tensor, on, gaps), asynchronous))
                for one, other in zip(got, right):
                    same(one, other, "%s of %d %s, %s%s" % (name, count, dtype, "async" if asynchronous else "sync", ", with gaps" * gaps))
    return number


# ------------------------------------------------------------------------------------------------------- order


def objects(context):
    start(context, backend="cuda:tutti")
    things = [None] * context.size
    dist.all_gather_object(things, {"rank": context.rank})
    assert [thing["rank"] for thing in things] == list(range(context.size)), things
    told = ["x" * 100 if context.rank == 0 else None]
    dist.broadcast_object_list(told, 0)
    assert told == ["x" * 100], told


def other_groups(context):
    start(context, backend="cpu:gloo,cuda:tutti")
    tensor = torch.ones(4)
    dist.all_reduce(tensor)
    same(tensor, torch.full((4,), float(context.size)), "gloo on the CPU")
    for group in (dist.group.WORLD, dist.new_group(backend="tutti"), dist.new_group(backend="cuda:tutti")):
        tensor = filled(4, 1)
        dist.all_reduce(tensor, group=group)
        same(tensor, torch.full((4,), float(context.size)), "group")
    seen = []
    group = dist.new_group(backend="tutti")
    group._register_on_completion_hook(lambda info: seen.append(info.seq))
    dist.all_reduce(filled(4, 1), group=group)
    dist.all_reduce(filled(4, 1), group=group, async_op=True).wait()
    group._wait_for_pending_works()
    assert len(seen) == 2, seen


def bound_to_a_gpu(context):
    """init_process_group(device_id=...), whatever the backend is called: groups with and without all ranks, splits."""
    gpu.begin(0)
    if hasattr(torch, "accelerator"):  # a PyTorch without CUDA has none
        torch.accelerator.current_accelerator = lambda *_: torch.device("cuda")
        torch.accelerator.device_count = lambda: 2
        torch.accelerator.is_available = lambda: True
    for number, backend in enumerate(("tutti", "cpu:tutti,cuda:tutti", "cuda:tutti")):
        context.init(backend, name="store%d" % number, device_id=gpu.device(0))
        let_go = threading.Event()
        gpu.ops.hold(0)
        timer = threading.Timer(0.05, lambda event=let_go: (event.set(), gpu.ops.let_go()))
        timer.start()
        dist.barrier()
        assert let_go.is_set(), "the barrier did not wait for the GPU"
        timer.join()
        halves = [dist.new_group([0]), dist.new_group([1])]
        groups = [(dist.group.WORLD, context.size), (dist.new_group(), context.size), (halves[context.rank], 1)]
        if hasattr(dist, "split_group"):
            groups.append((dist.split_group(split_ranks=[[0], [1]]), 1))
        for group, count in groups:
            tensor = filled(4, 1)
            dist.all_reduce(tensor, group=group)
            same(tensor, torch.full((4,), float(count)), backend)
        dist.destroy_process_group()


# ---------------------------------------------------------------------------------------------------- failures


def wrong_arguments(context):
    """They raise in the caller, and the group stays usable."""
    start(context)
    own, host = filled(4, 1), torch.ones(4 * context.size)
    raises(ValueError, "on one device", lambda: dist.all_gather_into_tensor(host, own))
    dist.all_reduce(own)
    raises(ValueError, "cuda:0", lambda: dist.all_reduce(filled(4, 1, index=1)))
    fresh = dist.new_group()
    gpu.ops.use_gpu(0)
    gpu.ops.use_stream(0, 3)
    gpu.ops.capture(0, True)
    raises(dist.DistBackendError, "captured", lambda: dist.all_reduce(own, group=fresh))
    dist.all_reduce(own)
    gpu.ops.capture(0, False)
    dist.all_reduce(own, group=fresh)
    same(own, torch.full((4,), float(context.size**3)), "after errors")


def deaths(context):
    start(context)
    dist.all_reduce(filled(1, 1))
    dist.barrier()
    if context.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    tensor = filled(10, 1)
    work = dist.all_reduce(tensor, async_op=True)
    try:
        work.wait()  # does not hang; the death is probably not known yet
    except dist.DistBackendError:
        pass
    raises(dist.DistBackendError, "rank 1", lambda: work.wait(SECONDS))
    assert work.is_completed() and not work.is_success() and work.exception() is not None
    tensor.cpu()  # the streams continue
    raises(dist.DistBackendError, "rank 1", lambda: dist.all_reduce(tensor))
    raises(dist.DistBackendError, "rank 1", work.wait)


def unheard(context):
    """A caller without a work, which waits for nothing, finds the error in the log."""
    start(context)
    dist.all_reduce(filled(1, 1))
    dist.barrier()
    if context.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    tensor = filled(10, 1)
    dist.all_reduce(tensor)
    tensor.cpu()
    with open(os.path.join(context.folder, "rank0.log"), encoding="utf-8") as log:
        said = log.read()
    assert "do not hold its result" in said and "rank 1" in said or not hasattr(dist.AllreduceOptions(), "asyncOp"), said


def ends(context):
    """An aborted group lets streams continue; works in progress at its end cause no error."""
    start(context)
    dist.all_reduce(filled(1, 1))
    tensor = filled(10, 1)
    if context.rank == 0:
        work = dist.all_reduce(tensor, async_op=True)
        dist.group.WORLD._get_backend(torch.device("cuda")).abort("enough")
        raises(dist.DistBackendError, "enough", lambda: work.wait(SECONDS))
        tensor.cpu()
    dist.destroy_process_group()


class Cuda(unittest.TestCase):
    def test_values_with_two_ranks_on_one_gpu(self):
        run(sweep, lambda rank: 0)

    def test_values_with_a_gpu_each_through_the_host(self):
        run(sweep, lambda rank: rank)

    @unittest.skipIf(NCCL is None, "TUTTI_NCCL_LIBRARY does not name the stand-in for NCCL")
    def test_values_with_a_gpu_each_by_nccl(self):
        run(sweep, lambda rank: rank, NCCL)

    def test_objects_are_sent_in_cuda_tensors(self):
        run(objects)

    def test_groups_of_all_kinds(self):
        run(other_groups)

    def test_groups_that_are_bound_to_a_gpu(self):
        run(bound_to_a_gpu)

    def test_wrong_arguments(self):
        run(wrong_arguments)

    def test_a_dead_rank(self):
        ranks.run(2, deaths, init=False, victims=(1,))

    def test_a_dead_rank_without_a_waiting_caller(self):
        ranks.run(2, unheard, init=False, victims=(1,))

    def test_the_end_of_a_group(self):
        run(ends)


if __name__ == "__main__":
    unittest.main()
