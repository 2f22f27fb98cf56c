"""What PyTorch and early.py call before the package torch_tutti is loaded.

PyTorch calls this by entry points: `autoload` at the end of `import torch`, or, where it has the group
"torch.distributed.backends", `register` when the name is first used. The package torch_tutti, with its extension,
is imported when the first group that names tutti is created. Invariant: groups that do not name tutti see no
difference.
"""
import sys

import torch_tutti_autoload

from . import as_gloo


def _create(group, options):
    frame = sys._getframe(1)
    import torch_tutti

    torch_tutti_autoload.give_buckets_memory(frame)
    return torch_tutti._create_backend(group, options)


def _create_as_gloo(*arguments, **named):
    """Raises an error with the reason where it cannot create a group: using Gloo itself instead would go unnoticed."""
    try:
        from torch_tutti import _as_gloo
    except ImportError as error:
        raise ImportError(f"Tutti is to be in Gloo's place ({as_gloo.VARIABLE}=1), but: {error}") from None
    return _as_gloo.create(*arguments, **named)


def replace_gloo(c10d):
    as_gloo.install(c10d, _create_as_gloo)


def register():
    """Registers the backend; a second call changes nothing."""
    torch_tutti_autoload.register(_create)


def autoload():
    """Called at the end of `import torch`, which an error would break: so the error is kept for `import
    torch_tutti`."""
    as_gloo.install_if_wanted(_create_as_gloo)  # an error of this one is not kept: Gloo itself would be taken for Tutti
    try:
        c10d = sys.modules.get("torch.distributed.distributed_c10d")
        # Without torch.distributed there is nothing to register with; newer versions call `register` when it is needed.
        if c10d is not None and not hasattr(c10d.Backend, "_ensure_backend_registered"):
            register()
    except Exception:
        pass
