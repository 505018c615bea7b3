#!/usr/bin/env bash
# A child that is started in another directory leaves that of its parent as it is.
. "${BASH_SOURCE[0]%/*}/lib.sh"

need python3
mkdir -p "$D/sub/deeper"
cd "$D" || exit 1
python - <<'END' || fail "the directory of the child has become that of its parent"
import os, subprocess
for times in range(3):
    for there in "sub", "sub/deeper", "/", "..":
        for close in True, False:
            before = os.getcwd()
            out = subprocess.run(["pwd", "-P"], cwd=there, close_fds=close, capture_output=True, text=True, check=True)
            assert out.stdout.strip() == os.path.realpath(there), (there, out.stdout)
            assert os.getcwd() == before, (before, os.getcwd())
            open("result", "w").write("x")
            assert os.path.exists(os.path.join(before, "result"))
            os.remove("result")
END
