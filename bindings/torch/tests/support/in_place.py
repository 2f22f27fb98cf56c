"""Groups that PyTorch takes for gloo's and that torch_tutti has made.

PyTorch and its tests treat backends by name: what they refuse or skip for a name that they do not know, they do for
"gloo". With ProcessGroupGloo exchanged, the name stays and the group is ours.
"""
import types

import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

GLOO = getattr(c10d, "ProcessGroupGloo", None)


def take_the_place_of_gloo():
    import torch_tutti  # pylint: disable=import-outside-toplevel

    if not hasattr(torch_tutti._C.Backend, "options"):
        torch_tutti._C.Backend.options = types.SimpleNamespace()  # where PyTorch notes the group's name and ranks

    class Instead(type):
        """Makes our backend when called, and knows it as an instance; all else is ProcessGroupGloo's."""

        def __call__(cls, store, rank, size, timeout=dist.default_pg_timeout, enable_reconfigure=False):
            assert not enable_reconfigure
            return torch_tutti._C.create_backend_plain(store, rank, size, timeout)

        def __instancecheck__(cls, thing):
            return isinstance(thing, (torch_tutti._C.Backend, GLOO))

        def __getattr__(cls, name):
            return getattr(GLOO, name)

    class ProcessGroupGloo(metaclass=Instead):
        pass

    wrap = c10d._create_process_group_wrapper

    def wrap_with_gloo(*arguments, **named):
        # The helper that compares fingerprints in TORCH_DISTRIBUTED_DEBUG=DETAIL stays Gloo's.
        c10d.ProcessGroupGloo = GLOO
        try:
            return wrap(*arguments, **named)
        finally:
            c10d.ProcessGroupGloo = ProcessGroupGloo

    c10d.ProcessGroupGloo = ProcessGroupGloo
    c10d._create_process_group_wrapper = wrap_with_gloo


def rename_profiler_events(tests):
    """Tests look for "gloo:all_reduce" in the profile; ours are called "tutti:all_reduce"."""
    get = tests.get_profiling_event

    def get_ours(event_name, *arguments, **named):
        events = get(event_name.replace("gloo:", "tutti:", 1), *arguments, **named)
        for event in events:
            event.name = event.name.replace("tutti:", "gloo:", 1)
        return events

    tests.get_profiling_event = get_ours
