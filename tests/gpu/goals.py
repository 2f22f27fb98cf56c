"""Goals and measurements: rows for the report. A number that was not measured is reported as such."""
import csv
import os
import re

# name in `measured`, description, the limit (most or least), unit, format
GOALS = (
    ("threads 64M", "all_reduce, 8 ranks (threads) x 64 MiB on one GPU", "<=", 0.42, "ms"),
    ("processes tutti 64M", "the same, processes, memory of tutti_mem_alloc_cuda", "<=", 0.42, "ms"),
    ("processes malloc 64M", "the same, processes, ordinary memory", "<=", 0.9, "ms"),
    ("lenet / eager", "LeNet step, batch 100, over PyTorch's eager one", "<=", 1 / 3, ""),
    ("lenet / graph", "LeNet step over PyTorch's in a torch.cuda.graph", "<=", 1.0, ""),
    ("least share of copy", "memory-bound kernels, the slowest: share of the bandwidth of a copy", ">=", 0.8, ""),
)
# Measurements without a goal.
OTHERS = (
    ("threads 1M", "all_reduce, 8 ranks (threads) x 1 MiB", "us"),
    ("threads 8", "all_reduce, 8 ranks (threads) x 8 B", "us"),
    ("processes tutti 1M", "the same, processes, tutti_mem_alloc_cuda, 1 MiB", "us"),
    ("processes tutti 8", "8 B", "us"),
    ("MPS tutti 64M", "the same under MPS, tutti_mem_alloc_cuda, 64 MiB", "ms"),
    ("MPS malloc 64M", "the same under MPS, ordinary memory, 64 MiB", "ms"),
    ("MPS tutti 1M", "1 MiB, tutti_mem_alloc_cuda", "us"),
    ("MPS malloc 1M", "1 MiB, ordinary memory", "us"),
    ("MPS tutti 8", "8 B, tutti_mem_alloc_cuda", "us"),
    ("MPS malloc 8", "8 B, ordinary memory", "us"),
    ("processes malloc 1M", "the same, processes, ordinary memory, 1 MiB", "us"),
    ("processes malloc 8", "8 B", "us"),
    ("lenet ms", "LeNet step, batch 100", "ms"),
    ("eager ms", "PyTorch, eager", "ms"),
    ("graph ms", "PyTorch, torch.cuda.graph", "ms"),
    ("lenet tf32 ms", "LeNet step, in TF32", "ms"),
    ("eager tf32 ms", "PyTorch, eager, in TF32", "ms"),
    ("graph tf32 ms", "PyTorch, torch.cuda.graph, in TF32", "ms"),
    ("lenet tf32 / eager", "LeNet step in TF32 over PyTorch's eager one in fp32", ""),
    ("lenet tf32 / eager tf32", "LeNet step over PyTorch's eager one, both in TF32", ""),
    ("lenet tf32 / graph tf32", "LeNet step over PyTorch's in a torch.cuda.graph, both in TF32", ""),
)


def read_times(path):
    """{bytes: microseconds} of a benchmark's CSV; the faster of out of place and in place."""
    times = {}
    if not os.path.exists(path):
        return times
    with open(path, encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            both = [float(row[half + "_time_us"]) for half in ("out_of_place", "in_place") if row.get(half + "_time_us")]
            if both:
                times[int(row["size"])] = min(both)
    return times


def note_times(measured, name, times):
    for size, label, scale in ((8, "8", 1.0), (1 << 20, "1M", 1.0), (64 << 20, "64M", 1e-3)):
        if size in times:
            measured["%s %s" % (name, label)] = times[size] * scale


def note_kernels(measured, path):
    """The least share of a copy's bandwidth among memory-bound kernels; and which of them are below the goal."""
    if not os.path.exists(path):
        return ""
    shares = {}
    with open(path, encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            if row["share_of_copy"] and row["bound"] == "memory":
                shares["%s %s" % (row["kernel"], row["shape"])] = float(row["share_of_copy"]) / 100
    if shares:
        measured["least share of copy"] = min(shares.values())
    return ", ".join("%s: %.0f %%" % (name, 100 * share) for name, share in shares.items() if share < 0.8)


def note_lenet(measured, output, precision=""):
    """Parses the output of bench/train_compare; precision: "", or " tf32"."""
    for name, words in (("lenet", "tutti, 1 rank"), ("eager", "PyTorch, eager"), ("graph", "PyTorch, CUDA graph")):
        found = re.search(r"^median +%s .* ([0-9.]+) us/step" % words, output, re.MULTILINE)
        if found:
            measured[name + precision + " ms"] = float(found.group(1)) / 1e3
    ours = "lenet" + precision
    for name in {"eager", "eager" + precision, "graph" + precision}:
        if ours + " ms" in measured and measured.get(name + " ms"):
            measured["%s / %s" % (ours, name)] = measured[ours + " ms"] / measured[name + " ms"]


def rows(measured):
    for name, what, relation, goal, unit in GOALS:
        value = measured.get(name)
        wanted = "%s %.3g %s" % (relation, goal, unit)
        if value is None:
            yield what, wanted, "not measured", "unknown"
            continue
        met = value <= goal if relation == "<=" else value >= goal
        yield what, wanted, "%.3g %s" % (value, unit), "yes" if met else "**no**"
    for name, what, unit in OTHERS:
        if name in measured:
            yield what, "", "%.3g %s" % (measured[name], unit), ""
