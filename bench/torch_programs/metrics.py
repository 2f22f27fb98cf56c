"""DistributedDataParallel with torchmetrics, whose states are gathered over the ranks: sums, and lists of uneven length."""
import torch
import torch.distributed as dist
import torchmetrics
from torchmetrics.classification import MulticlassAUROC, MulticlassAccuracy, MulticlassConfusionMatrix

dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.BatchNorm1d(512), torch.nn.ReLU(), torch.nn.Linear(512, 5))
model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
metrics = torchmetrics.MetricCollection([MulticlassAccuracy(5), MulticlassConfusionMatrix(5), MulticlassAUROC(5)])
torch.manual_seed(10 + rank)
for step in range(30):
    x = torch.randn(16 + rank, 256)  # ranks have batches of different sizes
    y = x[:, :5].argmax(1)
    out = model(x)
    loss = torch.nn.functional.cross_entropy(out, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    metrics.update(out.detach().softmax(1), y)
    mean = loss.detach().clone()
    dist.all_reduce(mean)
    if rank == 0:
        print("step", step, "loss", mean.item() / size, flush=True)
found = metrics.compute()
if rank == 0:
    print("result", {name: value.tolist() for name, value in found.items()})
dist.destroy_process_group()
