"""A notebook, run by Jupyter's kernel, that trains with accelerate on two forked processes through notebook_launcher.

FIRST_CELL, if set, is the text of a cell before the others: the cell that a user writes at the top of a notebook.
"""
import os
import sys

import nbformat
from nbclient import NotebookClient

CELLS = ["""
import torch
from accelerate import Accelerator, notebook_launcher
from accelerate.utils import set_seed
""", """
def train():
    set_seed(1)
    accelerator = Accelerator(cpu=True)
    layers = [torch.nn.Linear(256, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 2)]
    model = torch.nn.Sequential(*layers)
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-3))
    torch.manual_seed(10 + accelerator.process_index)
    assert accelerator.num_processes == 2
    for step in range(40):
        x = torch.randn(16, 256)
        loss = torch.nn.functional.cross_entropy(model(x), (x.sum(1) > 0).long())
        optimizer.zero_grad()
        accelerator.backward(loss)
        optimizer.step()
        mean = accelerator.reduce(loss.detach(), "mean").item()
        if accelerator.is_main_process:  # one write per line: the kernel mixes up parts of a forked child's lines
            print(f"step {step} loss {mean}\\n", end="", flush=True)
    sums = accelerator.gather(sum(parameter.double().sum() for parameter in model.parameters()).detach().view(1))
    assert sums[0] == sums[1], sums
    if accelerator.is_main_process:
        print(f"result {sums[0].item()}\\n", end="", flush=True)
    accelerator.end_training()
""", """
import socket
with socket.socket() as one:
    one.bind(("127.0.0.1", 0))
    port = str(one.getsockname()[1])
notebook_launcher(train, num_processes=2, use_port=port)
"""]


class Client(NotebookClient):
    def process_message(self, message, cell, cell_index):
        """Shows the cells' output at once, as a browser does."""
        if message["msg_type"] == "stream":
            print(message["content"]["text"], end="", flush=True, file=getattr(sys, message["content"]["name"]))
        return super().process_message(message, cell, cell_index)


first = [os.environ["FIRST_CELL"]] if os.environ.get("FIRST_CELL") else []
notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in first + CELLS])
Client(notebook, timeout=300, kernel_name="python3").execute()
