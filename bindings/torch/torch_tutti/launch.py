"""python -m torch_tutti.launch: starts a program on several ranks, as torchrun does; the options are those of tuttirun.

  python -m torch_tutti.launch --nproc_per_node 2 script.py ARGUMENTS...
  python -m torch_tutti.launch --nodes 10.0.0.1,10.0.0.2 --device_num 4 script.py ARGUMENTS...

The launcher is the program tuttirun of the package, else the one in PATH; scripts run with this Python, unless
PYTHON_EXEC names another interpreter. `python -m torch_tutti.launch --help` lists the options.
"""
import os
import shutil
import sys


def find_launcher():
    """Returns the path of tuttirun, or None."""
    beside = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tuttirun")
    return beside if os.access(beside, os.X_OK) else shutil.which("tuttirun")


def main(arguments):
    launcher = find_launcher()
    if launcher is None:
        print("python -m torch_tutti.launch: there is no tuttirun beside torch_tutti, and none in PATH: install the package "
              "again (pip install --force-reinstall --no-deps ./bindings/torch), or add the folder of Tutti's programs to PATH",
              file=sys.stderr)
        return 1
    os.environ.setdefault("PYTHON_EXEC", sys.executable)
    sys.stdout.flush()
    os.execv(launcher, [launcher, *arguments])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
