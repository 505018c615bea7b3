#!/usr/bin/env bash
# python: multiprocessing workers write parts of one file and read each other's.
. "${BASH_SOURCE[0]%/*}/lib.sh"

need python3
cat >"$T/program.py" <<'END'
import hashlib, multiprocessing, os, sys
path, size = sys.argv[1] + "/shared", 100003
def part(i): return hashlib.shake_128(b"%d" % i).digest(size)
def write(i):
    with open(path, "r+b") as f:
        f.seek(i * size); f.write(part(i))
def check(i):
    with open(path, "rb") as f:
        f.seek(i * size); return f.read(size) == part(i)
if __name__ == "__main__":
    open(path, "w").close()
    for method in ("fork", "spawn"):
        os.truncate(path, 0)
        with multiprocessing.get_context(method).Pool(4) as pool:
            pool.map(write, range(16)); assert all(pool.map(check, range(16)))
        assert os.path.getsize(path) == 16 * size
        assert open(path, "rb").read() == b"".join(map(part, range(16)))
END
python "$T/program.py" "$D"
