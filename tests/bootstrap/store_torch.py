"""Our store with PyTorch's: its client on our server, our client on its servers, and a world that joins ours."""
import datetime
import subprocess
import sys
import threading

try:
    import torch.distributed as dist
except Exception as reason:  # pylint: disable=broad-except
    print(f"skipped: this Python has no torch.distributed ({reason}); set TUTTI_TEST_PYTHON")
    sys.exit(77)

PROBE = sys.argv[1]
SECOND = datetime.timedelta(seconds=1)


def expect_error(kind, call, *arguments):
    try:
        call(*arguments)
    except kind:
        return
    raise AssertionError(f"{call.__name__} should have failed")


def in_threads(*calls):
    errors = []

    def guard(call):
        try:
            call()
        except Exception as error:  # pylint: disable=broad-except
            errors.append(error)

    threads = [threading.Thread(target=guard, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive(), "a call hangs"
    assert not errors, errors


def settle(client):
    """Waits until requests without a reply are done: a later request of the same client has a reply."""
    client.num_keys()


def basics(a, b):
    a.set("k", b"x\0y")
    settle(a)
    assert b.get("k") == b"x\0y"
    assert a.add("n", 3) == 3 and b.add("n", -5) == -2 and a.get("n") == b"-2"
    assert a.compare_set("c", "", "v") == b"v"
    assert a.compare_set("c", "v", "w") == b"w"
    assert a.compare_set("c", "v", "u") == b"w"
    assert a.compare_set("missing", "e", "d") == b"e" and not a.check(["missing"])
    assert b.check(["k", "c"]) and not b.check(["k", "missing"])
    assert a.delete_key("c") and not a.delete_key("c")
    assert a.num_keys() >= 2
    expect_error(dist.DistStoreError, b.wait, ["missing"], 0.2 * SECOND)
    assert b.get("k") == b"x\0y", "out of step after a wait that was cancelled"
    in_threads(lambda: a.wait(["late"], 20 * SECOND), lambda: b.set("late", "1"))
    big = bytes(range(256)) * 32768
    a.set("big", big)
    assert b.get("big") == big


def extended(a, b):
    a.append("log", "one ")
    settle(a)
    b.append("log", "two")
    settle(b)
    assert a.get("log") == b"one two"
    a.multi_set(["p", "q"], ["1", "22"])
    settle(a)
    assert b.multi_get(["q", "p"]) == [b"22", b"1"]
    if hasattr(a, "queue_push"):
        a.queue_push("jobs", "first")
        a.queue_push("jobs", "second")
        settle(a)
        assert b.queue_len("jobs") == 2
        assert b.queue_pop("jobs") == b"first" and a.queue_pop("jobs") == b"second"
        in_threads(lambda: a.queue_pop("jobs"), lambda: b.queue_push("jobs", "third"))
    if hasattr(a, "list_keys"):
        assert {"k", "log", "p", "q"} <= set(a.list_keys()), a.list_keys()
    if hasattr(a, "barrier"):
        in_threads(lambda: a.barrier("gate", 2), lambda: b.barrier("gate", 2))


def torch_clients_on_our_server():
    server = subprocess.Popen([PROBE, "serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    port = int(server.stdout.readline())
    clients = [None, None]

    def join(i):  # counts itself in at "init/"
        clients[i] = dist.TCPStore("127.0.0.1", port, 2, False, timeout=20 * SECOND, wait_for_workers=True)

    in_threads(lambda: join(0), lambda: join(1))
    basics(*clients)
    extended(*clients)
    server.stdin.close()
    assert server.wait(20) == 0


def our_client_on_torch_server(use_libuv):
    server = dist.TCPStore("127.0.0.1", 0, None, True, timeout=20 * SECOND, wait_for_workers=False, use_libuv=use_libuv)
    server.set("count", "2")
    client = subprocess.Popen([PROBE, "client", str(server.port)])
    server.set("from torch", b"a\0b\xffc")
    assert client.wait(30) == 0, f"store_probe failed (libuv: {use_libuv})"
    assert server.get("from tutti") == b"d\0e\xfef"
    assert server.get("count") == b"42"


torch_clients_on_our_server()
for libuv in (True, False):
    try:
        our_client_on_torch_server(libuv)
    except (RuntimeError, TypeError) as absent:  # this build lacks one of the two servers
        print(f"PyTorch's server with use_libuv={libuv} is not available: {absent}")
print("PyTorch's store and ours understand each other")
