#!/usr/bin/env bash
# Many files open at once, thousands of small writes at random places of each, read back whole.
. "${BASH_SOURCE[0]%/*}/lib.sh"

need python3
python3 - "$D" <<'P' || fail "bytes differ"
import os, random, sys
d = sys.argv[1]; r = random.Random(7); N = 24; S = 300000
fds = [os.open(f"{d}/f{i}", os.O_RDWR | os.O_CREAT) for i in range(N)]
want = [bytearray() for _ in range(N)]
for _ in range(12000):
    i = r.randrange(N); off = r.randrange(S); n = r.randrange(1, 3000); b = bytes([r.randrange(1, 256)]) * n
    if r.random() < .5: os.pwrite(fds[i], b, off)
    else: os.lseek(fds[i], off, 0); os.write(fds[i], b)
    w = want[i]
    if len(w) < off + n: w.extend(bytes(off + n - len(w)))
    w[off:off + n] = b
bad = 0
for i in range(N):
    got = open(f"{d}/f{i}", "rb").read()
    if got != bytes(want[i]): bad += 1; print("file", i, "differs", len(got), len(want[i]))
sys.exit(bad != 0)
P
