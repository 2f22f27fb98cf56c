"""DTensor's own redistributions by Tutti: see improve_dtensor in __init__.py.

Two functions of PyTorch are replaced in the modules that look them up. Their names are private, so they are
compared with the supported versions before anything is changed. Calls that are not ordinary (tracing, a dispatch
mode, other placements, another backend, a target that is partial) go to PyTorch's functions.
"""
import functools
import importlib
import inspect
import logging

import torch
import torch.distributed as dist

from . import _C, _redistribute

_log = logging.getLogger("torch_tutti")
_TENSOR = "torch.distributed.tensor"
_PLACES = {"redistribute_local_tensor": ("_redistribute", "_api", "_dispatch"),
           "shard_dim_alltoall": ("placement_types", "_collective_utils")}
_KNOWN = {"redistribute_local_tensor": ["local_tensor", "current_spec", "target_spec"],
          "shard_dim_alltoall": ["input", "gather_dim", "shard_dim", "mesh", "mesh_dim"]}


def _positional(function):
    return [name for name, one in inspect.signature(function).parameters.items() if one.kind is one.POSITIONAL_OR_KEYWORD]


def _find():
    """Returns name -> (the function, modules that have it), or the reason why they are not the supported ones."""
    found = {}
    for name, places in _PLACES.items():
        try:
            modules = [importlib.import_module(f"{_TENSOR}.{place}") for place in places]
            functions = {getattr(module, name) for module in modules}
        except (ImportError, AttributeError) as error:
            return str(error)
        if len(functions) != 1:
            return f"there are several {name}"
        function = functions.pop()
        if _positional(function) != _KNOWN[name]:
            return f"{name} takes {_positional(function)}"
        found[name] = function, modules
    infos = getattr(found["redistribute_local_tensor"][1][0], "_gen_transform_infos", None)
    if infos is None or _positional(getattr(infos, "__wrapped__", infos))[:2] != ["src_spec", "dst_spec"]:
        return "_gen_transform_infos is a different function"
    return found


def _is_tuttis(group):
    try:
        backend = group._get_backend(torch.device("cpu"))
    except RuntimeError:
        return False
    return isinstance(getattr(backend, "wrapped_pg", backend), _C.Backend)


def _is_ordinary(tensor, mesh):
    return (type(tensor) is torch.Tensor and mesh.device_type == "cpu" and torch._C._len_torch_dispatch_stack() == 0
            and not torch.compiler.is_compiling() and mesh.get_coordinate() is not None)


def _shard_dim_alltoall(original):
    """The input is divisible: PyTorch has padded it."""
    @functools.wraps(original)
    def exchanged(input, gather_dim, shard_dim, mesh, mesh_dim):  # pylint: disable=redefined-builtin
        group = mesh.get_group(mesh_dim)
        size = mesh.size(mesh_dim)
        if not _is_ordinary(input, mesh) or input.shape[shard_dim] % size or not _is_tuttis(group):
            return original(input, gather_dim, shard_dim, mesh, mesh_dim)
        sent = torch.stack(input.chunk(size, shard_dim))
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent, group=group)
        return torch.cat(received.unbind(), gather_dim)
    return exchanged


def _redistribute_local_tensor(original, transform_infos):
    def journey(local, current, target):
        """None: PyTorch handles it."""
        mesh = current.mesh
        if not _is_ordinary(local, mesh) or mesh != target.mesh or any(one.is_partial() for one in target.placements):
            return None
        if sum(1 for info in transform_infos(current, target) if info.src_dst_placements[0] != info.src_dst_placements[1]) < 2:
            return None
        if not all(_is_tuttis(mesh.get_group(axis)) for axis in range(mesh.ndim)) or not _is_tuttis(dist.group.WORLD):
            return None
        try:
            sides = [_redistribute.side_of_spec(spec) for spec in (current, target)]
        except NotImplementedError:
            return None
        return (tuple(current.shape), local.dtype, *sides)

    @functools.wraps(original)
    def redistributed(local_tensor, current_spec, target_spec, **named):
        way = journey(local_tensor, current_spec, target_spec)
        if way is None:
            return original(local_tensor, current_spec, target_spec, **named)
        return _redistribute.carry([way], [local_tensor])[0]
    return redistributed


_improved = False


def improve_dtensor():
    global _improved  # pylint: disable=global-statement
    if _improved:
        return True
    found = _find()
    if isinstance(found, str):
        _log.warning("torch_tutti.improve_dtensor() leaves DTensor as it is: it supports the private functions of other "
                     "versions of PyTorch than %s (%s)", torch.__version__, found)
        return False
    transform_infos = found["redistribute_local_tensor"][1][0]._gen_transform_infos
    made = {"redistribute_local_tensor": _redistribute_local_tensor(found["redistribute_local_tensor"][0], transform_infos),
            "shard_dim_alltoall": _shard_dim_alltoall(found["shard_dim_alltoall"][0])}
    for name, (_, modules) in found.items():
        for module in modules:
            setattr(module, name, made[name])
    _improved = True
    return True
