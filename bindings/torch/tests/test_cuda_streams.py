"""CUDA tensors, on a stand-in (support/gpu.py): order in streams, lifetimes, futures, messages.

Order is shown by holding a stream, never by time: later work must wait for the held stream, and the host must not.
"""
import datetime
import os
import threading
import unittest

import torch
import torch.distributed as dist

from support import gpu
from support.cuda_ranks import SECONDS, filled, filled_later, load, run, same, start


def setUpModule():
    load()


def order(context):
    start(context)
    dist.all_reduce(filled(1, 1))  # the first operation connects
    total = sum(range(1, context.size + 1))
    for asynchronous in (True, False):
        tensor = filled(1000, context.rank + 1)
        gpu.ops.hold(0)
        gpu.ops.scale_(tensor, 3.0)
        work = dist.all_reduce(tensor, async_op=asynchronous)
        if asynchronous:
            assert not work.is_completed()
            work.wait()  # the stream waits, the host does not: else it would now wait forever
            assert not work.is_completed() and not work.is_success()
        gpu.ops.scale_(tensor, 2.0)
        gpu.ops.let_go()
        same(tensor, torch.full((1000,), 6.0 * total), "in the stream's order")
        if asynchronous:
            work.wait(SECONDS)
            assert work.is_completed() and work.is_success() and work.exception() is None


def order_of_streams(context):
    """The operation is ordered after the stream that is current at the call; a wait affects the waiting thread's
    current stream."""
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
    """With a timeout the host waits, and the operation continues."""
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
            raise AssertionError("did not wait")
        except dist.DistBackendError as error:
            assert "timed out" in str(error), error
        store.set("go", "1")
    work.wait(SECONDS)
    same(tensor, torch.full((10,), 2.0), "after a timeout")


def barriers(context):
    """The work in the current stream is done when a barrier returns."""
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
    """Memory is not reused before the operation is done: the stand-in's allocator overwrites freed memory at once.
    Rank 1 is late, so that rank 0's operation has not run when its tensors are dropped."""
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
        dist.all_reduce(filled(1, 1), async_op=True).wait()  # after an operation whose work was dropped
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

    def again(future):  # like PowerSGD
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


def futures_draw_no_streams(context):
    """There are few hardware queues, so a future whose operation is the last one in its stream uses no other stream."""
    start(context)
    dist.all_reduce(filled(1, 1), async_op=True).wait()
    tensor, drawn = filled(10, 1), gpu.ops.times_drawn()
    for _ in range(5):
        dist.all_reduce(tensor, async_op=True).get_future().wait()
    assert gpu.ops.times_drawn() == drawn
    same(tensor, torch.full((10,), float(context.size**5)), "by futures")


def futures_wait_for_their_own(context):
    """The future of a receive is requested when another receive is enqueued after it, whose message depends on that
    future."""
    start(context)
    dist.all_reduce(filled(1, 1))
    if context.rank == 0:
        first, second = filled(10, -1), filled(10, -1)
        receives = [dist.irecv(first, 1), dist.irecv(second, 1)]
        receives[0].get_future().wait()
        gpu.ops.scale_(first, 3.0)
        dist.isend(first, 1)
        receives[1].get_future().wait()
        same(second, torch.full((10,), 18.0), "the second receive")
    else:
        dist.send(filled(10, 3), 0)
        got = filled(10, -1)
        dist.recv(got, 0)
        gpu.ops.scale_(got, 2.0)
        dist.send(got, 0)


# ---------------------------------------------------------------------------------------------------- messages


def messages(context):
    start(context)
    rank, peer = context.rank, 1 - context.rank
    for count in (0, 3, 70000):
        got = filled(count, -1)
        receives = dist.irecv(got, peer)  # both ranks receive first: the sends must not wait for that
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
        dist.send(torch.full((5,), 5.0), 1)  # does not overtake, because it is another kind of message
        gpu.ops.let_go()
    else:
        got = filled(5, -1)
        assert dist.recv(got, None) == 0
        same(got, torch.full((5,), 4.0), "recv from any source")
        got = torch.zeros(5)
        dist.recv(got, 0)
        same(got, torch.full((5,), 5.0), "on the CPU")


def few_queues(context, said, warns):
    """One warning, when a receive first waits for another rank."""
    if said is not None:
        os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] = said
    start(context)
    peer = 1 - context.rank

    def warnings():
        with open(os.path.join(context.folder, "rank%d.log" % context.rank), encoding="utf-8") as log:
            return log.read().count("CUDA_DEVICE_MAX_CONNECTIONS is")

    dist.all_reduce(filled(1, 1), async_op=True).wait()
    assert warnings() == 0
    for _ in range(2):
        got = filled(1, 0)
        receive = dist.irecv(got, peer)
        dist.isend(filled(1, 5), peer)
        receive.wait()
        got.cpu()
    assert warnings() == int(warns), (said, warnings())


class CudaStreams(unittest.TestCase):
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

    def test_futures_draw_no_streams(self):
        run(futures_draw_no_streams)

    def test_futures_wait_for_their_own_operation_only(self):
        run(futures_wait_for_their_own)

    def test_messages(self):
        run(messages)

    def test_too_few_queues_cause_a_warning(self):
        for said, warns in ((None, False), ("32", False), ("8", False), ("1", True)):
            run(few_queues, said, warns)


if __name__ == "__main__":
    unittest.main()
