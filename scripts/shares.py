#!/usr/bin/env python3
"""Measures shares of users and jobs (docs/benchmarks/shares.md).

usage: scripts/shares.py BIN NUMBER..   BIN: directory of the programs; NUMBER: writers of the other

Three hosts are network namespaces; the link of the second passes RATE. On the first, A writes one file to
the second host by one `dd`, and the other, B, at the same time by NUMBER of them, until A has ended. Users
write through a mount, jobs by the preload library, in the third case B on the third host; each without rules
and with the rule `fair * weight=100`. Needs root, ip and tc.
"""
import json
import os
import signal
import subprocess
import sys
import tempfile
import time

RATE = 20  # MB/s
FILE_MIB = 40
PREFIX = f"fbs{os.getpid()}"
HOSTS = ["a", "b", "c"]


def run(*words, **more):
    done = subprocess.run(words, capture_output=True, text=True, **more)
    if done.returncode:
        sys.exit(f"{' '.join(words)}: {done.stderr}{done.stdout}")
    return done.stdout


class Instance:
    def __init__(self, programs):
        self.programs = os.path.abspath(programs)
        self.root = tempfile.mkdtemp()
        os.chmod(self.root, 0o755)
        self.ip(f"netns add {PREFIX}hub")
        self.ip(f"-n {PREFIX}hub link add br0 type bridge")
        self.ip(f"-n {PREFIX}hub link set br0 up")
        for number, host in enumerate(HOSTS):
            os.makedirs(f"{self.root}/{host}")
            space = PREFIX + host
            self.ip(f"netns add {space}")
            self.ip(f"-n {space} link set lo up")
            self.ip(f"-n {PREFIX}hub link add v{host} type veth peer name eth0 netns {space}")
            self.ip(f"-n {PREFIX}hub link set v{host} master br0 up")
            self.ip(f"-n {space} addr add 10.82.0.{number + 1}/24 dev eth0")
            self.ip(f"-n {space} link set eth0 up")
        words = f"root tbf rate {RATE * 8000}kbit burst 64kb latency 200ms"
        run("tc", "-n", f"{PREFIX}hub", "qdisc", "add", "dev", "vb", *words.split())
        os.makedirs(f"{self.root}/data")
        os.makedirs(f"{self.root}/mount")
        with open(f"{self.root}/nodes", "w") as nodes:
            nodes.writelines(f"{host} 10.82.0.{at + 1}\n" for at, host in enumerate(HOSTS))
        with open(f"{self.root}/ssh", "w") as ssh:
            ssh.write(f"#!/bin/sh\nhost=$1; shift\nXDG_RUNTIME_DIR={self.root}/$host \\\n"
                      f"exec ip netns exec {PREFIX}$host \"$@\"\n")
        os.chmod(f"{self.root}/ssh", 0o755)

    def ip(self, words):
        run("ip", *words.split())

    def command(self, host, *words):
        own = {
            "XDG_RUNTIME_DIR": f"{self.root}/{host}", "XDG_STATE_HOME": f"{self.root}/a",
            "FOREBAY_SSH": f"{self.root}/ssh", "FOREBAY_DIR": f"{self.root}/data",
            "FOREBAY_ACCESS": "preload", "FOREBAY_NAME": "shares",
            "FOREBAY_MEMORY": "2GiB", "FOREBAY_SSD": "0",
        }
        words = ["ip", "netns", "exec", PREFIX + host, f"{self.programs}/forebay", *words]
        return words, os.environ | own

    def forebay(self, *words):
        words, environment = self.command("a", *words)
        return run(*words, env=environment)

    def remove(self):
        for name in [*HOSTS, "hub"]:
            subprocess.run(["ip", "netns", "del", PREFIX + name], check=False)
        subprocess.run(["rm", "-rf", self.root], check=False)


def writer(instance, way, who, file, server):
    """A `dd` of A or B as its own process group; B's repeats until it is ended."""
    repeat = "while :; do {0}; done" if who == "B" else "{0}"
    dd = f"dd if=/dev/zero of={{0}}/far/{file} bs=1M count={FILE_MIB} conv=fsync,notrunc"
    if way == "users":
        user = {"A": "7001", "B": "7002"}[who]
        dd = dd.format(f"{instance.root}/mount")
        enter = ["nsenter", "-m", "-n", "-t", str(server), "setpriv", "--reuid", user, "--regid", user,
                 "--clear-groups", "sh", "-c", repeat.format(dd)]
        words, environment = enter, os.environ
    else:
        dd = dd.format("/forebay")
        host = "c" if way == "hosts" and who == "B" else "a"
        run_it = ["run", "-q", "--job", who, "--", "sh", "-c", repeat.format(dd)]
        words, environment = instance.command(host, *run_it)
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    return subprocess.Popen(words, env=environment, start_new_session=True, **quiet)


def seconds_of_a(instance, way, others, server):
    """Time of A's write beside so many writers of B."""
    beside = [writer(instance, way, "B", f"b{number}", server) for number in range(others)]
    time.sleep(2)
    begun = time.monotonic()
    status = writer(instance, way, "A", "a", server).wait()
    seconds = time.monotonic() - begun
    for one in beside:
        os.killpg(one.pid, signal.SIGTERM)
    for one in beside:
        one.wait()
    if status:
        sys.exit(f"A's dd failed: {status}")
    return seconds


def main():
    programs, *numbers = sys.argv[1:]
    instance = Instance(programs)
    try:
        instance.forebay("start", "--hosts", f"{instance.root}/nodes")
        try:
            mounted = instance.forebay("mount", "--json", "--for-all", f"{instance.root}/mount")
            server = json.loads(mounted)["pid"]
            instance.forebay("run", "--", "sh", "-c", "mkdir -m 777 /forebay/far")
            instance.forebay("pool", "create", "far", "--targets", "1")
            instance.forebay("layout", "set", "--pool", "far", "/forebay/far")
            for way in ["users", "jobs", "hosts"]:
                for rule in ["", "fair * weight=100"]:
                    if rule:
                        instance.forebay("qos", "set", rule)
                    for number in [0, *map(int, numbers)]:
                        seconds = seconds_of_a(instance, way, number, server)
                        rate = FILE_MIB * 1.048576 / seconds
                        how = "with" if rule else "without"
                        print(f"{way} {how} a rule, beside {number:2}: {seconds:6.2f} s, {rate:5.2f} MB/s",
                              flush=True)
                        instance.forebay("run", "-q", "--", "sh", "-c", "rm -f /forebay/far/*")
                    if rule:
                        instance.forebay("qos", "delete", "fair")
            umount = ["nsenter", "-m", "-t", str(server), "umount", "--lazy", f"{instance.root}/mount"]
            subprocess.run(umount, check=False)
        finally:
            instance.forebay("stop", "--discard")
    finally:
        instance.remove()


main()
