#!/usr/bin/env python3
"""Compares a pool of targets with even distribution, on targets of different speed (docs/benchmarks/pools.md).

usage: scripts/pools.py BIN NUMBER..   BIN: directory of the programs; NUMBER: files of a run

Nine hosts are network namespaces; the links of eight pass 5, 3, 5, 2, 3, 1, 5 and 2 MB/s. On the ninth, one
process for each file writes 1 MiB and calls fsync, all at once. Needs root, ip and tc.
"""
import collections
import json
import sys
import time

from namespaces import Hosts

RATES = [5, 3, 5, 2, 3, 1, 5, 2]  # MB/s
FILE_BYTES = 1 << 20
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
    hosts = Hosts(programs, [f"h{number}" for number in range(len(RATES) + 1)], {"FOREBAY_MEMORY": "1GiB"})
    try:
        hosts.start()
        try:
            for name, rate in zip(hosts.names[1:], RATES):
                hosts.throttle(name, rate, burst=32)
            rates = ",".join(str(rate * 1_000_000) for rate in RATES)
            hosts.forebay("pool", "create", "rates", "--targets", "1-8", "--max-perf", rates)
            hosts.forebay("pool", "create", "even", "--targets", "1-8")
            for number in map(int, numbers):
                for pool in ["rates", "even"]:
                    measure(hosts, pool, number)
                    time.sleep(1)
        finally:
            hosts.stop()
    finally:
        hosts.remove()


main()
