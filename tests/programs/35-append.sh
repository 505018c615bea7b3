#!/usr/bin/env bash
# "Appends lose nothing" (docs/semantics/sharing.md): four processes with O_APPEND lose and mix no line.
. "${BASH_SOURCE[0]%/*}/lib.sh"

need python3
python - "$D" <<'END'
import os, sys
path = sys.argv[1] + "/log"
for writer in range(4):
    if os.fork() == 0:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        for i in range(3000):
            line = b"%d %d %s\n" % (writer, i, b"x" * (i % 300))
            assert os.write(fd, line) == len(line)
        os._exit(0)
assert all(os.wait()[1] == 0 for _ in range(4))
nexts = [0] * 4
for line in open(path, "rb"):
    writer, i, rest = line.rstrip(b"\n").split(b" ")
    assert nexts[int(writer)] == int(i) and rest == b"x" * (int(i) % 300), line
    nexts[int(writer)] += 1
assert nexts == [3000] * 4, nexts
END
