"""TorchRec's DistributedModelParallel: two embedding tables, one sharded by columns over the ranks, the other whole on
one."""
import torch
import torch.distributed as dist
import torchrec
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.planner import EmbeddingShardingPlanner, Topology
from torchrec.distributed.planner.types import ParameterConstraints

dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(1)


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.tables = torchrec.EmbeddingBagCollection(device=torch.device("cpu"), tables=[
            torchrec.EmbeddingBagConfig(name=name, embedding_dim=64, num_embeddings=1000, feature_names=[name])
            for name in ("item", "user")])
        self.out = torch.nn.Linear(128, 2)

    def forward(self, features):
        return self.out(self.tables(features).values())


constraints = {"item": ParameterConstraints(sharding_types=["column_wise"], min_partition=32),
               "user": ParameterConstraints(sharding_types=["table_wise"])}
model = Model()
with torch.no_grad():  # the same values on all ranks, whichever rows each keeps
    for parameter in model.parameters():
        parameter.uniform_(-0.1, 0.1)
planner = EmbeddingShardingPlanner(topology=Topology(world_size=size, compute_device="cpu"), constraints=constraints)
sharders = torchrec.distributed.model_parallel.get_default_sharders()
model = DistributedModelParallel(model, device=torch.device("cpu"), plan=planner.collective_plan(model, sharders, dist.group.WORLD),
                                 sharders=sharders)
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
torch.manual_seed(10 + rank)
for step in range(30):
    lengths = torch.randint(0, 4, (64,))
    values = torch.randint(0, 1000, (int(lengths.sum()),))
    features = torchrec.KeyedJaggedTensor(keys=["item", "user"], values=values, lengths=lengths)
    loss = torch.nn.functional.cross_entropy(model(features), (lengths[:32] > 1).long())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    mean = loss.detach().clone()
    dist.all_reduce(mean)
    if rank == 0:
        print("step", step, "loss", mean.item() / size, flush=True)
dist.destroy_process_group()
