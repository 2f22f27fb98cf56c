"""How PyTorch finds the backend, and that it has no effect on programs that do not name it.

Each case is a separate process: the tested behaviour happens once per process, at `import torch` or at the first
group. If it happens at the first group, the process is a fork of this one, which has imported PyTorch and has no
group, since an import takes seconds.
"""
import importlib.util
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import traceback
import unittest

import torch.distributed as dist

HAVE_TUTTI = importlib.util.find_spec("torch_tutti") is not None
TIMEOUT_S = 60

PREAMBLE = """
import os, sys
import torch, torch.distributed as dist
from torch.distributed.distributed_c10d import Backend
by_name_only = hasattr(Backend, "_ensure_backend_registered")  # newer PyTorch looks when it is asked
automatic = by_name_only or hasattr(torch, "_import_device_backends")
by_device = hasattr(dist.distributed_c10d, "_get_default_backend_type_for_backend_config")  # a GPU's backend goes first

def world(backend, **named):
    dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1, **named)
    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    assert tensor.tolist() == [1, 1, 1]
    return dist.group.WORLD

def default_backend(group):
    return group._get_backend_name() if hasattr(group, "_get_backend_name") else group.name()
"""


class Done:
    def __init__(self, returncode, stdout, stderr):
        self.returncode, self.stdout, self.stderr = returncode, stdout, stderr


def run_here(code, variables, out, err):
    """In a fork: runs like python -c, and never returns."""
    status = 1
    try:
        os.dup2(out.fileno(), 1)
        os.dup2(err.fileno(), 2)
        os.environ.pop("DDP_DISABLE_COMM_MEM", None)
        os.environ.update(variables)
        signal.alarm(TIMEOUT_S)
        exec(compile(code, "<string>", "exec"), {"__name__": "__main__"})  # pylint: disable=exec-used
        status = 0
    except BaseException:  # pylint: disable=broad-except
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def fork(body, **variables):
    """Like run(), after this process's `import torch`."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        child = os.fork()
        if child == 0:
            run_here(PREAMBLE + textwrap.dedent(body), variables, out, err)
        _, status = os.waitpid(child, 0)
        out.seek(0)
        err.seek(0)
        return Done(os.waitstatus_to_exitcode(status), out.read(), err.read())


def run(body, **variables):
    """The results of a Python that runs the body: its status, output and errors."""
    environment = {name: value for name, value in os.environ.items() if name != "DDP_DISABLE_COMM_MEM"}
    environment.update(variables)
    return subprocess.run([sys.executable, "-c", PREAMBLE + textwrap.dedent(body)], env=environment, timeout=TIMEOUT_S,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)


@unittest.skipUnless(HAVE_TUTTI, "torch_tutti is not installed")
class Registration(unittest.TestCase):
    def expect(self, body, then="", how=fork, **variables):
        done = how(textwrap.dedent(body) + "\n" + then, **variables)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done

    def test_import_torch_neither_loads_nor_lists_it(self):
        self.expect("""
            assert "torch_tutti" not in sys.modules
            assert not list(Backend._plugins.keys()) and not list(Backend._plugins) or by_name_only
            assert Backend.default_device_backend_map["cpu"] == "gloo"
            assert Backend.default_device_backend_map["cuda"] == "nccl"
        """, how=run)

    def test_the_entry_point_takes_less_than_a_millisecond(self):
        body = """
            import importlib.metadata, time
            (entry,) = [entry for entry in importlib.metadata.entry_points().get("torch.backends", [])
                        if entry.name == "tutti"] if sys.version_info < (3, 10) else \\
                       importlib.metadata.entry_points(group="torch.backends", name="tutti")
            def load():
                for name in [name for name in sys.modules if name.startswith("torch_tutti")]:
                    del sys.modules[name]
                Backend._plugins = {}
                start = time.perf_counter()
                entry.load()()
                return time.perf_counter() - start
            # The fastest of many, since a fork copies each page at its first write, and other processes take the core at times.
            print(min(load() for _ in range(50)))
        """
        self.assertLess(float(self.expect(body).stdout), 1e-3)

    def test_groups_of_other_backends_are_unchanged(self):
        end = "sys.stdout.flush()\nos._exit(0)"  # gloo's threads may not outlive Python, and in PyTorch 2.4 its end may hang
        for backend in ("gloo", "cpu:gloo", "cpu:gloo,cuda:gloo"):
            self.expect("""
                group = world("%s")
                assert dist.get_backend(group) == "%s", dist.get_backend(group)
                assert "torch_tutti" not in sys.modules
                assert "DDP_DISABLE_COMM_MEM" not in os.environ
            """ % (backend, backend), then=end)
        look = 'print(default_backend(world("cpu:gloo")))'
        with_us = self.expect(look, then=end).stdout
        without = self.expect("Backend._plugins = {}\n" + look, then=end).stdout
        self.assertEqual(with_us, without)

    def test_a_group_needs_no_import(self):
        self.expect("""
            if not automatic:
                import torch_tutti
            world("tutti")
            assert "torch_tutti" in sys.modules
        """, how=run)

    def test_without_autoload_the_import_is_enough(self):
        self.expect("""
            assert by_name_only or "TUTTI" not in Backend._plugins
            import torch_tutti
            world("tutti")
        """, how=run, TORCH_DEVICE_BACKEND_AUTOLOAD="0")

    def test_newer_pytorch_calls_the_registrar_by_name(self):
        self.expect("""
            import importlib.metadata
            groups = importlib.metadata.entry_points()
            ours = [entry for entry in (groups.select(group="torch.distributed.backends") if hasattr(groups, "select")
                                        else groups["torch.distributed.backends"]) if entry.name == "tutti"]
            ours[0].load()()
            ours[0].load()()
            world("tutti")
        """, how=run, TORCH_DEVICE_BACKEND_AUTOLOAD="0")

    def test_the_default_backend_is_tutti_wherever_it_is_named(self):
        for backend in ("tutti", "cpu:tutti", "cpu:tutti,cuda:tutti", "cpu:gloo,cuda:tutti", "cpu:tutti,cuda:gloo"):
            with self.subTest(backend=backend):
                self.expect("""
                    import torch_tutti
                    found = default_backend(world("%s")).lower()
                    if by_device and %s:
                        assert found == "gloo", found
                    else:
                        assert found not in ("undefined", "gloo"), found
                """ % (backend, backend == "cpu:tutti,cuda:gloo"), then="os._exit(0)")

    def test_another_plugin_does_not_hide_tutti(self):
        self.expect("""
            import torch_tutti
            Backend.register_backend("other", lambda *arguments: None, extended_api=True, devices=["cpu"])
            assert list(Backend._plugins.keys()) == ["OTHER"] or by_name_only
            assert default_backend(world("cpu:tutti,cuda:tutti")).lower() not in ("undefined", "gloo")
        """)

    def test_buckets_come_from_tutti_unless_the_user_decided(self):
        body = 'import torch_tutti\nworld("tutti")\nprint(os.environ.get("DDP_DISABLE_COMM_MEM"))'
        self.assertEqual(self.expect(body).stdout.strip(), "0")
        self.assertEqual(self.expect(body, DDP_DISABLE_COMM_MEM="1").stdout.strip(), "1")

    def test_each_stream_may_have_a_queue_unless_the_user_decided_or_cuda_runs(self):
        body = """
            said = %r
            os.environ.pop("CUDA_DEVICE_MAX_CONNECTIONS", None)
            if said is not None:
                os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] = said
            torch.version.cuda, torch.cuda.is_initialized = %r, lambda: %r
            import torch_tutti
            print(os.environ.get("CUDA_DEVICE_MAX_CONNECTIONS"))
        """
        for said, cuda, initialized, left in ((None, "13.0", False, "32"), ("4", "13.0", False, "4"), (None, "13.0", True, "None"),
                                              (None, None, False, "None")):
            self.assertEqual(self.expect(body % (said, cuda, initialized)).stdout.strip(), left)

    def test_nccl_beside_tutti_keeps_its_tensors_and_its_switch(self):
        """NCCL needs GPUs; a stand-in with its name shows how PyTorch combines the backends of such groups."""
        body = """
            import torch.distributed.distributed_c10d as c10d
            import torch_tutti

            Base = getattr(torch._C._distributed_c10d.Backend, "Options", None) or dist.ProcessGroup.Options

            class Anything(type):
                def __instancecheck__(cls, thing):
                    return True

            class StandIn(metaclass=Anything):
                class Options(Base):
                    def __init__(self):
                        super().__init__("nccl")
                def __new__(cls, store, rank, size, options):
                    return c10d.ProcessGroupGloo(store, rank, size)

            if by_device:  # there NCCL is registered like a plug-in
                Backend.register_backend("%s", lambda of, options: c10d.ProcessGroupGloo(of.store, of.group_rank, of.group_size),
                                         extended_api=True, devices=["cuda"], _backend_type=dist.ProcessGroup.BackendType.NCCL)
            c10d.ProcessGroupNCCL, c10d._NCCL_AVAILABLE = StandIn, True
            group = world("%s")
            assert default_backend(group).lower() != "undefined"
            assert group._get_backend(torch.device("cpu")).name() == "tutti"
            assert group._get_backend(torch.device("cuda")).name() == "gloo"
            outs = [None]
            dist.all_gather_object(outs, "object")
            assert outs == ["object"]
            assert "DDP_DISABLE_COMM_MEM" not in os.environ
        """
        names = ["nccl", "nccl2"] if hasattr(dist.distributed_c10d, "_register_builtin_nccl2_backend") else ["nccl"]
        for name, backend in [(name, form % name) for name in names for form in ("cpu:tutti,cuda:%s", "cuda:%s,cpu:tutti")]:
            with self.subTest(backend=backend):
                self.expect(body % (name, backend), then="os._exit(0)")

    def test_options_of_a_wrong_type_are_an_error(self):
        done = fork('import torch_tutti\nworld("tutti", pg_options={"name": "x"})')
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("TypeError: pg_options must be a torch_tutti.Options, not dict", done.stderr)

    def test_another_pytorch_is_refused_in_one_line(self):
        package = os.path.dirname(importlib.util.find_spec("torch_tutti").origin)
        with tempfile.TemporaryDirectory() as folder:
            os.mkdir(os.path.join(folder, "torch_tutti"))
            for name in os.listdir(package):
                if name != "_build.py" and os.path.isfile(os.path.join(package, name)):
                    os.symlink(os.path.join(package, name), os.path.join(folder, "torch_tutti", name))
            with open(os.path.join(folder, "torch_tutti", "_build.py"), "w") as file:
                file.write('python = ""\nextensions = (("_C_2_0_abi1", "2.0.1", 1, ""),)\n')
            done = run("""
                from torch_tutti_autoload import entry
                entry.register()
                world("tutti")
            """, PYTHONPATH=folder)
        self.assertNotEqual(done.returncode, 0)
        self.assertRegex(done.stderr.strip().splitlines()[-1],
                         r"^ImportError: torch_tutti was built for PyTorch 2\.0, and this is .*; build it for this one: pip install")


if __name__ == "__main__":
    unittest.main()
