"""What the documentation tells people to run first: the self-test and the smallest example, under torchrun."""
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
TIMEOUT_S = 120


def run(*arguments):
    environment = dict(os.environ, OMP_NUM_THREADS="1")
    done = subprocess.run([sys.executable, *arguments], env=environment, timeout=TIMEOUT_S, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        raise AssertionError("exit code %d\n%s\n%s" % (done.returncode, done.stdout, done.stderr[-4000:]))
    return done.stdout


@unittest.skipUnless(HAVE_TUTTI, "torch_tutti is not installed")
class Examples(unittest.TestCase):
    def test_the_self_test_passes(self):
        self.assertIn("passed", run("-m", "torch_tutti").split())

    def test_without_its_test_it_only_tells_what_is_installed(self):
        self.assertNotIn("self-test", run("-m", "torch_tutti", "--no-test"))

    @unittest.skipUnless(AUTOMATIC, "this PyTorch has no entry points: the examples would need an import")
    def test_linear_regression_by_two_ranks_finds_the_weights(self):
        launch = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2")
        output = run(*launch, os.path.join(ROOT, "examples", "torch_linear_ddp.py"))
        self.assertEqual(output.strip().splitlines()[-1], "w = [2.0000, 3.0000]")


if __name__ == "__main__":
    unittest.main()
