#!/usr/bin/env bash
# python: tempfile in all its forms, also deleted while open.
. "${BASH_SOURCE[0]%/*}/lib.sh"

need python3
python - "$D" <<'END'
import os, sys, tempfile
tempfile.tempdir = d = sys.argv[1]
with tempfile.TemporaryFile() as f:
    f.write(b"x" * 100000); f.seek(50000); assert len(f.read()) == 50000
    assert os.listdir(d) == []
with tempfile.NamedTemporaryFile("w+") as f:
    f.write("named"); f.flush(); assert open(f.name).read() == "named" and os.path.dirname(f.name) == d
with tempfile.TemporaryDirectory() as t:
    for i in range(50): open(f"{t}/{i}", "w").write(str(i))
    assert len(os.listdir(t)) == 50
with tempfile.SpooledTemporaryFile(max_size=10) as f:
    f.write(b"more than ten bytes"); f.seek(0); assert f.read() == b"more than ten bytes"
fd, name = tempfile.mkstemp(); os.unlink(name)
os.write(fd, b"still here"); assert os.pread(fd, 100, 0) == b"still here" and os.fstat(fd).st_nlink == 0; os.close(fd)
assert os.listdir(d) == []
END
