"""Writes arrays with numpy and h5py in the directory given, reads them back, prints one checksum."""

import hashlib
import sys

import h5py
import numpy as np

directory = sys.argv[1]
data = np.random.default_rng(2024).random((1000, 800))

with h5py.File(f"{directory}/result.h5", "w") as file:
    file.create_dataset("field", data=data, chunks=(100, 100), compression="gzip")
    file.create_dataset("steps", (0, 800), maxshape=(None, 800), chunks=(64, 800))
for step in range(20):
    with h5py.File(f"{directory}/result.h5", "a") as file:
        steps = file["steps"]
        steps.resize(step + 1, axis=0)
        steps[step] = data[step] * step

np.save(f"{directory}/field.npy", data)
mapped = np.load(f"{directory}/field.npy", mmap_mode="r+")
mapped[::2] *= 2
mapped.flush()

checksum = hashlib.sha256()
with h5py.File(f"{directory}/result.h5", "r") as file:
    assert (file["field"][:] == data).all()
    checksum.update(file["field"][:].tobytes())
    checksum.update(file["steps"][:].tobytes())
checksum.update(np.load(f"{directory}/field.npy").tobytes())
print(checksum.hexdigest())
