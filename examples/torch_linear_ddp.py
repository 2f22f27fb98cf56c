"""Linear regression by two ranks: each has half of the data, together they find w = [2, 3].

    torchrun --standalone --nproc_per_node 2 torch_linear_ddp.py

Only the name of the backend refers to Tutti (--backend gloo runs the same with PyTorch's own).
"""
import argparse

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

X = torch.tensor([[[1.0, 2.0], [2.0, 3.0]], [[4.0, 6.0], [3.0, 1.0]]])  # a row of samples per rank
Y = torch.tensor([[[8.0], [13.0]], [[26.0], [9.0]]])  # X times [2, 3]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", default="tutti")
    parser.add_argument("--steps", type=int, default=500)
    arguments = parser.parse_args()

    dist.init_process_group(arguments.backend)
    rank = dist.get_rank()
    if dist.get_world_size() != len(X):
        raise SystemExit(f"this example has data for {len(X)} ranks, not {dist.get_world_size()}")

    model = torch.nn.Linear(2, 1, bias=False)
    torch.nn.init.zeros_(model.weight)
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)
    for step in range(1, arguments.steps + 1):
        loss = torch.nn.functional.mse_loss(ddp(X[rank]), Y[rank], reduction="sum")
        optimizer.zero_grad()
        loss.backward()  # here the ranks' gradients are averaged
        optimizer.step()
        if step % 100 == 0 and rank == 0:
            print(f"{step:5} loss of rank 0: {loss.item():.6f}")

    if rank == 0:
        print("w = [{:.4f}, {:.4f}]".format(*model.weight.flatten().tolist()))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
