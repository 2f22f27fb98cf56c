"""Two ranks on each of two hosts, started by torchrun on each: results, training, and the death of a rank.

The hosts are network namespaces of this machine (support/network.py). One job runs everything, since starting six
processes with PyTorch takes most of the time; its ranks write their results to files (support/on_hosts.py).
"""
import os
import subprocess
import sys
import tempfile
import unittest

from support import network, on_hosts, ranks

TESTS = os.path.dirname(os.path.abspath(__file__))
TIMEOUT_S = 120
RANKS = range(4)
PORT = 29500


def torchrun(host, node, folder):
    launch = ("-m", "torch.distributed.run", "--nnodes", "2", "--nproc_per_node", "2", "--node_rank", str(node), "--master_addr", "10.78.0.1",
              "--master_port", str(PORT), "--monitor-interval", "2", "--module", "support.on_hosts", folder)
    with open(os.path.join(folder, "log%d" % node), "w", encoding="utf-8") as log:
        return subprocess.Popen(host.enter(sys.executable, *launch), cwd=TESTS, env=dict(os.environ, OMP_NUM_THREADS="1"),
                                preexec_fn=network.die_with_parent, stdout=log, stderr=subprocess.STDOUT)


def end(job):
    job.terminate()  # torchrun ends its ranks
    try:
        job.wait(40)  # torchrun waits 30 s for them
    except subprocess.TimeoutExpired:
        job.kill()
        job.wait()


def read(path):
    if not os.path.exists(path):
        return ""
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()


@unittest.skipUnless(ranks.IS_TUTTI, "gloo would need names that resolve")
class Hosts(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        hosts = network.two_hosts()
        with tempfile.TemporaryDirectory(prefix="torch-hosts-") as folder:
            jobs = []
            try:
                jobs += [torchrun(host, node, folder) for node, host in enumerate(hosts)]
                for job in jobs:
                    job.wait(TIMEOUT_S)
            except subprocess.TimeoutExpired:
                pass  # then reports are missing
            finally:
                for job in jobs:
                    end(job)
                for host in hosts:
                    host.close()
            cls.found = {name: read(os.path.join(folder, name)) for name in os.listdir(folder)}
        cls.names = [host.name for host in hosts]

    def report(self, part, rank):
        text = self.found.get("%s.%d" % (part, rank), "")
        self.assertTrue(text.startswith("ok "), "rank %d: %s\n%s" % (rank, text, (self.found["log0"] + self.found["log1"])[-4000:]))
        return text[3:]

    def test_all_collectives_have_the_results_of_closed_forms(self):
        for rank in RANKS:
            self.assertGreater(int(self.report("collectives", rank).split()[0]), 50)

    def test_ddp_has_the_results_of_one_process_with_whole_batches(self):
        for rank in RANKS:
            self.report("ddp", rank)

    @unittest.skipIf(os.path.isdir("/sys/class/infiniband"), "this machine has RDMA")
    def test_ranks_know_their_hosts_and_which_of_them_lack_rdma(self):
        for rank in RANKS:
            numbers, text = self.report("layout", rank).split("\n", 1)
            self.assertEqual(numbers, "2 %d 0" % (rank % 2))
            for part in ("host %s (rank 0)" % self.names[0], "host %s (rank 2)" % self.names[1]):
                self.assertIn(part, text)

    def test_a_killed_rank_is_named_with_its_host_within_two_seconds(self):
        for rank in RANKS[:on_hosts.VICTIM]:
            took, pid, text = self.report("death", rank).split("\n", 2)
            self.assertLess(float(took), 2.5)
            for part in ("rank %d" % on_hosts.VICTIM, self.names[1], pid):
                self.assertIn(part, text)


if __name__ == "__main__":
    unittest.main()
