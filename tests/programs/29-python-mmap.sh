#!/usr/bin/env bash
# python: private and shared maps of a file, resize, flush; two processes see one map.
. "${BASH_SOURCE[0]%/*}/lib.sh"

need python3
python - "$D" <<'END'
import mmap, os, sys
path = sys.argv[1] + "/mapped"
open(path, "wb").write(bytes(range(256)) * 1024)
with open(path, "r+b") as f:
    m = mmap.mmap(f.fileno(), 0)
    assert m[1000] == 1000 % 256 and m.find(b"\xff\x00") == 255
    m[4096:4101] = b"hello"; m.flush()
    assert open(path, "rb").read()[4096:4101] == b"hello"
    p = mmap.mmap(f.fileno(), 8192, access=mmap.ACCESS_COPY); p[0:3] = b"abc"
    assert open(path, "rb").read(3) == b"\x00\x01\x02"
    r = mmap.mmap(f.fileno(), 4096, access=mmap.ACCESS_READ, offset=4096); assert r[0:5] == b"hello"
    if os.fork() == 0:
        m[262143] = 7; m[100] = 9
        os._exit(0)
    os.wait()
    assert m[262143] == 7 and m[100] == 9
    m.flush(); m.close()
data = open(path, "rb").read()
assert data[262143] == 7 and data[100] == 9 and len(data) == 262144
with open(path, "r+b") as f:
    m = mmap.mmap(f.fileno(), 0); m.resize(300000); m[299999] = 1; m.flush(); m.close()
assert os.path.getsize(path) == 300000 and open(path, "rb").read()[299999] == 1
END
