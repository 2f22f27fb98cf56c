#!/usr/bin/env python3
"""A layer of an MLP divided over ranks by PyTorch's tensor parallelism: bench/train_compare compares tutti-train's
hybrid_parallel with it.

Net, data, batch and optimizer are those of `tutti-train --model mlp --hidden N`: dense1 is ColwiseParallel, dense2
RowwiseParallel. torchrun or tuttirun starts each rank, which has one thread. Rank 0 prints one JSON line: images per
second from step WARM on, and the last loss.
"""
import argparse
import json
import resource
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import lenet_torch

STDDEV = 0.1


class MLP(nn.Module):
    def __init__(self, inputs, hidden):
        super().__init__()
        self.dense1, self.dense2 = nn.Linear(inputs, hidden), nn.Linear(hidden, 10)
        for layer in (self.dense1, self.dense2):
            nn.init.trunc_normal_(layer.weight, std=STDDEV, a=-2 * STDDEV, b=2 * STDDEV)
            nn.init.zeros_(layer.bias)

    def forward(self, x):
        return self.dense2(F.relu(self.dense1(x)))


def train(options):
    images, labels = lenet_torch.read_samples(options.data)
    order = torch.randperm(len(images))
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = MLP(images[0].numel(), options.hidden)
    model = parallelize_module(model, mesh, {"dense1": ColwiseParallel(), "dense2": RowwiseParallel()})
    optimizer = torch.optim.SGD(model.parameters(), lr=options.lr)
    start = 0.0
    for step in range(options.steps):
        if step == options.warm:
            start = time.perf_counter()
        first = step * options.batch % (len(images) - options.batch)
        chosen = order[first : first + options.batch]
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images[chosen].flatten(1).float() / 255), labels[chosen])
        loss.backward()
        optimizer.step()
    return (options.steps - options.warm) / (time.perf_counter() - start), loss.item()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", help="folder with MNIST's training files")
    parser.add_argument("steps", type=int)
    parser.add_argument("batch", type=int)
    parser.add_argument("--warm", type=int, default=20, help="steps before the clock starts")
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--backend", default="gloo")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(1)  # on all ranks: they choose the same samples
    dist.init_process_group(options.backend)
    speed, loss = train(options)
    if dist.get_rank() == 0:
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(json.dumps({"images_per_second": speed * options.batch, "loss": loss, "memory_mib": memory}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
