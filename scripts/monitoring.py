#!/usr/bin/env python3
"""Measures what counting the operations of jobs costs, and how far their records shrink
(docs/benchmarks/monitoring.md).

usage: scripts/monitoring.py BIN [UNCOUNTED [ROUNDS]]

BIN: directory of the programs (target/release); alone it gives the table of records, and the memory.
UNCOUNTED: the preload library without counting: cargo build --release -p library --features uncounted
--target-dir target/uncounted gives target/uncounted/release/libforebay_preload.so. Needs a C compiler;
instructions need valgrind.
"""
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
RANKS = 4
MIB = 1 << 20


def ior(verb, segments, size, of_rank):
    """Lines of a pattern of IOR, each rank with its own."""
    lines = []
    for rank in range(RANKS):
        path, start, step = of_rank(rank)
        lines.append(f"{rank} {verb} {path} {segments} {size} {start} {step}")
    return lines


def own(rank):
    return f"@part{rank}", 0, MIB


def strided(rank):
    return "@shared", rank * MIB, RANKS * MIB


def segmented(rank):
    return "@shared", rank * 32 * MIB, MIB


def hard(rank):
    return "@hard", rank * 47008, RANKS * 47008


def scripts(scale):
    """The loads: name, lines of workload.c. A larger scale takes longer."""
    passes = 2 * scale if scale > 1 else 1
    names = [f"{rank} {word}" for rank in range(RANKS) for word in (
        f"dir @d{rank}", f"files @d{rank} 0 {1000 * scale} 0", f"slurp @d{rank} 0 {1000 * scale} 65536")]
    shuffled = [f"* gather @data {400 * scale} 131072 256 {7}"]
    return [
        ("mdtest", names),
        ("IOR, a file for each rank", (ior("write", 32, MIB, own) + ior("read", 32, MIB, own)) * passes),
        ("IOR, one file, strided", (ior("write", 32, MIB, strided) + ior("read", 32, MIB, strided)) * passes),
        ("IOR, one file, segmented", (ior("write", 32, MIB, segmented) + ior("read", 32, MIB, segmented)) * passes),
        ("IOR hard, 47,008 bytes", ior("write", 400, 47008, hard) * passes),
        ("IOR, random 4 KiB", [f"* scatter @random {4000 * scale} 4096 8192 5",
                               f"* gather @random {4000 * scale} 4096 8192 9"]),
        ("training, as DLIO", ["0 hole @data 33554432"] + shuffled),
    ]


class Instance:
    def __init__(self, programs, place):
        self.programs, self.place = programs, place
        self.variables = dict(os.environ, XDG_RUNTIME_DIR=place, XDG_STATE_HOME=place,
                              XDG_DATA_HOME=place, FOREBAY_MONITOR="off", FOREBAY_DIR=place,
                              FOREBAY_NAME="monitoring")
        self.call("start", "--local", "1", "--memory", "1GiB", "--ssd", "0")

    def call(self, *words, **more):
        command = [f"{self.programs}/forebay", *words]
        return subprocess.run(command, env=self.variables, check=True, capture_output=True, text=True, **more)

    def stop(self):
        self.call("stop")

    def daemon(self):
        status = json.loads(self.call("status", "--json").stdout)
        return status["daemons"][0]["state"].get("pid") or status["daemons"][0]["pid"]


def private_bytes(pid):
    with open(f"/proc/{pid}/status", encoding="ascii") as status:
        return int(re.search(r"RssAnon:\s+(\d+) kB", status.read()).group(1)) << 10


def run_ranks(instance, job, load, workload, lines):
    """Runs a load by all ranks; seconds of processor time of the ranks, and of the clock."""
    script = os.path.join(instance.place, "script")
    with open(script, "w", encoding="ascii") as to:
        to.write("\n".join(lines).replace("@", "/forebay/made/") + "\n")
    each = "".join(f"SLURM_PROCID={rank} {workload} {script} {rank} & all=\"$all $!\"; " for rank in range(RANKS))
    text = f"export WORKLOAD_TIMES={script}.times; all=; {each} for one in $all; do wait $one || exit; done"
    instance.call("run", "-q", "--job", job + "-input", "--", "sh", "-ec",
                  "rm -rf /forebay/made; mkdir /forebay/made")
    if any(line.startswith("0 hole") for line in lines):
        first = [line for line in lines if line.startswith("0 hole")]
        with open(script + ".first", "w", encoding="ascii") as to:
            to.write("\n".join(first).replace("@", "/forebay/made/") + "\n")
        instance.call("run", "-q", "--job", job + "-input", "--", workload, script + ".first", "0")
    begun = time.monotonic()
    instance.call("run", "-q", "--job", job, "--", "sh", "-ec", text)
    lasted = time.monotonic() - begun
    with open(script + ".times", encoding="ascii") as times:
        used = [int(line) for line in times]
    os.remove(script + ".times")
    assert len(used) == RANKS, used
    return sum(used) / 1e9, lasted


def with_library(programs, library, to):
    """A directory of programs with this library."""
    os.mkdir(to)
    for name in os.listdir(programs):
        path = os.path.join(programs, name)
        if os.path.isfile(path) and name.startswith("forebay") and "." not in name:
            shutil.copy2(path, to)
    shutil.copy2(library, os.path.join(to, "libforebay_preload.so"))
    return to


def overhead(both, place, workload, rounds):
    print("| load | processor time off | on | change | of single rounds | clock off | on | change |\n"
          "|---|---|---|---|---|---|---|---|")
    times = {}
    for number in range(rounds):
        for kind in (("off", "on") if number % 2 else ("on", "off")):
            at = os.path.join(place, f"{kind}{number}")
            os.mkdir(at)
            instance = Instance(both[kind], at)
            try:
                for at, (load, lines) in enumerate(scripts(20)):
                    times.setdefault((load, kind), []).append(
                        run_ranks(instance, f"j{at}", load, workload, lines))
            finally:
                instance.stop()
    for load, _ in scripts(1):
        cells = [load]
        for part in (0, 1):
            both_times = [[one[part] for one in times[load, kind]] for kind in ("off", "on")]
            off, on = map(statistics.median, both_times)
            changes = sorted(100 * (on / off - 1) for off, on in zip(*both_times))
            # The middle half of the rounds, in each of which both run one after the other.
            quarter = len(changes) // 4
            cells += [f"{off:.3f} s", f"{on:.3f} s", f"{statistics.median(changes):+.1f} %"]
            cells += [f"{changes[quarter]:+.1f} to {changes[-1 - quarter]:+.1f} %"] if part == 0 else []
        print("| " + " | ".join(cells) + " |")


def host_records(profile):
    """Operations, of which a trace has one record each; and the records of the hosts: of each process its
    names, syncs, and bytes of files without a record; and of each file and process its reads and writes."""
    single = sum(one["number"] for process in profile["processes"] for one in process["operations"].values())
    kept = 0
    for process in profile["processes"]:
        numbers = {name: one["number"] for name, one in process["operations"].items()}
        kept += any(numbers[name] for name in numbers if name not in ("read", "write", "sync"))
        kept += numbers["sync"] > 0
        kept += sum(process.get(one, {}).get("number", 0) > 0 for one in ("other_reads", "other_writes"))
    return single, kept + sum(way in file for file in profile["files"] for way in ("reads", "writes"))


def report_records(profile):
    """The same records after those of equal ranks are one."""
    def number(one, part):
        return one.get(part, {}).get("number", 0)
    kept = sum(number(rank, part) > 0 for rank in profile["ranks"]
               for part in ("metadata", "syncs", "other_reads", "other_writes"))
    uses = [one for file in profile["files"] for one in file["uses"]]
    return kept + sum(number(one, way) > 0 for one in uses for way in ("reads", "writes"))


def reduction(programs, place, workload):
    print("| load | operations | records of the host | fewer | of the report | fewer again "
          "| bytes of the host | of the report | fewer |\n|---|---|---|---|---|---|---|---|---|")
    at = os.path.join(place, "reduction")
    os.mkdir(at)
    instance = Instance(programs, at)
    try:
        loads = [(load, lambda job, load=load, lines=lines: run_ranks(instance, job, load, workload, lines))
                 for load, lines in scripts(1)]
        clone = ("git", "-c", "core.checkStat=minimal", "clone", "-q", "--no-local")
        loads.append(("git clone", lambda job: instance.call(
            "run", "-q", "--job", job, "--", *clone, HERE, "/forebay/clone")))
        for number, (load, run) in enumerate(loads):
            run(f"r{number}")
            counted = json.loads(instance.call("job", "show", f"r{number}", "--json").stdout)
            report = json.loads(instance.call("report", f"r{number}", "--now", "--json").stdout)["profile"]
            (single, kept), merged = host_records(counted), report_records(report)
            sent, stored = (len(json.dumps(one, separators=(",", ":"))) for one in (counted, report))
            print(f"| {load} | {single:,} | {kept:,} | {single / kept:.1f} x | {merged:,} "
                  f"| {kept / merged:.1f} x | {sent:,} | {stored:,} | {sent / stored:.1f} x |")
    finally:
        instance.stop()


def memory(programs, place, workload):
    """Private memory of the daemon before and after as many processes and files as it keeps."""
    at = os.path.join(place, "memory")
    os.mkdir(at)
    instance = Instance(programs, at)
    try:
        pid = instance.daemon()
        before = private_bytes(pid)
        lines = ["* dir @d", "* files @d 0 8 100"]
        script = os.path.join(at, "script")
        with open(script, "w", encoding="ascii") as to:
            to.write("\n".join(lines).replace("@", "/forebay/") + "\n")
        for part in range(8):
            text = f"for at in $(seq 300); do SLURM_PROCID=$at {workload} {script} $at & " \
                   "[ $((at % 20)) = 0 ] && wait; done; wait"
            instance.call("run", "-q", "--job", f"m{part}", "--", "sh", "-ec", text)
        # A pass of the daemon finds the last processes, and the answer is another.
        instance.call("job", "list")
        after = private_bytes(pid)
        for _ in range(3):
            for part in range(8):
                instance.call("job", "show", f"m{part}", "--json")
            instance.call("job", "list")
        asked = private_bytes(pid)
        print(f"\nPrivate memory of the daemon: {before / MIB:.1f} MiB, after 2,400 processes of 8 jobs "
              f"{after / MIB:.1f} MiB, and after three answers about each of them {asked / MIB:.1f} MiB.")
    finally:
        instance.stop()


def instructions(both, place):
    """Instructions of each operation by callgrind, as the group `profile` of forebay-bench counts them."""
    if not shutil.which("valgrind"):
        print("\nInstructions: skipped, valgrind is missing")
        return
    counts = {}
    for kind in ("off", "on"):
        out = os.path.join(place, f"{kind}.json")
        command = [f"{both[kind]}/forebay-bench", "--only", "profile", "--files", "4000", "--repetitions", "3",
                   "--json", out]
        subprocess.run(command, cwd=place, capture_output=True, check=True)
        with open(out, encoding="utf-8") as text:
            rows = json.load(text)["results"]
        for row in rows:
            if row["unit"] == "instr.":
                counts.setdefault(row["test"], {})[kind] = row["median"]
    print("\n| operation | instructions off | on | change |\n|---|---|---|---|")
    for test, one in counts.items():
        off, on = one["off"], one["on"]
        print(f"| {test} | {off:.0f} | {on:.0f} | {100 * (on / off - 1):+.1f} % |")


def main():
    programs = os.path.abspath(sys.argv[1])
    library = os.path.abspath(sys.argv[2]) if len(sys.argv) > 2 else None
    rounds = int(sys.argv[3]) if len(sys.argv) > 3 else 5
    with tempfile.TemporaryDirectory() as place:
        workload = os.path.join(place, "workload")
        source = os.path.join(HERE, "crates/tests/programs/workload.c")
        subprocess.run(["cc", "-O2", "-o", workload, source], check=True)
        if library is None:
            reduction(programs, place, workload)
            return memory(programs, place, workload)
        both = {"on": with_library(programs, f"{programs}/libforebay_preload.so", f"{place}/counted"),
                "off": with_library(programs, library, f"{place}/uncounted")}
        reduction(both["on"], place, workload)
        memory(both["on"], place, workload)
        print()
        overhead(both, place, workload, rounds)
        instructions(both, place)


if __name__ == "__main__":
    main()
