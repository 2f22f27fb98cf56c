"""torch-geometric: a graph network under DistributedDataParallel, its graphs distributed by DistributedSampler."""
import torch
import torch.distributed as dist
from torch.utils.data.distributed import DistributedSampler
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GCNConv, global_mean_pool

dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(1)


def graph():
    nodes = int(torch.randint(10, 30, ()))
    x = torch.randn(nodes, 32)
    return Data(x=x, edge_index=torch.randint(0, nodes, (2, 3 * nodes)), y=(x.mean() > 0).long().view(1))


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.out = GCNConv(32, 256), GCNConv(256, 256), torch.nn.Linear(256, 2)

    def forward(self, data):
        x = self.first(data.x, data.edge_index).relu()
        return self.out(global_mean_pool(self.second(x, data.edge_index).relu(), data.batch))


graphs = [graph() for _ in range(400)]
sampler = DistributedSampler(graphs)
loader = DataLoader(graphs, batch_size=10, sampler=sampler)
model = torch.nn.parallel.DistributedDataParallel(Model())
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for step, data in enumerate(loader):
        loss = torch.nn.functional.cross_entropy(model(data), data.y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        if rank == 0:
            print("step", epoch * len(loader) + step, "loss", mean.item() / size, flush=True)
dist.destroy_process_group()
