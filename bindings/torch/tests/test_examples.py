"""The first programs of the documentation: the self-test and the examples, under torchrun."""
import importlib.util
import os
import subprocess
import sys
import unittest

import torch
from torch.distributed.distributed_c10d import Backend

HAVE_TUTTI = importlib.util.find_spec("torch_tutti") is not None
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
AUTOMATIC = any(hasattr(*one) for one in ((torch, "_import_device_backends"), (Backend, "_ensure_backend_registered")))
TIMEOUT_S = 400
LAUNCH = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2")
# Where scripts/quickstart looks for it, too.
MNIST = next((folder for folder in (os.environ.get("TUTTI_DATA", ""), os.path.join(ROOT, os.pardir, "shared", "data", "mnist"),
                                    os.path.join(ROOT, "data", "mnist")) if os.path.exists(os.path.join(folder, "t10k-labels-idx1-ubyte.gz"))), None)


def run(*arguments):
    environment = dict(os.environ, OMP_NUM_THREADS="1")
    environment.pop("PYTHONUNBUFFERED", None)  # it makes print() write a line in two parts, between which other ranks write
    done = subprocess.run([sys.executable, *arguments], env=environment, timeout=TIMEOUT_S, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        raise AssertionError("exit code %d\n%s\n%s" % (done.returncode, done.stdout, done.stderr[-4000:]))
    return done.stdout


@unittest.skipUnless(HAVE_TUTTI, "torch_tutti is not installed")
class Examples(unittest.TestCase):
    def test_the_self_test_passes(self):
        self.assertIn("passed", run("-m", "torch_tutti").split())

    def test_without_its_test_it_only_prints_what_is_installed(self):
        self.assertNotIn("self-test", run("-m", "torch_tutti", "--no-test"))

    @unittest.skipUnless(AUTOMATIC, "this PyTorch has no entry points: the examples would need an import")
    def test_linear_regression_by_two_ranks_finds_the_weights(self):
        output = run(*LAUNCH, os.path.join(ROOT, "examples", "torch_linear_ddp.py"))
        self.assertEqual(output.strip().splitlines()[-1], "w = [2.0000, 3.0000]")

    @unittest.skipUnless(importlib.util.find_spec("torch.distributed.tensor"), "this PyTorch has no public DTensor")
    def test_global_tensors_by_four_ranks_go_where_they_are_sent(self):
        output = run(*LAUNCH[:-1], "4", os.path.join(ROOT, "examples", "torch_tensors.py"))
        self.assertEqual(sorted(output.strip().splitlines()), [
            "(a b c)[3, 5] is 8840", "joined: (4, 5)", "rank 1 has (2, 5) of (4, 5)", "rank 3 has [1.0, 2.0]", "z[3, 3] is 165"])


@unittest.skipUnless(HAVE_TUTTI, "torch_tutti is not installed")
class Mnist(unittest.TestCase):
    @unittest.skipUnless(AUTOMATIC, "this PyTorch has no entry points: the examples would need an import")
    @unittest.skipUnless(MNIST, "MNIST was not found: TUTTI_DATA names its folder")
    def test_mnist_by_two_ranks_reaches_its_accuracy(self):
        output = run(*LAUNCH, os.path.join(ROOT, "examples", "torch_mnist_ddp.py"), "--data", MNIST)
        last = output.strip().splitlines()[-1]
        self.assertRegex(last, r"^test accuracy: \d+\.\d+ %$")
        self.assertGreaterEqual(float(last.split()[2]), 98.5)


if __name__ == "__main__":
    unittest.main()
