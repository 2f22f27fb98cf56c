"""How the build finds the PyTorch of the environment into which the package goes, and what it says when it cannot."""
import importlib.util
import os
import stat
import subprocess
import sys
import tempfile
import unittest

import torch

HAVE_BUILDER = importlib.util.find_spec("scikit_build_core") is not None
BACKEND = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "backend")

# What an isolated build looks like: the interpreter of the environment, whose packages an overlay hides.
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
print(settings["cmake.define.TUTTI_TORCH_VERSION"])
print(settings["cmake.define.TUTTI_TORCH_LIBRARIES"])
print(settings["given"])
""" % BACKEND
FAKE = """#!/bin/sh
exec %s -c '
import json, sysconfig
json.dump({"python": "%%s" %% sysconfig.get_config_var("SOABI"), "version": "%s", "folder": "%s", "distributed": %s,
           "cxx11_abi": 1, "standard": 17, "pybind": {}}, __import__("sys").stdout)'
"""


def ask(show=None, **variables):
    """What the build finds, in an isolated build of this environment; `show` names one more of CMake's settings."""
    with tempfile.TemporaryDirectory() as overlay:
        with open(os.path.join(overlay, "sitecustomize.py"), "w", encoding="utf-8") as file:
            file.write(OVERLAY)
        environment = {name: value for name, value in os.environ.items() if name not in ("TUTTI_TORCH_PYTHON", "CUDA_HOME", "CUDA_PATH")}
        environment.update(variables, PYTHONPATH=overlay)
        program = ASK + ("print(settings.get('cmake.define.%s'))" % show if show else "")
        return subprocess.run([sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                              timeout=100, check=False)


def ask_of(version, distributed=True, site="/nowhere", **more):
    """The same, with a Python whose PyTorch claims to be this one, among the packages in `site`."""
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
        self.assertEqual(done.stdout.splitlines()[-3:],
                         [torch.__version__, os.path.join(os.path.dirname(os.path.abspath(torch.__file__)), "lib"), "kept"])
        self.assertIn("building for PyTorch " + torch.__version__, done.stdout)

    def test_another_python_can_be_named(self):
        done = ask_of("2.99.0")
        self.assertEqual(done.stdout.splitlines()[-3:], ["2.99.0", "/nowhere/torch/lib", "kept"], done.stderr)

    def test_nvcc_of_the_same_environment_is_taken_unless_another_is_named(self):
        with tempfile.TemporaryDirectory() as site:
            self.assertEqual(ask_of("2.99.0", site=site, show="TUTTI_NVCC").stdout.splitlines()[-1], "None")
            for toolkit in ("cu13", "cu14"):
                os.makedirs(os.path.join(site, "nvidia", toolkit, "bin"))
                with open(os.path.join(site, "nvidia", toolkit, "bin", "nvcc"), "w", encoding="utf-8"):
                    pass
            taken = ask_of("2.99.0", site=site, show="TUTTI_NVCC").stdout.splitlines()[-1]
            self.assertEqual(taken, os.path.join(site, "nvidia", "cu14", "bin", "nvcc"))
            self.assertEqual(ask_of("2.99.0", site=site, show="TUTTI_NVCC", CUDA_HOME="/opt/cuda").stdout.splitlines()[-1], "None")

    def test_a_python_without_pytorch_is_told(self):
        self.refused(ask(TUTTI_TORCH_PYTHON="/bin/false"), "no PyTorch was found", "TUTTI_TORCH_PYTHON (/bin/false)")

    def test_a_pytorch_that_does_not_do_is_refused(self):
        self.refused(ask_of("2.3.1"), "PyTorch 2.3.1", "too old, 2.4 is needed")
        self.refused(ask_of("2.9.0", distributed=False), "built without torch.distributed")


if __name__ == "__main__":
    unittest.main()
