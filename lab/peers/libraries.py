"""The libraries of a comparison: which of them are installed, how their drivers are built, how a launch of each
starts."""
import os
import shutil
import subprocess
import sys

import shares

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
COMPILE = ["-std=gnu17", "-D_GNU_SOURCE", "-O3", "-march=native", "-Wall", "-Wextra", "-I" + HERE]


class Library:
    """One column of the tables. start(ranks, arguments) gives a list of (command, environment) to run side by side."""

    checked = True  # whether its results count

    def __init__(self, name, note, start, memory="malloc", pin="pin"):
        self.name, self.note, self.start, self.memory, self.pin = name, note, start, memory, pin

    def measures(self, world, collective, size):
        """world: the number of ranks, or another argument of start()."""
        return True


class Limit(Library):
    """The limit that memory sets for the bytes that Tutti must move. Fewer bytes do not leave the caches. With more ranks
    than cores, the limit of these bytes and of a turn of each rank on its core, for any size of most collectives."""

    checked = False
    collectives = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all")
    not_all_meet = ("gather", "scatter", "ping_pong")  # a turn of each rank is no limit for them

    def measures(self, world, collective, size):
        if world > os.cpu_count() and collective in self.collectives + ("barrier",):
            return True
        return collective in self.collectives + self.not_all_meet and size >= shares.LEAST_BYTES


def output(command):
    """The output of a command, or "" if it does not exist or fails."""
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60, check=True)
        return done.stdout
    except (OSError, subprocess.SubprocessError):
        return ""


class Drivers:
    """Compiles the drivers of one comparison into a folder: its timing core with the file of each library."""

    def __init__(self, folder, core, prefix=""):
        self.folder, self.prefix = folder, prefix
        self.core = [os.path.join(HERE, name) for name in core]

    def source(self, name):
        return os.path.join(HERE, self.prefix + name)

    def build(self, compiler, source, program, *more):
        path = os.path.join(self.folder, program)
        subprocess.run([compiler, *COMPILE, *self.core, self.source(source), "-o", path, *more], check=True)
        return path

    def build_core(self):
        """Builds the core alone, as a loadable library."""
        path = os.path.join(self.folder, "libcore.so")
        subprocess.run(["cc", *COMPILE, "-fPIC", "-shared", *self.core, "-o", path], check=True)
        return path


def build_tutti(options, drivers):
    return build_tutti_of(options.build, ROOT, drivers, "tutti", "--build")


def build_tutti_of(build, source, drivers, program, option):
    folder = os.path.join(build, "lib")
    if not os.path.exists(os.path.join(folder, "libtutti.so")):
        sys.exit("%s has no libtutti.so; build Tutti first, or name its build folder with %s" % (folder, option))
    return drivers.build("cc", "tutti_calls.c", program, "-I" + os.path.join(source, "include"), "-L" + folder, "-ltutti",
                         "-Wl,-rpath," + os.path.abspath(folder))


def source_of(build):
    """The source folder of a build folder of CMake."""
    try:
        with open(os.path.join(build, "CMakeCache.txt"), encoding="utf-8") as file:
            return next(line.split("=", 1)[1].strip() for line in file if line.startswith("CMAKE_HOME_DIRECTORY:"))
    except (OSError, StopIteration):
        sys.exit("%s is not a build folder of CMake; name one of Tutti with --other" % build)


# --------------------------------------------------------------------------- peers built from source (bench/build_peers)


def built(options, name):
    """Whether the folder of --peers has a library."""
    return options.peers is not None and os.path.exists(os.path.join(options.peers, "lib", name))


def with_peers(options):
    """The environment that makes Open MPI use the UCX of --peers."""
    if not built(options, "libucp.so.0"):
        return {}
    found = [os.path.join(os.path.abspath(options.peers), "lib")] + os.environ.get("LD_LIBRARY_PATH", "").split(":")
    return {"LD_LIBRARY_PATH": ":".join(path for path in found if path)}


def ucx_version(options):
    """The version of the UCX that Open MPI and UCC use, as text."""
    if not built(options, "libucp.so.0"):
        return "the system's UCX"
    said = output([os.path.join(options.peers, "bin", "ucx_info"), "-v"])
    return " ".join(["UCX"] + [word for line in said.split("\n") for word in line.split() if word[:1].isdigit()][:1])


NO_UCC = "UCC (ucc): not built; build it with bench/build_peers, and name the folder with --peers"
NO_GLOO = "Gloo by itself (gloo): not built; build it with bench/build_peers, and name the folder with --peers"
GLOO_NOTE = "not pinned, as its helper threads would share the core"


def build_ucc(options, drivers):
    """The driver, or None."""
    if not built(options, "libucc.so"):
        return None
    folder = os.path.abspath(options.peers)
    return drivers.build("cc", "ucc.c", "ucc", "-isystem", folder + "/include", "-L%s/lib" % folder, "-lucc",
                         "-Wl,-rpath,%s/lib" % folder, "-Wl,-rpath-link,%s/lib" % folder)


def build_gloo(options, drivers):
    """The driver, or None."""
    if not built(options, "libgloo.a"):
        return None
    folder, program = os.path.abspath(options.peers), os.path.join(drivers.folder, "gloo")
    core = os.path.dirname(drivers.build_core())
    flags = ["-std=c++17"] + [flag for flag in COMPILE if not flag.startswith("-std=")]
    subprocess.run(["c++", *flags, "-isystem", folder + "/include", drivers.source("gloo_native.cc"), "-o", program, "-L" + core,
                    "-lcore", "-L%s/lib" % folder, "-lgloo", "-lpthread", "-Wl,-rpath," + core], check=True)
    return program


def find_ucc(options, drivers):
    program = build_ucc(options, drivers)
    if program is None:
        return [], [NO_UCC]

    def start(ranks, arguments):
        common = {"WORLD_SIZE": str(ranks), "UCX_TLS": "sm,self", "UCX_LOG_LEVEL": "error"}
        return [([program] + arguments, dict(common, RANK=str(rank))) for rank in range(ranks)]

    return [UCC("ucc", "UCC by its own interface, on %s, UCX_TLS=sm,self" % ucx_version(options), start)], []


class UCC(Library):
    """UCC has no messages, and on the host no scatter."""

    def measures(self, world, collective, size):
        return collective not in ("ping_pong", "scatter")


def find_gloo_native(options, drivers):
    program = build_gloo(options, drivers)
    if program is None:
        return [], [NO_GLOO]

    def start(ranks, arguments):
        common = {"WORLD_SIZE": str(ranks), "GLOO_STORE": make_store(arguments)}
        return [([program] + arguments, dict(common, RANK=str(rank))) for rank in range(ranks)]

    return [Library("gloo", "Gloo by its own interface; " + GLOO_NOTE, start, pin="free")], []


def make_store(arguments):
    """Makes a launch's folder for Gloo's store, beside the meeting's file."""
    folder = arguments[0] + ".store"
    os.mkdir(folder)
    return folder


# -------------------------------------------------------------------------------------------------- finders


def tutti_starter(build, program):
    """The start() of a library that is a build of Tutti."""
    tuttirun = os.path.join(build, "bin", "tuttirun")

    def start(ranks, arguments):
        command = [tuttirun, "--standalone", "--no-prefix", "--nproc-per-node", str(ranks), program]
        return [(command + arguments, {})]

    return start


def find_tutti(options, drivers):
    start = tutti_starter(options.build, build_tutti(options, drivers))
    return [Library("tutti", "ordinary memory", start),
            Library("tutti-mem", "memory from tutti_mem_alloc", start, memory="tutti")], []


def build_other(options, drivers):
    """The driver with another build of Tutti, such as one of an earlier commit."""
    return build_tutti_of(options.other, source_of(options.other), drivers, "other", "--other")


def others_of(start):
    """That build as a peer of this one."""
    return [Library("other", "the build of --other, ordinary memory", start),
            Library("other-mem", "the same, memory from tutti_mem_alloc", start, memory="tutti")], []


def find_other(options, drivers):
    return others_of(tutti_starter(options.other, build_other(options, drivers)))


def other_finders(options, finder):
    return [(finder, ["other", "other-mem"])] if options.other else []


def find_limits(libraries, drivers):
    """Returns the limits by the name of the Tutti library that they apply to."""
    program = drivers.build("cc", "limit.c", "limit")

    def start(ranks, arguments):
        return [([program] + arguments, {"RANK": str(rank), "WORLD_SIZE": str(ranks)}) for rank in range(ranks)]

    limits = {"tutti": Limit("limit", "limit of the memory on tutti's path, or of the turns of ranks that share cores (peers/limit.c)", start),
              "tutti-mem": Limit("limit-mem", "the same for tutti-mem", start, memory="shared")}
    return {library.name: limits[library.name] for library in libraries if library.name in limits}


def has_header(compiler):
    """Debian has the compiler's wrapper in one package and the header in another."""
    done = subprocess.run([compiler, "-xc", "-c", "-", "-o", os.devnull], input="#include <mpi.h>", text=True, capture_output=True, check=False)
    return done.returncode == 0


def find_mpi(kind, mark):
    """(compiler, launcher) of an MPI whose launcher names itself with `mark`, or None."""
    for suffix in ("." + kind, ""):
        compiler, launcher = shutil.which("mpicc" + suffix), shutil.which("mpirun" + suffix)
        if compiler and launcher and mark in output([launcher, "--version"]) and has_header(compiler):
            return compiler, launcher
    return None


NO_OPENMPI = "Open MPI (ompi): found no mpirun, or no mpicc that finds mpi.h (Debian: openmpi-bin, libopenmpi-dev)"
NO_OMPI_UCX = "Open MPI over UCX (ompi-ucx): this Open MPI has no pml ucx"
NO_MPICH = "MPICH (mpich): found no mpirun, or no mpicc that finds mpi.h (Debian: mpich, libmpich-dev)"


def build_openmpi(drivers):
    """Returns (launcher, driver, output of ompi_info), or None."""
    found = find_mpi("openmpi", "Open MPI")
    if found is None:
        return None
    compiler, launcher = found
    program = drivers.build(compiler, "mpi.c", "openmpi")
    return launcher, program, output([os.path.join(os.path.dirname(launcher), "ompi_info"), "--parsable"])


def find_openmpi(options, drivers):
    found = build_openmpi(drivers)
    if found is None:
        return [], [NO_OPENMPI]
    launcher, program, info = found
    cores, newer = os.cpu_count(), with_peers(options)

    def starter(settings):
        def start(ranks, arguments):
            command = [launcher, "-n", str(ranks), "--bind-to", "none"]
            command += ["--allow-run-as-root"] if os.geteuid() == 0 else []
            command += ["--oversubscribe", "--mca", "mpi_yield_when_idle", "1"] if ranks > cores else []
            for name, value in settings:
                command += ["--mca", name, value]
            return [(command + [program] + arguments, dict(newer, UCX_TLS="sm,self", UCX_LOG_LEVEL="error"))]
        return start

    shared = [("pml", "ob1"), ("btl", "self,vader")]
    libraries = [Library("ompi", "Open MPI; pml ob1, btl self,vader", starter(shared)),
                 Library("ompi-sm", "the same, coll_sm_priority 100", starter(shared + [("coll_sm_priority", "100")]))]
    missing = []
    if "mca:pml:ucx:" in info:
        ucx = [("pml", "ucx"), ("opal_common_ucx_tls", "any"), ("opal_common_ucx_devices", "any")]
        libraries.append(Library("ompi-ucx", "Open MPI; pml ucx on %s, UCX_TLS=sm,self" % ucx_version(options), starter(ucx)))
    else:
        missing.append(NO_OMPI_UCX)
    return libraries, missing


def find_mpich(options, drivers):
    found = find_mpi("mpich", "HYDRA")
    if found is None:
        return [], [NO_MPICH]
    compiler, launcher = found
    program = drivers.build(compiler, "mpi.c", "mpich")

    def start(ranks, arguments):
        environment = {"MPIR_CVAR_POLLS_BEFORE_YIELD": "1"} if ranks > os.cpu_count() else {}
        return [([launcher, "-n", str(ranks), program] + arguments, environment)]

    return [Library("mpich", "MPICH, defaults", start)], []


def miss_gloo(options):
    """The lines with the reason why Gloo is not compared."""
    if output([options.python, "-c", "import torch.distributed as d; assert d.is_gloo_available(); print(1)"]):
        return []
    return ["Gloo through PyTorch (torch-gloo): no PyTorch with Gloo in the Python that --python names"]


def find_torch_gloo(options, drivers):
    if miss_gloo(options):
        return [], miss_gloo(options)
    core = drivers.build_core()

    def start(ranks, arguments):
        # A fresh file for each launch, like the meeting file.
        common = {"WORLD_SIZE": str(ranks), "CORE_LIBRARY": core, "GLOO_STORE": arguments[0] + ".gloo",
                  "OMP_NUM_THREADS": "1"}
        command = [options.python, drivers.source("gloo.py")] + arguments
        return [(command, dict(common, RANK=str(rank))) for rank in range(ranks)]

    return [Library("torch-gloo", "Gloo through PyTorch; " + GLOO_NOTE, start, pin="free")], []


FINDERS = [(find_tutti, ["tutti", "tutti-mem"]), (find_openmpi, ["ompi", "ompi-sm", "ompi-ucx"]),
           (find_ucc, ["ucc"]), (find_mpich, ["mpich"]), (find_gloo_native, ["gloo"]), (find_torch_gloo, ["torch-gloo"])]


def find(options, drivers, finders=None):
    """Returns (libraries, lines about those that are not compared); finders: a replacement for FINDERS."""
    libraries, missing = [], []
    wanted = None if options.libraries is None else options.libraries.split(",") + ["tutti"]
    for look, names in finders or FINDERS:
        if wanted is not None and not set(names) & set(wanted):
            missing += ["%s: left out by --libraries" % name for name in names]
            continue
        found, reasons = look(options, drivers)
        libraries += found
        missing += reasons
    if wanted is not None:
        missing += ["%s: left out by --libraries" % library.name for library in libraries if library.name not in wanted]
        libraries = [library for library in libraries if library.name in wanted]
    return libraries, missing
