"""torch_tutti.env: values of the launcher and of a group, and RDMA: its errors, and its success on a stand-in for the
module."""
import os
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

import torch
import torch.distributed as dist

from support import ranks
from test_groups import summed

if ranks.IS_TUTTI:
    import torch_tutti
    from torch_tutti import env

GETTERS = ("get_world_size", "get_rank", "get_local_rank", "get_node_size")
STANDIN = os.environ.get("TUTTI_TEST_STANDIN_VERBS", "")


def answers():
    return tuple(getattr(env, name)() for name in GETTERS)


def errors():
    texts = []
    for name in GETTERS:
        try:
            texts.append("%s gave %r" % (name, getattr(env, name)()))
        except RuntimeError as error:
            texts.append(str(error))
    return texts


def launched(_, variables, ask):
    for name in list(os.environ):
        if name.startswith(("RANK", "WORLD_SIZE", "LOCAL_", "GROUP_", "OMPI_", "PMI", "SLURM_", "MV2_", "MINDSPORE_")):
            del os.environ[name]
    os.environ.update(variables)
    return ask()


def in_group(context, backend, variables):
    os.environ.update(variables)
    context.init(backend)
    return answers()


def in_group_of_others(context, variables):
    os.environ.update(variables)
    context.init("gloo")
    return errors()


def refused():
    try:
        env.init_rdma()
    except RuntimeError as error:
        return str(error)
    raise AssertionError("init_rdma returned")


def without_adapters(context):
    text = refused()
    assert not env.rdma_is_initialized()
    assert summed() == context.size, "the group is not whole"
    assert refused() == text
    return text, os.uname().nodename


def without_tutti(context):
    texts = [refused()]
    context.init("gloo")
    texts.append(refused())
    assert not env.rdma_is_initialized()
    return texts


def alone(context):
    """Rank 1 calls after rank 0's call has timed out."""
    note = os.path.join(context.folder, "given up")
    context.init(timeout_s=2)
    while context.rank == 1 and not os.path.exists(note):
        time.sleep(0.05)
    text = refused()
    if context.rank == 0:
        with open(note, "w", encoding="utf-8"):
            pass
    return text


def with_adapters():
    """A rank of test_with_adapters, as a separate program."""
    rank, size, folder = int(sys.argv[2]), int(sys.argv[3]), os.environ["PYTHONPATH"]
    dist.init_process_group("tutti", init_method="file://%s/store%d" % (folder, size), rank=rank, world_size=size)
    assert torch_tutti.__file__.startswith(folder), torch_tutti.__file__
    assert not env.rdma_is_initialized()
    assert env.init_rdma() is True and env.rdma_is_initialized()
    if dist.get_rank() == 0:
        assert env.init_rdma() is True  # needs no other rank
    assert summed() == dist.get_world_size()
    child = os.fork()
    if child == 0:
        os._exit(0 if not env.rdma_is_initialized() and "forked" in refused() else 1)
    assert os.waitpid(child, 0)[1] == 0
    dist.destroy_process_group()
    assert not env.rdma_is_initialized()


@unittest.skipUnless(ranks.IS_TUTTI, "gloo has none of it")
class Env(unittest.TestCase):
    def test_before_a_group_values_come_from_the_launcher(self):
        torchrun = {"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "1"}
        mpi = {"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "0",
               "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}
        for variables, expected in ((torchrun, (8, 3, 1, 4)), (dict(torchrun, GROUP_WORLD_SIZE="4"), (8, 3, 1, 4)), (mpi, (4, 2, 0, 2)),
                                    ({"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}, (1, 0, 0, 1))):
            self.assertEqual(ranks.run(1, launched, variables, answers, init=False), [expected])

    def test_missing_values_are_an_error_with_advice(self):
        (texts,) = ranks.run(1, launched, {}, errors, init=False)
        for text, variable in zip(texts, ("WORLD_SIZE", "RANK", "LOCAL_RANK", "GROUP_WORLD_SIZE")):
            for part in (" %s is not set" % variable, "torchrun", "tuttirun", "init_process_group"):
                self.assertIn(part, text)

    def test_hosts_unknown_to_oneflows_launcher_are_an_error_until_there_is_a_group(self):
        oneflow = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "MASTER_ADDR": "10.77.0.1", "MASTER_PORT": "29500"}
        (texts,) = ranks.run(1, launched, oneflow, errors, init=False)
        self.assertEqual([text[-7:] for text in texts[:3]], [" gave 4", " gave 3", " gave 1"])
        for part in ("do not say the node_size", "LOCAL_WORLD_SIZE is not set", "tuttirun", "init_process_group"):
            self.assertIn(part, texts[3])

    def test_wrong_values_of_the_launcher_are_shown(self):
        (texts,) = ranks.run(1, launched, {"RANK": "first", "WORLD_SIZE": "2"}, errors, init=False)
        self.assertIn("get_world_size gave 2", texts[0])
        for text in texts[1:]:
            self.assertIn("first", text)

    def test_a_group_takes_precedence_over_the_launcher(self):
        lies = {"RANK": "9", "WORLD_SIZE": "64", "LOCAL_RANK": "5", "LOCAL_WORLD_SIZE": "8"}
        for size in (2, 3):
            for backend in ("tutti", "cpu:tutti,cuda:gloo"):
                found = ranks.run(size, in_group, backend, lies, init=False)
                self.assertEqual(found, [(size, rank, rank, 1) for rank in range(size)])

    def test_a_group_without_tutti_leaves_hosts_to_a_launcher_of_the_same_world(self):
        (texts,) = ranks.run(1, in_group_of_others, {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}, init=False)
        self.assertEqual([text[-7:] for text in texts], [" gave 1", " gave 0", " gave 0", " gave 1"])
        (texts,) = ranks.run(1, in_group_of_others, {"RANK": "9", "WORLD_SIZE": "64", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "8"},
                             init=False)
        self.assertEqual([text[-7:] for text in texts[:2]], [" gave 1", " gave 0"])
        for text in texts[2:]:
            self.assertIn("rank 9 of 64", text)

    @unittest.skipIf(os.path.isdir("/sys/class/infiniband"), "this machine has RDMA")
    def test_a_host_without_an_adapter_is_named_on_all_ranks(self):
        for size in (2, 3):
            found = ranks.run(size, without_adapters)
            for text, host in found:
                self.assertEqual(text, found[0][0])
                self.assertIn("cannot go by RDMA", text)
                self.assertIn("host %s (rank 0)" % host, text)

    def test_without_a_group_of_tutti_the_error_has_advice(self):
        for texts in ranks.run(2, without_tutti, init=False):
            self.assertIn('init_process_group("tutti")', texts[0])
            self.assertIn("gloo", texts[1])
            self.assertIn('init_process_group("tutti")', texts[1])

    def test_a_rank_that_does_not_call_it_is_named(self):
        for text in ranks.run(2, alone, init=False)[:1]:
            self.assertIn("rank 1", text)

    @unittest.skipUnless(STANDIN, "TUTTI_TEST_STANDIN_VERBS names no stand-in")
    def test_with_adapters_it_is_true_until_the_group_ends(self):
        own = os.path.dirname(torch_tutti.__file__)
        if not os.path.exists(os.path.join(own, "libtutti_verbs.so")):
            self.skipTest("the wheel was built without libibverbs")
        with tempfile.TemporaryDirectory(prefix="torch-env-") as folder:
            shutil.copytree(own, os.path.join(folder, "torch_tutti"), ignore=shutil.ignore_patterns("__pycache__"))
            shutil.copy(STANDIN, os.path.join(folder, "torch_tutti", "libtutti_verbs.so"))
            for size in (2, 3):
                jobs = [subprocess.Popen([sys.executable, os.path.abspath(__file__), "with_adapters", str(rank), str(size)],
                                         env=dict(os.environ, PYTHONPATH=folder, OMP_NUM_THREADS="1"), stdout=subprocess.PIPE,
                                         stderr=subprocess.STDOUT, text=True) for rank in range(size)]
                try:
                    for job in jobs:
                        said = job.communicate(timeout=100)[0]
                        self.assertEqual(job.returncode, 0, said[-4000:])
                finally:
                    for job in jobs:
                        job.kill()
                        job.communicate()


if __name__ == "__main__":
    if sys.argv[1:2] == ["with_adapters"]:
        with_adapters()
    else:
        unittest.main()
