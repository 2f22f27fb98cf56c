"""Processes of another user on the same host that reach the store: they forge, relay, delete, count and flood.

A stranger is forked before the ranks, becomes uid 65534, and uses the TCPStore with PyTorch's own client, as any
process of the host can if it reaches torchrun's store. No stranger may get a descriptor of a rank's memory, and no
sum may be wrong: a start may fail, with an error that has the reason, by its deadline. With a secret, values that a
stranger has written are logged and ignored.
"""
import ctypes
import datetime
import hashlib
import hmac
import mmap
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import unittest

import torch
import torch.distributed as dist

from support import ranks

NOBODY = 65534
SHORT_S = 2      # deadline of a start that must fail
LONG_S = 20      # deadline of a start that must succeed
MEET_S = 6       # deadline of a start that must fail after its ranks have met strangers
HOLD_S = 4       # longest time for which a rank is held back
SLACK_S = 4      # beyond it, on a busy machine
PROGRAM_S = 100  # for torchrun and its ranks, which import torch
SECRET = "our word"

# Values that ranks write to the store (comm/init/peer_table.c), and messages to the socket of the first rank of a
# host (comm/init/local_bootstrap.h).
TABLE_MAGIC = 0x32306C6C6F727474
VERDICT = struct.Struct("<QQ32sii")
HOST_LINE = struct.Struct("<Qqiiii48s")
HELLO = struct.Struct("<ii16s")
PROOF = struct.Struct("<16s32s")
ENTRY = struct.Struct("<32sii")
WORD_BYTES = 8 + 1024


class Shared:
    """Shared state of a stranger, the ranks and the test: bytes in shared memory, or of a file if a rank is a
    separate program."""

    def __init__(self, path=None):
        if path is None:
            self.memory = mmap.mmap(-1, 16)
        else:
            with open(path, "r+b") as file:
                self.memory = mmap.mmap(file.fileno(), 16)

    @property
    def port(self):
        return int.from_bytes(self.memory[12:16], "little")

    @port.setter
    def port(self, value):
        self.memory[12:16] = value.to_bytes(4, "little")

    ready = property(lambda self: self.memory[0], lambda self, value: self.memory.__setitem__(0, value))
    descriptors = property(lambda self: self.memory[1], lambda self, value: self.memory.__setitem__(1, value))
    acted = property(lambda self: self.memory[2], lambda self, value: self.memory.__setitem__(2, value))
    stays = property(lambda self: self.memory[3], lambda self, value: self.memory.__setitem__(3, value))
    turns = property(lambda self: self.memory[4], lambda self, value: self.memory.__setitem__(4, value % 255 or 255))  # of forging
    held = property(lambda self: self.memory[5], lambda self, value: self.memory.__setitem__(5, value))
    holds = property(lambda self: self.memory[7], lambda self, value: self.memory.__setitem__(7, value))  # rank 0 is held back
    second = property(lambda self: self.memory[8], lambda self, value: self.memory.__setitem__(8, value))  # rank 1 has started
    caught = property(lambda self: self.memory[6], lambda self, value: self.memory.__setitem__(6, value))


def await_true(condition, what, limit_s=20.0):
    end = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError("no %s" % what)
        time.sleep(0.001)


# ------------------------------------------------------------------------------------------------ strangers


class Stranger:
    """Its methods are the attacks; each runs in its own process until it is killed."""

    def __init__(self, port, shared):
        self.port, self.shared = port, shared

    def connect(self):
        self.store = dist.TCPStore("127.0.0.1", self.port, is_master=False, timeout=datetime.timedelta(seconds=20))

    def find(self, part):
        """The key with that ending."""
        return next((key for key in self.store.list_keys() if key.endswith(part)), None)

    def below(self):
        """The prefix of the group's keys, after rank 0 has written."""
        await_true(lambda: self.find("/attempt"), "attempt", PROGRAM_S)
        place = self.find("/attempt")[:-len("attempt")]
        await_true(lambda: self.find("/count/0"), "rank 0")
        return place, self.find("/count/0")[:-len("count/0")]

    def host_key(self, below):
        """The key of the line with the socket of this host's first rank."""
        with open("/proc/sys/kernel/random/boot_id", encoding="utf-8") as file:
            boot = file.read().strip()
        return "%shost/%s/%x" % (below, boot, os.stat("/proc/self/ns/net").st_ino)

    def prefix(self, place, below):
        return below[len(place):-1].encode()

    @staticmethod
    def mac(nonce, side, hello, proof_nonce, name, prefix):
        text = side.ljust(8, b"\0") + hello + proof_nonce + name.ljust(48, b"\0") + prefix
        return hmac.new(nonce, text, hashlib.sha256).digest()

    def lead(self, rank, nonce, name, prefix):
        """Sends the messages of a host's first rank to every connecting process, and counts the descriptors that it
        receives."""
        rank.settimeout(1)
        hello = rank.recv(HELLO.size)
        if len(hello) != HELLO.size:
            return
        own = os.urandom(16)
        rank.send(PROOF.pack(own, self.mac(nonce, b"0", hello, own, name, prefix)))
        _, given, _, _ = socket.recv_fds(rank, ENTRY.size, 8)
        self.shared.descriptors += len(given)

    def catch(self, listener, forged):
        """Forges values repeatedly, until rank 1 connects to the stranger's socket; returns the connection and the
        true values seen."""
        true = {}
        for key, value in forged.items():
            self.store.set(key, value)
        while True:
            for key, value in forged.items():
                found = self.store.compare_set(key, value, value)  # the current value
                if found != value:
                    true[key] = found
                    self.store.set(key, value)
            self.shared.turns += 1
            self.shared.ready = 1
            try:
                rank = listener.accept()[0]
            except BlockingIOError:
                continue
            self.shared.caught = 1
            return rank, true

    def enter(self, line, nonce, prefix):
        """Sends rank 1's messages to the first rank of its host."""
        name = HOST_LINE.unpack_from(line)[6].rstrip(b"\0")
        rank = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        rank.settimeout(2)
        rank.connect(b"\0" + name)
        hello = HELLO.pack(1, 0, os.urandom(16))
        rank.send(hello)
        theirs, _ = PROOF.unpack(rank.recv(PROOF.size))
        memory = os.memfd_create("heap")
        socket.send_fds(rank, [ENTRY.pack(self.mac(nonce, b"r", hello, theirs, name, prefix), 1, 0)], [memory])
        _, given, _, _ = socket.recv_fds(rank, WORD_BYTES, 8)
        self.shared.descriptors += len(given)

    def impostor(self):
        """Answers rank 1 before rank 0 does, as rank 0; then connects to rank 0 as rank 1."""
        self.connect()
        self.shared.stays = 1  # rank 1, after its failure: rank 0 waits for it until then
        place, below = self.below()
        prefix, nonce, name = self.prefix(place, below), os.urandom(32), b"tutti-%032x" % os.getpid()
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        listener.bind(b"\0" + name)
        listener.listen(8)
        host, table = self.host_key(below), below + "peer_table"
        forged = {host: HOST_LINE.pack(TABLE_MAGIC, os.getpid(), 0, 0, 2, 0, name), table: VERDICT.pack(TABLE_MAGIC, 1, nonce, 0, 1)}
        rank, true = self.catch(listener, forged)
        try:
            self.lead(rank, nonce, name, prefix)
        except OSError:
            pass  # refused
        for key, value in forged.items():
            await_true(lambda key=key, value=value: key in true or self.store.get(key) != value, "value of rank 0")
            true.setdefault(key, self.store.get(key))
        try:
            self.enter(true[host], VERDICT.unpack_from(true[table])[2], prefix)
        except OSError:
            pass  # refused
        self.shared.acted = 1

    def early(self):
        """Answers rank 1 once, before rank 0 does."""
        self.connect()
        _, below = self.below()
        self.store.set(self.host_key(below), HOST_LINE.pack(TABLE_MAGIC, os.getpid(), 0, 0, 2, 0, b"tutti-%032x" % os.getpid()))
        self.store.set(below + "peer_table", VERDICT.pack(TABLE_MAGIC, 1, bytes(32), 0, 1))
        self.shared.ready = 1

    def other_host(self):
        """A rank of Tutti that claims to be rank 1, on another host."""
        os.environ.update(TUTTI_HOST_ID="elsewhere")
        os.environ.pop("TUTTI_SECRET", None)
        self.connect()
        threading.Thread(target=self.tell_when_counted, daemon=True).start()
        dist.init_process_group("tutti", store=self.store, rank=1, world_size=2, timeout=datetime.timedelta(seconds=5))
        self.shared.acted = 1
        for _ in range(100):
            dist.all_reduce(torch.full((1000,), 1000.0))

    def tell_when_counted(self):
        """Lets the true rank 1 start, after this one has written to the store before it."""
        watcher = Stranger(self.port, self.shared)
        watcher.connect()
        await_true(lambda: watcher.find("/count/1"), "count of the stranger")
        self.shared.ready = 1

    def count(self):
        self.connect()
        _, below = self.below()
        attempt = self.find("/rank/0")[:-1]
        self.store.add(attempt + "1", 5)
        self.store.add(below + "count/1", 5)
        self.shared.ready = 1

    def delete(self):
        """All keys, repeatedly until it is killed."""
        self.connect()
        self.below()
        self.shared.ready = 1
        while True:
            for key in self.store.list_keys():
                self.store.delete_key(key)

    def rename(self):
        """Names one attempt after the other."""
        self.connect()
        place, _ = self.below()
        self.shared.ready = 1
        number = 0
        while True:
            number += 1
            self.store.set(place + "attempt", b"%d-%d" % (number, number))
            time.sleep(0.02)

    def spoil(self):
        """Random bytes of many lengths in place of each value, once, and in those that will be read."""
        self.connect()
        place, below = self.below()
        for name, size in (("peer_table", 100), ("peer_info/1", 33), ("claim/1", 0), ("ranks", 70000)):
            self.store.set(below + name, os.urandom(size))
        self.store.set(self.host_key(below), os.urandom(7))
        self.shared.ready = 1

    def garbage_attempt(self):
        self.connect()
        self.below()
        place = self.below()[0]
        self.store.set(place + "attempt", b"\0%s\xff" * 100000)
        self.shared.ready = 1

    def crowd(self):
        """Silent connections to the sockets of the ranks, up to a process's limit."""
        self.connect()
        self.below()
        kept = []
        with open("/proc/net/unix", encoding="utf-8", errors="replace") as file:
            names = [line.split("@")[1].strip() for line in file if "@tutti-" in line]
        for _ in range(200):
            for name in names:
                one = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
                try:
                    one.connect(b"\0" + name.encode())
                    kept.append(one)
                except OSError:
                    pass
        self.shared.ready = 1
        time.sleep(1000)

    def start(self, what):
        sys.stdout.flush()
        pid = os.fork()
        if pid:
            return pid
        try:
            prctl = ctypes.CDLL(None).prctl
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            prctl(ranks.PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)  # changing the user has cleared it
            getattr(self, what)()
            time.sleep(1000)
        except BaseException as error:  # pylint: disable=broad-except
            print("stranger:", type(error).__name__, str(error)[:300], file=sys.stderr, flush=True)
        finally:
            os._exit(1)


def serve(shared):
    """A store like torchrun's: in its own process, since its threads would not survive the forks of ranks. Returns
    its pid."""
    pid = os.fork()
    if pid:
        await_true(lambda: shared.port, "store")
        return pid
    try:
        ctypes.CDLL(None).prctl(ranks.PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        shared.port = server.port
        time.sleep(1000)
    finally:
        os._exit(1)


def end(pid):
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


# ---------------------------------------------------------------------------------------------------- ranks


def attempt(backend, store, rank, limit_s):
    """("sum", value of each element) or ("error", its text), and the time."""
    begin = time.monotonic()
    try:
        dist.init_process_group(backend, store=store, rank=rank, world_size=2, timeout=datetime.timedelta(seconds=limit_s))
        tensor = torch.full((1000,), float(rank + 1))
        dist.all_reduce(tensor)
        outcome = ("sum", tensor.unique().tolist())
    except Exception as error:  # pylint: disable=broad-except
        outcome = ("error", str(error))
    return outcome + (time.monotonic() - begin,)


def hold_back(shared, log=None):
    """Stops this rank, 0, while rank 1 starts: otherwise its true values may be in the store when rank 1 reads them.

    A child does it. It continues the rank when rank 1 has connected to the stranger, or has logged that it ignores
    the stranger's peer table (and then waits for a true one, but not for long); or after HOLD_S.
    """
    rank = os.getpid()
    if os.fork():
        return
    try:
        ctypes.CDLL(None).prctl(ranks.PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        await_true(lambda: shared.ready, "stranger", PROGRAM_S)
        os.kill(rank, signal.SIGSTOP)
        await_true(lambda: read("/proc", str(rank), "stat").rpartition(")")[2].split()[0] == "T", "stop of rank 0")
        for _ in range(2 if shared.turns else 0):  # rank 0's values are found in the second iteration at the latest
            turn = shared.turns
            await_true(lambda before=turn: shared.turns != before, "turn")
        shared.held = 1
        await_true(lambda: shared.caught or log and 'peer_table" is ignored' in read(log), "rank 1", HOLD_S)
    except TimeoutError:
        pass
    finally:
        shared.held = 1
        os.kill(rank, signal.SIGCONT)
        os._exit(0)


def member(context, port, shared, backend, limit_s, variables):
    """Rank 1 starts after the stranger has finished its preparation."""
    os.environ.update(RANK=str(context.rank), WORLD_SIZE="2", LOCAL_RANK=str(context.rank), LOCAL_WORLD_SIZE="2", **variables)
    if backend == "gloo":
        torch_tutti = __import__("torch_tutti")
        torch_tutti.replace_gloo()
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    if context.rank == 0 and shared.holds:
        hold_back(shared, os.path.join(context.folder, "rank1.log"))
    if context.rank == 1:
        await_true(lambda: shared.held if shared.holds else shared.ready, "stranger", PROGRAM_S)
    found = attempt(backend, store, context.rank, limit_s)
    with open(os.path.join(context.folder, "rank%d.log" % context.rank), encoding="utf-8", errors="replace") as file:
        log = file.read()
    if found[0] == "error" and shared.stays:
        time.sleep(SHORT_S)
    return found + (log,)


def program(backend, folder):
    """A rank that torchrun has started."""
    import torch_tutti  # pylint: disable=import-outside-toplevel,unused-import

    rank, shared = int(os.environ["RANK"]), Shared(os.path.join(folder, "shared." + backend))
    if rank == 0:
        await_true(lambda: shared.second, "rank 1", PROGRAM_S)  # torch may take longer to import than a start may last
        hold_back(shared)
    else:
        shared.second = 1
        await_true(lambda: shared.held, "stranger", PROGRAM_S)
    found = attempt(backend, None, rank, MEET_S)
    with open(os.path.join(folder, "%s.%d" % (backend, rank)), "w", encoding="utf-8") as file:
        file.write("%s %s" % found[:2])
    time.sleep(SHORT_S)


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


class Job:
    """Two ranks started by torchrun, and a stranger."""

    def __init__(self, backend, folder):
        port, path = free_port(), os.path.join(folder, "shared." + backend)
        with open(path, "wb") as file:
            file.write(bytes(16))
        self.backend, self.shared = backend, Shared(path)
        launch = ("-m", "torch.distributed.run", "--nproc_per_node", "2", "--master_addr", "127.0.0.1", "--master_port", str(port))
        with open(os.path.join(folder, "log." + backend), "w", encoding="utf-8") as log:
            self.process = subprocess.Popen([sys.executable, *launch, os.path.abspath(__file__), "program", backend, folder], stdout=log,
                                            stderr=subprocess.STDOUT, env=dict(os.environ, TUTTI_AS_GLOO=str(int(backend == "gloo"))))
        self.stranger = Stranger(port, self.shared).start("impostor")

    def end(self):
        self.process.terminate()
        self.process.wait(40)
        end(self.stranger)


def read(*path):
    with open(os.path.join(*path), encoding="utf-8", errors="replace") as file:
        return file.read()


def two_groups(context, port, backend):
    """All keys of the store, after the world and a group of it have been made."""
    if backend == "gloo":
        __import__("torch_tutti").replace_gloo()
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    dist.init_process_group(backend, store=store, rank=context.rank, world_size=context.size)
    dist.all_reduce(torch.ones(1), group=dist.new_group(list(range(context.size))))
    return store.list_keys()


@unittest.skipUnless(ranks.IS_TUTTI, "Gloo promises nothing of the kind")
@unittest.skipUnless(os.geteuid() == 0, "needs root, to become another user")
@unittest.skipUnless(hasattr(dist.TCPStore, "list_keys"), "this PyTorch's store does not list its keys")
class Strangers(unittest.TestCase):
    def attack(self, what, backend="tutti", limit_s=SHORT_S, **variables):
        """Checks both ranks' results: each is a right sum, or an error within the deadline."""
        shared = Shared()
        shared.holds = int(what in ("impostor", "early"))
        server = serve(shared)
        stranger = Stranger(shared.port, shared).start(what)
        try:
            found = ranks.run(2, member, shared.port, shared, backend, limit_s, variables, init=False, timeout=PROGRAM_S)
        finally:
            end(stranger)
            end(server)
        self.assertEqual(shared.descriptors, 0, "descriptors that a stranger has got")
        for kind, value, took, log in found:
            if kind == "sum":
                self.assertEqual(value, [3.0], log)
            self.assertLess(took, limit_s + SLACK_S, "%s\n%s" % (value, log))
        return found, shared

    def summed(self, found):
        for kind, value, _, log in found:
            self.assertEqual((kind, value), ("sum", [3.0]), log)

    def test_an_impostor_gets_no_memory(self):
        for backend in ("tutti", "gloo"):
            with self.subTest(backend=backend):
                (first, second), shared = self.attack("impostor", backend, MEET_S)
                self.assertEqual(shared.acted, 1)
                self.assertEqual((first[0], second[0]), ("error", "error"))
                self.assertIn("another user", second[1])
                self.assertIn("rank 1", first[1])

    def test_an_impostor_at_torchruns_store_gets_no_memory(self):
        with tempfile.TemporaryDirectory(prefix="torch-strangers-") as folder:
            jobs = [Job(backend, folder) for backend in ("tutti", "gloo")]
            try:
                for job in jobs:
                    job.process.wait(2 * PROGRAM_S)
            finally:
                for job in jobs:
                    job.end()
            for job in jobs:
                log = read(folder, "log." + job.backend)[-3000:]
                self.assertEqual((job.shared.acted, job.shared.descriptors), (1, 0), log)
                self.assertIn("another user", read(folder, job.backend + ".1"), log)
                self.assertTrue(read(folder, job.backend + ".0").startswith("error"), log)

    def test_with_a_secret_an_impostor_gets_no_memory(self):
        self.attack("impostor", limit_s=MEET_S, TUTTI_SECRET=SECRET)

    def test_with_a_secret_early_answers_are_named_and_ignored(self):
        for backend in ("tutti", "gloo"):
            with self.subTest(backend=backend):
                found, _ = self.attack("early", backend, LONG_S, TUTTI_SECRET=SECRET)
                self.summed(found)
                self.assertEqual(found[1][3].count('peer_table" is ignored: it is not proved'), 1, found[1][3])

    def test_another_host_is_rejected_if_all_ranks_are_on_one(self):
        (first, second), _ = self.attack("other_host")
        self.assertEqual((first[0], second[0]), ("error", "error"))
        self.assertIn("the launcher has started all 2 on this one", first[1])

    def test_with_a_secret_another_host_is_ignored(self):
        found, _ = self.attack("other_host", limit_s=LONG_S, TUTTI_SECRET=SECRET)
        self.summed(found)

    def test_proofs_of_ranks_name_their_group(self):
        for backend in ("tutti", "gloo"):
            shared = Shared()
            server = serve(shared)
            try:
                keys = ranks.run(2, two_groups, shared.port, backend, init=False)[0]
            finally:
                end(server)
            places = [key[:-len("attempt")] for key in keys if key.endswith("/attempt")]
            self.assertEqual(len(places), 2, keys)
            for key in keys:
                place = max((place for place in places if key.startswith(place)), default="", key=len)
                name = key[len(place):].split("/", 1)
                if place and len(name) > 1 and not name[1].startswith("rank/"):  # key: attempt, rank, kind
                    self.assertTrue(name[1].startswith(place), key)

    def test_a_changed_counter_is_an_error(self):
        (_, second), _ = self.attack("count")
        self.assertEqual(second[0], "error")

    def test_with_a_secret_a_changed_counter_is_ignored(self):
        found, _ = self.attack("count", limit_s=LONG_S, TUTTI_SECRET=SECRET)
        self.summed(found)
        self.assertIn("counter of rank 1 is ignored", found[1][3])

    def test_values_that_are_deleted_end_a_start_by_its_deadline(self):
        for kind, text, *_ in self.attack("delete")[0]:
            self.assertEqual(kind, "error", text)

    def test_attempts_that_are_renamed_end_a_start_by_its_deadline(self):
        for variables in ({}, {"TUTTI_SECRET": SECRET}):
            for kind, text, *_ in self.attack("rename", **variables)[0]:
                self.assertEqual(kind, "error", text)

    def test_garbage_is_an_error(self):
        (_, second), _ = self.attack("spoil")
        self.assertEqual(second[0], "error")

    def test_with_a_secret_garbage_is_ignored(self):
        self.summed(self.attack("spoil", limit_s=LONG_S, TUTTI_SECRET=SECRET)[0])

    def test_a_meaningless_attempt_is_ignored(self):
        (_, second), _ = self.attack("garbage_attempt")
        self.assertIn("attempt", second[1])

    def test_silent_connections_delay_nothing(self):
        for variables in ({}, {"TUTTI_SECRET": SECRET}):
            found, _ = self.attack("crowd", limit_s=LONG_S, **variables)
            self.summed(found)
            self.assertLess(found[1][2], 2)


if __name__ == "__main__":
    if sys.argv[1:2] == ["program"]:
        program(*sys.argv[2:])
    else:
        unittest.main()
