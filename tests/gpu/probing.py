"""One question to the machine, in a process of its own: what it does, and what it kills, is its own affair."""
import os
import select
import signal
import sys
import time

STUCK_S = 3  # who is in the middle of a driver's call may not even be killed


def in_child(body):
    """The pid of a child that runs the body and exits with 0, or 1 after an exception."""
    pid = os.fork()
    if pid > 0:
        return pid
    try:
        body()
    except BaseException as error:  # noqa: the child must not return
        print("  the other process: %s" % error, file=sys.stderr)
        os._exit(1)
    os._exit(0)


def run(name, probe, limit_s):
    """Asks whether that works: "name: yes", with words of the probe's, or "name: NO: reason"."""
    def answered():
        words = probe()
        return "yes" + (": " + words if words else "")

    ask(name, answered, limit_s)


def ask(name, probe, limit_s):
    """In a process of its own, whose answer is a line; after limit_s seconds all that it has started is killed."""
    reader, writer = os.pipe()
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        os.setpgid(0, 0)
        os.close(reader)
        try:
            answer = probe()
        except BaseException as error:  # noqa: whatever it is, it is the answer
            answer = "NO: %s" % (error,)
        os.write(writer, answer.encode())
        os._exit(0)
    os.close(writer)
    answer = "NO: no answer within %d s" % limit_s
    if select.select([reader], [], [], limit_s)[0]:
        answer = os.read(reader, 1000).decode() or "NO: it ended without an answer"
    os.close(reader)
    try:
        os.killpg(pid, signal.SIGKILL)
    except OSError:
        pass
    end = time.monotonic() + STUCK_S
    while os.waitpid(pid, os.WNOHANG) == (0, 0) and time.monotonic() < end:
        time.sleep(0.002)
    print("%s: %s" % (name, answer), flush=True)
