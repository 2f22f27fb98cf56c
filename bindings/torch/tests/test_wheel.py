"""The installed package: it is complete, depends only on libraries that are always present, and is removed completely.

GPUs are not needed: a fake driver (TUTTI_TEST_FAKE_DRIVER) shows that their module finds a driver and calls it.
"""
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import unittest

import torch_tutti

FOLDER = os.path.dirname(os.path.abspath(torch_tutti._C.__file__))
FAKE_DRIVER = os.environ.get("TUTTI_TEST_FAKE_DRIVER")
GPU_MODULE = os.path.join(FOLDER, "libtutti_cuda.so")
HAVE_NVCC = shutil.which("nvcc") is not None or os.path.exists("/usr/local/cuda/bin/nvcc")


def libraries():
    return sorted(name for name in os.listdir(FOLDER) if name.startswith("libtutti") and name.endswith(".so"))


def dynamic(name, tag):
    """The entries of the library's dynamic section with this tag."""
    said = subprocess.run(["readelf", "-d", os.path.join(FOLDER, name)], stdout=subprocess.PIPE, text=True, timeout=60, check=True).stdout
    return re.findall(r"\(%s\).*\[(.*)\]" % tag, said)


def gpu_line(**variables):
    """The output of `python -m torch_tutti` about GPUs, in an environment with these variables."""
    done = subprocess.run([sys.executable, "-m", "torch_tutti", "--no-test"], env=dict(os.environ, **variables), cwd="/",
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=100, check=False)
    found = re.search(r"^ *GPUs +(.*)$", done.stdout, re.MULTILINE)
    return found.group(1) if found else done.stdout


class Wheel(unittest.TestCase):
    @unittest.skipUnless(FOLDER == os.path.dirname(os.path.abspath(torch_tutti.__file__)), "an editable install")
    def test_uninstalling_leaves_nothing(self):
        distribution = importlib.metadata.distribution("torch-tutti")
        listed = {os.path.realpath(distribution.locate_file(file)) for file in distribution.files}
        there = set()
        for package in (FOLDER, os.path.join(os.path.dirname(FOLDER), "torch_tutti_autoload")):
            for folder, _, files in os.walk(package):
                there.update(os.path.realpath(os.path.join(folder, file)) for file in files if not folder.endswith("__pycache__"))
        self.assertIn(os.path.realpath(os.path.join(FOLDER, "libtutti.so")), there)
        self.assertEqual(there - listed, set())

    @unittest.skipUnless(shutil.which("readelf"), "no readelf")
    def test_libraries_depend_on_no_cuda_libraries_and_no_folders(self):
        own = [name for name in os.listdir(FOLDER) if name.startswith("_C_")]
        self.assertIn(os.path.basename(torch_tutti._C.__file__), own)
        for name in libraries() + own:
            needed = " ".join(dynamic(name, "NEEDED"))
            self.assertNotRegex(needed, "cuda|cudart|cublas|nccl|nvidia", name)
            for folder in ":".join(dynamic(name, "RUNPATH")).split(":"):
                self.assertTrue(folder in ("", "$ORIGIN") or os.path.isdir(folder), "%s looks into %s" % (name, folder))
        for name in {"libtutti.so", "libtutti_cuda.so"} & set(libraries()):
            self.assertEqual([one for one in dynamic(name, "NEEDED") if not re.match(r"lib(c|m|dl|rt|pthread)\.so|ld-linux", one)], [], name)

    @unittest.skipUnless(HAVE_NVCC, "no nvcc to build the module for GPUs")
    def test_the_module_for_gpus_is_there(self):
        self.assertIn("libtutti_cuda.so", libraries())

    @unittest.skipUnless(os.path.exists(GPU_MODULE) and FAKE_DRIVER, "no module for GPUs, or TUTTI_TEST_FAKE_DRIVER does not name a driver")
    def test_a_driver_is_called_and_its_reason_printed(self):
        fake = {"LD_LIBRARY_PATH": os.path.dirname(FAKE_DRIVER)}
        self.assertRegex(gpu_line(FAKE_DRIVER_VERSION="9020", **fake), r"the driver is for CUDA 9\.2, this build needs one for \d+\.0 or later")
        self.assertIn("the driver (for CUDA 99.1) reports: ", gpu_line(FAKE_DRIVER_VERSION="99010", **fake))

    def test_missing_features_of_gpus_are_reported(self):
        self.assertRegex(gpu_line(), r"^\d+$|^none that Tutti can use: .*(driver|nvcc|TUTTI_CUDA)")
        self.assertIn("cannot load /nowhere.so", gpu_line(TUTTI_CUDA_MODULE="/nowhere.so"))


if __name__ == "__main__":
    unittest.main()
