"""Groups: of some ranks, many, mixed with other backends, started in every way."""
import datetime
import os
import random
import socket
import unittest

import torch
import torch.distributed as dist

from support import ranks

BACKEND = ranks.BACKEND


def memory_kib():
    with open("/proc/self/status", encoding="ascii") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmRSS"))


def summed(group=None, value=1.0):
    tensor = torch.full((5,), value)
    dist.all_reduce(tensor, group=group)
    return float(tensor[4])


def name_of(group, device="cpu"):
    return group._get_backend(torch.device(device)).name()


def subgroups(context):
    """Every subset of three ranks, one after the other and at once; operations on all of them are interleaved."""
    subsets = [subset for subset in ([0], [1], [2], [0, 1], [1, 2], [0, 2], [2, 0], [0, 1, 2])]
    groups = [dist.new_group(subset) for subset in subsets]
    works = []
    for subset, group in zip(subsets, groups):
        if context.rank in subset:
            tensor = torch.full((3,), float(context.rank + 1))
            works.append((dist.all_reduce(tensor, group=group, async_op=True), tensor, subset))
        else:
            assert group == dist.GroupMember.NON_GROUP_MEMBER
    for work, tensor, subset in works:
        work.wait()
        assert tensor.tolist() == [float(sum(rank + 1 for rank in subset))] * 3, (subset, tensor)
    # Sorted, in whatever order ranks were named.
    if context.rank in (0, 2):
        assert dist.get_group_rank(groups[6], 0) == 0
    for subset, group in zip(subsets, groups):
        if context.rank in subset:
            dist.destroy_process_group(group)
    assert summed() == context.size
    return True


def subgroups_by_size(context):
    mine, every = dist.new_subgroups(group_size=2)
    assert len(every) == context.size // 2
    assert summed(mine, float(context.rank)) == float(2 * (context.rank // 2 * 2) + 1)
    mine, _ = dist.new_subgroups_by_enumeration([[0, 2], [1, 3]])
    assert summed(mine, float(context.rank)) == (2.0 if context.rank % 2 == 0 else 4.0)
    return True


def local_groups(context):
    """Only its members create it."""
    if context.rank < 2:
        group = dist.new_group([0, 1], use_local_synchronization=True)
        assert summed(group) == 2.0
    return True


def thousand_groups(context):
    before = None
    for turn in range(1000):
        group = dist.new_group(timeout=datetime.timedelta(seconds=20))
        if turn % 100 == 0:
            assert summed(group) == context.size
        dist.destroy_process_group(group)
        if turn == 200:
            before = memory_kib(), len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))
    after = memory_kib(), len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))
    return before, after


def many_at_once(context):
    groups = [dist.new_group() for _ in range(50)]
    for number, group in enumerate(groups):
        assert summed(group, float(number)) == context.size * number
    return True


def inside_gloo(context):
    assert name_of(dist.group.WORLD) == "gloo"
    group = dist.new_group(backend=BACKEND)
    assert name_of(group) == BACKEND, name_of(group)
    assert dist.get_backend(group) == BACKEND
    assert summed(group) == summed() == context.size
    dist.destroy_process_group(group)
    assert summed() == context.size
    return True


def gloo_inside(context):
    group = dist.new_group(backend="gloo")
    assert name_of(group) == "gloo" and name_of(dist.group.WORLD) == BACKEND
    assert summed(group) == summed() == context.size
    return True


def mixed(context, names, cpu):
    context.init(names)
    assert name_of(dist.group.WORLD) == cpu
    assert summed() == context.size
    outs = [None] * context.size
    dist.all_gather_object(outs, context.rank)
    assert outs == list(range(context.size))
    return default_backend()


def default_backend():
    """The name of the group's default backend, or why there is none."""
    try:
        return dist.group.WORLD.name()
    except Exception as error:  # pylint: disable=broad-except
        return "%s: %s" % (type(error).__name__, error)


def by_address(context, port):
    dist.init_process_group(BACKEND, init_method="tcp://127.0.0.1:%d" % port, rank=context.rank, world_size=context.size)
    assert summed() == context.size
    return True


def by_environment(context, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(context.rank), WORLD_SIZE=str(context.size))
    dist.init_process_group(BACKEND)
    assert summed() == context.size
    dist.destroy_process_group()
    os.environ["MASTER_PORT"] = str(port + 1)
    dist.init_process_group(BACKEND)  # once more in the same processes
    assert summed() == context.size
    return True


def again(context):
    for turn in range(10):
        context.init(name="store%d" % turn)
        assert summed() == context.size
        dist.destroy_process_group()
    return True


def facts(context):
    group = dist.group.WORLD
    assert group.size() == context.size and group.rank() == context.rank
    backend = group._get_backend(torch.device("cpu"))
    assert backend.name() == BACKEND and backend.size() == context.size and backend.rank() == context.rank
    assert dist.get_backend() == BACKEND and dist.get_backend_config() == "cpu:%s,cuda:%s" % (BACKEND, BACKEND) or BACKEND == "gloo"
    dist.barrier()
    dist.barrier(async_op=True).wait()
    group.barrier().wait()
    return True


def sequence_numbers(context):
    group = dist.new_group()
    backend = group._get_backend(torch.device("cpu"))
    backend._set_sequence_number_for_group()  # PyTorch refuses the group's own for names that it does not know
    first = backend._get_sequence_number_for_group()
    for _ in range(3):
        summed(group)
    return backend._get_sequence_number_for_group() - first


def monitored(context):
    options = dist.BarrierOptions()
    del options
    dist.group.WORLD.monitored_barrier(datetime.timedelta(seconds=10), wait_all_ranks=True)
    if context.rank == 1:  # does not call
        return ""
    try:
        dist.group.WORLD.monitored_barrier(datetime.timedelta(seconds=1), wait_all_ranks=True)
    except RuntimeError as error:
        return str(error)
    return "nothing raised"


def free_port():
    """A free port whose next port is free, too; below the ports that the system assigns to sockets that connect in
    the meantime."""
    while True:
        port = random.randrange(20000, 32000)
        try:
            for one in (port, port + 1):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", one))
            return port
        except OSError:
            continue


def overlapping_splits(context):
    """Only members split, so ranks have made different numbers of groups when they connect."""
    world = dist.group.WORLD
    for members in ([0, 1], [0, 2], [1, 2, 0]):
        if context.rank in members:
            part = world.split_group(members, None, None, None)
            tensor = torch.ones(3)
            part.allreduce([tensor]).wait()
            assert tensor[0] == len(members), (members, tensor)
    return summed() == context.size


def shrunk(context):
    """The remaining ranks connect, though one of them has made a group before without the other."""
    if context.rank != 2:
        dist.group.WORLD.split_group([0, 1], None, None, None)
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    if context.rank == 1:
        return None
    smaller = backend.shrink([1])
    tensor = torch.ones(3)
    smaller.allreduce([tensor], dist.AllreduceOptions()).wait()
    return smaller.rank(), smaller.size(), float(tensor[0])


class Groups(unittest.TestCase):
    def test_groups_of_some_ranks_run_side_by_side(self):
        ranks.run(3, subgroups)

    def test_subgroups_by_size_and_by_name(self):
        ranks.run(4, subgroups_by_size)

    def test_members_alone_can_create_a_group(self):
        ranks.run(3, local_groups)

    def test_a_thousand_groups_leave_no_resources(self):
        for before, after in ranks.run(2, thousand_groups, timeout=100):
            self.assertLess(after[0] - before[0], 8 << 10, "KiB of memory")
            self.assertLessEqual(after[1], before[1], "open files")
            self.assertLessEqual(after[2], before[2], "threads")

    def test_fifty_groups_exist_at_once(self):
        ranks.run(2, many_at_once)

    def test_a_group_inside_a_world_of_gloo(self):
        ranks.run(2, inside_gloo, backend="gloo")

    def test_a_group_of_gloo_inside_our_world(self):
        ranks.run(2, gloo_inside)

    def test_backends_by_device(self):
        for names, cpu in (("cpu:%s" % BACKEND, BACKEND), ("cpu:%s,cuda:%s" % (BACKEND, BACKEND), BACKEND), ("cpu:gloo,cuda:" + BACKEND, "gloo")):
            with self.subTest(backend=names):
                ranks.run(2, mixed, names, cpu, init=False)

    @unittest.skipUnless(hasattr(dist.ProcessGroup, "_set_default_backend"), "this PyTorch names such groups by all of their backends")
    def test_the_default_backend_is_the_one_named(self):
        for names, default in (("cpu:%s,cuda:%s" % (BACKEND, BACKEND), BACKEND), ("cpu:gloo", "gloo"), ("cpu:gloo,cuda:gloo", "gloo")):
            with self.subTest(backend=names):
                for name in ranks.run(2, mixed, names, names.split(",", maxsplit=1)[0].split(":")[1], init=False):
                    # PyTorch calls all backends from elsewhere "custom".
                    self.assertIn(name.lower(), (default, "custom") if default != "gloo" else ("gloo",))

    @unittest.skipUnless(ranks.IS_TUTTI and hasattr(dist.ProcessGroup, "split_group"), "gloo, and old versions, cannot")
    def test_splits_that_overlap(self):
        ranks.run(3, overlapping_splits)

    @unittest.skipUnless(ranks.IS_TUTTI and hasattr(dist.ProcessGroup, "split_group"), "gloo, and old versions, cannot")
    def test_shrink_without_a_rank(self):
        self.assertEqual(ranks.run(3, shrunk), [(0, 2, 2.0), None, (1, 2, 2.0)])

    def test_rendezvous_by_address(self):
        ranks.run(2, by_address, free_port(), init=False)

    def test_rendezvous_by_environment_twice(self):
        ranks.run(2, by_environment, free_port(), init=False)

    def test_a_process_starts_and_ends_the_world_again_and_again(self):
        ranks.run(2, again, init=False)

    def test_a_group_describes_itself(self):
        ranks.run(2, facts)

    def test_sequence_numbers_count_operations(self):
        self.assertEqual(ranks.run(2, sequence_numbers), [3, 3])

    def test_monitored_barrier_names_the_missing_ranks(self):
        texts = ranks.run(3, monitored, victims=(0, 1, 2) if BACKEND == "gloo" else ())
        self.assertRegex(texts[0], r"[Rr]anks?\W+1\b")


if __name__ == "__main__":
    unittest.main()
