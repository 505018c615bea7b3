#!/usr/bin/env python3
"""One row of the demonstration: a node dies in the middle of a checkpoint, and the job goes on.

usage: demo/node_death.py BIN NAME PROGRAM   BIN: directory of the programs; NAME: of the instance;
                                             PROGRAM: checkpoints.c, built

Four nodes are network namespaces, and an instance over them has two copies of all data. An MPI program writes
checkpoints from three of them. When it is in the middle of one, the fourth loses its network, its daemon is
killed, and its shared memory and its directory are removed. The program must end without an error. Another run
of it on the nodes that are left compares every word; its checksum is the last line. Needs root, ip and mpirun.
"""
import contextlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../scripts"))
from namespaces import Hosts  # noqa: E402

NODES = ["a", "b", "c", "d"]
RANKS = NODES[:3]
DEAD = "d"
SETTINGS = {
    "FOREBAY_DOMAINS": "auto", "FOREBAY_FOLLOWERS": "1", "FOREBAY_REPLICAS": "2",
    "FOREBAY_MEMORY": "96MiB", "FOREBAY_SSD": "256MiB", "FOREBAY_MONITOR": "off",
}
# Longest times in seconds, on a busy machine: of one command, of a run of the program, and until all copies
# are there.
COMMAND, JOB, COPIES = 90, 240, 120


def fail(text):
    sys.exit(f"node_death: {text}")


def say(text):
    print(text, file=sys.stderr, flush=True)


def await_that(what, limit, condition):
    end = time.monotonic() + limit
    while not condition():
        if time.monotonic() > end:
            fail(f"not so within {limit} s: {what}")
        time.sleep(0.1)


class Cluster:
    """The nodes, and the instance over them."""

    def __init__(self, programs, name):
        self.name = name
        self.job = None
        self.hosts = Hosts(programs, NODES, SETTINGS | {"FOREBAY_NAME": name})
        self.hosts.settings["XDG_DATA_HOME"] = f"{self.hosts.root}/history"
        own = f"forebay-{os.geteuid()}-{name}"
        number = NODES.index(DEAD)
        self.memory = f"/dev/shm/{own}"
        self.of_dead = [f"{self.memory}/h{number}", f"{self.hosts.root}/data/{own}/d{number}"]
        # As ssh does, a shell gets the words of mpirun. Open MPI names files after the node.
        self.agent = f"{self.hosts.root}/agent"
        with open(self.agent, "w") as agent:
            agent.write(f"#!/bin/sh\nhost=$(sed -n \"s/ $1\\$//p\" {self.hosts.root}/nodes); shift\n"
                        f"exec {self.hosts.root}/ssh \"$host\" \\\n"
                        f"unshare --uts sh -c 'hostname \"$1\"; shift; eval \"$*\"' sh \"$host\" \"$@\"\n")
        os.chmod(self.agent, 0o755)

    def forebay(self, *words, node=NODES[0], may_fail=False):
        """The output of a command of `forebay` on a node."""
        words, environment = self.hosts.command(node, *words)
        done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=COMMAND)
        if done.returncode and not may_fail:
            fail(f"{' '.join(words)}: {done.stderr}{done.stdout}")
        return done.stdout

    def start(self):
        self.forebay("start", "--hosts", f"{self.hosts.root}/nodes")

    def status(self, node=NODES[0]):
        # It ends with 1 where a daemon is down.
        return json.loads(self.forebay("status", "--json", "--timeout", "5s", node=node, may_fail=True))

    def is_whole(self, up):
        """Whether so many daemons are up, and everything has its copies."""
        status = self.status()
        states = [one["state"] for one in status["daemons"] if one.get("state")]
        # Daemons that have just started know no members.
        members = (status["membership"] or {"members": []})["members"]
        presences = [one["presence"] for one in members]
        services = [service for state in states for service in state.get("services", [])]
        followers = [service["followers"] for service in services]
        return (presences.count("up") == up and len(states) == up and services
                and all(any(one["in_sync"] for one in of_one) for of_one in followers)
                and sum(state["units_degraded"] + state["units_lost"] for state in states) == 0)

    def pids(self, node):
        found = subprocess.run(["ip", "netns", "pids", self.hosts.prefix + node],
                               capture_output=True, text=True, check=False)
        return [int(word) for word in found.stdout.split()]

    def daemon(self):
        """A descriptor of the daemon of the node that is to die."""
        pid = next(one["pid"] for one in self.status(DEAD)["daemons"] if one["host"] == DEAD)
        if pid not in self.pids(DEAD):
            fail(f"the daemon {pid} is not on node {DEAD}")
        return os.pidfd_open(pid)

    def link(self, state):
        self.hosts.ip(f"-n {self.hosts.prefix}hub link set v{DEAD} {state}")

    def end_node(self, daemon):
        """Ends a node with all that it has."""
        self.link("down")
        signal.pidfd_send_signal(daemon, signal.SIGKILL)
        for path in self.of_dead:
            shutil.rmtree(path)

    def run(self, program, verb, at_half):
        """Runs the program on all nodes with ranks; returns the last line of its output."""
        words = [f"{self.hosts.programs}/forebay", "run", "-q", "--", program, verb, "/forebay/checkpoints"]
        addresses = [f"10.81.0.{NODES.index(node) + 1}" for node in RANKS]
        mpirun = ["mpirun", "--host", ",".join(addresses), "-np", str(len(RANKS)), "--bind-to", "none"]
        _, environment = self.hosts.command(NODES[0])
        environment |= {
            "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "TMPDIR": self.hosts.root,
            "OMPI_MCA_plm_rsh_agent": self.agent, "OMPI_MCA_btl": "self,tcp",
            "OMPI_MCA_btl_tcp_if_include": "eth0", "OMPI_MCA_oob_tcp_if_include": "eth0",
        }
        self.job = subprocess.Popen([self.agent, addresses[0], shlex.join(mpirun + words)], env=environment,
                                    text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                    start_new_session=True)
        limit = threading.Timer(JOB, self.end_job)
        # The script does not wait for it where something else ends it.
        limit.daemon = True
        limit.start()
        line = ""
        for line in self.job.stdout:
            say(f"{verb}: {line.strip()}")
            if line == "half\n":
                at_half()
                self.job.stdin.write("go on\n")
                self.job.stdin.flush()
        code = self.job.wait()
        limit.cancel()
        if code:
            fail(f"the program that should {verb} ended with {code}")
        return line.strip()

    def end_job(self):
        if self.job and self.job.poll() is None:
            os.killpg(self.job.pid, signal.SIGKILL)

    def remove(self):
        """Ends and removes everything, whatever there is."""
        self.end_job()
        outcome = "not stopped"
        try:
            self.link("up")
            self.forebay("stop", "--discard")
            outcome = ""
        except (SystemExit, subprocess.SubprocessError) as error:
            outcome = str(error)
        # Those that are killed may have started others.
        for _ in range(50):
            left = [pid for node in NODES for pid in self.pids(node)]
            if not left:
                break
            outcome += f" processes {left} were left"
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.1)
        if os.path.exists(self.memory):
            outcome += f" {self.memory} was left"
            shutil.rmtree(self.memory, ignore_errors=True)
        self.hosts.remove()
        return outcome


def measure(cluster, program):
    cluster.start()
    await_that("all copies are in sync", COPIES, lambda: cluster.is_whole(len(NODES)))
    cluster.forebay("run", "-q", "--", "mkdir", "/forebay/checkpoints")
    daemon = cluster.daemon()
    dead = []

    def die():
        cluster.end_node(daemon)
        dead.append(time.monotonic())
        say("the node is dead")

    cluster.run(program, "write", die)
    if len(dead) != 1:
        fail("no node died within a checkpoint")
    say(f"the checkpoints were whole {time.monotonic() - dead[0]:.1f} s after the death")
    checksum = cluster.run(program, "read", lambda: None)
    await_that("the data is copied anew", COPIES, lambda: cluster.is_whole(len(NODES) - 1))
    say(f"all copies were there {time.monotonic() - dead[0]:.1f} s after the death")
    return checksum


def main():
    programs, name, program = sys.argv[1:]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    cluster = Cluster(programs, name)
    try:
        checksum = measure(cluster, program)
    finally:
        for one in [signal.SIGTERM, signal.SIGINT]:
            signal.signal(one, signal.SIG_IGN)
        left = cluster.remove()
        if left:
            say(left)
    if left:
        fail("the instance was not removed as it should be")
    print(checksum)


main()
