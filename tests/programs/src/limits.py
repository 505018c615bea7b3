# Limits on the size of files, set and lifted by the program itself, and the resident memory of file calls.
import errno, os, resource, signal, subprocess, sys

os.chdir(sys.argv[1])
arrived = []
signal.signal(signal.SIGXFSZ, lambda *_: arrived.append(1))
LIMIT = 1_000_000
hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]


def limit(size):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))


def refused(call, *arguments):
    before = len(arrived)
    try:
        call(*arguments)
    except OSError as error:
        assert error.errno == errno.EFBIG, error
        for _ in range(10):  # Python runs handlers between its own steps.
            pass
        assert len(arrived) == before + 1, (call, arguments, len(arrived) - before)
        return
    raise AssertionError((call, arguments))


fd = os.open("file", os.O_CREAT | os.O_RDWR)
limit(LIMIT)
assert os.write(fd, b"a" * 2_000_000) == LIMIT
refused(os.write, fd, b"b")
refused(os.pwrite, fd, b"b", LIMIT)
refused(os.pwrite, fd, b"b", LIMIT + 5)
assert os.pwrite(fd, b"b" * 100, LIMIT - 10) == 10
assert os.pwritev(fd, [b"c" * 50, b"d" * 70], LIMIT - 100) == 100
refused(os.ftruncate, fd, LIMIT + 1)
refused(os.truncate, "file", LIMIT + 1)
refused(os.posix_fallocate, fd, LIMIT - 10, 20)
os.posix_fallocate(fd, LIMIT - 10, 10)
os.ftruncate(fd, LIMIT)
assert os.fstat(fd).st_size == LIMIT

# Appends, small and large.
end = os.open("appended", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
for size in (10, 999_000, 500):
    assert os.write(end, b"e" * size) == size
assert os.write(end, b"f" * 5000) == 490
refused(os.write, end, b"g")
assert os.stat("appended").st_size == LIMIT

# A child has the same limit, and what is already longer may be written and cut.
child = "import os; f = os.open('child', os.O_CREAT | os.O_WRONLY); print(os.write(f, bytes(2000000)))"
assert int(subprocess.run([sys.executable, "-c", child], stdout=subprocess.PIPE, check=True).stdout) == LIMIT
limit(5000)
os.ftruncate(fd, 900_000)
assert os.pwrite(fd, b"h" * 100, 4950) == 50
refused(os.pwrite, fd, b"h", 5000)
limit(resource.RLIM_INFINITY if hard == resource.RLIM_INFINITY else hard)
assert os.pwrite(fd, b"i", LIMIT + 50) == 1 and os.fstat(fd).st_size == LIMIT + 51


def resident():
    for line in open("/proc/self/status"):
        if line.startswith("VmRSS"):
            return int(line.split()[1])


MIB = 1 << 20
MOST = 64 << 10
names = ["one", "two", "three"]
block = os.urandom(MIB)
before = resident()
for name in names:
    with open(name, "wb", buffering=0) as file:
        for _ in range(48):
            file.write(block)
    assert resident() - before < MOST, ("written", resident() - before)
for name in names:
    with open(name, "rb", buffering=0) as file:
        for _ in range(48):
            assert file.read(MIB) == block
    assert resident() - before < MOST, ("read", resident() - before)
for step in range(2000):
    name = names[step % 3]
    with open(name, "rb", buffering=0) as file:
        at = step * 7919 * 4096 % (47 * MIB)
        assert os.pread(file.fileno(), 8192, at) == (block * 2)[at % MIB:at % MIB + 8192]
assert resident() - before < MOST, ("at random", resident() - before)
for name in names:
    os.unlink(name)
