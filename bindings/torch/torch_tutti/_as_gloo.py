"""Tutti in Gloo's place: creates the groups, and reports the calls that the real Gloo did.

See torch_tutti_autoload.as_gloo for how the class is replaced, and src/module/as_gloo.h for which calls go to the real
Gloo.
"""
import multiprocessing.util
import os
import sys

from torch.distributed import distributed_c10d
from torch_tutti_autoload import as_gloo, give_buckets_memory

from . import _C

RECONFIGURE = ("groups", "enable_reconfigure")
_calls = {}  # (call, why) -> number of calls, in groups in which this process is rank 0


def replace_gloo():
    """From now on groups of "gloo" are Tutti's, under Gloo's name, in this process and in those that it starts.

    A second call changes nothing. Raises RuntimeError if a group of Gloo exists already.
    """
    if not distributed_c10d.is_gloo_available():
        raise RuntimeError("torch_tutti.replace_gloo(): this PyTorch was built without Gloo, so there is nothing to replace")
    if as_gloo.gloo is None:
        there = [name for group, name in distributed_c10d._world.pg_names.items() if _has_gloo(group)]
        if there:
            raise RuntimeError("torch_tutti.replace_gloo() comes too late: there is a group of Gloo's already "
                               f"({', '.join(map(repr, there))}); call it before the first group, or set {as_gloo.VARIABLE}=1")
        as_gloo.install(distributed_c10d, create)
    os.environ[as_gloo.VARIABLE] = "1"


def _has_gloo(group):
    return "gloo" in str(distributed_c10d._world.pg_backend_config.get(group, ""))


def create(store, rank, size, timeout=distributed_c10d.default_pg_timeout, enable_reconfigure=False, options=None):
    """What ProcessGroupGloo(...) returns; as there, options may be the fourth argument."""
    if isinstance(timeout, as_gloo.gloo._Options):
        timeout, options = distributed_c10d.default_pg_timeout, timeout
    if options is not None:
        timeout = options._timeout
    if enable_reconfigure:
        _note(*RECONFIGURE, rank)
        return as_gloo.gloo(store, rank, size, timeout=timeout, enable_reconfigure=True)
    _give_buckets_memory()
    return _C.create_backend_as_gloo(store, rank, size, timeout)


def _give_buckets_memory():
    """As for groups of "tutti": DDP allocates its buckets with the group, unless the group has NCCL too."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_code.co_name != "_new_process_group_helper":
        frame = frame.f_back
    if frame is not None:
        give_buckets_memory(frame)


def _make_real(store, rank, size, timeout):
    return as_gloo.gloo(store, rank, size, timeout=timeout)


def _note(call, why, rank):
    if rank != 0:
        return
    if not _calls:
        # Unlike atexit's, these are called in forked children of multiprocessing as well.
        multiprocessing.util.Finalize(None, _say, exitpriority=0)
    _calls[call, why] = _calls.get((call, why), 0) + 1


def _say():
    done = "; ".join(f"{count} x {call} ({why})" for (call, why), count in _calls.items())
    print(f"torch_tutti: in Gloo's place; Gloo itself did: {done}", file=sys.stderr, flush=True)


_C.set_real_gloo(_make_real, _note)
