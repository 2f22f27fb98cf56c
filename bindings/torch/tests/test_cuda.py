"""CUDA tensors, on a stand-in (support/gpu.py): values, order, lifetimes, futures, messages, failures.

Order is shown by holding a stream, never by time: what must come later has to wait for what is held, and the host must not.
"""
import datetime
import os
import signal
import threading
import unittest

import torch
import torch.distributed as dist

from support import gpu, ranks

NCCL = os.environ.get("TUTTI_NCCL_LIBRARY")  # a stand-in as well
BOTH = "cpu:tutti,cuda:tutti"
SECONDS = datetime.timedelta(seconds=20)


def setUpModule():
    if not ranks.IS_TUTTI:
        raise unittest.SkipTest("no torch_tutti")
    gpu.load()


def start(context, index=0, backend=BOTH, **named):
    gpu.begin(index, **named)
    context.init(backend)


def filled(count, value, index=0):
    return gpu.put(torch.full((count,), float(value)), index)


def filled_later(count, value, index=0):
    """Does not wait for the stream."""
    return torch.empty(count, device=gpu.device(index)).fill_(value)


def same(got, right, what):
    got = got.cpu()
    assert torch.equal(got, right), "%s: %s instead of %s" % (what, got.reshape(-1)[:8].tolist(), right.reshape(-1)[:8].tolist())


# ------------------------------------------------------------------------------------------------------ values


def programs(rank, size, count, dtype):
    """(name, program(make, asynchronous)) -> work, results; `make` puts a tensor where it is to be."""
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
    """What CUDA tensors give is what the same call gives on the CPU; on streams that change from call to call."""
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


def order(context):
    start(context)
    dist.all_reduce(filled(1, 1))  # the first one meets
    total = sum(range(1, context.size + 1))
    for asynchronous in (True, False):
        tensor = filled(1000, context.rank + 1)
        gpu.ops.hold(0)
        gpu.ops.scale_(tensor, 3.0)
        work = dist.all_reduce(tensor, async_op=asynchronous)
        if asynchronous:
            assert not work.is_completed()
            work.wait()  # the stream waits, the host does not: else it would now wait for ever
            assert not work.is_completed() and not work.is_success()
        gpu.ops.scale_(tensor, 2.0)
        gpu.ops.let_go()
        same(tensor, torch.full((1000,), 6.0 * total), "in the stream's order")
        if asynchronous:
            work.wait(SECONDS)
            assert work.is_completed() and work.is_success() and work.exception() is None


def order_of_streams(context):
    """The operation follows the stream that is current at the call; whoever waits, his own one."""
    start(context)
    dist.all_reduce(filled(1, 1))
    tensor = filled(1000, context.rank + 1)
    gpu.ops.use_stream(0, 5)
    gpu.ops.hold(0)
    gpu.ops.scale_(tensor, 10.0)
    work = dist.all_reduce(tensor, async_op=True)
    gpu.ops.use_stream(0, 6)
    work.wait()
    gpu.ops.scale_(tensor, 0.5)
    gpu.ops.let_go()
    same(tensor, torch.full((1000,), 5.0 * sum(range(1, context.size + 1))), "from stream to stream")


def timeouts(context):
    """With a timeout the host waits; and the operation goes on."""
    start(context)
    store = dist.distributed_c10d._get_default_store()
    dist.all_reduce(filled(1, 1))
    tensor = filled(10, 1)
    if context.rank == 1:
        store.get("go")
    work = dist.all_reduce(tensor, async_op=True)
    if context.rank == 0:
        try:
            work.wait(datetime.timedelta(milliseconds=30))
            raise AssertionError("waited for nobody")
        except dist.DistBackendError as error:
            assert "timed out" in str(error), error
        store.set("go", "1")
    work.wait(SECONDS)
    same(tensor, torch.full((10,), 2.0), "after a timeout")


def barriers(context):
    """What is in the current stream is done when a barrier returns."""
    start(context)
    for count in (0, 1):  # before the group has worked on the GPU, and after
        options = dist.BarrierOptions()
        options.device_ids = [0]
        let_go = []

        def later():
            let_go.append(True)
            gpu.ops.let_go()

        gpu.ops.hold(0)
        timer = threading.Timer(0.1, later)
        timer.start()
        dist.group.WORLD.barrier(options).wait()
        assert let_go
        timer.join()
        if count == 0:
            dist.all_reduce(filled(1, 1))


# --------------------------------------------------------------------------------------------------- lifetimes


def lifetimes(context):
    """Memory is nobody else's before the operation is done: the stand-in's allocator overwrites what it gets back at once.
    Rank 1 comes late, so that rank 0's operation still is to run when its tensors go."""
    start(context)
    store = dist.distributed_c10d._get_default_store()
    dist.all_reduce(filled(1, 1))
    for case in ("held by the work", "the work goes first", "with gaps, the work goes first", "waited for"):
        own = gpu.put(torch.arange(500.0) + context.rank, 0, gaps="gaps" in case)
        before, out = filled(100, 1), filled(500 * context.size, 0)
        if context.rank == 1:
            store.get("late " + case)
        recorded = gpu.ops.times_recorded()
        works = [dist.all_reduce(before, async_op=True), dist.all_gather_into_tensor(out, own, async_op=True)]
        if case == "waited for":
            works[1].wait()
        if "goes first" in case:
            del works[1]
            assert gpu.ops.times_recorded() > recorded or context.rank == 1
        del own
        if context.rank == 0:
            if case != "waited for":
                gpu.ops.synchronize(0)  # if the memory were free, it would be overwritten by now
            store.set("late " + case, "1")
        for work in works:
            work.wait()
        dist.all_reduce(filled(1, 1), async_op=True).wait()  # behind what nobody could wait for
        same(out, torch.cat([torch.arange(500.0) + rank for rank in range(context.size)]), case)
        works.clear()


def futures(context):
    start(context)
    dist.all_reduce(filled(1, 1))
    tensor = filled(100, context.rank + 1)
    gpu.ops.hold(0)
    gpu.ops.scale_(tensor, 2.0)
    work = dist.all_reduce(tensor, async_op=True)
    streams = []

    def half(future):
        streams.append(gpu.ops.current_stream(0))
        gpu.ops.scale_(future.value()[0], 0.5)
        return future.value()

    def again(future):  # as PowerSGD does
        inner = dist.all_reduce(future.value()[0], async_op=True)
        inner.get_future().wait()
        return future.value()[0]

    future = work.get_future().then(half).then(again)
    result = future.wait()
    gpu.ops.scale_(result, 10.0)
    gpu.ops.let_go()
    same(tensor, torch.full((100,), 10.0 * sum(range(1, context.size + 1)) * context.size), "after callbacks")
    assert streams[0] != 0 and gpu.ops.current_stream(0) == 0
    assert work.get_future().done() and work.get_future().value()[0] is not None


# ---------------------------------------------------------------------------------------------------- messages


def messages(context):
    start(context)
    rank, peer = context.rank, 1 - context.rank
    for count in (0, 3, 70000):
        got = filled(count, -1)
        receives = dist.irecv(got, peer)  # both ranks receive first: the sends must not wait behind that
        sends = dist.isend(filled(count, rank), peer)
        receives.wait()
        gpu.ops.scale_(got, 2.0)
        same(got, torch.full((count,), 2.0 * peer), "irecv before isend")
        sends.wait(SECONDS)
    got = filled(5, -1)
    for request in dist.batch_isend_irecv([dist.P2POp(dist.isend, filled(5, rank + 7), peer), dist.P2POp(dist.irecv, got, peer)]):
        request.wait()
    same(got, torch.full((5,), peer + 7.0), "batch_isend_irecv")
    if rank == 0:
        gpu.ops.hold(0)
        dist.isend(filled_later(5, 4), 1)
        dist.send(torch.full((5,), 5.0), 1)  # does not overtake, since it is another kind of message
        gpu.ops.let_go()
    else:
        got = filled(5, -1)
        assert dist.recv(got, None) == 0
        same(got, torch.full((5,), 4.0), "recv from any source")
        got = torch.zeros(5)
        dist.recv(got, 0)
        same(got, torch.full((5,), 5.0), "on the CPU")


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


# ---------------------------------------------------------------------------------------------------- failures


def raises(kind, words, call):
    try:
        call()
    except kind as error:
        assert words in str(error), error
        return
    raise AssertionError("nothing raised")


def wrong_arguments(context):
    """They raise on the caller, and the group stays whole."""
    start(context)
    own, host = filled(4, 1), torch.ones(4 * context.size)
    raises(ValueError, "in one place", lambda: dist.all_gather_into_tensor(host, own))
    dist.all_reduce(own)
    raises(ValueError, "cuda:0", lambda: dist.all_reduce(filled(4, 1, index=1)))
    gpu.ops.use_gpu(0)
    gpu.ops.use_stream(0, 3)
    gpu.ops.capture(0, True)
    raises(dist.DistBackendError, "captured", lambda: dist.all_reduce(own))
    gpu.ops.capture(0, False)
    dist.all_reduce(own)
    same(own, torch.full((4,), float(context.size**2)), "after errors")


def deaths(context):
    start(context)
    dist.all_reduce(filled(1, 1))
    dist.barrier()
    if context.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    tensor = filled(10, 1)
    work = dist.all_reduce(tensor, async_op=True)
    try:
        work.wait()  # does not hang, and hardly knows yet
    except dist.DistBackendError:
        pass
    raises(dist.DistBackendError, "rank 1", lambda: work.wait(SECONDS))
    assert work.is_completed() and not work.is_success() and work.exception() is not None
    tensor.cpu()  # the streams go on
    raises(dist.DistBackendError, "rank 1", lambda: dist.all_reduce(tensor))
    raises(dist.DistBackendError, "rank 1", work.wait)


def unheard(context):
    """Who asks for no work, and waits for none, reads of it in the log."""
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
    assert "is not in its buffers" in said and "rank 1" in said or not hasattr(dist.AllreduceOptions(), "asyncOp"), said


def ends(context):
    """A group that is aborted lets streams go on; works that are under way when it goes are no trouble."""
    start(context)
    dist.all_reduce(filled(1, 1))
    tensor = filled(10, 1)
    if context.rank == 0:
        work = dist.all_reduce(tensor, async_op=True)
        dist.group.WORLD._get_backend(torch.device("cuda")).abort("enough")
        raises(dist.DistBackendError, "enough", lambda: work.wait(SECONDS))
        tensor.cpu()
    dist.destroy_process_group()


def end(context, body, *arguments):
    """A group is ended, which waits for what is in streams and for sends that nobody has kept: who just exits has died for
    those who still need him."""
    body(context, *arguments)
    if dist.is_initialized():
        dist.destroy_process_group()


def run(body, *arguments):
    ranks.run(2, end, body, *arguments, init=False)


class Cuda(unittest.TestCase):
    def test_values_with_two_ranks_on_one_gpu(self):
        run(sweep, lambda rank: 0)

    def test_values_with_a_gpu_each_through_the_host(self):
        run(sweep, lambda rank: rank)

    @unittest.skipIf(NCCL is None, "TUTTI_NCCL_LIBRARY does not name the stand-in for NCCL")
    def test_values_with_a_gpu_each_by_nccl(self):
        run(sweep, lambda rank: rank, NCCL)

    def test_order_is_that_of_the_stream(self):
        run(order)

    def test_streams_follow_each_other(self):
        run(order_of_streams)

    def test_wait_with_a_timeout(self):
        run(timeouts)

    def test_barrier_waits_for_the_gpu(self):
        run(barriers)

    def test_memory_lives_long_enough(self):
        run(lifetimes)

    def test_futures_have_streams(self):
        run(futures)

    def test_messages(self):
        run(messages)

    def test_objects_travel_in_cuda_tensors(self):
        run(objects)

    def test_groups_of_all_kinds(self):
        run(other_groups)

    def test_wrong_arguments(self):
        run(wrong_arguments)

    def test_a_dead_rank(self):
        ranks.run(2, deaths, init=False, victims=(1,))

    def test_a_dead_rank_that_nobody_asks_for(self):
        ranks.run(2, unheard, init=False, victims=(1,))

    def test_the_end_of_a_group(self):
        run(ends)


if __name__ == "__main__":
    unittest.main()
