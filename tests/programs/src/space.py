# Files on an instance, by a program whose address space is limited. Arguments: a directory on the instance; how many
# MiB more than now may be mapped once the first file has been written, 0 for no limit of its own.
import os, resource, sys

os.chdir(sys.argv[1])
more = int(sys.argv[2])
with open("first", "wb") as file:
    file.write(b"x" * 100)
if more:
    lines = open("/proc/self/status").readlines()
    now = next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmSize"))
    resource.setrlimit(resource.RLIMIT_AS, (now + (more << 20), resource.getrlimit(resource.RLIMIT_AS)[1]))
block = os.urandom(1 << 20)
for number in range(40):
    with open(f"file-{number}", "wb") as file:
        file.write(block[number:])
    os.mkdir(f"directory-{number}")
    with open(f"directory-{number}/file", "wb") as file:
        file.write(block[:3 * number])
for number in range(40):
    with open(f"file-{number}", "r+b") as file:
        assert file.read() == block[number:], number
        file.seek(5000)
        file.write(b"changed")
        file.seek(4999)
        expected = bytearray(block[number:])
        expected[5000:5007] = b"changed"
        assert file.read(9) == expected[4999:5008], number
        file.truncate(5000)
    assert os.stat(f"file-{number}").st_size == 5000
    assert open(f"directory-{number}/file", "rb").read() == block[:3 * number]
    os.rename(f"file-{number}", f"directory-{number}/other")
    assert open(f"directory-{number}/other", "rb").read() == expected[:5000]
assert len(os.listdir(".")) == 41
