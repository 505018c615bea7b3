#!/usr/bin/env python3
"""Measures shares of users and jobs (docs/benchmarks/shares.md).

usage: scripts/shares.py BIN NUMBER..   BIN: directory of the programs; NUMBER: writers of the other.
Prints a table. With OUT=DIR in the environment, DIR/shares.svg has its curves.

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
import time

import plot
from namespaces import Hosts

RATE = 40  # MB/s
FILE_MIB = 160


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


WAYS = {"users": "users, on a mount", "jobs": "jobs, preloaded", "hosts": "jobs of two hosts"}
RULES = {"": "none", "fair * weight=100": "equal shares"}


def table(times, numbers):
    """Rows of seconds; the last column is A's time beside most, in parts of its fair time."""
    print("| A and B | rule | alone | " + " | ".join(f"beside {number}" for number in numbers) + " | of the fair time |")
    print("|---" * (len(numbers) + 4) + "|")
    for way, what in WAYS.items():
        alone = min(times[way, rule][0] for rule in RULES)
        for rule, name in RULES.items():
            cells = [f"{times[way, rule][number]:.2f} s" for number in [0, *numbers]]
            print(f"| {what} | {name} | {' | '.join(cells)} | {times[way, rule][numbers[-1]] / (2 * alone):.2f} |")


def curves(times, numbers, path):
    """A's time by the number of B's writers: a panel for each way."""
    panels = []
    for way, what in WAYS.items():
        fair = 2 * min(times[way, rule][0] for rule in RULES)
        series = [(f"rule: {name}", sorted(times[way, rule].items())) for rule, name in RULES.items()]
        series.append(("-fair time", [(number, fair) for number in numbers]))
        panels.append(plot.Panel(f"{what}: A's time (s) by the number of B's writers", "", series, [0, *numbers]))
    plot.write(path, panels)


def main():
    programs, *numbers = sys.argv[1:]
    numbers = list(map(int, numbers))
    times = {}
    instance = Hosts(programs, ["a", "b", "c"], {"FOREBAY_MEMORY": "2GiB"})
    os.makedirs(f"{instance.root}/mount")
    try:
        instance.start()
        instance.throttle("b", RATE, burst=64)
        try:
            mounted = instance.forebay("mount", "--json", "--for-all", f"{instance.root}/mount")
            server = json.loads(mounted)["pid"]
            instance.forebay("run", "--", "sh", "-c", "mkdir -m 777 /forebay/far")
            instance.forebay("pool", "create", "far", "--targets", "1")
            instance.forebay("layout", "set", "--pool", "far", "/forebay/far")
            for way in WAYS:
                for rule in RULES:
                    if rule:
                        instance.forebay("qos", "set", rule)
                    for number in [0, *numbers]:
                        times.setdefault((way, rule), {})[number] = seconds_of_a(instance, way, number, server)
                        instance.forebay("run", "-q", "--", "sh", "-c", "rm -f /forebay/far/*")
                    if rule:
                        instance.forebay("qos", "delete", "fair")
            umount = ["nsenter", "-m", "-t", str(server), "umount", "--lazy", f"{instance.root}/mount"]
            subprocess.run(umount, check=False)
            table(times, numbers)
            if "OUT" in os.environ:
                curves(times, numbers, f"{os.environ['OUT']}/shares.svg")
        finally:
            instance.stop()
    finally:
        instance.remove()


main()
