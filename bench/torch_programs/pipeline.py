"""Pipelining with torch.distributed.pipelining: one stage per rank, schedule 1F1B."""
import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(1)
layers = [torch.nn.TransformerEncoderLayer(128, 4, 512, dropout=0.0, batch_first=True) for _ in range(4)]
mine = torch.nn.Sequential(*layers[rank * 4 // size:(rank + 1) * 4 // size])
stage = PipelineStage(mine, rank, size, torch.device("cpu"))
schedule = Schedule1F1B(stage, n_microbatches=4, loss_fn=lambda y, target: (y - target).square().mean())
optimizer = torch.optim.AdamW(mine.parameters(), lr=1e-3)
for step in range(30):
    x = torch.randn(8, 32, 128)  # the same on all ranks
    losses = []
    if rank == 0:
        schedule.step(x)
    elif rank == size - 1:
        schedule.step(target=x.flip(1), losses=losses)
    else:
        schedule.step()
    optimizer.step()
    optimizer.zero_grad()
    loss = torch.stack(losses).mean().detach() if losses else torch.zeros(())
    dist.broadcast(loss, size - 1)
    if rank == 0:
        print("step", step, "loss", loss.item(), flush=True)
dist.destroy_process_group()
