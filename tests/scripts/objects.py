"""The objects of a build folder, their symbols, and the symbols that may be defined above those that use them."""
import os
import re
import subprocess

# Tables that a lower folder calls and a higher one defines: the only symbols that may run upwards.
SEAMS = {
    "tutti_hooks": "comm/api/hooks.c",  # called by waits
    "tutti_engine_nccl": "comm/gpu/nccl/nccl.c",
    "tutti_engine_same_gpu": "comm/gpu/same_gpu/same_gpu.c",
    "tutti_engine_staged": "comm/gpu/staged/staged.c",
}


def objects_of(root, build):
    """(target, source file, object file) of each object. Objects that an earlier state of the sources has left in the build
    folder are passed over: those whose source is gone, and those whose target the build no longer has. Only Ninja's builds
    are read; in others there are no objects, so that the checks are skipped."""
    rules = os.path.join(build, "build.ninja")
    if not os.path.exists(rules):
        return
    with open(rules, encoding="utf-8") as file:
        current = set(re.findall(r"^build (\S+\.o):", file.read(), re.MULTILINE))
    for name in sorted(current):
        match = re.match(r"(?:(.*)/)?CMakeFiles/([^/]+)\.dir/(.*)\.o$", name)
        if match and os.path.exists(os.path.join(build, name)):
            source = os.path.normpath(os.path.join(match[1] or "", match[3].replace("__/", "../")))
            if os.path.exists(os.path.join(root, source)):
                yield match[2], source, os.path.join(build, name)


def symbols_of(objects):
    """(object file, kind, symbol) of each symbol of the object files; kind is nm's letter: U is used but not defined."""
    if not objects:
        return
    listed = subprocess.run(["nm", "--print-file-name", *objects], stdout=subprocess.PIPE, text=True, check=True).stdout
    for line in listed.splitlines():
        path, _, rest = line.rpartition(":")
        *_, kind, symbol = rest.split()
        yield path, kind, symbol
