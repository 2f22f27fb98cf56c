"""What PyTorch 2.14 and newer require of a backend besides its operations: hooks by number, temporary timeouts,
groups made of groups, and errors for unsupported features."""
import copy
import datetime
import importlib.machinery
import importlib.util
import json
import os
import re
import time
import unittest

import torch
import torch.distributed as dist

from support import ranks
from test_groups import summed

c10d = torch._C._distributed_c10d
HAVE_HOOKS = hasattr(dist.ProcessGroup, "register_pre_hook")  # 2.14
HAVE_COMPLETION = hasattr(c10d.Backend, "supports_completion_hooks")  # 2.15; only the flight recorder can register one
CPU = torch.device("cpu")


def backend(group=None):
    return (group or dist.group.WORLD)._get_backend(CPU)


def around_operations(context):
    """The calls of hooks before and after operations, and their order."""
    group, heard = dist.new_group(), []
    group.register_pre_hook(1, lambda told: heard.append(("before", told.name.name, told.op_id)))
    group.register_post_hook(2, lambda told: heard.append(("after", told.name.name, told.op_id)))
    assert summed(group) == context.size
    dist.broadcast(torch.ones(3), 0, group, async_op=True).wait()
    group.unregister_pre_hook(1)
    group.unregister_post_hook(2)
    summed(group)
    return heard


def recorded(backend_name="tutti"):
    """The flight recorder's entries of operations: [(name, state, milliseconds)]."""
    trace = json.loads(c10d._dump_fr_trace_json(includeCollectives=True, onlyActive=False, backend=backend_name))
    return [(entry["profiling_name"], entry["state"], entry.get("duration_ms")) for entry in trace["entries"]]


def flight(context):
    """Operations with a blocking call, a work, a dropped work, coalesced, and of several steps."""
    dist.all_reduce(torch.ones(1 << 16), group=dist.new_group())
    dist.group.WORLD._enable_collectives_timing()
    dist.all_reduce(torch.ones(1 << 16))
    dist.broadcast(torch.ones(3), 0, async_op=True).wait()
    dist.all_gather([torch.ones(3) for _ in range(context.size)], torch.ones(3), async_op=True)
    with dist._coalescing_manager(async_ops=True) as together:
        for _ in range(2):
            dist.all_reduce(torch.ones(3))
    together.wait()
    dist.group.WORLD.allreduce([torch.sparse_coo_tensor(torch.tensor([[0]]), torch.ones(1), (4,))]).wait()
    peer = 1 - context.rank
    for request in dist.batch_isend_irecv([dist.P2POp(dist.isend, torch.ones(2), peer), dist.P2POp(dist.irecv, torch.ones(2), peer)]):
        request.wait()
    dist.barrier()
    until = time.monotonic() + 10  # hooks are called by other threads
    while time.monotonic() < until and any(state != "completed" for _, state, _ in recorded()):
        time.sleep(0.02)
    return recorded()


def left_running(context):
    """One operation that has ended, one that has not."""
    dist.all_reduce(torch.ones(3))
    work = dist.recv if context.rank else None
    request = dist.irecv(torch.ones(2), 0) if work else None
    time.sleep(0.3)
    seen = recorded()
    dist.barrier()
    if context.rank == 0:
        dist.send(torch.ones(2), 1)
    else:
        request.wait()
    return [(name, state) for name, state, _ in seen]


def of_a_death(context, asynchronous, recorder):
    os.environ["TORCH_FR_BUFFER_SIZE"] = "2000" if recorder else "0"
    context.init()
    heard = []
    dist.group.WORLD.register_abort_hook(7, lambda: heard.append("7"))
    dist.group.WORLD.register_abort_hook(8, lambda: heard.append("8"))
    dist.group.WORLD.unregister_abort_hook(8)
    summed()
    assert not heard
    if context.rank == 1:
        os._exit(0)
    try:
        work = dist.all_reduce(torch.ones(1 << 16), async_op=asynchronous)
        if work is not None:
            work.wait()
        return "nothing raised"
    except RuntimeError:
        pass
    until = time.monotonic() + 5
    while not heard and time.monotonic() < until:
        time.sleep(0.01)
    return sorted(set(heard))


def of_a_limit(context):
    """A timeout of an operation is an error too; a wrong argument and abort() are not."""
    heard, quiet = [], []
    group, other = dist.new_group(timeout=datetime.timedelta(seconds=1)), dist.new_group()
    backend(group).register_abort_hook(1, lambda: heard.append(1))
    backend(other).register_abort_hook(1, lambda: quiet.append(1))
    try:
        group.allreduce([torch.ones(1), torch.ones(1)])
    except ValueError:
        pass
    assert not heard
    if context.rank == 0:
        try:
            dist.all_reduce(torch.ones(3), group=group)
        except RuntimeError:
            pass
    backend(other).abort()
    try:
        dist.all_reduce(torch.ones(3), group=other)
    except RuntimeError:
        pass
    return heard, quiet


def slow_hook(context):
    """The error does not wait for a slow hook; the hook still runs to its end."""
    group, heard = dist.new_group(timeout=datetime.timedelta(seconds=0.5)), []

    def hook():
        time.sleep(3)
        heard.append("done")

    group.register_abort_hook(1, hook)
    summed(group)
    began = time.monotonic()
    if context.rank == 0:
        try:
            summed(group)
        except RuntimeError:
            took, early = time.monotonic() - began, list(heard)
            time.sleep(4)
            return took, early, heard
    time.sleep(5)
    return None


def that_raises(context):
    def hook():
        raise ValueError("from the hook")

    backend().register_abort_hook(1, hook)
    summed()
    if context.rank == 1:
        os._exit(0)
    try:
        dist.all_reduce(torch.ones(3))
    except RuntimeError as error:
        return type(error).__name__, str(error)
    return "", "nothing raised"


def extended(context):
    """A second is added to the limit of half a second, for the next operation."""
    group = dist.new_group(timeout=datetime.timedelta(seconds=0.5))
    summed(group)
    group._add_ephemeral_timeout(datetime.timedelta(seconds=4))
    if context.rank == 1:
        time.sleep(1.5)
    long = summed(group)
    began = time.monotonic()
    if context.rank == 1:
        time.sleep(4)
        return long, 0
    try:
        summed(group)
    except RuntimeError:
        pass
    return long, time.monotonic() - began


def split_and_merged(context):
    """Halves of the world by split_group, and the world again out of them by merge_remote_group."""
    half = [context.rank // 2 * 2, context.rank // 2 * 2 + 1]
    group = dist.group.WORLD.split_group(half, group_name="half%d" % (context.rank // 2))
    tensor = torch.tensor([1.0 + context.rank])
    group.allreduce([tensor]).wait()
    store = context.store("merge")
    whole = group.merge_remote_group(store, context.size, datetime.timedelta(seconds=20), group_name="whole")
    again = torch.tensor([1.0 + context.rank])
    whole.allreduce([again]).wait()
    names = backend().options.group_name, group._get_backend(CPU).options.group_name
    return tensor.item(), group.size(), again.item(), whole.size(), whole._get_backend(CPU).name(), names[0] != names[1]


def clones(context):
    import torch_tutti

    options = torch_tutti.Options()
    options.name, options.zero_copy, options._timeout = "gradients", False, datetime.timedelta(seconds=7)
    group = dist.new_group(pg_options=options)
    part = group.split_group([0, 1])
    kept = part._get_backend(CPU).options if part else None
    copied = copy.copy(options)
    return type(kept).__name__, kept.zero_copy, copied.name, backend(group).options.name


def one_tensor(context):
    size, rank = context.size, context.rank
    gathered = torch.zeros(3 * size) if rank == 1 else None
    dist.gather_single(torch.full((3,), float(rank)), gathered, dst=1)
    aside = torch.zeros(2 * size) if rank == 0 else None
    work = dist.gather_single(torch.full((2,), float(rank)), aside, dst=0, async_op=True)
    work.wait()
    everywhere = torch.zeros(size)
    dist.all_gather_single(everywhere, torch.tensor([float(rank)]))
    part = torch.zeros(1)
    dist.reduce_scatter_single(part, torch.arange(float(size)))
    wrong = ""
    if rank == 0:
        try:
            dist.gather_single(torch.ones(3), torch.zeros(3), dst=0)
        except ValueError as error:
            wrong = str(error)
    return gathered, aside, everywhere, part, wrong


def refusals(context):
    own, said = backend(), {}
    for name in ("get_reconfigure_handle", "new_window", "_start_time_estimate", "suspend", "memory_stats"):
        if not hasattr(own, name):
            continue
        try:
            getattr(own, name)()
            said[name] = "nothing raised"
        except RuntimeError as error:
            said[name] = str(error).splitlines()[0]
    supports = ("supports_reconfigure", "supports_window", "_supports_time_estimate")
    return said, [name for name in supports if getattr(own, name, False)], getattr(own, "supports_abort_hooks", True)


def supported_table():
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "supported_table")
    spec = importlib.util.spec_from_loader("supported_table", importlib.machinery.SourceFileLoader("supported_table", path))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def virtual_methods(path):
    """Names of the virtual methods that a header declares, without constructors and destructors."""
    with open(path, encoding="utf-8") as file:
        code = re.sub(r"//[^\n]*|/\*.*?\*/", "", file.read(), flags=re.DOTALL)
    return set(re.findall(r"\bvirtual\b[^;{}()]*?(?<!~)\b(\w+)\s*\(", code))


@unittest.skipUnless(ranks.IS_TUTTI, "it is gloo that is tested")
class Methods(unittest.TestCase):
    def test_every_method_of_a_backend_is_in_the_table(self):
        header = os.path.join(os.path.dirname(torch.__file__), "include", "torch", "csrc", "distributed", "c10d", "Backend.hpp")
        asked, table = virtual_methods(header), supported_table()
        self.assertGreaterEqual(len(asked), 31, "the methods in %s were not found" % header)  # PyTorch 2.4 has the fewest
        rows = {row[0] for row in table.operations(0, 2)} | {row[0] for row in table.contract(0, 2)}
        self.assertEqual(sorted(asked - set(table.METHODS)), [], "methods that supported_table's METHODS does not have")
        for name, row in table.METHODS.items():
            self.assertTrue(row in rows or row.startswith(": "), "%s is said to be tried by %r, and there is no such row" % (name, row))

    def test_methods_in_the_table_are_declared(self):
        """Our backend declares each method that has a row, unless the row has a reason why not."""
        with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "src", "backend", "backend.h"), encoding="utf-8") as file:
            ours, table = file.read(), supported_table()
        refused = {row[0] for row in table.contract(0, 2) if row[3]}
        missing = [name for name, row in table.METHODS.items()
                   if not row.startswith(": ") and row not in refused and not re.search(r"\b%s\(" % name, ours)]
        self.assertEqual(missing, [])


@unittest.skipUnless(ranks.IS_TUTTI and HAVE_HOOKS, "this PyTorch has no hooks by number, or it is gloo that is tested")
class Contract(unittest.TestCase):
    def test_hooks_of_a_group_are_called_around_its_operations(self):
        for heard in ranks.run(2, around_operations):
            self.assertEqual([one[:2] for one in heard], [("before", "ALLREDUCE"), ("after", "ALLREDUCE"), ("before", "BROADCAST"),
                                                         ("after", "BROADCAST")])
            self.assertEqual([one[2] for one in heard], [0, 0, 1, 1])

    @unittest.skipUnless(HAVE_COMPLETION, "this PyTorch has no completion hooks by number")
    def test_the_flight_recorder_sees_every_operation_end(self):
        for entries in ranks.run(2, flight):
            names = [name.split(" ")[0] for name, _, _ in entries]
            for name in ("all_reduce", "broadcast", "all_gather", "send", "recv", "barrier"):
                self.assertIn("tutti:" + name, names)
            self.assertEqual([entry for entry in entries if entry[1] != "completed"], [])
            untimed, timed = [ms for name, _, ms in entries if name == "tutti:all_reduce"][:2]
            self.assertIsNone(untimed)
            self.assertGreater(timed, 0)
            self.assertEqual([entry for entry in entries if entry[2] is not None and not 0 <= entry[2] < 60e3], [])

    @unittest.skipUnless(HAVE_COMPLETION, "this PyTorch has no completion hooks by number")
    def test_the_flight_recorder_shows_unended_operations(self):
        seen = ranks.run(2, left_running)[1]
        self.assertEqual(seen[0], ("tutti:all_reduce", "completed"))
        self.assertEqual(seen[1], ("tutti:recv 1<-0", "scheduled"))

    def test_abort_hooks_are_called_for_a_death(self):
        for asynchronous, recorder in ((False, False), (False, True), (True, True)):
            with self.subTest(asynchronous=asynchronous, recorder=recorder):
                self.assertEqual(ranks.run(2, of_a_death, asynchronous, recorder, init=False, victims=(1,))[0], ["7"])

    def test_abort_hooks_are_called_for_a_timeout_but_not_for_the_users_errors(self):
        heard, quiet = ranks.run(2, of_a_limit)[0]
        self.assertEqual((len(heard), quiet), (1, []))

    def test_an_error_does_not_wait_for_a_slow_hook(self):
        took, early, late = ranks.run(2, slow_hook)[0]
        self.assertLess(took, 2)
        self.assertEqual((early, late), ([], ["done"]))

    def test_an_abort_hook_that_raises_does_not_change_the_error(self):
        kind, text = ranks.run(2, that_raises, victims=(1,))[0]
        self.assertEqual(kind, "DistBackendError")
        self.assertNotIn("from the hook", text)

    def test_a_limit_can_be_extended_for_one_operation(self):
        (long, seconds), _ = ranks.run(2, extended)
        self.assertEqual(long, 2)
        self.assertGreater(seconds, 0.4)
        self.assertLess(seconds, 3)

    def test_groups_are_split_and_merged(self):
        for rank, (part, size, whole, merged, name, apart) in enumerate(ranks.run(4, split_and_merged)):
            self.assertEqual((part, size), (3.0, 2) if rank < 2 else (7.0, 2))
            self.assertEqual((whole, merged, name, apart), (10.0, 4, "tutti", True))

    def test_options_are_copied_completely(self):
        for found in ranks.run(2, clones):
            self.assertEqual(found, ("Options", False, "gradients", "gradients"))

    @unittest.skipUnless(hasattr(dist, "gather_single"), "this PyTorch has no gather_single")
    def test_operations_on_one_tensor(self):
        found = ranks.run(3, one_tensor)
        self.assertEqual(found[1][0].tolist(), [0, 0, 0, 1, 1, 1, 2, 2, 2])
        self.assertEqual(found[0][1].tolist(), [0, 0, 1, 1, 2, 2])
        for rank, (_, _, everywhere, part, _) in enumerate(found):
            self.assertEqual((everywhere.tolist(), part.item()), ([0, 1, 2], 3.0 * rank))
        self.assertIn("does not fit", found[0][4])

    def test_unsupported_features_are_refused_with_a_text(self):
        said, supports, has_abort_hooks = ranks.run(1, refusals)[0]
        self.assertIn("new_window", said)
        self.assertEqual((supports, has_abort_hooks), ([], True))
        for name, text in said.items():
            self.assertIn("tutti does not support", text, name)


if __name__ == "__main__":
    unittest.main()
