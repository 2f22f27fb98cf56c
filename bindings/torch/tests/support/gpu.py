"""CUDA tensors without a GPU: builds and loads standin_gpu.cpp for the PyTorch that runs the tests.

Its "GPUs" are those of Tutti's stand-in for CUDA, which TUTTI_CUDA_MODULE names. Results on it show that calls,
streams and events have the right order and that values are right, but nothing about speed or about a real GPU.

Load it before ranks are forked; each rank calls `begin` before its group is made.
"""
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

import torch

HERE = os.path.dirname(os.path.abspath(__file__))
SOURCE = os.path.join(HERE, "standin_gpu.cpp")
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(HERE))))
sys.path.insert(0, os.path.join(ROOT, "bindings", "torch", "backend"))
import pytorch_facts  # pylint: disable=wrong-import-position

ops = torch.ops.standin_gpu


def _command(compiler, library):
    import torch_tutti  # pylint: disable=import-outside-toplevel

    torch_folder, package = os.path.dirname(torch.__file__), os.path.dirname(torch_tutti._C.__file__)
    include = os.path.join(torch_folder, "include")
    # The name is that of PyTorch's own library, where older versions look for a stream's handle.
    return [compiler, "-std=c++%d" % pytorch_facts.standard(torch_folder), "-O0", "-w", "-shared", "-fPIC", "-fvisibility=hidden",
            "-Wl,-soname,libc10_cuda.so", "-D_GLIBCXX_USE_CXX11_ABI=%d" % torch._C._GLIBCXX_USE_CXX11_ABI, "-isystem", include,
            "-isystem", os.path.join(include, "torch", "csrc", "api", "include"), "-I", ROOT, "-I", os.path.join(ROOT, "include"), SOURCE,
            "-o", library, "-L", os.path.join(torch_folder, "lib"), "-lc10", "-ltorch_cpu", "-L", package, "-l:libtutti.so", "-ldl"]


def _version():
    """A hash of the library's sources: an earlier build can be reused if none of them has changed."""
    made_of = hashlib.sha256(torch.__version__.encode())
    for path in (SOURCE, os.path.join(ROOT, "kernels", "device.h"), os.path.join(ROOT, "include", "tutti", "tutti.h")):
        with open(path, "rb") as file:
            made_of.update(file.read())
    return made_of.hexdigest()[:16]


def load():
    """Skips the tests if it is not possible."""
    if "TUTTI_CUDA_MODULE" not in os.environ:
        raise unittest.SkipTest("TUTTI_CUDA_MODULE does not name the stand-in for CUDA (libstandin_cuda.so of Tutti's build)")
    if torch.version.cuda is not None:
        raise unittest.SkipTest("this PyTorch has CUDA of its own")
    compiler = shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        raise unittest.SkipTest("no C++ compiler to build the stand-in")
    version = _version()
    kept = os.environ.get("TUTTI_TEST_BUILD")
    folder = kept or tempfile.mkdtemp(prefix="standin-gpu-")
    library = os.path.join(folder, "libstandin_gpu_%s.so" % version)
    try:
        if not os.path.exists(library):
            os.makedirs(folder, exist_ok=True)
            done = subprocess.run(_command(compiler, library + ".new"), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300,
                                  check=False)
            if done.returncode != 0:
                raise AssertionError("the stand-in cannot be built:\n" + done.stdout[-4000:])
            os.rename(library + ".new", library)
        torch.ops.load_library(library)
    finally:
        if not kept:
            shutil.rmtree(folder)


def begin(index, gpus=2, ids=None, delay_us=0, nccl=None):
    """This rank works on cuda:index; GPUs with equal ids are the same GPU."""
    os.environ.update(STANDIN_GPUS=str(gpus), STANDIN_DELAY_US=str(delay_us))
    if ids:
        os.environ["STANDIN_IDS"] = ids
    os.environ["TUTTI_NCCL_LIBRARY"] = nccl or "/nowhere/libnccl.so"
    torch.cuda._lazy_init = lambda: None  # PyTorch without CUDA refuses there, before it calls the stand-in
    torch.cuda.get_device_capability = lambda device=None: (9, 0)
    ops.use_gpu(index)


def device(index):
    return torch.device("cuda", index)


def put(tensor, index, gaps=False):
    """A copy on that GPU, with gaps between its elements, or contiguous."""
    strides = [2 * stride for stride in tensor.contiguous().stride()] if gaps else tensor.contiguous().stride()
    return torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype, device=device(index)).copy_(tensor)
