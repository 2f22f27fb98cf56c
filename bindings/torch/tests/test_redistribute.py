"""torch_tutti.redistribute and reshard: each rank computes its expected shard from a whole tensor that all ranks
know."""
import datetime
import itertools
import os
import random
import threading
import time
import unittest
import unittest.mock

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

try:
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
    from torch.distributed.tensor.placement_types import _StridedShard
except ImportError:  # PyTorch 2.4
    from torch.distributed._tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

    _StridedShard = None

from support import ranks

if ranks.IS_TUTTI:
    import torch_tutti

SEED = int(os.environ.get("TUTTI_TEST_SEED", "1"))
CASES = int(os.environ.get("TUTTI_TEST_CASES", "100"))
DTYPES = [torch.float32, torch.float64, torch.int64, torch.bfloat16, torch.complex64, torch.bool]
EXTENTS = [0, 1, 2, 3, 4, 5, 7, 8]
REDUCTIONS = {"sum": lambda terms: terms.sum(0), "max": lambda terms: terms.amax(0), "min": lambda terms: terms.amin(0),
              "product": lambda terms: terms.prod(0), "avg": lambda terms: terms.sum(0) / terms.shape[0]}


def whole_of(shape, dtype, seed):
    """Small integers, so that sums and products are exact in any dtype."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 2 if dtype is torch.bool else 4, shape, generator=generator).to(dtype)


def part_of(whole, mesh, placements, rank, order=None):
    """The shard of `rank`; the whole if the placement is partial. Chunks of ceil(n / k), axis by axis."""
    place = (mesh.mesh == rank).nonzero()
    if len(place) == 0:
        return None
    for axis in order or range(mesh.mesh.ndim):
        placement = placements[axis]
        if not hasattr(placement, "dim"):
            continue
        dim, parts, own = placement.dim % whole.ndim, mesh.mesh.shape[axis], int(place[0][axis])
        chunk = -(-whole.shape[dim] // parts)
        first, end = (min(at * chunk, whole.shape[dim]) for at in (own, own + 1))
        whole = whole.narrow(dim, first, end - first)
    return whole


def row_major(shape):
    return torch.empty(shape, device="meta").stride()


def made(local, whole, mesh, placements):
    outside = torch.empty((0,) * whole.ndim, dtype=whole.dtype)  # from_local checks its number of dimensions
    return DTensor.from_local(outside if local is None else local.contiguous(), mesh, placements,
                              run_check=False, shape=whole.shape, stride=row_major(whole.shape))


def of_terms(mesh, placements, dtype, shape, seed, rank):
    """A DTensor and its value: each rank along partial axes gets its own term."""
    partial = [axis for axis, one in enumerate(placements) if isinstance(one, Partial)]
    if not partial:
        whole = whole_of(shape, dtype, seed)
        return made(part_of(whole, mesh, placements, rank), whole, mesh, placements), whole
    op = placements[partial[0]].reduce_op
    count = 1
    for axis in partial:
        count *= mesh.mesh.shape[axis]
    terms = torch.stack([whole_of(shape, dtype, seed + 1000 * term) for term in range(count)])
    place, local = (mesh.mesh == rank).nonzero(), None
    if len(place):
        number = 0
        for axis in partial:
            number = number * mesh.mesh.shape[axis] + int(place[0][axis])
        local = part_of(terms[number], mesh, placements, rank)
    value = REDUCTIONS[op](terms)
    return made(local, value, mesh, placements), value


def check(got, value, mesh, placements, rank, label):
    """The test itself sums partial results, over its own group."""
    assert isinstance(got, DTensor) and got.device_mesh == mesh and got.shape == value.shape and got.dtype == value.dtype, (label, got)
    local, right = got.to_local(), part_of(value, mesh, placements, rank)
    if right is None:
        assert local.numel() == 0, (label, local)
    else:
        assert local.is_contiguous() and local.shape == right.shape, (label, local.shape, right.shape)
    if not any(isinstance(one, Partial) for one in placements):
        assert right is None or torch.equal(local, right), (label, local, right)
        return
    locals_ = [None] * dist.get_world_size()
    dist.all_gather_object(locals_, local)
    if right is None:
        return
    place = (mesh.mesh == rank).nonzero()[0].tolist()
    along = [slice(None) if isinstance(one, Partial) else at for one, at in zip(placements, place)]
    terms = torch.stack([locals_[peer] for peer in mesh.mesh[tuple(along)].flatten().tolist()])
    op = next(one.reduce_op for one in placements if isinstance(one, Partial))
    if terms.numel():
        assert torch.equal(REDUCTIONS[op](terms).to(right.dtype), right), (label, terms, right)


def meshes_of(size):
    """All ranks make all meshes: permuted, disjoint, overlapping, of one rank, of two dimensions."""
    grids = [list(range(size)), list(range(size))[::-1], [0], [size - 1]]
    if size == 4:
        grids += [[0, 1], [2, 3], [1, 2, 3], [3, 0], [[0, 1], [2, 3]], [[3, 1], [0, 2]], [[0], [2]], [[1, 2, 3]]]
    return [DeviceMesh("cpu", torch.tensor(grid)) for grid in grids]


def drawn(rng, mesh, ndim, op):
    choices = [Replicate()] + [Shard(dim) for dim in range(-ndim, ndim)] * 2 + [Partial(op)] * 2 * (op is not None)
    return [rng.choice(choices) for _ in range(mesh.mesh.ndim)]


def random_cases(context, seed, count):
    meshes, rng = meshes_of(context.size), random.Random(seed)
    for number in range(count):
        tensors, values, targets = [], [], []
        for _ in range(rng.choice([1, 1, 1, 4])):
            ndim, dtype = rng.randint(0, 3), rng.choice(DTYPES)
            shape = [rng.choice(EXTENTS) for _ in range(ndim)]
            exact = dtype not in (torch.complex64, torch.bool)
            op, to = (rng.choice([None, "sum", "max", "min", "product"]) if exact else None for _ in range(2))
            source, target = rng.choice(meshes), rng.choice(meshes)
            placements = drawn(rng, source, ndim, op)
            tensor, value = of_terms(source, placements, dtype, shape, 100 * number, context.rank)
            tensors.append(tensor)
            values.append(value.to(dtype))
            targets.append((target, drawn(rng, target, ndim, to)))
        label = "case %d of seed %d: %s to %s" % (number, seed, [(one.device_mesh, one.placements, one.shape, one.dtype) for one in tensors], targets)
        try:
            if len(tensors) == 1:
                got = [torch_tutti.redistribute(tensors[0], *targets[0])]
            else:
                got = torch_tutti.redistribute(tensors, [mesh for mesh, _ in targets], [placements for _, placements in targets])
        except Exception as error:
            raise AssertionError(label) from error
        for one, value, (mesh, placements) in zip(got, values, targets):
            check(one, value, mesh, placements, context.rank, label)


def averages(context):
    """The mean of uneven shards, and averages of terms."""
    mesh = init_device_mesh("cpu", (context.size,))
    terms = torch.arange(4.0 * 5).reshape(4, 5)
    partial = DTensor.from_local(terms[context.rank], mesh, [Partial("avg")], run_check=False)
    for placements in ([Replicate()], [Shard(0)]):
        got = torch_tutti.redistribute(partial, None, placements).to_local()
        right = part_of(terms[:context.size].sum(0) / context.size, mesh, placements, context.rank)
        assert torch.equal(got, right), (placements, got, right)
    whole = torch.arange(7.0)
    rows = distribute_tensor(whole, mesh, [Shard(0)])
    assert torch_tutti.redistribute(rows, mesh, [Replicate()]).to_local().mean() == whole.mean()


def two_on_one_dimension(context):
    """[S0, S0] of an uneven dimension, which DTensor's own redistribute computed wrongly with a flattened mesh."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "b"))
    if hasattr(mesh, "_flatten"):
        mesh["a", "b"]._flatten()
    whole = torch.arange(15.0).reshape(5, 3)
    tensor = made(part_of(whole, mesh, [Shard(0), Shard(0)], context.rank), whole, mesh, [Shard(0), Shard(0)])
    for placements in ([Replicate(), Replicate()], [Shard(0), Replicate()], [Shard(1), Shard(0)], [Replicate(), Shard(0)]):
        check(torch_tutti.redistribute(tensor, mesh, placements), whole, mesh, placements, context.rank, placements)


def strided(context):
    """FSDP over tensor parallelism: the right mesh dimension splits first."""
    mesh = init_device_mesh("cpu", (2, 2))
    whole = torch.arange(24.0).reshape(8, 3)
    placements = [_StridedShard(0, split_factor=2), Shard(0)]
    local = part_of(whole, mesh, [Shard(0), Shard(0)], context.rank, order=[1, 0])
    tensor = made(local, whole, mesh, placements)
    assert torch.equal(tensor.full_tensor(), whole)  # in PyTorch's interpretation
    check(torch_tutti.redistribute(tensor, mesh, [Replicate(), Shard(1)]), whole, mesh, [Replicate(), Shard(1)], context.rank, "from")
    rows = made(part_of(whole, mesh, [Shard(1), Shard(0)], context.rank), whole, mesh, [Shard(1), Shard(0)])
    assert torch.equal(torch_tutti.redistribute(rows, mesh, placements).to_local(), local)
    odd = whole[:5]
    rows = made(part_of(odd, mesh, [Shard(1), Shard(0)], context.rank), odd, mesh, [Shard(1), Shard(0)])
    for target, word in ((placements, "not divisible"), ([_StridedShard(0, split_factor=3), Shard(0)], "split_factor")):
        assert word in refusal(NotImplementedError, torch_tutti.redistribute, rows, mesh, target)


def bits(context):
    """Bitwise reductions, which DTensor itself does not have."""
    mesh = init_device_mesh("cpu", (2, 2))
    term = torch.tensor([[12, 10], [5, 9], [7, 7], [1, 3]])[context.rank].repeat(3)
    terms = torch.tensor([[12, 10], [5, 9], [7, 7], [1, 3]]).repeat(1, 3)
    for source, right in ((["band", "band"], terms[0] & terms[1] & terms[2] & terms[3]), (["bxor", "bxor"], terms[0] ^ terms[1] ^ terms[2] ^ terms[3]),
                          (["bor", "bor"], terms[0] | terms[1] | terms[2] | terms[3])):
        tensor = DTensor.from_local(term, mesh, [Partial(op) for op in source], run_check=False)
        for placements in ([Replicate(), Replicate()], [Shard(0), Shard(0)]):
            check(torch_tutti.redistribute(tensor, mesh, placements), right, mesh, placements, context.rank, source)


def improved(context):
    """DTensor's own redistribute and an operation, before and after; the traces show that Tutti's implementation is
    used."""
    from torch_tutti import _redistribute  # pylint: disable=import-outside-toplevel

    line, grid = init_device_mesh("cpu", (context.size,)), init_device_mesh("cpu", (2, 2))
    whole = torch.arange(7.0 * 6).reshape(7, 6)

    def results():
        rows = distribute_tensor(whole, line, [Shard(0)]).requires_grad_()
        moved = rows.redistribute(line, [Shard(1)])
        moved.square().sum().backward()
        out = [moved.to_local().detach(), rows.grad.to_local()]
        for source in itertools.product([Replicate(), Shard(0), Shard(1)], repeat=2):
            tensor = distribute_tensor(whole, grid, source)
            out += [tensor.redistribute(grid, target).to_local() for target in itertools.product([Replicate(), Shard(0), Shard(1)], repeat=2)]
            out.append((tensor @ distribute_tensor(whole.t().contiguous(), grid, source)).full_tensor())
        partial = DTensor.from_local(whole + context.rank, grid, [Partial(), Partial()], run_check=False)
        return out + [partial.redistribute(grid, [Shard(0), Shard(0)]).to_local()]

    before = results()
    assert not _redistribute._groups
    if not torch_tutti.improve_dtensor():
        return False
    assert torch_tutti.improve_dtensor()
    with unittest.mock.patch.object(dist, "all_to_all_single", wraps=dist.all_to_all_single) as exchange:
        after = results()
    assert exchange.call_count and len(_redistribute._group().plans) > 20, (exchange.call_count, len(_redistribute._group().plans))
    for number, (old, new) in enumerate(zip(before, after)):
        assert torch.allclose(old, new) and old.shape == new.shape, (number, old, new)
    return True


def not_improved(context):
    """A PyTorch whose function has other arguments."""
    from torch.distributed.tensor import _collective_utils, placement_types  # pylint: disable=import-outside-toplevel

    other = lambda input, mesh: input
    placement_types.shard_dim_alltoall = _collective_utils.shard_dim_alltoall = other
    with unittest.TestCase().assertLogs("torch_tutti", "WARNING") as logs:
        assert torch_tutti.improve_dtensor() is False
    assert len(logs.output) == 1 and "leaves DTensor as it is" in logs.output[0] and placement_types.shard_dim_alltoall is other
    return context.rank


def refusal(kind, call, *arguments, **named):
    try:
        call(*arguments, **named)
    except kind as error:
        return str(error)
    raise AssertionError("%s was not refused" % (arguments,))


def gradients(context):
    """The gradient of the weighted sum of the result is the weights, at the source."""
    size, rank = context.size, context.rank
    mesh, back = DeviceMesh("cpu", list(range(size))), DeviceMesh("cpu", list(range(size))[::-1])
    whole, weights = torch.arange(35.0).reshape(7, 5), torch.arange(35.0).reshape(7, 5).square()
    for source, target, to in (([Shard(0)], [Shard(1)], mesh), ([Replicate()], [Shard(0)], back), ([Shard(1)], [Replicate()], mesh),
                               ([Partial()], [Shard(0)], mesh), ([Partial()], [Replicate()], back)):
        local = part_of(whole, mesh, source, rank)
        leaf = made(local, whole, mesh, source).detach().requires_grad_()
        moved = torch_tutti.redistribute(leaf, to, target)
        assert moved.requires_grad and not torch_tutti.redistribute(leaf.detach(), to, target).requires_grad
        moved.backward(made(part_of(weights, to, target, rank), weights, to, target))
        placements = [Replicate() if isinstance(one, Partial) else one for one in source]
        assert list(leaf.grad.placements) == placements, leaf.grad.placements
        check(leaf.grad, weights, mesh, placements, rank, (source, target))
    leaf = distribute_tensor(whole, mesh, [Shard(0)]).requires_grad_()
    torch_tutti.redistribute(leaf, back, [Replicate()], grad_placements=[Shard(1)]).backward(made(weights, weights, back, [Replicate()]))
    check(leaf.grad, weights, mesh, [Shard(1)], rank, "grad_placements")
    # A list, in which one tensor is not used and one is used twice.
    leaves = [distribute_tensor(whole + number, mesh, [Shard(0)]).requires_grad_() for number in range(3)]
    moved = torch_tutti.redistribute(leaves + leaves[:1], mesh, [Shard(1)])
    grad = distribute_tensor(weights, mesh, [Shard(1)])
    torch.autograd.backward([moved[0], moved[2], moved[3]], [grad, grad, grad])
    assert leaves[1].grad is None
    check(leaves[0].grad, 2 * weights, mesh, [Shard(0)], rank, "twice")
    check(leaves[2].grad, weights, mesh, [Shard(0)], rank, "once")


def lists(context):
    """Nothing is sent for shards that stay; strided shards are made contiguous; one list of placements is used for
    all."""
    mesh = init_device_mesh("cpu", (context.size,))
    whole = torch.arange(48.0).reshape(6, 8)
    stays, goes = distribute_tensor(whole, mesh, [Shard(1)]), distribute_tensor(whole, mesh, [Shard(0)])
    turned = DTensor.from_local(goes.to_local().t().contiguous().t(), mesh, [Shard(0)], run_check=False, shape=whole.shape, stride=whole.stride())
    got = torch_tutti.redistribute([stays, goes, turned], None, [Shard(-1)])
    assert got[0] is stays
    for one in got:
        assert torch.equal(one.to_local(), part_of(whole, mesh, [Shard(1)], context.rank))
    assert torch_tutti.redistribute([], None, [Shard(0)]) == []


def many_plans(context):
    """More plans than are kept: these are dropped and made again, on all ranks at the same call."""
    from torch_tutti import _redistribute  # pylint: disable=import-outside-toplevel

    _redistribute._MOST_PLANS = 4
    world = DeviceMesh("cpu", list(range(context.size)))
    some = DeviceMesh("cpu", [0, 1])
    for turn in range(3):
        for count in range(1, 9):
            meshes = [world, some] if count % 3 else [world]
            for mesh in meshes:
                if context.rank not in mesh.mesh:
                    continue
                whole = torch.arange(float(count))
                tensor = made(part_of(whole, mesh, [Shard(0)], context.rank), whole, mesh, [Shard(0)])
                check(torch_tutti.redistribute(tensor, mesh, [Replicate()]), whole, mesh, [Replicate()], context.rank, (turn, count))
    group = _redistribute._group()
    assert all(len(plans) <= 4 for plans in group.of_ranks.values()) and len(group.plans) <= 8, group.plans.keys()


def refusals(context):
    mesh = init_device_mesh("cpu", (context.size,))
    rows = distribute_tensor(torch.arange(8.0), mesh, [Shard(0)])
    for kind, word, call in (
            (TypeError, "reshard", lambda: torch_tutti.redistribute(torch.ones(3), mesh, [Shard(0)])),
            (ValueError, "1 dimensions", lambda: torch_tutti.redistribute(rows, mesh, [Shard(1)])),
            (ValueError, "2 placements", lambda: torch_tutti.redistribute(rows, mesh, [Shard(0), Replicate()])),
            (ValueError, "2 meshes", lambda: torch_tutti.redistribute([rows], [mesh, mesh], [Replicate()])),
            (torch_tutti.ArgumentError, "bool", lambda: torch_tutti.redistribute(rows, mesh, [Partial("nothing")])),
            (ValueError, "must be a tensor", lambda: torch_tutti.reshard(None, mesh, [Shard(0)], mesh, [Replicate()]))):
        try:
            text = refusal(kind, call)
        except torch_tutti.ArgumentError as error:
            text = str(error)
        assert word in text or word == "bool" and "P(nothing)" in text, (word, text)
    wrong = DTensor.from_local(torch.ones(5), mesh, [Shard(0)], run_check=False, shape=(8,), stride=(1,))
    assert "must be" in refusal(torch_tutti.ArgumentError, torch_tutti.redistribute, wrong, mesh, [Replicate()])
    # Ranks with different arguments get the same error.
    other = [Shard(0)] if context.rank else [Shard(1)]
    square = distribute_tensor(torch.ones(4, 4), mesh, [Replicate()])
    text = refusal(torch_tutti.ArgumentError, torch_tutti.redistribute, square, mesh, other)
    assert "make different redistributions" in text, text
    check(torch_tutti.redistribute(rows, mesh, [Replicate()]), torch.arange(8.0), mesh, [Replicate()], context.rank, "afterwards")


def other_group(context):
    context.init("gloo")
    rows = distribute_tensor(torch.arange(8.0), init_device_mesh("cpu", (context.size,)), [Shard(0)])
    assert "uses gloo" in refusal(RuntimeError, torch_tutti.redistribute, rows, None, [Replicate()])
    dist.destroy_process_group()


def twice_a_group(context):
    """The default group ends and is made again; plans of the old one are not used again."""
    for number in range(2):
        context.init(name="store%d" % number)
        mesh = init_device_mesh("cpu", (context.size,))
        whole = torch.arange(10.0)
        got = torch_tutti.redistribute(distribute_tensor(whole, mesh, [Shard(0)]), mesh, [Replicate()])
        assert torch.equal(got.to_local(), whole)
        dist.destroy_process_group()
    from torch_tutti import _redistribute  # pylint: disable=import-outside-toplevel

    assert len(_redistribute._groups) <= 1, dict(_redistribute._groups)  # PyTorch sometimes keeps the last one


def killed(context):
    """A dead rank is an error on the others."""
    mesh = init_device_mesh("cpu", (context.size,))
    rows = distribute_tensor(torch.arange(8.0), mesh, [Shard(0)])
    torch_tutti.redistribute(rows, mesh, [Replicate()])
    if context.rank == 1:
        os._exit(0)
    return refusal(RuntimeError, torch_tutti.redistribute, rows, mesh, [Replicate()])


def late(context, planned, aborts):
    """The group's timeout names a rank that does not call, and abort() ends the wait at once."""
    context.init(timeout_s=10 if aborts else 1)
    mesh = init_device_mesh("cpu", (context.size,))
    rows = distribute_tensor(torch.arange(8.0), mesh, [Shard(0)])
    if planned:
        torch_tutti.redistribute(rows, mesh, [Replicate()])
    if context.rank == 1:
        context.store("done").wait(["done"], datetime.timedelta(seconds=30))
        return ""
    began = time.monotonic()
    if aborts:
        threading.Timer(0.2, dist.group.WORLD._get_backend(torch.device("cpu")).abort).start()
    text = refusal(RuntimeError, torch_tutti.redistribute, rows, mesh, [Replicate()])
    context.store("done").set("done", "yes")
    assert time.monotonic() - began < 5, text
    return text


def left_open(context):
    """The process exits normally while plans exist."""
    context.init()
    mesh = init_device_mesh("cpu", (context.size,))
    torch_tutti.redistribute(distribute_tensor(torch.arange(8.0), mesh, [Shard(0)]), mesh, [Replicate()])
    pid = os.fork()
    if pid == 0:  # a fork drops its objects, and its parent continues
        from torch_tutti import _redistribute  # pylint: disable=import-outside-toplevel

        _redistribute._groups.clear()
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    got = torch_tutti.redistribute(distribute_tensor(torch.arange(8.0), mesh, [Shard(0)]), mesh, [Replicate()])
    assert torch.equal(got.to_local(), torch.arange(8.0))


def resharded(context, known):
    """Trainers (FSDP over 0, 1) to generators (tensor parallel over 2, 3, and over 1, 2, 3)."""
    rank = context.rank
    trainers = DeviceMesh("cpu", [0, 1])
    for generators in (DeviceMesh("cpu", [2, 3]), DeviceMesh("cpu", [1, 2, 3])):
        wholes = [torch.arange(7.0 * 6).reshape(7, 6), torch.arange(5), torch.arange(24.0).reshape(2, 3, 4).bfloat16(), torch.tensor(3.0)]
        sources = [[Shard(0)], [Shard(0)], [Shard(-1)], [Replicate()]]
        targets = [[Shard(1)], [Replicate()], [Shard(0)], [Replicate()]]
        named = {"shapes": [one.shape for one in wholes], "dtypes": [one.dtype for one in wholes]} if known else {}
        buffers = [part_of(whole, trainers, own, rank) for whole, own in zip(wholes, sources)]
        for turn in range(2):
            got = torch_tutti.reshard(buffers, trainers, sources, generators, targets, **named)
            for whole, own, one in zip(wholes, targets, got):
                right = part_of(whole, generators, own, rank)
                assert (one is None) == (right is None), (turn, one)
                assert one is None or torch.equal(one, right) and one.dtype == right.dtype, (turn, own, one, right)
        single = torch_tutti.reshard(buffers[0], trainers, [Shard(0)], generators, [Replicate()])
        assert (single is None) == (rank not in generators.mesh) and (single is None or torch.equal(single, wholes[0]))


def in_place_of_gloo(context):
    torch_tutti.replace_gloo()
    context.init("gloo")
    mesh = init_device_mesh("cpu", (context.size,))
    got = torch_tutti.redistribute(distribute_tensor(torch.arange(9.0), mesh, [Shard(0)]), mesh, [Replicate()])
    assert torch.equal(got.to_local(), torch.arange(9.0))


@unittest.skipUnless(ranks.IS_TUTTI, "these are Tutti's")
class Redistribute(unittest.TestCase):
    def test_random_layouts_of_two_ranks(self):
        ranks.run(2, random_cases, SEED, CASES)

    def test_random_layouts_of_four_ranks(self):
        ranks.run(4, random_cases, SEED + 1, CASES)

    def test_averages(self):
        ranks.run(2, averages)
        ranks.run(4, averages)

    def test_two_mesh_dimensions_on_one_dimension(self):
        ranks.run(4, two_on_one_dimension)

    @unittest.skipIf(_StridedShard is None, "this PyTorch has no _StridedShard")
    def test_strided_shards(self):
        ranks.run(4, strided)

    def test_reductions_of_bits(self):
        ranks.run(4, bits)

    def test_gradients(self):
        ranks.run(2, gradients)
        ranks.run(4, gradients)

    def test_lists(self):
        ranks.run(2, lists)

    def test_plans_are_dropped_together(self):
        ranks.run(4, many_plans)

    @unittest.skipIf(ranks.OLD, "PyTorch 2.4 has DTensor elsewhere")
    def test_dtensors_own_ways(self):
        known = ranks.run(4, improved)
        self.assertEqual(len(set(known)), 1)
        if torch.__version__.startswith(("2.13.", "2.15.")):
            self.assertTrue(known[0])
        self.assertEqual(ranks.run(2, not_improved), [0, 1])

    def test_wrong_arguments(self):
        ranks.run(2, refusals)

    def test_gloo_is_refused(self):
        ranks.run(2, other_group, init=False)

    def test_in_place_of_gloo(self):
        ranks.run(2, in_place_of_gloo, init=False)

    def test_groups_end_with_their_plans(self):
        ranks.run(2, twice_a_group, init=False)

    def test_a_rank_that_dies(self):
        texts = ranks.run(3, killed, victims=(1,))
        self.assertIn("rank 1", texts[0])

    def test_a_rank_that_does_not_call(self):
        for planned in (False, True):
            with self.subTest(planned=planned):
                self.assertIn("rank 1", ranks.run(2, late, planned, False, init=False)[0])
                self.assertIn("abort() was called", ranks.run(2, late, planned, True, init=False)[0])

    def test_forks_and_ends(self):
        ranks.run(2, left_open, init=False)

    def test_shards_for_other_ranks(self):
        for known in (False, True):
            with self.subTest(known=known):
                ranks.run(4, resharded, known)


if __name__ == "__main__":
    unittest.main()
