#!/usr/bin/env bash
# Directory, umask, user and descriptors of a parent stay what they are, whatever its children do.
. "${BASH_SOURCE[0]%/*}/lib.sh"

compile posix_children.c
"$T/program" "$D"
if command -v python3 >/dev/null; then
    mkdir -p "$D/python/sub"
    cd "$D/python"
    python3 - <<'END'
import os, subprocess
before = os.getcwd()
subprocess.run(["sh", "-c", "echo >here"], cwd="sub", check=True)
assert os.getcwd() == before and os.path.exists("sub/here") and not os.path.exists("here")
open("result", "w").close()
assert os.path.exists(before + "/result") and not os.path.exists("sub/result")
END
fi
