"""Converts DTensors from any layout to any other: see redistribute and reshard in __init__.py.

A call is turned into journeys, one for each tensor: (shape, dtype, source, target), where source and target are
(ranks, axes, sbp) as in the library's tensor.h. The journeys of one call are one plan, which is cached. Creating a
plan is collective over its ranks, so all of them must drop it at the same call, too: plans are counted per set of
ranks, all of which create and use the same plans of this set in the same order.
"""
import collections
import math
import weakref

import torch
import torch.distributed as dist

try:
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
except ImportError:  # PyTorch 2.4
    from torch.distributed._tensor import DTensor, Partial, Replicate, Shard

from . import _C

_MOST_PLANS = 128  # of one set of ranks
_MOST_AXES = 8

_groups = weakref.WeakKeyDictionary()  # process group -> _Group
_meshes = weakref.WeakKeyDictionary()  # mesh -> (its ranks, its shape)


class _Group:
    """The state kept for the default group while it exists."""

    def __init__(self, group):
        self.backend = _cpu_backend(group)
        self.plans = {}      # key -> (plan, plans of the same ranks)
        self.of_ranks = {}   # set of ranks -> its plans by key, the one used last at the end

    def plan(self, journeys):
        key = tuple(journeys)
        found = self.plans.get(key)
        if found is not None:
            found[1].move_to_end(key)
            return found[0]
        ranks = frozenset(rank for journey in journeys for side in journey[2:] for rank in side[0])
        mates = self.of_ranks.setdefault(ranks, collections.OrderedDict())
        given = [(list(shape), torch.empty(0, dtype=dtype), source, target) for shape, dtype, source, target in journeys]
        plan = _C.plan_redistribution(self.backend, given)
        self.plans[key] = plan, mates
        mates[key] = None
        if len(mates) > _MOST_PLANS:
            self.plans.pop(mates.popitem(last=False)[0])
        return plan


def _cpu_backend(group):
    try:
        backend = group._get_backend(torch.device("cpu"))
    except RuntimeError:
        backend = None  # a group for GPUs only
    backend = getattr(backend, "wrapped_pg", backend)  # TORCH_DISTRIBUTED_DEBUG=DETAIL
    if not isinstance(backend, _C.Backend):
        raise RuntimeError("torch_tutti: DTensors are redistributed by Tutti's backend of the default group for CPU tensors, and "
                           f'this group uses {dist.get_backend()}: call init_process_group("tutti"), or with '
                           '"cpu:tutti,cuda:nccl", or '
                           "put Tutti in Gloo's place (TUTTI_AS_GLOO=1)")
    return backend


def _group():
    if not dist.is_initialized():
        raise RuntimeError('torch_tutti: there is no process group: call torch.distributed.init_process_group("tutti") first')
    world = dist.group.WORLD
    found = _groups.get(world)
    if found is None:
        _groups.clear()  # PyTorch may keep a group that was destroyed
        found = _groups[world] = _Group(world)
    return found


def _ranks_of(mesh):
    found = _meshes.get(mesh)
    if found is None:
        if mesh.device_type != "cpu":
            raise NotImplementedError("torch_tutti.redistribute supports only meshes of CPUs, and this one is of "
                                      f"{mesh.device_type}")
        found = _meshes[mesh] = tuple(mesh.mesh.flatten().tolist()), tuple(mesh.mesh.shape)
    return found


# ---------------------------------------------------------------------------------------------------------- layouts


def _normalized(placements, mesh, ndim):
    """In DTensor's form: a tuple, dimensions not negative."""
    placements = tuple(placements)
    axes = len(_ranks_of(mesh)[1])
    if len(placements) != axes:
        raise ValueError(f"torch_tutti.redistribute: {len(placements)} placements for a mesh of {axes} dimensions: {placements}")
    own = []
    for placement in placements:
        dim = getattr(placement, "dim", None)
        if dim is not None and not -ndim <= dim < ndim:
            raise ValueError(f"torch_tutti.redistribute: {placement} of a tensor that has {ndim} dimensions")
        if isinstance(dim, int) and dim < 0:
            strided = getattr(placement, "split_factor", None)
            placement = Shard(dim + ndim) if strided is None else type(placement)(dim + ndim, split_factor=strided)
        own.append(placement)
    return tuple(own)


def _word(placement):
    if type(placement) is Replicate:
        return "B"
    if getattr(placement, "dim", None) is not None:
        return f"S{placement.dim}"
    if type(placement) is Partial:
        return f"P({placement.reduce_op})"
    raise NotImplementedError(f"torch_tutti.redistribute supports Shard, Replicate and Partial, not {placement}; call DTensor's "
                              "own redistribute first")


def _orders(placements, sizes, shape):
    """Maps a tensor dimension to the mesh dimensions that split it, the first to split first, where that is not
    their own order.

    A _StridedShard of split_factor k is applied after mesh dimensions to its right that make k parts together. Its
    shards are boxes, equal to those of this order, if all have one size.
    """
    orders = {}
    for axis in reversed(range(len(placements))):
        dim = getattr(placements[axis], "dim", None)
        if dim is None:
            continue
        order, factor = orders.setdefault(dim, []), getattr(placements[axis], "split_factor", 1)
        at, parts = 0, 1
        while parts < factor and at < len(order):
            parts *= sizes[order[at]]
            at += 1
        if parts != factor:
            raise NotImplementedError(f"torch_tutti.redistribute: {placements[axis]} in {placements} on a mesh of {sizes}: its "
                                      "split_factor must be the number of parts that mesh dimensions to its right make")
        order.insert(at, axis)
    for dim, order in list(orders.items()):
        if order == sorted(order):
            del orders[dim]
        elif shape[dim] % math.prod(sizes[axis] for axis in order):
            raise NotImplementedError(f"torch_tutti.redistribute: dimension {dim} of {tuple(shape)} is not divisible by the mesh "
                                      f"dimensions that {placements} splits it by; with _StridedShard it must be")
    return orders


def _side(mesh, placements, shape, orders=None):
    ranks, sizes = _ranks_of(mesh)
    if orders is None:
        orders = _orders(placements, sizes, shape) if any(hasattr(one, "split_factor") for one in placements) else {}
    words = [_word(placement) for placement in placements]
    if orders:  # axes are applied from the first to the last, so they change places
        axes = list(range(len(sizes)))
        for order in orders.values():
            for place, axis in zip(sorted(order), order):
                axes[place] = axis
        ranks = tuple(torch.tensor(ranks).reshape(sizes).permute(axes).flatten().tolist())
        sizes, words = tuple(sizes[axis] for axis in axes), [words[axis] for axis in axes]
    if len(sizes) > _MOST_AXES:
        raise NotImplementedError(f"torch_tutti.redistribute: a mesh of {len(sizes)} dimensions; at most {_MOST_AXES} are possible")
    return ranks, sizes, ",".join(words)


def _own_orders(spec):
    """The order of mesh dimensions that the placements do not show, where this PyTorch keeps one; None: there is
    none."""
    orders = getattr(spec, "shard_order", None)
    if not orders:
        return None
    orders = {entry.tensor_dim: list(entry.mesh_dims) for entry in orders}
    return {dim: order for dim, order in orders.items() if order != sorted(order)} or None


def side_of_spec(spec):
    return _side(spec.mesh, spec.placements, spec.shape, _own_orders(spec))


# --------------------------------------------------------------------------------------------------------- DTensors


class _Way:
    """The target of one DTensor."""

    __slots__ = ("mesh", "placements", "shape", "journey", "stays")

    def __init__(self, tensor, mesh, placements):
        source = tensor.device_mesh
        self.shape = tensor.shape
        self.mesh = source if mesh is None else mesh
        self.placements = _normalized(placements, self.mesh, tensor.ndim)
        orders = _own_orders(tensor._spec)
        self.stays = orders is None and self.placements == tensor.placements and self.mesh == source
        self.journey = None if self.stays else (
            tuple(self.shape), tensor.dtype, _side(source, tensor.placements, self.shape, orders),
            _side(self.mesh, self.placements, self.shape))


def _contiguous_stride(shape):
    stride, step = [], 1
    for extent in reversed(shape):
        stride.append(step)
        step *= max(extent, 1)
    return tuple(reversed(stride))


def _takes_part(journeys, rank):
    return any(rank in side[0] for journey in journeys for side in journey[2:])


def carry(journeys, shards):
    """This rank's shards of the targets."""
    if not _takes_part(journeys, dist.get_rank()):
        return [torch.empty(0, dtype=journey[1]) for journey in journeys]
    return _group().plan(journeys).run(shards)


def _made(local, way):
    if not way.shape:  # from_local takes this shape for none given, and looks at the shard's; outside the mesh it drops that
        local = local if local.ndim == 0 else local.new_empty(())
    return DTensor.from_local(local, way.mesh, way.placements, run_check=False, shape=way.shape,
                              stride=_contiguous_stride(way.shape))


def _move(tensors, ways):
    journeys = [way.journey for way in ways if not way.stays]
    moving = [tensor.to_local() for tensor, way in zip(tensors, ways) if not way.stays]
    moved = iter(carry(journeys, moving) if journeys else ())
    return [tensor if way.stays else _made(next(moved), way) for tensor, way in zip(tensors, ways)]


class _Moved(torch.autograd.Function):
    @staticmethod
    def forward(ctx, ways, back, *tensors):
        ctx.set_materialize_grads(False)
        ctx.back = back
        moved = _move(tensors, ways)
        return tuple(one.view_as(one) if one is tensor else one for one, tensor in zip(moved, tensors))

    @staticmethod
    def backward(ctx, *grads):
        there = [number for number, grad in enumerate(grads) if grad is not None]
        given = _together([grads[number] for number in there], [ctx.back[number] for number in there], None)
        own = dict(zip(there, given))
        return (None, None, *(own.get(number) for number in range(len(grads))))


def _back(tensor, placements):
    """Mesh and placements of the gradient."""
    if placements is None:
        placements = [Replicate() if one.is_partial() else one for one in tensor.placements]
    return tensor.device_mesh, _normalized(placements, tensor.device_mesh, tensor.ndim)


def _together(tensors, targets, grad_placements):
    ways = [_Way(tensor, mesh, placements) for tensor, (mesh, placements) in zip(tensors, targets)]
    if torch.is_grad_enabled() and any(tensor.requires_grad and not way.stays for tensor, way in zip(tensors, ways)):
        return list(_Moved.apply(ways, [_back(*one) for one in zip(tensors, grad_placements or [None] * len(tensors))], *tensors))
    return _move(tensors, ways)


def _for_each(given, count, is_one, what):
    """Returns a list with one item for each tensor."""
    if given is None or is_one(given):
        return [given] * count
    given = list(given)
    if len(given) != count:
        raise ValueError(f"torch_tutti.redistribute: {len(given)} {what} for {count} tensors")
    return given


def _are_placements(given):
    given = tuple(given)
    return bool(given) and not isinstance(given[0], (list, tuple))


def redistribute(tensors, mesh, placements, grad_placements):
    single = isinstance(tensors, DTensor)
    tensors = [tensors] if single else list(tensors)
    for tensor in tensors:
        if not isinstance(tensor, DTensor):
            raise TypeError(f"torch_tutti.redistribute takes a DTensor or a list of them, not {type(tensor).__name__}; for plain "
                            "tensors use torch_tutti.reshard")
    count = len(tensors)
    meshes = _for_each(mesh, count, lambda one: not isinstance(one, (list, tuple)), "meshes")
    targets = list(zip(meshes, _for_each(placements, count, _are_placements, "lists of placements")))
    moved = _together(tensors, targets, _for_each(grad_placements, count, _are_placements, "lists of grad_placements"))
    return moved[0] if single else moved


# ----------------------------------------------------------------------------------------------------- plain shards

_DTYPES = sorted((one for one in vars(torch).values() if isinstance(one, torch.dtype)), key=str)  # the same on all ranks


def _described(shard):
    """dtype, number of dimensions and extents."""
    if shard is None:
        return [0] * (2 + _MOST_AXES)
    if shard.ndim > _MOST_AXES:
        raise NotImplementedError(f"torch_tutti.reshard: a tensor of {shard.ndim} dimensions; at most {_MOST_AXES} are possible")
    return [_DTYPES.index(shard.dtype), shard.ndim, *shard.shape, *[0] * (_MOST_AXES - shard.ndim)]


def _whole_shape(rows, sizes, placements):
    """From one row per rank of the mesh: along the mesh dimensions that split a dimension, the extents of its parts
    are added."""
    shape = list(rows[0][2:2 + rows[0][1]])
    grid = torch.arange(len(rows)).reshape(sizes)
    for dim in range(len(shape)):
        axes = [axis for axis, placement in enumerate(placements) if getattr(placement, "dim", None) == dim]
        parts = grid[tuple(slice(None) if axis in axes else 0 for axis in range(len(sizes)))].flatten().tolist()
        shape[dim] = sum(rows[part][2 + dim] for part in parts)
    return tuple(shape)


def _found(buffers, src_mesh, dst_mesh, placements):
    """Shapes and dtypes, for ranks of the target, which do not have them."""
    src_ranks, sizes = _ranks_of(src_mesh)
    ranks = tuple(sorted({*src_ranks, *_ranks_of(dst_mesh)[0]}))
    rows = torch.tensor([[_described(shard) for shard in buffers]], dtype=torch.int64)
    journey = ((len(src_ranks), len(buffers), 2 + _MOST_AXES), torch.int64, (src_ranks, (len(src_ranks),), "S0"),
               (ranks, (len(ranks),), "B"))
    rows = carry([journey], [rows])[0].tolist()
    shapes, dtypes = [], []
    for number, own in enumerate(placements):
        of_tensor = [row[number] for row in rows]
        if len({tuple(row[:2]) for row in of_tensor}) > 1:
            raise ValueError("torch_tutti.reshard: ranks of the source differ in the dtype or the number of dimensions of buffer "
                             f"{number}")
        own = _normalized(own, src_mesh, of_tensor[0][1])
        shapes.append(_whole_shape(of_tensor, sizes, own))
        dtypes.append(_DTYPES[of_tensor[0][0]])
    return shapes, dtypes


def reshard(buffers, src_mesh, src_placements, dst_mesh, dst_placements, shapes, dtypes):
    single = buffers is None or isinstance(buffers, torch.Tensor)
    buffers = [buffers] if single else list(buffers)
    count, rank = len(buffers), dist.get_rank()
    has, wants = rank in _ranks_of(src_mesh)[0], rank in _ranks_of(dst_mesh)[0]
    if any((shard is None) == has for shard in buffers):
        raise ValueError(f"torch_tutti.reshard: rank {rank} is {'in' if has else 'outside'} the source's mesh, so each of its "
                         f"buffers must {'be a tensor' if has else 'be None'}")
    if not has and not wants or not buffers:
        return None if single else [None] * count
    sources = _for_each(src_placements, count, _are_placements, "lists of placements")
    targets = _for_each(dst_placements, count, _are_placements, "lists of placements")
    if (shapes is None) != (dtypes is None):
        raise ValueError("torch_tutti.reshard: give both shapes and dtypes, or neither")
    if shapes is None:
        shapes, dtypes = _found(buffers, src_mesh, dst_mesh, sources)
    elif single:
        shapes, dtypes = [shapes], [dtypes]
    journeys = [(tuple(shape), dtype, _side(src_mesh, _normalized(source, src_mesh, len(shape)), shape),
                 _side(dst_mesh, _normalized(target, dst_mesh, len(shape)), shape))
                for shape, dtype, source, target in zip(shapes, dtypes, sources, targets)]
    with torch.no_grad():
        moved = carry(journeys, [torch.empty(0) if shard is None else shard.detach() for shard in buffers])
    moved = moved if wants else [None] * count
    return moved[0] if single else moved
