"""Shared by torch_collectives and torch_ddp: ranks as separate processes, groups of several backends in each of them,
samples taken in turn, medians of the slowest rank.

A rank is the same program, started again with TUTTI_BENCH_RANK. All backends have a group in the same processes, and
take turns sample by sample, so that a machine that slows down slows all of them.
"""
import gc
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time

WORLD = "gloo"  # the backend for the ranks' own messages between samples


def add_options(parser):
    add = parser.add_argument
    add("--backends", default="tutti,gloo,fake", help="%(default)s; ratios are to the first one")
    add("--ranks", default="2,4", help="numbers of ranks (%(default)s)")
    add("--python", default=sys.executable, help="interpreter with PyTorch and torch_tutti (this one)")
    add("--csv", metavar="FILE", help="write all samples to FILE")
    add("--timeout", type=int, default=1800, help="seconds for one number of ranks (%(default)s)")


def is_rank():
    return "TUTTI_BENCH_RANK" in os.environ


def launch(size, options):
    """Runs this program as `size` ranks; returns their rows: (key..., backend) -> one list of samples per rank."""
    with tempfile.TemporaryDirectory(prefix="torch-bench-") as folder:
        with open(os.path.join(folder, "options.json"), "w", encoding="utf-8") as file:
            json.dump(vars(options), file)
        processes = []
        for rank in range(size):
            environment = dict(os.environ, TUTTI_BENCH_RANK=str(rank), TUTTI_BENCH_SIZE=str(size), TUTTI_BENCH_FOLDER=folder,
                               OMP_NUM_THREADS="1")
            processes.append(subprocess.Popen([options.python, sys.argv[0]], env=environment))
        try:
            deadline = time.monotonic() + options.timeout
            for process in processes:
                if process.wait(max(1.0, deadline - time.monotonic())) != 0:
                    sys.exit("%s: a rank failed" % os.path.basename(sys.argv[0]))
        except subprocess.TimeoutExpired:
            sys.exit("%s: not done after %d s" % (os.path.basename(sys.argv[0]), options.timeout))
        finally:
            for process in processes:
                if process.poll() is None:
                    process.kill()
                    process.wait()
        tables = []
        for rank in range(size):
            with open(os.path.join(folder, "rank%d.json" % rank), encoding="utf-8") as file:
                tables.append({tuple(key): samples for key, samples in json.load(file)})
    return {key: [table[key] for table in tables] for key in tables[0]}


def slowest(samples):
    """Median over rounds of the slowest rank."""
    return statistics.median(max(round_) for round_ in zip(*samples))


def geometric_mean(numbers):
    return math.exp(sum(math.log(number) for number in numbers) / len(numbers)) if numbers else float("nan")


def write_csv(path, names, tables):
    """Writes a CSV file. tables: number of ranks -> rows of launch()."""
    with open(path, "w", encoding="utf-8") as file:
        file.write(",".join(["ranks"] + names + ["backend", "microseconds", "samples"]) + "\n")
        for size, rows in tables.items():
            for key, samples in rows.items():
                file.write(",".join([str(size)] + [str(part) for part in key] + ["%.3f" % (1e6 * slowest(samples)), str(len(samples[0]))]) + "\n")


class Options:
    def __init__(self, values):
        self.__dict__.update(values)


class Rank:
    """This process as a rank: its groups by backend, and its timing."""

    def __init__(self):
        import torch
        import torch.distributed as dist

        self.rank, self.size = int(os.environ["TUTTI_BENCH_RANK"]), int(os.environ["TUTTI_BENCH_SIZE"])
        self.folder = os.environ["TUTTI_BENCH_FOLDER"]
        with open(os.path.join(self.folder, "options.json"), encoding="utf-8") as file:
            self.options = Options(json.load(file))
        torch.set_num_threads(1)
        self.dist = dist
        dist.init_process_group(WORLD, store=dist.FileStore(os.path.join(self.folder, "store"), self.size), rank=self.rank, world_size=self.size)
        self.groups = {}
        for backend in self.options.backends.split(","):
            if backend == "fake":
                import torch.testing._internal.distributed.fake_pg  # noqa: F401, registers the backend
            self.groups[backend] = dist.new_group(backend=backend)
        self.rows = {}
        gc.collect()
        gc.disable()

    def agree(self, number):
        """Returns rank 0's value on all ranks."""
        things = [number]
        self.dist.broadcast_object_list(things, 0)
        return things[0]

    def sample(self, call, times):
        """Returns the seconds per call."""
        self.dist.barrier()
        began = time.perf_counter()
        for _ in range(times):
            call()
        return (time.perf_counter() - began) / times

    def in_turn(self, key, calls, rounds, seconds):
        """Takes samples of all calls (by backend) in turn; each sample takes about `seconds`."""
        times = {}
        for backend, call in calls.items():
            call()
            once = min(self.sample(call, 1), self.sample(call, 1))
            times[backend] = self.agree(max(1, min(20000, int(seconds / max(once, 1e-7)))))
        for turn in range(rounds):
            order = list(calls)
            for backend in order[turn % len(order):] + order[:turn % len(order)]:
                self.rows.setdefault((*key, backend), []).append(self.sample(calls[backend], times[backend]))

    def finish(self):
        with open(os.path.join(self.folder, "rank%d.json" % self.rank), "w", encoding="utf-8") as file:
            json.dump(list(self.rows.items()), file)
        self.dist.barrier()
        self.dist.destroy_process_group()
