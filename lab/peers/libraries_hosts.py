"""The libraries of a comparison between hosts: as in libraries.py, but start() takes a World, whose hosts are
running."""
import os

import hosts as network
import libraries as peers
import sweep

STORE_PORT = "29500"


class World:
    """Ranks on hosts, in blocks, and the network between them. Used in a `with` statement, which makes the hosts."""

    def __init__(self, per_host, congestion=None, rate=None):
        self.per_host, self.congestion, self.rate, self.hosts = per_host, congestion, rate, None

    def __str__(self):
        limits = "".join(", " + word for word in (self.congestion, self.rate) if word)
        alike = len(self.per_host) > 3 and len(set(self.per_host)) == 1
        layout = "%dx%d" % (len(self.per_host), self.per_host[0]) if alike else "+".join(map(str, self.per_host))
        return "%s ranks%s" % (layout, limits)

    def gigabytes(self):
        """The rate in GB/s, or None."""
        units = {"kbit": 8e6, "mbit": 8e3, "gbit": 8.0}
        return float(self.rate[:-4]) / units[self.rate[-4:]] if self.rate else None

    def __enter__(self):
        self.hosts = network.Hosts(len(self.per_host), self.rate, self.congestion)
        return self

    def __exit__(self, *unused):
        self.hosts.close()
        self.hosts = None

    @property
    def size(self):
        return sum(self.per_host)

    def crowded(self):
        return self.size > os.cpu_count()

    def places(self):
        """Returns (rank, host, rank on that host) for every rank."""
        rank = 0
        for host, ranks in enumerate(self.per_host):
            for local in range(ranks):
                yield rank, host, local
                rank += 1

    def variables(self, rank, host, local):
        """The variables that torchrun sets."""
        return {"RANK": str(rank), "WORLD_SIZE": str(self.size), "LOCAL_RANK": str(local),
                "LOCAL_WORLD_SIZE": str(self.per_host[host]), "GROUP_RANK": str(host),
                "GROUP_WORLD_SIZE": str(len(self.per_host)), "MASTER_ADDR": network.address(0), "MASTER_PORT": STORE_PORT}

    def start_ranks(self, command, environment):
        """The command of each rank, without a launcher."""
        return [(self.hosts.prefix(host) + command, dict(self.variables(rank, host, local), **environment))
                for rank, host, local in self.places()]

    def host_list(self):
        """host:ranks,host:ranks"""
        return ",".join("%s:%d" % (network.address(host), ranks) for host, ranks in enumerate(self.per_host))


def starter_of(program):
    """The start() of a library whose ranks need no launcher."""
    return lambda world, arguments: world.start_ranks([program] + arguments, {})


def find_tutti(options, drivers):
    start = starter_of(peers.build_tutti(options, drivers))
    return [peers.Library("tutti", "ordinary memory", start),
            peers.Library("tutti-mem", "memory from tutti_mem_alloc", start, memory="tutti")], []


def find_other(options, drivers):
    return peers.others_of(starter_of(peers.build_other(options, drivers)))


# The rows of the table of algorithms between hosts (comm/net/coll/rail_table.c), and their collectives.
ROWS = {"direct_whole": "all_reduce", "direct": "all_reduce reduce_scatter all_gather broadcast all_to_all gather scatter",
        "ring": "all_reduce reduce_scatter all_gather", "chain": "broadcast", "doubling": "all_reduce", "halving": "all_reduce",
        "tree": "broadcast", "double_tree": "all_reduce broadcast",
        "bruck": "all_gather all_to_all"}


class Row(peers.Library):
    """Tutti with one row for all sizes."""

    def measures(self, world, collective, size):
        return collective in ROWS[self.name].split()


def find_rows(options, drivers):
    """Tutti with each row, with sums in any order, and with its own choice then."""
    program = peers.build_tutti(options, drivers)

    def starter(environment):
        return lambda world, arguments: world.start_ranks([program] + arguments, environment)

    any_order = {"TUTTI_DETERMINISTIC": "0"}
    rows = [Row(name, "TUTTI_ALGORITHM=%s TUTTI_DETERMINISTIC=0" % name, starter(dict(any_order, TUTTI_ALGORITHM=name)))
            for name in ROWS]
    return [peers.Library("any-order", "TUTTI_DETERMINISTIC=0", starter(any_order))] + rows, []


class Sockets(peers.Library):
    """The limit of bare sockets; its results are not checked."""

    checked = False

    def measures(self, world, collective, size):
        return collective not in sweep.ON_DEMAND


def find_sockets(drivers):
    """Only for two hosts with the same number of ranks."""
    program = drivers.build("cc", "sockets.c", "sockets", os.path.join(peers.HERE, "wire.c"))
    note = "bare sockets, one per pair of ranks, moving the necessary bytes (peers/sockets.c)"
    return Sockets("limit", note, starter_of(program))


UCX = {"UCX_TLS": "tcp,sm,self", "UCX_NET_DEVICES": "eth0", "UCX_LOG_LEVEL": "error"}


def find_openmpi(options, drivers):
    found = peers.build_openmpi(drivers)
    if found is None:
        return [], [peers.NO_OPENMPI]
    launcher, program, info = found
    newer = peers.with_peers(options)

    def starter(settings, environment):
        def start(world, arguments):
            # Daemons stay children of this process, so that their use of the cores counts as the comparison's.
            command = world.hosts.prefix(0) + [launcher, "--leave-session-attached", "-n", str(world.size), "--host",
                                               world.host_list(), "--bind-to", "none"]
            command += ["--allow-run-as-root"] if os.geteuid() == 0 else []
            everywhere = [("plm_rsh_agent", world.hosts.agent(drivers.folder)), ("plm_rsh_no_tree_spawn", "1"),
                          ("oob_tcp_if_include", "eth0"), ("mpi_yield_when_idle", "1" if world.crowded() else "0")]
            for name, value in everywhere + settings:
                command += ["--mca", name, value]
            for name in environment:
                command += ["-x", name]
            return [(command + [program] + arguments, environment)]
        return start

    tcp = [("pml", "ob1"), ("btl", "self,vader,tcp"), ("btl_tcp_if_include", "eth0")]
    libraries, missing = [peers.Library("ompi", "Open MPI; pml ob1, btl self,vader,tcp", starter(tcp, {}))], []
    if "mca:pml:ucx:" in info:
        ucx = [("pml", "ucx"), ("opal_common_ucx_tls", "any"), ("opal_common_ucx_devices", "any")]
        note = "Open MPI; pml ucx on %s, UCX_TLS=tcp,sm,self" % peers.ucx_version(options)
        libraries.append(peers.Library("ompi-ucx", note, starter(ucx, dict(newer, **UCX))))
    else:
        missing.append(peers.NO_OMPI_UCX)
    return libraries, missing


def find_mpich(options, drivers):
    found = peers.find_mpi("mpich", "HYDRA")
    if found is None:
        return [], [peers.NO_MPICH]
    compiler, launcher = found
    program = drivers.build(compiler, "mpi.c", "mpich")

    def start(world, arguments):
        command = world.hosts.prefix(0) + [launcher, "-launcher", "ssh", "-launcher-exec",
                                           world.hosts.agent(drivers.folder), "-iface", "eth0", "-hosts", world.host_list(),
                                           "-n", str(world.size), program]
        environment = dict(UCX)
        if world.crowded():
            environment["MPIR_CVAR_POLLS_BEFORE_YIELD"] = "1"
        return [(command + arguments, environment)]

    return [peers.Library("mpich", "MPICH, UCX_TLS=tcp,sm,self", start)], []


def find_ucc(options, drivers):
    program = peers.build_ucc(options, drivers)
    if program is None:
        return [], [peers.NO_UCC]

    def start(world, arguments):
        return world.start_ranks([program] + arguments, UCX)

    note = "UCC by its own interface, on %s, UCX_TLS=tcp,sm,self" % peers.ucx_version(options)
    return [peers.UCC("ucc", note, start)], []


def find_gloo_native(options, drivers):
    program = peers.build_gloo(options, drivers)
    if program is None:
        return [], [peers.NO_GLOO]

    def start(world, arguments):
        environment = {"GLOO_STORE": peers.make_store(arguments), "GLOO_SOCKET_IFNAME": "eth0"}
        return world.start_ranks([program] + arguments, environment)

    return [peers.Library("gloo", "Gloo by its own interface; " + peers.GLOO_NOTE, start, pin="free")], []


def find_torch_gloo(options, drivers):
    if peers.miss_gloo(options):
        return [], peers.miss_gloo(options)
    core = drivers.build_core()

    def start(world, arguments):
        environment = {"CORE_LIBRARY": core, "GLOO_STORE": arguments[0] + ".gloo", "OMP_NUM_THREADS": "1",
                       "GLOO_SOCKET_IFNAME": "eth0"}
        return world.start_ranks([options.python, drivers.source("gloo.py")] + arguments, environment)

    return [peers.Library("torch-gloo", "Gloo through PyTorch; " + peers.GLOO_NOTE, start, pin="free")], []


FINDERS = [(find_tutti, ["tutti", "tutti-mem"]), (find_openmpi, ["ompi", "ompi-ucx"]), (find_ucc, ["ucc"]),
           (find_mpich, ["mpich"]), (find_gloo_native, ["gloo"]), (find_torch_gloo, ["torch-gloo"])]
ROW_FINDERS = [FINDERS[0], (find_rows, ["any-order", *ROWS])]
