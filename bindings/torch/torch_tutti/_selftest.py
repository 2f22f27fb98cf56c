"""Two processes that form a group and reduce: run by python -m torch_tutti, about a second each after their start.

The parent starts this file once per rank with the folder of a FileStore; rank 0 answers with a line of JSON on its
standard output. Any other end is a failure, reported with the last line of the rank's errors.
"""
import datetime
import json
import os
import subprocess
import sys
import tempfile
import time

RANKS = 2
SECONDS = 0.2  # of measuring, per size
LIMIT_S = 180  # in all; mostly importing PyTorch, which takes over a minute with ten busy processes per core


def run():
    """Returns (facts, None), or (the facts found so far, why it failed)."""
    with tempfile.TemporaryDirectory(prefix="torch_tutti_") as folder:
        environment = dict(os.environ, TORCH_CPP_LOG_LEVEL="ERROR")
        for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
            environment.pop(name, None)
        ranks = [subprocess.Popen([sys.executable, "-m", "torch_tutti._selftest", str(rank), folder], env=environment,
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for rank in range(RANKS)]
        try:
            return _collect(ranks, time.monotonic() + LIMIT_S)
        finally:
            for process in ranks:
                process.kill()
                process.wait()


def _collect(ranks, deadline):
    facts, problem = {}, None
    for rank, process in enumerate(ranks):
        try:
            output, errors = process.communicate(timeout=max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            return facts, f"rank {rank} did not end within {LIMIT_S} s"
        if rank == 0 and process.returncode == 0:
            facts = json.loads(output.strip().splitlines()[-1])
        if process.returncode != 0 and problem is None:
            lines = errors.strip().splitlines() or [f"exit code {process.returncode}"]
            problem = f"rank {rank}: {lines[-1]}"
    return facts, problem


def _median_us(dist, tensor, group):
    """Time of one all_reduce: median over SECONDS; both ranks make the same number of calls."""
    times = []
    for _ in range(20):
        dist.all_reduce(tensor, group=group)
    start = time.perf_counter()
    for _ in range(10):
        dist.all_reduce(tensor, group=group)
    import torch

    estimate = torch.tensor([(time.perf_counter() - start) / 10], dtype=torch.float64)
    dist.all_reduce(estimate, op=dist.ReduceOp.MAX, group=group)
    for _ in range(max(5, min(20000, int(SECONDS / max(estimate.item(), 1e-7))))):
        start = time.perf_counter()
        dist.all_reduce(tensor, group=group)
        times.append(time.perf_counter() - start)
    return sorted(times)[len(times) // 2] * 1e6


def _check(dist, torch, tensor, rank, words):
    """The sum of rank + 1 + (index modulo 7), which is exact in float32."""
    index = torch.arange(tensor.numel(), dtype=torch.float32) % 7
    tensor.copy_(index + rank + 1)
    dist.all_reduce(tensor)
    if not torch.equal(tensor, RANKS * index + RANKS * (RANKS + 1) / 2):
        raise SystemExit(f"all_reduce of {words} gave wrong values")


def _single_copy(dist, torch, rank):
    """Whether rank 0 can read rank 1's memory with process_vm_readv, as large messages are read."""
    import ctypes

    class Range(ctypes.Structure):
        _fields_ = [("base", ctypes.c_void_p), ("bytes", ctypes.c_size_t)]

    source = torch.full((1,), 4711 if rank == 1 else 0, dtype=torch.int64)
    place = torch.tensor([os.getpid(), source.data_ptr()], dtype=torch.int64)
    dist.broadcast(place, src=1)
    answer = "yes"
    if rank == 0:
        libc = ctypes.CDLL(None, use_errno=True)
        target = torch.zeros(1, dtype=torch.int64)
        here, there = Range(target.data_ptr(), 8), Range(place[1].item(), 8)
        done = libc.process_vm_readv(place[0].item(), ctypes.byref(here), 1, ctypes.byref(there), 1, 0)
        if done != 8 or target.item() != 4711:
            answer = f"no: {os.strerror(ctypes.get_errno())}; large messages are copied twice"
    dist.barrier()
    return answer


def _rank_main(rank, folder):
    import torch
    import torch.distributed as dist

    import torch_tutti

    torch.set_num_threads(1)
    store = dist.FileStore(os.path.join(folder, "store"), RANKS)
    dist.init_process_group("tutti", store=store, rank=rank, world_size=RANKS, timeout=datetime.timedelta(seconds=20))
    small, large = torch.zeros(2), torch.zeros(1 << 18)
    shared = torch_tutti.zeros(1 << 18)
    for tensor, words in ((small, "8 B"), (large, "1 MiB"), (shared, "1 MiB of shared memory")):
        _check(dist, torch, tensor, rank, words)
        tensor.zero_()
    facts = {"all_reduce": "values are right", "reads between processes": _single_copy(dist, torch, rank)}
    for tensor, words in ((small, "8 B"), (large, "1 MiB"), (shared, "1 MiB, torch_tutti.empty")):
        facts[words] = f"{_median_us(dist, tensor, None):.1f} us per all_reduce"
    dist.destroy_process_group()
    if rank == 0:
        print(json.dumps(facts))


if __name__ == "__main__":
    _rank_main(int(sys.argv[1]), sys.argv[2])
