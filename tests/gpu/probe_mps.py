#!/usr/bin/env python3
"""The effect of NVIDIA's MPS on processes that share a GPU: the same questions as without it, under our own daemon.

The daemon has its own folder for pipes and logs, is asked to quit at the end, and no setting of the GPU is changed. A
guard ends it if this program is killed. Prints a line per question, "question: answer". Needs libcuda.so.1, a GPU and
nvidia-cuda-mps-control, else prints so and exits with 77.
"""
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import probe_gpu
import probe_processes
from driver import end_without_driver
from probing import ask, run

CONTROL = "nvidia-cuda-mps-control"
START_S, QUIT_S, END_S = 5, 5, 2
LIMIT_S = 8
PIPES = "CUDA_MPS_PIPE_DIRECTORY"


def find():
    return shutil.which(CONTROL) or shutil.which(CONTROL, path="/usr/bin:/usr/local/cuda/bin:/usr/local/nvidia/bin")


def processes_of(folder):
    """Pids of daemons and servers whose pipes are in our folder: these are only ours."""
    found, wanted = [], ("%s=%s" % (PIPES, folder)).encode()
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open("/proc/%s/comm" % name, encoding="utf-8", errors="replace") as file:
                if not file.read().startswith("nvidia-cuda-mps"):
                    continue
            with open("/proc/%s/environ" % name, "rb") as file:
                if wanted in file.read().split(b"\0"):
                    found.append(int(name))
        except OSError:
            pass
    return found


def control(path, command, environment, limit_s):
    """The daemon's reply to a command, or why there is none."""
    try:
        done = subprocess.run([path], input=command + "\n", stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment,
                              text=True, timeout=limit_s, check=False)
    except (OSError, subprocess.SubprocessError) as error:
        return "NO: %s" % error
    return " ".join(done.stdout.split())


def end(path, folder, environment):
    """Ends it by its command, then by signals; returns a description."""
    if processes_of(folder):
        control(path, "quit", environment, QUIT_S)
    for signal_number, words in ((0, "it has quit"), (signal.SIGTERM, "it was ENDED by SIGTERM"), (signal.SIGKILL, "it was KILLED")):
        for pid in processes_of(folder):
            try:
                os.kill(pid, signal_number)
            except OSError:
                pass
        limit = time.monotonic() + END_S
        while processes_of(folder) and time.monotonic() < limit:
            time.sleep(0.05)
        if not processes_of(folder):
            shutil.rmtree(folder, ignore_errors=True)
            return words
    return "it does NOT end"


def guard(path, folder, environment):
    """A process in its own session that ends the daemon when this process has ended, for whatever reason."""
    parent = os.getpid()
    pid = os.fork()
    if pid > 0:
        return pid
    try:
        os.setsid()
        while os.getppid() == parent:
            time.sleep(0.1)
        end(path, folder, environment)
    finally:
        os._exit(0)


def start(path, environment):
    """The text of its failure, or None. It runs in the background, with none of our files open."""
    with tempfile.TemporaryFile() as output:
        try:
            code = subprocess.run([path, "-d"], stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment, timeout=START_S,
                                  check=False).returncode
        except (OSError, subprocess.SubprocessError) as error:
            return str(error)
        output.seek(0)
        text = " ".join(output.read().decode(errors="replace").split())
    return None if code == 0 else "it ended with %d (%s)" % (code, text)


def last_of(log):
    try:
        with open(log, encoding="utf-8", errors="replace") as file:
            return " / ".join(line.strip().replace(": ", " ") for line in file.read().splitlines()[-3:])
    except OSError as error:
        return str(error)


def questions(path, folder, environment):
    run("under MPS, two processes take turns on the GPU", probe_gpu.turns_of_two_processes, LIMIT_S + START_S)
    ask("under MPS, servers", lambda: control(path, "get_server_list", environment, 2) or "NONE: what follows is without MPS", LIMIT_S)
    run("under MPS, streams of two processes wait for each other", probe_gpu.values_between_processes, LIMIT_S)
    ask("under MPS, host to a stream to another process's stream to the host", probe_processes.way_in_two_processes, LIMIT_S)
    ask("under MPS, kernels of two processes, of one thread each", probe_processes.kernels_at_once, LIMIT_S)
    run("under MPS, two blocks of 4 bytes by IPC handles", lambda: probe_gpu.blocks_by_ipc(4), LIMIT_S)
    ask("under MPS, a process ends by exit() while a stream waits", lambda: probe_processes.end_of_a_process("exit", True), LIMIT_S)
    for name in ("control.log", "server.log"):
        print("under MPS, the end of %s: %s" % (name, last_of(os.path.join(folder, name))), flush=True)


def main():
    end_without_driver()
    path = find()
    if path is None:
        print("skipped: MPS: %s is not there" % CONTROL)
        sys.exit(77)
    folder = tempfile.mkdtemp(prefix="mps-", dir="/tmp")  # a short path: it names sockets
    os.environ[PIPES] = os.environ["CUDA_MPS_LOG_DIRECTORY"] = folder
    environment = dict(os.environ)
    guard(path, folder, environment)
    try:
        failure = start(path, environment)
        print("MPS, the daemon: %s" % ("NO: %s" % failure if failure else "started by " + path), flush=True)
        if failure is None:
            questions(path, folder, environment)
    finally:
        print("MPS, its end: %s" % end(path, folder, environment), flush=True)


if __name__ == "__main__":
    main()
