"""The rank of this process, the number of ranks, and RDMA: the functions of oneflow.env and oneflow.distributed.

Before a group exists, the values come from the launcher's variables: those of torchrun and tuttirun (RANK,
WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE), of MPI's launchers and Slurm, or a rank table. After init_process_group
they come from the group; if the group uses Tutti, its ranks have found out which of them share a host. Where
neither has the value, RuntimeError says what to do.
"""
import os

import torch
import torch.distributed as dist

from . import _C

__all__ = ["get_world_size", "get_rank", "get_local_rank", "get_node_size", "init_rdma", "rdma_is_initialized"]

# One of these is set in every process that a launcher has started (bootstrap/launcher/launcher_variables.c, rank_table.c).
_LAUNCHED = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK",
             "SLURM_PROCID", "RANK_TABLE_FILE", "MINDSPORE_HCCL_CONFIG_PATH")


def _said(number, what):
    """Returns the number if the launcher's variables contain it: OneFlow's do not say which ranks share a host."""
    if number < 0:
        raise RuntimeError(f"torch_tutti.env: the launcher's variables do not say the {what}: LOCAL_WORLD_SIZE is not set, and there "
                           "may be several hosts; set it, start the program with torchrun or tuttirun, or call "
                           'torch.distributed.init_process_group("tutti") first, whose ranks find their hosts')
    return number


def _launched(what, variable):
    text = os.environ.get(variable, "")
    if text.isdigit():
        return int(text)
    if text or any(os.environ.get(name) for name in _LAUNCHED):
        return _said(_C.launched()[what], what)  # or an error that shows what was found
    raise RuntimeError(f"torch_tutti.env: there is no group, and {variable} is not set: start the program with torchrun, "
                       "tuttirun, mpirun or srun, or call torch.distributed.init_process_group first")


def _has_group():
    return dist.is_available() and dist.is_initialized()


def _backend():
    """Tutti's backend of the default group, or None."""
    group = dist.distributed_c10d._get_default_group()
    for device in group._device_types:
        backend = group._get_backend(torch.device(device))
        backend = getattr(backend, "wrapped_pg", backend)  # TORCH_DISTRIBUTED_DEBUG=DETAIL
        if isinstance(backend, _C.Backend):
            return backend
    return None


def _of_hosts(what, variable):
    if not _has_group():
        return _launched(what, variable)
    backend = _backend()
    if backend is not None:
        return _C.found(backend)[what]
    world = _C.launched()
    if (world["world_size"], world["rank"]) != (dist.get_world_size(), dist.get_rank()):
        raise RuntimeError(f"torch_tutti.env: the default group, of {dist.get_backend()}, does not say which of its ranks share a "
                           f"host, and the launcher's variables describe another job (rank {world['rank']} of "
                           f"{world['world_size']}, the group has rank {dist.get_rank()} of {dist.get_world_size()}): make the "
                           "group with Tutti, or start the ranks with torchrun")
    return _said(world[what], what)


def get_world_size():
    """The number of ranks."""
    return dist.get_world_size() if _has_group() else _launched("world_size", "WORLD_SIZE")


def get_rank():
    """The rank of this process, from 0."""
    return dist.get_rank() if _has_group() else _launched("rank", "RANK")


def get_local_rank():
    """The rank of this process among those of its host, from 0.

    In a group with Tutti: as its ranks have found; ranks that share memory are on one host, in the order of their
    ranks. Else LOCAL_RANK. The two differ where two launchers run on one host, each with a LOCAL_RANK of 0.
    """
    return _of_hosts("local_rank", "LOCAL_RANK")


def get_node_size():
    """The number of hosts: those that the ranks of a group with Tutti have found, else from the launcher's
    variables."""
    return _of_hosts("node_size", "GROUP_WORLD_SIZE")


def init_rdma():
    """Sets up RDMA between all hosts of the default group, or raises. Collective: all ranks must call it. Returns
    True.

    Afterwards, collectives and messages of CPU tensors use RDMA between hosts or raise; they never fall back to TCP
    silently. That holds for this group, for groups that are created later, and for what CUDA tensors send through
    CPU memory; NCCL chooses its network itself (NCCL_NET=IB: RDMA or an error).

    Raises RuntimeError, the same on all ranks, if a host has no usable adapter, or its adapter does not reach
    another host's; the text names the hosts, and the group is unchanged. Also on one host, which needs an adapter
    too. If a rank does not call it, the group's timeout names that rank. After success a further call returns True
    at once. Forked processes can use neither the group nor its adapters, and get an error here: fork before this
    call, or start the processes with spawn.
    """
    if not _has_group():
        raise RuntimeError('torch_tutti.env.init_rdma() works on a group: call torch.distributed.init_process_group("tutti") '
                           "on all ranks first")
    backend = _backend()
    if backend is None:
        raise RuntimeError(f"torch_tutti.env.init_rdma(): the default group uses {dist.get_backend()}, not Tutti: call "
                           'torch.distributed.init_process_group("tutti"), or with "cpu:tutti,cuda:nccl"')
    _C.init_rdma(backend)
    return True


def rdma_is_initialized():
    """Whether init_rdma has succeeded in the default group. False if there is no such group, and in a forked
    process."""
    backend = _backend() if _has_group() else None
    return backend is not None and _C.has_rdma(backend)
