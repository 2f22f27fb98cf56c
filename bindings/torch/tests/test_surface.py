"""Methods of groups, backends and works that torch.distributed's functions do not reach: both spellings, timeouts per
call, the state of errors, and types of exceptions."""
import datetime
import os
import pickle
import threading
import time
import unittest

import torch
import torch.distributed as dist

from support import ranks
from test_groups import summed

# Old and new names of the same methods; which of them exist depends on PyTorch's version.
SPELLINGS = {
    "gather one": ("_allgather_base", "all_gather_single"),
    "scatter one": ("_reduce_scatter_base", "reduce_scatter_single"),
    "exchange one": ("alltoall_base", "all_to_all_single"),
    "gather many": ("allgather_into_tensor_coalesced", "all_gather_single_coalesced"),
    "scatter many": ("reduce_scatter_tensor_coalesced", "reduce_scatter_single_coalesced"),
}


def spelled(context):
    """Calls the group's methods by all names that this PyTorch has; returns these."""
    group, size, rank = dist.group.WORLD, context.size, context.rank
    own, each = torch.full((2,), rank + 1.0), torch.arange(1.0, size + 1).repeat_interleave(2)
    total = torch.full((2,), float(size * (size + 1) // 2))

    def call(kind, method):
        many, one = torch.empty(2 * size), torch.empty(2)
        if kind == "gather one":
            method(many, own).wait()
            return torch.equal(many, each)
        if kind == "scatter one":
            method(one, own.repeat(size)).wait()
            return torch.equal(one, total)
        if kind == "exchange one":
            method(many, own.repeat(size), [], []).wait()
            return torch.equal(many, each)
        if kind == "gather many":
            outs = [many, torch.empty(2 * size)]
            method(outs, [own, own * 2]).wait()
            return torch.equal(outs[0], each) and torch.equal(outs[1], each * 2)
        outs = [one, torch.empty(2)]
        method(outs, [own.repeat(size), own.repeat(size) * 2]).wait()
        return torch.equal(outs[0], total) and torch.equal(outs[1], total * 2)

    found = []
    for kind, names in SPELLINGS.items():
        for name in names:
            if hasattr(group, name):
                assert call(kind, getattr(group, name)), name
                found.append(name)
    return found


def any_source(context):
    group = dist.group.WORLD
    if context.rank != 0:
        group.send([torch.full((2,), float(context.rank))], 0, 5).wait()
        return None
    seen = {}
    for _ in range(context.size - 1):
        got = torch.empty(2)
        work = group.recv_anysource([got], 5)
        work.wait()
        seen[work._source_rank()] = got.tolist()
    return seen


def barriers(context):
    """With devices, with a timeout, by the method; waits for a late rank."""
    group = dist.group.WORLD
    dist.barrier(device_ids=[0])
    dist.barrier(group, async_op=True).wait()
    options = dist.BarrierOptions()
    options.timeout = datetime.timedelta(seconds=10)
    group.barrier(options).wait()
    if context.rank == 1:
        time.sleep(1)
    began = time.monotonic()
    dist.barrier()
    return time.monotonic() - began


def limits(context):
    """Timeouts of one call, and of the group, changed later. The first breaks its group, so each test has its own."""
    def took(group, call):
        began = time.monotonic()
        try:
            call(group)
        except dist.DistBackendError as error:
            return time.monotonic() - began, str(error)
        return None

    def one_call(group):
        options = dist.AllreduceOptions()
        options.timeout = datetime.timedelta(seconds=0.5)
        group.allreduce([torch.ones(2)], options).wait()

    first, second = dist.new_group(), dist.new_group()
    assert summed(first) == summed(second) == context.size
    if context.rank == 1:
        time.sleep(3)
        return None
    seen = [took(first, one_call)]
    backend = second._get_backend(torch.device("cpu"))
    if hasattr(backend, "set_timeout"):
        backend.set_timeout(datetime.timedelta(seconds=0.5))
        seen.append(took(second, summed))
    return seen


def states(context):
    """The results of getError: success, timeout, a peer that died."""
    group = dist.new_group()
    backend = group._get_backend(torch.device("cpu"))
    summed(group)
    seen = [backend.get_error().name]
    if context.rank == 1:
        time.sleep(1.5)
        os._exit(0)
    options = dist.AllreduceOptions()
    options.timeout = datetime.timedelta(seconds=0.3)
    for end in (lambda: group.allreduce([torch.ones(2)], options).wait(), summed):
        try:
            end()
        except dist.DistBackendError:
            pass
        seen.append((backend if len(seen) == 1 else dist.group.WORLD._get_backend(torch.device("cpu"))).get_error().name)
    return seen


def outcomes(context):
    """Success and failure as reported by a work and its futures."""
    work = dist.all_reduce(torch.ones(2), async_op=True)
    work.wait()
    good = work.is_completed(), work.is_success(), len(work.result())
    if context.rank == 1:
        os._exit(0)
    work = dist.all_reduce(torch.ones(2), async_op=True)
    try:
        work.wait()
    except Exception as error:  # pylint: disable=broad-except
        kind = type(error).__name__
    bad = work.is_completed(), work.is_success(), kind
    result = int(work.get_future_result().wait()) if hasattr(work, "get_future_result") else 2
    return good, bad, result


def wrong_argument(context):
    """Some of PyTorch's backends raise a RuntimeError, others a ValueError."""
    group, errors = dist.group.WORLD, []
    for call in (lambda: group.allreduce([torch.ones(2), torch.ones(2)]), lambda: group.broadcast(torch.ones(2), 2)):
        for kind in (RuntimeError, ValueError):
            try:
                call()
            except kind as error:
                errors.append(error)
    import torch_tutti  # pylint: disable=import-outside-toplevel

    kept = pickle.loads(pickle.dumps(errors[0]))
    return [str(error) for error in errors], type(kept) is torch_tutti.ArgumentError, summed() == context.size


def in_one_process():
    """Ranks that are threads of one process: the rendezvous and the operations release the GIL."""
    import torch_tutti  # pylint: disable=import-outside-toplevel

    store, sums = dist.HashStore(), {}

    def rank(number):
        backend = torch_tutti._C.create_backend_plain(store, number, 3, datetime.timedelta(seconds=20))
        tensor = torch.ones(3)
        backend.allreduce([tensor], dist.AllreduceOptions()).wait()
        sums[number] = tensor.tolist()

    threads = [threading.Thread(target=rank, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sums


@unittest.skipUnless(ranks.IS_TUTTI, "these are features of Tutti")
class Surface(unittest.TestCase):
    def test_old_and_new_names_do_the_same(self):
        for found in ranks.run(3, spelled):
            for kind, names in SPELLINGS.items():
                self.assertTrue(set(names) & set(found), kind)

    def test_receives_from_any_source_by_the_group(self):
        self.assertEqual(ranks.run(3, any_source)[0], {1: [1.0, 1.0], 2: [2.0, 2.0]})

    def test_barriers_take_devices_and_limits(self):
        took = ranks.run(2, barriers)
        self.assertGreater(took[0], 0.2)

    def test_limits_hold_for_a_call_and_for_a_group(self):
        for seconds, text in ranks.run(2, limits)[0]:
            self.assertLess(seconds, 2)
            self.assertGreater(seconds, 0.4)
            self.assertRegex(text, "(?i)time")

    @unittest.skipUnless(hasattr(torch._C._distributed_c10d, "ErrorType"), "this PyTorch has no states of errors")
    def test_the_backend_reports_the_state_of_its_errors(self):
        self.assertEqual(ranks.run(2, states, victims=(1,))[0], ["SUCCESS", "TIMEOUT", "REMOTE_ERROR"])

    def test_works_report_how_they_ended(self):
        good, bad, result = ranks.run(2, outcomes, victims=(1,))[0]
        self.assertEqual(good, (True, True, 1))
        self.assertEqual(bad, (True, False, "DistBackendError"))
        self.assertEqual(result, 2)  # WorkResult.COMM_ERROR

    def test_a_wrong_argument_is_a_value_error_and_a_runtime_error(self):
        for texts, ours, whole in ranks.run(2, wrong_argument):
            self.assertEqual(texts, ["tutti: one tensor expected, 2 given"] * 2 + ["tutti: broadcast: root 2 is out of range for a communicator of 2 ranks"] * 2)
            self.assertTrue(ours)
            self.assertTrue(whole)

    def test_ranks_can_be_threads(self):
        self.assertEqual(ranks.run(1, lambda context: in_one_process(), init=False)[0], {rank: [3.0] * 3 for rank in range(3)})


if __name__ == "__main__":
    unittest.main()
