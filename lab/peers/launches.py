"""How a comparison launches its libraries: on idle cores, with a time limit, repeated if other processes disturb it;
and the description of the machine that it runs on."""
import collections
import csv
import ctypes
import os
import platform
import resource
import signal
import subprocess
import sys
import tempfile
import time

import libraries as peers

QUICK = {"rounds": 1, "patience": 1.0, "retries": 1, "pace_ms": 0}
FULL = {"rounds": 5, "patience": 20.0, "retries": 3, "pace_ms": 1500}
LAST_PACES = collections.deque(maxlen=16)
STATE_PATIENCE = 120  # seconds


def bytes_of(text):
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    return int(text[:-1]) * units[text[-1].upper()] if text[-1].upper() in units else int(text)


def add_options(parser):
    """Adds the options about launches, which all comparisons share."""
    add = parser.add_argument
    root = os.path.dirname(os.path.dirname(peers.HERE))
    add("--rounds", type=int, help="5, quick: 1")
    add("--python", default=sys.executable, help="a python with PyTorch, for Gloo (%(default)s)")
    add("--peers", metavar="FOLDER", help="folder with UCX, UCC and Gloo from bench/build_peers")
    add("--build", default=os.path.join(root, "build"), help="Tutti's build folder (build)")
    add("--near-ns", type=float, default=80, help="cores are near if a cache line takes less than this (%(default)s)")
    add("--state", choices=["near", "far"], help="before each launch, wait until cores are near, or far; two minutes at most")
    add("--others", type=float, default=4, help="per cent of all cores for other processes in a launch (%(default)s)")
    add("--retries", type=int, help="repeats of a launch that other processes disturbed (3, quick: 1)")
    add("--patience", type=float, help="seconds to wait for idle cores before a launch (20, quick: 1)")
    add("--pace-ms", type=float, help="time for repeating samples of a row that slow cores spoiled (1500, quick: 0)")
    add("--timeout", type=float, default=300, help="seconds after which a launch is ended (%(default)s)")


def set_defaults(options, quick, full):
    """Fills in the missing options: from `quick` with --quick, else from `full`."""
    for name, value in (dict(QUICK, **quick) if options.quick else dict(FULL, **full)).items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    os.environ["CORE_PATIENCE_MS"] = str(options.pace_ms)


def clean_up_when_ended():
    """After this call SIGTERM ends this process without leaving ranks or folders behind."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))


def adopt_orphans():
    """From now on processes whose parents end before them become children of this one, so that their use of the cores
    counts as the comparison's: for example daemons of MPI launchers on other hosts."""
    set_child_subreaper = 36  # an operation of prctl
    ctypes.CDLL(None).prctl(set_child_subreaper, 1, 0, 0, 0)


def reap_orphans():
    """Reaps the children that have ended, or end in the next moment."""
    for _ in range(10):
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.02)


class Load:
    """The share of all cores that processes outside the comparison use, from start to the call of percent(). Interrupts
    are left out: those of the loopback device belong to no process, though Gloo causes them."""

    def __init__(self):
        self.start = self.now()

    @staticmethod
    def now():
        """Returns (seconds of all cores, of all processes, of this comparison's processes)."""
        tick = os.sysconf("SC_CLK_TCK")
        with open("/proc/stat", encoding="ascii") as file:
            ticks = [int(word) for word in file.readline().split()[1:9]]  # user, nice, system, idle ...
        own = sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        return sum(ticks) / tick, sum(ticks[:3]) / tick, own

    def percent(self):
        everything, used, own = (after - before for after, before in zip(self.now(), self.start))
        return max(0.0, 100 * (used - own) / everything) if everything > 0 else 0.0


def wait_for_idle(options):
    end = time.monotonic() + options.patience
    while time.monotonic() < end:
        load = Load()
        time.sleep(0.25)
        if load.percent() <= options.others:
            return


def stop(processes):
    """Ends the processes that still run: a launcher first gets time to end its ranks."""
    for number, seconds in ((signal.SIGTERM, 5), (signal.SIGKILL, None)):
        for process in processes:
            if process.poll() is None:
                os.killpg(process.pid, number)
        for process in processes:
            try:
                process.wait(seconds)
            except subprocess.TimeoutExpired:
                pass


def run_processes(commands, log, timeout):
    """Runs (command, environment) pairs side by side; returns "" or the error. If one fails, the others are ended.
    They have a process group each, for stop(), but no session: where Linux groups processes by session (kernel.
    sched_autogroup_enabled), a rank that yields its core would not let ranks of other sessions run."""
    processes = [subprocess.Popen(command, env=dict(os.environ, **environment), stdin=subprocess.DEVNULL, stdout=log,
                                  stderr=log, process_group=0) for command, environment in commands]
    end = time.monotonic() + timeout
    try:
        while True:
            states = [process.poll() for process in processes]
            if any(states):
                return "exit code %d" % next(state for state in states if state)
            if all(state == 0 for state in states):
                return ""
            if time.monotonic() > end:
                return "not done after %g s" % timeout
            time.sleep(0.05)
    finally:
        stop(processes)


def number(text):
    """Converts a text to an int or a float if possible, else returns the text."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text


def launch(library, ranks, arguments, names, options, work):
    """Returns (rows of one launch, "" or the error). A row is a dictionary of `names`, which the driver writes, among
    them before_ns and after_ns, and of values added here."""
    with tempfile.TemporaryDirectory(dir=work) as folder:
        meeting, rows_path, log_path = (os.path.join(folder, name) for name in ("meeting", "rows", "log"))
        with open(meeting, "wb") as file:
            file.truncate(1 << 16)
        with open(log_path, "w+", encoding="utf-8", errors="replace") as log:
            load = Load()
            trouble = run_processes(library.start(ranks, [meeting, rows_path] + arguments), log, options.timeout)
            reap_orphans()
            others = load.percent()
            log.seek(0)
            words = " ".join(log.read().split())
        rows = []
        if os.path.exists(rows_path):
            with open(rows_path, encoding="ascii") as file:
                rows = [{name: number(text) for name, text in row.items()} for row in csv.DictReader(file, names)]
        world = ranks if isinstance(ranks, int) else str(ranks)
        note_pace([row["pace_ns"] for row in rows if row.get("pace_ns")])
        rows = [dict(row, library=library.name, ranks=world, state=state_of(row, options), others_percent=round(others, 1),
                     quiet=others <= options.others and not row.get("slow")) for row in rows]
        return rows, trouble and trouble + ": " + words[:300]


def note_pace(paces):
    """The best pace of the cores in the last launches is the reference for the next one (core.c)."""
    LAST_PACES.extend(min(paces) for _ in paces[:1])
    if LAST_PACES:
        os.environ["CORE_PACE_NS"] = str(min(LAST_PACES))


def state_of(row, options):
    near = {row["before_ns"] < options.near_ns, row["after_ns"] < options.near_ns}
    return "mixed" if len(near) == 2 else "near" if True in near else "far"


def line_ns(options):
    """The transfer time of a cache line between the first two cores, now."""
    return float(peers.output([os.path.join(options.build, "bin", "machine_limits"), "--line"]) or 0)


def wait_for_state(options):
    """Virtual cores move on their own: a state that is rare would be caught in few launches without waiting for it."""
    end = time.monotonic() + STATE_PATIENCE
    while options.state and (line_ns(options) < options.near_ns) != (options.state == "near") and time.monotonic() < end:
        time.sleep(0.2)


def launch_quietly(library, ranks, arguments, names, options, work):
    """Runs a launch, and repeats it if other processes disturb it; the quietest one counts."""
    best = None
    for _ in range(1 + options.retries):
        wait_for_idle(options)
        wait_for_state(options)
        rows, trouble = launch(library, ranks, arguments, names, options, work)
        if trouble or not rows or rows[0]["others_percent"] <= options.others:
            return rows, trouble
        if best is None or rows[0]["others_percent"] < best[0]["others_percent"]:
            best = rows
    return best, ""


def machine_lines(options):
    model = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo", encoding="utf-8")
                  if line.startswith("model name")), platform.machine())
    yield "machine: %s, %d cores, Linux %s" % (model, os.cpu_count(), platform.release())
    yield "limits of the machine (machine_limits):"
    limits = peers.output([os.path.join(options.build, "bin", "machine_limits")])
    yield from ("  " + line for line in (limits or "not measured: machine_limits did not run").rstrip().split("\n"))


def state_line(rows):
    """A summary of the rows."""
    mixed, disturbed = sum(row["state"] == "mixed" for row in rows), sum(not row["quiet"] for row in rows)
    return "%d rows, %d dropped as mixed, %d disturbed by others; wrong elements: %d" % (
        len(rows), mixed, disturbed, sum(row["wrong"] or 0 for row in rows))
