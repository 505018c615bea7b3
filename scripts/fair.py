#!/usr/bin/env python3
"""Writes the page of what `make bench` measured of shares and limits: fair.md and fair.svg.

usage: scripts/fair.py BENCH_JSON DIR   (target/bench.json, docs/benchmarks)

The values are those of the groups `shares` and `profile`, as in
    scripts/bench.sh --only shares,profile --repetitions 3 --seconds 10
on a machine without other work. A row that was not measured is left out.
"""
import datetime
import json
import statistics
import sys

import plot

HEAD = """# Shares and limits in one run of `make bench`

`scripts/bench.sh --only shares,profile --repetitions 3 --seconds 10`, then `scripts/fair.py target/bench.json docs/benchmarks`, which writes this page.
Five hosts as network namespaces, each sending 200 Mbit/s; [the method](README.md#several-hosts-on-one-machine). *With* is under the rule
`shares * weight=100`, *without* is no rule at all. Values are medians of the repetitions, run on {date}.

| what | without | with | goal | met |
|---|---|---|---|---|
"""
TAIL = """
![by repetition](fair.svg)

Jain's index of the time counts the parts of the way's time, as `forebay qos show` says; that of the bytes is no goal, because small reads cost
more time for a byte. The delay is the longest read or create beside a request to a host that stands still for 10 s, less the longest
without it.
"""


class Results:
    """The values of a run, by group, row and column."""

    def __init__(self, path):
        with open(path, encoding="utf-8") as file:
            rows = json.load(file)["results"]
        self.values = {(row["group"], row["test"], row["on"]): row["values"] for row in rows}

    def series(self, test, column, group="shares"):
        """All values, by repetition."""
        return self.values.get((group, test, column), [])

    def median(self, test, column, group="shares"):
        values = self.series(test, column, group)
        return statistics.median(values) if values else None

    def ratio(self, test, column, to, group="shares", to_test=None):
        """The ratio of two medians."""
        of, base = self.median(test, column, group), self.median(to_test or test, to, group)
        return of / base if of is not None and base else None


def text(value, unit):
    return "" if value is None else f"{value:.4g}{unit}"


def rows(run):
    """What, value without, value with, unit, goal in words, and whether a value meets it."""
    one = "forebay-1"
    yield ("Jain's index of the time of 8 jobs, 4 KiB to 4 MiB", None, run.median("jain-8-time", "ruled"), "",
           "at least 0.98", lambda value: value >= 0.98)
    yield ("Jain's index of their bytes", run.median("jain-8-bytes", "unruled"), run.median("jain-8-bytes", "ruled"),
           "", "", None)
    yield ("4 KiB reads beside a stream of 4 MiB: time, of that alone", run.ratio("small-read-4k", "unruled", "alone"),
           run.ratio("small-read-4k", "ruled", "alone"), "", "at most 1.2", lambda value: value <= 1.2)
    yield ("the stream's part of the rest", run.median("stream-of-the-rest", "unruled"),
           run.median("stream-of-the-rest", "ruled"), "", "at least 0.8", lambda value: value >= 0.8)
    yield ("a job under `bw=20M` on four hosts, together", None, run.median("set-rate-4-hosts", "ruled"), " MiB/s",
           "19 to 21 MiB/s", lambda value: 19 <= value <= 21)
    yield ("one job beside an idle one with `weight=1000 min=10M`: 4 MiB reads, of those without a rule", 1.0,
           run.ratio("one-read-4m", "ruled", "unruled"), "", "at least 0.98", lambda value: value >= 0.98)
    yield ("one job: time of 4 KiB reads of another host, of that without a rule", 1.0,
           run.ratio("one-read-4k", "ruled", "unruled"), "", "at most 1.02", lambda value: value <= 1.02)
    yield ("delay of other jobs by a request of 10 s", None, run.median("delay-by-slow", "ruled"), " ms",
           "at most 10 ms", lambda value: value <= 10)
    for kind in "read", "write":
        test = f"random-{kind}-8k"
        yield (f"instructions of a local 8 KiB {kind}, of those without a rule", 1.0,
               run.ratio(f"{test} ruled", one, one, "profile", test), "", "at most 1.01", lambda value: value <= 1.01)


def panels(run):
    """The curves by repetition, each beside its goal."""
    def points(values):
        return list(enumerate(values, 1))

    def panel(title, series, goal, top=None):
        series = {name: values for name, values in series.items() if values}
        if not series:
            return None
        count = max(len(values) for values in series.values())
        lines = [(name, points(values)) for name, values in series.items()]
        lines.append((f"-{goal}", [(0, goal), (count, goal)]))
        return plot.Panel(title, "", lines, list(range(1, count + 1)), end=count, top=top)

    def parts(test, of, to):
        return [own / base for own, base in zip(run.series(test, of), run.series(test, to)) if base]

    jain = {"time, with": run.series("jain-8-time", "ruled"), "bytes, with": run.series("jain-8-bytes", "ruled"),
            "bytes, without": run.series("jain-8-bytes", "unruled")}
    small = {name: parts("small-read-4k", column, "alone") for name, column in
             [("with", "ruled"), ("without", "unruled")]}
    rest = {name: run.series("stream-of-the-rest", column) for name, column in
            [("with", "ruled"), ("without", "unruled")]}
    rate = {"with": run.series("set-rate-4-hosts", "ruled")}
    made = [panel("Jain's index of 8 jobs of mixed sizes, by repetition", jain, 0.98, top=1),
            panel("time of 4 KiB reads beside a stream, of that alone", small, 1.2),
            panel("the stream's part of the rest", rest, 0.8),
            panel("MiB/s of a job under bw=20M on four hosts", rate, 20, top=25)]
    return [one for one in made if one]


def main():
    path, to = sys.argv[1:]
    run = Results(path)
    page = HEAD.format(date=datetime.date.today().strftime("%-d %B %Y"))
    for what, without, with_rule, unit, goal, is_met in rows(run):
        if with_rule is None:
            continue
        met = "" if is_met is None else "yes" if is_met(with_rule) else "no"
        page += f"| {what} | {text(without, unit)} | {text(with_rule, unit)} | {goal} | {met} |\n"
    with open(f"{to}/fair.md", "w", encoding="utf-8") as file:
        file.write(page + TAIL)
    plot.write(f"{to}/fair.svg", panels(run))


main()
