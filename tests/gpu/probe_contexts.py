#!/usr/bin/env python3
"""Checks that a rank makes one context on its GPU, and none on others: a second one would use hundreds of MiB of GPU
0's memory.

    probe_contexts.py FOLDER-OF-PROGRAMS

Measures the free memory of GPU 0: how much a process with only a context uses, and how much each of several ranks
uses that reduce a few bytes. If nvidia-smi sees our processes, counts the GPUs of each. Prints "question: answer"
lines; exits with 1 if ranks use so much that they must have a second context, with 77 if there is no driver.
"""
import collections
import os
import subprocess
import sys
import threading
import time

from driver import Driver, end_without_driver

HERE = os.path.dirname(os.path.abspath(__file__))
MIB = 1 << 20
RANKS = 4
LIMIT_S = 15
LEAST_CONTEXT = 50 * MIB
ALLOWED = 0.7  # share of a plain process's memory: how much more a rank may use, for code, slots, buffers


def least_free(driver, process):
    """While the process runs, for at most LIMIT_S."""
    end, least = time.monotonic() + LIMIT_S, driver.free_bytes()
    while process.poll() is None and time.monotonic() < end:
        least = min(least, driver.free_bytes())
        time.sleep(0.005)
    if process.poll() is None:
        process.kill()
    process.wait()
    return least


def settled_free(driver):
    """The driver frees the memory of a process a moment after its end."""
    free = driver.free_bytes()
    for _ in range(100):
        time.sleep(0.02)
        before, free = free, driver.free_bytes()
        if before == free:
            break
    return free


def plain_bytes(driver):
    """The memory of a process that has a context and does nothing."""
    free = settled_free(driver)
    with subprocess.Popen([sys.executable, os.path.join(HERE, "driver.py")], stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        taken = free - driver.free_bytes()
        process.kill()
    return taken


def ask_nvidia_smi(pids, contexts):
    """How many GPUs each visible process uses: containers may hide processes."""
    words = ["nvidia-smi", "--query-compute-apps=pid,gpu_uuid", "--format=csv,noheader"]
    try:
        text = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, timeout=10, check=False).stdout
    except (OSError, subprocess.SubprocessError):
        return
    rows = {tuple(line.split(", ")) for line in text.splitlines()}
    contexts.update(collections.Counter(pid for pid, _ in (row for row in rows if len(row) == 2) if pid.isdigit() and int(pid) in pids()))


def children_of(pid):
    found = set()
    for name in os.listdir("/proc"):
        try:
            with open("/proc/%s/stat" % name, encoding="utf-8", errors="replace") as file:
                if name.isdigit() and int(file.read().rsplit(")", 1)[1].split()[1]) == pid:
                    found.add(int(name))
        except OSError:
            pass
    return found


def run_ranks(driver, programs):
    """(bytes that the ranks use together, {pid: GPUs that it uses}, exit code)"""
    words = [os.path.join(programs, "all_reduce_perf"), "--device", "cuda", "-t", str(RANKS), "-b", "8", "-e", "64K", "-f", "8",
             "-n", "4000", "-w", "10"]
    free, contexts = settled_free(driver), {}
    with subprocess.Popen(words) as process:
        smi = threading.Timer(1.5, ask_nvidia_smi, (lambda: children_of(process.pid) | {process.pid}, contexts))
        smi.start()
        least = least_free(driver, process)
        smi.cancel()
        smi.join()
    return free - least, contexts, process.returncode


def main():
    end_without_driver()
    driver = Driver()
    plain = plain_bytes(driver)
    taken, contexts, code = run_ranks(driver, sys.argv[1])
    each = taken / RANKS
    told = plain > LEAST_CONTEXT  # else other processes start and end, or this is not real memory
    second = told and each - plain > ALLOWED * plain
    print("memory of GPU 0: a context alone takes %.0f MiB, each of %d ranks %.0f MiB: %s" % (
        plain / MIB, RANKS, each / MIB, "A SECOND CONTEXT?" if second else "one context" if told else "which tells nothing"))
    print("GPUs that a rank is on, by nvidia-smi: %s" % (
        ", ".join("%s of %s" % (count, pid) for pid, count in sorted(contexts.items())) or "it sees none of our processes"))
    if code != 0:
        print("all_reduce_perf: ended with %d" % code)
    sys.exit(1 if second or code != 0 else 0)


if __name__ == "__main__":
    main()
