"""Puts a stand-in in the place of ProcessGroupGloo, without loading anything of Tutti.

PyTorch goes by names: what it does for "gloo" it does not do for a name that it does not know, and programs have the name
written down. So the name stays, and the class that makes gloo's groups is exchanged: wherever PyTorch keeps it, there is a
class that makes groups of Tutti, passes for their class, and has all else from ProcessGroupGloo. torch_tutti, with its
extension, is loaded when the first group is made.

Wanted with TUTTI_AS_GLOO=1. It is installed by what comes first: `early`, at the start of Python, where a .pth file of this
package is read; `autoload`, at the end of `import torch`; `import torch_tutti`; torch_tutti.replace_gloo().
"""
import os
import sys
import threading

VARIABLE = "TUTTI_AS_GLOO"
C10D = "torch.distributed.distributed_c10d"

gloo = None  # PyTorch's own ProcessGroupGloo, once it is replaced
_own = threading.local()  # .depth > 0: this thread wants Gloo's own groups


def wanted():
    """Whether the environment asks for it. What it asks for may be wrong: groups that are made then say so."""
    return os.environ.get(VARIABLE, "") not in ("", "0")


def _feature():
    """torch_tutti._as_gloo, or an error that says why there is none: Gloo itself would be a silent surprise."""
    value = os.environ.get(VARIABLE, "")
    if value not in ("", "0", "1"):
        raise ValueError(f"{VARIABLE}={value}: 1 puts Tutti in Gloo's place, 0 or nothing does not; set one of these")
    try:
        from torch_tutti import _as_gloo
    except ImportError as error:
        raise ImportError(f"Tutti is to be in Gloo's place ({VARIABLE}=1), but: {error}") from None
    return _as_gloo


class _Instead(type):
    def __new__(cls, name, bases, namespace):
        if bases:
            raise TypeError(f"class {name}: ProcessGroupGloo has no subclasses where Tutti is in its place")
        return super().__new__(cls, name, bases, namespace)

    def __call__(cls, *arguments, **named):
        if getattr(_own, "depth", 0) > 0:
            return gloo(*arguments, **named)
        return _feature().create(*arguments, **named)

    def _ours(cls):
        extension = sys.modules.get("torch_tutti._C")  # not loaded: there is no group of ours
        return (gloo,) if extension is None else (gloo, extension.GlooBackend)

    def __instancecheck__(cls, thing):
        return isinstance(thing, cls._ours())

    def __subclasscheck__(cls, kind):
        return kind is cls or issubclass(kind, cls._ours())

    def __getattr__(cls, name):
        return getattr(gloo, name)


class OwnGloo:
    """`with OwnGloo():` ProcessGroupGloo is PyTorch's own on this thread."""

    def __enter__(self):
        _own.depth = getattr(_own, "depth", 0) + 1

    def __exit__(self, *error):
        _own.depth -= 1


def install(c10d):
    """Exchanges the class in PyTorch; a second call changes nothing."""
    global gloo
    if gloo is not None or not hasattr(c10d, "ProcessGroupGloo"):
        return
    gloo = c10d.ProcessGroupGloo
    instead = _Instead("ProcessGroupGloo", (), {"__module__": C10D, "__doc__": gloo.__doc__})
    for module in list(sys.modules.values()):
        names = getattr(module, "__dict__", None)
        if type(names) is dict and names.get("ProcessGroupGloo") is gloo:
            names["ProcessGroupGloo"] = instead
    # The helper that compares fingerprints in TORCH_DISTRIBUTED_DEBUG=DETAIL stays Gloo's: it is there to find out whether
    # the group works.
    wrap = c10d._create_process_group_wrapper

    def wrap_with_gloo(*arguments, **named):
        with OwnGloo():
            return wrap(*arguments, **named)

    c10d._create_process_group_wrapper = wrap_with_gloo


def install_if_wanted():
    c10d = sys.modules.get(C10D)
    if c10d is not None and wanted():
        install(c10d)
