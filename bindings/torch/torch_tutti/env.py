"""Who this process is, how many there are, and RDMA: what oneflow.env and oneflow.distributed have under these names.

Before a group is there, the launcher's variables answer: those of torchrun and tuttirun (RANK, WORLD_SIZE, LOCAL_RANK,
LOCAL_WORLD_SIZE), of MPI's launchers and Slurm, or a rank table. After init_process_group the group answers; which ranks share a
host is then what Tutti's ranks have found, if the group has Tutti. Where nothing says it, RuntimeError tells what to do.
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
    """The number, where the launcher's variables say it: OneFlow's launcher does not say which ranks share a host."""
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
    raise RuntimeError(f"torch_tutti.env: no group is there, and {variable} is not set: start the program with torchrun, "
                       "tuttirun, mpirun or srun, or call torch.distributed.init_process_group first")


def _has_group():
    return dist.is_available() and dist.is_initialized()


def _backend():
    """Tutti's backend of the default group; None: it has none."""
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
                           f"host, and the launcher's variables are of another world (rank {world['rank']} of "
                           f"{world['world_size']}, the group has rank {dist.get_rank()} of {dist.get_world_size()}): make the "
                           "group with Tutti, or start the ranks with torchrun")
    return _said(world[what], what)


def get_world_size():
    """How many ranks there are."""
    return dist.get_world_size() if _has_group() else _launched("world_size", "WORLD_SIZE")


def get_rank():
    """This process among them, from 0."""
    return dist.get_rank() if _has_group() else _launched("rank", "RANK")


def get_local_rank():
    """This process among those of its host, from 0.

    In a group with Tutti: as its ranks have found, those that share memory being on one host, in the order of their ranks. Else
    LOCAL_RANK. The two differ where two launchers run on one host, each with a LOCAL_RANK of 0.
    """
    return _of_hosts("local_rank", "LOCAL_RANK")


def get_node_size():
    """The number of machines: of hosts that the ranks of a group with Tutti have found, else that the launcher's variables say."""
    return _of_hosts("node_size", "GROUP_WORLD_SIZE")


def init_rdma():
    """RDMA between all hosts of the default group, or an error. Collective: all ranks call it. Returns True.

    Afterwards, collectives and messages of CPU tensors go between hosts by RDMA or raise; TCP never takes over in silence. That
    holds for this group, for groups that are made later, and for what CUDA tensors send through CPU memory; NCCL chooses its
    network itself (NCCL_NET=IB: RDMA or an error).

    RuntimeError, the same on all ranks: a host has no adapter that can be used, or its adapter does not reach another's; the text
    names the hosts, and the group is as it was. Also on one host, which needs an adapter too. A rank that does not call it is
    named by the group's timeout. After success a further call returns True at once. Processes that are forked can use neither
    the group nor its adapters, and get an error here: fork them before, or start them anew (spawn).
    """
    if not _has_group():
        raise RuntimeError('torch_tutti.env.init_rdma() works on a group: call torch.distributed.init_process_group("tutti") '
                           "on all ranks first")
    backend = _backend()
    if backend is None:
        raise RuntimeError(f"torch_tutti.env.init_rdma(): the default group is of {dist.get_backend()}, which is not Tutti's: call "
                           'torch.distributed.init_process_group("tutti"), or with "cpu:tutti,cuda:nccl"')
    _C.init_rdma(backend)
    return True


def rdma_is_initialized():
    """Whether init_rdma has succeeded in the default group. False where there is no such group, and in a forked process."""
    backend = _backend() if _has_group() else None
    return backend is not None and _C.has_rdma(backend)
