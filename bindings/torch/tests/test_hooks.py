"""The group's completion hook, which is called for every ended operation, and the durations of operations."""
import inspect
import os
import subprocess
import sys
import tempfile
import threading
import time
import unittest

import torch
import torch.distributed as dist

from support import ranks
from test_groups import summed


# Old versions of PyTorch (2.4 is one) do so for NCCL only.
WAITS_FOR_HOOKS = "nccl" not in inspect.getsource(dist.destroy_process_group).split("_has_hooks")[0].rsplit("if ", maxsplit=1)[-1]


def hooked(group=None):
    """The calls of a group's hook: (type, sequence, seconds, thread)."""
    heard = []

    def hook(work):
        heard.append((work.op_type, work.seq, work.active_duration.total_seconds(), threading.get_ident()))

    (group or dist.group.WORLD)._register_on_completion_hook(hook)
    return heard


def every_kind(context):
    """Blocking, with a work, with a dropped work, coalesced, of several steps: each is reported once."""
    group = dist.new_group()
    heard = hooked(group)
    dist.all_reduce(torch.ones(3), group=group)
    dist.broadcast(torch.ones(3), 0, group, async_op=True).wait()
    dist.all_gather([torch.ones(3) for _ in range(context.size)], torch.ones(3), group, async_op=True)
    with dist._coalescing_manager(group, async_ops=True) as together:
        for _ in range(3):
            dist.all_reduce(torch.ones(3), group=group)
    together.wait()
    group.allreduce([torch.sparse_coo_tensor(torch.tensor([[0]]), torch.ones(1), (4,))]).wait()
    dist.barrier(group)
    if context.rank == 0:
        dist.isend(torch.ones(2), 1, group).wait()
    elif context.rank == 1:
        dist.recv(torch.ones(2), 0, group)
    group._wait_for_pending_works()
    return [one[:3] for one in heard]


def told_before_the_group_ends(context):
    """destroy_process_group waits until the hook has been called for every operation."""
    group = dist.new_group()
    heard = []
    group._register_on_completion_hook(lambda work: (time.sleep(0.01), heard.append(work.seq)))
    for _ in range(20):
        dist.all_reduce(torch.ones(3), group=group, async_op=True)
    if not WAITS_FOR_HOOKS:
        group._wait_for_pending_works()
    dist.destroy_process_group(group)
    assert summed() == context.size
    return sorted(heard)


def once(context):
    """A second hook is refused; groups have hooks of their own."""
    first, other = hooked(), hooked(dist.new_group())
    try:
        hooked()
    except RuntimeError as error:
        summed()
        dist.group.WORLD._wait_for_pending_works()
        return str(error), len(first), len(other)
    return "a second hook was taken", 0, 0


def may_communicate(context):
    """A hook that uses another group."""
    group, aside = dist.new_group(), dist.new_group()
    sums = []
    group._register_on_completion_hook(lambda work: sums.append(summed(aside)))
    for asynchronous in (False, True) * 5:
        work = dist.all_reduce(torch.ones(3), group=group, async_op=asynchronous)
        if work is not None:
            work.wait()
        group._wait_for_pending_works()  # so that all ranks use the other group in one order
    return sums


def of_a_failure(context):
    """The end of the peer ends the operation, too: the hook is called, and the group can be destroyed."""
    heard = hooked()
    summed()
    if context.rank == 1:
        os._exit(0)
    work = dist.all_reduce(torch.ones(1 << 16), async_op=True)
    try:
        work.wait()
        return "nothing raised", heard
    except RuntimeError as error:
        text = str(error)
    began = time.monotonic()
    dist.group.WORLD._wait_for_pending_works()
    dist.destroy_process_group()
    assert time.monotonic() - began < 2
    return text, len(heard)


def that_raises(context, asynchronous):
    """No caller could catch it: it breaks the group, whose error has the reason."""
    group = dist.new_group()

    def hook(work):
        raise ValueError("from the hook")

    group._register_on_completion_hook(hook)
    try:
        for _ in range(100):
            work = dist.all_reduce(torch.ones(3), group=group, async_op=asynchronous)
            if work is not None:
                work.wait()
            group._wait_for_pending_works()
    except RuntimeError as error:
        text = str(error)
    assert summed() == context.size  # another group
    return text


def dropped_group(context):
    """A dropped group whose operation never ends: it is destroyed even with a hook."""
    group = dist.new_group()
    hooked(group)
    summed(group)
    if context.rank == 0:
        dist.all_reduce(torch.ones(9), group=group, async_op=True)
        group._get_backend(torch.device("cpu")).abort()
    dist.destroy_process_group(group)
    return summed()


def durations(context):
    group = dist.new_group()
    work = dist.all_reduce(torch.ones(1), group=group, async_op=True)
    work.wait()
    try:
        work._get_duration()
    except RuntimeError as error:
        assert "_enable_collectives_timing" in str(error), error
    else:
        raise AssertionError("a duration that was not requested")
    group._enable_collectives_timing()
    took = []
    for _ in range(3):
        work = dist.all_reduce(torch.ones(1 << 18), group=group, async_op=True)
        work.wait()
        took.append(work._get_duration())
    return took


EXIT = """
import sys, torch, torch.distributed as dist
dist.init_process_group(sys.argv[3], store=dist.FileStore(sys.argv[2], 2), rank=int(sys.argv[1]), world_size=2)
dist.group.WORLD._register_on_completion_hook(lambda work: print("heard", flush=True))
dist.all_reduce(torch.ones(3))
dist.group.WORLD._wait_for_pending_works()
dist.all_reduce(torch.ones(3), async_op=True)
"""


@unittest.skipUnless(ranks.IS_TUTTI, "gloo has no completion hooks")
class Hooks(unittest.TestCase):
    def test_every_operation_is_reported_once_with_its_type_and_number(self):
        expected = ["ALLREDUCE", "BROADCAST", "ALLGATHER", "ALLREDUCE_COALESCED", "_ALLREDUCE_SPARSE", "BARRIER"]
        for rank, heard in enumerate(ranks.run(3, every_kind)):
            kinds = expected + (["SEND"], ["RECV"], [])[rank]
            by_number = sorted(heard, key=lambda one: one[1])
            self.assertEqual([str(kind).rsplit(".", maxsplit=1)[-1] for kind, _, _ in by_number], kinds)
            self.assertEqual([number for _, number, _ in by_number], list(range(1, len(kinds) + 1)))
            for _, _, seconds in heard:
                self.assertGreater(seconds, 0)
                self.assertLess(seconds, 30)

    def test_the_end_of_a_group_waits_for_its_hook(self):
        self.assertEqual(ranks.run(2, told_before_the_group_ends), [list(range(1, 21))] * 2)

    def test_a_group_has_one_hook(self):
        for text, first, other in ranks.run(2, once):
            self.assertIn("already has a completion hook", text)
            self.assertEqual((first, other), (1, 0))

    def test_a_hook_may_use_other_groups(self):
        self.assertEqual(ranks.run(2, may_communicate), [[2.0] * 10] * 2)

    def test_failed_operations_are_reported_too(self):
        text, heard = ranks.run(2, of_a_failure, victims=(1,))[0]
        self.assertIn("1", text)
        self.assertEqual(heard, 2)

    def test_an_exception_of_a_hook_breaks_its_group(self):
        for asynchronous in (False, True):
            with self.subTest(asynchronous=asynchronous):
                for text in ranks.run(2, that_raises, asynchronous):
                    self.assertIn("hook", text)

    def test_a_group_with_a_hook_can_be_aborted_and_destroyed(self):
        self.assertEqual(ranks.run(2, dropped_group), [2.0, 2.0])

    def test_works_report_their_durations(self):
        for took in ranks.run(2, durations):
            for milliseconds in took:
                self.assertGreater(milliseconds, 0)
                self.assertLess(milliseconds, 30000)

    def test_the_process_can_end_with_a_hook(self):
        with tempfile.TemporaryDirectory() as folder:
            programs = [subprocess.Popen([sys.executable, "-c", ranks.IMPORT + EXIT, str(rank), os.path.join(folder, "store"), ranks.BACKEND],
                                         stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for rank in range(2)]
            for program in programs:
                said, errors = program.communicate(timeout=40)
                self.assertEqual(program.returncode, 0, errors)
                self.assertIn("heard", said)


if __name__ == "__main__":
    unittest.main()
