"""Tensor parallel with sequence parallel between the layers, by torch.distributed.tensor.parallel."""
import os

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, loss_parallel, parallelize_module


class Block(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

    def forward(self, x):
        return self.down(torch.nn.functional.gelu(self.up(x)))


class Model(torch.nn.Module):
    def __init__(self, width=256, classes=64):
        super().__init__()
        self.first, self.second, self.out = Block(width), Block(width), torch.nn.Linear(width, classes)

    def forward(self, x):
        return self.out(self.second(self.first(x)))


mesh = init_device_mesh("cpu", (int(os.environ["WORLD_SIZE"]),))
torch.manual_seed(1)
model = parallelize_module(Model(), mesh, {
    "first.up": ColwiseParallel(), "first.down": RowwiseParallel(output_layouts=Shard(0)),
    "second.up": ColwiseParallel(input_layouts=Shard(0)), "second.down": RowwiseParallel(output_layouts=Replicate()),
    "out": ColwiseParallel(output_layouts=Shard(-1), use_local_output=False),
})
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=True)
for step in range(40):
    x = torch.randn(64, 256)  # the same on all ranks
    with loss_parallel():
        loss = torch.nn.functional.cross_entropy(model(x), x[:, :64].argmax(1))
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    loss = loss.full_tensor().item()
    if dist.get_rank() == 0:
        print("step", step, "loss", loss, flush=True)
dist.destroy_process_group()
