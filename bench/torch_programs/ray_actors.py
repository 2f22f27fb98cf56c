"""Ray: two actors, each a rank of DistributedDataParallel; the driver, which is not a rank, averages and prints their
losses."""
import ray
import torch
import torch.distributed as dist

SIZE = 2


@ray.remote(num_cpus=1)
class Rank:
    def __init__(self, rank):
        self.rank = rank

    def find_address(self):
        import socket

        with socket.socket() as one:
            one.bind(("127.0.0.1", 0))
            return f"tcp://127.0.0.1:{one.getsockname()[1]}"

    def begin(self, address):
        dist.init_process_group("gloo", init_method=address, rank=self.rank, world_size=SIZE)
        torch.manual_seed(1)
        layers = [torch.nn.Linear(256, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 1024), torch.nn.ReLU(),
                  torch.nn.Linear(1024, 2)]
        self.model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        torch.manual_seed(10 + self.rank)

    def step(self):
        x = torch.randn(16, 256)
        loss = torch.nn.functional.cross_entropy(self.model(x), (x.sum(1) > 0).long())
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def end(self):
        result = sum(parameter.double().sum().item() for parameter in self.model.parameters())
        dist.destroy_process_group()
        return result


ray.init(num_cpus=SIZE, include_dashboard=False)
ranks = [Rank.options(runtime_env={"env_vars": {"RANK": str(rank)}}).remote(rank) for rank in range(SIZE)]
address = ray.get(ranks[0].find_address.remote())
ray.get([rank.begin.remote(address) for rank in ranks])
for step in range(40):
    print("step", step, "loss", sum(ray.get([rank.step.remote() for rank in ranks])) / SIZE, flush=True)
results = ray.get([rank.end.remote() for rank in ranks])
assert results[0] == results[1], f"the ranks' parameters differ: {results}"
print("result", results[0])
ray.shutdown()
