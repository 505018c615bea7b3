#!/usr/bin/env bash
# h5py and numpy: datasets, chunks, compression, append, attributes, memory-mapped arrays.
. "${BASH_SOURCE[0]%/*}/lib.sh"

need_module numpy h5py
export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1
python - "$D" <<'END'
import sys, h5py, numpy as np
d = sys.argv[1]
data = np.random.default_rng(7).random((500, 400))
with h5py.File(d + "/a.h5", "w") as f:
    f["plain"] = data
    f.create_dataset("packed", data=data, chunks=(50, 50), compression="gzip", shuffle=True, fletcher32=True)
    f.create_dataset("growing", (0, 10), maxshape=(None, 10), chunks=(64, 10))
    f.attrs["note"] = "kept"
for step in range(20):
    with h5py.File(d + "/a.h5", "a") as f:
        g = f["growing"]; g.resize(g.shape[0] + 30, axis=0); g[-30:] = step
        f.require_group(f"group/{step}").attrs["step"] = step
with h5py.File(d + "/a.h5", "r") as f:
    assert (f["plain"][:] == data).all() and (f["packed"][100:200, 7] == data[100:200, 7]).all()
    assert f["growing"].shape == (600, 10) and f["growing"][:, 0].sum() == 30 * sum(range(20))
    assert f.attrs["note"] == "kept" and len(f["group"]) == 20
with h5py.File(d + "/a.h5", "r+") as f: del f["plain"]; f["packed"][0, 0] = 5
with h5py.File(d + "/a.h5", "r") as f: assert f["packed"][0, 0] == 5 and "plain" not in f
np.save(d + "/x.npy", data); assert (np.load(d + "/x.npy") == data).all()
m = np.load(d + "/x.npy", mmap_mode="r+"); m[3, 3] = 42; m.flush(); del m
assert np.load(d + "/x.npy")[3, 3] == 42
np.savez_compressed(d + "/x.npz", a=data, b=data[::-1]); assert (np.load(d + "/x.npz")["b"] == data[::-1]).all()
data.tofile(d + "/raw"); assert (np.fromfile(d + "/raw").reshape(data.shape) == data).all()
m = np.memmap(d + "/map", dtype="i8", mode="w+", shape=100000); m[:] = np.arange(100000); m.flush(); del m
assert np.fromfile(d + "/map", dtype="i8").sum() == 4999950000
END
