"""The libraries of a comparison: which are here, how their drivers are built, how a launch of each is started."""
import os
import shutil
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
COMPILE = ["-std=gnu17", "-D_GNU_SOURCE", "-O3", "-march=native", "-Wall", "-Wextra", "-I" + HERE]


class Library:
    """One column of the tables. start(ranks, arguments) gives a list of (command, environment) to run side by side."""

    checked = True  # whether its results count

    def __init__(self, name, note, start, memory="malloc", pin="pin"):
        self.name, self.note, self.start, self.memory, self.pin = name, note, start, memory, pin

    def measures(self, collective, size):
        return True


class Limit(Library):
    """What memory allows for the bytes that Tutti must move. Fewer bytes do not leave the caches."""

    checked = False
    least_bytes = 16 << 20
    collectives = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all")

    def measures(self, collective, size):
        return collective in self.collectives and size >= self.least_bytes


def output(command):
    """What a command prints, or "" when it is not there or fails."""
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
        """The core alone, as a library to load."""
        path = os.path.join(self.folder, "libcore.so")
        subprocess.run(["cc", *COMPILE, "-fPIC", "-shared", *self.core, "-o", path], check=True)
        return path


def build_tutti(options, drivers):
    header, folder = os.path.join(ROOT, "include"), os.path.join(options.build, "lib")
    if not os.path.exists(os.path.join(folder, "libtutti.so")):
        sys.exit("%s has no libtutti.so; build Tutti first, or name its build folder by --build" % folder)
    return drivers.build("cc", "tutti.c", "tutti", "-I" + header, "-L" + folder, "-ltutti",
                         "-Wl,-rpath," + os.path.abspath(folder))


def find_tutti(options, drivers):
    program = build_tutti(options, drivers)
    tuttirun = os.path.join(options.build, "bin", "tuttirun")

    def start(ranks, arguments):
        command = [tuttirun, "--standalone", "--no-prefix", "--nproc-per-node", str(ranks), program]
        return [(command + arguments, {})]

    return [Library("tutti", "ordinary memory", start),
            Library("tutti-mem", "memory from tutti_mem_alloc", start, memory="tutti")], []


def find_limits(libraries, drivers):
    """For each of Tutti's libraries, by its name, what is measured against it."""
    program = drivers.build("cc", "limit.c", "limit")

    def start(ranks, arguments):
        return [([program] + arguments, {"RANK": str(rank), "WORLD_SIZE": str(ranks)}) for rank in range(ranks)]

    limits = {"tutti": Limit("limit", "what memory allows on tutti's path (peers/limit.c)", start),
              "tutti-mem": Limit("limit-mem", "the same for tutti-mem", start, memory="shared")}
    return {library.name: limits[library.name] for library in libraries if library.name in limits}


def find_mpi(kind, mark):
    """(compiler, launcher) of an MPI whose launcher names itself with `mark`, or None."""
    for suffix in ("." + kind, ""):
        compiler, launcher = shutil.which("mpicc" + suffix), shutil.which("mpirun" + suffix)
        if compiler and launcher and mark in output([launcher, "--version"]):
            return compiler, launcher
    return None


NO_OPENMPI = "Open MPI (ompi): no mpicc and mpirun of it found"
NO_OMPI_UCX = "Open MPI over UCX (ompi-ucx): this Open MPI has no pml ucx"
NO_MPICH = "MPICH (mpich): no mpicc and mpirun of it found"


def build_openmpi(drivers):
    """(launcher, driver, what ompi_info says), or None."""
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
    cores = os.cpu_count()

    def starter(settings):
        def start(ranks, arguments):
            command = [launcher, "-n", str(ranks), "--bind-to", "none"]
            command += ["--allow-run-as-root"] if os.geteuid() == 0 else []
            command += ["--oversubscribe", "--mca", "mpi_yield_when_idle", "1"] if ranks > cores else []
            for name, value in settings:
                command += ["--mca", name, value]
            return [(command + [program] + arguments, {"UCX_TLS": "sm,self", "UCX_LOG_LEVEL": "error"})]
        return start

    shared = [("pml", "ob1"), ("btl", "self,vader")]
    libraries = [Library("ompi", "Open MPI; pml ob1, btl self,vader", starter(shared)),
                 Library("ompi-sm", "the same, coll_sm_priority 100", starter(shared + [("coll_sm_priority", "100")]))]
    missing = []
    if "mca:pml:ucx:" in info:
        ucx = [("pml", "ucx"), ("opal_common_ucx_tls", "any"), ("opal_common_ucx_devices", "any")]
        libraries.append(Library("ompi-ucx", "Open MPI; pml ucx, UCX_TLS=sm,self", starter(ucx)))
        if "mca:coll:ucc:" in info:
            ucc = ucx + [("coll_ucc_enable", "1"), ("coll_ucc_priority", "100")]
            libraries.append(Library("ucc", "UCC through Open MPI's coll/ucc, UCX_TLS=sm,self", starter(ucc)))
    else:
        missing.append(NO_OMPI_UCX)
    if "mca:coll:ucc:" not in info:
        missing.append("UCC (ucc): this Open MPI has no coll/ucc, through which it would be driven")
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
    """Lines that say why Gloo is not compared."""
    if output([options.python, "-c", "import torch.distributed as d; assert d.is_gloo_available(); print(1)"]):
        return []
    return ["Gloo (gloo): %s has no PyTorch with Gloo; name one by --python" % options.python]


def find_gloo(options, drivers):
    if miss_gloo(options):
        return [], miss_gloo(options)
    core = drivers.build_core()

    def start(ranks, arguments):
        # A fresh file for each launch: the meeting file is one too.
        common = {"WORLD_SIZE": str(ranks), "CORE_LIBRARY": core, "GLOO_STORE": arguments[0] + ".gloo",
                  "OMP_NUM_THREADS": "1"}
        command = [options.python, drivers.source("gloo.py")] + arguments
        return [(command, dict(common, RANK=str(rank))) for rank in range(ranks)]

    return [Library("gloo", "Gloo through PyTorch; not pinned, as its helper threads would share the core", start,
                    pin="free")], []


FINDERS = [(find_tutti, ["tutti", "tutti-mem"]), (find_openmpi, ["ompi", "ompi-sm", "ompi-ucx", "ucc"]),
           (find_mpich, ["mpich"]), (find_gloo, ["gloo"])]


def find(options, drivers, finders=None):
    """(libraries, lines about those that are not compared); finders: others than FINDERS."""
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
