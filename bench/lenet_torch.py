#!/usr/bin/env python3
"""The trainer's LeNet as a plain PyTorch script on one thread: what bench/train_compare measures tutti-train against.

Same net, data, batch size, initial values, optimizer and dropout as `tutti-train --model lenet`. Prints one JSON line:
images per second from step WARM on, and the last loss.
usage: lenet_torch.py DATA_FOLDER [STEPS [BATCH_SIZE]]
"""
import gzip
import json
import os
import resource
import sys
import time

import torch
import torch.nn.functional as F
from torch import nn

WARM = 20


class LeNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 5, padding=2)
        self.conv2 = nn.Conv2d(32, 64, 5, padding=2)
        self.dense1 = nn.Linear(7 * 7 * 64, 512)
        self.dense2 = nn.Linear(512, 10)
        for layer in (self.conv1, self.conv2, self.dense1, self.dense2):
            nn.init.trunc_normal_(layer.weight, std=0.1, a=-0.2, b=0.2)
            nn.init.zeros_(layer.bias)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = F.relu(self.dense1(x.flatten(1)))
        return self.dense2(F.dropout(x, 0.5, self.training))


def read_idx(folder, name, header):
    """The bytes behind the header of an IDX file, gzipped or not."""
    path = os.path.join(folder, name)
    opened = gzip.open(path + ".gz") if os.path.exists(path + ".gz") else open(path, "rb")
    with opened as file:
        return torch.frombuffer(bytearray(file.read()[header:]), dtype=torch.uint8)


def main():
    folder = sys.argv[1]
    steps = int(sys.argv[2]) if len(sys.argv) > 2 else 100
    batch = int(sys.argv[3]) if len(sys.argv) > 3 else 100
    torch.set_num_threads(1)
    torch.manual_seed(1)
    images = read_idx(folder, "train-images-idx3-ubyte", 16).view(-1, 1, 28, 28)
    labels = read_idx(folder, "train-labels-idx1-ubyte", 8).long()
    model = LeNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    order = torch.randperm(len(images))
    start = 0.0
    for step in range(steps):
        if step == WARM:
            start = time.perf_counter()
        first = step * batch % (len(images) - batch)
        indices = order[first : first + batch]
        x, y = images[indices].float() / 255, labels[indices]
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
    spent = time.perf_counter() - start
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"images_per_second": (steps - WARM) * batch / spent, "loss": loss.item(), "memory_mib": memory}))


if __name__ == "__main__":
    main()
