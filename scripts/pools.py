#!/usr/bin/env python3
"""Compares a pool of targets with round robin, on targets of different speed (docs/benchmarks/pools.md).

usage: scripts/pools.py BIN NUMBER..   BIN: directory of the programs; NUMBER: files of a run.
Prints a table. With OUT=DIR in the environment, DIR/pools.svg has its curves.

Nine hosts are network namespaces. Pools hold the targets of eight to 10, 6, 10, 4, 6, 2, 10 and 4 MB/s. On the
ninth, one process for each file writes its part of 800 MiB and calls fsync, all at once. By rates: one pool of all targets. Round
robin: a pool for each target, used in turn. Needs root, ip and tc.
"""
import collections
import json
import os
import sys

import plot
from namespaces import Hosts

RATES = [10, 6, 10, 4, 6, 2, 10, 4]  # MB/s
ALL_BYTES = 800 << 20
BLOCK_BYTES = 64 << 10
# Creates and opens all files in order; a process for each attaches, and then writes, from one moment on. The time
# ends when the last one has synced its file: the ends of a thousand processes take time of the processors, too.
WRITE = r"""
import os, sys, time
number, size, directories = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
flags = os.O_RDWR | os.O_CREAT | os.O_EXCL
files = [os.open(f"{directories[file % len(directories)]}/f{file}", flags) for file in range(number)]
held, release = os.pipe()
said, says = os.pipe()
writers = []
for file in files:
    writer = os.fork()
    if writer == 0:
        os.close(release)
        block, done = bytes(size), 0
        os.pread(file, 1, 0)
        os.write(says, b"x")
        os.read(held, 1)
        while done < size:
            done += os.pwrite(file, block[done:done + (256 << 10)], done)
        os.fsync(file)
        os.write(says, b"x")
        os._exit(0)
    writers.append(writer)
os.close(says)
def wait_for_all():
    seen = 0
    while seen < number:
        some = len(os.read(said, number))
        assert some, "a writer failed"
        seen += some
wait_for_all()
begun = time.monotonic()
os.close(release)
wait_for_all()
seconds = time.monotonic() - begun
for writer in writers:
    assert os.waitpid(writer, 0)[1] == 0
print(seconds, flush=True)
"""


def file_bytes(number):
    """Size of each of so many files, in whole blocks."""
    return ALL_BYTES // number // BLOCK_BYTES * BLOCK_BYTES


def best_seconds(number):
    """The end of the last whole file, if each next one goes where it ends first."""
    files = [0] * len(RATES)
    for _ in range(number):
        best = min(range(len(RATES)), key=lambda at: (files[at] + 1) / RATES[at])
        files[best] += 1
    return max(count * file_bytes(number) / 1e6 / rate for count, rate in zip(files, RATES))


def measure(hosts, way, pools, number):
    directories = [f"/forebay/{way}{number}-{pool}" for pool in pools]
    for directory, pool in zip(directories, pools):
        hosts.forebay("run", "-q", "--", "mkdir", directory)
        hosts.forebay("layout", "set", "--pool", pool, directory)
    words = ["python3", "-c", WRITE, str(number), str(file_bytes(number)), *directories]
    seconds = float(hosts.forebay("run", "-q", "--", *words).split()[0])
    objects = collections.Counter()
    for file in range(number):
        path = f"{directories[file % len(directories)]}/f{file}"
        if len(directories) == 1:
            objects.update(json.loads(hosts.forebay("layout", "get", "--json", path))["targets"])
        else:
            objects[file % len(directories) + 1] += 1
    counts = " ".join(str(objects[target + 1]) for target in range(len(RATES)))
    hosts.forebay("run", "-q", "--", "sh", "-c", f"rm -rf /forebay/{way}{number}-*")
    rate, part = number * file_bytes(number) / seconds / 1e6, best_seconds(number) / seconds
    return part, f"{rate:.1f} MB/s | {part:.3f}", counts


def main():
    programs, *numbers = sys.argv[1:]
    hosts = Hosts(programs, [f"h{number}" for number in range(len(RATES) + 1)], {"FOREBAY_MEMORY": "1GiB"})
    try:
        hosts.start()
        try:
            rates = [str(rate * 1_000_000) for rate in RATES]
            hosts.forebay("pool", "create", "rates", "--targets", "1-8", "--max-perf", ",".join(rates))
            each = [f"t{target}" for target in range(1, 9)]
            for target, (pool, rate) in enumerate(zip(each, rates), 1):
                hosts.forebay("pool", "create", pool, "--targets", str(target), "--max-perf", rate)
            print("| files | by rates | of the best possible | round robin | of the best possible "
                  "| files by rates, on each target |\n|---|---|---|---|---|---|")
            parts = {"by rates": [], "round robin": []}
            for number in map(int, numbers):
                by_rates, rates_text, counts = measure(hosts, "rates", ["rates"], number)
                even, even_text, _ = measure(hosts, "even", each, number)
                parts["by rates"].append((number, by_rates))
                parts["round robin"].append((number, even))
                print(f"| {number} | {rates_text} | {even_text} | {counts} |", flush=True)
            if "OUT" in os.environ:
                goal = ("-0.98", [(number, 0.98) for number in map(int, numbers)])
                title = "MB/s in parts of the best possible, by the number of files"
                panel = plot.Panel(title, "", [*parts.items(), goal], list(map(int, numbers)), top=1)
                plot.write(f"{os.environ['OUT']}/pools.svg", [panel])
        finally:
            hosts.stop()
    finally:
        hosts.remove()


main()
