"""CUDA graphs around operations on CUDA tensors, on a stand-in (support/gpu.py): Tutti must not make calls that a
capture forbids.

While a stream is being captured, CUDA lets threads make no potentially unsafe calls, such as queries of events: in
the global mode, which is torch.cuda.graph's, no thread of the process; in the thread-local mode not the thread that
captures. Such a call invalidates the capture, and only the capture's end reports it. The stand-in does the same.
"""
import contextlib
import threading
import time
import unittest

import torch
import torch.distributed as dist

from support import gpu
from support.cuda_ranks import filled, filled_later, load, raises, run, same, start

GLOBAL, THREAD_LOCAL, RELAXED = range(3)
STREAM = 3  # the default stream cannot be captured
COUNT = 1000


def setUpModule():
    load()


class Capture:
    """Captures the stream STREAM, which is current inside."""

    def __init__(self, mode):
        self.mode, self.graph = mode, None

    def __enter__(self):
        self.before = gpu.ops.use_stream(0, STREAM)
        gpu.ops.graph_begin(0, self.mode)
        return self

    def __exit__(self, kind, *_):
        try:
            with contextlib.suppress(RuntimeError) if kind is not None else contextlib.nullcontext():
                self.graph = gpu.ops.graph_end(0)
        finally:
            gpu.ops.use_stream(0, self.before)

    def replay(self):
        gpu.ops.use_stream(0, STREAM)
        gpu.ops.graph_replay(0, self.graph)
        gpu.ops.synchronize(0)
        gpu.ops.use_stream(0, self.before)


def begin(context):
    start(context)
    dist.all_reduce(filled(1, 1))  # the first operation cannot be captured
    dist.all_reduce(filled(1, 1), async_op=True).wait()
    gpu.ops.synchronize(0)


def fresh(context):
    """The result is present when another stream needs it."""
    tensor = filled(COUNT, context.rank + 1)
    gpu.ops.synchronize(0)
    return tensor


def check_replays(context, capture, tensor, what):
    """Each replay doubles the values, and sums over the ranks; the capture itself changes nothing."""
    expected = context.rank + 1.0
    same(tensor, torch.full((COUNT,), expected), what + ", captured")
    expected = context.size * (context.size + 1.0)
    for number in range(4):
        capture.replay()
        same(tensor, torch.full((COUNT,), expected), "%s, replay %d" % (what, number))
        expected *= 2 * context.size
    dist.all_reduce(tensor)  # the group has other operations, too
    same(tensor, torch.full((COUNT,), expected / 2), what + ", by hand")


# ------------------------------------------------------------------------------------------------------- ways


def group_of_gpu():
    return dist.group.WORLD._get_backend(gpu.device(0))


def drop_at_once(tensor):
    dist.all_reduce(tensor)


def drop_a_work(tensor):
    options = dist.AllreduceOptions()
    if hasattr(options, "asyncOp"):
        options.asyncOp = False
    work = group_of_gpu().allreduce([tensor], options)
    assert work.is_completed()  # none of its work is in progress


def wait_for_a_work(tensor):
    work = dist.all_reduce(tensor, async_op=True)
    assert work.is_completed()
    work.wait()
    assert work.is_completed()


def wait_for_a_future(tensor):
    dist.all_reduce(tensor, async_op=True).get_future().wait()


def wait_for_an_earlier_future(tensor):
    other = torch.empty_like(tensor)
    works = [dist.all_reduce(tensor, async_op=True), dist.all_reduce(other, async_op=True)]
    for work in works:
        work.get_future().wait()


def wait_for_what_follows(tensor):
    """Like DDP's hooks."""

    def twice_and_half(future):
        gpu.ops.scale_(future.value()[0], 2.0)
        gpu.ops.scale_(future.value()[0], 0.5)
        return future.value()

    dist.all_reduce(tensor, async_op=True).get_future().then(twice_and_half).wait()


def together(tensor):
    with dist._coalescing_manager(async_ops=True) as manager:
        dist.all_reduce(tensor)
    manager.wait()


def with_gaps(tensor):
    """The tensor is copied before the operation, and copied back after it."""
    wide = torch.empty_strided((COUNT,), (2,), device=tensor.device)
    wide.copy_(tensor)
    dist.all_reduce(wide, async_op=True).wait()
    tensor.copy_(wide)


WAYS = (drop_at_once, drop_a_work, wait_for_a_work, wait_for_a_future, wait_for_an_earlier_future, wait_for_what_follows, together,
        with_gaps)


def captured(context, mode):
    begin(context)
    for way in WAYS:
        tensor = fresh(context)
        with Capture(mode) as capture:
            gpu.ops.scale_(tensor, 2.0)
            way(tensor)
        check_replays(context, capture, tensor, way.__name__)


def gathered(context, mode):
    begin(context)
    own, whole = fresh(context), filled(COUNT * context.size, 0)
    part = filled(COUNT, 0)
    gpu.ops.synchronize(0)
    with Capture(mode) as capture:
        dist.all_gather_into_tensor(whole, own)
        dist.reduce_scatter_tensor(part, whole)
        gpu.ops.scale_(own, 2.0)
    for factor in (1.0, 2.0, 4.0):
        capture.replay()
        right = torch.cat([torch.full((COUNT,), factor * (rank + 1)) for rank in range(context.size)])
        same(whole, right, "all_gather_into_tensor")
        same(part, torch.full((COUNT,), factor * (context.rank + 1) * context.size), "reduce_scatter_tensor")


# ---------------------------------------------------------------------------------------- from before the capture


def under_way():
    """Works of all kinds that do not end before the stream is released, and their expected results."""
    gpu.ops.use_stream(0, 5)
    gpu.ops.hold(0)
    plain, apart, whole = filled_later(COUNT, 1), torch.empty_strided((COUNT,), (2,), device=gpu.device(0)), filled_later(2 * COUNT, 0)
    apart.fill_(2.0)
    works = {"plain": dist.all_reduce(plain, async_op=True), "with gaps": dist.all_reduce(apart, async_op=True),
             "input dropped": dist.all_gather_into_tensor(whole, filled_later(COUNT, 3), async_op=True)}
    gpu.ops.use_stream(0, 0)
    return works, {"plain": (plain, 2.0), "with gaps": (apart, 4.0), "input dropped": (whole, 3.0)}


def let_go_and_check(results):
    gpu.ops.let_go()
    dist.all_reduce(filled(1, 1), async_op=True).wait()  # after all
    for name, (tensor, value) in results.items():
        same(tensor.contiguous(), torch.full((tensor.numel(),), value), name)


def dropped_during(context, mode):
    begin(context)
    for ended in (False, True):
        works, results = under_way()
        tensor = fresh(context)
        if ended:
            let_go_and_check(results)
        recorded = gpu.ops.times_recorded()
        with Capture(mode) as capture:
            gpu.ops.scale_(tensor, 2.0)
            dist.all_reduce(tensor)
            works.clear()
        assert gpu.ops.times_recorded() > recorded or ended
        if not ended:
            let_go_and_check(results)
        check_replays(context, capture, tensor, "ended before" if ended else "under way")


def polled_during(context, mode):
    begin(context)
    works, results = under_way()
    tensor = fresh(context)
    stop, polls, failed = threading.Event(), [0], []

    def poll():
        try:
            while not stop.is_set():
                for work in list(works.values()):
                    work.is_completed()
                polls[0] += 1
                time.sleep(0.0005)
        except BaseException as error:  # pylint: disable=broad-except
            failed.append(error)

    def await_polls():
        enough = polls[0] + 3
        while polls[0] < enough and not failed:
            time.sleep(0.001)
        assert not failed, failed

    thread = threading.Thread(target=poll)
    thread.start()
    try:
        await_polls()
        with Capture(mode) as capture:
            gpu.ops.scale_(tensor, 2.0)
            works["captured"] = dist.all_reduce(tensor, async_op=True)
            works["captured"].wait()
            await_polls()
            gpu.ops.let_go()
            end = time.monotonic() + 20
            while not all(work.is_completed() for work in works.values()):  # by this thread as well
                assert time.monotonic() < end, {name: work.is_completed() for name, work in works.items()}
                time.sleep(0.001)
            await_polls()
    finally:
        stop.set()
        thread.join()
    let_go_and_check(results)
    check_replays(context, capture, tensor, "polled")


# ------------------------------------------------------------------------------------------------------ waiting


def waits_of_the_host(context):
    begin(context)
    tensor = fresh(context)
    other = dist.new_group(backend="tutti")
    dist.all_reduce(filled(1, 1), group=other)
    with Capture(GLOBAL):
        gpu.ops.scale_(tensor, 2.0)
        raises(dist.DistBackendError, "cannot be captured", dist.barrier)
        dist.all_reduce(filled_later(1, 1), group=other, async_op=True).wait()
        dist.destroy_process_group(other)  # waits for its streams, which are captured
        dist.all_reduce(tensor)
    dist.barrier()
    same(tensor, torch.full((COUNT,), context.rank + 1.0), "not replayed")


def refusals_of_the_standin(context):
    """These are CUDA's rules. Without them, the tests above would show nothing."""
    begin(context)
    event = torch.Event(gpu.device(0))
    event.record()
    gpu.ops.synchronize(0)

    def ask(asked=event):
        try:
            asked.query()
            return False
        except RuntimeError:
            return True

    def ask_elsewhere():
        refused = []
        thread = threading.Thread(target=lambda: refused.append(ask()))
        thread.start()
        thread.join()
        return refused[0]

    for mode, here, elsewhere in ((GLOBAL, True, True), (THREAD_LOCAL, True, False), (RELAXED, False, False)):
        for asks, refused in ((ask, here), (ask_elsewhere, elsewhere)):
            def body(asks=asks, refused=refused, mode=mode):
                with Capture(mode):
                    assert asks() == refused, (mode, asks.__name__)
            if refused:
                raises(RuntimeError, "cudaErrorStreamCaptureInvalidated", body)
            else:
                body()
    inside = torch.Event(gpu.device(0))

    def ask_for_what_is_captured():
        with Capture(RELAXED):
            inside.record()
            assert ask(inside)

    raises(RuntimeError, "cudaErrorStreamCaptureInvalidated", ask_for_what_is_captured)
    assert ask(inside) and not ask()


class CudaGraphs(unittest.TestCase):
    def test_operations_are_captured_in_the_global_mode(self):
        run(captured, GLOBAL)

    def test_operations_are_captured_in_the_thread_local_mode(self):
        run(captured, THREAD_LOCAL)

    def test_gathers_are_captured(self):
        run(gathered, GLOBAL)

    def test_earlier_works_are_dropped_during_a_capture(self):
        for mode in (GLOBAL, THREAD_LOCAL):
            run(dropped_during, mode)

    def test_works_are_polled_during_a_capture(self):
        for mode in (GLOBAL, THREAD_LOCAL):
            run(polled_during, mode)

    def test_waits_on_the_host_do_not_disturb_a_capture(self):
        run(waits_of_the_host)

    @unittest.skipUnless(hasattr(torch, "Event"), "this PyTorch has no torch.Event")
    def test_the_standin_refuses_what_cuda_refuses(self):
        run(refusals_of_the_standin)


if __name__ == "__main__":
    unittest.main()
