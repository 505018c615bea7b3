#!/usr/bin/env bash
# lmdb: a memory-mapped database with a shared lock file; transactions, cursors, two processes.
. "${BASH_SOURCE[0]%/*}/lib.sh"

need_module lmdb
python - "$D" <<'END'
import os, sys, lmdb
path = sys.argv[1] + "/db"
with lmdb.open(path, map_size=1 << 26) as env:
    for r in range(5):
        with env.begin(write=True) as t:
            for i in range(2000): t.put(b"%06d" % (r * 2000 + i), b"v" * (i % 300))
    try:
        with env.begin(write=True) as t: t.put(b"lost", b"1"); raise KeyError
    except KeyError: pass
    with env.begin() as t: assert t.stat()["entries"] == 10000 and t.get(b"lost") is None
if os.fork() == 0:
    with lmdb.open(path, map_size=1 << 26) as env:
        with env.begin(write=True) as t: t.put(b"child", b"was here"); t.delete(b"000000")
    os._exit(0)
assert os.wait()[1] == 0
with lmdb.open(path, map_size=1 << 26, writemap=True) as env:
    with env.begin(write=True) as t: assert t.get(b"child") == b"was here"; t.put(b"z", b"z")
    with env.begin() as t:
        keys = [k for k, _ in t.cursor()]
        assert keys == sorted(keys) and len(keys) == 10001
    env.sync(True)
END
