"""Hosts as network namespaces on one bridge, with an instance over them, for scripts that measure.

Needs root, ip and tc.
"""
import os
import subprocess
import sys
import tempfile


def run(*words, **more):
    """The output of a command; the script ends if it fails."""
    done = subprocess.run(words, capture_output=True, text=True, **more)
    if done.returncode:
        sys.exit(f"{' '.join(words)}: {done.stderr}{done.stdout}")
    return done.stdout


class Hosts:
    """Hosts with these names, and the programs in a directory; `settings`: variables of the instance."""

    def __init__(self, programs, names, settings):
        self.programs = os.path.abspath(programs)
        self.names = names
        self.settings = settings
        self.prefix = f"fb{os.getpid()}"
        self.root = tempfile.mkdtemp()
        os.chmod(self.root, 0o755)
        try:
            self.make()
        except BaseException:
            self.remove()
            raise

    def make(self):
        self.ip(f"netns add {self.prefix}hub")
        self.ip(f"-n {self.prefix}hub link add br0 type bridge")
        self.ip(f"-n {self.prefix}hub link set br0 up")
        for number, name in enumerate(self.names):
            os.makedirs(f"{self.root}/{name}")
            self.add(name, f"10.81.0.{number + 1}")
        os.makedirs(f"{self.root}/data")
        with open(f"{self.root}/nodes", "w") as nodes:
            nodes.writelines(f"{name} 10.81.0.{at + 1}\n" for at, name in enumerate(self.names))
        with open(f"{self.root}/ssh", "w") as ssh:
            ssh.write(f"#!/bin/sh\nhost=$1; shift\nXDG_RUNTIME_DIR={self.root}/$host \\\n"
                      f"exec ip netns exec {self.prefix}$host \"$@\"\n")
        os.chmod(f"{self.root}/ssh", 0o755)

    def ip(self, words):
        run("ip", *words.split())

    def add(self, name, address):
        space = self.prefix + name
        self.ip(f"netns add {space}")
        self.ip(f"-n {space} link set lo up")
        self.ip(f"-n {self.prefix}hub link add v{name} type veth peer name eth0 netns {space}")
        self.ip(f"-n {self.prefix}hub link set v{name} master br0 up")
        self.ip(f"-n {space} addr add {address}/24 dev eth0")
        self.ip(f"-n {space} link set eth0 up")

    def throttle(self, name, rate, burst):
        """The link of a host passes `rate` MB/s to it, in bursts of so many KiB."""
        words = f"root tbf rate {rate * 8000}kbit burst {burst}kb latency 200ms"
        run("tc", "-n", f"{self.prefix}hub", "qdisc", "add", "dev", f"v{name}", *words.split())

    def command(self, host, *words):
        """Words and environment of a command of `forebay` on a host."""
        own = {
            "XDG_RUNTIME_DIR": f"{self.root}/{host}", "XDG_STATE_HOME": f"{self.root}/{self.names[0]}",
            "FOREBAY_SSH": f"{self.root}/ssh", "FOREBAY_DIR": f"{self.root}/data",
            "FOREBAY_ACCESS": "preload", "FOREBAY_NAME": "measured", "FOREBAY_SSD": "0",
        }
        words = ["ip", "netns", "exec", self.prefix + host, f"{self.programs}/forebay", *words]
        return words, os.environ | own | self.settings

    def forebay(self, *words):
        """The output of a command of `forebay` on the first host."""
        words, environment = self.command(self.names[0], *words)
        return run(*words, env=environment)

    def start(self):
        self.forebay("start", "--hosts", f"{self.root}/nodes")

    def stop(self):
        self.forebay("stop", "--discard")

    def remove(self):
        for name in [*self.names, "hub"]:
            subprocess.run(["ip", "netns", "del", self.prefix + name], stderr=subprocess.DEVNULL, check=False)
        subprocess.run(["rm", "-rf", self.root], check=False)
