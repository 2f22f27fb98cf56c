"""Tools around groups: the profiler, PyTorch's debug mode, torchrun with restarts, options."""
import copy
import datetime
import os
import subprocess
import sys
import tempfile
import unittest

import torch
import torch.distributed as dist

from support import ranks
from test_groups import summed

BACKEND = ranks.BACKEND


def profiled(context):
    group = dist.group.WORLD
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True) as profile:
        dist.all_reduce(torch.ones(3, 4))
        dist.broadcast(torch.ones(7), 0)
        dist.all_gather([torch.empty(2) for _ in range(context.size)], torch.ones(2))
        dist.all_reduce(torch.ones(5), group=group, async_op=True).wait()
        dist.barrier()
    return {event.name: event.input_shapes for event in profile.events() if event.name.startswith(BACKEND + ":")}


def detailed(context):
    """TORCH_DISTRIBUTED_DEBUG=DETAIL wraps groups; calls that differ are reported."""
    dist.set_debug_level(dist.DebugLevel.DETAIL)
    os.environ["TORCH_DISTRIBUTED_DEBUG"] = "DETAIL"
    context.init()
    assert summed() == context.size
    outs = [torch.empty(2) for _ in range(context.size)]
    dist.all_gather(outs, torch.full((2,), float(context.rank)))
    assert [one[0].item() for one in outs] == list(range(context.size))
    dist.barrier()
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
    model(torch.ones(2, 4)).sum().backward()
    group = dist.new_group()
    try:
        dist.all_reduce(torch.ones(3 + context.rank), group=group)
    except RuntimeError as error:
        return str(error)
    return "nothing raised"


def options(context):
    import torch_tutti  # pylint: disable=import-outside-toplevel

    given = torch_tutti.Options()
    given.name = "by-name"
    for one in (given, copy.copy(given), copy.deepcopy(given)):
        assert one.name == "by-name"
    context.init(pg_options=given)
    assert summed() == context.size
    group = dist.new_group(timeout=datetime.timedelta(seconds=7), pg_options=torch_tutti.Options())
    assert summed(group) == context.size
    return True


def memory(context):
    """Tensors in memory that all ranks can access have the same results."""
    import torch_tutti  # pylint: disable=import-outside-toplevel

    for count in (1, 1000, 1 << 20):
        tensor = torch_tutti.empty(count).fill_(context.rank + 1.0)
        assert torch_tutti.is_shareable(tensor) and not torch_tutti.is_shareable(torch.ones(3))
        dist.all_reduce(tensor)
        assert tensor.eq(context.size * (context.size + 1) / 2).all()
        part = tensor[count // 2 :]
        dist.broadcast(part, 0)
        del tensor
        assert part.eq(context.size * (context.size + 1) / 2).all()
    return True


ELASTIC = """
import os, sys, torch, torch.distributed as dist
dist.init_process_group(sys.argv[1])
tensor = torch.ones(3)
dist.all_reduce(tensor)
assert tensor[0].item() == dist.get_world_size()
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and dist.get_rank() == 1:
    os._exit(3)
dist.all_reduce(tensor) if os.environ["TORCHELASTIC_RESTART_COUNT"] != "0" else dist.barrier()
with open(os.path.join(sys.argv[2], "done%d" % dist.get_rank()), "w") as file:
    file.write(os.environ["TORCHELASTIC_RESTART_COUNT"])
dist.destroy_process_group()
"""


class Tools(unittest.TestCase):
    def test_the_profiler_shows_operations_with_their_sizes(self):
        for events in ranks.run(2, profiled):
            self.assertEqual(events.get(BACKEND + ":broadcast"), [[7]])
            self.assertIn(BACKEND + ":all_reduce", events)
            self.assertEqual(events.get(BACKEND + ":all_gather"), [[2]])

    def test_debug_mode_wraps_groups(self):
        for text in ranks.run(2, detailed, init=False):
            self.assertRegex(text, "(?i)mismatch|differ")

    @unittest.skipUnless(ranks.IS_TUTTI, "options are ours")
    def test_options_are_taken_and_copied(self):
        ranks.run(2, options, init=False)

    @unittest.skipUnless(ranks.IS_TUTTI, "memory is ours")
    def test_memory_that_all_ranks_can_access(self):
        ranks.run(2, memory)
        ranks.run(3, memory)

    def test_torchrun_restarts_after_a_death(self):
        with tempfile.TemporaryDirectory() as folder:
            program = os.path.join(folder, "elastic.py")
            with open(program, "w", encoding="utf-8") as file:
                file.write(ranks.IMPORT + ELASTIC)
            done = subprocess.run([sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--max-restarts", "2",
                                   "--monitor-interval", "0.1", program, BACKEND, folder],
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=100, check=False)
            self.assertEqual(done.returncode, 0, done.stdout[-3000:])
            for rank in range(2):
                with open(os.path.join(folder, "done%d" % rank), encoding="utf-8") as file:
                    self.assertEqual(file.read(), "1")


if __name__ == "__main__":
    unittest.main()
