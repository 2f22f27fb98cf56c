"""The ways in which a program gets Tutti in Gloo's place: a variable, a function, a launcher; and what it starts."""
import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
import unittest

import torch.distributed as dist

from support import ranks

PROGRAM_S = 120  # for a separate program, which imports torch in each of its processes

WORLD = """
import os, sys
import torch, torch.distributed as dist
from torch.distributed import distributed_c10d as c10d
def one_rank(*backend):
    dist.init_process_group(*backend, store=dist.HashStore(), rank=0, world_size=1)
    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    return "%s %s" % (dist.get_backend(), type(backend).__name__)
"""
OURS, THEIRS = "gloo GlooBackend", "gloo ProcessGroupGloo"


def python(*arguments, **variables):
    environment = {name: value for name, value in os.environ.items() if name not in ("TUTTI_AS_GLOO", "DDP_DISABLE_COMM_MEM")}
    environment.update(variables)
    return subprocess.run([sys.executable, *arguments], env=environment, timeout=PROGRAM_S, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True, check=False)


@unittest.skipUnless(ranks.HAVE_TUTTI and dist.is_gloo_available(), "torch_tutti is not installed")
class Ways(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="as-gloo-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def script(self, body, name="program.py"):
        path = os.path.join(self.folder, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(WORLD + textwrap.dedent(body))
        return path

    def says(self, expected, *arguments, **variables):
        done = python(*arguments, **variables)
        self.assertEqual((done.returncode, done.stdout.strip()), (0, expected), done.stderr)
        return done

    def fails(self, pattern, *arguments, **variables):
        done = python(*arguments, **variables)
        self.assertNotEqual(done.returncode, 0, done.stdout)
        # PyTorch may print the rank before an uncaught exception.
        self.assertRegex(done.stderr.strip().splitlines()[-1].replace("[rank0]: ", "", 1), pattern)

    def test_the_variable(self):
        program = self.script('print(one_rank("gloo"))')
        self.says(THEIRS, program)
        self.says(THEIRS, program, TUTTI_AS_GLOO="0")
        self.says(THEIRS, program, TUTTI_AS_GLOO="")
        self.says(OURS, program, TUTTI_AS_GLOO="1")

    def test_no_backend_named(self):
        program = self.script("""
            try:
                print(one_rank().split()[1])
            except Exception as error:  # a PyTorch for GPUs, where there is none
                print(type(error).__name__)
        """)
        theirs = python(program).stdout.strip()
        self.says({"ProcessGroupGloo": "GlooBackend"}.get(theirs, theirs), program, TUTTI_AS_GLOO="1")

    def test_without_entry_points(self):
        self.says(OURS, self.script('print(one_rank("gloo"))'), TUTTI_AS_GLOO="1", TORCH_DEVICE_BACKEND_AUTOLOAD="0")

    @unittest.skipIf(ranks.OLD, "PyTorch 2.4 has no entry points")
    def test_without_the_pth_file(self):
        """The entry point alone, as for a package in PYTHONPATH."""
        drop = "import sys; sys.meta_path[:] = [one for one in sys.meta_path if 'early' not in str(one)]\n"
        self.says(OURS, "-c", drop + "assert 'torch' not in sys.modules\n" + WORLD + 'print(one_rank("gloo"))', TUTTI_AS_GLOO="1")

    def test_replace_gloo(self):
        self.says(OURS + " 1", self.script("""
            kept = c10d.ProcessGroupGloo  # taken before: still makes Gloo's
            import torch_tutti
            torch_tutti.replace_gloo()
            torch_tutti.replace_gloo()
            assert kept is not c10d.ProcessGroupGloo and kept is not dist.ProcessGroupGloo
            assert kept.__name__ == c10d.ProcessGroupGloo.__name__
            print(one_rank("gloo"), os.environ["TUTTI_AS_GLOO"])
        """))

    def test_replace_gloo_comes_too_late(self):
        self.fails(r"^RuntimeError: torch_tutti.replace_gloo\(\) comes too late: there is a group of Gloo's already .*TUTTI_AS_GLOO=1",
                   self.script('one_rank("gloo")\nimport torch_tutti\ntorch_tutti.replace_gloo()'))

    def test_run(self):
        program = self.script("""
            import helper
            print(one_rank("gloo"), __name__, sys.argv[1:], os.path.basename(sys.argv[0]), helper.__name__)
        """)
        self.script("", "helper.py")
        self.says(OURS + " __main__ ['--x', '1'] program.py helper", "-m", "torch_tutti", "run", program, "--x", "1")
        self.says(OURS + " __main__ ['-m'] program.py helper", "-m", "torch_tutti", "run", "-m", "program", "-m",
                  PYTHONPATH=self.folder)

    def test_run_reports_a_missing_program(self):
        self.fails("run: there is no file nowhere.py$", "-m", "torch_tutti", "run", "nowhere.py")
        self.fails("run: there is no module no.where$", "-m", "torch_tutti", "run", "-m", "no.where")
        self.fails("^usage: python -m torch_tutti run script.py", "-m", "torch_tutti", "run")

    def test_wrong_setting(self):
        for value in ("yes", "2"):
            self.fails(f"^ValueError: TUTTI_AS_GLOO={value}: 1 puts Tutti in Gloo's place", self.script('one_rank("gloo")'),
                       TUTTI_AS_GLOO=value)

    def test_a_library_that_does_not_load(self):
        """It must not silently make a group of Gloo's."""
        import torch_tutti  # pylint: disable=import-outside-toplevel

        package = os.path.join(self.folder, "torch_tutti")
        shutil.copytree(os.path.dirname(torch_tutti.__file__), package, ignore=shutil.ignore_patterns("libtutti*"))
        self.fails("^ImportError: Tutti is to be in Gloo's place .TUTTI_AS_GLOO=1., but: torch_tutti cannot load its extension",
                   self.script('print(one_rank("gloo"))'), TUTTI_AS_GLOO="1", PYTHONPATH=self.folder)

    def test_no_subclasses(self):
        self.fails("^TypeError: class Mine: ProcessGroupGloo has no subclasses where Tutti is in its place",
                   self.script("class Mine(c10d.ProcessGroupGloo): pass"), TUTTI_AS_GLOO="1")

    def test_the_extension_is_loaded_by_the_first_group(self):
        self.says("False " + OURS + " True 0", self.script("""
            print("torch_tutti" in sys.modules, one_rank("gloo"), "torch_tutti" in sys.modules, os.environ["DDP_DISABLE_COMM_MEM"])
        """), TUTTI_AS_GLOO="1")

    def test_taking_the_place_costs_little(self):
        program = self.script("""
            import time
            from torch_tutti_autoload import entry
            start = time.perf_counter()
            entry.replace_gloo(c10d)
            print(time.perf_counter() - start)
        """)
        self.assertLess(min(float(python(program).stdout) for _ in range(3)), 20e-3)

    def test_processes_that_a_program_starts(self):
        """Like those of notebooks and actors: without a launcher, by a process that has loaded PyTorch."""
        program = self.script("""
            import socket
            def main(rank, port, results):
                os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE="2")
                dist.init_process_group("gloo")
                tensor = torch.ones(1)
                dist.all_reduce(tensor)
                assert tensor.item() == 2
                results.put("%s %s" % (dist.get_backend(), type(dist.group.WORLD._get_backend(torch.device("cpu"))).__name__))
                dist.destroy_process_group()
            if __name__ == "__main__":
                if "TUTTI_AS_GLOO" not in os.environ:
                    import torch_tutti
                    torch_tutti.replace_gloo()
                for method in sys.argv[1:]:
                    with socket.socket() as one:
                        one.bind(("127.0.0.1", 0))
                        port = one.getsockname()[1]
                    results = torch.multiprocessing.get_context(method).SimpleQueue()
                    torch.multiprocessing.start_processes(main, (port, results), nprocs=2, start_method=method)
                    print(method, results.get(), results.get())
        """)
        ours = f"{OURS} {OURS}"
        self.says(f"fork {ours}\nforkserver {ours}", program, "fork", "forkserver")
        self.says(f"spawn {ours}", program, "spawn", TUTTI_AS_GLOO="1")

    def test_torchrun_prints_what_gloo_did(self):
        # Gloo's threads, which need the GIL, must have ended when Python finalizes: it would abort.
        program = self.script("""
            import atexit
            def look():
                names = [open("/proc/self/task/%s/comm" % one).read().strip() for one in os.listdir("/proc/self/task")]
                if "pt_gloo_runloop" in names:
                    os._exit(3)
            atexit.register(look)
            dist.init_process_group("gloo")
            backend = dist.group.WORLD._get_backend(torch.device("cpu"))
            for _ in range(int(sys.argv[1])):
                backend.allreduce([torch.ones(2), torch.ones(2)]).wait()
            dist.all_reduce(torch.ones(2))
            if dist.get_rank() == 0:
                print(dist.get_backend(), type(backend).__name__)
            dist.destroy_process_group()
        """)
        run = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2")
        line = "torch_tutti: in Gloo's place; Gloo itself did: 3 x all_reduce (several tensors in one call)"
        done = self.says(OURS, *run, program, "3", TUTTI_AS_GLOO="1")
        self.assertEqual([one for one in done.stderr.splitlines() if "torch_tutti" in one], [line])
        done = self.says(OURS, *run, "-m", "torch_tutti", "run", program, "0")
        self.assertNotIn("torch_tutti", done.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
