#!/usr/bin/env python3
"""Measures what a slow target costs a job that reads, before and after its data moves away
(docs/benchmarks/monitoring.md).

usage: scripts/slow_target.py BIN [RATE [MIB [FILES]]]

BIN: directory of the programs. Nine hosts are network namespaces; the links of eight of them, each with a
target, pass RATE MB/s (5), that of one of them later a fifth of it. A process for each file on the ninth
reads its own of FILES files (8) of MIB MiB (8), all start together, again and again. Prints the
throughput of each round of a second or more, with what has moved. Needs root, ip and tc.
"""
import json
import os
import subprocess
import sys
import time

from namespaces import Hosts, run

TARGETS = 8
SLOW = 5
BLOCK_BYTES = 256 << 10
# Each line read from the standard input starts a round; a line of its seconds is the answer.
READ = r"""
import os, sys, time
block, paths = int(sys.argv[1]), sys.argv[2:]
files = [os.open(path, os.O_RDONLY) for path in paths]
readers = []
for file in files:
    (go, start), (ends, end) = os.pipe(), os.pipe()
    if os.fork() == 0:
        size = os.fstat(file).st_size
        while os.read(go, 1) == b"g":
            done = 0
            while done < size:
                part = os.pread(file, block, done)
                assert part == bytes([done // block % 251]) * len(part), "wrong bytes"
                done += len(part)
            os.write(end, b"e")
        os._exit(0)
    readers.append((start, ends))
for line in sys.stdin:
    begun = time.monotonic()
    for start, _ in readers: os.write(start, b"g")
    for _, ends in readers: assert os.read(ends, 1) == b"e"
    print(time.monotonic() - begun, flush=True)
for start, _ in readers: os.write(start, b"x")
"""
WRITE = r"""
import os, sys
block, size = int(sys.argv[1]), int(sys.argv[2])
for path in sys.argv[3:]:
    file = os.open(path, os.O_RDWR | os.O_CREAT)
    for at in range(0, size, block): os.pwrite(file, bytes([at // block % 251]) * block, at)
    os.close(file)
"""


class Links:
    """The links of hosts, in both directions."""

    def __init__(self, hosts):
        self.hosts = hosts
        self.limited = set()

    def limit(self, name, rate):
        """The link of a host passes `rate` MB/s from it and to it."""
        verb = "change" if name in self.limited else "add"
        self.limited.add(name)
        words = f"root tbf rate {round(rate * 8000)}kbit burst 64kb latency 200ms".split()
        ends = [("hub", f"v{name}"), (name, "eth0")]
        for space, device in ends:
            run("tc", "-n", self.hosts.prefix + space, "qdisc", verb, "dev", device, *words)


def figures(hosts):
    """Slow targets that are known, bytes that migrated, and reads that were redirected."""
    words, environment = hosts.command(hosts.names[0], "status", "--json")
    done = subprocess.run(words, capture_output=True, text=True, env=environment)
    status = json.loads(done.stdout)
    states = [daemon["state"] for daemon in status["daemons"]]
    total = lambda name: sum(state.get(name, 0) for state in states)
    slow = [one["target"] for one in status.get("slow_targets", [])]
    return slow, total("bytes_migrated"), total("reads_redirected")


def rounds(hosts, reader, seconds, all_bytes, begun, what):
    """Reads for so long; prints each round, and gives their rates."""
    rates, end = [], time.monotonic() + seconds
    while time.monotonic() < end:
        reader.stdin.write("go\n")
        reader.stdin.flush()
        took = float(reader.stdout.readline())
        rates.append(all_bytes / took / 1e6)
        slow, moved, redirected = figures(hosts)
        at = time.monotonic() - begun
        print(f"| {at:.0f} s | {what} | {rates[-1]:.1f} MB/s | {slow or '-'} | {moved / (1 << 20):.1f} MiB "
              f"| {redirected} |", flush=True)
    return rates


def main():
    programs, *numbers = sys.argv[1:]
    numbers = [float(number) for number in numbers]
    rate, mib, files = numbers + [5, 8, 8][len(numbers):]
    names = [f"h{number}" for number in range(TARGETS + 1)]
    settings = {"FOREBAY_MEMORY": "256MiB", "FOREBAY_MONITOR": "off"}
    hosts = Hosts(programs, names, settings)
    try:
        hosts.start()
        try:
            speeds = ",".join(["1000000000"] * TARGETS)
            hosts.forebay("pool", "create", "eight", "--targets", f"1-{TARGETS}", "--max-perf", speeds)
            hosts.forebay("run", "-q", "--", "mkdir", "/forebay/d")
            hosts.forebay("layout", "set", "--pool", "eight", "/forebay/d")
            paths = [f"/forebay/d/f{file}" for file in range(int(files))]
            size = int(mib) << 20
            # They are open together, so that each target gets its share.
            words = ["python3", "-c", WRITE.replace("    os.close(file)\n", ""), str(BLOCK_BYTES), str(size)]
            hosts.forebay("run", "-q", "--", *words, *paths)
            links = Links(hosts)
            for name in names[1:]:
                links.limit(name, rate)
            words, environment = hosts.command(
                names[0], "run", "-q", "--", "python3", "-c", READ, str(BLOCK_BYTES), *paths)
            pipe = subprocess.PIPE
            reader = subprocess.Popen(words, env=environment, stdin=pipe, stdout=pipe, text=True)
            all_bytes, begun = int(files) * size, time.monotonic()
            print("| time | links | a round | found slow | moved | reads redirected |\n|---|---|---|---|---|---|")
            well = rounds(hosts, reader, 12, all_bytes, begun, "well")
            links.limit(names[SLOW], rate / 5)
            slow = rounds(hosts, reader, float(os.environ.get("SECONDS_SLOW", "60")), all_bytes, begun, "slow")
            links.limit(names[SLOW], rate)
            again = rounds(hosts, reader, float(os.environ.get("SECONDS_WELL", "10")), all_bytes, begun, "well")
            reader.stdin.close()
            reader.wait()
            last = slow[-3:]
            print(f"\nwell {max(well):.1f}, slow {slow[0]:.1f}, moved {sum(last) / len(last):.1f}, "
                  f"well again {max(again):.1f} MB/s: {sum(last) / len(last) / slow[0]:.1f} times")
        finally:
            hosts.stop()
    finally:
        hosts.remove()


main()
