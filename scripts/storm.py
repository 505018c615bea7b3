#!/usr/bin/env python3
"""Measures metadata and data of two jobs at one daemon (docs/benchmarks/storm.md).

usage: scripts/storm.py BIN NUMBER..   BIN: directory of the programs; NUMBER: processes of the storm

Three hosts are network namespaces without limits. The third has a file of 64 MiB in its memory and a
directory. On the first, a job reads random MiB of the file; on the second, one of NUMBER processes makes,
stats and removes files in the directory, all for SECONDS. Each alone, then both. Needs root, ip and tc.
"""
import subprocess
import sys

from namespaces import Hosts

SECONDS = 8
# Reads random MiB of a file; prints bytes per second in MB, and the longest read in milliseconds.
READ = r"""
import os, random, sys, time
fd, end, done, longest = os.open(sys.argv[1], os.O_RDONLY), time.monotonic() + float(sys.argv[2]), 0, 0
begun = time.monotonic()
while (now := time.monotonic()) < end:
    done += len(os.pread(fd, 1 << 20, random.randrange(64) << 20))
    longest = max(longest, time.monotonic() - now)
print(done / 1e6 / (time.monotonic() - begun), longest * 1e3)
"""
# Makes, stats and removes files; prints operations per second, and the longest in milliseconds.
STORM = r"""
import os, sys, time
directory, number, end = sys.argv[1], int(sys.argv[2]), time.monotonic() + float(sys.argv[3])
read, write = os.pipe()
for process in range(number):
    if os.fork() == 0:
        done, longest, name = 0, 0, f'{directory}/{process}'
        while (now := time.monotonic()) < end:
            os.close(os.open(name, os.O_CREAT | os.O_WRONLY)); os.stat(name); os.unlink(name)
            done, longest = done + 3, max(longest, time.monotonic() - now)
        os.write(write, f'{done} {longest}\n'.encode())
        os._exit(0)
for process in range(number): os.wait()
os.close(write)
rows = [line.split() for line in os.fdopen(read)]
assert len(rows) == number
print(sum(int(done) for done, _ in rows) / float(sys.argv[3]), max(float(one) for _, one in rows) * 1e3)
"""


def begin(hosts, host, job, script, *words):
    words, environment = hosts.command(host, "run", "-q", "--job", job, "--", "python3", "-c", script, *words)
    return subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, text=True)


def end(program):
    output = program.communicate()[0]
    if program.returncode:
        sys.exit("a program failed")
    rate, longest = map(float, output.split())
    return rate, longest


def measure(hosts, number):
    reader = lambda: begin(hosts, "a", "reader", READ, "/forebay/file", str(SECONDS))
    storm = lambda: begin(hosts, "b", "storm", STORM, "/forebay/names", str(number), str(SECONDS))
    alone = [end(reader()), end(storm())]
    both = [end(program) for program in [reader(), storm()]]
    for what, unit, (rate, longest), (beside, longest_beside) in zip(
            ["reader", "storm"], ["MB/s", "operations/s"], alone, both):
        print(f"{number:3} processes, {what}: alone {rate:8.1f} {unit}, longest {longest:6.1f} ms; "
              f"beside {beside:8.1f} ({beside / rate:.2f}), longest {longest_beside:6.1f} ms", flush=True)


def main():
    programs, *numbers = sys.argv[1:]
    hosts = Hosts(programs, ["a", "b", "c"], {"FOREBAY_MEMORY": "1GiB", "FOREBAY_PLACEMENT": "local"})
    try:
        hosts.start()
        try:
            prepare = "head -c 64M /dev/zero >/forebay/file && mkdir /forebay/names"
            words, environment = hosts.command("c", "run", "-q", "--", "sh", "-c", prepare)
            subprocess.run(words, env=environment, check=True)
            for rule in ["", "fair * weight=100"]:
                if rule:
                    hosts.forebay("qos", "set", rule)
                print("with a rule" if rule else "without rules", flush=True)
                for number in map(int, numbers):
                    measure(hosts, number)
        finally:
            hosts.stop()
    finally:
        hosts.remove()


main()
