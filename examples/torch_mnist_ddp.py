"""A small convolutional net on MNIST, data-parallel: DistributedDataParallel over Tutti.

    torchrun --standalone --nproc_per_node 2 torch_mnist_ddp.py --data FOLDER

FOLDER has the four files of MNIST (train-images-idx3-ubyte ..., plain or .gz). Only the name of the backend refers
to Tutti. The last line is the test accuracy: 98.5 % and more after three epochs, whatever the number of ranks.
"""
import argparse
import gzip
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel


def read_idx(folder, name):
    """A file of bytes in the IDX format: two zeros, the type, the number of dimensions, the dimensions, the values."""
    path = os.path.join(folder, name)
    opener = open
    if not os.path.exists(path):
        path, opener = path + ".gz", gzip.open
    if not os.path.exists(path):
        raise SystemExit(f"there is no {name} (or {name}.gz) in {folder}")
    with opener(path, "rb") as file:
        content = file.read()
    if content[:3] != b"\0\0\x08":
        raise SystemExit(f"{path} is not an IDX file of bytes")
    shape = [int.from_bytes(content[4 + 4 * i : 8 + 4 * i], "big") for i in range(content[3])]
    values = torch.frombuffer(bytearray(content[4 + 4 * len(shape) :]), dtype=torch.uint8)
    return values.view(shape)


def read_mnist(folder, part):
    """Images scaled to mean 0 and deviation 1, and labels."""
    images = read_idx(folder, f"{part}-images-idx3-ubyte").unsqueeze(1).float()
    return images.div_(255).sub_(0.1307).div_(0.3081), read_idx(folder, f"{part}-labels-idx1-ubyte").long()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 5, padding=2)
        self.conv2 = nn.Conv2d(16, 32, 5, padding=2)
        self.dense1 = nn.Linear(32 * 7 * 7, 128)
        self.dense2 = nn.Linear(128, 10)

    def forward(self, x):
        x = functional.max_pool2d(functional.relu(self.conv1(x)), 2)
        x = functional.max_pool2d(functional.relu(self.conv2(x)), 2)
        return self.dense2(functional.relu(self.dense1(x.flatten(1))))


def train_epoch(model, optimizer, schedule, images, labels, epoch, batch):
    """The ranks share one permutation of the samples: every rank takes its part of each batch."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(epoch))
    mine = batch // ranks
    for first in range(0, len(order) - batch + 1, batch):
        samples = order[first + rank * mine : first + (rank + 1) * mine]
        loss = functional.cross_entropy(model(images[samples]), labels[samples])
        optimizer.zero_grad()
        loss.backward()  # here the ranks' gradients are averaged
        optimizer.step()
        schedule.step()


@torch.no_grad()
def accuracy(model, images, labels):
    """The accuracy on all test images: each rank evaluates its share, and the counts are summed."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    right = torch.zeros(1, dtype=torch.int64)
    for first in range(rank * 500, len(images), ranks * 500):
        answers = model(images[first : first + 500]).argmax(1)
        right += (answers == labels[first : first + 500]).sum()
    dist.all_reduce(right)
    return 100 * right.item() / len(images)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", required=True, help="folder with the files of MNIST")
    parser.add_argument("--backend", default="tutti")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch", type=int, default=128, help="samples per step, over all ranks")
    arguments = parser.parse_args()

    dist.init_process_group(arguments.backend)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // int(os.environ.get("LOCAL_WORLD_SIZE", ranks))))
    torch.manual_seed(1)  # the same initial values on all ranks
    images, labels = read_mnist(arguments.data, "train")
    test = read_mnist(arguments.data, "t10k")

    model = DistributedDataParallel(Net(), gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    steps = arguments.epochs * (len(images) // arguments.batch)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0.01, 1 - step / steps))
    start = time.perf_counter()
    for epoch in range(arguments.epochs):
        train_epoch(model, optimizer, schedule, images, labels, epoch, arguments.batch)
        percent = accuracy(model.module, *test)
        if rank == 0:
            print(f"epoch {epoch + 1}: {percent:.2f} % after {time.perf_counter() - start:.1f} s", flush=True)
    if rank == 0:
        print(f"test accuracy: {percent:.2f} %")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
