#!/usr/bin/env bash
# Python packages that make system calls of their own (Rust's rustix): safetensors, uv with its cache, numpy's maps.
# CASES_PYTHON is a directory of programs with such a Python.
. "${BASH_SOURCE[0]%/*}/lib.sh"

tools=${CASES_PYTHON:-/usr/bin}
[ -x "$tools/python3" ] || { echo "not installed: $tools/python3"; exit 77; }
found=0
if "$tools/python3" -c 'import numpy, safetensors' 2>/dev/null; then
    found=1
    "$tools/python3" - "$D" <<'END' || fail "safetensors"
import sys, numpy
from safetensors.numpy import load_file, save_file
for round in range(3):
    path = f"{sys.argv[1]}/model-{round % 2}.safetensors"
    save_file({"a": numpy.full((500, 500), round)}, path)
    assert load_file(path)["a"].sum() == 250000 * round
END
fi
if "$tools/python3" -c 'import numpy' 2>/dev/null; then
    found=1
    "$tools/python3" - "$D" <<'END' || fail "numpy"
import subprocess, sys, numpy
at = sys.argv[1]
mapped = numpy.memmap(at + "/mapped", dtype="i8", mode="w+", shape=(1000, 1000))
mapped[:] = 7
mapped.flush()
code = f"import numpy; m = numpy.memmap({at!r} + '/mapped', dtype='i8', mode='r+', shape=(1000, 1000)); assert (m == 7).all(); m[5, 5] = 9; m.flush()"
subprocess.run([sys.executable, "-c", code], check=True)
assert mapped[5, 5] == 9
numpy.save(at + "/x.npy", numpy.arange(1 << 20))
assert numpy.load(at + "/x.npy", mmap_mode="r")[-1] == (1 << 20) - 1
numpy.savez_compressed(at + "/z", a=numpy.arange(10))
assert numpy.load(at + "/z.npz")["a"][9] == 9
END
fi
if [ -x "$tools/uv" ]; then
    found=1
    cd "$D" || exit 1
    UV_CACHE_DIR=$D/cache UV_NO_CONFIG=1 "$tools/uv" venv -q --python "$tools/python3" v || fail "uv"
    v/bin/python -c 'import sys; assert sys.prefix != sys.base_prefix' || fail "uv's Python"
fi
[ $found = 1 ] || { echo "not installed: numpy, safetensors, uv"; exit 77; }
