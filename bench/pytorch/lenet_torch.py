#!/usr/bin/env python3
"""The trainer's LeNet as a plain PyTorch script: bench/train_compare compares tutti-train with it.

Same net, data, batch size, initial values, optimizer and dropout as `tutti-train --model lenet`; with --model resnet20
or resnet50 as that with --optimizer momentum --nesterov --weight-decay 1e-4. On the host it uses one thread; on a GPU
the images are in its memory, and products and convolutions are in fp32, as in tutti-train, or with --tf32 in TF32.
--graph captures the whole step, including the choice of images, with torch.cuda.graph, and replays it. Prints one JSON
line: images per second from step WARM on, and the last loss.
"""
import argparse
import gzip
import json
import os
import resource
import time

import torch
import torch.nn.functional as F
from torch import nn

import cifar_torch
import resnet_torch

MADE_UP = 20000  # made-up images
BEFORE_CAPTURE = 3  # steps on a separate stream, as PyTorch's manual requires


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


class Training:
    """Trains one step at a time: step() uses the images that `indices` selects."""

    def __init__(self, images, labels, batch, device, name="lenet", channels_last=False):
        self.images, self.labels = images.to(device), labels.to(device)
        self.indices = torch.zeros(batch, dtype=torch.long, device=device)
        self.format = torch.channels_last if channels_last else torch.contiguous_format
        model = LeNet() if name == "lenet" else resnet_torch.make(name, images.shape[1])
        self.model = model.to(device, memory_format=self.format)
        recipe = {"lr": 0.1} if name == "lenet" else {"lr": 0.01, "momentum": 0.9, "nesterov": True, "weight_decay": 1e-4}
        self.optimizer = torch.optim.SGD(self.model.parameters(), **recipe)
        self.loss = torch.zeros((), device=device)
        self.step = self.step_eagerly

    def step_eagerly(self):
        x, y = (self.images[self.indices].float() / 255).to(memory_format=self.format), self.labels[self.indices]
        self.optimizer.zero_grad()
        self.loss = F.cross_entropy(self.model(x), y)
        self.loss.backward()
        self.optimizer.step()

    def capture(self):
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(BEFORE_CAPTURE):
                self.step_eagerly()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.step_eagerly()
        self.step = graph.replay


def read_idx(folder, name, header):
    """The bytes after the header of an IDX file, gzipped or not."""
    path = os.path.join(folder, name)
    opened = gzip.open(path + ".gz") if os.path.exists(path + ".gz") else open(path, "rb")
    with opened as file:
        return torch.frombuffer(bytearray(file.read()[header:]), dtype=torch.uint8)


def read_samples(folder, dataset="mnist"):
    if dataset == "cifar10":
        return cifar_torch.read_samples(folder, "data_batch_*.bin")
    if folder == "-":
        return torch.randint(0, 256, (MADE_UP, 1, 28, 28), dtype=torch.uint8), torch.randint(0, 10, (MADE_UP,))
    images = read_idx(folder, "train-images-idx3-ubyte", 16).view(-1, 1, 28, 28)
    return images, read_idx(folder, "train-labels-idx1-ubyte", 8).long()


def read_options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", help="folder with MNIST's training files, or CIFAR-10's binary ones; -: made-up images")
    parser.add_argument("steps", type=int, nargs="?", default=100)
    parser.add_argument("batch", type=int, nargs="?", default=100)
    parser.add_argument("--warm", type=int, default=20, help="steps before the clock starts")
    parser.add_argument("--model", choices=("lenet", "resnet20", "resnet50"), default="lenet")
    parser.add_argument("--dataset", choices=("mnist", "cifar10"), default="mnist", help="cifar10: not with lenet")
    parser.add_argument("--channels-last", action="store_true", help="images and weights as [batch, height, width, channels]")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--graph", action="store_true", help="with --device cuda")
    parser.add_argument("--tf32", action="store_true", help="with --device cuda")
    return parser.parse_args()


def main():
    options = read_options()
    on_gpu = options.device == "cuda"
    torch.set_num_threads(1)
    torch.manual_seed(1)
    torch.backends.cudnn.allow_tf32 = options.tf32  # as tutti-train; by default True here, False for products
    torch.backends.cuda.matmul.allow_tf32 = options.tf32
    torch.backends.cudnn.benchmark = on_gpu
    images, labels = read_samples(options.data, options.dataset)
    order = torch.randperm(len(images)).to(options.device)
    training = Training(images, labels, options.batch, options.device, options.model, options.channels_last)
    if options.graph:
        training.capture()
    start = 0.0
    for step in range(options.steps):
        if step == options.warm:
            if on_gpu:
                torch.cuda.synchronize()
            start = time.perf_counter()
        first = step * options.batch % (len(images) - options.batch)
        training.indices.copy_(order[first : first + options.batch])
        training.step()
    loss = training.loss.item()  # waits
    spent = time.perf_counter() - start
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    speed = (options.steps - options.warm) * options.batch / spent
    print(json.dumps({"images_per_second": speed, "loss": loss, "memory_mib": memory}))


if __name__ == "__main__":
    main()
