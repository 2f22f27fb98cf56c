"""Tutti in Gloo's place: groups named "gloo" give Gloo's own results. How programs get them: test_as_gloo_ways.

`both` runs a body on ranks of Gloo and on ranks with Tutti in Gloo's place; the results of the two must be equal.
"""
import datetime
import os
import signal
import sys
import time
import unittest

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from support import ranks

CPU = torch.device("cpu")
KILLED_S = 5  # limit within which the others end when a rank is killed


def in_place(context, body, *arguments):
    import torch_tutti  # pylint: disable=import-outside-toplevel

    torch_tutti.replace_gloo()
    return body(context, *arguments)


def both(size, body, *arguments, backend="gloo"):
    """The ranks' results, with Gloo and with Tutti in its place."""
    def begin(context, *given):
        context.init(backend)
        return bits(body(context, *given))

    return (ranks.run(size, begin, *arguments, init=False), ranks.run(size, in_place, begin, *arguments, init=False))


def is_ours(backend):
    import torch_tutti  # pylint: disable=import-outside-toplevel

    return isinstance(backend, torch_tutti._C.GlooBackend)


def own_backend(group=None):
    return (group or dist.group.WORLD)._get_backend(CPU)


def names(context):
    group = dist.new_group(ranks=list(range(context.size)), backend="gloo")
    backends = [own_backend(), own_backend(group)]
    return {
        "get_backend": dist.get_backend(), "of new_group": dist.get_backend(group),
        "config": sorted(map(str, c10d._world.pg_backend_config.values())),
        "isinstance": [isinstance(one, c10d.ProcessGroupGloo) and isinstance(one, dist.ProcessGroupGloo) for one in backends],
        "name": [one.name() for one in backends], "group": dist.group.WORLD.name(),
        "other things": isinstance(torch.ones(1), c10d.ProcessGroupGloo), "class": c10d.ProcessGroupGloo.__name__,
    }, [is_ours(one) for one in backends]


def bits(thing):
    """The same with bytes for tensors: the test's process, which forks ranks, runs no operators."""
    if isinstance(thing, torch.Tensor):
        return str(thing.dtype), tuple(thing.shape), thing.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    if isinstance(thing, (list, tuple)):
        return type(thing)(map(bits, thing))
    return thing


def waiting(context):
    """A call that waits returns a work: programs may wait for it."""
    options = dist.AllreduceOptions()
    if hasattr(options, "asyncOp"):
        options.asyncOp = False
    tensor = torch.full((3,), float(context.rank + 1))
    dist.group.WORLD.allreduce([tensor], options).wait()
    return tensor


def collectives(context):
    """Many calls of many sizes, with the result of each. Sums of more than two are exact, so that their order does
    not matter."""
    rank, size, found = context.rank, context.size, []
    ops = (dist.ReduceOp.SUM, dist.ReduceOp.MAX, dist.ReduceOp.PRODUCT)[: 3 if size <= 2 else 2]

    def numbers(of, count, dtype):
        made = torch.arange(count, dtype=torch.float64)
        return (made * 0.37 + of * 1.13 + 1 if size <= 2 else made % 40 + of).to(dtype)

    for count in (0, 1, 7, 1000, 100003):
        for dtype in (torch.float32, torch.float64, torch.int64, torch.bfloat16, torch.uint8):
            for op in ops:
                tensor = numbers(rank, count, dtype)
                dist.all_reduce(tensor, op)
                found.append(tensor)
            tensor = numbers(rank, count, dtype)
            dist.broadcast(tensor, size - 1)
            outs = [torch.zeros(count, dtype=dtype) for _ in range(size)]
            dist.all_gather(outs, numbers(rank, count, dtype))
            into = torch.zeros(count * size, dtype=dtype)
            dist.all_gather_into_tensor(into, numbers(rank, count, dtype))
            part = torch.zeros(count, dtype=dtype)
            dist.reduce_scatter_tensor(part, numbers(rank, count * size, dtype))
            swapped = torch.zeros(count * size, dtype=dtype)
            dist.all_to_all_single(swapped, numbers(rank, count * size, dtype))
            found += [tensor, *outs, into, part, swapped]
    root = numbers(rank, 50, torch.float32)
    dist.reduce(root, 0)
    piece = torch.zeros(3)
    dist.scatter(piece, [numbers(i, 3, torch.float32) for i in range(size)] if rank == 0 else None, src=0)
    parts = [torch.zeros(4) for _ in range(size)] if rank == 0 else None
    dist.gather(numbers(rank, 4, torch.float32), parts, dst=0)
    return found + [piece] + ((parts + [root]) if rank == 0 else [])


def logged_threads(context):
    """DDP reads them from the fields of any backend with the name gloo."""
    context.init("gloo")
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 3))
    logged = model._get_ddp_logging_data()
    return logged["backend_name"], logged["gloo_num_threads"]


def objects(context):
    mine = {"rank": context.rank, "text": "x" * (10 + 1000 * context.rank)}
    every = [None] * context.size
    dist.all_gather_object(every, mine)
    told = [mine, context.rank]
    dist.broadcast_object_list(told, src=context.size - 1)
    gathered = [None] * context.size if context.rank == 0 else None
    dist.gather_object(mine, gathered, dst=0)
    piece = [None]
    dist.scatter_object_list(piece, list(range(10, 10 + context.size)) if context.rank == 0 else None, src=0)
    return every, told, gathered, piece


def subgroups(context):
    """Each pair of ranks, and the even ones; a group within a group's ranks."""
    found = []
    for members in ([0, 1], [1, 2], [0, 2], [2, 0]):
        group = dist.new_group(members)
        if context.rank in members:
            tensor = torch.full((5,), float(context.rank + 1))
            dist.all_reduce(tensor, group=group)
            found.append((tensor, dist.get_rank(group), dist.get_backend(group), is_ours(own_backend(group)) and "ours"))
    dist.barrier()
    return [one[:3] for one in found], [one[3] for one in found]


def messages(context):
    right, left = (context.rank + 1) % context.size, (context.rank - 1) % context.size
    taken, more = torch.zeros(1000), torch.zeros(3)
    for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, torch.full((1000,), float(context.rank)), right),
                                        dist.P2POp(dist.irecv, taken, left)]):
        work.wait()
    request = dist.isend(torch.full((3,), 7.0 + context.rank), right, tag=5)
    dist.recv(more, left, tag=5)
    request.wait()
    return taken, more


def train(context):
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(20, 30), torch.nn.Tanh(), torch.nn.Linear(30, 4))
    model = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.001)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    torch.manual_seed(100 + context.rank)
    losses = []
    for _ in range(15):
        loss = torch.nn.functional.mse_loss(model(torch.randn(16, 20)), torch.randn(16, 4))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item().hex())
    return losses, [parameter.detach() for parameter in model.parameters()]


def titles(context):
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        dist.all_reduce(torch.ones(3, 4))
        dist.broadcast(torch.ones(7), 0)
        dist.reduce(torch.ones(7), 0)
        dist.all_gather([torch.empty(2) for _ in range(context.size)], torch.ones(2))
        dist.all_reduce(torch.ones(5), async_op=True).wait()
        dist.all_to_all_single(torch.empty(2 * context.size), torch.ones(2 * context.size))
        dist.all_reduce(torch.ones(4).to_sparse())
        dist.barrier()
    return sorted({event.name for event in profile.events() if event.name.split(":")[0] in ("gloo", "tutti")})


def several(context):
    """Only Gloo accepts several tensors in one call; the same group continues with Tutti's operations between them."""
    backend = own_backend()
    found = []
    for turn in range(3):
        tensors = [torch.full((4,), float(context.rank + turn)), torch.full((4,), 10.0 * turn)]
        backend.allreduce(tensors).wait()
        single = torch.ones(2)
        dist.all_reduce(single)
        spread = [torch.full((2,), float(context.rank)), torch.full((2,), 1.0 + context.rank)]
        backend.broadcast(spread).wait()
        found += tensors + [single] + spread
    return found, told()


def parts(context):
    """A split group, with operations that Gloo executes; or the error, if this PyTorch splits only groups of
    accelerators."""
    try:
        group = dist.split_group(split_ranks=[[0, 1]])
    except (AttributeError, RuntimeError, ValueError) as error:
        return str(error)
    tensor, two = torch.full((2,), context.rank + 1.0), [torch.full((2,), 1.0 * context.rank), torch.ones(2)]
    dist.all_reduce(tensor, group=group)
    own_backend(group).allreduce(two).wait()
    return tensor, two, dist.get_backend(group), own_backend(group).name(), isinstance(own_backend(group), dist.ProcessGroupGloo)


def told():
    """The message at the end of the run."""
    heavy = sys.modules.get("torch_tutti._as_gloo")
    return dict(heavy._calls) if heavy else {}


def constructed(context):
    """ProcessGroupGloo called directly, with each form of its arguments."""
    store = context.store("direct")
    limit = datetime.timedelta(seconds=20)
    options = c10d.ProcessGroupGloo._Options()
    options._timeout = limit
    options._devices = [c10d.ProcessGroupGloo.create_device(interface="lo")]
    made = [c10d.ProcessGroupGloo(dist.PrefixStore("a", store), context.rank, context.size, limit),
            c10d.ProcessGroupGloo(dist.PrefixStore("b", store), context.rank, context.size, timeout=limit),
            c10d.ProcessGroupGloo(dist.PrefixStore("c", store), context.rank, context.size, options),
            dist.ProcessGroupGloo(dist.PrefixStore("d", store), rank=context.rank, size=context.size)]
    tensors = [torch.full((3,), context.rank + 1.0) for _ in made]
    for group, tensor in zip(made, tensors):
        group.allreduce([tensor]).wait()
    return bits(tensors), [isinstance(group, dist.ProcessGroupGloo) for group in made], [is_ours(group) for group in made]


def detailed(context):
    dist.set_debug_level(dist.DebugLevel.DETAIL)
    os.environ["TORCH_DISTRIBUTED_DEBUG"] = "DETAIL"
    context.init("gloo")
    tensor = torch.full((3,), context.rank + 1.0)
    dist.all_reduce(tensor)
    wrapped = own_backend()
    try:
        dist.all_reduce(torch.ones(3 + context.rank), group=dist.new_group())
    except RuntimeError as error:
        return bits(tensor), type(wrapped).__name__, str(error), is_ours(wrapped.wrapped_pg)
    return bits(tensor), type(wrapped).__name__, "nothing raised", is_ours(wrapped.wrapped_pg)


def missing_at_barrier(context):
    if context.rank == 1:
        time.sleep(3)
        return ""
    try:
        dist.monitored_barrier(timeout=datetime.timedelta(seconds=1))
    except RuntimeError as error:
        return str(error)
    return "nothing raised"


def left_alone(context, way, backend="gloo"):
    """Rank 0's error if rank 1 does not call an operation, or has ended."""
    context.init(backend, timeout_s=2)
    group = own_backend()
    group.allreduce([torch.ones(2)]).wait()
    if context.rank == 1:
        if way == "late":
            time.sleep(4)
        elif way == "left":
            dist.destroy_process_group()
        else:
            group.abort()
        return ""
    try:
        group.allreduce([torch.ones(2)]).wait()
    except RuntimeError as error:
        return str(error)
    return "nothing raised"


def waits_alone(context):
    """The error if no other rank joins to make the group."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    try:
        c10d.ProcessGroupGloo(dist.PrefixStore(str(context.rank), store), 0, 2, datetime.timedelta(milliseconds=300))
    except RuntimeError as error:
        return str(error)
    return "nothing raised"


def killed(context):
    context.init("gloo")
    dist.barrier()
    if context.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    start = time.monotonic()
    try:
        for _ in range(100000):
            dist.all_reduce(torch.ones(10))
    except RuntimeError as error:
        return time.monotonic() - start, str(error)
    return None


@unittest.skipUnless(ranks.HAVE_TUTTI and dist.is_gloo_available(), "torch_tutti is not installed")
class Groups(unittest.TestCase):
    def both_same(self, size, body, **named):
        theirs, ours = both(size, body, **named)
        self.assertTrue(theirs == ours, "Gloo's ranks and Tutti's in its place return different things")
        return ours

    def test_names(self):
        for backend in ("gloo", "cpu:gloo", "cpu:gloo,cuda:gloo"):
            with self.subTest(backend=backend):
                theirs, ours = both(2, names, backend=backend)
                for one, other in zip(theirs, ours):
                    self.assertEqual(one[0], other[0])
                    self.assertEqual([one[1], other[1]], [[False] * 2, [True] * 2])
                self.assertEqual(ours[0][0]["isinstance"], [True, True])

    def test_collectives_of_two_ranks_give_gloos_bits(self):
        self.both_same(2, collectives)

    def test_collectives_of_one_rank(self):
        self.both_same(1, collectives)

    def test_collectives_of_three_ranks(self):
        self.both_same(3, collectives)

    def test_calls_that_wait_return_works(self):
        self.both_same(2, waiting)

    def test_objects(self):
        self.both_same(3, objects)

    def test_subgroups(self):
        theirs, ours = both(3, subgroups)
        self.assertEqual([one[0] for one in theirs], [one[0] for one in ours])
        for one in ours:
            self.assertEqual(set(one[1]), {"ours"})

    def test_messages(self):
        self.both_same(3, messages)

    def test_training_gives_gloos_bits(self):
        self.both_same(2, train)

    def test_ddp_logs_gloos_threads(self):
        (mine,) = ranks.run(1, in_place, logged_threads, init=False)
        self.assertEqual(mine, ("gloo", 2))

    def test_titles_in_the_profile(self):
        (ours, *_) = self.both_same(2, titles)
        self.assertIn("gloo:all_reduce", ours)
        self.assertIn("gloo:sparse_all_reduce", ours)

    def test_operations_that_tutti_refuses_are_run_by_gloo(self):
        theirs, ours = both(2, several)
        self.assertEqual([one[0] for one in theirs], [one[0] for one in ours])
        why = "several tensors in one call"
        self.assertEqual(ours[0][1], {("all_reduce", why): 3, ("broadcast", why): 3})
        self.assertEqual(ours[1][1], {})  # reported by rank 0

    def test_a_group_split_off(self):
        self.both_same(2, parts)

    def test_direct_construction(self):
        theirs = ranks.run(2, constructed, init=False)
        ours = ranks.run(2, in_place, constructed, init=False)
        self.assertEqual([one[:2] for one in theirs], [one[:2] for one in ours])
        self.assertEqual(ours[0][1:], ([True] * 4, [True] * 4))

    def test_debug_mode(self):
        theirs = ranks.run(2, detailed, init=False)
        ours = ranks.run(2, in_place, detailed, init=False)
        for one, other in zip(theirs, ours):
            self.assertEqual(one[:2], other[:2])
            self.assertIn("Detected mismatch between collectives", one[2])
            self.assertIn("Detected mismatch between collectives", other[2])
            self.assertEqual([one[3], other[3]], [False, True])

    def test_monitored_barrier_names_the_missing_rank(self):
        for told_by in both(2, missing_at_barrier):
            self.assertIn("Rank 1 failed to pass monitoredBarrier in 1000 ms", told_by[0])

    def test_a_killed_rank_ends_the_others(self):
        done = ranks.run(3, in_place, killed, init=False, victims=(1,))
        for rank in (0, 2):
            self.assertLess(done[rank][0], KILLED_S)
            self.assertIn("rank 1", done[rank][1])
            self.assertIn("Connection closed by peer", done[rank][1])

    def test_errors_contain_gloos_text_too(self):
        """Programs recognise a lost rank by these."""
        for way, words in (("late", "Timed out waiting"), ("left", "Connection closed by peer"), ("aborted", "Connection closed by peer")):
            with self.subTest(way=way):
                self.assertRegex(ranks.run(2, in_place, left_alone, way, init=False)[0], rf"^tutti: .*\(Gloo: {words}\)$")
                if way != "aborted":  # abort() of Gloo's own groups ends nothing
                    # Gloo's own text depends on what is detected first: the end of the connection, or its reset.
                    self.assertRegex(ranks.run(2, left_alone, way, init=False)[0], f"{words}|Connection reset by peer")
                self.assertNotIn("Gloo", ranks.run(2, left_alone, way, "tutti", init=False)[0])

    def test_a_group_that_cannot_be_made_has_gloos_text(self):
        self.assertIn("timeout after 300ms", ranks.run(1, waits_alone, init=False)[0])
        self.assertRegex(ranks.run(1, in_place, waits_alone, init=False)[0], r"^tutti: .*\(Gloo: wait timeout after 300ms\)$")


if __name__ == "__main__":
    unittest.main(verbosity=2)
