#!/usr/bin/env python3
"""Compares a pool of targets with even distribution, on targets of different speed (docs/benchmarks/pools.md).

usage: scripts/pools.py BIN NUMBER..   BIN: directory of the programs; NUMBER: files of a run

Nine hosts are network namespaces; the links of eight pass 5, 3, 5, 2, 3, 1, 5 and 2 MB/s. On the ninth, one
process for each file writes 1 MiB and calls fsync, all at once. Needs root, ip and tc.
"""
import collections
import json
import os
import subprocess
import sys
import tempfile
import time

RATES = [5, 3, 5, 2, 3, 1, 5, 2]  # MB/s
FILE_BYTES = 1 << 20
PREFIX = f"fbp{os.getpid()}"
# Creates and opens all files in order; then a process for each writes, from one moment on.
WRITE = r"""
import os, sys, time
directory, number, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
flags = os.O_RDWR | os.O_CREAT | os.O_EXCL
files = [os.open(f"{directory}/f{file}", flags) for file in range(number)]
held, release = os.pipe()
writers = []
for file in files:
    writer = os.fork()
    if writer == 0:
        os.close(release)
        block, done = bytes(size), 0
        os.read(held, 1)
        while done < size:
            done += os.pwrite(file, block[done:done + (256 << 10)], done)
        os.fsync(file)
        os._exit(0)
    writers.append(writer)
time.sleep(3)
begun = time.monotonic()
os.close(release)
for writer in writers:
    assert os.waitpid(writer, 0)[1] == 0
print(time.monotonic() - begun, flush=True)
"""


def run(*words, **more):
    done = subprocess.run(words, capture_output=True, text=True, **more)
    if done.returncode:
        sys.exit(f"{' '.join(words)}: {done.stderr}{done.stdout}")
    return done.stdout


class Hosts:
    def __init__(self, programs):
        self.programs = os.path.abspath(programs)
        self.root = tempfile.mkdtemp()
        self.names = [f"h{number}" for number in range(len(RATES) + 1)]
        self.ip(f"netns add {PREFIX}hub")
        self.ip(f"-n {PREFIX}hub link add br0 type bridge")
        self.ip(f"-n {PREFIX}hub link set br0 up")
        for number, name in enumerate(self.names):
            os.makedirs(f"{self.root}/{name}")
            self.add(name, f"10.81.0.{number + 1}")
        os.makedirs(f"{self.root}/data")
        with open(f"{self.root}/nodes", "w") as nodes:
            nodes.writelines(f"{name} 10.81.0.{at + 1}\n" for at, name in enumerate(self.names))
        with open(f"{self.root}/ssh", "w") as ssh:
            ssh.write(f"#!/bin/sh\nhost=$1; shift\nXDG_RUNTIME_DIR={self.root}/$host \\\n"
                      f"exec ip netns exec {PREFIX}$host \"$@\"\n")
        os.chmod(f"{self.root}/ssh", 0o755)

    def ip(self, words):
        run("ip", *words.split())

    def add(self, name, address):
        space = PREFIX + name
        self.ip(f"netns add {space}")
        self.ip(f"-n {space} link set lo up")
        self.ip(f"-n {PREFIX}hub link add v{name} type veth peer name eth0 netns {space}")
        self.ip(f"-n {PREFIX}hub link set v{name} master br0 up")
        self.ip(f"-n {space} addr add {address}/24 dev eth0")
        self.ip(f"-n {space} link set eth0 up")

    def throttle(self):
        for name, rate in zip(self.names[1:], RATES):
            words = f"root tbf rate {rate * 8000}kbit burst 32kb latency 200ms"
            run("tc", "-n", f"{PREFIX}hub", "qdisc", "add", "dev", f"v{name}", *words.split())

    def forebay(self, *words):
        own = {
            "XDG_RUNTIME_DIR": f"{self.root}/h0", "XDG_STATE_HOME": f"{self.root}/h0",
            "FOREBAY_SSH": f"{self.root}/ssh", "FOREBAY_DIR": f"{self.root}/data",
            "FOREBAY_ACCESS": "preload", "FOREBAY_NAME": "pools",
            "FOREBAY_MEMORY": "1GiB", "FOREBAY_SSD": "0",
        }
        program = f"{self.programs}/forebay"
        return run("ip", "netns", "exec", f"{PREFIX}h0", program, *words, env=os.environ | own)

    def remove(self):
        for name in [*self.names, "hub"]:
            subprocess.run(["ip", "netns", "del", PREFIX + name], check=False)
        subprocess.run(["rm", "-rf", self.root], check=False)


def best_seconds(number):
    """The end of the last whole file, if each next one goes where it ends first."""
    files = [0] * len(RATES)
    for _ in range(number):
        best = min(range(len(RATES)), key=lambda at: (files[at] + 1) / RATES[at])
        files[best] += 1
    return max(count * FILE_BYTES / 1e6 / rate for count, rate in zip(files, RATES))


def measure(hosts, pool, number):
    directory = f"/forebay/{pool}{number}"
    hosts.forebay("run", "--", "mkdir", directory)
    hosts.forebay("layout", "set", "--pool", pool, directory)
    words = ["python3", "-c", WRITE, directory, str(number), str(FILE_BYTES)]
    seconds = float(hosts.forebay("run", "--", *words).split()[0])
    objects = collections.Counter()
    for file in range(number):
        layout = json.loads(hosts.forebay("layout", "get", "--json", f"{directory}/f{file}"))
        objects.update(layout["targets"])
    counts = " ".join(str(objects[target + 1]) for target in range(len(RATES)))
    print(f"{pool:8} {number:5} files {seconds:7.2f} s {number * FILE_BYTES / seconds / 1e6:6.2f} MB/s, "
          f"{best_seconds(number) / seconds:.2f} of the best possible; objects {counts}", flush=True)


def main():
    programs, *numbers = sys.argv[1:]
    hosts = Hosts(programs)
    try:
        hosts.forebay("start", "--hosts", f"{hosts.root}/nodes")
        try:
            hosts.throttle()
            rates = ",".join(str(rate * 1_000_000) for rate in RATES)
            hosts.forebay("pool", "create", "rates", "--targets", "1-8", "--max-perf", rates)
            hosts.forebay("pool", "create", "even", "--targets", "1-8")
            for number in map(int, numbers):
                for pool in ["rates", "even"]:
                    measure(hosts, pool, number)
                    time.sleep(1)
        finally:
            hosts.forebay("stop", "--discard")
    finally:
        hosts.remove()


main()
