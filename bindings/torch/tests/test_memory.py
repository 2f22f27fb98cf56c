"""Memory that all ranks of a host can access: which tensors get it, when not, and its behaviour in forks."""
import os
import unittest

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel as DDP

from support import ranks
from test_groups import summed

MIB = 1 << 20
try:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
except ImportError:  # old PyTorch
    fully_shard = None


def buckets(context, zero_copy):
    """Where DDP's buckets are when a hook gets them."""
    import torch_tutti  # pylint: disable=import-outside-toplevel

    options = torch_tutti.Options()
    options.zero_copy = zero_copy
    context.init(pg_options=options)
    seen = []

    def hook(state, bucket):
        seen.append(torch_tutti.is_shareable(bucket.buffer()))
        return default_hooks.allreduce_hook(state, bucket)

    model = DDP(nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 8)), bucket_cap_mb=0.001)
    model.register_comm_hook(None, hook)
    for _ in range(3):
        model(torch.ones(4, 64)).sum().backward()
    return seen


def sharded_buffers(context):
    """Where FSDP2 gathers parameters if it is set to allocate memory from the group."""
    import torch_tutti  # pylint: disable=import-outside-toplevel

    model = fully_shard(nn.Linear(64, 64), mesh=init_device_mesh("cpu", (context.size,)))
    model.set_allocate_memory_from_process_group_for_comm(True)
    backend, seen = dist.group.WORLD._get_backend(torch.device("cpu")), []
    gather = dist.all_gather_single if hasattr(dist, "all_gather_single") else dist.all_gather_into_tensor

    def watched(output, *arguments, **named):
        seen.append(torch_tutti.is_shareable(output))
        return gather(output, *arguments, **named)

    setattr(dist, gather.__name__, watched)
    model(torch.ones(2, 64)).sum().backward()
    assert backend.supports_tensor_alloc(torch.device("cpu"))
    return seen


def allocated(context):
    """With the allocator: large tensors, however they are made, until it is disabled; sums of all are right."""
    import torch_tutti  # pylint: disable=import-outside-toplevel

    torch_tutti.use_allocator(MIB)
    large, small, computed = torch.ones(MIB), torch.ones(MIB // 8), torch.arange(float(MIB)) * 2
    seen = [torch_tutti.is_shareable(one) for one in (large, small, computed)]
    for tensor in (large, small):
        dist.all_reduce(tensor)
        assert tensor.eq(context.size).all()
    large.resize_(2 * MIB)
    assert large[:MIB].eq(context.size).all()
    torch_tutti.use_allocator(0)
    seen.append(torch_tutti.is_shareable(torch.ones(MIB)))
    del large
    assert summed() == context.size
    return seen


def forked(context):
    """What a fork shares, and that it gets ordinary memory: exit codes of the children, and the values in the
    parent."""
    import torch_tutti  # pylint: disable=import-outside-toplevel

    torch_tutti.use_allocator(MIB)
    shared, own = torch.ones(MIB), torch.ones(8)
    pid = os.fork()
    if pid == 0:
        try:
            shared[0], own[0] = 5.0, 5.0
            ordinary = not torch_tutti.is_shareable(torch.empty(MIB))  # no multi-threaded operator: a fork lacks threads
            try:
                torch_tutti.empty(8)
                ordinary = False
            except RuntimeError as error:
                ordinary = ordinary and "fork" in str(error)
            os._exit(0 if ordinary and shared[0] == 5 else 1)
        finally:
            os._exit(2)
    _, status = os.waitpid(pid, 0)
    dist.all_reduce(own)
    return os.waitstatus_to_exitcode(status), shared[0].item(), own[0].item()


@unittest.skipUnless(ranks.IS_TUTTI, "memory is ours")
class Memory(unittest.TestCase):
    @unittest.skipUnless(hasattr(torch._C._distributed_c10d.Backend, "allocate_tensor"), "DDP of this PyTorch takes no memory from groups")
    def test_buckets_of_ddp_are_memory_of_the_group(self):
        for zero_copy in (True, False):
            for seen in ranks.run(2, buckets, zero_copy, init=False):
                self.assertGreaterEqual(len(seen), 3)
                self.assertEqual(set(seen), {zero_copy})

    @unittest.skipUnless(fully_shard and hasattr(torch._C._distributed_c10d.Backend, "allocate_tensor"),
                         "FSDP2 of this PyTorch takes no memory from groups")
    def test_buffers_of_fsdp2_are_memory_of_the_group(self):
        for seen in ranks.run(2, sharded_buffers):
            self.assertTrue(seen and all(seen), seen)

    def test_the_allocator_gives_large_tensors_shared_memory(self):
        self.assertEqual(ranks.run(2, allocated), [[True, False, True, False]] * 2)

    def test_a_fork_shares_large_tensors_and_makes_ordinary_ones(self):
        self.assertEqual(ranks.run(2, forked), [(0, 5.0, 2.0)] * 2)


if __name__ == "__main__":
    unittest.main()
