#!/usr/bin/env python3
"""Writes THIRD_PARTY.md: the crates that the shipped programs contain, with their licences and texts.

With --check it writes nothing and fails if the file is not what it would write.
"""
import collections
import json
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
SHIPPED = ["cli", "daemon", "mount", "writeback", "preload"]
TARGET = "x86_64-unknown-linux-gnu"


def metadata():
    command = ["cargo", "metadata", "--format-version", "1", "--locked", "--filter-platform", TARGET]
    return json.loads(subprocess.run(command, cwd=ROOT, check=True, capture_output=True).stdout)


def contained(data):
    """Packages from outside that are linked into a shipped program."""
    packages = {package["id"]: package for package in data["packages"]}
    nodes = {node["id"]: node for node in data["resolve"]["nodes"]}
    rest = [one["id"] for one in data["packages"] if one["name"] in SHIPPED and not one["source"]]
    seen = set(rest)
    while rest:
        for dependency in nodes[rest.pop()]["deps"]:
            is_linked = any(kind["kind"] is None for kind in dependency["dep_kinds"])
            if is_linked and dependency["pkg"] not in seen:
                seen.add(dependency["pkg"])
                rest.append(dependency["pkg"])
    found = [packages[one] for one in seen if packages[one]["source"]]
    return sorted(found, key=lambda package: (package["name"], package["version"]))


def texts(package):
    """Texts of the package's licence files; the Apache licence is in LICENSE."""
    folder = pathlib.Path(package["manifest_path"]).parent
    names = ("LICENSE", "LICENCE", "COPYING", "NOTICE", "COPYRIGHT")
    for path in sorted(folder.iterdir()):
        if path.is_file() and path.name.upper().startswith(names):
            text = path.read_text(errors="replace").strip()
            if not re.search(r"Apache License\s+Version 2\.0, January 2004", text):
                yield text


def holders_and_rest(text):
    """A licence's lines of copyright, and what is the same for all that use that licence."""
    is_holder = re.compile(r"\s*(Copyright\b|\(c\)).*\d{4}|\s*Copyright\b.{0,80}$", re.IGNORECASE)
    lines = text.splitlines()
    holders = [line.strip() for line in lines if is_holder.match(line)]
    rest = "\n".join(line.rstrip() for line in lines if not is_holder.match(line)).strip()
    return holders, re.sub(r"^(The )?MIT License( \(MIT\))?\s+", "", rest)


def main():
    packages = contained(metadata())
    lines = ["# Third-party software", "", "The programs of Forebay contain these crates.", ""]
    lines += ["| crate | version | licence |", "|---|---|---|"]
    users = collections.defaultdict(set)
    first = {}
    for package in packages:
        lines.append(f"| {package['name']} | {package['version']} | {package['license']} |")
        for text in texts(package):
            holders, rest = holders_and_rest(text)
            key = re.sub(r"\W+", " ", rest).strip().lower()
            first.setdefault(key, rest)
            users[key].add(package["name"] + ": " + "; ".join(holders))
    lines += ["", "## Licences", "", "The Apache License, Version 2.0 is in LICENSE. The others:"]
    for key in sorted(users, key=lambda one: (-len(users[one]), sorted(users[one]))):
        lines += ["", "```text"]
        lines += [line.rstrip(": ") for line in sorted(users[key])] + [""]
        lines += first[key].replace("```", "'''").splitlines() + ["```"]
    whole = "\n".join(lines) + "\n"
    path = ROOT / "THIRD_PARTY.md"
    if "--check" not in sys.argv:
        path.write_text(whole)
    elif not path.exists() or path.read_text() != whole:
        sys.exit("THIRD_PARTY.md is not current: run scripts/notices.py")


main()
