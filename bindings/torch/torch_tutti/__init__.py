"""Tutti as a backend of torch.distributed.

    torch.distributed.init_process_group("tutti")

needs no import of this package: PyTorch finds it. The package's other functions are below; `python -m torch_tutti`
shows what is installed and tests it, `python -m torch_tutti run script.py` runs a program with Tutti in Gloo's
place.
"""
import atexit
import os
import sys

import torch
import torch.distributed

from . import _extension

try:
    from . import _build
except ImportError:
    raise ImportError(f"{os.path.dirname(os.path.abspath(__file__))} is the source of torch_tutti, not what pip installs: "
                      "start Python in another folder") from None

__all__ = ["ArgumentError", "Options", "empty", "env", "zeros", "improve_dtensor", "is_shareable", "redistribute",
           "replace_gloo", "reshard", "use_allocator", "versions"]

_C, _built_for = _extension.load(_build, __name__)


def _ask_for_queues():
    """A CUDA process has 8 hardware queues unless this variable is set when it starts, and streams that share a
    queue run in order. A stream that waits for another rank would block the streams of its queue, so each stream
    needs a queue of its own. The clients of NVIDIA's MPS share one pool of queues, which does not have 32 for each:
    8 clients that request 32 find no GPU."""
    pipes = os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps")
    under_mps = os.path.exists(os.path.join(pipes, "control"))
    if torch.version.cuda is not None and not torch.cuda.is_initialized() and not under_mps:
        os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")


_ask_for_queues()

import torch_tutti_autoload  # noqa: E402
from torch_tutti_autoload import as_gloo as _place  # noqa: E402

from . import env  # noqa: E402

Options = _C.Options
ArgumentError = _C.ArgumentError
_c10d = torch._C._distributed_c10d
_ANY_OPTIONS = tuple(getattr(owner, "Options") for owner in (_c10d.Backend, _c10d.ProcessGroup) if hasattr(owner, "Options"))


def _create_backend(group, options):
    """The backend of a new group. Options of another backend are ignored: in "cpu:tutti,cuda:nccl" PyTorch passes
    the same options to both."""
    if options is not None and not isinstance(options, (Options,) + _ANY_OPTIONS):
        raise TypeError(f"pg_options must be a torch_tutti.Options, not {type(options).__name__}")
    return _C.create_backend(group, options if isinstance(options, Options) else None)


def _create(group, options):
    torch_tutti_autoload.give_buckets_memory(sys._getframe(1))
    return _create_backend(group, options)


def _create_as_gloo(*arguments, **named):
    from . import _as_gloo

    return _as_gloo.create(*arguments, **named)


torch_tutti_autoload.register(_create)
_place.install_if_wanted(_create_as_gloo)
atexit.register(_C.shutdown_all)


def empty(*size, dtype=None, device="cpu", requires_grad=False):
    """Like torch.empty, in memory that all ranks of the host can access: collectives on it copy less."""
    if torch.device(device).type != "cpu":
        raise NotImplementedError(f"torch_tutti.empty supports CPU tensors only, not {device}")
    if len(size) == 1 and not isinstance(size[0], int):
        size = tuple(size[0])
    tensor = torch.empty(0, dtype=dtype or torch.get_default_dtype())
    count = torch.Size(size).numel()
    tensor.set_(_C.empty(count * tensor.element_size()).untyped_storage(), 0, size)
    return tensor.requires_grad_(requires_grad)


def zeros(*size, dtype=None, device="cpu", requires_grad=False):
    """Like torch.zeros, in the memory of `empty`."""
    return empty(*size, dtype=dtype, device=device).zero_().requires_grad_(requires_grad)


def is_shareable(tensor):
    """Whether all ranks of the host can access the tensor's memory."""
    return _C.shareable(tensor)


def use_allocator(min_bytes=1 << 20):
    """From now on CPU tensors of at least `min_bytes` are allocated in the memory of `empty`; 0: no longer.

    Such memory is not copied when the process forks: the parent sees what a child writes to these tensors. See
    "What a fork shares" in docs/pytorch.md before using it with DataLoader workers.
    """
    _C.use_allocator(min_bytes)


def replace_gloo():
    """From now on groups of "gloo" are Tutti's, under Gloo's name, in this process and in those that it starts: the
    effect of TUTTI_AS_GLOO=1, for a program that has imported torch already. See "In Gloo's place" in
    docs/pytorch.md.

    A second call changes nothing. Raises RuntimeError if a group of Gloo exists already.
    """
    from . import _as_gloo

    _as_gloo.replace_gloo()


def redistribute(tensors, mesh, placements, *, grad_placements=None):
    """Redistributes a DTensor, or a list of them in one round, to `mesh` (None: its own) with `placements`.

    `mesh` may be another DeviceMesh, of equal, other, more or fewer ranks of the default group, whose CPU backend
    must be Tutti (also in Gloo's place). `placements` may be any of Shard, Replicate and Partial, as may those of
    the DTensor; sizes need not be divisible. _StridedShard is supported where it describes the order in which mesh
    dimensions split a tensor dimension evenly. For a list, `mesh` and `placements` are those of all tensors, or
    lists with one for each.

    The result's shards are contiguous. Where nothing changes it is the DTensor itself. It is differentiable: the
    gradient gets the DTensor's mesh and its placements, with Replicate for Partial, or `grad_placements` (given
    like `placements`, on its own mesh).

    All ranks of both meshes must call it, in the same order as other redistributions, with equal arguments; a
    difference is an error on all of them. A rank that is in neither mesh need not call it, and gets what DTensor
    has there, a shard without elements.
    """
    from . import _redistribute

    return _redistribute.redistribute(tensors, mesh, placements, grad_placements)


def improve_dtensor():
    """From now on DTensor's own redistributions on CPU meshes of Tutti's groups use Tutti: several steps of PyTorch
    are replaced by the plan of `redistribute`, and a change from one Shard to another by an all_to_all. Operators
    on DTensors use this, too.

    It replaces private functions of PyTorch. If these differ from the supported ones, it changes nothing, logs one
    line and returns False; else it returns True. Call it on all ranks. Tracing and debug modes are not affected.
    """
    from . import _improve_dtensor

    return _improve_dtensor.improve_dtensor()


def reshard(buffers, src_mesh, src_placements, dst_mesh, dst_placements, *, shapes=None, dtypes=None):
    """Sends shards of tensors from the ranks that have them to ranks that need them, in one round: for example
    weights from trainers to generators.

    `buffers` is this rank's shard, or a list of shards; None, or a list of as many Nones, on a rank outside
    `src_mesh`. Returns this rank's shard in `dst_mesh`, or a list of shards; None on a rank outside of it. The
    placements are those of all tensors, or a list with one sequence for each. `shapes` (of the whole tensors) and
    `dtypes`, given on all ranks, avoid a small exchange that finds them. Ranks may be in both meshes, in one, or,
    without calling this, in none; otherwise it works like `redistribute`, but nothing is differentiated.
    """
    from . import _redistribute

    return _redistribute.reshard(buffers, src_mesh, src_placements, dst_mesh, dst_placements, shapes, dtypes)


def versions():
    """The versions to include in a bug report."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        own = version("torch-tutti")
    except PackageNotFoundError:
        own = "unknown"
    return {"torch_tutti": own, "tutti": _C.tutti_version, "torch": torch.__version__,
            "built for torch": _built_for}
