"""One question to the machine, in its own process, so that it can change and kill processes without side effects."""
import os
import select
import signal
import sys
import time

STUCK_S = 3  # a process inside a driver's call may not even be killable


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
    """Asks whether that works: prints "name: yes", with the probe's text, or "name: NO: reason"."""
    def answered():
        words = probe()
        return "yes" + (": " + words if words else "")

    ask(name, answered, limit_s)


def ask(name, probe, limit_s):
    """Runs in its own process, whose answer is a line; after limit_s seconds everything that it has started is
    killed. A probe returns its answer, or yields it part by part: the parts so far are kept if it fails or hangs."""
    reader, writer = os.pipe()
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        try:
            os.setpgid(0, 0)
            os.close(reader)
            tell(probe, writer)
        finally:  # the child must not return in any case
            os._exit(0)
    os.close(writer)
    text, ended = read_until_end(reader, limit_s)
    os.close(reader)
    try:
        os.killpg(pid, signal.SIGKILL)
    except OSError:
        pass
    end = time.monotonic() + STUCK_S
    while os.waitpid(pid, os.WNOHANG) == (0, 0) and time.monotonic() < end:
        time.sleep(0.002)
    if ended is not True:
        words = "NO: it ended without an answer" if ended is None else "NO: it stands still, no answer within %d s" % limit_s
        text += ("; " if text else "") + words
    print("%s: %s" % (name, text), flush=True)


END = "\0"  # after an answer: the pipe's end may be late, since children of the probe have it open, too


def tell(probe, writer):
    """Writes the answer and its end."""
    told = ""

    def write(text):
        os.write(writer, text.replace("\n", " ").encode())

    try:
        answer = probe()
        for part in [answer] if isinstance(answer, str) else answer:
            write((", " if told else "") + part)
            told = "; "
    except BaseException as error:  # noqa: any exception is the answer
        write("%sNO: %s" % (told, error))
    write(END)


def read_until_end(reader, limit_s):
    """(the text, True); or None in place of True if the writer ended without END, or False if the time was over."""
    text, end = b"", time.monotonic() + limit_s
    while not text.endswith(END.encode()):
        left = end - time.monotonic()
        if left <= 0 or not select.select([reader], [], [], left)[0]:
            return text.decode(errors="replace"), False
        more = os.read(reader, 65536)
        if not more:
            return text.decode(errors="replace"), None
        text += more
    return text.decode(errors="replace")[:-len(END)], True


def wait_until(condition, limit_s, what, nap_s=0.0):
    """Polls the condition; fails after limit_s seconds. Without naps it sees a change within a microsecond."""
    end = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > end:
            raise OSError("%s stands still for %g s" % (what, limit_s))
        if nap_s:
            time.sleep(nap_s)
