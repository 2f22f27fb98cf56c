"""python -m torch_tutti run: runs a program with Tutti in Gloo's place.

  python -m torch_tutti run script.py ARGUMENTS...
  python -m torch_tutti run -m module ARGUMENTS...

The program, and the processes that it starts, need no other change: this sets TUTTI_AS_GLOO=1.
"""
import importlib.util
import os
import runpy
import sys

USAGE = "usage: python -m torch_tutti run script.py ...   or   python -m torch_tutti run -m module ..."


def _fail(text):
    print(f"python -m torch_tutti run: {text}", file=sys.stderr)
    return 2


def _found(module):
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def main(arguments):
    from . import _as_gloo

    if not arguments or arguments[0] in ("-h", "--help"):
        print(USAGE, file=sys.stdout if arguments else sys.stderr)
        return 0 if arguments else 2
    by_name = arguments[0] == "-m"
    if by_name:
        arguments = arguments[1:]
    if not arguments or (arguments[0].startswith("-") and not os.path.exists(arguments[0])):
        return _fail(f"a script, or -m and a module, expected; {USAGE}")
    program = arguments[0]
    if by_name and not _found(program):
        return _fail(f"there is no module {program}")
    if not by_name and not os.path.exists(program):
        return _fail(f"there is no file {program}")
    try:
        _as_gloo.replace_gloo()
    except RuntimeError as error:
        return _fail(error)
    sys.argv[:] = arguments
    if by_name:
        runpy.run_module(program, run_name="__main__", alter_sys=True)
        return 0
    if not getattr(sys.flags, "safe_path", False) and not os.path.isdir(program):
        sys.path[0] = os.path.dirname(os.path.realpath(program))  # where `python -m` has put the current folder
    runpy.run_path(program, run_name="__main__")
    return 0
