"""Hosts for a comparison: network namespaces, each with an interface eth0 at 10.77.0.<host + 1>/24; two are joined
directly, more by a bridge. The namespaces have no names and end with this process. Each also has its own host name, and
namespaces of processes and of System V memory, by which libraries distinguish hosts.

As a program: runs a command on the first host, with HOSTS set to the process ids of the hosts' first processes, so that
`nsenter -t ID -n -u COMMAND` runs a command on a host."""
import argparse
import os
import shutil
import subprocess
import sys

NETWORK = "10.77.0.%d"
LIMIT = "tc qdisc add dev %s root tbf rate %s burst 256k latency 50ms"


class Refused(Exception):
    """Raised if this system does not permit making hosts; its text is the reason."""


def run(command, text=None):
    done = subprocess.run(command, input=text, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode != 0:
        raise Refused("%s: %s" % (" ".join(command), " ".join(done.stdout.split())))


class Hosts:
    """`with Hosts(2, rate="1gbit", congestion="reno") as hosts:`"""

    def __init__(self, count, rate=None, congestion=None):
        self.count, self.holders = count, []
        try:
            self.make(rate, congestion)
        except BaseException:
            self.close()
            raise

    def make(self, rate, congestion):
        switch = None if self.count == 2 else self.hold("switch")
        for host in range(self.count):
            self.hold("host%d" % host)
        pids = self.pids()
        if switch is None:
            self.shell(0, "ip link add eth0 type veth peer name eth0 netns %d" % pids[1])
        else:
            self.enter(switch, "ip link add switch type bridge && ip link set switch up")
        for host in range(self.count):
            if switch is not None:
                self.enter(switch, "ip link add port%d type veth peer name eth0 netns %d && ip link set port%d master switch up"
                           % (host, pids[host], host))
            self.shell(host, "ip link set lo up && ip address add %s/24 dev eth0 && ip link set eth0 up" % address(host))
            if congestion:
                self.choose_congestion(host, congestion)
            if rate:
                self.shell(host, LIMIT % ("eth0", rate))
                if switch is not None:
                    self.enter(switch, LIMIT % ("port%d" % host, rate))

    def choose_congestion(self, host, congestion):
        try:
            self.shell(host, "echo %s >/proc/sys/net/ipv4/tcp_congestion_control" % congestion)
        except Refused as error:
            raise Refused("hosts may not use the congestion control %s (%s); network namespaces may use those of the system's "
                          "/proc/sys/net/ipv4/tcp_allowed_congestion_control: add it there" % (congestion, error)) from error

    def hold(self, name):
        """Starts a process in new namespaces; it ends when this process does, because its input ends."""
        command = ["unshare", "--net", "--uts", "--ipc", "sh", "-c", "hostname %s && echo ready && exec cat" % name]
        holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.holders.append(holder)
        if holder.stdout.readline() != "ready\n":
            raise Refused("no namespaces: " + " ".join(holder.stderr.read().split()))
        return holder

    def pids(self):
        """The process id of each host's first process."""
        return [holder.pid for holder in self.holders[-self.count:]]

    def prefix(self, host):
        """The prefix that makes a command run on that host."""
        return ["nsenter", "-t", str(self.pids()[host]), "-n", "-u", "-i"]

    def shell(self, host, command):
        run(self.prefix(host) + ["sh", "-ec", command])

    @staticmethod
    def enter(holder, command):
        run(["nsenter", "-t", str(holder.pid), "-n", "sh", "-ec", command])

    def agent(self, folder):
        """Writes a substitute for ssh that takes a host's address; MPI launchers start their daemons with it."""
        path = os.path.join(folder, "agent")
        with open(path, "w", encoding="ascii") as file:
            file.write("#!/bin/sh\nwhile [ \"${1#-}\" != \"$1\" ]; do shift; done\nhost=$1\nshift\ncase $host in\n")
            for host, pid in enumerate(self.pids()):
                file.write("%s) pid=%d ;;\n" % (address(host), pid))
            file.write('*) echo "no host $host" >&2; exit 1 ;;\nesac\nexec nsenter -t $pid -n -u -i sh -c "$*"\n')
        os.chmod(path, 0o755)
        return path

    def bytes_sent(self, host):
        """The bytes over eth0, including headers."""
        with open("/proc/%d/net/dev" % self.pids()[host], encoding="ascii") as file:
            return next(int(line.split()[9]) for line in file if line.split()[0] == "eth0:")

    def close(self):
        for holder in self.holders:
            holder.stdin.close()
        for holder in self.holders:
            holder.wait()
            holder.stdout.close()
            holder.stderr.close()
        self.holders = []

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self.close()


def address(host):
    return NETWORK % (host + 1)


def refused():
    """Returns "", or the reason why hosts cannot be made."""
    for program in ("unshare", "nsenter", "ip", "tc"):
        if not shutil.which(program):
            return "%s is not installed" % program
    try:
        with Hosts(2):
            return ""
    except (Refused, OSError) as error:
        return str(error)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=2, help="%(default)s")
    parser.add_argument("--rate", help="rate of each link, each way, in tc's notation: 1gbit")
    parser.add_argument("--congestion", help="congestion control of TCP")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    if not options.command:
        parser.error("no command")
    try:
        with Hosts(options.hosts, options.rate, options.congestion) as hosts:
            environment = dict(os.environ, HOSTS=" ".join(map(str, hosts.pids())))
            return subprocess.run(hosts.prefix(0) + options.command, env=environment, check=False).returncode
    except Refused as error:
        sys.exit("hosts: %s" % error)


if __name__ == "__main__":
    sys.exit(main())
