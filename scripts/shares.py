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
import time

from namespaces import Hosts

RATE = 40  # MB/s
FILE_MIB = 240


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
            instance.stop()
    finally:
        instance.remove()


main()
