"""Replaces ProcessGroupGloo by a stand-in, without loading anything of Tutti.

PyTorch treats backends by name: what it does for "gloo" it does not do for an unknown name, and programs contain
the name. So the name stays, and the class that creates gloo's groups is replaced: wherever PyTorch keeps it, there
is a class that creates groups of Tutti, passes for their class, and has all other attributes of ProcessGroupGloo.
torch_tutti, with its extension, is loaded when the first group is created.

TUTTI_AS_GLOO=1 enables it. It is installed by whichever comes first: `early`, at the start of Python, where a .pth
file of this package is read; `entry.autoload`, at the end of `import torch`; `import torch_tutti`;
torch_tutti.replace_gloo().
"""
import os
import sys
import threading

VARIABLE = "TUTTI_AS_GLOO"
C10D = "torch.distributed.distributed_c10d"

gloo = None  # PyTorch's own ProcessGroupGloo, once it is replaced
_create = None  # creates a group in its place
_own = threading.local()  # .depth > 0: this thread wants Gloo's own groups


def wanted():
    """Whether the environment enables it. Its value may be wrong: groups that are created then report it."""
    return os.environ.get(VARIABLE, "") not in ("", "0")


def _check_setting():
    value = os.environ.get(VARIABLE, "")
    if value not in ("", "0", "1"):
        raise ValueError(f"{VARIABLE}={value}: 1 puts Tutti in Gloo's place, 0 or nothing does not; set one of these")


class _Instead(type):
    def __new__(cls, name, bases, namespace):
        if bases:
            raise TypeError(f"class {name}: ProcessGroupGloo has no subclasses where Tutti is in its place")
        return super().__new__(cls, name, bases, namespace)

    def __call__(cls, *arguments, **named):
        if getattr(_own, "depth", 0) > 0:
            return gloo(*arguments, **named)
        _check_setting()
        return _create(*arguments, **named)

    def _ours(cls):
        extension = sys.modules.get("torch_tutti._C")  # not loaded: Tutti has no group
        return (gloo,) if extension is None else (gloo, extension.GlooBackend)

    def __instancecheck__(cls, thing):
        return isinstance(thing, cls._ours())

    def __subclasscheck__(cls, kind):
        return kind is cls or issubclass(kind, cls._ours())

    def __getattr__(cls, name):
        return getattr(gloo, name)


class OwnGloo:
    """Within `with OwnGloo():` ProcessGroupGloo is PyTorch's own class on this thread."""

    def __enter__(self):
        _own.depth = getattr(_own, "depth", 0) + 1

    def __exit__(self, *error):
        _own.depth -= 1


def install(c10d, create):
    """Replaces the class in PyTorch by one whose groups `create` makes, with the class's arguments; a second call
    changes nothing."""
    global gloo, _create
    if gloo is not None or not hasattr(c10d, "ProcessGroupGloo"):
        return
    gloo, _create = c10d.ProcessGroupGloo, create
    instead = _Instead("ProcessGroupGloo", (), {"__module__": C10D, "__doc__": gloo.__doc__})
    for module in list(sys.modules.values()):
        names = getattr(module, "__dict__", None)
        if type(names) is dict and names.get("ProcessGroupGloo") is gloo:
            names["ProcessGroupGloo"] = instead
    # The helper that compares fingerprints in TORCH_DISTRIBUTED_DEBUG=DETAIL stays Gloo's: it checks whether the
    # group works.
    wrap = c10d._create_process_group_wrapper

    def wrap_with_gloo(*arguments, **named):
        with OwnGloo():
            return wrap(*arguments, **named)

    c10d._create_process_group_wrapper = wrap_with_gloo


def install_if_wanted(create):
    c10d = sys.modules.get(C10D)
    if c10d is not None and wanted():
        install(c10d, create)
