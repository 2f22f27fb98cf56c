"""What a build against the installed PyTorch must know, as a line of JSON: run by the interpreter that has it.

Paths are put together by hand: torch.utils.cpp_extension needs setuptools.
"""
import json
import os
import re
import sys
import sysconfig

# (file below the folder of torch, what it says of the C++ that the headers need): CMake's settings, of which no version has
# all, and the headers' own check.
SAYS = (
    ("share/cmake/Torch/TorchConfig.cmake", r"CXX_STANDARD (\d\d)"),
    ("share/cmake/Torch/TorchConfig.cmake", r"cxx_std_(\d\d)"),
    ("include/ATen/ATen.h", r"__cplusplus < 20(\d\d)"),
)


def standard(folder):
    """The C++ that the headers in torch's folder need: 17 or 20, later perhaps more."""
    found = [17]
    for path, pattern in SAYS:
        try:
            with open(os.path.join(folder, path), encoding="utf-8") as file:
                found += [int(year) for year in re.findall(pattern, file.read())]
        except OSError:
            pass
    return max(found)


def facts():
    import torch

    folder = os.path.dirname(os.path.abspath(torch.__file__))
    pybind = {"PYBIND11_" + name: getattr(torch._C, "_PYBIND11_" + name, None)
              for name in ("COMPILER_TYPE", "STDLIB", "BUILD_ABI")}
    return {
        "python": sysconfig.get_config_var("SOABI"),
        "version": torch.__version__,
        "folder": folder,
        "distributed": torch.distributed.is_available(),
        "cxx11_abi": int(torch._C._GLIBCXX_USE_CXX11_ABI),
        "standard": standard(folder),
        "pybind": {name: value for name, value in pybind.items() if value is not None},
    }


if __name__ == "__main__":
    json.dump(facts(), sys.stdout)
