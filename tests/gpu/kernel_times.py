"""The time of a step, kernel by kernel: compiles kernel_times.c if CUPTI is installed, and reads its output."""
import glob
import os
import re
import shutil
import subprocess

HERE = os.path.dirname(os.path.abspath(__file__))
ROWS = 45
NAME = 70  # characters


def places(packages):
    """Folders of CUDA, the toolkit's first."""
    nvcc = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    tops = [os.path.dirname(os.path.dirname(os.path.realpath(nvcc))), "/usr/local/cuda"]
    tops += [os.path.join(top, "extras", "CUPTI") for top in tops]
    return tops + (sorted(glob.glob(os.path.join(packages, "nvidia", "c*"))) if packages else [])


def found(folders, *patterns):
    return [path for folder in folders for pattern in patterns for path in sorted(glob.glob(os.path.join(folder, pattern)))]


def compile_words(packages, library):
    """The command that builds the library, or a text with what is missing."""
    folders = places(packages)
    headers = found(folders, "include/cupti.h", "targets/*/include/cupti.h")
    libraries = found(folders, "lib64/libcupti.so*", "lib/libcupti.so*", "targets/*/lib/libcupti.so*")
    if not headers or not libraries:
        return "CUPTI is not here (cupti.h, libcupti.so)"
    includes = [os.path.dirname(path) for path in headers + found(folders, "include/cuda.h", "targets/*/include/cuda.h")]
    return ["cc", "-O2", "-shared", "-fPIC", os.path.join(HERE, "kernel_times.c"), "-o", library, libraries[0], "-lpthread",
            "-Wl,-rpath," + os.path.dirname(libraries[0])] + ["-I" + folder for folder in dict.fromkeys(includes)]


def clear(prefix):
    for path in glob.glob(glob.escape(prefix) + ".*"):
        os.remove(path)


def read(prefix):
    """([(ns, calls, first, last, name)], [GPUs of contexts by process])"""
    kernels, contexts = [], []
    for path in sorted(glob.glob(glob.escape(prefix) + ".*")):
        own = []
        with open(path, encoding="utf-8", errors="replace") as file:
            for line in file:
                fields = line.rstrip("\n").split("\t", 5)
                if fields[0] == "context":
                    own.append(fields[1])
                elif len(fields) == 6:
                    kernels.append((int(fields[1]), int(fields[2]), int(fields[3]), int(fields[4]), fields[5]))
        contexts.append(own)
    return kernels, contexts


def plain_names(names):
    """Readable names of kernels, without arguments."""
    if shutil.which("c++filt"):
        done = subprocess.run(["c++filt"], input="\n".join(names), stdout=subprocess.PIPE, text=True, timeout=10, check=False)
        if len(done.stdout.splitlines()) == len(names):
            names = done.stdout.splitlines()
    return [re.sub(r"(?<= )void |\(anonymous namespace\)::|\(.*$", "", name)[:NAME] for name in names]


def table(kernels, steps):
    """Lines: the kernels of a step, the longest first, and their total. Excludes kernels that ran in fewer than most
    steps; additional calls, as of a test at the end, do not count."""
    of_steps = []  # (us of a step, calls in a step, name)
    for ns, calls, _, _, name in kernels:
        if calls >= 0.9 * steps:
            of_steps.append((ns / calls * round(calls / steps) / 1e3, round(calls / steps), name))
    if not of_steps:
        return ["no kernel ran in each of %d steps" % steps]
    of_steps.sort(reverse=True)
    total = sum(row[0] for row in of_steps)
    period = min(last - first for _, calls, first, last, _ in kernels if calls >= 0.9 * steps) / max(steps - 1, 1) / 1e3
    lines = ["%8s %6s %6s  %s" % ("us/step", "share", "calls", "blocks, kernel")]
    for (each, calls, _), name in zip(of_steps[:ROWS], plain_names([row[2] for row in of_steps])):
        lines.append("%8.2f %5.1f%% %6d  %s" % (each, 100 * each / total, calls, name))
    lines.append("kernels take %.1f us of a step's %.1f us (traced), in %d calls" % (total, period, sum(row[1] for row in of_steps)))
    return lines
