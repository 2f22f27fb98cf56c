#!/usr/bin/env python3
"""PyTorch's tensors on a GPU through Tutti: collectives, DDP and FSDP2 with several ranks on one GPU, compared with
expected results.

    torch_cuda.py --ranks 2 [--device cpu] [--only graph streams ...]

Ranks are processes, spawned here; all use GPU 0. Collectives have results in closed form; DDP and FSDP2 must have the
losses of one rank that trains with the whole batch, and with one rank also those of NCCL. Prints a line for each
part; exits with 0 if all are correct.
"""
import argparse
import datetime
import os
import socket
import sys
import threading
import time
import traceback
import warnings

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS, BATCH, WIDTH = 8, 32, 64
TOLERANCE = 2e-4  # relative: sums are in another order
LIMIT_S = 60


class Place:
    """The device of a rank."""

    def __init__(self, rank, ranks, device, backend):
        self.rank, self.ranks, self.backend = rank, ranks, backend
        self.device = torch.device("cuda", 0) if device == "cuda" else torch.device("cpu")

    def make(self, values, dtype=torch.float32):
        return torch.as_tensor(values, dtype=dtype, device=self.device)

    def sync(self):
        if self.device.type == "cuda":
            torch.cuda.synchronize()


def expect_equal(got, expected):
    torch.testing.assert_close(got.cpu(), torch.as_tensor(expected).to(got.dtype), rtol=0, atol=0)


# ---------------------------------------------------------------------------------------------------- collectives

def collectives(place):
    n, rank = place.ranks, place.rank
    for dtype in (torch.float32, torch.float64, torch.int32, torch.int64, torch.bfloat16, torch.float16, torch.uint8):
        for count in (1, 7, 4096, 100003):
            tensor = torch.full((count,), rank + 1, dtype=dtype, device=place.device)
            dist.all_reduce(tensor)
            expect_equal(tensor, torch.full((count,), n * (n + 1) // 2, dtype=dtype))
    tensor = place.make([rank, -rank, 5.0])
    dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
    expect_equal(tensor, [n - 1.0, 0.0, 5.0])
    tensor = place.make([float(rank)])
    dist.all_reduce(tensor, op=dist.ReduceOp.AVG)
    expect_equal(tensor, [(n - 1) / 2])
    tensor = place.make([rank + 10.0, 3.0])
    dist.broadcast(tensor, n - 1)
    expect_equal(tensor, [n + 9.0, 3.0])
    gathered = [place.make([0.0, 0.0]) for _ in range(n)]
    dist.all_gather(gathered, place.make([rank, rank + 0.5]))
    for other in range(n):
        expect_equal(gathered[other], [other, other + 0.5])
    whole = torch.zeros(2 * n, device=place.device)
    dist.all_gather_into_tensor(whole, place.make([rank, rank + 0.5]))
    expect_equal(whole, [value for other in range(n) for value in (other, other + 0.5)])
    part = torch.zeros(2, device=place.device)
    dist.reduce_scatter_tensor(part, place.make([float(i + rank) for i in range(2 * n)]))
    expect_equal(part, [n * (2.0 * rank + i) + n * (n - 1) / 2 for i in range(2)])
    out = torch.zeros(n, device=place.device)
    dist.all_to_all_single(out, place.make([10.0 * rank + other for other in range(n)]))
    expect_equal(out, [10.0 * other + rank for other in range(n)])
    tensor = place.make([rank + 1.0])
    dist.reduce(tensor, 0)
    if rank == 0:
        expect_equal(tensor, [n * (n + 1) / 2])
    dist.barrier()
    return "7 types, 8 kinds"


def streams(place):
    """Calls on several streams, which wait for each other only where required; the caller's memory is freed at once."""
    if place.device.type != "cuda":
        return "not on this device"
    own = [torch.cuda.Stream() for _ in range(3)]
    results = []
    for i in range(60):
        with torch.cuda.stream(own[i % 3]):
            tensor = torch.full((50000,), float(place.rank + i), device=place.device)
            if i % 2 == 0:
                work = dist.all_reduce(tensor, async_op=True)
                work.wait()
            else:
                dist.all_reduce(tensor)
            results.append((i, tensor.sum()))
            del tensor
    place.sync()
    for i, total in results:
        expected = 50000.0 * sum(other + i for other in range(place.ranks))
        if abs(total.item() - expected) > 1e-3 * expected + 1e-3:
            raise AssertionError("call %d summed to %s instead of %s" % (i, total.item(), expected))
    return "60 calls on 3 streams"


def messages(place):
    n, rank = place.ranks, place.rank
    if n == 1:
        return "none with one rank"
    out, into = place.make([float(rank)] * 1000), torch.zeros(1000, device=place.device)
    works = dist.batch_isend_irecv([dist.P2POp(dist.isend, out, (rank + 1) % n), dist.P2POp(dist.irecv, into, (rank - 1) % n)])
    for work in works:
        work.wait()
    place.sync()
    expect_equal(into, [float((rank - 1) % n)] * 1000)
    return "round the ring"


# ------------------------------------------------------------------------------------------------------ training

def make_model():
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.ReLU(), nn.Linear(4 * WIDTH, 4 * WIDTH), nn.ReLU(),
                         nn.Linear(4 * WIDTH, 10))


def batch_of(step):
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(BATCH, WIDTH, generator=generator)
    return x, (x[:, :10] * 3).argmax(dim=1)


def train(place, model, ranks):
    """Losses of the whole batch; this rank computes its part."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for step in range(STEPS):
        x, y = (part.chunk(ranks)[place.rank if ranks > 1 else 0].to(place.device) for part in batch_of(step))
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach().clone())
    losses = torch.stack(losses)
    if ranks > 1:
        dist.all_reduce(losses)
        losses /= ranks
    return losses.cpu()


def expect_near(losses, expected):
    difference = ((losses - expected).abs() / (1 + expected.abs())).max().item()
    if difference > TOLERANCE:
        raise AssertionError("losses %s instead of %s" % (losses.tolist(), expected.tolist()))
    return "losses within %.1e" % difference


def alone(place):
    return train(place, make_model().to(place.device), 1)


def ddp(place):
    devices = [0] if place.device.type == "cuda" else None
    model = DistributedDataParallel(make_model().to(place.device), device_ids=devices, bucket_cap_mb=0.1)
    return expect_near(train(place, model, place.ranks), alone(place))


def fsdp2(place):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    model = make_model().to(place.device)
    mesh = init_device_mesh(place.device.type, (place.ranks,))
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return expect_near(train(place, model, place.ranks), alone(place))


def as_nccl(place):
    """The same with NCCL if each rank has its own GPU: with one rank."""
    if place.ranks > 1 or place.device.type != "cuda":
        return "NCCL needs a GPU for each rank"
    group = dist.new_group([0], backend="nccl")
    losses = []
    for name in (None, group):
        model = DistributedDataParallel(make_model().to(place.device), device_ids=[0], process_group=name)
        losses.append(train(place, model, 1))
    return expect_near(losses[0], losses[1])


def speed(place):
    """Microseconds of an all_reduce, enqueued one after the other."""
    words = []
    for count in (2, 1 << 18, 1 << 24):
        tensor = torch.zeros(count, device=place.device)
        for timed in (False, True):
            dist.barrier()
            place.sync()
            start = time.perf_counter()
            for _ in range(20):
                dist.all_reduce(tensor)
            place.sync()
        words.append("%d B: %.0f us" % (4 * count, 1e6 * (time.perf_counter() - start) / 20))
    return ", ".join(words)


# ---------------------------------------------------------------------------------------------------- CUDA graphs

MODES = ("global", "thread_local")  # modes of torch.cuda.graph
REPLAYS = 5
WARM_UP = 11  # steps of DDP before a capture, as PyTorch's notes on CUDA graphs require


def captured(place, mode, body):
    """A graph of the work that the body enqueues. The end of a capture raises the error of a forbidden call."""
    made = torch.cuda.CUDAGraph()
    place.sync()
    with torch.cuda.graph(made, capture_error_mode=mode):
        body()
    return made


def capture_sums(place, mode):
    """Each replay doubles, and sums over the ranks."""
    n, rank = place.ranks, place.rank
    gaps = torch.zeros(2000, device=place.device)[::2]

    def dropped(tensor):
        dist.all_reduce(tensor)

    def waited_for(tensor):
        work = dist.all_reduce(tensor, async_op=True)
        if torch.cuda.is_current_stream_capturing() and not work.is_completed():
            raise AssertionError("the work of a captured operation is under way")
        work.wait()

    def by_future(tensor):
        dist.all_reduce(tensor, async_op=True).get_future().wait()

    def with_gaps(tensor):
        gaps.copy_(tensor)
        dist.all_reduce(gaps, async_op=True).wait()
        tensor.copy_(gaps)

    for way in (dropped, waited_for, by_future, with_gaps):
        tensor = place.make([rank + 1.0] * 1000)
        way(torch.zeros_like(tensor))

        def step(tensor=tensor, way=way):
            tensor.mul_(2)
            way(tensor)

        made = captured(place, mode, step)
        expect_equal(tensor, [rank + 1.0] * 1000)
        expected = n * (n + 1.0)
        for _ in range(REPLAYS):
            made.replay()
            place.sync()
            expect_equal(tensor, [expected] * 1000)
            expected *= 2 * n
        made.reset()
    return "sums"


def capture_gathers(place, mode):
    n, rank = place.ranks, place.rank
    own, whole = place.make([rank + 1.0] * 100), torch.zeros(100 * n, device=place.device)
    part = torch.zeros(100, device=place.device)

    def step():
        dist.all_gather_into_tensor(whole, own)
        dist.reduce_scatter_tensor(part, whole)
        own.mul_(2)

    made = captured(place, mode, step)
    for replay in range(REPLAYS):
        made.replay()
        place.sync()
        expect_equal(whole, [2.0**replay * (other + 1) for other in range(n) for _ in range(100)])
        expect_equal(part, [2.0**replay * (rank + 1) * n] * 100)
    made.reset()
    return "gathers"


def capture_beside_works(place, mode):
    """Works of earlier operations are polled by another thread during the capture, and dropped."""
    tensor = place.make([1.0] * 1000)
    gaps = torch.ones(2000, device=place.device)[::2]
    earlier = [dist.all_reduce(torch.ones(1 << 20, device=place.device), async_op=True), dist.all_reduce(gaps, async_op=True)]
    polls, failed, stop = [0], [], threading.Event()

    def poll():
        try:
            while not stop.is_set():
                for work in list(earlier):
                    work.is_completed()
                polls[0] += 1
                time.sleep(1e-4)
        except Exception as error:  # noqa: the main thread raises it
            failed.append(error)

    def step():
        dist.all_reduce(tensor)
        before = polls[0]
        while polls[0] < before + 10 and not failed:
            time.sleep(1e-3)
        earlier.clear()

    thread = threading.Thread(target=poll)
    thread.start()
    try:
        made = captured(place, mode, step)
    finally:
        stop.set()
        thread.join()
    if failed:
        raise failed[0]
    made.replay()
    place.sync()
    expect_equal(tensor, [float(place.ranks)] * 1000)
    expect_equal(gaps, [float(place.ranks)] * 1000)
    made.reset()
    return "works that are polled and dropped"


class DdpSteps:
    """Steps of DDP on memory at fixed addresses, as a graph requires. Two objects compute the same."""

    def __init__(self, place):
        self.place = place
        count = BATCH // place.ranks
        self.x = torch.zeros(count, WIDTH, device=place.device)
        self.y = torch.zeros(count, dtype=torch.long, device=place.device)
        self.model = DistributedDataParallel(make_model().to(place.device), device_ids=[0], bucket_cap_mb=0.1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.loss = None

    def put(self, step):
        for own, whole in zip((self.x, self.y), batch_of(step)):
            own.copy_(whole.chunk(self.place.ranks)[self.place.rank])

    def run(self):
        self.optimizer.zero_grad(set_to_none=True)
        self.loss = nn.functional.cross_entropy(self.model(self.x), self.y)
        self.loss.backward()
        self.optimizer.step()


def capture_ddp(place, mode):
    """A whole step, captured and replayed, compared with one that is not."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        steps, plain = DdpSteps(place), DdpSteps(place)
        for step in range(WARM_UP):
            for each in (steps, plain):
                each.put(step)
                each.run()
        steps.optimizer.zero_grad(set_to_none=True)
    torch.cuda.current_stream().wait_stream(side)
    steps.loss = None
    made = captured(place, mode, steps.run)
    differences, same = [], True
    for step in range(WARM_UP, WARM_UP + REPLAYS):
        steps.put(step)
        made.replay()
        plain.put(step)
        plain.run()
        place.sync()
        pairs = [(steps.loss, plain.loss)] + list(zip(steps.model.parameters(), plain.model.parameters()))
        for got, expected in pairs:
            got, expected = got.detach(), expected.detach()
            same = same and torch.equal(got, expected)
            differences.append(((got - expected).abs() / (1 + expected.abs())).max())
    worst = torch.stack(differences).max().item()
    made.reset()
    if not worst <= TOLERANCE:  # not a number, too
        raise AssertionError("a replayed step of DDP differs by %.1e" % worst)
    return "a step of DDP (%s)" % ("equal bit for bit" if same else "within %.1e" % worst)


def graph(place):
    """Operations in CUDA graphs, in the modes of torch.cuda.graph. It is the last part, since a failed capture may
    break those that follow."""
    if place.device.type != "cuda":
        return "not on this device"
    dist.all_reduce(place.make([1.0]))  # the first step cannot be captured
    place.sync()
    words = []
    for mode in MODES:
        for part in (capture_sums, capture_gathers, capture_beside_works, capture_ddp):
            try:
                words.append(part(place, mode))
            except Exception as error:
                raise AssertionError("%s, mode %s: %s: %s" % (part.__name__, mode, type(error).__name__, error)) from error
    return "modes %s: %s" % (" and ".join(MODES), ", ".join(words))


warnings.filterwarnings("ignore", category=FutureWarning)  # newer names of the same calls
PARTS = (collectives, streams, messages, ddp, fsdp2, as_nccl, speed, graph)


def be_rank(rank, ranks, device, backend, port, only):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(ranks),
                      LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(ranks))
    place = Place(rank, ranks, device, backend)
    if device == "cuda":
        torch.cuda.set_device(0)
    dist.init_process_group(backend, rank=rank, world_size=ranks, timeout=datetime.timedelta(seconds=LIMIT_S))
    failed = []
    for part in PARTS:
        if only and part.__name__ not in only:
            continue
        start = time.monotonic()
        try:
            words, state = part(place), "yes"
        except Exception as error:  # noqa: the next part may work
            if rank == 0:
                traceback.print_exc()
            words, state = "%s: %s" % (type(error).__name__, str(error)[:300]), "NO"
            failed.append(part.__name__)
        if rank == 0 or state == "NO":
            print("%s: %s: %s (rank %d, %.1f s)" % (part.__name__, state, words, rank, time.monotonic() - start), flush=True)
        if failed and ranks > 1:
            break  # the state of the other ranks is unknown
    if not failed:
        dist.destroy_process_group()
    if rank == 0 or failed:
        print("rank %d: %s" % (rank, "failed: " + ", ".join(failed) if failed else "all good"), flush=True)
    sys.stdout.flush()
    os._exit(1 if failed else 0)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--backend", help="default: tutti for the device's tensors and the host's")
    parser.add_argument("--only", nargs="+", metavar="PART", choices=[part.__name__ for part in PARTS],
                        help="of: %s" % ", ".join(part.__name__ for part in PARTS))
    options = parser.parse_args()
    backend = options.backend or ("cpu:tutti,cuda:tutti" if options.device == "cuda" else "tutti")
    if options.device == "cuda" and not torch.cuda.is_available():
        print("skipped: PyTorch sees no GPU")
        sys.exit(77)
    started = multiprocessing.spawn(be_rank, (options.ranks, options.device, backend, free_port(), options.only),
                                    nprocs=options.ranks, join=False)
    try:
        while not started.join(timeout=1):
            pass
    except Exception as error:  # noqa: the error has been printed
        print(str(error).strip().splitlines()[-1])
        sys.exit(1)


if __name__ == "__main__":
    main()
