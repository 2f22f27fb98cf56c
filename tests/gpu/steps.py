"""Commands with a time limit: each in its own session, whose processes have all ended when the command has ended for
any reason.

Their output is appended to a file, which several consecutive commands may share, so it is complete if this process is
killed; the commands are then killed, too.
"""
import collections
import ctypes
import os
import re
import signal
import subprocess
import time

SKIPPED = 77
GRACE_S = 2  # from SIGTERM to SIGKILL
MOST_BYTES = 1000000  # bytes of a command's output that are kept
PR_SET_PDEATHSIG = 1
LIBC = ctypes.CDLL(None)

# state: passed, failed, skipped, late (it ran past its limit)
Result = collections.namedtuple("Result", "state seconds output")


def processes_of_session(session):
    """Pids, including children that have their own process groups."""
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open("/proc/%s/stat" % name, encoding="utf-8", errors="replace") as file:
                fields = file.read().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if int(fields[3]) == session and fields[0] != "Z":
            found.append(int(name))
    return found


def end_session(session, signal_number):
    try:
        os.killpg(session, signal_number)
    except OSError:
        pass
    for pid in processes_of_session(session):
        try:
            os.kill(pid, signal_number)
        except OSError:
            pass


def end_with_us():
    """In the child: ends it if this process is killed, since its session is unknown to the killer."""
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


class Command:
    """A started command, whose output is appended to the file `log`."""

    def __init__(self, words, log, environment=None, folder=None):
        self.log, self.start = log, time.monotonic()
        with open(log, "ab") as file:
            file.write(("$ %s\n" % " ".join(words)).encode())
            file.flush()
            self.begin = file.tell()
            try:
                self.process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT,
                                                env=environment, cwd=folder, start_new_session=True, preexec_fn=end_with_us)
            except (OSError, subprocess.SubprocessError) as error:
                file.write(("cannot be started: %s\n" % error).encode())
                self.process = None

    def is_running(self):
        return self.process is not None and self.process.poll() is None

    def output(self):
        with open(self.log, "rb") as file:
            file.seek(self.begin)
            return re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", file.read(2 * MOST_BYTES).decode(errors="replace"))

    def trim(self):
        """Keeps the beginning and the end of endless output."""
        with open(self.log, "r+b") as file:
            written = file.seek(0, os.SEEK_END) - self.begin
            if written <= MOST_BYTES:
                return
            file.seek(-MOST_BYTES // 2, os.SEEK_END)
            last = file.read()
            file.seek(self.begin + MOST_BYTES // 2)
            file.write(b"\n... %d bytes left out ...\n" % (written - MOST_BYTES) + last)
            file.truncate()

    def wait(self, limit_s):
        """Returns its result; ends it after limit_s from now. Ctrl-C ends it, too."""
        if self.process is None:
            return Result("failed", 0, self.output())
        state = "late"
        try:
            code = self.process.wait(max(limit_s, 0.01))
            state = "passed" if code == 0 else "skipped" if code == SKIPPED else "failed"
        except subprocess.TimeoutExpired:
            pass
        finally:
            self.end()
        seconds = time.monotonic() - self.start
        self.trim()
        output = self.output()
        if state == "failed" and self.process.returncode < 0:
            output += "\nended by signal %d (%s)\n" % (-self.process.returncode, signal.strsignal(-self.process.returncode))
        return Result(state, seconds, output)

    def end(self):
        if self.process is None:
            return
        session = self.process.pid
        if self.process.poll() is None:
            end_session(session, signal.SIGTERM)
            try:
                self.process.wait(GRACE_S)
            except subprocess.TimeoutExpired:
                pass
        for _ in range(200):  # processes end a moment after the signal
            end_session(session, signal.SIGKILL)
            if self.process.poll() is not None and not processes_of_session(session):
                return
            time.sleep(0.01)


def last_line(text):
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""


def tail(text, lines):
    kept = text.splitlines()[-lines:]
    return "\n".join(line[:300] for line in kept)
