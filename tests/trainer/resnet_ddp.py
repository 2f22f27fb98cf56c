#!/usr/bin/env python3
"""Ten steps of tutti-train's ResNet-20 against PyTorch, whose two processes train by DistributedDataParallel.

    resnet_ddp.py FOLDER_OF_TUTTI_TRAIN

One rank with batches of 64, and two with 32 each, start from the same weights and read the same images. Batch norm
computes its statistics from each rank's own images, so the two runs differ, and each has its own reference, in
float64. Occasionally a rounding moves an activation over a ReLU's edge, and differences grow: the first loss agrees
within FIRST, the others within REST, relative to 1 + loss.
"""
import json
import os
import subprocess
import sys
import tempfile

import numpy
import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
import torch.nn.functional as functional

from resnet_torch import Net, read

STEPS, ALL, RATE = 10, 64, 0.01
FIRST, REST = 1e-5, 1e-3
MEANS, DEVIATIONS = (0.4465, 0.4822, 0.4914), (0.2010, 0.1994, 0.2023)


def draw(folder):
    """Writes CIFAR's binary format: patterns of ten classes, and noise. Returns the training images and labels."""
    random = numpy.random.default_rng(5)
    patterns = random.integers(0, 256, (10, 3, 32, 32))
    labels = random.integers(0, 10, STEPS * ALL)
    images = (patterns[labels] + random.integers(0, 256, (len(labels), 3, 32, 32))) // 2
    records = numpy.concatenate([labels[:, None], images.reshape(len(labels), -1)], 1).astype(numpy.uint8)
    for name, count in ("data_batch_1.bin", len(records)), ("test_batch.bin", 20):
        records[:count].tofile(os.path.join(folder, name))
    means, deviations = (numpy.array(values).reshape(1, 3, 1, 1) for values in (MEANS, DEVIATIONS))
    return (images / 255 - means) / deviations, labels


def train(programs, folder, nranks, *options):
    """The losses of tutti-train."""
    metrics = os.path.join(folder, "metrics")
    command = [os.path.join(programs, "tuttirun"), "-n", str(nranks), os.path.join(programs, "tutti-train"), "--dataset", "cifar10",
               "--data", folder, "--no-augment", "--no-shuffle", "--model", "resnet20", "--device", "host", "--batch-size",
               str(ALL // nranks), "--log-every", "1", "--metrics", metrics, *options]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=300)
    with open(metrics, encoding="utf-8") as file:
        return [row["loss"] for row in map(json.loads, file) if row["event"] == "step"]


class Module(torch.nn.Module):
    """The network of resnet_torch.py, with parameters that DistributedDataParallel finds."""

    def __init__(self, tensors):
        super().__init__()
        self.net = Net("resnet20", 0)
        for name, values in tensors.items():
            if "moving" in name:
                self.net.states[name] = torch.tensor(values)
                continue
            self.register_parameter(name.replace(".", "_"), torch.nn.Parameter(torch.tensor(values)))
            self.net.tensors[name] = getattr(self, name.replace(".", "_"))

    def forward(self, x):
        return self.net(x)


def train_by_torch(rank, nranks, folder, tensors, images, labels):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method="file://" + os.path.join(folder, f"meet{nranks}"), rank=rank, world_size=nranks)
    module = torch.nn.parallel.DistributedDataParallel(Module(tensors))
    update = torch.optim.SGD(module.parameters(), lr=RATE)
    losses, own = [], ALL // nranks
    for step in range(STEPS):
        at = step * ALL + rank * own
        loss = functional.cross_entropy(module(torch.tensor(images[at : at + own])), torch.tensor(labels[at : at + own]))
        update.zero_grad()
        loss.backward()
        update.step()
        mean = loss.detach() / nranks
        dist.all_reduce(mean)
        losses.append(mean.item())
    dist.destroy_process_group()
    if rank == 0:
        with open(os.path.join(folder, f"losses{nranks}"), "w", encoding="utf-8") as file:
            json.dump(losses, file)


def compare(programs, folder, nranks, images, labels):
    """The differences between the first loss and PyTorch's, and between the others."""
    start = os.path.join(folder, f"start{nranks}")
    train(programs, folder, nranks, "--lr", "0", "--steps", "1", "--checkpoint-dir", start)
    tensors = {name: values for name, values in read(os.path.join(start, "step-00000001.safetensors")).items()
               if "/" not in name}  # velocity/conv1.weight is the optimizer's
    found = train(programs, folder, nranks, "--lr", str(RATE), "--steps", str(STEPS))
    multiprocessing.spawn(train_by_torch, (nranks, folder, tensors, images, labels), nranks)
    with open(os.path.join(folder, f"losses{nranks}"), encoding="utf-8") as file:
        expected = json.load(file)
    if len(found) != STEPS:
        sys.exit(f"{nranks} ranks: {len(found)} losses, expected {STEPS}")
    print(f"{nranks} ranks: tutti-train " + " ".join(f"{loss:.6f}" for loss in found))
    print(f"{nranks} ranks: PyTorch     " + " ".join(f"{loss:.6f}" for loss in expected))
    errors = [abs(a - b) / (1 + b) if a == a else float("inf") for a, b in zip(found, expected)]
    return errors[0], max(errors[1:])


def main():
    failed = False
    for nranks in 1, 2:
        with tempfile.TemporaryDirectory() as folder:
            images, labels = draw(folder)
            first, rest = compare(sys.argv[1], folder, nranks, images, labels)
        print(f"{nranks} ranks: the first loss within {first:.1e}, allowed {FIRST:g}; the others within {rest:.1e}, allowed {REST:g}")
        failed |= not (first <= FIRST and rest <= REST)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
