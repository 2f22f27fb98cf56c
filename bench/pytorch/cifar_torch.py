#!/usr/bin/env python3
"""ResNet-20 on CIFAR-10 as a plain PyTorch script: bench/cifar_accuracy compares tutti-train's test accuracy with it.

Net, distribution of initial values, operations on images and recipe are those of `tutti-train --model resnet20
--dataset cifar10`; the random numbers differ. One process, on the host. Prints a JSON line for each epoch.
"""
import argparse
import glob
import json
import math
import os
import time

import torch
import torch.nn.functional as F

import resnet_torch

SIDE, CHANNELS, PADDING = 32, 3, 4
MEANS, DEVIATIONS = (0.4465, 0.4822, 0.4914), (0.2010, 0.1994, 0.2023)  # as in tutti-train, by the channel's position
MOMENTUM, WEIGHT_DECAY = 0.9, 1e-4
TEST_BATCH = 500


def read_samples(folder, pattern):
    """Reads images (bytes [n, channel, row, column]) and labels from files in CIFAR-10's binary form."""
    paths = sorted(glob.glob(os.path.join(folder, pattern)))
    if not paths:
        raise SystemExit("cifar_torch: %s has no %s; expected CIFAR-10's binary files" % (folder, pattern))
    records = []
    for path in paths:
        with open(path, "rb") as file:
            records.append(torch.frombuffer(bytearray(file.read()), dtype=torch.uint8).view(-1, 1 + CHANNELS * SIDE * SIDE))
    records = torch.cat(records)
    return records[:, 1:].reshape(-1, CHANNELS, SIDE, SIDE), records[:, 0].long()


def normalise(images):
    means, deviations = (torch.tensor(values).view(1, CHANNELS, 1, 1) for values in (MEANS, DEVIATIONS))
    return (images.float() / 255 - means) / deviations


def augment(images):
    """Shifts each image randomly within a frame of zeros, and mirrors half of them."""
    count = len(images)
    framed = F.pad(images, (PADDING,) * 4)
    place = torch.arange(SIDE)
    rows = torch.randint(0, 2 * PADDING + 1, (count, 1)) + place
    columns = torch.randint(0, 2 * PADDING + 1, (count, 1)) + place
    columns = torch.where(torch.rand(count, 1) < 0.5, columns.flip(1), columns)
    at = rows[:, :, None] * (SIDE + 2 * PADDING) + columns[:, None, :]
    return framed.flatten(2).gather(2, at.view(count, 1, -1).expand(-1, CHANNELS, -1)).view(-1, CHANNELS, SIDE, SIDE)


def rate_at(step, options, total):
    if step < options.warmup_steps:
        return options.lr * (step + 1) / options.warmup_steps
    done = (step - options.warmup_steps) / max(1, total - options.warmup_steps)
    return options.lr * 0.5 * (1 + math.cos(math.pi * done))


def make_optimizer(model, lr):
    arrays = [parameter for parameter in model.parameters() if parameter.dim() > 1]
    others = [parameter for parameter in model.parameters() if parameter.dim() == 1]  # norms and biases: without decay
    groups = [{"params": arrays, "weight_decay": WEIGHT_DECAY}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.SGD(groups, lr=lr, momentum=MOMENTUM, nesterov=True)


@torch.no_grad()
def test(model, images, labels, shape):
    """Returns (mean loss, share of right answers)."""
    model.eval()
    loss, right = 0.0, 0
    for first in range(0, len(images), TEST_BATCH):
        x, y = normalise(images[first : first + TEST_BATCH]).to(memory_format=shape), labels[first : first + TEST_BATCH]
        logits = model(x)
        loss += F.cross_entropy(logits, y, reduction="sum").item()
        right += (logits.argmax(1) == y).sum().item()
    model.train()
    return loss / len(images), right / len(images)


def train(options):
    shape = torch.channels_last if options.channels_last else torch.contiguous_format
    images, labels = read_samples(options.data, "data_batch_*.bin")
    test_images, test_labels = read_samples(options.data, "test_batch.bin")
    model = resnet_torch.make("resnet20", CHANNELS).to(memory_format=shape)
    optimizer = make_optimizer(model, options.lr)
    of_epoch, batch = len(images) // options.batch_size, options.batch_size
    for epoch in range(options.epochs):
        order, losses, start = torch.randperm(len(images)), [], time.perf_counter()
        for number in range(of_epoch):
            chosen = order[number * batch : (number + 1) * batch]
            x, y = normalise(augment(images[chosen])).to(memory_format=shape), labels[chosen]
            for group in optimizer.param_groups:
                group["lr"] = rate_at(epoch * of_epoch + number, options, options.epochs * of_epoch)
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        speed = of_epoch * batch / (time.perf_counter() - start)
        test_loss, accuracy = test(model, test_images, test_labels, shape)
        print(json.dumps({"epoch": epoch + 1, "train_loss": sum(losses) / len(losses), "test_loss": test_loss,
                          "test_accuracy": accuracy, "images_per_second": speed}), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", help="folder with data_batch_1.bin and so on, and test_batch.bin")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--warmup-steps", type=int, default=78)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--channels-last", action="store_true", help="images and weights as [batch, height, width, channels]")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    train(options)


if __name__ == "__main__":
    main()
