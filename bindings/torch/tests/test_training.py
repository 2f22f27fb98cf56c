"""Training over the backend has the same results as over gloo: DDP and its hooks, ZeRO, local SGD, uneven inputs."""
import copy
import unittest

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, post_localSGD_hook, powerSGD_hook
from torch.distributed.algorithms.join import Join
from torch.distributed.algorithms.model_averaging import averagers
from torch.distributed.optim import PostLocalSGDOptimizer, ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel as DDP

from support import compare, ranks

STEPS = 5


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.second, self.unused = nn.Linear(16, 64, bias=False), nn.BatchNorm1d(64), nn.Linear(64, 4), nn.Linear(3, 3)

    def forward(self, x):
        return self.second(torch.relu(self.norm(self.first(x))))


def net():
    torch.manual_seed(5)
    return Net()


def batch(rank, step, items=8):
    torch.manual_seed(1000 * rank + step)
    return torch.randn(items, 16), torch.randn(items, 4)


def train(model, optimizer, rank, steps=STEPS):
    for step in range(steps):
        x, y = batch(rank, step)
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()


def parameters_of(model):
    return [parameter.detach().clone() for parameter in model.parameters()]


def ddp(hook=None, hook_state=None, **named):
    """A program that trains with DDP; hook_state(group) makes the hook's state."""
    def program(group):
        model = DDP(net(), process_group=group, find_unused_parameters=True, **named)
        if hook:
            model.register_comm_hook(hook_state(group) if hook_state else group, hook)
        train(model, torch.optim.SGD(model.parameters(), 0.1, momentum=0.9), dist.get_rank())
        return parameters_of(model)

    return program


def ddp_variants(check):
    check.same("ddp", ddp(), False)
    check.same("ddp, gradients are views of buckets", ddp(gradient_as_bucket_view=True), False)
    check.same("ddp, many buckets", ddp(bucket_cap_mb=0.001), False)
    check.same("ddp, no buffers", ddp(broadcast_buffers=False), False)


def no_sync(group):
    model = DDP(net(), process_group=group, find_unused_parameters=True)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(STEPS):
        optimizer.zero_grad()
        with model.no_sync():
            x, y = batch(dist.get_rank(), 100 + step)
            nn.functional.mse_loss(model(x), y).backward()
        x, y = batch(dist.get_rank(), step)
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
    return parameters_of(model)


def static_graph(group):
    module = net()
    del module.unused
    model = DDP(module, process_group=group, static_graph=True, bucket_cap_mb=0.01)
    train(model, torch.optim.SGD(model.parameters(), 0.1), dist.get_rank())
    return parameters_of(model)


def optimizer_in_backward(check):
    """Gradients that the program reads, and accumulates, between steps."""
    def program(group):
        model = DDP(net(), process_group=group, find_unused_parameters=True)
        seen = []
        for step in range(3):
            x, y = batch(dist.get_rank(), step)
            nn.functional.mse_loss(model(x), y).backward()
            seen += [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
        return seen

    check.same("accumulated gradients", program, False)


def hooks(check):
    check.same("all_reduce hook", ddp(default_hooks.allreduce_hook), False)
    check.same("fp16 hook", ddp(default_hooks.fp16_compress_hook), False)
    check.same("bf16 hook", ddp(default_hooks.bf16_compress_hook), False)
    check.same("local SGD hook", ddp(post_localSGD_hook.post_localSGD_hook, lambda group: post_localSGD_hook.PostLocalSGDState(group, None, 2)), False)
    if not ranks.IS_TUTTI:
        return  # gloo hangs in PowerSGD, which waits inside callbacks
    # One bucket and no unused parameters: else the order of the main thread's operations and the callbacks' is
    # undefined.
    plain = net()
    del plain.unused
    power_sgd(check, DDP(plain, process_group=check.ours), powerSGD_hook.powerSGD_hook, STEPS)


def one_at_a_time(state, bucket):
    """The hook that docs/pytorch.md recommends for PowerSGD: each bucket's operations end before the next one's."""
    future = powerSGD_hook.powerSGD_hook(state, bucket)
    future.wait()
    return future


def hooks_in_order(check):
    many_buckets = DDP(net(), process_group=check.ours, find_unused_parameters=True, bucket_cap_mb=0.001)
    power_sgd(check, many_buckets, one_at_a_time, 30)


def power_sgd(check, model, hook, steps):
    """Replicas stay the same."""
    state = powerSGD_hook.PowerSGDState(check.ours, matrix_approximation_rank=2, start_powerSGD_iter=2, min_compression_rate=1)
    model.register_comm_hook(state, hook)
    train(model, torch.optim.SGD(model.parameters(), 0.1), check.rank, steps)
    for parameter in parameters_of(model):
        every = [torch.empty_like(parameter) for _ in range(check.size)]
        dist.all_gather(every, parameter)
        assert all(torch.equal(one, every[0]) for one in every) and parameter.isfinite().all()
    assert state.iter > 2 and state.p_memory_dict, "nothing was compressed"


def zero(check):
    def program(group):
        model = DDP(net(), process_group=group, find_unused_parameters=True)
        optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, process_group=group, lr=0.01)
        train(model, optimizer, dist.get_rank())
        optimizer.consolidate_state_dict(to=0)
        state = optimizer.state_dict()["state"] if dist.get_rank() == 0 else {}
        return parameters_of(model), [state[key]["exp_avg"] for key in sorted(state) if "exp_avg" in state[key]]

    def overlapped(group):
        model = DDP(net(), process_group=group, find_unused_parameters=True)
        optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, process_group=group, parameters_as_bucket_view=True, lr=0.1)
        train(model, optimizer, dist.get_rank())
        return parameters_of(model)

    check.same("ZeRO with Adam", program, False)
    check.same("ZeRO with views", overlapped, False)


def local_sgd(check):
    def averaged(group):
        model, averager = net(), averagers.PeriodicModelAverager(period=2, warmup_steps=1, process_group=group)
        optimizer = PostLocalSGDOptimizer(torch.optim.SGD(model.parameters(), 0.1), averager)
        train(model, optimizer, dist.get_rank(), 7)
        return parameters_of(model)

    check.same("local SGD", averaged, False)


def uneven(check):
    def program(group):
        model = DDP(net(), process_group=group, find_unused_parameters=True)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        with Join([model]):
            train(model, optimizer, dist.get_rank(), 3 + 2 * dist.get_rank())
        return parameters_of(model)

    check.same("join of uneven inputs", program, False)


def batch_norm(check):
    """Statistics cover all ranks; SyncBatchNorm itself is for GPUs, so buffers are compared."""
    def program(group):
        model = DDP(net(), process_group=group, find_unused_parameters=True)
        train(model, torch.optim.SGD(model.parameters(), 0.1), dist.get_rank())
        model.eval()
        model(batch(0, 0)[0])
        return [buffer.clone() for buffer in model.buffers()]

    check.same("buffers", program, False)


def deep_copy(check):
    """DDP models are copied and pickled without their group."""
    def program(group):
        model = DDP(net(), process_group=group, find_unused_parameters=True)
        other = copy.deepcopy(model.module)
        return parameters_of(other)

    check.same("copies", program, True)


class Training(unittest.TestCase):
    def each(self, body, sizes=(2,)):
        for size in sizes:
            with self.subTest(ranks=size):
                compare.run(size, body)

    def test_ddp_trains_as_over_gloo(self):
        self.each(ddp_variants, (2, 3))

    def test_ddp_without_synchronization_in_between(self):
        self.each(lambda check: check.same("no_sync", no_sync, False))

    def test_ddp_with_a_static_graph(self):
        self.each(lambda check: check.same("static graph", static_graph, False))

    def test_gradients_accumulate(self):
        self.each(optimizer_in_backward)

    def test_comm_hooks(self):
        self.each(hooks)

    @unittest.skipUnless(ranks.IS_TUTTI, "gloo hangs")
    def test_power_sgd_with_many_buckets_and_unused_parameters(self):
        self.each(hooks_in_order, (2, 3))

    def test_zero_redundancy_optimizer(self):
        self.each(zero, (2, 3))

    def test_local_sgd_and_model_averaging(self):
        self.each(local_sgd)

    def test_uneven_inputs_join(self):
        self.each(uneven)

    def test_buffers_are_broadcast(self):
        self.each(batch_norm)

    def test_models_can_be_copied(self):
        self.each(deep_copy)


if __name__ == "__main__":
    unittest.main()
