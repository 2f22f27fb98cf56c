"""PEP 517 build backend: scikit-build-core, with the location of the PyTorch that the extension is built for.

pip builds in an isolated environment in which PyTorch cannot be imported, and a PyTorch downloaded for the build
might not be the one that runs later. So the interpreters that may be the target's are queried in turn, each in a
process of its own and in an environment without pip's overlays; the first that has PyTorch is used. Setting:
TUTTI_TORCH_PYTHON. TUTTI_TORCH_FACTS is for scripts/wheels instead: a file of JSON with the facts (pytorch_facts)
of several versions of PyTorch, each of which gets an extension.

nvcc is CUDA_HOME's, else that of NVIDIA's packages in the same environment, else what CMake finds.
"""
import glob
import json
import os
import shutil
import subprocess
import sys
import tempfile

import pytorch_facts
from scikit_build_core import build as _build
from scikit_build_core.build import (  # noqa: F401
    get_requires_for_build_editable,
    get_requires_for_build_wheel,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

OLDEST = (2, 4)

HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
FACTS = os.path.join(HERE, "backend", "pytorch_facts.py")  # run by the candidate
LIBRARY = ("CMakeLists.txt", "LICENSE", "bench", "bootstrap", "cmake", "comm", "data", "ddp", "include", "kernels", "ops", "rdma", "tensor",
           "tools")
VERSION_FROM = '"../../CMakeLists.txt"'


def _stop(text):
    raise SystemExit("torch_tutti: " + text)


def _clean_environment():
    """This environment without the variables that point Python elsewhere: pip's overlays, a caller's PYTHONPATH."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}


def _candidates():
    """Yields (words, interpreter, environment) to query, the likeliest first."""
    explicit = os.environ.get("TUTTI_TORCH_PYTHON")
    if explicit:
        yield "TUTTI_TORCH_PYTHON", explicit, _clean_environment()
        return
    yield "this environment", sys.executable, dict(os.environ)  # --no-build-isolation
    yield "the interpreter without the build's overlay", sys.executable, _clean_environment()  # pip's isolation
    for variable in ("VIRTUAL_ENV", "CONDA_PREFIX"):  # tools that build in an environment of their own: uv, build
        if os.environ.get(variable):
            yield variable, os.path.join(os.environ[variable], "bin", "python"), _clean_environment()
    for name in ("python3", "python"):
        if shutil.which(name):
            yield name + " on PATH", shutil.which(name), _clean_environment()


def _ask(interpreter, environment):
    """Returns (facts, None) or (None, why not)."""
    try:
        done = subprocess.run([interpreter, FACTS], env=environment, cwd="/", timeout=120,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    except (OSError, subprocess.SubprocessError) as error:
        return None, str(error)
    if done.returncode != 0:
        return None, (done.stderr.strip().splitlines() or ["exit code %d" % done.returncode])[-1]
    try:
        return json.loads(done.stdout[done.stdout.index("{"):]), None
    except ValueError:
        return None, "its answer cannot be read"


def _find_torch():
    tried, asked = [], set()
    for words, interpreter, environment in _candidates():
        key = (interpreter, tuple(sorted(environment.items())))
        if key in asked:
            continue
        asked.add(key)
        facts, problem = _ask(interpreter, environment)
        if facts is not None and facts["python"] != _own_abi():
            problem = "it is another Python (%s, this is %s)" % (facts["python"], _own_abi())
        if problem is None:
            return facts
        tried.append("  %s (%s): %s" % (words, interpreter, problem))
    _stop("no PyTorch was found to build for. Install it first (pip install torch), or name the Python that has it in "
          "TUTTI_TORCH_PYTHON. Tried:\n" + "\n".join(tried))


def _own_abi():
    import sysconfig

    return sysconfig.get_config_var("SOABI")


def _nvcc_beside(torch_folder):
    """The nvcc that `pip install cuda-toolkit[nvcc]` puts beside PyTorch, if it has PyTorch's CUDA version; none
    where CUDA_HOME is set."""
    if os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH"):
        return None
    found = sorted(glob.glob(os.path.join(os.path.dirname(torch_folder), "nvidia", "cu[0-9]*", "bin", "nvcc")))
    return found[-1] if found else None


def _refuse(torch):
    if tuple(int(part) for part in torch["version"].split(".")[:2]) < OLDEST:
        _stop("PyTorch %s in %s is too old, %d.%d is needed" % ((torch["version"], torch["folder"]) + OLDEST))
    if not torch["distributed"]:
        _stop("PyTorch %s in %s was built without torch.distributed" % (torch["version"], torch["folder"]))


def _defines(torch):
    """Returns (name, settings for CMake)."""
    name = "_".join(torch["version"].split(".")[:2]) + "_abi%d" % torch["cxx11_abi"]
    include = os.path.join(torch["folder"], "include")
    definitions = ["_GLIBCXX_USE_CXX11_ABI=%d" % torch["cxx11_abi"]]
    definitions += ['%s="%s"' % item for item in sorted(torch["pybind"].items())]
    defines = {
        "VERSION": torch["version"],
        "CXX11_ABI": str(torch["cxx11_abi"]),
        "PYBIND": "".join(torch["pybind"].get("PYBIND11_" + part, "") for part in pytorch_facts.PYBIND),
        "STANDARD": str(torch["standard"]),
        "INCLUDES": ";".join([include, os.path.join(include, "torch", "csrc", "api", "include")]),
        "LIBRARIES": os.path.join(torch["folder"], "lib"),
        "DEFINITIONS": ";".join(definitions),
    }
    return name, {"TUTTI_TORCH_%s_%s" % (name, word): value for word, value in defines.items()}


def _settings(given):
    """The caller's settings, and those that describe PyTorch to CMake."""
    listed = os.environ.get("TUTTI_TORCH_FACTS")
    if listed:
        with open(listed, encoding="utf-8") as file:
            torches = json.load(file)
    else:
        torches = [_find_torch()]
    names, defines = [], {}
    for torch in torches:
        _refuse(torch)
        print("torch_tutti: building for PyTorch %s in %s" % (torch["version"], torch["folder"]), flush=True)
        name, own = _defines(torch)
        names.append(name)
        defines.update(own)
    defines["TUTTI_TORCH_BUILDS"] = ";".join(names)
    nvcc = None if listed else _nvcc_beside(torches[0]["folder"])
    if nvcc:
        print("torch_tutti: nvcc is %s" % nvcc, flush=True)
        defines["TUTTI_NVCC"] = nvcc
    settings = {"cmake.define." + name: value for name, value in defines.items()}
    settings.update(given or {})
    return settings


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    return _build.build_wheel(wheel_directory, _settings(config_settings), metadata_directory)


def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    return _build.build_editable(wheel_directory, _settings(config_settings), metadata_directory)


def build_sdist(sdist_directory, config_settings=None):
    """This folder, and in it, as `tutti`, the library's sources, which are outside of it in the repository."""
    with tempfile.TemporaryDirectory() as parent:
        staged = os.path.join(parent, "torch_tutti")
        shutil.copytree(HERE, staged, ignore=shutil.ignore_patterns("tests", "__pycache__", "PKG-INFO", ".*"))
        if not os.path.isdir(os.path.join(staged, "tutti")):
            _stage_library(staged)
        back = os.getcwd()
        os.chdir(staged)
        try:
            return _build.build_sdist(sdist_directory, config_settings)
        finally:
            os.chdir(back)


def _stage_library(staged):
    repository = os.path.dirname(os.path.dirname(HERE))
    for name in LIBRARY:
        source, copy = os.path.join(repository, name), os.path.join(staged, "tutti", name)
        if os.path.isdir(source):
            shutil.copytree(source, copy, ignore=shutil.ignore_patterns("__pycache__", ".*", "mnist", "cifar1*"))  # data that was fetched
        else:
            os.makedirs(os.path.dirname(copy), exist_ok=True)
            shutil.copy2(source, copy)
    project = os.path.join(staged, "pyproject.toml")
    with open(project, encoding="utf-8") as file:
        text = file.read()
    if text.count(VERSION_FROM) != 1:
        _stop("%s should say %s once: the version of a source distribution is found by it" % (project, VERSION_FROM))
    with open(project, "w", encoding="utf-8") as file:
        file.write(text.replace(VERSION_FROM, '"tutti/CMakeLists.txt"'))
