"""Two hosts on this machine: network namespaces joined by one cable, each with its own host name.

A namespace lives as long as the process that holds it, so nothing remains after the test's process. Needs root, or a
user namespace (tests/support/with_hosts makes one).
"""
import ctypes
import os
import shutil
import signal
import subprocess
import unittest

PATH = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
TOOLS = ("unshare", "nsenter", "ip")
HOLD = "hostname %s && ip link set lo up && echo ready && exec sleep 600"
PR_SET_PDEATHSIG = 1


def die_with_parent():
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def call(command):
    done = subprocess.run(command, env=dict(os.environ, PATH=PATH), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=20, check=False)
    if done.returncode != 0:
        raise unittest.SkipTest("cannot make network namespaces: %s: %s" % (" ".join(command), done.stdout.strip()))


class Host:
    """close() removes everything, even if only a part could be made."""

    def __init__(self, number):
        self.name, self.address = "tutti-host-%d" % number, "10.78.0.%d" % (number + 1)
        self.holder = subprocess.Popen([shutil.which("unshare", path=PATH), "--net", "--uts", "sh", "-c", HOLD % self.name], preexec_fn=die_with_parent,
                                       env=dict(os.environ, PATH=PATH), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        said = self.holder.stdout.readline().strip()
        if said != "ready":
            self.close()
            raise unittest.SkipTest("cannot make network namespaces: " + said)

    def enter(self, *command):
        """The command that runs `command` on this host."""
        return [shutil.which("nsenter", path=PATH), "--net", "--uts", "--target", str(self.holder.pid), *command]

    def close(self):
        self.holder.kill()
        self.holder.wait()
        self.holder.stdout.close()


def two_hosts():
    """Makes two joined hosts; raises SkipTest, with the reason, if that is not permitted."""
    missing = [tool for tool in TOOLS if shutil.which(tool, path=PATH) is None]
    if missing:
        raise unittest.SkipTest("%s is not installed (iproute2, util-linux)" % ", ".join(missing))
    hosts = []
    try:
        hosts += [Host(0)]
        hosts += [Host(1)]
        call(hosts[0].enter("ip", "link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", str(hosts[1].holder.pid)))
        for host in hosts:
            call(host.enter("ip", "address", "add", host.address + "/24", "dev", "eth0"))
            call(host.enter("ip", "link", "set", "eth0", "up"))
    except unittest.SkipTest:
        for host in hosts:
            host.close()
        raise
    return hosts
