"""The examples of OneFlow's page on global tensors, with PyTorch's DTensors on Tutti: parts of one tensor on
several ranks.

    torchrun --standalone --nproc_per_node 4 torch_tensors.py

A DeviceMesh is OneFlow's placement; Shard(d), Replicate() and Partial() are split(d), broadcast and partial_sum.
torch_tutti.redistribute converts from one mesh to another, which DTensor.redistribute refuses.
"""
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

import torch_tutti


def show(text):
    print(text, flush=True)


def make(pair):
    """x = randn(4, 5) by rows on ranks 0 and 1: each has two of them."""
    torch.manual_seed(1)
    x = distribute_tensor(torch.randn(4, 5), pair, [Shard(0)])
    if dist.get_rank() == 1:
        show(f"rank 1 has {tuple(x.to_local().shape)} of {tuple(x.shape)}")


def join(pair):
    """Tensors of (2, 5) on two ranks become one of (4, 5)."""
    rank = dist.get_rank()
    x = DTensor.from_local(torch.full((2, 5), float(rank)), pair, [Shard(0)])
    if rank == 0:
        show(f"joined: {tuple(x.shape)}")


def hand_over(pair, other):
    """[1, 2] split on ranks 0 and 1 becomes a copy on each of ranks 2 and 3. All four ranks call."""
    x = DTensor.from_local(torch.tensor([1.0 + dist.get_rank()]), pair, [Shard(0)], shape=torch.Size([2]), stride=(1,))
    copy = torch_tutti.redistribute(x, other, [Replicate()])
    if dist.get_rank() == 3:
        show(f"rank 3 has {copy.to_local().tolist()}")


def add(pair):
    """x by rows plus y by columns: DTensor redistributes one of them by itself."""
    numbers = torch.arange(16.0).reshape(4, 4)
    z = distribute_tensor(numbers, pair, [Shard(0)]) + distribute_tensor(10 * numbers, pair, [Shard(1)])
    whole = z.full_tensor()
    if dist.get_rank() == 0:
        show(f"z[3, 3] is {whole[3, 3].item():g}")


def multiply(pair, other):
    """A product on ranks 0 and 1 by rows; ranks 2 and 3 multiply the result by columns."""
    rank = dist.get_rank()
    if rank < 2:
        a = distribute_tensor(torch.arange(20.0).reshape(4, 5), pair, [Shard(0)])
        b = distribute_tensor(torch.full((5, 8), 0.5), pair, [Replicate()])
        product = a @ b
    else:  # ranks outside of a mesh pass the tensor's shape
        product = DTensor.from_local(torch.empty(0), pair, [Shard(0)], shape=torch.Size([4, 8]), stride=(8, 1))
    moved = torch_tutti.redistribute(product, other, [Replicate()])
    if rank >= 2:
        c = distribute_tensor(torch.arange(48.0).reshape(8, 6), other, [Shard(1)])
        whole = (moved @ c).full_tensor()
        if rank == 3:
            show(f"(a b c)[3, 5] is {whole[3, 5].item():g}")


def main():
    dist.init_process_group("tutti")
    if dist.get_world_size() != 4:
        raise SystemExit("this example is for 4 ranks: torchrun --standalone --nproc_per_node 4 torch_tensors.py")
    torch_tutti.improve_dtensor()  # DTensor's own redistributions, as in add, use one all_to_all
    pair, other = DeviceMesh("cpu", [0, 1]), DeviceMesh("cpu", [2, 3])
    if dist.get_rank() < 2:
        make(pair)
        join(pair)
        add(pair)
    hand_over(pair, other)
    multiply(pair, other)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
