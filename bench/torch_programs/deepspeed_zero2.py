"""DeepSpeed, ZeRO stage 2 on the CPU, with a checkpoint that is saved and loaded."""
import tempfile

import deepspeed
import torch
import torch.distributed as dist

torch.manual_seed(1)
deepspeed.init_distributed(dist_backend="gloo")
model = torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 1024), torch.nn.ReLU(),
                            torch.nn.Linear(1024, 2))
settings = {
    "train_micro_batch_size_per_gpu": 16,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
    "zero_optimization": {"stage": 2, "reduce_bucket_size": 500000, "overlap_comm": False},
    "zero_allow_untested_optimizer": True,
}
engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=settings)
torch.manual_seed(10 + dist.get_rank())
folder = [tempfile.mkdtemp()]
dist.broadcast_object_list(folder)


def train(steps):
    for step in range(steps):
        x = torch.randn(16, 256)
        loss = torch.nn.functional.cross_entropy(engine(x), (x.sum(1) > 0).long())
        engine.backward(loss)
        engine.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean, dist.ReduceOp.SUM)
        if dist.get_rank() == 0:
            print("step", step, "loss", mean.item() / dist.get_world_size(), flush=True)


train(30)
engine.save_checkpoint(folder[0], tag="one")
before = [p.detach().clone() for p in engine.module.parameters()]
train(5)
engine.load_checkpoint(folder[0], tag="one")
after = list(engine.module.parameters())
assert all(torch.equal(a, b) for a, b in zip(before, after)), "the checkpoint did not restore the parameters"
if dist.get_rank() == 0:
    print("result", sum(p.double().sum() for p in before).item())
dist.destroy_process_group()
