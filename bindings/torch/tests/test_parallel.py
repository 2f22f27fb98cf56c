"""PyTorch's features on top of groups have the same results as over gloo: FSDP2, DTensor, pipelines, checkpoints,
functional collectives, compiled ones."""
import os
import unittest
import warnings

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.distributed.checkpoint as checkpoint
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

try:
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

    RECENT = True
except ImportError:  # PyTorch 2.4 and 2.5, whose FSDP2 is for GPUs
    from torch.distributed._tensor import DTensor, Replicate, Shard, distribute_tensor

    RECENT = False

from support import compare, ranks

sharding = unittest.skipUnless(RECENT, "FSDP2 of this PyTorch is for GPUs")
warnings.filterwarnings("ignore", category=FutureWarning)


def layers():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(16, 33), nn.ReLU(), nn.Linear(33, 20), nn.ReLU(), nn.Linear(20, 5))


def train(model, optimizer, rank, steps=4):
    losses = []
    for step in range(steps):
        torch.manual_seed(100 * rank + step)
        optimizer.zero_grad()
        loss = model(torch.randn(6, 16)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach().clone())
    return losses


def full(model):
    return {name: parameter.full_tensor().detach() if isinstance(parameter, DTensor) else parameter.detach().clone()
            for name, parameter in model.named_parameters()}


def sharded(context, reshard, from_group, policy):
    mesh = init_device_mesh("cpu", (context.size,))
    model = layers()
    named = {"mp_policy": policy} if policy else {}
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh, reshard_after_forward=reshard, **named)
    fully_shard(model, mesh=mesh, reshard_after_forward=reshard, **named)
    if from_group:
        for module in model.modules():
            if hasattr(module, "set_allocate_memory_from_process_group_for_comm"):
                module.set_allocate_memory_from_process_group_for_comm(True)
    losses = train(model, torch.optim.Adam(model.parameters(), 0.01), context.rank)
    return losses, full(model)


def sharded_twice(context):
    """Hybrid: sharded by two, replicated by two."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    model = layers()
    fully_shard(model, mesh=mesh)
    losses = train(model, torch.optim.SGD(model.parameters(), 0.1), context.rank)
    return losses, full(model)


def meshes(context):
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("rows", "columns"))
    out = []
    for name in ("rows", "columns"):
        tensor = torch.full((3,), float(context.rank))
        dist.all_reduce(tensor, group=mesh.get_group(name))
        out.append(tensor)
    flat = mesh["rows", "columns"]._flatten("all") if hasattr(mesh, "_flatten") else mesh
    out.append(torch.tensor([mesh.get_local_rank("rows"), mesh.get_local_rank("columns"), flat.size()]))
    return out


def tensors(context):
    mesh = init_device_mesh("cpu", (context.size,))
    torch.manual_seed(1)
    whole = torch.randn(9, 6)  # 9 rows: uneven shards
    rows, columns = distribute_tensor(whole, mesh, [Shard(0)]), distribute_tensor(whole, mesh, [Shard(1)])
    product = rows @ distribute_tensor(whole.t().contiguous(), mesh, [Replicate()])
    out = [rows.to_local(), columns.to_local(), rows.full_tensor(), product.full_tensor(), rows.redistribute(mesh, [Shard(1)]).to_local(),
           (rows.sum() + columns.max()).full_tensor()]
    if RECENT:  # else gloo has no average
        out.append(rows.mean(0).full_tensor())
    partial = torch.mm(distribute_tensor(whole.t().contiguous(), mesh, [Shard(1)]), rows)  # summed over ranks
    out += [partial.redistribute(mesh, [Replicate()]).to_local(), partial.redistribute(mesh, [Shard(0)]).to_local()]
    return [one.detach().clone() for one in out]


def tensor_parallel(context):
    mesh = init_device_mesh("cpu", (context.size,))
    torch.manual_seed(2)
    model = parallelize_module(nn.Sequential(nn.Linear(8, 12), nn.ReLU(), nn.Linear(12, 8)), mesh,
                               {"0": ColwiseParallel(), "2": RowwiseParallel()})
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    losses = []
    for step in range(4):
        torch.manual_seed(step)
        loss = model(torch.randn(5, 8)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach().clone())
    return losses, full(model)


def pipeline(context, schedule):
    parts = layers()
    stages = [nn.Sequential(*parts[:2]), nn.Sequential(*parts[2:])]
    shapes = {} if RECENT else {"input_args": (torch.zeros(2, 33 if context.rank else 16),)}  # else detected
    stage = PipelineStage(stages[context.rank], context.rank, 2, torch.device("cpu"), **shapes)
    torch.manual_seed(8)
    x, y = torch.randn(8, 16), torch.randn(8, 5)
    losses = []
    run = schedule(stage, 4, loss_fn=nn.functional.mse_loss)
    for _ in range(3):
        if context.rank == 0:
            run.step(x)
        else:
            run.step(target=y, losses=losses)
    return [loss.detach().clone() for loss in losses], [parameter.grad.clone() for parameter in stages[context.rank].parameters()]


def checkpoints(context, asynchronous):
    mesh = init_device_mesh("cpu", (context.size,))
    model = layers()
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    train(model, optimizer, context.rank, 2)
    saved = full(model)
    folder = os.path.join(context.folder, "checkpoint")
    state = {"model": model.state_dict(), "step": torch.tensor(2)}
    if asynchronous:
        group = dist.new_group(backend=dist.get_backend())
        future = checkpoint.async_save(state, checkpoint_id=folder, process_group=group)
        train(layers(), torch.optim.SGD(layers().parameters(), 0.1), context.rank, 1)  # other work meanwhile
        future.result()
    else:
        checkpoint.save(state, checkpoint_id=folder)
    dist.barrier()
    train(model, optimizer, context.rank, 1)
    state = {"model": model.state_dict(), "step": torch.tensor(0)}
    checkpoint.load(state, checkpoint_id=folder)
    model.load_state_dict(state["model"])
    loaded = full(model)
    assert all(torch.equal(saved[name], loaded[name]) for name in saved)
    return loaded, state["step"]


def functionals(context):
    group, size, rank = dist.group.WORLD, context.size, context.rank
    own = torch.arange(4.0 * size) + rank
    out = [
        functional.all_reduce(own, "sum", group), functional.all_reduce(own, "max", group),
        functional.all_gather_tensor(own, 0, group), functional.reduce_scatter_tensor(own, "sum", 0, group),
        functional.all_to_all_single(own, None, None, group), functional.broadcast(own, 0, group),
        *functional.all_reduce_coalesced([own, own * 2], "sum", group),
        *functional.all_gather_into_tensor_coalesced([own, own * 2], group),
        *functional.reduce_scatter_tensor_coalesced([own, own * 2], "sum", [0, 0], group),
    ]
    sent = [rank + peer for peer in range(size)]
    out.append(functional.all_to_all_single(torch.arange(float(sum(sent))) + 10 * rank, sent, sent, group))
    if RECENT:  # else it fails over any backend
        leaf = own.clone().requires_grad_()
        functional.all_gather_tensor_autograd(leaf, 0, group).square().sum().backward()
        out.append(leaf.grad)
    return [functional.wait_tensor(one).clone() for one in out]


def differentiable(context):
    """torch.distributed.nn: collectives with gradients."""
    import torch.distributed.nn.functional as nnf  # pylint: disable=import-outside-toplevel

    leaf = (torch.arange(4.0) + context.rank).requires_grad_()
    (nnf.all_reduce(leaf) * (context.rank + 1)).sum().backward()
    gathered = (torch.arange(4.0) + context.rank).requires_grad_()
    (torch.stack(nnf.all_gather(gathered)).sum(0) * (context.rank + 1)).sum().backward()
    return leaf.grad.clone(), gathered.grad.clone()


def compiled(context):
    group = dist.group.WORLD

    @torch.compile(backend="aot_eager", fullgraph=True)
    def function(x):
        summed = functional.all_reduce(x * 2, "sum", group)
        return functional.all_gather_tensor(summed + 1, 0, group)

    own = torch.arange(6.0) + context.rank
    return [function(own).clone(), function(own + 1).clone()]


def compiled_ddp(context):
    model = nn.parallel.DistributedDataParallel(layers())
    step = torch.compile(model, backend="aot_eager")
    losses = train(step, torch.optim.SGD(model.parameters(), 0.1), context.rank, 2)
    return losses, full(model.module)


class Parallel(unittest.TestCase):
    @sharding
    def test_fsdp2_trains_as_over_gloo(self):
        bfloat = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        for size, reshard, from_group, policy in ((2, True, False, None), (3, True, False, None), (2, False, False, None), (2, True, False, bfloat)):
            with self.subTest(ranks=size, reshard=reshard, policy=policy):
                compare.twice(size, sharded, reshard, from_group, policy)

    @sharding
    @unittest.skipUnless(ranks.IS_TUTTI, "gloo gives no memory")
    def test_fsdp2_trains_in_memory_of_the_group(self):
        plain = ranks.run(2, sharded, True, False, None)
        self.assertIsNone(compare.difference(ranks.run(2, sharded, True, True, None), plain, False))

    @sharding
    def test_fsdp2_sharded_and_replicated(self):
        compare.twice(4, sharded_twice)

    def test_device_meshes(self):
        compare.twice(4, meshes, exact=True)

    def test_distributed_tensors(self):
        compare.twice(2, tensors)
        compare.twice(3, tensors)

    def test_tensor_parallel_training(self):
        compare.twice(2, tensor_parallel)

    def test_pipelines(self):
        first = compare.twice(2, pipeline, ScheduleGPipe)
        if RECENT:  # else gloo hangs in it
            compare.twice(2, pipeline, Schedule1F1B)
        else:
            self.assertIsNone(compare.difference(ranks.run(2, pipeline, Schedule1F1B), first, False))

    @sharding
    def test_checkpoints(self):
        for asynchronous in (False, True):
            with self.subTest(asynchronous=asynchronous):
                compare.twice(2, checkpoints, asynchronous)

    def test_functional_collectives(self):
        compare.twice(2, functionals)
        compare.twice(3, functionals)

    def test_differentiable_collectives(self):
        compare.twice(2, differentiable)

    def test_compiled_collectives(self):
        compare.twice(2, compiled)

    def test_compiled_ddp(self):
        compare.twice(2, compiled_ddp)


if __name__ == "__main__":
    unittest.main()
