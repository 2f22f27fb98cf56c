"""Commands with a time limit: each in a session of its own, of which nothing is left when it has ended, one way or the other."""
import collections
import os
import re
import signal
import subprocess
import time

SKIPPED = 77
GRACE_S = 2  # from the polite signal to the other

# state: passed, failed, skipped, late (it ran past its limit)
Result = collections.namedtuple("Result", "state seconds output")


def processes_of_session(session):
    """Pids; children that have groups of their own are among them."""
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


class Command:
    """A command that has been started, with its output in a file."""

    def __init__(self, words, log, environment=None, folder=None):
        self.log, self.start = log, time.monotonic()
        with open(log, "wb") as file:
            file.write(("$ %s\n" % " ".join(words)).encode())
            file.flush()
            try:
                self.process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT,
                                                env=environment, cwd=folder, start_new_session=True)
            except OSError as error:
                file.write(("cannot be started: %s\n" % error).encode())
                self.process = None

    def output(self):
        with open(self.log, encoding="utf-8", errors="replace") as file:
            return re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", file.read().split("\n", 1)[1])

    def wait(self, limit_s):
        """Its result; after limit_s from now it is ended. Ctrl-C ends it, too."""
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
        output = self.output()
        if state == "failed" and self.process.returncode < 0:
            output += "\nended by signal %d (%s)\n" % (-self.process.returncode, signal.strsignal(-self.process.returncode))
        return Result(state, seconds, output)

    def end(self):
        session = self.process.pid
        if self.process.poll() is None:
            end_session(session, signal.SIGTERM)
            try:
                self.process.wait(GRACE_S)
            except subprocess.TimeoutExpired:
                pass
        for _ in range(200):  # they end a moment after the signal
            end_session(session, signal.SIGKILL)
            self.process.poll()
            if not processes_of_session(session):
                return
            time.sleep(0.01)


def last_line(text):
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""


def tail(text, lines):
    kept = text.splitlines()[-lines:]
    return "\n".join(line[:300] for line in kept)
