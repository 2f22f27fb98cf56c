"""Asynchronous operations: works, futures, callbacks, threads, many in flight."""
import datetime
import os
import threading
import time
import unittest

import torch
import torch.distributed as dist

from support import ranks
from test_groups import memory_kib

if ranks.IS_TUTTI:
    import torch_tutti


def async_operations(context):
    """All at once; each has its own result."""
    size, rank = context.size, context.rank
    total = float(size * (size + 1) // 2)
    ones = torch.full((100,), float(rank + 1))
    reduced, scattered = ones.clone(), torch.empty(100)
    gathered = [torch.empty(100) for _ in range(size)]
    into, exchanged = torch.empty(size * 100), torch.empty(size)
    from_last = ones.clone()
    works = [
        dist.all_reduce(reduced, async_op=True), dist.all_gather(gathered, ones, async_op=True),
        dist.all_gather_into_tensor(into, ones, async_op=True), dist.reduce_scatter(scattered, [ones] * size, async_op=True),
        dist.all_to_all_single(exchanged, torch.full((size,), float(rank)), async_op=True),
        dist.broadcast(from_last, size - 1, async_op=True), dist.barrier(async_op=True),
    ]
    for work in reversed(works):
        assert work.wait()
        assert work.is_completed() and work.is_success()
    assert reduced.eq(total).all() and scattered.eq(total).all() and from_last.eq(size).all()
    for peer in range(size):
        assert gathered[peer].eq(peer + 1).all() and into[peer * 100].item() == peer + 1 and exchanged[peer].item() == peer
    return True


def waited_for(context, recorder):
    """Calls that wait return no work where PyTorch accepts that, except to the profiler and to the flight recorder, which
    PyTorch attaches to each group from 2.15 on. Results are the same."""
    os.environ["TORCH_FR_BUFFER_SIZE"] = "2000" if recorder else "0"
    context.init()
    group, options = dist.group.WORLD, dist.AllreduceOptions()
    accepts = hasattr(options, "asyncOp")
    works = not accepts or not ranks.IS_TUTTI or recorder and ranks.HAVE_RECORDER
    if accepts:
        options.asyncOp = False
    parts = torch.ones(8, 2).t()[0]  # not contiguous: its sum is copied back
    one = group.allreduce([parts], options)
    assert (one is not None) == works and parts.eq(context.size).all()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        two = group.allreduce([parts], options)
    assert two is not None and two.wait() and two.is_success() and parts.eq(context.size**2).all()
    options = dist.AllreduceCoalescedOptions()
    if accepts:
        options.asyncOp = False
    several = [torch.ones(3), torch.ones(5)]
    three = group.allreduce_coalesced(several, options)
    assert (three is not None) == works and all(tensor.eq(context.size).all() for tensor in several)
    return True


def polled(context):
    tensor = torch.ones(1 << 16)
    work = dist.all_reduce(tensor, async_op=True)
    deadline = time.monotonic() + 20
    while not work.is_completed():
        assert time.monotonic() < deadline
        time.sleep(0.001)
    work.wait()
    assert tensor.eq(context.size).all()
    return True


def dropped(context):
    """Dropped works: their tensors are kept until the operation has ended."""
    for turn in range(200):
        dist.all_reduce(torch.full((1000,), float(turn)), async_op=True)
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    assert tensor.item() == context.size
    return True


def group_dropped(context, kept):
    """Rank 1 is late: rank 0's group is destroyed by then, and its operation ends as if it existed. Its work is
    waited for, or dropped."""
    make = torch_tutti._C.create_backend_plain if ranks.IS_TUTTI else dist.ProcessGroupGloo
    group = make(context.store("own"), context.rank, context.size, timeout=datetime.timedelta(seconds=20))
    group.allreduce([torch.ones(1)]).wait()  # connected
    tensor = torch.full((1 << 16,), float(context.rank + 1))
    if context.rank == 1:
        time.sleep(1)
    work = group.allreduce([tensor])
    if context.rank == 0:
        if not kept:
            work = None
        del group
        assert not ranks.IS_TUTTI or work is None or not work.is_completed()  # Gloo's end waits
    if work is None:
        until = time.monotonic() + 10
        while tensor[-1].item() != 3 and time.monotonic() < until:
            time.sleep(0.01)
    else:
        work.wait()
    assert tensor.eq(3).all(), tensor
    return True


def futures(context):
    tensor = torch.ones(10)
    future = dist.all_reduce(tensor, async_op=True).get_future()
    doubled = future.then(lambda done: done.value()[0] * 2)
    assert doubled.wait().eq(2 * context.size).all()
    assert future.done()
    gathered = [torch.empty(2) for _ in range(context.size)]
    value = dist.all_gather(gathered, torch.full((2,), float(context.rank)), async_op=True).get_future().wait()
    assert [one.tolist() for one in gathered] == [[float(peer)] * 2 for peer in range(context.size)]
    flat = value[0] if isinstance(value[0], list) else value
    assert [one.tolist() for one in flat] == [one.tolist() for one in gathered]
    seen = []
    late = dist.all_reduce(torch.ones(3), async_op=True).get_future()
    late.wait()
    late.add_done_callback(lambda done: seen.append(done.value()[0][0].item()))
    assert seen == [context.size]
    return True


def future_of_error(context):
    """The future of a callback raises the callback's exception."""
    def wrong(_):
        raise ValueError("from a callback")

    future = dist.all_reduce(torch.ones(1), async_op=True).get_future().then(wrong)
    try:
        future.wait()
    except Exception as error:  # pylint: disable=broad-except
        assert "from a callback" in str(error), error
        return True
    return False


def nested(context):
    """A callback that waits for another operation, like PowerSGD's."""
    def callback(done):
        again = done.value()[0].clone()
        dist.all_reduce(again, async_op=True).wait()
        more = again.clone()
        dist.all_reduce(more)
        return more

    for _ in range(20):
        out = dist.all_reduce(torch.ones(100), async_op=True).get_future().then(callback).wait()
        assert out.eq(context.size**3).all()
    return True


def nested_many(context):
    """A waiting callback for each bucket, all in flight at once."""
    def callback(done):
        again = done.value()[0].clone()
        dist.all_reduce(again, async_op=True).wait()
        return again

    # Callbacks run in any order, so all of them send the same; and none before all of the first operations are in
    # progress.
    started = [dist.all_reduce(torch.ones(64), async_op=True).get_future() for _ in range(16)]
    chained = [future.then(callback) for future in started]
    for future in chained:
        assert future.wait().eq(context.size**2).all()
    return True


def from_threads(context):
    """Concurrent threads with their own groups."""
    groups = [dist.new_group() for _ in range(4)]
    wrong = []

    def work(number):
        for turn in range(200):
            tensor = torch.full((17,), float(number + turn))
            dist.all_reduce(tensor, group=groups[number])
            if not tensor.eq((number + turn) * context.size).all():
                wrong.append((number, turn, tensor[0].item()))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(groups))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong, wrong[:3]
    return True


def on_one_group(context):
    """Threads on one group: operations meet in the order in which they start, so all of them are alike."""
    wrong = []

    def work():
        for _ in range(200):
            tensor = torch.ones(9)
            dist.all_reduce(tensor)
            if not tensor.eq(context.size).all():
                wrong.append(tensor[0].item())

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong, wrong[:3]
    return True


def waited_by_many(context):
    tensor = torch.ones(1 << 20)
    work = dist.all_reduce(tensor, async_op=True)
    seen = []
    threads = [threading.Thread(target=lambda: seen.append(work.wait())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [True] * 4 and tensor.eq(context.size).all()
    return True


def waves(context, total, wave):
    """Small operations in flight, wave after wave: memory stays flat."""
    tensors = [torch.ones(2) for _ in range(wave)]
    before = 0
    for turn in range(total // wave):
        for tensor in tensors:
            tensor.fill_(1)
        works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
        for work in works:
            work.wait()
        assert all(tensor[1].item() == context.size for tensor in tensors[:: wave // 10])
        if turn == total // wave // 4:
            before = memory_kib()
    return memory_kib() - before


def wait_with_limit(context):
    """A rank that is late: wait(timeout) raises within its limit."""
    group = dist.new_group()
    if context.rank == 0:
        began = time.monotonic()
        work = dist.all_reduce(torch.ones(1), group=group, async_op=True)
        try:
            work.wait(datetime.timedelta(seconds=0.5))
        except RuntimeError as error:
            return time.monotonic() - began, str(error)
        return None
    time.sleep(2)
    return None


class Async(unittest.TestCase):
    def test_all_operations_in_flight_at_once(self):
        ranks.run(2, async_operations)
        ranks.run(4, async_operations)

    @unittest.skipUnless(ranks.IS_TUTTI or os.environ.get("TUTTI_AS_GLOO") == "1", "gloo's works end later")
    def test_calls_that_wait(self):
        for recorder in (False, True):
            with self.subTest(recorder=recorder):
                self.assertEqual(ranks.run(2, waited_for, recorder, init=False), [True, True])

    def test_a_work_can_be_polled(self):
        ranks.run(2, polled)

    def test_works_can_be_dropped(self):
        ranks.run(2, dropped)

    def test_a_group_can_be_dropped_while_its_operation_runs(self):
        for kept in (True, False):
            with self.subTest(kept=kept):
                ranks.run(2, group_dropped, kept)

    def test_futures_give_results(self):
        ranks.run(2, futures)

    def test_an_exception_of_a_callback_is_kept(self):
        self.assertEqual(ranks.run(2, future_of_error), [True, True])

    @unittest.skipUnless(ranks.IS_TUTTI, "gloo hangs: its callbacks run on the thread that would have to make progress")
    def test_a_callback_may_wait_for_another_operation(self):
        ranks.run(2, nested)
        ranks.run(2, nested_many)

    def test_threads_have_groups_of_their_own(self):
        ranks.run(2, from_threads)

    def test_threads_share_a_group(self):
        ranks.run(2, on_one_group)

    def test_many_threads_wait_for_one_operation(self):
        ranks.run(2, waited_by_many)

    def test_memory_is_flat_over_a_hundred_thousand_operations(self):
        total = 100000 if ranks.IS_TUTTI else 10000
        for grown in ranks.run(2, waves, total, 1000, timeout=100):
            self.assertLess(grown, 4 << 10, "KiB")

    def test_a_wait_with_a_limit_ends(self):
        took, text = ranks.run(2, wait_with_limit)[0]
        self.assertLess(took, 1.9)
        self.assertRegex(text, "(?i)time")


if __name__ == "__main__":
    unittest.main()
