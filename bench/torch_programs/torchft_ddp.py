"""torchft: two replicas under its DistributedDataParallel. One dies during the run, restarts and takes its state from
the other."""
import os
import subprocess
import sys
from datetime import timedelta

import torch
from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo
from torchft.coordination import LighthouseServer

REPLICAS, STEPS, DIES_AT = 2, 40, 15


def train(replica, dies):
    torch.manual_seed(1)
    layers = [torch.nn.Linear(256, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 2)]
    model = torch.nn.Sequential(*layers)

    def load(state):
        model.load_state_dict(state["model"])
        inner.load_state_dict(state["optimizer"])

    store = torch.distributed.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    manager = Manager(pg=ProcessGroupGloo(timeout=timedelta(seconds=20)), min_replica_size=REPLICAS, load_state_dict=load,
                      state_dict=lambda: {"model": model.state_dict(), "optimizer": inner.state_dict()}, replica_id=f"replica_{replica}",
                      store_addr="localhost", store_port=store.port, rank=0, world_size=1, timeout=timedelta(seconds=60))
    wrapped, inner = DistributedDataParallel(manager, model), torch.optim.AdamW(model.parameters(), lr=1e-3)
    optimizer = Optimizer(manager, inner)
    while manager.current_step() < STEPS:
        step = manager.current_step()
        optimizer.zero_grad()
        x = torch.randn(16, 256, generator=torch.Generator().manual_seed(1000 * step + replica))
        loss = torch.nn.functional.cross_entropy(wrapped(x), (x.sum(1) > 0).long())
        if dies and step == DIES_AT:
            os._exit(9)
        loss.backward()
        optimizer.step()
        if replica == 0 and manager.current_step() > step:
            print("step", step, "loss", loss.item(), flush=True)
    if replica == 0:
        print("result", sum(parameter.double().sum().item() for parameter in model.parameters()), flush=True)
    manager.shutdown(wait=False)


def main():
    server = LighthouseServer(bind="127.0.0.1:0", min_replicas=REPLICAS, join_timeout_ms=60000, heartbeat_timeout_ms=2000)
    environment = dict(os.environ, TORCHFT_LIGHTHOUSE=server.address())

    def start(replica, *words):
        return subprocess.Popen([sys.executable, __file__, str(replica), *words], env=environment)

    first, second = start(0), start(1, "dies")
    assert second.wait() == 9, f"replica 1 should have died at step {DIES_AT}: {second.returncode}"
    second = start(1)
    codes = first.wait(), second.wait()
    server.shutdown()
    sys.exit(any(codes))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        train(int(sys.argv[1]), sys.argv[2:] == ["dies"])
        os._exit(0)  # the manager's threads would keep the process alive
    main()
