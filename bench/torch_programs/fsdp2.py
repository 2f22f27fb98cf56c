"""FSDP2; with "hsdp", sharded between pairs of ranks and replicated between them. The state goes through DCP's
async_save."""
import sys
import tempfile

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

HYBRID = "hsdp" in sys.argv[1:]

dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
mesh = init_device_mesh("cpu", (size // 2, 2), mesh_dim_names=("replicate", "shard")) if HYBRID else init_device_mesh("cpu", (size,))
torch.manual_seed(1)
model = torch.nn.Sequential(*[torch.nn.TransformerEncoderLayer(128, 4, 512, dropout=0.0, batch_first=True) for _ in range(3)])
for layer in model:
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
torch.manual_seed(10 + rank)
saving = dist.new_group()  # async_save uses it on its own thread, while the steps use the others
folder = [tempfile.mkdtemp()]
dist.broadcast_object_list(folder)
pending = saved = None
for step in range(30):
    x = torch.randn(4, 32, 128)
    loss = (model(x) - x.flip(1)).square().mean()
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0).full_tensor()
    optimizer.step()
    optimizer.zero_grad()
    mean = loss.detach().clone()
    dist.all_reduce(mean)
    if rank == 0:
        print("step", step, "loss", mean.item() / size, "norm", norm.item(), flush=True)
    if step == 20:
        state = get_model_state_dict(model)
        saved = {name: value.full_tensor().clone() for name, value in state.items()}
        pending = dcp.async_save(state, checkpoint_id=folder[0], process_group=saving)  # continues during the steps
pending.result()
state = get_model_state_dict(model)
dcp.load(state, checkpoint_id=folder[0])
set_model_state_dict(model, state)
for name, value in get_model_state_dict(model).items():
    assert torch.equal(value.full_tensor(), saved[name]), f"{name} differs from the value that async_save stored"
if rank == 0:
    print("result", sum(value.double().sum() for value in saved.values()).item())
dist.destroy_process_group()
