"""A loop of Hugging Face accelerate: prepare, gradient accumulation, gather_for_metrics, save_state and load_state."""
import tempfile

import torch
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list, set_seed
from torch.utils.data import DataLoader, TensorDataset

set_seed(1)
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
inputs = torch.randn(1003, 256)  # not a multiple of the batch: gather_for_metrics drops duplicated samples
data = TensorDataset(inputs, (inputs.sum(1) > 0).long())
model = torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 1024), torch.nn.ReLU(),
                            torch.nn.Linear(1024, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
model, optimizer, train, check = accelerator.prepare(model, optimizer, DataLoader(data, batch_size=16, shuffle=True),
                                                     DataLoader(data, batch_size=50))
step = 0


def train_epoch():
    global step
    for x, y in train:
        with accelerator.accumulate(model):
            loss = torch.nn.functional.cross_entropy(model(x), y)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        step += 1
        accelerator.print("step", step, "loss", accelerator.reduce(loss.detach(), "mean").item())


def accuracy():
    right = []
    with torch.no_grad():
        for x, y in check:
            right.append(accelerator.gather_for_metrics(model(x).argmax(1) == y))
    right = torch.cat(right)
    assert len(right) == len(data), f"{len(right)} results of {len(data)}"
    return right.float().mean().item()


train_epoch()
folder = broadcast_object_list([tempfile.mkdtemp()])[0]
accelerator.save_state(folder)
saved = accuracy()
train_epoch()
accelerator.load_state(folder)
accelerator.wait_for_everyone()
assert accuracy() == saved, "load_state did not restore the state of save_state"
accelerator.print("result", saved)
accelerator.end_training()
