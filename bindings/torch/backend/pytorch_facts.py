"""What a build against PyTorch must know. For an installed PyTorch: run by its interpreter, prints a line of JSON.
For one that is unpacked from a wheel, and has no Python here: read from its files.

Paths are put together by hand: torch.utils.cpp_extension needs setuptools.
"""
import json
import os
import re
import sys
import sysconfig

# (file below the folder of torch, pattern of the C++ standard that the headers need): CMake's settings, of which no
# version has all, and the headers' own check.
SAYS = (
    ("share/cmake/Torch/TorchConfig.cmake", r"CXX_STANDARD (\d\d)"),
    ("share/cmake/Torch/TorchConfig.cmake", r"cxx_std_(\d\d)"),
    ("include/ATen/ATen.h", r"__cplusplus < 20(\d\d)"),
)

PYBIND = ("COMPILER_TYPE", "STDLIB", "BUILD_ABI")


def standard(folder):
    """The C++ standard that the headers in torch's folder need: 17 or 20, later perhaps more."""
    found = [17]
    for path, pattern in SAYS:
        try:
            with open(os.path.join(folder, path), encoding="utf-8") as file:
                found += [int(year) for year in re.findall(pattern, file.read())]
        except OSError:
            pass
    return max(found)


def _facts(python, version, folder, cxx11_abi, pybind):
    return {
        "python": python,
        "version": version,
        "folder": folder,
        "distributed": True,
        "cxx11_abi": int(cxx11_abi),
        "standard": standard(folder),
        "pybind": pybind,
    }


def installed():
    import torch

    found = _facts(sysconfig.get_config_var("SOABI"), torch.__version__, os.path.dirname(os.path.abspath(torch.__file__)),
                   torch._C._GLIBCXX_USE_CXX11_ABI, pybind_of(torch._C))
    found["distributed"] = torch.distributed.is_available()
    return found


def pybind_of(module):
    """The ABI of the pybind11 in torch._C; newer ones do not report it, since the headers decide all of it."""
    said = {"PYBIND11_" + name: getattr(module, "_PYBIND11_" + name, None) for name in PYBIND}
    return {name: value for name, value in said.items() if value is not None}


def unpacked(folder):
    """For torch's folder as it is in a wheel, of any Python version: their differences do not matter to a build."""
    with open(os.path.join(folder, "version.py"), encoding="utf-8") as file:
        version = re.search(r"^__version__ = '(.*)'", file.read(), re.MULTILINE).group(1)
    with open(os.path.join(folder, "lib", "libtorch_python.so"), "rb") as file:
        strings = file.read()
    names = re.search(rb"__pybind11_internals_v\d+(_gcc)(_libstdcpp)(_cxxabi\d+)__", strings)
    pybind = {"PYBIND11_" + name: value.decode() for name, value in zip(PYBIND, names.groups())} if names else {}
    return _facts(None, version, folder, b"__cxx11" in strings, pybind)  # names of std::string have this in the new ABI


if __name__ == "__main__":
    json.dump(installed(), sys.stdout)
