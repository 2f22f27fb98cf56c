"""Errors: arguments, peers that die or do not call, Ctrl-C, process exits at any time."""
import datetime
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest

import torch
import torch.distributed as dist

from support import ranks
from test_groups import summed

only_ours = unittest.skipUnless(ranks.IS_TUTTI, "not so with gloo")


def raises(call, pattern=""):
    """The text of its exception."""
    try:
        call()
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        assert pattern.lower() in str(error).lower(), error
        return str(error)
    raise AssertionError("nothing raised")


def wrong_arguments(context):
    """Each raises in the caller, and the group is usable afterwards, even if only one rank was wrong."""
    size, rank = context.size, context.rank
    one, two = torch.ones(2), torch.ones(3)
    tries = {
        "root too large": lambda: dist.broadcast(one.clone(), size),
        "negative root": lambda: dist.reduce(one.clone(), -1),
        "too few outputs": lambda: dist.all_gather([torch.ones(2)] * (size - 1), one),
        "outputs of other shape": lambda: dist.all_gather_into_tensor(two, one),
        "wrong output of reduce_scatter": lambda: dist.reduce_scatter_tensor(two, torch.ones(2 * size)),
        "wrong splits": lambda: dist.all_to_all_single(torch.ones(4), torch.ones(4), [1] * size, [5] * size),
        "other dtype": lambda: dist.all_gather([torch.ones(2, dtype=torch.int32) for _ in range(size)], one),
        "no tensor": lambda: dist.all_reduce("text"),
        "complex maximum": lambda: dist.all_reduce(torch.ones(2, dtype=torch.complex64), dist.ReduceOp.MAX),
        "bits of floats": lambda: dist.all_reduce(torch.ones(2), dist.ReduceOp.BAND),
        "send to oneself": lambda: dist.send(one, rank),
        "rank that is not there": lambda: dist.send(one, size + 3),
    }
    for label, call in tries.items():
        try:
            raises(call)
        except AssertionError as error:
            raise AssertionError(label) from error
    assert summed() == size
    if rank == 0:  # only this rank
        raises(lambda: dist.all_reduce(torch.ones(2), dist.ReduceOp.BAND))
    assert summed() == size
    return True


def other_device(context):
    """Directly on the backend: for "meta" tensors PyTorch itself has operators that do nothing."""
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    text = raises(lambda: backend.allreduce([torch.ones(2, device="meta")], dist.AllreduceOptions()))
    assert summed() == context.size
    return text


def late_peer(context):
    context.init(timeout_s=1)
    if context.rank == 1:
        time.sleep(4)
        return None
    began = time.monotonic()
    text = raises(lambda: dist.all_reduce(torch.ones(2)))
    return time.monotonic() - began, text


def killed_peer(context, asynchronous):
    """Times since the death; all ranks have one clock."""
    struck = os.path.join(context.folder, "struck")
    assert summed() == context.size
    if context.rank == 1:
        time.sleep(0.3)
        with open(struck, "w", encoding="utf-8") as file:
            file.write("%r" % time.monotonic())
        os.kill(os.getpid(), signal.SIGKILL)
    if asynchronous:
        work = dist.all_reduce(torch.ones(1 << 20), async_op=True)
        text = raises(work.wait)
        assert not work.is_success()
    else:
        text = raises(lambda: [dist.all_reduce(torch.ones(2)) for _ in range(100000)])
    told = time.monotonic()
    raises(lambda: dist.all_reduce(torch.ones(2)))  # at once: the group is broken
    dist.destroy_process_group()
    destroyed = time.monotonic()
    with open(struck, encoding="utf-8") as file:
        began = float(file.read())
    return told - began, text, destroyed - began


def killed_between(context):
    """Another group, without the dead rank, continues."""
    group = dist.new_group([0, 1])
    if context.rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    for _ in range(50):
        assert summed(group) == 2
        time.sleep(0.02)
    return True


def interrupted(context):
    """Ctrl-C in a wait for a peer that does not call."""
    summed()
    if context.rank == 1:
        time.sleep(3)
        return None
    struck = []

    def strike():
        struck.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)

    threading.Timer(0.5, strike).start()
    try:
        dist.all_reduce(torch.ones(2))
    except KeyboardInterrupt:
        return time.monotonic() - struck[0]
    return None


def other_shapes(context):
    """Ranks that disagree: an error that reports it, not wrong results."""
    return raises(lambda: dist.all_reduce(torch.ones(5 + context.rank)))


def destroyed_in_flight(context):
    """The group's end while an operation waits for a peer that never joins in."""
    summed()
    if context.rank == 0:
        work = dist.all_reduce(torch.ones(1000), async_op=True)
        began = time.monotonic()
        dist.destroy_process_group()
        took = time.monotonic() - began
        text = raises(work.wait)
        return took, text
    time.sleep(2)
    began = time.monotonic()
    dist.destroy_process_group()
    return time.monotonic() - began, ""


def aborted(context):
    group = dist.new_group()
    summed(group)
    backend = group._get_backend(torch.device("cpu"))
    if context.rank == 0:
        struck = []
        threading.Timer(0.3, lambda: (struck.append(time.monotonic()), backend.abort())).start()
        raises(lambda: dist.all_reduce(torch.ones(3), group=group))
        took = time.monotonic() - struck[0]
    else:
        time.sleep(2)
        took = 0.0
    assert summed() == context.size  # the world is another group
    return took


def error_in_future(context):
    if context.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    future = dist.all_reduce(torch.ones(2), async_op=True).get_future()
    return raises(future.wait)


def forked_worker(context):
    """A DataLoader's workers are forks of a process with groups: they must not touch these."""
    class Squares(torch.utils.data.Dataset):
        def __len__(self):
            return 32

        def __getitem__(self, index):
            return torch.tensor([float(index * index)])

    loader = torch.utils.data.DataLoader(Squares(), batch_size=4, num_workers=2)
    for _ in range(2):
        for batch in loader:
            assert batch.shape == (4, 1)
            assert summed() == context.size
    return True


def forked_use(context):
    """Using a group in a fork is an error, and the parent's continues."""
    pid = os.fork()
    if pid == 0:
        try:
            dist.all_reduce(torch.ones(2))
            os._exit(1)
        except RuntimeError:
            os._exit(0)
    deadline = time.monotonic() + 5
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            break
        assert time.monotonic() < deadline, "the fork hangs"
        time.sleep(0.01)
    assert summed() == context.size
    return os.waitstatus_to_exitcode(status)


EXITS = {
    "with work in flight": "work = dist.all_reduce(torch.ones(1000), async_op=True)",
    "with dropped work in flight": "dist.all_reduce(torch.ones(1000), async_op=True)",
    "with the group alive": "dist.all_reduce(torch.ones(10))",
    "after destroy": "dist.all_reduce(torch.ones(10)); dist.destroy_process_group()",
    "with callbacks": "dist.all_reduce(torch.ones(10), async_op=True).get_future().then(lambda done: time.sleep(0.2))",
    "with an exception": "dist.all_reduce(torch.ones(10)); raise SystemExit(0)",
    "with a thread that waits": "threading.Thread(target=lambda: dist.all_reduce(torch.ones(10)), daemon=True).start(); time.sleep(0.2)",
    "with a cycle": "a = [dist.group.WORLD, dist.all_reduce(torch.ones(10), async_op=True)]; a.append(a)",
}
GLOO_CRASHES = ("with dropped work in flight", "with callbacks")
PROGRAM = """
import sys, threading, time
import torch, torch.distributed as dist
rank, path, backend, action = int(sys.argv[1]), *sys.argv[2:5]
dist.init_process_group(backend, store=dist.FileStore(path, 2), rank=rank, world_size=2)
exec(action)
"""


def exit_of(action, alone):
    """Two programs that end with this action; with `alone`, the second one does not call. Returns their exit codes
    and output."""
    with tempfile.TemporaryDirectory() as folder:
        programs = []
        for rank in range(2):
            what = "time.sleep(1)" if alone and rank == 1 else action
            programs.append(subprocess.Popen([sys.executable, "-c", ranks.IMPORT + PROGRAM, str(rank), os.path.join(folder, "store"), ranks.BACKEND, what],
                                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
        results = []
        for program in programs:
            try:
                said, _ = program.communicate(timeout=100)  # mostly for the import of PyTorch
            except subprocess.TimeoutExpired:
                program.kill()
                said, _ = program.communicate()
                said += "\nhangs at exit"
            results.append((program.returncode, said))
        return results


class Errors(unittest.TestCase):
    @only_ours
    def test_wrong_arguments_raise_and_leave_the_group_usable(self):
        ranks.run(2, wrong_arguments)

    @only_ours
    def test_tensors_of_other_devices_are_refused(self):
        for text in ranks.run(2, other_device):
            self.assertIn("meta", text)

    def test_a_peer_that_does_not_call_is_a_timeout(self):
        took, text = ranks.run(2, late_peer, init=False, victims=(1,))[0]
        self.assertLess(took, 2.5)
        self.assertRegex(text, "(?i)time")

    @only_ours
    def test_a_killed_peer_raises_within_two_seconds(self):
        for asynchronous in (False, True):
            with self.subTest(asynchronous=asynchronous):
                took, text, until_destroyed = ranks.run(2, killed_peer, asynchronous, victims=(1,))[0]
                self.assertLess(took, 2)
                self.assertLess(until_destroyed, 4)
                self.assertRegex(text, "1")

    def test_groups_without_the_dead_rank_continue(self):
        self.assertEqual(ranks.run(3, killed_between, victims=(2,))[:2], [True, True])

    @only_ours
    def test_ctrl_c_ends_a_wait_within_a_second(self):
        late = ranks.run(2, interrupted, victims=(1,))[0]
        self.assertIsNotNone(late)
        self.assertLess(late, 1)

    @only_ours
    def test_ranks_that_disagree_get_an_error(self):
        for text in ranks.run(2, other_shapes, victims=()):
            self.assertRegex(text, "(?i)differ|mismatch|bytes|count|elements")

    def test_destroy_does_not_wait_for_what_never_ends(self):
        if not ranks.IS_TUTTI:
            self.skipTest("gloo waits for its timeout")
        for took, _ in ranks.run(2, destroyed_in_flight):
            self.assertLess(took, 2)

    @only_ours
    def test_abort_ends_the_waits_of_its_group_only(self):
        self.assertLess(ranks.run(2, aborted)[0], 1)

    @only_ours
    def test_a_future_raises_the_error_of_its_operation(self):
        self.assertTrue(ranks.run(2, error_in_future, victims=(1,))[0])

    def test_workers_of_a_data_loader_do_not_touch_groups(self):
        ranks.run(2, forked_worker)

    @only_ours
    def test_a_group_used_in_a_fork_raises(self):
        self.assertEqual(ranks.run(2, forked_use), [0, 0])

    def test_the_process_can_end_at_any_time(self):
        for label, action in EXITS.items():
            if label in GLOO_CRASHES and not ranks.IS_TUTTI:
                continue
            for alone in (False, True) if ranks.IS_TUTTI and "flight" in label else (False,):
                with self.subTest(exit=label, alone=alone):
                    for code, said in exit_of(action, alone):
                        self.assertEqual(code, 0, said)


if __name__ == "__main__":
    unittest.main()
