"""CUDA tensors in groups for whose operations the host waits (blocking_wait), on a stand-in (support/gpu.py).

A held stream shows that the host waits: the wait returns only after the stream has been released.
"""
import os
import signal
import threading
import unittest

import torch
import torch.distributed as dist

from support import gpu, ranks
from support.cuda_ranks import BOTH, filled, load, raises, run, same

VARIABLES = ("TUTTI_BLOCKING_WAIT", "TORCH_NCCL_BLOCKING_WAIT")


def setUpModule():
    load()


def options(**named):
    import torch_tutti  # pylint: disable=import-outside-toplevel

    made = torch_tutti.Options()
    for name, value in named.items():
        setattr(made, name, value)
    return made


def start(context):
    gpu.begin(0)
    context.init(BOTH, pg_options=options(blocking_wait=True))
    dist.all_reduce(filled(1, 1))


def coalesced(tensor):
    with dist._coalescing_manager():
        dist.all_reduce(tensor)


WAYS = {
    "the call": dist.all_reduce,
    "wait": lambda tensor: dist.all_reduce(tensor, async_op=True).wait(),
    "the future's wait": lambda tensor: dist.all_reduce(tensor, async_op=True).get_future().wait(),
    "the wait of what follows": lambda tensor: dist.all_reduce(tensor, async_op=True).get_future().then(lambda done: done.value()).wait(),
    "the manager": coalesced,
}


def waits(context):
    start(context)
    for way, wait_for in WAYS.items():
        tensor = filled(10, 1)
        let_go = threading.Event()

        def later(let_go=let_go):
            let_go.set()
            gpu.ops.let_go()

        gpu.ops.hold(0)
        gpu.ops.scale_(tensor, 3.0)
        timer = threading.Timer(0.05, later)
        timer.start()
        wait_for(tensor)
        assert let_go.is_set(), way
        timer.join()
        same(tensor, torch.full((10,), 3.0 * context.size), way)


def others(context):
    """Each group has its own setting; a group made by a split has its parent's; a work without a wait blocks
    nothing."""
    start(context)
    plain = dist.new_group(backend="tutti", pg_options=options(blocking_wait=False))
    dist.all_reduce(filled(1, 1), group=plain)
    tensors = [filled(10, 1), filled(10, 1)]
    gpu.ops.hold(0)
    work = dist.all_reduce(tensors[0], async_op=True)
    dist.all_reduce(tensors[1], group=plain)  # would now wait forever
    assert not work.is_completed()
    gpu.ops.let_go()
    work.wait()
    assert work.is_completed() and work.is_success()
    backend = dist.group.WORLD._get_backend(torch.device("cuda"))
    assert backend.options.blocking_wait and not plain._get_backend(torch.device("cuda")).options.blocking_wait


def environment(_):
    """Tutti's variable, else NCCL's."""
    for own, others, blocks in ((None, None, False), (None, "1", True), ("1", None, True), ("0", "1", False), ("", "1", True)):
        for name, value in zip(VARIABLES, (own, others)):
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
        assert options().blocking_wait == blocks, (own, others)


def capture(context):
    """Captured operations run later: no call waits for them. A single rank can be captured."""
    start(context)
    gpu.ops.use_stream(0, 3)
    tensor = filled(3, 1)
    gpu.ops.capture(0, True)
    dist.all_reduce(tensor)
    gpu.ops.capture(0, False)
    same(tensor, torch.full((3,), 1.0), "captured")


def deaths(context):
    """The operation itself raises, as on the CPU: in its wait, and in futures, for which DDP waits."""
    start(context)
    group = dist.new_group(backend="tutti", pg_options=options(blocking_wait=True))
    dist.all_reduce(filled(1, 1), group=group)
    dist.barrier()
    if context.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    raises(dist.DistBackendError, "rank 1", lambda: dist.all_reduce(filled(10, 1)))
    raises(RuntimeError, "rank 1", lambda: dist.all_reduce(filled(10, 1), group=group, async_op=True).get_future().wait())


class CudaBlocking(unittest.TestCase):
    def test_waits_block_the_host(self):
        run(waits)

    def test_other_groups_do_not(self):
        run(others)

    def test_the_environment_sets_it(self):
        ranks.run(1, environment, init=False)

    def test_captured_operations_are_not_waited_for(self):
        ranks.run(1, capture, init=False)

    def test_a_dead_rank_raises_where_it_was_waited_for(self):
        ranks.run(2, deaths, init=False, victims=(1,))


if __name__ == "__main__":
    unittest.main()
