"""How the build finds the PyTorch of the environment into which the package is installed, and its errors if it
cannot."""
import importlib.util
import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import unittest

import torch

HAVE_BUILDER = importlib.util.find_spec("scikit_build_core") is not None
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BACKEND = os.path.join(ROOT, "backend")
sys.path.insert(0, BACKEND)
import pytorch_facts  # pylint: disable=wrong-import-position

# Simulates an isolated build: the interpreter of the environment, whose packages an overlay hides.
OVERLAY = """
import sys
class Hide:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "torch":
            raise ModuleNotFoundError("No module named 'torch'", name="torch")
sys.meta_path.insert(0, Hide())
"""
ASK = """
import sys
sys.path.insert(0, %r)
import tutti_build
settings = tutti_build._settings({"given": "kept"})
name = settings["cmake.define.TUTTI_TORCH_BUILDS"]
print(name)
print(settings["cmake.define.TUTTI_TORCH_%%s_VERSION" %% name])
print(settings["cmake.define.TUTTI_TORCH_%%s_LIBRARIES" %% name])
print(settings["given"])
""" % BACKEND
FAKE = """#!/bin/sh
exec %s -c '
import json, sysconfig
json.dump({"python": "%%s" %% sysconfig.get_config_var("SOABI"), "version": "%s", "folder": "%s", "distributed": %s,
           "cxx11_abi": 1, "standard": 17, "pybind": {}}, __import__("sys").stdout)'
"""


def ask(show=None, **variables):
    """What an isolated build of this environment finds; `show` names one more of CMake's settings."""
    with tempfile.TemporaryDirectory() as overlay:
        with open(os.path.join(overlay, "sitecustomize.py"), "w", encoding="utf-8") as file:
            file.write(OVERLAY)
        environment = {name: value for name, value in os.environ.items() if name not in ("TUTTI_TORCH_PYTHON", "CUDA_HOME", "CUDA_PATH")}
        environment.update(variables, PYTHONPATH=overlay)
        program = ASK + ("print(settings.get('cmake.define.%s'))" % show if show else "")
        return subprocess.run([sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                              timeout=100, check=False)


def ask_of(version, distributed=True, site="/nowhere", **more):
    """The same, with a Python whose PyTorch reports this version, among the packages in `site`."""
    with tempfile.TemporaryDirectory() as folder:
        python = os.path.join(folder, "python")
        with open(python, "w", encoding="utf-8") as file:
            file.write(FAKE % (sys.executable, version, os.path.join(site, "torch"), distributed))
        os.chmod(python, stat.S_IRWXU)
        return ask(TUTTI_TORCH_PYTHON=python, **more)


@unittest.skipUnless(HAVE_BUILDER, "scikit-build-core is not installed")
class Build(unittest.TestCase):
    def refused(self, done, *words):
        self.assertNotEqual(done.returncode, 0)
        last = done.stderr[done.stderr.index("torch_tutti:"):]
        for word in words:
            self.assertIn(word, last)

    def test_an_isolated_build_finds_the_pytorch_of_its_environment(self):
        done = ask()
        self.assertEqual(done.returncode, 0, done.stderr)
        name = "_".join(torch.__version__.split(".")[:2]) + "_abi%d" % torch._C._GLIBCXX_USE_CXX11_ABI
        self.assertEqual(done.stdout.splitlines()[-4:],
                         [name, torch.__version__, os.path.join(os.path.dirname(os.path.abspath(torch.__file__)), "lib"), "kept"])
        self.assertIn("building for PyTorch " + torch.__version__, done.stdout)

    def test_another_python_can_be_named(self):
        done = ask_of("2.99.0")
        self.assertEqual(done.stdout.splitlines()[-4:], ["2_99_abi1", "2.99.0", "/nowhere/torch/lib", "kept"], done.stderr)

    def test_nvcc_of_the_same_environment_is_used_unless_another_is_named(self):
        with tempfile.TemporaryDirectory() as site:
            self.assertEqual(ask_of("2.99.0", site=site, show="TUTTI_NVCC").stdout.splitlines()[-1], "None")
            for toolkit in ("cu13", "cu14"):
                os.makedirs(os.path.join(site, "nvidia", toolkit, "bin"))
                with open(os.path.join(site, "nvidia", toolkit, "bin", "nvcc"), "w", encoding="utf-8"):
                    pass
            taken = ask_of("2.99.0", site=site, show="TUTTI_NVCC").stdout.splitlines()[-1]
            self.assertEqual(taken, os.path.join(site, "nvidia", "cu14", "bin", "nvcc"))
            self.assertEqual(ask_of("2.99.0", site=site, show="TUTTI_NVCC", CUDA_HOME="/opt/cuda").stdout.splitlines()[-1], "None")

    def test_a_python_without_pytorch_is_an_error(self):
        self.refused(ask(TUTTI_TORCH_PYTHON="/bin/false"), "no PyTorch was found", "TUTTI_TORCH_PYTHON (/bin/false)")

    def test_an_unsuitable_pytorch_is_refused(self):
        self.refused(ask_of("2.3.1"), "PyTorch 2.3.1", "too old, 2.4 is needed")
        self.refused(ask_of("2.9.0", distributed=False), "built without torch.distributed")


# How PyTorch 2.4, 2.13 and 2.15 specify the C++ standard that they need: all differ.
OF_2_4 = {"share/cmake/Torch/TorchConfig.cmake": "set_target_properties(torch PROPERTIES\n    CXX_STANDARD 17\n)\n",
          "include/ATen/ATen.h": "#if !defined(_MSC_VER) && __cplusplus < 201703L\n#error C++17\n#endif\n"}
OF_2_13 = dict(OF_2_4, **{"share/cmake/Torch/TorchConfig.cmake": "set_target_properties(torch PROPERTIES\n    CXX_STANDARD 20\n)\n"})
OF_2_15 = {"share/cmake/Torch/TorchConfig.cmake": "  target_compile_features(torch INTERFACE cxx_std_20)\n",
           "include/ATen/ATen.h": "#if (!defined(_MSVC_LANG) && __cplusplus < 202002L)\n#error C++20\n#endif\n"}
HEADERS_OF_2_15 = {"include/ATen/ATen.h": OF_2_15["include/ATen/ATen.h"]}

PROJECT = """cmake_minimum_required(VERSION 3.25)
project(check LANGUAGES CXX)
include(%s)
tutti_torch_check_standard(${STANDARD} "PyTorch 2.15.0")
""" % os.path.join(ROOT, "cmake", "Standard.cmake")
OLD_COMPILER = """#!/bin/sh
for word; do
    case $word in -std=*20 | -std=*2a) echo "error: unrecognized command line option '$word'" >&2; exit 1 ;; esac
done
exec %s "$@"
"""


def standard_of(files):
    """The standard that a PyTorch with these files needs."""
    with tempfile.TemporaryDirectory() as folder:
        for path, text in files.items():
            os.makedirs(os.path.join(folder, os.path.dirname(path)), exist_ok=True)
            with open(os.path.join(folder, path), "w", encoding="utf-8") as file:
                file.write(text)
        return pytorch_facts.standard(folder)


def configure(standard, compiler):
    """CMake's output for a compiler and this standard."""
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "CMakeLists.txt"), "w", encoding="utf-8") as file:
            file.write(PROJECT)
        old = os.path.join(folder, "old-c++")
        with open(old, "w", encoding="utf-8") as file:
            file.write(OLD_COMPILER % shutil.which("c++"))
        os.chmod(old, stat.S_IRWXU)
        return subprocess.run(["cmake", "-S", folder, "-B", os.path.join(folder, "build"), "-DSTANDARD=%d" % standard,
                               "-DCMAKE_CXX_COMPILER=%s" % (old if compiler == "old" else compiler)],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=100, check=False)


class Facts(unittest.TestCase):
    def test_files_of_an_unpacked_pytorch_give_the_installed_ones_values(self):
        asked = pytorch_facts.installed()
        read = pytorch_facts.unpacked(os.path.dirname(os.path.abspath(torch.__file__)))
        self.assertEqual(dict(read, python=None), dict(asked, python=None))

    def test_the_abis_of_an_old_pytorch_are_read(self):
        with tempfile.TemporaryDirectory() as folder:
            os.mkdir(os.path.join(folder, "lib"))
            with open(os.path.join(folder, "version.py"), "w", encoding="utf-8") as file:
                file.write("__all__ = ['__version__']\n__version__ = '2.4.1+cu121'\ncuda = '12.1'\n")
            with open(os.path.join(folder, "lib", "libtorch_python.so"), "wb") as file:
                file.write(b"\0ELF\0__pybind11_internals_v4_gcc_libstdcpp_cxxabi1011__\0_ZNSs4_Rep\0")
            read = pytorch_facts.unpacked(folder)
        self.assertEqual((read["version"], read["cxx11_abi"], read["standard"], read["pybind"]["PYBIND11_BUILD_ABI"]),
                         ("2.4.1+cu121", 0, 17, "_cxxabi1011"))


@unittest.skipUnless(HAVE_BUILDER, "scikit-build-core is not installed")
class Several(unittest.TestCase):
    def test_each_pytorch_of_a_list_gets_its_own_name_and_settings(self):
        old = {"PYBIND11_COMPILER_TYPE": "_gcc", "PYBIND11_STDLIB": "_libstdcpp", "PYBIND11_BUILD_ABI": "_cxxabi1011"}
        torches = [{"version": "2.4.1+cu121", "folder": "/a", "distributed": True, "cxx11_abi": 0, "standard": 17, "pybind": old},
                   {"version": "2.15.0", "folder": "/b", "distributed": True, "cxx11_abi": 1, "standard": 20, "pybind": {}}]
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            json.dump(torches, file)
            file.flush()
            program = ("import json, sys; sys.path.insert(0, %r); import tutti_build; print(json.dumps(tutti_build._settings({})))" % BACKEND)
            done = subprocess.run([sys.executable, "-c", program], env=dict(os.environ, TUTTI_TORCH_FACTS=file.name), stdout=subprocess.PIPE,
                                  text=True, timeout=100, check=True)
        settings = {name[len("cmake.define.TUTTI_TORCH_"):]: value for name, value in json.loads(done.stdout.splitlines()[-1]).items()}
        self.assertEqual(settings["BUILDS"], "2_4_abi0;2_15_abi1")
        self.assertEqual(settings["2_4_abi0_PYBIND"], "_gcc_libstdcpp_cxxabi1011")
        self.assertEqual(settings["2_4_abi0_DEFINITIONS"], '_GLIBCXX_USE_CXX11_ABI=0;PYBIND11_BUILD_ABI="_cxxabi1011";'
                         'PYBIND11_COMPILER_TYPE="_gcc";PYBIND11_STDLIB="_libstdcpp"')
        self.assertEqual((settings["2_15_abi1_PYBIND"], settings["2_15_abi1_STANDARD"], settings["2_15_abi1_LIBRARIES"]), ("", "20", "/b/lib"))


class Standard(unittest.TestCase):
    def test_the_standard_is_read_wherever_pytorch_specifies_it(self):
        self.assertEqual([standard_of(files) for files in (OF_2_4, OF_2_13, OF_2_15, HEADERS_OF_2_15, {})], [17, 20, 20, 20, 17])

    @unittest.skipUnless(shutil.which("cmake") and shutil.which("c++"), "needs CMake and a C++ compiler")
    def test_a_compiler_that_is_too_old_is_a_one_line_error(self):
        self.assertEqual(configure(17, "old").returncode, 0)
        done = configure(20, "old")
        self.assertNotEqual(done.returncode, 0)
        told = [line for line in done.stderr.splitlines() if "torch_tutti:" in line]
        self.assertEqual(len(told), 1, done.stderr)
        for words in ("PyTorch 2.15.0", "C++20", "old-c++", "g++ 11", "is needed", "CXX"):
            self.assertIn(words, told[0])
        self.assertEqual(configure(26, "old").returncode, 0)


if __name__ == "__main__":
    unittest.main()
