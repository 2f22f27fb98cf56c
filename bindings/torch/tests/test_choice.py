"""Which extension of a wheel is loaded for the installed PyTorch, and the error, always one line, if none fits.

Wheels with several extensions are simulated with the installed package and another list of its builds.
"""
import os
import subprocess
import sys
import tempfile
import textwrap
import unittest

import torch
import torch_tutti
from torch_tutti import _build, _extension

FOLDER = os.path.dirname(os.path.abspath(_build.__file__))
SOURCES = os.path.dirname(os.path.abspath(torch_tutti.__file__))  # the same, unless the install is an editable one
OWN = next(one for one in _build.extensions if os.path.basename(torch_tutti._C.__file__).startswith(one[0] + "."))
MINOR = ".".join(torch.__version__.split(".")[:2])

MADE_UP = (
    ("_C_2_4_abi0", "2.4.1+cu121", 0, "_gcc_libstdcpp_cxxabi1011"),
    ("_C_2_9_abi0", "2.9.1", 0, ""),
    ("_C_2_9_abi1", "2.9.1", 1, ""),
    ("_C_2_15_abi1", "2.15.0", 1, ""),
)


class Choice(unittest.TestCase):
    def chosen(self, version, cxx11_abi=True, pybind=""):
        return _extension.choose(MADE_UP, version, cxx11_abi, pybind)[0]

    def refused(self, *asked):
        with self.assertRaises(ImportError) as error:
            self.chosen(*asked)
        self.assertNotIn("\n", str(error.exception))
        self.assertIn("pip install --force-reinstall --no-deps torch_tutti-*.tar.gz", str(error.exception))
        return str(error.exception)

    def test_the_minor_version_selects_independently_of_patch_and_build(self):
        for version in ("2.15.0", "2.15.3+cpu", "2.15.0a0+git123", "2.15.0+cu132"):
            self.assertEqual(self.chosen(version), "_C_2_15_abi1")
        self.assertEqual(self.chosen("2.4.0", False, "_gcc_libstdcpp_cxxabi1011"), "_C_2_4_abi0")

    def test_the_cxx_abi_selects(self):
        self.assertEqual([self.chosen("2.9.0", abi) for abi in (True, False)], ["_C_2_9_abi1", "_C_2_9_abi0"])

    def test_a_version_without_an_extension_is_an_error(self):
        for version in ("2.16.0", "2.1.2", "3.15.0", "2.150.0"):
            self.assertIn("was built for PyTorch 2.4, 2.9 or 2.15, and this is %s;" % version, self.refused(version))

    def test_an_abi_without_an_extension_is_an_error(self):
        told = self.refused("2.4.1", True, "_gcc_libstdcpp_cxxabi1011")
        self.assertIn("PyTorch 2.4 with the old C++ ABI (_GLIBCXX_USE_CXX11_ABI=0), and this one (2.4.1) has the new C++ ABI", told)
        self.assertIn("whose pybind11 has the ABI _gcc_libstdcpp_cxxabi1011, and this one (2.4.1) has _gcc_libstdcpp_cxxabi1016",
                      self.refused("2.4.1", False, "_gcc_libstdcpp_cxxabi1016"))


class Import(unittest.TestCase):
    def run_with(self, extensions, program="import torch_tutti", python=None, files=(), without=()):
        """Runs the program with a package of these extensions; `files` maps names to contents."""
        with tempfile.TemporaryDirectory() as site:
            package = os.path.join(site, "torch_tutti")
            os.mkdir(package)
            for folder in {FOLDER, SOURCES}:
                for name in os.listdir(folder):
                    link = os.path.join(package, name)
                    if name not in ("_build.py", "__pycache__", *without) and not os.path.lexists(link):
                        os.symlink(os.path.join(folder, name), link)
            with open(os.path.join(package, "_build.py"), "w", encoding="utf-8") as file:
                file.write("python = %r\nextensions = %r\n" % (python or _build.python, tuple(extensions)))
            for name, content in dict(files).items():
                with open(os.path.join(package, name), "w", encoding="utf-8") as file:
                    file.write(content)
            return subprocess.run([sys.executable, "-c", textwrap.dedent(program)], env=dict(os.environ, PYTHONPATH=site), cwd="/",
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=100, check=False)

    def told(self, *arguments, **named):
        done = self.run_with(*arguments, **named)
        self.assertNotEqual(done.returncode, 0)
        last = done.stderr.strip().splitlines()[-1]
        self.assertTrue(last.startswith("ImportError: torch_tutti "), done.stderr)
        return last

    def test_of_several_extensions_the_one_for_this_pytorch_is_loaded(self):
        others = [("_C_2_1_abi%d" % abi, "2.1.0", abi, "") for abi in (0, 1)]
        done = self.run_with(others + [OWN, ("_C_2_99_abi1", "2.99.0", 1, "")], """
            import os, torch_tutti
            import torch_tutti._C as imported
            from torch_tutti import _C
            assert imported is _C is torch_tutti._C
            print(os.path.basename(_C.__file__), torch_tutti.versions()["built for torch"])""")
        self.assertEqual(done.stdout.split(), [os.path.basename(torch_tutti._C.__file__), OWN[1]], done.stderr)

    def test_another_pytorch_is_an_error(self):
        self.assertIn("was built for PyTorch 2.0, and this is %s; build it for this one" % torch.__version__,
                      self.told([("_C_2_0_abi1", "2.0.1", 1, "")]))

    def test_another_python_is_an_error(self):
        told = self.told([OWN], python="cpython-399-x86_64-linux-gnu", without=[os.path.basename(torch_tutti._C.__file__)])
        self.assertIn("was built for another Python (cpython-399-x86_64-linux-gnu, this is %s)" % _build.python, told)

    def test_a_missing_extension_is_an_error(self):
        self.assertIn("there is no %s in " % OWN[0], self.told([OWN], without=[os.path.basename(torch_tutti._C.__file__)]))

    def test_an_extension_that_does_not_load_is_an_error(self):
        name = os.path.basename(torch_tutti._C.__file__)
        told = self.told([OWN], without=[name], files={name: "no library"})
        self.assertRegex(told, r"cannot load its extension for PyTorch %s .*: .*%s: .*; build it" % (MINOR, name))

    def test_a_pytorch_without_distributed_is_an_error(self):
        told = self.told([OWN], "import torch.distributed\ntorch.distributed.is_available = lambda: False\nimport torch_tutti")
        self.assertIn("needs torch.distributed, which PyTorch %s was built without" % torch.__version__, told)

    def test_python_m_prints_the_same_line(self):
        done = self.run_with([("_C_2_0_abi1", "2.0.1", 1, "")], """
            import runpy, sys
            sys.argv = ["torch_tutti"]
            runpy.run_module("torch_tutti", run_name="__main__")""")
        self.assertIn("ImportError: torch_tutti was built for PyTorch 2.0,", done.stderr)


if __name__ == "__main__":
    unittest.main()
