"""Imported at the start of Python, from torch_tutti_as_gloo.pth, where TUTTI_AS_GLOO is set. Imports no PyTorch:
when the program imports it, ProcessGroupGloo is replaced before any code can have imported that class.

It covers the cases that entry points do not reach: PyTorch 2.4, and TORCH_DEVICE_BACKEND_AUTOLOAD=0.
"""
import importlib.util
import sys

from . import as_gloo, entry


class _Loader:
    """Runs the module, then installs the stand-in. All other methods are the real loader's."""

    def __init__(self, loader):
        self._loader = loader

    def create_module(self, spec):
        return self._loader.create_module(spec)

    def exec_module(self, module):
        module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        entry.replace_gloo(module)

    def __getattr__(self, name):
        return getattr(self._loader, name)


class _Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name != as_gloo.C10D or _Finder not in sys.meta_path:
            return None
        sys.meta_path.remove(_Finder)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


if as_gloo.wanted() and as_gloo.C10D not in sys.modules:
    sys.meta_path.insert(0, _Finder)
