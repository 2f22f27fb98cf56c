"""python -m torch_tutti: shows what is installed, and tests whether it works between two processes of this machine.

python -m torch_tutti run script.py ...: runs the program with Tutti in Gloo's place.
"""
import argparse
import glob
import os
import platform
import sys


def _fact(name, value):
    print(f"  {name:<26} {value}", flush=True)


def _print_installation(torch_tutti):
    folder = os.path.dirname(os.path.abspath(torch_tutti._C.__file__))  # an editable install has its sources elsewhere
    for name, version in torch_tutti.versions().items():
        _fact(name, version)
    _fact("Python", platform.python_version())
    _fact("library", os.path.join(folder, "libtutti.so"))
    modules = sorted(glob.glob(os.path.join(folder, "libtutti_*.so")))
    count, reason = torch_tutti._C.gpus()
    _fact("GPUs", count if not reason else f"none that Tutti can use: {reason}")
    _fact("modules", ", ".join(os.path.basename(module) for module in modules) or "none")
    settings = [name for name in sorted(os.environ) if name.startswith("TUTTI_")]
    hidden = ("TUTTI_SECRET",)
    _fact("settings", ", ".join(f"{name}={'(set)' if name in hidden else os.environ[name]}" for name in settings) or "none")


def _registered():
    """How PyTorch finds the backend for `init_process_group("tutti")`."""
    import torch
    from torch.distributed.distributed_c10d import Backend

    if hasattr(Backend, "_ensure_backend_registered"):
        return "by PyTorch, when the name is first used"
    if not hasattr(torch, "_import_device_backends"):
        return "after `import torch_tutti` (this PyTorch has no entry points)"
    if os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD", "1") != "1":
        return "after `import torch_tutti` (TORCH_DEVICE_BACKEND_AUTOLOAD is off)"
    return "by `import torch`"


def _shareable_memory(torch_tutti):
    try:
        tensor = torch_tutti.zeros(1 << 18)
        tensor += 1
        return "yes" if torch_tutti.is_shareable(tensor) else "no: the allocator returned other memory"
    except Exception as error:
        return f"no: {error}"


def main():
    if sys.argv[1:2] == ["run"]:
        from torch_tutti import _run

        return _run.main(sys.argv[2:])
    parser = argparse.ArgumentParser(prog="python -m torch_tutti", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--no-test", action="store_true", help="only print what is installed")
    arguments = parser.parse_args()
    import torch_tutti
    from torch_tutti_autoload import as_gloo

    print("torch_tutti")
    _print_installation(torch_tutti)
    _fact("registered", _registered())
    _fact("in Gloo's place", "yes" if as_gloo.gloo is not None else "no")
    memory = _shareable_memory(torch_tutti)
    _fact("shared memory", memory)
    if arguments.no_test:
        return 0 if memory == "yes" else 1

    from torch_tutti import _selftest

    print("\nself-test, 2 ranks", flush=True)
    facts, problem = _selftest.run()
    for name, value in facts.items():
        _fact(name, value)
    if problem is not None:
        print(f"  failed: {problem}", file=sys.stderr)
        return 1
    print("  passed")
    return 0 if memory == "yes" else 1


if __name__ == "__main__":
    sys.exit(main())
