"""Chooses the extension of the package for the PyTorch in use, and loads it as torch_tutti._C.

A wheel may have several, each built for a minor version of PyTorch and for one C++ ABI, since PyTorch's C++
interface changes with both. Old headers leave the ABI of pybind11 open as well: extensions use it to find PyTorch's
types. Other properties of a PyTorch (a patch release, for the CPU or for CUDA) do not matter. Invariant: an
extension of another PyTorch is never loaded, since it would crash, or fail with a text that is hard to read.
"""
import importlib.machinery
import importlib.util
import os
import sys
import sysconfig

PYBIND = ("COMPILER_TYPE", "STDLIB", "BUILD_ABI")
BUILD_IT = ("build it for this one: pip install --force-reinstall --no-deps torch_tutti-*.tar.gz (the source distribution), or "
            "./bindings/torch in the repository")


def _minor(version):
    return ".".join(version.split(".")[:2])


def _minors(extensions):
    """The versions as a text: 2.4, or 2.4, 2.9 or 2.15."""
    minors = list(dict.fromkeys(_minor(version) for _, version, _, _ in extensions))
    return " or ".join(filter(None, (", ".join(minors[:-1]), minors[-1])))


def _abi(cxx11_abi):
    return f"the {'new' if cxx11_abi else 'old'} C++ ABI (_GLIBCXX_USE_CXX11_ABI={int(cxx11_abi)})"


def choose(extensions, version, cxx11_abi, pybind):
    """Returns (name, PyTorch it was built for) for a PyTorch of this version and these ABIs; ImportError: there is
    none."""
    of_minor = [one for one in extensions if _minor(one[1]) == _minor(version)]
    if not of_minor:
        raise ImportError(f"torch_tutti was built for PyTorch {_minors(extensions)}, and this is {version}; {BUILD_IT}")
    of_abi = [one for one in of_minor if bool(one[2]) == bool(cxx11_abi)]
    if not of_abi:
        raise ImportError(f"torch_tutti was built for a PyTorch {_minor(version)} with {_abi(of_minor[0][2])}, and this one "
                          f"({version}) has {_abi(cxx11_abi)}; {BUILD_IT}")
    for name, built_for, _, own_pybind in of_abi:
        if own_pybind in ("", pybind) or not pybind:
            return name, built_for
    raise ImportError(f"torch_tutti was built for a PyTorch {_minor(version)} whose pybind11 has the ABI {of_abi[0][3]}, and this "
                      f"one ({version}) has {pybind}; {BUILD_IT}")


def _find_file(folder, name, python):
    for suffix in importlib.machinery.EXTENSION_SUFFIXES:
        if os.path.exists(os.path.join(folder, name + suffix)):
            return os.path.join(folder, name + suffix)
    here = sysconfig.get_config_var("SOABI")
    if python != here:
        raise ImportError(f"torch_tutti in {folder} was built for another Python ({python}, this is {here}); install it with this "
                          f"one: {sys.executable} -m pip install --force-reinstall --no-deps, and the wheel that pip takes for it")
    raise ImportError(f"torch_tutti is incomplete: there is no {name} in {folder}; install it again (--force-reinstall --no-deps)")


def load(build, package):
    """Loads the extension as the module `package`._C; returns the PyTorch that it was built for."""
    import torch

    if not torch.distributed.is_available():
        raise ImportError(f"torch_tutti needs torch.distributed, which PyTorch {torch.__version__} was built without")
    pybind = "".join(getattr(torch._C, "_PYBIND11_" + part, None) or "" for part in PYBIND)
    name, built_for = choose(build.extensions, torch.__version__, torch._C._GLIBCXX_USE_CXX11_ABI, pybind)
    file = _find_file(os.path.dirname(os.path.abspath(build.__file__)), name, build.python)
    spec = importlib.util.spec_from_file_location(package + "._C", file)
    try:
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
    except ImportError as error:
        sys.modules.pop(spec.name, None)
        raise ImportError(f"torch_tutti cannot load its extension for PyTorch {_minor(built_for)} (built for {built_for}, this is "
                          f"{torch.__version__}): {error}; {BUILD_IT}") from None
    return module, built_for
