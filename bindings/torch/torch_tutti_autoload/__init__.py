"""Registers the name "tutti" with torch.distributed, and puts Tutti in Gloo's place, before torch_tutti is loaded.

This file registers the name, as_gloo replaces ProcessGroupGloo by a stand-in; both get the function that creates a
group. torch_tutti uses them. entry, which PyTorch calls, passes functions that load torch_tutti, and early calls entry
at the start of Python.
"""
import os
import sys

NAME = "tutti"


def backends_of_group(frame):
    """The backends of the group that PyTorch's `_new_process_group_helper`, running in `frame`, is creating."""
    config = frame.f_locals.get("backend_config")
    return list(getattr(config, "device_backend_map", {}).values())


def give_buckets_memory(frame):
    """DDP allocates its buckets with the backend only where this variable allows it. It is one switch for the whole
    process, read by NCCL's groups as well: where `frame` is creating such a group ("nccl", "nccl2", "nccl-lazy"), it
    is left unchanged."""
    if not any(name.startswith("nccl") for name in backends_of_group(frame)):
        os.environ.setdefault("DDP_DISABLE_COMM_MEM", "0")


class _Plugins(dict):
    """`Backend._plugins` in which a lookup by name finds tutti, but which lists it only for groups that name it.

    Where a group has a backend per device, PyTorch before 2.14 takes its default from the first of
    `_plugins.keys()`, and none at all when that key is not among the group's backends. So a plain entry would take
    the default backend from groups like "cpu:gloo"; and it would not even give it to "cpu:tutti,cuda:tutti", since
    keys are upper case and names lower.
    """

    def __init__(self, others):
        super().__init__(others)
        self.own = None

    def __setitem__(self, key, plugin):
        if key == NAME.upper():
            self.own = plugin
        else:
            super().__setitem__(key, plugin)

    def __missing__(self, key):
        if key == NAME.upper() and self.own is not None:
            return self.own
        raise KeyError(key)

    def __contains__(self, key):
        return super().__contains__(key) or (key == NAME.upper() and self.own is not None)

    def get(self, key, default=None):
        return self[key] if key in self else default

    def keys(self):
        if self.own is not None and NAME in backends_of_group(sys._getframe(1)):
            return {NAME: self.own, **self}.keys()
        return super().keys()


def register(create):
    """Registers the backend with its creator, which PyTorch calls on each member of a new group; a second call
    changes nothing."""
    from torch.distributed import distributed_c10d

    Backend = distributed_c10d.Backend
    if NAME.upper() in Backend._plugins:
        return
    # Newer versions take a group's default from the devices that the group names, and keep their own backends there too.
    if not hasattr(distributed_c10d, "_get_default_backend_type_for_backend_config"):
        Backend._plugins = _Plugins(Backend._plugins)
    Backend.register_backend(NAME, create, extended_api=True, devices=["cpu", "cuda"])
