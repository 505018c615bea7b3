"""Begins while no daemon answers, with descriptor 3 open for reading, 4 for appending, 5 on a directory.

Prints "CALL ERRNO" for calls on them, "waits", and after a line of its input the numbers of what
it, its child, and a program of its child get then. Ends as `cat <&3`, which prints the rest.
"""

import ctypes
import errno
import fcntl
import mmap
import os
import sys

libc = ctypes.CDLL(None, use_errno=True)


def result_of(call):
    """0, or the errno of the call."""
    try:
        call()
    except OSError as error:
        return error.errno
    return 0


def allocate():
    if libc.fallocate(4, 0, ctypes.c_long(0), ctypes.c_long(10)) != 0:
        raise OSError(ctypes.get_errno(), "fallocate")


def from_child(call):
    """As `result_of`, in a child."""
    pid = os.fork()
    if pid == 0:
        os._exit(result_of(call))
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def from_program(call):
    """As `result_of`, in a program that a child becomes."""
    pid = os.fork()
    if pid == 0:
        os.execv(sys.executable, [sys.executable, __file__, call])
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


CALLS = {
    "read": lambda: os.read(3, 1),
    "pread": lambda: os.pread(3, 1, 0),
    "readv": lambda: os.readv(3, [bytearray(1)]),
    "fstat": lambda: os.fstat(3),
    "lseek": lambda: os.lseek(3, 0, os.SEEK_SET),
    "mmap": lambda: mmap.mmap(3, 1, mmap.MAP_PRIVATE, mmap.PROT_READ),
    "dup": lambda: os.dup(3),
    "dup2": lambda: os.dup2(3, 9),
    "fcntl": lambda: fcntl.fcntl(3, fcntl.F_DUPFD, 9),
    "flock": lambda: fcntl.flock(3, fcntl.LOCK_SH),
    "lockf": lambda: fcntl.lockf(3, fcntl.LOCK_SH),
    "again": lambda: os.read(os.open("/proc/self/fd/3", os.O_RDONLY), 1),
    "sendfile": lambda: os.sendfile(1, 3, 0, 1),
    "write": lambda: os.write(4, b"lost"),
    "pwrite": lambda: os.pwrite(4, b"lost", 0),
    "writev": lambda: os.writev(4, [b"lost"]),
    "ftruncate": lambda: os.ftruncate(4, 0),
    "fallocate": allocate,
    "fsync": lambda: os.fsync(4),
    "fchmod": lambda: os.fchmod(4, 0o600),
    "copy": lambda: os.copy_file_range(3, 4, 1),
}
DIRECTORY_CALLS = {
    "openat": lambda: os.open("out", os.O_RDONLY, dir_fd=5),
    "fstatat": lambda: os.stat("out", dir_fd=5),
    "unlinkat": lambda: os.unlink("out", dir_fd=5),
    "getdents": lambda: os.listdir(5),
    "fchdir": lambda: os.fchdir(5),
}


def begins():
    calls = CALLS | (DIRECTORY_CALLS if sys.argv[1] == "with-directory" else {})
    for name, call in calls.items():
        print(name, result_of(call))
    print("child", from_child(CALLS["read"]))
    print("program", from_program("read"))
    # A closed number is an ordinary one again.
    os.close(5)
    assert os.open("/dev/null", os.O_RDONLY) == 5
    print("reused", result_of(lambda: os.read(5, 1)))
    sys.stdout.flush()
    told, tell = os.pipe()
    orphaned = os.fork()
    if orphaned == 0:
        os.close(tell)
        os.read(told, 1)
        # It attaches for a path, and still has no table with its descriptors.
        os.stat(sys.argv[2])
        first = result_of(lambda: os.pread(3, 1, 0))
        os._exit(first if from_program("pread") == first else 99)
    print("waits", flush=True)

    sys.stdin.readline()
    while (now := result_of(lambda: os.pread(3, 1, 0))) == errno.EIO:
        pass
    print("read", now)
    print("write", result_of(lambda: os.write(4, b"kept")))
    print("reused", result_of(lambda: os.read(5, 1)))
    print("child", from_child(lambda: os.pread(3, 1, 0)))
    os.close(tell)
    print("orphaned", os.waitstatus_to_exitcode(os.waitpid(orphaned, 0)[1]))
    print("program", from_program("pread"), flush=True)
    os.dup2(3, 0)
    os.execvp("cat", ["cat"])


if sys.argv[1] in CALLS:
    os._exit(result_of(CALLS[sys.argv[1]]))
begins()
